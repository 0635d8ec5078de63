//! `make demo`: the main job, with evidence.
//!
//! Two hosts, a link, a Taupe tunnel between them, a transfer through it, and a
//! capture of the link that shows what an eavesdropper sees. Everything happens
//! in private namespaces that the kernel takes down when this process ends, for
//! whatever reason.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use taupe_lab::capture::{Capture, Packet};
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{self, Host};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings, Tunnel};
use taupe_lab::process::wait_until;
use taupe_lab::{sandbox, traffic};

const INSIDE: &str = "--inside";

/// What is sent, over and over: easy to find in a capture.
const SECRET: &[u8] = b"the mole digs where nobody looks; ";
/// In bytes: what the capture has room for, so that it misses nothing.
const TRANSFER: usize = 4 << 20;

fn main() -> ExitCode {
    if std::env::args().nth(1).as_deref() == Some(INSIDE) {
        return inside();
    }
    match outside() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("demo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn outside() -> Result<bool> {
    if !rustix::process::geteuid().is_root() {
        return Err(Error::unmet("it takes root to make network namespaces"));
    }
    let log = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).map_err(Error::io("memory"))?;
    let mut log = File::from(log);
    let copy = log.try_clone().map_err(Error::io("dup"))?;
    let status = sandbox::run_attached(INSIDE, copy)?;
    if !status.success() {
        let mut said = String::new();
        log.rewind()
            .and_then(|()| log.read_to_string(&mut said))
            .map_err(Error::io("log"))?;
        eprintln!("--- what was done, and what the programs said\n{said}");
    }
    Ok(status.success())
}

