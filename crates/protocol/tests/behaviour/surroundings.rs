//! Suspend, and changes of network.

use taupe_protocol::limits::NETWORK_CHANGE_REKEY_TIMEOUT;
use taupe_protocol::message::Kind;

use crate::common::random::Numbers;
use crate::common::{NANO, Net, Outcome, millis, secs, set_numbers};
use crate::each_backend;

fn awake(net: &mut Net, at: usize) {
    let now = net.now_at(at);
    net.nodes[at].device.handle_resume(now);
    net.run();
}

fn change_network(net: &mut Net, at: usize) {
    let now = net.now_at(at);
    net.nodes[at].device.handle_network_change(now);
    net.run();
}

each_backend! {
    fn who_has_slept_shakes_hands_at_once(crypto) {
        let mut net = Net::connected(crypto);
        net.advance(secs(30));
        let mark = net.mark();
        awake(&mut net, 0);
        assert_eq!(net.times(mark, 0, Kind::Initiation), [secs(30)]);
        assert_eq!(net.session_age(0, 1), Some(secs(0)));
        // The other side, which did not initiate the session, leaves the handshake to this side.
        let mark = net.mark();
        awake(&mut net, 1);
        assert_eq!(net.kinds(mark, 1), []);
        assert_eq!(net.ping(1, 0), Outcome::Sent);
    }

    fn one_with_a_persistent_keepalive_does_without_a_session(crypto) {
        let mut net = Net::pair(crypto);
        awake(&mut net, 0);
        assert_eq!(net.kinds(0, 0), [], "nobody is talked to");
        net.cut();
        net.set_persistent_keepalive(0, 1, 25);
        net.advance(secs(200));
        net.mend();
        let mark = net.mark();
        awake(&mut net, 0);
        assert_eq!(net.times(mark, 0, Kind::Initiation).len(), 1);
        assert_eq!(net.session_age(0, 1), Some(secs(0)));
    }

    fn a_device_that_is_down_sleeps_on(crypto) {
        let mut net = Net::connected(crypto);
        net.set_down(0);
        let mark = net.mark();
        awake(&mut net, 0);
        change_network(&mut net, 0);
        assert_eq!(net.kinds(mark, 0), []);
    }

    fn what_was_sent_in_another_network_is_sent_again_at_once(crypto) {
        let mut net = Net::pair(crypto);
        set_numbers(&net, 0, Numbers::Low(0));
        net.cut();
        net.ping(0, 1);
        net.advance(secs(2));
        net.mend();
        change_network(&mut net, 0);
        assert_eq!(net.times(0, 0, Kind::Initiation), [secs(0), secs(2)]);
        assert_eq!(net.session_age(0, 1), Some(secs(0)));
        // Without an unanswered initiation, nothing happens.
        let mark = net.mark();
        change_network(&mut net, 0);
        assert_eq!(net.kinds(mark, 0), []);
    }

    fn changes_in_quick_succession_make_one_a_second(crypto) {
        let mut net = Net::pair(crypto);
        set_numbers(&net, 0, Numbers::Low(0));
        net.cut();
        net.ping(0, 1);
        for _ in 0..25 {
            change_network(&mut net, 0);
            net.advance(millis(100));
        }
        let pause = NETWORK_CHANGE_REKEY_TIMEOUT;
        let expected = [secs(0), pause, pause * 2];
        assert_eq!(net.times(0, 0, Kind::Initiation), expected);
        net.advance_to_offset(pause * 3 - NANO);
        assert_eq!(net.times(0, 0, Kind::Initiation).len(), 3);
        net.advance_to_offset(pause * 3);
        assert_eq!(net.times(0, 0, Kind::Initiation).len(), 4);
        // Then retries continue at the normal rate for the normal time: the earlier ones did not
        // count.
        let mark = net.mark();
        net.advance_to_offset(secs(300));
        let times = net.times(mark, 0, Kind::Initiation);
        assert_eq!(times.len(), 19, "{times:?}");
        assert!(times[0] >= pause * 3 + secs(5));
    }

    fn waking_again_makes_no_second_handshake(crypto) {
        let mut net = Net::connected(crypto);
        net.advance(secs(30));
        let mark = net.mark();
        awake(&mut net, 0);
        awake(&mut net, 0);
        net.advance(millis(999));
        assert_eq!(net.times(mark, 0, Kind::Initiation).len(), 1);
    }
}
