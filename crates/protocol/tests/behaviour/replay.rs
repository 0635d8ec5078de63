//! Replay window (whitepaper §5.4.6, RFC 6479), with the cases of the kernel's self-test of its
//! counter: 8,192 bits, of which 8,128 are usable.

use std::collections::BTreeSet;

use taupe_protocol::DropReason;
use taupe_protocol::limits::REJECT_AFTER_MESSAGES;
use taupe_protocol::testing::replay::{ReplayWindow, WINDOW_BITS, WINDOW_LEN};

use crate::common::packets::ipv4;
use crate::common::snapshot::{counts, raised};
use crate::common::{Net, RAW_INNER, with_raw};
use crate::each_backend;

/// The kernel's `T_LIM`: the distance from the oldest counter that is still accepted to one above
/// the newest.
const LIMIT: u64 = WINDOW_LEN + 1;
const FIRST_REFUSED: u64 = REJECT_AFTER_MESSAGES;

/// A receiver: the replay window, and the limit on messages.
#[derive(Default)]
struct Receiver(ReplayWindow);

impl Receiver {
    fn takes(&mut self, counter: u64) -> bool {
        counter < FIRST_REFUSED && self.0.accept(counter)
    }

    #[track_caller]
    fn check(&mut self, cases: &[(u64, bool)]) {
        for (n, (counter, accepted)) in cases.iter().enumerate() {
            assert_eq!(self.takes(*counter), *accepted, "case {}: {counter}", n + 1);
        }
    }
}

#[test]
fn the_window_is_8128_wide() {
    assert_eq!((WINDOW_BITS, WINDOW_LEN), (8192, 8128));
}

#[test]
fn the_cases_of_the_kernel() {
    Receiver::default().check(&[
        (0, true),
        (1, true),
        (1, false),
        (9, true),
        (8, true),
        (7, true),
        (7, false),
        (LIMIT, true),
        (LIMIT - 1, true),
        (LIMIT - 1, false),
        (LIMIT - 2, true),
        (2, true),
        (2, false),
        (LIMIT + 16, true),
        (3, false),
        (LIMIT + 16, false),
        (LIMIT * 4, true),
        (LIMIT * 4 - (LIMIT - 1), true),
        (10, false),
        (LIMIT * 4 - LIMIT, false),
        (LIMIT * 4 - (LIMIT + 1), false),
        (LIMIT * 4 - (LIMIT - 2), true),
        (LIMIT * 4 + 1 - LIMIT, false),
        (0, false),
        (FIRST_REFUSED, false),
        (FIRST_REFUSED - 1, true),
        (FIRST_REFUSED, false),
        (FIRST_REFUSED - 1, false),
        (FIRST_REFUSED - 2, true),
        (FIRST_REFUSED + 1, false),
        (FIRST_REFUSED + 2, false),
        (FIRST_REFUSED - 2, false),
        (FIRST_REFUSED - 3, true),
        (0, false),
    ]);
}

/// The kernel's loops: fill the window in both directions, from 0 and from 1, then test the
/// counters just outside.
#[test]
fn the_loops_of_the_kernel() {
    let width = WINDOW_LEN;

    let mut ascending = Receiver::default();
    for counter in 1..=width {
        assert!(ascending.takes(counter), "{counter}");
    }
    ascending.check(&[(0, true), (0, false)]);

    let mut one_too_far = Receiver::default();
    for counter in 2..=width + 1 {
        assert!(one_too_far.takes(counter), "{counter}");
    }
    one_too_far.check(&[(1, true), (0, false)]);

    let mut descending = Receiver::default();
    for counter in (0..=width).rev() {
        assert!(descending.takes(counter), "{counter}");
    }
    for counter in (0..=width).rev() {
        assert!(!descending.takes(counter), "{counter} again");
    }

    let mut descending_late = Receiver::default();
    for counter in (1..=width + 1).rev() {
        assert!(descending_late.takes(counter), "{counter}");
    }
    descending_late.check(&[(0, false)]);

    let mut from_the_top = Receiver::default();
    for counter in (1..=width).rev() {
        assert!(from_the_top.takes(counter), "{counter}");
    }
    from_the_top.check(&[(width + 1, true), (0, false)]);

    let mut gap = Receiver::default();
    for counter in (1..=width).rev() {
        assert!(gap.takes(counter), "{counter}");
    }
    gap.check(&[(0, true), (width + 1, true)]);
}

/// Three turns of the ring in steps of each size: bits of an earlier turn are cleared when their
/// words are reused.
#[test]
fn the_ring_is_clean_at_each_turn() {
    for step in [1, 2, 63, 64, 65, 127, 128] {
        let mut receiver = Receiver::default();
        for counter in (0..3 * WINDOW_BITS).step_by(step) {
            assert!(receiver.takes(counter), "{counter} in steps of {step}");
            assert!(!receiver.takes(counter), "{counter} in steps of {step}");
        }
    }
}

