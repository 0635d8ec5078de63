//! Packets per second: searches for the greatest rate at which no more than one packet in a
//! thousand is lost, by the method of RFC 2544.
//!
//! A size is that of the IP packet that enters the tunnel's interface. 1,420 bytes, the MTU of a
//! WireGuard tunnel on Ethernet, is therefore the largest size without fragments. RFC 2544 counts
//! Ethernet frames, which do not exist inside a tunnel.
//!
//! The sender hands datagrams to the kernel in one of two [`SendMode`]s: each as a message of its
//! own, many per system call (`sendmmsg`), like programs that send small packets; or many as one
//! message that the kernel splits (`UDP_SEGMENT`), like programs that send bulk data. The second is
//! much cheaper for the sender, and for tunnels that read such a message from their interface
//! unsplit. Compare rates of the same [`SendMode`] only.
//!
//! The receiver accepts datagrams merged on the path (`UDP_GRO`), receives many messages per system
//! call (`recvmmsg`), and copies only their first bytes. Sender and receiver compute nothing else,
//! but run on the machine that they measure.
//!
//! The sender may be unable to offer more than gets through, because it is too slow or because a
//! full queue blocks it instead of dropping packets. The figure is then the rate it can offer, and
//! [`Outcome::limited_by_sender`] is set. [`Outcome::limited_by_receiver`] reports that packets
//! passed the tunnel but found the receiver's buffer full.

use super::datagrams::Datagrams;
use crate::session::Session;
use rustix::io::Errno;
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, send, sendmmsg, sockopt};
use std::io::{ErrorKind, IoSlice};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use taupe_lab::error::{Error, Result};
use taupe_os_linux::udp::receive_prefixes;

/// The share of packets that may be lost.
pub const LOSS: f64 = 0.001;

/// Duration of sending in a trial.
const TRIAL: Duration = Duration::from_millis(500);

/// Largest number of trials in a search.
const TRIALS: usize = 8;

/// The search ends at this relative precision.
const RESOLUTION: f64 = 0.02;

/// Largest number of datagrams per system call: the number of segments that every kernel with
/// `UDP_SEGMENT` accepts.
const BATCH: usize = 64;

/// Largest message that the kernel splits, in bytes: the 65,535 of an IP packet without its
/// headers.
const LARGEST: usize = 65_535 - 40 - 8;

/// Shortest interval between batches, at rates below the maximum.
const INTERVAL: Duration = Duration::from_micros(100);

/// Longest delay of the sender that it makes up for. Without this limit, the search would measure
/// how the tunnel handles bursts.
const MAX_LAG: Duration = Duration::from_millis(1);

/// Time for which the receiver sleeps after it has emptied its buffer. If it blocked in a read
/// instead, the thread that delivers a packet would have to wake it.
const PAUSE: Duration = Duration::from_micros(200);

/// Time for which the receiver waits for packets still under way.
const QUIET: Duration = Duration::from_millis(100);

/// Longest time of a trial after its last packet was sent.
const DRAIN: Duration = Duration::from_secs(1);

/// Size of the receive buffer. A longer queue there would lower the rate, because the time counts
/// until the last packet is received.
const BUFFER: usize = 8 << 20;

/// Method of handing packets to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendMode {
    /// One message per packet.
    Each,
    /// Many packets as one message that the kernel splits.
    Segmented,
}

impl SendMode {
    /// Both variants.
    pub const ALL: [Self; 2] = [Self::Each, Self::Segmented];

    /// Returns the number of datagrams of a length per system call.
    const fn max_per_call(self, length: usize) -> usize {
        match self {
            Self::Segmented if length * BATCH > LARGEST => LARGEST / length,
            Self::Each | Self::Segmented => BATCH,
        }
    }
}

/// Result of one trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// Number of packets sent.
    pub sent: u64,
    /// Number of packets received.
    pub received: u64,
    /// Number of messages dropped at the receiver's full buffer; merged packets count as one.
    pub overflowed: u64,
    /// Packets/s that were sent.
    pub offered: f64,
    /// Packets/s that were received, from the first transmission to the last arrival or to the end of
    /// transmission, whichever is later.
    pub rate: f64,
}

impl Trial {
    /// Returns the share that was lost, 0 to 1.
    pub fn loss(&self) -> f64 {
        // On links that duplicate packets, more may arrive than were sent.
        let lost = self.sent.saturating_sub(self.received);
        lost as f64 / self.sent.max(1) as f64
    }

