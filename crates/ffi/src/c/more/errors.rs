//! Errors by their numbers, names and sentences.

use core::ffi::{CStr, c_char};
use std::ffi::CString;
use std::sync::OnceLock;

use super::to_c;
use crate::c::boundary::{guard, tunnel_of};
use crate::c::wireguard_tunnel;
use crate::{Error, Numbering};

/// Why a call has failed: the `size` of WIREGUARD_ERROR.
///
/// The first 17 are boringtun's since 0.6. Before, it had no DUPLICATE_COUNTER, and what is
/// behind that was one less: see taupe_set_numbering.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum taupe_error {
    /// `dst` is too small.
    TAUPE_DESTINATION_BUFFER_TOO_SMALL = 0,
    /// boringtun's; not given.
    TAUPE_INCORRECT_PACKET_LENGTH = 1,
    /// A response that answers nothing.
    TAUPE_UNEXPECTED_PACKET = 2,
    /// boringtun's; not given.
    TAUPE_WRONG_PACKET_TYPE = 3,
    /// boringtun's; not given.
    TAUPE_WRONG_INDEX = 4,
    /// An initiation of another peer.
    TAUPE_WRONG_KEY = 5,
    /// boringtun's; not given.
    TAUPE_INVALID_TAI64N_TIMESTAMP = 6,
    /// An initiation that has been received before, or the peer's clock has gone back.
    TAUPE_WRONG_TAI64N_TIMESTAMP = 7,
    /// A handshake message for another public key.
    TAUPE_INVALID_MAC = 8,
    /// A message that was changed, or made with other keys.
    TAUPE_INVALID_AEAD_TAG = 9,
    /// A counter that no session reaches.
    TAUPE_INVALID_COUNTER = 10,
    /// A packet that has been received before, or is too late to tell.
    TAUPE_DUPLICATE_COUNTER = 11,
    /// No WireGuard message, or no IP packet in it.
    TAUPE_INVALID_PACKET = 12,
    /// A packet for a session that has ended, or never was.
    TAUPE_NO_CURRENT_SESSION = 13,
    /// boringtun's; not given.
    TAUPE_LOCK_FAILED = 14,
    /// The peer does not answer, or the last session has been erased.
    TAUPE_CONNECTION_EXPIRED = 15,
    /// More handshake messages than are handled; see taupe_read_from.
    TAUPE_UNDER_LOAD = 16,
    /// An ordinary handshake where only hybrid ones are wanted.
    TAUPE_POST_QUANTUM_REQUIRED = 1000,
    /// A NULL where there must be none, or a number without meaning.
    TAUPE_INVALID_ARGUMENT = 1001,
    /// A defect of the library, stopped; the tunnel is best freed.
    TAUPE_INTERNAL = 1002,
}

/// Whose numbers errors have.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum taupe_numbering {
    /// boringtun's since 0.6: those of taupe_error.
    TAUPE_NUMBERING_0_6 = 0,
    /// boringtun's before: a DUPLICATE_COUNTER is 10, INVALID_PACKET 11,
    /// NO_CURRENT_SESSION 12, LOCK_FAILED 13, CONNECTION_EXPIRED 14, UNDER_LOAD 15.
    TAUPE_NUMBERING_0_5 = 1,
}

const _: () = {
    assert!(taupe_error::TAUPE_UNDER_LOAD as u32 == Error::UnderLoad as u32);
    assert!(taupe_error::TAUPE_INTERNAL as u32 == Error::Internal as u32);
    assert!(taupe_numbering::TAUPE_NUMBERING_0_5 as u32 == Numbering::Before0_6 as u32);
};

/// The name of an error, such as "UnderLoad", as boringtun has it; "Unknown" for a number
/// that is none.
#[unsafe(no_mangle)]
pub extern "C" fn taupe_error_name(error: usize) -> *const c_char {
    let texts = texts_of(error);
    texts.map_or(c"Unknown", |(name, _)| name).as_ptr()
}

/// What an error means and what to do, as a sentence in English.
#[unsafe(no_mangle)]
pub extern "C" fn taupe_error_to_string(error: usize) -> *const c_char {
    let texts = texts_of(error);
    let unknown = c"no error has this number; is it boringtun 0.5's?";
    texts.map_or(unknown, |(_, sentence)| sentence).as_ptr()
}

/// The name and sentence of an error, made once.
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

/// Has the tunnel's errors numbered as another version of boringtun does, from the next
/// call on: `numbering` is a taupe_numbering. taupe_error_from_0_5 translates.
///
/// # Safety
/// `tunnel` is NULL or a tunnel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_set_numbering(
    tunnel: *const wireguard_tunnel,
    numbering: u32,
) -> bool {
    // SAFETY: the caller vouches for the tunnel.
    match (unsafe { tunnel_of(tunnel) }, Numbering::of(numbering)) {
        (Some(it), Some(numbering)) => {
            it.set_numbering(numbering);
            true
        }
        _ => false,
    }
}

/// The taupe_error of a number that boringtun 0.5 gives. A 10 is INVALID_COUNTER, which
/// there was also what DUPLICATE_COUNTER is now.
#[unsafe(no_mangle)]
pub extern "C" fn taupe_error_from_0_5(error: usize) -> usize {
    let number = u32::try_from(error).ok();
    let found = number.and_then(|number| Error::of(number, Numbering::Before0_6));
    found.map_or(error, |error| error as usize)
}
