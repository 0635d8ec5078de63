//! The C surface: pointers in, [`Tunnel`] called, results out.
//!
//! boringtun's functions are here, in the form of its versions 0.6 and 0.7; what Taupe adds
//! is in `more`. `include/taupe.h` is made from both by `scripts/header`, with these
//! comments. Nothing here is unwound over: a panic is caught, and is an error.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, non_snake_case)]

// What is caught here must be there to be caught.
#[cfg(panic = "abort")]
compile_error!(
    "a panic in this library would end its caller's process: build it with `make library`, or \
     with a profile of `panic = \"unwind\"`, as `--profile library` is"
);

mod boundary;
#[cfg(feature = "testing")]
mod fuzzing;
mod more;

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicU8, Ordering};
use std::ffi::CString;

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::{KEY_LEN, PresharedKey, PrivateKey, PublicKey};
use zeroize::Zeroize;

use crate::log::{Sink, set_process_sink};
use crate::tunnel::{Config, Tunnel};
use crate::{Error, Numbering, Outcome, key};
use boundary::{buffer, buffers, guard, text, tunnel_of};

#[cfg(feature = "testing")]
pub use fuzzing::{c_surface, taupe_fuzz};
pub use more::*;

/// What a call wants done with `dst`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum result_type {
    /// Nothing.
    WIREGUARD_DONE = 0,
    /// Send the first `size` bytes to the peer, as one UDP datagram.
    WRITE_TO_NETWORK = 1,
    /// The call has failed: `size` is a number of taupe_error.
    WIREGUARD_ERROR = 2,
    /// The first `size` bytes are an IPv4 packet from the peer.
    WRITE_TO_TUNNEL_IPV4 = 4,
    /// The first `size` bytes are an IPv6 packet from the peer.
    WRITE_TO_TUNNEL_IPV6 = 6,
}

/// What a call has come to.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct wireguard_result {
    /// What to do.
    pub op: result_type,
    /// How many bytes of `dst` are meant, or which error it is; 0 with WIREGUARD_DONE.
    pub size: usize,
}

/// What a tunnel tells of itself.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct stats {
    /// Seconds since the current session began; -1 without one.
    pub time_since_last_handshake: i64,
    /// Bytes of the packets written.
    pub tx_bytes: usize,
    /// Bytes of the packets read.
    pub rx_bytes: usize,
    /// The share of the peer's messages that have not arrived, 0 to 1.
    pub estimated_loss: f32,
    /// Milliseconds that the last handshake of this side took; -1 before it.
    pub estimated_rtt: i32,
    /// Zeros.
    pub reserved: [u8; 56],
}

/// A key of X25519, private or public.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct x25519_key {
    /// Its bytes (RFC 7748).
    pub key: [u8; 32],
}

/// A tunnel to one peer. Any thread may call its functions at any time, but for
/// tunnel_free.
pub struct wireguard_tunnel {
    tunnel: Tunnel,
    /// Of its errors, a [`Numbering`].
    numbering: AtomicU8,
}

impl wireguard_tunnel {
    /// Returns a tunnel as C has it, with the numbering of errors that is the default.
    #[must_use]
    pub fn new(tunnel: Tunnel) -> Self {
        Self {
            tunnel,
            numbering: AtomicU8::new(Numbering::default() as u8),
        }
    }

    /// Sets the numbering of errors in this tunnel's results.
    pub fn set_numbering(&self, numbering: Numbering) {
        self.numbering.store(numbering as u8, Ordering::Relaxed);
    }

    /// Calls the tunnel and returns the result with errors in this tunnel's numbering.
    pub fn call(&self, call: impl FnOnce(&Tunnel) -> crate::Result) -> wireguard_result {
        self.as_result(call(&self.tunnel))
    }

    fn as_result(&self, result: crate::Result) -> wireguard_result {
        result.map_or_else(|error| self.refused(error), wireguard_result::from)
    }

    fn refused(&self, error: Error) -> wireguard_result {
        let numbering = Numbering::of(self.numbering.load(Ordering::Relaxed).into());
        wireguard_result {
            op: result_type::WIREGUARD_ERROR,
            size: error.number(numbering.unwrap_or_default()) as usize,
        }
    }
}

impl From<Outcome> for wireguard_result {
    fn from(outcome: Outcome) -> Self {
        let (op, size) = match outcome {
            Outcome::Done => (result_type::WIREGUARD_DONE, 0),
            Outcome::Network(size) => (result_type::WRITE_TO_NETWORK, size),
            Outcome::Ipv4(size) => (result_type::WRITE_TO_TUNNEL_IPV4, size),
            Outcome::Ipv6(size) => (result_type::WRITE_TO_TUNNEL_IPV6, size),
        };
        Self { op, size }
    }
}

impl wireguard_result {
    /// An error that no tunnel has given: its number is the same in all numberings.
    pub fn error(error: Error) -> Self {
        Self {
            op: result_type::WIREGUARD_ERROR,
            size: error as usize,
        }
    }
}

