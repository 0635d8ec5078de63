//! A tunnel with a peer that sends packets of its own making: floods of SYNs, scans of ports.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use taupe_protocol::crypto::{TAG_LEN, default_provider};
use taupe_protocol::ipnet::IpNet;
use taupe_protocol::key::{PrivateKey, PublicKey};
use taupe_protocol::message::DATA_HEADER_LEN;
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
use taupe_protocol::{DataPath, Device, Outbound, Output, Peer, ReceivedBatch, padded_len};
use taupe_runtime::clock::now;
use taupe_runtime::random::SystemRandom;
use taupe_tunnel::Tunnel;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

/// Private keys of the tunnel, of a good peer and of the hostile one: each of 32 equal bytes, as the
/// protocol clamps it.
const BYTES: [u8; 3] = [8, 16, 24];
const PRIVATE: [&str; 2] = [
    "CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICEg=",
    "EBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEFA=",
];
const PUBLIC: [&str; 3] = [
    "MdSras7slhE3kXA3k25gcW+sVzr+lNnahKgCBEjfwRI=",
    "eB+quQhDAVDazN1vnWxQhuNPc6k+u6onF2XlA27fxRk=",
    "csrwV1GHNBMFsDUHRDlYYq6+l4s7LNeWNXUlGg7k5GY=",
];

const PATIENCE: Duration = Duration::from_secs(120);
const MTU: usize = 1420;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// The tunnel's address. The hostile peer may use 172.16.0.0/12.
const US: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);

/// Opens the tunnel.
async fn tunnel() -> Tunnel {
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = {US}\n\
         [Peer]\nPublicKey = {}\nAllowedIPs = 10.0.0.2/32\n\
         [Peer]\nPublicKey = {}\nAllowedIPs = 172.16.0.0/12\n",
        PRIVATE[0], PUBLIC[1], PUBLIC[2]
    );
    Tunnel::connect(&*text).await.unwrap()
}

/// Opens the good peer's tunnel.
async fn good_peer(of: &Tunnel) -> Tunnel {
    let text = format!(
        "[Interface]\nPrivateKey = {}\nAddress = 10.0.0.2\n\
         [Peer]\nPublicKey = {}\nAllowedIPs = 10.0.0.0/24\nEndpoint = 127.0.0.1:{}\n",
        PRIVATE[1],
        PUBLIC[0],
        of.listen_port().unwrap()
    );
    Tunnel::connect(&*text).await.unwrap()
}

fn run(test: impl AsyncFnOnce() -> io::Result<()>) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().build().unwrap();
    let result = runtime.block_on(async { timeout(PATIENCE, test()).await });
    result.expect("in time").unwrap();
}

/// A peer that sends and receives inner packets.
struct HostilePeer {
    path: Arc<DataPath>,
    peer: Arc<Peer>,
    socket: UdpSocket,
    at: SocketAddr,
    received: ReceivedBatch,
}

