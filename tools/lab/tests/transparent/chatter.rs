//! Applications that continuously send traffic of every kind, and the servers that receive it.
//!
//! A chatterer is this program under another name. All of its packets consist of records with its
//! voice's mark and the time, and no other program uses its port.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, ipproto, sendto, socket};
use socket2::SockRef;
use taupe_lab::host::Host;
use taupe_lab::process::Process;
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result};

use crate::world::{BEYOND, ENDPOINT_PORT, NEIGHBOUR};

/// First argument of this program as an application.
pub(crate) const WORD: &str = "--chatter";

/// Identification of a chatterer's packets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chatterer {
    name: &'static str,
    /// Beginning of each record.
    pub(crate) mark: &'static [u8; 16],
    /// The port to which it sends, and on which it listens.
    pub(crate) port: u16,
}

/// The voice of a selected application.
pub(crate) const SELECTED: Chatterer = Chatterer {
    name: "selected",
    mark: b"the-mole-digs-on",
    port: 7100,
};

/// The voice of another application.
pub(crate) const OTHER: Chatterer = Chatterer {
    name: "other",
    mark: b"the-bird-sings-\n",
    port: 7200,
};

/// The address of `near`'s own resolver, as systemd-resolved has it.
pub(crate) const STUB: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 53));

/// The executable of the selected application.
pub(crate) const MOLE: &str = "mole";

/// Interval between packets of a kind.
const PAUSE: Duration = Duration::from_millis(10);

/// Time after which most exchanges without an answer are given up. Others wait for long: the kernel
/// retransmits their blocked packets repeatedly.
const SHORT: Duration = Duration::from_millis(250);
const LONG: Duration = Duration::from_secs(60);

/// Length of a record: the mark, and microseconds since 1970 in 16 digits.
const RECORD: usize = 32;

impl Chatterer {
    fn record(&self) -> Vec<u8> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut record = self.mark.to_vec();
        record.extend(format!("{:016}", now.unwrap_or_default().as_micros()).bytes());
        record
    }

    /// Returns the times at which the records in a packet were made.
    pub(crate) fn times(&self, packet: &[u8]) -> Vec<Duration> {
        let records = packet
            .windows(RECORD)
            .filter_map(|at| at.strip_prefix(self.mark));
        let numbers = records.filter_map(|time| str::from_utf8(time).ok()?.parse().ok());
        numbers.map(Duration::from_micros).collect()
    }
}

/// Sends a datagram to this number of ports of each server: more flows than one application may
/// have.
const PORTS: u16 = 36_000;

