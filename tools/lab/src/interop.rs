//! The matrix of interoperability tests between Taupe and other implementations.
//!
//! A [`Cell`] of the matrix is one peer, one role of Taupe, one outer protocol, with or without a
//! preshared key. Taupe runs in a [`Host`]; its peer runs in any [`Place`](crate::peers::Place).

mod yard;

pub use yard::Yard;

use crate::capture::{Capture, Message, Packet, messages};
use crate::ensure;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::peers::{HandshakeTimes, Keys, PeerSettings, Settings, Tunnel};
use crate::process::wait_until;
use crate::sandbox::{Verdict, figure, step};
use crate::traffic::{PingStream, tcp_echo};
use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Outer addresses of Taupe and of its peer.
pub const OUTER: [[&str; 2]; 2] = [
    ["192.0.2.1/24", "2001:db8::1/64"],
    ["192.0.2.2/24", "2001:db8::2/64"],
];
/// The interface between the two.
const UPLINK: &str = "eth0";
/// Inner addresses of Taupe and of its peer.
const INNER: [[&str; 2]; 2] = [["10.77.0.1", "fd77::1"], ["10.77.0.2", "fd77::2"]];
/// The same as allowed IPs.
const ALLOWED: [&str; 2] = ["10.77.0.1/32, fd77::1/128", "10.77.0.2/32, fd77::2/128"];
const PORTS: [u16; 2] = [51820, 51821];
/// Changes of the endpoint when the initiator roams: another port, or another host part.
const ROAMED_PORT: u16 = 52999;
const ROAMED_HOST: u8 = 99;
const ECHO: u16 = 7;

/// Rekey-After-Time (whitepaper section 6.1).
const REKEY_AFTER: Duration = Duration::from_secs(120);
/// Time after which a peer that has sent data without an answer begins a handshake:
/// `KEEPALIVE_TIMEOUT` and `REKEY_TIMEOUT` (whitepaper, section 6).
const DEAD_PEER: Duration = Duration::from_secs(15);
/// Duration of the pings in the cell of the natural rekey: longer than the rekey interval.
const NATURAL_REKEY: Duration = Duration::from_secs(128);
/// A handshake that is not repeated within this time will not be repeated: longer than
/// Rekey-Timeout with its jitter (whitepaper section 6.1).
const IDLE: Duration = Duration::from_secs(7);
/// Initiations within this time belong to one handshake: half of Rekey-After-Time, in which an
/// initiator repeats itself several times.
const REPEATED: Duration = Duration::from_secs(60);
/// Time limit for a peer to stop repeating its first handshake.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Taupe's role in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Taupe knows its peer's endpoint, and sends the first initiation.
    Initiates,
    /// The peer knows Taupe's endpoint, and sends the first initiation.
    Responds,
}

/// The outer protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outer {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// The tested scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exercise {
    /// Traffic, roaming of the initiator, a forced handshake, and traffic again.
    Session {
        /// True for a session with a preshared key.
        psk: bool,
    },
    /// Pings beyond the time at which the initiator must rekey by itself.
    NaturalRekey,
}

/// One test of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Taupe's role.
    pub role: Role,
    /// The outer protocol.
    pub outer: Outer,
    /// The scenario.
    pub exercise: Exercise,
}

impl Cell {
    /// Returns the cells for one peer, the longest first.
    pub fn all() -> Vec<Self> {
        let exercises = [
            Exercise::NaturalRekey,
            Exercise::Session { psk: false },
            Exercise::Session { psk: true },
        ];
        let mut cells = Vec::new();
        for exercise in exercises {
            for role in [Role::Initiates, Role::Responds] {
                for outer in [Outer::V4, Outer::V6] {
                    // One cell for each role is enough to test the timers of both sides.
                    let natural = exercise == Exercise::NaturalRekey;
                    if natural && (role == Role::Initiates) != (outer == Outer::V4) {
                        continue;
                    }
                    let cell = Self {
                        role,
                        outer,
                        exercise,
                    };
                    cells.push(cell);
                }
            }
        }
        cells
    }

