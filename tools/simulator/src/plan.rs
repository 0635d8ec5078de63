//! The plan of an episode, generated from its seed before it runs.
//!
//! Everything is a list, so that a failing episode can be shrunk: any event, class of events, pair
//! or host can be left out, and the rest still replays.

use core::fmt;

use taupe_protocol::hybrid::Suite;
use taupe_protocol::update::PostQuantum;

use crate::random::Random;

mod hybrid;

/// Nanoseconds of virtual time.
pub type Nanos = u64;
/// A millisecond.
pub const MILLISECOND: Nanos = 1_000_000;
/// A second.
pub const SECOND: Nanos = 1000 * MILLISECOND;
/// A minute.
pub const MINUTE: Nanos = 60 * SECOND;
/// An hour.
pub const HOUR: Nanos = 60 * MINUTE;

/// Time without traffic after the plan: longer than the network's delays (300 s), the life of keys
/// (540 s) and the retries of a handshake (107 s) together.
pub const LULL: Nanos = 1100 * SECOND;

/// A run generated from one seed.
#[derive(Clone)]
pub struct Episode {
    /// The seed, also for random numbers drawn while it runs.
    pub seed: u64,
    /// Number of devices: 2 to 8.
    pub hosts: usize,
    /// Duration of the events; [`LULL`] follows.
    pub duration: Nanos,
    /// Pairs of peers.
    pub edges: Vec<Edge>,
    /// Events in order of time.
    pub events: Vec<Planned>,
}

/// Two hosts that are each other's peers from the start.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    /// The lower host.
    pub a: usize,
    /// The higher host.
    pub b: usize,
    /// True if they have a preshared key.
    pub preshared: bool,
    /// True if `a` has an endpoint of `b`, and the reverse; at least one is.
    pub endpoint: [bool; 2],
    /// Persistent keepalive of `a` and of `b`, in seconds.
    pub keepalive: [u16; 2],
    /// Their hybrid handshakes, if they have any.
    pub hybrid: Option<Agreed>,
    /// True if datagrams of more than 1,280 bytes with headers are lost.
    pub narrow: bool,
}

/// Settings of two hosts for hybrid handshakes with each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// The suite, which determines whose static keys are configured.
    pub suite: Suite,
    /// Settings of `a` and `b`.
    pub settings: [PostQuantum; 2],
}

/// A planned event.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// Time since the start.
    pub at: Nanos,
    /// The action.
    pub action: Action,
}

/// Properties of a link in each direction. Rates are per thousand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quality {
    /// Transit time.
    pub delay: Nanos,
    /// Largest additional delay, drawn for every datagram, which reorders them.
    pub jitter: Nanos,
    /// Rate of losses.
    pub loss: u16,
    /// Rate of duplicates.
    pub duplicate: u16,
    /// Rate of datagrams with a flipped bit.
    pub corrupt: u16,
    /// Rate of truncated datagrams.
    pub truncate: u16,
    /// Rate of datagrams delayed by up to five minutes.
    pub hold: u16,
}

impl Quality {
    /// A good network.
    pub const GOOD: Self = Self {
        delay: 20 * MILLISECOND,
        jitter: 0,
        loss: 0,
        duplicate: 0,
        corrupt: 0,
        truncate: 0,
        hold: 0,
    };

    /// Returns true if all datagrams arrive soon and unchanged.
    #[must_use]
    pub fn delivers(&self) -> bool {
        self.loss == 0
            && self.corrupt == 0
            && self.truncate == 0
            && self.hold == 0
            && self.delay + self.jitter <= SECOND / 2
    }
}

/// Traffic pattern of a pair.
#[derive(Clone, Copy, Debug)]
pub enum Pattern {
    /// Each packet is answered.
    Request,
    /// Packets in one direction; only keepalives come back.
    OneWay,
    /// Both sides send independently.
    Both,
    /// Many packets at once.
    Burst(u16),
}