fn flood(voice: &Chatterer) {
    for remote in BEYOND {
        let any = match remote {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let Ok(socket) = UdpSocket::bind((any, 0)) else {
            continue;
        };
        for port in 20_000..20_000 + PORTS {
            // Some are rejected.
            let _ = socket.send_to(&voice.record(), (remote, port));
        }
    }
}

/// Floods once with this executable, and waits for its end.
pub(crate) fn flood_by(host: &Host, executable: &str, voice: &Chatterer) -> Result<()> {
    host.run(&[executable, WORD, voice.name, "flood"]).map(drop)
}

/// Starts an application with this executable.
pub(crate) fn start(host: &Host, executable: &str, voice: &Chatterer) -> Result<Process> {
    host.spawn(&[executable, WORD, voice.name])
}

/// Starts an application by a launcher, which waits for it and ends it when it ends itself.
pub(crate) fn launch(
    host: &Host,
    launcher: &str,
    executable: &str,
    voice: &Chatterer,
) -> Result<Process> {
    host.spawn(&[launcher, WORD, voice.name, "launch", executable])
}

/// Copies this program under a name, without its symbols.
pub(crate) fn install(name: &str) -> Result<String> {
    let own = std::env::current_exe().map_err(Error::io("own executable"))?;
    let folder = scratch("chatterers");
    std::fs::create_dir_all(&folder).map_err(Error::io("chatterers"))?;
    let path = folder.join(name);
    let stripped = Command::new("strip").arg("-o").args([&path, &own]).status();
    match stripped {
        Ok(status) if status.success() => Ok(path.display().to_string()),
        Ok(status) => Err(Error::unmet(format!("strip: {status}"))),
        Err(error) => Err(Error::io("strip")(error)),
    }
}

/// Runs as the application.
pub(crate) fn main(words: &[&str]) -> ! {
    let voice = match words.first() {
        Some(&"other") => &OTHER,
        _ => &SELECTED,
    };
    match words.get(1..) {
        Some(["given"]) => {
            let _ = given(voice);
            std::process::exit(0);
        }
        Some(["flood"]) => {
            flood(voice);
            std::process::exit(0);
        }
        Some(["launch", program]) => {
            let own = std::process::id().to_string();
            let _ = Command::new(program)
                .args([WORD, voice.name, "launched", &own])
                .status();
            std::process::exit(0);
        }
        Some(["launched", launcher]) => {
            let with_launcher = rustix::process::set_parent_process_death_signal;
            with_launcher(Some(rustix::process::Signal::KILL)).expect("a signal");
            // The launcher may have ended before this call.
            if std::os::unix::process::parent_id().to_string() != *launcher {
                std::process::exit(0);
            }
        }
        Some(["once"]) => {
            let _ = short_lived(voice);
            std::process::exit(0);
        }
        _ => {}
    }
    let remotes = BEYOND.map(|address| SocketAddr::new(address, voice.port));
    let neighbour = SocketAddr::new(NEIGHBOUR, voice.port);
    always(move || listens(voice));
    always(move || answers(voice));
    always(move || strays(voice));
    always(move || query(voice));
    always(|| {
        Command::new("/proc/self/exe")
            .args([WORD, voice.name, "once"])
            .status()
            .map(drop)
    });
    always(move || converses(voice, neighbour, None, SHORT));
    if voice == &OTHER {
        for remote in BEYOND {
            always(move || gives(&SELECTED, remote, SocketType::DGRAM));
            always(move || gives(&SELECTED, remote, SocketType::RAW));
        }
    }
    for remote in remotes {
        always(move || converses(voice, remote, None, SHORT));
        always(move || converses(voice, remote, None, LONG));
        always(move || converses(voice, remote, Some("eth0"), SHORT));
        always(move || send_datagrams(voice, remote, false));
        always(move || send_datagrams(voice, remote, true));
        always(move || pings(voice, remote.ip()));
    }
    loop {
        thread::park();
    }
}

/// Repeats an action for ever, regardless of its result.
fn always(mut act: impl FnMut() -> io::Result<()> + Send + 'static) {
    thread::spawn(move || {
        loop {
            let _ = act();
            thread::sleep(PAUSE);
        }
    });
}

/// Starts the other executable beside this one, with a connected socket as its standard input: UDP,
/// or raw ICMP.
fn gives(voice: &Chatterer, remote: IpAddr, kind: SocketType) -> io::Result<()> {
    let own = std::env::current_exe()?;
    let socket = match kind {
        SocketType::RAW => socket(family(remote), kind, Some(icmp(remote).0))?,
        _ => socket(family(remote), kind, None)?,
    };
    rustix::net::connect(&socket, &SocketAddr::new(remote, voice.port))?;
    Command::new(own.with_file_name(MOLE))
        .args([WORD, voice.name, "given"])
        .stdin(socket)
        .status()
        .map(drop)
}

/// Sends on the socket that this process inherited.
fn given(voice: &Chatterer) -> io::Result<()> {
    let socket = io::stdin();
    for _ in 0..20 {
        // The first bytes form the header of an echo request for ICMP.
        let message = [&[8, 0, 0, 0, 0, 0, 0, 0], &*voice.record()].concat();
        let _ = rustix::net::send(&socket, &message, SendFlags::empty());
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Runs as a new process that sends a few packets and ends.
fn short_lived(voice: &Chatterer) -> io::Result<()> {
    for remote in BEYOND.map(|address| SocketAddr::new(address, voice.port)) {
        let reported = any(remote).and_then(|socket| socket.send_to(&voice.record(), remote));
        let mut stream = connect(remote, None)?;
        stream.write_all(&voice.record())?;
        reported?;
    }
    // Shorter lives would cost too much processor time.
    thread::sleep(20 * PAUSE);
    Ok(())
}

/// Opens one connection with questions and answers.
fn converses(
    voice: &Chatterer,
    remote: SocketAddr,
    device: Option<&str>,
    patience: Duration,
) -> io::Result<()> {
    let mut stream = connect(remote, device)?;
    stream.set_read_timeout(Some(patience))?;
    let mut answer = [0; 64];
    for _ in 0..50 {
        stream.write_all(&voice.record().repeat(2))?;
        stream.read_exact(&mut answer)?;
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn connect(remote: SocketAddr, device: Option<&str>) -> io::Result<TcpStream> {
    let Some(device) = device else {
        return TcpStream::connect_timeout(&remote, SHORT);
    };
    let stream = socket(family(remote.ip()), SocketType::STREAM, None)?;
    SockRef::from(&stream).bind_device(Some(device.as_bytes()))?;
    // The timeout also applies to connecting.
    set_socket_timeout(&stream, Timeout::Send, Some(SHORT))?;
    rustix::net::connect(&stream, &remote)?;
    Ok(stream.into())
}

/// Sends datagrams from one socket.
fn send_datagrams(voice: &Chatterer, remote: SocketAddr, connected: bool) -> io::Result<()> {
    let socket = any(remote)?;
    socket.set_nonblocking(true)?;
    if connected {
        socket.connect(remote)?;
    }
    for _ in 0..50 {
        // After a rejection it tries again.
        let _ = match connected {
            true => socket.send(&voice.record()),
            false => socket.send_to(&voice.record(), remote),
        };
        while socket.recv(&mut [0; 64]).is_ok() {}
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Sends datagrams to destinations that must not be reached unencrypted: neighbours, a name server
/// in the local network, the WireGuard server itself, broadcast and multicast.
fn strays(voice: &Chatterer) -> io::Result<()> {
    let v4 = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    v4.set_broadcast(true)?;
    let v6 = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    for (to, port) in [
        (NEIGHBOUR, voice.port),
        (NEIGHBOUR, 53),
        (NEIGHBOUR, ENDPOINT_PORT),
        (BEYOND[0], ENDPOINT_PORT),
        (BEYOND[1], 53),
        (Ipv4Addr::BROADCAST.into(), voice.port),
        (Ipv4Addr::new(192, 168, 1, 255).into(), voice.port),
        (Ipv4Addr::new(239, 1, 2, 3).into(), voice.port),
        (
            Ipv6Addr::new(0xff05, 0, 0, 0, 0, 0, 1, 2).into(),
            voice.port,
        ),
    ] {
        let socket = if to.is_ipv4() { &v4 } else { &v6 };
        let _ = socket.send_to(&voice.record(), (to, port));
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Sends a question to the machine's current resolver, by UDP and by TCP.
fn query(voice: &Chatterer) -> io::Result<()> {
    let servers = fs::read_to_string("/etc/resolv.conf")?;
    let addresses = servers
        .lines()
        .filter_map(|line| line.strip_prefix("nameserver "));
    for address in addresses.filter_map(|address| address.parse::<IpAddr>().ok()) {
        let server = SocketAddr::new(address, 53);
        let reported = any(server)?.send_to(&voice.record(), server);
        TcpStream::connect_timeout(&server, SHORT)?.write_all(&voice.record())?;
        reported?;
    }
    Ok(())
}

/// Sends some pings from one socket.
fn pings(voice: &Chatterer, to: IpAddr) -> io::Result<()> {
    let (protocol, kind) = icmp(to);
    let socket: OwnedFd = socket(family(to), SocketType::DGRAM, Some(protocol))?;
    for _ in 0..20 {
        // The kernel fills in the zero fields.
        let mut packet = vec![kind, 0, 0, 0, 0, 0, 0, 1];
        packet.extend(voice.record());
        let _ = sendto(
            &socket,
            &packet,
            SendFlags::empty(),
            &SocketAddr::new(to, 0),
        );
        thread::sleep(2 * PAUSE);
    }
    Ok(())
}

/// Returns the protocol of pings, and the type of an echo request.
fn icmp(to: IpAddr) -> (Protocol, u8) {
    match to {
        IpAddr::V4(_) => (ipproto::ICMP, 8),
        IpAddr::V6(_) => (ipproto::ICMPV6, 128),
    }
}

/// Runs a server that sends every client a record, and closes first or last.
fn listens(voice: &'static Chatterer) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, voice.port))?;
    for (number, stream) in listener.incoming().enumerate() {
        let mut stream = stream?;
        thread::spawn(move || {
            stream.set_read_timeout(Some(SHORT))?;
            stream.write_all(&voice.record().repeat(500))?;
            if number % 2 == 0 {
                stream.read_to_end(&mut Vec::new())?;
            }
            Ok::<_, io::Error>(())
        });
    }
    Ok(())
}

/// Runs a server of datagrams.
fn answers(voice: &Chatterer) -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, voice.port))?;
    loop {
        let (_, from) = socket.recv_from(&mut [0; 64])?;
        let _ = socket.send_to(&voice.record(), from);
    }
}

fn any(remote: SocketAddr) -> io::Result<UdpSocket> {
    match remote {
        SocketAddr::V4(_) => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
    }
}

const fn family(address: IpAddr) -> AddressFamily {
    match address {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    }
}

/// Numbers of received packets of a voice, by source.
#[derive(Debug, Default)]
pub(crate) struct ReceivedCounts {
    /// From the tunnel's addresses, IPv4 and IPv6: questions on connections, and datagrams.
    pub(crate) by_tunnel: [AtomicU64; 2],
    /// From other addresses.
    pub(crate) otherwise: [AtomicU64; 2],
    /// Answers of the chatterer's own server.
    pub(crate) served: [AtomicU64; 2],
}

impl ReceivedCounts {
    fn note(&self, from: IpAddr, tunnel: [IpAddr; 2]) {
        let from = from.to_canonical();
        let counts = match tunnel.contains(&from) {
            true => &self.by_tunnel,
            false => &self.otherwise,
        };
        let count = &counts[usize::from(from.is_ipv6())];
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Answers a voice from `far`, until the sandbox ends.
pub(crate) fn receive(
    far: &Host,
    voice: &'static Chatterer,
    tunnel: [IpAddr; 2],
) -> Result<Arc<ReceivedCounts>> {
    let heard = Arc::new(ReceivedCounts::default());
    let at = |address: IpAddr| SocketAddr::new(address, voice.port);
    let listener = far.enter(|| {
        let everywhere = at(Ipv6Addr::UNSPECIFIED.into());
        TcpListener::bind(everywhere).map_err(Error::io(everywhere.to_string()))
    })?;
    let noted = Arc::clone(&heard);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let noted = Arc::clone(&noted);
            thread::spawn(move || echoes(&stream, |from| noted.note(from, tunnel)));
        }
    });
    for address in BEYOND {
        let at = at(address);
        let socket = far.enter(|| UdpSocket::bind(at).map_err(Error::io(at.to_string())))?;
        let noted = Arc::clone(&heard);
        thread::spawn(move || {
            let mut datagram = [0; 64];
            while let Ok((length, from)) = socket.recv_from(&mut datagram) {
                noted.note(from.ip(), tunnel);
                let _ = socket.send_to(&datagram[..length], from);
            }
        });
    }
    Ok(heard)
}

fn echoes(mut stream: &TcpStream, note: impl Fn(IpAddr)) -> io::Result<()> {
    let from = stream.peer_addr()?.ip();
    stream.set_read_timeout(Some(LONG))?;
    let mut question = [0; 64];
    loop {
        stream.read_exact(&mut question)?;
        note(from);
        stream.write_all(&question)?;
    }
}

/// Forwards each question to `near`'s own resolver to its router, as a program that is not
/// selected, until the sandbox ends.
pub(crate) fn forward_questions(near: &Host) -> Result<()> {
    let at = SocketAddr::new(STUB, 53);
    let (datagrams, listener) = near.enter(|| {
        let datagrams = UdpSocket::bind(at).map_err(Error::io(at.to_string()))?;
        let listener = TcpListener::bind(at).map_err(Error::io(at.to_string()))?;
        Ok((datagrams, listener))
    })?;
    let out = near.enter(|| {
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(Error::io("forwarding questions"))
    })?;
    let by_tcp = out.try_clone().map_err(Error::io("forwarding questions"))?;
    thread::spawn(move || {
        let mut question = [0; 64];
        while let Ok((length, _)) = datagrams.recv_from(&mut question) {
            let _ = out.send_to(&question[..length], (NEIGHBOUR, 53));
        }
    });
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut question = [0; RECORD];
            let read = stream
                .set_read_timeout(Some(SHORT))
                .and_then(|()| stream.read_exact(&mut question));
            if read.is_ok() {
                let _ = by_tcp.send_to(&question, (NEIGHBOUR, 53));
            }
        }
    });
    Ok(())
}

/// Connects to a voice's own server at these addresses from `far`, until the sandbox ends, and
/// counts the answers.
pub(crate) fn visit(
    far: &Host,
    voice: &'static Chatterer,
    addresses: Vec<IpAddr>,
    heard: &Arc<ReceivedCounts>,
) -> Result<()> {
    let heard = Arc::clone(heard);
    far.enter(move || {
        // Threads run in the namespace of the thread that starts them.
        thread::spawn(move || {
            loop {
                for address in &addresses {
                    if by_both(SocketAddr::new(*address, voice.port)).is_ok() {
                        let count = &heard.served[usize::from(address.is_ipv6())];
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                }
                thread::sleep(PAUSE);
            }
        });
        Ok(())
    })
}

/// Uses a connection and a datagram.
fn by_both(server: SocketAddr) -> io::Result<()> {
    let datagrams = any(server)?;
    datagrams.send_to(b"probe", server)?;
    let mut stream = TcpStream::connect_timeout(&server, SHORT)?;
    stream.set_read_timeout(Some(SHORT))?;
    stream.read_exact(&mut [0; 16_000])?;
    datagrams.set_read_timeout(Some(SHORT))?;
    datagrams.recv(&mut [0; 64]).map(drop)
}
