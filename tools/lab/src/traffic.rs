//! Sends traffic through a tunnel and checks that it arrives.

use crate::ensure;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::process::Process;
use rustix::net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with};
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

/// A transfer fails after this time without a single byte. Emulated guests on a loaded machine need
/// it.
const STALL: Duration = Duration::from_secs(20);

/// Sends one ping that must be answered within `limit` seconds.
///
/// # Errors
///
/// [`Error::Command`] if it is not answered.
pub fn ping(from: &Host, to: IpAddr, limit: u32) -> Result<()> {
    let (to, limit) = (to.to_string(), limit.to_string());
    from.run(&["ping", "-n", "-c", "1", "-W", &limit, &to])
        .map(drop)
}

/// Pings until one is answered, and returns the time until then.
///
/// # Errors
///
/// [`Error::Unmet`] if none is answered within `limit`.
pub fn first_answer(from: &Host, to: IpAddr, limit: Duration) -> Result<Duration> {
    let start = Instant::now();
    let mut pinger = Pinger::new(from, to)?;
    while !pinger.ping(PATIENCE)? {
        ensure!(start.elapsed() <= limit, "{pinger} within {limit:?}");
    }
    Ok(start.elapsed())
}

/// Interval of pings while waiting for the first answer.
pub const PATIENCE: Duration = Duration::from_millis(2);

/// Sends single pings from a machine without starting a program for each. It also works before
/// there is a route.
#[derive(Debug)]
pub struct Pinger {
    /// A socket of the kernel's ICMP echo (`icmp(7)`): the kernel fills in an identifier and the
    /// checksum, and delivers only answers with this identifier.
    socket: UdpSocket,
    from: String,
    to: IpAddr,
    sequence: u16,
    refused: Option<io::Error>,
}

impl Pinger {
    /// Opens the socket without sending anything.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the machine no longer exists.
    pub fn new(from: &Host, to: IpAddr) -> Result<Self> {
        let socket = from.enter(|| {
            // Range of groups that may open such sockets; empty by default.
            const GROUPS: &str = "/proc/sys/net/ipv4/ping_group_range";
            fs::write(GROUPS, "0 2147483647").map_err(Error::io(GROUPS))?;
            let (family, protocol) = match to {
                IpAddr::V4(_) => (AddressFamily::INET, ipproto::ICMP),
                IpAddr::V6(_) => (AddressFamily::INET6, ipproto::ICMPV6),
            };
            let flags = SocketFlags::CLOEXEC;
            socket_with(family, SocketType::DGRAM, flags, Some(protocol))
                .map_err(Error::io("socket for pings"))
        })?;
        Ok(Self {
            socket: socket.into(),
            from: from.name().to_owned(),
            to,
            sequence: 0,
            refused: None,
        })
    }

    /// Sends a ping and waits up to `patience` for an answer to this ping or an earlier one. If the
    /// ping cannot be sent, it waits as long and returns false.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if waiting fails.
    pub fn ping(&mut self, patience: Duration) -> Result<bool> {
        let start = Instant::now();
        self.sequence = self.sequence.wrapping_add(1);
        let request = match self.to {
            IpAddr::V4(_) => 8,
            IpAddr::V6(_) => 128,
        };
        let [high, low] = self.sequence.to_be_bytes();
        let message = [request, 0, 0, 0, 0, 0, high, low];
        self.refused = self.socket.send_to(&message, (self.to, 0)).err();
        if self.refused.is_some() {
            thread::sleep(patience);
            return Ok(false);
        }
        loop {
            let left = patience.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            let waiting = |error| Error::io("waiting for the answer to a ping")(error);
            self.socket.set_read_timeout(Some(left)).map_err(waiting)?;
            match self.socket.recv_from(&mut [0; 64]) {
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(waiting(error)),
            }
        }
    }
}

impl std::fmt::Display for Pinger {
    /// Writes that nothing has answered, with the reason.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "no answer to {} from {}", self.from, self.to)?;
        match &self.refused {
            Some(error) => write!(f, " (it cannot be sent to: {error})"),
            None => Ok(()),
        }
    }
}

/// A stream of pings, one every 200 ms, that must all be answered.
#[derive(Debug)]
pub struct PingStream {
    ping: Process,
    limit: Duration,
}

impl PingStream {
    /// Starts pinging for at least the given time.
    ///
    /// # Errors
    ///
    /// [`Error::Start`].
    pub fn start(from: &Host, to: IpAddr, duration: Duration) -> Result<Self> {
        let count = (duration.as_millis() / 200).to_string();
        let to = to.to_string();
        let ping = from.spawn(&["ping", "-n", "-i", "0.2", "-c", &count, "-W", "5", &to])?;
        // On a loaded machine the intervals are longer than requested.
        let limit = duration * 3 / 2 + Duration::from_secs(10);
        Ok(Self { ping, limit })
    }

