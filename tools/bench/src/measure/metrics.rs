//! Turns measurements into metrics and samples.
//!
//! Keys of one kind share a prefix: `tcp/STREAMS/DIRECTION`, `udp/SIZE/rate`, `udp/SIZE/gso/rate`,
//! `qperf/TEST`, `latency/STATE/QUANTILE`, `beside/LINK/STREAMS/…`, `cost/…`, `memory/…`,
//! `command/NAME`, `peers/COUNT/…`, `gateway/CLIENTS/DIRECTION`, `workers/COUNT/DIRECTION`, `flood/KIND/DIRECTION`.

mod load;

pub use load::{LoadSubject, beside, beside_key};

use super::commands::CommandsFound;
use super::cost::Usage;
use super::flood::{FloodKind, FloodedTransfer};
use super::iperf::{Direction, Flow, Transfer};
use super::latency::RoundTrips;
use super::memory::{Growth, Memory};
use super::packets::{Outcome, SendMode};
use super::peers::Peers;
use super::qperf::Test;
use super::stages::Stages;
use crate::results::{Better, Metric, Unit};

/// A metric and a sample of it.
pub type Sample = (Metric, f64);

/// Time from the start of the client's program to the first answered ping.
pub fn startup() -> Metric {
    let title = "start to first answer";
    Metric::new("startup", title, Unit::Seconds, Better::Lower)
}

/// `tcp/4/up` and `tcp/4/up/retransmits`. For both directions at once: the sum, and `tcp/4/both/up`
/// and `tcp/4/both/down` for each direction.
pub fn transfer(flow: Flow, found: &Transfer) -> Vec<Sample> {
    let way = flow.direction.name();
    let key = format!("tcp/{}/{way}", flow.streams);
    let title = match flow.streams {
        1 => format!("TCP {way}"),
        streams => format!("TCP {way}, {streams} streams"),
    };
    let rate =
        |key: String, title: String| Metric::new(key, title, Unit::BitsPerSecond, Better::Higher);
    let mut samples = vec![(rate(key.clone(), title.clone()), found.rate())];
    if let (Some(up), Some(down)) = (found.up, found.down) {
        for (each, of) in [("up", up), ("down", down)] {
            let metric = rate(format!("{key}/{each}"), format!("{title}: {each}"));
            samples.push((metric, of.rate));
        }
    }
    if let Some(retransmits) = found.retransmits() {
        let metric = Metric::new(
            format!("{key}/retransmits"),
            format!("{title}: retransmits"),
            Unit::Count,
            Better::Lower,
        );
        samples.push((metric, retransmits as f64));
    }
    samples
}

/// `qperf/tcp_bw`, `qperf/tcp_lat`, `qperf/udp_lat`.
pub fn qperf(test: Test) -> Metric {
    let key = format!("qperf/{}", test.name());
    let title = match test {
        Test::TcpBandwidth => "qperf tcp_bw".to_owned(),
        Test::TcpLatency | Test::UdpLatency => format!("qperf {}: one way", test.name()),
    };
    match test {
        Test::TcpBandwidth => Metric::new(key, title, Unit::BitsPerSecond, Better::Higher),
        Test::TcpLatency | Test::UdpLatency => {
            Metric::new(key, title, Unit::Seconds, Better::Lower)
        }
    }
}

/// Load on a tunnel while round trips are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// No load.
    Idle,
    /// One TCP stream at full speed.
    Loaded,
}

impl State {
    /// Returns the key of the [`Distribution`](crate::results::Distribution).
    pub const fn key(self) -> &'static str {
        match self {
            Self::Idle => "latency/idle",
            Self::Loaded => "latency/loaded",
        }
    }
}

