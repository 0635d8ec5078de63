//! Generic netlink families (`linux/genetlink.h`).

use netlink_bindings::{
    nlctrl,
    traits::{NetlinkRequest, Protocol},
};
use rustix::{io::Errno, net::netlink::GENERIC};
use zeroize::Zeroizing;

use super::{
    error::{NetlinkError, Result},
    socket::{NetlinkSocket, RequestError},
};

/// Message type of requests to the controller, which knows the other families.
const CONTROLLER: u16 = 16;

/// A generic netlink family, in the network namespace that the calling thread was in when this was
/// opened.
#[derive(Debug)]
pub struct GenericFamily {
    socket: NetlinkSocket,
    name: &'static str,
}

impl GenericFamily {
    /// Finds the family of this name.
    ///
    /// # Errors
    ///
    /// The kernel's; `ENOENT` if it has no such family and cannot load a module that provides it.
    pub fn open(name: &'static str) -> Result<Self> {
        let failed = |error: RequestError| error.context(format!("find {name} in the kernel"));
        let socket = NetlinkSocket::open(Some(GENERIC)).map_err(failed)?;
        let mut socket = socket.with_family(CONTROLLER);
        let mut request = nlctrl::Request::new().op_getfamily_do();
        request.encode().push_family_name_bytes(name.as_bytes());
        let mut number = None;
        let found = socket.request(&request, |answer| number = number.or(parse_number(answer)));
        found.map_err(failed)?;
        match number {
            Some(number) => Ok(Self {
                socket: socket.with_family(number),
                name,
            }),
            None => Err(failed(Errno::NOENT.into())),
        }
    }

    /// Sends a request that changes something.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn request(&mut self, request: &impl NetlinkRequest) -> Result<()> {
        debug_assert!(
            matches!(request.protocol(), Protocol::Generic(name) if name == self.name.as_bytes())
        );
        let done = self.socket.request(request, |_| ());
        done.map_err(|error| self.with_context(error))
    }

    /// Returns the contents of the messages that answer a list request, as a consistent snapshot.
    /// They may contain keys.
    ///
    /// # Errors
    ///
    /// The kernel's; `EAGAIN` if the list keeps changing while it is read.
    pub fn dump(&mut self, request: &impl NetlinkRequest) -> Result<Vec<Zeroizing<Vec<u8>>>> {
        let listed = self.socket.dump(request, |answer, all| {
            all.push(Zeroizing::new(answer.to_vec()));
        });
        listed.map_err(|error| self.with_context(error))
    }

    fn with_context(&self, error: RequestError) -> NetlinkError {
        error.context(format!("send a request to {} in the kernel", self.name))
    }
}

/// Parses the number of a family.
pub(super) fn parse_number(answer: &[u8]) -> Option<u16> {
    let family = nlctrl::OpGetfamilyDo::decode_reply(answer);
    family.get_family_id().ok()
}
