//! Keys as text: 64 hexadecimal digits, or base64 with or without its `=`.

use base64ct::{Base64, Base64Unpadded, Encoding as _};
use taupe_protocol::key::KEY_LEN;
use zeroize::Zeroizing;

/// A key of 32 bytes, which is erased when dropped.
pub type Key = Zeroizing<[u8; KEY_LEN]>;

/// Parses a key. Returns `None` if `text` is not exactly one key. The time does not depend on the
/// key.
#[must_use]
pub fn parse(text: &[u8]) -> Option<Key> {
    match text.len() {
        64 => hex(text),
        43 | 44 => base64(text),
        _ => None,
    }
}

/// Parses a key in base64.
#[must_use]
pub fn base64(text: &[u8]) -> Option<Key> {
    let mut key = Key::default();
    let decoded = match text.len() {
        43 => Base64Unpadded::decode(text, key.as_mut_slice()).map(<[u8]>::len),
        44 => Base64::decode(text, key.as_mut_slice()).map(<[u8]>::len),
        _ => return None,
    };
    (decoded.ok()? == KEY_LEN).then_some(key)
}

fn hex(text: &[u8]) -> Option<Key> {
    let mut key = Key::default();
    let decoded = base16ct::mixed::decode(text, key.as_mut_slice()).ok()?;
    (decoded.len() == KEY_LEN).then_some(key)
}

/// Returns a key in base64, 44 characters.
#[must_use]
pub fn to_base64(key: &[u8; KEY_LEN]) -> Zeroizing<String> {
    Zeroizing::new(Base64::encode_string(key))
}

/// Returns a key in hexadecimal, 64 lower-case digits.
#[must_use]
pub fn to_hex(key: &[u8; KEY_LEN]) -> Zeroizing<String> {
    Zeroizing::new(base16ct::lower::encode_string(key))
}
