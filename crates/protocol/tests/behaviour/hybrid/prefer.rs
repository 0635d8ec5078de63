//! Policy `prefer`: hybrid handshakes with peers that support them, ordinary ones with peers that
//! never did.

use taupe_protocol::hybrid::Suite;
use taupe_protocol::message::Kind;
use taupe_protocol::update::{PeerUpdate, PostQuantum};
use taupe_protocol::{DropReason, Timer};

use super::{assert_works, pinned};
use crate::common::hybrid::{public, seed};
use crate::common::{Net, secs};
use crate::each_backend;

each_backend! {
    fn prefer_turns_to_ordinary_handshakes_after_three_that_nobody_answers(crypto) {
        let mut net = Net::pair(crypto);
        net.set_seed(0, Some(seed(0)));
        let key = public(crypto, 1, Suite::Hybrid768);
        net.set_hybrid(0, 1, key, Some(PostQuantum::Prefer));
        net.ping(0, 1);
        net.advance_to_offset(secs(14));
        assert!(net.kinds(0, 0).iter().all(|kind| *kind == Kind::HybridInitiation));
        net.advance_to_offset(secs(17));
        assert_eq!(net.suite(0, 1), Some(None));
        assert_eq!(net.nodes[1].delivered.len(), 1);
        assert!(net.nodes[0].pins.is_empty());
        let handshakes: Vec<_> = net
            .fired
            .iter()
            .filter(|(_, node, reason)| *node == 0 && *reason == Timer::Retransmit)
            .collect();
        assert_eq!(handshakes.len(), 3);
        // Hybrid handshakes are tried again when the session is renewed, while the old session
        // still carries packets.
        let mark = net.mark();
        for second in 18..200 {
            net.advance_to_offset(secs(second));
            net.ping(0, 1);
        }
        assert!(net.kinds(mark, 0).contains(&Kind::HybridInitiation));
        assert_eq!(net.nodes[1].delivered.len(), 183, "and nothing was lost meanwhile");
    }

    fn prefer_is_require_once_a_hybrid_handshake_has_succeeded(crypto) {
        let mut net = pinned(crypto);
        for (x, y) in [(0, 1), (1, 0)] {
            assert_eq!(net.nodes[x].pins, [(net.nodes[y].public, true)], "either role");
            assert!(net.nodes[x].device.status().peers[0].pq_pinned);
        }
        // The peer has lost its keys, or an attacker drops hybrid messages.
        net.set_hybrid(1, 0, None, Some(PostQuantum::Off));
        let mark = net.mark();
        net.advance(secs(200));
        net.ping(0, 1);
        net.ping(1, 0);
        net.advance(secs(100));
        assert!(net.kinds(mark, 0).iter().all(|kind| *kind != Kind::Initiation));
        let key = net.nodes[1].public;
        assert!(!net.nodes[0].peer(&key).has_session(net.now));
        assert!(net.nodes[0].count(DropReason::PostQuantumRequired) > 0);
        // Only `off` removes the stored fact.
        net.set_hybrid(0, 1, None, Some(PostQuantum::Off));
        let last = net.nodes[0].pins.last();
        assert_eq!(last, Some(&(net.nodes[1].public, false)));
    }

    fn another_ml_kem_key_leads_nobody_back(crypto) {
        let mut net = pinned(crypto);
        net.nodes[0].pins.clear();
        let key = public(crypto, 7, Suite::Hybrid768);
        net.set_hybrid(0, 1, key, Some(PostQuantum::Prefer));
        net.set_seed(0, Some(seed(8)));
        assert!(net.nodes[0].device.status().peers[0].pq_pinned);
        assert_eq!(net.nodes[0].pins, []);
        net.set_hybrid(1, 0, None, Some(PostQuantum::Off));
        let mark = net.mark();
        net.ping(0, 1);
        net.ping(1, 0);
        net.advance(secs(100));
        let kinds = net.kinds(mark, 0);
        assert!(!kinds.is_empty() && kinds.iter().all(|kind| *kind == Kind::HybridInitiation));
    }

    fn a_removed_setting_ends_it_only_without_an_ml_kem_key(crypto) {
        for suite in [Suite::Light, Suite::Hybrid768] {
            let mut net = Net::hybrid_pair(crypto, suite);
            let key = public(crypto, 1, suite);
            net.set_hybrid(0, 1, key.clone(), Some(PostQuantum::Prefer));
            net.ping(0, 1);
            assert_works(&mut net, suite);
            net.set_hybrid(0, 1, key, None);
            let peer = net.nodes[1].public;
            let ends = suite == Suite::Light;
            assert_eq!(net.nodes[0].pins.contains(&(peer, false)), ends, "{suite:?}");
            assert_eq!(net.nodes[0].device.status().peers[0].pq_pinned, !ends);
        }
    }

    fn an_ml_kem_key_alone_requires_hybrid_handshakes(crypto) {
        let mut net = Net::pair(crypto);
        net.set_seed(1, Some(seed(1)));
        net.set_hybrid(1, 0, public(crypto, 0, Suite::Hybrid768), None);
        net.ping(0, 1);
        assert_eq!(net.nodes[1].count(DropReason::PostQuantumRequired), 1);
        net.ping(1, 0);
        assert_eq!(net.kinds(0, 1), [Kind::HybridInitiation; 2], "two parts");
    }

    fn prefer_answers_ordinary_handshakes_before_the_first_hybrid_one(crypto) {
        let mut net = Net::pair(crypto);
        net.set_seed(1, Some(seed(1)));
        let key = public(crypto, 0, Suite::Hybrid768);
        net.set_hybrid(1, 0, key, Some(PostQuantum::Prefer));
        net.ping(0, 1);
        assert_eq!(net.suite(1, 0), Some(None));
        assert_eq!(net.nodes[1].delivered.len(), 1);
    }

    fn prefer_without_a_key_of_its_own_begins_nothing(crypto) {
        let mut net = Net::pair(crypto);
        let key = public(crypto, 1, Suite::Hybrid768);
        net.set_hybrid(0, 1, key, Some(PostQuantum::Prefer));
        net.ping(0, 1);
        net.advance_to_offset(secs(100));
        assert!(net.log.is_empty());
    }

    fn what_was_latched_before_a_restart_stays(crypto) {
        let mut net = Net::pair(crypto);
        net.set_seed(0, Some(seed(0)));
        let mut update = PeerUpdate::new(net.nodes[1].public);
        update.pq_public_key = Some(public(crypto, 1, Suite::Hybrid768));
        update.post_quantum = Some(Some(PostQuantum::Prefer));
        update.pq_pinned = true;
        net.update(0, update);
        net.ping(0, 1);
        net.advance_to_offset(secs(100));
        assert!(net.kinds(0, 0).iter().all(|kind| *kind == Kind::HybridInitiation));
    }

    fn prefer_turns_to_ordinary_handshakes_while_packets_keep_coming(crypto) {
        let mut net = Net::pair(crypto);
        net.set_seed(0, Some(seed(0)));
        let key = public(crypto, 1, Suite::Hybrid768);
        net.set_hybrid(0, 1, key, Some(PostQuantum::Prefer));
        for second in 0..18 {
            net.advance_to_offset(secs(second));
            net.ping(0, 1);
        }
        assert_eq!(net.suite(0, 1), Some(None));
        assert_eq!(net.nodes[1].delivered.len(), 18);
    }

    fn prefer_begins_anew_when_it_has_given_up(crypto) {
        let mut net = Net::pair(crypto);
        net.set_seed(0, Some(seed(0)));
        let key = public(crypto, 1, Suite::Hybrid768);
        net.set_hybrid(0, 1, key, Some(PostQuantum::Prefer));
        net.cut();
        net.ping(0, 1);
        // The last two of 20 initiations are the first two of another hybrid turn.
        net.advance_to_offset(secs(120));
        let mark = net.mark();
        net.advance_to_offset(secs(150));
        assert_eq!(net.kinds(mark, 0), [], "it has given up");
        net.ping(0, 1);
        net.advance(secs(14));
        let kinds = net.kinds(mark, 0);
        assert!(kinds.iter().all(|kind| *kind == Kind::HybridInitiation), "{kinds:?}");
        net.advance(secs(5));
        assert!(net.kinds(mark, 0).contains(&Kind::Initiation), "after three");
    }

    fn prefer_finds_a_peer_that_has_come_to_require(crypto) {
        let suite = Suite::Hybrid768;
        let mut net = Net::pair(crypto);
        net.set_seed(0, Some(seed(0)));
        net.set_hybrid(0, 1, public(crypto, 1, suite), Some(PostQuantum::Prefer));
        net.ping(0, 1);
        net.advance_to_offset(secs(18));
        assert_eq!(net.suite(0, 1), Some(None));
        // The peer is upgraded while there is no session, and sends nothing by itself.
        net.advance_to_offset(secs(600));
        net.set_seed(1, Some(seed(1)));
        net.set_hybrid(1, 0, public(crypto, 0, suite), None);
        net.ping(0, 1);
        net.advance(secs(18));
        assert_works(&mut net, suite);
    }

    fn no_ordinary_session_outlives_the_first_hybrid_handshake(crypto) {
        let suite = Suite::Hybrid768;
        let mut net = Net::pair(crypto);
        net.set_seed(0, Some(seed(0)));
        net.set_hybrid(0, 1, public(crypto, 1, suite), Some(PostQuantum::Prefer));
        net.ping(0, 1);
        net.advance_to_offset(secs(18));
        // The peer is upgraded while the ordinary session is valid.
        net.set_seed(1, Some(seed(1)));
        net.set_hybrid(1, 0, public(crypto, 0, suite), Some(PostQuantum::Prefer));
        assert_eq!([net.suite(0, 1), net.suite(1, 0)], [Some(None); 2]);
        net.hold();
        net.ping(0, 1);
        net.ping(1, 0);
        net.mend();
        let late = net.take_held();
        assert_eq!(late.len(), 2);
        net.advance_to_offset(secs(140));
        net.ping(0, 1);
        assert_works(&mut net, suite);
        for node in [0, 1] {
            let sessions = net.nodes[node].device.sessions();
            assert!(sessions.iter().all(|session| session.suite() == Some(suite)));
        }
        let delivered = [0, 1].map(|node| net.nodes[node].delivered.len());
        for datagram in late {
            net.deliver(&datagram);
        }
        assert_eq!([0, 1].map(|node| net.nodes[node].delivered.len()), delivered);
        assert_eq!([0, 1].map(|node| net.nodes[node].count(DropReason::UnknownSession)), [1, 1]);
    }
}
