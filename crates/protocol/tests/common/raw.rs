//! A peer that the test plays by hand, to send messages that a correct peer does not: any
//! counter, timestamp or index, stale or forged messages.
//!
//! It implements the messages and the handshake, but none of the device's rules.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use taupe_protocol::Lanes;
use taupe_protocol::crypto::{Packet, Provider, Secret, TAG_LEN};
use taupe_protocol::ipnet::IpNet;
use taupe_protocol::key::{PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD, Kind, data_header};
use taupe_protocol::testing::noise::{
    Claim, InitiationFields, Initiator, Precomputed, Responder, ResponseFields, StaticKeys,
    TransportKeys,
};
use taupe_protocol::testing::write_data_header;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{AllowedIpChange, PeerUpdate};

use super::{Net, WALL, millis, private_key};

pub struct Raw {
    pub crypto: &'static Provider,
    pub keys: StaticKeys,
    pub remote: PublicKey,
    pub preshared_key: PresharedKey,
    pub address: SocketAddr,
}

/// A handshake that has begun and not finished.
pub struct Begun {
    pub initiator: Initiator,
    pub message: Vec<u8>,
}

/// A session at the hand-played peer's side.
pub struct RawSession {
    crypto: &'static Provider,
    keys: TransportKeys,
    pub remote_index: u32,
}

impl Raw {
    pub fn new(
        crypto: &'static Provider,
        private: PrivateKey,
        remote: PublicKey,
        address: SocketAddr,
    ) -> Self {
        Self {
            crypto,
            keys: StaticKeys::new(crypto, private),
            remote,
            preshared_key: PresharedKey::NONE,
            address,
        }
    }

    /// Begins a handshake. Each timestamp `label` must be greater than the one before.
    pub fn begin(&self, index: u32, label: Tai64N) -> Begun {
        let precomputed = Precomputed::new(self.crypto, &self.keys, &self.remote);
        let mut ephemeral = Secret::new(self.crypto.hash.hash(&[&index.to_le_bytes(), &label.0]));
        ephemeral.expose_mut()[31] |= 1;
        let (initiator, fields) = Initiator::start(
            self.crypto,
            &self.keys,
            &self.remote,
            &precomputed.expect("not of low order"),
            ephemeral,
            label,
        )
        .expect("not of low order");
        let mut message = vec![1, 0, 0, 0];
        message.extend_from_slice(&index.to_le_bytes());
        message.extend_from_slice(&fields.ephemeral);
        message.extend_from_slice(&fields.static_key);
        message.extend_from_slice(&fields.timestamp);
        message.extend_from_slice(&[0; 32]);
        self.stamp(&mut message);
        Begun { initiator, message }
    }

    /// Returns an index with the tag of a device with these lanes, as docs/design/lanes.md
    /// describes it. `side` is 1 for the initiator and 2 for the responder.
    pub fn index(&self, side: u8, lanes: Lanes, class: [u8; 2], timestamp: Tai64N) -> u32 {
        let shared = self
            .crypto
            .dh
            .agree(self.keys.private.expose(), &self.remote.0);
        let shared = shared.expect("not of low order");
        let input: [&[u8]; 4] = [b"lanes---", &class, &timestamp.0, &[side]];
        let mac = self.crypto.hash.mac(shared.expose(), &input);
        let log2 = lanes.count().ilog2() as u8;
        u32::from_le_bytes([mac[0], mac[1] ^ log2, class[0], class[1]])
    }

    /// Finishes a handshake with the device's response.
    pub fn finish(&self, begun: &Begun, response: &[u8]) -> Option<RawSession> {
        let fields = ResponseFields {
            ephemeral: chunk(response, 12),
            empty: chunk(response, 44),
        };
        let keys = begun
            .initiator
            .finish(self.crypto, &self.keys, &self.preshared_key, &fields)
            .ok()?;
        Some(RawSession {
            crypto: self.crypto,
            keys,
            remote_index: word(response, 4),
        })
    }

    /// Returns the timestamp in an initiation of the device.
    pub fn label(&self, initiation: &[u8]) -> Option<Tai64N> {
        let responder = self.responder(initiation, Secret::zeroed())?;
        Some(responder.timestamp())
    }

