//! Relay of bytes between a client and a host.

use crate::client_socket::{ClientSocket, MAX_DISCARDED, discard};
use crate::limits::{HALF_CLOSED_TIMEOUT, IDLE_TIMEOUT};
use crate::net::Net;
use core::time::Duration;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use taupe_protocol::time::Instant;
use taupe_stack::stream::Stream;
use taupe_stack::tcp::{RecvError, State};

/// A connection that relays bytes in both directions.
pub(crate) struct Relay {
    pub(crate) stream: Stream,
    /// Bytes for the host, to be sent before the client's.
    input: Vec<u8>,
    /// Bytes for the client, to be sent before the host's.
    output: Vec<u8>,
    upload: Option<u64>,
    /// True once the client has sent its end; below, the host.
    up_ended: bool,
    down_ended: bool,
    last_activity: Instant,
}

impl Relay {
    pub(crate) fn new(
        stream: Stream,
        input: Vec<u8>,
        output: Vec<u8>,
        upload: Option<u64>,
        now: Instant,
    ) -> Self {
        Self {
            stream,
            input,
            output,
            upload,
            up_ended: false,
            down_ended: false,
            last_activity: now,
        }
    }

    /// Returns the time at which the connection is closed if nothing happens.
    pub(crate) fn deadline(&self) -> Instant {
        let idle = self.last_activity + idle_timeout(self.up_ended || self.down_ended);
        self.stream.dead_at().map_or(idle, |at| at.min(idle))
    }

    /// Relays all bytes that can be moved now. Returns true if both sides have sent their end.
    ///
    /// # Errors
    /// Returns an error if either side broke the connection, or if `is_late` and the deadline has
    /// passed.
    pub(crate) fn advance(
        &mut self,
        socket: &mut ClientSocket,
        net: &mut Net,
        owner: usize,
        is_late: bool,
    ) -> io::Result<bool> {
        // A segment may have arrived since the deadline was set.
        if is_late && net.now >= self.deadline() {
            return Err(ErrorKind::TimedOut.into());
        }
        loop {
            let up = self.relay_up(socket)?;
            let down = self.relay_down(socket)?;
            net.pump(&mut self.stream, owner);
            if !(up || down) {
                break;
            }
            self.last_activity = net.now;
        }
        Ok(self.up_ended && self.down_ended)
    }

    /// Moves bytes from the client to the host. Returns true if there were any.
    fn relay_up(&mut self, socket: &mut ClientSocket) -> io::Result<bool> {
        let Self {
            stream,
            input,
            upload,
            up_ended,
            ..
        } = self;
        let stream = stream.socket();
        let mut any = false;
        while !input.is_empty() && stream.can_send() {
            let sent = stream.send_slice(input).unwrap_or(0);
            input.drain(..sent);
            any |= sent > 0;
        }
        if *up_ended || !input.is_empty() {
            return Ok(any);
        }
        if *upload == Some(0) {
            // Bytes after the request's content are discarded; only the client's FIN matters.
            *up_ended = !discard(socket, MAX_DISCARDED)?;
        }
        while !*up_ended && *upload != Some(0) && socket.is_readable && stream.can_send() {
            let most = upload.map_or(usize::MAX, |left| {
                usize::try_from(left).unwrap_or(usize::MAX)
            });
            let read = stream.send(|room| {
                let most = most.min(room.len());
                match socket.read(&mut room[..most]) {
                    Ok(count) => (count.unwrap_or(0), Ok(count)),
                    Err(error) => (0, Err(error)),
                }
            });
            match read.map_err(|_| io::Error::from(ErrorKind::BrokenPipe))?? {
                Some(0) => *up_ended = true,
                Some(count) => {
                    any = true;
                    if let Some(left) = upload {
                        *left -= count as u64;
                    }
                }
                None => {}
            }
        }
        if *up_ended {
            stream.close();
            any = true;
        }
        Ok(any)
    }

    /// Moves bytes from the host to the client. Returns true if there were any.
    fn relay_down(&mut self, socket: &mut ClientSocket) -> io::Result<bool> {
        let Self {
            stream,
            output,
            down_ended,
            ..
        } = self;
        let mut any = false;
        while !output.is_empty() {
            let Some(count) = socket.write(output)? else {
                return Ok(any);
            };
            output.drain(..count);
            any = true;
        }
        if *down_ended {
            return Ok(any);
        }
        let stream = stream.socket();
        loop {
            if stream.can_recv() {
                let written = stream.recv(|bytes| match socket.write(bytes) {
                    Ok(count) => (count.unwrap_or(0), Ok(count)),
                    Err(error) => (0, Err(error)),
                });
                match written.map_err(|_| io::Error::from(ErrorKind::ConnectionReset))?? {
                    Some(_) => any = true,
                    None => return Ok(any),
                }
                continue;
            }
            return match stream.recv(|_| (0, ())) {
                Ok(()) => Ok(any),
                Err(RecvError::Finished) => {
                    *down_ended = true;
                    socket.stream.shutdown(Shutdown::Write)?;
                    Ok(true)
                }
                Err(RecvError::InvalidState) => {
                    debug_assert_eq!(stream.state(), State::Closed);
                    Err(ErrorKind::ConnectionReset.into())
                }
            };
        }
    }
}

/// Returns the idle timeout of a connection.
fn idle_timeout(half_closed: bool) -> Duration {
    if half_closed {
        HALF_CLOSED_TIMEOUT
    } else {
        IDLE_TIMEOUT
    }
}
