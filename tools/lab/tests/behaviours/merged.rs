//! A handshake message and data in one batch: the kernel delivers merged datagrams to one socket,
//! although handshakes have a socket of their own.

use crate::datagrams::Datagrams;
use crate::pair::{End, FAR, FAR_OUTER, FAR_PORT, NEAR, NEAR_OUTER, await_port};
use base64ct::{Base64, Encoding as _};
use std::fs;
use std::iter;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use taupe_lab::host::{Host, neighbours};
use taupe_lab::peers::{Keys, PeerSettings, Settings};
use taupe_lab::{Error, Result, ensure};
use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::{PrivateKey, PublicKey};
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD};
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
use taupe_protocol::{DataPath, Device, LaneId, Outbound, Output, Peer, ReceivedBatch, Staged};

/// Length of an initiation: the largest length of the messages after it in a batch.
const INITIATION: usize = 148;

/// Time after which the initiator renews a session (whitepaper §6.2).
const REKEY: Duration = Duration::from_secs(121);

/// More than the 20 ms that a server requires (the kernel's `INITIATIONS_PER_SECOND`), because its
/// clock and the client's differ.
pub(crate) const BETWEEN_INITIATIONS: Duration = Duration::from_millis(60);

/// Both are processed in either order.
pub(crate) fn handshakes_with_data() -> Result<()> {
    let (near, far) = neighbours()?;
    let keys = Keys::new(&near)?;
    let server = End::start(&far, "wgfar", &[])?;
    server.tunnel.configure(&Settings {
        private_key: &server.keys.private,
        listen_port: Some(FAR_PORT),
        addresses: &["10.77.0.2/24"],
        peers: &[PeerSettings {
            public_key: &keys.public,
            preshared_key: None,
            endpoint: None,
            allowed_ips: "10.77.0.1/32",
        }],
    })?;
    await_port(&far, FAR_PORT)?;
    for table in ["udp", "udp6"] {
        let sockets = sockets(&far, table)?;
        ensure!(sockets == 2, "{sockets} sockets in {table}");
    }
    let mut client = Client::new(&near, &keys, &server.keys.public)?;
    client.begin()?;
    for (name, packet, initiation_first) in [
        ("the initiation first", 32, true),
        ("data first", 160, false),
        ("the initiation first, again", 96, true),
    ] {
        client.ahead += REKEY;
        std::thread::sleep(BETWEEN_INITIATIONS);
        let (data, initiation) = client.renewing(packet)?;
        ensure!(initiation.len() == INITIATION, "{}", initiation.len());
        let (batch, segment) = if initiation_first {
            ensure!(data.len() <= INITIATION, "{}", data.len());
            ([initiation, data].concat(), INITIATION)
        } else {
            ensure!(data.len() > INITIATION, "{}", data.len());
            let segment = data.len();
            ([data, initiation].concat(), segment)
        };
        client.socket.send(client.server, None, &batch, segment)?;
        let heard = client.listen_for(Answers::BOTH)?;
        ensure!(heard == Answers::BOTH, "{name}: {heard:?}");
    }
    Ok(())
}

/// Returns the number of a machine's sockets at the server's port.
fn sockets(host: &Host, table: &str) -> Result<usize> {
    let table = format!("/proc/thread-self/net/{table}");
    let text = host.enter(|| fs::read_to_string(&table).map_err(Error::io(&*table)))?;
    let port = format!(":{FAR_PORT:04X}");
    let locals = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    Ok(locals.filter(|local| local.ends_with(&port)).count())
}

/// Answers of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Answers {
    response: bool,
    echo: bool,
}

impl Answers {
    const BOTH: Self = Self {
        response: true,
        echo: true,
    };
}

/// A WireGuard device without a TUN. The test sets its clock.
struct Client {
    socket: Datagrams,
    server: SocketAddr,
    device: Device,
    path: Arc<DataPath>,
    peer: Arc<Peer>,
    ahead: Duration,
    start: std::time::Instant,
}

impl Client {
    fn new(host: &Host, keys: &Keys, server: &str) -> Result<Self> {
        let key = |text: &str| -> Result<[u8; 32]> {
            let mut key = [0; 32];
            Base64::decode(text.trim(), &mut key).map_err(|_| Error::unmet("a key"))?;
            Ok(key)
        };
        let address = SocketAddr::new(FAR_OUTER, FAR_PORT);
        let public = PublicKey(key(server)?);
        let mut peer = PeerUpdate::new(public);
        peer.endpoint = Some(address);
        peer.allowed_ips = vec![AllowedIpChange::Add(FAR.into())];
        let mut update = DeviceUpdate::default();
        update.peers.push(peer);
        let private = PrivateKey::new(key(&keys.private)?);
        update.private_key = private.map(PrivateKeyUpdate::new);
        let random = |bytes: &mut [u8]| taupe_runtime::random::fill(bytes);
        let mut device = Device::new(default_provider(), Box::new(random), Arc::new(|| ()));
        let start = std::time::Instant::now();
        let now = now(start, Duration::ZERO);
        device
            .update(now, update)
            .map_err(|_| Error::unmet("update"))?;
        device.set_up(now);
        let peer = device.peer(&public);
        Ok(Self {
            socket: Datagrams::bind(host, NEAR_OUTER)?,
            server: address,
            path: Arc::clone(device.data_path()),
            peer: peer.ok_or_else(|| Error::unmet("a peer"))?,
            device,
            ahead: Duration::ZERO,
            start,
        })
    }

