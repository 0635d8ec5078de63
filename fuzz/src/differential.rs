//! The same datagrams for a device of Taupe and for boringtun, which has the same private key. Both
//! must accept the same ones, and deliver the same packets.
//!
//! Two peers are played by hand. One begins handshakes and sends transport data; the other answers
//! the initiations of both implementations. boringtun chooses ephemeral keys and indices at random,
//! so the peers have a session of their own with each implementation, and a change is made at the
//! same place of both messages.
//!
//! A run costs no handshake unless its input has one: sessions are reused. A new counter, far above
//! those of the previous run, empties both replay windows.

mod differences;
mod implementations;

use std::cell::RefCell;
use std::collections::BTreeSet;

use taupe_protocol::limits::REJECT_AFTER_MESSAGES;
use taupe_protocol::testing::replay::WINDOW_LEN;
use taupe_protocol::time::Tai64N;

use crate::common::raw::{Begun, Raw};
use crate::common::{label, private_key, stranger};
use crate::input::Input;
use differences::{BORINGTUN_SESSIONS, BORINGTUN_WINDOW, Datagram, is_legitimate};
use implementations::{Both, Implementations, Sessions, Verdict};

/// Steps in one run: enough for a handshake, its confirmation, and messages before and after.
const MAX_STEPS: usize = 16;

/// Multiple to which counters of a run are aligned, so that they have the same place in the bitmaps
/// of the windows in each run.
const ALIGNMENT: u64 = 1 << 14;

thread_local! {
    static IMPLEMENTATIONS: RefCell<Option<Implementations>> = const { RefCell::new(None) };
}

/// Reads `data` as a list of datagrams: transport data, initiations, responses, cookie replies and
/// any bytes, genuine or changed.
///
/// Taupe and boringtun accept the same datagrams and deliver the same packets, except for the
/// differences in `differences.rs`.
pub fn differential(data: &[u8]) {
    let kept = IMPLEMENTATIONS.take();
    let mut run = Run::new(kept.unwrap_or_else(Implementations::new));
    let mut input = Input(data);
    for _ in 0..MAX_STEPS {
        if input.is_empty() {
            break;
        }
        run.step(&mut input);
    }
    // After a panic the next run begins with new ones.
    IMPLEMENTATIONS.set(run.finish());
}

/// The state of one run.
struct Run {
    both: Implementations,
    /// The session of the newest handshake.
    newest: Tracked,
    /// The one before, if `newest` was made in this run.
    older: Option<Tracked>,
    /// Handshakes since the session `older`.
    handshakes: usize,
    /// The last initiation that was accepted.
    taken: Option<Vec<u8>>,
    /// The initiations that wait for a response.
    waiting: Option<Waiting>,
    /// True if the next run needs a new peer.
    is_spent: bool,
}

/// A pair of sessions.
struct Tracked {
    sessions: Sessions,
    greatest: u64,
    /// The counters of this run's genuine messages. Those of earlier runs are below every window.
    sent: BTreeSet<u64>,
    is_confirmed: bool,
}

/// The initiations of both to the other peer.
struct Waiting {
    initiations: Both<Vec<u8>>,
    has_cookie: bool,
}

impl Run {
    fn new(mut both: Implementations) -> Self {
        let (sessions, last) = both.session();
        let greatest = (last + 2 * ALIGNMENT) & !(ALIGNMENT - 1);
        let mut run = Self {
            both,
            newest: Tracked {
                sessions,
                greatest,
                sent: BTreeSet::from([greatest]),
                is_confirmed: true,
            },
            older: None,
            handshakes: 0,
            taken: None,
            waiting: None,
            is_spent: false,
        };
        let keepalives = run.newest.sessions.seal(greatest, &[]);
        let source = run.both.raw.address;
        let verdicts = run.both.deliver(source, &keepalives);
        assert_eq!(verdicts, Both::same(Verdict::Silent), "a keepalive");
        run
    }

    /// Returns the implementations, if the next run can use them.
    fn finish(mut self) -> Option<Implementations> {
        if !self.newest.is_confirmed {
            self.newest.greatest = 0;
        }
        let Tracked {
            sessions, greatest, ..
        } = self.newest;
        self.both.keep_session(sessions, greatest);
        (!self.is_spent).then_some(self.both)
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let control = input.byte();
        match control & 7 {
            0..=3 => self.send_data(input, control),
            4 => self.send_initiation(input, control),
            5 => self.send_response(input, control),
            6 => self.send_cookie(input, control),
            _ => self.send_bytes(input, control),
        }
    }