/// `latency/idle/p50`, `…/p99`, `…/p99.9`, if there were enough answers, and `latency/idle/lost`, a
/// share.
pub fn latency(state: State, found: &RoundTrips) -> Vec<Sample> {
    let key = state.key();
    let title = match state {
        State::Idle => "round trip, idle",
        State::Loaded => "round trip, under load",
    };
    let quantiles = [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999)];
    let mut samples: Vec<_> = quantiles
        .into_iter()
        .filter_map(|(name, share)| {
            let (key, title) = (format!("{key}/{name}"), format!("{title}: {name}"));
            let metric = Metric::new(key, title, Unit::Seconds, Better::Lower);
            Some((metric, found.quantile(share)?))
        })
        .collect();
    let (key, title) = (format!("{key}/lost"), format!("{title}: lost"));
    let lost = Metric::new(key, title, Unit::Share, Better::Lower);
    samples.push((lost, found.loss()));
    samples
}

/// `command/up`, a sample of each run, and `command/up/p90`, for each command; `command/load`, the number
/// of runnable processes before.
pub fn commands(found: &CommandsFound) -> Vec<Sample> {
    let seconds = |key, title| Metric::new(key, title, Unit::Seconds, Better::Lower);
    let mut samples = Vec::new();
    for command in &found.commands {
        let (key, title) = (
            format!("command/{}", command.name),
            format!("taupe {}", command.name.replace('-', " ")),
        );
        let p90 = seconds(format!("{key}/p90"), format!("{title}: p90"));
        let metric = seconds(key, title);
        let runs = command.seconds.iter();
        samples.extend(runs.map(|took| (metric.clone(), *took)));
        samples.extend(command.p90().map(|took| (p90, took)));
    }
    let title = "runnable processes before the commands";
    let load = Metric::new("command/load", title, Unit::Count, Better::Lower);
    samples.push((load, found.load));
    samples
}

/// `connect/p50`: the median time to open a connection.
pub fn connections(found: &RoundTrips) -> Vec<Sample> {
    let title = "setting up a connection: p50";
    let metric = Metric::new("connect/p50", title, Unit::Seconds, Better::Lower);
    let median = found.quantile(0.5);
    median.map(|median| (metric, median)).into_iter().collect()
}

/// `udp/64/rate`, the greatest rate with acceptable loss, if one was found; `udp/64/offered`, the
/// rate sent in that trial; `udp/64/lost`, its share of lost packets, or the least of any trial;
/// `udp/64/limit/sender` and `udp/64/limit/receiver`, 1 if the sender or the receiver was the limit
/// and not the tunnel, otherwise 0. With messages that the kernel splits, `udp/64/gso/rate` and so
/// on.
pub fn packets(size: u16, mode: SendMode, found: &Outcome) -> Vec<Sample> {
    let (key, title) = match mode {
        SendMode::Each => (format!("udp/{size}"), format!("packets of {size} B")),
        SendMode::Segmented => (
            format!("udp/{size}/gso"),
            format!("packets of {size} B, cut by the kernel"),
        ),
    };
    let metric =
        |what, title, unit, better| Metric::new(format!("{key}/{what}"), title, unit, better);
    let share = |what, word| metric(what, format!("{title}: {word}"), Unit::Share, Better::Lower);
    let per_second = |what, title| metric(what, title, Unit::PacketsPerSecond, Better::Higher);
    let mut samples = match &found.best {
        Some(best) => vec![
            (per_second("rate", title.clone()), best.rate),
            (
                per_second("offered", format!("{title}: offered")),
                best.offered,
            ),
            (share("lost", "lost"), best.loss()),
        ],
        None => vec![(share("lost", "lost"), found.least_loss())],
    };
    let flag = |is| if is { 1.0 } else { 0.0 };
    samples.extend([
        (
            share("limit/sender", "limited by sender"),
            flag(found.limited_by_sender),
        ),
        (
            share("limit/receiver", "limited by receiver"),
            flag(found.limited_by_receiver()),
        ),
    ]);
    samples
}

