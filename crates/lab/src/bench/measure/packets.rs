//! How many packets a second get through: the greatest rate at which no more than one in a
//! thousand is lost, searched for as by RFC 2544.
//!
//! A size is that of the IP packet inside the tunnel, as it enters the tunnel's interface:
//! so 1,420 bytes, which is what a WireGuard tunnel has on Ethernet, is the greatest that
//! needs no fragments. RFC 2544 counts Ethernet frames, which there are none of inside.
//!
//! Packets are datagrams that the sender hands to the kernel one by one (`sendmmsg`, no
//! segmentation offload), as programs do that send small packets; the receiver takes them
//! one by one too. Neither computes anything, but both run on the machine that they
//! measure. Where the sender cannot offer more than gets through, because it is not faster
//! or because a full queue makes it wait instead of losing packets, all that it can offer
//! is the figure, and [`Outcome::limited_by_sender`] says so.

use super::datagrams::Datagrams;
use crate::bench::session::Session;
use crate::error::{Error, Result};
use rustix::io::Errno;
use rustix::net::{MMsgHdr, RecvFlags, SendAncillaryBuffer, SendFlags, recv, sendmmsg, sockopt};
use std::io::IoSlice;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// The share that may be lost.
pub const LOSS: f64 = 0.001;

/// How long packets are sent in a trial.
const TRIAL: Duration = Duration::from_millis(500);

/// How many trials a search may have.
const TRIALS: usize = 8;

/// The search ends when the rate is known this well.
const RESOLUTION: f64 = 0.02;

/// How many datagrams one system call sends at most.
const BATCH: usize = 32;

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

/// One trial.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trial {
    /// How many packets were sent.
    pub sent: u64,
    /// How many of them arrived.
    pub received: u64,
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
    /// The least share that was lost in any trial.
    pub fn least_loss(&self) -> f64 {
        let losses = self.trials.iter().map(Trial::loss);
        losses.fold(1.0, f64::min)
    }
}

/// Searches for the rate at which packets of a size (in bytes, of the inner IP packet) get
/// through upwards. Takes up to five seconds.
///
/// # Errors
///
/// [`Error::Unmet`] for a size that a datagram cannot have, [`Error::Io`].
pub fn measure(session: &Session, size: u16) -> Result<Outcome> {
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
        trial(session, number, length, rate)
    })
}

/// Searches for the greatest rate at which a trial passes. The first is as fast as can be.
fn search(mut trial: impl FnMut(Option<f64>) -> Result<Trial>) -> Result<Outcome> {
    let first = trial(None)?;
    let mut trials = vec![first];
    let mut limited_by_sender = first.passed();
    // Rates known to pass, and to be too much.
    let (mut low, mut high) = (None, first.offered);
    // What got through under too much load is a good guess, unless the load itself keeps
    // packets from getting through.
    let mut next = first.rate * 0.95;
    while !limited_by_sender && trials.len() < TRIALS && next >= 1.0 {
        let tried = trial(Some(next))?;
        trials.push(tried);
        if tried.passed() {
            low = Some(next);
            // It was asked for more than it can do without being told to go as fast as it
            // can; there is nothing in between.
            limited_by_sender = tried.offered < next * 0.95;
        } else {
            high = next;
        }
        next = match low {
            Some(low) if high <= low * (1.0 + RESOLUTION) => break,
            Some(low) => f64::midpoint(low, high),
            None => (tried.rate * 0.95).min(high * 0.6),
        };
    }
    let passed = trials.iter().copied().filter(Trial::passed);
    Ok(Outcome {
        best: passed.max_by(|a, b| a.rate.total_cmp(&b.rate)),
        trials,
        limited_by_sender,
    })
}

/// Sends packets for a while, at a rate in packets/s or as fast as can be.
fn trial(session: &Session, number: u32, length: usize, rate: Option<f64>) -> Result<Trial> {
    let datagrams = Datagrams::open(session)?;
    sockopt::set_socket_recv_buffer_size_force(&datagrams.server, BUFFER)
        .map_err(Error::io("the buffer of the receiver of packets"))?;
    let done = AtomicBool::new(false);
    let begin = Instant::now();
    let (sent, received) = thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&datagrams.server, number, &done));
        let sent = send(&datagrams.client, number, length, rate, begin);
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
        offered: sent as f64 / time.as_secs_f64(),
        rate: count as f64 / until.as_secs_f64(),
    })
}

struct Sent {
    count: u64,
    time: Duration,
}

fn send(
    socket: &UdpSocket,
    number: u32,
    length: usize,
    rate: Option<f64>,
    begin: Instant,
) -> Result<Sent> {
    let mut payload = vec![0; length];
    if let Some(beginning) = payload.first_chunk_mut() {
        *beginning = number.to_be_bytes();
    }
    let slices = [IoSlice::new(&payload)];
    let mut ancillary: [SendAncillaryBuffer<'_, '_, '_>; BATCH] = Default::default();
    let mut messages: Vec<_> = ancillary
        .iter_mut()
        .map(|none| MMsgHdr::new(&slices, none))
        .collect();
    let mut schedule = rate.map(|rate| Schedule::new(rate, begin));
    let mut count = 0;
    loop {
        let due = match &mut schedule {
            None => BATCH,
            Some(schedule) => schedule.wait(),
        };
        let time = begin.elapsed();
        if time >= TRIAL {
            return Ok(Sent { count, time });
        }
        let mut batch = messages.get_mut(..due.min(BATCH)).unwrap_or_default();
        while !batch.is_empty() {
            let gone = match sendmmsg(socket, batch, SendFlags::empty()) {
                Ok(gone) => gone,
                // Lost on this machine: the interface's queue is full.
                Err(Errno::NOBUFS) => 1,
                Err(Errno::INTR) => 0,
                Err(error) => return Err(Error::io("sending packets")(error)),
            };
            count += gone as u64;
            batch = batch.get_mut(gone..).unwrap_or_default();
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
    fn new(rate: f64, begin: Instant) -> Self {
        let batch = (rate * INTERVAL.as_secs_f64()).clamp(1.0, BATCH as f64) as usize;
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
fn receive(socket: &UdpSocket, number: u32, done: &AtomicBool) -> Result<Received> {
    let mut found = Received {
        count: 0,
        last: None,
    };
    // When the sender was found to be done.
    let mut ended = None;
    // The rest of each packet is not copied: the kernel has checked that it is whole.
    let mut beginning = [0; 4];
    let flags = RecvFlags::TRUNC | RecvFlags::DONTWAIT;
    loop {
        match recv(socket, &mut beginning[..], flags) {
            Ok((4, _)) if beginning == number.to_be_bytes() => {
                found.count += 1;
                found.last = Some(Instant::now());
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
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
            Err(error) => return Err(Error::io("receiving packets")(error)),
        }
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
            offered: 1.0,
            rate: 2.0,
        };
        assert_eq!(trial.loss(), 0.0);
    }
}
