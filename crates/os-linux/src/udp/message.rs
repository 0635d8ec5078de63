//! `recvmmsg`, `recvmsg`, `sendmsg` and `sendmmsg` with addresses and control messages.

use std::{
    array, io, mem,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6},
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use arrayvec::ArrayVec;

use super::{MAX_RECEIVES, control::Control};

/// Maximum datagrams of one [`send_many`].
pub(super) const MAX_MESSAGES: usize = super::MAX_SEGMENTS;

/// A `sockaddr_in` or `sockaddr_in6`.
#[derive(Clone, Debug)]
#[repr(C, align(8))]
pub(super) struct SockAddr {
    bytes: [u8; Self::CAPACITY],
    len: usize,
}

impl SockAddr {
    const CAPACITY: usize = size_of::<libc::sockaddr_in6>();
    const V4: usize = size_of::<libc::sockaddr_in>();

    fn empty() -> Self {
        Self {
            bytes: [0; Self::CAPACITY],
            len: 0,
        }
    }

    fn address(&self) -> Option<SocketAddr> {
        let bytes = self.bytes.get(..self.len)?;
        let (family, rest) = bytes.split_first_chunk()?;
        let (port, rest) = rest.split_first_chunk()?;
        let port = u16::from_be_bytes(*port);
        match i32::from(u16::from_ne_bytes(*family)) {
            libc::AF_INET => {
                let address: &[u8; 4] = rest.first_chunk()?;
                Some((Ipv4Addr::from(*address), port).into())
            }
            libc::AF_INET6 => {
                let (_flow, rest) = rest.split_at_checked(4)?;
                let (address, rest): (&[u8; 16], _) = rest.split_first_chunk()?;
                let scope = u32::from_ne_bytes(*rest.first_chunk()?);
                let address = Ipv6Addr::from(*address);
                Some(SocketAddrV6::new(address, port, 0, scope).into())
            }
            _ => None,
        }
    }
}

impl From<SocketAddr> for SockAddr {
    fn from(address: SocketAddr) -> Self {
        let mut name = Self::empty();
        name.bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        let family = match address {
            SocketAddr::V4(address) => {
                name.bytes[4..8].copy_from_slice(&address.ip().octets());
                name.len = Self::V4;
                libc::AF_INET
            }
            SocketAddr::V6(address) => {
                name.bytes[8..24].copy_from_slice(&address.ip().octets());
                name.bytes[24..28].copy_from_slice(&address.scope_id().to_ne_bytes());
                name.len = Self::CAPACITY;
                libc::AF_INET6
            }
        };
        name.bytes[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        name
    }
}

/// A received message.
pub(super) struct ReceivedMessage {
    /// Bytes in its buffer.
    pub(super) len: usize,
    /// The sender's address; every datagram has one.
    pub(super) from: Option<SocketAddr>,
    /// True if the buffer was too small.
    pub(super) truncated: bool,
    pub(super) control: Control,
}

/// The system call that receives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    /// `recvmmsg`.
    Recvmmsg,
    /// `recvmsg`: one message per call.
    Recvmsg,
}

