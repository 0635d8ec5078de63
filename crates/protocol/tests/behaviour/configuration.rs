//! Configuration of a running device: peers are added, changed and removed; keys of low order;
//! the device's own key.

use taupe_protocol::crypto::default_provider;
use taupe_protocol::hybrid::Suite;
use taupe_protocol::ipnet::IpNet;
use taupe_protocol::key::{PrivateKey, PublicKey};
use taupe_protocol::limits::MAX_PEERS;
use taupe_protocol::message::Kind;
use taupe_protocol::update::{
    AllowedIpChange, DeviceUpdate, PeerUpdate, PostQuantum, PrivateKeyUpdate,
};
use taupe_protocol::{DropReason, UpdateError};

use crate::common::hybrid;
use crate::common::packets::ipv4;
use crate::common::raw::stamp_for;
use crate::common::snapshot::{Snapshot, assert_refused};
use crate::common::{
    Net, Outcome, RAW_INNER, label, private_key, secs, shake, with_raw, with_stranger,
};
use crate::each_backend;

/// The points of order 1, 2, 4 and 8 and their non-canonical encodings (RFC 7748 §6.1).
fn low_order() -> [[u8; 32]; 7] {
    let mut zero = [0; 32];
    let mut one = [0; 32];
    one[0] = 1;
    let eight_a = hex("e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800");
    let eight_b = hex("5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157");
    // p − 1, p, p + 1
    let mut p = [0xff; 32];
    p[31] = 0x7f;
    let (mut below, mut at, mut above) = (p, p, p);
    below[0] = 0xec;
    at[0] = 0xed;
    above[0] = 0xee;
    zero[0] = 0;
    [zero, one, eight_a, eight_b, below, at, above]
}

fn hex(text: &str) -> [u8; 32] {
    std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("hex"))
}

fn keys(net: &Net) -> Vec<PublicKey> {
    net.nodes[0]
        .device
        .status()
        .peers
        .iter()
        .map(|p| p.public_key)
        .collect()
}

fn remove(net: &mut Net, at: usize, key: PublicKey) {
    let mut update = PeerUpdate::new(key);
    update.remove = true;
    net.update(at, update);
}

