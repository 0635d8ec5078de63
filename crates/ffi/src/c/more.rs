//! What Taupe adds to boringtun's functions. Their names begin with `taupe_`.

use core::ffi::{CStr, c_char};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::sync::atomic::{AtomicU8, Ordering};
use std::ffi::CString;
use std::sync::OnceLock;

use taupe_protocol::crypto::{Secret, default_provider};
use zeroize::Zeroize;

use super::boundary::{buffers, destination, guard, line_writer, source, text, tunnel_of};
use super::{keys, result_type, wireguard_result, wireguard_tunnel};
use crate::log::{Level, Sink, process_sink};
use crate::tunnel::{Config, HybridKeys, OFFSET, OVERHEAD, Outcome, Strided, Tunnel};
use crate::{
    Cause, Error, Numbering, PostQuantum, PqPrivateKey, PqPublicKey, PresharedKey, Suite, key,
};

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

/// How much a line matters.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum taupe_log_level {
    /// A tunnel does not work.
    TAUPE_LOG_ERROR = 0,
    /// Sessions that come and go.
    TAUPE_LOG_INFO = 1,
    /// Each handshake message.
    TAUPE_LOG_DEBUG = 2,
    /// Each packet that is dropped.
    TAUPE_LOG_TRACE = 3,
}

/// A hybrid handshake: X25519 and ML-KEM (docs/post-quantum.md).
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum taupe_suite {
    /// X25519 alone.
    TAUPE_ORDINARY = 0,
    /// An ephemeral key of ML-KEM-512.
    TAUPE_HYBRID_LIGHT = 1,
    /// Static and ephemeral keys of ML-KEM-512.
    TAUPE_HYBRID_512 = 2,
    /// Static and ephemeral keys of ML-KEM-768.
    TAUPE_HYBRID_768 = 3,
}

/// Which handshakes there are.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum taupe_post_quantum {
    /// Only ordinary ones.
    TAUPE_PQ_OFF = 0,
    /// Hybrid ones; ordinary ones while the peer has never answered a hybrid one.
    TAUPE_PQ_PREFER = 1,
    /// Only hybrid ones.
    TAUPE_PQ_REQUIRE = 2,
}

/// An address and UDP port.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct taupe_address {
    /// 4 or 6.
    pub version: u8,
    /// In the host's byte order.
    pub port: u16,
    /// As in the header of a packet; of IPv4, the first four bytes.
    pub ip: [u8; 16],
    /// The interface of a link-local IPv6 address, else 0.
    pub scope: u32,
}

/// What a tunnel counts and knows, besides struct stats.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct taupe_counters {
    /// Packets written.
    pub tx_packets: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Packets read.
    pub rx_packets: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Sessions so far.
    pub sessions: u64,
    /// Packets that wait for one.
    pub waiting: u64,
    /// Messages and packets dropped; taupe_dropped tells why.
    pub dropped: u64,
    /// The handshake that the current session comes from, a taupe_suite.
    pub suite: u32,
    /// 1 when TAUPE_PQ_PREFER has become as strict as TAUPE_PQ_REQUIRE: to be remembered,
    /// and given to taupe_set_post_quantum the next time.
    pub latched: u32,
}

/// Bytes that a message has before its packet.
pub const TAUPE_OFFSET: usize = 16;
/// Bytes that a message has more than its packet and padding.
pub const TAUPE_OVERHEAD: usize = 32;
/// The bytes of the seed of ML-KEM keys.
pub const TAUPE_PQ_SEED_SIZE: usize = 64;
/// The bytes of the longest ML-KEM public key; TAUPE_HYBRID_512's has 800.
pub const TAUPE_PQ_KEY_SIZE: usize = 1184;
/// What `dst` must hold where hybrid handshakes are wanted, in the place of 148.
pub const TAUPE_PQ_MESSAGE_SIZE: usize = 1232;

