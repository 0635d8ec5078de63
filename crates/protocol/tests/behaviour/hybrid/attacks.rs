//! Hybrid handshakes with an attacker who has the X25519 private keys, or who sees or copies
//! messages.

use super::*;
use crate::each_backend;

each_backend! {
    fn who_has_all_x25519_secrets_gets_no_session(crypto) {
        for suite in [Suite::Hybrid512, Suite::Hybrid768] {
            let mut net = Net::hybrid_pair(crypto, suite);
            let mut thief = Thief::new(&net, 0, 1, suite);
            let begun = thief.begin(7, label(1));
            let mark = net.mark();
            thief.send(&mut net, 1, stranger(), &begun);
            let answer: Vec<_> = net.since(mark, 1);
            assert_eq!(answer.len(), 2, "it cannot be told from the peer yet");
            assert!(answer.iter().all(|part| part.to == stranger()));
            let parts: Vec<_> = answer.into_iter().map(|part| part.bytes).collect();
            assert!(thief.finish(&begun, &parts).is_none());
        }
        // In hybrid-light the attacker succeeds, as its specification says.
        let mut net = Net::hybrid_pair(crypto, Suite::Light);
        let mut thief = Thief::new(&net, 0, 1, Suite::Light);
        let begun = thief.begin(7, label(1));
        let mark = net.mark();
        thief.send(&mut net, 1, stranger(), &begun);
        let parts: Vec<_> = net.since(mark, 1).into_iter().map(|part| part.bytes).collect();
        assert!(thief.finish(&begun, &parts).is_some());
    }

    fn who_has_all_x25519_secrets_moves_and_displaces_nothing(crypto) {
        for suite in [Suite::Hybrid512, Suite::Hybrid768] {
            let mut net = connected(crypto, suite);
            assert_works(&mut net, suite);
            net.advance(secs(10));
            let mut thief = Thief::new(&net, 0, 1, suite);
            let victim = net.nodes[0].public;
            let before = net.nodes[1].device.snapshot(&victim).unwrap();
            let deadline = net.nodes[1].device.next_deadline();
            for n in 0..20 {
                let begun = thief.begin(n, future(n));
                thief.send(&mut net, 1, elsewhere(n as u16), &begun);
            }
            let mut after = net.nodes[1].device.snapshot(&victim).unwrap();
            assert!(after.tx_bytes > before.tx_bytes, "it has answered some");
            after.tx_bytes = before.tx_bytes;
            assert_eq!(before, after, "{suite:?}");
            assert_eq!(endpoint(&net, 1), Some(net.nodes[0].address));
            assert_eq!(net.nodes[1].device.next_deadline(), deadline);
            assert!(net.nodes[1].device.sessions().len() <= 1 + 4);
            assert_works(&mut net, suite);
            // The peer renews its session, although its clock is far behind the attacker's
            // timestamp.
            net.advance(secs(111));
            net.ping(0, 1);
            let key = net.nodes[1].public;
            assert_eq!(net.nodes[0].current(&key).unwrap().born(), net.now);
            assert_works(&mut net, suite);
        }
    }

    fn who_has_all_x25519_secrets_locks_nobody_out(crypto) {
        // The attacker begins handshakes as the peer before, between and after the peer's parts,
        // from addresses at which it does not receive; one of them is the peer's own.
        let suite = Suite::Hybrid768;
        let mut net = Net::hybrid_pair(crypto, suite);
        let mut thief = Thief::new(&net, 0, 1, suite);
        let own = net.nodes[0].address;
        let mut n = 0;
        net.wire = Box::new(|d| if is_part(d) { Fate::Hold } else { Fate::Pass });
        net.ping(0, 1);
        for _ in 0..400 {
            for address in [elsewhere(n), own] {
                n += 1;
                let begun = thief.begin(u32::from(n), future(u32::from(n)));
                thief.send(&mut net, 1, address, &begun);
            }
            let held = net.take_held();
            if held.is_empty() {
                net.advance(millis(25));
            }
            for part in held {
                // The peer refuses responses to the attacker that arrive at the peer's own
                // address.
                if part.to.ip() == net.nodes[0].address.ip() || part.from == Some(0) {
                    net.deliver(&part);
                }
                n += 1;
                let begun = thief.begin(u32::from(n), future(u32::from(n)));
                thief.send(&mut net, 1, own, &begun);
            }
            if net.suite(0, 1).is_some() {
                break;
            }
        }
        net.mend();
        assert!(net.now.since(START) < secs(7), "{:?}", net.now.since(START));
        assert_works(&mut net, suite);
    }

    fn a_response_does_not_show_to_whom_it_is_sent(crypto) {
        for suite in Suite::ALL {
            let net = connected(crypto, suite);
            let responses: Vec<_> = parts(&net, 0)
                .into_iter()
                .filter(|d| d.from == Some(1))
                .collect();
            assert_eq!(responses.len(), lengths(suite).len() / 2);
            for part in responses {
                for node in &net.nodes {
                    let mut by_who_knows_the_key = part.bytes.clone();
                    let key = &node.public;
                    crate::common::raw::stamp_for(crypto, key, &mut by_who_knows_the_key);
                    assert_ne!(part.bytes, by_who_knows_the_key);
                }
            }
        }
    }

    fn who_copies_an_initiation_and_half_its_answer_stops_nothing(crypto) {
        for suite in [Suite::Hybrid512, Suite::Hybrid768] {
            for half in [0, 1] {
                let mut net = Net::hybrid_pair(crypto, suite);
                net.cut();
                net.ping(0, 1);
                let sent = net.since(0, 0);
                let mark = net.mark();
                for part in &sent {
                    net.inject(1, stranger(), &part.bytes);
                }
                let copied = net.since(mark, 1);
                assert_eq!(copied.len(), 2);
                net.inject(0, stranger(), &copied[half].bytes);
                net.mend();
                for part in &sent {
                    net.deliver(part);
                }
                net.advance_to_offset(millis(250));
                assert_works(&mut net, suite);
            }
        }
    }
}