/// Jumps of every size around a word and around the whole window clear the counters they pass,
/// and no others.
#[test]
fn jumps_clear_what_they_pass() {
    let sizes = (1..130).chain(WINDOW_BITS - 130..WINDOW_BITS + 130);
    for jump in sizes {
        for start in [0, 1, 63, 64, 65, WINDOW_BITS - 1, 1 << 40] {
            let mut receiver = Receiver::default();
            assert!(receiver.takes(start));
            assert!(receiver.takes(start + jump));
            assert!(!receiver.takes(start + jump), "{start} + {jump}");
            assert!(!receiver.takes(start), "{start} + {jump}: seen, or too old");
            let oldest = (start + jump).saturating_sub(WINDOW_LEN);
            if oldest > 0 {
                assert!(
                    !receiver.takes(oldest - 1),
                    "{start} + {jump}: below the window"
                );
            }
            for counter in BTreeSet::from([oldest, start + 1, start + jump - 1]) {
                let fresh = counter >= oldest && counter != start && counter != start + jump;
                assert_eq!(
                    receiver.takes(counter),
                    fresh,
                    "{counter} in {start} + {jump}"
                );
                assert!(!receiver.takes(counter));
            }
        }
    }
}

fn take(net: &mut Net, session: &crate::common::raw::RawSession, counter: u64) -> Vec<DropReason> {
    let packet = ipv4(RAW_INNER, net.nodes[0].inner, b"x");
    let before = counts(&net.nodes[0]);
    net.inject(
        0,
        crate::common::stranger(),
        &session.seal(counter, &packet),
    );
    raised(&net.nodes[0], &before)
}

each_backend! {
    fn a_session_keeps_to_the_window(crypto) {
        let (mut net, session, _) = with_raw(crypto);
        for (counter, causes) in [
            (WINDOW_LEN + 1, vec![]),
            (1, vec![]),
            (1, vec![DropReason::Replayed]),
            (0, vec![DropReason::Replayed]),
            (WINDOW_LEN + 2, vec![]),
            (2, vec![]),
            (1 << 20, vec![]),
            ((1 << 20) - WINDOW_LEN, vec![]),
            ((1 << 20) - WINDOW_LEN - 1, vec![DropReason::Replayed]),
        ] {
            assert_eq!(take(&mut net, &session, counter), causes, "{counter}");
        }
    }

    fn what_does_not_verify_never_moves_the_window(crypto) {
        let (mut net, session, raw) = with_raw(crypto);
        let mut forged = session.seal(1, &[]);
        forged[8..16].copy_from_slice(&(1_u64 << 50).to_le_bytes());
        net.inject(0, raw.address, &forged);
        assert_eq!(net.nodes[0].count(DropReason::NotAuthentic), 1);
        assert_eq!(take(&mut net, &session, 1), []);
        // A forged message does not use up its counter.
        let mut forged = session.seal(2, &[]);
        forged[16] ^= 1;
        net.inject(0, raw.address, &forged);
        assert_eq!(take(&mut net, &session, 2), []);
    }

    fn a_batch_that_repeats_itself_is_delivered_once(crypto) {
        let (mut net, session, raw) = with_raw(crypto);
        let packet = ipv4(RAW_INNER, net.nodes[0].inner, b"x");
        let one = session.seal(5, &packet);
        let length = one.len();
        let batch = [one.clone(), session.seal(4, &packet), one.clone(), one].concat();
        net.inject_batch(0, raw.address, &batch, length);
        assert_eq!(net.nodes[0].delivered.len(), 2);
        assert_eq!(net.nodes[0].count(DropReason::Replayed), 2);
    }

    fn each_session_has_a_window_of_its_own(crypto) {
        let (mut net, old, raw) = with_raw(crypto);
        assert_eq!(take(&mut net, &old, 1 << 30), []);
        net.advance(crate::common::secs(1));
        let new = crate::common::shake(&mut net, &raw, 3, crate::common::label(60));
        assert_eq!(take(&mut net, &new, 0), []);
        assert_eq!(take(&mut net, &new, 1), []);
        assert_eq!(take(&mut net, &old, 2), [DropReason::Replayed]);
        assert_eq!(take(&mut net, &old, (1 << 30) - 1), []);
    }

    fn a_session_that_never_receives_has_no_window(crypto) {
        let mut net = Net::connected(crypto);
        let sizes = |net: &Net| -> Vec<usize> {
            net.nodes.iter().map(|n| n.device.sessions()[0].replay_bytes()).collect()
        };
        assert_eq!(sizes(&net), [0, 1024]);
        net.ping(1, 0);
        assert_eq!(sizes(&net), [1024, 1024]);
    }
}
