//! `examples/ping.rs`, run as a program, against a device over UDP on loopback.

use std::env::consts::EXE_SUFFIX;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output as Ended, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant as Clock, SystemTime};

use base64ct::{Base64, Encoding};
use taupe_protocol::crypto::default_provider;
use taupe_protocol::ipnet::IpNet;
use taupe_protocol::key::{PrivateKey, PublicKey};
use taupe_protocol::message::{DATA_HEADER_LEN, DATA_OVERHEAD};
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
use taupe_protocol::{Device, Endpoint, Outbound, Output, ReceivedBatch, inner};

/// Tunnel address of the example.
const PINGER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 2);
/// Tunnel address of the answering device.
const ANSWERER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
/// A handshake and an echo on loopback take milliseconds, or 5 s when a datagram is lost.
const PATIENCE: Duration = Duration::from_secs(30);

#[test]
fn the_example_shakes_hands_and_is_answered() {
    let (private, public) = key_pair();
    let mut peer = Answerer::new(public);
    let file = KeyFile::new("answered", &Base64::encode_string(private.expose()));
    let key = Base64::encode_string(&peer.public().0);
    let mut ping = Ping::start(&file.0, &key, peer.address());
    let ended = loop {
        if let Some(ended) = ping.ended() {
            break ended;
        }
        assert!(peer.started.elapsed() < PATIENCE, "it has not ended");
        peer.serve();
    };
    let (said, told) = (text(&ended.stdout), text(&ended.stderr));
    assert!(ended.status.success(), "{told}");
    assert!(said.starts_with("10.9.0.1 answers after "), "{said}");
    assert_eq!(peer.answered, 1);
}

