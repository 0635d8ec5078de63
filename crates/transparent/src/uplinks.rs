//! Which links packets of this machine can leave through, and which of them new
//! connections from inside the tunnel appear to come in by.
//!
//! [`survey`] is a pure function of what the kernel lists; [`UplinkWatch`] lists
//! again whenever something changes.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::BorrowedFd;

use taupe_os_linux::netlink::{Address, Link, Medium, Route, RouteKind, System, SystemError};
use taupe_os_linux::watch::RouteWatch;

#[cfg(test)]
mod tests;

/// A link to be guarded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uplink {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What its packets are wrapped in.
    pub header: LinkHeader,
    /// A default route goes by it: what this machine forwards leaves by such a link,
    /// and by others only reaches their own networks.
    pub leads_out: bool,
}

/// What has to stand before a packet so that it can come in by a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkHeader {
    /// An Ethernet header to this address.
    Ethernet([u8; 6]),
    /// Nothing: PPP, mobile broadband, tunnels.
    None,
    /// A header that is not known here. Nothing can be tunnelled from such a
    /// link: what chosen applications send there is dropped.
    Unknown,
}

/// Where new connections from inside the tunnel appear to come in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Main<A> {
    /// The index of the link.
    pub link: u32,
    /// Its first address of the family.
    pub address: A,
}

/// All that is to be known of links.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Survey {
    /// The links to be guarded, by index.
    pub guarded: Vec<Uplink>,
    /// The addresses of this machine on them.
    pub addresses: Vec<Address>,
    /// Those on loopback besides 127.0.0.0/8 and `::1`, by which this machine can be asked too.
    pub on_loopback: Vec<Address>,
    /// The link of the best default route, for IPv4.
    pub main_v4: Option<Main<Ipv4Addr>>,
    /// The same for IPv6.
    pub main_v6: Option<Main<Ipv6Addr>>,
}

/// Works out what to guard, for the tunnel whose interface is `own`.
///
/// Every link is guarded that packets of this machine can be routed to, whether
/// it is up or not: a link that comes up later shall not be a way out before
/// somebody has noticed. Parts of a bridge or a bond are not: nothing is routed
/// to them, and the whole has its own guard.
#[must_use]
pub fn survey(links: &[Link], addresses: &[Address], routes: &[Route], own: u32) -> Survey {
    let leads_out = |link: &Link| {
        routes.iter().any(|route| {
            route.interface == Some(link.index)
                && route.kind == RouteKind::Unicast
                && route.destination.prefix_len() == 0
        })
    };
    let mut guarded: Vec<Uplink> = links
        .iter()
        .filter(|link| link.index != own && is_routed_to(link, links))
        .filter_map(|link| uplink(link, leads_out(link)))
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
    // Stable: of two with one metric the kernel's first is the first.
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

/// What makes one link of several, none of which packets are routed to.
const BUNDLES: [&str; 4] = ["bridge", "bond", "team", "openvswitch"];

fn is_routed_to(link: &Link, links: &[Link]) -> bool {
    let controller = link
        .controller
        .and_then(|index| links.iter().find(|other| other.index == index));
    let kind = controller.and_then(|controller| controller.kind.as_deref());
    !kind.is_some_and(|kind| BUNDLES.contains(&kind))
}

fn uplink(link: &Link, leads_out: bool) -> Option<Uplink> {
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
        leads_out,
    })
}

/// The types of links (`ARPHRD_*`) on which the kernel hands packets to traffic
/// control without a header.
const HEADERLESS: [u16; 6] = [
    libc::ARPHRD_NONE,
    libc::ARPHRD_PPP,
    ARPHRD_RAWIP,
    libc::ARPHRD_TUNNEL,
    libc::ARPHRD_TUNNEL6,
    libc::ARPHRD_SIT,
];

/// Mobile broadband; not among libc's (Linux 4.14).
const ARPHRD_RAWIP: u16 = 519;

fn global_v6(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V6(v6) if !v6.is_unicast_link_local() => Some(address),
        _ => None,
    }
}

/// Wakes when what [`survey`] depends on may have changed.
#[derive(Debug)]
pub struct UplinkWatch {
    watch: RouteWatch,
    system: System,
    own: u32,
}

impl UplinkWatch {
    /// Watches the calling thread's network namespace from now on, for the
    /// tunnel whose interface is `own`.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(own: u32) -> io::Result<Self> {
        Ok(Self {
            watch: RouteWatch::open_with_filters()?,
            system: System::open().map_err(io::Error::other)?,
            own,
        })
    }

    /// Readable when [`Self::survey`] may have something new to say.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.fd()
    }

    /// Takes all notices and says how it is now. Never waits for a notice.
    ///
    /// # Errors
    /// The kernel's.
    pub fn survey(&mut self) -> Result<Survey, SystemError> {
        // Before looking, so that what changes meanwhile is noticed again. One
        // that cannot be read was lost among too many: looking is right then, too.
        let _ = self.watch.drain();
        let links = self.system.links()?;
        let addresses = self.system.addresses()?;
        let routes = self.system.routes()?;
        Ok(survey(&links, &addresses, &routes, self.own))
    }
}
