//! What the handshakes with a peer are like, in words.

use core::fmt;

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::PqPublicKey;
use taupe_protocol::time::Instant;
use taupe_protocol::update::{PeerStatus, PostQuantum, Suite};

use crate::key::Encoding;

/// What the handshakes with a peer are like. Its `Display` says it in a few words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handshakes {
    /// There is a session of this suite.
    Hybrid(Suite),
    /// They are preferred to be hybrid, and there is a session that is ordinary.
    Ordinary,
    /// They are preferred to be hybrid, and there is no session.
    NoneYet,
    /// They have to be hybrid, and there is no session.
    NoneAllowed,
    /// They are ordinary because that is said.
    Off,
}

impl fmt::Display for Handshakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Hybrid(suite) => suite.name(),
            Self::Ordinary => {
                "none (prefer has fallen back: the session is ordinary, and no hybrid handshake \
                 with the peer has ever succeeded)"
            }
            Self::NoneYet => "none (no session)",
            Self::NoneAllowed => "none (no session; an ordinary one is refused)",
            Self::Off => "none (off)",
        })
    }
}

/// What the handshakes with a peer are to be like; `None` where nothing is said of it.
#[must_use]
pub fn wanted_handshakes(peer: &PeerStatus) -> Option<PostQuantum> {
    let default = peer.pq_public_key.as_ref().map(|_| PostQuantum::Require);
    peer.post_quantum.or(default)
}

/// What the handshakes with a peer are like at a time of the boot clock; `None`
/// where nothing is said of it.
#[must_use]
pub fn handshakes(peer: &PeerStatus, now: Instant) -> Option<Handshakes> {
    let wanted = wanted_handshakes(peer)?;
    let session = peer.session.filter(|session| session.is_alive(now));
    Some(match (session.map(|session| session.suite), wanted) {
        (Some(Some(suite)), _) => Handshakes::Hybrid(suite),
        (_, PostQuantum::Off) => Handshakes::Off,
        // By a handshake of the peer's: it is no less ordinary for that.
        (Some(None), PostQuantum::Prefer) if !peer.pq_latched => Handshakes::Ordinary,
        (None, PostQuantum::Prefer) if !peer.pq_latched => Handshakes::NoneYet,
        (_, PostQuantum::Prefer | PostQuantum::Require) => Handshakes::NoneAllowed,
    })
}

/// The fingerprint of a key, for people to compare: BLAKE2s-256 in base64.
#[must_use]
pub fn fingerprint(key: &PqPublicKey) -> String {
    let hash = key.fingerprint(default_provider());
    Encoding::Base64.encode(&hash).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uapi::push_peer;
    use core::time::Duration;
    use taupe_protocol::key::PublicKey;
    use taupe_protocol::update::SessionStatus;

    const NOW: Instant = Instant(1_000_000_000_000);

    #[test]
    fn the_truth_about_a_session() {
        use Handshakes::{Hybrid, NoneAllowed, NoneYet};
        use PostQuantum::{Off, Prefer, Require};
        let suite = Suite::Hybrid768;
        let (ordinary, hybrid) = ((None, 179), (Some(suite), 179));
        let (past, past_hybrid) = ((None, 180), (Some(suite), 180));
        for (said, latched, session, expected) in [
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
            let mut peers = Vec::new();
            push_peer(&mut peers, PublicKey([1; 32]));
            let peer = &mut peers[0];
            peer.post_quantum = said;
            peer.pq_latched = latched;
            peer.session = session.map(|(suite, age)| SessionStatus {
                suite,
                born: NOW - Duration::from_secs(age),
            });
            assert_eq!(handshakes(peer, NOW), expected, "{said:?} {latched} {session:?}");
        }
    }
}
