//! The measured rate of sending, and the sizes that follow from it.
//!
//! A size in bytes is right for one rate only: 64 KiB are half a millisecond at 1 Gbit/s and
//! 50 ms at 10 Mbit/s. So every size here is a time multiplied by the rate, within bounds.
//!
//! The rate is measured while packets wait in the queue and bytes in the send buffer. Without the
//! former the bytes that are sent show the rate of the applications, without the latter that of the
//! thread. The link is at least as fast then: such a sample can raise the rate and never lower it. If
//! it could, a pause of the thread would make the sizes small, small sizes make sending expensive, and
//! the rate would stay low.
//!
//! Before the first measurement nothing is known to be slow, and the sizes are those of 1 Gbit/s or
//! at their upper bounds.

/// The time over which the rate is measured: eight full packets at 10 Mbit/s.
const WINDOW: u64 = 10_000_000;

/// The time for which a flow may send before the next flow has its turn. A sparse flow waits at most
/// this long for a packet that has just begun.
const PORTION_TIME: u64 = 500_000;

/// The rate in bytes per second from which super-packets leave undivided: the largest takes
/// [`PORTION_TIME`] at 1 Gbit/s.
const UNDIVIDED_FROM: u64 = 125_000_000;

/// The time to send everything in the queue. It bounds the delay of a flow that does not react to
/// signals.
const LIMIT_TIME: u64 = 50_000_000;

/// Bounds of the queue's limit in bytes. Two super-packets must fit, one that leaves and one
/// behind it. The upper bound is one of memory.
const MIN_LIMIT: usize = 128 << 10;
pub(super) const MAX_LIMIT: usize = 4 << 20;

/// The time to send everything in the queue from which a sender with a large share gets a signal
/// without delay. It reacts after a round trip, in which a sender in slow start sends twice what the
/// link does: the limit has room for that.
const PRESSURE_TIME: u64 = LIMIT_TIME / 4;

/// The same in bytes, at most; at 8 Gbit/s it is 2 ms. After a signal a sender has half of its packets
/// on the way. That must be enough to keep all threads between it and the receiver at work, or the
/// processors idle. A quarter of this is not enough.
const MAX_PRESSURE: usize = MAX_LIMIT / 2;

/// Time for which bytes may wait in the send buffer, where they can no longer be reordered.
const MIN_AHEAD: u64 = 1_000_000;
/// The same if the thread that fills the send buffer runs late.
const MAX_AHEAD: u64 = 16_000_000;

/// Bounds of the bytes in the send buffer: two full packets; eight super-packets, 0.4 ms at
/// 10 Gbit/s, which is longer than a network card delays its interrupts.
const MIN_IN_FLIGHT: usize = 2 * MTU;
const MAX_IN_FLIGHT: usize = 8 * SUPER_PACKET;

/// The same before the first measurement: 50 ms at 10 Mbit/s.
const FIRST_IN_FLIGHT: usize = SUPER_PACKET;

/// A full packet.
pub(super) const MTU: usize = 1514;

/// Bytes of the largest super-packet.
pub const SUPER_PACKET: usize = 64 << 10;

const SECOND: u64 = 1_000_000_000;

/// The rate of sending. All times are in nanoseconds.
#[derive(Clone, Debug)]
pub(super) struct SendRate {
    /// In bytes per second; `None` before the first measurement.
    rate: Option<u64>,
    /// The measurement of the link; `None` while no packets wait.
    window: Option<Window>,
    /// The measurement of a lower bound; `None` before the first bytes.
    floor: Option<Floor>,
    /// The time by which the send buffer is filled ahead.
    ahead: u64,
    sizes: Sizes,
}

/// Sizes in bytes that follow from the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    /// Bytes to take from a flow at a time; at least one segment is taken.
    pub(super) portion: usize,
    /// Bytes by which a flow's credit grows in a round: half a portion. With a portion, a flow whose
    /// packets are a little shorter would send two in its first turn.
    pub(super) quantum: usize,
    /// Bytes that may wait in the queue for longer than a moment.
    pub(super) limit: usize,
    /// Bytes in the queue from which flows get signals without delay.
    pub(super) pressure: usize,
    /// Bytes that may wait in the send buffer.
    pub(super) in_flight: usize,
}

#[derive(Clone, Copy, Debug)]
struct Window {
    began: u64,
    bytes: u64,
    /// True if the send buffer ran empty.
    ran_empty: bool,
}

#[derive(Clone, Copy, Debug)]
struct Floor {
    began: u64,
    bytes: u64,
    /// Those that had left the send buffer when it was last found empty.
    left: u64,
}

impl SendRate {
    pub(super) fn new() -> Self {
        Self {
            rate: None,
            window: None,
            floor: None,
            ahead: MIN_AHEAD,
            sizes: Sizes {
                portion: SUPER_PACKET,
                quantum: SUPER_PACKET / 2,
                limit: MAX_LIMIT,
                pressure: MAX_PRESSURE,
                in_flight: FIRST_IN_FLIGHT,
            },
        }
    }