/// Receives up to [`MAX_RECEIVES`] queued messages, each into a buffer of its own. If `waits` is
/// set, waits for the first message.
pub(super) fn receive<'a>(
    fd: BorrowedFd<'_>,
    buffers: impl Iterator<Item = &'a mut [u8]>,
    call: Call,
    waits: bool,
) -> io::Result<ArrayVec<ReceivedMessage, MAX_RECEIVES>> {
    let most = match call {
        Call::Recvmmsg => MAX_RECEIVES,
        Call::Recvmsg => 1,
    };
    let mut slices: ArrayVec<_, MAX_RECEIVES> = buffers
        .take(most)
        .map(|buffer| libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        })
        .collect();
    let flags = match (waits, call) {
        (false, _) => libc::MSG_DONTWAIT,
        (true, Call::Recvmmsg) => libc::MSG_WAITFORONE,
        (true, Call::Recvmsg) => 0,
    };
    let count = slices.len();
    let mut names: ArrayVec<_, MAX_RECEIVES> = (0..count).map(|_| SockAddr::empty()).collect();
    let mut controls: ArrayVec<_, MAX_RECEIVES> = (0..count).map(|_| Control::new()).collect();
    let mut messages: ArrayVec<_, MAX_RECEIVES> = slices
        .iter_mut()
        .zip(names.iter_mut().zip(&mut controls))
        .map(|(slice, (name, control))| {
            let mut message = zeroed();
            message.msg_name = name.bytes.as_mut_ptr().cast();
            message.msg_namelen = SockAddr::CAPACITY as _;
            message.msg_iov = &raw mut *slice;
            message.msg_iovlen = 1;
            message.msg_control = control.room().as_mut_ptr().cast();
            message.msg_controllen = Control::CAPACITY as _;
            libc::mmsghdr {
                msg_hdr: message,
                msg_len: 0,
            }
        })
        .collect();
    let count = match (call, messages.as_mut_slice()) {
        (Call::Recvmsg, [message, ..]) => {
            // SAFETY: as below, for the first message.
            let len = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message.msg_hdr, flags) };
            message.msg_len = check(len)? as _;
            1
        }
        (_, messages) => {
            // SAFETY: each message points to its own name, slice and control messages, and each
            // slice to a buffer that the iterator lends for longer than this function runs. All of
            // them are live, have the lengths given, and are not used otherwise until the call
            // returns. The descriptor is open while borrowed.
            let count = unsafe {
                libc::recvmmsg(
                    fd.as_raw_fd(),
                    messages.as_mut_ptr(),
                    messages.len() as _,
                    flags as _,
                    ptr::null_mut(),
                )
            };
            check(count as isize)?
        }
    };
    let received = messages
        .iter()
        .take(count)
        .zip(names.iter_mut().zip(controls));
    Ok(received
        .map(|(message, (name, mut control))| {
            let header = &message.msg_hdr;
            name.len = SockAddr::CAPACITY.min(header.msg_namelen as usize);
            #[allow(clippy::unnecessary_cast, reason = "a u32 in some C libraries")]
            control.set_len(header.msg_controllen as usize);
            ReceivedMessage {
                len: message.msg_len as usize,
                from: name.address(),
                truncated: header.msg_flags & libc::MSG_TRUNC != 0,
                control,
            }
        })
        .collect())
}

/// Receives datagrams that are queued, up to 64, with one system call (`recvmmsg`) and without
/// waiting. Copies only the first `N` bytes of each, in order, to `prefixes`. Returns the lengths
/// of the datagrams (`MSG_TRUNC`); with `UDP_GRO` one length counts all merged datagrams.
///
/// # Errors
///
/// [`io::ErrorKind::WouldBlock`] if nothing is queued; otherwise the kernel's.
pub fn receive_prefixes<const N: usize>(
    socket: BorrowedFd<'_>,
    prefixes: &mut [[u8; N]],
) -> io::Result<ArrayVec<usize, MAX_MESSAGES>> {
    let mut slices: ArrayVec<_, MAX_MESSAGES> = prefixes
        .iter_mut()
        .take(MAX_MESSAGES)
        .map(|prefix| libc::iovec {
            iov_base: prefix.as_mut_ptr().cast(),
            iov_len: N,
        })
        .collect();
    let mut messages: ArrayVec<_, MAX_MESSAGES> = slices
        .iter_mut()
        .map(|slice| {
            let mut message = zeroed();
            message.msg_iov = &raw mut *slice;
            message.msg_iovlen = 1;
            libc::mmsghdr {
                msg_hdr: message,
                msg_len: 0,
            }
        })
        .collect();
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC;
    // SAFETY: each message points to its own slice, and each slice to a prefix of `N` bytes. All of
    // them are live, and are not used otherwise until the call returns. There are no names and no
    // control messages. The descriptor is open while borrowed.
    let count = unsafe {
        libc::recvmmsg(
            socket.as_raw_fd(),
            messages.as_mut_ptr(),
            messages.len() as _,
            flags as _,
            ptr::null_mut(),
        )
    };
    let received = messages.iter().take(check(count as isize)?);
    Ok(received.map(|message| message.msg_len as usize).collect())
}

