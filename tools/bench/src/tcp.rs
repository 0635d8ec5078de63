//! Settings of TCP on the machines.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt::{Display, Formatter};
use taupe_lab::error::Result;
use taupe_lab::host::Host;

/// Congestion control of TCP for programs that do not choose one. qperf cannot choose; iperf3 can,
/// but only once it is connected. A connection that begins with `bbr`, a common default, sends each
/// super-packet from a pacing timer, even after it has changed its algorithm (`sk_pacing_status`,
/// Linux 4.13). The benchmark would measure this timer. Unlike `cubic`, `reno` may be chosen in
/// every network namespace.
pub const DEFAULT_CONGESTION: &str = "reno";

/// Settings of TCP for the transfers of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpSettings {
    /// Congestion control of iperf3's connections.
    pub congestion: Congestion,
    /// True if connections negotiate Explicit Congestion Notification (RFC 3168).
    pub ecn: bool,
}

/// Congestion control of TCP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
pub enum Congestion {
    /// Linux's default, also in the published comparisons. Many machines are set to another
    /// algorithm, which would distort the comparison.
    #[default]
    Cubic,
    /// The algorithm of the standard (RFC 5681).
    Reno,
    /// Google's algorithm, which paces: it sends from a timer.
    Bbr,
}

impl Congestion {
    /// Returns the kernel's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
            Self::Bbr => "bbr",
        }
    }
}

impl TcpSettings {
    /// Prepares a machine whose programs do not choose a congestion control.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](taupe_lab::Error::Io) if the kernel lacks a setting.
    pub fn apply(self, host: &Host) -> Result<()> {
        host.sysctl("net/ipv4/tcp_congestion_control", DEFAULT_CONGESTION)?;
        // 2 is the kernel's default: accept ECN, but do not request it.
        host.sysctl("net/ipv4/tcp_ecn", if self.ecn { "1" } else { "2" })
    }
}

/// Formats the settings, such as `cubic` or `bbr, ECN`.
impl Display for TcpSettings {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.congestion.name())?;
        f.write_str(if self.ecn { ", ECN" } else { "" })
    }
}