    /// Makes the response to an initiation of the device. Returns it with the session.
    pub fn answer(&self, initiation: &[u8], index: u32) -> Option<(Vec<u8>, RawSession)> {
        let ephemeral = Secret::new(self.crypto.hash.hash(&[b"answer", &index.to_le_bytes()]));
        let responder = self.responder(initiation, ephemeral)?;
        let (fields, keys) = responder.respond(self.crypto, &self.preshared_key).ok()?;
        let receiver = word(initiation, 4);
        let message = self.response(index, receiver, &fields.ephemeral, &fields.empty);
        let session = RawSession {
            crypto: self.crypto,
            keys,
            remote_index: receiver,
        };
        Some((message, session))
    }

    /// Makes a response with the given content and a valid mac1.
    pub fn response(
        &self,
        sender: u32,
        receiver: u32,
        ephemeral: &[u8; 32],
        empty: &[u8; 16],
    ) -> Vec<u8> {
        let mut message = vec![2, 0, 0, 0];
        message.extend_from_slice(&sender.to_le_bytes());
        message.extend_from_slice(&receiver.to_le_bytes());
        message.extend_from_slice(ephemeral);
        message.extend_from_slice(empty);
        message.extend_from_slice(&[0; 32]);
        self.stamp(&mut message);
        message
    }

    fn responder(&self, initiation: &[u8], ephemeral: Secret<32>) -> Option<Responder> {
        let fields = InitiationFields {
            ephemeral: chunk(initiation, 8),
            static_key: chunk(initiation, 40),
            timestamp: chunk(initiation, 88),
        };
        let claim = Claim::open(self.crypto, &self.keys, fields, ephemeral).ok()?;
        let precomputed = Precomputed::new(self.crypto, &self.keys, claim.public_key()).ok()?;
        claim.verify(self.crypto, &precomputed).ok()
    }

    /// Writes mac1 for the device, and zeros for mac2.
    pub fn stamp(&self, message: &mut [u8]) {
        stamp_for(self.crypto, &self.remote, message);
    }

    /// Writes mac2 with a cookie.
    pub fn stamp_cookie(&self, message: &mut [u8], cookie: &[u8; 16]) {
        let at = message.len() - 16;
        let mac2 = self.crypto.hash.mac(cookie, &[&message[..at]]);
        message[at..].copy_from_slice(&mac2);
    }

    /// Decrypts the device's cookie reply to `message`.
    pub fn open_cookie(&self, message: &[u8], reply: &[u8]) -> Option<[u8; 16]> {
        let mac1: [u8; 16] = chunk(message, message.len() - 32);
        let nonce: [u8; 24] = chunk(reply, 8);
        let mut sealed: [u8; 32] = chunk(reply, 32);
        let key = cookie_key(self.crypto, &self.remote);
        self.crypto
            .aead
            .xopen_with(&key, &nonce, &mac1, &mut sealed)
            .ok()?;
        Some(chunk(&sealed, 0))
    }

    /// Makes a cookie reply to a message of the device, as if this side were under load.
    pub fn cookie_reply(&self, message: &[u8], cookie: &[u8; 16]) -> Vec<u8> {
        let mac1: [u8; 16] = chunk(message, message.len() - 32);
        let nonce = [7; 24];
        let mut sealed = [0; 32];
        sealed[..16].copy_from_slice(cookie);
        let key = cookie_key(self.crypto, &self.keys.public);
        self.crypto
            .aead
            .xseal_with(&key, &nonce, &mac1, &mut sealed);
        let mut reply = vec![3, 0, 0, 0];
        reply.extend_from_slice(&message[4..8]);
        reply.extend_from_slice(&nonce);
        reply.extend_from_slice(&sealed);
        reply
    }
}

impl RawSession {
    pub fn new(crypto: &'static Provider, keys: TransportKeys, remote_index: u32) -> Self {
        Self {
            crypto,
            keys,
            remote_index,
        }
    }

