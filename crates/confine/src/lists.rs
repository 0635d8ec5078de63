//! The lists of calls. Groups that several processes need are here, each process's own calls in its
//! file.

mod exec;
mod metrics;
mod packets;
mod proxy;
mod web;

pub use exec::EXEC;
pub use metrics::METRICS;
pub use packets::PACKETS;
pub use proxy::PROXY;
pub use web::WEB;

use crate::calls::{AllowedCall, CallList, Condition};

/// All lists.
pub const ALL: [&CallList; 5] = [&PROXY, &EXEC, &PACKETS, &METRICS, &WEB];

/// An allowed call, by the name that the C library's headers give its number.
macro_rules! call {
    ($name:ident) => {
        call!($name, &[])
    };
    ($name:ident, $alternatives:expr) => {
        AllowedCall {
            name: stringify!($name),
            // Other processors have other calls, and no list.
            #[cfg(target_pointer_width = "64")]
            number: libc::$name,
            #[cfg(target_pointer_width = "32")]
            number: -1,
            alternatives: $alternatives,
        }
    };
}
use call;

/// The flags of `clone` by which both C libraries start a thread, and the flags that a thread must not
/// have: other namespaces.
const THREAD: i32 = libc::CLONE_VM | libc::CLONE_THREAD | libc::CLONE_SIGHAND;
const NAMESPACES: i32 = libc::CLONE_NEWNS
    | libc::CLONE_NEWCGROUP
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET;

/// Memory, never executable.
const MEMORY: &[AllowedCall] = &[
    call!(SYS_brk),
    call!(SYS_madvise),
    call!(SYS_mmap, &[&[Condition::masked(2, libc::PROT_EXEC, 0)]]),
    call!(SYS_mprotect, &[&[Condition::masked(2, libc::PROT_EXEC, 0)]]),
    call!(SYS_mremap),
    call!(SYS_munmap),
];

/// Threads, their signals and their end; clocks, random numbers.
///
/// A process cannot signal itself. After a panic the C library's `abort` executes an instruction that
/// ends it by SIGSEGV.
const THREADS: &[AllowedCall] = &[
    call!(
        SYS_clone,
        &[&[Condition::masked(0, THREAD | NAMESPACES, THREAD)]]
    ),
    call!(SYS_clock_gettime),
    call!(SYS_clock_nanosleep),
    call!(SYS_exit),
    call!(SYS_exit_group),
    call!(SYS_futex),
    call!(SYS_getrandom),
    call!(SYS_gettid),
    call!(SYS_prctl, &[&[Condition::equals(0, libc::PR_SET_NAME)]]),
    call!(SYS_restart_syscall),
    #[cfg(not(target_env = "musl"))]
    call!(SYS_rseq),
    // After a crash, the standard library's handler restores the signal's default, which ends the process.
    call!(SYS_rt_sigaction),
    call!(SYS_rt_sigprocmask),
    call!(SYS_rt_sigreturn),
    // A new thread asks for its stack, which includes the processors that it may use.
    call!(SYS_sched_getaffinity),
    call!(SYS_sched_yield),
    call!(SYS_set_robust_list),
    call!(SYS_sigaltstack),
];

/// Descriptors that are open.
const DESCRIPTORS: &[AllowedCall] = &[
    call!(SYS_close),
    call!(
        SYS_fcntl,
        &[
            &[Condition::equals(1, libc::F_GETFD)],
            &[Condition::equals(1, libc::F_SETFD)],
            &[Condition::equals(1, libc::F_GETFL)],
            &[Condition::equals(1, libc::F_SETFL)],
            &[Condition::equals(1, libc::F_DUPFD_CLOEXEC)],
        ]
    ),
    #[cfg(target_arch = "x86_64")]
    call!(SYS_poll),
    call!(SYS_ppoll),
    call!(SYS_read),
    call!(SYS_write),
    call!(SYS_writev),
];

/// State files, and those that the C library reads to look up names. Landlock limits the paths.
const FILES: &[AllowedCall] = &[
    call!(SYS_fstat),
    call!(SYS_fsync),
    call!(SYS_lseek),
    call!(SYS_newfstatat),
    #[cfg(not(all(target_arch = "x86_64", target_env = "musl")))]
    call!(SYS_openat),
];

/// The same, by the names that older architectures have for them.
#[cfg(target_arch = "x86_64")]
const FOLDERS: &[AllowedCall] = &[
    call!(SYS_mkdir),
    call!(SYS_rename),
    call!(SYS_unlink),
    // musl has these instead of the newer ones.
    #[cfg(target_env = "musl")]
    call!(SYS_open),
    #[cfg(target_env = "musl")]
    call!(SYS_stat),
];
#[cfg(not(target_arch = "x86_64"))]
const FOLDERS: &[AllowedCall] = &[
    call!(SYS_mkdirat),
    #[cfg(not(target_arch = "riscv64"))]
    call!(SYS_renameat),
    #[cfg(target_arch = "riscv64")]
    call!(SYS_renameat2),
    call!(SYS_unlinkat),
];