    /// Sends transport data.
    fn send_data(&mut self, input: &mut Input<'_>, control: u8) {
        let session = match (&mut self.older, control & 8) {
            (Some(older), 8) => older,
            _ => &mut self.newest,
        };
        let choice = input.byte();
        let below = |far: u64, near: u8| session.greatest.saturating_sub(far + u64::from(near % 4));
        let counter = match choice & 7 {
            0 => session.greatest,
            1 => below(input.number().into(), 0),
            2 => below(WINDOW_LEN - 2, input.byte()),
            3 => below(BORINGTUN_WINDOW - 2, input.byte()),
            4 => session.greatest.saturating_add(input.number().into()),
            5 => match input.byte() {
                near @ ..4 => REJECT_AFTER_MESSAGES - 2 + u64::from(near),
                shift => session
                    .greatest
                    .saturating_add(input.long() >> (shift % 64)),
            },
            _ => session
                .greatest
                .saturating_add(1 + u64::from(input.byte() & 0x3f)),
        };
        let plaintext = plaintext(input, choice, &self.both);
        let sealed = session.sessions.seal(counter, &plaintext);
        let messages = match choice & 0x40 {
            0 => sealed.clone(),
            _ => sealed.mutated(input),
        };
        let is_genuine = messages == sealed;
        if is_genuine && counter.saturating_sub(session.greatest) > ALIGNMENT {
            // The next run could reach the limit of counters.
            self.is_spent = true;
        }
        let datagram = match is_genuine {
            true => Datagram::Data {
                counter,
                greatest: session.greatest,
                is_repeated: session.sent.contains(&counter),
                plaintext: &plaintext,
            },
            false => Datagram::Other,
        };
        // boringtun would move its window there, and refuse everything else.
        if is_genuine && counter >= REJECT_AFTER_MESSAGES {
            let verdict = self.both.deliver_to_taupe(stranger(), &messages.taupe);
            assert_eq!(verdict, Verdict::Refused, "the counter {counter}");
            return;
        }
        let verdicts = self.both.deliver(self.both.raw.address, &messages);
        check(&datagram, &verdicts, &messages);
        // An authentic message with an inner packet that is refused counts too.
        if is_genuine {
            session.greatest = session.greatest.max(counter);
            session.sent.insert(counter);
            session.is_confirmed = true;
        }
    }

    /// Sends an initiation, which is the same one for both.
    fn send_initiation(&mut self, input: &mut Input<'_>, control: u8) {
        // Taupe accepts fifty a second (see `differences.rs`).
        self.both.pass_flood_gap();
        let index = u32::from(input.byte()) << 24 | 7;
        let choice = input.byte();
        let timestamp = match choice & 7 {
            0 => label(self.both.label),
            1 => label(self.both.label - 1),
            2 => {
                let mut bytes = [0; 12];
                let given = input.take(12);
                bytes[..given.len()].copy_from_slice(given);
                // No initiation of the next run could have a greater one.
                self.is_spent = true;
                Tai64N(bytes)
            }
            _ => {
                self.both.label += 1;
                label(self.both.label)
            }
        };
        let node = self.both.raw.remote;
        let raw = match choice & 8 {
            0 => &self.both.raw,
            _ => &Raw::new(self.both.raw.crypto, private_key(66), node, stranger()),
        };
        let mut begun = raw.begin(index, timestamp);
        if choice & 0x10 != 0
            && let Some(taken) = &self.taken
        {
            begun.message.clone_from(taken);
        }
        let original = begun.message.clone();
        if control & 8 != 0 {
            input.mutate(&mut begun.message);
        }
        if control & 0x10 != 0 && begun.message.len() >= 32 {
            self.both.raw.stamp(&mut begun.message);
        }
        let verdicts = self
            .both
            .deliver(self.both.raw.address, &Both::same(begun.message.clone()));
        check(
            &Datagram::Other,
            &verdicts,
            &Both::same(begun.message.clone()),
        );
        if let Both {
            taupe: Verdict::Answered(taupe),
            boringtun: Verdict::Answered(boringtun),
        } = verdicts
        {
            assert_eq!(begun.message[8..116], original[8..116], "a forged one");
            self.install(&begun, &Both { taupe, boringtun });
            self.taken = Some(begun.message);
        }
    }

