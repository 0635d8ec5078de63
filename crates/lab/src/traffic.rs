//! Things sent through a tunnel, and whether they arrive.

use crate::ensure;
use crate::error::{Error, Result};
use crate::host::Host;
use crate::process::Process;
use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
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
    let seconds = limit.as_secs().max(1).to_string();
    let to = to.to_string();
    // Ends at the first answer; one request every 20 ms.
    #[rustfmt::skip]
    let answered = from.run(&["ping", "-n", "-i", "0.02", "-c", "1", "-w", &seconds, &to]);
    answered?;
    let took = start.elapsed();
    ensure!(took <= limit, "the first answer from {to} took {took:?}");
    Ok(took)
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
