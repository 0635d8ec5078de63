//! The UDP sockets of a device, on one port, bound and replaced together. Each lane has one per
//! address family for data, from which everything is sent too. Beside it is one for handshakes,
//! which the control loop reads.

use std::net::SocketAddr;
use std::sync::Arc;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use taupe_os_linux::udp::{
    BindError, Header, Options, PacketInfo, Sent, Socket, SocketGroup, Steering,
};
use taupe_packet::ip::Family;
use taupe_protocol::message::Kind;
use taupe_protocol::{Endpoint, LocalAddress};
use tracing::debug;

use crate::shared::UnderlayState;
use crate::underlay::Source;

/// The sockets of a device; none while it is down.
#[derive(Default)]
pub(crate) struct Sockets {
    /// The data sockets, by lane.
    pub(crate) lanes: Vec<LaneSockets>,
    /// The sockets for every datagram that does not begin like a data message. A flood of
    /// handshakes therefore neither fills the queues of the data sockets nor wakes the packet
    /// threads. Empty if the system has no such sockets; handshake messages then arrive on the
    /// data sockets. A few always do, because the kernel may merge them with data.
    pub(crate) handshakes: Vec<Arc<Socket>>,
}

/// The data sockets of one lane; none while the device is down.
#[derive(Clone, Default)]
pub(crate) struct LaneSockets {
    pub(crate) v4: Option<Arc<Socket>>,
    pub(crate) v6: Option<Arc<Socket>>,
}

/// Receive buffer of a handshake socket, in bytes: some 5,000 classic messages or 2,000 parts of
/// hybrid ones, more than the queue behind it takes. Without `CAP_NET_ADMIN` the system limits it
/// (`net.core.rmem_max`), often to a tenth of that.
const HANDSHAKE_BUFFER: usize = 2 << 20;

/// Free ports to try. Another program may have the same port in the other address family.
const PORT_TRIES: usize = 100;

/// The sockets of a device as they were bound, by family. `None` if the system lacks the family.
pub struct BoundSockets {
    /// The sockets of IPv4.
    pub v4: Option<SocketGroup>,
    /// The sockets of IPv6.
    pub v6: Option<SocketGroup>,
}

/// Sockets to bind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BindRequest {
    /// The port; 0 is any free one.
    pub port: u16,
    /// The mark of their datagrams.
    pub mark: u32,
    /// Batches of datagrams are sent with `UDP_SEGMENT`.
    pub gso: bool,
    /// Batches of datagrams are received with `UDP_GRO`.
    pub gro: bool,
    /// Lanes of the device, at most 16: data sockets of each family.
    pub lanes: usize,
    /// The multiplier of the rule by which the kernel chooses a lane ([`Steering::new`]).
    pub multiplier: u16,
}

impl BindRequest {
    /// Binds the port in both address families, or a free port if it is 0, in the calling thread's
    /// network namespace. A system that has only one family gets the sockets of that family.
    ///
    /// # Errors
    /// See [`BindError`].
    pub fn bind(&self) -> Result<BoundSockets, BindError> {
        // The message type is little-endian, so its first byte distinguishes data messages.
        let steering = Steering::new(Kind::Data as u8, self.lanes, self.multiplier);
        let options = Options {
            mark: self.mark,
            gso: self.gso,
            gro: self.gro,
            ..Options::default()
        };
        let bind = |family, port| {
            let buffers = Some(HANDSHAKE_BUFFER);
            available(SocketGroup::bind(family, port, options, &steering, buffers))
        };
        let mut tries = if self.port == 0 { PORT_TRIES } else { 1 };
        loop {
            tries -= 1;
            let v4 = bind(Family::V4, self.port)?;
            let first = v4.as_ref().and_then(|group| group.data.first());
            match bind(Family::V6, first.map_or(self.port, Socket::local_port)) {
                Err(BindError::PortInUse(_)) if tries > 0 => {}
                Err(error) => return Err(error),
                Ok(None) if v4.is_none() => {
                    return Err(BindError::FamilyUnsupported(Family::V4));
                }
                Ok(v6) => return Ok(BoundSockets { v4, v6 }),
            }
        }
    }
}

