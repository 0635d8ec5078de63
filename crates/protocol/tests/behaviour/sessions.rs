//! Handshakes and the three sessions: previous, current and next (whitepaper §5.4, §6.3).

use std::collections::VecDeque;

use taupe_protocol::message::{DATA_OVERHEAD, Kind};
use taupe_protocol::{DropReason, Role};

use crate::common::packets::ipv4;
use crate::common::random::Numbers;
use crate::common::raw::{chunk, stamp_for, word};
use crate::common::snapshot::{assert_refused, assert_refused_from};
use crate::common::{
    Datagram, Fate, Net, Outcome, RAW_INNER, label, millis, private_key, secs, set_numbers, shake,
    with_raw, with_stranger,
};
use crate::each_backend;

each_backend! {
    fn messages_have_their_sizes_and_types(crypto) {
        let mut net = Net::pair(crypto);
        net.ping(0, 1);
        net.advance(secs(10));
        let seen: Vec<_> = net.log.iter().map(|d| (word(&d.bytes, 0), d.bytes.len(), d.tos)).collect();
        // 28 bytes are padded to 32. Handshake messages have DSCP AF41, as in the kernel.
        assert_eq!(seen, [(1, 148, 0x88), (2, 92, 0x88), (4, 32 + 32, 0), (4, 32, 0)]);
    }

    fn handshakes_are_counted_by_role(crypto) {
        let mut net = Net::pair(crypto);
        net.ping(0, 1);
        net.advance(secs(1));
        assert_eq!((net.nodes[0].handshakes(), net.nodes[1].handshakes()), ([1, 0, 0], [0, 1, 0]));
        // The initiator renews the session.
        net.advance(secs(130));
        net.ping(0, 1);
        net.advance(secs(1));
        assert_eq!((net.nodes[0].handshakes(), net.nodes[1].handshakes()), ([2, 0, 0], [0, 2, 0]));
    }

    fn bytes_are_counted_as_they_are_on_the_wire(crypto) {
        let mut net = Net::connected(crypto);
        for _ in 0..10 {
            let request = ipv4(net.nodes[0].inner, net.nodes[1].inner, &[0; 64]);
            let answer = ipv4(net.nodes[1].inner, net.nodes[0].inner, &[0; 64]);
            net.send(0, &request);
            net.send(1, &answer);
        }
        let status = |net: &Net, node: usize| {
            let peer = &net.nodes[node].device.status().peers[0];
            (peer.tx_bytes, peer.rx_bytes)
        };
        let (up, down) = (148 + 64 + 10 * 128, 92 + 10 * 128);
        assert_eq!(status(&net, 0), (up, down));
        assert_eq!(status(&net, 1), (down, up));
        // The last answer is answered by a keepalive.
        net.advance(secs(10));
        assert_eq!(status(&net, 0), (up + 32, down));
        assert_eq!(status(&net, 1), (down, up + 32));
    }

    fn without_data_the_initiator_confirms_with_a_keepalive(crypto) {
        let mut net = Net::pair(crypto);
        net.set_persistent_keepalive(0, 1, 100);
        assert_eq!(net.kinds(0, 0), [Kind::Initiation, Kind::Data]);
        assert!(net.last(0, Kind::Data).is_keepalive());
        assert_eq!(net.ping(1, 0), Outcome::Sent, "confirmed");
    }

    fn with_data_the_initiator_confirms_with_it(crypto) {
        let net = Net::connected(crypto);
        assert_eq!(net.kinds(0, 0), [Kind::Initiation, Kind::Data]);
        assert!(!net.last(0, Kind::Data).is_keepalive());
    }

    fn the_responder_does_not_send_before_it_has_received(crypto) {
        let mut net = Net::pair(crypto);
        net.wire = Box::new(|d| if d.kind() == Kind::Data { Fate::Hold } else { Fate::Pass });
        net.ping(0, 1);
        assert_eq!(net.session_age(1, 0), None, "not current yet");
        assert_eq!(net.nodes[1].device.sessions().len(), 1);
        let mark = net.mark();
        assert_eq!(net.ping(1, 0), Outcome::Staged);
        assert_eq!(net.kinds(mark, 1), []);
        assert_eq!(net.nodes[1].device.status().peers[0].latest_handshake, None);
        net.mend();
        net.release();
        assert_eq!(net.kinds(mark, 1), [Kind::Data]);
        assert_eq!(net.nodes[0].delivered.len(), 1);
        assert_eq!(net.session_age(1, 0), Some(secs(0)));
        let status = net.nodes[1].device.status();
        assert_eq!(status.peers[0].latest_handshake, Some(net.now_at(1).wall));
    }

    fn until_then_it_goes_on_with_the_session_it_has(crypto) {
        let (mut net, old, raw) = with_raw(crypto);
        net.advance(secs(1));
        let new = shake(&mut net, &raw, 8, label(1));
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        assert_eq!(net.send(0, &packet), Outcome::Sent);
        assert!(old.open(&net.last(0, Kind::Data).bytes).is_some());
        // Data of the old session does not confirm the new one.
        net.inject(0, raw.address, &old.seal(1, &[]));
        net.send(0, &packet);
        assert!(old.open(&net.last(0, Kind::Data).bytes).is_some());
        // Nor does a forged message of the new session.
        let mut forged = new.seal(0, &[]);
        forged[20] ^= 1;
        assert_refused(&mut net, 0, &forged, DropReason::NotAuthentic);
        net.send(0, &packet);
        assert!(old.open(&net.last(0, Kind::Data).bytes).is_some());
        net.inject(0, raw.address, &new.seal(0, &[]));
        net.send(0, &packet);
        assert!(new.open(&net.last(0, Kind::Data).bytes).is_some());
    }

    fn an_inner_packet_that_is_dropped_confirms_too(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let session = shake(&mut net, &raw, 1, label(0));
        let foreign = ipv4("10.99.0.1".parse().unwrap(), net.nodes[0].inner, b"x");
        net.inject(0, raw.address, &session.seal(0, &foreign));
        assert_eq!(net.nodes[0].count(DropReason::SourceNotAllowed), 1);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        assert_eq!(net.send(0, &packet), Outcome::Sent);
    }

    fn a_peer_never_has_more_than_three_sessions(crypto) {
        let (mut net, mut current, raw) = with_raw(crypto);
        for round in 1..40 {
            net.advance(millis(25));
            let next = shake(&mut net, &raw, round, label(round));
            if round % 3 == 0 {
                net.inject(0, raw.address, &next.seal(0, &[]));
                current = next;
            }
            let sessions = net.nodes[0].device.sessions();
            assert!(sessions.len() <= 3, "{} in round {round}", sessions.len());
        }
        net.inject(0, raw.address, &current.seal(1, &[]));
        assert_eq!(net.nodes[0].count(DropReason::UnknownSession), 0, "the current one is kept");
    }

    fn a_session_to_be_takes_the_place_of_the_previous(crypto) {
        // As in the kernel: unused keys are erased.
        let (mut net, previous, raw) = with_raw(crypto);
        net.advance(secs(1));
        let current = shake(&mut net, &raw, 8, label(60));
        net.inject(0, raw.address, &current.seal(0, &[]));
        net.inject(0, raw.address, &previous.seal(1, &[]));
        assert_eq!(net.nodes[0].count(DropReason::UnknownSession), 0);
        net.advance(secs(1));
        shake(&mut net, &raw, 9, label(120));
        assert_eq!(net.nodes[0].device.sessions().len(), 2, "current and next");
        assert_refused(&mut net, 0, &previous.seal(2, &[]), DropReason::UnknownSession);
    }

    fn late_packets_of_the_previous_session_are_received(crypto) {
        for rekeys in [1, 2] {
            let mut net = Net::connected(crypto);
            net.advance_to_offset(secs(30));
            net.hold();
            net.ping(0, 1);
            net.mend();
            let late = net.take_held();
            for _ in 0..rekeys {
                // The other side renews the session, so that this side's counter stays.
                net.advance(secs(6));
                let key = net.nodes[0].public;
                net.nodes[1].device.set_counter_for_test(&key, 1 << 60);
                net.ping(1, 0);
                for (i, j) in [(0, 1), (1, 0)] {
                    assert_eq!(net.session_age(i, j), Some(secs(0)));
                }
            }
            let before = net.nodes[1].delivered.len();
            net.deliver(&late[0]);
            let got = net.nodes[1].delivered.len() - before;
            assert_eq!(got, usize::from(rekeys == 1), "after {rekeys} rekeys");
            assert_eq!(net.nodes[1].count(DropReason::UnknownSession), u64::from(rekeys == 2));
        }
    }

    fn simultaneous_initiations_converge(crypto) {
        // Both initiations are in transit before either arrives, then their responses, in each
        // order.
        for order in 0..4 {
            let mut net = Net::pair(crypto);
            net.hold();
            net.ping(0, 1);
            net.ping(1, 0);
            for bit in [1, 2] {
                let mut held = net.take_held();
                assert_eq!(held.len(), 2);
                if order & bit != 0 {
                    held.reverse();
                }
                for datagram in held {
                    net.deliver(&datagram);
                }
            }
            net.mend();
            net.release();
            let expected = [1, 1];
            let got = [net.nodes[0].delivered.len(), net.nodes[1].delivered.len()];
            assert_eq!(got, expected, "order {order}");
            for second in 1..100 {
                net.advance_to_offset(secs(second));
                assert_eq!(net.ping(0, 1), Outcome::Sent);
                assert_eq!(net.ping(1, 0), Outcome::Sent);
            }
            assert_eq!(net.nodes[0].delivered.len(), 100);
            assert_eq!(net.nodes[1].delivered.len(), 100);
            let handshakes = net.log.iter().filter(|d| d.kind() != Kind::Data).count();
            assert_eq!(handshakes, 4, "order {order}: no handshake storm");
        }
    }

    fn simultaneous_rekeys_converge(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(30));
        for (a, b) in [(0, 1), (1, 0)] {
            let key = net.nodes[b].public;
            net.nodes[a].device.set_counter_for_test(&key, 1 << 60);
        }
        net.hold();
        net.ping(0, 1);
        net.ping(1, 0);
        net.mend();
        net.release();
        for second in 31..140 {
            net.advance_to_offset(secs(second));
            net.ping(0, 1);
            net.ping(1, 0);
        }
        assert_eq!(net.nodes[0].delivered.len(), 110);
        assert_eq!(net.nodes[1].delivered.len(), 111);
        for i in [0, 1] {
            assert!(net.nodes[i].device.sessions().len() <= 3);
        }
    }

    fn a_forged_response_destroys_nothing(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        let initiation = net.last(0, Kind::Initiation);
        let (response, session) = raw.answer(&initiation.bytes, 3).expect("ours");
        // An observer of the initiation knows its index and our public key.
        let public = net.nodes[0].public;
        for at in 12..60 {
            let mut forged = response.clone();
            forged[at] ^= 1 << (at % 8);
            stamp_for(crypto, &public, &mut forged);
            assert_refused(&mut net, 0, &forged, DropReason::ResponseNotAuthentic);
        }
        for other in [0, 1, 3, u32::MAX] {
            let index = word(&initiation.bytes, 4) ^ (other | 1);
            let forged = raw.response(3, index, &chunk(&response, 12), &chunk(&response, 44));
            assert_refused(&mut net, 0, &forged, DropReason::UnknownHandshake);
        }
        net.inject(0, raw.address, &response);
        let data = net.last(0, Kind::Data);
        assert!(session.open(&data.bytes).is_some(), "the true response completes it");
    }

    fn a_response_counts_once(crypto) {
        let mut net = Net::connected(crypto);
        let response = net.last(1, Kind::Response);
        assert_refused_from(&mut net, 0, response.source, &response.bytes, DropReason::UnknownHandshake);
    }

    fn a_response_to_a_replaced_initiation_is_refused(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        let first = net.last(0, Kind::Initiation);
        net.advance(secs(6));
        let second = net.last(0, Kind::Initiation);
        let (late, _) = raw.answer(&first.bytes, 1).expect("ours");
        let (response, session) = raw.answer(&second.bytes, 2).expect("ours");
        assert_refused(&mut net, 0, &late, DropReason::UnknownHandshake);
        net.inject(0, raw.address, &response);
        assert!(session.open(&net.last(0, Kind::Data).bytes).is_some());
    }

    fn a_response_of_another_peer_is_refused(crypto) {
        let mut net = Net::new(crypto, 3);
        net.join(0, 1);
        net.join(0, 2);
        net.hold();
        net.ping(0, 1);
        net.ping(0, 2);
        // Each initiation reaches its peer. Then the receiver indices of the responses are swapped.
        let held = net.take_held();
        for d in &held {
            net.deliver(d);
        }
        let mut responses: Vec<Datagram> = net.take_held();
        assert_eq!(responses.len(), 2);
        let (a, b) = (word(&responses[0].bytes, 8), word(&responses[1].bytes, 8));
        let public = net.nodes[0].public;
        responses[0].bytes[8..12].copy_from_slice(&b.to_le_bytes());
        responses[1].bytes[8..12].copy_from_slice(&a.to_le_bytes());
        for response in &mut responses {
            stamp_for(crypto, &public, &mut response.bytes);
            let bytes = response.bytes.clone();
            assert_refused_from(&mut net, 0, response.source, &bytes, DropReason::ResponseNotAuthentic);
        }
    }

    fn indices_are_random_and_of_32_bits(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let mut indices = std::collections::BTreeSet::new();
        let (mut ones, mut zeros) = (0, u32::MAX);
        for n in 0..64 {
            shake(&mut net, &raw, n, label(n));
            net.advance(millis(25));
            let index = word(&net.last(0, Kind::Response).bytes, 4);
            assert!(indices.insert(index), "{index} twice");
            ones |= index;
            zeros &= index;
        }
        assert_eq!((ones, zeros), (u32::MAX, 0), "every bit takes both values");
        // The indices are not consecutive, as those of a counter would be.
        let sorted: Vec<u32> = indices.into_iter().collect();
        let steps: std::collections::BTreeSet<u32> =
            sorted.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(steps.len() > 60);
    }

    fn an_index_in_use_is_not_given_again(crypto) {
        let mut net = Net::new(crypto, 3);
        for i in 1..3 {
            let peer = net.peer_update(i);
            net.update(0, peer);
        }
        net.cut();
        // The numbers are: jitter and index of the first initiation, then jitter of each
        // deadline. The second initiation draws an index that is in use.
        set_numbers(&net, 0, Numbers::Script(VecDeque::from(vec![0xabcd; 12])));
        net.ping(0, 1);
        net.ping(0, 2);
        let indices: Vec<u32> = net.log.iter().map(|d| word(&d.bytes, 4)).collect();
        assert_eq!(indices.len(), 2);
        assert_eq!(indices[0], 0xabcd);
        assert_ne!(indices[1], 0xabcd);

        // The same for the index of a session, unconfirmed or current.
        let (mut net, session, raw) = with_raw(crypto);
        let taken = session.remote_index;
        net.advance(secs(1));
        set_numbers(&net, 0, Numbers::Script(VecDeque::from(vec![taken; 6])));
        let next = shake(&mut net, &raw, 8, label(1));
        assert_ne!(next.remote_index, taken);
        set_numbers(&net, 0, Numbers::Script(VecDeque::from(vec![next.remote_index; 6])));
        net.advance(secs(1));
        let last = shake(&mut net, &raw, 9, label(2));
        assert!(![taken, next.remote_index].contains(&last.remote_index));
    }

    fn the_preshared_key_must_be_the_same(crypto) {
        for (ours, theirs, works) in [
            ([1; 32], [1; 32], true),
            ([1; 32], [2; 32], false),
            ([1; 32], [0; 32], false),
            ([0; 32], [1; 32], false),
        ] {
            let mut net = Net::pair(crypto);
            net.set_preshared_key(0, 1, ours);
            net.set_preshared_key(1, 0, theirs);
            net.ping(0, 1);
            assert_eq!(net.nodes[1].delivered.len(), usize::from(works));
            assert_eq!(net.nodes[0].count(DropReason::ResponseNotAuthentic), u64::from(!works));
        }
    }

    fn a_new_preshared_key_is_used_from_the_next_handshake_on(crypto) {
        let mut net = Net::connected(crypto);
        net.set_preshared_key(0, 1, [3; 32]);
        assert_eq!(net.ping(0, 1), Outcome::Sent, "the live session goes on");
        assert_eq!(net.nodes[1].delivered.len(), 2);
        net.advance_to_offset(secs(125));
        net.ping(0, 1);
        assert_eq!(net.nodes[0].count(DropReason::ResponseNotAuthentic), 1);
        net.set_preshared_key(1, 0, [3; 32]);
        net.advance_to_offset(secs(131));
        assert_eq!(net.session_age(0, 1).map(|age| age < secs(6)), Some(true));
        // After the key is removed on both sides, handshakes succeed as well.
        net.set_preshared_key(0, 1, [0; 32]);
        net.set_preshared_key(1, 0, [0; 32]);
        net.advance(secs(125));
        net.ping(0, 1);
        assert_eq!(net.session_age(0, 1), Some(secs(0)));
    }

    fn a_preshared_key_set_while_a_handshake_waits_counts(crypto) {
        let mut net = Net::pair(crypto);
        net.set_preshared_key(1, 0, [3; 32]);
        net.hold();
        net.ping(0, 1);
        net.set_preshared_key(0, 1, [3; 32]);
        net.mend();
        net.release();
        assert_eq!(net.nodes[1].delivered.len(), 1);
    }

    fn after_a_private_key_change_old_sessions_receive_and_none_sends(crypto) {
        let (mut net, previous, raw) = with_raw(crypto);
        net.advance(secs(1));
        let current = shake(&mut net, &raw, 8, label(1));
        net.inject(0, raw.address, &current.seal(0, &[]));
        let packet = ipv4(RAW_INNER, net.nodes[0].inner, b"x");
        let out = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        assert_eq!(net.send(0, &out), Outcome::Sent);

        net.set_private_key(0, Some(private_key(1234)), label(0));
        net.inject(0, raw.address, &previous.seal(1, &packet));
        net.inject(0, raw.address, &current.seal(1, &packet));
        assert_eq!(net.nodes[0].delivered.len(), 2, "what was on the way arrives");
        let mark = net.mark();
        // Rekey-Timeout does not delay the handshake with the new key.
        assert_eq!(net.send(0, &out), Outcome::Staged);
        assert_eq!(net.kinds(mark, 0), [Kind::Initiation]);
    }

    fn a_private_key_change_is_healed_by_the_next_packet(crypto) {
        let mut net = Net::connected(crypto);
        let old = net.nodes[0].public;
        net.set_private_key(0, Some(private_key(1234)), label(0));
        let mut remove = taupe_protocol::update::PeerUpdate::new(old);
        remove.remove = true;
        net.update(1, remove);
        let peer = net.peer_update(0);
        net.update(1, peer);
        net.ping(0, 1);
        assert_eq!(net.nodes[1].delivered.len(), 2);
        assert_eq!(net.ping(1, 0), Outcome::Sent);
        assert_eq!(net.nodes[0].delivered.len(), 1);
        let peer = net.nodes[1].public;
        let role = net.nodes[0].current(&peer).map(|session| session.role());
        assert_eq!(role, Some(Role::Initiator));
    }

    fn the_same_private_key_again_changes_nothing(crypto) {
        let mut net = Net::connected(crypto);
        let same = net.nodes[0].private.clone();
        net.set_private_key(0, Some(same), label(500));
        assert_eq!(net.ping(0, 1), Outcome::Sent);
    }

    fn a_response_to_the_old_private_key_is_refused(crypto) {
        let mut net = Net::pair(crypto);
        net.wire = Box::new(|d| if d.kind() == Kind::Response { Fate::Hold } else { Fate::Pass });
        net.ping(0, 1);
        let response = net.take_held().remove(0);
        net.set_private_key(0, Some(private_key(1234)), label(0));
        assert_refused_from(&mut net, 0, response.source, &response.bytes, DropReason::Mac1);
        // Not even with a mac1 for the new key.
        let mut forged = response.bytes.clone();
        stamp_for(crypto, &net.nodes[0].public, &mut forged);
        assert_refused_from(&mut net, 0, response.source, &forged, DropReason::UnknownHandshake);
    }

    fn what_waits_for_a_private_key_leaves_when_it_is_set(crypto) {
        let mut net = Net::pair(crypto);
        let private = net.nodes[0].private.clone();
        net.set_private_key(0, None, label(0));
        assert_eq!(net.ping(0, 1), Outcome::Staged);
        net.advance(secs(60));
        assert_eq!(net.mark(), 0);
        net.set_private_key(0, Some(private), label(0));
        assert_eq!(net.nodes[1].delivered.len(), 1);
    }

    fn what_waits_for_a_handshake_with_the_old_key_leaves_with_the_new(crypto) {
        let mut net = Net::new(crypto, 2);
        net.join(0, 1);
        let right = net.nodes[0].private.clone();
        net.set_private_key(0, Some(private_key(1234)), label(0));
        net.ping(0, 1);
        assert_eq!(net.nodes[1].count(DropReason::UnknownPeer), 1);
        net.advance(secs(1));
        net.set_private_key(0, Some(right), label(0));
        net.advance(secs(6));
        assert_eq!(net.nodes[1].delivered.len(), 1, "without a further packet");
    }

    fn without_a_private_key_nothing_is_begun_or_answered(crypto) {
        let mut net = Net::connected(crypto);
        net.set_private_key(0, None, label(0));
        let mark = net.mark();
        assert_eq!(net.ping(0, 1), Outcome::Staged);
        assert_eq!(net.kinds(mark, 0), []);
        let initiation = net.last(0, Kind::Initiation);
        assert_refused(&mut net, 0, &initiation.bytes, DropReason::NotReady);
        assert!(net.nodes[0].device.status().private_key.is_none());
    }

    fn keepalives_have_no_content(crypto) {
        let (mut net, session, raw) = with_raw(crypto);
        let packet = ipv4(RAW_INNER, net.nodes[0].inner, b"x");
        net.inject(0, raw.address, &session.seal(1, &packet));
        net.advance(secs(10));
        let keepalive = net.last(0, Kind::Data);
        assert_eq!(keepalive.bytes.len(), DATA_OVERHEAD);
        assert_eq!(session.open(&keepalive.bytes).map(|(_, plaintext)| plaintext), Some(vec![]));
    }
}