impl HostilePeer {
    /// Completes a handshake with a tunnel.
    fn new(tunnel: &Tunnel) -> io::Result<Self> {
        let key = |at: usize| PrivateKey::new([BYTES[at]; 32]).unwrap();
        let public = PublicKey(default_provider().dh.public(key(0).expose()));
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, tunnel.listen_port().unwrap()));
        let mut update = PeerUpdate::new(public);
        update.endpoint = Some(at);
        update.allowed_ips = vec![AllowedIpChange::Add(IpNet::from(std::net::IpAddr::V4(US)))];
        let mut device = Device::new(default_provider(), Box::new(SystemRandom), Arc::new(|| {}));
        let update = DeviceUpdate {
            private_key: Some(PrivateKeyUpdate::new(key(2))),
            peers: vec![update],
            ..DeviceUpdate::default()
        };
        device.update(now(), update).unwrap();
        device.set_up(now());
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        let path = Arc::clone(device.data_path());
        let peer = device.peer(&public).unwrap();
        let (mut buffer, mut received) = (vec![0; 65_536], ReceivedBatch::default());
        let end = Instant::now() + PATIENCE;
        device.initiate(now(), &public);
        while !peer.has_session(now().boot) {
            assert!(Instant::now() < end, "no handshake");
            device.handle_deadline(now());
            while let Some(output) = device.poll_output() {
                if let Output::Transmit { datagram, .. } = output {
                    socket.send_to(&datagram, at)?;
                }
            }
            let Ok(length) = socket.recv(&mut buffer) else {
                continue;
            };
            path.receive(
                now().boot,
                at.into(),
                &mut buffer[..length],
                length,
                &mut received,
            );
            for message in received.handshakes.drain(..) {
                device.handle_message(now(), at.into(), &buffer[message], 0);
            }
        }
        Ok(Self {
            path,
            peer,
            socket,
            at,
            received,
        })
    }

    /// Sends packets of one length.
    fn send(&self, packets: &[Vec<u8>]) -> io::Result<()> {
        let Some(first) = packets.first() else {
            return Ok(());
        };
        let stride = DATA_HEADER_LEN + padded_len(first.len(), MTU) + TAG_LEN;
        let mut messages = vec![0; stride * packets.len()];
        for (message, packet) in messages.chunks_mut(stride).zip(packets) {
            message[DATA_HEADER_LEN..DATA_HEADER_LEN + packet.len()].copy_from_slice(packet);
        }
        let (count, bytes) = (packets.len() as u64, messages.len() as u64);
        let outbound = self.path.reserve(now().boot, &self.peer, count, bytes);
        let Outbound::Send(mut reservation) = outbound else {
            return Err(io::Error::other("no session"));
        };
        let sealed = reservation.seal(&mut messages, stride);
        for message in messages[..sealed].chunks(stride) {
            self.socket.send_to(message, self.at)?;
        }
        Ok(())
    }

    /// Passes the packets that arrive within `time` to `handle`, until it returns false.
    fn receive(
        &mut self,
        time: Duration,
        mut handle: impl FnMut(&Self, &[u8]) -> bool,
    ) -> io::Result<()> {
        let end = Instant::now() + time;
        let mut buffer = vec![0; 65_536];
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.socket.set_read_timeout(Some(left))?;
            let Ok(length) = self.socket.recv(&mut buffer) else {
                continue;
            };
            let datagram = &mut buffer[..length];
            let from = self.at.into();
            self.path
                .receive(now().boot, from, datagram, length, &mut self.received);
            let packets: Vec<_> = self.received.inner.drain(..).collect();
            for packet in packets {
                if !handle(self, &buffer[packet]) {
                    return Ok(());
                }
            }
        }
    }
}

/// Returns a TCP packet without options and data, from a port of a host behind the hostile peer.
fn segment(from: (Ipv4Addr, u16), to: u16, flags: u8, numbers: [u32; 2]) -> Vec<u8> {
    let mut packet = b"\x45\0\0\x28\0\0\0\0\x40\x06\0\0".to_vec();
    packet.extend([from.0.octets(), US.octets()].concat());
    let sum = checksum(&packet);
    packet[10..12].copy_from_slice(&sum);
    packet.extend([from.1.to_be_bytes(), to.to_be_bytes()].concat());
    packet.extend(numbers.map(u32::to_be_bytes).concat());
    packet.extend([0x50, flags, 0x20, 0, 0, 0, 0, 0]);
    let pseudo = [&packet[12..20], &[0, 6, 0, 20], &packet[20..]].concat();
    let sum = checksum(&pseudo);
    packet[36..38].copy_from_slice(&sum);
    packet
}