/// Makes a private key, from the system's randomness.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_secret_key() -> x25519_key {
    guard(x25519_key { key: [0; KEY_LEN] }, || x25519_key {
        key: *crate::random_secret().expose(),
    })
}

/// The public key of a private one.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_public_key(mut private_key: x25519_key) -> x25519_key {
    let public = guard([0; KEY_LEN], || {
        default_provider().dh.public(&private_key.key)
    });
    private_key.key.zeroize();
    x25519_key { key: public }
}

/// A key in base64, 44 characters, to be freed with x25519_key_to_str_free.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_key_to_base64(mut key: x25519_key) -> *const c_char {
    let text = guard(core::ptr::null(), || own(&key::to_base64(&key.key)));
    key.key.zeroize();
    text
}

/// A key in hexadecimal, 64 digits, to be freed with x25519_key_to_str_free.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_key_to_hex(mut key: x25519_key) -> *const c_char {
    let text = guard(core::ptr::null(), || own(&key::to_hex(&key.key)));
    key.key.zeroize();
    text
}

/// A string of its own for C; there is no NUL in keys.
fn own(text: &str) -> *const c_char {
    match CString::new(text) {
        Ok(text) => text.into_raw(),
        Err(_) => core::ptr::null(),
    }
}

/// Erases and frees what x25519_key_to_base64 or x25519_key_to_hex has returned; does
/// nothing for NULL.
///
/// # Safety
/// `key_str` is NULL, or was returned by one of the two and has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn x25519_key_to_str_free(key_str: *const c_char) {
    if !key_str.is_null() {
        // SAFETY: it comes from `CString::into_raw`, as the caller vouches.
        let text = unsafe { CString::from_raw(key_str.cast_mut()) };
        guard((), || text.into_bytes().zeroize());
    }
}

/// 1 if a string is a key in base64, and not all zeros; else 0, also for NULL.
///
/// # Safety
/// `key` is NULL or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn check_base64_encoded_x25519_key(key: *const c_char) -> c_int {
    guard(0, || {
        // SAFETY: the caller vouches for the string.
        let parsed = unsafe { text(key) }.and_then(|text| key::base64(text.to_bytes()));
        c_int::from(parsed.is_some_and(|key| PresharedKey::new(*key).is_set()))
    })
}

/// Has the lines of all tunnels go to a function, each as boringtun's: the time in UTC
/// (RFC 3339), a space, the text and "\n". false if it has been called before, or with NULL.
/// taupe_set_log_level chooses which.
///
/// `log_func` is called by whichever thread calls a tunnel, before that call returns, but by
/// one at a time in the whole process, with one line each time. The string is valid during
/// the call and is not to be changed. `log_func` may call the library, also the same tunnel,
/// but not with a buffer of the call that the line comes of, nor free its tunnel; lines of
/// meanwhile are left out. It must not wait for another thread that calls the library, and
/// not throw or longjmp.
#[unsafe(no_mangle)]
pub extern "C" fn set_logging_function(
    log_func: Option<unsafe extern "C" fn(*const c_char)>,
) -> bool {
    guard(false, || {
        log_func.is_some_and(|log_func| set_process_sink(more::stamped(log_func)))
    })
}

/// Makes a tunnel; NULL if a key is NULL, malformed, or the peer's is this side's own.
///
/// `static_private` and `server_static_public` are keys in base64 or hexadecimal, so is
/// `preshared_key`, or NULL for none. `keep_alive` is in seconds, 0 is off. The lower 24
/// bits of `index` are the upper 24 of every receiver index by which the peer names this
/// tunnel. The strings are not kept.
///
/// # Safety
/// Each string is NULL or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn new_tunnel(
    static_private: *const c_char,
    server_static_public: *const c_char,
    preshared_key: *const c_char,
    keep_alive: u16,
    index: u32,
) -> *mut wireguard_tunnel {
    // SAFETY: what the caller vouches for is what is asked for.
    unsafe {
        make(
            [static_private, server_static_public, preshared_key],
            keep_alive,
            index,
            None,
        )
    }
}

/// A tunnel, as new_tunnel makes it.
///
/// # Safety
/// Each key is NULL or a string that ends with a NUL.
unsafe fn make(
    texts: [*const c_char; 3],
    keepalive: u16,
    index: u32,
    sink: Option<Sink>,
) -> *mut wireguard_tunnel {
    guard(core::ptr::null_mut(), || {
        // SAFETY: the caller vouches for the strings.
        let tunnel = unsafe { keys(texts) }.and_then(|(private_key, public_key, preshared_key)| {
            Tunnel::new(Config {
                private_key,
                public_key,
                preshared_key,
                keepalive,
                index,
                sink,
            })
        });
        tunnel.map_or(core::ptr::null_mut(), |tunnel| {
            Box::into_raw(Box::new(wireguard_tunnel::new(tunnel)))
        })
    })
}

