//! How many packets a second get through: the greatest rate at which no more than one in a
//! thousand is lost, searched for as by RFC 2544.
//!
//! A size is that of the IP packet inside the tunnel, as it enters the tunnel's interface:
//! so 1,420 bytes, which is what a WireGuard tunnel has on Ethernet, is the greatest that
//! needs no fragments. RFC 2544 counts Ethernet frames, which there are none of inside.
//!
//! Packets are datagrams that the sender hands to the kernel in one of two [`Way`]s: each
//! as a message of its own, many with one system call (`sendmmsg`), as programs do that
//! send small packets; or many as one message that the kernel cuts (`UDP_SEGMENT`), as
//! programs do that send much. The second is far cheaper for the sender, and what takes
//! such messages whole from the tunnel's interface is spared as much. So rates compare
//! within a way only.
//!
//! The receiver takes what has been merged on its way as one (`UDP_GRO`), many with one
//! system call (`recvmmsg`), and copies but the beginnings. Neither computes anything, but
//! both run on the machine that they measure. Where the sender cannot offer more than gets
//! through, because it is not faster or because a full queue makes it wait instead of
//! losing packets, all that it can offer is the figure, and [`Outcome::limited_by_sender`]
//! says so; [`Outcome::limited_by_receiver`] says where packets came through and had no
//! place to wait for the receiver.

use super::datagrams::Datagrams;
use crate::session::Session;
use nix::sys::socket::{MsgFlags, MultiHeaders, recvmmsg};
use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, send, sendmmsg, sockopt};
use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use taupe_lab::error::{Error, Result};

/// The share that may be lost.
pub const LOSS: f64 = 0.001;

/// How long packets are sent in a trial.
const TRIAL: Duration = Duration::from_millis(500);

/// How many trials a search may have.
const TRIALS: usize = 8;

/// The search ends when the rate is known this well.
const RESOLUTION: f64 = 0.02;

/// How many datagrams one system call sends or receives at most: as many segments as every
/// kernel takes that cuts messages.
const BATCH: usize = 64;

/// What a message that the kernel cuts may have, in bytes: an IP packet's 65,535, less its
/// headers.
const LARGEST: usize = 65_535 - 40 - 8;

/// How often, at most, a batch is sent at lower rates.
const INTERVAL: Duration = Duration::from_micros(100);

/// After a delay of its own the sender makes up for so much time; the rest it forgets, lest
/// it measure how the tunnel takes bursts.
const DEBT: Duration = Duration::from_millis(1);

/// How long the receiver sleeps when it has taken all there is. Were it to wait for a
/// packet, whoever delivers one would have to wake it.
const PAUSE: Duration = Duration::from_micros(200);

/// The receiver waits so long for packets that are still on their way.
const QUIET: Duration = Duration::from_millis(100);

/// No trial takes longer than this after its last packet was sent.
const DRAIN: Duration = Duration::from_secs(1);

/// What the receiver's socket may hold. What waits there for long lowers the rate, as the
/// time counts until the last has arrived.
const BUFFER: usize = 8 << 20;

/// How the sender hands packets to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A message each.
    Each,
    /// Many as one message.
    Segmented,
}

impl Way {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Each, Self::Segmented];

    /// How many datagrams of that length one system call takes.
    const fn most(self, length: usize) -> usize {
        match self {
            Self::Segmented if length * BATCH > LARGEST => LARGEST / length,
            Self::Each | Self::Segmented => BATCH,
        }
    }
}

/// One trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// How many packets were sent.
    pub sent: u64,
    /// How many of them arrived.
    pub received: u64,
    /// How many that had come through found the receiver's buffer full; several that were
    /// merged are one here.
    pub overflowed: u64,
    /// Packets/s that were sent.
    pub offered: f64,
    /// Packets/s that arrived, from the sending of the first to the arrival of the last.
    pub rate: f64,
}

impl Trial {
    /// The share that was lost, 0 to 1.
    pub fn loss(&self) -> f64 {
        // Where there is duplication, more may arrive than was sent.
        let lost = self.sent.saturating_sub(self.received);
        lost as f64 / self.sent.max(1) as f64
    }

    fn passed(&self) -> bool {
        self.received > 0 && self.loss() <= LOSS
    }
}

/// What a search has found.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The trial with the greatest rate of those that lost no more than [`LOSS`]; `None`
    /// when all lost more.
    pub best: Option<Trial>,
    /// Every trial, in their order; at least one.
    pub trials: Vec<Trial>,
    /// Whether the sender could not offer more than got through: the tunnel may be able to
    /// do more.
    pub limited_by_sender: bool,
}

