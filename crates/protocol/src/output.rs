//! Requests of a device to the program that uses it.

use core::net::SocketAddr;
use core::time::Duration;

use crate::endpoint::Endpoint;
use crate::key::PublicKey;
use crate::time::Tai64N;
use crate::update::EndpointName;

/// What a device wants done. In order: what comes first must have happened
/// before the next is begun.
pub enum Output {
    /// Send a datagram.
    Transmit {
        /// Where to, and from which local address.
        endpoint: Endpoint,
        /// The traffic class (IPv4 TOS) of the outer header: DSCP and ECN.
        tos: u8,
        /// The message.
        datagram: Vec<u8>,
    },
    /// Remember, for as long as the private key is used, that handshake timestamps
    /// up to this one may have been sent with it, and give it back with
    /// [`crate::update::PrivateKeyUpdate::timestamp_floor`]. Must be durable before the next
    /// output is sent, or a crash together with a clock that went back could
    /// lock this device out of its peers.
    ReserveTimestamps {
        /// The public key of the device.
        public_key: PublicKey,
        /// The greatest timestamp that may be sent from now on.
        up_to: Tai64N,
    },
    /// Remember durably whether a peer has shaken hands in a post-quantum way, and say so with
    /// [`crate::update::PeerUpdate::pq_latched`] when the peer is added again: so that nobody
    /// leads it back to ordinary handshakes.
    Latch {
        /// The public key of the device.
        public_key: PublicKey,
        /// The peer.
        peer: PublicKey,
        /// Whether it is remembered, or forgotten.
        latched: bool,
    },
    /// Ask for the addresses of a peer that does not answer, and give them, or
    /// none, to [`crate::Device::handle_addresses`] at any later time: the peer's name
    /// is not asked for again before.
    Resolve {
        /// The peer.
        public_key: PublicKey,
        /// Its endpoint's name.
        name: EndpointName,
    },
    /// Tell whoever uses the device, if they want to know.
    Notice(Notice),
}

/// What people want to know of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// It has not answered for [`crate::limits::NOTICE_AFTER`]. Told once, until it is heard.
    PeerUnreachable {
        /// The peer.
        public_key: PublicKey,
        /// Where initiations were sent to.
        endpoint: SocketAddr,
        /// Since the first of them.
        time: Duration,
    },
    /// After that: there is a session with it.
    PeerRecovered {
        /// The peer.
        public_key: PublicKey,
    },
}
