//! Calls that make sockets, use eBPF, or act on the descriptors of the process.

use super::Argument::{self, Number};
use super::{Attempt, Targets, number, text, words, zeros};
use crate::descriptors::{Descriptor, Kind};

pub(super) fn sockets() -> Vec<Attempt> {
    let kinds = [
        ("UDP", libc::AF_INET, libc::SOCK_DGRAM, 0),
        ("UDP over IPv6", libc::AF_INET6, libc::SOCK_DGRAM, 0),
        ("TCP", libc::AF_INET, libc::SOCK_STREAM, 0),
        ("TCP over IPv6", libc::AF_INET6, libc::SOCK_STREAM, 0),
        ("ICMP", libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP),
        ("raw", libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP),
        ("packet", libc::AF_PACKET, libc::SOCK_RAW, 0),
        (
            "route",
            libc::AF_NETLINK,
            libc::SOCK_RAW,
            libc::NETLINK_ROUTE,
        ),
        (
            "netfilter",
            libc::AF_NETLINK,
            libc::SOCK_RAW,
            libc::NETLINK_NETFILTER,
        ),
        (
            "generic",
            libc::AF_NETLINK,
            libc::SOCK_RAW,
            libc::NETLINK_GENERIC,
        ),
        ("Unix", libc::AF_UNIX, libc::SOCK_STREAM, 0),
        ("vsock", libc::AF_VSOCK, libc::SOCK_STREAM, 0),
        ("alg", libc::AF_ALG, libc::SOCK_SEQPACKET, 0),
        ("XDP", libc::AF_XDP, libc::SOCK_RAW, 0),
    ];
    let mut all: Vec<_> = kinds
        .iter()
        .map(|(name, family, kind, protocol)| {
            let arguments = [*family, *kind, *protocol].map(number);
            Attempt::new(format!("socket {name}"), libc::SYS_socket, arguments)
        })
        .collect();
    all.push(Attempt::new(
        "socketpair",
        libc::SYS_socketpair,
        [
            number(libc::AF_UNIX),
            number(libc::SOCK_STREAM),
            Number(0),
            zeros(8),
        ],
    ));
    all
}

/// `BPF_OBJ_GET` and others of `linux/bpf.h`.
const BPF_COMMANDS: [(&str, u64); 5] = [
    ("BPF_MAP_CREATE", 0),
    ("BPF_PROG_LOAD", 5),
    ("BPF_PROG_GET_FD_BY_ID", 13),
    ("BPF_MAP_GET_FD_BY_ID", 14),
    ("BPF_LINK_GET_FD_BY_ID", 30),
];
const BPF_MAP_UPDATE_ELEM: u64 = 2;
const BPF_MAP_DELETE_ELEM: u64 = 3;
const BPF_OBJ_GET: u64 = 7;

/// Bytes of `union bpf_attr` that the commands read.
const BPF_ATTRIBUTES: usize = 128;

pub(super) fn bpf(descriptors: &[Descriptor], targets: &Targets<'_>) -> Vec<Attempt> {
    let size = || Number(BPF_ATTRIBUTES as u64);
    let mut all: Vec<_> = BPF_COMMANDS
        .iter()
        .map(|(name, command)| {
            let mut attributes = vec![0; BPF_ATTRIBUTES];
            attributes[0] = 1;
            let arguments = [Number(*command), Argument::Bytes(attributes), size()];
            Attempt::new(*name, libc::SYS_bpf, arguments)
        })
        .collect();
    // The address of the path would be in the attributes. The filter sees only the command.
    all.push(Attempt::new(
        format!("BPF_OBJ_GET {}", targets.pin),
        libc::SYS_bpf,
        [
            Number(BPF_OBJ_GET),
            zeros(BPF_ATTRIBUTES),
            size(),
            text(targets.pin),
        ],
    ));
    for command in [BPF_MAP_UPDATE_ELEM, BPF_MAP_DELETE_ELEM] {
        all.extend(descriptors.iter().map(|descriptor| {
            let mut attributes = vec![0; BPF_ATTRIBUTES];
            attributes[..8].copy_from_slice(&descriptor.number.to_ne_bytes());
            Attempt::new(
                format!("bpf {command} of {descriptor:?}"),
                libc::SYS_bpf,
                [Number(command), Argument::Bytes(attributes), size()],
            )
        }));
    }
    all
}

