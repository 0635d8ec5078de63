//! Entry points for fuzzers, with the invariants that they check.

mod dns;

pub use self::dns::{dns, dns_seeds};
use crate::DEFAULT_MTU;
use crate::address::is_routable;
use crate::buffers::BufferBudget;
use crate::half_open::HalfOpenTable;
use crate::limits::REASSEMBLY_BYTES;
use crate::outgoing::Outgoing;
use crate::packet;
use crate::reset::Resets;
use taupe_nat::reassembly::Reassembly;
use taupe_protocol::time::Instant;

/// Parses bytes as a packet from the tunnel. Answers it as a segment without a connection, and as one of
/// a handshake.
pub fn packet(bytes: &[u8]) {
    let (now, mut outgoing) = (Instant::default(), Outgoing::new(DEFAULT_MTU));
    Resets::default().answer(now, bytes, &mut outgoing);
    if let Some(packet::Incoming::Tcp(four_tuple)) = packet::parse(bytes)
        && is_routable(four_tuple.local.ip())
        && is_routable(four_tuple.remote.ip())
    {
        let (mut table, mut buffers) = (HalfOpenTable::new(DEFAULT_MTU), BufferBudget::new());
        let syn = (four_tuple, bytes);
        table.answer_syn(now, syn, 7, &mut buffers, &mut outgoing);
        // The second time, the SYN is a repetition.
        table.handle_segment(now, four_tuple, bytes, &mut buffers, &mut outgoing);
    }
    let is_parsed = |slot| packet::parse(outgoing.packet(slot)).is_some();
    assert!(outgoing.slots().iter().copied().all(is_parsed));
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
