//! `/dev/net/tun` with virtio headers.

use std::{io, os::fd::OwnedFd};

use crate::{
    merge::{Coalesce, TunWrite},
    tun::{Offloads, OpenError, Read, WriteError},
};

/// A TUN interface, open for reading by one thread and writing by any.
#[derive(Debug)]
pub struct Tun {
    fd: OwnedFd,
}

impl Tun {
    /// Creates the interface `name`, or attaches to it when it is a
    /// persistent TUN that nobody has open. It starts down.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn create(name: &str, offloads: Offloads) -> Result<Self, OpenError> {
        let _ = (name, offloads);
        unimplemented!()
    }

    /// Takes a TUN that another program opened, as `WG_TUN_FD` passes it. The
    /// mode it has is kept: without `IFF_VNET_HDR` nothing is offloaded. The
    /// descriptor becomes non-blocking.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotTun`], [`OpenError::Mode`] or [`OpenError::Io`].
    pub fn from_fd(fd: OwnedFd, offloads: Offloads) -> Result<Self, OpenError> {
        let _ = (fd, offloads);
        unimplemented!()
    }

    /// The interface's current name.
    ///
    /// # Errors
    ///
    /// `EBADFD` when the interface was deleted.
    pub fn name(&self) -> io::Result<String> {
        unimplemented!()
    }

    /// The interface's index in the network namespace it is in now.
    ///
    /// # Errors
    ///
    /// `EBADFD` when the interface was deleted.
    pub fn index(&self) -> io::Result<u32> {
        unimplemented!()
    }

    /// The interface's MTU in bytes, wherever it is now.
    ///
    /// # Errors
    ///
    /// `EBADFD` when the interface was deleted.
    pub fn mtu(&self) -> io::Result<u32> {
        unimplemented!()
    }

    /// Sets the MTU of an interface in the caller's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel's: `EINVAL` for a size it does not take, `EPERM`.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        let _ = mtu;
        unimplemented!()
    }

    /// Brings an interface in the caller's network namespace up or down.
    ///
    /// # Errors
    ///
    /// The kernel's, `EPERM` above all.
    pub fn set_up(&self, up: bool) -> io::Result<()> {
        let _ = up;
        unimplemented!()
    }

    /// What the kernel granted of the offloads asked for.
    pub fn offloads(&self) -> Offloads {
        unimplemented!()
    }

    /// What [`crate::merge::Merger::merge`] may merge for this TUN; shrinks
    /// for good when the kernel refuses a super-packet.
    pub fn coalesce(&self) -> Coalesce {
        unimplemented!()
    }

    /// Waits for the next packet or super-packet. `buffer` should have
    /// [`crate::tun::READ_BUFFER_LEN`] bytes: a longer packet is cut.
    ///
    /// # Errors
    ///
    /// Unexpected errors of the kernel; deletion and shutdown are no errors.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Read> {
        let _ = buffer;
        unimplemented!()
    }

    /// Writes one packet or super-packet with one system call.
    ///
    /// When the kernel refuses a super-packet, its segments are written one by
    /// one and that protocol is not merged any more: see [`Tun::coalesce`].
    ///
    /// # Errors
    ///
    /// See [`WriteError`]; only [`WriteError::Deleted`] ends the TUN.
    pub fn write(&self, write: &TunWrite<'_>) -> Result<(), WriteError> {
        let _ = write;
        unimplemented!()
    }

    /// Ends a waiting [`Tun::read`] and every later one with
    /// [`Read::Stopped`]. The interface stays until the `Tun` is dropped.
    pub fn shutdown(&self) {
        unimplemented!()
    }

    /// The network namespace the interface is in now (`TUNGETDEVNETNS`,
    /// Linux 5.10).
    ///
    /// # Errors
    ///
    /// `EBADFD` when the interface was deleted, `EPERM` without
    /// `CAP_NET_ADMIN`.
    pub fn namespace(&self) -> io::Result<OwnedFd> {
        let _ = &self.fd;
        unimplemented!()
    }
}
