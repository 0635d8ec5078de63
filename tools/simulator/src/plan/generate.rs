//! Generates the plan of a seed.

use super::{
    Action, Edge, Episode, HOUR, Hostile, MILLISECOND, MINUTE, Nanos, Pattern, Planned, Quality,
    SECOND,
};
use crate::random::Random;

/// Generates the episode of a seed, without hybrid handshakes.
pub(super) fn episode(seed: u64) -> Episode {
    let mut generator = Generator {
        random: Random::new(seed, 1),
    };
    generator.episode(seed)
}

struct Generator {
    random: Random,
}

impl Generator {
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
            long_delay: some(4, 60) as u16,
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
                keep_timestamps: !self.random.once_in(3),
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

/// Returns times at a mean distance of `every`.
pub(super) fn times(random: &mut Random, duration: Nanos, every: Nanos) -> Vec<Nanos> {
    let mut times = Vec::new();
    let mut at = random.below(every);
    while at < duration {
        times.push(at);
        at += random.between(every / 10, 2 * every - every / 10);
    }
    times
}
