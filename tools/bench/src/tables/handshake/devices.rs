//! Two devices of Taupe's protocol that perform handshakes with each other.

use super::CRYPTO;
use super::exchange::{Exchange, Handshake, processor_time};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use taupe_crypto::Secret;
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{PqPrivateKey, PrivateKey, PublicKey};
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD, Kind, classify};
use taupe_protocol::time::{self, Now, Tai64N};
use taupe_protocol::update::{
    AllowedIpChange, DeviceUpdate, PeerUpdate, PostQuantum, PrivateKeyUpdate,
};
use taupe_protocol::{
    Device, Endpoint, LaneId, Outbound, Output, Random, ReceivedBatch, Staged, padded_len,
};
use taupe_runtime::random::SystemRandom;

/// Packets in a batch, and bytes of each packet inside the tunnel.
pub(super) const BATCH: usize = 64;
const PACKET: usize = 1_424;

/// Two devices that perform an ordinary or a hybrid handshake.
pub(super) struct DevicePair {
    suite: Option<Suite>,
    client: PeerDevice,
    server: PeerDevice,
    now: Now,
}

impl DevicePair {
    pub(super) fn new(suite: Option<Suite>) -> Result<Self> {
        let mut client = PeerDevice::new([192, 0, 2, 1], [10, 0, 0, 1])?;
        let mut server = PeerDevice::new([192, 0, 2, 2], [10, 0, 0, 2])?;
        let now = Now {
            boot: time::Instant(1),
            wall: Duration::from_secs(1_700_000_000),
        };
        client.add_peer(now, &server, suite)?;
        server.add_peer(now, &client, suite)?;
        Ok(Self {
            suite,
            client,
            server,
            now,
        })
    }
}

impl Handshake for DevicePair {
    fn perform(&mut self) -> Result<Exchange> {
        let (client, server) = (&mut self.client, &mut self.server);
        // Enough time for another handshake to be allowed. Taking a device down removes its
        // session.
        let second = Duration::from_secs(1);
        self.now.boot += second;
        self.now.wall += second;
        let now = self.now;
        for end in [&mut *client, &mut *server] {
            end.device.set_down();
            end.device.set_up(now);
        }
        client.stage_packet(now, server)?;

        let (initiating, initiation) = client.run(|device| device.handle_pending_work(now))?;
        let (taken, server_cpu) =
            processor_time(|| server.receive_handshake(now, client.address, &initiation));
        let (responding, response) = taken?;
        let (finishing, first) = client.receive_handshake(now, server.address, &response)?;

        let kinds = [&initiation, &response, &first].map(|messages| kinds(messages));
        let expected = match self.suite {
            None => [Kind::Initiation, Kind::Response, Kind::Data],
            Some(_) => [Kind::HybridInitiation, Kind::HybridResponse, Kind::Data],
        };
        let expected = expected.map(|kind| Some(vec![kind]));
        ensure!(kinds == expected, "the handshake was {kinds:?}");
        let first = first.into_iter().next();
        server.open(now, client, first.unwrap_or_default())?;
        let messages = initiation.iter().chain(&response);
        Ok(Exchange {
            messages: messages.map(Vec::len).collect(),
            client: initiating + finishing,
            server: responding,
            server_cpu,
        })
    }

    fn transfer_batch(&mut self) -> Result<Option<Duration>> {
        let (client, server, now) = (&mut self.client, &self.server, self.now);
        let peer = client.device.peer(&server.public);
        let peer = peer.ok_or_else(|| Error::unmet("the peer is not known"))?;
        let mut packet = client.packet(server);
        packet.resize(PACKET, 0);
        if let Some(length) = packet.get_mut(2..4) {
            length.copy_from_slice(&(PACKET as u16).to_be_bytes());
        }
        let stride = PACKET + DATA_OVERHEAD;
        let mut batch = vec![0; BATCH * stride];
        for message in batch.chunks_mut(stride) {
            if let Some(inner) = message.get_mut(DATA_HEADER_LEN..DATA_HEADER_LEN + PACKET) {
                inner.copy_from_slice(&packet);
            }
        }
        let mut received = ReceivedBatch::default();
        let start = Instant::now();
        let path = client.device.data_path();
        let Outbound::Send(mut reserved) =
            path.reserve(now.boot, &peer, BATCH as u64, batch.len() as u64)
        else {
            return Err(Error::unmet("there is no session to send with"));
        };
        reserved.seal(&mut batch, stride);
        let from = Endpoint::from(client.address);
        let path = server.device.data_path();
        path.receive(now.boot, from, &mut batch, stride, &mut received);
        let took = start.elapsed();
        let arrived = received.inner.iter();
        let unchanged = arrived.filter(|at| batch.get((*at).clone()) == Some(&*packet));
        ensure!(unchanged.count() == BATCH, "packets that did not arrive");
        Ok(Some(took))
    }
}

