//! The process of `taupe web` that serves pages. It opens nothing: listening sockets and facts come
//! from its parent.

use super::{DESCRIPTORS, MEMORY, THREADS, call};
use crate::calls::{AllowedCall, CallList};

/// The list of the process that serves pages.
pub const WEB: CallList = CallList {
    process: "the process that serves pages",
    groups: &[MEMORY, THREADS, DESCRIPTORS, SOCKETS, EVENTS],
};

/// Sockets that are open: those of browsers, and the parent's.
const SOCKETS: &[AllowedCall] = &[
    call!(SYS_accept4),
    call!(SYS_recvfrom),
    call!(SYS_recvmsg),
    call!(SYS_sendmsg),
    call!(SYS_sendto),
    call!(SYS_shutdown),
];

/// The event loop.
const EVENTS: &[AllowedCall] = &[
    call!(SYS_epoll_ctl),
    call!(SYS_epoll_pwait),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_epoll_wait),
    // Files in memory.
    call!(SYS_fstat),
    call!(SYS_lseek),
    call!(SYS_statx),
];