    /// Waits for its end; returns the number of pings, all of which were answered.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] if one was not answered.
    pub fn finish(mut self) -> Result<u32> {
        self.ping.wait(self.limit)?;
        let output = self.ping.output();
        let summary = output
            .lines()
            .find(|line| line.contains("packets transmitted"))
            .ok_or_else(|| Error::unmet(format!("no summary from ping: {output}")))?;
        let mut numbers = summary.split(' ').filter_map(|word| word.parse().ok());
        match (numbers.next(), numbers.next()) {
            (Some(sent), Some(received)) if sent == received && sent > 0 => Ok(sent),
            _ => Err(Error::unmet(format!("pings were lost: {summary}"))),
        }
    }
}

/// Echoes every byte that arrives at this address of a machine, from a background thread that lives
/// until the test ends.
///
/// # Errors
///
/// [`Error::Io`] if it cannot listen.
pub fn serve_echo(host: &Host, address: SocketAddr) -> Result<()> {
    let listener =
        host.enter(|| TcpListener::bind(address).map_err(Error::io(format!("{address}"))))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let (mut from, mut to) = (&stream, &stream);
                // The other side notices an error and reports it.
                let _ = std::io::copy(&mut from, &mut to);
                let _ = stream.shutdown(Shutdown::Write);
            });
        }
    });
    Ok(())
}

/// Sends `length` bytes to an echo server and checks every byte that returns. Returns the time it
/// took.
///
/// # Errors
///
/// [`Error::Io`] if nothing moves for 20 seconds or the connection breaks, [`Error::Unmet`] if
/// other bytes return.
pub fn tcp_echo(from: &Host, to: SocketAddr, length: usize) -> Result<Duration> {
    let start = Instant::now();
    let connecting = format!("TCP connection from {} to {to}", from.name());
    let stream = from.enter(|| {
        let stream = TcpStream::connect_timeout(&to, STALL);
        stream.map_err(Error::io(&*connecting))
    })?;
    for set in [TcpStream::set_read_timeout, TcpStream::set_write_timeout] {
        set(&stream, Some(STALL)).map_err(Error::io(&*connecting))?;
    }
    thread::scope(|scope| {
        let writer = scope.spawn(|| send(&stream, length));
        let received = receive(&stream, length);
        let sent = writer.join().unwrap_or_else(|_| {
            // The thread panics only through a defect of this function.
            Err(Error::unmet("the sending thread panicked"))
        });
        sent.and(received)
    })
    .map(|()| start.elapsed())
}

fn send(mut stream: &TcpStream, length: usize) -> Result<()> {
    let mut pattern = Pattern::new();
    let mut left = length;
    let mut block = [0; 16 * 1024];
    while left > 0 {
        let size = left.min(block.len());
        let part = block.get_mut(..size).unwrap_or_default();
        pattern.fill(part);
        let what = || format!("sending, {left} of {length} bytes left");
        stream
            .write_all(part)
            .map_err(|error| Error::io(what())(error))?;
        left -= size;
    }
    stream
        .shutdown(Shutdown::Write)
        .map_err(Error::io("end of sending"))
}

fn receive(mut stream: &TcpStream, length: usize) -> Result<()> {
    let mut pattern = Pattern::new();
    let mut done = 0;
    let (mut block, mut expected) = ([0; 16 * 1024], [0; 16 * 1024]);
    loop {
        let what = || format!("receiving, {done} of {length} bytes done");
        let size = stream
            .read(&mut block)
            .map_err(|error| Error::io(what())(error))?;
        if size == 0 {
            ensure!(done == length, "{done} of {length} bytes came back");
            return Ok(());
        }
        let expected = expected.get_mut(..size).unwrap_or_default();
        pattern.fill(expected);
        ensure!(
            block.get(..size) == Some(&*expected),
            "the received bytes differ from those sent, within {size} bytes after {done}"
        );
        done += size;
    }
}

/// A pseudo-random sequence of bytes without a short period, so that it detects misplaced data.
struct Pattern(fastrand::Rng);

impl Pattern {
    fn new() -> Self {
        Self(fastrand::Rng::with_seed(1))
    }

    /// Fills `bytes` with the next bytes of the sequence, however many there are at a time.
    fn fill(&mut self, bytes: &mut [u8]) {
        bytes.fill_with(|| self.0.u8(..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_does_not_depend_on_block_sizes() {
        let (mut full, mut cut) = ([0; 1000], [0; 1000]);
        Pattern::new().fill(&mut full);
        let mut pattern = Pattern::new();
        for part in cut.chunks_mut(7) {
            pattern.fill(part);
        }
        assert_eq!(full, cut);
    }
}
