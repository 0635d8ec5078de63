//! Order of packets, as TCP at both ends notices it.
//!
//! The kernel counts these events in each network namespace (`/proc/net/netstat`, `TcpExt`), so the
//! counters of a pair's machines count only its own connections. These are the connections inside
//! the tunnel, because the tunnel itself uses UDP.
//!
//! - *Early* segments (`TCPOFOQueue`) are those that the receiver stored because an earlier one was
//!   missing. The missing one was either lost or overtaken. A super-packet counts as one segment.
//! - *Reorderings* (`TCPSACKReorder`, `TCPTSReorder`, `TCPRenoReorder`) are the cases in which the
//!   sender learned from acknowledgements that the missing segment had arrived without being sent
//!   again: it was overtaken and not lost. The three counters differ only in the proof: selective
//!   acknowledgements, timestamps, or their number.
//! - *Duplicates* (`TCPDSACKOldSent`, `TCPDSACKOfoSent`) are segments that the receiver already had
//!   and reported as duplicates: the sender took them for lost although they were late.
//!
//! A tunnel that keeps the order has no reorderings and no duplicates. If it has early
//! segments, they indicate losses, as do retransmits.

use crate::session::Session;
use taupe_lab::error::Result;
use taupe_lab::host::Host;
use taupe_lab::snmp::Snmp;

/// Protocol of the counters.
const PROTOCOL: &str = "TcpExt";

const EARLY: [&str; 1] = ["TCPOFOQueue"];
const REORDERINGS: [&str; 3] = ["TCPSACKReorder", "TCPTSReorder", "TCPRenoReorder"];
const DUPLICATES: [&str; 2] = ["TCPDSACKOldSent", "TCPDSACKOfoSent"];

/// Numbers of events since the machines began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OrderEvents {
    /// Segments that arrived before an earlier one.
    pub early: u64,
    /// Cases in which a missing segment had only been overtaken.
    pub reorderings: u64,
    /// Segments that arrived twice.
    pub duplicates: u64,
}

impl OrderEvents {
    /// Reads the counters of both machines of a session. In each direction one of them sends and
    /// the other one receives, so no event counts twice.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`](taupe_lab::Error::Malformed) if the kernel lacks a counter.
    pub fn read(session: &Session) -> Result<Self> {
        Self::read_hosts([&session.pair.client, &session.pair.server])
    }

    /// Reads the counters of several machines.
    pub(super) fn read_hosts<'a>(hosts: impl IntoIterator<Item = &'a Host>) -> Result<Self> {
        let mut sum = Self::default();
        for host in hosts {
            let host = Self::parse(&host.snmp()?)?;
            sum.early = sum.early.saturating_add(host.early);
            sum.reorderings = sum.reorderings.saturating_add(host.reorderings);
            sum.duplicates = sum.duplicates.saturating_add(host.duplicates);
        }
        Ok(sum)
    }

    fn parse(counters: &Snmp) -> Result<Self> {
        let sum = |names: &[&str]| {
            let values = names.iter().map(|name| counters.get(PROTOCOL, name));
            values.sum::<Result<u64>>()
        };
        Ok(Self {
            early: sum(&EARLY)?,
            reorderings: sum(&REORDERINGS)?,
            duplicates: sum(&DUPLICATES)?,
        })
    }

    /// Returns the events since an earlier reading.
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            early: self.early.saturating_sub(earlier.early),
            reorderings: self.reorderings.saturating_sub(earlier.reorderings),
            duplicates: self.duplicates.saturating_sub(earlier.duplicates),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTERS: &str = "\
TcpExt: TCPSACKReorder TCPRenoReorder TCPTSReorder TCPDSACKOldSent TCPDSACKOfoSent TCPDSACKRecv TCPOFOQueue
TcpExt: 100 20 3 40 5 600 7000
IpExt: InNoRoutes
IpExt: 0
";

    #[test]
    fn events_are_sums_of_counters() -> Result<()> {
        let found = OrderEvents::parse(&Snmp::new(COUNTERS))?;
        let expected = OrderEvents {
            early: 7000,
            reorderings: 123,
            duplicates: 45,
        };
        assert_eq!(found, expected);
        let later = OrderEvents {
            early: 7001,
            ..expected
        };
        let since = OrderEvents {
            early: 1,
            ..OrderEvents::default()
        };
        assert_eq!(later.since(&found), since);
        assert_eq!(found.since(&later), OrderEvents::default());
        Ok(())
    }

    #[test]
    fn a_kernel_without_a_counter_is_an_error() {
        for name in [EARLY[0], REORDERINGS[1], DUPLICATES[0]] {
            let without = COUNTERS.replace(name, "Other");
            assert!(OrderEvents::parse(&Snmp::new(without)).is_err(), "{name}");
        }
    }
}
