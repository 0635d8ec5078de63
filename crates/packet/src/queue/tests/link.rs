//! A model of a link with TCP-like senders, to measure what queueing does to them and to a ping.
//!
//! The link sends one byte after the other at a constant rate. Before it is a send buffer that the
//! queue fills up to [`FairQueue::in_flight_limit`], each time half of it has been sent. A sender
//! has a congestion window. It grows like that of Reno (RFC 5681), and shrinks like that of CUBIC
//! (RFC 9438: to 0.7 of its size) once in a round trip with a mark or a loss. It sends bursts as
//! Linux does: the super-packet is what it sends in a millisecond. The model has no randomness.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::LazyLock;

use super::{rate::MTU, *};

const SECOND: u64 = 1_000 * MS;

/// The flow of the pings.
const PING: usize = usize::MAX;

#[derive(Clone, Copy)]
struct Setting {
    /// The rate of the link in bits per second.
    bits: u64,
    /// The round trip without queueing.
    round_trip: u64,
    senders: usize,
    has_ecn: bool,
    /// The thread that fills the send buffer comes only this often, 0 for at once.
    late: u64,
}

/// Measured from the third second on.
#[derive(Debug)]
struct Measured {
    /// Time from the ping's arrival in the queue to the end of its transmission, in nanoseconds.
    pings: Vec<u64>,
    /// The time that each portion of the senders waited in the queue.
    waits: Vec<u64>,
    /// Percentage of the link's rate.
    used: u64,
    /// Bytes of each sender.
    shares: Vec<u64>,
    stats: QueueStats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The link has sent the first portion of its buffer.
    Transmitted,
    /// The thread that fills the send buffer comes.
    Fill,
    /// Segments of a burst have been acknowledged.
    Acknowledged(usize, u64, usize, bool),
    /// A sender has learnt of lost segments.
    Lost(usize, u64, usize),
    Ping,
}

/// A packet in the queue.
#[derive(Debug)]
struct Burst {
    sender: usize,
    sent_at: u64,
    segments: usize,
    /// The first segment that has not left.
    next: usize,
}

struct Sender {
    /// In segments.
    window: f64,
    threshold: f64,
    in_flight: usize,
    round_trip: f64,
    /// The time of the last reduction of the window.
    reduced_at: u64,
}

impl Sender {
    fn reduce(&mut self, now: u64, sent_at: u64) {
        if sent_at > self.reduced_at {
            self.window = (0.7 * self.window).max(2.0);
            self.threshold = self.window;
            self.reduced_at = now;
        }
    }
}

struct Model {
    setting: Setting,
    now: u64,
    queue: FairQueue<Burst>,
    senders: Vec<Sender>,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// Numbers events, so that those of one time have an order.
    count: u64,
    /// Portions in the send buffer: burst's sender and time, segments, mark, bytes.
    buffer: VecDeque<(usize, u64, usize, bool, usize)>,
    buffered: usize,
    measured: Measured,
}

impl Model {
    fn run(setting: Setting, seconds: u64) -> Measured {
        let sender = |_| Sender {
            window: 10.0,
            threshold: f64::INFINITY,
            in_flight: 0,
            round_trip: setting.round_trip as f64,
            reduced_at: 0,
        };
        let mut model = Self {
            setting,
            now: MS,
            queue: FairQueue::new(),
            senders: (0..setting.senders).map(sender).collect(),
            events: BinaryHeap::new(),
            count: 0,
            buffer: VecDeque::new(),
            buffered: 0,
            measured: Measured {
                pings: Vec::new(),
                waits: Vec::new(),
                used: 0,
                shares: vec![0; setting.senders],
                stats: QueueStats::default(),
            },
        };
        for i in 0..setting.senders {
            model.send(i);
        }
        model.at(MS, Event::Ping);
        model.at(MS, Event::Fill);
        while model.now < seconds * SECOND {
            let Some(Reverse((at, _, event))) = model.events.pop() else {
                break;
            };
            model.now = at;
            model.handle(event);
        }
        let bits: u64 = 8 * model.measured.shares.iter().sum::<u64>();
        model.measured.used = 100 * bits / (setting.bits * (seconds - 2));
        model.measured.stats = model.queue.stats();
        model.measured.pings.sort_unstable();
        model.measured.waits.sort_unstable();
        model.measured
    }

