//! Round trips of UDP datagrams of 64 bytes, which the other machine echoes.
//!
//! Both ends block in `recv` and do not spin, like programs that use the network now and then.
//! Every figure therefore includes the cost of waking a thread once on each side, equally for all
//! contestants. Without a tunnel it is nearly all of the figure.

use super::datagrams::Datagrams;
use super::iperf::{self, Direction, Flow, Transfer};
use super::servers::Servers;
use crate::results::Distribution;
use crate::session::Session;
use crate::statistics;
use rustix::net::Shutdown;
use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};
use taupe_lab::error::{Error, Result};

/// A datagram without an answer after this time counts as lost.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// No further round trip begins after this time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Length of a datagram's payload, in bytes.
const LENGTH: usize = 64;

/// The measurement ends after this number of consecutive losses.
const SILENCE: u64 = 5;

/// Largest number of round trips in one measurement, which limits its memory.
const MAX_DATAGRAMS: u64 = 1_000_000;

/// Interval at which the receiver checks whether it is done.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Time in which a transfer fills the tunnel.
const RAMP: Duration = Duration::from_millis(500);

/// Shares for which a distribution has a quantile.
const SHARES: [f64; 14] = [
    0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 1.0,
];

/// Times of round trips.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoundTrips {
    /// Seconds of each round trip answered within [`TIMEOUT`].
    pub answered: Vec<f64>,
    /// Number of lost round trips.
    pub lost: u64,
}

impl RoundTrips {
    /// Returns the seconds within which a share (0 to 1) of all round trips was answered. Lost ones
    /// count as slower than all others; otherwise a tunnel that drops packets would look faster
    /// than one that queues them. `None` if the share was never answered, or if there are too few
    /// round trips: a share of 0.999 needs 1,000.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let last = self.answered.len().checked_sub(1)? as f64;
        let all = last + self.lost as f64;
        let place = share * all;
        if !is_measurable(all + 1.0, share) || place.ceil() > last {
            return None;
        }
        // With a single answer all shares are equal.
        statistics::quantile(&self.answered, place / last.max(1.0))
    }

    /// As [`quantile`](Self::quantile), but only of answered round trips: for links that lose
    /// packets themselves.
    pub fn quantile_of_answered(&self, share: f64) -> Option<f64> {
        let reported = is_measurable(self.answered.len() as f64, share);
        reported.then(|| statistics::quantile(&self.answered, share))?
    }

    /// Returns the share that was lost, 0 to 1.
    pub fn loss(&self) -> f64 {
        let all = self.lost + self.answered.len() as u64;
        self.lost as f64 / all.max(1) as f64
    }

    /// Adds the round trips of another round.
    pub fn extend(&mut self, other: Self) {
        self.answered.extend(other.answered);
        self.lost += other.lost;
    }

    /// Returns the distribution for a report.
    pub fn distribution(&self, metric: &str, contestant: &str) -> Distribution {
        let quantiles = SHARES
            .iter()
            .filter_map(|&share| Some((share, self.quantile(share)?)));
        Distribution {
            metric: metric.to_owned(),
            contestant: contestant.to_owned(),
            count: self.lost + self.answered.len() as u64,
            lost: self.lost,
            quantiles: quantiles.collect(),
        }
    }
}

/// Returns true if at least one of `count` round trips lies beyond the share.
fn is_measurable(count: f64, share: f64) -> bool {
    // Rounding makes 1,000 × (1 − 0.999) slightly less than 1.
    share >= 1.0 || count * (1.0 - share) >= 0.999
}

/// Round trips under load.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The round trips.
    pub round_trips: RoundTrips,
    /// The transfer that is the load.
    pub load: Transfer,
}

/// Measures one round trip after another: the next begins when the last one was answered or lost.
/// Ends after `count`, or after five seconds on a slow link.
///
/// # Errors
///
/// [`Error::Unmet`] if no more answers arrive, [`Error::Io`].
pub fn idle(session: &Session, count: usize) -> Result<RoundTrips> {
    with_echo(session, |socket| ping_pong(socket, count))
}

/// Sends requests at a fixed pace, answered or not, while `work` runs; at most a million. Returns
/// when the last one was answered or lost.
///
/// # Errors
///
/// [`Error::Io`].
pub fn during<T>(
    session: &Session,
    pace: Duration,
    work: impl FnOnce() -> T,
) -> Result<(RoundTrips, T)> {
    with_echo(session, |socket| stream(socket, pace, work))
}

/// Sends two requests per millisecond for `seconds`, while TCP streams from client to server fill
/// the tunnel.
///
/// # Errors
///
/// As [`during`] and [`iperf::transfer`].
pub fn loaded(
    session: &Session,
    servers: &mut Servers,
    streams: u32,
    seconds: u32,
) -> Result<Loaded> {
    let flow = Flow {
        direction: Direction::Up,
        streams,
        seconds: seconds.saturating_add(1),
    };
    thread::scope(|scope| {
        let load = scope.spawn(|| iperf::transfer(session, servers, flow));
        thread::sleep(RAMP);
        let pace = Duration::from_micros(500);
        let round_trips = during(session, pace, || {
            thread::sleep(Duration::from_secs(seconds.into()));
        });
        Ok(Loaded {
            load: join(load)?,
            round_trips: round_trips?.0,
        })
    })
}

