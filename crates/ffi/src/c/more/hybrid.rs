//! Keys and rules of hybrid handshakes.

use taupe_protocol::crypto::{Secret, default_provider};

use crate::c::boundary::{destination, guard, source, tunnel_of};
use crate::c::wireguard_tunnel;
use crate::{HybridKeys, PostQuantum, PqPrivateKey, PqPublicKey, Suite};

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

/// The bytes of the seed of ML-KEM keys.
pub const TAUPE_PQ_SEED_SIZE: usize = 64;
/// The bytes of the longest ML-KEM public key; TAUPE_HYBRID_512's has 800.
pub const TAUPE_PQ_KEY_SIZE: usize = 1184;
/// What `dst` must hold where hybrid handshakes are wanted, in the place of 148.
pub const TAUPE_PQ_MESSAGE_SIZE: usize = 1232;

const _: () = {
    assert!(TAUPE_PQ_SEED_SIZE == PqPrivateKey::LEN);
    assert!(TAUPE_PQ_MESSAGE_SIZE == taupe_protocol::message::LONGEST_HANDSHAKE);
    assert!(taupe_suite::TAUPE_HYBRID_768 as u32 == Suite::Hybrid768 as u32);
};

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