    fn now(&self) -> Now {
        now(self.start, self.ahead)
    }

    /// Performs the first handshake.
    fn begin(&mut self) -> Result<()> {
        let staged = Staged {
            packet: echo_request(NEAR, 32),
            ecn: 0,
            lane: LaneId::FIRST,
        };
        let now = self.now();
        self.path.stage(now.boot, &self.peer, iter::once(staged));
        self.transmit()?;
        let heard = self.listen_for(Answers::BOTH)?;
        ensure!(heard == Answers::BOTH, "no session: {heard:?}");
        Ok(())
    }

    /// Returns an encrypted echo request of a length, and the initiation that is due by then.
    fn renewing(&mut self, length: usize) -> Result<(Vec<u8>, Vec<u8>)> {
        let now = self.now();
        let mut message = vec![0; length + DATA_OVERHEAD];
        message[DATA_HEADER_LEN..][..length].copy_from_slice(&echo_request(NEAR, length));
        let bytes = message.len();
        match self.path.reserve(now.boot, &self.peer, 1, bytes as u64) {
            Outbound::Send(mut reservation) => {
                let ready = reservation.seal(&mut message, bytes);
                ensure!(ready == bytes, "{ready} of {bytes} bytes sealed");
            }
            _ => return Err(Error::unmet("no session to send with")),
        }
        let initiation = self.wanted().into_iter().next();
        let initiation = initiation.ok_or_else(|| Error::unmet("no initiation"))?;
        Ok((message, initiation))
    }

    /// Returns the messages that the protocol wants to send.
    fn wanted(&mut self) -> Vec<Vec<u8>> {
        let now = self.now();
        self.device.handle_pending_work(now);
        let mut wanted = Vec::new();
        while let Some(output) = self.device.poll_output() {
            if let Output::Transmit { datagram, .. } = output {
                wanted.push(datagram.to_vec());
            }
        }
        wanted
    }

    fn transmit(&mut self) -> Result<()> {
        for datagram in self.wanted() {
            let length = datagram.len();
            self.socket.send(self.server, None, &datagram, length)?;
        }
        Ok(())
    }

    /// Processes messages until the expected answers have arrived, or nothing more arrives.
    fn listen_for(&mut self, expected: Answers) -> Result<Answers> {
        let mut heard = Answers::default();
        while heard != expected {
            let arrived = self.socket.receive(Duration::from_secs(3))?;
            if arrived.is_empty() {
                break;
            }
            for mut one in arrived {
                let (now, mut sorted) = (self.now(), ReceivedBatch::default());
                let (from, length) = (one.from.into(), one.bytes.len());
                self.path
                    .receive(now.boot, from, &mut one.bytes, length, &mut sorted);
                for message in sorted.handshakes.drain(..) {
                    let message = &one.bytes[message];
                    let refused = self.device.handle_message(now, from, message, 0);
                    ensure!(refused.is_none(), "{refused:?}");
                    heard.response = true;
                }
                let mut packets = sorted.inner.drain(..).map(|packet| &one.bytes[packet]);
                heard.echo |= packets.any(|packet| packet.get(20) == Some(&0));
                self.transmit()?;
            }
        }
        Ok(heard)
    }
}

/// Returns the time of a clock that is ahead.
pub(crate) fn now(start: std::time::Instant, ahead: Duration) -> Now {
    Now {
        boot: Instant::default() + Duration::from_secs(1) + start.elapsed() + ahead,
        wall: SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default() + ahead,
    }
}

/// Returns an ICMP echo request to [`FAR`] of a length including headers, with zeros as content.
pub(crate) fn echo_request(source: IpAddr, length: usize) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (source, FAR) else {
        return Vec::new();
    };
    let mut packet = vec![0; length];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    packet[8..10].copy_from_slice(&[64, 1]);
    packet[12..16].copy_from_slice(&source.octets());
    packet[16..20].copy_from_slice(&destination.octets());
    let sum: u32 = (packet[..20].chunks(2))
        .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
        .sum();
    let sum = !(sum % 0xffff) as u16;
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet[20..24].copy_from_slice(b"\x08\0\xf7\xff");
    packet
}