    /// Returns the test's name, including the peer's.
    pub fn name(&self, peer: &str) -> String {
        format!("{peer}/{self}")
    }

    /// Returns the time limit of the test.
    pub fn limit(&self) -> Duration {
        match self.exercise {
            Exercise::Session { .. } => Duration::from_secs(90),
            Exercise::NaturalRekey => {
                NATURAL_REKEY * 3 / 2 + IDLE_TIMEOUT + Duration::from_secs(60)
            }
        }
    }

    fn index(role: Role) -> (usize, usize) {
        match role {
            Role::Initiates => (0, 1),
            Role::Responds => (1, 0),
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Initiates => "initiates",
            Role::Responds => "responds",
        };
        let outer = match self.outer {
            Outer::V4 => "ipv4",
            Outer::V6 => "ipv6",
        };
        let exercise = match self.exercise {
            Exercise::Session { psk: false } => "plain",
            Exercise::Session { psk: true } => "psk",
            Exercise::NaturalRekey => "rekey",
        };
        write!(f, "{role}/{outer}/{exercise}")
    }
}

/// The two machines, whose interfaces `eth0` are connected and have the addresses [`OUTER`]. The
/// tunnels are not configured.
pub struct Pair<'a> {
    /// The machine that runs Taupe.
    pub host: &'a Host,
    /// Taupe, in `host`.
    pub taupe: &'a Tunnel,
    /// Its peer.
    pub peer: &'a Tunnel,
    /// Bytes that are sent before the initiator roams, in each direction and over each protocol; a
    /// quarter of it is sent after each change.
    pub bytes: usize,
}