impl Sockets {
    /// Returns the sockets of `lanes` lanes. If a group has fewer, because the kernel cannot choose
    /// among them, the other lanes send with the first.
    pub(crate) fn new(lanes: usize, bound: BoundSockets) -> Self {
        let mut sockets = Self::default();
        let mut parts = |group: Option<SocketGroup>| {
            let SocketGroup { data, others } = group?;
            let others = others.inspect_err(
                |error| debug!(%error, "data sockets also receive handshake messages"),
            );
            sockets.handshakes.extend(others.map(Arc::new));
            Some(data.into_iter().map(Arc::new).collect::<Vec<_>>())
        };
        let (v4, v6) = (parts(bound.v4), parts(bound.v6));
        let of_lane = |group: &Option<Vec<_>>, lane| {
            let data = group.as_ref()?;
            data.get(lane).or(data.first()).map(Arc::clone)
        };
        let lanes = (0..lanes).map(|lane| LaneSockets {
            v4: of_lane(&v4, lane),
            v6: of_lane(&v6, lane),
        });
        sockets.lanes = lanes.collect();
        sockets
    }

    /// Returns the port, 0 while there are no sockets.
    pub(crate) fn port(&self) -> u16 {
        self.all().next().map_or(0, |socket| socket.local_port())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Socket>> {
        let data = self.lanes.iter().flat_map(LaneSockets::all);
        data.chain(&self.handshakes)
    }
}

impl LaneSockets {
    /// Returns the port, 0 while there are no sockets.
    pub(crate) fn port(&self) -> u16 {
        self.all().next().map_or(0, |socket| socket.local_port())
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Socket>> {
        self.v4.iter().chain(&self.v6)
    }

    /// Sends a batch: the kernel cuts `buffer` every `segment` bytes. Every datagram of data and
    /// handshakes leaves here.
    pub(crate) fn send(
        &self,
        underlay: &UnderlayState,
        endpoint: &Endpoint,
        header: Header,
        buffer: &[u8],
        segment: usize,
    ) -> Sent {
        let remote = endpoint.remote;
        let socket = match remote {
            SocketAddr::V4(_) => &self.v4,
            SocketAddr::V6(_) => &self.v6,
        };
        let Some(socket) = socket else {
            return Sent::failed(Errno::AFNOSUPPORT.into());
        };
        if let Some(local) = endpoint.local {
            // Set the source address, but leave the interface to the routing table: the route to
            // the peer may leave by another interface than its datagrams arrive on, and the
            // kernel would obey the interface given here (ip(7), IP_PKTINFO). A link-local peer
            // can be reached only on the interface on which it was heard.
            let link_local = matches!(remote, SocketAddr::V6(remote)
                if remote.ip().is_unicast_link_local());
            let local = PacketInfo {
                address: local.address,
                interface: if link_local { local.interface } else { 0 },
            };
            return socket.send(remote, Some(&local), header, buffer, segment);
        }
        match underlay.source(remote) {
            Source::Kernel => socket.send(remote, None, header, buffer, segment),
            Source::Address(address) => {
                let local = PacketInfo {
                    address,
                    interface: 0,
                };
                let sent = socket.send(remote, Some(&local), header, buffer, segment);
                if sent.local_address_dropped {
                    underlay.forget_source(remote);
                }
                sent
            }
            Source::Unavailable => Sent::failed(Errno::ADDRNOTAVAIL.into()),
        }
    }

    /// Returns the memory of all datagrams that wait to be sent, in bytes.
    pub(crate) fn unsent(&self) -> usize {
        let unsent = self.all().map(|socket| socket.unsent().unwrap_or(0));
        unsent.sum()
    }

    /// Ends the threads that receive from these sockets.
    pub(crate) fn shutdown(&self) {
        for socket in self.all() {
            socket.shutdown();
        }
    }
}

/// Turns "the system lacks this address family" into `None`.
fn available(bound: Result<SocketGroup, BindError>) -> Result<Option<SocketGroup>, BindError> {
    match bound {
        Ok(group) => Ok(Some(group)),
        Err(BindError::FamilyUnsupported(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns the protocol's endpoint for the addresses of a received batch.
pub(crate) fn endpoint(from: SocketAddr, local: Option<PacketInfo>) -> Endpoint {
    Endpoint {
        remote: from,
        local: local.map(|local| LocalAddress {
            address: local.address,
            interface: local.interface,
        }),
    }
}
