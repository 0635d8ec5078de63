//! A peer that knows the secrets which a device shares with it.

use super::recorder::{self, Origin, RECORDER, Recorded};
use crate::datagrams::Datagrams;
use crate::merged::{BETWEEN_INITIATIONS, echo_request, now};
use crate::pair::{FAR, FAR_OUTER, FAR_PORT, NEAR_OUTER};
use std::iter;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use taupe_lab::host::Host;
use taupe_lab::{Error, Result};
use taupe_protocol::crypto::{Secret, default_provider};
use taupe_protocol::key::{PqPrivateKey, PqPublicKey, PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD};
use taupe_protocol::time::Now;
use taupe_protocol::update::{
    AllowedIpChange, DeviceUpdate, PeerUpdate, PostQuantum, PrivateKeyUpdate,
};
use taupe_protocol::{DataPath, Device, LaneId, Outbound, Output, Peer, ReceivedBatch, Staged};

/// Time for which an answer is awaited before the question is repeated.
const ANSWER: Duration = Duration::from_millis(300);

/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(15);

/// Keys of a device. They are made for one test.
pub(super) struct DeviceKeys {
    pub(super) private: [u8; 32],
    pub(super) seed: [u8; 64],
}

impl DeviceKeys {
    pub(super) fn new() -> Self {
        let mut keys = Self {
            private: [0; 32],
            seed: [0; 64],
        };
        taupe_runtime::random::fill(&mut keys.private);
        taupe_runtime::random::fill(&mut keys.seed);
        if let Some(key) = PrivateKey::new(keys.private) {
            keys.private = *key.expose();
        }
        keys
    }

    pub(super) fn public(&self) -> PublicKey {
        PublicKey(default_provider().dh.public(&self.private))
    }

    fn pq_private(&self) -> Option<PqPrivateKey> {
        PqPrivateKey::new(Secret::new(self.seed))
    }

    /// Returns the public key for ML-KEM-768.
    pub(super) fn pq_public(&self) -> Result<PqPublicKey> {
        let private = self.pq_private().ok_or_else(|| Error::unmet("a seed"))?;
        Ok(private.public(default_provider(), taupe_protocol::hybrid::Suite::Hybrid768))
    }
}

/// Returns bytes as the UAPI writes them.
pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A peer of the device at [`FAR`]: a WireGuard device without a TUN.
pub(super) struct KnowingPeer {
    pub(super) name: String,
    pub(super) keys: DeviceKeys,
    pub(super) preshared: [u8; 32],
    pub(super) address: IpAddr,
    is_hybrid: bool,
    server: PublicKey,
    socket: Datagrams,
    device: Device,
    path: Arc<DataPath>,
    peer: Arc<Peer>,
    /// The agreement of the two static keys.
    pub(super) static_static: [u8; 32],
    secrets: Vec<Recorded>,
    start: Instant,
}

impl KnowingPeer {
    /// Creates a peer with the inner address 10.77.0.`number`.
    pub(super) fn new(
        host: &Host,
        number: u8,
        server: &DeviceKeys,
        is_hybrid: bool,
    ) -> Result<Self> {
        let keys = DeviceKeys::new();
        let mut preshared = [0; 32];
        taupe_runtime::random::fill(&mut preshared);
        let public = server.public();
        let mut peer = PeerUpdate::new(public);
        peer.endpoint = Some(SocketAddr::new(FAR_OUTER, FAR_PORT));
        peer.preshared_key = Some(PresharedKey::new(preshared));
        peer.allowed_ips = vec![AllowedIpChange::Add(FAR.into())];
        let mut update = DeviceUpdate::default();
        if is_hybrid {
            peer.pq_public_key = Some(Some(server.pq_public()?));
            peer.post_quantum = Some(Some(PostQuantum::Require));
            update.pq_private_key = Some(keys.pq_private());
        }
        update.peers.push(peer);
        update.private_key = PrivateKey::new(keys.private).map(PrivateKeyUpdate::new);
        let random = |bytes: &mut [u8]| taupe_runtime::random::fill(bytes);
        recorder::take();
        let mut device = Device::new(&RECORDER, Box::new(random), Arc::new(|| ()));
        let start = Instant::now();
        let at = now(start, Duration::ZERO);
        device
            .update(at, update)
            .map_err(|_| Error::unmet("update"))?;
        device.set_up(at);
        let peer = device.peer(&public);
        let dh = default_provider().dh;
        let static_static = dh.agree(&keys.private, &public.0);
        let static_static = static_static.ok_or_else(|| Error::unmet("an agreement"))?;
        recorder::take();
        Ok(Self {
            name: format!("peer {number}"),
            static_static: *static_static.expose(),
            preshared,
            address: Ipv4Addr::new(10, 77, 0, number).into(),
            is_hybrid,
            server: public,
            socket: Datagrams::bind(host, NEAR_OUTER)?,
            path: Arc::clone(device.data_path()),
            peer: peer.ok_or_else(|| Error::unmet("a peer"))?,
            keys,
            device,
            secrets: Vec::new(),
            start,
        })
    }

