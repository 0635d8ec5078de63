//! Number of messages in a session: Rekey-After-Messages and Reject-After-Messages (whitepaper
//! §6.1, §6.2), and counters in general.

use taupe_protocol::DropReason;
use taupe_protocol::limits::{REJECT_AFTER_MESSAGES, REKEY_AFTER_MESSAGES};
use taupe_protocol::message::{Kind, data_header};

use crate::common::packets::{ipv4, sized};
use crate::common::{Net, Outcome, START, secs};
use crate::each_backend;

/// Waits until Rekey-Timeout has passed, and sets the next counter that `node` sends to the other
/// node.
fn set_counter(net: &mut Net, node: usize, counter: u64) {
    net.advance_to(net.now.max(START + secs(30)));
    let key = net.nodes[1 - node].public;
    net.nodes[node].device.set_counter_for_test(&key, counter);
}

fn counters(net: &Net, mark: usize, node: usize) -> Vec<u64> {
    net.since(mark, node)
        .iter()
        .filter(|d| d.kind() == Kind::Data)
        .map(|d| data_header(&d.bytes).expect("data has a header").1)
        .collect()
}

each_backend! {
    fn the_constants_are_those_of_the_paper(_crypto) {
        assert_eq!(REKEY_AFTER_MESSAGES, 1 << 60);
        assert_eq!(u128::from(REJECT_AFTER_MESSAGES), (1 << 64) - (1 << 13) - 1);
    }

    fn both_sides_rekey_after_2_to_the_60_messages(crypto) {
        for node in [0, 1] {
            for (counter, rekeys) in [
                (REKEY_AFTER_MESSAGES - 2, false),
                (REKEY_AFTER_MESSAGES - 1, false),
                (REKEY_AFTER_MESSAGES, true),
                (REKEY_AFTER_MESSAGES + 1, true),
            ] {
                let mut net = Net::connected(crypto);
                set_counter(&mut net, node, counter);
                let mark = net.mark();
                assert_eq!(net.ping(node, 1 - node), Outcome::Sent);
                assert_eq!(counters(&net, mark, node)[0], counter);
                let initiations = net.times(mark, node, Kind::Initiation).len();
                assert_eq!(initiations, usize::from(rekeys), "node {node}, {counter}");
            }
        }
    }

    fn transport_headers_are_little_endian(crypto) {
        let mut net = Net::connected(crypto);
        set_counter(&mut net, 0, 0x0102_0304_0506_0708);
        let mark = net.mark();
        net.ping(0, 1);
        let message = &net.since(mark, 0)[0].bytes;
        assert_eq!(message[..4], [4, 0, 0, 0]);
        assert_eq!(message[4..8], net.last(1, Kind::Response).bytes[4..8], "the responder's index");
        assert_eq!(message[8..16], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(net.nodes[1].delivered.len(), 2);
    }

    fn a_batch_that_crosses_2_to_the_60_rekeys(crypto) {
        for (count, rekeys) in [(9, false), (10, false), (11, true)] {
            let mut net = Net::connected(crypto);
            set_counter(&mut net, 0, REKEY_AFTER_MESSAGES - 10);
            let mark = net.mark();
            let packet = ipv4(net.nodes[0].inner, net.nodes[1].inner, b"x");
            assert_eq!(net.send_batch(0, &packet, count), Outcome::Sent);
            let initiations = net.times(mark, 0, Kind::Initiation).len();
            assert_eq!(initiations, usize::from(rekeys), "{count} messages");
        }
    }

    fn nothing_is_sent_from_reject_after_messages_on(crypto) {
        for node in [0, 1] {
            for (counter, sent) in [
                (REJECT_AFTER_MESSAGES - 2, Outcome::Sent),
                (REJECT_AFTER_MESSAGES - 1, Outcome::Sent),
                (REJECT_AFTER_MESSAGES, Outcome::Staged),
                (REJECT_AFTER_MESSAGES + 1, Outcome::Staged),
                (u64::MAX, Outcome::Staged),
            ] {
                let mut net = Net::connected(crypto);
                set_counter(&mut net, node, counter);
                net.cut_kind(Kind::Initiation);
                let mark = net.mark();
                assert_eq!(net.ping(node, 1 - node), sent, "node {node}, {counter}");
                let expected: &[u64] = if sent == Outcome::Sent { &[counter] } else { &[] };
                assert_eq!(counters(&net, mark, node), expected);
                assert_eq!(net.times(mark, node, Kind::Initiation).len(), 1);
            }
        }
    }

    fn the_last_messages_of_a_session_go_out_one_by_one(crypto) {
        let mut net = Net::connected(crypto);
        set_counter(&mut net, 0, REJECT_AFTER_MESSAGES - 3);
        net.cut_kind(Kind::Initiation);
        let mark = net.mark();
        for mark in 0..5 {
            let packet = sized(net.nodes[0].inner, net.nodes[1].inner, 40, mark);
            net.send(0, &packet);
        }
        let last: Vec<u64> = (REJECT_AFTER_MESSAGES - 3..REJECT_AFTER_MESSAGES).collect();
        assert_eq!(counters(&net, mark, 0), last);
        net.mend();
        net.advance(secs(6));
        // After the new handshake, the remaining packets arrive in order.
        let marks: Vec<u8> = net.nodes[1].delivered[1..].iter().map(|p| p[39]).collect();
        assert_eq!(marks, [0, 1, 2, 3, 4]);
        assert_eq!(counters(&net, mark, 0)[3..], [0, 1]);
    }

    fn a_batch_that_does_not_fit_goes_as_far_as_it_can(crypto) {
        for (count, whole) in [(2, true), (3, false)] {
            let mut net = Net::connected(crypto);
            set_counter(&mut net, 0, REJECT_AFTER_MESSAGES - 2);
            net.cut_kind(Kind::Initiation);
            let mark = net.mark();
            let packet = ipv4(net.nodes[0].inner, net.nodes[1].inner, b"x");
            let sent = net.send_batch(0, &packet, count);
            assert_eq!(sent, if whole { Outcome::Sent } else { Outcome::Staged });
            let last = [REJECT_AFTER_MESSAGES - 2, REJECT_AFTER_MESSAGES - 1];
            assert_eq!(counters(&net, mark, 0), last);
        }
    }

    fn counters_count_from_zero_without_gap_or_repetition(crypto) {
        let mut net = Net::connected(crypto);
        let packet = ipv4(net.nodes[0].inner, net.nodes[1].inner, b"x");
        for count in [1, 3, 64, 65, 1] {
            net.send_batch(0, &packet, count);
        }
        let expected: Vec<u64> = (0..135).collect();
        assert_eq!(counters(&net, 0, 0), expected, "134 and the first, which was staged");
        assert_eq!(net.nodes[1].delivered.len(), 135);
    }

    fn a_reservation_that_is_not_used_is_never_used(crypto) {
        use taupe_protocol::Outbound;
        let mut net = Net::connected(crypto);
        let key = net.nodes[1].public;
        let peer = net.nodes[0].peer(&key);
        let unused = net.nodes[0].path.reserve(net.now, &peer, 5, 500);
        assert!(matches!(unused, Outbound::Send(_)));
        drop(unused);
        let mark = net.mark();
        net.ping(0, 1);
        assert_eq!(counters(&net, mark, 0), [6]);
    }

    fn no_more_is_sealed_than_was_reserved(crypto) {
        use taupe_protocol::Outbound;
        let mut net = Net::connected(crypto);
        let key = net.nodes[1].public;
        let peer = net.nodes[0].peer(&key);
        for (stride, length, ready) in [
            (48, 48 * 2, 48 * 2),
            (48, 48 * 3, 48 * 3),
            (48, 48 * 4, 48 * 3),
            (48, 48 * 2 + 40, 48 * 2 + 40),
            (0, 0, 0),
        ] {
            let Outbound::Send(mut reservation) = net.nodes[0].path.reserve(net.now, &peer, 3, 144)
            else {
                panic!("there is a session");
            };
            let mut batch = vec![0xee; length];
            assert_eq!(reservation.seal(&mut batch, stride), ready);
            assert!(batch[ready..].iter().all(|byte| *byte == 0xee), "the rest is as it was");
        }
    }

    fn nothing_is_received_from_reject_after_messages_on(crypto) {
        let (mut net, session, raw) = crate::common::with_raw(crypto);
        let packet = ipv4("10.0.0.9".parse().unwrap(), net.nodes[0].inner, b"x");
        for (counter, cause) in [
            (REJECT_AFTER_MESSAGES, Some(DropReason::Exhausted)),
            (u64::MAX, Some(DropReason::Exhausted)),
            // Refused counters did not move the window.
            (5, None),
            (REJECT_AFTER_MESSAGES - 2, None),
            (REJECT_AFTER_MESSAGES - 1, None),
            (REJECT_AFTER_MESSAGES - 1, Some(DropReason::Replayed)),
            (REJECT_AFTER_MESSAGES - 3, None),
        ] {
            let before = crate::common::snapshot::counts(&net.nodes[0]);
            let delivered = net.nodes[0].delivered.len();
            net.inject(0, raw.address, &session.seal(counter, &packet));
            let raised = crate::common::snapshot::raised(&net.nodes[0], &before);
            assert_eq!(raised, cause.into_iter().collect::<Vec<_>>(), "{counter}");
            let got = net.nodes[0].delivered.len() - delivered;
            assert_eq!(got, usize::from(cause.is_none()), "{counter}");
        }
    }

    fn every_message_has_a_nonce_of_its_own_over_rekeys(crypto) {
        let mut net = Net::connected(crypto);
        for step in 1..400 {
            net.advance_to_offset(secs(step));
            net.ping(0, 1);
            net.ping(1, 0);
        }
        let mut seen = std::collections::BTreeSet::new();
        for datagram in net.log.iter().filter(|d| d.kind() == Kind::Data) {
            let nonce = (datagram.from, data_header(&datagram.bytes));
            assert!(seen.insert(nonce), "{nonce:?} twice");
        }
        let receivers: std::collections::BTreeSet<_> =
            seen.iter().map(|(_, header)| header.map(|(r, _)| r)).collect();
        assert!(receivers.len() >= 6, "three sessions or more, each way");
        assert_eq!(net.nodes[1].delivered.len(), 400);
        assert_eq!(net.nodes[0].delivered.len(), 399);
    }
}
