//! The process of `taupe proxy`: one thread for clients and the tunnel, one for signals, and one for a
//! look-up of a name.

use super::{
    DATAGRAM_V4, DATAGRAM_V6, DESCRIPTORS, ERRORS_V4, ERRORS_V6, FILES, FOLDERS, LOCAL, MARK,
    MEMORY, ONLY_V6, RECEIVE_TIMEOUT, ROUTING, STREAM_V4, STREAM_V6, THREADS, UDP_V4, UDP_V6, call,
    ioctl, kind, option, sockets,
};
use crate::calls::{AllowedCall, CallList, Condition};

/// The list of `taupe proxy`.
pub const PROXY: CallList = CallList {
    process: "taupe proxy",
    groups: &[
        MEMORY,
        THREADS,
        DESCRIPTORS,
        FILES,
        FOLDERS,
        SOCKETS,
        EVENTS,
    ],
};

/// The service manager's socket.
const NOTIFY: [Condition; 3] = kind(libc::AF_UNIX, libc::SOCK_DGRAM, 0);

const SOCKETS: &[AllowedCall] = sockets!(
    [NOTIFY],
    [
        option(libc::SOL_SOCKET, libc::SO_KEEPALIVE),
        option(libc::SOL_SOCKET, libc::SO_LINGER),
        option(libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
        option(libc::IPPROTO_TCP, libc::TCP_NODELAY),
    ]
);

const EVENTS: &[AllowedCall] = &[
    // The address of a client that asks for an association.
    call!(SYS_getpeername),
    call!(SYS_epoll_ctl),
    call!(SYS_epoll_pwait),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_epoll_wait),
    // Bytes that can be read, which the C library asks before it reads an answer.
    ioctl!(libc::FIONBIO, libc::FIONREAD),
];