/// `TUNSETPERSIST` and others of `linux/if_tun.h`, and `SIOCSIFFLAGS` and others of `linux/sockios.h`.
const REQUESTS: [(&str, u64); 12] = [
    ("TUNSETIFF", 0x4004_54ca),
    ("TUNSETPERSIST", 0x4004_54cb),
    ("TUNSETOWNER", 0x4004_54cc),
    ("TUNSETOFFLOAD", 0x4004_54d0),
    ("TUNATTACHFILTER", 0x4010_54d5),
    ("TUNSETQUEUE", 0x4004_54d9),
    ("TUNSETFILTEREBPF", 0x8004_54e1),
    ("SIOCSIFFLAGS", 0x8914),
    ("SIOCSIFADDR", 0x8916),
    ("SIOCADDRT", 0x890b),
    ("SIOCGSKNS", 0x894c),
    ("TIOCSTI", 0x5412),
];

/// Attempts with each descriptor.
pub(super) fn by_descriptors(descriptors: &[Descriptor]) -> Vec<Attempt> {
    let mut all = Vec::new();
    let options = [
        ("SO_MARK", libc::SO_MARK),
        ("SO_BINDTODEVICE", libc::SO_BINDTODEVICE),
        ("SO_ATTACH_FILTER", libc::SO_ATTACH_FILTER),
        ("SO_ATTACH_BPF", libc::SO_ATTACH_BPF),
        ("SO_DETACH_FILTER", libc::SO_DETACH_FILTER),
        ("SO_REUSEPORT", libc::SO_REUSEPORT),
        ("SO_PASSCRED", libc::SO_PASSCRED),
    ];
    let transparent = [
        (libc::IPPROTO_IP, libc::IP_TRANSPARENT),
        (libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT),
        (libc::IPPROTO_IP, libc::IP_HDRINCL),
    ];
    for descriptor in descriptors {
        let own = || Number(descriptor.number);
        for (name, request) in REQUESTS {
            // Upper bits of the request, which the kernel ignores, must not hide it.
            for request in [request, request | 1 << 32] {
                all.push(Attempt::new(
                    format!("ioctl {name} of {descriptor:?}"),
                    libc::SYS_ioctl,
                    [own(), Number(request), zeros(64)],
                ));
            }
        }
        if descriptor.kind == Kind::Tun {
            // The list has it. The kernel refuses it without `CAP_NET_ADMIN`.
            all.push(Attempt::new(
                format!("ioctl TUNGETDEVNETNS of {descriptor:?}"),
                libc::SYS_ioctl,
                [own(), Number(0x54e3)],
            ));
        }
        let calls = [
            ("setns", libc::SYS_setns),
            ("bind", libc::SYS_bind),
            ("connect", libc::SYS_connect),
            ("listen", libc::SYS_listen),
            ("inotify_add_watch", libc::SYS_inotify_add_watch),
            ("fchdir", libc::SYS_fchdir),
            ("fchmod", libc::SYS_fchmod),
            ("ftruncate", libc::SYS_ftruncate),
            ("dup3", libc::SYS_dup3),
        ];
        for (name, call) in calls {
            let arguments = [own(), zeros(32), Number(16)];
            all.push(Attempt::new(
                format!("{name} of {descriptor:?}"),
                call,
                arguments,
            ));
        }
        let shared = number(libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC);
        all.push(Attempt::new(
            format!("mmap executable of {descriptor:?}"),
            libc::SYS_mmap,
            [
                Number(0),
                Number(4096),
                shared,
                number(libc::MAP_PRIVATE),
                own(),
            ],
        ));
        if matches!(descriptor.kind, Kind::Harmless | Kind::Tun) {
            continue;
        }
        let of_sockets = options.map(|(name, option)| (name, libc::SOL_SOCKET, option));
        let of_addresses = transparent.map(|(level, option)| ("IP_TRANSPARENT", level, option));
        for (name, level, option) in of_sockets.into_iter().chain(of_addresses) {
            all.push(Attempt::new(
                format!("{name} of {descriptor:?}"),
                libc::SYS_setsockopt,
                [own(), number(level), number(option), words(&[1]), Number(4)],
            ));
        }
    }
    all
}
