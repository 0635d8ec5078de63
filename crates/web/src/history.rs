//! Rates of tunnels and peers in the last two minutes, from the counters of each reading.

use crate::facts::{Facts, Times};
use crate::text::Text;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Time that plots show.
pub(crate) const WINDOW: Duration = Duration::from_secs(120);

/// Longest time between two readings that belong together. The state is not read while no window shows
/// the page; the average over such a time is no current rate.
const MAX_GAP: Duration = Duration::from_secs(5);

/// Readings of a series, at most: there is one a second.
const MAX_SAMPLES: usize = 130;

/// The rate between two readings, in bits per second.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(crate) struct Rate {
    pub(crate) received: f64,
    pub(crate) sent: f64,
}

/// A rate, and the time since its second reading.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Sample {
    pub(crate) age: Duration,
    pub(crate) rate: Rate,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Tunnel,
    Peer,
}

/// Counters of one tunnel or peer.
#[derive(Default)]
struct Series {
    /// Total bytes at the last reading: received, sent.
    totals: [u64; 2],
    /// Time of the last reading. `None` before the first one.
    at: Option<Instant>,
    rates: VecDeque<(Instant, Rate)>,
}

impl Series {
    fn add(&mut self, now: Instant, totals: [u64; 2]) {
        if let Some(before) = self.at {
            let seconds = now.saturating_duration_since(before).as_secs_f64();
            let [received, sent] = [0, 1].map(|at| {
                // A counter that begins again has no rate.
                let [new, old] = [totals, self.totals].map(|it| it.get(at).copied().unwrap_or(0));
                if seconds > 0.0 {
                    new.saturating_sub(old) as f64 * 8.0 / seconds
                } else {
                    0.0
                }
            });
            self.rates.push_back((now, Rate { received, sent }));
        }
        (self.at, self.totals) = (Some(now), totals);
        let is_old = |at: &Instant| now.saturating_duration_since(*at) > WINDOW;
        while self.rates.front().is_some_and(|(at, _)| is_old(at)) || self.rates.len() > MAX_SAMPLES
        {
            self.rates.pop_front();
        }
    }
}

/// The rates of all tunnels and peers.
#[derive(Default)]
pub(crate) struct History {
    series: HashMap<(Kind, Text, Text), Series>,
    waits: HashMap<Text, VecDeque<(Instant, Times)>>,
    now: Option<Instant>,
}

impl History {
    /// Adds a reading. Removes tunnels and peers that are gone, and peers that the page does not show.
    ///
    /// After a gap all series begin again.
    pub(crate) fn add(&mut self, facts: &Facts, now: Instant) {
        let before = self.now.replace(now);
        if before.is_some_and(|at| now.saturating_duration_since(at) > MAX_GAP) {
            self.series.clear();
            self.waits.clear();
        }
        for tunnel in &facts.status.tunnels {
            let sum = |of: fn(&crate::facts::Peer) -> u64| {
                tunnel.peers.iter().map(of).fold(0, u64::saturating_add)
            };
            let totals = [sum(|it| it.received_bytes), sum(|it| it.sent_bytes)];
            self.add_to(
                Kind::Tunnel,
                &tunnel.interface,
                &tunnel.interface,
                totals,
                now,
            );
        }
        for tunnel in &facts.status.tunnels {
            for peer in tunnel.shown_peers() {
                let totals = [peer.received_bytes, peer.sent_bytes];
                self.add_to(Kind::Peer, &tunnel.interface, &peer.public_key, totals, now);
            }
        }
        self.series.retain(|_, series| series.at == Some(now));
        for device in &facts.devices {
            let Some(waits) = &device.waits else { continue };
            let known = self.waits.entry(device.interface.clone()).or_default();
            known.push_back((now, waits.clone()));
            while known.len() > MAX_SAMPLES
                || known
                    .front()
                    .is_some_and(|(at, _)| now.saturating_duration_since(*at) > WINDOW)
            {
                known.pop_front();
            }
        }
        self.waits
            .retain(|_, known| known.back().is_some_and(|(at, _)| *at == now));
    }

    fn add_to(&mut self, kind: Kind, tunnel: &Text, name: &Text, totals: [u64; 2], now: Instant) {
        let key = (kind, tunnel.clone(), name.clone());
        self.series.entry(key).or_default().add(now, totals);
    }

    /// Returns the rates of a tunnel, the oldest first.
    pub(crate) fn of_tunnel(&self, tunnel: &Text) -> Vec<Sample> {
        self.samples(Kind::Tunnel, tunnel, tunnel)
    }

    /// Returns the rates of a peer, the oldest first.
    pub(crate) fn of_peer(&self, tunnel: &Text, key: &Text) -> Vec<Sample> {
        self.samples(Kind::Peer, tunnel, key)
    }

    fn samples(&self, kind: Kind, tunnel: &Text, name: &Text) -> Vec<Sample> {
        let series = self.series.get(&(kind, tunnel.clone(), name.clone()));
        let rates = series.into_iter().flat_map(|it| &it.rates);
        let now = self.now;
        let sample = |(at, rate): &(Instant, Rate)| Sample {
            age: now.unwrap_or(*at).saturating_duration_since(*at),
            rate: *rate,
        };
        rates.map(sample).collect()
    }