/// Returns the Internet checksum (RFC 1071) of an even number of bytes.
fn checksum(bytes: &[u8]) -> [u8; 2] {
    let words = bytes
        .chunks(2)
        .map(|two| u16::from_be_bytes([two[0], two[1]]));
    let sum: u32 = words.map(u32::from).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    (!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes()
}

/// Returns an address and a port behind the hostile peer, different for each number below 2^36.
fn forged(number: u64) -> (Ipv4Addr, u16) {
    let address = 0xac10_0000 | (number & 0xf_ffff) as u32;
    (Ipv4Addr::from_bits(address), 1024 + (number >> 20) as u16)
}

#[test]
fn a_good_peer_connects_during_a_flood_of_syns() {
    run(async || {
        /// SYNs that the hostile peer sends before it waits for the answer to the last one.
        const BATCH: u64 = 32;
        /// Time for which it waits, since the answer may be lost.
        const ANSWER: Duration = Duration::from_millis(200);
        let tunnel = tunnel().await;
        let listener = tunnel.listen_tcp(80).await?;
        let mut hostile = HostilePeer::new(&tunnel)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let syns = Arc::new(AtomicU64::new(0));
        let flood = {
            let (is_over, syns) = (Arc::clone(&is_over), Arc::clone(&syns));
            thread::spawn(move || {
                let (start, mut sent) = (Instant::now(), 0);
                while !is_over.load(Ordering::Relaxed) {
                    let packets = (sent..sent + BATCH)
                        .map(|number| segment(forged(number), 80, SYN, [number as u32, 0]));
                    hostile.send(&packets.collect::<Vec<_>>())?;
                    sent += BATCH;
                    syns.store(sent, Ordering::Relaxed);
                    // In reality the attacker does not share the processor of the attacked machine. A
                    // flood that does would take as much of it as the other side has.
                    let (address, port) = forged(sent - 1);
                    let is_last = |packet: &[u8]| {
                        packet.get(16..20) == Some(&address.octets())
                            && packet.get(22..24) == Some(&port.to_be_bytes())
                    };
                    hostile.receive(ANSWER, |_, packet| !is_last(packet))?;
                }
                let rate = sent as f64 / start.elapsed().as_secs_f64();
                Ok::<_, io::Error>(rate)
            })
        };
        // Waits until the flood has sent as many SYNs again.
        let flooded = async |count: u64| {
            let end = syns.load(Ordering::Relaxed) + count;
            while syns.load(Ordering::Relaxed) < end {
                assert!(!flood.is_finished(), "the flood has ended");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        // More than the table of half-open connections holds, and many times the connections that a
        // listener accepts.
        flooded(10_000).await;
        let good = good_peer(&tunnel).await;
        let remote = SocketAddr::from((US, 80));
        for attempt in 0..5 {
            // A slow machine loses datagrams of the good peer too, so an attempt may fail.
            let mut near = loop {
                match good.connect_tcp(remote).await {
                    Ok(near) => break near,
                    Err(error) => println!("connection {attempt}: {error}"),
                }
            };
            let mut far = loop {
                let (far, from) = listener.accept().await?;
                if from == near.local_addr() {
                    break far;
                }
            };
            near.write_all(b"ping").await?;
            let mut buffer = [0; 4];
            far.read_exact(&mut buffer).await?;
            assert_eq!(&buffer, b"ping");
            let sent = syns.load(Ordering::Relaxed);
            println!("connection {attempt}: open after {sent} SYNs");
            flooded(1_000).await;
        }
        is_over.store(true, Ordering::Relaxed);
        let rate = flood.join().unwrap()?;
        println!("{rate:.0} SYNs per second");
        assert!(tunnel.state().await?.connections <= 10);
        Ok(())
    });
}

#[test]
fn resets_for_a_scan_of_ports_are_limited() {
    run(async || {
        let tunnel = tunnel().await;
        let mut hostile = HostilePeer::new(&tunnel)?;
        let (start, mut resets) = (Instant::now(), 0);
        let mut count = |_: &HostilePeer, packet: &[u8]| {
            // The answer to an acknowledgement has its number (RFC 9293 §3.10.7.1).
            let is_reset = packet[33] == RST && packet[24..28] == 99_u32.to_be_bytes();
            resets += u64::from(is_reset);
            true
        };
        for ports in (1..=10_000).collect::<Vec<u16>>().chunks(32) {
            let scan = ports
                .iter()
                .map(|port| segment(forged(7), *port, ACK, [1, 99]));
            hostile.send(&scan.collect::<Vec<_>>())?;
            // The kernel's buffers would not take all answers.
            hostile.receive(Duration::from_millis(2), &mut count)?;
        }
        hostile.receive(Duration::from_secs(1), &mut count)?;
        // 20 to one address, at once and per second.
        let limit = 20 * (1 + start.elapsed().as_secs() + 1);
        assert!(
            (1..=limit).contains(&resets),
            "{resets} resets, limit {limit}"
        );
        Ok(())
    });
}