/// Sends `payload` as one message.
pub(super) fn send(
    fd: BorrowedFd<'_>,
    to: &SockAddr,
    control: &Control,
    payload: &[u8],
) -> io::Result<()> {
    let mut slice = slice_of(payload);
    let message = message_to(to, control, &raw mut slice);
    // SAFETY: name, control and slice point to live memory of the lengths
    // given, which the kernel only reads. The descriptor is open while
    // borrowed.
    check(unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, 0) })?;
    Ok(())
}

/// Returns true if `sendmmsg` exists and is permitted. The probe is needed because a sandbox may
/// forbid the call with the same error that a firewall uses to refuse a datagram.
pub(super) fn can_sendmmsg(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: with a count of zero, no message is read or written. The descriptor is open while
    // borrowed.
    unsafe { libc::sendmmsg(fd.as_raw_fd(), ptr::null_mut(), 0, 0) == 0 }
}

/// Sends the first [`MAX_MESSAGES`] of `payloads`, each as one message, and returns how many were
/// sent. An error refers to the first message.
pub(super) fn send_many<'a>(
    fd: BorrowedFd<'_>,
    to: &SockAddr,
    control: &Control,
    payloads: impl Iterator<Item = &'a [u8]>,
) -> io::Result<usize> {
    let mut slices = [slice_of(&[]); MAX_MESSAGES];
    let mut count = 0;
    for (slice, payload) in slices.iter_mut().zip(payloads) {
        *slice = slice_of(payload);
        count += 1;
    }
    let base = slices.as_mut_ptr();
    let mut messages: [_; MAX_MESSAGES] = array::from_fn(|i| libc::mmsghdr {
        msg_hdr: message_to(to, control, base.wrapping_add(i)),
        msg_len: 0,
    });
    // SAFETY: the kernel sends the first `count` messages. Each points to its own slice, to the
    // name and to the control messages, all of them live and of the lengths given, which the kernel
    // only reads. It writes the length of each message into `messages`. The descriptor is open
    // while borrowed.
    let sent = unsafe { libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), count as _, 0) };
    check(sent as isize)
}

/// Returns a message that points to its arguments, which the kernel only reads.
fn message_to(to: &SockAddr, control: &Control, slice: *mut libc::iovec) -> libc::msghdr {
    let mut message = zeroed();
    message.msg_name = to.bytes.as_ptr().cast_mut().cast();
    message.msg_namelen = to.len as _;
    message.msg_iov = slice;
    message.msg_iovlen = 1;
    let control = control.as_bytes();
    if !control.is_empty() {
        message.msg_control = control.as_ptr().cast_mut().cast();
        message.msg_controllen = control.len() as _;
    }
    message
}

fn slice_of(payload: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: payload.as_ptr().cast_mut().cast(),
        iov_len: payload.len(),
    }
}

/// Returns an empty message. A literal is impossible because some C libraries pad the structure
/// with private fields.
fn zeroed() -> libc::msghdr {
    // SAFETY: the structure has only integers and pointers, for which all-zero bytes are valid.
    unsafe { mem::zeroed() }
}

fn check(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_way_to_the_kernel_and_back() {
        for address in ["1.2.3.4:5", "[1:2::3]:65535", "[fe80::1%7]:9"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(SockAddr::from(address).address(), Some(address));
        }
    }

    #[test]
    fn names_cut_short_are_none() {
        for address in ["1.2.3.4:5", "[1:2::3]:65535"] {
            let mut name = SockAddr::from(address.parse::<SocketAddr>().unwrap());
            let needed = if name.len == SockAddr::V4 { 8 } else { 28 };
            for length in 0..needed {
                name.len = length;
                assert_eq!(name.address(), None);
            }
        }
        assert_eq!(SockAddr::empty().address(), None);
    }
}
