//! Address translation between an uplink's address, which applications have,
//! and the tunnel's.

#![forbid(unsafe_code)]
