//! Options of a run.

use crate::contestant;
use crate::pair::Link;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

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
    /// Numbers of parallel TCP streams.
    pub streams: Vec<u32>,
    /// Numbers of peers.
    pub peers: Vec<usize>,
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
const NOT_IN_SHORT_RUNS: [&str; 2] = ["direct-past-taupe", "taupe-transparent"];

/// A set of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RunKind {
    /// A selection of ten minutes on two processors.
    Bench,
    /// Everything, ten rounds.
    Full,
}

/// A part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
pub enum Section {
    /// Time from the start of a program to the first answered ping.
    Startup,
    /// TCP throughput, with CPU time, system calls and memory.
    Throughput,
    /// Round trips, idle and under load; qperf.
    Latency,
    /// UDP packets per second; without --only, in a full run alone.
    Packets,
    /// Cost of each step of a packet's path; without --only, in a full run alone.
    Stages,
    /// Taupe's memory over eleven minutes of load; without --only, in a full run alone.
    MemorySlope,
    /// Cost of many peers.
    Peers,
    /// Throughput during a flood of handshakes; without --only, in a full run alone.
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
            streams: if full { vec![1, 4, 16] } else { vec![1, 4] },
            peers: if full {
                vec![1, 10, 100, 1000, 10_000, 100_000]
            } else {
                vec![1, 1000, 10_000]
            },
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
            // These take longer than all others together, or serve developers of Taupe.
            Section::Packets | Section::Stages | Section::MemorySlope | Section::Flood
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

    /// Returns the name of the run in the report: the kind, or `custom` if only a part was
    /// requested.
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
}
