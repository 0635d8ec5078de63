//! rtnetlink.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use crate::{link::LinkState, tun::Tun};

/// Wakes when a TUN's interface goes up or down, changes its MTU, moves to
/// another network namespace or is deleted.
#[derive(Debug)]
pub struct LinkWatch {
    socket: OwnedFd,
}

impl LinkWatch {
    /// Watches `tun` from now on.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open(tun: &Tun) -> io::Result<Self> {
        let _ = tun;
        unimplemented!()
    }

    /// Readable when [`LinkWatch::drain`] has something to say.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes all notices and returns the state as it is now. Never waits.
    ///
    /// # Errors
    ///
    /// The kernel's; deletion is no error.
    pub fn drain(&mut self, tun: &Tun) -> io::Result<LinkState> {
        let _ = tun;
        unimplemented!()
    }
}

/// Wakes when an address, a route or a link of the process's network namespace
/// changes: cached source addresses may be stale then.
#[derive(Debug)]
pub struct RouteWatch {
    socket: OwnedFd,
}

impl RouteWatch {
    /// Watches from now on.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open() -> io::Result<Self> {
        unimplemented!()
    }

    /// Readable when something changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Takes all notices; whether there were any. Never waits.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn drain(&mut self) -> io::Result<bool> {
        unimplemented!()
    }
}
