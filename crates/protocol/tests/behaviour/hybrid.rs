//! Hybrid handshakes (docs/post-quantum.md): requirements, lost and reordered parts, and refused
//! messages.

mod attacks;
mod limits;
mod load;
mod prefer;
mod provisional;

use std::net::SocketAddr;

use taupe_protocol::DropReason;
use taupe_protocol::crypto::Provider;
use taupe_protocol::hybrid::Suite;
use taupe_protocol::message::Kind;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{PeerUpdate, PostQuantum};

use crate::common::hybrid::{Thief, public, seed};
use crate::common::raw::word;
use crate::common::{Datagram, Fate, Net, Outcome, START, WALL, label, millis, secs, stranger};
use crate::each_backend;

/// Bytes of each part as in docs/post-quantum.md, initiations first.
fn lengths(suite: Suite) -> Vec<usize> {
    match suite {
        Suite::Light => vec![944, 860],
        Suite::Hybrid512 => vec![912, 848, 860, 844],
        Suite::Hybrid768 => vec![1232, 1232, 1180, 1164],
    }
}

fn is_part(datagram: &Datagram) -> bool {
    matches!(
        datagram.kind(),
        Kind::HybridInitiation | Kind::HybridResponse
    )
}

/// Returns the parts of hybrid handshakes sent since `mark`.
fn parts(net: &Net, mark: usize) -> Vec<Datagram> {
    net.log[mark..]
        .iter()
        .filter(|d| is_part(d))
        .cloned()
        .collect()
}

/// Returns all bytes but the MACs.
fn lasting(datagram: &Datagram) -> &[u8] {
    &datagram.bytes[..datagram.bytes.len() - 32]
}

fn connected(crypto: &'static Provider, suite: Suite) -> Net {
    let mut net = Net::hybrid_pair(crypto, suite);
    assert_eq!(net.ping(0, 1), Outcome::Staged);
    assert_eq!(
        net.nodes[1].delivered.len(),
        1,
        "{suite:?}: the first packet arrives"
    );
    net
}

/// Asserts that both sides have a session of `suite` and that it carries packets in both
/// directions.
fn assert_works(net: &mut Net, suite: Suite) {
    let before = [0, 1].map(|i| net.nodes[i].delivered.len());
    net.ping(0, 1);
    net.ping(1, 0);
    let after = [0, 1].map(|i| net.nodes[i].delivered.len());
    assert_eq!(after, before.map(|n| n + 1), "{suite:?}");
    assert_eq!(net.suite(0, 1), Some(Some(suite)));
    assert_eq!(net.suite(1, 0), Some(Some(suite)));
}

/// Returns two devices that prefer hybrid handshakes and have completed one.
fn pinned(crypto: &'static Provider) -> Net {
    let mut net = Net::pair(crypto);
    for (x, y) in [(0, 1), (1, 0)] {
        net.set_seed(x, Some(seed(x)));
        let key = public(crypto, y, Suite::Hybrid768);
        net.set_hybrid(x, y, key, Some(PostQuantum::Prefer));
    }
    net.ping(0, 1);
    assert_works(&mut net, Suite::Hybrid768);
    net
}

/// Sets a wire that decides by the position of a part among all parts.
fn on_parts(net: &mut Net, mut fate: impl FnMut(usize) -> Fate + 'static) {
    let mut n = 0;
    net.wire = Box::new(move |datagram| {
        if !is_part(datagram) {
            return Fate::Pass;
        }
        n += 1;
        fate(n - 1)
    });
}

fn endpoint(net: &Net, at: usize) -> Option<SocketAddr> {
    net.nodes[at].device.status().peers[0].endpoint
}

/// Returns the `n`th of an attacker's addresses.
fn elsewhere(n: u16) -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 1 + (n >> 8) as u8], 1024 + (n & 255)))
}

/// Returns a timestamp beyond any clock of a test.
fn future(n: u32) -> Tai64N {
    Tai64N::from_wall(WALL + secs(1_000_000) + millis(u64::from(n)))
}

