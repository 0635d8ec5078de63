//! Post-quantum state of a peer.

use taupe_crypto::Provider;

use crate::hybrid::attempts::Attempts;
use crate::hybrid::{HandshakeKind, Provisional, RemoteKeys};
use crate::key::PublicKey;
use crate::message::IDENTITY_LEN;
use crate::time::Tai64N;
use crate::update::PostQuantum;

/// Post-quantum state of a peer, present if any post-quantum setting is configured.
pub(crate) struct HybridState {
    /// The configured policy; `None` for the default.
    pub(crate) setting: Option<PostQuantum>,
    /// True once a hybrid handshake has succeeded: `prefer` is then as strict as `require`.
    pub(crate) pinned: bool,
    /// Set if the last handshake that `prefer` completed was an ordinary one.
    pub(crate) fell_back: bool,
    attempts: Attempts,
    pub(crate) remote: RemoteKeys,
    /// The identity that indexes the peer in the device, while hybrid handshakes are enabled.
    pub(crate) found_by: Option<[u8; IDENTITY_LEN]>,
    /// Greatest timestamp of a confirmed hybrid handshake with this identity. Ordinary handshakes
    /// have a separate timestamp, so that an attacker with only the X25519 key cannot raise this
    /// one.
    pub(crate) timestamp_received: Option<Tai64N>,
    /// Handshakes that the peer has begun and not confirmed.
    pub(crate) provisional: Vec<Provisional>,
}

impl HybridState {
    pub(crate) fn new(crypto: &Provider, peer: PublicKey) -> Self {
        Self {
            setting: None,
            pinned: false,
            fell_back: false,
            attempts: Attempts::default(),
            remote: RemoteKeys::new(crypto, peer, None),
            found_by: None,
            timestamp_received: None,
            provisional: Vec::new(),
        }
    }

    /// Restarts the choice of kinds, after a completed handshake or when earlier initiations no
    /// longer count.
    pub(crate) fn restart(&mut self) {
        self.attempts = Attempts::default();
    }

    /// Returns the kind of handshake to begin now.
    ///
    /// `prefer` begins with hybrid initiations, unless the last handshake fell back to an
    /// ordinary one and there is no usable session in the meantime. As long as no initiation is
    /// answered, it alternates between the kinds: the peer may have come to require the other
    /// one.
    pub(crate) fn next_kind(&mut self, has_session: bool) -> HandshakeKind {
        match self.policy() {
            PostQuantum::Off => HandshakeKind::Ordinary,
            PostQuantum::Require => HandshakeKind::Hybrid,
            PostQuantum::Prefer if self.fell_back && !has_session => {
                self.attempts.next_kind(HandshakeKind::Ordinary)
            }
            PostQuantum::Prefer => self.attempts.next_kind(HandshakeKind::Hybrid),
        }
    }

    /// Counts an initiation that is sent.
    pub(crate) fn count_attempt(&mut self) {
        self.attempts.count();
    }

    /// Records that a cookie has answered the last hybrid initiation, for the first time.
    pub(crate) fn note_cookie(&mut self) {
        self.attempts.restart_turn();
    }

    /// Returns the policy in force.
    pub(crate) fn policy(&self) -> PostQuantum {
        match (self.setting, &self.remote.pq_public_key) {
            (Some(PostQuantum::Prefer), _) if self.pinned => PostQuantum::Require,
            (Some(setting), _) => setting,
            (None, Some(_)) => PostQuantum::Require,
            (None, None) => PostQuantum::Off,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_crypto::AWS_LC;

    /// A peer with the policy `prefer`.
    #[derive(Clone, Copy, Default)]
    struct Peer {
        /// True if it last answered an ordinary handshake.
        fell_back: bool,
        /// Number of initiations for which there is a session.
        session: usize,
        /// Number of initiations of which each hybrid one is answered with a cookie.
        cookies: usize,
    }

    /// Returns the kinds of the first `count` initiations: hybrid (`h`) or ordinary (`o`).
    fn tries(peer: Peer, count: usize) -> String {
        let mut hybrid = HybridState::new(&AWS_LC, PublicKey([9; 32]));
        hybrid.setting = Some(PostQuantum::Prefer);
        hybrid.fell_back = peer.fell_back;
        let attempt = |i| {
            let kind = hybrid.next_kind(i < peer.session);
            hybrid.count_attempt();
            if kind != HandshakeKind::Hybrid {
                return 'o';
            }
            if i < peer.cookies {
                hybrid.note_cookie();
            }
            'h'
        };
        (0..count).map(attempt).collect()
    }

    const FELL_BACK: Peer = Peer {
        fell_back: true,
        session: 0,
        cookies: 0,
    };

    #[test]
    fn a_cookie_begins_the_hybrid_ones_again_but_not_without_end() {
        let cookies = usize::MAX;
        let answering = Peer {
            cookies,
            ..Peer::default()
        };
        assert_eq!(tries(answering, 11), "hhhhhooohhh");
        let fell_back = Peer {
            cookies,
            ..FELL_BACK
        };
        assert_eq!(tries(fell_back, 14), "ooohhhhhooohhh");
    }

    #[test]
    fn ordinary_ones_begin_when_there_is_no_session_left_to_wait_with() {
        for (session, wanted) in [(0, "ooohhho"), (1, "hooohhho"), (2, "hhooohhho")] {
            let peer = Peer {
                session,
                ..FELL_BACK
            };
            assert_eq!(tries(peer, wanted.len()), wanted);
        }
    }

    #[test]
    fn a_cookie_for_a_hybrid_one_is_used_whether_or_not_there_is_a_session() {
        let peer = Peer {
            session: 1,
            cookies: 1,
            ..FELL_BACK
        };
        assert_eq!(tries(peer, 8), "hhhhoooh");
    }

    #[test]
    fn a_session_that_ends_later_changes_no_turns() {
        for session in 3..10 {
            let peer = Peer {
                session,
                ..FELL_BACK
            };
            assert_eq!(tries(peer, 10), "hhhooohhho", "{session}");
        }
    }

    #[test]
    fn a_cookie_for_what_another_network_was_sent_is_not_counted() {
        let mut tries = Attempts::default();
        tries.restart_turn();
        assert_eq!(tries.restarts, 0);
        tries.made = 2;
        tries.restart_turn();
        assert_eq!((tries.restarts, tries.made), (1, 0));
    }
}
