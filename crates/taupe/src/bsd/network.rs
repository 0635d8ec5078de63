//! The interface and the sockets of a device.

use std::io;
use taupe_forwarder::device::Network;
use taupe_forwarder::{DatagramSocket, Interface, UdpSockets};
use taupe_os_bsd::control_message::LocalEnd;
use taupe_os_bsd::outer_path::OuterPath;
use taupe_os_bsd::tun::Tun;
use taupe_os_bsd::udp::{BindError, Options, Socket};
use taupe_packet::ip::Family;
use taupe_protocol::{Endpoint, LocalAddress};
use tracing::debug;

/// Number of ports that are tried until one is free in both address families.
const TRIES: usize = 16;

/// The device's interface.
pub(super) struct TunInterface(pub(super) Tun);

impl Interface for TunInterface {
    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.0.read(buffer)
    }

    fn write(&self, packet: &[u8]) -> io::Result<()> {
        self.0.write(packet)
    }

    fn close(&self) {
        self.0.close();
    }
}

/// A UDP socket that answers from the address at which a datagram arrived.
pub(super) struct UdpSocket(Socket);

impl DatagramSocket for UdpSocket {
    fn receive(&self, buffer: &mut [u8]) -> io::Result<(usize, Endpoint)> {
        let received = self.0.receive(buffer)?;
        let local = received
            .local
            .map(|LocalEnd { address, interface }| LocalAddress { address, interface });
        let remote = received.from;
        Ok((received.len, Endpoint { remote, local }))
    }

    fn send(&self, to: Endpoint, datagram: &[u8]) -> io::Result<()> {
        let local = to
            .local
            .map(|LocalAddress { address, interface }| LocalEnd { address, interface });
        self.0.send(to.remote, local, datagram)
    }

    fn wake(&self) {
        self.0.shutdown();
    }
}

/// The network of this machine, or a part of it.
pub(super) struct Underlay {
    options: Options,
}

impl Underlay {
    /// Returns a network whose sockets use this path only, as a tunnel with a default route needs it.
    pub(super) fn new(path: OuterPath) -> Self {
        let options = Options {
            path,
            ..Options::default()
        };
        Self { options }
    }
}

impl Network for Underlay {
    type Socket = UdpSocket;

    fn bind(&mut self, port: u16, mark: u32) -> io::Result<UdpSockets<UdpSocket>> {
        let sockets = bind(port, self.options)?;
        if mark != 0 {
            self.set_mark(&sockets, mark)?;
        }
        Ok(sockets)
    }

    fn set_mark(&mut self, sockets: &UdpSockets<UdpSocket>, mark: u32) -> io::Result<()> {
        for socket in Family::ALL.iter().filter_map(|family| sockets.of(*family)) {
            socket.socket.0.set_mark(mark)?;
        }
        Ok(())
    }
}

/// Binds a port of both address families. Port 0 means any port.
fn bind(port: u16, options: Options) -> io::Result<UdpSockets<UdpSocket>> {
    let mut tries = TRIES;
    loop {
        let v4 = match Socket::bind(Family::V4, port, options) {
            Err(BindError::FamilyUnsupported(family)) => {
                debug!(%family, "this system has no sockets of the family");
                None
            }
            v4 => Some(v4.map_err(io::Error::other)?),
        };
        let bound = v4.as_ref().map_or(port, Socket::local_port);
        let v6 = match Socket::bind(Family::V6, bound, options) {
            Err(BindError::FamilyUnsupported(family)) => {
                debug!(%family, "this system has no sockets of the family");
                None
            }
            Err(BindError::PortInUse(_)) if port == 0 && tries > 0 => {
                tries -= 1;
                continue;
            }
            v6 => Some(v6.map_err(io::Error::other)?),
        };
        let bound = v6.as_ref().map_or(bound, Socket::local_port);
        return Ok(UdpSockets::new(v4.map(UdpSocket), v6.map(UdpSocket), bound));
    }
}