    fn at(&mut self, time: u64, event: Event) {
        self.count += 1;
        self.events.push(Reverse((time, self.count, event)));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Ping => {
                self.enqueue(PING, 1, short(0x1234_5678));
                // Not in step with anything else.
                self.at(self.now + 7_919_113, Event::Ping);
            }
            Event::Transmitted => self.transmitted(),
            Event::Fill => {
                self.fill();
                if self.setting.late > 0 {
                    self.at(self.now + self.setting.late, Event::Fill);
                }
                return;
            }
            Event::Acknowledged(sender, sent_at, segments, is_marked) => {
                let it = &mut self.senders[sender];
                it.in_flight -= segments;
                let sample = (self.now - sent_at) as f64;
                it.round_trip += (sample - it.round_trip) / 8.0;
                match it.window < it.threshold {
                    true => it.window += segments as f64,
                    false => it.window += segments as f64 / it.window,
                }
                if is_marked {
                    it.reduce(self.now, sent_at);
                }
                self.send(sender);
            }
            Event::Lost(sender, sent_at, segments) => {
                let it = &mut self.senders[sender];
                it.in_flight -= segments;
                it.reduce(self.now, sent_at);
                self.send(sender);
            }
        }
        if self.setting.late == 0 {
            self.fill();
        }
    }

    /// Sends bursts as far as the window allows.
    fn send(&mut self, sender: usize) {
        loop {
            let it = &mut self.senders[sender];
            let in_a_millisecond = it.window * MS as f64 / it.round_trip;
            let burst = (in_a_millisecond as usize).clamp(2, SEGMENTS);
            if it.in_flight + burst > it.window as usize {
                return;
            }
            it.in_flight += burst;
            let shape = Shape::new(sender as u64, self.setting.has_ecn, burst, SEGMENT, SEGMENT);
            self.enqueue(sender, burst, shape);
        }
    }

    fn enqueue(&mut self, sender: usize, segments: usize, shape: Shape) {
        let burst = Burst {
            sender,
            sent_at: self.now,
            segments,
            next: 0,
        };
        let mut dropped = Vec::new();
        let discard = &mut |burst| dropped.push(burst);
        self.queue.enqueue(self.now, burst, shape, discard);
        dropped
            .into_iter()
            .for_each(|burst| self.lost(&burst, burst.segments));
    }

    /// Tells a sender that the segments before `end` that have not left are lost. It learns of
    /// that when later segments have been acknowledged.
    fn lost(&mut self, burst: &Burst, end: usize) {
        let segments = end - burst.next;
        if segments > 0 && burst.sender != PING {
            let time = self.now + self.setting.round_trip;
            self.at(time, Event::Lost(burst.sender, burst.sent_at, segments));
        }
    }

    /// Fills the send buffer when at least half of it is empty.
    fn fill(&mut self) {
        let limit = self.queue.in_flight_limit();
        if self.buffered > limit / 2 {
            return;
        }
        let ran_empty = self.buffered == 0;
        let mut filled = 0;
        while self.buffered + SEGMENT <= limit {
            let mut dropped = Vec::new();
            let discard = &mut |burst| dropped.push(burst);
            let portion = self.queue.dequeue(self.now, limit - self.buffered, discard);
            let taken = portion.map(|mut portion| {
                let burst = portion.handle.get();
                let skipped = portion.segments.start;
                let before = Burst { ..*burst };
                burst.next = portion.segments.end;
                let (count, waited) = (portion.segments.len(), portion.waited);
                (
                    before,
                    skipped,
                    count,
                    portion.is_marked,
                    portion.bytes,
                    waited,
                )
            });
            dropped
                .into_iter()
                .for_each(|burst| self.lost(&burst, burst.segments));
            let Some((burst, skipped, count, is_marked, bytes, waited)) = taken else {
                break;
            };
            self.lost(&burst, skipped);
            if burst.sender != PING && self.now >= 2 * SECOND {
                self.measured.waits.push(waited);
            }
            if self.buffer.is_empty() {
                self.at(self.now + self.time(bytes), Event::Transmitted);
            }
            let portion = (burst.sender, burst.sent_at, count, is_marked, bytes);
            self.buffer.push_back(portion);
            self.buffered += bytes;
            filled += bytes;
        }
        self.queue.note_sent(self.now, filled, ran_empty);
    }

    fn transmitted(&mut self) {
        let Some((sender, sent_at, count, is_marked, bytes)) = self.buffer.pop_front() else {
            return;
        };
        self.buffered -= bytes;
        let is_measured = self.now >= 2 * SECOND;
        if sender == PING {
            if is_measured {
                self.measured.pings.push(self.now - sent_at);
            }
        } else {
            if is_measured {
                self.measured.shares[sender] += bytes as u64;
            }
            let time = self.now + self.setting.round_trip;
            self.at(time, Event::Acknowledged(sender, sent_at, count, is_marked));
        }
        if let Some((.., bytes)) = self.buffer.front() {
            self.at(self.now + self.time(*bytes), Event::Transmitted);
        }
    }

    /// The time to transmit bytes.
    fn time(&self, bytes: usize) -> u64 {
        8 * bytes as u64 * SECOND / self.setting.bits
    }
}