fn inside() -> ExitCode {
    let start = Instant::now();
    let mut lines = Lines::default();
    let result = sandbox::begin_attached(Arc::default()).and_then(|()| show(&mut lines));
    if let Err(error) = &result {
        lines.line(false, &format!("stopped: {error}"));
    }
    let Lines { held, all } = lines;
    println!(
        "demo: {held} of {all} hold in {:.1} s",
        start.elapsed().as_secs_f64()
    );
    if result.is_ok() && held == all {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The numbered lines.
#[derive(Default)]
struct Lines {
    held: usize,
    all: usize,
}

impl Lines {
    fn line(&mut self, holds: bool, text: &str) {
        self.all += 1;
        self.held += usize::from(holds);
        let mark = if holds { "ok" } else { "FAILED" };
        println!("{:2}. {mark:<6} {text}", self.all);
    }
}

fn show(lines: &mut Lines) -> Result<()> {
    let (a, b) = (Host::new("a")?, Host::new("b")?);
    for host in [&a, &b] {
        // Its housekeeping would be on the link beside the tunnel.
        host.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
    }
    host::link(
        a.port("eth0", &["192.0.2.1/24"]),
        b.port("eth0", &["192.0.2.2/24"]),
        1500,
    )?;
    let outer_b = address("192.0.2.2")?;
    let inner_b = address("10.0.0.2")?;
    traffic::ping(&a, outer_b, 5)?;
    lines.line(true, "two hosts, a link: 192.0.2.2 answers 192.0.2.1");

    let begin = Instant::now();
    let mut tunnel_a = Implementation::Taupe.start(&a, "wga")?;
    let mut tunnel_b = Implementation::Taupe.start(&b, "wgb")?;
    let took = begin.elapsed();
    let alive = [&mut tunnel_a, &mut tunnel_b].map(|t| t.process().map(|p| p.id()));
    let [pid_a, pid_b] = alive.map(Option::unwrap_or_default);
    let text = format!(
        "Taupe runs on both, processes {pid_a} and {pid_b}: interfaces wga, wgb after {took:.1?}"
    );
    lines.line(true, &text);

    let (keys_a, keys_b) = (Keys::new(&a)?, Keys::new(&b)?);
    let psk = a.run(&["wg", "genpsk"])?.text().to_owned();
    configure(
        &tunnel_a,
        &keys_a,
        &keys_b,
        &psk,
        ["10.0.0.1/24", "10.0.0.2/32"],
        Some("192.0.2.2:51820"),
    )?;
    configure(
        &tunnel_b,
        &keys_b,
        &keys_a,
        &psk,
        ["10.0.0.2/24", "10.0.0.1/32"],
        None,
    )?;
    let took = traffic::first_answer(&a, inner_b, Duration::from_secs(5))?;
    let text = format!("configured with wg; the first ping through the tunnel took {took:.1?}");
    lines.line(took < Duration::from_millis(1500), &text);

    // The same bytes in clear, so that a search that finds nothing is known to
    // be able to find something.
    let capture = Capture::start(&a, "eth0", "tcp")?;
    transfer(&a, &b, SocketAddr::new(outer_b, 7000), 1 << 16)?;
    let seen = occurrences(&capture.stop()?);
    let text =
        format!("without the tunnel an eavesdropper on the link reads the text {seen} times");
    lines.line(seen > 0, &text);

    let capture = Capture::start(&a, "eth0", "")?;
    let took = transfer(&a, &b, SocketAddr::new(inner_b, 7000), TRANSFER)?;
    let packets = capture.stop()?;
    let rate = TRANSFER as f64 * 8.0 / took.as_secs_f64() / 1e9;
    let text =
        format!("4 MiB through the tunnel arrive whole in {took:.1?} ({rate:.1} Gbit/s, captured)");
    lines.line(true, &text);

    let seen = occurrences(&packets);
    let bytes: usize = packets.iter().map(|packet| packet.ip.len()).sum();
    let text =
        format!("on the link meanwhile: {bytes} bytes, in which the text is found {seen} times");
    lines.line(seen == 0 && bytes > TRANSFER, &text);
    let strange = packets
        .iter()
        .filter(|p| !p.ip.is_empty() && p.message().is_none())
        .count();
    let data = packets.iter().filter(|p| p.message().is_some()).count();
    let text =
        format!("{data} captured packets are WireGuard messages, {strange} are anything else");
    lines.line(strange == 0 && data > 0, &text);

    let handshake = tunnel_a.field("latest-handshakes", &keys_b.public)?;
    let moved = tunnel_a.field("transfer", &keys_b.public)?;
    let mut counts = moved
        .split('\t')
        .filter_map(|count| count.parse::<usize>().ok());
    let (received, sent) = (counts.next().unwrap_or(0), counts.next().unwrap_or(0));
    let text = format!("wg show wga: {received} bytes received, {sent} bytes sent");
    lines.line(handshake != "0" && sent > TRANSFER, &text);

    // The first address of a network takes the others with it, so it goes first.
    a.ip(&["address", "delete", "192.0.2.1/24", "dev", "eth0"])?;
    a.ip(&["address", "add", "192.0.2.77/24", "dev", "eth0"])?;
    let took = traffic::first_answer(&a, inner_b, Duration::from_secs(5))?;
    let endpoint = tunnel_b.field("endpoints", &keys_a.public)?;
    let text =
        format!("host a moves to 192.0.2.77: answered after {took:.1?}, wgb sends to {endpoint}");
    lines.line(endpoint.starts_with("192.0.2.77:"), &text);

    drop(tunnel_b);
    let begin = Instant::now();
    let tunnel_b = Implementation::Taupe.start(&b, "wgb")?;
    configure(
        &tunnel_b,
        &keys_b,
        &keys_a,
        &psk,
        ["10.0.0.2/24", "10.0.0.1/32"],
        Some("192.0.2.77:51820"),
    )?;
    traffic::first_answer(&b, address("10.0.0.1")?, Duration::from_secs(5))?;
    let took = begin.elapsed();
    let text = format!("killed with SIGKILL and started again on b: traffic after {took:.1?}");
    lines.line(took < Duration::from_secs(3), &text);

    a.ip(&["link", "delete", "wga"])?;
    if let Some(process) = tunnel_a.process() {
        process.wait(Duration::from_secs(3))?;
    }
    let socket = taupe_lab::peers::socket("wga");
    wait_until("end of the socket", Duration::from_secs(3), || {
        Ok(!socket.exists())
    })?;
    lines.line(
        true,
        "deleting the interface ends the program and removes its socket",
    );
    Ok(())
}

fn configure(
    tunnel: &Tunnel,
    own: &Keys,
    other: &Keys,
    psk: &str,
    [address, allowed_ips]: [&str; 2],
    endpoint: Option<&str>,
) -> Result<()> {
    let endpoint = endpoint
        .map(|text| text.parse().map_err(|_| Error::unmet("endpoint")))
        .transpose()?;
    tunnel.configure(&Settings {
        private_key: &own.private,
        listen_port: Some(51820),
        addresses: &[address],
        peers: &[PeerSettings {
            public_key: &other.public,
            preshared_key: Some(psk),
            endpoint,
            allowed_ips,
        }],
    })
}

/// Sends the text from one host to the other over TCP and checks what arrives.
fn transfer(from: &Host, to: &Host, address: SocketAddr, length: usize) -> Result<Duration> {
    let content: Vec<u8> = SECRET.iter().copied().cycle().take(length).collect();
    let listener = to.enter(|| TcpListener::bind(address).map_err(Error::io("listen")))?;
    let start = Instant::now();
    let mut sender = from.enter(|| TcpStream::connect(address).map_err(Error::io("connect")))?;
    let mut arrived = Vec::with_capacity(length);
    std::thread::scope(|scope| {
        let content = &content;
        scope.spawn(move || {
            let _ = sender.write_all(content);
        });
        let (mut receiver, _) = listener.accept()?;
        receiver.set_read_timeout(Some(Duration::from_secs(10)))?;
        receiver.read_to_end(&mut arrived)
    })
    .map_err(Error::io("transfer"))?;
    let took = start.elapsed();
    if arrived != content {
        return Err(Error::unmet(format!(
            "{} of {length} bytes arrived as sent",
            arrived.len()
        )));
    }
    Ok(took)
}

/// How often the text stands in captured packets. Each packet is searched by
/// itself, so that the few that span two are not counted.
fn occurrences(packets: &[Packet]) -> usize {
    let in_packet = |packet: &Packet| {
        packet
            .ip
            .windows(SECRET.len())
            .filter(|window| *window == SECRET)
            .count()
    };
    packets.iter().map(in_packet).sum()
}

fn address(text: &str) -> Result<IpAddr> {
    text.parse()
        .map_err(|_| Error::unmet(format!("address {text}")))
}