/// Runs `client` with a socket whose datagrams the server's machine echoes.
fn with_echo<T>(session: &Session, client: impl FnOnce(&UdpSocket) -> Result<T>) -> Result<T> {
    let datagrams = Datagrams::open(session)?;
    thread::scope(|scope| {
        scope.spawn(|| echo(&datagrams.server));
        let result = client(&datagrams.client);
        // `recv` then returns an empty datagram, which ends the echo.
        rustix::net::shutdown(&datagrams.server, Shutdown::Both)
            .map_err(Error::io("ending the echo"))?;
        result
    })
}

/// Echoes every datagram until the socket is shut down.
fn echo(socket: &UdpSocket) {
    let mut datagram = [0; LENGTH];
    while let Ok(length @ 1..) = socket.recv(&mut datagram) {
        // The other side counts an unsent echo as lost.
        let _ = socket.send(datagram.get(..length).unwrap_or_default());
    }
}

/// Content of a request, which the answer repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    sequence: u64,
    /// Time since the first request.
    sent: Duration,
}

impl Stamp {
    fn write(self) -> [u8; LENGTH] {
        let mut datagram = [0; LENGTH];
        // 64 bits hold 500 years.
        let nanoseconds = self.sent.as_nanos() as u64;
        let stamp = [self.sequence.to_be_bytes(), nanoseconds.to_be_bytes()];
        datagram[..16].copy_from_slice(stamp.as_flattened());
        datagram
    }

    fn read(datagram: &[u8]) -> Option<Self> {
        let datagram: &[u8; LENGTH] = datagram.try_into().ok()?;
        let (sequence, rest) = datagram.split_first_chunk()?;
        Some(Self {
            sequence: u64::from_be_bytes(*sequence),
            sent: Duration::from_nanos(u64::from_be_bytes(*rest.first_chunk()?)),
        })
    }
}

/// Waits for a datagram, and returns its time since `begin`. `None` at the deadline. Ignores
/// datagrams without a stamp.
fn answer(
    socket: &UdpSocket,
    begin: Instant,
    deadline: Instant,
) -> Result<Option<(Stamp, Duration)>> {
    let mut datagram = [0; LENGTH + 1];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        let failed = || Error::io("receiving an answer");
        socket.set_read_timeout(Some(left)).map_err(failed())?;
        match socket.recv(&mut datagram) {
            Ok(length) => {
                let now = begin.elapsed();
                let stamp = datagram.get(..length).and_then(Stamp::read);
                if let Some(stamp) = stamp {
                    return Ok(Some((stamp, now)));
                }
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
                _ => return Err(failed()(error)),
            },
        }
    }
}

fn ping_pong(socket: &UdpSocket, count: usize) -> Result<RoundTrips> {
    let begin = Instant::now();
    let mut found = RoundTrips::default();
    let mut silence = 0;
    for sequence in 0..count as u64 {
        let sent = begin.elapsed();
        if sent > PATIENCE {
            break;
        }
        let request = Stamp { sequence, sent };
        socket
            .send(&request.write())
            .map_err(Error::io("sending a request"))?;
        let deadline = Instant::now() + TIMEOUT;
        silence += 1;
        // Ignores answers to earlier requests, which already count as lost.
        while let Some((stamp, came)) = answer(socket, begin, deadline)? {
            if stamp == request {
                found.answered.push(came.saturating_sub(sent).as_secs_f64());
                silence = 0;
                break;
            }
        }
        if silence > 0 {
            found.lost += 1;
        }
        if silence == SILENCE {
            return Err(Error::unmet(format!(
                "after {} round trips, {SILENCE} in a row got no answer within {TIMEOUT:?}",
                found.answered.len()
            )));
        }
    }
    Ok(found)
}

fn stream<T>(
    socket: &UdpSocket,
    pace: Duration,
    work: impl FnOnce() -> T,
) -> Result<(RoundTrips, T)> {
    let begin = Instant::now();
    let done = AtomicBool::new(false);
    // Number of requests sent, and the time at which the last one counts as lost.
    let end = OnceLock::new();
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(socket, begin, pace, &done));
        let receiver = scope.spawn(|| receive(socket, begin, &end));
        let result = work();
        done.store(true, Ordering::Relaxed);
        let sent = join(sender);
        // This is the only place that sets it.
        let _ = end.set((sent, Instant::now() + TIMEOUT));
        let answered = join(receiver)?;
        let lost = sent - answered.len() as u64;
        Ok((RoundTrips { answered, lost }, result))
    })
}

