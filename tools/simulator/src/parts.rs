//! Parts of hybrid handshake messages.

use taupe_protocol::hybrid::Part;

use crate::violation::{Invariant, Violation};

/// UDP payload that passes unfragmented through every IPv6 network (RFC 8200 §5).
pub(crate) const MAX_HANDSHAKE: usize = 1280 - 40 - 8;

/// Returns the part that a datagram is, if it is one of the right length.
pub(crate) fn part_of(datagram: &[u8]) -> Option<Part> {
    let part = Part::of(*datagram.first_chunk()?)?;
    (part.len() == datagram.len()).then_some(part)
}

/// Checks that a handshake message is small enough for every network.
pub(crate) fn check_handshake_size(host: usize, datagram: &[u8]) -> Result<(), Violation> {
    if datagram.len() <= MAX_HANDSHAKE {
        return Ok(());
    }
    let what = format!(
        "host {host} sends {} bytes of a handshake in one datagram",
        datagram.len()
    );
    Err(Violation::new(Invariant::Size, what))
}