impl Pair<'_> {
    /// Runs one cell of the matrix.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] or [`Error::Command`] if the two do not interoperate.
    pub fn run(&self, cell: &Cell) -> Result<()> {
        step("configuration");
        let capture = Capture::start(self.host, UPLINK, "udp and less 250")?;
        let configured = self.configure(cell)?;
        match cell.exercise {
            Exercise::Session { .. } => self.session(&configured, capture),
            Exercise::NaturalRekey => self.natural_rekey(&configured, cell.role, capture),
        }
    }

    fn sides(&self) -> [&Tunnel; 2] {
        [self.taupe, self.peer]
    }

    fn configure(&self, cell: &Cell) -> Result<Configured<'_>> {
        let (initiator, responder) = Cell::index(cell.role);
        let keys = [Keys::new(self.host)?, Keys::new(self.host)?];
        let psk = match cell.exercise {
            Exercise::Session { psk: true } => {
                Some(self.host.run(&["wg", "genpsk"])?.text().to_owned())
            }
            _ => None,
        };
        let [v4, v6] = OUTER[responder];
        let address = match cell.outer {
            Outer::V4 => v4,
            Outer::V6 => v6,
        };
        let address = address.split('/').next().unwrap_or_default();
        let endpoint = SocketAddr::new(parse(address)?, PORTS[responder]);
        for (side, other) in [(responder, initiator), (initiator, responder)] {
            let addresses = [
                format!("{}/24", INNER[side][0]),
                format!("{}/64", INNER[side][1]),
            ];
            self.sides()[side].configure(&Settings {
                private_key: &keys[side].private,
                listen_port: Some(PORTS[side]),
                addresses: &[&addresses[0], &addresses[1]],
                peers: &[PeerSettings {
                    public_key: &keys[other].public,
                    preshared_key: psk.as_deref(),
                    endpoint: (side == initiator).then_some(endpoint),
                    allowed_ips: ALLOWED[other],
                }],
            })?;
        }
        for address in INNER[1] {
            let echo = SocketAddr::new(parse(address)?, ECHO);
            self.peer.place().serve_echo(echo)?;
        }
        Ok(Configured {
            initiator: self.sides()[initiator],
            initiator_keys: keys[initiator].clone(),
            responder: self.sides()[responder],
            responder_keys: keys[responder].clone(),
            responder_endpoint: endpoint,
            responder_inner: INNER[responder],
            responder_allowed: ALLOWED[responder],
            psk,
        })
    }

    fn session(&self, pair: &Configured<'_>, capture: Capture) -> Result<()> {
        step("first handshake");
        pair.first_ping()?;
        step("traffic");
        self.transfer(self.bytes)?;

        step("roam");
        let before = pair.initiator_endpoint()?;
        let after = pair.roam(before)?;
        pair.ping()?;
        let followed = pair.initiator_endpoint()?;
        ensure!(followed == after, "endpoint is {followed}, not {after}");
        self.transfer(self.bytes / 4)?;

        step("forced rekey");
        let first = self.handshake_time()?;
        // `wg` reports handshake times in whole seconds.
        sleep(Duration::from_millis(1100));
        pair.initiator.replace_peer(&PeerSettings {
            public_key: &pair.responder_keys.public,
            preshared_key: pair.psk.as_deref(),
            endpoint: Some(pair.responder_endpoint),
            allowed_ips: pair.responder_allowed,
        })?;
        pair.ping()?;
        let second = self.handshake_time()?;
        ensure!(second > first, "handshake at {second} after one at {first}");
        self.transfer(self.bytes / 4)?;

        step("capture");
        let packets = capture.stop()?;
        let sent = Handshakes::of(&packets, pair)?;
        ensure!(sent.initiations.len() >= 2, "initiations: {sent:?}");
        ensure!(sent.responses >= 2, "responses: {sent:?}");
        Ok(())
    }

    fn natural_rekey(&self, pair: &Configured<'_>, role: Role, capture: Capture) -> Result<()> {
        step("first handshake");
        pair.first_ping()?;
        if role == Role::Responds {
            step("settling");
            self.wait_until_idle()?;
        }
        step("pings past the rekey");
        // Taupe pings in either role: both directions carry data anyway.
        let stream = PingStream::start(self.host, parse(INNER[1][0])?, NATURAL_REKEY)?;
        let pings = stream.finish()?;
        step("capture");
        let packets = capture.stop()?;
        let sent = Handshakes::of(&packets, pair)?;
        let mut times = sent.initiations.clone();
        if !self.peer.is_program() {
            // An emulated guest may answer so late that the initiator has repeated itself.
            times.dedup_by(|time, earlier| *time < *earlier + REPEATED);
        }
        ensure!(
            times.len() == 2 || role == Role::Responds,
            "not two initiations: {sent:?}"
        );
        ensure!(
            (times.len()..=sent.initiations.len()).contains(&sent.responses),
            "not an answer each: {sent:?}"
        );
        let gaps = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        let gap = gaps.max().unwrap_or_default();
        ensure!(
            gap >= REKEY_AFTER - Duration::from_secs(1)
                && gap < REKEY_AFTER + Duration::from_secs(6),
            "rekey after {gap:?}"
        );
        figure("rekey after", gap);
        figure("pings, none lost", pings);
        Ok(())
    }

    /// Waits until a peer no longer repeats its first handshake. wireguard-go may repeat an
    /// answered one: it starts the retry timer after sending, so the answer can arrive before.
    fn wait_until_idle(&self) -> Result<()> {
        let mut last = (latest_handshake(self.taupe)?, Instant::now());
        wait_until("end of repeated handshakes", IDLE_TIMEOUT, || {
            sleep(Duration::from_millis(490));
            let time = latest_handshake(self.taupe)?;
            if time != last.0 {
                last = (time, Instant::now());
            }
            Ok(last.1.elapsed() > IDLE)
        })
    }

    /// Sends data from Taupe to its peer and back, over both inner protocols.
    fn transfer(&self, length: usize) -> Result<()> {
        for address in INNER[1] {
            let echo = SocketAddr::new(parse(address)?, ECHO);
            tcp_echo(self.host, echo, length)?;
        }
        Ok(())
    }

    /// Returns the time of Taupe's last handshake, in seconds since the epoch. A peer that reports
    /// handshake times must report one too, at the same time if both share a clock.
    fn handshake_time(&self) -> Result<u64> {
        let taupe = latest_handshake(self.taupe)?;
        ensure!(taupe > 0, "Taupe saw no handshake");
        let earliest = match self.peer.quirks().handshake_times {
            HandshakeTimes::Exact => taupe - 2,
            HandshakeTimes::LastTick => taupe - 10,
            HandshakeTimes::Age => return Ok(taupe),
        };
        let peer = latest_handshake(self.peer)?;
        ensure!(peer > 0, "the peer saw no handshake");
        let agree = (earliest..=taupe + 2).contains(&peer) || !self.peer.is_program();
        ensure!(agree, "{taupe} and {peer}, the same handshake");
        Ok(taupe)
    }
}