const _: () = {
    assert!(TAUPE_OFFSET == OFFSET && TAUPE_OVERHEAD == OVERHEAD);
    assert!(TAUPE_PQ_SEED_SIZE == PqPrivateKey::LEN);
    assert!(TAUPE_PQ_MESSAGE_SIZE == taupe_protocol::message::LONGEST_HANDSHAKE);
    assert!(taupe_error::TAUPE_UNDER_LOAD as u32 == Error::UnderLoad as u32);
    assert!(taupe_error::TAUPE_INTERNAL as u32 == Error::Internal as u32);
    assert!(taupe_suite::TAUPE_HYBRID_768 as u32 == Suite::Hybrid768 as u32);
};

pub(super) fn numbering_of(numbering: &AtomicU8) -> Numbering {
    match numbering.load(Ordering::Relaxed) {
        0 => Numbering::Current,
        _ => Numbering::Before0_6,
    }
}

/// The version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn taupe_version() -> *const c_char {
    static VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// A tunnel, as new_tunnel makes it.
///
/// # Safety
/// Each key is NULL or a string that ends with a NUL.
pub(super) unsafe fn make(
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
            Box::into_raw(Box::new(wireguard_tunnel {
                tunnel,
                numbering: AtomicU8::new(0),
            }))
        })
    })
}

/// As new_tunnel, but its lines go to a function of its own, up to `log_level`, a
/// taupe_log_level; NULL for none. See set_logging_function.
///
/// # Safety
/// Each string is NULL or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_new_tunnel_with_log(
    static_private: *const c_char,
    server_static_public: *const c_char,
    preshared_key: *const c_char,
    keep_alive: u16,
    index: u32,
    log_printer: Option<unsafe extern "C" fn(*const c_char)>,
    log_level: u32,
) -> *mut wireguard_tunnel {
    let level = Level::of(log_level).unwrap_or(Level::Trace);
    let sink = log_printer.map(|printer| Sink::new(level, line_writer(printer)));
    let keys = [static_private, server_static_public, preshared_key];
    // SAFETY: the caller vouches for the strings.
    unsafe { make(keys, keep_alive, index, sink) }
}

/// Chooses the lines of set_logging_function, up to `level`, a taupe_log_level: at first
/// all. false if there is no such level, or no function yet.
#[unsafe(no_mangle)]
pub extern "C" fn taupe_set_log_level(level: u32) -> bool {
    guard(false, || match (Level::of(level), process_sink()) {
        (Some(level), Some(sink)) => {
            sink.set_level(level);
            true
        }
        _ => false,
    })
}

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