    /// Returns the waits in the last two minutes, or since the first reading.
    pub(crate) fn recent_waits(&self, tunnel: &Text) -> Option<Times> {
        let known = self.waits.get(tunnel)?;
        let (first, last) = (&known.front()?.1, &known.back()?.1);
        let counts = last.counts.iter().zip(&first.counts);
        Some(Times {
            bounds: last.bounds.clone(),
            counts: counts.map(|(new, old)| new.saturating_sub(*old)).collect(),
            seconds: (last.seconds - first.seconds).max(0.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Device, MAX_PEERS, Peer, Status, Tunnel};

    fn facts(received_bytes: u64, sent_bytes: u64) -> Facts {
        let peer = Peer {
            public_key: Text::of("key"),
            received_bytes,
            sent_bytes,
            ..Peer::default()
        };
        let tunnel = Tunnel {
            interface: Text::of("home"),
            peers: vec![peer],
            ..Tunnel::default()
        };
        Facts {
            status: Status {
                tunnels: vec![tunnel],
            },
            ..Facts::default()
        }
    }

    #[test]
    fn rates_are_bits_per_second_between_readings() {
        let (mut history, start) = (History::default(), Instant::now());
        let home = Text::of("home");
        history.add(&facts(1000, 0), start);
        assert!(history.of_tunnel(&home).is_empty());
        history.add(&facts(3000, 250), start + Duration::from_secs(2));
        // A tunnel that is up again counts from 0.
        history.add(&facts(10, 350), start + Duration::from_secs(3));
        let rate = |received, sent| Rate { received, sent };
        let expected =
            [(1, rate(8000.0, 1000.0)), (0, rate(0.0, 800.0))].map(|(age, rate)| Sample {
                age: Duration::from_secs(age),
                rate,
            });
        assert_eq!(history.of_tunnel(&home), expected);
        assert_eq!(history.of_peer(&home, &Text::of("key")), expected);
    }

    #[test]
    fn the_window_is_short_and_series_of_removed_tunnels_end() {
        let (mut history, start) = (History::default(), Instant::now());
        for second in 0..1000 {
            history.add(&facts(second, 0), start + Duration::from_secs(second));
        }
        let samples = history.of_tunnel(&Text::of("home"));
        assert_eq!(samples.len(), 121);
        assert!(samples.iter().all(|it| it.age <= WINDOW));
        history.add(&Facts::default(), start + Duration::from_secs(1000));
        assert!(history.series.is_empty());
    }

    #[test]
    fn after_a_gap_there_is_no_rate() {
        let (mut history, start) = (History::default(), Instant::now());
        let home = Text::of("home");
        history.add(&facts(0, 0), start);
        history.add(&facts(1000, 0), start + MAX_GAP);
        assert_eq!(history.of_tunnel(&home).len(), 1);
        let hours = start + Duration::from_secs(10_000);
        history.add(&facts(1_000_000, 0), hours);
        assert!(history.of_tunnel(&home).is_empty());
        history.add(&facts(1_000_125, 0), hours + Duration::from_secs(1));
        let rates: Vec<_> = history
            .of_tunnel(&home)
            .iter()
            .map(|it| it.rate.received)
            .collect();
        assert_eq!(rates, [1000.0]);
    }

    #[test]
    fn many_peers_take_no_place_of_a_later_tunnel() {
        let mut many = facts(0, 0);
        for tunnel in &mut many.status.tunnels {
            tunnel.peers = (0..10_000)
                .map(|number| Peer {
                    public_key: Text::of(&number.to_string()),
                    latest_handshake: Some(number),
                    ..Peer::default()
                })
                .collect();
        }
        let mut later = facts(0, 0);
        for tunnel in &mut later.status.tunnels {
            tunnel.interface = Text::of("later");
        }
        many.status.tunnels.append(&mut later.status.tunnels);
        let (mut history, start) = (History::default(), Instant::now());
        for second in 0..2 {
            history.add(&many, start + Duration::from_secs(second));
        }
        // Two tunnels, the peers that the page shows, and the peer of the later tunnel.
        assert_eq!(history.series.len(), 2 + MAX_PEERS + 1);
        assert_eq!(history.of_tunnel(&Text::of("later")).len(), 1);
        let home = Text::of("home");
        assert_eq!(history.of_peer(&home, &Text::of("9999")).len(), 1);
    }

    #[test]
    fn recent_waits_are_the_difference_of_counters() {
        let (mut history, start) = (History::default(), Instant::now());
        let device = |counts: [u64; 2], seconds| Facts {
            devices: vec![Device {
                interface: Text::of("home"),
                waits: Some(Times {
                    bounds: vec![0.1],
                    counts: counts.into(),
                    seconds,
                }),
                ..Device::default()
            }],
            ..Facts::default()
        };
        history.add(&device([5, 1], 1.0), start);
        history.add(&device([7, 1], 1.5), start + Duration::from_secs(1));
        let recent = history.recent_waits(&Text::of("home")).expect("known");
        assert_eq!((recent.counts, recent.seconds), (vec![2, 0], 0.5));
    }
}