/// Returns the kinds of `messages`, merging equal neighbours. `None` if a message has no kind.
fn kinds(messages: &[Vec<u8>]) -> Option<Vec<Kind>> {
    let kinds = messages.iter().map(|message| classify(message).ok());
    let mut kinds: Vec<Kind> = kinds.collect::<Option<_>>()?;
    kinds.dedup();
    Some(kinds)
}

/// A device with its addresses.
pub(super) struct PeerDevice {
    pub(super) device: Device,
    pub(super) seed: PqPrivateKey,
    pub(super) public: PublicKey,
    /// Address outside the tunnel.
    address: SocketAddr,
    /// Address inside the tunnel.
    inner: Ipv4Addr,
}

impl PeerDevice {
    pub(super) fn new(outer: [u8; 4], inner: [u8; 4]) -> Result<Self> {
        let secret: Secret<32> = SystemRandom.secret();
        let private = PrivateKey::new(*secret.expose());
        let private = private.ok_or_else(|| Error::unmet("a private key of zeros"))?;
        let public = PublicKey(CRYPTO.dh.public(private.expose()));
        let now = Now {
            boot: time::Instant(0),
            wall: Duration::ZERO,
        };
        let mut seed = Secret::zeroed();
        SystemRandom.fill(seed.expose_mut());
        let seed = PqPrivateKey::new(seed);
        let seed = seed.ok_or_else(|| Error::unmet("a seed of zeros"))?;
        let mut device = Device::new(CRYPTO, Box::new(SystemRandom), std::sync::Arc::new(|| {}));
        let key = PrivateKeyUpdate {
            key: Some(private),
            timestamp_floor: Tai64N::ZERO,
        };
        let update = DeviceUpdate {
            private_key: Some(key),
            pq_private_key: Some(Some(seed.clone())),
            ..DeviceUpdate::default()
        };
        update_device(&mut device, now, update)?;
        Ok(Self {
            device,
            seed,
            public,
            address: (outer, 51_820).into(),
            inner: inner.into(),
        })
    }

    /// Adds the other end as a peer.
    pub(super) fn add_peer(&mut self, now: Now, other: &Self, suite: Option<Suite>) -> Result<()> {
        let mut peer = PeerUpdate::new(other.public);
        peer.endpoint = Some(other.address);
        if let Some(suite) = suite {
            let key = || other.seed.public(CRYPTO, suite);
            peer.pq_public_key = Some(suite.has_static_keys().then(key));
            peer.post_quantum = Some(Some(PostQuantum::Require));
        }
        peer.allowed_ips = vec![AllowedIpChange::Add(IpAddr::V4(other.inner).into())];
        let update = DeviceUpdate {
            peers: vec![peer],
            ..DeviceUpdate::default()
        };
        update_device(&mut self.device, now, update)
    }

    /// Queues a packet for the other end, which starts a handshake.
    fn stage_packet(&mut self, now: Now, to: &Self) -> Result<()> {
        let peer = self.device.peer(&to.public);
        let peer = peer.ok_or_else(|| Error::unmet("the peer is not known"))?;
        let mut packet = self.packet(to);
        packet.resize(padded_len(packet.len(), 1420), 0);
        let staged = Staged {
            packet,
            ecn: 0,
            lane: LaneId::FIRST,
        };
        let path = self.device.data_path();
        path.stage(now.boot, &peer, std::iter::once(staged));
        Ok(())
    }

