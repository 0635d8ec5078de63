//! State of the handshakes with a peer, in words.

use core::fmt;

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::PqPublicKey;
use taupe_protocol::time::Instant;
use taupe_protocol::update::{DeviceStatus, PeerStatus, PostQuantum, Suite};

use crate::key::Encoding;

/// State of the handshakes with a peer. `Display` describes it briefly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HandshakeState {
    /// This side lacks the ML-KEM key that they require.
    NoOwnKey,
    /// The session is hybrid, of this suite.
    Hybrid(Suite),
    /// The mode is `prefer`, and the session is ordinary.
    Ordinary,
    /// The mode is `prefer`, and there is no session.
    NoSession,
    /// Hybrid handshakes are required, and there is no session.
    HybridRequired,
    /// The mode is `off`.
    Off,
}

impl fmt::Display for HandshakeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoOwnKey => {
                "none (no PqPrivateKey: this peer needs a hybrid handshake, so no handshake can \
                 begin)"
            }
            Self::Hybrid(suite) => suite.name(),
            Self::Ordinary => {
                "none (prefer has fallen back to an ordinary session; no hybrid handshake with the \
                 peer is recorded)"
            }
            Self::NoSession => "none (no session)",
            Self::HybridRequired => "none (no session; ordinary handshakes are refused)",
            Self::Off => "none (off)",
        })
    }
}

/// Returns the mode of the handshakes with a peer; `None` if it is not configured.
#[must_use]
pub fn handshake_mode(peer: &PeerStatus) -> Option<PostQuantum> {
    let default = peer.pq_public_key.as_ref().map(|_| PostQuantum::Require);
    peer.post_quantum.or(default)
}

/// Returns true if hybrid handshakes with a peer are configured but the device has no ML-KEM key to
/// authenticate itself. Then it begins no handshake, not even an ordinary one.
#[must_use]
pub fn lacks_own_key(device: &DeviceStatus, peer: &PeerStatus) -> bool {
    let wanted = handshake_mode(peer).is_some_and(|wanted| wanted != PostQuantum::Off);
    wanted && peer.pq_public_key.is_some() && device.pq_private_key.is_none()
}

/// Returns the state of the handshakes with a peer at `now`; `None` if the mode is not configured.
#[must_use]
pub fn handshake_state(
    device: &DeviceStatus,
    peer: &PeerStatus,
    now: Instant,
) -> Option<HandshakeState> {
    let wanted = handshake_mode(peer)?;
    let session = peer.session.filter(|session| session.is_alive(now));
    Some(match (session.map(|session| session.suite), wanted) {
        (Some(Some(suite)), _) => HandshakeState::Hybrid(suite),
        (_, PostQuantum::Off) => HandshakeState::Off,
        // The peer may have begun the handshake; the session is ordinary regardless.
        (Some(None), PostQuantum::Prefer) if !peer.pq_pinned => HandshakeState::Ordinary,
        _ if lacks_own_key(device, peer) => HandshakeState::NoOwnKey,
        (None, PostQuantum::Prefer) if !peer.pq_pinned => HandshakeState::NoSession,
        _ => HandshakeState::HybridRequired,
    })
}

/// Returns the fingerprint of a key, for users to compare: BLAKE2s-256 in base64.
#[must_use]
pub fn fingerprint(key: &PqPublicKey) -> String {
    let hash = key.fingerprint(default_provider());
    Encoding::Base64.encode(&hash).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::push_peer;
    use core::time::Duration;
    use taupe_protocol::crypto::Secret;
    use taupe_protocol::key::{PqPrivateKey, PublicKey};
    use taupe_protocol::update::SessionStatus;

    const NOW: Instant = Instant(1_000_000_000_000);

    fn device(seed: Option<PqPrivateKey>) -> DeviceStatus {
        let mut peers = Vec::new();
        push_peer(&mut peers, PublicKey([1; 32]));
        DeviceStatus {
            private_key: None,
            pq_private_key: seed,
            peers,
        }
    }

    fn seed() -> PqPrivateKey {
        PqPrivateKey::new(Secret::new([1; 64])).expect("not zero")
    }

    #[test]
    fn state_of_handshakes_by_mode_and_session() {
        use HandshakeState::{Hybrid, HybridRequired, NoSession};
        use PostQuantum::{Off, Prefer, Require};
        let suite = Suite::Hybrid768;
        let (ordinary, hybrid) = ((None, 179), (Some(suite), 179));
        let (past, past_hybrid) = ((None, 180), (Some(suite), 180));
        for (mode, latched, session, expected) in [
            (None, false, None, None),
            (None, false, Some(ordinary), None),
            (Some(Off), false, None, Some(HandshakeState::Off)),
            (Some(Off), false, Some(ordinary), Some(HandshakeState::Off)),
            (Some(Prefer), false, None, Some(NoSession)),
            (
                Some(Prefer),
                false,
                Some(ordinary),
                Some(HandshakeState::Ordinary),
            ),
            (Some(Prefer), false, Some(past), Some(NoSession)),
            (Some(Prefer), true, None, Some(HybridRequired)),
            (Some(Prefer), true, Some(ordinary), Some(HybridRequired)),
            (Some(Prefer), true, Some(hybrid), Some(Hybrid(suite))),
            (Some(Prefer), true, Some(past_hybrid), Some(HybridRequired)),
            (Some(Require), false, None, Some(HybridRequired)),
            (Some(Require), false, Some(hybrid), Some(Hybrid(suite))),
            (
                Some(Require),
                false,
                Some(past_hybrid),
                Some(HybridRequired),
            ),
        ] {
            let mut device = device(Some(seed()));
            let peer = &mut device.peers[0];
            peer.post_quantum = mode;
            peer.pq_pinned = latched;
            peer.session = session.map(|(suite, age)| SessionStatus {
                suite,
                born: NOW - Duration::from_secs(age),
            });
            let seen = handshake_state(&device, &device.peers[0], NOW);
            assert_eq!(seen, expected, "{mode:?} {latched} {session:?}");
        }
    }

    #[test]
    fn a_device_without_an_ml_kem_key_has_no_handshakes() {
        use PostQuantum::{Off, Prefer, Require};
        let key = seed().public(default_provider(), Suite::Hybrid512);
        for (mode, has_key, expected) in [
            (None, true, Some(HandshakeState::NoOwnKey)),
            (Some(Require), true, Some(HandshakeState::NoOwnKey)),
            (Some(Prefer), true, Some(HandshakeState::NoOwnKey)),
            (Some(Off), true, Some(HandshakeState::Off)),
            // `hybrid-light` needs no ML-KEM key.
            (Some(Require), false, Some(HandshakeState::HybridRequired)),
            (None, false, None),
        ] {
            for own in [None, Some(seed())] {
                let lacks = own.is_none() && expected == Some(HandshakeState::NoOwnKey);
                let mut device = device(own);
                device.peers[0].post_quantum = mode;
                device.peers[0].pq_public_key = has_key.then(|| key.clone());
                let peer = &device.peers[0];
                assert_eq!(lacks_own_key(&device, peer), lacks, "{mode:?} {has_key}");
                if device.pq_private_key.is_none() {
                    assert_eq!(
                        handshake_state(&device, peer, NOW),
                        expected,
                        "{mode:?} {has_key}"
                    );
                }
            }
        }
    }
}
