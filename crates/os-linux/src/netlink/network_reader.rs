//! A client that changes nothing, for processes that must not open sockets later.

use std::{
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{
    address::{self, Address},
    error::Result,
    link::{self, Link},
    route::{self, RouteLookup, RouteQuery},
    socket::NetlinkSocket,
};

/// Client that reads the network namespace that the calling thread was in when the client was
/// opened. It needs no rights.
///
/// Several threads may share it. A request waits until the one before has its answer.
#[derive(Debug)]
pub struct NetworkReader(Mutex<NetlinkSocket>);

impl NetworkReader {
    /// Opens the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open() -> Result<Self> {
        let socket = NetlinkSocket::open(None);
        let socket = socket.map_err(|error| error.context("open a netlink socket"))?;
        Ok(Self(Mutex::new(socket)))
    }

    /// Returns every interface.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn links(&self) -> Result<Vec<Link>> {
        link::list(&mut self.socket())
    }

    /// Returns the interface of this name, or `None` if there is none.
    ///
    /// # Errors
    ///
    /// The kernel's; `EINVAL` for an invalid interface name.
    pub fn link(&self, name: &str) -> Result<Option<Link>> {
        link::find(&mut self.socket(), name)
    }

    /// Returns the addresses of every interface, those of one interface in the kernel's order.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn addresses(&self) -> Result<Vec<Address>> {
        address::list(&mut self.socket())
    }

    /// Looks a route up, as `ip route get` does.
    ///
    /// # Errors
    ///
    /// The kernel's: `ENETUNREACH` or `EHOSTUNREACH` if there is no route. An IPv4 source that is not
    /// an address of this machine is an error, too; the kernel does not check an IPv6 source.
    pub fn route(&self, query: &RouteQuery) -> Result<RouteLookup> {
        let found = route::lookup(&mut self.socket(), query);
        found.map_err(|error| error.context(format!("find the {query}")))
    }

    fn socket(&self) -> MutexGuard<'_, NetlinkSocket> {
        // A socket whose request did not end skips the rest of its answer.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes over the socket of a client that another process opened.
impl From<OwnedFd> for NetworkReader {
    fn from(socket: OwnedFd) -> Self {
        Self(Mutex::new(socket.into()))
    }
}

impl From<NetworkReader> for OwnedFd {
    fn from(reader: NetworkReader) -> Self {
        let socket = reader.0.into_inner();
        socket.unwrap_or_else(PoisonError::into_inner).into()
    }
}
