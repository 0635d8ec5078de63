//! rtnetlink notices.
//!
//! A TUN may be moved to another network namespace, whose notices an ordinary
//! socket does not get. A socket opened over there would, but it would also
//! keep that namespace, and the interface in it, from going away when its
//! owner deletes it. So we stay at home and listen to all namespaces that have
//! an id here (`NETLINK_LISTEN_ALL_NSID`, Linux 4.2), which holds nothing, and
//! see to it that the TUN's has one.

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
    option::{self, IntOption},
    rtnetlink::{self, Group, Netlink},
    tun::Tun,
};

/// Wakes when a TUN's interface goes up or down, changes its MTU, moves to
/// another network namespace or is deleted.
#[derive(Debug)]
pub struct LinkWatch {
    notices: OwnedFd,
    netlink: Netlink,
    follows_moves: bool,
}

impl LinkWatch {
    /// Watches `tun` from now on, from the calling thread's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open(tun: &Tun) -> io::Result<Self> {
        let notices = rtnetlink::notices(&[Group::Link, Group::NamespaceId])?;
        let follows_moves = option::set(notices.as_fd(), IntOption::ListenAllNamespaces, 1).is_ok();
        let netlink = Netlink::open()?;
        // Gives the TUN's namespace an id, should it be another one already.
        netlink.link_of(tun)?;
        Ok(Self {
            notices,
            netlink,
            follows_moves,
        })
    }

    /// The sockets by which the TUN is watched, for [`LinkWatch::from_sockets`] in another
    /// process, which may be in another network namespace.
    pub fn into_sockets(self) -> [OwnedFd; 2] {
        [self.notices, self.netlink.into_socket()]
    }

    /// A watch that another process has opened in the TUN's network namespace, where it
    /// stays. It holds that namespace: unlike one opened at home, and unlike the TUN itself.
    ///
    /// # Errors
    ///
    /// When a descriptor is no socket.
    pub fn from_sockets([notices, netlink]: [OwnedFd; 2]) -> io::Result<Self> {
        Ok(Self {
            notices,
            netlink: Netlink::from_socket(netlink)?,
            follows_moves: false,
        })
    }

    /// Whether changes are noticed when the interface is in another network
    /// namespace. That takes `CAP_NET_BROADCAST`; without it the last notice
    /// is the one of the move.
    pub fn follows_moves(&self) -> bool {
        self.follows_moves
    }

    /// Readable when [`LinkWatch::drain`] may have something new to say.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }

    /// Takes all notices and returns the state as it is now. Never waits.
    ///
    /// # Errors
    ///
    /// The kernel's; deletion is no error.
    pub fn drain(&mut self, tun: &Tun) -> io::Result<LinkState> {
        rtnetlink::drain(&self.notices)?;
        Ok(match self.netlink.link_of(tun)? {
            Some(link) => LinkState {
                up: link.up,
                mtu: link.mtu,
                deleted: false,
            },
            None => LinkState {
                up: false,
                mtu: 0,
                deleted: true,
            },
        })
    }
}

/// What cached source addresses depend on. Links too: when one goes down, its IPv4
/// routes vanish without a notice of their own.
const ROUTES: [Group; 5] = [
    Group::Link,
    Group::Ipv4Address,
    Group::Ipv4Route,
    Group::Ipv6Address,
    Group::Ipv6Route,
];

/// Wakes when an address, a route or a link of the network namespace changes
/// that it was opened in: cached source addresses may be stale then.
#[derive(Debug)]
pub struct RouteWatch {
    notices: OwnedFd,
    netlink: Netlink,
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

    /// The same, which also wakes when a queue or a filter of a link's traffic
    /// control changes; programs of tcx have no notices.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open_with_filters() -> io::Result<Self> {
        Self::of(&[&ROUTES[..], &[Group::TrafficControl]].concat())
    }

    fn of(groups: &[Group]) -> io::Result<Self> {
        Ok(Self {
            notices: rtnetlink::notices(groups)?,
            netlink: Netlink::open()?,
        })
    }

    /// The index of the interface by which packets from `source` with the
    /// firewall mark `mark` leave for `destination` now.
    ///
    /// # Errors
    ///
    /// The kernel's, when there is no route or `source` is no address of ours.
    pub fn interface_to(&self, destination: IpAddr, source: IpAddr, mark: u32) -> io::Result<u32> {
        self.netlink.route_interface(destination, source, mark)
    }

    /// Readable when something changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.notices.as_fd()
    }

    /// Takes all notices; whether there were any. Never waits.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn drain(&mut self) -> io::Result<bool> {
        rtnetlink::drain(&self.notices)
    }

    /// Waits until something has changed since the last call, at most for `patience`;
    /// whether it has.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn wait(&mut self, patience: Duration) -> io::Result<bool> {
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut notices = [PollFd::new(&self.notices, PollFlags::IN)];
        match poll(&mut notices, Some(&patience)) {
            Ok(_) | Err(Errno::INTR) => self.drain(),
            Err(error) => Err(error.into()),
        }
    }
}
