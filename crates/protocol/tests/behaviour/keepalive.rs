//! Passive and persistent keepalives (whitepaper §6.5).

use taupe_protocol::DropReason;
use taupe_protocol::message::{DATA_OVERHEAD, Kind};
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::PeerUpdate;

use crate::common::random::Numbers;
use crate::common::{
    Datagram, NANO, Net, Outcome, label, millis, private_key, secs, set_numbers, shake,
};
use crate::each_backend;

each_backend! {
    fn received_data_is_answered_after_10_seconds_of_silence(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(30));
        let mark = net.mark();
        net.ping(0, 1);
        net.advance_to_offset(secs(40) - NANO);
        assert_eq!(net.keepalives(mark, 1), []);
        net.advance_to_offset(secs(40));
        assert_eq!(net.keepalives(mark, 1), [secs(40)]);
        let keepalive = net.last(1, Kind::Data);
        assert_eq!(keepalive.bytes.len(), DATA_OVERHEAD);
        net.advance_to_offset(secs(119));
        assert_eq!(net.keepalives(mark, 1), [secs(40)], "one is enough");
    }

    fn keepalives_are_not_answered(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(119));
        let log: Vec<_> = net.log.iter().map(Datagram::is_keepalive).collect();
        assert_eq!(log, [false, false, false, true], "handshake, data, keepalive");
    }

    fn keepalives_deliver_nothing(crypto) {
        let (mut net, session, raw) = crate::common::with_raw(crypto);
        let keepalives = [1, 2, 3, 4].map(|counter| session.seal(counter, &[]));
        // Two single messages, for both receive functions, and a batch.
        for keepalive in &keepalives[..2] {
            net.inject(0, raw.address, keepalive);
        }
        net.inject_batch(0, raw.address, &keepalives[2..].concat(), DATA_OVERHEAD);
        assert_eq!(net.nodes[0].delivered, Vec::<Vec<u8>>::new());
        assert_eq!(net.nodes[0].count(DropReason::InnerMalformed), 0);
        let received = net.nodes[0].device.status().peers[0].rx_bytes;
        assert_eq!(received, 148 + 5 * DATA_OVERHEAD as u64);
    }

    fn data_sent_meanwhile_makes_it_needless(crypto) {
        let mut net = Net::connected(crypto);
        let mark = net.mark();
        net.advance_to_offset(secs(10) - NANO);
        net.ping(1, 0);
        net.advance_to_offset(secs(119));
        assert_eq!(net.keepalives(mark, 1), []);
        assert_eq!(net.keepalives(mark, 0), [secs(20) - NANO], "that data is answered");
    }

    fn a_handshake_message_sent_meanwhile_makes_it_needless(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(119));
        net.ping(1, 0);
        net.advance_to_offset(secs(121));
        net.ping(0, 1);
        let mark = net.mark();
        net.advance_to_offset(secs(130));
        assert_eq!(net.keepalives(mark, 0), []);
    }

    fn a_response_sent_meanwhile_makes_it_needless(crypto) {
        let (mut net, session, raw) = crate::common::with_raw(crypto);
        let packet = crate::common::packets::ipv4(crate::common::RAW_INNER, net.nodes[0].inner, b"x");
        net.inject(0, raw.address, &session.seal(1, &packet));
        net.advance(secs(5));
        let mark = net.mark();
        shake(&mut net, &raw, 8, label(500));
        net.advance(secs(20));
        assert_eq!(net.kinds(mark, 0), [Kind::Response]);
    }

    fn data_received_while_one_is_due_leads_to_another(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(30));
        let mark = net.mark();
        net.ping(0, 1);
        net.advance_to_offset(secs(35));
        net.ping(0, 1);
        net.ping(0, 1);
        net.advance_to_offset(secs(50) - NANO);
        assert_eq!(net.keepalives(mark, 1), [secs(40)]);
        net.advance_to_offset(secs(119));
        assert_eq!(net.keepalives(mark, 1), [secs(40), secs(50)]);
    }

    fn an_inner_packet_that_is_dropped_is_answered_all_the_same(crypto) {
        let (mut net, session, raw) = crate::common::with_raw(crypto);
        let mark = net.mark();
        let foreign = crate::common::packets::ipv4(
            "10.99.0.1".parse().unwrap(),
            net.nodes[0].inner,
            b"x",
        );
        net.inject(0, raw.address, &session.seal(1, &foreign));
        net.advance_to_offset(secs(10));
        assert_eq!(net.keepalives(mark, 0), [secs(10)]);
    }

    fn a_replay_is_not_answered(crypto) {
        let (mut net, session, raw) = crate::common::with_raw(crypto);
        let packet = crate::common::packets::ipv4(crate::common::RAW_INNER, net.nodes[0].inner, b"x");
        let message = session.seal(1, &packet);
        net.inject(0, raw.address, &message);
        net.advance_to_offset(secs(20));
        let mark = net.mark();
        net.inject(0, raw.address, &message);
        net.advance_to_offset(secs(60));
        assert_eq!(net.keepalives(mark, 0), []);
    }

    fn a_batch_is_answered_once(crypto) {
        let (mut net, session, raw) = crate::common::with_raw(crypto);
        let packet = crate::common::packets::ipv4(crate::common::RAW_INNER, net.nodes[0].inner, b"x");
        let messages: Vec<_> = (1..=30).map(|n| session.seal(n, &packet)).collect();
        let mark = net.mark();
        net.inject_batch(0, raw.address, &messages.concat(), messages[0].len());
        assert_eq!(net.nodes[0].delivered.len(), 30);
        net.advance_to_offset(secs(60));
        assert_eq!(net.keepalives(mark, 0), [secs(10)]);
    }

    fn persistent_is_sent_as_soon_as_it_is_set(crypto) {
        let mut net = Net::pair(crypto);
        assert_eq!(net.mark(), 0);
        net.set_persistent_keepalive(0, 1, 25);
        assert_eq!(net.kinds(0, 0), [Kind::Initiation, Kind::Data]);
        assert_eq!(net.keepalives(0, 0), [secs(0)]);
        // 25 s after the last message sent or received.
        net.advance_to_offset(secs(25) - NANO);
        assert_eq!(net.keepalives(0, 0).len(), 1);
        net.advance_to_offset(secs(100));
        let expected = [secs(0), secs(25), secs(50), secs(75), secs(100)];
        assert_eq!(net.keepalives(0, 0), expected);
    }

    fn persistent_is_sent_as_soon_as_the_link_is_up(crypto) {
        let mut net = Net::pair(crypto);
        net.set_down(0);
        net.set_persistent_keepalive(0, 1, 25);
        net.advance_to_offset(secs(60));
        assert_eq!(net.mark(), 0, "down is down");
        net.set_up(0);
        assert_eq!(net.times(0, 0, Kind::Initiation), [secs(60)]);
        assert_eq!(net.keepalives(0, 0), [secs(60)]);
    }

    fn persistent_is_sent_as_soon_as_there_is_a_private_key(crypto) {
        let mut net = Net::pair(crypto);
        let private = net.nodes[0].private.clone();
        net.set_private_key(0, None, Tai64N::ZERO);
        net.set_persistent_keepalive(0, 1, 25);
        net.advance_to_offset(secs(60));
        assert_eq!(net.mark(), 0, "no key, no word");
        net.set_private_key(0, Some(private), Tai64N::ZERO);
        assert_eq!(net.times(0, 0, Kind::Initiation), [secs(60)]);
        assert_eq!(net.keepalives(0, 0), [secs(60)]);
    }

    fn persistent_is_not_sent_because_of_another_private_key(crypto) {
        let mut net = Net::connected(crypto);
        net.set_persistent_keepalive(0, 1, 25);
        let mark = net.mark();
        net.set_private_key(0, Some(private_key(1234)), Tai64N::ZERO);
        assert_eq!(net.kinds(mark, 0), []);
        // The peer is configured with the key a moment later. No earlier initiation delays the
        // handshake.
        net.advance(millis(10));
        let peer = net.peer_update(0);
        net.update(1, peer);
        assert_eq!(net.ping(0, 1), Outcome::Staged);
        assert_eq!(net.nodes[1].delivered.len(), 2);
        // Without a packet, the next keepalive causes the handshake.
        net.set_private_key(0, Some(private_key(1235)), Tai64N::ZERO);
        let peer = net.peer_update(0);
        net.update(1, peer);
        let mark = net.mark();
        net.advance(secs(50));
        assert_eq!(net.times(mark, 0, Kind::Initiation).len(), 1);
        assert!(net.session_age(0, 1).is_some_and(|age| age <= secs(25)));
    }

    fn persistent_is_sent_as_soon_as_there_is_an_endpoint(crypto) {
        let mut net = Net::pair(crypto);
        let key = net.nodes[1].public;
        let mut remove = PeerUpdate::new(key);
        remove.remove = true;
        net.update(0, remove);
        net.set_persistent_keepalive(0, 1, 25);
        net.advance_to_offset(secs(60));
        assert_eq!(net.mark(), 0);
        let update = net.peer_update(1);
        net.update(0, update);
        assert_eq!(net.keepalives(0, 0), [secs(60)]);
    }

    fn persistent_is_sent_once_more_when_switched_off_and_on(crypto) {
        let mut net = Net::pair(crypto);
        net.set_persistent_keepalive(0, 1, 25);
        net.advance_to_offset(secs(3));
        net.set_persistent_keepalive(0, 1, 0);
        net.advance_to_offset(secs(100));
        assert_eq!(net.keepalives(0, 0), [secs(0)], "off is off");
        net.set_persistent_keepalive(0, 1, 25);
        assert_eq!(net.keepalives(0, 0), [secs(0), secs(100)]);
        net.set_persistent_keepalive(0, 1, 30);
        assert_eq!(net.keepalives(0, 0).len(), 2, "it was on already");
    }

    fn persistent_of_one_second_and_of_the_greatest_interval(crypto) {
        let mut net = Net::pair(crypto);
        net.set_persistent_keepalive(0, 1, 1);
        net.advance_to_offset(secs(10));
        assert_eq!(net.keepalives(0, 0).len(), 11);
        let mut net = Net::pair(crypto);
        net.set_persistent_keepalive(0, 1, u16::MAX);
        net.advance_to_offset(secs(65_535) - NANO);
        assert_eq!(net.times(0, 0, Kind::Initiation), [secs(0)]);
        net.advance(secs(1));
        let times = net.times(0, 0, Kind::Initiation);
        assert_eq!(times, [secs(0), secs(65_535)], "the session is gone by then");
    }

    fn any_traffic_postpones_the_persistent_one(crypto) {
        for sender in [0, 1] {
            let mut net = Net::pair(crypto);
            net.set_persistent_keepalive(0, 1, 25);
            net.advance_to_offset(secs(20));
            net.ping(sender, 1 - sender);
            // A passive keepalive answers at 30 s.
            net.advance_to_offset(secs(55) - NANO);
            let before: Vec<_> = net.keepalives(0, 0);
            assert!(before.iter().all(|at| *at <= secs(30)), "{before:?}");
            net.advance_to_offset(secs(55));
            assert_eq!(net.keepalives(0, 0).last(), Some(&secs(55)));
        }
    }

    fn unauthenticated_traffic_does_not_postpone_it(crypto) {
        let mut net = Net::pair(crypto);
        net.set_persistent_keepalive(0, 1, 25);
        net.advance_to_offset(secs(20));
        let key = net.nodes[1].public;
        let index = net.nodes[0].current(&key).expect("a session").local_index();
        let mut forged = vec![0xee; 64];
        taupe_protocol::testing::write_data_header(&mut forged, index, 9);
        net.inject(0, crate::common::address(1), &forged);
        net.advance_to_offset(secs(25));
        assert_eq!(net.keepalives(0, 0), [secs(0), secs(25)]);
    }

    fn the_persistent_one_goes_on_after_giving_up(crypto) {
        let mut net = Net::pair(crypto);
        set_numbers(&net, 0, Numbers::Low(0));
        net.cut();
        net.set_persistent_keepalive(0, 1, 600);
        net.advance_to_offset(secs(599));
        let first = net.times(0, 0, Kind::Initiation);
        assert_eq!(first.len(), 20);
        net.mend();
        // 600 s after the last message sent.
        net.advance_to_offset(secs(700));
        let next = net.times(0, 0, Kind::Initiation)[20];
        assert!(next.abs_diff(secs(695)) < millis(1), "{next:?}");
        assert_eq!(net.keepalives(0, 0).len(), 1, "and it comes through");
    }

    fn a_keepalive_without_session_asks_for_one(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(175));
        net.cut_kind(Kind::Initiation);
        net.ping(1, 0);
        let mark = net.mark();
        // Due at 185 s, when the session has expired.
        net.mend();
        net.advance_to_offset(secs(190));
        assert!(!net.times(mark, 0, Kind::Initiation).is_empty());
        assert!(net.session_age(0, 1).expect("renewed") < secs(11));
    }

    fn an_answer_covers_the_other_one_too(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(30));
        net.ping(0, 1);
        net.advance_to_offset(secs(32));
        net.ping(0, 1);
        net.advance_to_offset(secs(33));
        // This packet answers both.
        net.ping(1, 0);
        let mark = net.mark();
        net.advance_to_offset(secs(60));
        net.ping(0, 1);
        net.advance_to_offset(secs(110));
        assert_eq!(net.keepalives(mark, 1), [secs(70)], "one packet, one answer");
    }
}