    pub(super) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Returns the time to send some bytes.
    pub(super) fn time_for(&self, bytes: usize) -> u64 {
        let rate = self.rate.unwrap_or(UNDIVIDED_FROM).max(1);
        let time = bytes as u128 * u128::from(SECOND) / u128::from(rate);
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// Records bytes that have been sent by `now`. `waiting` is true if more packets wait in the
    /// queue, `ran_empty` if the send buffer was empty before.
    pub(super) fn note(&mut self, now: u64, bytes: usize, waiting: bool, ran_empty: bool) {
        self.note_floor(now, bytes, ran_empty);
        if !waiting {
            self.window = None;
            return;
        }
        let Some(window) = &mut self.window else {
            self.window = Some(Window::new(now));
            return;
        };
        window.bytes = window.bytes.saturating_add(bytes as u64);
        window.ran_empty |= ran_empty;
        let took = now.saturating_sub(window.began);
        if took >= WINDOW {
            let ended = std::mem::replace(window, Window::new(now));
            self.end_window(&ended, took);
        }
    }

    fn note_floor(&mut self, now: u64, bytes: usize, ran_empty: bool) {
        let floor = self.floor.get_or_insert(Floor::new(now));
        if ran_empty {
            floor.left = floor.bytes;
        }
        floor.bytes = floor.bytes.saturating_add(bytes as u64);
        let took = now.saturating_sub(floor.began);
        if took >= WINDOW {
            let sample = rate_of(floor.left, took);
            *floor = Floor::new(now);
            let rate = self.rate.unwrap_or(UNDIVIDED_FROM);
            if sample > rate {
                self.set_rate(rate + (sample - rate) / 2);
            }
        }
    }

    fn end_window(&mut self, window: &Window, took: u64) {
        let sample = rate_of(window.bytes, took);
        let rate = match self.rate {
            rate if window.ran_empty => rate.unwrap_or(UNDIVIDED_FROM),
            None => sample,
            Some(rate) if sample >= rate => rate + (sample - rate) / 2,
            // A low sample may come from a pause of the thread, so it counts less.
            Some(rate) => rate - (rate - sample) / 4,
        };
        // A send buffer that runs empty costs throughput, so the time doubles at once and shrinks
        // slowly (as in the kernel's dynamic queue limits).
        self.ahead = if window.ran_empty {
            MAX_AHEAD.min(2 * self.ahead)
        } else {
            MIN_AHEAD.max(self.ahead - self.ahead / 16)
        };
        self.set_rate(rate);
    }

    fn set_rate(&mut self, rate: u64) {
        self.rate = Some(rate);
        self.sizes = Sizes::at(rate, self.ahead);
    }
}

/// Returns the rate of `bytes` in some time, in bytes per second.
fn rate_of(bytes: u64, time: u64) -> u64 {
    let rate = u128::from(bytes) * u128::from(SECOND) / u128::from(time.max(1));
    u64::try_from(rate).unwrap_or(u64::MAX)
}

impl Sizes {
    fn at(rate: u64, ahead: u64) -> Self {
        let bytes_in = |time: u64| {
            let bytes = u128::from(rate) * u128::from(time) / u128::from(SECOND);
            usize::try_from(bytes).unwrap_or(usize::MAX)
        };
        let portion = match rate {
            UNDIVIDED_FROM.. => SUPER_PACKET,
            _ => bytes_in(PORTION_TIME),
        };
        Self {
            portion,
            quantum: MTU.max(portion / 2),
            limit: bytes_in(LIMIT_TIME).clamp(MIN_LIMIT, MAX_LIMIT),
            pressure: bytes_in(PRESSURE_TIME).clamp(MIN_LIMIT / 4, MAX_PRESSURE),
            in_flight: bytes_in(ahead).clamp(MIN_IN_FLIGHT, MAX_IN_FLIGHT),
        }
    }
}

impl Window {
    fn new(began: u64) -> Self {
        Self {
            began,
            bytes: 0,
            ran_empty: false,
        }
    }
}

impl Floor {
    fn new(began: u64) -> Self {
        Self {
            began,
            bytes: 0,
            left: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A sender of 1,250 bytes every `gap` nanoseconds for some windows.
    fn sender(rate: &mut SendRate, from: u64, windows: u64, gap: u64, ran_empty: bool) -> u64 {
        rate.note(from, 0, true, ran_empty);
        for i in 1..=windows * WINDOW / gap {
            rate.note(from + i * gap, 1250, true, ran_empty);
        }
        from + windows * WINDOW
    }

    #[test]
    fn sizes_follow_the_rate() {
        // Bits per second, and the sizes of portion, limit and send buffer.
        for (bits, portion, limit, in_flight) in [
            (1_000_000, 62, MIN_LIMIT, MIN_IN_FLIGHT),
            (10_000_000, 625, MIN_LIMIT, MIN_IN_FLIGHT),
            (100_000_000, 6_250, 625_000, 12_500),
            (1_000_000_000, SUPER_PACKET, MAX_LIMIT, 125_000),
            (10_000_000_000, SUPER_PACKET, MAX_LIMIT, MAX_IN_FLIGHT),
        ] {
            let mut rate = SendRate::new();
            assert_eq!(
                (rate.sizes().portion, rate.sizes().limit),
                (SUPER_PACKET, MAX_LIMIT)
            );
            sender(&mut rate, MS, 1, 10_000 * SECOND / bits, false);
            assert_eq!(rate.rate, Some(bits / 8));
            let sizes = (
                rate.sizes().portion,
                rate.sizes().limit,
                rate.sizes().in_flight,
            );
            assert_eq!(sizes, (portion, limit, in_flight), "{bits}");
            assert!((MTU..=SUPER_PACKET).contains(&rate.sizes().quantum));
        }
    }

    #[test]
    fn the_rate_of_applications_is_not_measured() {
        let mut rate = SendRate::new();
        for at in 0..100 {
            rate.note(at * MS, 1, at % 9 != 0, false);
        }
        assert_eq!(rate.rate, None);
        // A pause without packets is not part of a window.
        rate.note(100 * MS, 1, true, false);
        rate.note(101 * MS, 1, false, false);
        rate.note(1000 * MS, 1, true, false);
        rate.note(1010 * MS, 12_500, true, false);
        assert_eq!(rate.rate, Some(1_250_000));
    }

    #[test]
    fn a_faster_link_is_noticed_within_some_windows() {
        let mut rate = SendRate::new();
        let gap = |bits: u64| 10_000 * SECOND / bits;
        let at = sender(&mut rate, 0, 3, gap(10_000_000), false);
        assert!(rate.sizes().portion < MTU);
        let at = sender(&mut rate, at, 2, gap(4_000_000_000), false);
        assert_eq!(rate.sizes().portion, SUPER_PACKET);
        sender(&mut rate, at, 25, gap(10_000_000), false);
        assert!(rate.sizes().portion < MTU);
    }

    #[test]
    fn a_pause_of_the_thread_is_no_slow_link() {
        let gap = |bits: u64| 10_000 * SECOND / bits;
        let mut rate = SendRate::new();
        let sizes = *rate.sizes();
        let at = sender(&mut rate, 0, 3, gap(10_000_000), true);
        assert_eq!(
            (rate.rate, rate.sizes().portion),
            (Some(UNDIVIDED_FROM), sizes.portion)
        );
        let at = sender(&mut rate, at, 20, gap(8_000_000_000), true);
        let fast = rate.rate;
        assert!(fast > Some(900_000_000), "{fast:?}");
        sender(&mut rate, at, 20, gap(10_000_000), true);
        assert_eq!(rate.rate, fast);
    }

    /// The sizes of a slow link have to go when it is not slow any more, though the queue is empty
    /// again and again because the thread is faster than the applications.
    #[test]
    fn a_send_buffer_that_is_found_empty_shows_a_fast_link() {
        let mut rate = SendRate::new();
        sender(&mut rate, 0, 3, 10_000 * SECOND / 10_000_000, false);
        assert!(rate.sizes().portion < MTU);
        for i in 0..10_000 {
            rate.note(SECOND + i * 10_000, 10_000, i % 4 != 0, true);
        }
        assert!(rate.rate > Some(800_000_000), "{:?}", rate.rate);
        // Bytes in the send buffer have not left.
        let before = rate.rate;
        for i in 0..10_000 {
            rate.note(2 * SECOND + i * 10_000, 100_000, i % 4 != 0, false);
        }
        assert_eq!(rate.rate, before);
    }

    #[test]
    fn a_late_sender_fills_its_buffer_further_ahead() {
        let mut rate = SendRate::new();
        let gap = 10_000 * SECOND / 100_000_000;
        let at = sender(&mut rate, 0, 3, gap, false);
        assert_eq!(rate.sizes().in_flight, 12_500);
        let at = sender(&mut rate, at, 2, gap, true);
        assert_eq!(rate.sizes().in_flight, 50_000);
        let at = sender(&mut rate, at, 9, gap, true);
        assert_eq!(rate.sizes().in_flight, 200_000);
        sender(&mut rate, at, 60, gap, false);
        assert!(rate.sizes().in_flight < 14_000);
    }

    #[test]
    fn extreme_numbers_are_harmless() {
        let mut rate = SendRate::new();
        for at in [0, u64::MAX / 2, 3, u64::MAX, u64::MAX] {
            rate.note(at, usize::MAX / 8, true, true);
            rate.note(at, 0, true, true);
            assert!((MIN_LIMIT..=MAX_LIMIT).contains(&rate.sizes().limit));
            assert!((MIN_IN_FLIGHT..=MAX_IN_FLIGHT).contains(&rate.sizes().in_flight));
            assert!((MTU..=SUPER_PACKET).contains(&rate.sizes().quantum));
        }
    }
}
