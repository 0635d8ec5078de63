//! Round trips, measured by the lab itself: UDP datagrams of 64 bytes that the other
//! machine sends back.
//!
//! Both ends wait in `recv` and do not spin, as programs do that use a network now and
//! then; so what waking a thread costs is in every figure, twice on either side, and is
//! the same for all that is compared. Without a tunnel that is nearly all there is.

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

/// What has not been answered by then counts as lost.
pub const TIMEOUT: Duration = Duration::from_secs(1);

/// After so long no further round trip begins.
const PATIENCE: Duration = Duration::from_secs(5);

/// The length of a datagram's payload, in bytes.
const LENGTH: usize = 64;

/// After so many lost in a row there is no point in going on.
const SILENCE: u64 = 5;

/// How many round trips one measurement has at most; each takes some bytes of memory.
const MOST: u64 = 1_000_000;

/// How often the receiver looks whether it is done.
const LOOK: Duration = Duration::from_millis(20);

/// Of the time that a transfer needs to fill the tunnel.
const RAMP: Duration = Duration::from_millis(500);

/// The shares of which a distribution tells the quantile.
const SHARES: [f64; 14] = [
    0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999, 1.0,
];

/// How long round trips took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RoundTrips {
    /// Of each that was answered within [`TIMEOUT`], in seconds.
    pub answered: Vec<f64>,
    /// How many were not.
    pub lost: u64,
}

impl RoundTrips {
    /// The seconds within which a share (0 to 1) of all round trips was answered. Lost ones
    /// are later than any other: were they left out, who drops packets instead of queueing
    /// them would look the faster for it. `None` where the share was never answered, and
    /// when there are too few to tell: a share of 0.999 takes 1,000.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let last = self.answered.len().checked_sub(1)? as f64;
        let all = last + self.lost as f64;
        let place = share * all;
        if !tells(all + 1.0, share) || place.ceil() > last {
            return None;
        }
        // Of a single answer, any share is the same.
        statistics::quantile(&self.answered, place / last.max(1.0))
    }

    /// As [`quantile`](Self::quantile), of those that were answered: for links that lose
    /// a share themselves, whatever the tunnel does.
    pub fn quantile_of_answered(&self, share: f64) -> Option<f64> {
        let told = tells(self.answered.len() as f64, share);
        told.then(|| statistics::quantile(&self.answered, share))?
    }

    /// The share that was lost, 0 to 1.
    pub fn loss(&self) -> f64 {
        let all = self.lost + self.answered.len() as u64;
        self.lost as f64 / all.max(1) as f64
    }

    /// Adds those of another round.
    pub fn extend(&mut self, other: Self) {
        self.answered.extend(other.answered);
        self.lost += other.lost;
    }

    /// As it is kept in a report.
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

/// Whether so many have at least one beyond a share.
fn tells(count: f64, share: f64) -> bool {
    // Rounding makes a little less than 1 of 1,000 × (1 − 0.999).
    share >= 1.0 || count * (1.0 - share) >= 0.999
}

/// Round trips while data flows.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The round trips.
    pub round_trips: RoundTrips,
    /// The transfer meanwhile.
    pub load: Transfer,
}

/// One round trip after the other: the next begins when the former has been answered, or
/// lost. So many, or, on a slow link, as many as fit into five seconds.
///
/// # Errors
///
/// [`Error::Unmet`] when nothing is answered at all any more, [`Error::Io`].
pub fn idle(session: &Session, count: usize) -> Result<RoundTrips> {
    with_echo(session, |socket| ping_pong(socket, count))
}

/// Sends requests at a fixed pace, whether the former are answered or not, while `work` is
/// done; at most a million of them. Returns when the last is answered or lost.
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

