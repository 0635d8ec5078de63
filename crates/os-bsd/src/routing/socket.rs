//! The routing socket, and listings by `sysctl`.

#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd as _, OwnedFd},
    ptr,
    sync::atomic::{AtomicI32, Ordering},
    time::Instant,
};

use nix::{
    errno::Errno,
    unistd::{read, write},
};

use super::{
    Listing, LookupReply, Notification, RouteEntry, Table, encode_lookup, listing, lookup_reply,
    may_have_overflowed, messages, recheck_interval,
};
use crate::{
    System,
    descriptor::new_socket,
    ioctl,
    layout::AF_ROUTE,
    socket_address::ZonedAddress,
    socket_option::{self, RECEIVE_BUFFER, REPORT_OVERFLOW, SET_FIB},
    wait,
};

/// The longest message; a header with addresses has less than 1 KiB.
const LONGEST: usize = 4096;

/// Bytes of the receive buffer, if the system permits so many. Its default is 8 KiB, some 40
/// messages.
const BUFFER: usize = 256 << 10;

/// Messages that are skipped at most after an overflow, before it is reported.
const SKIPPED: usize = 4096;

/// The sequence number of the last lookup. It is common to all sockets of the process, because each of
/// them receives the replies to all.
static SEQUENCE: AtomicI32 = AtomicI32::new(0);

/// Times that a listing is read again because it has grown.
const ATTEMPTS: usize = 8;

/// A routing socket, for either notifications or requests: [`RoutingSocket::route_to`] skips
/// notifications.
///
/// If the receive buffer is full, the kernel drops messages. FreeBSD reports that at the next read
/// (`SO_RERROR`). macOS is silent, so there the socket reports an overflow if the buffer is more than
/// half full, and every [`recheck_interval`].
#[derive(Debug)]
pub struct RoutingSocket {
    fd: OwnedFd,
    /// Time at which the tables have to be read again, on a system that does not report lost
    /// messages.
    recheck: Option<Instant>,
}