fn prefixes(net: &Net, peer: usize) -> Vec<String> {
    net.nodes[0].device.status().peers[peer]
        .allowed_ips
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn add(text: &str) -> AllowedIpChange {
    let (address, length) = text.split_once('/').expect("address/length");
    let prefix = IpNet::new(address.parse().unwrap(), length.parse().unwrap());
    AllowedIpChange::Add(prefix.expect("a valid prefix"))
}

each_backend! {
    fn peers_of_low_order_are_accepted_and_never_hear_from_us(crypto) {
        let mut net = Net::new(crypto, 1);
        for (i, point) in low_order().into_iter().enumerate() {
            let mut update = PeerUpdate::new(PublicKey(point));
            update.endpoint = Some(crate::common::stranger());
            update.persistent_keepalive = Some(1);
            update.allowed_ips = vec![add(&format!("10.7.0.{i}/32"))];
            net.update(0, update);
        }
        assert_eq!(keys(&net).len(), 7);
        for i in 0..7 {
            let to = format!("10.7.0.{i}").parse().unwrap();
            let packet = ipv4(net.nodes[0].inner, to, b"x");
            assert_eq!(net.send(0, &packet), Outcome::Staged);
        }
        net.advance(secs(200));
        net.set_down(0);
        net.set_up(0);
        net.set_private_key(0, Some(private_key(77)), label(0));
        net.advance(secs(200));
        assert_eq!(net.mark(), 0, "not one datagram");
    }

    fn hybrid_peers_of_low_order_never_hear_from_us(crypto) {
        for suite in Suite::ALL {
            let mut net = Net::new(crypto, 1);
            net.set_seed(0, Some(hybrid::seed(0)));
            for point in low_order() {
                let mut update = PeerUpdate::new(PublicKey(point));
                update.endpoint = Some(crate::common::stranger());
                update.persistent_keepalive = Some(1);
                update.pq_public_key = Some(hybrid::public(crypto, 1, suite));
                update.post_quantum = Some(Some(PostQuantum::Require));
                net.update(0, update);
            }
            assert_eq!(keys(&net).len(), 7);
            net.advance(secs(200));
            assert_eq!(net.mark(), 0, "{suite:?}: not one datagram");
        }
    }

    fn an_initiation_with_an_ephemeral_key_of_low_order_is_refused(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        for point in low_order() {
            for high_bit in [0, 0x80] {
                let mut message = raw.begin(1, label(0)).message;
                message[8..40].copy_from_slice(&point);
                message[39] |= high_bit;
                raw.stamp(&mut message);
                assert_refused(&mut net, 0, &message, DropReason::InitiationNotAuthentic);
            }
        }
        shake(&mut net, &raw, 1, label(0));
    }

    fn a_response_with_an_ephemeral_key_of_low_order_is_refused(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        let initiation = net.last(0, Kind::Initiation);
        let (response, session) = raw.answer(&initiation.bytes, 3).expect("ours");
        for point in low_order() {
            let mut forged = response.clone();
            forged[12..44].copy_from_slice(&point);
            raw.stamp(&mut forged);
            assert_refused(&mut net, 0, &forged, DropReason::ResponseNotAuthentic);
        }
        net.inject(0, raw.address, &response);
        assert!(session.open(&net.last(0, Kind::Data).bytes).is_some());
    }

    fn a_new_key_is_not_told_to_peers_that_the_same_request_removes(crypto) {
        for replace_peers in [true, false] {
            let mut net = Net::connected(crypto);
            let old = net.nodes[1].public;
            let mut update = PeerUpdate::new(old);
            update.persistent_keepalive = Some(25);
            net.update(0, update);
            net.advance(secs(30));
            let mark = net.mark();
            // The new peer reuses the number of the old one, but not its pending requests.
            let mut gone = PeerUpdate::new(old);
            gone.remove = true;
            let mut new = PeerUpdate::new(PublicKey(crypto.dh.public(private_key(78).expose())));
            new.endpoint = Some(net.nodes[1].address);
            let peers = if replace_peers { vec![new] } else { vec![gone, new] };
            let new_key = PrivateKeyUpdate {
                key: Some(private_key(77)),
                timestamp_floor: label(0),
            };
            net.nodes[0].public = PublicKey(crypto.dh.public(private_key(77).expose()));
            net.apply(
                0,
                DeviceUpdate {
                    private_key: Some(new_key),
                    pq_private_key: None,
                    replace_peers,
                    peers,
                },
            );
            assert_eq!(net.kinds(mark, 0), [], "replace_peers: {replace_peers}");
        }
    }

    fn a_device_is_never_its_own_peer(crypto) {
        let mut net = Net::new(crypto, 1);
        let own = net.nodes[0].public;
        let mut update = PeerUpdate::new(own);
        update.allowed_ips = vec![add("0.0.0.0/0")];
        update.persistent_keepalive = Some(1);
        net.update(0, update);
        assert_eq!(keys(&net), []);
        // A change of the private key does not make the device its own peer either.
        let future = PublicKey(crypto.dh.public(private_key(77).expose()));
        let mut update = PeerUpdate::new(future);
        update.allowed_ips = vec![add("0.0.0.0/0")];
        net.update(0, update);
        assert_eq!(keys(&net), [future]);
        net.set_private_key(0, Some(private_key(77)), label(0));
        assert_eq!(keys(&net), []);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        assert_eq!(net.send(0, &packet), Outcome::NoPeer, "its prefixes are gone, too");
        // A peer can have the device's former key.
        net.update(0, PeerUpdate::new(own));
        assert_eq!(keys(&net), [own]);
    }

    fn its_own_initiation_is_not_an_initiation_to_it(crypto) {
        let mut net = Net::connected(crypto);
        for kind in [Kind::Initiation, Kind::Response] {
            let node = usize::from(kind == Kind::Response);
            let reflected = net.last(node, kind);
            assert_refused(&mut net, node, &reflected.bytes, DropReason::Mac1);
        }
        let public = net.nodes[0].public;
        let mut reflected = net.last(0, Kind::Initiation).bytes;
        stamp_for(crypto, &public, &mut reflected);
        assert_refused(&mut net, 0, &reflected, DropReason::InitiationNotAuthentic);
    }

    fn update_only_makes_no_peer(crypto) {
        let mut net = Net::new(crypto, 2);
        let mut update = net.peer_update(1);
        update.update_only = true;
        net.update(0, update);
        assert_eq!(keys(&net), []);
        let peer = net.peer_update(1);
        net.update(0, peer);
        let mut update = PeerUpdate::new(net.nodes[1].public);
        update.update_only = true;
        update.persistent_keepalive = Some(9);
        net.cut();
        net.update(0, update);
        assert_eq!(net.nodes[0].device.status().peers[0].persistent_keepalive, 9);
    }

    fn removing_a_peer_ends_everything_with_it(crypto) {
        let mut net = Net::connected(crypto);
        net.hold();
        net.ping(1, 0);
        net.mend();
        let key = net.nodes[1].public;
        remove(&mut net, 0, key);
        assert_eq!(keys(&net), []);
        assert_eq!(net.nodes[0].device.sessions().len(), 0);
        assert_eq!(net.nodes[0].device.next_deadline(), None);
        net.release();
        assert_eq!(net.nodes[0].delivered.len(), 0);
        assert_eq!(net.nodes[0].count(DropReason::UnknownSession), 1);
        assert_eq!(net.ping(0, 1), Outcome::NoPeer);
        let mark = net.mark();
        net.advance(secs(30));
        net.ping(1, 0);
        assert_eq!(net.kinds(mark, 0), [], "a peer that is gone is not answered");
        // Removing a peer that does not exist is no error.
        remove(&mut net, 0, key);
    }

    fn removing_a_peer_ends_its_handshake(crypto) {
        let (mut net, raw) = with_stranger(crypto);
        let packet = ipv4(net.nodes[0].inner, RAW_INNER, b"x");
        net.send(0, &packet);
        let (response, _) = raw.answer(&net.last(0, Kind::Initiation).bytes, 3).expect("ours");
        remove(&mut net, 0, raw.keys.public);
        assert_refused(&mut net, 0, &response, DropReason::UnknownHandshake);
        net.advance(secs(100));
        assert_eq!(net.kinds(0, 0), [Kind::Initiation]);
    }

    fn a_new_peer_inherits_nothing_of_the_removed_one(crypto) {
        let (mut net, session, raw) = with_raw(crypto);
        remove(&mut net, 0, raw.keys.public);
        let mut other = PeerUpdate::new(PublicKey([9; 32]));
        other.allowed_ips = vec![add("10.1.0.0/16")];
        net.update(0, other);
        assert_refused(&mut net, 0, &session.seal(5, &[]), DropReason::UnknownSession);
        let status = net.nodes[0].device.status();
        let peer = &status.peers[0];
        assert_eq!((peer.tx_bytes, peer.rx_bytes, peer.endpoint), (0, 0, None));
        assert_eq!(peer.latest_handshake, None);
        assert_eq!(prefixes(&net, 0), ["10.1.0.0/16"]);
    }

    fn replace_peers_keeps_none_of_the_old(crypto) {
        let mut net = Net::new(crypto, 4);
        for i in [1, 2] {
            net.join(0, i);
            net.ping(i, 0);
        }
        let update = DeviceUpdate {
            replace_peers: true,
            peers: vec![net.peer_update(3), net.peer_update(2)],
            ..DeviceUpdate::default()
        };
        net.apply(0, update);
        assert_eq!(keys(&net), [net.nodes[3].public, net.nodes[2].public], "in this order");
        assert_eq!(net.nodes[0].device.sessions().len(), 0);
        assert_eq!(net.nodes[0].device.status().peers[1].rx_bytes, 0);
        net.apply(0, DeviceUpdate { replace_peers: true, ..DeviceUpdate::default() });
        assert_eq!(keys(&net), []);
        assert_eq!(net.nodes[0].device.next_deadline(), None);
    }

    fn an_allowed_ip_moves_between_peers(crypto) {
        let mut net = Net::new(crypto, 3);
        net.join(0, 1);
        net.join(0, 2);
        assert_eq!((prefixes(&net, 0), prefixes(&net, 1)), (vec!["10.0.0.2/32".into()], vec!["10.0.0.3/32".into()]));
        let mut update = PeerUpdate::new(net.nodes[2].public);
        update.allowed_ips = vec![add("10.0.0.2/32")];
        net.update(0, update);
        assert_eq!(prefixes(&net, 0), Vec::<String>::new());
        assert_eq!(prefixes(&net, 1), ["10.0.0.2/32", "10.0.0.3/32"]);
        // Removing a prefix from its former owner has no effect.
        let own = IpNet::from(net.nodes[1].inner);
        let mut update = PeerUpdate::new(net.nodes[1].public);
        update.allowed_ips = vec![AllowedIpChange::Remove(own)];
        net.update(0, update);
        assert_eq!(prefixes(&net, 1).len(), 2);
    }

    fn replace_allowed_ips_keeps_none_of_the_old(crypto) {
        let mut net = Net::new(crypto, 3);
        net.join(0, 1);
        net.join(0, 2);
        let mut update = PeerUpdate::new(net.nodes[1].public);
        update.replace_allowed_ips = true;
        update.allowed_ips = vec![add("10.2.0.0/16"), add("2001:db8::/64")];
        net.update(0, update);
        assert_eq!(prefixes(&net, 0), ["10.2.0.0/16", "2001:db8::/64"]);
        assert_eq!(prefixes(&net, 1), ["10.0.0.3/32"], "another peer's stay");
        let mut update = PeerUpdate::new(net.nodes[1].public);
        update.replace_allowed_ips = true;
        net.update(0, update);
        assert_eq!(prefixes(&net, 0), Vec::<String>::new());
        // Within one update, each change sees the earlier ones.
        let mut update = PeerUpdate::new(net.nodes[1].public);
        let Ok(prefix) = IpNet::new([10, 3, 0, 0].into(), 16) else { unreachable!() };
        update.allowed_ips = vec![
            AllowedIpChange::Add(prefix),
            AllowedIpChange::Remove(prefix),
            add("10.4.0.0/16"),
        ];
        net.update(0, update);
        assert_eq!(prefixes(&net, 0), ["10.4.0.0/16"]);
    }

    fn a_peer_named_again_in_one_request_is_changed_again(crypto) {
        let mut net = Net::new(crypto, 3);
        net.join(0, 1);
        net.join(0, 2);
        let [first, second] = [1, 2].map(|i| net.nodes[i].public);
        let change = |key, replace, prefixes: &[&str]| {
            let mut update = PeerUpdate::new(key);
            update.replace_allowed_ips = replace;
            update.allowed_ips = prefixes.iter().map(|text| add(text)).collect();
            update
        };
        let mut gone = PeerUpdate::new(second);
        gone.remove = true;
        let peers = vec![
            change(first, false, &["10.2.0.0/16", "10.3.0.0/16"]),
            change(second, false, &["10.3.0.0/16", "10.4.0.0/16"]),
            // `replace_allowed_ips` removes the peer's own prefixes, but not one that has moved
            // to another peer.
            change(first, true, &["10.5.0.0/16"]),
            change(first, false, &["10.6.0.0/16"]),
        ];
        net.apply(0, DeviceUpdate { peers, ..DeviceUpdate::default() });
        assert_eq!(prefixes(&net, 0), ["10.5.0.0/16", "10.6.0.0/16"]);
        assert_eq!(prefixes(&net, 1), ["10.0.0.3/32", "10.3.0.0/16", "10.4.0.0/16"]);
        // A peer that is removed and added again keeps no prefixes.
        let peers = vec![
            change(second, false, &["10.7.0.0/16"]),
            gone,
            change(second, false, &["10.8.0.0/16"]),
        ];
        net.apply(0, DeviceUpdate { peers, ..DeviceUpdate::default() });
        assert_eq!(prefixes(&net, 0), ["10.5.0.0/16", "10.6.0.0/16"]);
        assert_eq!(prefixes(&net, 1), ["10.8.0.0/16"]);
    }

    fn many_prefixes_read_back(crypto) {
        let mut net = Net::new(crypto, 2);
        let mut update = net.peer_update(1);
        update.allowed_ips = (0..20_000_u32)
            .map(|n| {
                let [_, a, b, c] = n.to_be_bytes();
                AllowedIpChange::Add(IpNet::new([10, 64 + a, b, c].into(), 32).expect("valid"))
            })
            .collect();
        net.update(0, update);
        let read = prefixes(&net, 0);
        assert_eq!(read.len(), 20_000);
        assert_eq!(read.last().map(String::as_str), Some("10.64.78.31/32"));
    }

    fn an_endpoint_set_later_lets_out_what_waits(crypto) {
        let mut net = Net::new(crypto, 2);
        let back = net.peer_update(0);
        net.update(1, back);
        let mut update = net.peer_update(1);
        update.endpoint = None;
        update.persistent_keepalive = Some(0);
        net.update(0, update);
        assert_eq!(net.ping(0, 1), Outcome::NoEndpoint);
        let with_endpoint = net.peer_update(1);
        net.update(0, with_endpoint);
        assert_eq!(net.ping(0, 1), Outcome::Staged);
        assert_eq!(net.nodes[1].delivered.len(), 1);
    }

    fn an_update_that_says_nothing_changes_nothing(crypto) {
        let mut net = Net::connected(crypto);
        let before = Snapshot::of(&mut net.nodes[0]);
        let mark = net.mark();
        net.apply(0, DeviceUpdate::default());
        let nothing = PeerUpdate::new(net.nodes[1].public);
        net.update(0, nothing);
        let same = net.peer_update(1);
        net.update(0, same);
        assert_eq!(Snapshot::of(&mut net.nodes[0]), before);
        assert_eq!(net.mark(), mark);
    }

    fn up_and_down_twice_is_up_and_down(crypto) {
        let mut net = Net::connected(crypto);
        let before = Snapshot::of(&mut net.nodes[0]);
        net.set_up(0);
        assert_eq!(Snapshot::of(&mut net.nodes[0]), before);
        net.set_down(0);
        net.set_down(0);
        assert!(!net.nodes[0].device.is_up());
        net.set_up(0);
        net.advance(secs(1));
        net.ping(0, 1);
        assert_eq!(net.nodes[1].delivered.len(), 2);
    }
}

#[test]
fn private_keys_are_clamped_and_read_back_so() {
    let key = PrivateKey::new([0xff; 32]).expect("not zero");
    assert_eq!((key.expose()[0], key.expose()[31]), (248, 127));
    assert!(PrivateKey::new([0; 32]).is_none());
    let mut lowest = [0; 32];
    lowest[0] = 1;
    let key = PrivateKey::new(lowest).expect("not zero, though clamping clears the bit");
    assert_eq!((key.expose()[0], key.expose()[31]), (0, 64));
}

#[test]
fn too_many_peers_are_refused_whole() {
    let mut net = Net::new(default_provider(), 2);
    let peer = net.peer_update(1);
    net.update(0, peer);
    // Together with the existing peer, one more than 2^20.
    let peers = (0..MAX_PEERS as u32)
        .map(|n| {
            let mut key = [3; 32];
            key[..4].copy_from_slice(&n.to_be_bytes());
            PeerUpdate::new(PublicKey(key))
        })
        .collect();
    let now = net.now_at(0);
    let update = DeviceUpdate {
        peers,
        ..DeviceUpdate::default()
    };
    let refused = net.nodes[0].device.update(now, update);
    assert_eq!(refused, Err(UpdateError::TooManyPeers(MAX_PEERS + 1)));
    assert_eq!(keys(&net), [net.nodes[1].public]);
}
