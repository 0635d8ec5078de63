//! A published handshake, K512+tK512, in a real tunnel between two small devices of
//! [`taupe_repro`], for comparison only; `taupe` itself does not have it.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use taupe_crypto::AWS_LC;
use taupe_lab::capture::{Capture, Message, Packet, messages};
use taupe_lab::host::{Host, add_address};
use taupe_lab::peers::{Implementation, Keys, PqKeys};
use taupe_lab::sandbox::scratch_file;
use taupe_lab::traffic::{ping, serve_echo, tcp_echo};
use taupe_lab::{Error, Result, ensure};
use taupe_os_linux::tun::{Offloads, READ_BUFFER_LEN, Read, Tun};
use taupe_packet::merge::TunWrite;
use taupe_repro::device::{Device, Received};
use taupe_repro::variant::VARIANTS;

use crate::world::{self, FAR, NEAR};

/// A former name of the handshake in configuration files.
const NAME: &str = "repro:k512+tk512";

/// Bytes sent in each direction over TCP.
const TRANSFER: usize = 2_000_000;

/// Pings and TCP pass a tunnel with the published handshake, whose messages have the published
/// lengths and numbers of packets.
pub(crate) fn carries_a_tunnel() -> Result<()> {
    let (near, far) = world::neighbours(1280)?;
    let variant = VARIANTS.iter().find(|variant| variant.name == "K512+tK512");
    let ends = variant.and_then(|variant| variant.ends(&AWS_LC, &mut fill));
    let ends = ends.ok_or_else(|| Error::unmet("no keys for K512+tK512"))?;
    let devices = ends.map(|end| Device::new(&AWS_LC, end));
    let [one, other] = devices;
    let at =
        |last, port| SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, last), port));
    let [near_at, far_at] = [at(1, 51820), at(2, 51821)];
    let capture = Capture::start(&near, "eth0", "ip6")?;
    let _near = Tunnel::start(&near, "wgnear", one, [near_at, far_at], FAR)?;
    let _far = Tunnel::start(&far, "wgfar", other, [far_at, near_at], NEAR)?;
    for (host, interface, own) in [(&near, "wgnear", NEAR), (&far, "wgfar", FAR)] {
        add_address(host, interface, &format!("{own}/24"))?;
        // Together with this tunnel's headers, the minimum MTU of IPv6.
        host.ip(&["link", "set", interface, "mtu", "1200", "up"])?;
    }
    ping(&near, FAR, 10)?;
    ping(&far, NEAR, 5)?;
    let server = SocketAddr::new(FAR, 5201);
    serve_echo(&far, server)?;
    tcp_echo(&near, server, TRANSFER)?;
    let packets = capture.stop_once("data", |seen| messages(seen, Message::Data).count() >= 4)?;
    let cut: Vec<usize> = packets.iter().filter_map(fragment).collect();
    // With the UDP header, in fragments of 1,280 bytes that include 48 bytes of headers.
    let [initiation, response] = [1684, 1436].map(|length| [1232, 8 + length - 1232]);
    let expected = [initiation, response].concat();
    ensure!(cut == expected, "fragments of {cut:?}, not {expected:?}");
    let ordinary = [Message::Initiation, Message::Response];
    let ordinary = ordinary.map(|kind| messages(&packets, kind).count());
    ensure!(ordinary == [0, 0], "{ordinary:?} ordinary messages");
    Ok(())
}

/// `taupe` rejects the published handshake as a value of `PostQuantum`.
pub(crate) fn is_refused_where_it_cannot_be() -> Result<()> {
    let program = Implementation::Taupe.program()?.display().to_string();
    let host = Host::new("near")?;
    let (own, peer) = (Keys::new(&host)?, Keys::new(&host)?);
    let (pq, peer_pq) = (PqKeys::new(&host)?, PqKeys::new(&host)?);
    for (suite, name) in [
        ("hybrid-768", NAME),
        ("hybrid-512", "repro:k+k"),
        ("hybrid-512", NAME),
    ] {
        let text = format!(
            "[Interface]\nPrivateKey = {}\nPqPrivateKey = {}\nAddress = {NEAR}/24\n\
             ListenPort = 51820\n[Peer]\nPublicKey = {}\nPqPublicKey = {}\n\
             PostQuantum = {name}\nAllowedIPs = {FAR}/32\n",
            own.private,
            pq.seed,
            peer.public,
            peer_pq.public(suite)?
        );
        let file = scratch_file("wgnear.conf", &text)?;
        let output = host.attempt(&[&program, "check", &file])?;
        let text = format!("{}{}", output.stdout, output.stderr);
        let expected = ":9:15: error: PostQuantum is not require, prefer or off";
        ensure!(
            output.status != Some(0) && text.contains(expected),
            "{expected}: {text}"
        );
    }
    Ok(())
}

