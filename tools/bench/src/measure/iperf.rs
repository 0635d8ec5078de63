//! Throughput of TCP, by iperf3.

use super::servers::{Server, Servers};
use crate::session::Session;
use crate::tcp::Congestion;
use serde::Deserialize;
use std::net::IpAddr;
use std::time::Duration;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::Host;

/// Time limit beyond the duration of the transfer: for connecting, and for data still queued on a
/// slow link at its end.
const GRACE: Duration = Duration::from_secs(20);

/// Time limit for the first connection.
const CONNECT: Duration = Duration::from_secs(5);

/// Direction of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
    /// Both at once, in separate connections.
    Both,
}

impl Direction {
    /// All directions in the order of tables.
    pub const ALL: [Self; 3] = [Self::Up, Self::Down, Self::Both];

    /// Returns the name for keys of metrics: `up`, `down`, `both`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Both => "both",
        }
    }

    const fn argument(self) -> Option<&'static str> {
        match self {
            Self::Up => None,
            Self::Down => Some("--reverse"),
            Self::Both => Some("--bidir"),
        }
    }
}

/// Parameters of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Flow {
    /// The direction.
    pub direction: Direction,
    /// Number of connections in each direction, up to 128.
    pub streams: u32,
    /// Duration in seconds; at least 1.
    pub seconds: u32,
}

/// Result of a transfer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// From the client to the server, if data flowed in this direction.
    pub up: Option<DirectionResult>,
    /// From the server to the client, if data flowed in this direction.
    pub down: Option<DirectionResult>,
}

impl Transfer {
    /// Returns the received bytes of TCP payload in both directions.
    pub fn bytes(&self) -> u64 {
        self.directions()
            .fold(0, |sum, direction| sum.saturating_add(direction.bytes))
    }

    /// Returns the received bit/s of TCP payload in both directions.
    pub fn rate(&self) -> f64 {
        self.directions().map(|direction| direction.rate).sum()
    }

    /// Returns the retransmitted segments of both directions; `None` if a system does not count
    /// them.
    pub fn retransmits(&self) -> Option<u64> {
        self.directions().try_fold(0_u64, |sum, direction| {
            Some(sum.saturating_add(direction.retransmits?))
        })
    }

    fn directions(&self) -> impl Iterator<Item = DirectionResult> {
        [self.up, self.down].into_iter().flatten()
    }
}

/// One direction of a transfer, with all its streams.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DirectionResult {
    /// Received bit/s of TCP payload.
    pub rate: f64,
    /// Received bytes of TCP payload.
    pub bytes: u64,
    /// Duration of the reception, in seconds.
    pub seconds: f64,
    /// Retransmitted segments; `None` if the sender's system does not count them.
    pub retransmits: Option<u64>,
}

/// Sends data through the tunnel at full speed.
///
/// # Errors
///
/// The error message of iperf3; [`Error::Timeout`] if it hangs.
pub fn transfer(session: &Session, servers: &mut Servers, flow: Flow) -> Result<Transfer> {
    transfer_from(
        &session.pair.client,
        session.target(),
        servers.iperf(),
        flow,
        session.pair.tcp().congestion,
    )
}

/// Sends data like [`transfer`], but from any machine to any server.
pub(super) fn transfer_from(
    host: &Host,
    target: IpAddr,
    server: &mut Server,
    flow: Flow,
    congestion: Congestion,
) -> Result<Transfer> {
    let port = server.port();
    let client = || run(host, target, port, flow, congestion);
    server.serve(client, is_servers_fault)
}

/// Returns true if another attempt may succeed.
pub(crate) fn is_servers_fault(error: &Error) -> bool {
    // iperf3 3.12 stays busy after a client was killed. It also closes its listening socket after
    // every client, together with connections made meanwhile; on a slow link the next client may
    // connect before that.
    const SIGNS: [&str; 3] = [
        "the server is busy",
        "Connection refused",
        "unable to receive control message: Connection reset by peer",
    ];
    let text = error.to_string();
    SIGNS.iter().any(|sign| text.contains(sign))
}