/// Costs per 10⁹ bytes of payload, of which `bytes` were moved: `cost/cpu/total`, its parts
/// `cost/cpu/user` and `cost/cpu/system`, and `cost/switches` of the whole machine;
/// `cost/programs/user`, `cost/programs/system`, `cost/programs/switches` of the tunnel's programs.
///
/// Empty if system calls were counted meanwhile, because this distorts the figures.
pub fn cost(found: &Usage, bytes: u64) -> Vec<Sample> {
    if found.system_calls.is_some() {
        return Vec::new();
    }
    let mut samples = vec![
        seconds("cost/cpu/total", "CPU", found.user + found.system),
        seconds("cost/cpu/user", "CPU, user", found.user),
        seconds("cost/cpu/system", "CPU, system", found.system),
        count("cost/switches", "context switches", found.switches),
    ];
    if let Some(programs) = found.programs {
        samples.extend([
            seconds("cost/programs/user", "programs, user", programs.user),
            seconds("cost/programs/system", "programs, system", programs.system),
            count(
                "cost/programs/switches",
                "programs, context switches",
                programs.switches,
            ),
        ]);
    }
    per_gigabyte(samples, bytes)
}

/// System calls per 10⁹ bytes of payload, of which `bytes` were moved: `cost/syscalls` of the whole
/// machine, `cost/programs/syscalls` of the tunnel's programs, `cost/programs/syscalls/up` of their
/// threads that process upstream traffic. Empty if they were not counted.
pub fn system_calls(found: &Usage, bytes: u64) -> Vec<Sample> {
    let Some(calls) = found.system_calls else {
        return Vec::new();
    };
    let mut samples = vec![count("cost/syscalls", "system calls", calls.machine)];
    if let Some(programs) = calls.programs {
        samples.push(count(
            "cost/programs/syscalls",
            "programs, system calls",
            programs,
        ));
    }
    if let Some(upwards) = calls.upwards {
        samples.push(count(
            "cost/programs/syscalls/up",
            "programs, system calls of the way up",
            upwards,
        ));
    }
    per_gigabyte(samples, bytes)
}

/// `memory/resident` and `memory/peak`, of both sides' programs together.
pub fn memory(found: &Memory) -> Vec<Sample> {
    let [client, server] = [found.client, found.server];
    let bytes = |key: &str, title: &str| Metric::new(key, title, Unit::Bytes, Better::Lower);
    vec![
        (
            bytes("memory/resident", "memory"),
            client.now as f64 + server.now as f64,
        ),
        (
            bytes("memory/peak", "memory, most ever"),
            client.peak as f64 + server.peak as f64,
        ),
    ]
}

/// Processor time per packet of a full batch: `stages/split`, `stages/seal`, `stages/send`,
/// `stages/receive`, `stages/open`, `stages/merge`; `stages/out/user`, `stages/out/system`,
/// `stages/in/user` and `stages/in/system` for the whole threads. `stages/rate` is the throughput
/// meanwhile.
pub fn stages(found: &Stages) -> Vec<Sample> {
    let (out, into) = (found.out, found.into);
    let each = [
        ("split", "split", found.split),
        ("seal", "seal", found.seal),
        ("send", "send", found.send),
        ("receive", "receive", found.receive),
        ("open", "open", found.open),
        ("merge", "merge", found.merge),
        ("out/user", "way out, user", out.user),
        ("out/system", "way out, system", out.system),
        ("in/user", "way in, user", into.user),
        ("in/system", "way in, system", into.system),
    ];
    let time = |(key, title, value)| {
        let (key, title) = (format!("stages/{key}"), format!("{title}, each packet"));
        (Metric::new(key, title, Unit::Seconds, Better::Lower), value)
    };
    let title = "TCP up, while threads were timed";
    let rate = Metric::new("stages/rate", title, Unit::BitsPerSecond, Better::Higher);
    each.map(time)
        .into_iter()
        .chain([(rate, found.rate)])
        .collect()
}

/// `memory/slope`, the growth of a program in ten minutes under load, and `memory/loaded`, its peak
/// under load. Both are for the end with the greater value.
pub fn growth(found: &Growth) -> Vec<Sample> {
    let bytes = |key: &str, title: &str| Metric::new(key, title, Unit::Bytes, Better::Lower);
    let slope = bytes("memory/slope", "memory, growth in 10 min under load");
    let loaded = bytes("memory/loaded", "memory of an end, most under load");
    let mut samples = vec![(loaded, found.most() as f64)];
    if let Some(per_second) = found.slope() {
        samples.push((slope, per_second * 600.0));
    }
    samples
}

