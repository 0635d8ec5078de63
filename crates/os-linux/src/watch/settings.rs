//! Notifications of changed network settings.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use crate::netlink::{Notifications, RoutingGroup};

/// Wakes when a link, an address, a route, a routing rule or an nf_tables table changes in the
/// network namespace that it was opened in.
#[derive(Debug)]
pub struct SettingsWatch {
    notifications: Vec<Notifications>,
}

impl SettingsWatch {
    /// Watches the calling thread's network namespace from now on.
    ///
    /// # Errors
    ///
    /// The kernel's. A kernel without nf_tables is not an error.
    pub fn open() -> io::Result<Self> {
        let routing = Notifications::of_routing(&[
            RoutingGroup::Link,
            RoutingGroup::Ipv4Address,
            RoutingGroup::Ipv4Route,
            RoutingGroup::Ipv4Rule,
            RoutingGroup::Ipv6Address,
            RoutingGroup::Ipv6Route,
            RoutingGroup::Ipv6Rule,
        ])?;
        let mut notifications = vec![routing];
        // Without netfilter in the kernel there are no tables to watch.
        notifications.extend(Notifications::of_nf_tables().ok());
        Ok(Self { notifications })
    }

    /// The descriptors to poll: each is readable when something changed.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.notifications.iter().map(AsFd::as_fd)
    }

    /// Discards all notifications and returns true if there were any. Never waits.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn drain(&mut self) -> io::Result<bool> {
        let mut any = false;
        for notifications in &self.notifications {
            any |= notifications.drain()?;
        }
        Ok(any)
    }
}
