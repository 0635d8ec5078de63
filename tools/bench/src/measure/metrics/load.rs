//! Metrics of saturated machines: busy cores, order of packets, gateways, numbers of workers, and
//! round trips beside streams.

use super::Sample;
use crate::measure::iperf::{Direction, Flow};
use crate::measure::latency::Loaded;
use crate::measure::load::Load;
use crate::pair::Link;
use crate::results::{Better, Metric, Unit};

/// Transfers whose load is reported. `key` and `title` begin the keys and titles of their metrics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadSubject {
    key: String,
    title: String,
    /// Key of the same transfers without a tunnel.
    reference: String,
}

impl LoadSubject {
    /// Returns the subject of a transfer: `tcp/4/up`.
    pub fn of_flow(flow: Flow) -> Self {
        let way = flow.direction.name();
        let key = format!("tcp/{}/{way}", flow.streams);
        Self {
            reference: key.clone(),
            key,
            title: match flow.streams {
                1 => format!("TCP {way}"),
                streams => format!("TCP {way}, {streams} streams"),
            },
        }
    }

    /// Returns the subject of a gateway with this number of clients: `gateway/4/up`.
    pub fn of_gateway(clients: usize, direction: Direction) -> Self {
        let way = direction.name();
        let key = format!("gateway/{clients}/{way}");
        Self {
            reference: key.clone(),
            key,
            title: match clients {
                1 => format!("1 client: TCP {way}"),
                _ => format!("{clients} clients: TCP {way}"),
            },
        }
    }

    /// Returns the subject of a number of workers: `workers/4/up`, or `workers/default/up` for a
    /// contestant without such a setting.
    pub fn of_workers(count: Option<usize>, direction: Direction) -> Self {
        let way = direction.name();
        let default = format!("workers/default/{way}");
        Self {
            key: match count {
                Some(count) => format!("workers/{count}/{way}"),
                None => default.clone(),
            },
            title: match count {
                Some(1) => format!("1 worker: TCP {way}"),
                Some(count) => format!("{count} workers: TCP {way}"),
                None => format!("workers not set: TCP {way}"),
            },
            reference: default,
        }
    }

    /// Returns the key of the throughput.
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Returns the key of the busy cores of the same transfers without a tunnel.
    pub fn reference_key(&self) -> String {
        format!("{}/cores", self.reference)
    }

    /// Returns the throughput, whose key is the subject's, and `…/retransmits`.
    pub fn throughput(&self, load: &Load) -> Vec<Sample> {
        let (key, title) = (&*self.key, &*self.title);
        let rate = Metric::new(key, title, Unit::BitsPerSecond, Better::Higher);
        let retransmits = load.retransmits.map(|count| {
            let metric = self.metric("retransmits", "retransmits", Unit::Count);
            (metric, count as f64)
        });
        [(rate, load.rate)].into_iter().chain(retransmits).collect()
    }

    /// Returns these metrics:
    ///
    /// - `…/cores`: busy cores of the machine;
    /// - `…/cores-per-gbit`: busy cores beyond those without a tunnel, per Gbit/s;
    /// - `…/early`, `…/reorderings` and `…/duplicates`: order of packets.
    pub fn load(&self, load: &Load, cores_without_tunnel: Option<f64>) -> Vec<Sample> {
        let cores = load.usage.busy_cores();
        let busy = cores.map(|cores| (self.metric("cores", "busy", Unit::Cores), cores));
        let beyond = cores.zip(cores_without_tunnel);
        let beyond = beyond.filter(|_| load.rate > 0.0).map(|(cores, without)| {
            let metric = self.metric("cores-per-gbit", "cost", Unit::CoresPerGigabit);
            (metric, (cores - without) / (load.rate / 1e9))
        });
        let order = [
            ("early", "early", load.order.early),
            ("reorderings", "reorderings", load.order.reorderings),
            ("duplicates", "duplicates", load.order.duplicates),
        ];
        let order =
            order.map(|(what, words, count)| (self.metric(what, words, Unit::Count), count as f64));
        busy.into_iter().chain(beyond).chain(order).collect()
    }

    fn metric(&self, what: &str, words: &str, unit: Unit) -> Metric {
        let key = format!("{}/{what}", self.key);
        Metric::new(key, format!("{}: {words}", self.title), unit, Better::Lower)
    }
}

/// Returns the key of the round trips beside streams: `beside/100mbit/4`.
pub fn beside_key(link: &Link, streams: u32) -> String {
    format!("beside/{link}/{streams}")
}