#[test]
fn a_key_that_is_cut_is_refused() {
    let (private, public) = key_pair();
    let file = KeyFile::new("cut", &Base64::encode_string(&private.expose()[..31]));
    let nobody = SocketAddr::from(([127, 0, 0, 1], 9));
    let mut ping = Ping::start(&file.0, &Base64::encode_string(&public.0), nobody);
    let started = Clock::now();
    let ended = loop {
        if let Some(ended) = ping.ended() {
            break ended;
        }
        assert!(started.elapsed() < PATIENCE, "it has not ended");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert_eq!(ended.status.code(), Some(1));
    let told = text(&ended.stderr);
    assert!(told.contains("a key has 32 bytes"), "{told}");
}

/// A device that answers echo requests from [`PINGER`].
struct Answerer {
    device: Device,
    socket: UdpSocket,
    started: Clock,
    answered: usize,
}

impl Answerer {
    fn new(pinger: PublicKey) -> Self {
        let random = |bytes: &mut [u8]| getrandom::fill(bytes).expect("randomness");
        let mut device = Device::new(default_provider(), Box::new(random), Arc::new(|| ()));
        let started = Clock::now();
        let mut peer = PeerUpdate::new(pinger);
        peer.allowed_ips = vec![AllowedIpChange::Add(
            IpNet::new(PINGER.into(), 32).expect("a prefix"),
        )];
        let update = DeviceUpdate {
            private_key: Some(PrivateKeyUpdate::new(key_pair().0)),
            peers: vec![peer],
            ..DeviceUpdate::default()
        };
        device.update(now(started), update).expect("one peer");
        device.set_up(now(started));
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let wait = Some(Duration::from_millis(20));
        socket.set_read_timeout(wait).expect("a timeout");
        Self {
            device,
            socket,
            started,
            answered: 0,
        }
    }

    fn public(&self) -> PublicKey {
        self.device.public_key().expect("it has a key")
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("it is bound")
    }

    /// Processes one datagram, if one arrives within 20 ms, and all deadlines that are due.
    fn serve(&mut self) {
        let mut buffer = [0; 2048];
        if let Ok((length, from)) = self.socket.recv_from(&mut buffer) {
            self.take(&mut buffer[..length], from.into());
        }
        let now = now(self.started);
        self.device.handle_pending_work(now);
        self.device.handle_deadline(now);
        while let Some(output) = self.device.poll_output() {
            if let Output::Transmit {
                endpoint, datagram, ..
            } = output
            {
                self.send(&datagram, endpoint);
            }
        }
    }

    fn take(&mut self, datagram: &mut [u8], from: Endpoint) {
        let (now, length) = (now(self.started), datagram.len());
        let mut sorted = ReceivedBatch::default();
        let path = Arc::clone(self.device.data_path());
        path.receive(now.boot, from, datagram, length, &mut sorted);
        for message in sorted.handshakes {
            let refused = self.device.handle_message(now, from, &datagram[message], 0);
            assert_eq!(refused, None);
        }
        for packet in sorted.inner {
            self.answer(now, &datagram[packet]);
        }
    }

    /// Sends an echo request back as a reply.
    fn answer(&mut self, now: Now, request: &[u8]) {
        let view = inner::parse(request).expect("the device has looked at it");
        assert_eq!(
            (view.source, view.destination),
            (PINGER.into(), ANSWERER.into())
        );
        assert_eq!(request[20..22], [8, 0], "an echo request");
        assert_eq!(sum(&request[..20]), 0xffff, "IP's checksum");
        assert_eq!(sum(&request[20..]), 0xffff, "ICMP's checksum");
        let mut message = vec![0; request.len() + DATA_OVERHEAD];
        let packet = &mut message[DATA_HEADER_LEN..][..request.len()];
        packet.copy_from_slice(request);
        packet[12..16].copy_from_slice(&ANSWERER.octets());
        packet[16..20].copy_from_slice(&PINGER.octets());
        packet[20] = 0;
        packet[22..24].fill(0);
        let checksum = !sum(&packet[20..]);
        packet[22..24].copy_from_slice(&checksum.to_be_bytes());

        let path = self.device.data_path();
        let peer = path.routes().lookup(view.source).cloned().expect("a peer");
        let length = message.len();
        let reserved = path.reserve(now.boot, &peer, 1, length as u64);
        let Outbound::Send(mut reservation) = reserved else {
            panic!("a packet has come, so there is a session");
        };
        let endpoint = reservation.endpoint();
        assert_eq!(reservation.seal(&mut message, length), length);
        self.send(&message, endpoint);
        self.answered += 1;
    }

    fn send(&self, datagram: &[u8], to: Endpoint) {
        let sent = self.socket.send_to(datagram, to.remote).expect("loopback");
        assert_eq!(sent, datagram.len());
    }
}

/// The running example.
struct Ping(Option<Child>);

impl Ping {
    fn start(key: &Path, peer: &str, endpoint: SocketAddr) -> Self {
        // The example is beside `deps`, which contains this test.
        let mut program = std::env::current_exe().expect("this test's path");
        program.pop();
        program.set_file_name("examples");
        program.push(format!("ping{EXE_SUFFIX}"));
        let child = Command::new(&program)
            .arg(key)
            .args([peer, &endpoint.to_string()])
            .args([PINGER.to_string(), ANSWERER.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| {
                panic!(
                    "{}: {error}; `cargo build -p taupe-protocol --example ping` makes it",
                    program.display()
                )
            });
        Self(Some(child))
    }

    fn ended(&mut self) -> Option<Ended> {
        let child = self.0.as_mut()?;
        child.try_wait().expect("it is a child")?;
        let child = self.0.take()?;
        Some(child.wait_with_output().expect("what it said"))
    }
}

impl Drop for Ping {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A file that is removed on drop.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, content: &str) -> Self {
        let name = format!("{}-{name}.key", std::process::id());
        let file = Self(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name));
        fs::write(&file.0, format!("{content}\n")).expect("a file");
        file
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn key_pair() -> (PrivateKey, PublicKey) {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).expect("randomness");
    let private = PrivateKey::new(bytes).expect("not zeros");
    let public = PublicKey(default_provider().dh.public(private.expose()));
    (private, public)
}

fn now(started: Clock) -> Now {
    Now {
        boot: Instant::default() + started.elapsed(),
        wall: SystemTime::UNIX_EPOCH.elapsed().expect("after 1970"),
    }
}

/// Returns the one's complement sum of 16-bit words (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    bytes.chunks(2).fold(0, |sum: u16, word| {
        let (sum, carry) = sum.overflowing_add(u16::from_be_bytes([word[0], word[1]]));
        sum + u16::from(carry)
    })
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
