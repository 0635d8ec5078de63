//! UDP sockets with segmentation and receive offload.

use std::{io, net::SocketAddr, os::fd::OwnedFd};

use crate::udp::{BindError, Family, Local, Options, Receive, Sent};

/// An unconnected UDP socket on every local address of one family. Any number
/// of threads may send and receive.
#[derive(Debug)]
pub struct Socket {
    fd: OwnedFd,
}

impl Socket {
    /// Binds `port`, or a free one when it is 0.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn bind(family: Family, port: u16, options: Options) -> Result<Self, BindError> {
        let _ = (family, port, options);
        unimplemented!()
    }

    /// The port bound.
    pub fn local_port(&self) -> u16 {
        unimplemented!()
    }

    /// Changes `SO_MARK` for what is sent from now on; 0 clears it.
    ///
    /// # Errors
    ///
    /// `EPERM` without `CAP_NET_ADMIN`.
    pub fn set_mark(&self, mark: u32) -> io::Result<()> {
        let _ = mark;
        unimplemented!()
    }

    /// Whether sends still go out as batches.
    pub fn gso(&self) -> bool {
        unimplemented!()
    }

    /// Whether receives may bring batches.
    pub fn gro(&self) -> bool {
        unimplemented!()
    }

    /// Batches the kernel refused and that went out singly.
    pub fn gso_refusals(&self) -> u64 {
        unimplemented!()
    }

    /// Waits for datagrams: one system call. `buffer` should have
    /// [`crate::udp::RECEIVE_BUFFER_LEN`] bytes.
    ///
    /// # Errors
    ///
    /// Unexpected errors of the kernel. What ICMP reported about earlier sends
    /// is no error.
    pub fn receive(&self, buffer: &mut [u8]) -> io::Result<Receive> {
        let _ = buffer;
        unimplemented!()
    }

    /// Sends `buffer` to `to` as datagrams of `segment` bytes, the last maybe
    /// shorter, in order, with as few system calls as the kernel allows.
    ///
    /// `tclass` is the whole TOS or traffic class byte. `local` fixes the
    /// source address, and the interface unless its index is 0; when it does
    /// not work any more, the datagrams go without it and the result says so.
    ///
    /// # Errors
    ///
    /// The kernel's, after everything that could be sent was. A datagram the
    /// firewall refuses (`EPERM`) does not keep the others from being sent.
    pub fn send(
        &self,
        to: SocketAddr,
        local: Option<&Local>,
        tclass: u8,
        buffer: &[u8],
        segment: usize,
    ) -> io::Result<Sent> {
        let _ = (&self.fd, to, local, tclass, buffer, segment);
        unimplemented!()
    }

    /// Ends every waiting and later [`Socket::receive`] with
    /// [`Receive::Stopped`].
    pub fn shutdown(&self) {
        unimplemented!()
    }
}
