//! The links that packets of this machine can leave by, and the main link, by which new connections
//! from inside the tunnel appear to arrive.
//!
//! [`survey`] is a pure function of the kernel's lists. [`UplinkWatch`] lists again whenever
//! something changes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use taupe_os_linux::netlink::{Address, Link, Medium, Netlink, NetlinkError, Route, RouteKind};
use taupe_os_linux::watch::RouteWatch;

#[cfg(test)]
mod tests;

/// A link to be guarded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uplink {
    /// Interface index.
    pub index: u32,
    /// Interface name.
    pub name: String,
    /// Link-layer header of its packets.
    pub header: LinkHeader,
    /// True if a default route uses the link. Forwarded packets leave by such links; by other links
    /// they reach only the link's own networks.
    pub has_default_route: bool,
}

/// The header that a packet needs to be received on a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkHeader {
    /// An Ethernet header with this destination address.
    Ethernet([u8; 6]),
    /// No header: PPP, mobile broadband, tunnels.
    None,
    /// An unknown header. Nothing can be tunnelled from such a link: packets that selected
    /// applications send there are dropped.
    Unknown,
}

/// The link by which new connections from inside the tunnel appear to arrive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Main<A> {
    /// Interface index.
    pub link: u32,
    /// The first address of the family on the link.
    pub address: A,
}

/// The links of a network namespace, as far as transparent mode needs them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Survey {
    /// The links to be guarded, by index.
    pub guarded: Vec<Uplink>,
    /// The addresses of this machine on these links.
    pub addresses: Vec<Address>,
    /// The addresses on loopback besides 127.0.0.0/8 and `::1`. A local resolver may listen on
    /// them.
    pub on_loopback: Vec<Address>,
    /// The link of the best IPv4 default route.
    pub main_v4: Option<Main<Ipv4Addr>>,
    /// The link of the best IPv6 default route.
    pub main_v6: Option<Main<Ipv6Addr>>,
}

/// Determines the links to be guarded, for the tunnel whose interface is `own`.
///
/// Guards every link to which packets of this machine can be routed, up or down, so that a link
/// that comes up later is guarded already. Ports of a bridge or bond are left out: nothing is
/// routed to them, and the bridge or bond has its own guard.
#[must_use]
pub fn survey(links: &[Link], addresses: &[Address], routes: &[Route], own: u32) -> Survey {
    let has_default_route = |link: &Link| {
        routes.iter().any(|route| {
            route.interface == Some(link.index)
                && route.kind == RouteKind::Unicast
                && route.destination.prefix_len() == 0
        })
    };
    let mut guarded: Vec<Uplink> = links
        .iter()
        .filter(|link| link.index != own && can_carry_routes(link, links))
        .filter_map(|link| uplink(link, has_default_route(link)))
        .collect();
    guarded.sort_by_key(|link| link.index);
    let is_guarded = |index: u32| {
        guarded
            .binary_search_by_key(&index, |link| link.index)
            .is_ok()
    };
    let is_loopback = |index: u32| {
        let mut of_loopback = links.iter().filter(|link| link.medium == Medium::Loopback);
        of_loopback.any(|link| link.index == index)
    };
    let on_loopback = addresses
        .iter()
        .filter(|own| is_loopback(own.interface) && !own.network.addr().is_loopback())
        .cloned()
        .collect();
    let addresses: Vec<Address> = addresses
        .iter()
        .filter(|address| is_guarded(address.interface))
        .cloned()
        .collect();
    let mut defaults: Vec<&Route> = routes
        .iter()
        .filter(|route| {
            route.table == Route::MAIN_TABLE
                && route.kind == RouteKind::Unicast
                && route.destination.prefix_len() == 0
        })
        .collect();
    // The sort is stable: among equal metrics the kernel's order decides.
    defaults.sort_by_key(|route| route.metric);
    let of_best = |address_of: fn(IpAddr) -> Option<IpAddr>, is_ipv4: bool| {
        let routes = defaults
            .iter()
            .filter(|route| route.destination.addr().is_ipv4() == is_ipv4);
        routes.filter_map(|route| route.interface).find_map(|link| {
            let mut here = addresses.iter().filter(|own| own.interface == link);
            here.find_map(|own| address_of(own.network.addr()))
                .map(|address| (link, address))
        })
    };
    let main_v4 = match of_best(|address| address.is_ipv4().then_some(address), true) {
        Some((link, IpAddr::V4(address))) => Some(Main { link, address }),
        _ => None,
    };
    let main_v6 = match of_best(global_v6, false) {
        Some((link, IpAddr::V6(address))) => Some(Main { link, address }),
        _ => None,
    };
    Survey {
        guarded,
        addresses,
        on_loopback,
        main_v4,
        main_v6,
    }
}

/// Kinds of links that combine others. Nothing is routed to the links below them.
const AGGREGATES: [&str; 4] = ["bridge", "bond", "team", "openvswitch"];

fn can_carry_routes(link: &Link, links: &[Link]) -> bool {
    let controller = link
        .controller
        .and_then(|index| links.iter().find(|other| other.index == index));
    let kind = controller.and_then(|controller| controller.kind.as_deref());
    !kind.is_some_and(|kind| AGGREGATES.contains(&kind))
}

fn uplink(link: &Link, has_default_route: bool) -> Option<Uplink> {
    let header = match link.medium {
        Medium::Loopback => return None,
        Medium::Ethernet(address) => LinkHeader::Ethernet(address),
        Medium::Other(kind) if HEADERLESS.contains(&kind) => LinkHeader::None,
        Medium::Other(_) => LinkHeader::Unknown,
    };
    Some(Uplink {
        index: link.index,
        name: link.name.clone(),
        header,
        has_default_route,
    })
}

/// Types of links (`ARPHRD_*`) whose packets have no link-layer header in traffic control.
const HEADERLESS: [u16; 6] = [
    libc::ARPHRD_NONE,
    libc::ARPHRD_PPP,
    ARPHRD_RAWIP,
    libc::ARPHRD_TUNNEL,
    libc::ARPHRD_TUNNEL6,
    libc::ARPHRD_SIT,
];

/// Mobile broadband (Linux 4.14); missing from libc.
const ARPHRD_RAWIP: u16 = 519;

fn global_v6(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => Some(address),
        _ => None,
    }
}

/// Notifies of changes that may affect [`survey`].
#[derive(Debug)]
pub struct UplinkWatch {
    watch: RouteWatch,
    system: Netlink,
    own: u32,
}

impl UplinkWatch {
    /// Watches the calling thread's network namespace from now on, for the tunnel whose interface
    /// is `own`.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(own: u32) -> io::Result<Self> {
        Ok(Self {
            watch: RouteWatch::open_with_filters()?,
            system: Netlink::open().map_err(io::Error::other)?,
            own,
        })
    }

    /// Returns a descriptor that is readable when [`Self::survey`] may have a new result.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.fd()
    }

    /// Reads all pending notifications without waiting, and surveys the links.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn survey(&mut self) -> Result<Survey, NetlinkError> {
        // Drain before listing, so that a change during the listing causes another notification. An
        // error means that notifications were lost; listing is right then, too.
        let _ = self.watch.drain();
        let links = self.system.links()?;
        let addresses = self.system.addresses()?;
        let routes = self.system.routes()?;
        Ok(survey(&links, &addresses, &routes, self.own))
    }
}
