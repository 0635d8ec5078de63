//! The ends of the path: a virtual interface and UDP sockets.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use taupe_packet::ip::Family;
use taupe_protocol::Endpoint;
use tracing::debug;

/// A virtual interface that threads share.
pub trait Interface: Send + Sync + 'static {
    /// Waits for a packet that the system sends. Returns the packet's length, or `None` once the
    /// interface is closed.
    ///
    /// # Errors
    ///
    /// The interface is gone.
    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>>;

    /// Passes a packet to the system as received.
    ///
    /// # Errors
    ///
    /// The interface is gone.
    fn write(&self, packet: &[u8]) -> io::Result<()>;

    /// Ends reads that wait, and later ones.
    fn close(&self);
}

/// A UDP socket of one address family that threads share.
pub trait DatagramSocket: Send + Sync + 'static {
    /// Waits for a datagram, and returns its length and its source. A source without the local
    /// address leaves the choice of that to the system.
    ///
    /// # Errors
    ///
    /// The system's. It may say that an earlier datagram did not arrive, which anyone on the path can
    /// forge, so the caller continues.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Endpoint)>;

    /// Sends a datagram.
    ///
    /// # Errors
    ///
    /// The system's.
    fn send(&self, to: Endpoint, datagram: &[u8]) -> io::Result<()>;

    /// Lets a [`DatagramSocket::receive`] that waits return, if need be with an empty datagram.
    fn wake(&self);
}

impl DatagramSocket for UdpSocket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Endpoint)> {
        let (length, from) = self.recv_from(buffer)?;
        Ok((length, from.into()))
    }

    fn send(&self, to: Endpoint, datagram: &[u8]) -> io::Result<()> {
        self.send_to(datagram, to.remote).map(drop)
    }

    fn wake(&self) {
        let Ok(own) = self.local_addr() else {
            return;
        };
        let here: SocketAddr = match own {
            SocketAddr::V4(_) => (Ipv4Addr::LOCALHOST, own.port()).into(),
            SocketAddr::V6(_) => (Ipv6Addr::LOCALHOST, own.port()).into(),
        };
        let _ = self.send_to(&[], here);
    }
}

/// A UDP socket of one address family, which sends nothing while it is closed.
#[derive(Debug)]
pub struct FamilySocket<S> {
    /// The socket.
    pub socket: S,
    is_closed: AtomicBool,
}

impl<S> FamilySocket<S> {
    /// Returns an open socket.
    pub const fn new(socket: S) -> Self {
        Self {
            socket,
            is_closed: AtomicBool::new(false),
        }
    }

    /// Closes or opens the socket for sending.
    pub fn set_closed(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::Relaxed);
    }
}

/// UDP sockets of both address families on one port.
#[derive(Debug)]
pub struct UdpSockets<S> {
    v4: Option<FamilySocket<S>>,
    v6: Option<FamilySocket<S>>,
    port: u16,
    /// Set when other sockets have replaced these, or the path has ended.
    has_ended: AtomicBool,
}

impl<S: DatagramSocket> UdpSockets<S> {
    /// Returns sockets that are bound to `port`, one of each family that the system has.
    pub fn new(v4: Option<S>, v6: Option<S>, port: u16) -> Self {
        Self {
            v4: v4.map(FamilySocket::new),
            v6: v6.map(FamilySocket::new),
            port,
            has_ended: AtomicBool::new(false),
        }
    }

    /// Returns the local port.
    #[must_use]
    pub const fn port(&self) -> u16 {
        self.port
    }

    /// Returns the socket of an address family, if the system has that.
    #[must_use]
    pub const fn of(&self, family: Family) -> Option<&FamilySocket<S>> {
        match family {
            Family::V4 => self.v4.as_ref(),
            Family::V6 => self.v6.as_ref(),
        }
    }

    pub(crate) fn send(&self, to: Endpoint, datagram: &[u8]) {
        let Some(socket) = self.of(Family::of(to.remote.ip())) else {
            debug!(to = %to.remote, "this system has no socket of that family");
            return;
        };
        if socket.is_closed.load(Ordering::Relaxed) {
            return;
        }
        // Lost handshake messages are sent again, and applications cope with lost data packets.
        if let Err(error) = socket.socket.send(to, datagram) {
            debug!(to = %to.remote, %error, "sending failed");
        }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Lets the threads that receive end. One that is not waiting yet may miss it, so call it again
    /// until all have ended.
    pub(crate) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
        for socket in [&self.v4, &self.v6].into_iter().flatten() {
            socket.socket.wake();
        }
    }
}
