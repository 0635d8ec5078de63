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

use crate::schedule::Direction;
use crate::schedule::load::Turn;
use taupe_runtime::clock;

/// The longest time for which a thread polls before it sleeps. It polls at all only if answers
/// come sooner than this on average.
const MAX_POLL: Duration = Duration::from_micros(100);

/// The thread polls after this number of answers in a row.
const MIN_ANSWERS: u32 = 4;

/// The largest packet of a request or an answer, in bytes. Streams have larger ones.
const MAX_SHORT: usize = 2048;

/// Upper bound of a measured wait. A longer wait was a pause without a request.
const PAUSE: Duration = Duration::from_millis(5);

/// Turns in one trial. The mean wait of a trial decides on the next phase.
const TRIAL_TURNS: u32 = 512;

/// Trials for which a decision stays, before sleep is measured again.
const STAY_TRIALS: u32 = 16;

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
    /// Always sleep: polling is turned off.
    Off,
}

impl Phase {
    /// Returns the next phase, after a trial whose mean wait was `turn`.
    fn next(self, turn: Duration) -> Self {
        match self {
            Self::TrySleep if turn < MAX_POLL => Self::Poll {
                asleep: turn,
                left: STAY_TRIALS,
            },
            Self::Poll { left: 1, .. } | Self::Sleep { left: 1 } => Self::TrySleep,
            // In doubt, poll: other threads may poll too, which distorts the comparison.
            Self::Poll { asleep, left } if turn < asleep + asleep / 10 => Self::Poll {
                asleep,
                left: left - 1,
            },
            Self::Sleep { left } => Self::Sleep { left: left - 1 },
            Self::Off => Self::Off,
            Self::TrySleep | Self::Poll { .. } => Self::Sleep { left: STAY_TRIALS },
        }
    }
}

/// Decides whether to poll. It watches for short packets that alternate between two sources, as
/// requests and answers of two programs do.
pub(crate) struct BusyPoll {
    /// Answers in a row, at most [`MIN_ANSWERS`].
    row: u32,
    /// The direction of the last turn.
    direction: Option<Direction>,
    /// The end of the last turn.
    ended: Instant,
    phase: Phase,
    /// Turns in this trial, and the sum of their waits.
    turns: u32,
    waited: Duration,
}

