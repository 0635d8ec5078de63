//! Options of a run.

use crate::contestant;
use crate::pair::Link;
use crate::tcp::TcpSettings;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use taupe_lab::ensure;
use taupe_lab::error::Result;

/// Options of a run. They are passed into the sandbox as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// The set of measurements.
    pub kind: RunKind,
    /// Number of samples of each metric.
    pub rounds: u32,
    /// Duration of a measurement of throughput, in seconds.
    pub seconds: u32,
    /// The link between the machines, except in named tables.
    pub link: Link,
    /// Settings of TCP. qperf cannot choose its congestion control.
    pub tcp: TcpSettings,
    /// Numbers of parallel TCP streams.
    pub streams: Vec<u32>,
    /// Numbers of peers.
    pub peers: Vec<usize>,
    /// Numbers of clients of a gateway.
    pub clients: Vec<usize>,
    /// Numbers of workers.
    pub workers: Vec<usize>,
    /// Seconds after which a part of the run ends; `None` for a run without parts.
    pub part: Option<u32>,
    /// Sections to run; empty for all sections of the kind.
    pub sections: Vec<Section>,
    /// Contestants to measure; empty for all contestants of the kind.
    pub contestants: Vec<String>,
    /// Folder of the report; an existing, absolute path.
    pub out: PathBuf,
    /// Contestants that could not be installed, with the reason.
    pub refused: Vec<(String, String)>,
}

/// Contestants that a short run omits, unless they are requested.
const NOT_IN_SHORT_RUNS: [&str; 3] = [
    "direct-past-taupe",
    "taupe-transparent",
    "wireguard-go-tailscale",
];

/// Number of workers of the last measurement on a machine that has more cores.
const MOST_WORKERS: usize = 64;

/// A set of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunKind {
    /// A selection of ten minutes on two processors.
    Bench,
    /// Everything, ten rounds.
    Full,
}

/// A section of a run: measurements of one subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
pub enum Section {
    /// Time from the start of a program to the first answered ping.
    Startup,
    /// TCP throughput, with CPU time, system calls and memory.
    Throughput,
    /// Round trips, idle and under load; qperf.
    Latency,
    /// Round trips beside one and four streams, also at 100 Mbit/s and 1 Gbit/s. Default: only with
    /// --full.
    Beside,
    /// Throughput of a gateway with several clients. Default: only with --full.
    Gateway,
    /// Throughput over the number of workers. Default: only with --full.
    Cores,
    /// UDP packets per second. Default: only with --full.
    Packets,
    /// Cost of each step of a packet's path. Default: only with --full.
    Stages,
    /// Taupe's memory over eleven minutes of load. Default: only with --full.
    MemorySlope,
    /// Cost of many peers.
    Peers,
    /// Times of Taupe's commands, in at least 20 rounds. Default: only with --full.
    Commands,
    /// Throughput during a flood of handshakes. Default: only with --full.
    Flood,
    /// Published table: OpenVPN and WireGuard on 1 Gbit/s.
    #[value(name = "gigabit-2018")]
    Gigabit2018,
    /// Published table: WireGuard in user space and in the kernel.
    #[value(name = "userspace-vs-kernel-2021")]
    UserspaceVsKernel2021,
    /// Published table: the same in a virtual machine, compared with FreeBSD's figures.
    #[value(name = "freebsd-2022")]
    Freebsd2022,
    /// Published table: handshakes with and without post-quantum cryptography.
    HandshakePq,
    /// Published table: links of a laptop and of a telephone.
    Mobile,
}

impl Section {
    /// Returns true if the measurements of the section are independent, so that the next part of a
    /// run can continue after any of them.
    pub const fn has_parts(self) -> bool {
        match self {
            Self::Startup
            | Self::Throughput
            | Self::Latency
            | Self::Beside
            | Self::Gateway
            | Self::Cores
            | Self::Packets
            | Self::Stages
            | Self::Flood
            | Self::Gigabit2018
            | Self::UserspaceVsKernel2021 => true,
            // Here peers accumulate, or a virtual machine has to boot.
            Self::MemorySlope
            | Self::Commands
            | Self::Peers
            | Self::Freebsd2022
            | Self::HandshakePq
            | Self::Mobile => false,
        }
    }
}

impl RunKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Bench => "bench",
            Self::Full => "bench-full",
        }
    }
}

impl Options {
    /// Returns the options for everything that a kind measures.
    pub fn new(kind: RunKind, out: PathBuf) -> Self {
        let full = kind == RunKind::Full;
        Self {
            kind,
            rounds: if full { 10 } else { 3 },
            seconds: 3,
            link: Link::Cable,
            tcp: TcpSettings::default(),
            streams: if full { vec![1, 4, 16] } else { vec![1, 4] },
            peers: if full {
                vec![1, 10, 100, 1000, 10_000, 100_000]
            } else {
                vec![1, 1000, 10_000]
            },
            clients: vec![1, 4, 8, 16],
            workers: worker_counts(cores()),
            part: None,
            sections: Vec::new(),
            contestants: Vec::new(),
            out,
            refused: Vec::new(),
        }
    }