fn to_c(text: String) -> CString {
    CString::new(text).unwrap_or_default()
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
    match (unsafe { tunnel_of(tunnel) }, u8::try_from(numbering)) {
        (Some(it), Ok(numbering @ 0..=1)) => {
            it.numbering.store(numbering, Ordering::Relaxed);
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

/// As wireguard_read, with where the datagram came from: under load, handshake messages
/// from there are answered with cookies (more than 10 in a second are a load), where
/// wireguard_read can only refuse them. NULL: it is not known.
///
/// # Safety
/// As wireguard_read; `from` is NULL or an address.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_read_from(
    tunnel: *const wireguard_tunnel,
    from: *const taupe_address,
    src: *const u8,
    src_size: u32,
    dst: *mut u8,
    dst_size: u32,
) -> wireguard_result {
    // SAFETY: the caller vouches for the address.
    let Ok(from) = (unsafe { address(from) }) else {
        return wireguard_result::error(Error::InvalidArgument);
    };
    // SAFETY: the caller vouches for the tunnel and both buffers.
    unsafe {
        buffers(tunnel, (src, src_size), (dst, dst_size), |it, src, dst| {
            it.tunnel.read(from, src, dst)
        })
    }
}

/// # Safety
/// `from` is NULL or an address.
unsafe fn address(from: *const taupe_address) -> Result<Option<SocketAddr>, ()> {
    // SAFETY: the caller vouches for it.
    let Some(from) = (unsafe { from.as_ref() }) else {
        return Ok(None);
    };
    let [a, b, c, d, ..] = from.ip;
    match from.version {
        4 => Ok(Some((Ipv4Addr::new(a, b, c, d), from.port).into())),
        6 => {
            let ip = Ipv6Addr::from(from.ip);
            let address = core::net::SocketAddrV6::new(ip, from.port, 0, from.scope);
            Ok(Some(address.into()))
        }
        _ => Err(()),
    }
}

/// Where the peer was last heard of: the address of its last authentic message, by
/// taupe_read_from and its like. false if that is not known.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; `address` is NULL or can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_peer_address(
    tunnel: *const wireguard_tunnel,
    address: *mut taupe_address,
) -> bool {
    guard(false, || {
        // SAFETY: the caller vouches for the tunnel.
        let known = unsafe { tunnel_of(tunnel) }.and_then(|it| it.tunnel.peer_address());
        let (Some(known), false) = (known, address.is_null()) else {
            return false;
        };
        let mut told = taupe_address {
            version: 4,
            port: known.port(),
            ip: [0; 16],
            scope: 0,
        };
        match known.ip() {
            IpAddr::V4(ip) => told.ip[..4].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => {
                told.version = 6;
                told.ip = ip.octets();
            }
        }
        if let SocketAddr::V6(known) = known {
            told.scope = known.scope_id();
        }
        // SAFETY: it is not NULL, and the caller vouches for the rest.
        unsafe { address.write(told) };
        true
    })
}

/// In how many milliseconds wireguard_tick has something to do, 0 when it has now, -1 when
/// it has not unless something is written or read first: as poll(2) takes it. Ask again
/// after every call.
///
/// # Safety
/// `tunnel` is NULL or a tunnel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_next_timeout(tunnel: *const wireguard_tunnel) -> i32 {
    guard(0, || {
        // SAFETY: the caller vouches for the tunnel.
        let deadline = unsafe { tunnel_of(tunnel) }.and_then(|it| it.tunnel.next_deadline());
        let Some(time) = deadline else {
            return -1;
        };
        // Rounded up: who wakes early would find nothing to do.
        i32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX)
    })
}

/// As wireguard_write, but the packet is in `buffer` already, `size` bytes from TAUPE_OFFSET
/// on, and the message begins at 0. `capacity` must be size + 32 at least, and 148.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; `buffer` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_write_in_place(
    tunnel: *const wireguard_tunnel,
    buffer: *mut u8,
    size: u32,
    capacity: u32,
) -> wireguard_result {
    // SAFETY: the caller vouches for the tunnel and the buffer.
    unsafe {
        let nothing = (core::ptr::null(), 0);
        buffers(tunnel, nothing, (buffer, capacity), |it, _, buffer| {
            it.tunnel.write_in_place(buffer, size as usize)
        })
    }
}

/// As taupe_read_from, but the datagram is the first `size` bytes of `buffer`. A packet stays
/// in it, from TAUPE_OFFSET on; what is to be sent begins at 0. `capacity` must be 148 at
/// least.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; `from` is NULL or an address; `buffer` has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_read_in_place(
    tunnel: *const wireguard_tunnel,
    from: *const taupe_address,
    buffer: *mut u8,
    size: u32,
    capacity: u32,
) -> wireguard_result {
    // SAFETY: the caller vouches for the address.
    let Ok(from) = (unsafe { address(from) }) else {
        return wireguard_result::error(Error::InvalidArgument);
    };
    // SAFETY: the caller vouches for the tunnel and the buffer.
    unsafe {
        let nothing = (core::ptr::null(), 0);
        buffers(tunnel, nothing, (buffer, capacity), |it, _, buffer| {
            it.tunnel.read_in_place(from, buffer, size as usize)
        })
    }
}

