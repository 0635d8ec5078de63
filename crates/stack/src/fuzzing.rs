//! Entry points for fuzzers, with the invariants that they check.

mod dns;

pub use self::dns::{dns, dns_seeds};
use crate::limits::REASSEMBLY_BYTES;
use crate::packet;
use taupe_nat::reassembly::Reassembly;
use taupe_protocol::time::Instant;

/// Parses bytes as a packet from the tunnel.
pub fn packet(bytes: &[u8]) {
    if let Some(packet::Incoming::Udp(_, payload)) = packet::parse(bytes) {
        assert!(payload.len() + 28 <= bytes.len());
    }
    let mut reassembly = Reassembly::new(REASSEMBLY_BYTES);
    // The second time, the fragment is a duplicate.
    for _ in 0..2 {
        if let Some(whole) = reassembly.reassemble(Instant::default(), bytes) {
            let _ = packet::parse(&whole);
        }
    }
}
