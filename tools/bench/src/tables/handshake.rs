//! `handshake-pq`: the cost of a handshake in bytes and in time.
//!
//! The client's time covers making the initiation and processing the response, the server's time
//! processing the initiation and making the response. Both are devices of Taupe's protocol in
//! this process, the lowest level that includes all steps and the MACs. No socket, file or
//! other thread takes part. The published handshakes come from `taupe_repro`, which has no devices.

mod devices;
mod exchange;
mod idle;
mod published;

use self::devices::DevicePair;
use self::exchange::{Exchange, Handshake};
use super::{DescribedRow, Description, Statistic};
use crate::results::{Better, Failure, Metric, Report, Unit};
use crate::statistics::median;
use std::time::Duration;
use taupe_crypto::{AWS_LC, Provider};
use taupe_lab::error::Result;
use taupe_protocol::hybrid::Suite;

/// Name of the table, and prefix of its metrics' keys.
pub const NAME: &str = "handshake-pq";

/// Number of handshakes whose median is one sample.
const HANDSHAKES: usize = 1_000;

/// The same for handshakes that are so slow that more would delay the whole run.
#[cfg(feature = "rainbow")]
const FEW_HANDSHAKES: usize = 50;

/// Approximate seconds to measure all of them once. Rainbow's keys take most of this time.
pub const SECONDS: f64 = if cfg!(feature = "rainbow") { 12.0 } else { 3.0 };

/// Number of batches whose median is one sample.
const BATCHES: usize = 500;

/// The product's cryptography.
const CRYPTO: &Provider = &AWS_LC;

/// A measured handshake: a row of the table.
pub struct Variant {
    /// Id in place of a contestant's.
    pub id: &'static str,
    /// Label of its row.
    pub label: &'static str,
    /// Number of handshakes whose median is one sample.
    pub handshakes: usize,
    /// Creates two ends that know each other.
    begin: fn() -> Result<Box<dyn Handshake>>,
    /// Measures the memory in bytes by which an idle peer exceeds one with X25519 alone.
    pub memory: Option<fn() -> Result<f64>>,
}

impl Variant {
    const fn new(
        id: &'static str,
        label: &'static str,
        begin: fn() -> Result<Box<dyn Handshake>>,
    ) -> Self {
        Self {
            id,
            label,
            handshakes: HANDSHAKES,
            begin,
            memory: None,
        }
    }
}

/// All measured handshakes.
pub const VARIANTS: &[Variant] = &[
    Variant::new("x25519", "WireGuard, X25519", || {
        Ok(Box::new(DevicePair::new(None)?))
    }),
    Variant {
        memory: Some(|| idle::memory_beyond(Suite::Hybrid768)),
        ..Variant::new("hybrid-768", "Taupe, hybrid-768", || {
            Ok(Box::new(DevicePair::new(Some(Suite::Hybrid768))?))
        })
    },
    Variant {
        memory: Some(|| idle::memory_beyond(Suite::Hybrid512)),
        ..Variant::new("hybrid-512", "Taupe, hybrid-512", || {
            Ok(Box::new(DevicePair::new(Some(Suite::Hybrid512))?))
        })
    },
    Variant {
        memory: Some(|| idle::memory_beyond(Suite::Light)),
        ..Variant::new("hybrid-light", "Taupe, hybrid-light", || {
            Ok(Box::new(DevicePair::new(Some(Suite::Light))?))
        })
    },
    Variant::new("repro-k-k", "K+K", || published::begin("K+K")),
    Variant::new("repro-k-tk", "K+tK", || published::begin("K+tK")),
    #[cfg(feature = "rainbow")]
    Variant {
        handshakes: FEW_HANDSHAKES,
        ..Variant::new("repro-r-tk", "R+tK", || published::begin("R+tK"))
    },
    Variant::new("repro-k512-tk512", "K512+tK512", || {
        published::begin("K512+tK512")
    }),
    #[cfg(feature = "rainbow")]
    Variant {
        handshakes: FEW_HANDSHAKES,
        ..Variant::new("repro-r1-tk512", "R1+tK512", || {
            published::begin("R1+tK512")
        })
    },
];

fn traffic() -> Metric {
    metric("traffic", "traffic", Unit::Bytes)
}

fn packets() -> Metric {
    metric("packets", "IPv6 packets", Unit::Count)
}

fn client() -> Metric {
    metric("client", "client", Unit::Seconds)
}

fn server() -> Metric {
    metric("server", "server", Unit::Seconds)
}

