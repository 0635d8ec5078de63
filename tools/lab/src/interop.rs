//! What two implementations have to do together, and the table of who does.
//!
//! A [`Cell`] of the matrix is one peer, one role of Taupe, one outer protocol,
//! with or without a preshared key. Taupe is in a [`Host`]; its peer may be
//! anywhere that is a [`Place`](crate::peers::Place).

use crate::capture::{Capture, Message, Packet, messages};
use crate::ensure;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::peers::{Keys, PeerSettings, Settings, Tunnel};
use crate::process::wait_until;
use crate::sandbox::{Verdict, figure, step};
use crate::traffic::{PingStream, tcp_echo};
use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Inner addresses of Taupe and of its peer.
const INNER: [[&str; 2]; 2] = [["10.77.0.1", "fd77::1"], ["10.77.0.2", "fd77::2"]];
/// The same as allowed IPs.
const ALLOWED: [&str; 2] = ["10.77.0.1/32, fd77::1/128", "10.77.0.2/32, fd77::2/128"];
const PORTS: [u16; 2] = [51820, 51821];
/// What comes after a roam: another port, or else another host part.
const ROAMED_PORT: u16 = 52999;
const ROAMED_HOST: u8 = 99;
const ECHO: u16 = 7;

/// Rekey-After-Time (whitepaper section 6.1).
const REKEY_AFTER: Duration = Duration::from_secs(120);
/// Who has sent data and heard nothing for so long begins a handshake: `KEEPALIVE_TIMEOUT`
/// and `REKEY_TIMEOUT` (whitepaper, section 6).
const DEAD_PEER: Duration = Duration::from_secs(15);
/// For how long the cell of a natural rekey pings: past the rekey.
const NATURAL: Duration = Duration::from_secs(128);
/// A handshake that is not repeated within this time will not be: longer than
/// Rekey-Timeout with its jitter (whitepaper section 6.1).
const SETTLED: Duration = Duration::from_secs(7);
/// How long a peer may repeat its first handshake before that is a failure.
const SETTLING: Duration = Duration::from_secs(60);

/// Who begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Taupe knows its peer's endpoint, and sends the first initiation.
    Initiates,
    /// The other way round.
    Responds,
}

/// The protocol between the endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outer {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What the two are put through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exercise {
    /// Traffic, a roam of the initiator, a handshake forced on it, and traffic
    /// again; with a preshared key or without.
    Session {
        /// Whether there is a preshared key.
        psk: bool,
    },
    /// Pings past the time at which the initiator has to rekey by itself.
    NaturalRekey,
}

/// One test of the matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    /// Who begins.
    pub role: Role,
    /// The protocol outside.
    pub outer: Outer,
    /// What is tested.
    pub exercise: Exercise,
}

impl Cell {
    /// The cells for one peer, those first that take the longest.
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
                    // One each is enough to see the timers of either side.
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

    /// The test's name, with the peer's.
    pub fn name(&self, peer: &str) -> String {
        format!("{peer}/{self}")
    }