    pub fn seal(&self, counter: u64, plaintext: &[u8]) -> Vec<u8> {
        let mut message = vec![0; plaintext.len() + DATA_OVERHEAD];
        write_data_header(&mut message, self.remote_index, counter);
        let end = message.len() - TAG_LEN;
        message[DATA_HEADER_LEN..end].copy_from_slice(plaintext);
        let data = &mut message[DATA_HEADER_LEN..];
        let key = self.crypto.aead.key(&self.keys.send);
        key.seal(&mut [Packet { counter, data }]);
        message
    }

    /// Returns the counter and plaintext of a message of the device.
    pub fn open(&self, message: &[u8]) -> Option<(u64, Vec<u8>)> {
        let (_, counter) = data_header(message)?;
        let mut data = message.get(DATA_HEADER_LEN..)?.to_vec();
        let key = self.crypto.aead.key(&self.keys.receive);
        let mut authentic = [false];
        let packet = Packet {
            counter,
            data: &mut data,
        };
        key.open(&mut [packet], &mut authentic);
        data.truncate(data.len() - TAG_LEN);
        authentic[0].then_some((counter, data))
    }
}

/// Writes mac1 for `receiver` (whitepaper §5.4.4), and zeros for mac2.
pub fn stamp_for(crypto: &Provider, receiver: &PublicKey, message: &mut [u8]) {
    let body = message.len() - 32;
    let key = crypto.hash.hash(&[b"mac1----", &receiver.0]);
    let mac1 = crypto.hash.mac(&key, &[&message[..body]]);
    message[body..body + 16].copy_from_slice(&mac1);
    message[body + 16..].fill(0);
}

fn cookie_key(crypto: &Provider, receiver: &PublicKey) -> Secret<32> {
    Secret::new(crypto.hash.hash(&[b"cookie--", &receiver.0]))
}

/// Returns `N` bytes from `at`.
pub fn chunk<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes[at..at + N].try_into().expect("the length fits")
}

/// Returns the little-endian word at `at`.
pub fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(chunk(bytes, at))
}

/// UDP address of the hand-played peer.
pub const RAW_ADDRESS: ([u8; 4], u16) = ([198, 51, 100, 9], 4500);
/// Its address in the tunnel.
pub const RAW_INNER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9));

/// Returns a device, and a peer of it that the test plays by hand. They have no session.
pub fn with_stranger(crypto: &'static Provider) -> (Net, Raw) {
    with_stranger_to(crypto, Lanes::One)
}

/// As [`with_stranger`], for a device with these lanes.
pub fn with_stranger_to(crypto: &'static Provider, lanes: Lanes) -> (Net, Raw) {
    let mut net = Net::with_lanes(crypto, &[lanes]);
    let remote = net.nodes[0].public;
    let address = SocketAddr::from(RAW_ADDRESS);
    let raw = Raw::new(crypto, private_key(99), remote, address);
    let mut update = PeerUpdate::new(raw.keys.public);
    update.endpoint = Some(address);
    let inner = IpNet::new(RAW_INNER, 32).expect("a valid prefix");
    update.allowed_ips = vec![AllowedIpChange::Add(inner)];
    net.update(0, update);
    (net, raw)
}

/// Returns the timestamp `n` grains after a fixed time.
pub fn label(n: u32) -> Tai64N {
    Tai64N::from_wall(WALL + millis(17) * n)
}

/// Returns a device and its hand-played peer after a handshake that the peer began and confirmed
/// with a keepalive, counter 0.
pub fn with_raw(crypto: &'static Provider) -> (Net, RawSession, Raw) {
    let (mut net, raw) = with_stranger(crypto);
    let session = shake(&mut net, &raw, 7, label(0));
    net.inject(0, raw.address, &session.seal(0, &[]));
    (net, session, raw)
}

/// Performs a handshake that the hand-played peer begins. The session is not confirmed.
pub fn shake(net: &mut Net, raw: &Raw, index: u32, label: Tai64N) -> RawSession {
    let begun = raw.begin(index, label);
    net.inject(0, raw.address, &begun.message);
    let response = net.last(0, Kind::Response);
    assert_eq!(response.to, raw.address);
    raw.finish(&begun, &response.bytes)
        .expect("a valid response")
}