fn answered() -> Metric {
    let better = Better::Higher;
    Metric::new(
        format!("{NAME}/answered"),
        "answered by a core",
        Unit::PerSecond,
        better,
    )
}

fn packet() -> Metric {
    metric("packet", "a packet", Unit::Seconds)
}

fn idle_peer() -> Metric {
    metric("memory", "idle peer, beyond X25519's", Unit::Bytes)
}

fn metric(key: &str, title: &str, unit: Unit) -> Metric {
    Metric::new(format!("{NAME}/{key}"), title, unit, Better::Lower)
}

/// Published figures: bytes, IPv6 packets, client's time, server's time.
const PUBLISHED: [(&str, [&str; 4]); 5] = [
    ("K+K", ["4816 B", "4", "0.64 ms", "0.43 ms"]),
    ("K+tK", ["3760 B", "4", "0.50 ms", "0.29 ms"]),
    ("R+tK", ["1912 B", "2", "5.76 ms", "5.41 ms"]),
    ("K512+tK512", ["3172 B", "4", "0.39 ms", "0.27 ms"]),
    ("R1+tK512", ["1716 B", "2", "4.40 ms", "4.31 ms"]),
];

/// Returns the table's description.
pub fn description() -> Description {
    let is_published =
        |variant: &&Variant| PUBLISHED.iter().any(|(label, _)| *label == variant.label);
    let ours = VARIANTS.iter().filter(|variant| !is_published(variant));
    let ours = ours.map(|variant| DescribedRow::new(variant.label, Some(variant.id), &[]));
    let theirs = PUBLISHED.iter().map(|(label, figures)| {
        let measured = VARIANTS.iter().find(|variant| variant.label == *label);
        let id = measured.map(|variant| variant.id);
        DescribedRow::new(label, id, &figures.map(Some))
    });
    let others = ["PQ-OpenVPN", "PQ-WireGuard, Hülsing et al."];
    let others = others.map(|label| DescribedRow::new(label, None, &[]));
    let mut differences = vec![
        "K is Kyber-768, tK a Kyber with other parameters (“tweaked”), R Rainbow; K512, \
         tK512 and R1 are those of the lowest level of security.",
        "All rows from K+K to R1+tK512 are for comparison only: they are insecure. Of Rainbow: \
         key recovery in 53 hours on a laptop (Beullens 2022, eprint 2022/214).",
        "These rows are measured without devices: both ends' handshakes as the published program \
         has them, made of AWS-LC's ML-KEM for Kyber, of Taupe's own K-PKE in plain Rust where \
         parameters are tweaked, and of PQClean's Rainbow. Encapsulation has 32 random bytes, \
         and a bad signature is refused, both unlike the published program.",
        "PQ-OpenVPN and the PQ-WireGuard of Hülsing et al. are published without figures here.",
        "Here traffic is the UDP payload of both messages. The published column is not \
         counted in one way: 4816 B has an IPv6 and a UDP header for each of four packets \
         in it, 3760, 1912 and 1716 B are payload alone, and for 3172 B the published \
         program sends 3120.",
        "IPv6 packets are those of at most 1,280 B that the payload needs, worked out from \
         the messages' lengths.",
        "The times of other rows are those of whole devices of Taupe's protocol, with AWS-LC: MACs, the \
         search for the peer, timers, the session's keys and, at the client, the first \
         packet sealed. The Diffie-Hellman result of the two static keys is kept from one \
         handshake to the next, as by any device. There are no sockets.",
        "Each sample is the median of 1,000 handshakes on one thread, with Rainbow of 50. The \
         published times are of other machines and another program: compare the rows that were \
         measured here.",
        "Answered by a core: how many of these handshakes, one after the other, take a second of \
         the processor's time at the server.",
        "A packet: of 1,424 bytes, encrypted by one device and opened by the other, in batches of \
         64, in the session that the handshake has made; both on one thread.",
        "Idle peer: what 10,000 peers of one device take of physical memory beyond what as many \
         peers with X25519 alone take, for each.",
    ];
    if !cfg!(feature = "rainbow") {
        differences.push(
            "This program was built without Rainbow (cargo's feature `rainbow`), whose rows have \
             only what was published.",
        );
    }
    if cfg!(debug_assertions) {
        differences.push("This program was built without optimisation: the times mean nothing.");
    }
    Description {
        name: NAME,
        title: "Handshakes with and without post-quantum cryptography, medians",
        source: "a post on post-quantum WireGuard by Kudelski Security, 2021",
        columns: vec![
            traffic(),
            packets(),
            client(),
            server(),
            answered(),
            packet(),
            idle_peer(),
        ],
        rows: ours.chain(theirs).chain(others).collect(),
        statistic: Statistic::Median,
        differences: differences.into_iter().map(str::to_owned).collect(),
    }
}

