//! The kind of each initiation to a peer that prefers hybrid handshakes.

use crate::limits::{COOKIES_OF_A_KIND, TRIES_OF_A_KIND};

/// Which handshake to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HandshakeKind {
    Ordinary,
    Hybrid,
}

/// Initiations since a handshake was last completed or given up, or the network was another.
#[derive(Default)]
pub(super) struct Tries {
    /// How many; fewer where a cookie has had those of a kind begin again.
    pub(super) made: u32,
    /// How often a cookie has.
    pub(super) begun_again: u32,
    /// Whether ordinary ones come first, once any has.
    begin_ordinary: Option<bool>,
}

impl Tries {
    /// The kind of the next. `begin_ordinary` is for the first of them, and has the ordinary
    /// ones begin when the session that the first hybrid ones waited with has ended; later, or
    /// when a hybrid one has had a cookie, it changes no turns.
    pub(super) fn next_kind(&mut self, begin_ordinary: bool) -> HandshakeKind {
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
    pub(super) fn begin_turn_again(&mut self) {
        // What was sent in another network is not counted any more.
        if let Some(before) = self.made.checked_sub(1)
            && self.begun_again < COOKIES_OF_A_KIND
        {
            self.begun_again += 1;
            self.made = before / TRIES_OF_A_KIND * TRIES_OF_A_KIND;
        }
    }
}