impl Outcome {
    /// Whether the receiver was what lost packets when the least was too much: the tunnel
    /// may be able to do more.
    pub fn limited_by_receiver(&self) -> bool {
        let failed = self.trials.iter().filter(|trial| !trial.passed());
        let least = failed.min_by(|a, b| a.offered.total_cmp(&b.offered));
        least.is_some_and(|trial| trial.overflowed > 0)
    }

    /// The least share that was lost in any trial.
    pub fn least_loss(&self) -> f64 {
        let losses = self.trials.iter().map(Trial::loss);
        losses.fold(1.0, f64::min)
    }
}

/// Searches for the rate at which packets of a size (in bytes, of the inner IP packet) get
/// through upwards, sent in that way. Takes up to five seconds.
///
/// # Errors
///
/// [`Error::Unmet`] for a size that a datagram cannot have, [`Error::Io`]; among them, of
/// [`Way::Segmented`], a size that does not pass in one piece.
pub fn measure(session: &Session, size: u16, way: Way) -> Result<Outcome> {
    let headers = match session.target() {
        IpAddr::V4(_) => 20 + 8,
        IpAddr::V6(_) => 40 + 8,
    };
    let Some(length) = usize::from(size)
        .checked_sub(headers)
        .filter(|&rest| rest >= 4)
    else {
        return Err(Error::unmet(format!(
            "an IP packet of {size} bytes has no room for a datagram with a number in it"
        )));
    };
    let mut number = 0;
    search(|rate| {
        number += 1;
        let shape = Shape {
            way,
            number,
            length,
        };
        trial(session, shape, rate)
    })
}

/// Searches for the greatest rate at which a trial passes. The first is as fast as can be.
fn search(mut trial: impl FnMut(Option<f64>) -> Result<Trial>) -> Result<Outcome> {
    let first = trial(None)?;
    let mut trials = vec![first];
    // The best so far, and whether it offered less than it was asked for.
    let mut best = first.passed().then_some((first, true));
    // Rates known to pass, and to be too much.
    let (mut low, mut high) = (None, first.offered);
    // What got through under too much load is a good guess, unless the load itself keeps
    // packets from getting through.
    let mut next = first.rate * 0.95;
    while !first.passed() && trials.len() < TRIALS && next >= 1.0 {
        let tried = trial(Some(next))?;
        trials.push(tried);
        if tried.passed() {
            // A sender that did not get the processor when it wanted it offers less than
            // it is asked for, and another trial may be luckier.
            let slow = tried.offered < next * 0.95;
            low = Some(tried.offered.min(next).max(low.unwrap_or(0.0)));
            if best.is_none_or(|(best, _)| tried.rate > best.rate) {
                best = Some((tried, slow));
            }
        } else {
            high = next.min(high);
        }
        next = match low {
            Some(low) if high <= low * (1.0 + RESOLUTION) => break,
            Some(low) => f64::midpoint(low, high),
            None => (tried.rate * 0.95).min(high * 0.6),
        };
    }
    Ok(Outcome {
        best: best.map(|(best, _)| best),
        trials,
        limited_by_sender: best.is_some_and(|(_, slow)| slow),
    })
}

/// What the packets of a trial are like.
#[derive(Debug, Clone, Copy)]
struct Shape {
    way: Way,
    /// The trial's, with which every datagram begins.
    number: u32,
    /// Of a datagram's payload, in bytes.
    length: usize,
}

impl Shape {
    /// So many datagrams, one after the other.
    fn payload(&self, count: usize) -> Vec<u8> {
        let mut one = vec![0; self.length];
        if let Some(beginning) = one.first_chunk_mut() {
            *beginning = self.number.to_be_bytes();
        }
        one.repeat(count)
    }
}

/// Sends packets for a while, at a rate in packets/s or as fast as can be.
fn trial(session: &Session, shape: Shape, rate: Option<f64>) -> Result<Trial> {
    let datagrams = Datagrams::open(session)?;
    sockopt::set_socket_recv_buffer_size_force(&datagrams.server, BUFFER)
        .map_err(Error::io("the buffer of the receiver of packets"))?;
    datagrams.merge()?;
    if shape.way == Way::Segmented {
        datagrams.segment(shape.length)?;
    }
    let done = AtomicBool::new(false);
    let begin = Instant::now();
    let (sent, received) = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&datagrams.server, shape, &done));
        let sent = transmit(&datagrams.client, shape, rate, begin);
        done.store(true, Ordering::Release);
        let received = receiver
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (sent, received)
    });
    let (Sent { count: sent, time }, Received { count, last }) = (sent?, received?);
    let until = last.map_or(time, |last| last.saturating_duration_since(begin));
    Ok(Trial {
        sent,
        received: count,
        overflowed: datagrams.overflowed(session)?,
        offered: sent as f64 / time.as_secs_f64(),
        rate: count as f64 / until.as_secs_f64(),
    })
}

struct Sent {
    count: u64,
    time: Duration,
}

