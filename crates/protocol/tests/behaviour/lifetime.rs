//! Lifetime of sessions: Rekey-After-Time, Reject-After-Time, and erasure (whitepaper §6.1–6.3,
//! §6.5).

use std::time::Duration;

use taupe_protocol::message::Kind;
use taupe_protocol::{DropReason, Timer};

use crate::common::random::Numbers;
use crate::common::{Fate, NANO, Net, Outcome, START, millis, secs, set_numbers};
use crate::each_backend;

each_backend! {
    fn initiator_rekeys_on_send_from_120_seconds(crypto) {
        for (age, rekeys) in [
            (secs(120) - NANO, false),
            (secs(120), true),
            (secs(120) + NANO, true),
        ] {
            let mut net = Net::connected(crypto);
            net.advance_to_offset(age);
            let mark = net.mark();
            assert_eq!(net.ping(0, 1), Outcome::Sent, "the old session still sends");
            let expected: &[Kind] = if rekeys {
                &[Kind::Data, Kind::Initiation, Kind::Data]
            } else {
                &[Kind::Data]
            };
            assert_eq!(net.kinds(mark, 0), expected, "at {age:?}");
            let after = net.session_age(0, 1);
            assert_eq!(after, Some(if rekeys { secs(0) } else { age }));
        }
    }

    fn the_age_of_a_session_counts_from_its_response(crypto) {
        for (age, rekeys) in [(secs(120) - NANO, false), (secs(120), true)] {
            let mut net = Net::pair(crypto);
            net.wire = Box::new(|d| if d.kind() == Kind::Response { Fate::Hold } else { Fate::Pass });
            net.ping(0, 1);
            net.advance(secs(3));
            net.mend();
            net.release();
            assert_eq!(net.session_age(0, 1), Some(secs(0)));
            net.advance_to_offset(secs(3) + age);
            let mark = net.mark();
            net.ping(0, 1);
            let initiations = net.times(mark, 0, Kind::Initiation);
            assert_eq!(initiations.len(), usize::from(rekeys), "at {age:?}");
        }
    }

    fn responder_does_not_rekey_on_send(crypto) {
        for age in [secs(120), secs(150), secs(180) - NANO] {
            let mut net = Net::connected(crypto);
            net.advance_to_offset(age);
            let mark = net.mark();
            net.cut();
            assert_eq!(net.ping(1, 0), Outcome::Sent);
            assert_eq!(net.kinds(mark, 1), [Kind::Data], "at {age:?}");
        }
    }

    fn initiator_rekeys_on_receive_from_165_seconds(crypto) {
        for (age, rekeys) in [
            (secs(165) - NANO, false),
            (secs(165), true),
            (secs(165) + NANO, true),
        ] {
            let mut net = Net::connected(crypto);
            net.advance_to_offset(age);
            let mark = net.mark();
            net.ping(1, 0);
            let initiations = net.times(mark, 0, Kind::Initiation);
            assert_eq!(initiations.len(), usize::from(rekeys), "at {age:?}");
            let after = net.session_age(0, 1);
            assert_eq!(after, Some(if rekeys { secs(0) } else { age }));
        }
    }

    fn responder_does_not_rekey_on_receive(crypto) {
        for age in [secs(165), secs(180) - NANO] {
            let mut net = Net::connected(crypto);
            net.advance_to_offset(age);
            let mark = net.mark();
            net.cut_kind(Kind::Initiation);
            net.ping(0, 1);
            assert_eq!(net.nodes[1].delivered.len(), 2);
            assert_eq!(net.kinds(mark, 1), [], "at {age:?}");
        }
    }

    fn rekey_on_receive_happens_once_per_session(crypto) {
        let mut net = Net::connected(crypto);
        set_numbers(&net, 0, Numbers::High(0));
        net.cut_kind(Kind::Initiation);
        net.advance_to_offset(secs(165));
        let mark = net.mark();
        net.ping(1, 0);
        // Rekey-Timeout has passed, and the retransmission 333 ms later is not due yet: a second
        // rekey on receive would be sent now.
        net.advance_to_offset(secs(170) + millis(100));
        net.ping(1, 0);
        assert_eq!(net.times(mark, 0, Kind::Initiation), [secs(165)]);
        net.advance_to_offset(secs(170) + millis(333));
        assert_eq!(net.times(mark, 0, Kind::Initiation), [secs(165)]);
        net.advance_to_offset(secs(170) + millis(334));
        assert_eq!(net.times(mark, 0, Kind::Initiation).len(), 2, "the retransmission");
    }

    fn rekey_on_receive_happens_again_for_the_next_session(crypto) {
        let mut net = Net::connected(crypto);
        for round in 1..=3 {
            net.advance(secs(165) - NANO);
            let mark = net.mark();
            net.ping(1, 0);
            assert_eq!(net.times(mark, 0, Kind::Initiation), [], "round {round}");
            net.advance(NANO);
            net.ping(1, 0);
            assert_eq!(net.times(mark, 0, Kind::Initiation).len(), 1, "round {round}");
            assert_eq!(net.session_age(0, 1), Some(secs(0)));
        }
    }

    fn no_session_sends_from_180_seconds(crypto) {
        for sender in [0, 1] {
            for (age, sent) in [
                (secs(180) - NANO, Outcome::Sent),
                (secs(180), Outcome::Staged),
                (secs(180) + NANO, Outcome::Staged),
            ] {
                let mut net = Net::connected(crypto);
                net.advance_to_offset(age);
                net.cut();
                let mark = net.mark();
                assert_eq!(net.ping(sender, 1 - sender), sent, "node {sender} at {age:?}");
                let data = net.times(mark, sender, Kind::Data);
                assert_eq!(data.len(), usize::from(sent == Outcome::Sent));
            }
        }
    }

    fn no_session_receives_from_180_seconds(crypto) {
        for receiver in [0, 1] {
            for (age, delivered) in [
                (secs(180) - NANO, true),
                (secs(180), false),
                (secs(180) + NANO, false),
            ] {
                let mut net = Net::connected(crypto);
                net.advance_to_offset(secs(100));
                net.hold();
                assert_eq!(net.ping(1 - receiver, receiver), Outcome::Sent);
                let late = net.take_held();
                net.cut();
                net.advance_to_offset(age);
                let before = net.nodes[receiver].delivered.len();
                net.deliver(&late[0]);
                let node = &net.nodes[receiver];
                assert_eq!(node.delivered.len() - before, usize::from(delivered), "at {age:?}");
                assert_eq!(node.count(DropReason::ExpiredSession), u64::from(!delivered));
            }
        }
    }

    fn keys_are_erased_at_540_seconds(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(540) - NANO);
        for node in &net.nodes {
            assert_eq!(node.device.sessions().len(), 1);
            let deadline = node.device.next_deadline();
            assert_eq!(deadline, Some((START + secs(540), Timer::EraseKeys)));
        }
        net.advance(NANO);
        for i in [0, 1] {
            assert_eq!(net.nodes[i].device.sessions().len(), 0);
            assert_eq!(net.session_age(i, 1 - i), None);
            assert_eq!(net.nodes[i].device.next_deadline(), None, "nothing is left to do");
        }
    }

    fn each_session_is_erased_at_its_own_age(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(130));
        net.ping(0, 1);
        assert_eq!(net.nodes[0].device.sessions().len(), 2, "previous and current");
        for (at, left) in [
            (secs(540) - NANO, 2),
            (secs(540), 1),
            (secs(670) - NANO, 1),
            (secs(670), 0),
        ] {
            net.advance_to_offset(at);
            for node in &net.nodes {
                assert_eq!(node.device.sessions().len(), left, "at {at:?}");
            }
        }
    }

    fn an_unconfirmed_session_is_erased_too(crypto) {
        let mut net = Net::pair(crypto);
        net.cut_kind(Kind::Data);
        net.ping(0, 1);
        net.cut();
        net.advance_to_offset(secs(540) - NANO);
        assert_eq!(net.nodes[1].device.sessions().len(), 1);
        net.advance(NANO);
        assert_eq!(net.nodes[1].device.sessions().len(), 0);
    }

    fn going_down_erases_everything_at_once(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(60));
        net.hold();
        net.ping(0, 1);
        net.set_down(1);
        assert_eq!(net.nodes[1].device.sessions().len(), 0);
        assert_eq!(net.nodes[1].device.next_deadline(), None);
        net.release();
        assert_eq!(net.nodes[1].delivered.len(), 1, "only the first, long ago");
        assert_eq!(net.nodes[1].count(DropReason::UnknownSession), 1);
        assert_eq!(net.ping(1, 0), Outcome::Staged);
        let mark = net.mark();
        net.advance_to_offset(secs(200));
        assert_eq!(net.kinds(mark, 1), [], "a device that is down is silent");
    }

    fn a_device_that_is_down_answers_no_handshake(crypto) {
        let mut net = Net::pair(crypto);
        net.set_down(1);
        let mark = net.mark();
        net.ping(0, 1);
        assert_eq!(net.kinds(mark, 0), [Kind::Initiation]);
        assert_eq!(net.kinds(mark, 1), []);
        assert_eq!(net.nodes[1].count(DropReason::NotReady), 1);
        net.set_up(1);
        net.advance_to_offset(secs(6));
        assert_eq!(net.nodes[1].delivered.len(), 1, "up again, it answers the next");
    }

    fn coming_up_again_needs_a_new_handshake_at_once(crypto) {
        let mut net = Net::connected(crypto);
        net.set_down(0);
        net.set_up(0);
        let mark = net.mark();
        // Rekey-Timeout does not continue from before.
        net.advance(millis(21));
        net.ping(0, 1);
        assert_eq!(net.kinds(mark, 0), [Kind::Initiation, Kind::Data]);
        assert_eq!(net.nodes[1].delivered.len(), 2);
    }

    fn an_unanswered_packet_leads_to_a_handshake_after_15_seconds(crypto) {
        for (numbers, jitter_at_least, jitter_below) in [
            (Numbers::Low(0), Duration::ZERO, NANO * 100),
            (Numbers::High(0), millis(333), millis(334)),
        ] {
            let mut net = Net::connected(crypto);
            set_numbers(&net, 0, numbers);
            // The jitter of a send was drawn when a deadline was last set.
            net.advance_to_offset(secs(30));
            net.ping(0, 1);
            net.advance_to_offset(secs(60));
            net.cut();
            let mark = net.mark();
            net.ping(0, 1);
            net.advance_to_offset(secs(65));
            net.ping(0, 1);
            net.advance_to_offset(secs(75) + jitter_at_least - NANO);
            assert_eq!(net.times(mark, 0, Kind::Initiation), []);
            net.advance_to_offset(secs(75) + jitter_below);
            assert_eq!(net.times(mark, 0, Kind::Initiation).len(), 1);
        }
    }

    fn a_dead_peer_is_tried_every_5_seconds_until_given_up(crypto) {
        let mut net = Net::connected(crypto);
        set_numbers(&net, 0, Numbers::Low(0));
        net.advance_to_offset(secs(30));
        net.ping(0, 1);
        net.advance_to_offset(secs(60));
        net.cut();
        let mark = net.mark();
        net.ping(0, 1);
        net.advance_to_offset(secs(1000));
        let times = net.times(mark, 0, Kind::Initiation);
        assert_eq!(times.len(), 20);
        for (i, at) in times.iter().enumerate() {
            let ideal = secs(75 + 5 * i as u64);
            assert!(at.abs_diff(ideal) < millis(1), "initiation {i} at {at:?}");
        }
    }

    fn any_authentic_answer_postpones_the_dead_peer_handshake(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(60));
        let mark = net.mark();
        // The peer's keepalive, 10 s later, counts as an answer.
        net.ping(0, 1);
        net.advance_to_offset(secs(119));
        assert_eq!(net.kinds(mark, 0), [Kind::Data]);
        assert_eq!(net.times(mark, 1, Kind::Data), [secs(70)]);
    }

    fn an_unauthenticated_answer_does_not_postpone_it(crypto) {
        let mut net = Net::connected(crypto);
        net.advance_to_offset(secs(60));
        let mark = net.mark();
        // Every keepalive of the peer arrives with a changed bit.
        net.wire = Box::new(|d| {
            if d.from == Some(1) && d.kind() == Kind::Data {
                *d.bytes.last_mut().expect("not empty") ^= 1;
            }
            Fate::Pass
        });
        net.ping(0, 1);
        net.advance_to_offset(secs(76));
        assert_eq!(net.nodes[0].count(DropReason::NotAuthentic), 1);
        assert_eq!(net.times(mark, 0, Kind::Initiation).len(), 1);
    }

    fn a_boot_clock_that_goes_back_is_survived(crypto) {
        let mut net = Net::connected(crypto);
        net.set_persistent_keepalive(0, 1, 25);
        net.advance_to_offset(secs(50));
        for back in [secs(20), secs(3000), secs(86_000)] {
            net.now = net.now - back;
            let before = net.nodes.iter().map(|n| n.delivered.len()).sum::<usize>();
            net.ping(0, 1);
            net.ping(1, 0);
            let after = net.nodes.iter().map(|n| n.delivered.len()).sum::<usize>();
            assert_eq!(after - before, 2, "{back:?} ago");
        }
        net.advance_to_offset(secs(400));
        net.ping(0, 1);
        assert_eq!(net.session_age(0, 1).map(|age| age < secs(180)), Some(true));
    }

    fn zero_is_a_time_of_the_boot_clock_like_any_other(crypto) {
        let mut net = Net::just_booted(crypto, 2);
        assert_eq!(net.ping(0, 1), Outcome::Staged);
        assert_eq!(net.kinds(0, 1), [Kind::Response], "no load before any message");
        net.advance(secs(10) - NANO);
        assert_eq!(net.kinds(0, 1), [Kind::Response]);
        net.advance(NANO);
        assert_eq!(net.kinds(0, 1), [Kind::Response, Kind::Data], "the answer to data of time zero");
        net.advance(secs(110) - NANO);
        let mark = net.mark();
        net.ping(0, 1);
        assert_eq!(net.kinds(mark, 0), [Kind::Data], "the session is not yet 120 s old");
        net.advance(NANO);
        net.ping(0, 1);
        assert_eq!(net.session_age(0, 1), Some(secs(0)));

        // An initiation sent at zero delays the next one, and one accepted at zero too.
        let mut net = Net::just_booted(crypto, 2);
        net.cut();
        net.ping(0, 1);
        net.advance(secs(5) - NANO);
        net.ping(0, 1);
        assert_eq!(net.kinds(0, 0), [Kind::Initiation]);
        net.advance(millis(334));
        assert_eq!(net.kinds(0, 0), [Kind::Initiation; 2]);
        let mut net = Net::just_booted(crypto, 2);
        net.ping(0, 1);
        net.advance(millis(20) - NANO);
        net.set_down(0);
        net.set_up(0);
        net.ping(0, 1);
        assert_eq!(net.nodes[1].count(DropReason::InitiationFlood), 1);

        // Load at zero lasts a second.
        let mut net = Net::just_booted(crypto, 4);
        net.nodes[0].backlog = 512;
        net.ping(1, 0);
        net.nodes[0].backlog = 0;
        net.advance(secs(1) - NANO);
        net.ping(2, 0);
        net.advance(NANO);
        net.ping(3, 0);
        assert_eq!(net.kinds(0, 0), [Kind::CookieReply, Kind::CookieReply, Kind::Response]);
    }

    fn after_a_long_sleep_everything_is_due_at_once(crypto) {
        let mut net = Net::connected(crypto);
        net.set_persistent_keepalive(0, 1, 25);
        net.advance_to_offset(secs(50));
        net.ping(0, 1);
        let mark = net.mark();
        // The device is not called for a day.
        net.now += secs(86_400);
        net.advance(secs(0));
        assert_eq!(net.times(mark, 0, Kind::Initiation).len(), 1, "one, not thousands");
        assert_eq!(net.session_age(0, 1), Some(secs(0)), "and it works");
        assert_eq!(net.nodes[0].device.sessions().len(), 1, "what is old is erased");
    }

    fn a_keepalive_expects_no_answer(crypto) {
        let mut net = Net::connected(crypto);
        let mark = net.mark();
        net.cut_from(0);
        net.advance_to_offset(secs(100));
        assert_eq!(net.kinds(mark, 1), [Kind::Data], "the passive keepalive alone");
    }
}
