//! The process of `taupe exec` that runs the device. The command is another process, without this list.

use super::{
    DATAGRAM_V4, DATAGRAM_V6, DESCRIPTORS, ERRORS_V4, ERRORS_V6, FILES, FOLDERS, LOCAL, MARK,
    MEMORY, ONLY_V6, RECEIVE_TIMEOUT, ROUTING, STREAM_V4, STREAM_V6, THREADS, UDP_V4, UDP_V6, call,
    ioctl, option, sockets,
};
use crate::calls::{AllowedCall, CallList, Condition};

/// The list of `taupe exec`.
pub const EXEC: CallList = CallList {
    process: "taupe exec",
    groups: &[
        MEMORY,
        THREADS,
        DESCRIPTORS,
        FILES,
        FOLDERS,
        SOCKETS,
        DEVICE,
    ],
};

const SOCKETS: &[AllowedCall] = sockets!(
    [],
    [
        option(libc::SOL_SOCKET, libc::SO_ATTACH_REUSEPORT_CBPF),
        option(libc::SOL_SOCKET, libc::SO_RCVBUF),
        option(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE),
        option(libc::SOL_SOCKET, libc::SO_REUSEPORT),
        option(libc::SOL_SOCKET, libc::SO_SNDBUF),
        option(libc::SOL_SOCKET, libc::SO_SNDBUFFORCE),
        option(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER),
        option(libc::IPPROTO_IP, libc::IP_PKTINFO),
        option(libc::IPPROTO_IP, libc::IP_RECVTOS),
        option(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER),
        option(libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO),
        option(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS),
        option(libc::SOL_UDP, libc::UDP_GRO),
        option(libc::SOL_UDP, libc::UDP_SEGMENT),
        option(libc::SOL_NETLINK, libc::NETLINK_CAP_ACK),
        option(libc::SOL_NETLINK, libc::NETLINK_EXT_ACK),
        option(libc::SOL_NETLINK, libc::NETLINK_GET_STRICT_CHK),
    ]
);

/// `SIOCGSKNS` of `linux/sockios.h`.
const SOCKET_NAMESPACE: u32 = 0x894c;

/// The TUN, timers, the command and other commands that join it.
const DEVICE: &[AllowedCall] = &[
    ioctl!(
        libc::FIONBIO,
        libc::FIONREAD,
        libc::TIOCOUTQ,
        libc::TUNGETIFF,
        libc::TUNGETDEVNETNS,
        libc::TUNSETOFFLOAD,
        SOCKET_NAMESPACE
    ),
    call!(SYS_pidfd_open),
    call!(SYS_pidfd_send_signal),
    call!(SYS_preadv2),
    call!(SYS_readv),
    call!(SYS_recvmmsg),
    call!(SYS_timerfd_settime),
    call!(SYS_wait4),
];