    /// How long it may take.
    pub fn limit(&self) -> Duration {
        match self.exercise {
            Exercise::Session { .. } => Duration::from_secs(90),
            Exercise::NaturalRekey => NATURAL * 3 / 2 + SETTLING + Duration::from_secs(60),
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

/// The two, connected, neither configured yet.
pub struct Pair<'a> {
    /// The machine that Taupe runs in.
    pub host: &'a Host,
    /// The interfaces towards each other, Taupe's first.
    pub uplinks: [&'a str; 2],
    /// The outer addresses, in networks of 24 or 64 bits.
    pub outer: [IpAddr; 2],
    /// Taupe, in `host`.
    pub taupe: &'a Tunnel,
    /// Its peer.
    pub peer: &'a Tunnel,
}

impl Pair<'_> {
    /// Runs one cell of the matrix.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] or [`Error::Command`] where the two do not get along.
    pub fn run(&self, cell: &Cell) -> Result<()> {
        step("configuration");
        let capture = Capture::start(self.host, self.uplinks[0], "udp and less 250")?;
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
        let endpoint = SocketAddr::new(self.outer[responder], PORTS[responder]);
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
            initiator_uplink: self.uplinks[initiator],
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
        self.transfer(4_000_001)?;

        step("roam");
        let before = pair.initiator_endpoint()?;
        let after = pair.roam(before)?;
        pair.ping()?;
        let followed = pair.initiator_endpoint()?;
        ensure!(followed == after, "endpoint is {followed}, not {after}");
        self.transfer(1_000_001)?;

        step("forced rekey");
        let first = self.handshake_time()?;
        // The times that are told are whole seconds.
        sleep(Duration::from_millis(1100));
        pair.initiator.forget_and_add(&PeerSettings {
            public_key: &pair.responder_keys.public,
            preshared_key: pair.psk.as_deref(),
            endpoint: Some(pair.responder_endpoint),
            allowed_ips: pair.responder_allowed,
        })?;
        pair.ping()?;
        let second = self.handshake_time()?;
        ensure!(second > first, "handshake at {second} after one at {first}");
        self.transfer(1_000_001)?;

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
            self.settle()?;
        }
        step("pings past the rekey");
        // From Taupe's side in either role: both directions carry data anyway.
        let stream = PingStream::start(self.host, parse(INNER[1][0])?, NATURAL)?;
        let pings = stream.finish()?;
        step("capture");
        let packets = capture.stop()?;
        let sent = Handshakes::of(&packets, pair)?;
        let times = &sent.initiations;
        ensure!(
            times.len() == 2 || role == Role::Responds,
            "not two initiations: {sent:?}"
        );
        ensure!(
            sent.responses == times.len(),
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

    /// Waits until a peer's first handshake was the last for now. wireguard-go
    /// may repeat one that was answered: it arms the timer for that after
    /// sending, so the answer can come before.
    fn settle(&self) -> Result<()> {
        let mut last = (latest_handshake(self.taupe)?, Instant::now());
        wait_until("end of repeated handshakes", SETTLING, || {
            sleep(Duration::from_millis(490));
            let time = latest_handshake(self.taupe)?;
            if time != last.0 {
                last = (time, Instant::now());
            }
            Ok(last.1.elapsed() > SETTLED)
        })
    }

    /// There and back from Taupe to its peer, over both inner protocols.
    fn transfer(&self, length: usize) -> Result<()> {
        for address in INNER[1] {
            let echo = SocketAddr::new(parse(address)?, ECHO);
            tcp_echo(self.host, echo, length)?;
        }
        Ok(())
    }

    /// When Taupe saw the last handshake, in seconds since the epoch. A peer
    /// that tells it has seen one too, at that time if it has the same clock.
    fn handshake_time(&self) -> Result<u64> {
        let taupe = latest_handshake(self.taupe)?;
        ensure!(taupe > 0, "Taupe saw no handshake");
        if !self.peer.quirks().handshake_times_are_wrong {
            let peer = latest_handshake(self.peer)?;
            ensure!(peer > 0, "the peer saw no handshake");
            let apart = taupe.abs_diff(peer);
            let agree = apart <= 2 || !self.peer.is_program();
            ensure!(agree, "{taupe} and {peer}, the same handshake");
        }
        Ok(taupe)
    }
}

/// The two after their configuration, by role.
struct Configured<'a> {
    initiator: &'a Tunnel,
    initiator_keys: Keys,
    initiator_uplink: &'a str,
    responder: &'a Tunnel,
    responder_keys: Keys,
    responder_endpoint: SocketAddr,
    responder_inner: [&'static str; 2],
    responder_allowed: &'static str,
    psk: Option<String>,
}

impl Configured<'_> {
    /// One request each from the initiator, over both inner protocols.
    fn ping(&self) -> Result<()> {
        for address in self.responder_inner {
            self.ping_within("8", address)?;
        }
        Ok(())
    }

    /// The packet that begins the handshake has to arrive. One of IPv6 may be
    /// lost after it, not in the tunnel but where the kernel has not noticed
    /// that a new interface is up, for which it may take a second.
    fn first_ping(&self) -> Result<()> {
        let [v4, v6] = self.responder_inner;
        self.ping_within("8", v4)?;
        self.ping_within("3", v6)
            .or_else(|_| self.ping_within("8", v6))
    }

    fn ping_within(&self, seconds: &str, address: &str) -> Result<()> {
        let command = ["ping", "-c", "1", "-W", seconds, address];
        self.initiator.place().run(&command).map(drop)
    }

    /// Where the responder thinks the initiator is.
    fn initiator_endpoint(&self) -> Result<SocketAddr> {
        let key = &self.initiator_keys.public;
        let told = self.responder.field("endpoints", key)?;
        told.parse().map_err(|_| Error::Malformed {
            what: told,
            why: "not an endpoint".to_owned(),
        })
    }

    /// Gives the initiator another port, or another address where there is a
    /// preshared key, so that both are seen unless its implementation can do
    /// one only. Returns where it is now.
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
        place.add_address(self.initiator_uplink, &format!("{new}/{length}"))?;
        let old = format!("{old}/{length}");
        let interface = self.initiator_uplink;
        // Otherwise the kernel takes the new address away with the old one.
        let keep = format!("/proc/sys/net/ipv4/conf/{interface}/promote_secondaries");
        place.run_with_input(&["tee", &keep], "1")?;
        place.run(&["ip", "address", "del", &old, "dev", interface])?;
        Ok(SocketAddr::new(new, before.port()))
    }
}

/// The time in `wg show` of a tunnel's only peer.
fn latest_handshake(tunnel: &Tunnel) -> Result<u64> {
    let shown = tunnel.show(Some("latest-handshakes"))?;
    let time = match shown.stdout.split_whitespace().collect::<Vec<_>>()[..] {
        [_, time] => time.parse().ok(),
        _ => None,
    };
    time.ok_or_else(|| Error::unmet(format!("not the time of one peer: {}", shown.stdout)))
}

/// The handshake messages that a capture holds.
#[derive(Debug)]
struct Handshakes {
    /// The times of the initiations, since the epoch.
    initiations: Vec<Duration>,
    responses: usize,
}

impl Handshakes {
    /// Only the initiator may have sent initiations, unless it was silent for so long that
    /// the responder has to look after it: a guest without a processor may be.
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

/// The verdicts as a table: a line per peer, role and outer protocol.
///
/// `peers` are names and versions.
pub fn table(peers: &[(&str, &str)], verdicts: &[Verdict]) -> String {
    let mut text = format!(
        "{:<14}{:<14}{:<11}{:<6}{:<23}{:<23}{}\n",
        "peer", "version", "Taupe", "outer", "plain", "preshared key", "rekey at 120 s"
    );
    for (peer, version) in peers {
        // The last part of a Go module's version tells it from others.
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

fn outcome(cell: &Cell, peer: &str, verdicts: &[Verdict]) -> String {
    let name = cell.name(peer);
    match verdicts.iter().find(|verdict| verdict.name == name) {
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
