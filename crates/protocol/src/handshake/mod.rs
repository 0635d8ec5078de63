//! Handshake messages, independent of peers: the key schedule, cookies, limits under load, and
//! the queue.

pub(crate) mod cookie;
pub mod noise;
mod queue;
pub(crate) mod rate_limit;

pub use queue::{HandshakeId, HandshakeMessage, HandshakeQueue, TakenHandshakes, newest_first};
