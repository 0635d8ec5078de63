//! Flows of numbered datagrams between two machines, whose order both ends check.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::{IpAddr, SocketAddr};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use taupe_lab::host::Host;
use taupe_lab::{Error, Result, ensure};
use taupe_os_linux::udp::{Options, RECEIVE_LEN, Receive, Socket};
use taupe_packet::ip::Family;

/// Maximum datagrams of a flow in transit in each direction: as many as one system call sends.
const BURST: usize = 64;

/// Bytes of a datagram. The smallest has only a number, and the largest fits a tunnel's MTU of
/// 1,420 bytes over IPv6.
const SIZES: std::ops::RangeInclusive<usize> = 8..=1372;

/// The flows claim to support congestion marks (RFC 3168), so that the fair queue marks their
/// datagrams instead of dropping some.
const ECT_0: u8 = 2;

/// Time after which datagrams that have not arrived are lost.
const PATIENCE: Duration = Duration::from_secs(1);

/// Datagrams of some flows, in both directions.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Datagrams that arrived after a later one of their flow, or twice.
    pub(crate) reordered: u64,
}

impl Tally {
    pub(crate) fn lost(&self) -> u64 {
        self.sent - self.received
    }

    fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.reordered += other.reordered;
    }
}

/// Flows between two machines.
pub(crate) struct Flows {
    flows: Vec<Mutex<Flow>>,
    burst: usize,
}

/// A flow, with both of its ends.
struct Flow {
    ends: [End; 2],
    chance: fastrand::Rng,
}

/// An end of a flow. It sends bursts with one system call, and receives merged datagrams.
struct End {
    socket: Socket,
    /// The address of the other end.
    remote: SocketAddr,
    /// The number of the next datagram that it sends, from 1.
    next: u64,
    /// The greatest number received.
    last: u64,
    buffer: Vec<u8>,
}

impl Flows {
    /// Makes flows between these addresses of two machines.
    pub(crate) fn new(near: (&Host, IpAddr), far: (&Host, IpAddr), count: u64) -> Result<Self> {
        let flow = |seed| {
            let sockets = [bind(near)?, bind(far)?];
            let ports = sockets.each_ref().map(Socket::local_port);
            let [near_socket, far_socket] = sockets;
            let end = |socket, address, port| End {
                socket,
                remote: SocketAddr::new(address, port),
                next: 1,
                last: 0,
                buffer: vec![0; RECEIVE_LEN],
            };
            Ok(Mutex::new(Flow {
                ends: [
                    end(near_socket, far.1, ports[1]),
                    end(far_socket, near.1, ports[0]),
                ],
                chance: fastrand::Rng::with_seed(seed),
            }))
        };
        let flows = (0..count).map(flow).collect::<Result<_>>()?;
        let burst = BURST;
        Ok(Self { flows, burst })
    }

    /// Limits the datagrams of each flow in transit in each direction.
    pub(crate) fn with_burst(self, burst: usize) -> Self {
        Self { burst, ..self }
    }

    /// Sends at most `count` datagrams over all flows.
    pub(crate) fn exchange(&self, count: u64) -> Result<Tally> {
        let left = AtomicU64::new(count);
        self.run(&|burst: u64| {
            let took = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(burst)
            });
            took.is_ok()
        })
    }

    /// Sends datagrams, and meanwhile calls `change` until it returns false.
    pub(crate) fn exchange_while(&self, mut change: impl FnMut() -> Result<bool>) -> Result<Tally> {
        let ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let flows = scope.spawn(|| self.run(&|_| !ended.load(Ordering::Relaxed)));
            let changed = loop {
                match change() {
                    Ok(true) if !flows.is_finished() => {}
                    result => break result,
                }
            };
            ended.store(true, Ordering::Relaxed);
            let tally = flows
                .join()
                .map_err(|_| Error::unmet("a flow panicked"))??;
            changed.map(|_| tally)
        })
    }

    /// Runs every flow in a thread of its own. A thread sends bursts while `may_send`, called with
    /// the number of datagrams in both directions, returns true.
    fn run(&self, may_send: &(impl Fn(u64) -> bool + Sync)) -> Result<Tally> {
        thread::scope(|scope| {
            let threads = self.flows.iter().map(|flow| {
                scope.spawn(move || {
                    let mut flow = flow.lock().map_err(|_| Error::unmet("a flow panicked"))?;
                    let mut tally = Tally::default();
                    loop {
                        let count = flow.chance.usize(1..=self.burst);
                        if !may_send(2 * count as u64) {
                            return Ok(tally);
                        }
                        tally.add(flow.burst(count)?);
                    }
                })
            });
            let threads: Vec<_> = threads.collect();
            let mut all = Tally::default();
            for thread in threads {
                let joined = thread.join().map_err(|_| Error::unmet("a flow panicked"))?;
                all.add(joined?);
            }
            Ok(all)
        })
    }
}

impl Flow {
    /// Sends a burst in each direction at once, and receives both.
    fn burst(&mut self, count: usize) -> Result<Tally> {
        let Self { ends, chance } = self;
        for end in &mut *ends {
            end.send(count, chance.usize(SIZES));
        }
        let [near, far] = ends;
        let mut tally = far.receive(near.next - 1)?;
        tally.add(near.receive(far.next - 1)?);
        tally.sent = 2 * count as u64;
        Ok(tally)
    }
}

impl End {
    fn send(&mut self, count: usize, size: usize) {
        let mut bytes = vec![0; count * size];
        for datagram in bytes.chunks_mut(size) {
            datagram[..8].copy_from_slice(&self.next.to_le_bytes());
            self.next += 1;
        }
        // If the interface is down, the datagrams count as lost.
        let _ = self.socket.send(self.remote, None, ECT_0, &bytes, size);
    }

    /// Receives until the datagram `until` or a later one arrives, or no datagram arrives in time.
    fn receive(&mut self, until: u64) -> Result<Tally> {
        let mut tally = Tally::default();
        while self.last < until && self.wait()? {
            let receive = self.socket.receive_ready(&mut self.buffer);
            let Some(Receive::Datagrams(batches)) = receive.map_err(Error::io("receiving"))? else {
                continue;
            };
            for batch in batches {
                let bytes = &self.buffer[batch.start..batch.start + batch.len];
                for datagram in bytes.chunks(batch.segment.max(1)) {
                    let number = datagram.first_chunk().copied().map(u64::from_le_bytes);
                    let number = number.ok_or_else(|| Error::unmet("a short datagram"))?;
                    ensure!(number != 0, "not a datagram of the flow");
                    tally.received += 1;
                    if number <= self.last {
                        tally.reordered += 1;
                    }
                    self.last = self.last.max(number);
                }
            }
        }
        // A missing datagram that arrives later counts as reordered.
        self.last = self.last.max(until);
        Ok(tally)
    }

    /// Waits for datagrams. Returns false if none come.
    fn wait(&self) -> Result<bool> {
        let limit = Timespec {
            tv_sec: PATIENCE.as_secs().try_into().unwrap_or(1),
            tv_nsec: 0,
        };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&limit)).map_err(std::io::Error::from);
        let ready = ready.map_err(Error::io("poll"))?;
        Ok(ready > 0)
    }
}

fn bind((host, address): (&Host, IpAddr)) -> Result<Socket> {
    let family = match address {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    };
    host.enter(|| {
        let socket = Socket::bind(family, 0, Options::default());
        socket.map_err(|error| Error::unmet(error.to_string()))
    })
}
