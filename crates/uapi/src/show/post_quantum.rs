//! State of the handshakes with a peer, in words.

use core::fmt;

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::PqPublicKey;
use taupe_protocol::time::Instant;
use taupe_protocol::update::{DeviceStatus, PeerStatus, PostQuantum, Suite};

use crate::key::Encoding;

/// State of the handshakes with a peer. `Display` describes it briefly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handshakes {
    /// This side lacks the ML-KEM key that they require.
    NoOwnKey,
    /// The session is hybrid, of this suite.
    Hybrid(Suite),
    /// The mode is `prefer`, and the session is ordinary.
    Ordinary,
    /// The mode is `prefer`, and there is no session.
    NoneYet,
    /// Hybrid handshakes are required, and there is no session.
    NoneAllowed,
    /// The mode is `off`.
    Off,
}

impl fmt::Display for Handshakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoOwnKey => {
                "none (no PqPrivateKey: no hybrid handshake with this peer is possible, and no \
                 other is begun; make a key with `taupe genkey --pq`, for the file or for `taupe \
                 set INTERFACE pq-private-key FILE`)"
            }
            Self::Hybrid(suite) => suite.name(),
            Self::Ordinary => {
                "none (prefer has fallen back: the session is ordinary, and no hybrid handshake \
                 with the peer is remembered)"
            }
            Self::NoneYet => "none (no session)",
            Self::NoneAllowed => "none (no session; an ordinary one is refused)",
            Self::Off => "none (off)",
        })
    }
}

/// Returns the mode of the handshakes with a peer; `None` if it is not configured.
#[must_use]
pub fn wanted_handshakes(peer: &PeerStatus) -> Option<PostQuantum> {
    let default = peer.pq_public_key.as_ref().map(|_| PostQuantum::Require);
    peer.post_quantum.or(default)
}

/// Returns true if hybrid handshakes with a peer are configured but the device has no ML-KEM key to
/// authenticate itself. Then it begins no handshake, not even an ordinary one.
#[must_use]
pub fn lacks_own_key(device: &DeviceStatus, peer: &PeerStatus) -> bool {
    let wanted = wanted_handshakes(peer).is_some_and(|wanted| wanted != PostQuantum::Off);
    wanted && peer.pq_public_key.is_some() && device.pq_private_key.is_none()
}

/// Returns the state of the handshakes with a peer at `now`; `None` if the mode is not configured.
#[must_use]
pub fn handshakes(device: &DeviceStatus, peer: &PeerStatus, now: Instant) -> Option<Handshakes> {
    let wanted = wanted_handshakes(peer)?;
    let session = peer.session.filter(|session| session.is_alive(now));
    Some(match (session.map(|session| session.suite), wanted) {
        (Some(Some(suite)), _) => Handshakes::Hybrid(suite),
        (_, PostQuantum::Off) => Handshakes::Off,
        // The peer may have begun the handshake; the session is ordinary regardless.
        (Some(None), PostQuantum::Prefer) if !peer.pq_pinned => Handshakes::Ordinary,
        _ if lacks_own_key(device, peer) => Handshakes::NoOwnKey,
        (None, PostQuantum::Prefer) if !peer.pq_pinned => Handshakes::NoneYet,
        _ => Handshakes::NoneAllowed,
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
    fn the_truth_about_a_session() {
        use Handshakes::{Hybrid, NoneAllowed, NoneYet};
        use PostQuantum::{Off, Prefer, Require};
        let suite = Suite::Hybrid768;
        let (ordinary, hybrid) = ((None, 179), (Some(suite), 179));
        let (past, past_hybrid) = ((None, 180), (Some(suite), 180));
        for (said, pinned, session, expected) in [
            (None, false, None, None),
            (None, false, Some(ordinary), None),
            (Some(Off), false, None, Some(Handshakes::Off)),
            (Some(Off), false, Some(ordinary), Some(Handshakes::Off)),
            (Some(Prefer), false, None, Some(NoneYet)),
            (
                Some(Prefer),
                false,
                Some(ordinary),
                Some(Handshakes::Ordinary),
            ),
            (Some(Prefer), false, Some(past), Some(NoneYet)),
            (Some(Prefer), true, None, Some(NoneAllowed)),
            (Some(Prefer), true, Some(ordinary), Some(NoneAllowed)),
            (Some(Prefer), true, Some(hybrid), Some(Hybrid(suite))),
            (Some(Prefer), true, Some(past_hybrid), Some(NoneAllowed)),
            (Some(Require), false, None, Some(NoneAllowed)),
            (Some(Require), false, Some(hybrid), Some(Hybrid(suite))),
            (Some(Require), false, Some(past_hybrid), Some(NoneAllowed)),
        ] {
            let mut device = device(Some(seed()));
            let peer = &mut device.peers[0];
            peer.post_quantum = said;
            peer.pq_pinned = pinned;
            peer.session = session.map(|(suite, age)| SessionStatus {
                suite,
                born: NOW - Duration::from_secs(age),
            });
            let seen = handshakes(&device, &device.peers[0], NOW);
            assert_eq!(seen, expected, "{said:?} {pinned} {session:?}");
        }
    }

    #[test]
    fn without_a_key_of_its_own_a_side_has_no_handshakes() {
        use PostQuantum::{Off, Prefer, Require};
        let key = seed().public(default_provider(), Suite::Hybrid512);
        for (said, has_key, expected) in [
            (None, true, Some(Handshakes::NoOwnKey)),
            (Some(Require), true, Some(Handshakes::NoOwnKey)),
            (Some(Prefer), true, Some(Handshakes::NoOwnKey)),
            (Some(Off), true, Some(Handshakes::Off)),
            // `hybrid-light` needs no ML-KEM key.
            (Some(Require), false, Some(Handshakes::NoneAllowed)),
            (None, false, None),
        ] {
            for own in [None, Some(seed())] {
                let lacks = own.is_none() && expected == Some(Handshakes::NoOwnKey);
                let mut device = device(own);
                device.peers[0].post_quantum = said;
                device.peers[0].pq_public_key = has_key.then(|| key.clone());
                let peer = &device.peers[0];
                assert_eq!(lacks_own_key(&device, peer), lacks, "{said:?} {has_key}");
                if device.pq_private_key.is_none() {
                    assert_eq!(
                        handshakes(&device, peer, NOW),
                        expected,
                        "{said:?} {has_key}"
                    );
                }
            }
        }
    }
}