/// Sends requests until `done` is set; returns their number.
fn send(socket: &UdpSocket, begin: Instant, pace: Duration, done: &AtomicBool) -> u64 {
    let mut due = begin;
    for sequence in 0..MAX_DATAGRAMS {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if done.load(Ordering::Relaxed) {
            return sequence;
        }
        let sent = begin.elapsed();
        // An unsent request counts as lost.
        let _ = socket.send(&Stamp { sequence, sent }.write());
        due += pace;
    }
    MAX_DATAGRAMS
}

/// Receives answers until no more can arrive; returns the seconds of each.
fn receive(socket: &UdpSocket, begin: Instant, end: &OnceLock<(u64, Instant)>) -> Result<Vec<f64>> {
    let mut known = Vec::new();
    let mut answered = Vec::new();
    loop {
        if let Some(&(sent, latest)) = end.get()
            && (answered.len() as u64 == sent || Instant::now() >= latest)
        {
            return Ok(answered);
        }
        let Some((stamp, came)) = answer(socket, begin, Instant::now() + POLL_INTERVAL)? else {
            continue;
        };
        let (place, took) = (stamp.sequence as usize, came.saturating_sub(stamp.sent));
        if stamp.sequence >= MAX_DATAGRAMS || took > TIMEOUT {
            continue;
        }
        known.resize(known.len().max(place + 1), false);
        // Only the first answer to a request counts.
        if !std::mem::replace(&mut known[place], true) {
            answered.push(took.as_secs_f64());
        }
    }
}

fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_round_trip() {
        let stamp = Stamp {
            sequence: u64::MAX - 1,
            sent: Duration::from_nanos(1_234_567_890_123),
        };
        let datagram = stamp.write();
        assert_eq!(Stamp::read(&datagram), Some(stamp));
        assert_eq!(Stamp::read(&datagram[1..]), None);
        assert_eq!(Stamp::read(&[0; LENGTH + 1]), None);
    }

    #[test]
    fn quantiles_need_enough_answers() {
        let hundred = RoundTrips {
            answered: (0..100).map(f64::from).collect(),
            lost: 25,
        };
        // 62 of 125 round trips take longer or are lost.
        assert_eq!(hundred.quantile(0.5), Some(62.0));
        for never in [0.8, 0.99, 0.999, 1.0] {
            assert_eq!(hundred.quantile(never), None, "{never}");
        }
        assert_eq!(hundred.quantile_of_answered(0.5), Some(49.5));
        assert_eq!(hundred.quantile_of_answered(0.99), Some(98.01));
        assert_eq!(hundred.quantile_of_answered(0.999), None);
        assert_eq!(hundred.quantile_of_answered(1.0), Some(99.0));
        assert_eq!(hundred.loss(), 0.2);
        let distribution = hundred.distribution("latency/idle", "direct");
        assert_eq!((distribution.count, distribution.lost), (125, 25));
        let rising = distribution
            .quantiles
            .is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1);
        assert!(rising, "{distribution:?}");
        assert_eq!(RoundTrips::default().quantile(1.0), None);
        assert_eq!(RoundTrips::default().loss(), 0.0);
    }

    #[test]
    fn a_thousand_answers_have_a_p99_9() {
        let thousand = RoundTrips {
            answered: (0..1000).map(f64::from).collect(),
            lost: 0,
        };
        assert!(thousand.quantile(0.999).is_some());
        assert_eq!(thousand.quantile(1.0), Some(999.0));
        let one = RoundTrips {
            answered: vec![7.0],
            lost: 0,
        };
        assert_eq!(
            (one.quantile(0.0), one.quantile(1.0)),
            (Some(7.0), Some(7.0))
        );
    }

    /// The server answers each request only after the next has arrived.
    #[test]
    fn late_answers_are_not_mistaken_for_others() -> Result<()> {
        let failed = || Error::io("sockets of the test");
        let server = UdpSocket::bind("127.0.0.1:0").map_err(failed())?;
        let client = UdpSocket::bind("127.0.0.1:0").map_err(failed())?;
        let addresses = (client.local_addr(), server.local_addr());
        server
            .connect(addresses.0.map_err(failed())?)
            .map_err(failed())?;
        client
            .connect(addresses.1.map_err(failed())?)
            .map_err(failed())?;
        thread::spawn(move || {
            let mut former = [0; LENGTH];
            let mut datagram = [0; LENGTH];
            server.recv(&mut former)?;
            while let Ok(1..) = server.recv(&mut datagram) {
                server.send(&former)?;
                server.send(&datagram)?;
                former = datagram;
            }
            std::io::Result::Ok(())
        });
        let found = ping_pong(&client, 5)?;
        assert_eq!((found.answered.len(), found.lost), (4, 1));
        assert!(found.answered.iter().all(|&took| took < 1.0), "{found:?}");
        Ok(())
    }
}