    /// Completes a handshake that both have accepted.
    fn install(&mut self, begun: &Begun, responses: &Both<Vec<u8>>) {
        let sessions = responses.map(|response| {
            let session = self.both.raw.finish(begun, response);
            session.expect("a valid response")
        });
        let newest = Tracked {
            sessions,
            greatest: 0,
            sent: BTreeSet::new(),
            is_confirmed: false,
        };
        let before = std::mem::replace(&mut self.newest, newest);
        self.handshakes += 1;
        if before.is_confirmed {
            self.older = Some(before);
            self.handshakes = 1;
        } else if self.handshakes == BORINGTUN_SESSIONS {
            self.older = None;
        }
    }

    /// Sends a response to the initiations of both.
    fn send_response(&mut self, input: &mut Input<'_>, control: u8) {
        let index = u32::from(input.byte()) << 24 | 9;
        let waiting = self
            .waiting
            .get_or_insert_with(|| Waiting::new(self.both.initiate()));
        let other = &self.both.other;
        let answers = waiting
            .initiations
            .map(|initiation| other.answer(initiation, index).expect("theirs"));
        let original = answers.map(|(response, _)| response.clone());
        let mut responses = original.clone();
        if control & 8 != 0 {
            responses = responses.mutated(input);
        }
        if control & 0x10 != 0 {
            responses.each(|response| {
                if response.len() >= 32 {
                    other.stamp(response);
                }
            });
        }
        let address = other.address;
        let verdicts = self.both.deliver(address, &responses);
        check(&Datagram::Other, &verdicts, &responses);
        if let Both {
            taupe: Verdict::Sent(taupe),
            boringtun: Verdict::Sent(boringtun),
        } = verdicts
        {
            let is_forged = |both: &Both<Vec<u8>>| both.map(|it| it[8..60].to_vec());
            assert_eq!(is_forged(&responses), is_forged(&original), "a forged one");
            // Both have the keys of this side.
            let session = &answers.taupe.1;
            assert!(session.open(&taupe).is_some());
            let session = &answers.boringtun.1;
            assert!(session.open(&boringtun).is_some());
        }
    }

    /// Sends a cookie in reply to the initiations of both.
    fn send_cookie(&mut self, input: &mut Input<'_>, control: u8) {
        let cookie = [input.byte(); 16];
        let waiting = self
            .waiting
            .get_or_insert_with(|| Waiting::new(self.both.initiate()));
        let other = &self.both.other;
        let replies = waiting
            .initiations
            .map(|initiation| other.cookie_reply(initiation, &cookie));
        let messages = match control & 8 {
            0 => replies.clone(),
            _ => replies.mutated(input),
        };
        let datagram = match messages == replies {
            true => Datagram::Cookie {
                is_repeated: std::mem::replace(&mut waiting.has_cookie, true),
            },
            false => Datagram::Other,
        };
        let address = other.address;
        let verdicts = self.both.deliver(address, &messages);
        check(&datagram, &verdicts, &messages);
    }

    /// Sends bytes of the input.
    fn send_bytes(&mut self, input: &mut Input<'_>, control: u8) {
        let mut bytes = vec![control >> 5, 0, 0, 0];
        let length = usize::from(input.byte());
        bytes.extend(input.take(length));
        if control & 8 != 0 {
            bytes = bytes.split_off(4);
        }
        if control & 0x10 != 0 && bytes.len() >= 32 {
            self.both.raw.stamp(&mut bytes);
        }
        let messages = Both::same(bytes);
        let verdicts = self.both.deliver(stranger(), &messages);
        check(&Datagram::Other, &verdicts, &messages);
        assert_eq!(verdicts, Both::same(Verdict::Refused), "{messages:02x?}");
    }
}

impl Waiting {
    fn new(initiations: Both<Vec<u8>>) -> Self {
        Self {
            initiations,
            has_cookie: false,
        }
    }
}

/// Checks that both have done the same.
#[track_caller]
fn check(datagram: &Datagram<'_>, verdicts: &Both<Verdict>, messages: &Both<Vec<u8>>) {
    if !verdicts.are_alike() && !is_legitimate(datagram, verdicts) {
        panic!("{datagram:02x?}: {verdicts:02x?}\n{messages:02x?}");
    }
}

/// Returns the plaintext of a data message.
fn plaintext(input: &mut Input<'_>, choice: u8, both: &Implementations) -> Vec<u8> {
    let mut plaintext = match choice >> 3 & 3 {
        0 => return Vec::new(),
        1 => both.packet(false, input.byte().into()),
        2 => both.packet(true, input.byte().into()),
        _ => {
            let length = usize::from(input.byte());
            input.take(length).to_vec()
        }
    };
    if choice & 0x20 != 0 {
        input.mutate(&mut plaintext);
    }
    plaintext
}