each_backend! {
    fn each_suite_makes_a_session_with_the_parts_of_its_layout(crypto) {
        for suite in Suite::ALL {
            let mut net = connected(crypto, suite);
            let sent: Vec<usize> = parts(&net, 0).iter().map(|d| d.bytes.len()).collect();
            assert_eq!(sent, lengths(suite));
            assert!(sent.iter().all(|length| *length <= 1232));
            assert_works(&mut net, suite);
            let handshakes: Vec<_> = net.log.iter().filter(|d| d.kind() != Kind::Data).collect();
            assert_eq!(handshakes.len(), sent.len(), "and nothing ordinary");
            let status = net.nodes[0].device.status();
            assert_eq!(status.peers[0].session.and_then(|it| it.suite), Some(suite));
            assert!(status.peers[0].latest_handshake.is_some());
        }
    }

    fn a_recording_shows_no_identity(crypto) {
        for suite in Suite::ALL {
            let net = connected(crypto, suite);
            let thief = Thief::new(&net, 0, 1, suite);
            let identity = thief.identity().sent();
            let mut secrets: Vec<Vec<u8>> = vec![identity[..8].to_vec()];
            for node in [0, 1] {
                secrets.push(net.nodes[node].public.0[..8].to_vec());
                if let Some(key) = public(crypto, node, suite) {
                    secrets.push(key.as_bytes()[..8].to_vec());
                }
            }
            for part in parts(&net, 0) {
                for secret in &secrets {
                    let found = part.bytes.windows(8).any(|window| window == &secret[..]);
                    assert!(!found, "{suite:?}: a public key in clear");
                }
            }
        }
    }

    fn any_part_may_be_lost_once(crypto) {
        for suite in Suite::ALL {
            for lost in 0..lengths(suite).len() {
                let mut net = Net::hybrid_pair(crypto, suite);
                on_parts(&mut net, move |n| if n == lost { Fate::Drop } else { Fate::Pass });
                net.ping(0, 1);
                net.advance_to_offset(millis(249));
                assert_eq!(net.suite(0, 1), None, "{suite:?} without {lost}");
                net.advance_to_offset(millis(250));
                assert_works(&mut net, suite);
            }
        }
    }

    fn parts_are_sent_again_as_they_were(crypto) {
        for suite in Suite::ALL {
            let each = lengths(suite).len() / 2;
            let mut net = Net::hybrid_pair(crypto, suite);
            net.cut();
            net.ping(0, 1);
            net.advance_to_offset(millis(4_999));
            let sent = net.since(0, 0);
            let times: Vec<_> = sent.iter().map(|d| d.at.since(START)).collect();
            let expected: Vec<_> = [0, 250, 500, 1_000, 2_000]
                .into_iter()
                .flat_map(|at| vec![millis(at); each])
                .collect();
            assert_eq!(times, expected);
            for (i, part) in sent.iter().enumerate() {
                assert_eq!(lasting(part), lasting(&sent[i % each]));
            }
            // A new handshake begins after Rekey-Timeout and its jitter.
            net.advance_to_offset(secs(6));
            let next = net.since(sent.len(), 0);
            assert_ne!(lasting(&next[0]), lasting(&sent[0]));
        }
    }

    fn a_response_is_stored_and_not_made_again(crypto) {
        for suite in Suite::ALL {
            let each = lengths(suite).len() / 2;
            let mut net = Net::hybrid_pair(crypto, suite);
            net.cut_from(1);
            net.ping(0, 1);
            net.advance_to_offset(millis(2_000));
            let answers = net.since(0, 1);
            assert_eq!(answers.len(), 5 * each, "{suite:?}: one for each part");
            for (i, part) in answers.iter().enumerate() {
                assert_eq!(part.bytes, answers[i % each].bytes, "byte for byte");
            }
            assert_eq!(net.nodes[1].device.sessions().len(), 1);
            net.mend();
            net.deliver(&answers[0]);
            if each == 2 {
                net.deliver(&answers[1]);
            }
            assert_works(&mut net, suite);
        }
    }

    fn parts_may_come_in_any_order(crypto) {
        for suite in [Suite::Hybrid512, Suite::Hybrid768] {
            let mut net = Net::hybrid_pair(crypto, suite);
            net.wire = Box::new(|d| if is_part(d) { Fate::Hold } else { Fate::Pass });
            net.ping(0, 1);
            for _ in 0..2 {
                let mut held = net.take_held();
                assert_eq!(held.len(), 2);
                held.reverse();
                held.iter().for_each(|part| net.deliver(part));
            }
            assert_works(&mut net, suite);
            assert_eq!(net.now, START, "without waiting for anything");
        }
    }

    fn parts_that_come_twice_change_nothing(crypto) {
        for suite in Suite::ALL {
            let mut net = connected(crypto, suite);
            assert_works(&mut net, suite);
            let sessions = [0, 1].map(|i| net.nodes[i].device.sessions().len());
            let before = [0, 1].map(|i| {
                let of = net.nodes[1 - i].public;
                net.nodes[i].device.snapshot(&of)
            });
            for part in parts(&net, 0) {
                net.deliver(&part);
                net.deliver(&part);
            }
            let after = [0, 1].map(|i| {
                let of = net.nodes[1 - i].public;
                net.nodes[i].device.snapshot(&of)
            });
            assert_eq!(before, after, "{suite:?}");
            assert_eq!([0, 1].map(|i| net.nodes[i].device.sessions().len()), sessions);
            assert_works(&mut net, suite);
        }
    }

    fn any_changed_bit_is_refused_and_the_handshake_goes_on(crypto) {
        for suite in Suite::ALL {
            let count = lengths(suite).len();
            for part in 0..count {
                for place in [4, 8, 9, 40, 44, 100, 800] {
                    let mut net = Net::hybrid_pair(crypto, suite);
                    let key = net.nodes[usize::from(part < count / 2)].public;
                    let mut n = 0;
                    net.wire = Box::new(move |datagram| {
                        if is_part(datagram) {
                            if n == part {
                                datagram.bytes[place] ^= 1;
                                crate::common::raw::stamp_for(crypto, &key, &mut datagram.bytes);
                            }
                            n += 1;
                        }
                        Fate::Pass
                    });
                    net.ping(0, 1);
                    assert_eq!(net.suite(0, 1), None, "{suite:?} {part} {place}");
                    // With a changed index, the responder answers to another index. The next
                    // initiation recovers from all changes.
                    net.advance_to_offset(secs(7));
                    assert_works(&mut net, suite);
                }
            }
        }
    }

    fn without_its_mac_too_a_changed_response_is_refused(crypto) {
        for suite in Suite::ALL {
            let mut net = Net::hybrid_pair(crypto, suite);
            let mut peer = Thief::knows_all(&net, 0, 1, suite);
            let begun = peer.begin(7, label(1));
            let mark = net.mark();
            peer.send(&mut net, 1, stranger(), &begun);
            let response: Vec<_> = net.since(mark, 1).into_iter().map(|d| d.bytes).collect();
            assert!(peer.finish(&begun, &response).is_some());
            for part in 0..response.len() {
                let body = response[part].len() - 32;
                for place in (0..body).step_by(11).chain(body - 16..body) {
                    let mut changed = response.clone();
                    changed[part][place] ^= 1 << (place % 8);
                    assert!(peer.finish(&begun, &changed).is_none(), "{suite:?} {part} {place}");
                }
            }
        }
    }

    fn a_wrong_key_of_any_kind_makes_no_session(crypto) {
        for suite in [Suite::Hybrid512, Suite::Hybrid768] {
            let wrong: [fn(&mut Net, Suite); 4] = [
                |net, suite| net.set_hybrid(0, 1, public(net.crypto, 7, suite), None),
                |net, suite| net.set_hybrid(1, 0, public(net.crypto, 7, suite), None),
                |net, _| net.set_seed(0, Some(seed(7))),
                |net, _| net.set_preshared_key(1, 0, [7; 32]),
            ];
            for (i, make_wrong) in wrong.into_iter().enumerate() {
                let mut net = Net::hybrid_pair(crypto, suite);
                make_wrong(&mut net, suite);
                net.ping(0, 1);
                net.ping(1, 0);
                net.advance_to_offset(secs(30));
                assert_eq!(net.suite(0, 1), None, "{suite:?} {i}");
                assert_eq!(net.suite(1, 0), None, "{suite:?} {i}");
                assert!(net.nodes.iter().all(|node| node.delivered.is_empty()));
                assert!(!net.log.iter().any(|d| matches!(d.kind(), Kind::Data | Kind::Initiation)));
            }
        }
    }

    fn peers_of_different_suites_make_no_session(crypto) {
        let mut net = Net::hybrid_pair(crypto, Suite::Hybrid768);
        net.set_hybrid(1, 0, public(crypto, 0, Suite::Hybrid512), None);
        net.ping(0, 1);
        net.ping(1, 0);
        net.advance_to_offset(secs(30));
        assert_eq!((net.suite(0, 1), net.suite(1, 0)), (None, None));
        assert!(net.nodes[1].count(DropReason::UnknownPeer) > 0);
    }

    fn without_a_seed_nothing_is_sent(crypto) {
        let mut net = Net::pair(crypto);
        net.set_hybrid(0, 1, public(crypto, 1, Suite::Hybrid768), None);
        net.ping(0, 1);
        net.advance_to_offset(secs(30));
        assert!(net.log.is_empty());
    }

    fn a_peer_that_must_be_hybrid_is_never_reached_by_an_ordinary_handshake(crypto) {
        for suite in Suite::ALL {
            let mut net = Net::hybrid_pair(crypto, suite);
            net.set_hybrid(0, 1, None, Some(PostQuantum::Off));
            net.ping(0, 1);
            net.advance_to_offset(secs(4));
            assert_eq!(net.nodes[1].count(DropReason::PostQuantumRequired), 1);
            assert!(net.since(0, 1).is_empty());
            net.ping(1, 0);
            net.advance_to_offset(secs(120));
            assert!(net.kinds(0, 1).iter().all(|kind| *kind == Kind::HybridInitiation));
            assert!(net.nodes.iter().all(|node| node.delivered.is_empty()));
        }
    }

    fn sessions_end_that_the_new_rules_forbid(crypto) {
        let mut net = Net::connected(crypto);
        assert_eq!(net.suite(0, 1), Some(None));
        net.make_hybrid(0, 1, Suite::Hybrid768);
        assert_eq!((net.suite(0, 1), net.suite(1, 0)), (None, None));
        net.advance(secs(6));
        net.ping(0, 1);
        assert_works(&mut net, Suite::Hybrid768);
        let another = public(crypto, 7, Suite::Hybrid768);
        net.set_hybrid(0, 1, another, None);
        assert_eq!(net.suite(0, 1), None, "made with another key");
    }

    fn ordinary_and_hybrid_peers_share_a_device(crypto) {
        let mut net = Net::new(crypto, 4);
        for (node, suite) in [(1, None), (2, Some(Suite::Hybrid768)), (3, Some(Suite::Light))] {
            net.join(0, node);
            if let Some(suite) = suite {
                net.make_hybrid(0, node, suite);
            }
        }
        for node in 1..4 {
            net.ping(node, 0);
            net.ping(0, node);
        }
        assert_eq!(net.suite(0, 1), Some(None));
        assert_eq!(net.suite(0, 2), Some(Some(Suite::Hybrid768)));
        assert_eq!(net.suite(0, 3), Some(Some(Suite::Light)));
        assert_eq!(net.nodes[0].delivered.len(), 3);
    }

    fn both_may_begin_at_once(crypto) {
        for suite in Suite::ALL {
            let mut net = Net::hybrid_pair(crypto, suite);
            net.hold();
            net.ping(0, 1);
            net.ping(1, 0);
            net.mend();
            net.release();
            assert_works(&mut net, suite);
        }
    }

    fn sessions_are_renewed_in_time(crypto) {
        for suite in Suite::ALL {
            let mut net = connected(crypto, suite);
            let first = net.nodes[0].device.sessions()[0].local_index();
            for second in 1..400 {
                net.advance_to_offset(secs(second));
                assert_works(&mut net, suite);
            }
            let key = net.nodes[1].public;
            let current = net.nodes[0].current(&key).unwrap();
            assert_ne!(current.local_index(), first);
            assert!(net.nodes.iter_mut().all(|node| node.device.sessions().len() <= 3));
            let initiations = net.times(0, 0, Kind::HybridInitiation);
            assert!(initiations.iter().any(|at| *at >= secs(120) && *at < secs(122)));
        }
    }

    fn a_responder_that_has_forgotten_is_answered_anew(crypto) {
        for suite in [Suite::Hybrid512, Suite::Hybrid768] {
            let mut net = Net::hybrid_pair(crypto, suite);
            let mut n = 0;
            net.wire = Box::new(move |datagram| {
                n += usize::from(datagram.kind() == Kind::HybridResponse);
                if n == 2 { Fate::Drop } else { Fate::Pass }
            });
            net.ping(0, 1);
            net.set_down(1);
            net.set_up(1);
            net.mend();
            net.advance_to_offset(millis(250));
            assert_works(&mut net, suite);
        }
    }

    fn an_ordinary_label_of_the_future_locks_no_hybrid_handshake_out(crypto) {
        // Before the peer used hybrid handshakes, an attacker with its X25519 key completed one.
        let mut both = Net::hybrid_pair(crypto, Suite::Hybrid768);
        let mut update = PeerUpdate::new(both.nodes[0].public);
        update.post_quantum = Some(Some(PostQuantum::Off));
        both.update(1, update);
        let thief = crate::common::raw::Raw::new(
            crypto,
            both.nodes[0].private.clone(),
            both.nodes[1].public,
            stranger(),
        );
        both.inject(1, stranger(), &thief.begin(1, future(1)).message);
        assert_eq!(both.kinds(0, 1), [Kind::Response], "an ordinary peer can be played");
        let key = public(crypto, 0, Suite::Hybrid768);
        both.set_hybrid(1, 0, key, Some(PostQuantum::Require));
        both.ping(0, 1);
        assert_works(&mut both, Suite::Hybrid768);
    }

    fn nobody_takes_the_place_of_a_handshake_under_way(crypto) {
        let suite = Suite::Hybrid768;
        let mut net = Net::hybrid_pair(crypto, suite);
        net.wire = Box::new(|d| if is_part(d) { Fate::Hold } else { Fate::Pass });
        net.ping(0, 1);
        let held = net.take_held();
        net.deliver(&held[0]);
        // Another first part with the same index, as if from the same address.
        let mut thief = Thief::new(&net, 0, 1, suite);
        let begun = thief.begin(word(&held[0].bytes, 4), future(1));
        thief.send(&mut net, 1, held[0].source, &begun);
        assert_eq!(net.nodes[1].count(DropReason::PartRepeated), 1);
        net.mend();
        net.deliver(&held[1]);
        for part in net.take_held() {
            net.deliver(&part);
        }
        assert_works(&mut net, suite);
    }

    fn another_private_key_leads_nobody_back(crypto) {
        let mut net = pinned(crypto);
        net.nodes[0].pins.clear();
        net.set_private_key(0, Some(crate::common::private_key(77)), Tai64N::ZERO);
        assert!(net.nodes[0].device.status().peers[0].pq_pinned);
        let remembered = [(net.nodes[1].public, true)];
        assert_eq!(net.nodes[0].pins, remembered, "with the new key too");
    }

    fn half_handshakes_are_few_and_end(crypto) {
        let suite = Suite::Hybrid768;
        let mut net = Net::hybrid_pair(crypto, suite);
        let mut thief = Thief::new(&net, 0, 1, suite);
        for n in 0..100 {
            let begun = thief.begin(n, future(n));
            // First parts, and second parts whose first part never arrives.
            net.inject(1, elsewhere(n as u16), &begun.parts[(n % 2) as usize]);
            net.advance(secs(6));
        }
        assert!(net.nodes[1].device.provisional_handshakes() <= 4);
        let key = net.nodes[0].public;
        net.set_hybrid(1, 0, None, Some(PostQuantum::Off));
        assert_eq!(net.nodes[1].device.provisional_handshakes(), 0);
        assert!(net.nodes[1].device.snapshot(&key).is_some());
    }

    fn half_a_handshake_is_erased_as_keys_are(crypto) {
        let suite = Suite::Hybrid768;
        let mut net = Net::hybrid_pair(crypto, suite);
        let mut thief = Thief::new(&net, 0, 1, suite);
        let begun = thief.begin(1, future(1));
        net.inject(1, elsewhere(1), &begun.parts[0]);
        net.advance_to_offset(secs(539));
        assert_eq!(net.nodes[1].device.provisional_handshakes(), 1);
        net.advance_to_offset(secs(540));
        assert_eq!(net.nodes[1].device.provisional_handshakes(), 0);
        assert_eq!(net.nodes[1].device.next_deadline(), None);
    }

    fn what_does_not_verify_is_no_answer_to_a_part(crypto) {
        // An attacker that has seen the initiator's index forges a second part of a response, to
        // be stored until the first part arrives.
        let mut net = Net::hybrid_pair(crypto, Suite::Hybrid768);
        net.cut();
        net.ping(0, 1);
        let sent = net.since(0, 0);
        let mut made_up = vec![0x5a; 1164];
        made_up[..4].copy_from_slice(&[0x49, 3, 1, 0]);
        made_up[8..12].copy_from_slice(&sent[0].bytes[4..8]);
        crate::common::raw::stamp_for(crypto, &net.nodes[0].public, &mut made_up);
        net.inject(0, stranger(), &made_up);
        assert_eq!(net.nodes[0].count(DropReason::ResponseNotAuthentic), 1);
        let mark = net.mark();
        net.advance_to_offset(millis(250));
        let again = net.since(mark, 0);
        assert_eq!(again.len(), 2, "both parts");
        net.mend();
        net.advance_to_offset(millis(500));
        assert_works(&mut net, Suite::Hybrid768);
    }

    fn parts_that_were_due_in_sleep_are_sent_once(crypto) {
        let mut net = Net::hybrid_pair(crypto, Suite::Hybrid768);
        net.cut();
        net.ping(0, 1);
        let mark = net.mark();
        // The device is not called in between.
        net.now += millis(1_500);
        net.run();
        net.advance(millis(0));
        assert_eq!(net.since(mark, 0).len(), 2);
        net.advance_to_offset(millis(2_000));
        assert_eq!(net.since(mark, 0).len(), 4);
    }

    fn an_old_initiation_is_refused(crypto) {
        for suite in Suite::ALL {
            let mut net = connected(crypto, suite);
            let old: Vec<_> = parts(&net, 0)
                .into_iter()
                .filter(|d| d.from == Some(0))
                .collect();
            net.advance(secs(130));
            net.ping(0, 1);
            assert_works(&mut net, suite);
            let refused = net.nodes[1].count(DropReason::InitiationReplayed);
            let mark = net.mark();
            for part in &old {
                net.inject(1, stranger(), &part.bytes);
            }
            assert_eq!(net.nodes[1].count(DropReason::InitiationReplayed), refused + 1);
            assert!(net.since(mark, 1).is_empty());
        }
    }

    fn lengths_and_headers_that_no_part_has_are_refused(crypto) {
        let net = connected(crypto, Suite::Hybrid768);
        let good = parts(&net, 0)[0].bytes.clone();
        let mut net = net;
        for change in [
            |part: &mut Vec<u8>| part.truncate(part.len() - 1),
            |part: &mut Vec<u8>| part.push(0),
            |part: &mut Vec<u8>| part[1] = 0,
            |part: &mut Vec<u8>| part[1] = 4,
            |part: &mut Vec<u8>| part[2] = 2,
            |part: &mut Vec<u8>| part[3] = 1,
            |part: &mut Vec<u8>| part[0] = 0x4a,
        ] {
            let mut part = good.clone();
            change(&mut part);
            let key = net.nodes[1].public;
            crate::common::raw::stamp_for(crypto, &key, &mut part);
            let mark = net.mark();
            net.inject(1, stranger(), &part);
            assert!(net.since(mark, 1).is_empty());
        }
        let count = net.nodes[1].count(DropReason::Length) + net.nodes[1].count(DropReason::Type);
        assert_eq!(count, 7);
        assert_eq!(word(&good, 0), 0x0000_0348);
    }
}
