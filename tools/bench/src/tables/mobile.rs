//! `mobile`: tunnels over the links of a laptop and of a telephone, and their recovery from a
//! change of address.
//!
//! These links are slow and leave the processor idle, so all contestants are measured at the same
//! time, each on a link of its own with the same random losses and delays. The machine's load is
//! measured too, and the report names runs in which it was too high.

use super::{DescribedRow, Description, Statistic};
use crate::contestant::Contestant;
use crate::emulator::Profile;
use crate::measure::cost::{Meter, SystemCalls, Usage};
use crate::measure::iperf::{self, Direction, Flow};
use crate::measure::latency;
use crate::measure::servers::Servers;
use crate::pair::Link;
use crate::results::{Better, Failure, Metric, Report, Unit};
use crate::session::Session;
use crate::side::{PORT, Side};
use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;
use taupe_lab::error::{Error, Result};
use taupe_lab::traffic;

/// Name of the table, and prefix of its metrics' keys.
pub const NAME: &str = "mobile";

/// The client's address after the change.
const NEW_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 77);

/// Time limit for the first answer after the change.
const RECOVERY: Duration = Duration::from_secs(5);

/// Largest share of processor time at which simultaneous measurements do not disturb each other.
const BUSY: f64 = 0.8;

/// Interval of datagrams that measure round trips. They load the link little, and give enough
/// samples for p99 in 2 s.
const PERIOD: Duration = Duration::from_millis(10);

/// The contestants, with their labels in this table.
const ROWS: [(&str, &str); 9] = [
    ("direct", "no tunnel"),
    ("openvpn-static-bf", "OpenVPN, static key (BF-CBC)"),
    ("openvpn-tls-aes", "OpenVPN, TLS (AES-256-GCM)"),
    ("openvpn-tls-chacha", "OpenVPN, TLS (ChaCha20-Poly1305)"),
    ("kernel", "WireGuard, in the kernel"),
    ("taupe", "Taupe"),
    ("wireguard-go", "wireguard-go"),
    ("boringtun", "boringtun"),
    ("gotatun", "gotatun"),
];

/// A kind of link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preset {
    /// [`Profile::WIFI_80211B`].
    Wifi,
    /// [`Profile::LTE`].
    Lte,
}

impl Preset {
    /// All presets in the order of the table.
    pub const ALL: [Self; 2] = [Self::Wifi, Self::Lte];

    /// Returns the name for keys of metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wifi => "802.11b",
            Self::Lte => "lte",
        }
    }

    const fn title(self) -> &'static str {
        match self {
            Self::Wifi => "802.11b",
            Self::Lte => "LTE",
        }
    }

    const fn profile(self) -> Profile {
        match self {
            Self::Wifi => Profile::WIFI_80211B,
            Self::Lte => Profile::LTE,
        }
    }

    /// Throughput of one TCP stream from the server to the client.
    pub fn down(self) -> Metric {
        self.metric("down", "down", Unit::BitsPerSecond, Better::Higher)
    }

    /// Throughput of one TCP stream from the client to the server.
    pub fn up(self) -> Metric {
        self.metric("up", "up", Unit::BitsPerSecond, Better::Higher)
    }

    /// Round trips while these streams flow.
    pub fn latency(self) -> Metric {
        self.metric("p99", "p99 under load", Unit::Seconds, Better::Lower)
    }

    /// Time from a change of the client's address to the next answered ping.
    pub fn recovery(self) -> Metric {
        let title = "new address to answer";
        self.metric("recovery", title, Unit::Seconds, Better::Lower)
    }

    fn metric(self, key: &str, title: &str, unit: Unit, better: Better) -> Metric {
        Metric::new(
            self.key(key),
            format!("{}: {title}", self.title()),
            unit,
            better,
        )
    }

    fn key(self, key: &str) -> String {
        format!("{NAME}/{}/{key}", self.name())
    }
}

/// Returns the table's description.
pub fn description() -> Description {
    let columns = |preset: Preset| {
        let metrics = [Preset::down, Preset::up, Preset::latency, Preset::recovery];
        metrics.map(|metric| metric(preset))
    };
    Description {
        name: NAME,
        title: "Links of a portable computer and of a telephone, medians",
        source: "announced by the author of the comparison of 2018, never published",
        columns: Preset::ALL.map(columns).concat(),
        rows: ROWS
            .map(|(id, label)| DescribedRow::new(label, Some(id), &[]))
            .to_vec(),
        statistic: Statistic::Median,
        differences: [
            "Nothing was published, so the links are this laboratory's choice. 802.11b: \
             5 Mbit/s, 4 ± 3 ms and 2 % loss each way. LTE: 30 Mbit/s down, 10 up, 45 ± 15 ms \
             and 0.5 % loss each way, so that a round trip takes 60 to 120 ms. The bottleneck \
             has a queue of 100 ms, or 64 KiB where that is more.",
            "The links are emulated in user space. Both directions of 802.11b have the whole \
             rate; in truth they share the air.",
            "Each transfer is one TCP stream of 3 s with cubic as its congestion control, its slow \
             beginning included.",
            "With loss, the throughput of TCP on such a link differs much from one transfer to \
             the next: one round, as in the short run, is not enough for a ranking.",
            "Round trips are those of a datagram of 64 bytes every 10 ms, while one TCP stream \
             flows down, then up. Lost ones are left out.",
            "Recovery begins when the client has another address on the same interface and \
             ends with the first answer to a ping, which is sent every 10 ms; 5 s are waited \
             for it. Without a tunnel there is nothing to recover: connections end with the \
             address they were made from.",
            "boringtun, started as it is by default, connects a socket to its peer and goes on \
             sending from the lost address: it does not recover. With --disable-connected-udp it \
             does.",
            "All contestants of a link are measured at once, each on a link of its own with the \
             same losses and delays. A note says where the machine was more than 80 % busy \
             meanwhile, which makes them wait for one another.",
        ]
        .map(str::to_owned)
        .to_vec(),
    }
}

