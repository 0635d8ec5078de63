//! The threads that move packets between the two machines.

use super::direction::LinkDirection;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;
use taupe_lab::error::{Error, Result};
use taupe_os_linux::tun::{READ_BUFFER_LEN, Read, Tun, WriteError};
use taupe_packet::merge::TunWrite;

/// Number of packets that are read before due packets are delivered.
const BATCH: usize = 64;

/// Source and destination of a thread, and the direction of the link between them.
pub(super) type Connection = (Arc<Tun>, Arc<Tun>, Arc<Mutex<LinkDirection>>);

/// Moves packets until it is dropped, with a thread for each direction.
#[derive(Debug)]
pub(super) struct Forwarder {
    stop: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl Forwarder {
    /// Starts the threads.
    pub(super) fn start(connections: [Connection; 2]) -> Result<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC).map_err(Error::io("eventfd"))?;
        let mut forwarder = Self {
            stop: Arc::new(stop),
            threads: Vec::new(),
        };
        for (from, to, direction) in connections {
            // The thread reads until no packet is left, so reads must not block.
            rustix::io::ioctl_fionbio(&from, true).map_err(Error::io("FIONBIO on a TUN"))?;
            let stop = Arc::clone(&forwarder.stop);
            let thread = thread::Builder::new().name("link".to_owned());
            let thread = thread.spawn(move || {
                if let Err(error) = forward(&from, &to, &direction, &stop) {
                    eprintln!("the emulated link broke: {error}");
                }
            });
            forwarder.threads.push(thread.map_err(Error::io("thread"))?);
        }
        Ok(forwarder)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        // No thread reads the eventfd, so it stays readable for all of them. The write cannot fail:
        // the counter is not full.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            // A thread that panicked has already printed its message.
            let _ = thread.join();
        }
    }
}

/// Moves packets in one direction until `stop` is readable or a machine is gone.
fn forward(
    from: &Tun,
    to: &Tun,
    direction: &Mutex<LinkDirection>,
    stop: &OwnedFd,
) -> io::Result<()> {
    // With the default slack the kernel wakes a thread up to 50 µs late. An error is harmless.
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
    let mut buffer = vec![0; READ_BUFFER_LEN];
    loop {
        if deliver(to, direction)? == TunState::Deleted {
            return Ok(());
        }
        let next = lock(direction).next_due();
        match wait(from, stop, next)? {
            Event::Stop => return Ok(()),
            Event::Due => {}
            Event::Packet => {
                if accept(from, direction, &mut buffer)? == TunState::Deleted {
                    return Ok(());
                }
            }
        }
    }
}

#[derive(PartialEq, Eq)]
enum TunState {
    Present,
    Deleted,
}

/// Writes all due packets.
fn deliver(to: &Tun, direction: &Mutex<LinkDirection>) -> io::Result<TunState> {
    let take = || lock(direction).take(Instant::now());
    while let Some(packet) = take() {
        match to.write(&TunWrite::single(&packet)) {
            // Like a cable, the link accepts packets for an interface that is down.
            Ok(()) | Err(WriteError::Down) => {}
            Err(WriteError::Deleted) => return Ok(TunState::Deleted),
            Err(error) => return Err(io::Error::other(error)),
        }
    }
    Ok(TunState::Present)
}

/// Reads up to [`BATCH`] waiting packets.
fn accept(from: &Tun, direction: &Mutex<LinkDirection>, buffer: &mut [u8]) -> io::Result<TunState> {
    for _ in 0..BATCH {
        match from.read(buffer) {
            Ok(Read::Packet { range, .. }) => {
                let packet = buffer.get(range).unwrap_or_default().to_vec();
                lock(direction).offer(Instant::now(), packet);
            }
            Ok(Read::Stopped | Read::Deleted) => return Ok(TunState::Deleted),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error),
        }
    }
    Ok(TunState::Present)
}

enum Event {
    Packet,
    Due,
    Stop,
}

/// Sleeps until a packet arrives, one is due, or `stop` is readable.
fn wait(from: &Tun, stop: &OwnedFd, next: Option<Instant>) -> io::Result<Event> {
    let left = next.map(|next| next.saturating_duration_since(Instant::now()));
    let left = left.map(Timespec::try_from).transpose();
    let left = left.map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut events = [
        PollFd::new(from, PollFlags::IN),
        PollFd::new(stop, PollFlags::IN),
    ];
    match poll(&mut events, left.as_ref()) {
        Ok(0) | Err(Errno::INTR) => return Ok(Event::Due),
        Ok(_) => {}
        Err(error) => return Err(error.into()),
    }
    let [packet, stop] = events.map(|event| !event.revents().is_empty());
    Ok(match (stop, packet) {
        (true, _) => Event::Stop,
        (false, true) => Event::Packet,
        (false, false) => Event::Due,
    })
}

fn lock(direction: &Mutex<LinkDirection>) -> MutexGuard<'_, LinkDirection> {
    direction.lock().unwrap_or_else(PoisonError::into_inner)
}
