//! Lines with post-quantum keys. To other programs these lines are comments, so that they can still
//! read the file.

use core::fmt::{self, Write};

use taupe_protocol::key::{PqPrivateKey, PqPublicKey};
use taupe_protocol::update::PostQuantum;

use crate::key::Encoding;

/// Prefix of a line that only Taupe reads.
pub const COMMENT_PREFIX: &str = "#@taupe:";

/// Writes the line of the device's ML-KEM key.
///
/// # Errors
/// Returns the errors of `out`.
pub fn write_pq_private_key(out: &mut impl Write, key: &PqPrivateKey) -> fmt::Result {
    let text = Encoding::Base64.encode_pq_private_key(key);
    writeln!(out, "{COMMENT_PREFIX}PqPrivateKey = {}", text.as_str())
}

/// Writes the lines of a peer: its ML-KEM key, and the mode of its handshakes.
///
/// # Errors
/// Returns the errors of `out`.
pub fn write_peer_pq_keys(
    out: &mut impl Write,
    key: Option<&PqPublicKey>,
    post_quantum: Option<PostQuantum>,
) -> fmt::Result {
    if let Some(key) = key {
        let text = Encoding::Base64.encode_pq_public_key(key);
        writeln!(out, "{COMMENT_PREFIX}PqPublicKey = {text}")?;
    }
    match post_quantum {
        Some(post_quantum) => {
            writeln!(out, "{COMMENT_PREFIX}PostQuantum = {}", post_quantum.name())
        }
        None => Ok(()),
    }
}