/// Measures all contestants that have a row in the table, at the same time, on links with the same
/// seed. TCP flows down for `seconds` and up for as long; the rest takes 5 s more, and another 5 s
/// if a contestant does not recover.
///
/// The report's failures list failed measurements.
pub fn measure(
    preset: Preset,
    contestants: &[&dyn Contestant],
    seconds: u32,
    seed: u64,
    report: &mut Report,
) {
    let takes_part = |contestant: &&&dyn Contestant| {
        let mut rows = ROWS.iter();
        rows.any(|(id, _)| *id == contestant.id())
    };
    let contestants: Vec<_> = contestants.iter().filter(takes_part).copied().collect();
    let link = Link::Emulated(Profile {
        seed,
        ..preset.profile()
    });
    let started = in_parallel(contestants, |contestant| {
        let name = format!("{NAME}-{}-{}", preset.name(), contestant.id());
        (contestant.id(), Session::start(contestant, &name, &link))
    });
    let mut sessions = Vec::new();
    for (id, session) in started {
        match session {
            Ok(session) => sessions.push((id, session)),
            Err(error) => fail(report, preset.key("start"), id, &error),
        }
    }
    let measured = in_parallel(sessions, |(id, session)| {
        (id, measure_one(preset, &session, seconds))
    });
    for (id, found) in measured {
        for (metric, sample) in found.samples {
            match sample {
                Ok(sample) => report.record(id, &metric, sample),
                Err(error) => fail(report, metric.key, id, &error),
            }
        }
        if let Err(error) = found.undisturbed {
            fail(report, preset.key("load"), id, &error);
        }
    }
}

fn fail(report: &mut Report, what: String, contestant: &str, error: &Error) {
    report.failures.push(Failure {
        what,
        contestant: contestant.to_owned(),
        reason: error.one_line(),
    });
}

/// Runs `work` on every item at the same time.
fn in_parallel<A: Send, T: Send>(items: Vec<A>, work: impl Fn(A) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = items
            .into_iter()
            .map(|item| scope.spawn(move || work(item)))
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, T>| {
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// Results of one contestant.
struct Found {
    samples: Vec<(Metric, Result<f64>)>,
    /// An error if the other contestants or other load may have disturbed the measurement.
    undisturbed: Result<()>,
}

fn measure_one(preset: Preset, session: &Session, seconds: u32) -> Found {
    let mut servers = Servers::new(session);
    let mut transfer = |direction| {
        let flow = Flow {
            direction,
            streams: 1,
            seconds,
        };
        iperf::transfer(session, &mut servers, flow).map(|found| found.rate())
    };
    let meter = Meter::start(session, SystemCalls::Ignore);
    let found = latency::during(session, PERIOD, || {
        (transfer(Direction::Down), transfer(Direction::Up))
    });
    let (times, (down, up)) = match found {
        Ok(found) => found,
        Err(error) => {
            return Found {
                samples: vec![(preset.latency(), Err(error))],
                undisturbed: Ok(()),
            };
        }
    };
    let undisturbed = meter.and_then(Meter::stop).and_then(idle_enough);
    let too_few = || Error::unmet("too few datagrams came back");
    let latency = times.quantile_of_answered(0.99).ok_or_else(too_few);
    let mut samples = vec![
        (preset.down(), down),
        (preset.up(), up),
        (preset.latency(), latency),
    ];
    if session.target() != session.pair.outer() {
        samples.push((preset.recovery(), recover(session)));
    }
    Found {
        samples,
        undisturbed,
    }
}

/// Checks that the machine had processor time to spare.
fn idle_enough(usage: Usage) -> Result<()> {
    let [.., idle] = usage
        .shares()
        .ok_or_else(|| Error::unmet("the machine's load is unknown"))?;
    let busy = (1.0 - idle) * 100.0;
    if idle < 1.0 - BUSY {
        let reason = format!("the machine was {busy:.0} % busy meanwhile");
        return Err(Error::unmet(reason));
    }
    Ok(())
}

/// Changes the client's address, as when a telephone changes networks; returns the seconds until a
/// ping is answered.
fn recover(session: &Session) -> Result<f64> {
    let change = format!(
        "address delete {}/24 dev {PORT}\naddress add {NEW_ADDRESS}/24 dev {PORT}\n",
        Side::Client.outer()
    );
    let client = &session.pair.client;
    client.run_with_input(&["ip", "-batch", "-"], &change)?;
    let took = traffic::first_answer(client, session.target(), RECOVERY)?;
    Ok(took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contestant;

    #[test]
    fn rows_are_of_contestants() {
        for (id, _) in ROWS {
            assert!(contestant::find(id).is_some(), "{id}");
        }
    }

    #[test]
    fn keys_begin_with_the_name() {
        let columns = description().columns;
        assert_eq!(columns.len(), 8);
        for column in columns {
            assert!(column.key.starts_with("mobile/"), "{}", column.key);
        }
    }
}
