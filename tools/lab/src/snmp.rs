//! Counters of a machine's network stack.

use crate::error::{Error, Result};

/// The kernel's files with the counters of a network namespace. The second one has Linux's
/// additions, such as those of TCP with the protocol `TcpExt`.
pub const FILES: [&str; 2] = ["/proc/net/snmp", "/proc/net/netstat"];

/// The counters of [`FILES`] at one moment. Those of IP, ICMP and UDP cover IPv4 only.
#[derive(Debug, Clone)]
pub struct Snmp(String);

impl Snmp {
    /// Parses the contents of [`FILES`], one after the other.
    pub fn new(contents: impl Into<String>) -> Self {
        Self(contents.into())
    }

    /// Returns a counter by its protocol and its name, such as `Udp` and `InErrors`.
    ///
    /// # Errors
    ///
    /// [`Error::Malformed`] if there is none, or if it is negative.
    pub fn get(&self, protocol: &str, name: &str) -> Result<u64> {
        self.find(protocol, name).ok_or_else(|| Error::Malformed {
            what: format!("{name} of {protocol}"),
            why: format!("it is not in {}:\n{}", FILES.join(" and "), self.0),
        })
    }

    /// Returns the number of UDP datagrams dropped by socket filters, each super-packet as one: all
    /// undelivered ones, except those dropped at a full buffer.
    ///
    /// # Errors
    ///
    /// As [`get`](Self::get).
    pub fn filtered(&self) -> Result<u64> {
        let (errors, full) = (
            self.get("Udp", "InErrors")?,
            self.get("Udp", "RcvbufErrors")?,
        );
        // The two counters are read one after the other, while datagrams arrive.
        Ok(errors.saturating_sub(full))
    }

    /// A protocol has a line of names and one of values.
    fn find(&self, protocol: &str, name: &str) -> Option<u64> {
        let mut lines = self
            .0
            .lines()
            .filter_map(|line| line.strip_prefix(protocol)?.strip_prefix(": "));
        let column = lines.next()?.split(' ').position(|word| word == name)?;
        lines.next()?.split(' ').nth(column)?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENTS: &str = "\
Ip: Forwarding DefaultTTL InReceives FragCreates
Ip: 2 64 300 0
Tcp: RtoAlgorithm MaxConn
Tcp: 1 -1
Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors
Udp: 18446744073709551615 0 50 21 8
UdpLite: InDatagrams InErrors
UdpLite: 3 4
Short: One Two
Short: 1
Alone: One
TcpExt: SyncookiesSent TCPOFOQueue TCPSACKReorder
TcpExt: 0 12 3
";

    #[test]
    fn counters_are_found_by_name() {
        let all = Snmp::new(CONTENTS);
        for (protocol, name, value) in [
            ("Ip", "InReceives", 300),
            ("Ip", "FragCreates", 0),
            ("Udp", "InDatagrams", u64::MAX),
            ("Udp", "RcvbufErrors", 8),
            ("UdpLite", "InErrors", 4),
            ("TcpExt", "TCPOFOQueue", 12),
        ] {
            assert_eq!(all.get(protocol, name).expect(name), value);
        }
        assert_eq!(all.filtered().expect("both"), 42);
    }

    #[test]
    fn missing_counters_are_named() {
        let all = Snmp::new(CONTENTS);
        for (protocol, name) in [
            ("Ip", "InErrors"),
            ("Ip", "In"),
            ("Tcp", "MaxConn"),
            ("Short", "Two"),
            ("Alone", "One"),
            ("Icmp", "InMsgs"),
            ("", "InErrors"),
        ] {
            let error = all.get(protocol, name).expect_err(name).to_string();
            let start =
                format!("{name} of {protocol} cannot be read: it is not in /proc/net/snmp and ");
            assert!(error.starts_with(&start), "{error}");
        }
        assert!(Snmp::new("").filtered().is_err());
    }
}