fn transmit(socket: &UdpSocket, shape: Shape, rate: Option<f64>, begin: Instant) -> Result<Sent> {
    let most = shape.way.most(shape.length);
    let payload = shape.payload(most);
    let slices = [IoSlice::new(
        payload.get(..shape.length).unwrap_or_default(),
    )];
    let mut ancillary: Vec<_> = (0..BATCH).map(|_| SendAncillaryBuffer::default()).collect();
    let mut messages: Vec<_> = ancillary
        .iter_mut()
        .map(|none| MMsgHdr::new(&slices, none))
        .collect();
    let mut schedule = rate.map(|rate| Schedule::new(rate, most, begin));
    let mut count = 0;
    loop {
        let due = match &mut schedule {
            None => most,
            Some(schedule) => schedule.wait(),
        };
        let time = begin.elapsed();
        if time >= TRIAL {
            return Ok(Sent { count, time });
        }
        let mut left = due;
        while left > 0 {
            let (gone, unit) = match shape.way {
                Way::Each => {
                    let batch = messages.get_mut(..left).unwrap_or_default();
                    (sendmmsg(socket, batch, SendFlags::empty()), 1)
                }
                Way::Segmented => {
                    let whole = payload.get(..left * shape.length).unwrap_or_default();
                    let gone = send(socket, whole, SendFlags::empty());
                    (gone.map(|bytes| bytes / shape.length), left)
                }
            };
            let gone = match gone {
                Ok(gone) => gone,
                // Lost on this machine: the interface's queue is full.
                Err(Errno::NOBUFS) => unit,
                Err(Errno::INTR) => 0,
                Err(error) => return Err(Error::io("sending packets")(error)),
            };
            count += gone as u64;
            left = left.saturating_sub(gone);
        }
    }
}

/// When to send how many.
struct Schedule {
    /// Packets each time.
    batch: usize,
    interval: Duration,
    next: Instant,
}

impl Schedule {
    fn new(rate: f64, most: usize, begin: Instant) -> Self {
        let batch = (rate * INTERVAL.as_secs_f64()).clamp(1.0, most as f64) as usize;
        Self {
            batch,
            // Rates of less than one packet a trial are none of a search's.
            interval: Duration::try_from_secs_f64(batch as f64 / rate).unwrap_or(TRIAL),
            next: begin,
        }
    }

    /// Sleeps until the next batch is due, and returns its size.
    fn wait(&mut self) -> usize {
        let now = Instant::now();
        thread::sleep(self.next.saturating_duration_since(now));
        let forgiven = now.checked_sub(DEBT).unwrap_or(now);
        self.next = self.next.max(forgiven) + self.interval;
        self.batch
    }
}

struct Received {
    count: u64,
    /// When the last one arrived, if any did.
    last: Option<Instant>,
}

/// Counts the packets of a trial until no more come once it is done.
fn receive(socket: &UdpSocket, shape: Shape, done: &AtomicBool) -> Result<Received> {
    let mut found = Received {
        count: 0,
        last: None,
    };
    // When the sender was found to be done.
    let mut ended = None;
    let mut inlet = Inlet::new(shape);
    loop {
        match inlet.take(socket)? {
            Taken::Some(count) => {
                found.count += count;
                if count > 0 {
                    found.last = Some(Instant::now());
                }
            }
            Taken::Nothing => {
                if done.load(Ordering::Acquire) {
                    let now = Instant::now();
                    let ended = *ended.get_or_insert(now);
                    let latest = found.last.unwrap_or(ended).max(ended);
                    if now >= latest + QUIET || now >= ended + DRAIN {
                        return Ok(found);
                    }
                }
                thread::sleep(PAUSE);
            }
        }
    }
}

/// What a system call has received.
enum Taken {
    /// So many packets of the trial.
    Some(u64),
    /// There was nothing.
    Nothing,
}

/// Where messages arrive.
struct Inlet {
    shape: Shape,
    headers: MultiHeaders<()>,
    /// The rest of each message is not copied: the kernel has checked that it is whole.
    beginnings: [[u8; 4]; BATCH],
}

impl Inlet {
    fn new(shape: Shape) -> Self {
        Self {
            shape,
            headers: MultiHeaders::preallocate(BATCH, None),
            beginnings: [[0; 4]; BATCH],
        }
    }

