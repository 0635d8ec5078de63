//! Busy polling between a request and its answer.
//!
//! Busy polling answers sooner than sleeping on an idle processor and later on a busy one, so the
//! thread measures both and keeps the faster. An idle processor halts, and waking it often takes
//! longer than the answer, above all in a virtual machine. On a busy processor, a polling thread
//! has used up its time slice when the answer comes, and other programs run first.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use taupe_protocol::time::Instant;

use crate::schedule::load::Turn;
use taupe_runtime::clock;

/// The longest time for which a thread polls before it sleeps. It polls at all only if answers
/// come sooner than this on average.
const HOLD: Duration = Duration::from_micros(100);

/// The thread polls after this number of answers in a row.
const ROW: u32 = 4;

/// The largest packet of a request or an answer, in bytes. Streams have larger ones.
const SHORT: usize = 2048;

/// Upper bound of a measured wait. A longer wait was a pause without a request.
const PAUSE: Duration = Duration::from_millis(5);

/// Turns in one trial. The mean wait of a trial decides on the next phase.
const TRIAL: u32 = 512;

/// Trials for which a decision stays, before sleep is measured again.
const STAY: u32 = 16;

/// Action between a request and its answer. Phases follow each other as in [`Phase::next`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Sleep for one trial, to measure the wait for an answer.
    TrySleep,
    /// Poll for up to `left` trials, unless an answer takes more than a tenth longer than it did
    /// `asleep`.
    Poll { asleep: Duration, left: u32 },
    /// Sleep for `left` trials, because polling was slower or answers take too long.
    Sleep { left: u32 },
}

impl Phase {
    /// Returns the next phase, after a trial whose mean wait was `turn`.
    fn next(self, turn: Duration) -> Self {
        match self {
            Self::TrySleep if turn < HOLD => Self::Poll {
                asleep: turn,
                left: STAY,
            },
            Self::Poll { left: 1, .. } | Self::Sleep { left: 1 } => Self::TrySleep,
            // In doubt, poll: other threads may poll too, which distorts the comparison.
            Self::Poll { asleep, left } if turn < asleep + asleep / 10 => Self::Poll {
                asleep,
                left: left - 1,
            },
            Self::Sleep { left } => Self::Sleep { left: left - 1 },
            Self::TrySleep | Self::Poll { .. } => Self::Sleep { left: STAY },
        }
    }
}

/// Decides whether to poll. It watches for short packets that alternate between two sources, as
/// requests and answers of two programs do.
pub(crate) struct BusyPoll {
    /// Answers in a row, at most [`ROW`].
    row: u32,
    /// The source of the last turn.
    source: usize,
    /// The end of the last turn.
    ended: Instant,
    phase: Phase,
    /// Turns in this trial, and the sum of their waits.
    turns: u32,
    waited: Duration,
}

impl BusyPoll {
    pub(crate) fn new() -> Self {
        Self {
            row: 0,
            source: 0,
            ended: Instant::default(),
            phase: Phase::TrySleep,
            turns: 0,
            waited: Duration::ZERO,
        }
    }

    /// Records a turn of source number `source`.
    pub(crate) fn note(&mut self, source: usize, turn: &Turn) {
        let answers = source != self.source && turn.bytes <= SHORT;
        let waited = turn.came.since(self.ended).min(PAUSE);
        (self.source, self.ended) = (source, turn.ended);
        if !answers {
            self.row = 0;
            return;
        }
        self.row = ROW.min(self.row + 1);
        self.turns += 1;
        self.waited += waited;
        if self.turns == TRIAL {
            self.phase = self.phase.next(self.waited / self.turns);
            (self.turns, self.waited) = (0, Duration::ZERO);
        }
    }

