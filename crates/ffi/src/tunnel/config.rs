//! Configuration of a tunnel.

use taupe_protocol::key::{PqPrivateKey, PqPublicKey, PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::update::PostQuantum;

use crate::log::Sink;

/// Configuration of a tunnel.
pub struct Config {
    /// This side's private key.
    pub private_key: PrivateKey,
    /// The peer's public key.
    pub public_key: PublicKey,
    /// The preshared key, or [`PresharedKey::NONE`].
    pub preshared_key: PresharedKey,
    /// Persistent keepalive in seconds; 0 is off.
    pub keepalive: u16,
    /// The lower 24 bits become the upper 24 bits of each receiver index of this tunnel. A program
    /// with many tunnels on one socket can find the tunnel of a message by them.
    pub index: u32,
    /// Receiver of the tunnel's log lines; default: that of the process.
    pub sink: Option<Sink>,
}

/// Mode and keys of hybrid handshakes.
pub struct HybridKeys {
    /// The seed of this side's ML-KEM keys.
    pub private_key: Option<PqPrivateKey>,
    /// The peer's ML-KEM key.
    pub public_key: Option<PqPublicKey>,
    /// The handshakes that are allowed.
    pub mode: PostQuantum,
    /// Set if there has been a hybrid handshake before: `Prefer` is then as strict as `Require`.
    pub latched: bool,
}