impl BusyPoll {
    /// Returns the state before the first turn. If `is_wanted` is false, it never polls.
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self {
            row: 0,
            direction: None,
            ended: Instant::default(),
            phase: match is_wanted {
                true => Phase::TrySleep,
                false => Phase::Off,
            },
            turns: 0,
            waited: Duration::ZERO,
        }
    }

    /// Records a turn of a path in this direction.
    pub(crate) fn note(&mut self, direction: Direction, turn: &Turn) {
        let last = self.direction.replace(direction);
        let answers = last.is_some_and(|last| last != direction) && turn.bytes <= MAX_SHORT;
        let waited = turn.read_at.since(self.ended).min(PAUSE);
        self.ended = turn.ended;
        if !answers {
            self.row = 0;
            return;
        }
        self.row = MIN_ANSWERS.min(self.row + 1);
        self.turns += 1;
        self.waited += waited;
        if self.turns == TRIAL_TURNS {
            self.phase = self.phase.next(self.waited / self.turns);
            (self.turns, self.waited) = (0, Duration::ZERO);
        }
    }

    /// Polls for the next packet for at most [`MAX_POLL`], if that is faster than sleeping. Yields the
    /// processor to other threads meanwhile. Returns true if a packet has arrived.
    pub(crate) fn poll_briefly(&mut self, fds: &mut [PollFd<'_>]) -> Result<bool, Errno> {
        if !matches!(self.phase, Phase::Poll { .. }) || self.row < MIN_ANSWERS {
            return Ok(false);
        }
        let began = clock::boot();
        loop {
            if poll(fds, Some(&Timespec::default()))? > 0 {
                return Ok(true);
            }
            if clock::boot().since(began) >= MAX_POLL {
                self.row = 0;
                return Ok(false);
            }
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::PollFlags;
    use std::os::unix::net::UnixDatagram;
    use taupe_packet::ip::Family;

    /// Simulation of two programs that exchange packets.
    struct Exchange {
        state: BusyPoll,
        now: Instant,
        direction: Direction,
    }

    fn other(direction: Direction) -> Direction {
        match direction {
            Direction::Outbound => Direction::Inbound(Family::V4),
            Direction::Inbound(_) => Direction::Outbound,
        }
    }

    impl Exchange {
        /// Starts with a packet that answers nothing.
        fn new() -> Self {
            Self::with(true)
        }

        fn with(is_wanted: bool) -> Self {
            let mut exchange = Self {
                state: BusyPoll::new(is_wanted),
                now: Instant(1_000_000_000),
                direction: Direction::Outbound,
            };
            exchange.packet(Direction::Outbound, MAX_SHORT, AWAKE);
            exchange
        }

        fn packet(&mut self, direction: Direction, bytes: usize, after: Duration) {
            let read_at = self.now + after;
            self.now = read_at + Duration::from_micros(5);
            let ended = self.now;
            self.state.note(
                direction,
                &Turn {
                    read_at,
                    ended,
                    bytes,
                },
            );
            self.direction = direction;
        }

        fn turns(&mut self, turns: u32, after: Duration) {
            for _ in 0..turns {
                self.packet(other(self.direction), MAX_SHORT, after);
            }
        }

        /// Returns true if the state polls, and so finds an answer that has already arrived.
        fn polls(&mut self) -> bool {
            let (ours, theirs) = UnixDatagram::pair().expect("sockets");
            theirs.send(&[1]).expect("sending");
            let mut fds = [PollFd::new(&ours, PollFlags::IN)];
            self.state.poll_briefly(&mut fds).expect("polling")
        }
    }

    const ASLEEP: Duration = Duration::from_micros(60);
    const AWAKE: Duration = Duration::from_micros(20);

    #[test]
    fn the_faster_of_polling_and_sleeping_stays() {
        let mut exchange = Exchange::new();
        exchange.turns(TRIAL_TURNS - 1, ASLEEP);
        assert!(!exchange.polls());
        exchange.turns(1, ASLEEP);
        assert!(exchange.polls(), "a trial");
        exchange.turns(STAY_TRIALS * TRIAL_TURNS - 1, AWAKE);
        assert!(exchange.polls(), "it is faster");
        exchange.turns(1, AWAKE);
        assert!(!exchange.polls(), "a trial of sleeping");
        exchange.turns(TRIAL_TURNS, ASLEEP);
        exchange.turns(TRIAL_TURNS, ASLEEP);
        assert!(exchange.polls(), "as quick");
        exchange.turns(TRIAL_TURNS, 2 * ASLEEP);
        assert!(!exchange.polls(), "it is slower");
        exchange.turns(STAY_TRIALS * TRIAL_TURNS, ASLEEP);
        assert!(!exchange.polls());
        exchange.turns(TRIAL_TURNS, ASLEEP);
        assert!(exchange.polls(), "tried again");
    }

    #[test]
    fn slow_answers_are_not_polled_for() {
        let mut exchange = Exchange::new();
        exchange.turns(TRIAL_TURNS, MAX_POLL);
        assert!(!exchange.polls());
        exchange.turns(STAY_TRIALS * TRIAL_TURNS, ASLEEP);
        assert!(!exchange.polls());
        exchange.turns(TRIAL_TURNS, MAX_POLL - Duration::from_nanos(1));
        assert!(exchange.polls(), "tried again");
        // Rare requests, however soon they are answered.
        let mut exchange = Exchange::new();
        for _ in 0..TRIAL_TURNS / 2 {
            exchange.turns(1, Duration::from_secs(1));
            exchange.turns(1, AWAKE);
        }
        assert!(!exchange.polls());
    }

    #[test]
    fn one_way_traffic_and_long_packets_are_not_polled_for() {
        for spoil in [
            |exchange: &mut Exchange| exchange.packet(exchange.direction, 1, AWAKE),
            |exchange: &mut Exchange| {
                exchange.packet(other(exchange.direction), MAX_SHORT + 1, AWAKE)
            },
        ] {
            let mut exchange = Exchange::new();
            exchange.turns(TRIAL_TURNS, ASLEEP);
            spoil(&mut exchange);
            assert!(!exchange.polls());
            exchange.turns(MIN_ANSWERS - 1, AWAKE);
            assert!(!exchange.polls());
            exchange.turns(1, AWAKE);
            assert!(exchange.polls());
        }
    }

    #[test]
    fn polling_can_be_turned_off() {
        let mut exchange = Exchange::with(false);
        for _ in 0..3 * STAY_TRIALS {
            exchange.turns(TRIAL_TURNS, ASLEEP);
            assert!(!exchange.polls());
        }
    }

    #[test]
    fn silence_ends_the_polling() {
        let mut exchange = Exchange::new();
        exchange.turns(TRIAL_TURNS, ASLEEP);
        let (silent, _other) = UnixDatagram::pair().expect("sockets");
        let mut fds = [PollFd::new(&silent, PollFlags::IN)];
        assert!(!exchange.state.poll_briefly(&mut fds).expect("polling"));
        assert!(!exchange.polls());
    }
}
