//! Explicit congestion notification across the tunnel (RFC 6040).

/// What to do with a decrypted packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict {
    /// Pass it on.
    Deliver,
    /// The network marked congestion on a packet whose sender cannot hear it:
    /// loss is the only signal left.
    Drop,
}

/// The outer ECN field (0 to 3) for an inner TOS or traffic class byte:
/// RFC 6040 section 4.1, normal mode. The DSCP is not copied.
pub fn encapsulate(inner_tos: u8) -> u8 {
    let _ = inner_tos;
    unimplemented!()
}

/// Applies the outer ECN field to a decrypted packet: RFC 6040 section 4.2.
///
/// `packet` must have passed [`crate::ip::inner`]; anything else is delivered
/// unchanged.
pub fn decapsulate(outer_ecn: u8, packet: &mut [u8]) -> Verdict {
    let _ = (outer_ecn, packet);
    unimplemented!()
}
