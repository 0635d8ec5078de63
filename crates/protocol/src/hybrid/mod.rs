//! Handshakes that withstand quantum computers: docs/post-quantum.md is their specification.
//!
//! | module | contents |
//! |---|---|
//! | `noise` | the key schedule, without knowledge of peers, indices or MACs |
//! | `keys` | values that follow from static keys, and hedged randomness |
//! | `peer` | the post-quantum state of a peer |
//! | `attempts` | the kind of each initiation to a peer that prefers hybrid handshakes |
//! | `initiation`, `provisional` | handshakes under way, of this side and of peers |
//!
//! The layout of the messages is in [`crate::message`], and the two sides are parts of
//! [`crate::Device`].

mod attempts;
mod initiation;
mod keys;
#[doc(hidden)]
pub mod noise;
mod peer;
mod provisional;

pub(crate) use attempts::HandshakeKind;
pub(crate) use initiation::{Partly, Waiting};
#[doc(hidden)]
pub use keys::{Hedge, Identity, LocalKeys, RemoteKeys};
pub(crate) use peer::Hybrid;
pub(crate) use provisional::{Early, Provisional, State};

#[doc(hidden)]
pub use crate::message::IDENTITY_LEN;
pub use crate::message::{Half, Part, Side};
pub use crate::suite::Suite;