/// Returns a percentile in microseconds.
fn percentile(sorted: &[u64], percent: usize) -> u64 {
    sorted[(sorted.len() - 1) * percent / 100] / 1000
}

/// Links in bits per second, with their round trips in milliseconds.
const LINKS: [(u64, u64); 3] = [(10_000_000, 40), (100_000_000, 20), (1_000_000_000, 10)];

/// The time that is simulated.
const SECONDS: u64 = 12;

type Runs = Vec<(Setting, Measured)>;

fn with_ecn() -> &'static Runs {
    static RUNS: LazyLock<Runs> = LazyLock::new(|| measure(true, 0));
    &RUNS
}

fn without_ecn() -> &'static Runs {
    static RUNS: LazyLock<Runs> = LazyLock::new(|| measure(false, 0));
    &RUNS
}

/// Runs all links with one and with four senders, and prints a row for each (`--nocapture`).
fn measure(has_ecn: bool, late: u64) -> Runs {
    let settings = LINKS.iter().flat_map(|link| [1, 4].map(|it| (link, it)));
    let settings = settings.map(|((bits, round_trip), senders)| Setting {
        bits: *bits,
        round_trip: round_trip * MS,
        senders,
        has_ecn,
        late,
    });
    let run = |setting: Setting| {
        let measured = Model::run(setting, SECONDS);
        println!(
            "{} Mbit/s, {senders} senders, ECN {has_ecn}, late {late} ns: ping {} / {} µs, \
             bulk {} / {} µs (p50 / p99), {} % used, {:?}",
            setting.bits / 1_000_000,
            percentile(&measured.pings, 50),
            percentile(&measured.pings, 99),
            percentile(&measured.waits, 50),
            percentile(&measured.waits, 99),
            measured.used,
            measured.stats,
            senders = setting.senders,
        );
        (setting, measured)
    };
    settings.map(run).collect()
}

/// A ping waits for the send buffer, which is 1 ms or two packets.
#[test]
fn pings_do_not_wait_behind_downloads() {
    for (setting, measured) in with_ecn().iter().chain(without_ecn()) {
        let two_packets = 2 * 8 * MTU as u64 * 1_000_000 / setting.bits;
        let p99 = percentile(&measured.pings, 99);
        assert!(p99 <= 1_250.max(two_packets + 100), "{p99} µs");
    }
}

/// Each flow has a signal only with more than two segments, so on a slow link these decide.
#[test]
fn downloads_wait_for_the_target_and_fill_the_link_fairly() {
    for (setting, measured) in with_ecn().iter().chain(without_ecn()) {
        let segment = 8 * SEGMENT as u64 * 1_000_000 / setting.bits;
        let segments = 4 * segment * setting.senders as u64;
        let p50 = percentile(&measured.waits, 50);
        assert!(p50 <= segments.max(codel::TARGET / 1000), "{p50} µs");
        assert!(measured.used >= 95, "{} %", measured.used);
        let least = measured.shares.iter().min().expect("a sender");
        let most = measured.shares.iter().max().expect("a sender");
        assert!(10 * least >= 9 * most, "{:?}", measured.shares);
    }
}

#[test]
fn senders_with_ecn_lose_nothing_and_others_little() {
    for (_, measured) in with_ecn() {
        let QueueStats { marked, .. } = measured.stats;
        let only_marks = QueueStats {
            marked,
            ..QueueStats::default()
        };
        assert_eq!(measured.stats, only_marks);
        assert!(marked > 0);
    }
    for (setting, measured) in without_ecn() {
        let QueueStats {
            marked,
            dropped_as_signal,
            dropped_over_limit,
        } = measured.stats;
        assert_eq!((marked, dropped_over_limit), (0, 0));
        // On the slowest link a window has ten segments.
        let all = setting.bits * SECONDS / 8 / SEGMENT as u64;
        assert!((1..=all / 40).contains(&dropped_as_signal));
    }
}

/// A thread that comes every 1.5 ms finds the send buffer empty, until the queue fills it further
/// ahead.
#[test]
fn a_late_thread_does_not_starve_the_link() {
    for (_, measured) in measure(true, 3 * MS / 2) {
        assert!(measured.used >= 85, "{} %", measured.used);
    }
}