/// `peers/1000/tcp`: throughput of one peer of a server with `count` peers.
pub fn peers_transfer(count: usize, found: &Transfer) -> Sample {
    let (unit, better) = (Unit::BitsPerSecond, Better::Higher);
    (of_peers(count, "tcp", "TCP up", unit, better), found.rate())
}

fn of_peers(count: usize, what: &str, title: &str, unit: Unit, better: Better) -> Metric {
    let title = match count {
        1 => format!("1 peer: {title}"),
        _ => format!("{count} peers: {title}"),
    };
    Metric::new(format!("peers/{count}/{what}"), title, unit, better)
}

/// Metrics of a server with `count` peers in total: `peers/1000/add`, `…/resident`, `…/tcp`,
/// `…/latency/p50`.
pub fn peers(count: usize, found: &Peers) -> Vec<Sample> {
    let lower = Better::Lower;
    let metric = |what, title, unit, better| of_peers(count, what, title, unit, better);
    let mut samples = vec![peers_transfer(count, &found.transfer)];
    if let Some(setup) = found.setup {
        let metric = metric("add", "time to add each", Unit::Seconds, lower);
        samples.push((metric, setup.as_secs_f64()));
    }
    if let Some(resident) = found.resident {
        let metric = metric("resident", "server's memory", Unit::Bytes, lower);
        samples.push((metric, resident.now as f64));
    }
    if let Some(median) = found.round_trips.quantile(0.5) {
        let metric = metric("latency/p50", "round trip: p50", Unit::Seconds, lower);
        samples.push((metric, median));
    }
    samples
}

/// For each kind of flood: `flood/informed/up`, the throughput, and `flood/informed/up/sent`, the
/// datagrams sent per second. For floods to the tunnel's server also `flood/informed/up/kept`: the
/// throughput as a share of that during the flood to the unread socket.
pub fn flood(direction: Direction, found: &[FloodedTransfer]) -> Vec<Sample> {
    let way = direction.name();
    let unread = found.iter().find(|one| one.kind == FloodKind::Unread);
    let samples = found.iter().flat_map(|one| {
        let key = format!("flood/{}/{way}", one.kind.name());
        let title = match one.kind {
            FloodKind::Unread => format!("flood of an unread port: TCP {way}"),
            FloodKind::WrongMac1 => format!("flood without mac1: TCP {way}"),
            FloodKind::ValidMac1 => format!("flood with mac1: TCP {way}"),
        };
        let metric = |what: &str, title: String, unit| {
            Metric::new(format!("{key}{what}"), title, unit, Better::Higher)
        };
        let rate = one.transfer.rate();
        let remaining = unread.filter(|_| one.kind != FloodKind::Unread);
        let remaining = remaining.map(|unread| {
            let metric = metric("/kept", format!("{title}, share kept"), Unit::Share);
            (metric, rate / unread.transfer.rate())
        });
        let sent = metric("/sent", format!("{title}, sent"), Unit::PacketsPerSecond);
        let rates = [
            (metric("", title, Unit::BitsPerSecond), rate),
            (sent, one.rate),
        ];
        rates.into_iter().chain(remaining).collect::<Vec<_>>()
    });
    samples.collect()
}

fn seconds(key: &str, title: &str, value: f64) -> Sample {
    let title = format!("{title} per GB");
    (
        Metric::new(key, title, Unit::SecondsPerGigabyte, Better::Lower),
        value,
    )
}

fn count(key: &str, title: &str, value: u64) -> Sample {
    let title = format!("{title} per GB");
    (
        Metric::new(key, title, Unit::PerGigabyte, Better::Lower),
        value as f64,
    )
}

/// Divides samples by gigabytes; empty if nothing was moved.
fn per_gigabyte(samples: Vec<Sample>, bytes: u64) -> Vec<Sample> {
    let gigabytes = bytes as f64 / 1e9;
    samples
        .into_iter()
        .filter(|_| bytes > 0)
        .map(|(metric, value)| (metric, value / gigabytes))
        .collect()
}