    fn passed(&self) -> bool {
        self.received > 0 && self.loss() <= LOSS
    }
}

/// Result of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The trial with the greatest rate among those that lost no more than [`LOSS`]; `None` if all
    /// lost more.
    pub best: Option<Trial>,
    /// All trials in their order; at least one.
    pub trials: Vec<Trial>,
    /// True if the sender could not offer more than got through: the tunnel may be faster.
    pub limited_by_sender: bool,
}

impl Outcome {
    /// Returns true if the receiver lost the packets in the failed trial with the lowest rate: the
    /// tunnel may be faster.
    pub fn limited_by_receiver(&self) -> bool {
        let failed = self.trials.iter().filter(|trial| !trial.passed());
        let least = failed.min_by(|a, b| a.offered.total_cmp(&b.offered));
        least.is_some_and(|trial| trial.overflowed > 0)
    }

    /// Returns the least share that was lost in any trial.
    pub fn least_loss(&self) -> f64 {
        let losses = self.trials.iter().map(Trial::loss);
        losses.fold(1.0, f64::min)
    }
}

/// Searches for the rate at which packets of a size (of the inner IP packet, in bytes) get through
/// upwards, sent as `mode` says. Takes up to five seconds.
///
/// # Errors
///
/// [`Error::Unmet`] for a size that a datagram cannot have, [`Error::Io`]; for
/// [`SendMode::Segmented`] also if packets of the size do not pass unfragmented.
pub fn measure(session: &Session, size: u16, mode: SendMode) -> Result<Outcome> {
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
            mode,
            number,
            length,
        };
        trial(session, shape, rate)
    })
}

