//! The routing socket, and listings by `sysctl`.

#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd as _, FromRawFd as _, OwnedFd},
    ptr,
};

use nix::{
    errno::Errno,
    unistd::{read, write},
};

use super::{Listing, Message, Table, listing, messages};
use crate::{System, layout::AF_ROUTE, socket_option, wait};

/// The longest message; a header with addresses has less than 1 KiB.
const LONGEST: usize = 4096;

/// Times that a listing is read again because it has grown.
const ATTEMPTS: usize = 8;

/// A change that the kernel reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// An interface changed, appeared or disappeared; its index.
    Link(u32),
    /// An address or a route changed.
    Network,
    /// The kernel has dropped reports, so anything may have changed.
    Unknown,
}

/// A routing socket.
#[derive(Debug)]
pub struct RoutingSocket(OwnedFd);

impl RoutingSocket {
    /// Opens a socket, on FreeBSD for the routing table with this number, otherwise for the process's.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn open(fib: Option<u32>) -> io::Result<Self> {
        // SAFETY: no memory is passed, and the descriptor is new.
        let fd = unsafe { libc::socket(AF_ROUTE as c_int, libc::SOCK_RAW, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `socket` has just returned the descriptor, which nothing else owns.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        wait::close_on_exec(fd.as_fd())?;
        if let Some(fib) = fib {
            socket_option::set(fd.as_fd(), socket_option::SET_FIB, fib)?;
        }
        Ok(Self(fd))
    }

    /// Makes a request that [`encode`](super::encode) has encoded.
    ///
    /// # Errors
    ///
    /// The kernel's, such as `EEXIST` for a route that exists (`route_output` in FreeBSD's
    /// `sys/net/rtsock.c` and xnu's `bsd/net/rtsock.c` return it from the write).
    pub fn request(&self, message: &[u8]) -> io::Result<()> {
        write(&self.0, message)?;
        Ok(())
    }

    /// Waits for a change of interfaces, addresses or routes.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn next_change(&self) -> io::Result<Change> {
        let mut buffer = [0; LONGEST];
        loop {
            let length = match read(&self.0, &mut buffer) {
                Ok(length) => length,
                Err(Errno::EINTR) => continue,
                Err(Errno::ENOBUFS) => return Ok(Change::Unknown),
                Err(error) => return Err(error.into()),
            };
            for message in messages(System::HERE, &buffer[..length]) {
                // The kernel may send kinds of messages that this version does not know.
                match message {
                    Ok(Message::Interface(interface)) => {
                        return Ok(Change::Link(interface.index.into()));
                    }
                    Ok(
                        Message::InterfaceArrived(index, _) | Message::InterfaceDeparted(index, _),
                    ) => return Ok(Change::Link(index.into())),
                    Ok(
                        Message::RouteChanged(..)
                        | Message::AddressAdded(_)
                        | Message::AddressRemoved(_),
                    ) => return Ok(Change::Network),
                    Ok(Message::Route(..) | Message::OtherRoute(_) | Message::Other(_))
                    | Err(_) => {}
                }
            }
        }
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