    /// Returns true if a contestant takes part.
    pub fn takes(&self, contestant: &str) -> bool {
        if !self.contestants.is_empty() {
            return self.contestants.iter().any(|taken| taken == contestant);
        }
        let variants = contestant::variants();
        let is_variant = variants.iter().any(|variant| variant.id() == contestant);
        !is_variant && (self.full() || !NOT_IN_SHORT_RUNS.contains(&contestant))
    }

    /// Returns true if a section is run.
    pub fn has(&self, section: Section) -> bool {
        match section {
            // These sections take longer than all others together, or serve developers of Taupe.
            Section::Beside
            | Section::Gateway
            | Section::Cores
            | Section::Packets
            | Section::Stages
            | Section::MemorySlope
            | Section::Commands
            | Section::Flood
                if self.sections.is_empty() =>
            {
                self.kind == RunKind::Full
            }
            // These tables have contestants of their own.
            Section::Freebsd2022 | Section::HandshakePq if self.sections.is_empty() => {
                self.contestants.is_empty()
            }
            _ => self.sections.is_empty() || self.sections.contains(&section),
        }
    }

    /// Returns the name of the run in the report: the kind, or `custom` if other options
    /// were requested.
    pub fn name(&self) -> &'static str {
        let complete = Self {
            refused: self.refused.clone(),
            ..Self::new(self.kind, self.out.clone())
        };
        if *self == complete {
            self.kind.name()
        } else {
            "custom"
        }
    }

    /// Returns true for a full run.
    pub fn full(&self) -> bool {
        self.kind == RunKind::Full
    }

    /// Checks that all sections can be measured in parts, if the run has parts.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`](taupe_lab::Error::Unmet) with the sections that cannot be measured in
    /// parts.
    pub fn check(&self) -> Result<()> {
        let known = Section::value_variants().iter();
        let unfit = known.filter(|section| self.has(**section) && !section.has_parts());
        let unfit: Vec<String> = unfit
            .filter_map(|section| Some(section.to_possible_value()?.get_name().to_owned()))
            .collect();
        ensure!(
            self.part.is_none() || unfit.is_empty(),
            "a run in parts cannot measure {}: choose other sections with --only",
            unfit.join(", ")
        );
        Ok(())
    }

    /// Returns the options that determine the plan, without those that may differ between parts.
    pub fn of_plan(&self) -> Self {
        Self {
            part: None,
            out: PathBuf::new(),
            refused: Vec::new(),
            ..self.clone()
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns 1, 2, 4, 8 and so on up to the number of cores, and this number.
fn worker_counts(cores: usize) -> Vec<usize> {
    let most = cores.clamp(1, MOST_WORKERS);
    let doubled = std::iter::successors(Some(1), |count| Some(count * 2));
    let mut counts: Vec<usize> = doubled.take_while(|count| *count < most).collect();
    counts.push(most);
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_powers_of_two_and_all_cores() {
        for (cores, expected) in [
            (0, &[1][..]),
            (1, &[1]),
            (2, &[1, 2]),
            (6, &[1, 2, 4, 6]),
            (16, &[1, 2, 4, 8, 16]),
            (500, &[1, 2, 4, 8, 16, 32, 64]),
        ] {
            assert_eq!(worker_counts(cores), expected, "{cores}");
        }
    }

    #[test]
    fn only_sections_of_independent_measurements_have_parts() {
        let mut options = Options::new(RunKind::Bench, "/out".into());
        assert!(options.check().is_ok());
        options.part = Some(480);
        let error = options.check().expect_err("peers").to_string();
        assert!(
            error.contains("peers") && error.contains("mobile"),
            "{error}"
        );
        assert!(!error.contains("throughput"), "{error}");
        options.sections = vec![Section::Throughput, Section::Cores];
        assert!(options.check().is_ok());
    }

    #[test]
    fn the_plan_does_not_depend_on_folders_and_parts() {
        let options = Options::new(RunKind::Bench, "/one".into());
        let other = Options {
            part: Some(9),
            refused: vec![("a".to_owned(), "b".to_owned())],
            ..Options::new(RunKind::Bench, "/other".into())
        };
        assert_eq!(options.of_plan(), other.of_plan());
        let longer = Options {
            seconds: 5,
            ..options.clone()
        };
        assert_ne!(options.of_plan(), longer.of_plan());
    }
}