/// Kinds of hostile datagrams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hostile {
    /// Random bytes, some with the header of a real message.
    Noise,
    /// A datagram that the target has accepted before.
    Replay,
    /// A datagram that was sent to another host.
    Misdirect,
    /// One bit changed.
    BitFlip,
    /// Truncated, or with bytes added.
    Resize,
    /// The header of one packet with the body of another.
    Splice,
    /// A datagram that the target itself has sent.
    Reflect,
    /// An initiation with a valid mac1 and otherwise random content.
    ForgedInitiation,
    /// A response to a real initiation, with a valid mac1.
    ForgedResponse,
    /// A cookie reply to a real initiation.
    ForgedCookie,
    /// Data for a real session, with any counter.
    ForgedData,
    /// A replayed part of a hybrid message, from any address.
    ReplayPart,
    /// A part with the body of another handshake's part, with a valid mac1.
    MixParts,
    /// A changed part with a valid mac1.
    ForgedPart,
    /// A handshake by an attacker with all X25519 secrets and preshared keys of a peer.
    Thief,
}

impl Hostile {
    /// Kinds that need hybrid handshakes.
    pub const HYBRID: [Self; 4] = [
        Self::ReplayPart,
        Self::MixParts,
        Self::ForgedPart,
        Self::Thief,
    ];

    /// All other kinds.
    pub const ALL: [Self; 11] = [
        Self::Noise,
        Self::Replay,
        Self::Misdirect,
        Self::BitFlip,
        Self::Resize,
        Self::Splice,
        Self::Reflect,
        Self::ForgedInitiation,
        Self::ForgedResponse,
        Self::ForgedCookie,
        Self::ForgedData,
    ];
}

/// A planned action. `edge` is an index into [`Episode::edges`]; `side` is 0 for its `a` and 1 for
/// its `b`.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the fields say it")]
pub enum Action {
    /// A pair begins to exchange packets.
    Flow {
        edge: usize,
        side: usize,
        pattern: Pattern,
        interval: Nanos,
        span: Nanos,
    },
    /// A pair that can exchange packets must do so within a bounded time.
    Probe { edge: usize },
    /// More packets in one session than its replay window holds, followed by replays of old ones.
    Bulk {
        edge: usize,
        side: usize,
        packets: u16,
    },
    /// A link gets worse for a time.
    Impair {
        edge: usize,
        quality: Quality,
        span: Nanos,
    },
    /// One or both directions are blocked.
    Partition {
        edge: usize,
        sides: [bool; 2],
        span: Nanos,
    },
    /// A NAT gives the host another port.
    Rebind { host: usize },
    /// The host gets another address.
    Roam { host: usize },
    /// The host loses everything but its configuration, and the timestamp file if it is kept.
    Crash {
        host: usize,
        keep_labels: bool,
        keep_endpoints: bool,
        span: Nanos,
        wall_jump: i64,
    },
    /// The program ends regularly and is started again.
    Restart { host: usize, span: Nanos },
    /// The wall clock jumps, by nanoseconds.
    ClockJump { host: usize, by: i64 },
    /// The host is suspended; its boot clock goes on.
    Suspend { host: usize, span: Nanos },
    /// The interface goes down and up.
    Down { host: usize, span: Nanos },
    /// One side removes the other and adds it again.
    Remove {
        edge: usize,
        side: usize,
        span: Nanos,
    },
    /// Both sides change the preshared key, one after the other.
    Preshared {
        edge: usize,
        side: usize,
        gap: Nanos,
    },
    /// One side gets the other's endpoint.
    Endpoint { edge: usize, side: usize },
    /// One side's persistent keepalive is set.
    Keepalive {
        edge: usize,
        side: usize,
        seconds: u16,
    },
    /// The host gets another private key; its peers get the new key later.
    PrivateKey { host: usize, gap: Nanos },
    /// The host gets another seed of ML-KEM keys; its peers get the new key later.
    Seed { host: usize, gap: Nanos },
    /// Both sides change their settings for hybrid handshakes, one after the other.
    Hybrid {
        edge: usize,
        side: usize,
        agreed: Option<Agreed>,
        gap: Nanos,
    },
    /// The allowed IPs of one peer move to another for a time.
    MoveAllowed {
        host: usize,
        from: usize,
        to: usize,
        span: Nanos,
    },
    /// Handshakes arrive faster than the host processes them.
    Load { host: usize, span: Nanos },
    /// Hostile datagrams for a host.
    Attack {
        host: usize,
        kind: Hostile,
        count: u8,
    },
    /// For a time, hosts that send an initiation are attacked before the answer arrives.
    Ambush { span: Nanos },
}

/// A class of events, for shrinking and counting.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[allow(missing_docs, reason = "as Action")]
pub enum Class {
    Flow,
    Probe,
    Bulk,
    Impair,
    Partition,
    Rebind,
    Roam,
    Crash,
    Restart,
    ClockJump,
    Suspend,
    Down,
    Remove,
    Preshared,
    Endpoint,
    Keepalive,
    PrivateKey,
    Seed,
    Hybrid,
    MoveAllowed,
    Load,
    Attack,
    Ambush,
}