/// Two requests each millisecond for `seconds`, while one TCP stream upwards takes all that
/// the tunnel has.
///
/// # Errors
///
/// As [`during`] and [`iperf::transfer`].
pub fn loaded(session: &Session, servers: &mut Servers, seconds: u32) -> Result<Loaded> {
    let flow = Flow {
        direction: Direction::Up,
        streams: 1,
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

/// Does something with a socket while the server's machine sends back what comes from it.
fn with_echo<T>(session: &Session, client: impl FnOnce(&UdpSocket) -> Result<T>) -> Result<T> {
    let datagrams = Datagrams::open(session)?;
    thread::scope(|scope| {
        scope.spawn(|| echo(&datagrams.server));
        let result = client(&datagrams.client);
        // Receiving ends with an empty datagram.
        rustix::net::shutdown(&datagrams.server, Shutdown::Both)
            .map_err(Error::io("ending the echo"))?;
        result
    })
}

/// Sends back whatever comes, until the socket is shut down.
fn echo(socket: &UdpSocket) {
    let mut datagram = [0; LENGTH];
    while let Ok(length @ 1..) = socket.recv(&mut datagram) {
        // What cannot be sent is lost, and counted as such by the other side.
        let _ = socket.send(datagram.get(..length).unwrap_or_default());
    }
}

/// What a request says of itself, and its answer says again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    sequence: u64,
    /// Since the first of them.
    sent: Duration,
}

impl Stamp {
    fn write(self) -> [u8; LENGTH] {
        let mut datagram = [0; LENGTH];
        // Some 500 years fit.
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

/// Waits for a datagram, and says when it came after `begin`. `None` when none has come
/// by the deadline; what is no stamp is passed over.
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
        // Answers to former requests, which count as lost already, are passed over.
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
    // How many were sent, and when the last of them counts as lost.
    let end = OnceLock::new();
    thread::scope(|scope| {
        let sender = scope.spawn(|| send(socket, begin, pace, &done));
        let receiver = scope.spawn(|| receive(socket, begin, &end));
        let result = work();
        done.store(true, Ordering::Relaxed);
        let sent = join(sender);
        // Set nowhere else.
        let _ = end.set((sent, Instant::now() + TIMEOUT));
        let answered = join(receiver)?;
        let lost = sent - answered.len() as u64;
        Ok((RoundTrips { answered, lost }, result))
    })
}

/// Sends requests until it is done; returns how many.
fn send(socket: &UdpSocket, begin: Instant, pace: Duration, done: &AtomicBool) -> u64 {
    let mut due = begin;
    for sequence in 0..MOST {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if done.load(Ordering::Relaxed) {
            return sequence;
        }
        let sent = begin.elapsed();
        // What cannot be sent is lost.
        let _ = socket.send(&Stamp { sequence, sent }.write());
        due += pace;
    }
    MOST
}

/// Takes answers until there can be no more; how long each took, in seconds.
fn receive(socket: &UdpSocket, begin: Instant, end: &OnceLock<(u64, Instant)>) -> Result<Vec<f64>> {
    let mut known = Vec::new();
    let mut answered = Vec::new();
    loop {
        if let Some(&(sent, latest)) = end.get()
            && (answered.len() as u64 == sent || Instant::now() >= latest)
        {
            return Ok(answered);
        }
        let Some((stamp, came)) = answer(socket, begin, Instant::now() + LOOK)? else {
            continue;
        };
        let (place, took) = (stamp.sequence as usize, came.saturating_sub(stamp.sent));
        if stamp.sequence >= MOST || took > TIMEOUT {
            continue;
        }
        known.resize(known.len().max(place + 1), false);
        // Only the first of several answers to one request counts.
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
    fn stamps_return_as_they_were() {
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
    fn no_quantile_is_told_that_the_answers_do_not_show() {
        let hundred = RoundTrips {
            answered: (0..100).map(f64::from).collect(),
            lost: 25,
        };
        // Of 125 round trips, 62 take longer, or for ever.
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
    fn a_thousand_answers_have_a_thousandth() {
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

    /// A server that answers each request only when the next has come.
    #[test]
    fn late_answers_are_not_taken_for_others() -> Result<()> {
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