/// Seals `count` packets: the `i`th is `src_sizes[i]` bytes from `src + i * src_stride`; its
/// message goes to `dst + i * dst_stride`, and its size to `dst_sizes[i]`.
///
/// WRITE_TO_NETWORK: `size` messages are to be sent. Without a session all packets are kept,
/// and it is one message, the initiation of a handshake. WIREGUARD_DONE: they are kept, and
/// a handshake is under way. `dst_stride` must be 32 more than the longest packet, and 148.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; each buffer is as long as it says, `dst` dst_stride * count
/// bytes, and none overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_write_batch(
    tunnel: *const wireguard_tunnel,
    src: *const u8,
    src_stride: usize,
    src_sizes: *const usize,
    count: usize,
    dst: *mut u8,
    dst_stride: usize,
    dst_sizes: *mut usize,
) -> wireguard_result {
    guard(wireguard_result::error(Error::Internal), || {
        let refused = wireguard_result::error(Error::InvalidArgument);
        // SAFETY: the caller vouches for the tunnel.
        let Some(it) = (unsafe { tunnel_of(tunnel) }) else {
            return refused;
        };
        // SAFETY: the caller vouches for the sizes.
        let Some(sizes) = (unsafe { sizes_of(src_sizes, count) }) else {
            return refused;
        };
        let last = sizes.last().copied().unwrap_or(0);
        let read = src_stride.checked_mul(count.saturating_sub(1));
        let read = read.and_then(|read| read.checked_add(last));
        let (Some(read), Some(written)) = (read, dst_stride.checked_mul(count)) else {
            return refused;
        };
        // SAFETY: the caller vouches for the three buffers.
        let slices = unsafe {
            (source(src, read))
                .zip(destination(dst, written))
                .zip(destination(dst_sizes, count))
        };
        let Some(((src, dst), dst_sizes)) = slices else {
            return refused;
        };
        let packets = Strided {
            stride: src_stride,
            sizes,
        };
        match it
            .tunnel
            .write_batch(src, packets, dst, dst_stride, dst_sizes)
        {
            Ok(0) => Outcome::Done.into(),
            Ok(messages) => Outcome::Network(messages).into(),
            Err(error) => it.refused(error),
        }
    })
}

/// Sizes, which are aligned, or `None`.
///
/// # Safety
/// `sizes` is NULL, or there are `count` of them, which nobody writes meanwhile.
unsafe fn sizes_of<'a>(sizes: *const usize, count: usize) -> Option<&'a [usize]> {
    if count == 0 {
        return Some(&[]);
    }
    let bytes = count.checked_mul(size_of::<usize>())?;
    let fits = bytes <= isize::MAX as usize && !sizes.is_null() && sizes.is_aligned();
    // SAFETY: it is not NULL, aligned, not longer than an object can be, and the caller
    // vouches for the rest. Others may read it too.
    fits.then(|| unsafe { core::slice::from_raw_parts(sizes, count) })
}

/// Opens `count` datagrams of one source in place: the `i`th is `sizes[i]` bytes from
/// `buffer + i * stride` (the segments of UDP_GRO, or places for recvmmsg). `results[i]` is
/// as wireguard_read's, but a packet begins TAUPE_OFFSET bytes behind its datagram.
///
/// WIREGUARD_DONE: `size` datagrams had packets in them. WIREGUARD_ERROR: none has been
/// looked at. Call wireguard_read with `src_size` 0 afterwards, until WIREGUARD_DONE.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; `from` is NULL or an address; each buffer is as long as it
/// says, `buffer` stride * (count - 1) + sizes[count - 1] bytes, and none overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_read_batch(
    tunnel: *const wireguard_tunnel,
    from: *const taupe_address,
    buffer: *mut u8,
    stride: usize,
    sizes: *const usize,
    count: usize,
    results: *mut wireguard_result,
) -> wireguard_result {
    guard(wireguard_result::error(Error::Internal), || {
        let refused = wireguard_result::error(Error::InvalidArgument);
        // SAFETY: the caller vouches for the tunnel, the address and the sizes.
        let (it, from, sizes) =
            unsafe { (tunnel_of(tunnel), address(from), sizes_of(sizes, count)) };
        let (Some(it), Ok(from), Some(sizes)) = (it, from, sizes) else {
            return refused;
        };
        let last = sizes.last().copied().unwrap_or(0);
        let length = stride.checked_mul(count.saturating_sub(1));
        let Some(length) = length.and_then(|length| length.checked_add(last)) else {
            return refused;
        };
        // SAFETY: the caller vouches for the buffer.
        let Some(buffer) = (unsafe { destination(buffer, length) }) else {
            return refused;
        };
        if count > 0 && (results.is_null() || !results.is_aligned()) {
            return refused;
        }
        let mut opened = vec![Ok(Outcome::Done); count];
        let datagrams = Strided { stride, sizes };
        match it.tunnel.read_batch(from, buffer, datagrams, &mut opened) {
            Ok(packets) => {
                for (i, result) in opened.into_iter().enumerate() {
                    // SAFETY: it is not NULL, aligned, and the caller vouches for `count`
                    // of them. Written by pointer, since they may not be initialised, and
                    // not any number is an operation.
                    unsafe { results.add(i).write(it.as_result(result)) };
                }
                wireguard_result {
                    op: result_type::WIREGUARD_DONE,
                    size: packets,
                }
            }
            Err(error) => it.refused(error),
        }
    })
}