fn run(
    host: &Host,
    target: IpAddr,
    port: u16,
    flow: Flow,
    congestion: Congestion,
) -> Result<Transfer> {
    let (target, port) = (target.to_string(), port.to_string());
    let limit = Duration::from_secs(flow.seconds.into()) + GRACE;
    let [seconds, streams] = [flow.seconds, flow.streams].map(|number| number.to_string());
    let connect = CONNECT.as_millis().to_string();
    let timeout = limit.as_secs().to_string();
    #[rustfmt::skip]
    let mut command = vec![
        "timeout", "--kill-after=1", &timeout,
        "iperf3", "--json", "--connect-timeout", &connect,
        "--congestion", congestion.name(), "--client", &target, "--port", &port,
        "--time", &seconds, "--parallel", &streams,
    ];
    command.extend(flow.direction.argument());
    let attempt = host.attempt(&command)?;
    match attempt.status {
        // Exit statuses of timeout(1): 137 if the first signal was ignored.
        Some(124 | 137) => Err(Error::Timeout {
            what: format!("iperf3, {} for {} s", flow.direction.name(), flow.seconds),
            limit,
        }),
        // With --json, iperf3 prints its errors there, and often exits with 0.
        _ if !attempt.stdout.trim().is_empty() => parse(&attempt.stdout),
        status => Err(Error::Command {
            command: "iperf3".to_owned(),
            place: host.name().to_owned(),
            status: status.map_or_else(|| "a signal".to_owned(), |status| status.to_string()),
            output: attempt.stderr,
        }),
    }
}

/// Parses the output of `iperf3 --json` as a client.
///
/// # Errors
///
/// As [`parse_with_nothing`]; [`Error::Unmet`] also if nothing arrived in one direction.
pub fn parse(output: &str) -> Result<Transfer> {
    let transfer = parse_with_nothing(output)?;
    if transfer.directions().any(|direction| direction.bytes == 0) {
        return Err(Error::unmet("iperf3: nothing was received"));
    }
    Ok(transfer)
}

/// As [`parse`], but a direction may have received nothing: iperf3 counts whole blocks, and none of
/// 128 KiB may have arrived in a short time.
///
/// # Errors
///
/// [`Error::Unmet`] with iperf3's own message if it failed; [`Error::Malformed`] if the output is no
/// complete report of a TCP transfer.
pub fn parse_with_nothing(output: &str) -> Result<Transfer> {
    let report: Report = serde_json::from_str(output).map_err(|error| malformed(&error))?;
    if let Some(error) = report.error {
        return Err(Error::unmet(format!("iperf3: {error}")));
    }
    let test = report
        .start
        .test_start
        .ok_or_else(|| malformed(&"it has no settings of the test"))?;
    if test.protocol != "TCP" {
        return Err(malformed(&format!("its protocol is {}", test.protocol)));
    }
    let end = report.end;
    let forward = DirectionResult::new(end.sum_sent, end.sum_received)?
        .ok_or_else(|| malformed(&"it has no sum of all streams"))?;
    let backward =
        DirectionResult::new(end.sum_sent_bidir_reverse, end.sum_received_bidir_reverse)?;
    match (test.reverse, backward) {
        (0, down) => Ok(Transfer {
            up: Some(forward),
            down,
        }),
        (1, None) => Ok(Transfer {
            up: None,
            down: Some(forward),
        }),
        _ => Err(malformed(&"its directions are contradictory")),
    }
}

impl DirectionResult {
    /// Combines the sums of one direction, if it was used.
    fn new(sent: Option<Sum>, received: Option<Sum>) -> Result<Option<Self>> {
        let (sent, received) = match (sent, received) {
            (None, None) => return Ok(None),
            (Some(sent), Some(received)) => (sent, received),
            _ => return Err(malformed(&"it has the sum of one end only")),
        };
        let Sum {
            seconds,
            bytes,
            bits_per_second: rate,
            ..
        } = received;
        let expected = bytes as f64 * 8.0 / seconds;
        // False too if one of them is not a number.
        let agree = (rate - expected).abs() <= expected * 0.01;
        if !agree || seconds <= 0.0 || !seconds.is_finite() {
            return Err(malformed(&format!(
                "{bytes} bytes in {seconds} s are not {rate} bit/s"
            )));
        }
        Ok(Some(Self {
            rate,
            bytes,
            seconds,
            retransmits: sent.retransmits,
        }))
    }
}

fn malformed(why: &dyn std::fmt::Display) -> Error {
    Error::Malformed {
        what: "the report of iperf3".to_owned(),
        why: why.to_string(),
    }
}

#[derive(Deserialize)]
struct Report {
    start: Start,
    end: End,
    error: Option<String>,
}

#[derive(Deserialize)]
struct Start {
    test_start: Option<Test>,
}

#[derive(Deserialize)]
struct Test {
    protocol: String,
    reverse: u8,
}

#[derive(Deserialize)]
struct End {
    sum_sent: Option<Sum>,
    sum_received: Option<Sum>,
    sum_sent_bidir_reverse: Option<Sum>,
    sum_received_bidir_reverse: Option<Sum>,
}

