//! What a run is asked for.

use crate::pair::Link;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// What a run is asked for. It travels into the sandbox as JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Options {
    /// Which set of measurements.
    pub kind: Kind,
    /// How often each thing is measured.
    pub rounds: u32,
    /// How long a measurement of throughput takes, in seconds.
    pub seconds: u32,
    /// What lies between the machines where no named table says something else.
    pub link: Link,
    /// Parallel TCP streams.
    pub streams: Vec<u32>,
    /// Numbers of peers.
    pub peers: Vec<usize>,
    /// Which sections; empty means all that the kind has.
    pub sections: Vec<Section>,
    /// Which contestants; empty means all that the kind has.
    pub contestants: Vec<String>,
    /// Where the report goes: an existing folder, absolute.
    pub out: PathBuf,
    /// Who could not be installed, and why.
    pub refused: Vec<(String, String)>,
}

/// Contestants that a short run has no time for, unless they are asked for.
const UNHURRIED: [&str; 2] = ["direct-past-taupe", "taupe-transparent"];

/// A set of measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// What fits into ten minutes on two processors.
    Bench,
    /// Everything, ten rounds.
    Full,
}

/// A part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum)]
pub enum Section {
    /// From the start of a program to the first ping answered.
    Startup,
    /// TCP, with CPU time, system calls and memory.
    Throughput,
    /// Round trips, idle and under load; qperf.
    Latency,
    /// UDP packets per second; without --only, in a full run alone.
    Packets,
    /// What each step on the way of a packet takes; without --only, in a full run alone.
    Stages,
    /// Taupe's memory over eleven minutes of load; without --only, in a full run alone.
    MemorySlope,
    /// What many peers cost.
    Peers,
    /// Throughput during a flood of handshakes; without --only, in a full run alone.
    Flood,
    /// Published table: OpenVPN and WireGuard on 1 Gbit/s.
    #[value(name = "gigabit-2018")]
    Gigabit2018,
    /// Published table: WireGuard in user space and in the kernel.
    #[value(name = "userspace-vs-kernel-2021")]
    UserspaceVsKernel2021,
    /// Published table: the same in a virtual machine; beside FreeBSD's figures.
    #[value(name = "freebsd-2022")]
    Freebsd2022,
    /// Published table: handshakes with and without post-quantum cryptography.
    HandshakePq,
    /// Published table: links of a portable computer and of a telephone.
    Mobile,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Bench => "bench",
            Self::Full => "bench-full",
        }
    }
}

impl Options {
    /// All that a kind measures, into this folder.
    pub fn new(kind: Kind, out: PathBuf) -> Self {
        let full = kind == Kind::Full;
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

    /// Whether a contestant takes part.
    pub fn takes(&self, contestant: &str) -> bool {
        match self.contestants.is_empty() {
            true => self.full() || !UNHURRIED.contains(&contestant),
            false => self.contestants.iter().any(|taken| taken == contestant),
        }
    }

    /// Whether a section is run.
    pub fn has(&self, section: Section) -> bool {
        match section {
            // Longer than all the rest together, or for who works on Taupe itself.
            Section::Packets | Section::Stages | Section::MemorySlope | Section::Flood
                if self.sections.is_empty() =>
            {
                self.kind == Kind::Full
            }
            // Who is in these tables is theirs to say.
            Section::Freebsd2022 | Section::HandshakePq if self.sections.is_empty() => {
                self.contestants.is_empty()
            }
            _ => self.sections.is_empty() || self.sections.contains(&section),
        }
    }

    /// What the report calls such a run: the kind, or `custom` when anything else than all
    /// of it was asked for.
    pub fn name(&self) -> &'static str {
        let whole = Self {
            refused: self.refused.clone(),
            ..Self::new(self.kind, self.out.clone())
        };
        if *self == whole {
            self.kind.name()
        } else {
            "custom"
        }
    }

    /// Whether everything is measured, not only what the short run has time for.
    pub fn full(&self) -> bool {
        self.kind == Kind::Full
    }
}
