//! Hybrid handshakes under load: who needs a cookie, and whose cookie replies are accepted.

use taupe_protocol::DropReason;
use taupe_protocol::hybrid::Suite;
use taupe_protocol::message::Kind;
use taupe_protocol::update::PostQuantum;

use super::{assert_works, lengths};
use crate::common::hybrid::{Thief, public, seed};
use crate::common::{Fate, Net, label, millis, secs, stranger};
use crate::each_backend;

each_backend! {
    fn under_load_parts_need_a_cookie(crypto) {
        for suite in Suite::ALL {
            let mut net = Net::hybrid_pair(crypto, suite);
            net.nodes[1].backlog = 512;
            net.ping(0, 1);
            let kinds = net.kinds(0, 1);
            assert_eq!(kinds, vec![Kind::CookieReply; lengths(suite).len() / 2], "one for each part");
            assert!(net.nodes[1].device.sessions().is_empty());
            net.advance_to_offset(millis(250));
            assert_works(&mut net, suite);
        }
    }

    fn prefer_stays_with_who_has_a_cookie_for_it(crypto) {
        let suite = Suite::Hybrid768;
        let mut net = Net::hybrid_pair(crypto, suite);
        let key = public(crypto, 1, suite);
        net.set_hybrid(0, 1, key, Some(PostQuantum::Prefer));
        net.nodes[1].backlog = 512;
        // The third of four initiations is answered with a cookie; only the fourth can use it.
        let start = net.now;
        net.wire = Box::new(move |d| {
            let cookie = d.bytes[d.bytes.len() - 16..] != [0; 16];
            let passes = match d.at.since(start).as_secs() {
                0..9 => false,
                9..15 => !cookie,
                _ => true,
            };
            if d.kind() != Kind::HybridInitiation || passes {
                Fate::Pass
            } else {
                Fate::Drop
            }
        });
        net.ping(0, 1);
        net.advance_to_offset(secs(18));
        assert!(net.kinds(0, 1).contains(&Kind::CookieReply));
        assert!(net.kinds(0, 0).iter().all(|kind| *kind != Kind::Initiation));
        assert_works(&mut net, suite);
    }

    fn two_cookies_for_one_try_are_one(crypto) {
        let suite = Suite::Hybrid768;
        let mut net = Net::pair(crypto);
        net.set_seed(0, Some(seed(0)));
        net.set_hybrid(0, 1, public(crypto, 1, suite), Some(PostQuantum::Prefer));
        net.ping(0, 1);
        net.advance_to_offset(secs(18));
        assert_eq!(net.suite(0, 1), Some(None), "so that ordinary ones begin");
        net.advance_to_offset(secs(600));
        net.set_seed(1, Some(seed(1)));
        net.set_hybrid(1, 0, public(crypto, 0, suite), None);
        net.nodes[1].backlog = 512;
        net.wire = Box::new(|d| match d.kind() {
            Kind::CookieReply => Fate::Hold,
            _ => Fate::Pass,
        });
        let mark = net.mark();
        net.ping(0, 1);
        while !net.kinds(mark, 0).contains(&Kind::HybridInitiation) {
            net.advance(millis(10));
        }
        let of_first = net.take_held().pop().expect("a reply");
        net.advance(millis(260));
        let of_second = net.take_held().pop().expect("a reply to what is sent again");
        net.deliver(&of_first);
        // Initiations with the cookie are lost, now and in the next attempt.
        net.cut_kind(Kind::HybridInitiation);
        net.advance(millis(300));
        net.deliver(&of_second);
        let mark = net.mark();
        net.advance(secs(6));
        net.mend();
        net.advance(secs(5));
        assert!(!net.kinds(mark, 0).contains(&Kind::Initiation));
        assert_works(&mut net, suite);
        assert_eq!(net.nodes[0].count(DropReason::CookieRefused), 0);
    }

    fn under_load_a_response_needs_no_cookie(crypto) {
        for suite in Suite::ALL {
            let mut net = Net::hybrid_pair(crypto, suite);
            net.nodes[0].backlog = 512;
            net.ping(0, 1);
            assert_works(&mut net, suite);
            assert!(net.log.iter().all(|d| d.kind() != Kind::CookieReply));
        }
    }

    fn responses_to_a_thief_do_not_make_deaf_to_cookies(crypto) {
        let suite = Suite::Hybrid768;
        let mut net = Net::hybrid_pair(crypto, suite);
        net.nodes[1].backlog = 512;
        net.wire = Box::new(|d| match d.kind() {
            Kind::CookieReply => Fate::Hold,
            _ => Fate::Pass,
        });
        net.ping(0, 1);
        // Node 0 has sent an initiation and waits. Meanwhile it responds to an attacker that
        // claims to be node 1.
        let mut thief = Thief::new(&net, 1, 0, suite);
        let begun = thief.begin(7, label(1));
        let mark = net.mark();
        thief.send(&mut net, 0, stranger(), &begun);
        assert_eq!(net.since(mark, 0).len(), 2, "it has answered");
        net.mend();
        net.release();
        assert_eq!(net.nodes[0].count(DropReason::CookieRefused), 1, "of two, one is used");
        net.advance_to_offset(millis(250));
        assert_works(&mut net, suite);
    }

    fn a_cookie_for_a_response_is_refused(crypto) {
        let suite = Suite::Hybrid768;
        let mut net = Net::hybrid_pair(crypto, suite);
        net.nodes[1].backlog = 512;
        net.ping(0, 1);
        // Node 0 has a cookie now. The attacker makes it respond, and answers the response with a
        // cookie reply of its own.
        let mut thief = Thief::new(&net, 1, 0, suite);
        let begun = thief.begin(7, label(1));
        let mark = net.mark();
        thief.send(&mut net, 0, stranger(), &begun);
        let answers = net.since(mark, 0);
        for answer in &answers {
            let reply = thief.cookie_reply(&answer.bytes);
            net.inject(0, stranger(), &reply);
        }
        assert_eq!(net.nodes[0].count(DropReason::CookieRefused), 3, "one is used");
        net.advance_to_offset(millis(250));
        assert_works(&mut net, suite);
    }
}
