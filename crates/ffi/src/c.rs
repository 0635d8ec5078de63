//! The C interface: it turns pointers into slices, calls [`Tunnel`] and returns results.
//!
//! This module has boringtun's functions, in the form of its versions 0.6 and 0.7; `additions` has
//! Taupe's additions. `scripts/header` generates `include/taupe.h` from both, with these comments.
//! No panic unwinds into C: it is caught and returned as an error.
#![allow(unsafe_code)]
#![allow(non_camel_case_types, non_snake_case)]

// Catching panics takes unwinding.
#[cfg(panic = "abort")]
compile_error!(
    "a panic in this library would end its caller's process: build it with `make library`, or \
     with a profile of `panic = \"unwind\"`, as `--profile library` is"
);

mod boundary;
#[cfg(feature = "testing")]
mod fuzzing;

// The last module: the header's order follows.
mod additions;

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

pub use additions::*;
#[cfg(feature = "testing")]
pub use fuzzing::{c_surface, taupe_fuzz};

/// The operation that the caller has to carry out with `dst`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum result_type {
    /// Nothing to do.
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

/// Result of a call.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct wireguard_result {
    /// The operation.
    pub op: result_type,
    /// The number of bytes in `dst`, or the number of the error. 0 with WIREGUARD_DONE.
    pub size: usize,
}

/// Statistics of a tunnel, in boringtun's form.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct stats {
    /// Seconds since the current session began; -1 without one.
    pub time_since_last_handshake: i64,
    /// Bytes of the packets sent.
    pub tx_bytes: usize,
    /// Bytes of the packets received.
    pub rx_bytes: usize,
    /// The fraction of the peer's messages that have not arrived, 0 to 1.
    pub estimated_loss: f32,
    /// Milliseconds from the last initiation of this side to its response; -1 before it.
    pub estimated_rtt: i32,
    /// Zeros.
    pub reserved: [u8; 56],
}

/// An X25519 key, private or public.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct x25519_key {
    /// The bytes (RFC 7748).
    pub key: [u8; 32],
}

/// A tunnel to one peer. Any thread may call its functions at any time, except tunnel_free.
pub struct wireguard_tunnel {
    tunnel: Tunnel,
    /// The [`Numbering`] of its errors.
    numbering: AtomicU8,
}

impl wireguard_tunnel {
    /// Returns a tunnel for C, with the default numbering of errors.
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
    /// Returns an error that does not come from a tunnel. Its number is that of [`Error`].
    pub fn error(error: Error) -> Self {
        Self {
            op: result_type::WIREGUARD_ERROR,
            size: error as usize,
        }
    }
}

/// Returns a new private key from the system's randomness.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_secret_key() -> x25519_key {
    guard(x25519_key { key: [0; KEY_LEN] }, || x25519_key {
        key: *crate::random_secret().expose(),
    })
}

/// Returns the public key of a private key.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_public_key(mut private_key: x25519_key) -> x25519_key {
    let public = guard([0; KEY_LEN], || {
        default_provider().dh.public(&private_key.key)
    });
    private_key.key.zeroize();
    x25519_key { key: public }
}

/// Returns a key in base64, 44 characters. Free the string with x25519_key_to_str_free.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_key_to_base64(mut key: x25519_key) -> *const c_char {
    let text = guard(core::ptr::null(), || own(&key::to_base64(&key.key)));
    key.key.zeroize();
    text
}

/// Returns a key in hexadecimal, 64 digits. Free the string with x25519_key_to_str_free.
#[unsafe(no_mangle)]
pub extern "C" fn x25519_key_to_hex(mut key: x25519_key) -> *const c_char {
    let text = guard(core::ptr::null(), || own(&key::to_hex(&key.key)));
    key.key.zeroize();
    text
}

/// Copies text that contains no NUL into a string that C owns.
fn own(text: &str) -> *const c_char {
    match CString::new(text) {
        Ok(text) => text.into_raw(),
        Err(_) => core::ptr::null(),
    }
}

/// Erases and frees a string from x25519_key_to_base64 or x25519_key_to_hex. Does nothing for
/// NULL.
///
/// # Safety
/// `key_str` is NULL, or was returned by one of these functions and has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn x25519_key_to_str_free(key_str: *const c_char) {
    if !key_str.is_null() {
        // SAFETY: it comes from `CString::into_raw`, as the caller guarantees.
        let text = unsafe { CString::from_raw(key_str.cast_mut()) };
        guard((), || text.into_bytes().zeroize());
    }
}

/// Returns 1 if a string is a key in base64 and not all zeros, else 0. NULL gives 0.
///
/// # Safety
/// `key` is NULL or a string that ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn check_base64_encoded_x25519_key(key: *const c_char) -> c_int {
    guard(0, || {
        // SAFETY: the caller guarantees the string.
        let parsed = unsafe { text(key) }.and_then(|text| key::base64(text.to_bytes()));
        c_int::from(parsed.is_some_and(|key| PresharedKey::new(*key).is_set()))
    })
}

/// Sends the log lines of all tunnels to a function, in boringtun's form: the time in UTC
/// (RFC 3339), a space, the text and "\n". taupe_set_log_level selects the lines. Returns false
/// if a function has been set before, or for NULL.
///
/// The thread that calls a tunnel calls `log_func`, before its own call returns, with one line
/// each time. Only one thread of the process calls `log_func` at a time. The string is valid
/// during the call and must not be changed. `log_func` may call the library, also with the same
/// tunnel, but not with a buffer of the call that causes the line, and it must not free that
/// tunnel. Lines that such calls cause are discarded. `log_func` must not wait for another thread
/// that calls the library, and must not throw or longjmp.
#[unsafe(no_mangle)]
pub extern "C" fn set_logging_function(
    log_func: Option<unsafe extern "C" fn(*const c_char)>,
) -> bool {
    guard(false, || {
        log_func.is_some_and(|log_func| set_process_sink(additions::stamped(log_func)))
    })
}

