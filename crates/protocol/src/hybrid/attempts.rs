//! Choice between hybrid and ordinary initiations to a peer that prefers hybrid ones.

use crate::limits::{ATTEMPTS_PER_KIND, COOKIES_PER_KIND};

/// Kind of handshake to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HandshakeKind {
    Ordinary,
    Hybrid,
}

/// Initiations to a peer that prefers hybrid handshakes, since a handshake was last completed or
/// given up, or the network changed. Each kind is tried [`ATTEMPTS_PER_KIND`] times in a row: a
/// turn.
#[derive(Default)]
pub(super) struct Attempts {
    turn: Turn,
    /// Number of initiations in this turn.
    pub(super) made: u32,
    /// Number of turns restarted by a cookie.
    pub(super) restarts: u32,
}

/// Consecutive initiations of one kind.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Turn {
    /// No initiation has been made.
    #[default]
    NotBegun,
    /// The first turn, of hybrid initiations.
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

impl Attempts {
    /// Returns the kind of the next initiation. `first` is the kind of the first turn. If the
    /// first turn is hybrid and `first` becomes ordinary, because the peer's session has expired,
    /// then the ordinary turn begins at once, unless a cookie has answered a hybrid initiation.
    pub(super) fn next_kind(&mut self, first: HandshakeKind) -> HandshakeKind {
        let is_cut_short = self.turn == Turn::FirstHybrid
            && self.made < ATTEMPTS_PER_KIND
            && self.restarts == 0
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

    /// Counts an initiation of the kind that [`Self::next_kind`] returned.
    pub(super) fn count(&mut self) {
        let turn = self.current_turn();
        if turn != self.turn {
            self.turn = turn;
            self.made = 0;
        }
        self.made = self.made.saturating_add(1);
    }

    /// Returns the turn of the next initiation.
    fn current_turn(&self) -> Turn {
        if self.made < ATTEMPTS_PER_KIND {
            self.turn
        } else {
            self.turn.next()
        }
    }

    /// Restarts the turn of the last initiation, because a cookie reply shows that the peer knows
    /// hybrid handshakes. The number of restarts is limited, because an eavesdropper who knows
    /// the peer's public key can forge a cookie reply.
    pub(super) fn restart_turn(&mut self) {
        // `made` is zero if the initiation was sent in another network; then nothing restarts.
        if self.made > 0 && self.restarts < COOKIES_PER_KIND {
            self.restarts += 1;
            self.made = 0;
        }
    }
}