    /// Returns the lines that add this peer to the device (UAPI).
    pub(super) fn lines(&self) -> Result<String> {
        let mut lines = format!(
            "public_key={}\npreshared_key={}\nallowed_ip={}/32\n",
            hexadecimal(&self.keys.public().0),
            hexadecimal(&self.preshared),
            self.address,
        );
        if self.is_hybrid {
            let key = hexadecimal(self.keys.pq_public()?.as_bytes());
            lines += &format!("pq_public_key={key}\npost_quantum=require\n");
        }
        Ok(lines)
    }

    /// Returns the line that selects this peer.
    pub(super) fn line(&self) -> String {
        format!("public_key={}\n", hexadecimal(&self.keys.public().0))
    }

    /// Returns the secrets of handshakes and sessions since the last call, except the agreement of
    /// the static keys.
    pub(super) fn take_secrets(&mut self) -> Vec<Recorded> {
        std::mem::take(&mut self.secrets)
    }

    /// Returns these secrets, which the next call of [`Self::take_secrets`] returns again.
    pub(super) fn secrets(&self) -> &[Recorded] {
        &self.secrets
    }

    /// Waits until the device has made a session.
    pub(super) fn await_session(&mut self) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            self.receive(1)?;
            if self.secrets.iter().any(|it| it.origin == Origin::Session) {
                return Ok(());
            }
        }
        Err(Error::unmet(format!("{}: no session", self.name)))
    }

    /// Sends echo requests until one is answered. Performs a handshake if there is no session.
    pub(super) fn ping(&mut self) -> Result<()> {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            let staged = Staged {
                packet: echo_request(self.address, 32),
                ecn: 0,
                lane: LaneId::FIRST,
            };
            let at = self.now();
            self.path.stage(at.boot, &self.peer, iter::once(staged));
            if self.receive(1)? > 0 {
                return Ok(());
            }
        }
        Err(Error::unmet(format!("{}: no answer", self.name)))
    }

    /// Sends `count` echo requests of `length` bytes in one batch. Returns the number of answers.
    pub(super) fn ping_batch(&mut self, count: usize, length: usize) -> Result<usize> {
        let stride = length + DATA_OVERHEAD;
        let mut batch = vec![0; stride * count];
        for message in batch.chunks_mut(stride) {
            let packet = echo_request(self.address, length);
            message[DATA_HEADER_LEN..][..length].copy_from_slice(&packet);
        }
        let (at, bytes) = (self.now(), batch.len() as u64);
        match self.path.reserve(at.boot, &self.peer, count as u64, bytes) {
            Outbound::Send(mut reservation) => {
                let ready = reservation.seal(&mut batch, stride);
                let to = reservation.endpoint().remote;
                self.socket.send(to, None, &batch[..ready], stride)?;
            }
            _ => return Err(Error::unmet("no session to send with")),
        }
        self.receive(count)
    }

    /// Replaces the session by a new one.
    pub(super) fn renew(&mut self) -> Result<()> {
        let before = self.secrets.len();
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            std::thread::sleep(BETWEEN_INITIATIONS);
            let at = self.now();
            self.device.initiate(at, &self.server);
            // The first packet confirms the session.
            self.ping()?;
            let new = &self.secrets[before..];
            if new.iter().any(|it| it.origin == Origin::Session) {
                return Ok(());
            }
        }
        Err(Error::unmet(format!("{}: no new session", self.name)))
    }

    fn now(&self) -> Now {
        now(self.start, Duration::ZERO)
    }

    /// Sends what is due, and processes messages until `answers` echo replies have arrived or none
    /// arrives any more. Returns their number.
    pub(super) fn receive(&mut self, answers: usize) -> Result<usize> {
        let mut count = 0;
        self.transmit()?;
        while count < answers {
            let arrived = self.socket.receive(ANSWER)?;
            if arrived.is_empty() {
                break;
            }
            for mut one in arrived {
                let (at, mut sorted) = (self.now(), ReceivedBatch::default());
                let (from, length) = (one.from.into(), one.bytes.len());
                self.path
                    .receive(at.boot, from, &mut one.bytes, length, &mut sorted);
                for message in sorted.handshakes.drain(..) {
                    // A repeated handshake may be refused.
                    self.device.handle_message(at, from, &one.bytes[message], 0);
                }
                let packets = sorted.inner.drain(..).map(|packet| &one.bytes[packet]);
                count += packets.filter(|packet| packet.get(20) == Some(&0)).count();
                self.transmit()?;
            }
        }
        self.transmit()?;
        Ok(count)
    }

    fn transmit(&mut self) -> Result<()> {
        let at = self.now();
        taupe_runtime::driver::run_due(&mut self.device, at);
        while let Some(output) = self.device.poll_output() {
            if let Output::Transmit {
                endpoint, datagram, ..
            } = output
            {
                let length = datagram.len();
                (self.socket).send(endpoint.remote, None, &datagram, length)?;
            }
        }
        let recorded = recorder::take();
        let new = recorded
            .into_iter()
            .filter(|it| it.value != self.static_static);
        self.secrets.extend(new);
        Ok(())
    }

    /// Returns the address of its socket.
    pub(super) fn endpoint(&self) -> Result<SocketAddr> {
        self.socket.address()
    }
}
