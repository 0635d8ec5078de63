//! Addresses of interfaces.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_bindings::rt_addr::{Ifaddrmsg, OpNewaddrDo, Request};
use serde::{Deserialize, Serialize};
use taupe_packet::ip::Family;

use super::{
    client::{Netlink, address_family, parse_family},
    error::Result,
    socket::NetlinkSocket,
};

/// An address of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Address {
    /// The interface's index.
    pub interface: u32,
    /// The address with the length of its network; host bits are kept.
    pub network: IpNet,
}

impl Netlink {
    /// Returns the addresses of every interface, those of one interface in the kernel's order.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn addresses(&mut self) -> Result<Vec<Address>> {
        list(&mut self.rtnetlink)
    }

    /// Adds an address to an interface, as `ip address add` does.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn add_address(&mut self, address: &Address) -> Result<()> {
        let mut request = Request::new()
            .set_create()
            .set_excl()
            .op_newaddr_do(&header(address));
        let ip = address.network.addr();
        request.encode().push_local(ip).push_address(ip);
        self.rtnetlink.request(&request, |_| {}).map_err(|error| {
            let name = self.rtnetlink.interface_name(address.interface);
            error.context(format!("give {name} the address {}", address.network))
        })
    }

    /// Removes an address from an interface.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn remove_address(&mut self, address: &Address) -> Result<()> {
        let mut request = Request::new().op_deladdr_do(&header(address));
        let ip = address.network.addr();
        request.encode().push_local(ip).push_address(ip);
        self.rtnetlink.request(&request, |_| {}).map_err(|error| {
            let name = self.rtnetlink.interface_name(address.interface);
            error.context(format!("take the address {} from {name}", address.network))
        })
    }
}

pub(super) fn list(socket: &mut NetlinkSocket) -> Result<Vec<Address>> {
    let request = Request::new().op_getaddr_dump(&Ifaddrmsg::new());
    socket
        .dump(&request, |body, all| all.extend(parse(body)))
        .map_err(|error| error.context("list the addresses"))
}

pub(super) fn header(address: &Address) -> Ifaddrmsg {
    let mut header = Ifaddrmsg::new();
    header.ifa_family = address_family(Family::of(address.network.addr()));
    header.ifa_prefixlen = address.network.prefix_len();
    header.ifa_index = address.interface;
    // The kernel sets the scope of an IPv6 address itself.
    header.ifa_scope = match address.network.addr() {
        IpAddr::V4(ip) if ip.is_loopback() => libc::RT_SCOPE_HOST,
        _ => libc::RT_SCOPE_UNIVERSE,
    };
    header
}

pub(super) fn parse(body: &[u8]) -> Option<Address> {
    let (header, attributes) = OpNewaddrDo::decode_request(body);
    // On a point-to-point link, "address" is the peer's.
    let ip = attributes
        .get_local()
        .or_else(|_| attributes.get_address())
        .ok()?;
    (parse_family(header.ifa_family)? == Family::of(ip)).then_some(())?;
    Some(Address {
        interface: header.ifa_index,
        network: IpNet::new(ip, header.ifa_prefixlen).ok()?,
    })
}