    fn take(&mut self, socket: &UdpSocket) -> Result<Taken> {
        let mut slices: Vec<_> = self
            .beginnings
            .iter_mut()
            .map(|beginning| [IoSliceMut::new(beginning)])
            .collect();
        let flags = MsgFlags::MSG_TRUNC | MsgFlags::MSG_DONTWAIT;
        let headers = &mut self.headers;
        let received = match recvmmsg(socket.as_raw_fd(), headers, &mut slices, flags, None) {
            Ok(received) => received,
            Err(nix::Error::EAGAIN) => return Ok(Taken::Nothing),
            Err(nix::Error::EINTR) => return Ok(Taken::Some(0)),
            Err(error) => return Err(Error::io("receiving packets")(error)),
        };
        let number = self.shape.number.to_be_bytes();
        let own = received.filter(|message| message.iovs().next() == Some(&number[..]));
        // Those that were merged are of one length.
        let counts = own.map(|message| message.bytes.div_ceil(self.shape.length) as u64);
        Ok(Taken::Some(counts.sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tunnel that lets so many packets a second through, and loses a share in any case.
    fn device(capacity: f64, loss: f64, sender: f64) -> impl FnMut(Option<f64>) -> Result<Trial> {
        move |rate| {
            let offered = rate.unwrap_or(f64::INFINITY).min(sender);
            let rate = offered.min(capacity) * (1.0 - loss);
            Ok(Trial {
                sent: (offered * 0.5) as u64,
                received: (rate * 0.5) as u64,
                overflowed: 0,
                offered,
                rate,
            })
        }
    }

    #[test]
    fn the_capacity_is_found() -> Result<()> {
        for capacity in [2_000.0, 150_000.0, 700_000.0, 990_000.0] {
            let found = search(device(capacity, 0.0, 1e6))?;
            let best = found.best.map_or(0.0, |trial| trial.rate);
            assert!(
                best <= capacity && best > capacity * 0.94,
                "{best} of {capacity}: {found:?}"
            );
            assert!(!found.limited_by_sender && found.trials.len() <= TRIALS);
        }
        Ok(())
    }

    #[test]
    fn a_device_that_chokes_on_too_much_is_found_too() -> Result<()> {
        // Beyond 100,000/s, a tenth of that.
        let found = search(|rate| {
            let offered = rate.unwrap_or(1e6);
            let through = if offered > 1e5 { 1e4 } else { offered };
            device(through, 0.0, 1e6)(Some(offered))
        })?;
        let best = found.best.map_or(0.0, |trial| trial.rate);
        assert!(best > 7e4 && best <= 1e5, "{found:?}");
        Ok(())
    }

    #[test]
    fn a_sender_that_is_too_slow_is_told() -> Result<()> {
        let found = search(device(1e6, 0.0, 5e5))?;
        assert!(found.limited_by_sender && found.trials.len() == 1);
        assert_eq!(found.best.map(|trial| trial.rate), Some(5e5));
        Ok(())
    }

    #[test]
    fn a_sender_that_is_slow_once_is_asked_again() -> Result<()> {
        // The second trial gets a tenth of what it asks for.
        let mut number = 0;
        let found = search(|rate| {
            number += 1;
            let rate = rate.map(|rate| if number == 2 { rate / 10.0 } else { rate });
            device(1e5, 0.0, 1e6)(rate)
        })?;
        let best = found.best.map_or(0.0, |trial| trial.rate);
        assert!(best > 8e4 && !found.limited_by_sender, "{found:?}");
        Ok(())
    }

    #[test]
    fn where_too_much_is_lost_there_is_no_rate() -> Result<()> {
        let found = search(device(1e6, 0.01, 1e6))?;
        assert_eq!(found.best, None);
        assert!((found.least_loss() - 0.01).abs() < 0.001, "{found:?}");
        let nothing = search(device(0.0, 0.0, 1e6))?;
        assert_eq!((nothing.best, nothing.trials.len()), (None, 1));
        Ok(())
    }

    #[test]
    fn duplicates_are_no_negative_loss() {
        let trial = Trial {
            sent: 10,
            received: 20,
            overflowed: 0,
            offered: 1.0,
            rate: 2.0,
        };
        assert_eq!(trial.loss(), 0.0);
    }

    #[test]
    fn a_receiver_is_the_limit_where_the_least_too_much_overflows() -> Result<()> {
        let full = |beyond: f64| {
            search(move |rate| {
                let mut device = device(1e5, 0.0, 1e6);
                let trial = device(rate)?;
                let overflowed = u64::from(trial.offered > beyond);
                Ok(Trial {
                    overflowed,
                    ..trial
                })
            })
        };
        assert!(full(1e5)?.limited_by_receiver());
        // Only when far too much is sent, which says nothing.
        assert!(!full(5e5)?.limited_by_receiver());
        // Nothing was lost, so nothing is limited by who takes it.
        assert!(!search(device(1e6, 0.0, 5e5))?.limited_by_receiver());
        Ok(())
    }

    #[test]
    fn one_message_is_no_longer_than_can_be() {
        assert_eq!(Way::Each.most(1392), BATCH);
        assert_eq!(Way::Segmented.most(36), BATCH);
        let most = Way::Segmented.most(1392);
        assert!(
            most * 1392 <= LARGEST && (most + 1) * 1392 > LARGEST,
            "{most}"
        );
    }
}
