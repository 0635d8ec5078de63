//! Listings by `sysctl`.

use taupe_packet::ip::Family;

use super::{DecodeError, EncodeError, Interface, InterfaceAddress, Message, RouteEntry, messages};
use crate::{
    System,
    layout::{AF_ROUTE, CTL_NET, NET_RT_DUMP, NET_RT_IFLIST},
    socket_address::address_family,
};

/// A listing of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Listing {
    /// All routes (`NET_RT_DUMP`), on FreeBSD those of the routing table with this number. Without
    /// a number they are those of the table that the process has.
    Routes(Option<u32>),
    /// All interfaces and their addresses (`NET_RT_IFLIST`). [`Table::decode`] does not understand
    /// FreeBSD's `NET_RT_IFLISTL`, whose messages have the same numbers and longer headers.
    Interfaces,
}

/// Returns the name of a listing as the numbers that `sysctl` takes, of one family or of both.
///
/// # Errors
///
/// [`EncodeError::Fib`] on macOS, if a routing table is selected.
pub fn listing(
    system: System,
    listing: Listing,
    family: Option<Family>,
) -> Result<Vec<i32>, EncodeError> {
    let family = family.map_or(0, |family| address_family(system, family).into());
    let (kind, fib) = match listing {
        Listing::Routes(fib) => (NET_RT_DUMP, fib),
        Listing::Interfaces => (NET_RT_IFLIST, None),
    };
    let mut name = vec![
        CTL_NET.cast_signed(),
        AF_ROUTE.cast_signed(),
        0,
        family,
        kind.cast_signed(),
        0,
    ];
    match (system, fib) {
        (_, None) => {}
        (System::FreeBsd, Some(fib)) => name.push(fib.cast_signed()),
        (System::MacOs, Some(fib)) => return Err(EncodeError::Fib(fib)),
    }
    Ok(name)
}

/// A decoded listing, in the kernel's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    /// Routes. A FreeBSD route with several next hops is listed once for each.
    pub routes: Vec<RouteEntry>,
    /// Interfaces.
    pub interfaces: Vec<Interface>,
    /// Addresses of interfaces.
    pub addresses: Vec<InterfaceAddress>,
    /// The number of other messages, which include routes and addresses that are neither IPv4 nor
    /// IPv6.
    pub skipped: usize,
}

impl Table {
    /// Decodes the bytes of a listing.
    ///
    /// # Errors
    ///
    /// [`DecodeError`] if the bytes contradict themselves.
    pub fn decode(system: System, bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut table = Self::default();
        for message in messages(system, bytes) {
            match message? {
                Message::Route(entry, _) => table.routes.push(entry),
                Message::Interface(interface) => table.interfaces.push(interface),
                Message::AddressAdded(address) => table.addresses.push(address),
                _ => table.skipped += 1,
            }
        }
        Ok(table)
    }
}
