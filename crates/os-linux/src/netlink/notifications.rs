//! Notifications of netlink's multicast groups.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{
        Protocol, RecvFlags, SocketFlags, bind,
        netlink::{NETFILTER, SocketAddrNetlink},
        recv,
    },
};

use super::socket;
use crate::socket_option::{self, IntOption};

/// A multicast group of rtnetlink, by its number (`RTNLGRP_*`).
#[derive(Clone, Copy)]
pub(crate) enum RoutingGroup {
    Link = 1,
    TrafficControl = 4,
    Ipv4Address = 5,
    Ipv4Route = 7,
    Ipv4Rule = 8,
    Ipv6Address = 9,
    Ipv6Route = 11,
    Ipv6Rule = 19,
    NamespaceId = 28,
}

/// A non-blocking socket that receives notifications, in the network namespace it was opened in.
#[derive(Debug)]
pub(crate) struct Notifications(OwnedFd);

impl Notifications {
    /// Subscribes to groups of rtnetlink.
    pub(crate) fn of_routing(groups: &[RoutingGroup]) -> io::Result<Self> {
        let bits = groups.iter().map(|&group| bit(group as u32));
        Self::open(None, bits.fold(0, |all, bit| all | bit))
    }

    /// Subscribes to changes of nf_tables tables, chains and rules.
    pub(crate) fn of_nf_tables() -> io::Result<Self> {
        const NFNLGRP_NFTABLES: u32 = 7;
        Self::open(Some(NETFILTER), bit(NFNLGRP_NFTABLES))
    }

    fn open(protocol: Option<Protocol>, groups: u32) -> io::Result<Self> {
        let fd = socket::open(protocol, SocketFlags::NONBLOCK)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Self(fd))
    }

    /// Subscribes also to notifications of all network namespaces that have an id in the socket's
    /// (`NETLINK_LISTEN_ALL_NSID`, Linux 4.2). Needs `CAP_NET_BROADCAST`.
    pub(crate) fn listen_to_all_namespaces(&self) -> io::Result<()> {
        socket_option::set(self.0.as_fd(), IntOption::ListenAllNamespaces, 1)
    }

    /// Discards all notifications and returns true if there were any. Never waits.
    pub(crate) fn drain(&self) -> io::Result<bool> {
        let mut any = false;
        loop {
            // A notification only triggers a new query of the state, so it may be truncated, and
            // lost when there are too many (`ENOBUFS`).
            match recv(&self.0, &mut [0; 64], RecvFlags::DONTWAIT) {
                Ok(_) | Err(Errno::NOBUFS) => any = true,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(any),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Notifications {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Takes over a socket that another process subscribed.
impl From<OwnedFd> for Notifications {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Notifications> for OwnedFd {
    fn from(notifications: Notifications) -> Self {
        notifications.0
    }
}

/// Returns the bit of a group in a socket's address.
fn bit(group: u32) -> u32 {
    1 << (group - 1)
}
