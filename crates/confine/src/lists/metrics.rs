//! The process of `taupe metrics` that serves requests. It opens nothing: listening sockets and figures
//! come from its parent.

use super::{DESCRIPTORS, MEMORY, RECEIVE_TIMEOUT, SEND_TIMEOUT, THREADS, call};
use crate::calls::{AllowedCall, CallList};

/// The list of the process that serves metrics.
pub const METRICS: CallList = CallList {
    process: "the process that serves metrics",
    groups: &[MEMORY, THREADS, DESCRIPTORS, SOCKETS],
};

/// Sockets that are open: those of clients, and the parent's.
const SOCKETS: &[AllowedCall] = &[
    call!(SYS_accept4),
    call!(SYS_getsockname),
    call!(SYS_recvfrom),
    call!(SYS_recvmsg),
    call!(SYS_sendmsg),
    call!(SYS_sendto),
    call!(SYS_setsockopt, &[&RECEIVE_TIMEOUT, &SEND_TIMEOUT]),
    call!(SYS_shutdown),
];
