//! The packet process of `taupe device` and `taupe up`. It opens nothing: sockets come from the broker.

use super::{DESCRIPTORS, MEMORY, RECEIVE_TIMEOUT, SEND_TIMEOUT, THREADS, call, ioctl};
use crate::calls::{AllowedCall, CallList, Condition};

/// The list of a packet process.
pub const PACKETS: CallList = CallList {
    process: "the packet process",
    groups: &[MEMORY, THREADS, DESCRIPTORS, SOCKETS, DEVICE],
};

/// Sockets that are open, and clients of the configuration socket.
const SOCKETS: &[AllowedCall] = &[
    call!(SYS_accept4),
    call!(SYS_getsockopt),
    call!(SYS_recvfrom),
    call!(SYS_recvmmsg),
    call!(SYS_recvmsg),
    call!(SYS_sendmmsg),
    call!(SYS_sendmsg),
    call!(SYS_sendto),
    call!(SYS_setsockopt, &[&RECEIVE_TIMEOUT, &SEND_TIMEOUT]),
    call!(SYS_shutdown),
];

/// The TUN and timers.
const DEVICE: &[AllowedCall] = &[
    call!(SYS_fstat),
    ioctl!(
        libc::FIONBIO,
        libc::FIONREAD,
        libc::TIOCOUTQ,
        libc::TUNGETIFF
    ),
    call!(SYS_preadv2),
    call!(SYS_readv),
    call!(SYS_timerfd_settime),
];
