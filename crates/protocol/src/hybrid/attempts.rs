//! The kind of each initiation to a peer that prefers hybrid handshakes.

use crate::limits::{COOKIES_OF_A_KIND, TRIES_OF_A_KIND};

/// Which handshake to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HandshakeKind {
    Ordinary,
    Hybrid,
}

/// Initiations to a peer that prefers hybrid handshakes, since a handshake was last completed or
/// given up, or the network changed. They go in turns of [`TRIES_OF_A_KIND`], of one kind each.
#[derive(Default)]
pub(super) struct Tries {
    turn: Turn,
    /// Initiations of this turn.
    pub(super) made: u32,
    /// Turns that a cookie has begun again.
    pub(super) begun_again: u32,
}

/// A turn of initiations of one kind.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// No initiation has been made.
    #[default]
    NotBegun,
    /// The first turn, of hybrid ones.
    FirstHybrid,
    Hybrid,
    Ordinary,
}

impl Turn {
    fn first(kind: HandshakeKind) -> Self {
        match kind {
            HandshakeKind::Hybrid => Self::FirstHybrid,
            HandshakeKind::Ordinary => Self::Ordinary,
        }
    }

    fn next(self) -> Self {
        match self {
            Self::NotBegun => Self::NotBegun,
            Self::FirstHybrid | Self::Hybrid => Self::Ordinary,
            Self::Ordinary => Self::Hybrid,
        }
    }
}

impl Tries {
    /// Returns the kind of the next initiation. `first` is the kind of the first turn. If it
    /// changes to ordinary during a first turn of hybrid ones, because the session that they waited
    /// with has ended, then ordinary ones begin at once, unless a hybrid one has had a cookie.
    pub(super) fn next_kind(&mut self, first: HandshakeKind) -> HandshakeKind {
        let is_cut_short = self.turn == Turn::FirstHybrid
            && self.made < TRIES_OF_A_KIND
            && self.begun_again == 0
            && first == HandshakeKind::Ordinary;
        if self.turn == Turn::NotBegun || is_cut_short {
            self.turn = Turn::first(first);
            self.made = 0;
        }
        match self.current_turn() {
            Turn::Ordinary => HandshakeKind::Ordinary,
            Turn::NotBegun | Turn::FirstHybrid | Turn::Hybrid => HandshakeKind::Hybrid,
        }
    }

    /// Counts an initiation of the kind that [`Self::next_kind`] returns.
    pub(super) fn count(&mut self) {
        let turn = self.current_turn();
        if turn != self.turn {
            self.turn = turn;
            self.made = 0;
        }
        self.made = self.made.saturating_add(1);
    }

    /// The turn of the next initiation.
    fn current_turn(&self) -> Turn {
        if self.made < TRIES_OF_A_KIND {
            self.turn
        } else {
            self.turn.next()
        }
    }

    /// Begins the turn of the last initiation again, because a cookie shows that its receiver knows
    /// hybrid handshakes. The number of times is limited: an eavesdropper who knows the peer's
    /// public key can make a cookie reply too.
    pub(super) fn begin_turn_again(&mut self) {
        // Initiations in another network are not counted any more.
        if self.made > 0 && self.begun_again < COOKIES_OF_A_KIND {
            self.begun_again += 1;
            self.made = 0;
        }
    }
}
