//! Constants, and structures that are equal on both systems.

use super::{Fact, macos::CONTROL_INFO, structures::*};

/// Defines constants under their names in C, and a list of them for the test.
macro_rules! constants {
    ($(#[$attribute:meta])* $list:ident { $($name:ident = $value:expr;)* }) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            pub(crate) const $name: u32 = $value;
        )*
        $(#[$attribute])*
        pub(super) const $list: &[Fact] = &[$(Fact::Value(stringify!($name), $name),)*];
    };
}

constants! {
    /// Constants that are equal on both systems.
    COMMON {
        EPERM = 1;
        ENOENT = 2;
        ESRCH = 3;
        ENXIO = 6;
        EACCES = 13;
        EBUSY = 16;
        EEXIST = 17;
        EINVAL = 22;
        EADDRNOTAVAIL = 49;
        ENETDOWN = 50;
        ENETUNREACH = 51;
        EHOSTUNREACH = 65;

        AF_INET = 2;
        AF_ROUTE = 17;
        AF_LINK = 18;
        CTL_NET = 4;
        NET_RT_DUMP = 1;
        NET_RT_IFLIST = 3;

        RTM_VERSION = 5;
        RTM_ADD = 1;
        RTM_DELETE = 2;
        RTM_CHANGE = 3;
        RTM_GET = 4;
        RTM_NEWADDR = 0xc;
        RTM_DELADDR = 0xd;
        RTM_IFINFO = 0xe;

        RTF_UP = 0x1;
        RTF_GATEWAY = 0x2;
        RTF_HOST = 0x4;
        RTF_REJECT = 0x8;
        RTF_LLINFO = 0x400;
        RTF_STATIC = 0x800;
        RTF_BLACKHOLE = 0x1000;

        RTAX_DST = 0;
        RTAX_GATEWAY = 1;
        RTAX_NETMASK = 2;
        RTAX_IFP = 4;
        RTAX_IFA = 5;
        RTAX_BRD = 7;
        RTAX_MAX = 8;

        IFNAMSIZ = 16;
        IFF_UP = 0x1;
        IFF_BROADCAST = 0x2;
        IFF_LOOPBACK = 0x8;
        IFF_POINTOPOINT = 0x10;
        IFF_RUNNING = 0x40;
        IFF_MULTICAST = 0x8000;
        IFT_ETHER = 0x6;

        SIOCSIFFLAGS = request(IN, b'i', 16, IFREQ.size);
        SIOCGIFFLAGS = request(IN | OUT, b'i', 17, IFREQ.size);
        SIOCDIFADDR = request(IN, b'i', 25, IFREQ.size);
        SIOCGIFMTU = request(IN | OUT, b'i', 51, IFREQ.size);
        SIOCSIFMTU = request(IN, b'i', 52, IFREQ.size);
        SIOCIFDESTROY = request(IN, b'i', 121, IFREQ.size);

        FIONREAD = request(OUT, b'f', 127, 4);

        SOL_SOCKET = 0xffff;
        SO_SNDBUF = 0x1001;
        SO_RCVBUF = 0x1002;
        IPPROTO_IP = 0;
        IPPROTO_IPV6 = 41;
        IP_RECVDSTADDR = 7;
        IPV6_PKTINFO = 46;
        MSG_TRUNC = 0x10;
        MSG_CTRUNC = 0x20;
    }
}

constants! {
    /// Constants that only FreeBSD has, or whose header zig ships only for it.
    FREEBSD_ONLY {
        RTM_IFANNOUNCE = 0x11;
        IFAN_ARRIVAL = 0;
        IFAN_DEPARTURE = 1;

        SIOCSIFNAME = request(IN, b'i', 40, IFREQ.size);
        SIOCIFCREATE2 = request(IN | OUT, b'i', 124, IFREQ.size);

        TUNGIFNAME = request(OUT, b't', 93, IFREQ.size);
        TUNSIFMODE = request(IN, b't', 94, 4);
        TUNSIFPID = request(VOID, b't', 95, 0);
        TUNSIFHEAD = request(IN, b't', 96, 4);
        TUNSTRANSIENT = request(IN, b't', 98, 4);

        SIOCGIFINFO_IN6 = request(IN | OUT, b'i', 108, IN6_NDIREQ.size);
        SIOCSIFINFO_IN6 = request(IN | OUT, b'i', 109, IN6_NDIREQ.size);
        ND6_IFF_AUTO_LINKLOCAL = 0x20;
        ND6_IFF_NO_DAD = 0x100;

        SOCK_CLOEXEC = 0x1000_0000;
        IP_SENDSRCADDR = 7;
        SO_SETFIB = 0x1014;
        SO_RERROR = 0x0002_0000;
        SO_USER_COOKIE = 0x1015;
    }
}

constants! {
    /// Constants that only macOS has.
    MACOS_ONLY {
        RTF_WASCLONED = 0x0002_0000;
        RTF_IFSCOPE = 0x0100_0000;

        CTLIOCGINFO = request(IN | OUT, b'N', 3, CONTROL_INFO.size);
        MAX_KCTL_NAME = 96;
        PF_SYSTEM = 32;
        AF_SYSTEM = 32;
        UTUN_OPT_IFNAME = 2;

        IP_BOUND_IF = 25;
        IP_PKTINFO = 26;
        IP_RECVPKTINFO = 26;
        IPV6_BOUND_IF = 125;
    }
}

constants! {
    /// Constants of macOS that no header of zig's has: `sys/sys_domain.h` in Apple's source.
    MACOS_SOURCE_ONLY {
        SYSPROTO_CONTROL = 2;
        AF_SYS_CONTROL = 2;
    }
}

/// Constants of `netinet6/in6_var.h` and `netinet6/nd6.h`. They are equal on both systems, but zig
/// ships the headers only for FreeBSD.
pub(super) const IN6_VAR: &[Fact] = &[
    Fact::Value("SIOCDIFADDR_IN6", SIOCDIFADDR_IN6),
    Fact::Value("IN6_IFF_NODAD", IN6_IFF_NODAD),
    Fact::Value("ND6_INFINITE_LIFETIME", ND6_INFINITE_LIFETIME),
];

/// `SIOCDIFADDR_IN6`.
pub(crate) const SIOCDIFADDR_IN6: u32 = request(IN, b'i', 25, IN6_IFREQ.size);
/// `IN6_IFF_NODAD`: without a search for duplicates of the address.
pub(crate) const IN6_IFF_NODAD: u32 = 0x20;
/// `ND6_INFINITE_LIFETIME`.
pub(crate) const ND6_INFINITE_LIFETIME: u32 = 0xffff_ffff;

/// `UTUN_CONTROL_NAME` of macOS (`net/if_utun.h`).
pub(crate) const UTUN_CONTROL_NAME: &str = "com.apple.net.utun_control";

pub(super) const ADDRESS_HEADER: AddressHeader = AddressHeader {
    size: 20,
    length: 0,
    version: 2,
    kind: 3,
    addresses: 4,
    index: 12,
};

pub(super) const SOCKADDR_IN: SockaddrIn = SockaddrIn {
    size: 16,
    length: 0,
    family: 1,
    port: 2,
    address: 4,
};

pub(super) const SOCKADDR_IN6: SockaddrIn6 = SockaddrIn6 {
    size: 28,
    length: 0,
    family: 1,
    port: 2,
    address: 8,
    scope: 24,
};

pub(super) const CONTROL_HEADER: ControlHeader = ControlHeader {
    size: 12,
    length: 0,
    level: 4,
    kind: 8,
};

pub(super) const IN6_PKTINFO: In6Pktinfo = In6Pktinfo {
    size: 20,
    address: 0,
    interface: 16,
};

pub(crate) const IN6_NDIREQ: In6Ndireq = In6Ndireq {
    size: 72,
    name: 0,
    flags: 36,
};

/// Without its size, which the systems define themselves.
pub(super) const SOCKADDR_DL: SockaddrDl = SockaddrDl {
    size: 0,
    length: 0,
    family: 1,
    index: 2,
    medium: 4,
    name_length: 5,
    address_length: 6,
    data: 8,
};

pub(super) const IFREQ: Ifreq = Ifreq {
    size: 32,
    name: 0,
    value: 16,
};

pub(super) const IN6_IFREQ: In6Ifreq = In6Ifreq {
    size: 288,
    name: 0,
    value: 16,
};
