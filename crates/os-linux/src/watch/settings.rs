//! Notifications of changed network settings.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use crate::rtnetlink::{self, Group};

/// Wakes when a link, an address, a route, a routing rule or an nf_tables table changes in the
/// network namespace that it was opened in.
#[derive(Debug)]
pub struct SettingsWatch {
    notices: Vec<OwnedFd>,
}

impl SettingsWatch {
    /// Watches the calling thread's network namespace from now on.
    ///
    /// # Errors
    ///
    /// The kernel's. A kernel without nf_tables is not an error.
    pub fn open() -> io::Result<Self> {
        let routing = rtnetlink::notices(&[
            Group::Link,
            Group::Ipv4Address,
            Group::Ipv4Route,
            Group::Ipv4Rule,
            Group::Ipv6Address,
            Group::Ipv6Route,
            Group::Ipv6Rule,
        ])?;
        let mut notices = vec![routing];
        // Without netfilter in the kernel there are no tables to watch.
        notices.extend(rtnetlink::firewall_notices().ok());
        Ok(Self { notices })
    }

    /// The descriptors to poll: each is readable when something changed.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.notices.iter().map(AsFd::as_fd)
    }

    /// Discards all notifications and returns true if there were any. Never waits.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn drain(&mut self) -> io::Result<bool> {
        let mut any = false;
        for notices in &self.notices {
            any |= rtnetlink::drain(notices)?;
        }
        Ok(any)
    }
}
