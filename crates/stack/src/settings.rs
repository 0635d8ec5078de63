//! Settings of a tunnel, and the choice of source addresses.

use crate::address::is_routable;
use crate::failure::ConnectFailure;
use crate::keepalive::Keepalive;
use crate::{MIN_MTU, NoticeHandler, OpenError};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use taupe_protocol::DataPath;
use taupe_protocol::update::DeviceUpdate;
use taupe_runtime::services::Services;

/// Addresses of this side of the tunnel: the first of each family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addresses {
    /// The IPv4 address.
    pub v4: Option<Ipv4Addr>,
    /// The IPv6 address.
    pub v6: Option<Ipv6Addr>,
}

impl Addresses {
    /// Takes the first address of each family.
    pub fn first(all: impl Iterator<Item = IpAddr>) -> Self {
        let mut first = Self { v4: None, v6: None };
        for address in all {
            match address {
                IpAddr::V4(address) => _ = first.v4.get_or_insert(address),
                IpAddr::V6(address) => _ = first.v6.get_or_insert(address),
            }
        }
        first
    }

    /// Returns the address in the family of `remote`.
    pub(crate) fn matching(self, remote: IpAddr) -> Option<IpAddr> {
        match remote {
            IpAddr::V4(_) => self.v4.map(IpAddr::V4),
            IpAddr::V6(_) => self.v6.map(IpAddr::V6),
        }
    }

    /// Checks that a host can have the addresses.
    fn check(self) -> Result<(), OpenError> {
        let all = [self.v4.map(IpAddr::V4), self.v6.map(IpAddr::V6)];
        let is_nobody = |address: &IpAddr| {
            let is_broadcast = *address == IpAddr::V4(Ipv4Addr::BROADCAST);
            address.is_unspecified() || address.is_multicast() || is_broadcast
        };
        let mut there = all.into_iter().flatten().peekable();
        there.peek().ok_or(OpenError::NoAddress)?;
        let nobody = there.find(is_nobody);
        nobody.map_or(Ok(()), |address| Err(OpenError::NotAHost(address)))
    }
}

/// Source addresses of packets, by destination. Any thread may use a clone.
#[derive(Clone)]
pub struct Sources {
    pub(crate) addresses: Addresses,
    pub(crate) path: Arc<DataPath>,
}

impl Sources {
    /// Returns the source address of packets to `remote`.
    ///
    /// # Errors
    ///
    /// [`ConnectFailure::Network`] if the tunnel does not route there.
    pub fn source_for(&self, remote: IpAddr) -> Result<IpAddr, ConnectFailure> {
        let local = self.addresses.matching(remote);
        let is_routed = is_routable(remote) && self.path.routes().lookup(remote).is_some();
        local.filter(|_| is_routed).ok_or(ConnectFailure::Network)
    }

    /// Returns the addresses.
    #[must_use]
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }
}

/// Settings of a tunnel.
pub struct Settings {
    /// The private key and the peers.
    pub device: DeviceUpdate,
    /// The UDP port of the tunnel; 0 lets the system choose.
    pub listen_port: u16,
    /// This side's addresses in the tunnel.
    pub addresses: Addresses,
    /// The MTU inside the tunnel, in bytes.
    pub mtu: usize,
    /// Name servers behind the tunnel.
    pub dns: Vec<IpAddr>,
    /// TCP keepalive of new connections. `None` sends no probes.
    pub keepalive: Option<Keepalive>,
    /// Saved state and look-ups of endpoint names. Their wake-up must end the user's wait.
    pub services: Services,
    /// Receives a notice when a peer stops answering or answers again. It must not block.
    pub notices: Option<NoticeHandler>,
}

impl Settings {
    /// Checks the addresses and the MTU before anything is opened.
    ///
    /// # Errors
    ///
    /// [`OpenError::NoAddress`], [`OpenError::NotAHost`], [`OpenError::Mtu`].
    pub fn check(addresses: Addresses, mtu: usize) -> Result<(), OpenError> {
        addresses.check()?;
        if mtu < MIN_MTU {
            return Err(OpenError::Mtu(mtu));
        }
        Ok(())
    }
}
