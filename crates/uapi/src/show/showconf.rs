//! Lines about hybrid handshakes in files. To other programs these lines are comments, so that
//! they can still read the file.

use core::fmt::{self, Write};

use taupe_protocol::key::{PqPrivateKey, PqPublicKey};
use taupe_protocol::update::PostQuantum;

use crate::key::Encoding;

/// The start of a line that is for Taupe alone.
pub const MARK: &str = "#@taupe:";

/// Writes the line of an own ML-KEM key.
///
/// # Errors
/// Those of `out`.
pub fn write_pq_private_key(out: &mut impl Write, key: &PqPrivateKey) -> fmt::Result {
    let text = Encoding::Base64.encode_pq_private_key(key);
    writeln!(out, "{MARK}PqPrivateKey = {}", text.as_str())
}

/// Writes the lines of a peer: its ML-KEM key, and whether handshakes with it are hybrid.
///
/// # Errors
/// Those of `out`.
pub fn write_pq_of_peer(
    out: &mut impl Write,
    key: Option<&PqPublicKey>,
    post_quantum: Option<PostQuantum>,
) -> fmt::Result {
    if let Some(key) = key {
        let text = Encoding::Base64.encode_pq_public_key(key);
        writeln!(out, "{MARK}PqPublicKey = {text}")?;
    }
    match post_quantum {
        Some(post_quantum) => writeln!(out, "{MARK}PostQuantum = {}", post_quantum.name()),
        None => Ok(()),
    }
}
