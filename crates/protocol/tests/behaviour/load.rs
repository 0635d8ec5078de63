//! Under load: the time that load persists, cookies and the token bucket; also mac1, which is
//! always checked (whitepaper §5.3, §5.4.4, §5.4.7).

use std::net::SocketAddr;

use std::time::Duration;

use taupe_protocol::DropReason;
use taupe_protocol::crypto::Provider;
use taupe_protocol::message::Kind;

use crate::common::packets::ipv4;
use crate::common::raw::{Begun, Raw, chunk, stamp_for, word};
use crate::common::snapshot::{assert_refused, assert_refused_from};
use crate::common::{
    NANO, Net, RAW_INNER, label, millis, private_key, secs, shake, stranger, with_raw,
    with_stranger,
};
use crate::each_backend;

/// Returns a device under load, and a peer with a cookie for its address.
fn with_cookie(crypto: &'static Provider) -> (Net, Raw, [u8; 16]) {
    let (mut net, raw) = with_stranger(crypto);
    net.nodes[0].backlog = 512;
    let begun = raw.begin(1, label(0));
    let cookie = demand(&mut net, &raw, raw.address, &begun);
    (net, raw, cookie)
}

/// Sends an initiation that is answered with a cookie. Returns the cookie.
fn demand(net: &mut Net, raw: &Raw, from: SocketAddr, begun: &Begun) -> [u8; 16] {
    let mark = net.mark();
    net.inject(0, from, &begun.message);
    let sent = net.since(mark, 0);
    assert_eq!(sent.len(), 1);
    assert_eq!(
        (sent[0].kind(), sent[0].to, sent[0].tos),
        (Kind::CookieReply, from, 0x88)
    );
    assert_eq!(
        sent[0].bytes[4..8],
        begun.message[4..8],
        "for the index of its sender"
    );
    raw.open_cookie(&begun.message, &sent[0].bytes)
        .expect("bound to the message")
}

/// Sends the last node an initiation from each of `count` addresses. Returns the number of
/// cookies in response.
fn flood(net: &mut Net, message: &[u8], count: u32) -> usize {
    let node = net.nodes.len() - 1;
    let mark = net.mark();
    // New addresses in each call.
    let first = (net.nodes[node].count(DropReason::CookieWithheld)
        + net.nodes[node].count(DropReason::CookieDemanded)) as u32;
    for n in first..first + count {
        let from = SocketAddr::from(((0x0a40_0000 + n).to_be_bytes(), 4500));
        net.receive(node, from, message, message.len());
    }
    net.run();
    net.since(mark, node).len()
}

/// Sends an initiation with a cookie. Returns `true` if it is answered with a response, `false`
/// if with a cookie.
fn passes(net: &mut Net, raw: &Raw, from: SocketAddr, n: u32, cookie: &[u8; 16]) -> bool {
    let mut begun = raw.begin(n, label(n));
    raw.stamp_cookie(&mut begun.message, cookie);
    let mark = net.mark();
    net.inject(0, from, &begun.message);
    match net.kinds(mark, 0)[..] {
        [Kind::Response] => true,
        [Kind::CookieReply] => false,
        ref other => panic!("{other:?}"),
    }
}

