//! The table of macOS 13 and newer.

use super::{constants::*, structures::*};

/// Declarations of `netinet6/in6_var.h`, which zig does not ship for macOS.
pub(super) const FROM_SOURCE: [&str; 3] =
    ["SIOCAIFADDR_IN6", "struct in6_aliasreq", "struct in6_ifreq"];

pub(crate) const CONTROL_INFO: ControlInfo = ControlInfo {
    size: 100,
    id: 0,
    name: 4,
};

pub(crate) const SOCKADDR_CTL: SockaddrCtl = SockaddrCtl {
    size: 32,
    length: 0,
    family: 1,
    kind: 2,
    id: 4,
    unit: 8,
};

pub(crate) const IN_PKTINFO: InPktinfo = InPktinfo {
    size: 12,
    interface: 0,
    source: 4,
    destination: 8,
};

const IFALIASREQ: Ifaliasreq = Ifaliasreq {
    size: 64,
    name: 0,
    address: 16,
    peer: 32,
    mask: 48,
};

const IN6_ALIASREQ: In6Aliasreq = In6Aliasreq {
    size: 128,
    name: 0,
    address: 16,
    peer: 44,
    mask: 72,
    flags: 100,
    valid_lifetime: 120,
    preferred_lifetime: 124,
};

pub(super) const LAYOUT: Layout = Layout {
    numbers: Numbers {
        af_inet6: 30,
        add_address: request(IN, b'i', 26, IFALIASREQ.size),
        add_address_in6: request(IN, b'i', 26, IN6_ALIASREQ.size),
        // RFC 3542's: programs in C get it if they define `__APPLE_USE_RFC_3542`.
        receive_packet_info_in6: 61,
        control_data: 12,
        control_space_of_one: 16,
    },
    route: RouteHeader {
        size: 92,
        length: 0,
        version: 2,
        kind: 3,
        index: 4,
        flags: 8,
        addresses: 12,
        process: 16,
        sequence: 20,
        error: 24,
        mtu: 40,
    },
    interface: InterfaceHeader {
        size: 112,
        length: 0,
        version: 2,
        kind: 3,
        addresses: 4,
        flags: 8,
        index: 12,
        medium: 16,
        mtu: 24,
    },
    address: ADDRESS_HEADER,
    announcement: None,
    sockaddr_in: SOCKADDR_IN,
    sockaddr_in6: SOCKADDR_IN6,
    sockaddr_dl: SockaddrDl {
        size: 20,
        ..SOCKADDR_DL
    },
    control: CONTROL_HEADER,
    in6_pktinfo: IN6_PKTINFO,
    ifreq: IFREQ,
    in6_ifreq: IN6_IFREQ,
    ifaliasreq: IFALIASREQ,
    in6_aliasreq: IN6_ALIASREQ,
    // `ROUNDUP32` in `bsd/net/rtsock.c`.
    alignment: 4,
};
