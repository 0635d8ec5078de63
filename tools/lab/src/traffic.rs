//! Things sent through a tunnel, and whether they arrive.

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

/// After this long without a single byte, a transfer has failed. Emulated
/// guests on a loaded machine need it.
const STALL: Duration = Duration::from_secs(20);

/// One ping that has to be answered within `limit` seconds.
///
/// # Errors
///
/// [`Error::Command`] when it is not.
pub fn ping(from: &Host, to: IpAddr, limit: u32) -> Result<()> {
    let (to, limit) = (to.to_string(), limit.to_string());
    from.run(&["ping", "-n", "-c", "1", "-W", &limit, &to])
        .map(drop)
}

/// Pings until one is answered, and tells how long that took from now.
///
/// # Errors
///
/// [`Error::Unmet`] when none was within `limit`.
pub fn first_answer(from: &Host, to: IpAddr, limit: Duration) -> Result<Duration> {
    let start = Instant::now();
    let mut pinger = Pinger::new(from, to)?;
    while !pinger.ping(PATIENCE)? {
        ensure!(start.elapsed() <= limit, "{pinger} within {limit:?}");
    }
    Ok(start.elapsed())
}

/// Between two pings of which the first answer is waited for.
pub const PATIENCE: Duration = Duration::from_millis(2);

/// Sends pings from a machine one at a time, also when there is no way yet to send them
/// on, without starting a program for each.
#[derive(Debug)]
pub struct Pinger {
    /// A socket of the kernel's ICMP echo (`icmp(7)`): it puts in an identifier of its
    /// own and a checksum, and passes on nothing but answers to that identifier.
    socket: UdpSocket,
    from: String,
    to: IpAddr,
    sequence: u16,
    refused: Option<io::Error>,
}

impl Pinger {
    /// Nothing is sent yet.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the machine no longer exists.
    pub fn new(from: &Host, to: IpAddr) -> Result<Self> {
        let socket = from.enter(|| {
            // Who may have such sockets, by group; nobody, unless one says so.
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

    /// Sends a ping and waits up to `patience` for an answer, to this or a former one.
    /// That the system cannot send it is no answer, and takes as long.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the system cannot wait.
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
    /// That nothing has answered, and why.
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
    /// Begins to ping, for the given time or longer.
    ///
    /// # Errors
    ///
    /// [`Error::Start`].
    pub fn start(from: &Host, to: IpAddr, duration: Duration) -> Result<Self> {
        let count = (duration.as_millis() / 200).to_string();
        let to = to.to_string();
        let ping = from.spawn(&["ping", "-n", "-i", "0.2", "-c", &count, "-W", "5", &to])?;
        // On a loaded machine the pauses are longer than asked for.
        let limit = duration * 3 / 2 + Duration::from_secs(10);
        Ok(Self { ping, limit })
    }

    /// Waits for its end; tells how many were sent, all of them answered.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] when one was not.
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

/// Returns every byte that comes to this address of a machine, from a thread
/// in the background that lives until the test ends.
///
/// # Errors
///
/// [`Error::Io`] when it cannot listen.
pub fn serve_echo(host: &Host, address: SocketAddr) -> Result<()> {
    let listener =
        host.enter(|| TcpListener::bind(address).map_err(Error::io(format!("{address}"))))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let (mut from, mut to) = (&stream, &stream);
                // The other side notices and says what was wrong.
                let _ = std::io::copy(&mut from, &mut to);
                let _ = stream.shutdown(Shutdown::Write);
            });
        }
    });
    Ok(())
}

/// Sends `length` bytes to an echo server and checks every byte that returns.
/// Returns how long it took.
///
/// # Errors
///
/// [`Error::Io`] when nothing moves for 20 seconds or the connection breaks,
/// [`Error::Unmet`] when something else returns.
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
            // Only a defect of this function itself panics there.
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
            "what came back differs from what was sent, within {size} bytes after {done}"
        );
        done += size;
    }
}

/// A sequence of bytes without a period that a defect could hide in
/// (xorshift64, Marsaglia 2003).
struct Pattern {
    state: u64,
}

impl Pattern {
    const fn new() -> Self {
        Self {
            state: 0x9e37_79b9_7f4a_7c15,
        }
    }

    /// The next bytes, the same however the sequence is cut.
    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            *byte = self.state.to_le_bytes()[0];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_does_not_depend_on_the_cut() {
        let (mut whole, mut cut) = ([0; 1000], [0; 1000]);
        Pattern::new().fill(&mut whole);
        let mut pattern = Pattern::new();
        for part in cut.chunks_mut(7) {
            pattern.fill(part);
        }
        assert_eq!(whole, cut);
    }
}
