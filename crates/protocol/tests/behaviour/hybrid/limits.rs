//! Parts that are refused, and limits on the number of unfinished handshakes.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;

use taupe_protocol::DropReason;
use taupe_protocol::crypto::Provider;
use taupe_protocol::hybrid::Suite;
use taupe_protocol::limits::REKEY_TIMEOUT;
use taupe_protocol::message::Kind;

use super::elsewhere;
use crate::common::hybrid::{Begun, Thief};
use crate::common::random::Numbers;
use crate::common::raw::{Raw, RawSession};
use crate::common::snapshot::assert_refused_from;
use crate::common::{NANO, Net, label, millis, set_numbers, stranger};
use crate::each_backend;

const SUITE: Suite = Suite::Hybrid768;

/// Returns a device, node 1, and its peer, played by the test with all keys of node 0.
fn pair(crypto: &'static Provider) -> (Net, Thief) {
    let net = Net::hybrid_pair(crypto, SUITE);
    let peer = Thief::knows_all(&net, 0, 1, SUITE);
    (net, peer)
}

/// Writes mac2 of the first part of an initiation, with a cookie that node 1 gives to `from`.
fn stamp_cookie(net: &mut Net, from: SocketAddr, begun: &mut Begun) {
    let raw = Raw::new(
        net.crypto,
        net.nodes[0].private.clone(),
        net.nodes[1].public,
        from,
    );
    let part = &mut begun.parts[0];
    let mark = net.mark();
    net.inject(1, from, part);
    let reply = &net.since(mark, 1)[0];
    assert_eq!((reply.kind(), reply.to), (Kind::CookieReply, from));
    let cookie = raw.open_cookie(part, &reply.bytes).expect("for this part");
    raw.stamp_cookie(part, &cookie);
}

/// Asserts that node 1 has these sessions and no others.
fn assert_sessions(net: &Net, expected: &[&RawSession]) {
    let sessions = net.nodes[1].device.sessions();
    let sessions: BTreeSet<u32> = sessions.iter().map(|it| it.local_index()).collect();
    let expected: BTreeSet<u32> = expected.iter().map(|it| it.remote_index).collect();
    assert_eq!(sessions, expected);
}