impl Class {
    /// All classes.
    pub const ALL: [Self; 23] = [
        Self::Flow,
        Self::Probe,
        Self::Bulk,
        Self::Impair,
        Self::Partition,
        Self::Rebind,
        Self::Roam,
        Self::Crash,
        Self::Restart,
        Self::ClockJump,
        Self::Suspend,
        Self::Down,
        Self::Remove,
        Self::Preshared,
        Self::Endpoint,
        Self::Keepalive,
        Self::PrivateKey,
        Self::Seed,
        Self::Hybrid,
        Self::MoveAllowed,
        Self::Load,
        Self::Attack,
        Self::Ambush,
    ];
}

impl Action {
    /// Returns its class.
    #[must_use]
    pub fn class(&self) -> Class {
        match self {
            Self::Flow { .. } => Class::Flow,
            Self::Probe { .. } => Class::Probe,
            Self::Bulk { .. } => Class::Bulk,
            Self::Impair { .. } => Class::Impair,
            Self::Partition { .. } => Class::Partition,
            Self::Rebind { .. } => Class::Rebind,
            Self::Roam { .. } => Class::Roam,
            Self::Crash { .. } => Class::Crash,
            Self::Restart { .. } => Class::Restart,
            Self::ClockJump { .. } => Class::ClockJump,
            Self::Suspend { .. } => Class::Suspend,
            Self::Down { .. } => Class::Down,
            Self::Remove { .. } => Class::Remove,
            Self::Preshared { .. } => Class::Preshared,
            Self::Endpoint { .. } => Class::Endpoint,
            Self::Keepalive { .. } => Class::Keepalive,
            Self::PrivateKey { .. } => Class::PrivateKey,
            Self::Seed { .. } => Class::Seed,
            Self::Hybrid { .. } => Class::Hybrid,
            Self::MoveAllowed { .. } => Class::MoveAllowed,
            Self::Load { .. } => Class::Load,
            Self::Attack { .. } => Class::Attack,
            Self::Ambush { .. } => Class::Ambush,
        }
    }

    /// Returns the hosts it is about.
    #[must_use]
    pub fn hosts(&self, edges: &[Edge]) -> Vec<usize> {
        match *self {
            Self::Flow { edge, .. }
            | Self::Probe { edge }
            | Self::Bulk { edge, .. }
            | Self::Impair { edge, .. }
            | Self::Partition { edge, .. }
            | Self::Remove { edge, .. }
            | Self::Preshared { edge, .. }
            | Self::Endpoint { edge, .. }
            | Self::Hybrid { edge, .. }
            | Self::Keepalive { edge, .. } => vec![edges[edge].a, edges[edge].b],
            Self::Rebind { host }
            | Self::Roam { host }
            | Self::Crash { host, .. }
            | Self::Restart { host, .. }
            | Self::ClockJump { host, .. }
            | Self::Suspend { host, .. }
            | Self::Down { host, .. }
            | Self::PrivateKey { host, .. }
            | Self::Seed { host, .. }
            | Self::Load { host, .. }
            | Self::Attack { host, .. } => vec![host],
            Self::MoveAllowed { host, from, to, .. } => vec![host, from, to],
            Self::Ambush { .. } => Vec::new(),
        }
    }
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12} {:?}", Time(self.at), self.action)
    }
}

/// Formats a time as hours, minutes and seconds.
pub struct Time(pub Nanos);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.0 / SECOND, self.0 % SECOND);
        let text = format!(
            "{}:{:02}:{:02}.{:06}",
            seconds / 3600,
            seconds / 60 % 60,
            seconds % 60,
            nanos / 1000
        );
        f.pad(&text)
    }
}

impl Episode {
    /// Generates the episode of a seed.
    #[must_use]
    pub fn generate(seed: u64) -> Self {
        let mut episode = Draw {
            random: Random::new(seed, 1),
        }
        .episode(seed);
        hybrid::draw(&mut episode);
        episode
    }
}

struct Draw {
    random: Random,
}

