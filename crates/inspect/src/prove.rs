//! Evidence about an application's traffic: which tunnel it uses, and how captured packets are
//! classified. This module lists processes, sockets and routes; the command captures packets and sends
//! the probes.
//!
//! ```text
//! captured packet ─┬─ carries a nonce ───────────────► the probe with this nonce
//!                  ├─ WireGuard datagram ────────────► counted
//!                  └─ other ─► socket with its ports ─► application, or somebody else
//! ```
//!
//! A *nonce* is a text that only this run knows and that is in each probe's packet. It is recognised
//! also in a packet that another program has made of the probe's, such as a resolver's query.

mod members;
mod nonce;
mod observation;
mod packet;
mod report;
mod sockets;
mod target;

pub use members::Members;
pub use nonce::Nonces;
pub use observation::{LEAKS_LISTED, Observation, Observed, OutsideFlow, Sighting, TcpProbe};
pub use report::{
    ControlReport, ObservedTraffic, OutsideReport, ProbeReport, ProbeVerdict, ProofReport,
    ProofResult, Unobserved,
};
pub use sockets::{SocketOwner, SocketTuple};
pub use target::{ProofTarget, TargetError, Uplinks};