/// Takes another preshared key, in base64 or hexadecimal, or NULL for none, for the
/// handshakes to come. false if it is malformed; nothing is changed then.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; the string is NULL or ends with a NUL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_set_preshared_key(
    tunnel: *const wireguard_tunnel,
    preshared_key: *const c_char,
) -> bool {
    guard(false, || {
        // SAFETY: the caller vouches for the tunnel and the string.
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

/// Takes another persistent keepalive, in seconds; 0 is off. false for NULL.
///
/// # Safety
/// `tunnel` is NULL or a tunnel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_set_keep_alive(
    tunnel: *const wireguard_tunnel,
    keep_alive: u16,
) -> bool {
    guard(false, || {
        // SAFETY: the caller vouches for the tunnel.
        let it = unsafe { tunnel_of(tunnel) };
        it.map(|it| it.tunnel.set_keepalive(keep_alive)).is_some()
    })
}

/// Makes the seed of ML-KEM keys, TAUPE_PQ_SEED_SIZE bytes; false for NULL.
///
/// # Safety
/// `seed` is NULL or has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_pq_seed(seed: *mut u8) -> bool {
    guard(false, || {
        // SAFETY: the caller vouches for the buffer.
        match unsafe { destination(seed, TAUPE_PQ_SEED_SIZE) } {
            Some(seed) if !seed.is_empty() => {
                seed.copy_from_slice(crate::random_seed().expose());
                true
            }
            _ => false,
        }
    })
}

/// Writes the ML-KEM public key of a seed for TAUPE_HYBRID_512 or TAUPE_HYBRID_768 into
/// `key`, which has TAUPE_PQ_KEY_SIZE bytes, and returns its size; 0 for NULL or another
/// suite, which has no such key.
///
/// # Safety
/// Each buffer is NULL or has its bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_pq_public_key(suite: u32, seed: *const u8, key: *mut u8) -> usize {
    guard(0, || {
        let mut suites = Suite::ALL.into_iter().filter(|it| it.has_static_keys());
        let suite = suites.find(|it| *it as u32 == suite);
        // SAFETY: the caller vouches for the buffers.
        let (seed, key) = unsafe { (seed_of(seed), destination(key, TAUPE_PQ_KEY_SIZE)) };
        let (Some(suite), Some(seed), Some(key)) = (suite, seed, key) else {
            return 0;
        };
        let public = seed.public(default_provider(), suite);
        let bytes = public.as_bytes();
        key[..bytes.len()].copy_from_slice(bytes);
        bytes.len()
    })
}

/// # Safety
/// `seed` is NULL or has TAUPE_PQ_SEED_SIZE bytes.
unsafe fn seed_of(seed: *const u8) -> Option<PqPrivateKey> {
    // SAFETY: the caller vouches for the buffer.
    let bytes = unsafe { source(seed, TAUPE_PQ_SEED_SIZE) }?;
    let mut seed = Secret::zeroed();
    seed.expose_mut().copy_from_slice(bytes);
    PqPrivateKey::new(seed)
}

