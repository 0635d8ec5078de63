//! Numbers, names and descriptions of errors.

use core::ffi::{CStr, c_char};
use std::ffi::CString;
use std::sync::OnceLock;

use super::to_c;
use crate::c::boundary::{guard, tunnel_of};
use crate::c::wireguard_tunnel;
use crate::{Error, Numbering};

/// Reason for which a call has failed: the `size` of WIREGUARD_ERROR.
///
/// 0 to 16 are boringtun's numbers since 0.6. Earlier versions had no DUPLICATE_COUNTER, and the
/// numbers after it were one less; see taupe_set_numbering.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum taupe_error {
    /// `dst` is too small.
    TAUPE_DESTINATION_BUFFER_TOO_SMALL = 0,
    /// boringtun's; Taupe does not return it.
    TAUPE_INCORRECT_PACKET_LENGTH = 1,
    /// A response or cookie reply without a matching initiation.
    TAUPE_UNEXPECTED_PACKET = 2,
    /// boringtun's; Taupe does not return it.
    TAUPE_WRONG_PACKET_TYPE = 3,
    /// boringtun's; Taupe does not return it.
    TAUPE_WRONG_INDEX = 4,
    /// An initiation of another peer.
    TAUPE_WRONG_KEY = 5,
    /// boringtun's; Taupe does not return it.
    TAUPE_INVALID_TAI64N_TIMESTAMP = 6,
    /// An initiation that has been received before, or the peer's clock has gone back.
    TAUPE_WRONG_TAI64N_TIMESTAMP = 7,
    /// A handshake message for another public key.
    TAUPE_INVALID_MAC = 8,
    /// A message that was changed, or sealed with other keys.
    TAUPE_INVALID_AEAD_TAG = 9,
    /// A counter above the limit of a session.
    TAUPE_INVALID_COUNTER = 10,
    /// A packet that has been received before, or that is behind the replay window.
    TAUPE_DUPLICATE_COUNTER = 11,
    /// Not a WireGuard message, or a message that contains no IP packet.
    TAUPE_INVALID_PACKET = 12,
    /// A packet for a session that has ended or never existed.
    TAUPE_NO_CURRENT_SESSION = 13,
    /// boringtun's; Taupe does not return it.
    TAUPE_LOCK_FAILED = 14,
    /// The peer does not answer, or the last session has been erased.
    TAUPE_CONNECTION_EXPIRED = 15,
    /// Too many handshake messages; see taupe_read_from.
    TAUPE_UNDER_LOAD = 16,
    /// An ordinary handshake although only hybrid ones are allowed.
    TAUPE_POST_QUANTUM_REQUIRED = 1000,
    /// A NULL that is not allowed, or a number without meaning.
    TAUPE_INVALID_ARGUMENT = 1001,
    /// A defect of the library, which it has contained. Free the tunnel.
    TAUPE_INTERNAL = 1002,
}

/// Numbering of errors.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum taupe_numbering {
    /// As in boringtun 0.6 and later: the numbers of taupe_error.
    TAUPE_NUMBERING_0_6 = 0,
    /// As in boringtun 0.3 to 0.5: DUPLICATE_COUNTER is 10, INVALID_PACKET 11,
    /// NO_CURRENT_SESSION 12, LOCK_FAILED 13, CONNECTION_EXPIRED 14, UNDER_LOAD 15.
    TAUPE_NUMBERING_0_5 = 1,
}

const _: () = {
    assert!(taupe_error::TAUPE_UNDER_LOAD as u32 == Error::UnderLoad as u32);
    assert!(taupe_error::TAUPE_INTERNAL as u32 == Error::Internal as u32);
    assert!(taupe_numbering::TAUPE_NUMBERING_0_5 as u32 == Numbering::Before0_6 as u32);
};

/// Returns boringtun's name of an error, for example "UnderLoad". "Unknown" for other numbers.
#[unsafe(no_mangle)]
pub extern "C" fn taupe_error_name(error: usize) -> *const c_char {
    let texts = texts_of(error);
    texts.map_or(c"Unknown", |(name, _)| name).as_ptr()
}

/// Returns a description of an error in English, with advice.
#[unsafe(no_mangle)]
pub extern "C" fn taupe_error_to_string(error: usize) -> *const c_char {
    let texts = texts_of(error);
    let unknown = c"no error has this number; is it boringtun 0.5's?";
    texts.map_or(unknown, |(_, sentence)| sentence).as_ptr()
}

/// Returns the name and the description of an error, which are built once.
fn texts_of(error: usize) -> Option<(&'static CStr, &'static CStr)> {
    static TEXTS: OnceLock<Vec<[CString; 2]>> = OnceLock::new();
    guard(None, || {
        let texts = TEXTS.get_or_init(|| {
            let texts = Error::ALL.map(|error| [format!("{error:?}"), error.to_string()]);
            texts.map(|pair| pair.map(to_c)).into()
        });
        let place = Error::ALL.iter().position(|it| *it as usize == error)?;
        let [name, sentence] = texts.get(place)?;
        Some((name.as_c_str(), sentence.as_c_str()))
    })
}

/// Sets the numbering of the tunnel's errors, a taupe_numbering, from the next call on. Returns
/// false for NULL or an unknown numbering. taupe_error_from_0_5 translates old numbers.
///
/// # Safety
/// `tunnel` is NULL or a tunnel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_set_numbering(
    tunnel: *const wireguard_tunnel,
    numbering: u32,
) -> bool {
    // SAFETY: the caller guarantees the tunnel.
    match (unsafe { tunnel_of(tunnel) }, Numbering::of(numbering)) {
        (Some(it), Some(numbering)) => {
            it.set_numbering(numbering);
            true
        }
        _ => false,
    }
}

/// Returns the taupe_error of an error number of boringtun 0.5. 10 becomes INVALID_COUNTER, which
/// at that time also stood for DUPLICATE_COUNTER.
#[unsafe(no_mangle)]
pub extern "C" fn taupe_error_from_0_5(error: usize) -> usize {
    let number = u32::try_from(error).ok();
    let found = number.and_then(|number| Error::of(number, Numbering::Before0_6));
    found.map_or(error, |error| error as usize)
}