/// Measures every variant once: a sample for each column. The report's failures list variants whose
/// handshake does not complete.
pub fn measure(report: &mut Report) {
    measure_all(VARIANTS, HANDSHAKES, report);
}

fn measure_all(variants: &[Variant], at_most: usize, report: &mut Report) {
    for variant in variants {
        if let Err(error) = measure_one(variant, at_most, report) {
            report.failures.push(Failure {
                what: NAME.to_owned(),
                contestant: variant.id.to_owned(),
                reason: error.one_line(),
            });
        }
    }
}

fn measure_one(variant: &Variant, at_most: usize, report: &mut Report) -> Result<()> {
    let handshakes = variant.handshakes.min(at_most);
    let mut ends = (variant.begin)()?;
    // Warm-up: the first handshakes fill caches and precomputed values.
    for _ in 0..handshakes / 10 {
        ends.perform()?;
    }
    let exchanges = (0..handshakes).map(|_| ends.perform());
    let exchanges: Vec<Exchange> = exchanges.collect::<Result<_>>()?;
    let batches = (0..BATCHES.min(at_most)).map(|_| ends.transfer_batch());
    let batches: Vec<Option<Duration>> = batches.collect::<Result<_>>()?;
    let memory_beyond = variant.memory.map(|beyond| beyond()).transpose()?;

    let mut record = |metric: &Metric, sample: Option<f64>| {
        if let Some(sample) = sample {
            report.record(variant.id, metric, sample);
        }
    };
    let middle = |figure: fn(&Exchange) -> f64| {
        let all: Vec<f64> = exchanges.iter().map(figure).collect();
        median(&all)
    };
    record(&traffic(), middle(|exchange| exchange.traffic() as f64));
    record(&packets(), middle(|exchange| exchange.packets() as f64));
    record(&client(), middle(|exchange| exchange.client.as_secs_f64()));
    record(&server(), middle(|exchange| exchange.server.as_secs_f64()));
    let busy: Duration = exchanges.iter().map(|exchange| exchange.server_cpu).sum();
    record(
        &answered(),
        Some(exchanges.len() as f64 / busy.as_secs_f64()),
    );
    let batches = batches.into_iter().flatten();
    let each: Vec<f64> = batches
        .map(|took| took.as_secs_f64() / devices::BATCH as f64)
        .collect();
    record(&packet(), median(&each));
    record(&idle_peer(), memory_beyond);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_lab::error::Error;

    #[test]
    fn a_failed_variant_is_noted_in_its_row() {
        let Variant { id, label, .. } = VARIANTS[0];
        let variant = Variant::new(id, label, || Err(Error::unmet("no random numbers")));
        let mut report = Report::default();
        measure_all(&[variant], 1, &mut report);
        let table = super::super::fill(&description(), &report);
        let note = table.rows[0].note.as_deref();
        assert_eq!(note, Some("handshake-pq: no random numbers"));
    }

    #[test]
    fn each_variant_fills_its_columns() {
        let mut report = Report::default();
        measure_all(VARIANTS, 20, &mut report);
        let table = super::super::fill(&description(), &report);
        let measured: Vec<_> = table
            .rows
            .iter()
            .filter(|row| row.contestant.is_some())
            .collect();
        assert_eq!(measured.len(), VARIANTS.len());
        for row in measured {
            let id = row.contestant.as_deref().unwrap();
            let filled = match id {
                "x25519" => 6,
                id if id.starts_with("repro-") => 5,
                _ => 7,
            };
            for (column, cell) in row.cells.iter().enumerate() {
                // Other tests change the process's memory meanwhile, so this column may be
                // negative.
                let least = if column == 6 { f64::MIN } else { 0.0 };
                let is_filled = cell.measured.is_some_and(|figure| figure > least);
                assert_eq!(is_filled, column < filled, "{row:?}");
            }
        }
    }

    #[test]
    fn published_figures_match_the_variants() {
        for variant in taupe_repro::variant::VARIANTS {
            let found = PUBLISHED.iter().find(|(label, _)| *label == variant.name);
            let figures = found.expect("in the table").1;
            let published = &variant.published;
            let [traffic, packets] = [published.traffic, published.packets];
            assert_eq!(figures[0], format!("{traffic} B"));
            assert_eq!(figures[1], packets.to_string());
            assert_eq!(figures[2], format!("{:.2} ms", published.client));
            assert_eq!(figures[3], format!("{:.2} ms", published.server));
        }
    }
}