    /// Polls for the next packet for at most [`HOLD`], if that is faster than sleeping. Yields the
    /// processor to other threads meanwhile. Returns true if a packet has arrived.
    pub(crate) fn is_answered(&mut self, fds: &mut [PollFd<'_>]) -> Result<bool, Errno> {
        if !matches!(self.phase, Phase::Poll { .. }) || self.row < ROW {
            return Ok(false);
        }
        let began = clock::boot();
        while clock::boot().since(began) < HOLD {
            if poll(fds, Some(&Timespec::default()))? > 0 {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        self.row = 0;
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::PollFlags;
    use std::os::unix::net::UnixDatagram;

    /// Simulation of two programs that exchange packets.
    struct Talk {
        state: BusyPoll,
        now: Instant,
        source: usize,
    }

    impl Talk {
        /// Starts with a packet that answers nothing.
        fn new() -> Self {
            let mut talk = Self {
                state: BusyPoll::new(),
                now: Instant(1_000_000_000),
                source: 0,
            };
            talk.packet(0, SHORT, AWAKE);
            talk
        }

        fn packet(&mut self, source: usize, bytes: usize, after: Duration) {
            let came = self.now + after;
            self.now = came + Duration::from_micros(5);
            let ended = self.now;
            self.state.note(source, &Turn { came, ended, bytes });
            self.source = source;
        }

        fn turns(&mut self, turns: u32, after: Duration) {
            for _ in 0..turns {
                self.packet(1 - self.source, SHORT, after);
            }
        }

        /// Returns true if the state polls, and so finds an answer that has already arrived.
        fn looks(&mut self) -> bool {
            let (ours, theirs) = UnixDatagram::pair().expect("sockets");
            theirs.send(&[1]).expect("sending");
            let mut fds = [PollFd::new(&ours, PollFlags::IN)];
            self.state.is_answered(&mut fds).expect("polling")
        }
    }

    const ASLEEP: Duration = Duration::from_micros(60);
    const AWAKE: Duration = Duration::from_micros(20);

    #[test]
    fn the_quicker_way_stays() {
        let mut talk = Talk::new();
        talk.turns(TRIAL - 1, ASLEEP);
        assert!(!talk.looks());
        talk.turns(1, ASLEEP);
        assert!(talk.looks(), "a trial");
        talk.turns(STAY * TRIAL - 1, AWAKE);
        assert!(talk.looks(), "it is quicker");
        talk.turns(1, AWAKE);
        assert!(!talk.looks(), "a trial of the other way");
        talk.turns(TRIAL, ASLEEP);
        talk.turns(TRIAL, ASLEEP);
        assert!(talk.looks(), "as quick");
        talk.turns(TRIAL, 2 * ASLEEP);
        assert!(!talk.looks(), "it is slower");
        talk.turns(STAY * TRIAL, ASLEEP);
        assert!(!talk.looks());
        talk.turns(TRIAL, ASLEEP);
        assert!(talk.looks(), "tried again");
    }

    #[test]
    fn answers_that_take_long_are_not_looked_for() {
        let mut talk = Talk::new();
        talk.turns(TRIAL, HOLD);
        assert!(!talk.looks());
        talk.turns(STAY * TRIAL, ASLEEP);
        assert!(!talk.looks());
        talk.turns(TRIAL, HOLD - Duration::from_nanos(1));
        assert!(talk.looks(), "tried again");
        // Rare requests, however soon they are answered.
        let mut talk = Talk::new();
        for _ in 0..TRIAL / 2 {
            talk.turns(1, Duration::from_secs(1));
            talk.turns(1, AWAKE);
        }
        assert!(!talk.looks());
    }

    #[test]
    fn one_way_traffic_and_long_packets_are_no_conversation() {
        for spoil in [
            |talk: &mut Talk| talk.packet(talk.source, 1, AWAKE),
            |talk: &mut Talk| talk.packet(1 - talk.source, SHORT + 1, AWAKE),
        ] {
            let mut talk = Talk::new();
            talk.turns(TRIAL, ASLEEP);
            spoil(&mut talk);
            assert!(!talk.looks());
            talk.turns(ROW - 1, AWAKE);
            assert!(!talk.looks());
            talk.turns(1, AWAKE);
            assert!(talk.looks());
        }
    }

    #[test]
    fn silence_ends_the_looking() {
        let mut talk = Talk::new();
        talk.turns(TRIAL, ASLEEP);
        let (silent, _other) = UnixDatagram::pair().expect("sockets");
        let mut fds = [PollFd::new(&silent, PollFlags::IN)];
        assert!(!talk.state.is_answered(&mut fds).expect("polling"));
        assert!(!talk.looks());
    }
}
