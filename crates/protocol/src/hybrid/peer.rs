//! What a peer's slot keeps for hybrid handshakes, and how it is configured.

use taupe_crypto::Provider;

use super::initiate::HandshakeKind;
use super::respond::Provisional;
use super::{IDENTITY_LEN, RemoteKeys, Suite};
use crate::device::{Device, Output};
use crate::key::{PqPrivateKey, PqPublicKey, PublicKey};
use crate::limits::{COOKIES_OF_A_KIND, TRIES_OF_A_KIND};
use crate::lock;
use crate::peer::PeerId;
use crate::slots::PeerEntry;
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
    fn new(crypto: &Provider, peer: PublicKey) -> Self {
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
            PostQuantum::Prefer => self.tries.next_kind(self.fell_back && !has_session),
        }
    }

    /// An initiation is sent.
    pub(crate) fn count_try(&mut self) {
        self.tries.made = self.tries.made.saturating_add(1);
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

/// Initiations since a handshake was last completed or given up, or the network was another.
#[derive(Default)]
struct Tries {
    /// How many; fewer where a cookie has had those of a kind begin again.
    made: u32,
    /// How often a cookie has.
    begun_again: u32,
    /// Whether ordinary ones come first, once any has.
    begin_ordinary: Option<bool>,
}

impl Tries {
    /// The kind of the next. `begin_ordinary` is for the first of them, and has the ordinary
    /// ones begin when the session that the first hybrid ones waited with has ended; later, or
    /// when a hybrid one has had a cookie, it changes no turns.
    fn next_kind(&mut self, begin_ordinary: bool) -> HandshakeKind {
        let waited = self.begin_ordinary == Some(false) && self.made < TRIES_OF_A_KIND;
        if begin_ordinary && waited && self.begun_again == 0 {
            self.begin_ordinary = Some(true);
            self.made = 0;
        }
        let begin_ordinary = *self.begin_ordinary.get_or_insert(begin_ordinary);
        let is_turn_of_other = self.made / TRIES_OF_A_KIND % 2 == 1;
        if begin_ordinary == is_turn_of_other {
            HandshakeKind::Hybrid
        } else {
            HandshakeKind::Ordinary
        }
    }

    /// Of the kind of the last try there are as many again, as whoever sends a cookie for a hybrid
    /// initiation knows what that is. Not without end: who reads one and knows the peer's public
    /// key can make a cookie reply too. At most once a try, which is of the turn before else.
    fn begin_turn_again(&mut self) {
        // What was sent in another network is not counted any more.
        if let Some(before) = self.made.checked_sub(1)
            && self.begun_again < COOKIES_OF_A_KIND
        {
            self.begun_again += 1;
            self.made = before / TRIES_OF_A_KIND * TRIES_OF_A_KIND;
        }
    }
}

impl PeerEntry {
    /// Whether ordinary handshakes with the peer are refused.
    pub(crate) fn refuses_ordinary(&self) -> bool {
        self.policy() == PostQuantum::Require
    }

    pub(crate) fn policy(&self) -> PostQuantum {
        let hybrid = self.hybrid.as_ref();
        hybrid.map_or(PostQuantum::Off, |hybrid| hybrid.policy())
    }

    /// The suite of hybrid handshakes with the peer, if there are any.
    pub(crate) fn suite(&self) -> Option<Suite> {
        let hybrid = self.hybrid.as_ref()?;
        (hybrid.policy() != PostQuantum::Off).then_some(hybrid.remote.suite)
    }
}

/// What of an update concerns hybrid handshakes.
pub(crate) struct HybridUpdate {
    pub(crate) key: Option<Option<PqPublicKey>>,
    pub(crate) setting: Option<Option<PostQuantum>>,
    pub(crate) latched: bool,
}

impl Device {
    /// Replaces the seed of this side's ML-KEM keys. Sessions that were made with the old one
    /// still receive, and send no more. Returns the peers that it concerns.
    pub(crate) fn set_pq_private_key(&mut self, key: Option<PqPrivateKey>) -> Vec<PeerId> {
        let mut concerned = Vec::new();
        if self.pq_private_key == key {
            return concerned;
        }
        self.pq_private_key = key;
        if let Some(identity) = &mut self.identity {
            identity.expand(self.crypto, self.pq_private_key.as_ref());
        }
        for id in self.peers.ids() {
            if self
                .peers
                .entry(id)
                .is_none_or(|entry| entry.hybrid.is_none())
            {
                continue;
            }
            self.abandon_initiation(id);
            self.forget_provisional(id, |_| true);
            let Some(entry) = self.peers.entry(id) else {
                continue;
            };
            let mut state = lock(&entry.peer.state);
            if let Some(current) = &mut state.sessions.current
                && current.session.suite().is_some()
            {
                current.may_send = false;
            }
            concerned.push(id);
        }
        concerned
    }

    /// Configures hybrid handshakes with a peer. What was made by rules that are no longer
    /// those of the peer ends.
    pub(crate) fn update_hybrid(&mut self, id: PeerId, update: HybridUpdate) {
        let crypto = self.crypto;
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        let HybridUpdate {
            key,
            setting,
            latched,
        } = update;
        let says_nothing =
            matches!(key, None | Some(None)) && matches!(setting, None | Some(None)) && !latched;
        if entry.hybrid.is_none() && says_nothing {
            return;
        }
        let peer = *entry.peer.public_key();
        let before = (entry.policy(), entry.suite());
        let hybrid = entry
            .hybrid
            .get_or_insert_with(|| Box::new(Hybrid::new(crypto, peer)));
        let mut other_key = false;
        if let Some(key) = key
            && key != hybrid.remote.pq_public_key
        {
            hybrid.remote = RemoteKeys::new(crypto, peer, key);
            // Nothing that was made for another identity verifies under this one.
            hybrid.timestamp_received = None;
            other_key = true;
        }
        let said = hybrid.setting;
        hybrid.setting = setting.unwrap_or(said);
        if other_key || hybrid.setting != said {
            hybrid.fell_back = false;
            hybrid.begin_anew();
        }
        hybrid.latched |= latched && hybrid.setting == Some(PostQuantum::Prefer);
        // With `off` also when nothing is known of it here: it may be from before a restart.
        let said_off = setting == Some(Some(PostQuantum::Off));
        if said_off || (hybrid.latched && hybrid.policy() == PostQuantum::Off) {
            hybrid.latched = false;
            self.remember(peer, false);
        }
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        let after = (entry.policy(), entry.suite());
        if before == after && !other_key {
            return;
        }
        self.peers.index_identity(id);
        self.abandon_initiation(id);
        self.forget_provisional(id, |_| true);
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        let suite = entry.suite();
        let refuses_ordinary = entry.refuses_ordinary();
        lock(&entry.peer.state)
            .sessions
            .retire_if(|session| match session.suite() {
                None => refuses_ordinary,
                Some(made) => other_key || suite != Some(made),
            });
    }

    /// A hybrid handshake with the peer has succeeded.
    pub(crate) fn latch(&mut self, id: PeerId) {
        let Some(entry) = self.peers.entry(id) else {
            return;
        };
        let Some(hybrid) = entry.hybrid.as_mut() else {
            return;
        };
        hybrid.fell_back = false;
        if hybrid.latched || hybrid.setting != Some(PostQuantum::Prefer) {
            return;
        }
        hybrid.latched = true;
        let peer = *entry.peer.public_key();
        let mut state = lock(&entry.peer.state);
        state
            .sessions
            .retire_if(|session| session.suite().is_none());
        drop(state);
        self.remember(peer, true);
    }

    fn remember(&mut self, peer: PublicKey, latched: bool) {
        if let Some(identity) = &self.identity {
            self.outputs.push_back(Output::Latch {
                public_key: identity.keys.public,
                peer,
                latched,
            });
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