/// Calls of `ioctl`.
macro_rules! ioctl {
    ($($request:expr),*) => {
        call!(SYS_ioctl, &[$(&[Condition::equals(1, $request as i32)]),*])
    };
}
use ioctl;

/// Sockets that are open; the kinds that are opened later, and their options, besides those of the
/// device's and the resolver's sockets, which every process has.
macro_rules! sockets {
    ([$($kind:expr),*], [$($option:expr),* $(,)?]) => {
        &[
            call!(SYS_accept4),
            call!(SYS_bind),
            call!(SYS_connect),
            call!(SYS_getsockname),
            call!(SYS_getsockopt),
            call!(SYS_recvfrom),
            call!(SYS_recvmsg),
            // The C library sends the questions for both families by one call.
            call!(SYS_sendmmsg),
            call!(SYS_sendmsg),
            call!(SYS_sendto),
            call!(
                SYS_setsockopt,
                &[
                    &ERRORS_V4,
                    &ERRORS_V6,
                    &MARK,
                    &ONLY_V6,
                    &RECEIVE_TIMEOUT,
                    $(&$option),*
                ]
            ),
            call!(SYS_shutdown),
            call!(
                SYS_socket,
                &[
                    &UDP_V4,
                    &UDP_V6,
                    &DATAGRAM_V4,
                    &DATAGRAM_V6,
                    &STREAM_V4,
                    &STREAM_V6,
                    &LOCAL,
                    &ROUTING,
                    $(&$kind),*
                ]
            ),
        ]
    };
}
use sockets;

/// Bits of a socket's type that are no flags (`SOCK_TYPE_MASK` of `linux/net.h`).
const KIND: i32 = 0xf;

/// Returns the conditions of one kind of socket.
const fn kind(family: i32, kind: i32, protocol: i32) -> [Condition; 3] {
    [
        Condition::equals(0, family),
        Condition::masked(1, KIND, kind),
        Condition::equals(2, protocol),
    ]
}

const UDP_V4: [Condition; 3] = kind(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDP);
const UDP_V6: [Condition; 3] = kind(libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP);
const DATAGRAM_V4: [Condition; 3] = kind(libc::AF_INET, libc::SOCK_DGRAM, 0);
const DATAGRAM_V6: [Condition; 3] = kind(libc::AF_INET6, libc::SOCK_DGRAM, 0);
/// DNS over TCP.
const STREAM_V4: [Condition; 3] = kind(libc::AF_INET, libc::SOCK_STREAM, 0);
const STREAM_V6: [Condition; 3] = kind(libc::AF_INET6, libc::SOCK_STREAM, 0);
/// nscd and systemd-resolved.
const LOCAL: [Condition; 3] = kind(libc::AF_UNIX, libc::SOCK_STREAM, 0);
/// Addresses and routes, which only a process with `CAP_NET_ADMIN` can change by it.
const ROUTING: [Condition; 3] = kind(libc::AF_NETLINK, libc::SOCK_RAW, libc::NETLINK_ROUTE);

/// Returns the conditions of one socket option.
const fn option(level: i32, name: i32) -> [Condition; 2] {
    [Condition::equals(1, level), Condition::equals(2, name)]
}

const MARK: [Condition; 2] = option(libc::SOL_SOCKET, libc::SO_MARK);
const RECEIVE_TIMEOUT: [Condition; 2] = option(libc::SOL_SOCKET, libc::SO_RCVTIMEO);
const SEND_TIMEOUT: [Condition; 2] = option(libc::SOL_SOCKET, libc::SO_SNDTIMEO);
const ERRORS_V4: [Condition; 2] = option(libc::IPPROTO_IP, libc::IP_RECVERR);
const ERRORS_V6: [Condition; 2] = option(libc::IPPROTO_IPV6, libc::IPV6_RECVERR);
const ONLY_V6: [Condition; 2] = option(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY);

#[cfg(test)]
mod tests {
    use super::ALL;
    use std::collections::BTreeSet;

    /// Calls that a list may have.
    const MOST: usize = 60;

    #[test]
    fn a_list_is_short_and_has_no_call_twice() {
        for list in ALL {
            let names: BTreeSet<_> = list.calls().map(|call| call.name).collect();
            let count = list.calls().count();
            assert_eq!(names.len(), count, "{}", list.process);
            assert!(count <= MOST, "{}: {count}", list.process);
        }
    }
}
