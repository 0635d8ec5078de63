//! Throughput and latency of small messages, by qperf.

use super::servers::Servers;
use crate::session::Session;
use std::time::Duration;
use taupe_lab::error::{Error, Result};

/// Time limit beyond the duration of the test.
const GRACE: Duration = Duration::from_secs(15);

/// A test of qperf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// One TCP stream up, in messages of 64 KiB.
    TcpBandwidth,
    /// One byte back and forth over a TCP connection.
    TcpLatency,
    /// One byte back and forth in UDP datagrams; ends at the first lost datagram.
    UdpLatency,
}

impl Test {
    /// Returns qperf's name of the test.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TcpBandwidth => "tcp_bw",
            Self::TcpLatency => "tcp_lat",
            Self::UdpLatency => "udp_lat",
        }
    }

    const fn quantity(self) -> &'static str {
        match self {
            Self::TcpBandwidth => "bw",
            Self::TcpLatency | Self::UdpLatency => "latency",
        }
    }
}

/// Runs a test for some seconds. Returns bit/s of received payload, or seconds.
///
/// qperf's latency is the mean time in one direction: half a round trip.
///
/// # Errors
///
/// The error message of qperf; [`Error::Unmet`] if nothing came back, [`Error::Timeout`] if it
/// hangs.
pub fn measure(session: &Session, servers: &mut Servers, test: Test, seconds: u32) -> Result<f64> {
    let target = session.target().to_string();
    let limit = Duration::from_secs(seconds.into()) + GRACE;
    let (time, timeout) = (seconds.to_string(), limit.as_secs().to_string());
    // Six digits, in fixed units.
    #[rustfmt::skip]
    let command = [
        "timeout", "--kill-after=1", &timeout,
        "qperf", "--time", &time, "--unify_units", "--precision", "6", &target, test.name(),
    ];
    let client = || {
        let attempt = session.pair.client.attempt(&command)?;
        match attempt.status {
            Some(0) => parse(&attempt.stdout, test),
            Some(124 | 137) => Err(Error::Timeout {
                what: format!("qperf, {} for {seconds} s", test.name()),
                limit,
            }),
            _ => Err(Error::unmet(format!(
                "qperf: {}",
                one_line(&[attempt.stderr, attempt.stdout].concat())
            ))),
        }
    };
    let servers_fault = |error: &Error| error.to_string().contains("failed to connect");
    servers.qperf().serve(client, servers_fault)
}

/// Parses the figure of a test from qperf's output: in bit/s, or seconds.
///
/// # Errors
///
/// [`Error::Unmet`] if the figure is zero, which qperf prints if nothing came back;
/// [`Error::Malformed`] without a figure or with an unknown unit.
pub fn parse(output: &str, test: Test) -> Result<f64> {
    let mut section = "";
    for line in output.lines() {
        if let Some(heading) = line.strip_suffix(':')
            && !line.starts_with(' ')
        {
            section = heading;
        }
        let Some((key, value)) = line.split_once('=') else {
            continue;
        };
        if section == test.name() && key.trim() == test.quantity() {
            let value = value.trim();
            let figure = figure(value, test)
                .ok_or_else(|| malformed(test, &format!("`{value}` is no figure that it has")))?;
            if figure == 0.0 {
                return Err(Error::unmet(format!(
                    "qperf: nothing came back in {}",
                    test.name()
                )));
            }
            return Ok(figure);
        }
    }
    Err(malformed(test, &format!("`{}`", one_line(output))))
}

/// Returns its output without headings, in one line.
fn one_line(output: &str) -> String {
    let lines = output.lines().map(str::trim);
    let lines: Vec<_> = lines
        .filter(|line| !line.is_empty() && !line.ends_with(':'))
        .collect();
    lines.join("; ")
}

/// Converts `1.2 GB/sec` to bit/s, `29.2 us` to seconds. Prefixes are decimal.
fn figure(value: &str, test: Test) -> Option<f64> {
    let (number, unit) = value.split_once(' ')?;
    let scale = match test {
        Test::TcpBandwidth => match unit {
            "bytes/sec" => 8.0,
            "KB/sec" => 8e3,
            "MB/sec" => 8e6,
            "GB/sec" => 8e9,
            "TB/sec" => 8e12,
            "bits/sec" => 1.0,
            "Kb/sec" => 1e3,
            "Mb/sec" => 1e6,
            "Gb/sec" => 1e9,
            "Tb/sec" => 1e12,
            _ => return None,
        },
        Test::TcpLatency | Test::UdpLatency => match unit {
            "ns" => 1e-9,
            "us" => 1e-6,
            "ms" => 1e-3,
            "sec" => 1.0,
            _ => return None,
        },
    };
    // qperf separates thousands with commas (1,234), and prints no signs or exponents, which Rust
    // would accept.
    let digits = number.replace(',', "");
    let plain = digits
        .bytes()
        .all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = digits.parse().ok().filter(|_| plain)?;
    Some(number * scale).filter(|figure| figure.is_finite())
}

