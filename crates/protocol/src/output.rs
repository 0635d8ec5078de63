//! Requests of a device to its caller.

use core::net::SocketAddr;
use core::time::Duration;

use crate::endpoint::Endpoint;
use crate::key::PublicKey;
use crate::time::Tai64N;
use crate::update::EndpointName;

/// Action that a device requests. Actions are ordered: complete one before you begin the next.
pub enum Output {
    /// Send a datagram.
    Transmit {
        /// The destination, and the local address to send from.
        endpoint: Endpoint,
        /// The traffic class (IPv4 TOS) of the outer header: DSCP and ECN.
        tos: u8,
        /// The UDP payload.
        datagram: Vec<u8>,
    },
    /// Store durably that handshake timestamps up to `up_to` may have been sent with this private
    /// key. Keep the value as long as the key is in use, and pass it back as
    /// [`crate::update::PrivateKeyUpdate::timestamp_floor`]. The value must be durable before the
    /// next output is sent: otherwise a crash together with a clock that goes back can lock this
    /// device out of its peers.
    ReserveTimestamps {
        /// The public key of the device.
        public_key: PublicKey,
        /// The greatest timestamp that may be sent from now on.
        up_to: Tai64N,
    },
    /// Store durably whether a peer has completed a post-quantum handshake, and pass it back as
    /// [`crate::update::PeerUpdate::pq_pinned`] when the peer is added again. This protects the
    /// peer from a downgrade to ordinary handshakes.
    PinPostQuantum {
        /// The public key of the device.
        public_key: PublicKey,
        /// The peer.
        peer: PublicKey,
        /// True to store the fact, false to delete it.
        pinned: bool,
    },
    /// Look up the addresses of a peer that does not answer, and pass them, or an empty list, to
    /// [`crate::Device::handle_addresses`] at any later time. The device requests no further
    /// look-up of this peer until then.
    Resolve {
        /// The peer.
        public_key: PublicKey,
        /// Its endpoint's name.
        name: EndpointName,
    },
    /// Inform the user; may be ignored.
    Notice(Notice),
}

/// Change of a peer's reachability.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// The peer has not answered for [`crate::limits::NOTICE_AFTER`]. Sent once until the peer
    /// recovers.
    PeerUnreachable {
        /// The peer.
        public_key: PublicKey,
        /// The destination of the initiations.
        endpoint: SocketAddr,
        /// Time since the first unanswered initiation.
        time: Duration,
    },
    /// A session with a peer that was reported unreachable has been established.
    PeerRecovered {
        /// The peer.
        public_key: PublicKey,
    },
}