/// Takes keys and rules for hybrid handshakes; sessions that they no longer allow end.
///
/// `mode` is a taupe_post_quantum. `seed` is this side's, TAUPE_PQ_SEED_SIZE bytes, and
/// `key` the peer's public key, `key_size` bytes, which says the suite; without both, NULL,
/// the suite is TAUPE_HYBRID_LIGHT. `latched` is what taupe_counters said before. From then
/// on `dst` must hold TAUPE_PQ_MESSAGE_SIZE bytes wherever it must hold 148, and a handshake
/// has several datagrams: after each WRITE_TO_NETWORK call wireguard_read with `src_size` 0
/// until WIREGUARD_DONE. false if a key is malformed or but one is there; nothing is changed
/// then.
///
/// # Safety
/// `tunnel` is NULL or a tunnel; each buffer is NULL or has its bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_set_post_quantum(
    tunnel: *const wireguard_tunnel,
    mode: u32,
    seed: *const u8,
    key: *const u8,
    key_size: usize,
    latched: bool,
) -> bool {
    guard(false, || {
        // SAFETY: the caller vouches for the tunnel and the buffers.
        let (it, own, other) = unsafe { (tunnel_of(tunnel), seed_of(seed), source(key, key_size)) };
        let mut modes = PostQuantum::ALL.into_iter();
        let mode = modes.find(|it| *it as u32 == mode);
        let public_key = match other {
            Some(bytes) if !key.is_null() => match PqPublicKey::new(bytes) {
                Ok(key) => Some(key),
                Err(_) => return false,
            },
            _ => None,
        };
        let both = own.is_some() == public_key.is_some()
            && own.is_some() != seed.is_null()
            && public_key.is_some() != key.is_null();
        let (Some(it), Some(mode), true) = (it, mode, both) else {
            return false;
        };
        it.tunnel.set_hybrid(HybridKeys {
            private_key: own,
            public_key,
            mode,
            latched,
        });
        true
    })
}

/// What the tunnel counts; zeros for NULL.
///
/// # Safety
/// `tunnel` is NULL or a tunnel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_get_counters(tunnel: *const wireguard_tunnel) -> taupe_counters {
    guard(taupe_counters::default(), || {
        // SAFETY: the caller vouches for the tunnel.
        let Some(it) = (unsafe { tunnel_of(tunnel) }) else {
            return taupe_counters::default();
        };
        let told = it.tunnel.statistics();
        taupe_counters {
            tx_packets: told.tx.0,
            tx_bytes: told.tx.1,
            rx_packets: told.rx.0,
            rx_bytes: told.rx.1,
            sessions: told.sessions,
            waiting: told.waiting as u64,
            dropped: Cause::ALL
                .iter()
                .map(|it_is| it.tunnel.dropped(*it_is))
                .sum(),
            suite: told.suite.map_or(0, |suite| suite as u32),
            latched: u32::from(told.latched),
        }
    })
}

/// How many messages and packets have been dropped for the `cause`th reason there is, which
/// taupe_drop_reason tells; 0 for NULL and beyond the last.
///
/// # Safety
/// `tunnel` is NULL or a tunnel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_dropped(tunnel: *const wireguard_tunnel, cause: usize) -> u64 {
    // SAFETY: the caller vouches for the tunnel.
    let it = unsafe { tunnel_of(tunnel) };
    let cause = Cause::ALL.get(cause);
    guard(0, || match (it, cause) {
        (Some(it), Some(cause)) => it.tunnel.dropped(*cause),
        _ => 0,
    })
}

/// Why messages and packets are dropped, as a sentence in English; NULL from the number on
/// that there is no reason of.
#[unsafe(no_mangle)]
pub extern "C" fn taupe_drop_reason(cause: usize) -> *const c_char {
    static TEXTS: OnceLock<Vec<CString>> = OnceLock::new();
    guard(core::ptr::null(), || {
        let texts = TEXTS.get_or_init(|| Cause::ALL.map(|it| to_c(it.to_string())).into());
        texts
            .get(cause)
            .map_or(core::ptr::null(), |text| text.as_ptr())
    })
}

/// Erases a secret that the caller has no more use for, in a way that no compiler leaves out.
///
/// # Safety
/// `secret` is NULL or has `size` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_erase(secret: *mut u8, size: usize) {
    // SAFETY: the caller vouches for the buffer.
    if let Some(secret) = unsafe { destination(secret, size) } {
        secret.zeroize();
    }
}