/// Reads the three keys of a tunnel: private, the peer's, preshared or NULL.
///
/// # Safety
/// Each is NULL or a string that ends with a NUL.
unsafe fn keys(
    [private, public, preshared]: [*const c_char; 3],
) -> Option<(PrivateKey, PublicKey, PresharedKey)> {
    let parse = |key: *const c_char| {
        // SAFETY: the caller vouches for the string.
        let key: &CStr = unsafe { text(key) }?;
        key::parse(key.to_bytes())
    };
    let private = PrivateKey::new(*parse(private)?)?;
    let public = PublicKey(*parse(public)?);
    let preshared = match preshared.is_null() {
        true => PresharedKey::NONE,
        false => PresharedKey::new(*parse(preshared)?),
    };
    Some((private, public, preshared))
}

/// Ends a tunnel, and erases its keys; does nothing for NULL.
///
/// # Safety
/// `tunnel` is NULL, or a tunnel that has not been freed and that no thread calls.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tunnel_free(tunnel: *mut wireguard_tunnel) {
    if !tunnel.is_null() {
        // SAFETY: it comes from `Box::into_raw`, and nobody else has it, as the caller
        // vouches.
        let tunnel = unsafe { Box::from_raw(tunnel) };
        guard((), || drop(tunnel));
    }
}

/// Takes an IP packet, or with `src_size` 0 a keepalive, for the peer.
///
/// WRITE_TO_NETWORK: `dst` is the message that carries it, or, without a session, the
/// initiation of a handshake; the packet is kept then. WIREGUARD_DONE: it is kept, and a
/// handshake is under way. At most 256 are kept; newer ones are dropped.
///
/// `dst_size` must be src_size + 32 at least, and 148.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; `src` has `src_size` bytes and `dst` `dst_size`, or each is
/// NULL with the size 0. They may overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_write(
    tunnel: *const wireguard_tunnel,
    src: *const u8,
    src_size: u32,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: the caller vouches for the tunnel and both buffers.
    unsafe { buffers(tunnel, (src, src_size), (dst, dst_size), Tunnel::write) }
}

/// Takes a datagram from the peer, or with `src_size` 0 nothing.
///
/// WRITE_TO_TUNNEL_*: `dst` is the packet in it; whether the peer may send from its source
/// address is the caller's to check. WRITE_TO_NETWORK: `dst` is to be sent to the peer;
/// there may be more: call again with `src_size` 0 until WIREGUARD_DONE.
///
/// `dst_size` must be src_size at least, and 148; with `src_size` 0, 32 more than the
/// longest packet that may have been kept.
///
/// # Safety
/// As wireguard_write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_read(
    tunnel: *const wireguard_tunnel,
    src: *const u8,
    src_size: u32,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: the caller vouches for the tunnel and both buffers.
    unsafe {
        buffers(tunnel, (src, src_size), (dst, dst_size), |it, src, dst| {
            it.read(None, src, dst)
        })
    }
}

/// Does what is due: to be called every 100 ms, or when taupe_next_timeout says.
///
/// WRITE_TO_NETWORK as wireguard_read. The error ConnectionExpired comes at every call from
/// when the peer has been given up until something is written or a handshake forced.
///
/// `dst_size` must be 148 at least.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; `dst` has `dst_size` bytes, or is NULL with the size 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_tick(
    tunnel: *const wireguard_tunnel,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: the caller vouches for the tunnel and the buffer.
    unsafe { buffer(tunnel, (dst, dst_size), Tunnel::tick) }
}

/// Begins a handshake now: WRITE_TO_NETWORK, and `dst` is its initiation.
///
/// `dst_size` must be 148 at least.
///
/// # Safety
/// As wireguard_tick.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_force_handshake(
    tunnel: *const wireguard_tunnel,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: the caller vouches for the tunnel and the buffer.
    unsafe { buffer(tunnel, (dst, dst_size), Tunnel::force_handshake) }
}

/// What the tunnel tells of itself; for NULL, that there is nothing.
///
/// # Safety
/// `tunnel` is NULL or a tunnel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_stats(tunnel: *const wireguard_tunnel) -> stats {
    let nothing = stats {
        time_since_last_handshake: -1,
        tx_bytes: 0,
        rx_bytes: 0,
        estimated_loss: 0.0,
        estimated_rtt: -1,
        reserved: [0; 56],
    };
    guard(nothing, || {
        // SAFETY: the caller vouches for the tunnel.
        let Some(it) = (unsafe { tunnel_of(tunnel) }) else {
            return nothing;
        };
        let told = it.tunnel.statistics();
        let age = told.handshake_age.map(|age| age.as_secs());
        let rtt = told.rtt.map(|rtt| rtt.as_millis());
        stats {
            time_since_last_handshake: age.map_or(-1, |age| age.try_into().unwrap_or(i64::MAX)),
            tx_bytes: told.tx.1.try_into().unwrap_or(usize::MAX),
            rx_bytes: told.rx.1.try_into().unwrap_or(usize::MAX),
            estimated_loss: told.loss,
            estimated_rtt: rtt.map_or(-1, |rtt| rtt.try_into().unwrap_or(i32::MAX)),
            reserved: [0; 56],
        }
    })
}
