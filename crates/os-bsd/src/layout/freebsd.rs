//! The table of FreeBSD 14 and 15.

use super::{constants::*, structures::*};

const IFALIASREQ: Ifaliasreq = Ifaliasreq {
    size: 68,
    name: 0,
    address: 16,
    peer: 32,
    mask: 48,
};

const IN6_ALIASREQ: In6Aliasreq = In6Aliasreq {
    size: 136,
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
        af_inet6: 28,
        add_address: request(IN, b'i', 43, IFALIASREQ.size),
        add_address_in6: request(IN, b'i', 27, IN6_ALIASREQ.size),
        receive_packet_info_in6: 36,
        control_data: 16,
        control_space_of_one: 24,
    },
    route: RouteHeader {
        size: 152,
        length: 0,
        version: 2,
        kind: 3,
        index: 4,
        flags: 8,
        addresses: 12,
        process: 16,
        sequence: 20,
        error: 24,
        mtu: 48,
    },
    interface: InterfaceHeader {
        size: 168,
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
    announcement: Some(AnnouncementHeader {
        size: 24,
        length: 0,
        version: 2,
        kind: 3,
        index: 4,
        name: 6,
        event: 22,
    }),
    sockaddr_in: SOCKADDR_IN,
    sockaddr_in6: SOCKADDR_IN6,
    sockaddr_dl: SockaddrDl {
        size: 54,
        ..SOCKADDR_DL
    },
    control: CONTROL_HEADER,
    in6_pktinfo: IN6_PKTINFO,
    ifreq: IFREQ,
    in6_ifreq: IN6_IFREQ,
    ifaliasreq: IFALIASREQ,
    in6_aliasreq: IN6_ALIASREQ,
    // `SA_SIZE` in `net/route.h`: the size of a long.
    alignment: 8,
};
