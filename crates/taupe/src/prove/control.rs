//! The control: a packet from a process that is not selected. If the capture does not see it
//! outside the tunnel, it would not see a leak either.

use super::plan::{DISCARD, NOWHERE_V4, NOWHERE_V6};
use super::probe::{BROADCAST, datagram};
use super::watch::Seen;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use taupe_inspect::prove::{ControlReport, ProofTarget, Uplinks};
use taupe_os_linux::packet_socket::PacketSocket;

/// `ETH_P_IP`.
const ETHERTYPE_IPV4: u16 = 0x0800;

/// EtherType for experiments on a local network (IEEE 802).
const EXPERIMENTAL: u16 = 0x88b5;

/// Sender of controls.
#[derive(Clone, Copy)]
pub(super) enum Control {
    /// The user wants none.
    Omitted,
    /// A UDP socket of this process, which is not selected.
    Socket(SocketAddr),
    /// A packet socket, since every process is selected. It sends to all machines of the link, of
    /// which none has the address.
    PacketSocket { link: u32, address: Ipv4Addr },
    /// A packet socket with a frame that is not IP, since no IP packet may leave.
    Frame { link: u32 },
    /// No packet can leave this machine.
    NoUplink,
}

impl Control {
    /// `blocks_all`: the tunnel is down and blocks every process.
    pub(super) fn new(
        target: &ProofTarget,
        uplinks: &Uplinks,
        is_wanted: bool,
        blocks_all: bool,
    ) -> Self {
        if !is_wanted {
            return Self::Omitted;
        }
        let link = uplinks.v4.map(|(link, _)| link);
        let link = link.or(uplinks.v6.map(|(link, _)| link));
        if let (true, Some(link)) = (blocks_all, link) {
            return Self::Frame { link };
        }
        let is_selected = target.selects(std::process::id());
        match (is_selected, uplinks.v4, uplinks.v6) {
            (false, Some(_), _) => Self::Socket((NOWHERE_V4, DISCARD).into()),
            (false, None, Some(_)) => Self::Socket((NOWHERE_V6, DISCARD).into()),
            (true, Some((link, address)), _) => Self::PacketSocket { link, address },
            _ => Self::NoUplink,
        }
    }

    pub(super) fn is_tried(self) -> bool {
        !matches!(self, Self::Omitted)
    }

    /// Sends a packet, and returns the error of its socket.
    pub(super) fn send(self, nonce: &str) -> Option<String> {
        let sent = match self {
            Self::Omitted => Ok(()),
            Self::Socket(to) => send_datagram(to, nonce),
            Self::PacketSocket { link, address } => {
                let packet = datagram(address, NOWHERE_V4, DISCARD, nonce);
                let sender = PacketSocket::sender();
                sender.and_then(|sender| sender.send(link, ETHERTYPE_IPV4, &BROADCAST, &packet))
            }
            Self::Frame { link } => {
                let sender = PacketSocket::sender();
                let frame = nonce.as_bytes();
                sender.and_then(|sender| sender.send(link, EXPERIMENTAL, &BROADCAST, frame))
            }
            Self::NoUplink => return Some("this machine has no default route".into()),
        };
        sent.err().map(|error| error.to_string())
    }

    /// Reports about the first two nonces.
    pub(super) fn report(self, seen: &Seen, notes: [Option<String>; 2]) -> ControlReport {
        let sightings = [0, 1].map(|number| seen.observed.outside.get(&number));
        let destination = match self {
            Self::Socket(to) => Some(to),
            Self::PacketSocket { .. } => Some((NOWHERE_V4, DISCARD).into()),
            Self::Omitted | Self::Frame { .. } | Self::NoUplink => None,
        };
        ControlReport {
            tried: self.is_tried(),
            seen: sightings.iter().all(Option::is_some),
            destination,
            interface: sightings[0].map(|one| seen.interface(one.interface)),
            by_packet_socket: matches!(self, Self::PacketSocket { .. } | Self::Frame { .. }),
            note: notes.into_iter().flatten().next(),
        }
    }
}

fn send_datagram(to: SocketAddr, nonce: &str) -> io::Result<()> {
    let socket = match to {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    };
    socket?.send_to(nonce.as_bytes(), to).map(drop)
}