/// The two sides by role, configured.
struct Configured<'a> {
    initiator: &'a Tunnel,
    initiator_keys: Keys,
    responder: &'a Tunnel,
    responder_keys: Keys,
    responder_endpoint: SocketAddr,
    responder_inner: [&'static str; 2],
    responder_allowed: &'static str,
    psk: Option<String>,
}

impl Configured<'_> {
    /// Sends one ping from the initiator over each inner protocol.
    fn ping(&self) -> Result<()> {
        for address in self.responder_inner {
            self.ping_within("30", address)?;
        }
        Ok(())
    }

    /// Sends the first pings. The packet that triggers the handshake must arrive. An IPv6 packet
    /// after it may be lost outside the tunnel: the kernel may take a second to notice that a new
    /// interface is up.
    fn first_ping(&self) -> Result<()> {
        let [v4, v6] = self.responder_inner;
        self.ping_within("30", v4)?;
        self.ping_within("3", v6)
            .or_else(|_| self.ping_within("30", v6))
    }

    fn ping_within(&self, seconds: &str, address: &str) -> Result<()> {
        let command = ["ping", "-c", "1", "-W", seconds, address];
        self.initiator.place().run(&command).map(drop)
    }

    /// Returns the initiator's endpoint as known to the responder.
    fn initiator_endpoint(&self) -> Result<SocketAddr> {
        let key = &self.initiator_keys.public;
        let reported = self.responder.field("endpoints", key)?;
        reported.parse().map_err(|_| Error::Malformed {
            what: reported,
            why: "not an endpoint".to_owned(),
        })
    }

    /// Changes the initiator's port, or its address if there is a preshared key, so that both
    /// changes are tested unless the implementation supports only one. Returns the new endpoint.
    fn roam(&self, before: SocketAddr) -> Result<SocketAddr> {
        let quirks = self.initiator.quirks();
        let port_is_due = self.psk.is_none() && !quirks.listen_port_is_final;
        if port_is_due || quirks.outer_address_is_final {
            let port = ROAMED_PORT.to_string();
            self.initiator.set(&["listen-port", &port])?;
            return Ok(SocketAddr::new(before.ip(), ROAMED_PORT));
        }
        let (old, new, length) = match before.ip() {
            IpAddr::V4(old) => {
                let [a, b, c, _] = old.octets();
                (old.into(), IpAddr::from([a, b, c, ROAMED_HOST]), 24)
            }
            IpAddr::V6(old) => {
                let mut octets = old.octets();
                octets[15] = ROAMED_HOST;
                (old.into(), IpAddr::from(octets), 64)
            }
        };
        let old: IpAddr = old;
        let place = self.initiator.place();
        place.add_address(UPLINK, &format!("{new}/{length}"))?;
        let old = format!("{old}/{length}");
        // Otherwise the kernel removes the new address together with the old one.
        let keep = format!("/proc/sys/net/ipv4/conf/{UPLINK}/promote_secondaries");
        place.run_with_input(&["tee", &keep], "1")?;
        place.run(&["ip", "address", "del", &old, "dev", UPLINK])?;
        Ok(SocketAddr::new(new, before.port()))
    }
}

