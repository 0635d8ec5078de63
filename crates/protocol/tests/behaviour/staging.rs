//! Packets that wait for a session; padding; allowed IPs of sent and received packets.

use std::net::IpAddr;

use taupe_protocol::ipnet::IpNet;
use taupe_protocol::message::Kind;
use taupe_protocol::update::{AllowedIpChange, PeerUpdate};
use taupe_protocol::{DropReason, padded_len};

use crate::common::packets::{ipv4, ipv6, sized};
use crate::common::{Net, Outcome, RAW_INNER, label, secs, shake, with_raw, with_stranger};
use crate::each_backend;

fn prefix(text: &str) -> IpNet {
    let (address, length) = text.split_once('/').expect("address/length");
    IpNet::new(address.parse().unwrap(), length.parse().unwrap()).expect("a valid prefix")
}

fn allow(net: &mut Net, at: usize, of: usize, changes: &[&str]) {
    let mut update = PeerUpdate::new(net.nodes[of].public);
    update.allowed_ips = changes
        .iter()
        .map(|text| match text.strip_prefix('-') {
            Some(text) => AllowedIpChange::Remove(prefix(text)),
            None => AllowedIpChange::Add(prefix(text)),
        })
        .collect();
    net.update(at, update);
}

each_backend! {
    fn a_hundred_and_twenty_eight_wait_and_the_oldest_go_first(crypto) {
        for (count, lost) in [(127, 0), (128, 0), (129, 1), (200, 72)] {
            let mut net = Net::pair(crypto);
            net.hold();
            for mark in 0..count {
                let packet = sized(net.nodes[0].inner, net.nodes[1].inner, 64, mark);
                assert_eq!(net.send(0, &packet), Outcome::Staged);
            }
            assert_eq!(net.nodes[0].count(DropReason::StagedOverflow), u64::from(lost));
            net.mend();
            net.release();
            let marks: Vec<u8> = net.nodes[1].delivered.iter().map(|p| p[63]).collect();
            let expected: Vec<u8> = (lost..count).collect();
            assert_eq!(marks, expected, "in order, the newest {}", count - lost);
        }
    }

    fn a_staged_batch_counts_its_packets(crypto) {
        let mut net = Net::pair(crypto);
        net.cut();
        let packet = sized(net.nodes[0].inner, net.nodes[1].inner, 64, 0);
        net.send_batch(0, &packet, 100);
        assert_eq!(net.nodes[0].count(DropReason::StagedOverflow), 0);
        net.send_batch(0, &packet, 100);
        assert_eq!(net.nodes[0].count(DropReason::StagedOverflow), 72);
    }

    fn one_initiation_serves_all_that_wait(crypto) {
        let mut net = Net::pair(crypto);
        net.hold();
        for _ in 0..10 {
            net.ping(0, 1);
        }
        net.mend();
        net.release();
        assert_eq!(net.times(0, 0, Kind::Initiation).len(), 1);
        assert_eq!(net.nodes[1].delivered.len(), 10);
    }

    fn nothing_overtakes_what_waits(crypto) {
        let mut net = Net::pair(crypto);
        net.hold();
        for mark in 0..5 {
            let packet = sized(net.nodes[0].inner, net.nodes[1].inner, 64, mark);
            net.send(0, &packet);
        }
        net.mend();
        net.release();
        let packet = sized(net.nodes[0].inner, net.nodes[1].inner, 64, 5);
        assert_eq!(net.send(0, &packet), Outcome::Sent);
        let marks: Vec<u8> = net.nodes[1].delivered.iter().map(|p| p[63]).collect();
        assert_eq!(marks, [0, 1, 2, 3, 4, 5]);
    }

    fn nothing_overtakes_before_the_control_loop_has_looked(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        net.cut();
        let first = sized(net.nodes[0].inner, RAW_INNER, 64, 1);
        let second = sized(net.nodes[0].inner, RAW_INNER, 64, 2);
        net.send(0, &first);
        net.mend();
        net.advance(secs(1));
        let session = shake(&mut net, &raw, 8, label(60));
        let mark = net.mark();
        // The confirmation has arrived, and the staged packets have not been sent yet.
        net.receive(0, raw.address, &session.seal(0, &[]), 32);
        assert_eq!(net.send(0, &second), Outcome::Staged);
        let sent: Vec<u8> = net
            .since(mark, 0)
            .iter()
            .map(|d| session.open(&d.bytes).expect("ours").1[63])
            .collect();
        assert_eq!(sent, [1, 2]);
    }

    fn what_waits_is_purged_with_its_reason_for_waiting(crypto) {
        type End = fn(&mut Net);
        let ends: [(&str, End); 3] = [
            ("down", |net| net.set_down(0)),
            ("removed", |net| {
                let mut remove = PeerUpdate::new(net.nodes[1].public);
                remove.remove = true;
                net.update(0, remove);
            }),
            ("given up", |net| net.advance(secs(110))),
        ];
        for (name, end) in ends {
            let mut net = Net::pair(crypto);
            net.cut();
            for _ in 0..7 {
                net.ping(0, 1);
            }
            assert_eq!(net.nodes[0].count(DropReason::StagedPurged), 0);
            end(&mut net);
            assert_eq!(net.nodes[0].count(DropReason::StagedPurged), 7, "{name}");
            net.mend();
            net.set_up(0);
            net.advance(secs(200));
            assert_eq!(net.nodes[1].delivered.len(), 0, "{name}: gone for good");
        }
    }

    fn plaintext_is_padded_to_sixteen_and_cut_again(crypto) {
        for length in 20..=100 {
            let (mut net, session, _) = with_raw(crypto);
            let packet = sized(net.nodes[0].inner, RAW_INNER, length, 7);
            net.send(0, &packet);
            let data = net.last(0, Kind::Data);
            let (_, plaintext) = session.open(&data.bytes).expect("ours");
            assert_eq!(plaintext.len(), length.next_multiple_of(16));
            assert_eq!(plaintext[..length], packet);
            assert!(plaintext[length..].iter().all(|byte| *byte == 0), "padded with zeros");

            let packet = sized(RAW_INNER, net.nodes[0].inner, length, 7);
            for extra in [0, 1, 16, 255] {
                let mut padded = packet.clone();
                padded.resize(length + extra, 0xff);
                let counter = (length + extra) as u64;
                net.inject(0, crate::common::stranger(), &session.seal(counter, &padded));
                assert_eq!(net.nodes[0].delivered.last(), Some(&packet), "{extra} more");
            }
        }
    }

    fn a_staged_packet_is_padded_like_any_other(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = sized(net.nodes[0].inner, RAW_INNER, 33, 7);
        net.send(0, &packet);
        let (response, session) =
            raw.answer(&net.last(0, Kind::Initiation).bytes, 3).expect("ours");
        net.inject(0, raw.address, &response);
        let (_, plaintext) = session.open(&net.last(0, Kind::Data).bytes).expect("ours");
        assert_eq!(plaintext.len(), 48);
    }

    fn a_source_must_be_the_senders(crypto) {
        let (mut net, session, raw) = with_raw(crypto);
        let inner = net.nodes[0].inner;
        let mut counter = 1;
        for (source, delivered) in [
            ("10.0.0.8", false),
            ("10.0.0.9", true),
            ("10.0.0.10", false),
            ("0.0.0.0", false),
            ("255.255.255.255", false),
        ] {
            let before = net.nodes[0].delivered.len();
            let refused = net.nodes[0].count(DropReason::SourceNotAllowed);
            let packet = ipv4(source.parse().unwrap(), inner, b"x");
            net.inject(0, raw.address, &session.seal(counter, &packet));
            counter += 1;
            let got = net.nodes[0].delivered.len() - before;
            assert_eq!(got, usize::from(delivered), "{source}");
            let more = net.nodes[0].count(DropReason::SourceNotAllowed) - refused;
            assert_eq!(more, u64::from(!delivered));
        }
        let packet = ipv6("2001:db8::9".parse().unwrap(), "2001:db8::1".parse().unwrap(), b"x");
        net.inject(0, raw.address, &session.seal(counter, &packet));
        assert_eq!(net.nodes[0].delivered.len(), 1);
    }

    fn a_disallowed_packet_is_not_counted_as_received(crypto) {
        let (mut net, session, raw) = with_raw(crypto);
        let before = net.nodes[0].device.status().peers[0].rx_bytes;
        let packet = ipv4("10.99.0.1".parse().unwrap(), net.nodes[0].inner, b"x");
        net.inject(0, raw.address, &session.seal(1, &packet));
        assert_eq!(net.nodes[0].device.status().peers[0].rx_bytes, before);
    }

    fn a_more_specific_prefix_of_another_peer_wins(crypto) {
        let mut net = Net::new(crypto, 3);
        net.join(0, 1);
        net.join(0, 2);
        allow(&mut net, 0, 1, &["10.9.0.0/16", "2001:db8::/32"]);
        for i in [1, 2] {
            net.ping(i, 0);
        }
        let inner = net.nodes[0].inner;
        let send = |net: &mut Net, from: usize, source: &str| {
            // The sender routes everything to node 0.
            allow(net, from, 0, &["0.0.0.0/0", "::/0"]);
            let before = net.nodes[0].delivered.len();
            let source: IpAddr = source.parse().unwrap();
            let packet = match source {
                IpAddr::V4(_) => ipv4(source, inner, b"x"),
                IpAddr::V6(_) => ipv6(source, "2001:db8::1".parse().unwrap(), b"x"),
            };
            net.send(from, &packet);
            net.nodes[0].delivered.len() - before == 1
        };
        assert!(send(&mut net, 1, "10.9.1.1"));
        assert!(send(&mut net, 1, "2001:db8:1::1"));
        assert!(!send(&mut net, 2, "10.9.1.1"));
        allow(&mut net, 0, 2, &["10.9.1.0/24", "2001:db8:1::/48"]);
        assert!(!send(&mut net, 1, "10.9.1.1"), "the subset is another's now");
        assert!(!send(&mut net, 1, "2001:db8:1::1"));
        assert!(send(&mut net, 2, "10.9.1.1"));
        assert!(send(&mut net, 2, "2001:db8:1::1"));
        for edge in ["10.9.0.255", "10.9.2.0", "2001:db8:2::"] {
            assert!(send(&mut net, 1, edge), "{edge}");
            assert!(!send(&mut net, 2, edge), "{edge}");
        }
        allow(&mut net, 0, 2, &["-10.9.1.0/24"]);
        assert!(send(&mut net, 1, "10.9.1.1"), "back to the shorter prefix");
    }

    fn packets_go_to_the_longest_prefix(crypto) {
        let mut net = Net::new(crypto, 3);
        net.join(0, 1);
        net.join(0, 2);
        allow(&mut net, 0, 1, &["0.0.0.0/0"]);
        allow(&mut net, 0, 2, &["172.16.0.0/12"]);
        let inner = net.nodes[0].inner;
        net.cut();
        for (destination, peer) in [
            ("172.15.255.255", 1),
            ("172.16.0.0", 2),
            ("172.31.255.255", 2),
            ("172.32.0.0", 1),
            ("8.8.8.8", 1),
        ] {
            net.set_down(0);
            net.set_up(0);
            let mark = net.mark();
            let packet = ipv4(inner, destination.parse().unwrap(), b"x");
            assert_eq!(net.send(0, &packet), Outcome::Staged);
            assert_eq!(net.since(mark, 0)[0].to, net.nodes[peer].address, "{destination}");
        }
        let nowhere = ipv6("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap(), b"x");
        assert_eq!(net.send(0, &nowhere), Outcome::NoPeer);
    }

    fn inner_packets_that_lie_about_their_length_are_refused(crypto) {
        let (mut net, session, raw) = with_raw(crypto);
        let inner = net.nodes[0].inner;
        let good4 = ipv4(RAW_INNER, inner, &[0; 44]);
        let good6 = ipv6("2001:db8::9".parse().unwrap(), "2001:db8::1".parse().unwrap(), &[0; 24]);
        let mut raw_update = PeerUpdate::new(raw.keys.public);
        raw_update.allowed_ips = vec![AllowedIpChange::Add(prefix("2001:db8::9/128"))];
        net.update(0, raw_update);
        let with = |packet: &[u8], at: usize, value: u16| {
            let mut packet = packet.to_vec();
            packet[at..at + 2].copy_from_slice(&value.to_be_bytes());
            packet
        };
        let mut cases: Vec<(Vec<u8>, bool)> = vec![
            (good4.clone(), true),
            (good6.clone(), true),
            (with(&good4, 2, 64), true),
            (with(&good4, 2, 65), false),
            (with(&good4, 2, 20), true),
            (with(&good4, 2, 19), false),
            (with(&good4, 2, 0), false),
            (with(&good4, 2, u16::MAX), false),
            (with(&good6, 4, 24), true),
            (with(&good6, 4, 25), false),
            (with(&good6, 4, 0), true),
            // 40 + 65,496 is 2^16: a sum of 16 bits would be 0.
            (with(&good6, 4, 65_495), false),
            (with(&good6, 4, 65_496), false),
            (with(&good6, 4, u16::MAX), false),
            (good4[..19].to_vec(), false),
            (good6[..39].to_vec(), false),
            (vec![0x45], false),
            (vec![0x60], false),
            (vec![0], false),
            (vec![0; 64], false),
            (vec![0xff; 64], false),
        ];
        for version in [0, 1, 5, 7, 15] {
            let mut packet = good4.clone();
            packet[0] = version << 4 | 5;
            cases.push((packet, false));
        }
        for (words, valid) in [(0, false), (4, false), (5, true), (15, true)] {
            let mut packet = good4.clone();
            packet[0] = 0x40 | words;
            cases.push((packet, valid));
        }
        for (counter, (packet, valid)) in (1..).zip(cases) {
            let before = (net.nodes[0].delivered.len(), net.nodes[0].count(DropReason::InnerMalformed));
            net.inject(0, raw.address, &session.seal(counter, &packet));
            let (delivered, refused) = if valid { (1, 0) } else { (0, 1) };
            assert_eq!(net.nodes[0].delivered.len() - before.0, delivered, "{packet:x?}");
            assert_eq!(net.nodes[0].count(DropReason::InnerMalformed) - before.1, refused);
        }
    }
}

#[test]
fn padding_at_its_boundaries() {
    for (length, mtu, padded) in [
        (0, 1420, 0),
        (1, 1420, 16),
        (15, 1420, 16),
        (16, 1420, 16),
        (17, 1420, 32),
        (1407, 1420, 1408),
        (1408, 1420, 1408),
        // 1,424 would exceed the MTU.
        (1409, 1420, 1420),
        (1419, 1420, 1420),
        (1420, 1420, 1420),
        (1421, 1420, 1436),
        (65_535, 65_535, 65_535),
        (1280, 1280, 1280),
        (1269, 1299, 1280),
        (1, 0, 16),
    ] {
        assert_eq!(padded_len(length, mtu), padded, "{length} of {mtu}");
    }
    for mtu in [0, 1, 15, 16, 17, 576, 1280, 1420, 65_535] {
        for length in 0..3000 {
            let padded = padded_len(length, mtu);
            assert!(
                padded >= length && padded < length + 16,
                "{length} of {mtu}"
            );
            if mtu > 0 && length <= mtu {
                assert!(padded <= mtu, "{length} of {mtu}");
            }
        }
    }
}