    /// Returns an IPv4 packet without content (RFC 791; protocol 253 of RFC 3692).
    fn packet(&self, to: &Self) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 20, 0, 0, 0, 0, 64, 253, 0, 0];
        packet.extend(self.inner.octets());
        packet.extend(to.inner.octets());
        packet
    }

    /// Processes a handshake message, which may consist of several parts.
    fn receive_handshake(
        &mut self,
        now: Now,
        from: SocketAddr,
        parts: &[Vec<u8>],
    ) -> Result<(Duration, Vec<Vec<u8>>)> {
        let mut refused = None;
        let done = self.run(|device| {
            refused = parts
                .iter()
                .find_map(|part| device.handle_message(now, Endpoint::from(from), part, 0));
        });
        match refused {
            Some(cause) => Err(Error::unmet(format!("a handshake message: {cause}"))),
            None => done,
        }
    }

    /// Runs `work`; returns the time it took and the messages it sent.
    fn run(&mut self, work: impl FnOnce(&mut Device)) -> Result<(Duration, Vec<Vec<u8>>)> {
        let start = Instant::now();
        work(&mut self.device);
        let outputs = std::iter::from_fn(|| self.device.poll_output());
        let sent = outputs.filter_map(|output| match output {
            Output::Transmit { datagram, .. } => Some(datagram),
            Output::ReserveTimestamps { .. }
            | Output::Resolve { .. }
            | Output::PinPostQuantum { .. }
            | Output::Notice(_) => None,
        });
        let sent: Vec<_> = sent.collect();
        let took = start.elapsed();
        ensure!(!sent.is_empty(), "a handshake goes on with no message");
        Ok((took, sent))
    }

    /// Decrypts the first message of the new session.
    fn open(&self, now: Now, from: &Self, mut message: Vec<u8>) -> Result<()> {
        let mut received = ReceivedBatch::default();
        let endpoint = Endpoint::from(from.address);
        let length = message.len();
        let path = self.device.data_path();
        path.receive(now.boot, endpoint, &mut message, length, &mut received);
        let inner = received
            .inner
            .first()
            .and_then(|at| message.get(at.clone()));
        ensure!(
            inner == Some(&*from.packet(self)),
            "the two ends do not have the same keys"
        );
        Ok(())
    }
}

pub(super) fn update_device(device: &mut Device, now: Now, update: DeviceUpdate) -> Result<()> {
    let updated = device.update(now, update);
    updated.map_err(|error| Error::unmet(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_protocol::key::PresharedKey;

    #[test]
    fn ordinary_messages_have_the_sizes_of_the_whitepaper() -> Result<()> {
        let mut ends = DevicePair::new(None)?;
        for _ in 0..3 {
            let exchange = ends.perform()?;
            assert_eq!(exchange.messages, [148, 92]);
            assert_eq!((exchange.traffic(), exchange.packets()), (240, 2));
            assert!(exchange.client > Duration::ZERO && exchange.server > Duration::ZERO);
        }
        Ok(())
    }

    #[test]
    fn hybrid_messages_have_the_documented_sizes() -> Result<()> {
        for (suite, sizes) in [
            (Suite::Light, vec![944, 860]),
            (Suite::Hybrid512, vec![912, 848, 860, 844]),
            (Suite::Hybrid768, vec![1232, 1232, 1180, 1164]),
        ] {
            let mut ends = DevicePair::new(Some(suite))?;
            for _ in 0..3 {
                assert_eq!(ends.perform()?.messages, sizes);
            }
        }
        Ok(())
    }

    #[test]
    fn different_preshared_keys_do_not_complete() -> Result<()> {
        let mut ends = DevicePair::new(None)?;
        let mut peer = PeerUpdate::new(ends.client.public);
        peer.preshared_key = Some(PresharedKey::new([7; 32]));
        let update = DeviceUpdate {
            peers: vec![peer],
            ..DeviceUpdate::default()
        };
        let now = ends.now;
        update_device(&mut ends.server.device, now, update)?;
        assert!(matches!(ends.perform(), Err(Error::Unmet(_))));
        Ok(())
    }

    #[test]
    fn a_packet_of_another_session_is_an_error() -> Result<()> {
        let (mut one, mut other) = (DevicePair::new(None)?, DevicePair::new(None)?);
        one.perform()?;
        other.perform()?;
        let foreign = vec![4; 64];
        assert!(one.server.open(one.now, &one.client, foreign).is_err());
        // A message for a session of another device.
        other.server.stage_packet(other.now, &other.client)?;
        let now = other.now;
        let (_, mut messages) = other.server.run(|device| device.handle_pending_work(now))?;
        let message = messages.remove(0);
        assert!(
            one.client
                .open(one.now, &other.server, message.clone())
                .is_err()
        );
        other.client.open(other.now, &other.server, message)
    }
}
