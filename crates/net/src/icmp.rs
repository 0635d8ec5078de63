//! Answers to packets that have nowhere to go.

use std::net::IpAddr;

/// The ICMP error for `packet`, an inner packet without peer or endpoint:
/// ICMPv4 host unreachable (type 3, code 1) or ICMPv6 address unreachable
/// (type 1, code 3), to be written to the TUN. `mtu` bounds its length.
///
/// Without `from`, the answer comes from the destination that could not be
/// reached.
///
/// `None` for packets that must not be answered (RFC 1122 section 3.2.2,
/// RFC 4443 section 2.4). Limiting the rate is the caller's.
pub fn unreachable(packet: &[u8], mtu: usize, from: Option<IpAddr>) -> Option<Vec<u8>> {
    let _ = (packet, mtu, from);
    unimplemented!()
}