fn malformed(test: Test, why: &str) -> Error {
    Error::Malformed {
        what: format!("the figure of qperf's {}", test.name()),
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::Test::{TcpBandwidth, TcpLatency, UdpLatency};
    use super::*;
    use proptest::prelude::*;

    macro_rules! sample {
        ($name:literal) => {
            include_str!(concat!("../../tests/measure/samples/qperf-", $name, ".txt"))
        };
    }

    fn near(found: Result<f64>, expected: f64) {
        let found = found.unwrap_or(f64::NAN);
        let agree = (found - expected).abs() <= expected * 1e-9;
        assert!(agree, "{found} instead of {expected}");
    }

    #[test]
    fn recorded_samples() {
        let plain = sample!("plain");
        near(parse(plain, TcpBandwidth), 658e6 * 8.0);
        near(parse(plain, TcpLatency), 26.6e-6);
        near(parse(plain, UdpLatency), 29.6e-6);
        let script = sample!("script");
        near(parse(script, TcpBandwidth), 1_515_454_464.0 * 8.0);
        near(parse(script, TcpLatency), 32.113e-6);
        near(parse(script, UdpLatency), 37.2703e-6);
        near(parse(sample!("unified"), UdpLatency), 154.488e-6);
        near(parse(sample!("precise"), TcpBandwidth), 783.417344e6 * 8.0);
        near(parse(sample!("verbose"), TcpLatency), 32.2e-6);
        near(parse(sample!("verbose"), TcpBandwidth), 693e6 * 8.0);
        near(parse(sample!("slow"), TcpBandwidth), 28e3 * 8.0);
        near(parse(sample!("slow"), TcpLatency), 16.4e-3);
        near(parse(sample!("milliseconds"), TcpLatency), 31.2e-3);
        near(parse(sample!("seconds"), TcpLatency), 3.0);
        near(parse(sample!("small"), TcpBandwidth), 1.16e6 * 8.0);
        near(parse(sample!("big"), TcpBandwidth), 2.39e9 * 8.0);
        near(parse(sample!("bits"), TcpBandwidth), 14.1e9);
        near(parse(sample!("bits-small"), TcpBandwidth), 9.43e6);
    }

    /// Units that no sample has; from qperf's `view_band` and `view_time`.
    #[test]
    fn other_units() {
        near(
            figure("1,234.5 TB/sec", TcpBandwidth).ok_or(Error::unmet("")),
            1234.5 * 8e12,
        );
        near(
            figure("17 bits/sec", TcpBandwidth).ok_or(Error::unmet("")),
            17.0,
        );
        near(
            figure("17 Kb/sec", TcpBandwidth).ok_or(Error::unmet("")),
            17e3,
        );
        near(
            figure("17 Tb/sec", TcpBandwidth).ok_or(Error::unmet("")),
            17e12,
        );
        near(figure("901 ns", UdpLatency).ok_or(Error::unmet("")), 901e-9);
        for wrong in [
            "", "5", "5 ", " us", "5 us/GB", "-5 us", "+5 us", "5e3 us", "inf us", "nan us",
            "0x5 us", ". us", "1.2.3 us", "5 GB/sec", "5 min", "5  us",
        ] {
            assert_eq!(figure(wrong, TcpLatency), None, "{wrong}");
        }
        assert_eq!(figure("5 us", TcpBandwidth), None);
    }

    #[test]
    fn errors_of_qperf_are_reported() {
        let reported = |output, test| parse(output, test).map_err(|error| error.to_string());
        let nothing = Err("qperf: nothing came back in udp_lat".to_owned());
        assert_eq!(reported(sample!("unanswered"), UdpLatency), nothing);
        let refused = reported(sample!("refused"), TcpLatency).unwrap_err();
        assert!(
            refused.contains("192.0.2.2: failed to connect"),
            "{refused}"
        );
        // A figure of another test does not count.
        assert!(reported(sample!("slow"), UdpLatency).is_err());
    }

    #[test]
    fn truncated_figures_are_refused() {
        for sample in [
            sample!("plain"),
            sample!("script"),
            sample!("verbose"),
            sample!("bits"),
        ] {
            let full = parse(sample, TcpBandwidth).ok();
            assert!(full.is_some());
            for end in (0..sample.len()).filter(|&end| sample.is_char_boundary(end)) {
                let found = parse(&sample[..end], TcpBandwidth).ok();
                assert!(found.is_none() || found == full, "cut at {end}: {found:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn garbage_is_refused(text in "\\PC*") {
            for test in [TcpBandwidth, TcpLatency, UdpLatency] {
                prop_assert!(parse(&text, test).is_err());
            }
        }

        #[test]
        fn no_value_gives_an_impossible_figure(value in "[-+0-9.,einfNa ]{0,12} ?(us|sec|GB/sec|\\PC)") {
            let output = format!("tcp_lat:\n    latency  =  {value}\n");
            if let Ok(figure) = parse(&output, TcpLatency) {
                prop_assert!(figure.is_finite() && figure > 0.0);
            }
        }
    }
}