each_backend! {
    fn load_begins_at_512_waiting_messages(crypto) {
        for (backlog, loaded) in [(0, false), (511, false), (512, true), (513, true), (4096, true)] {
            let (mut net, raw) = with_stranger(crypto);
            net.nodes[0].backlog = backlog;
            let mark = net.mark();
            net.inject(0, raw.address, &raw.begin(1, label(0)).message);
            let expected = if loaded { Kind::CookieReply } else { Kind::Response };
            assert_eq!(net.kinds(mark, 0), [expected], "{backlog} waiting");
            assert_eq!(net.nodes[0].count(DropReason::CookieDemanded), u64::from(loaded));
        }
    }

    fn handshakes_one_after_the_other_are_no_load(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        for n in 0..150 {
            shake(&mut net, &raw, n, label(n));
            net.advance(millis(25));
        }
        assert_eq!(net.nodes[0].count(DropReason::CookieDemanded), 0);
    }

    fn load_ends_a_second_after_its_last_sign(crypto) {
        for (after, loaded) in [
            (Duration::ZERO, true),
            (secs(1) - NANO, true),
            (secs(1), false),
            (secs(1) + NANO, false),
        ] {
            let (mut net, raw, _) = with_cookie(crypto);
            // The time counts from the last sign of load, not from the first.
            net.advance(millis(700));
            net.inject(0, raw.address, &raw.begin(2, label(1)).message);
            net.nodes[0].backlog = 511;
            net.advance(after);
            let mark = net.mark();
            net.inject(0, raw.address, &raw.begin(3, label(2)).message);
            let expected = if loaded { Kind::CookieReply } else { Kind::Response };
            assert_eq!(net.kinds(mark, 0), [expected], "{after:?}");
        }
    }

    fn a_message_within_the_second_does_not_prolong_it(crypto) {
        let (mut net, raw, _) = with_cookie(crypto);
        net.nodes[0].backlog = 0;
        net.advance(millis(900));
        net.inject(0, raw.address, &raw.begin(2, label(1)).message);
        assert_eq!(net.nodes[0].count(DropReason::CookieDemanded), 2);
        net.advance(millis(100));
        let mark = net.mark();
        net.inject(0, raw.address, &raw.begin(3, label(2)).message);
        assert_eq!(net.kinds(mark, 0), [Kind::Response]);
    }

    fn a_demand_for_a_cookie_changes_nothing(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        net.nodes[0].backlog = 512;
        let before = crate::common::snapshot::Snapshot::of(&mut net.nodes[0]);
        net.inject(0, stranger(), &raw.begin(1, label(0)).message);
        assert_eq!(crate::common::snapshot::Snapshot::of(&mut net.nodes[0]), before);
    }

    fn the_cookie_reply_is_smaller_than_what_it_answers(crypto) {
        let (net, _, _) = with_cookie(crypto);
        assert_eq!(net.last(0, Kind::CookieReply).bytes.len(), 64);
    }

    fn each_cookie_reply_has_a_nonce_of_its_own(crypto) {
        let (mut net, raw, _) = with_cookie(crypto);
        let first = net.last(0, Kind::CookieReply).bytes;
        demand(&mut net, &raw, raw.address, &raw.begin(2, label(1)));
        let second = net.last(0, Kind::CookieReply).bytes;
        assert_ne!(chunk::<24>(&first, 8), chunk::<24>(&second, 8));
    }

    fn with_the_cookie_the_initiation_passes(crypto) {
        let (mut net, raw, cookie) = with_cookie(crypto);
        assert!(passes(&mut net, &raw, raw.address, 2, &cookie));
    }

    fn a_wrong_cookie_does_not(crypto) {
        for bit in [0, 1, 64, 127] {
            let (mut net, raw, mut cookie) = with_cookie(crypto);
            cookie[bit / 8] ^= 1 << (bit % 8);
            assert!(!passes(&mut net, &raw, raw.address, 2, &cookie));
        }
    }

    fn every_bit_of_mac2_counts_under_load(crypto) {
        let (mut net, raw, cookie) = with_cookie(crypto);
        let mut begun = raw.begin(2, label(1));
        raw.stamp_cookie(&mut begun.message, &cookie);
        for bit in 0..128 {
            let mut forged = begun.message.clone();
            forged[132 + bit / 8] ^= 1 << (bit % 8);
            let mark = net.mark();
            net.inject(0, raw.address, &forged);
            assert_eq!(net.kinds(mark, 0), [Kind::CookieReply], "bit {bit}");
        }
        let mark = net.mark();
        net.inject(0, raw.address, &begun.message);
        assert_eq!(net.kinds(mark, 0), [Kind::Response]);
    }

    fn the_cookie_covers_address_and_port(crypto) {
        for other in [
            "198.51.100.9:4499",
            "198.51.100.9:4501",
            "198.51.100.8:4500",
            "[::ffff:198.51.100.9]:4500",
            "[2001:db8::1]:4500",
        ] {
            let (mut net, raw, cookie) = with_cookie(crypto);
            assert!(!passes(&mut net, &raw, other.parse().unwrap(), 2, &cookie), "{other}");
        }
    }

    fn cookies_work_over_ipv6(crypto) {
        let (mut net, mut raw) = with_stranger(crypto);
        net.nodes[0].backlog = 512;
        raw.address = "[2001:db8::7]:4500".parse().unwrap();
        let begun = raw.begin(1, label(0));
        let cookie = demand(&mut net, &raw, raw.address, &begun);
        assert!(!passes(&mut net, &raw, "[2001:db8::8]:4500".parse().unwrap(), 2, &cookie));
        assert!(passes(&mut net, &raw, raw.address, 3, &cookie));
    }

    fn the_secret_lives_120_seconds(crypto) {
        for (after, valid) in [
            (secs(120) - NANO, true),
            (secs(120), false),
            (secs(120) + NANO, false),
        ] {
            let (mut net, raw, cookie) = with_cookie(crypto);
            net.advance(after);
            assert_eq!(passes(&mut net, &raw, raw.address, 2, &cookie), valid, "{after:?}");
        }
    }

    fn within_its_life_an_address_has_one_cookie(crypto) {
        let (mut net, raw, cookie) = with_cookie(crypto);
        net.advance(secs(120) - NANO);
        let again = demand(&mut net, &raw, raw.address, &raw.begin(2, label(1)));
        assert_eq!(again, cookie);
        let other = demand(&mut net, &raw, stranger(), &raw.begin(3, label(2)));
        assert_ne!(other, cookie);
        net.advance(NANO);
        let next = demand(&mut net, &raw, raw.address, &raw.begin(4, label(3)));
        assert_ne!(next, cookie, "a new secret");
    }

    fn without_load_mac2_is_not_looked_at(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let mut begun = raw.begin(1, label(0));
        raw.stamp_cookie(&mut begun.message, &[9; 16]);
        let mark = net.mark();
        net.inject(0, raw.address, &begun.message);
        assert_eq!(net.kinds(mark, 0), [Kind::Response]);
    }

    fn mac1_counts_under_load_too(crypto) {
        let (mut net, raw, cookie) = with_cookie(crypto);
        let mut begun = raw.begin(2, label(1));
        begun.message[120] ^= 1;
        raw.stamp_cookie(&mut begun.message, &cookie);
        assert_refused(&mut net, 0, &begun.message, DropReason::Mac1);
    }

    fn every_bit_before_mac2_is_covered_by_mac1(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let message = raw.begin(1, label(0)).message;
        // Bits of the first word are left out, because they are the message type.
        for bit in 4 * 8..132 * 8 {
            let mut forged = message.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_refused(&mut net, 0, &forged, DropReason::Mac1);
        }
    }

    fn mac1_is_for_one_receiver(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let mut message = raw.begin(1, label(0)).message;
        stamp_for(crypto, &raw.keys.public, &mut message);
        assert_refused(&mut net, 0, &message, DropReason::Mac1);
    }

    fn responses_need_a_cookie_under_load(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        let (mut response, session) =
            raw.answer(&net.last(0, Kind::Initiation).bytes, 3).expect("ours");
        net.nodes[0].backlog = 512;
        let mark = net.mark();
        net.inject(0, raw.address, &response);
        assert_eq!(net.kinds(mark, 0), [Kind::CookieReply]);
        let reply = net.last(0, Kind::CookieReply);
        let cookie = raw.open_cookie(&response, &reply.bytes).expect("bound to the response");
        raw.stamp_cookie(&mut response, &cookie);
        net.inject(0, raw.address, &response);
        assert!(session.open(&net.last(0, Kind::Data).bytes).is_some());
    }

    fn a_response_to_nothing_is_given_no_cookie(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        let initiation = net.last(0, Kind::Initiation).bytes;
        let (mut response, _) = raw.answer(&initiation, 3).expect("ours");
        response[8] ^= 1;
        raw.stamp(&mut response);
        net.nodes[0].backlog = 512;
        assert_refused(&mut net, 0, &response, DropReason::UnknownHandshake);
    }

    fn first_askers_are_given_five_thousand_cookies_and_a_thousand_a_second(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let message = raw.begin(1, label(0)).message;
        net.nodes[0].backlog = 512;
        assert_eq!(flood(&mut net, &message, 5_100), 5_000);
        net.advance(millis(5));
        assert_eq!(flood(&mut net, &message, 100), 5);
        assert_eq!(net.nodes[0].count(DropReason::CookieWithheld), 195);
        net.advance(secs(60));
        assert_eq!(flood(&mut net, &message, 5_100), 5_000, "no more are saved");
    }

    fn who_asks_again_is_given_a_cookie_whatever_others_do(crypto) {
        // The first initiation may fall anywhere in a generation of remembered senders.
        for after in [0, 700, 1_400] {
            let mut net = Net::pair(crypto);
            let remote = net.nodes[1].public;
            let raw = Raw::new(crypto, private_key(99), remote, stranger());
            let message = raw.begin(1, label(0)).message;
            net.advance(millis(after));
            net.nodes[1].backlog = 512;
            assert_eq!(flood(&mut net, &message, 5_001), 5_000);
            net.ping(0, 1);
            assert_eq!(net.nodes[1].count(DropReason::CookieWithheld), 2, "no cookie at first");
            // The flood continues, so that no cookie is left for others.
            for _ in 0..2 {
                net.advance(millis(4_999));
                flood(&mut net, &message, 5_001);
                for _ in 0..350 {
                    net.advance(millis(1));
                    flood(&mut net, &message, 2);
                }
            }
            assert_eq!(net.nodes[1].delivered.len(), 1, "within 11 s, {after}");
        }
    }

    fn a_response_that_is_waited_for_is_given_a_cookie_whatever_others_do(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        let initiation = net.last(0, Kind::Initiation).bytes;
        let (response, _) = raw.answer(&initiation, 3).expect("ours");
        net.nodes[0].backlog = 512;
        flood(&mut net, &raw.begin(1, label(0)).message, 5_001);
        let mark = net.mark();
        net.inject(0, raw.address, &response);
        assert_eq!(net.kinds(mark, 0), [Kind::CookieReply]);
    }

    fn the_bucket_holds_five_and_refills_twenty_a_second(crypto) {
        let (mut net, raw, cookie) = with_cookie(crypto);
        let mut n = 2;
        let mut send = |net: &mut Net| {
            n += 1;
            let mut begun = raw.begin(n, label(n));
            raw.stamp_cookie(&mut begun.message, &cookie);
            let before = net.nodes[0].count(DropReason::RateLimited);
            net.inject(0, raw.address, &begun.message);
            net.nodes[0].count(DropReason::RateLimited) == before
        };
        // All at once: five pass the rate limit, and reach the check of 20 ms between two
        // initiations.
        let allowed: Vec<bool> = (0..7).map(|_| send(&mut net)).collect();
        assert_eq!(allowed, [true, true, true, true, true, false, false]);
        net.advance(millis(50) - NANO);
        assert!(!send(&mut net), "one nanosecond early");
        net.advance(NANO);
        assert!(send(&mut net));
        assert!(!send(&mut net));
        net.advance(secs(10));
        let allowed = (0..10).filter(|_| send(&mut net)).count();
        assert_eq!(allowed, 5, "no more than the burst");
    }

    fn a_bucket_is_shared_by_an_ipv6_network_and_not_by_ports(crypto) {
        for (others, shared) in [
            (["[2001:db8::7]:1", "[2001:db8::7]:65535"], true),
            (["[2001:db8::8]:4500", "[2001:db8:0:0:ffff:ffff:ffff:ffff]:4500"], true),
            (["[2001:db8:0:1::7]:4500", "[2001:db7:ffff:ffff::7]:4500"], false),
        ] {
            let (mut net, raw) = with_stranger(crypto);
            net.nodes[0].backlog = 512;
            let mut n = 0;
            let mut send = |net: &mut Net, from: &str| {
                let from = from.parse().unwrap();
                n += 2;
                let cookie = demand(net, &raw, from, &raw.begin(n, label(n)));
                let mut begun = raw.begin(n + 1, label(n + 1));
                raw.stamp_cookie(&mut begun.message, &cookie);
                let before = net.nodes[0].count(DropReason::RateLimited);
                net.inject(0, from, &begun.message);
                net.nodes[0].count(DropReason::RateLimited) == before
            };
            for _ in 0..5 {
                assert!(send(&mut net, "[2001:db8::7]:4500"));
            }
            for other in others {
                assert_eq!(send(&mut net, other), !shared, "{other}");
            }
        }
    }

    fn who_has_no_cookie_takes_no_tokens(crypto) {
        let (mut net, raw, cookie) = with_cookie(crypto);
        for n in 0..20 {
            net.inject(0, raw.address, &raw.begin(n, label(n)).message);
        }
        assert!(passes(&mut net, &raw, raw.address, 30, &cookie));
    }

    fn the_initiator_uses_a_cookie_at_its_next_initiation(crypto) {
        let mut net = Net::pair(crypto);
        net.nodes[1].backlog = 512;
        net.ping(0, 1);
        assert_eq!(net.kinds(0, 1), [Kind::CookieReply]);
        assert_eq!(net.kinds(0, 0), [Kind::Initiation], "no resend because of a cookie");
        net.advance(secs(5) - NANO);
        assert_eq!(net.kinds(0, 0), [Kind::Initiation]);
        net.advance(secs(1));
        assert_eq!(net.kinds(0, 1), [Kind::CookieReply, Kind::Response]);
        assert_eq!(net.nodes[1].delivered.len(), 1);
    }

    fn the_first_initiation_has_no_mac2(crypto) {
        let mut net = Net::pair(crypto);
        net.cut();
        net.ping(0, 1);
        assert_eq!(net.log[0].bytes[132..], [0; 16]);
        assert_ne!(net.log[0].bytes[116..132], [0; 16]);
    }

    fn a_cookie_is_used_for_less_than_115_seconds(crypto) {
        for (age, used) in [
            (secs(115) - NANO, true),
            (secs(115), false),
            (secs(115) + NANO, false),
        ] {
            let (mut net, raw) = with_stranger(crypto);
            let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
            net.send(0, &packet);
            let first = net.last(0, Kind::Initiation);
            let cookie = [0x5a; 16];
            net.inject(0, raw.address, &raw.cookie_reply(&first.bytes, &cookie));
            net.set_down(0);
            net.set_up(0);
            net.advance(age);
            net.send(0, &packet);
            let second = net.last(0, Kind::Initiation);
            assert_eq!(second.at, net.now);
            let expected = crypto.hash.mac(&cookie, &[&second.bytes[..132]]);
            assert_eq!(second.bytes[132..] == expected, used, "{age:?}");
            assert_eq!(second.bytes[132..] == [0; 16], !used);
        }
    }

    fn a_cookie_serves_responses_too(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        shake(&mut net, &raw, 1, label(0));
        let response = net.last(0, Kind::Response);
        assert_eq!(response.bytes[76..], [0; 16]);
        let cookie = [0xa5; 16];
        net.inject(0, raw.address, &raw.cookie_reply(&response.bytes, &cookie));
        assert_eq!(net.nodes[0].count(DropReason::CookieRefused), 0);
        net.advance(secs(1));
        shake(&mut net, &raw, 2, label(60));
        let response = net.last(0, Kind::Response);
        let expected = crypto.hash.mac(&cookie, &[&response.bytes[..76]]);
        assert_eq!(response.bytes[76..], expected);
    }

    fn a_cookie_for_a_response_causes_no_datagram(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        shake(&mut net, &raw, 1, label(0));
        let response = net.last(0, Kind::Response);
        let mark = net.mark();
        net.inject(0, raw.address, &raw.cookie_reply(&response.bytes, &[1; 16]));
        assert_eq!(net.nodes[0].count(DropReason::CookieRefused), 0);
        net.advance(secs(20));
        assert_eq!(net.kinds(mark, 0), []);
    }

    fn one_reply_is_taken_per_message(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        let first = net.last(0, Kind::Initiation);
        net.inject(0, raw.address, &raw.cookie_reply(&first.bytes, &[1; 16]));
        let second = raw.cookie_reply(&first.bytes, &[2; 16]);
        assert_refused(&mut net, 0, &second, DropReason::CookieRefused);
        net.advance(secs(6));
        let retry = net.last(0, Kind::Initiation);
        let expected = crypto.hash.mac(&[1; 16], &[&retry.bytes[..132]]);
        assert_eq!(retry.bytes[132..], expected, "the first one counts");
        // One cookie reply is accepted for the message sent since.
        net.inject(0, raw.address, &raw.cookie_reply(&retry.bytes, &[3; 16]));
        net.advance(secs(6));
        let retry = net.last(0, Kind::Initiation);
        let expected = crypto.hash.mac(&[3; 16], &[&retry.bytes[..132]]);
        assert_eq!(retry.bytes[132..], expected);
    }

    fn a_reply_to_an_older_message_is_refused(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        let first = net.last(0, Kind::Initiation);
        net.advance(secs(6));
        let second = net.last(0, Kind::Initiation);
        let mut late = raw.cookie_reply(&first.bytes, &[1; 16]);
        assert_refused(&mut net, 0, &late, DropReason::CookieRefused);
        // Not even with the index of the newer one.
        late[4..8].copy_from_slice(&second.bytes[4..8]);
        assert_refused(&mut net, 0, &late, DropReason::CookieRefused);
    }

    fn a_forged_cookie_reply_destroys_nothing(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        let initiation = net.last(0, Kind::Initiation);
        let reply = raw.cookie_reply(&initiation.bytes, &[1; 16]);
        for bit in (4 * 8..64 * 8).step_by(3) {
            let mut forged = reply.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            assert_refused(&mut net, 0, &forged, DropReason::CookieRefused);
        }
        // The handshake continues, and the genuine cookie reply is still accepted.
        let (response, session) = raw.answer(&initiation.bytes, 3).expect("ours");
        net.inject(0, raw.address, &reply);
        assert_eq!(net.nodes[0].count(DropReason::CookieRefused), 160);
        net.inject(0, raw.address, &response);
        assert!(session.open(&net.last(0, Kind::Data).bytes).is_some());
    }

    fn a_cookie_reply_nobody_asked_for_is_refused(crypto) {
        let (mut net, session, raw) = with_raw(crypto);
        let initiation = raw.begin(3, label(9)).message;
        let mut reply = raw.cookie_reply(&initiation, &[1; 16]);
        assert_refused(&mut net, 0, &reply, DropReason::CookieRefused);
        reply[4..8].copy_from_slice(&session.remote_index.to_le_bytes());
        assert_refused(&mut net, 0, &reply, DropReason::CookieRefused);
    }

    fn a_cookie_of_one_peer_is_not_used_for_another(crypto) {
        let mut net = Net::new(crypto, 3);
        net.join(0, 1);
        net.join(0, 2);
        net.nodes[1].backlog = 512;
        net.ping(0, 1);
        assert_eq!(net.kinds(0, 1), [Kind::CookieReply]);
        net.cut();
        net.ping(0, 2);
        let initiation = net.last(0, Kind::Initiation);
        assert_eq!(initiation.to, net.nodes[2].address);
        assert_eq!(chunk::<16>(&initiation.bytes, 132), [0; 16]);
        assert_ne!(word(&initiation.bytes, 4), 0);
    }

    fn initiations_of_nobody_are_refused(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let other = Raw::new(crypto, crate::common::private_key(5), raw.remote, raw.address);
        let message = other.begin(1, label(0)).message;
        assert_refused_from(&mut net, 0, raw.address, &message, DropReason::UnknownPeer);
    }
}