each_backend! {
    fn a_part_without_a_right_mac1_is_refused(crypto) {
        for suite in Suite::ALL {
            let mut net = Net::hybrid_pair(crypto, suite);
            let mut peer = Thief::knows_all(&net, 0, 1, suite);
            let begun = peer.begin(7, label(1));
            for part in &begun.parts {
                let mut forged = part.clone();
                let last = forged.len() - 17;
                forged[last] ^= 1;
                assert_refused_from(&mut net, 1, stranger(), &forged, DropReason::Mac1);
            }
            assert!(peer.shake(&mut net, 1, stranger(), &begun).is_some());
        }
    }

    fn parts_belong_together_by_address_index_and_suite(crypto) {
        let (mut net, mut peer) = pair(crypto);
        let begun = peer.begin(7, label(1));
        net.inject(1, elsewhere(2), &begun.parts[1]);
        net.inject(1, elsewhere(1), &begun.parts[0]);
        net.inject(1, elsewhere(3), &begun.parts[1]);
        assert_eq!(net.kinds(0, 1), []);
        net.inject(1, elsewhere(1), &begun.parts[1]);
        assert_eq!(net.kinds(0, 1), [Kind::HybridResponse; 2]);

        // Parts of other initiations do not take the place of the true one.
        for (index, suite) in [(8, SUITE), (7, Suite::Hybrid512)] {
            let (mut net, mut peer) = pair(crypto);
            let begun = peer.begin(7, label(1));
            let other = Thief::knows_all(&net, 0, 1, suite).begin(index, label(1));
            for part in [&other.parts[1], &begun.parts[1], &begun.parts[0]] {
                net.inject(1, stranger(), part);
            }
            assert_eq!(net.kinds(0, 1), [Kind::HybridResponse; 2], "{index} {suite:?}");
        }
    }

    fn sixteen_second_parts_wait_for_their_first(crypto) {
        for (others, is_answered) in [(15, true), (16, false)] {
            let (mut net, mut peer) = pair(crypto);
            let begun = peer.begin(7, label(1));
            net.inject(1, stranger(), &begun.parts[1]);
            for n in 0..others {
                let other = peer.begin(100 + n, label(1));
                net.inject(1, elsewhere(n as u16), &other.parts[1]);
            }
            net.inject(1, stranger(), &begun.parts[0]);
            assert_eq!(!net.kinds(0, 1).is_empty(), is_answered, "{others} others");
        }
    }

    fn four_halves_of_responses_wait(crypto) {
        for (nth, is_stored) in [(0, false), (1, true), (4, true)] {
            let mut net = Net::hybrid_pair(crypto, SUITE);
            net.cut();
            net.ping(0, 1);
            let sent = net.since(0, 0);
            // The responder forgets each handshake, and so makes another response.
            let responses: Vec<_> = (0..5)
                .map(|_| {
                    let mark = net.mark();
                    sent.iter().for_each(|part| net.deliver(part));
                    net.set_down(1);
                    net.set_up(1);
                    net.since(mark, 1)
                })
                .collect();
            for response in &responses {
                assert_eq!(response.len(), 2);
                net.deliver(&response[0]);
            }
            net.deliver(&responses[nth][1]);
            let expected = is_stored.then_some(Some(SUITE));
            assert_eq!(net.suite(0, 1), expected, "response {nth}");
        }
    }

    fn a_second_handshake_within_5_seconds_needs_a_cookie(crypto) {
        for (after, from, needs_cookie) in [
            (REKEY_TIMEOUT - NANO, elsewhere(1), true),
            (REKEY_TIMEOUT - NANO, elsewhere(2), true),
            (REKEY_TIMEOUT, elsewhere(1), false),
            (REKEY_TIMEOUT, elsewhere(2), false),
        ] {
            let (mut net, mut peer) = pair(crypto);
            let first = peer.begin(7, label(1));
            assert!(peer.shake(&mut net, 1, elsewhere(1), &first).is_some());
            net.advance(after);
            let mut second = peer.begin(8, label(2));
            if needs_cookie {
                stamp_cookie(&mut net, from, &mut second);
            }
            let session = peer.shake(&mut net, 1, from, &second);
            assert!(session.is_some(), "{after:?} from {from}");
        }
    }

    fn senders_with_a_cookie_are_limited_to_20_a_second(crypto) {
        let (mut net, mut peer) = pair(crypto);
        let first = peer.begin(1, label(1));
        net.inject(1, stranger(), &first.parts[0]);
        let mut n = 1;
        let mut is_allowed = |net: &mut Net| {
            n += 1;
            let mut begun = peer.begin(n, label(n));
            stamp_cookie(net, stranger(), &mut begun);
            let before = net.nodes[1].count(DropReason::RateLimited);
            net.inject(1, stranger(), &begun.parts[0]);
            net.nodes[1].count(DropReason::RateLimited) == before
        };
        let allowed: Vec<bool> = (0..7).map(|_| is_allowed(&mut net)).collect();
        assert_eq!(allowed, [true, true, true, true, true, false, false]);
        net.advance(millis(50) - NANO);
        assert!(!is_allowed(&mut net), "one nanosecond early");
        net.advance(NANO);
        assert!(is_allowed(&mut net));
    }

    fn a_fifth_handshake_replaces_one_from_its_address(crypto) {
        let (mut net, mut peer) = pair(crypto);
        let begun = [0, 1, 2, 3].map(|n: u16| {
            let begun = peer.begin(n.into(), label(1));
            let session = peer.shake(&mut net, 1, elsewhere(n), &begun);
            net.advance(REKEY_TIMEOUT);
            session.expect("a response")
        });
        let [first, second, _, fourth] = &begun;
        let last = peer.begin(9, label(1));
        let last = peer.shake(&mut net, 1, elsewhere(2), &last).expect("a response");
        assert_sessions(&net, &[first, second, fourth, &last]);
    }

    fn a_fifth_handshake_replaces_one_older_than_5_seconds_or_any(crypto) {
        for (lot, is_one_older) in (0..4).flat_map(|lot| [(lot, true), (lot, false)]) {
            let (mut net, mut peer) = pair(crypto);
            let mut begun = Vec::new();
            for n in 0..5_u16 {
                let mut initiation = peer.begin(n.into(), label(1));
                if n > u16::from(is_one_older) {
                    stamp_cookie(&mut net, elsewhere(n), &mut initiation);
                }
                if n == 4 {
                    set_numbers(&net, 1, Numbers::Script(VecDeque::from([lot])));
                }
                let session = peer.shake(&mut net, 1, elsewhere(n), &initiation);
                begun.push(session.expect("a response"));
                if n == 0 && is_one_older {
                    net.advance(REKEY_TIMEOUT);
                }
            }
            begun.remove(if is_one_older { 0 } else { lot as usize });
            assert_sessions(&net, &begun.iter().collect::<Vec<_>>());
        }
    }
}
