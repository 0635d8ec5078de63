//! Parts of the crate for Taupe's own tests, benchmarks, fuzzers and simulator. They may change at
//! any time.
//!
//! The feature `testing` also adds methods: those of [`Device`](crate::Device) in
//! `device/testing.rs`, [`Session::replay_next`](crate::Session::replay_next),
//! [`Session::replay_bytes`](crate::Session::replay_bytes),
//! [`Session::waiting_lanes`](crate::Session::waiting_lanes), [`LocalKeys::pretending`], and those
//! of [`noise`] that take one handshake at a time.

pub use crate::allowed_ips::AllowedIps;
pub use crate::device::PeerSnapshot;
pub use crate::handshake::noise;
pub use crate::hybrid::keys::{Hedge, Identity, LocalKeys, RemoteKeys};
pub use crate::message::write_data_header;
pub use crate::peer::replay;

/// Key schedule of hybrid handshakes.
pub mod hybrid_noise {
    pub use crate::hybrid::noise::*;
}