/// A device with its interface, its socket and a thread for each.
struct Tunnel {
    tun: Arc<Tun>,
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

/// State shared by the two threads of a tunnel.
struct Shared {
    device: Mutex<Device>,
    socket: UdpSocket,
    peer: SocketAddr,
    /// The peer's address in the tunnel.
    inner: IpAddr,
}

impl Tunnel {
    fn start(
        host: &Host,
        interface: &str,
        device: Device,
        [own, peer]: [SocketAddr; 2],
        inner: IpAddr,
    ) -> Result<Self> {
        let (tun, socket) = host.enter(|| {
            let tun = Tun::create(interface, Offloads::NONE);
            let tun = tun.map_err(|error| Error::unmet(format!("{interface}: {error}")))?;
            let socket = UdpSocket::bind(own).map_err(Error::io("socket"))?;
            Ok((tun, socket))
        })?;
        let pause = Some(Duration::from_millis(100));
        socket
            .set_read_timeout(pause)
            .map_err(Error::io("socket"))?;
        let shared = Arc::new(Shared {
            device: Mutex::new(device),
            socket,
            peer,
            inner,
        });
        let (tun, ends) = (Arc::new(tun), Arc::new(AtomicBool::new(false)));
        let outbound = {
            let (tun, shared) = (Arc::clone(&tun), Arc::clone(&shared));
            std::thread::spawn(move || shared.carry_out(&tun))
        };
        let inbound = {
            let (tun, ends) = (Arc::clone(&tun), Arc::clone(&ends));
            std::thread::spawn(move || shared.carry_in(&tun, &ends))
        };
        Ok(Self {
            tun,
            ends,
            threads: vec![outbound, inbound],
        })
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Err(error) = self.tun.shutdown() {
            // Its thread would never end.
            eprintln!("shutdown of a TUN: {error}");
            return;
        }
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(error)) => eprintln!("a tunnel ended: {error}"),
                Err(_) => eprintln!("a tunnel panicked"),
            }
        }
    }
}

impl Shared {
    fn device(&self) -> MutexGuard<'_, Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries packets from the interface to the peer.
    fn carry_out(&self, tun: &Tun) -> io::Result<()> {
        let mut buffer = vec![0; READ_BUFFER_LEN];
        while let Read::Packet { range, .. } = tun.read(&mut buffer)? {
            let packet = &buffer[range];
            if !is_for(packet, self.inner) {
                continue;
            }
            let datagram = self.device().send(now(), packet, &mut fill);
            if let Some(datagram) = datagram {
                self.socket.send_to(&datagram, self.peer)?;
            }
        }
        Ok(())
    }

    /// Carries datagrams from the peer to the interface, and sends answers back.
    fn carry_in(&self, tun: &Tun, ends: &AtomicBool) -> io::Result<()> {
        let mut buffer = vec![0; READ_BUFFER_LEN];
        while !ends.load(Ordering::Relaxed) {
            let length = match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) if from == self.peer => length,
                Ok(_) => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(error) => return Err(error),
            };
            let received = self.device().receive(now(), &buffer[..length], &mut fill);
            match received {
                Ok(Received::Packet(packet)) => {
                    if let Err(error) = tun.write(&TunWrite::single(&packet)) {
                        eprintln!("a packet of {} bytes: {error}", packet.len());
                    }
                }
                Ok(Received::Send(datagrams)) => {
                    for datagram in datagrams {
                        self.socket.send_to(&datagram, self.peer)?;
                    }
                }
                Err(error) => eprintln!("a datagram of {length} bytes: {error}"),
            }
        }
        Ok(())
    }
}

/// Returns true if an IPv4 packet is for the address: the kernel also sends packets of its own.
fn is_for(packet: &[u8], address: IpAddr) -> bool {
    let destination = packet.get(16..20).and_then(|it| it.first_chunk::<4>());
    packet.first().is_some_and(|it| it >> 4 == 4)
        && destination.is_some_and(|it| IpAddr::from(*it) == address)
}

/// Returns the time since 1970.
fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

fn fill(bytes: &mut [u8]) {
    taupe_runtime::random::fill(bytes);
}

/// Returns the number of bytes behind the headers of a UDP fragment.
fn fragment(packet: &Packet) -> Option<usize> {
    const FRAGMENT: u8 = 44;
    const UDP: u8 = 17;
    let (header, payload) = packet.ip.split_at_checked(40)?;
    let is_one = header.get(6) == Some(&FRAGMENT) && payload.first() == Some(&UDP);
    is_one.then(|| payload.len() - 8)
}
