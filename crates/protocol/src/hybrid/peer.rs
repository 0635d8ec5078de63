//! Post-quantum state of a peer.

use taupe_crypto::Provider;

use crate::hybrid::attempts::Tries;
use crate::hybrid::{HandshakeKind, Provisional, RemoteKeys};
use crate::key::PublicKey;
use crate::message::IDENTITY_LEN;
use crate::time::Tai64N;
use crate::update::PostQuantum;

/// Of a peer for which anything of it is configured.
pub(crate) struct Hybrid {
    /// What was said, if anything was.
    pub(crate) setting: Option<PostQuantum>,
    /// A hybrid handshake has succeeded: `prefer` is `require` from now on.
    pub(crate) latched: bool,
    /// The last handshake that `prefer` completed was an ordinary one.
    pub(crate) fell_back: bool,
    tries: Tries,
    pub(crate) remote: RemoteKeys,
    /// What of its identity the device finds it by, while hybrid handshakes are wanted.
    pub(crate) found_by: Option<[u8; IDENTITY_LEN]>,
    /// The greatest timestamp of a hybrid handshake that has been confirmed, under this identity.
    /// Ordinary ones have a timestamp of their own: who has the X25519 key alone sets only that.
    pub(crate) timestamp_received: Option<Tai64N>,
    /// Handshakes that the peer has begun and not confirmed.
    pub(crate) provisional: Vec<Provisional>,
}

impl Hybrid {
    pub(crate) fn new(crypto: &Provider, peer: PublicKey) -> Self {
        Self {
            setting: None,
            latched: false,
            fell_back: false,
            tries: Tries::default(),
            remote: RemoteKeys::new(crypto, peer, None),
            found_by: None,
            timestamp_received: None,
            provisional: Vec::new(),
        }
    }

    /// A handshake is completed, or what was tried before does not count any more.
    pub(crate) fn begin_anew(&mut self) {
        self.tries = Tries::default();
    }

    /// Which handshake is begun with the peer now.
    ///
    /// `prefer` begins with hybrid ones unless they were not answered last time and there is
    /// no session to wait with, and takes turns for as long as nothing is answered: the peer
    /// may have come to demand the other kind.
    pub(crate) fn next_kind(&mut self, has_session: bool) -> HandshakeKind {
        match self.policy() {
            PostQuantum::Off => HandshakeKind::Ordinary,
            PostQuantum::Require => HandshakeKind::Hybrid,
            PostQuantum::Prefer if self.fell_back && !has_session => {
                self.tries.next_kind(HandshakeKind::Ordinary)
            }
            PostQuantum::Prefer => self.tries.next_kind(HandshakeKind::Hybrid),
        }
    }

    /// An initiation is sent.
    pub(crate) fn count_try(&mut self) {
        self.tries.count();
    }

    /// The first cookie has come for the hybrid initiation that was sent last.
    pub(crate) fn has_cookie(&mut self) {
        self.tries.begin_turn_again();
    }

    /// Which handshakes there are with the peer.
    pub(crate) fn policy(&self) -> PostQuantum {
        match (self.setting, &self.remote.pq_public_key) {
            (Some(PostQuantum::Prefer), _) if self.latched => PostQuantum::Require,
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

    /// How it is with a peer of `prefer`.
    #[derive(Clone, Copy, Default)]
    struct Peer {
        /// It was an ordinary handshake that it answered last.
        fell_back: bool,
        /// For how many tries there is a session.
        session: usize,
        /// How many of the first tries have a cookie, if they are hybrid.
        cookies: usize,
    }

    /// What is tried of it, in order: hybrid ones (`h`) and ordinary ones (`o`).
    fn tries(peer: Peer, count: usize) -> String {
        let mut hybrid = Hybrid::new(&AWS_LC, PublicKey([9; 32]));
        hybrid.setting = Some(PostQuantum::Prefer);
        hybrid.fell_back = peer.fell_back;
        let attempt = |i| {
            let kind = hybrid.next_kind(i < peer.session);
            hybrid.count_try();
            if kind != HandshakeKind::Hybrid {
                return 'o';
            }
            if i < peer.cookies {
                hybrid.has_cookie();
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
        let mut tries = Tries::default();
        tries.begin_turn_again();
        assert_eq!(tries.begun_again, 0);
        tries.made = 2;
        tries.begin_turn_again();
        assert_eq!((tries.begun_again, tries.made), (1, 0));
    }
}