#[derive(Deserialize)]
struct Sum {
    seconds: f64,
    bytes: u64,
    bits_per_second: f64,
    retransmits: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    macro_rules! sample {
        ($name:literal) => {
            include_str!(concat!(
                "../../tests/measure/samples/iperf3-",
                $name,
                ".json"
            ))
        };
    }

    const WHOLE: [&str; 6] = [
        sample!("up-1"),
        sample!("up-4"),
        sample!("down-1"),
        sample!("down-4"),
        sample!("both-1"),
        sample!("both-4"),
    ];

    fn refusal(output: &str) -> String {
        parse(output).map_or_else(|error| error.to_string(), |found| format!("{found:?}"))
    }

    #[test]
    fn directions_and_sums() -> Result<()> {
        let up = parse(sample!("up-4"))?;
        let expected = DirectionResult {
            rate: 5_380_128_592.639_626_5,
            bytes: 694_812_672,
            seconds: 1.033154,
            retransmits: Some(0),
        };
        assert_eq!((up.up, up.down), (Some(expected), None));

        let down = parse(sample!("down-4"))?;
        assert_eq!(down.up, None);
        assert_eq!(down.bytes(), 974_796_832);
        assert_eq!(down.retransmits(), Some(65));

        let both = parse(sample!("both-4"))?;
        let bytes = |direction: Option<DirectionResult>| direction.map(|direction| direction.bytes);
        assert_eq!(bytes(both.up), Some(106_783_936));
        assert_eq!(bytes(both.down), Some(566_624_256));
        assert_eq!(both.bytes(), 673_408_192);
        assert_eq!(both.retransmits(), Some(52));

        for one in [sample!("up-1"), sample!("down-1"), sample!("both-1")] {
            assert!(parse(one)?.rate() > 1e9);
        }
        Ok(())
    }

    #[test]
    fn errors_of_iperf3_are_reported() {
        let reported = [
            (
                sample!("refused"),
                "iperf3: unable to connect to server: Connection refused",
            ),
            (
                sample!("unreachable"),
                "iperf3: unable to connect to server: Connection timed out",
            ),
            (
                sample!("busy"),
                "iperf3: the server is busy running a test. try again later",
            ),
            (
                sample!("interrupted"),
                "iperf3: interrupt - the client has terminated",
            ),
            (sample!("server-ended"), "iperf3: the server has terminated"),
        ];
        for (output, reason) in reported {
            assert_eq!(refusal(output), reason);
        }
    }

    #[test]
    fn truncated_reports_are_refused() {
        for full in WHOLE {
            let full = full.trim_end();
            for end in (0..full.len()).filter(|&end| full.is_char_boundary(end)) {
                assert!(parse(&full[..end]).is_err(), "cut at {end}");
            }
        }
    }

    #[test]
    fn contradictory_reports_are_refused() {
        let full = sample!("up-1");
        let without_error = sample!("interrupted").replace("\"error\"", "\"remark\"");
        let wrong = [
            ("TCP", "UDP"),
            ("\"reverse\":\t0", "\"reverse\":\t2"),
            (
                "\"bits_per_second\":",
                "\"bits_per_second\": 1e3, \"other\":",
            ),
            ("\"seconds\":", "\"seconds\": 0, \"other\":"),
            ("\"seconds\":", "\"seconds\": -1, \"other\":"),
            ("\"seconds\":", "\"seconds\": \"1\", \"other\":"),
            ("\"sum_received\"", "\"sum_forgotten\""),
            ("\"sum_sent\"", "\"sum_forgotten\""),
        ];
        for (from, to) in wrong {
            assert!(full.contains(from), "{from} is in the sample");
            assert!(parse(&full.replace(from, to)).is_err(), "{to}");
        }
        assert_eq!(refusal(&without_error), "iperf3: nothing was received");
        let doubled = sample!("both-1").replace("\"reverse\":\t0", "\"reverse\":\t1");
        assert!(parse(&doubled).is_err());
    }

    proptest! {
        #[test]
        fn garbage_is_refused(text in "\\PC*") {
            prop_assert!(parse(&text).is_err());
        }

        /// A changed byte of a number or word may give another figure, but no invalid one.
        #[test]
        fn a_changed_byte_never_gives_an_impossible_figure(
            which in 0..WHOLE.len(), at: prop::sample::Index, byte in 0x20_u8..0x7f,
        ) {
            let mut bytes = WHOLE[which].as_bytes().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(found) = parse(&String::from_utf8_lossy(&bytes)) {
                prop_assert!(found.rate().is_finite() && found.rate() > 0.0);
                prop_assert!(found.bytes() > 0);
            }
        }
    }
}
