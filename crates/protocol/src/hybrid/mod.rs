//! Hybrid post-quantum handshakes, as specified in docs/post-quantum.md.
//!
//! | module | contents |
//! |---|---|
//! | `noise` | the key schedule, independent of peers, indices and MACs |
//! | `keys` | values derived from static keys, and hedged randomness |
//! | `peer` | the post-quantum state of a peer |
//! | `attempts` | the choice between hybrid and ordinary initiations to a peer that prefers hybrid ones |
//! | `initiation`, `provisional` | incomplete handshakes that this side, or a peer, has begun |
//!
//! [`crate::message`] has the layout of the messages; the methods of [`crate::Device`] are the
//! two sides.

mod attempts;
mod initiation;
pub(crate) mod keys;
pub(crate) mod noise;
mod peer;
mod provisional;

pub(crate) use attempts::HandshakeKind;
pub(crate) use initiation::{HybridInitiation, ResponsePart};
pub(crate) use keys::{LocalKeys, RemoteKeys};
pub(crate) use peer::HybridState;
pub(crate) use provisional::{EarlyParts, Provisional, ProvisionalState};

pub use crate::message::{Half, Part, Side};
pub use crate::suite::Suite;