/// Returns times at a mean distance of `every`.
fn times(random: &mut Random, duration: Nanos, every: Nanos) -> Vec<Nanos> {
    let mut times = Vec::new();
    let mut at = random.below(every);
    while at < duration {
        times.push(at);
        at += random.between(every / 10, 2 * every - every / 10);
    }
    times
}

impl Draw {
    fn episode(&mut self, seed: u64) -> Episode {
        let hosts = [2, 2, 2, 3, 3, 4, 5, 8][self.random.index(8)];
        let duration = HOUR * self.random.between(1, 4);
        let edges = self.edges(hosts);
        let mut events = Vec::new();
        // Some episodes are calm, others have much trouble.
        let trouble = self.random.below(4);
        for edge in 0..edges.len() {
            self.pair_events(edge, duration, trouble, &mut events);
        }
        for host in 0..hosts {
            self.host_events(host, hosts, duration, trouble, &mut events);
        }
        for at in self.times(duration, 20 * MINUTE) {
            let span = self.random.spread(MINUTE, 10 * MINUTE);
            events.push(Planned {
                at,
                action: Action::Ambush { span },
            });
        }
        events.sort_by_key(|event| event.at);
        Episode {
            seed,
            hosts,
            duration,
            edges,
            events,
        }
    }

    /// Returns a full mesh, a star or a line.
    fn edges(&mut self, hosts: usize) -> Vec<Edge> {
        let shape = self.random.below(4);
        let mut edges = Vec::new();
        for b in 1..hosts {
            for a in 0..b {
                let there = match shape {
                    0 => a == 0,
                    1 => a + 1 == b,
                    _ => true,
                };
                if there {
                    edges.push(self.edge(a, b));
                }
            }
        }
        edges
    }

    fn edge(&mut self, a: usize, b: usize) -> Edge {
        let mut keepalive = || match self.random.below(6) {
            0 => 25,
            1 => self.random.between(1, 200) as u16,
            _ => 0,
        };
        let keepalive = [keepalive(), keepalive()];
        let endpoint = [[true, true], [true, false], [false, true]][self.random.index(3)];
        let preshared = self.random.once_in(2);
        Edge {
            a,
            b,
            preshared,
            endpoint,
            keepalive,
            hybrid: None,
            narrow: false,
        }
    }

    fn times(&mut self, duration: Nanos, every: Nanos) -> Vec<Nanos> {
        times(&mut self.random, duration, every)
    }

    fn pair_events(
        &mut self,
        edge: usize,
        duration: Nanos,
        trouble: u64,
        events: &mut Vec<Planned>,
    ) {
        let mut push = |at, action| events.push(Planned { at, action });
        for at in self.times(duration, 5 * MINUTE) {
            let pattern = match self.random.below(8) {
                0..3 => Pattern::Request,
                3..5 => Pattern::OneWay,
                5..7 => Pattern::Both,
                _ => Pattern::Burst(self.random.spread(2, 300) as u16),
            };
            let interval = match pattern {
                Pattern::Burst(_) => self.random.spread(10 * SECOND, 5 * MINUTE),
                _ => self.random.spread(50 * MILLISECOND, 2 * MINUTE),
            };
            // A few packets, or minutes of traffic that include rekeying.
            let span = self.random.spread(interval, 10 * MINUTE);
            let side = self.random.index(2);
            push(
                at,
                Action::Flow {
                    edge,
                    side,
                    pattern,
                    interval,
                    span,
                },
            );
        }
        for at in self.times(duration, 8 * MINUTE) {
            push(at, Action::Probe { edge });
        }
        for at in self.times(duration, 80 * MINUTE) {
            let packets = match self.random.below(3) {
                0 => 1100,
                _ => self.random.between(8300, 9000),
            } as u16;
            push(
                at,
                Action::Bulk {
                    edge,
                    side: self.random.index(2),
                    packets,
                },
            );
        }
        if trouble == 0 {
            return;
        }
        let scale = 4 - trouble;
        for at in self.times(duration, scale * 8 * MINUTE) {
            let span = self.random.spread(SECOND, 8 * MINUTE);
            let quality = self.quality();
            push(
                at,
                Action::Impair {
                    edge,
                    quality,
                    span,
                },
            );
        }
        for at in self.times(duration, scale * 12 * MINUTE) {
            let sides = [[true, true], [true, false], [false, true]][self.random.index(3)];
            let span = self.random.spread(SECOND, 6 * MINUTE);
            push(at, Action::Partition { edge, sides, span });
        }
        for at in self.times(duration, scale * 25 * MINUTE) {
            let side = self.random.index(2);
            let action = match self.random.below(4) {
                0 => Action::Remove {
                    edge,
                    side,
                    span: self.random.spread(MILLISECOND, MINUTE),
                },
                1 => Action::Preshared {
                    edge,
                    side,
                    gap: self.random.spread(MILLISECOND, 20 * SECOND),
                },
                2 => Action::Endpoint { edge, side },
                _ => Action::Keepalive {
                    edge,
                    side,
                    seconds: [0, 1, 5, 25, 120][self.random.index(5)],
                },
            };
            push(at, action);
        }
    }

