//! Keys and mode of hybrid handshakes.

use taupe_protocol::crypto::{Secret, default_provider};

use crate::c::boundary::{destination, guard, source, tunnel_of};
use crate::c::wireguard_tunnel;
use crate::{HybridKeys, PostQuantum, PqPrivateKey, PqPublicKey, Suite};

/// Suite of a handshake. Hybrid ones use X25519 and ML-KEM (docs/post-quantum.md).
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

/// Post-quantum mode: the handshakes that are allowed.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum taupe_post_quantum {
    /// Only ordinary ones.
    TAUPE_PQ_OFF = 0,
    /// Hybrid ones, and ordinary ones until the peer has answered a hybrid one.
    TAUPE_PQ_PREFER = 1,
    /// Only hybrid ones.
    TAUPE_PQ_REQUIRE = 2,
}

/// Size of the seed of ML-KEM keys, in bytes.
pub const TAUPE_PQ_SEED_SIZE: usize = 64;
/// Size of the longest ML-KEM public key, in bytes. That of TAUPE_HYBRID_512 has 800.
pub const TAUPE_PQ_KEY_SIZE: usize = 1184;
/// With hybrid handshakes, the least size of `dst` in every place that names 148.
pub const TAUPE_PQ_MESSAGE_SIZE: usize = 1232;

const _: () = {
    assert!(TAUPE_PQ_SEED_SIZE == PqPrivateKey::LEN);
    assert!(TAUPE_PQ_MESSAGE_SIZE == taupe_protocol::message::LONGEST_HANDSHAKE);
    assert!(taupe_suite::TAUPE_HYBRID_768 as u32 == Suite::Hybrid768 as u32);
};

/// Generates the seed of ML-KEM keys, TAUPE_PQ_SEED_SIZE bytes. Returns false for NULL.
///
/// # Safety
/// `seed` is NULL or has TAUPE_PQ_SEED_SIZE bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_pq_seed(seed: *mut u8) -> bool {
    guard(false, || {
        // SAFETY: the caller guarantees the buffer.
        match unsafe { destination(seed, TAUPE_PQ_SEED_SIZE) } {
            Some(seed) if !seed.is_empty() => {
                seed.copy_from_slice(crate::random_seed().expose());
                true
            }
            _ => false,
        }
    })
}

/// Writes the ML-KEM public key of a seed for TAUPE_HYBRID_512 or TAUPE_HYBRID_768 to `key`, and
/// returns its size. Returns 0 for NULL and for the other suites, which have no static ML-KEM key.
///
/// # Safety
/// `seed` is NULL or has TAUPE_PQ_SEED_SIZE bytes. `key` is NULL or has TAUPE_PQ_KEY_SIZE bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taupe_pq_public_key(suite: u32, seed: *const u8, key: *mut u8) -> usize {
    guard(0, || {
        let mut suites = Suite::ALL.into_iter().filter(|it| it.has_static_keys());
        let suite = suites.find(|it| *it as u32 == suite);
        // SAFETY: the caller guarantees the buffers.
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
    // SAFETY: the caller guarantees the buffer.
    let bytes = unsafe { source(seed, TAUPE_PQ_SEED_SIZE) }?;
    let mut seed = Secret::zeroed();
    seed.expose_mut().copy_from_slice(bytes);
    PqPrivateKey::new(seed)
}

/// Sets the mode and the keys of hybrid handshakes. Ends the session if the mode no longer
/// allows it.
///
/// `mode` is a taupe_post_quantum. `seed` is this side's seed of TAUPE_PQ_SEED_SIZE bytes. `key`
/// is the peer's ML-KEM public key of `key_size` bytes, and its size selects the suite. If both are
/// NULL, the suite is TAUPE_HYBRID_LIGHT. `latched` is the saved value of taupe_counters. Returns
/// false and changes nothing if a key is malformed or only one of the two is given.
///
/// From then on `dst` must hold TAUPE_PQ_MESSAGE_SIZE bytes in every place that names 148. A
/// handshake has several datagrams: after each WRITE_TO_NETWORK, call wireguard_read with
/// `src_size` 0 until WIREGUARD_DONE.
///
/// # Safety
/// `tunnel` is NULL or a tunnel. `seed` is NULL or has TAUPE_PQ_SEED_SIZE bytes. `key` is NULL or
/// has `key_size` bytes.
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
        // SAFETY: the caller guarantees the tunnel and the buffers.
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