/// Creates a tunnel. Returns NULL if a required key is NULL, if a key is malformed, or if the
/// peer's key is this side's own.
///
/// All keys are in base64 or hexadecimal; `preshared_key` may be NULL for none. `keep_alive` is
/// in seconds, 0 is off. The lower 24 bits of `index` become the upper 24 bits of each receiver
/// index that the peer uses for this tunnel. The strings are not used after the call.
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
    // SAFETY: the caller guarantees what `make` requires of the strings.
    unsafe {
        make(
            [static_private, server_static_public, preshared_key],
            keep_alive,
            index,
            None,
        )
    }
}

/// Creates a tunnel like new_tunnel, with a sink for its log lines.
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
        // SAFETY: each string is NULL or ends with a NUL, as the caller guarantees.
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

/// Parses the three keys of a tunnel: the private key, the peer's, and the preshared key or NULL.
///
/// # Safety
/// Each is NULL or a string that ends with a NUL.
unsafe fn keys(
    [private, public, preshared]: [*const c_char; 3],
) -> Option<(PrivateKey, PublicKey, PresharedKey)> {
    let parse = |key: *const c_char| {
        // SAFETY: the caller guarantees the string.
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

/// Ends a tunnel and erases its keys. Does nothing for NULL.
///
/// # Safety
/// `tunnel` is NULL, or a tunnel that has not been freed. No other thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tunnel_free(tunnel: *mut wireguard_tunnel) {
    if !tunnel.is_null() {
        // SAFETY: it comes from `Box::into_raw`, and nobody else uses it, as the caller
        // guarantees.
        let tunnel = unsafe { Box::from_raw(tunnel) };
        guard((), || drop(tunnel));
    }
}

/// Sends an IP packet to the peer, or a keepalive if `src_size` is 0.
///
/// With WRITE_TO_NETWORK, `dst` holds a datagram: the message that carries the packet, or,
/// without a session, a handshake initiation. In the latter case, and with WIREGUARD_DONE (a
/// handshake is in progress), the packet is queued until there is a session. At most 256 packets
/// are queued; further ones are dropped.
///
/// `dst_size` must be at least src_size + 32, and at least 148.
///
/// # Safety
/// `tunnel` is NULL or a tunnel. `src` has `src_size` bytes and `dst` has `dst_size`, or each is
/// NULL with the size 0. They may overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_write(
    tunnel: *const wireguard_tunnel,
    src: *const u8,
    src_size: u32,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: the caller guarantees the tunnel and both buffers.
    unsafe { buffers(tunnel, (src, src_size), (dst, dst_size), Tunnel::write) }
}

/// Handles a datagram from the peer, or only returns the next datagram to send if `src_size` is 0.
///
/// With WRITE_TO_TUNNEL_IPV4 or WRITE_TO_TUNNEL_IPV6, `dst` holds a packet. The caller must check
/// whether the peer may use its source address. With WRITE_TO_NETWORK, `dst` holds a datagram for
/// the peer; then call again with `src_size` 0 until WIREGUARD_DONE, as there may be more.
///
/// `dst_size` must be at least src_size, and at least 148. With `src_size` 0 it must be at least
/// 32 more than the longest queued packet.
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
    // SAFETY: the caller guarantees the tunnel and both buffers.
    unsafe {
        buffers(tunnel, (src, src_size), (dst, dst_size), |it, src, dst| {
            it.read(None, src, dst)
        })
    }
}

/// Runs the tunnel's timers. Call it every 100 ms, or when taupe_next_timeout says.
///
/// WRITE_TO_NETWORK is as for wireguard_read. If the peer does not answer, or the last session has
/// been erased, each call returns the error ConnectionExpired until a packet is written or a
/// handshake is forced.
///
/// `dst_size` must be at least 148.
///
/// # Safety
/// `tunnel` is NULL or a tunnel. `dst` has `dst_size` bytes, or is NULL with the size 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_tick(
    tunnel: *const wireguard_tunnel,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: the caller guarantees the tunnel and the buffer.
    unsafe { buffer(tunnel, (dst, dst_size), Tunnel::tick) }
}

/// Starts a handshake now. Returns WRITE_TO_NETWORK, and `dst` holds the initiation.
///
/// `dst_size` must be at least 148.
///
/// # Safety
/// As wireguard_tick.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn wireguard_force_handshake(
    tunnel: *const wireguard_tunnel,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: the caller guarantees the tunnel and the buffer.
    unsafe { buffer(tunnel, (dst, dst_size), Tunnel::force_handshake) }
}

/// Returns the statistics of a tunnel. For NULL, those of a tunnel without traffic.
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
        // SAFETY: the caller guarantees the tunnel.
        let Some(it) = (unsafe { tunnel_of(tunnel) }) else {
            return nothing;
        };
        let statistics = it.tunnel.statistics();
        let age = statistics.handshake_age.map(|age| age.as_secs());
        let rtt = statistics.rtt.map(|rtt| rtt.as_millis());
        stats {
            time_since_last_handshake: age.map_or(-1, |age| age.try_into().unwrap_or(i64::MAX)),
            tx_bytes: statistics.tx.1.try_into().unwrap_or(usize::MAX),
            rx_bytes: statistics.rx.1.try_into().unwrap_or(usize::MAX),
            estimated_loss: statistics.loss,
            estimated_rtt: rtt.map_or(-1, |rtt| rtt.try_into().unwrap_or(i32::MAX)),
            reserved: [0; 56],
        }
    })
}