    fn quality(&mut self) -> Quality {
        let mut some = |of: u64, up_to: u64| {
            if self.random.once_in(of) {
                self.random.below(up_to)
            } else {
                0
            }
        };
        Quality {
            loss: some(2, 600) as u16,
            duplicate: some(3, 200) as u16,
            corrupt: some(3, 100) as u16,
            truncate: some(4, 50) as u16,
            hold: some(4, 60) as u16,
            jitter: some(2, 2 * SECOND),
            delay: MILLISECOND + some(2, SECOND),
        }
    }

    fn host_events(
        &mut self,
        host: usize,
        hosts: usize,
        duration: Nanos,
        trouble: u64,
        events: &mut Vec<Planned>,
    ) {
        let mut push = |at, action| events.push(Planned { at, action });
        for at in self.times(duration, 30 * SECOND) {
            let kind = Hostile::ALL[self.random.index(Hostile::ALL.len())];
            let count = self.random.spread(1, 30) as u8;
            push(at, Action::Attack { host, kind, count });
        }
        if trouble == 0 {
            return;
        }
        for at in self.times(duration, (4 - trouble) * 7 * MINUTE) {
            let action = self.host_trouble(host, hosts);
            push(at, action);
        }
    }

    fn host_trouble(&mut self, host: usize, hosts: usize) -> Action {
        match self.random.below(17) {
            0..2 => Action::Rebind { host },
            2..4 => Action::Roam { host },
            4..6 => Action::Crash {
                host,
                keep_labels: !self.random.once_in(3),
                keep_endpoints: !self.random.once_in(3),
                span: self.random.spread(10 * MILLISECOND, 4 * MINUTE),
                wall_jump: if self.random.once_in(2) {
                    self.jump()
                } else {
                    0
                },
            },
            6..9 => Action::ClockJump {
                host,
                by: self.jump(),
            },
            9..11 => Action::Suspend {
                host,
                span: self.random.spread(SECOND, 30 * MINUTE),
            },
            11 => Action::Down {
                host,
                span: self.random.spread(MILLISECOND, 3 * MINUTE),
            },
            12 => Action::PrivateKey {
                host,
                gap: self.random.spread(MILLISECOND, 20 * SECOND),
            },
            13 if hosts > 2 => {
                let from = (host + 1 + self.random.index(hosts - 1)) % hosts;
                let to = (host + 1 + self.random.index(hosts - 1)) % hosts;
                let span = self.random.spread(SECOND, 3 * MINUTE);
                Action::MoveAllowed {
                    host,
                    from,
                    to,
                    span,
                }
            }
            14 => Action::Restart {
                host,
                span: self.random.spread(10 * MILLISECOND, MINUTE),
            },
            _ => Action::Load {
                host,
                span: self.random.spread(SECOND, 5 * MINUTE),
            },
        }
    }

    fn jump(&mut self) -> i64 {
        let by = self.random.spread(10 * MILLISECOND, 400 * 24 * HOUR) as i64;
        if self.random.once_in(2) { by } else { -by }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_has_one_plan() {
        let text = |seed| -> Vec<String> {
            let episode = Episode::generate(seed);
            episode.events.iter().map(ToString::to_string).collect()
        };
        assert_eq!(text(5), text(5));
        assert_ne!(text(5), text(6));
    }

    #[test]
    fn every_class_of_events_occurs() {
        let mut missing: Vec<Class> = Class::ALL.to_vec();
        for seed in 0..40 {
            let episode = Episode::generate(seed);
            assert!(episode.events.is_sorted_by_key(|event| event.at));
            for event in &episode.events {
                missing.retain(|class| *class != event.action.class());
                for host in event.action.hosts(&episode.edges) {
                    assert!(host < episode.hosts);
                }
            }
        }
        assert_eq!(missing, []);
    }
}