/// Returns the round trips beside streams: `beside/100mbit/4/p50`, `…/p99` and `…/lost`. Also
/// returns `beside/100mbit/4/tcp`, the throughput of the streams meanwhile.
pub fn beside(link: &Link, streams: u32, found: &Loaded) -> Vec<Sample> {
    let key = beside_key(link, streams);
    let words = match streams {
        1 => "beside 1 stream".to_owned(),
        _ => format!("beside {streams} streams"),
    };
    let title = match link {
        Link::Cable => words,
        link => format!("{words}, {link}"),
    };
    let round_trips = &found.round_trips;
    let quantiles = [("p50", 0.5), ("p99", 0.99)];
    let quantiles = quantiles.into_iter().filter_map(|(name, share)| {
        let (key, title) = (format!("{key}/{name}"), format!("{title}: {name}"));
        let metric = Metric::new(key, title, Unit::Seconds, Better::Lower);
        Some((metric, round_trips.quantile(share)?))
    });
    let of = |what: &str, words: &str, unit, better| {
        Metric::new(
            format!("{key}/{what}"),
            format!("{title}: {words}"),
            unit,
            better,
        )
    };
    let lost = of("lost", "lost", Unit::Share, Better::Lower);
    let rate = of("tcp", "TCP up", Unit::BitsPerSecond, Better::Higher);
    let others = [(lost, round_trips.loss()), (rate, found.load.rate())];
    quantiles.chain(others).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::cost::Usage;
    use crate::measure::iperf::{DirectionResult, Transfer};
    use crate::measure::latency::RoundTrips;
    use crate::measure::order::OrderEvents;

    fn load(rate: f64) -> Load {
        Load {
            rate,
            retransmits: Some(7),
            usage: Usage {
                seconds: 2.0,
                user: 4.0,
                system: 8.0,
                idle: 20.0,
                switches: 0,
                programs: None,
                system_calls: None,
            },
            order: OrderEvents {
                early: 1,
                reorderings: 2,
                duplicates: 3,
            },
        }
    }

    fn values(samples: &[Sample]) -> Vec<(&str, f64)> {
        let values = samples.iter();
        values
            .map(|(metric, value)| (&*metric.key, *value))
            .collect()
    }

    #[test]
    fn cores_are_those_beyond_the_run_without_a_tunnel() {
        let subject = LoadSubject::of_gateway(4, Direction::Down);
        let samples = subject.load(&load(8e9), Some(2.0));
        let expected = [
            ("gateway/4/down/cores", 6.0),
            ("gateway/4/down/cores-per-gbit", 0.5),
            ("gateway/4/down/early", 1.0),
            ("gateway/4/down/reorderings", 2.0),
            ("gateway/4/down/duplicates", 3.0),
        ];
        assert_eq!(values(&samples), expected);
        assert_eq!(subject.reference_key(), "gateway/4/down/cores");
        // Without the run that has no tunnel, or without traffic, the ratio is unknown.
        for (rate, without) in [(8e9, None), (0.0, Some(2.0))] {
            let samples = subject.load(&load(rate), without);
            let known = samples
                .iter()
                .any(|(metric, _)| metric.key.ends_with("gbit"));
            assert!(!known, "{samples:?}");
        }
        let throughput = subject.throughput(&load(8e9));
        let expected = [("gateway/4/down", 8e9), ("gateway/4/down/retransmits", 7.0)];
        assert_eq!(values(&throughput), expected);
    }

    #[test]
    fn all_numbers_of_workers_have_one_reference() {
        let four = LoadSubject::of_workers(Some(4), Direction::Up);
        let unset = LoadSubject::of_workers(None, Direction::Up);
        assert_eq!(
            (four.key(), unset.key()),
            ("workers/4/up", "workers/default/up")
        );
        assert_eq!(four.reference_key(), "workers/default/up/cores");
        assert_eq!(unset.reference_key(), four.reference_key());
    }

    #[test]
    fn round_trips_beside_streams_have_the_link_in_their_keys() -> Result<(), String> {
        let way = DirectionResult {
            rate: 9e7,
            bytes: 1,
            seconds: 1.0,
            retransmits: None,
        };
        let found = Loaded {
            round_trips: RoundTrips {
                answered: vec![0.002; 200],
                lost: 0,
            },
            load: Transfer {
                up: Some(way),
                down: None,
            },
        };
        let samples = beside(&"100mbit".parse()?, 4, &found);
        let expected = [
            ("beside/100mbit/4/p50", 0.002),
            ("beside/100mbit/4/p99", 0.002),
            ("beside/100mbit/4/lost", 0.0),
            ("beside/100mbit/4/tcp", 9e7),
        ];
        assert_eq!(values(&samples), expected);
        assert_eq!(samples[0].0.title, "beside 4 streams, 100mbit: p50");
        let samples = beside(&Link::Cable, 1, &found);
        assert_eq!(samples[0].0.title, "beside 1 stream: p50");
        Ok(())
    }
}