/// Returns the handshake time in `wg show` of a tunnel's only peer.
fn latest_handshake(tunnel: &Tunnel) -> Result<u64> {
    let shown = tunnel.show(Some("latest-handshakes"))?;
    let time = match shown.stdout.split_whitespace().collect::<Vec<_>>()[..] {
        [_, time] => time.parse().ok(),
        _ => None,
    };
    time.ok_or_else(|| Error::unmet(format!("not the time of one peer: {}", shown.stdout)))
}

/// Handshake messages of a capture.
#[derive(Debug)]
struct Handshakes {
    /// Times of the initiations, since the epoch.
    initiations: Vec<Duration>,
    responses: usize,
}

impl Handshakes {
    /// Collects the messages of a capture. Only the initiator may have sent initiations, unless it
    /// was silent for long enough that the responder must start a handshake, as an emulated guest
    /// may be.
    fn of(packets: &[Packet], pair: &Configured<'_>) -> Result<Self> {
        let from = |packet: &Packet| packet.datagram().map(|datagram| datagram.source.ip());
        let is_responders = |packet: &Packet| from(packet) == Some(pair.responder_endpoint.ip());
        for packet in messages(packets, Message::Initiation).filter(|packet| is_responders(packet))
        {
            let is_before = |other: &&Packet| other.time < packet.time && !is_responders(other);
            let heard = packets.iter().rfind(is_before);
            let silence = heard.map(|heard| packet.time.saturating_sub(heard.time));
            ensure!(
                silence.is_some_and(|silence| silence >= DEAD_PEER),
                "an initiation from the responder, {silence:?} after the initiator was heard"
            );
        }
        let initiations = messages(packets, Message::Initiation);
        Ok(Self {
            initiations: initiations.map(|packet| packet.time).collect(),
            responses: messages(packets, Message::Response).count(),
        })
    }
}

/// Formats the verdicts as a table: a line per peer, role and outer protocol.
///
/// `peers` are names and versions. A test that runs all cells of a peer has the peer's name.
pub fn table(peers: &[(&str, &str)], verdicts: &[Verdict]) -> String {
    let mut text = format!(
        "{:<14}{:<14}{:<11}{:<6}{:<23}{:<23}{}\n",
        "peer", "version", "Taupe", "outer", "plain", "preshared key", "rekey at 120 s"
    );
    for (peer, version) in peers {
        // The last part of a Go module's version identifies it.
        let version = version.rsplit('-').next().unwrap_or(version);
        for role in [Role::Initiates, Role::Responds] {
            for outer in [Outer::V4, Outer::V6] {
                let result = |exercise| {
                    let cell = Cell {
                        role,
                        outer,
                        exercise,
                    };
                    outcome(&cell, peer, verdicts)
                };
                let sample = Cell {
                    role,
                    outer,
                    exercise: Exercise::NaturalRekey,
                };
                let name = sample.to_string();
                let mut words = name.split('/');
                let line = format!(
                    "{peer:<14}{version:<14}{:<11}{:<6}{:<23}{:<23}{}",
                    words.next().unwrap_or_default(),
                    words.next().unwrap_or_default(),
                    result(Exercise::Session { psk: false }),
                    result(Exercise::Session { psk: true }),
                    result(Exercise::NaturalRekey),
                );
                // Writing to a string cannot fail.
                let _ = writeln!(text, "{}", line.trim_end());
            }
        }
    }
    text
}

/// Formats the verdict on a cell, or else the verdict on all cells of its peer.
fn outcome(cell: &Cell, peer: &str, verdicts: &[Verdict]) -> String {
    let name = cell.name(peer);
    let is_of = |verdict: &&Verdict| verdict.name == name || verdict.name == peer;
    match verdicts.iter().find(is_of) {
        None => String::new(),
        Some(verdict) if verdict.passed => "ok".to_owned(),
        Some(verdict) => format!("FAILED {}", verdict.last_step().unwrap_or_default()),
    }
}

fn parse(address: &str) -> Result<IpAddr> {
    address.parse().map_err(|_| Error::Malformed {
        what: address.to_owned(),
        why: "not an IP address".to_owned(),
    })
}
