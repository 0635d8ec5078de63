//! Taupe's additions to boringtun's functions. Their names begin with `taupe_`.

mod address;
mod bulk;
mod counters;
mod errors;
mod hybrid;
mod lines;

use core::ffi::{CStr, c_char};
use std::ffi::CString;

use zeroize::Zeroize;

use super::boundary::{destination, guard, text, tunnel_of};
use super::wireguard_tunnel;
use crate::{PresharedKey, key};

pub use address::*;
pub use bulk::*;
pub use counters::*;
pub use errors::*;
pub use hybrid::*;
pub use lines::*;

/// Returns the version of the library, for example "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn taupe_version() -> *const c_char {
    static VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

fn to_c(text: String) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Returns the milliseconds until wireguard_tick has something to do, for poll(2). 0 means now.
/// -1 means that no timer is set, unless a packet is written or read first. The value changes
/// with every call.
///
/// # Safety
/// `tunnel` is NULL or a tunnel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_next_timeout(tunnel: *const wireguard_tunnel) -> i32 {
    guard(0, || {
        // SAFETY: the caller guarantees the tunnel.
        let deadline = unsafe { tunnel_of(tunnel) }.and_then(|it| it.tunnel.next_deadline());
        let Some(time) = deadline else {
            return -1;
        };
        // Round up: after an early wake-up there would be nothing to do.
        i32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    })
}

/// Sets the preshared key of later handshakes, in base64 or hexadecimal; NULL removes it. Returns
/// false and changes nothing if the key is malformed.
///
/// # Safety
/// `tunnel` is NULL or a tunnel. The string is NULL or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_set_preshared_key(
    tunnel: *const wireguard_tunnel,
    preshared_key: *const c_char,
) -> bool {
    guard(false, || {
        // SAFETY: the caller guarantees the tunnel and the string.
        let (it, text) = unsafe { (tunnel_of(tunnel), text(preshared_key)) };
        let parsed = match text {
            None => Some(PresharedKey::NONE),
            Some(text) => key::parse(text.to_bytes()).map(|key| PresharedKey::new(*key)),
        };
        let (Some(it), Some(preshared_key)) = (it, parsed) else {
            return false;
        };
        it.tunnel.set_preshared_key(preshared_key);
        true
    })
}

/// Sets the persistent keepalive in seconds; 0 is off. Returns false for NULL.
///
/// # Safety
/// `tunnel` is NULL or a tunnel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_set_keep_alive(
    tunnel: *const wireguard_tunnel,
    keep_alive: u16,
) -> bool {
    guard(false, || {
        // SAFETY: the caller guarantees the tunnel.
        let it = unsafe { tunnel_of(tunnel) };
        it.map(|it| it.tunnel.set_keepalive(keep_alive)).is_some()
    })
}

/// Overwrites a secret with zeros. No compiler optimises this away.
///
/// # Safety
/// `secret` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_erase(secret: *mut u8, size: usize) {
    // SAFETY: the caller guarantees the buffer.
    if let Some(secret) = unsafe { destination(secret, size) } {
        secret.zeroize();
    }
}