impl RoutingSocket {
    /// Opens a socket, on FreeBSD for the routing table with this number, otherwise for the process's.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open(fib: Option<u32>) -> io::Result<Self> {
        let fd = new_socket(AF_ROUTE as c_int, libc::SOCK_RAW, 0)?;
        wait::set_up(fd.as_fd())?;
        socket_option::set_largest(fd.as_fd(), RECEIVE_BUFFER, BUFFER);
        if System::HERE == System::FreeBsd {
            socket_option::set(fd.as_fd(), REPORT_OVERFLOW, 1)?;
        }
        if let Some(fib) = fib {
            socket_option::set(fd.as_fd(), SET_FIB, fib)?;
        }
        Ok(Self {
            fd,
            recheck: recheck_interval(System::HERE).map(|interval| Instant::now() + interval),
        })
    }

    /// Makes a request that [`encode`](super::encode) has encoded.
    ///
    /// # Errors
    ///
    /// The kernel's, such as `EEXIST` for a route that exists (`route_output` in FreeBSD's
    /// `sys/net/rtsock.c` and xnu's `bsd/net/rtsock.c` return it from the write).
    pub fn request(&self, message: &[u8]) -> io::Result<()> {
        loop {
            match write(&self.fd, message) {
                // The kernel takes the complete message or nothing.
                Ok(_) => return Ok(()),
                // Interrupted before the kernel read the message.
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for messages. Returns `None` if there are none until the deadline.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn receive(&mut self, deadline: Option<Instant>) -> io::Result<Option<Notification>> {
        loop {
            let until = deadline.into_iter().chain(self.recheck).min();
            if !wait::readable(self.fd.as_fd(), until)? {
                let now = Instant::now();
                if self.recheck.is_some_and(|recheck| recheck <= now) {
                    return Ok(Some(self.overflow()));
                }
                if deadline.is_some_and(|deadline| deadline <= now) {
                    return Ok(None);
                }
                continue;
            }
            if self.recheck.is_some() && self.is_nearly_full()? {
                // The tables are newer than the messages.
                for _ in 0..SKIPPED {
                    if self.read()?.is_none() {
                        break;
                    }
                }
                return Ok(Some(self.overflow()));
            }
            if let Some(notification) = self.read()? {
                return Ok(Some(notification));
            }
        }
    }

    /// Returns the route of packets to `destination`, on macOS of packets whose socket is bound to the
    /// interface `scope`. `None` means that there is no route.
    ///
    /// # Errors
    ///
    /// The kernel's; [`io::ErrorKind::InvalidInput`] if the destination cannot be encoded;
    /// [`io::ErrorKind::TimedOut`] if the kernel does not reply until the deadline, for example because
    /// it had no memory for the reply.
    pub fn route_to(
        &mut self,
        destination: ZonedAddress,
        scope: Option<u16>,
        deadline: Instant,
    ) -> io::Result<Option<RouteEntry>> {
        let sequence = SEQUENCE.fetch_add(1, Ordering::Relaxed);
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
        let lookup = encode_lookup(System::HERE, destination, scope, sequence);
        match self.request(&lookup.map_err(invalid)?) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
            done => done?,
        }
        loop {
            let received = match self.receive(Some(deadline))? {
                Some(Notification::Messages(received)) => received,
                // If the reply is lost, the deadline passes.
                Some(Notification::Overflow) => continue,
                None => return Err(io::ErrorKind::TimedOut.into()),
            };
            let reply = |message| lookup_reply(message, std::process::id(), sequence);
            match received.iter().find_map(reply) {
                None => {}
                Some(LookupReply::Route(entry)) => return Ok(Some(entry)),
                Some(LookupReply::NoRoute) => return Ok(None),
                Some(LookupReply::Refused(error)) => {
                    return Err(io::Error::from_raw_os_error(error));
                }
                Some(LookupReply::Unsupported) => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
    }

    /// Reads without waiting. Returns `None` if there is nothing to read.
    fn read(&self) -> io::Result<Option<Notification>> {
        let mut buffer = [0; LONGEST];
        loop {
            match read(&self.fd, &mut buffer) {
                Ok(length) => {
                    let received = buffer.get(..length).unwrap_or_default();
                    let decoded: Result<_, _> = messages(System::HERE, received).collect();
                    // A message that cannot be decoded may be about anything.
                    return Ok(Some(
                        decoded.map_or(Notification::Overflow, Notification::Messages),
                    ));
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::ENOBUFS) => return Ok(Some(Notification::Overflow)),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn is_nearly_full(&self) -> io::Result<bool> {
        let queued = ioctl::queued(self.fd.as_fd())?;
        let capacity = socket_option::get(self.fd.as_fd(), RECEIVE_BUFFER)?;
        Ok(may_have_overflowed(queued as usize, capacity as usize))
    }

    fn overflow(&mut self) -> Notification {
        self.recheck = recheck_interval(System::HERE).map(|interval| Instant::now() + interval);
        Notification::Overflow
    }
}

/// Reads a listing of the kernel.
///
/// # Errors
///
/// The kernel's; [`io::ErrorKind::InvalidInput`] for a listing that the system does not have;
/// [`io::ErrorKind::InvalidData`] if it cannot be decoded.
pub fn read_listing(kind: Listing) -> io::Result<Table> {
    let invalid = |error| io::Error::new(io::ErrorKind::InvalidInput, error);
    let mut name = listing(System::HERE, kind, None).map_err(invalid)?;
    for _ in 0..ATTEMPTS {
        let Some(bytes) = sysctl(&mut name)? else {
            continue;
        };
        let table = Table::decode(System::HERE, &bytes);
        return table.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
    }
    Err(io::Error::other("the tables grew while they were read"))
}

/// Returns the value of a name; `None` if it has grown between the two calls.
fn sysctl(name: &mut [c_int]) -> io::Result<Option<Vec<u8>>> {
    let mut length = 0;
    // SAFETY: the name has the length that is given, and is only read. Without a place for the value
    // the kernel writes its length only (sysctl(3)).
    let asked = unsafe {
        libc::sysctl(
            name.as_mut_ptr(),
            name.len() as _,
            ptr::null_mut(),
            &raw mut length,
            ptr::null_mut(),
            0,
        )
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // For what is added meanwhile.
    length += length / 8 + LONGEST;
    let mut value = vec![0_u8; length];
    // SAFETY: as above, and `value` has `length` bytes, of which the kernel writes at most that many
    // and says how many.
    let read = unsafe {
        libc::sysctl(
            name.as_mut_ptr(),
            name.len() as _,
            value.as_mut_ptr().cast(),
            &raw mut length,
            ptr::null_mut(),
            0,
        )
    };
    if read == 0 {
        value.truncate(length);
        return Ok(Some(value));
    }
    match Errno::last() {
        Errno::ENOMEM => Ok(None),
        error => Err(error.into()),
    }
}
