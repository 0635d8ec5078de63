//! Busy polling between a question and its answer.
//!
//! Busy polling answers sooner than sleeping on an idle CPU and later on a busy one: a processor
//! with nothing to do halts, and waking it takes longer than many an answer, above all in a virtual
//! machine; but a thread that polls where other programs want the processor has used up its time
//! slice when the answer comes, and runs after them. So the thread measures both and keeps the
//! faster one until the next trial.

use std::time::Duration;

use rustix::event::{PollFd, Timespec, poll};
use rustix::io::Errno;
use taupe_protocol::time::Instant;

use crate::schedule::load::Turn;
use taupe_runtime::clock;

/// The longest time for which a thread polls. It tries that only if answers come sooner than this
/// on average.
const HOLD: Duration = Duration::from_micros(100);

/// Number of times in a row that packets must have gone to and fro.
const ROW: u32 = 4;

/// The largest packet of a conversation, in bytes: streams have larger ones.
const SHORT: usize = 2048;

/// The longest wait that counts: a longer one was a pause without a question.
const PAUSE: Duration = Duration::from_millis(5);

/// Number of turns that a judgement is about, and number of judgements for which a decision
/// stays.
const TRIAL: u32 = 512;
const STAY: u32 = 16;

/// Action between a question and its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Sleep, to measure a turn with sleep.
    TrySleep,
    /// Poll, while a turn takes hardly longer than it did `asleep`, and for as many judgements at
    /// most.
    Poll {
        asleep: Duration,
        left: u32,
    },
    Sleep {
        left: u32,
    },
}

impl Phase {
    /// Returns the next phase, after turns that took this long on average.
    fn next(self, turn: Duration) -> Self {
        match self {
            Self::TrySleep if turn < HOLD => Self::Poll {
                asleep: turn,
                left: STAY,
            },
            Self::Poll { left: 1, .. } | Self::Sleep { left: 1 } => Self::TrySleep,
            // In doubt it polls: other threads may poll too, which spoils the comparison.
            Self::Poll { asleep, left } if turn < asleep + asleep / 10 => Self::Poll {
                asleep,
                left: left - 1,
            },
            Self::Sleep { left } => Self::Sleep { left: left - 1 },
            Self::TrySleep | Self::Poll { .. } => Self::Sleep { left: STAY },
        }
    }
}

/// Measurement of short packets that go to and fro between two sources, as questions and answers of
/// two programs do.
pub(crate) struct BusyPoll {
    /// Number of times in a row that the other source answered.
    row: u32,
    source: usize,
    ended: Instant,
    phase: Phase,
    /// Turns since the last judgement, and the time waited for them.
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

    /// Notes a turn of the source of this number.
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

    /// Polls for the next packet without going to sleep, for at most [`HOLD`], if that is the
    /// faster way. Returns true if a packet is there. Other threads may run meanwhile.
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

    /// Two programs whose answers take as long as they are told.
    struct Talk {
        state: BusyPoll,
        now: Instant,
        source: usize,
    }

    impl Talk {
        /// With a first packet, which answers none.
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

        /// Whether an answer that is there already is found without sleep.
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
        // Questions that come seldom, however soon they are answered.
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