/// Searches for the greatest rate at which a trial passes. The first trial sends as fast as
/// possible.
fn search(mut trial: impl FnMut(Option<f64>) -> Result<Trial>) -> Result<Outcome> {
    let first = trial(None)?;
    let mut trials = vec![first];
    // The best trial so far, and true if it offered less than requested.
    let mut best = first.passed().then_some((first, true));
    // The highest rate known to pass, and the lowest known to fail.
    let (mut low, mut high) = (None, first.offered);
    // The throughput under overload is a good guess, unless the overload itself reduces it.
    let mut next = first.rate * 0.95;
    while !first.passed() && trials.len() < TRIALS && next >= 1.0 {
        let tried = trial(Some(next))?;
        trials.push(tried);
        if tried.passed() {
            // A sender that did not get the processor in time offers less than requested; another
            // trial may succeed.
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

/// Properties of a trial's packets.
#[derive(Debug, Clone, Copy)]
struct Shape {
    mode: SendMode,
    /// Number of the trial, at the beginning of every datagram.
    number: u32,
    /// Length of a datagram's payload, in bytes.
    length: usize,
}

impl Shape {
    /// Returns `count` datagrams in a row.
    fn payload(&self, count: usize) -> Vec<u8> {
        let mut one = vec![0; self.length];
        if let Some(beginning) = one.first_chunk_mut() {
            *beginning = self.number.to_be_bytes();
        }
        one.repeat(count)
    }
}

/// Sends packets for the duration of a trial, at a rate in packets/s or as fast as possible.
fn trial(session: &Session, shape: Shape, rate: Option<f64>) -> Result<Trial> {
    let datagrams = Datagrams::open(session)?;
    sockopt::set_socket_recv_buffer_size_force(&datagrams.server, BUFFER)
        .map_err(Error::io("the buffer of the receiver of packets"))?;
    datagrams.merge()?;
    if shape.mode == SendMode::Segmented {
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
    let last = last.map(|last| last.saturating_duration_since(begin));
    // A sender that is delayed before it ends sends less, and must not make the receiver faster.
    let until = last.map_or(time, |last| last.max(time));
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
    let most = shape.mode.max_per_call(shape.length);
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
            let (gone, unit) = match shape.mode {
                SendMode::Each => {
                    let batch = messages.get_mut(..left).unwrap_or_default();
                    (sendmmsg(socket, batch, SendFlags::empty()), 1)
                }
                SendMode::Segmented => {
                    let complete = payload.get(..left * shape.length).unwrap_or_default();
                    let gone = send(socket, complete, SendFlags::empty());
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

/// Times and sizes of batches.
struct Schedule {
    /// Packets in a batch.
    batch: usize,
    interval: Duration,
    next: Instant,
}

impl Schedule {
    fn new(rate: f64, most: usize, begin: Instant) -> Self {
        let batch = (rate * INTERVAL.as_secs_f64()).clamp(1.0, most as f64) as usize;
        Self {
            batch,
            // A search does not request rates of less than one packet per trial.
            interval: Duration::try_from_secs_f64(batch as f64 / rate).unwrap_or(TRIAL),
            next: begin,
        }
    }

    /// Sleeps until the next batch is due, and returns its size.
    fn wait(&mut self) -> usize {
        let now = Instant::now();
        thread::sleep(self.next.saturating_duration_since(now));
        let forgiven = now.checked_sub(MAX_LAG).unwrap_or(now);
        self.next = self.next.max(forgiven) + self.interval;
        self.batch
    }
}

struct Received {
    count: u64,
    /// Time of the last arrival, if there was any.
    last: Option<Instant>,
}

/// Counts the packets of a trial until `done` is set and no more arrive.
fn receive(socket: &UdpSocket, shape: Shape, done: &AtomicBool) -> Result<Received> {
    let mut found = Received {
        count: 0,
        last: None,
    };
    // Time at which the receiver saw that the sender is done.
    let mut ended = None;
    let mut inlet = ReceiveBuffer::new(shape);
    loop {
        match inlet.take(socket)? {
            ReadResult::Some(count) => {
                found.count += count;
                if count > 0 {
                    found.last = Some(Instant::now());
                }
            }
            ReadResult::Nothing => {
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

/// Result of one receiving system call.
enum ReadResult {
    /// Packets of the trial.
    Some(u64),
    /// Nothing was waiting.
    Nothing,
}

/// Buffers for received messages.
struct ReceiveBuffer {
    shape: Shape,
    /// The first bytes of each message; the rest is not copied, since the kernel has checked the
    /// datagram.
    beginnings: [[u8; 4]; BATCH],
}

impl ReceiveBuffer {
    fn new(shape: Shape) -> Self {
        Self {
            shape,
            beginnings: [[0; 4]; BATCH],
        }
    }

    fn take(&mut self, socket: &UdpSocket) -> Result<ReadResult> {
        let received = match receive_prefixes(socket.as_fd(), &mut self.beginnings) {
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(ReadResult::Nothing),
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(ReadResult::Some(0)),
            Err(error) => return Err(Error::io("receiving packets")(error)),
        };
        let number = self.shape.number.to_be_bytes();
        let messages = received.iter().zip(&self.beginnings);
        let own = messages.filter(|(_, beginning)| **beginning == number);
        // Merged packets have equal lengths.
        let counts = own.map(|(length, _)| length.div_ceil(self.shape.length) as u64);
        Ok(ReadResult::Some(counts.sum()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a tunnel with a capacity in packets/s and a share of loss at any rate.
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
    fn the_capacity_is_found_if_overload_lowers_it() -> Result<()> {
        // Beyond 100,000/s, only 10,000/s get through.
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
    fn a_slow_sender_is_reported() -> Result<()> {
        let found = search(device(1e6, 0.0, 5e5))?;
        assert!(found.limited_by_sender && found.trials.len() == 1);
        assert_eq!(found.best.map(|trial| trial.rate), Some(5e5));
        Ok(())
    }

    #[test]
    fn a_sender_that_is_slow_once_is_tried_again() -> Result<()> {
        // The second trial gets a tenth of the rate it requests.
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
    fn no_rate_if_too_much_is_lost() -> Result<()> {
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
    fn a_receiver_is_the_limit_if_its_buffer_overflows() -> Result<()> {
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
        // Fails only under heavy overload, which does not show that the receiver is the limit.
        assert!(!full(5e5)?.limited_by_receiver());
        // Nothing was lost, so the receiver is not the limit.
        assert!(!search(device(1e6, 0.0, 5e5))?.limited_by_receiver());
        Ok(())
    }

    #[test]
    fn segmented_messages_fit_into_a_datagram() {
        assert_eq!(SendMode::Each.max_per_call(1392), BATCH);
        assert_eq!(SendMode::Segmented.max_per_call(36), BATCH);
        let most = SendMode::Segmented.max_per_call(1392);
        assert!(
            most * 1392 <= LARGEST && (most + 1) * 1392 > LARGEST,
            "{most}"
        );
    }
}
