//! rtnetlink notifications.
//!
//! A TUN interface may be moved to another network namespace, and an ordinary socket does not
//! receive that namespace's notifications. A socket opened inside it would, but would also keep the
//! namespace and the interface in it alive after the owner deleted it. Therefore the socket stays
//! in its own namespace and listens to all namespaces that have an id there
//! (`NETLINK_LISTEN_ALL_NSID`, Linux 4.2), which keeps none of them alive. [`LinkWatch`] makes sure
//! that the TUN's namespace has an id.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use super::LinkState;
use crate::{
    netlink::{
        NetlinkSocket, Notifications, RouteQuery, RoutingGroup, TunLink, TunLookup, lookup_route,
    },
    tun::Tun,
};

/// Wakes when a TUN's interface goes up or down, changes its MTU, moves to
/// another network namespace or is deleted.
#[derive(Debug)]
pub struct LinkWatch {
    notifications: Notifications,
    lookup: TunLookup,
    follows_moves: bool,
}

impl LinkWatch {
    /// Watches `tun` from now on, from the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open(tun: &Tun) -> io::Result<Self> {
        let groups = [RoutingGroup::Link, RoutingGroup::NamespaceId];
        let notifications = Notifications::of_routing(&groups)?;
        let follows_moves = notifications.listen_to_all_namespaces().is_ok();
        let mut lookup = TunLookup::open()?;
        // Assigns an id to the TUN's namespace if it has been moved already.
        lookup.find(tun.as_fd())?;
        Ok(Self {
            notifications,
            lookup,
            follows_moves,
        })
    }

    /// Returns the sockets of this watch, for [`LinkWatch::from_sockets`] in another process, which
    /// may be in another network namespace.
    pub fn into_sockets(self) -> [OwnedFd; 2] {
        [self.notifications.into(), self.lookup.into()]
    }

    /// Returns a watch from sockets that another process opened in the TUN's network namespace. In
    /// contrast to a watch opened elsewhere, and to the TUN itself, the sockets keep that namespace
    /// alive.
    ///
    /// # Errors
    ///
    /// If a descriptor is not a socket.
    pub fn from_sockets([notifications, lookup]: [OwnedFd; 2]) -> io::Result<Self> {
        Ok(Self {
            notifications: notifications.into(),
            lookup: TunLookup::from_fd(lookup)?,
            follows_moves: false,
        })
    }

    /// Returns true if changes are still noticed after the interface moved to another network
    /// namespace. This needs `CAP_NET_BROADCAST`; without it, the move itself is the last
    /// notification.
    pub fn follows_moves(&self) -> bool {
        self.follows_moves
    }

    /// The descriptor to poll: readable when [`LinkWatch::drain`] may return a new state.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }

    /// Discards all notifications and returns the current state, or `None` if the interface was
    /// deleted. Never waits.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn drain(&mut self, tun: &Tun) -> io::Result<Option<LinkState>> {
        self.discard_notifications()?;
        let link = self.lookup.find(tun.as_fd())?;
        Ok(link.map(state))
    }

    /// Discards all notifications. Never waits.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn discard_notifications(&mut self) -> io::Result<()> {
        self.notifications.drain().map(drop)
    }
}

/// Returns the current state of a TUN's interface, or `None` if it was deleted. `tun` may be a descriptor
/// from another process.
///
/// # Errors
///
/// The kernel's. Without `CAP_NET_ADMIN` an interface that was moved to another network namespace is not
/// found.
pub fn link_state(tun: BorrowedFd<'_>) -> io::Result<Option<LinkState>> {
    let link = TunLookup::open()?.find(tun)?;
    Ok(link.map(state))
}

fn state(link: TunLink) -> LinkState {
    LinkState {
        up: link.up,
        mtu: link.mtu,
    }
}

/// Changes that can make cached source addresses stale. Links are included because the IPv4 routes
/// of a link that goes down disappear without a notification of their own.
const ROUTES: [RoutingGroup; 5] = [
    RoutingGroup::Link,
    RoutingGroup::Ipv4Address,
    RoutingGroup::Ipv4Route,
    RoutingGroup::Ipv6Address,
    RoutingGroup::Ipv6Route,
];

/// Wakes when an address, a route or a link changes in the network namespace that it was opened in.
/// Cached source addresses may then be stale.
#[derive(Debug)]
pub struct RouteWatch {
    notifications: Notifications,
    netlink: NetlinkSocket,
}

impl RouteWatch {
    /// Watches the calling thread's network namespace from now on.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        Self::of(&ROUTES)
    }

    /// Like [`RouteWatch::open`], but also wakes when a qdisc or filter of a link changes. The
    /// kernel sends no notifications for tcx programs.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open_with_filters() -> io::Result<Self> {
        Self::of(&[&ROUTES[..], &[RoutingGroup::TrafficControl]].concat())
    }

    fn of(groups: &[RoutingGroup]) -> io::Result<Self> {
        Ok(Self {
            notifications: Notifications::of_routing(groups)?,
            netlink: NetlinkSocket::open(None)?,
        })
    }

    /// Returns the index of the interface through which packets from `source` with the firewall
    /// mark `mark` currently leave for `destination`.
    ///
    /// # Errors
    ///
    /// The kernel's, if there is no route or `source` is not a local address.
    pub fn interface_to(
        &mut self,
        destination: IpAddr,
        source: IpAddr,
        mark: u32,
    ) -> io::Result<u32> {
        let query = RouteQuery {
            source: Some(source),
            ..RouteQuery::to(destination, mark)
        };
        let route = lookup_route(&mut self.netlink, &query)?;
        Ok(route.interface)
    }

    /// The descriptor to poll: readable when something changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.notifications.as_fd()
    }

    /// Discards all notifications and returns true if there were any. Never waits.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn drain(&mut self) -> io::Result<bool> {
        self.notifications.drain()
    }

    /// Waits at most `timeout` for a change since the last call and returns true if there was one.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
        let mut descriptors = [PollFd::new(&self.notifications, PollFlags::IN)];
        match poll(&mut descriptors, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => self.drain(),
            Err(error) => Err(error.into()),
        }
    }
}
