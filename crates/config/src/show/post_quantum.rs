//! What the handshakes with a peer are like, in words.

use core::fmt;
use core::time::Duration;

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::PqPublicKey;
use taupe_protocol::limits::REJECT_AFTER_TIME;
use taupe_protocol::update::{PeerStatus, PostQuantum, Suite};

use crate::key::Encoding;

/// What the handshakes with a peer are like. Its `Display` says it in a few words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Handshakes {
    /// The current session is of this suite.
    Hybrid(Suite),
    /// They are preferred to be hybrid, and the current session is ordinary.
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
                "none (prefer has fallen back: the session is ordinary, and the peer has answered \
                 no hybrid handshake)"
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

/// What the handshakes with a peer are like at a time of day, since the Unix epoch; `None`
/// where nothing is said of it.
#[must_use]
pub fn handshakes(peer: &PeerStatus, now: Duration) -> Option<Handshakes> {
    // A clock that was set back says nothing of the session's age.
    let age = peer.latest_handshake.map(|at| now.saturating_sub(at));
    let has_session = age.is_some_and(|age| age < REJECT_AFTER_TIME);
    Some(match (peer.suite, wanted_handshakes(peer)?) {
        (Some(suite), _) => Handshakes::Hybrid(suite),
        (None, PostQuantum::Off) => Handshakes::Off,
        (None, PostQuantum::Prefer) if !peer.pq_latched && has_session => Handshakes::Ordinary,
        (None, PostQuantum::Prefer) if !peer.pq_latched => Handshakes::NoneYet,
        (None, PostQuantum::Prefer | PostQuantum::Require) => Handshakes::NoneAllowed,
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
    use taupe_protocol::key::PublicKey;

    const NOW: Duration = Duration::from_secs(1_800_000_000);

    #[test]
    fn the_truth_about_a_session() {
        use PostQuantum::{Off, Prefer, Require};
        let recent = Some(NOW - Duration::from_secs(179));
        let past = Some(NOW - Duration::from_secs(180));
        let suite = Suite::Hybrid768;
        for (said, latched, suite, handshake, expected) in [
            (None, false, None, recent, None),
            (Some(Off), false, None, recent, Some(Handshakes::Off)),
            (Some(Prefer), false, None, None, Some(Handshakes::NoneYet)),
            (Some(Prefer), false, None, past, Some(Handshakes::NoneYet)),
            (
                Some(Prefer),
                false,
                None,
                recent,
                Some(Handshakes::Ordinary),
            ),
            (
                Some(Prefer),
                true,
                None,
                recent,
                Some(Handshakes::NoneAllowed),
            ),
            (
                Some(Require),
                false,
                None,
                recent,
                Some(Handshakes::NoneAllowed),
            ),
            (
                Some(Prefer),
                true,
                Some(suite),
                recent,
                Some(Handshakes::Hybrid(suite)),
            ),
            (
                Some(Require),
                false,
                Some(suite),
                recent,
                Some(Handshakes::Hybrid(suite)),
            ),
        ] {
            let mut peers = Vec::new();
            push_peer(&mut peers, PublicKey([1; 32]));
            let peer = &mut peers[0];
            peer.post_quantum = said;
            peer.pq_latched = latched;
            peer.suite = suite;
            peer.latest_handshake = handshake;
            assert_eq!(handshakes(peer, NOW), expected, "{said:?} {handshake:?}");
        }
    }
}