/// Returns lists of datagrams of every kind.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    // The parts of a step: data with a counter and a plaintext, an initiation, a response, a cookie.
    let data = |choice: u8, counter: &[u8], rest: &[u8]| [&[0, choice][..], counter, rest].concat();
    let next = |rest: &[u8]| data(6 | V4, &[0], rest);
    let initiation = |choice: u8, rest: &[u8]| [&[4, 1, choice][..], rest].concat();
    let (response, cookie) = (vec![5, 2], vec![6, 3]);
    let mut seeds = vec![next(&[20]), data(6, &[0], &[]), data(6 | V6, &[0], &[20])];
    // Counters: repeated, at the edges of the windows, far ahead, at the limit.
    for counters in [
        vec![0],
        vec![1, 3, 0],
        vec![2, 0],
        vec![2, 3],
        vec![3, 0],
        vec![3, 3],
        vec![4, 0, 16],
        vec![5, 0],
        vec![5, 2],
        vec![5, 9, 0, 0, 0, 0, 1, 0, 0, 0],
    ] {
        let (choice, counter) = (counters[0], &counters[1..]);
        let far = data(4 | V4, &[0xff, 0x40], &[20]);
        let one = data(choice | V4, counter, &[20]);
        seeds.push([&far[..], &one, &one, &next(&[30])].concat());
    }
    // Inner packets: changed lengths, sources, versions; bytes of the input; changed messages.
    for at in [0, 2, 3, 4, 5, 12, 15] {
        seeds.push(data(6 | V4 | INNER, &[0], &[20, 1, at, 0, 0x1f]));
        seeds.push(data(6 | V6 | INNER, &[0], &[20, 1, at, 0, 0x1f]));
    }
    seeds.push(data(
        6 | BYTES,
        &[0],
        &[24, 0x45, 0, 0, 20, 1, 1, 1, 1, 1, 1, 1, 1, 10, 0, 0, 9],
    ));
    for at in [0, 1, 4, 8, 15, 16, 40] {
        seeds.push(
            [
                next(&[20]),
                data(6 | V4 | CHANGED, &[0], &[20, 1, at, 0, 1]),
            ]
            .concat(),
        );
    }
    seeds.push(data(6 | V4 | CHANGED, &[0], &[20, 0x10, 31, 0]));
    seeds.push(data(6 | V4 | CHANGED, &[0], &[20, 0x30, 5]));
    // Handshakes: new, repeated, older, of a stranger, the same message again; confirmed or not.
    for choice in [0, 1, 3, 3 | 8] {
        let made = initiation(choice, &[]);
        seeds.push([&made[..], &next(&[20]), &made, &next(&[20])].concat());
    }
    let made = initiation(3, &[]);
    seeds.push([&made[..], &initiation(3 | 0x10, &[])].concat());
    seeds.push([&made[..], &made, &next(&[20]), &[8], &next(&[20])[1..]].concat());
    seeds.push([&made.repeat(9)[..], &[8], &next(&[20])[1..]].concat());
    seeds.push(
        [
            &initiation(2, &[0x40, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0])[..],
            &made,
        ]
        .concat(),
    );
    for at in [0, 4, 8, 40, 88, 115, 116, 132] {
        for control in [4 | 8, 4 | 8 | 0x10] {
            seeds.push(vec![control, 1, 3, 1, at, 0, 1]);
        }
    }
    // Responses and cookies: alone, repeated, after each other, changed.
    seeds.push([&response[..], &response].concat());
    seeds.push([&cookie[..], &cookie, &response, &cookie].concat());
    for at in [0, 4, 8, 12, 44, 59, 60, 76] {
        for control in [5 | 8, 5 | 8 | 0x10] {
            seeds.push(vec![control, 2, 1, at, 0, 1]);
        }
        seeds.push(vec![6 | 8, 2, 1, at, 0, 1]);
    }
    // Bytes with each type of a message.
    for (kind, length) in [(0, 8), (1, 144), (2, 88), (3, 60), (4, 28), (5, 200)] {
        for flags in [0, 0x10] {
            let mut seed = vec![7 | kind << 5 | flags, length];
            seed.extend(vec![1; length.into()]);
            seeds.push(seed);
        }
    }
    seeds
}

// Flags of `choice` in a step with data.
const V4: u8 = 0x08;
const V6: u8 = 0x10;
const BYTES: u8 = 0x18;
const INNER: u8 = 0x20;
const CHANGED: u8 = 0x40;
