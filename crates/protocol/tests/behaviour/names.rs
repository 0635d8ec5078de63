//! Endpoint names: when the name of a silent peer is looked up, and how the result is used.

use std::net::SocketAddr;
use std::time::Duration;

use taupe_protocol::crypto::Provider;
use taupe_protocol::limits::{MAX_RESOLVE_INTERVAL, RESOLVE_AFTER};
use taupe_protocol::message::Kind;
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::{DeviceUpdate, EndpointName, PeerUpdate};

use crate::common::random::Numbers;
use crate::common::{NANO, Net, START, millis, private_key, secs, set_numbers};
use crate::each_backend;

/// Jitter from low numbers stays below this in a whole test.
const NEGLIGIBLE: Duration = Duration::from_micros(10);

fn name() -> EndpointName {
    EndpointName::new("vpn.example.org", 51820).expect("a name")
}

fn elsewhere() -> SocketAddr {
    "203.0.113.7:51820".parse().expect("an address")
}

/// Returns a pair whose node 0 has a name for node 1. No handshake has completed.
fn never_heard(crypto: &'static Provider) -> Net {
    let mut net = Net::pair(crypto);
    set_numbers(&net, 0, Numbers::Low(0));
    rename(&mut net, Some(name()));
    net
}

/// Returns such a pair after a handshake. Its sessions have been erased.
fn named(crypto: &'static Provider) -> Net {
    let mut net = never_heard(crypto);
    net.ping(1, 0);
    for node in [0, 1] {
        net.set_down(node);
        net.set_up(node);
        net.nodes[node].delivered.clear();
    }
    net.log.clear();
    net
}

fn rename(net: &mut Net, name: Option<EndpointName>) {
    let mut update = PeerUpdate::new(net.nodes[1].public);
    update.endpoint_name = Some(name);
    net.update(0, update);
}

fn set_endpoint(net: &mut Net, endpoint: SocketAddr, name: Option<EndpointName>) {
    let mut update = PeerUpdate::new(net.nodes[1].public);
    update.endpoint = Some(endpoint);
    update.endpoint_name = name.map(Some);
    net.update(0, update);
}

fn endpoint(net: &Net) -> Option<SocketAddr> {
    net.nodes[0].device.status().peers[0].endpoint
}

fn shown_name(net: &Net) -> Option<EndpointName> {
    net.nodes[0].device.status().peers[0].endpoint_name.clone()
}

/// Sends a packet every second up to `offset`.
fn insist(net: &mut Net, offset: Duration) {
    while net.now < START + offset {
        net.ping(0, 1);
        net.advance(secs(1));
    }
}

fn answer(net: &mut Net, addresses: &[SocketAddr]) -> Option<SocketAddr> {
    let (now, key) = (net.now_at(0), net.nodes[1].public);
    let device = &mut net.nodes[0].device;
    let moved = device.handle_addresses(now, &key, &name(), addresses);
    net.run();
    moved
}

/// Returns the times of look-ups, since `START`.
fn asked(net: &Net) -> Vec<Duration> {
    let asked = net.nodes[0].asked.iter();
    asked.map(|(at, _, _)| at.since(START)).collect()
}

#[track_caller]
fn assert_asked(net: &Net, expected: &[u64]) {
    let asked = asked(net);
    assert_eq!(asked.len(), expected.len(), "{asked:?}");
    for (asked, expected) in asked.iter().zip(expected) {
        assert!(asked.abs_diff(secs(*expected)) < NEGLIGIBLE, "{asked:?}");
    }
}

each_backend! {
    fn asked_after_15_s_and_then_ever_less(crypto) {
        let mut net = named(crypto);
        net.cut();
        net.ping(0, 1);
        net.advance_to_offset(RESOLVE_AFTER - NANO);
        assert_asked(&net, &[]);
        net.advance_to_offset(RESOLVE_AFTER + NEGLIGIBLE);
        assert_asked(&net, &[15]);
        let (_, key, asked) = net.nodes[0].asked[0].clone();
        assert_eq!((key, asked), (net.nodes[1].public, name()));
        let here = net.nodes[1].address;
        for second in 16..=700 {
            assert_eq!(answer(&mut net, &[here]), None);
            insist(&mut net, secs(second));
        }
        assert_asked(&net, &[15, 30, 60, 120, 240, 360, 480, 600]);
        assert_eq!(MAX_RESOLVE_INTERVAL, secs(120));
    }

    fn nobody_asks_for_a_peer_without_a_name(crypto) {
        let mut net = Net::pair(crypto);
        net.cut();
        insist(&mut net, secs(100));
        assert_asked(&net, &[]);
    }

    fn nobody_asks_for_an_idle_peer(crypto) {
        let mut net = named(crypto);
        net.ping(0, 1);
        assert_eq!(net.nodes[1].delivered.len(), 1);
        net.advance(secs(30));
        net.cut();
        net.advance(secs(1000));
        assert_asked(&net, &[]);
        assert_eq!(net.next_deadline(), None, "it sleeps");
    }

    fn an_answer_to_a_handshake_ends_the_silence(crypto) {
        let mut net = named(crypto);
        net.cut();
        net.ping(0, 1);
        net.advance_to_offset(secs(9));
        net.mend();
        net.advance_to_offset(secs(60));
        assert_eq!(net.nodes[1].delivered.len(), 1);
        assert_asked(&net, &[]);
        // The next silence starts from the beginning.
        net.cut();
        net.advance_to_offset(secs(200));
        net.ping(0, 1);
        net.advance_to_offset(secs(214));
        assert_asked(&net, &[]);
        net.advance_to_offset(secs(216));
        assert_asked(&net, &[215]);
    }

    fn giving_up_ends_the_silence_too(crypto) {
        let mut net = named(crypto);
        net.cut();
        net.ping(0, 1);
        for second in 1..1000 {
            net.advance_to_offset(secs(second));
            answer(&mut net, &[]);
        }
        assert_asked(&net, &[15, 30, 60]);
        net.ping(0, 1);
        net.advance_to_offset(secs(1020));
        assert_asked(&net, &[15, 30, 60, 1014]);
    }

    fn nobody_asks_again_before_the_answer(crypto) {
        let mut net = named(crypto);
        net.cut();
        insist(&mut net, secs(1000));
        assert_asked(&net, &[15]);
        assert_eq!(answer(&mut net, &[]), None);
        insist(&mut net, secs(1006));
        assert_eq!(asked(&net).len(), 2);
    }

    fn an_endpoint_that_is_not_among_the_answers_moves_to_the_first(crypto) {
        let mut net = named(crypto);
        let old = net.nodes[1].address;
        net.nodes[1].address = elsewhere();
        net.ping(0, 1);
        net.advance_to_offset(secs(16));
        assert_asked(&net, &[15]);
        let port = SocketAddr::new(old.ip(), old.port() - 1);
        let mark = net.mark();
        assert_eq!(answer(&mut net, &[elsewhere(), port]), Some(elsewhere()));
        assert_eq!(endpoint(&net), Some(elsewhere()));
        net.advance_to_offset(secs(21));
        // As soon as Rekey-Timeout permits.
        let times = net.times(mark, 0, Kind::Initiation);
        assert_eq!(times.len(), 1);
        assert!(times[0].abs_diff(secs(20)) < NEGLIGIBLE, "{times:?}");
        assert_eq!(net.nodes[1].delivered.len(), 1, "what waited arrives");
        assert_eq!(shown_name(&net), Some(name()));
    }

    fn a_new_address_is_tried_as_often_as_the_old_one(crypto) {
        for (moves, last) in [(false, 95), (true, 110)] {
            let mut net = named(crypto);
            net.cut();
            net.ping(0, 1);
            net.advance_to_offset(secs(16));
            let addresses: &[SocketAddr] = if moves { &[elsewhere()] } else { &[] };
            assert_eq!(answer(&mut net, addresses).is_some(), moves);
            net.advance(secs(1000));
            let times = net.times(0, 0, Kind::Initiation);
            let at = *times.last().expect("an initiation");
            assert!(at.abs_diff(secs(last)) < NEGLIGIBLE, "{at:?}");
        }
    }

    fn another_port_is_another_endpoint(crypto) {
        let mut net = named(crypto);
        net.cut();
        insist(&mut net, secs(16));
        let mut other = net.nodes[1].address;
        other.set_port(other.port() - 1);
        assert_eq!(answer(&mut net, &[other]), Some(other));
    }

    fn a_failed_look_up_changes_nothing(crypto) {
        let mut net = named(crypto);
        net.cut();
        insist(&mut net, secs(16));
        let key = net.nodes[1].public;
        let before = net.nodes[0].device.snapshot(&key);
        assert_eq!(answer(&mut net, &[]), None);
        assert!(net.nodes[0].device.snapshot(&key) == before);
    }

    fn addresses_take_turns_of_two_rounds(crypto) {
        let mut net = named(crypto);
        net.cut();
        let here = net.nodes[1].address;
        let next = "[2001:db8::7]:51820".parse().expect("an address");
        let all = [here, elsewhere(), next];
        let mut moves = Vec::new();
        for second in 1..1000 {
            insist(&mut net, secs(second));
            moves.extend(answer(&mut net, &all));
        }
        assert_asked(&net, &[15, 30, 60, 120, 240, 360, 480, 600, 720, 840, 960]);
        assert_eq!(moves, [elsewhere(), next, here, elsewhere(), next]);
    }

    fn a_single_address_stays(crypto) {
        let mut net = named(crypto);
        net.cut();
        let here = net.nodes[1].address;
        for second in 1..500 {
            insist(&mut net, secs(second));
            assert_eq!(answer(&mut net, &[here, here]), None);
        }
        assert_eq!(asked(&net).len(), 7);
    }

    fn before_the_first_handshake_the_second_initiation_asks(crypto) {
        let mut net = never_heard(crypto);
        net.cut();
        net.ping(0, 1);
        for second in 1..=100 {
            net.advance_to_offset(secs(second));
            answer(&mut net, &[]);
        }
        assert_asked(&net, &[5, 20, 35, 65]);
    }

    fn before_the_first_handshake_another_address_is_tried_a_second_later(crypto) {
        let mut net = never_heard(crypto);
        let dead = net.nodes[1].address;
        net.nodes[1].address = elsewhere();
        net.ping(0, 1);
        net.advance_to_offset(secs(5) + NEGLIGIBLE);
        assert_eq!(answer(&mut net, &[dead, elsewhere()]), Some(elsewhere()));
        net.advance_to_offset(secs(6) + NEGLIGIBLE);
        assert_eq!(net.nodes[1].delivered.len(), 1);
        assert_eq!(endpoint(&net), Some(elsewhere()));
    }

    fn before_the_first_handshake_families_take_turns(crypto) {
        let [v6, other_v6] = ["[2001:db8::6]:1", "[2001:db8::7]:1"].map(|it| it.parse().unwrap());
        let v4 = elsewhere();
        for insists in [false, true] {
            let mut net = never_heard(crypto);
            set_endpoint(&mut net, v6, Some(name()));
            net.cut();
            net.ping(0, 1);
            for second in 1..=32 {
                if insists {
                    net.ping(0, 1);
                }
                net.advance_to_offset(secs(second) + NEGLIGIBLE);
                answer(&mut net, &[v6, other_v6, v4]);
            }
            let sent = net.since(0, 0);
            let first: Vec<_> = sent.iter().map(|it| (it.at.since(START).as_secs(), it.to)).collect();
            assert_eq!(first[..4], [(0, v6), (5, v6), (6, v4), (11, other_v6)]);
            for three in sent[2..].windows(3) {
                assert_eq!(three.iter().filter(|it| it.to.is_ipv4()).count(), 1);
            }
        }
    }

    fn once_heard_at_an_address_it_is_not_left_for_another(crypto) {
        let mut net = named(crypto);
        net.cut();
        let here = net.nodes[1].address;
        net.ping(0, 1);
        for second in 1..=25 {
            net.advance_to_offset(secs(second));
            assert_eq!(answer(&mut net, &[elsewhere(), here]), None);
        }
        assert!(net.since(0, 0).iter().all(|it| it.to == here));
    }

    fn another_network_has_the_name_looked_up_anew(crypto) {
        let mut net = named(crypto);
        net.cut();
        for second in 1..=140 {
            insist(&mut net, secs(second));
            answer(&mut net, &[]);
        }
        assert_asked(&net, &[15, 30, 60, 120]);
        let now = net.now_at(0);
        net.nodes[0].device.handle_network_change(now);
        insist(&mut net, secs(142));
        assert_eq!(asked(&net).len(), 5, "and not at 240 s");
        // No address is known to work in this network, so that the addresses take turns.
        let here = net.nodes[1].address;
        assert_eq!(answer(&mut net, &[here, elsewhere()]), Some(elsewhere()));
        // Networks that come and go do not cause a look-up each.
        for _ in 0..40 {
            let now = net.now_at(0);
            net.nodes[0].device.handle_network_change(now);
            net.advance(millis(100));
            answer(&mut net, &[]);
        }
        assert_eq!(asked(&net).len(), 6, "one in five seconds");
    }

    fn an_answer_that_comes_too_late_is_dropped(crypto) {
        type Change = fn(&mut Net);
        let changes: [(&str, Change); 10] = [
            ("roamed", |net| {
                net.nodes[1].address = "198.51.100.200:9".parse().expect("an address");
                net.mend();
                net.ping(1, 0);
                net.cut();
            }),
            ("heard", |net| {
                net.mend();
                net.ping(1, 0);
                net.cut();
            }),
            ("given another endpoint", |net| {
                let other = "198.51.100.1:1".parse().expect("an address");
                set_endpoint(net, other, Some(name()));
            }),
            ("given an endpoint without a name", |net| {
                let here = net.nodes[1].address;
                set_endpoint(net, here, None);
            }),
            ("given another name", |net| rename(net, EndpointName::new("other", 1))),
            ("given the name anew", |net| {
                rename(net, None);
                rename(net, Some(name()));
            }),
            ("removed", |net| {
                let mut update = PeerUpdate::new(net.nodes[1].public);
                update.remove = true;
                net.update(0, update);
            }),
            ("removed and added", |net| {
                let mut removal = PeerUpdate::new(net.nodes[1].public);
                removal.remove = true;
                let mut update = net.peer_update(1);
                update.endpoint_name = Some(Some(name()));
                let peers = vec![removal, update];
                net.apply(0, DeviceUpdate { peers, ..DeviceUpdate::default() });
            }),
            ("down and up", |net| {
                net.set_down(0);
                net.set_up(0);
            }),
            ("given another key", |net| {
                net.set_private_key(0, Some(private_key(77)), Tai64N::ZERO);
            }),
        ];
        for (what, change) in changes {
            let mut net = named(crypto);
            net.cut();
            insist(&mut net, secs(16));
            assert_eq!(asked(&net).len(), 1);
            change(&mut net);
            assert_eq!(answer(&mut net, &[elsewhere()]), None, "{what}");
            let peers = net.nodes[0].device.status().peers;
            assert!(peers.iter().all(|peer| peer.endpoint != Some(elsewhere())), "{what}");
        }
        // Without a change, the answer is used.
        let mut net = named(crypto);
        net.cut();
        insist(&mut net, secs(16));
        assert_eq!(answer(&mut net, &[elsewhere()]), Some(elsewhere()));
        let here = net.nodes[1].address;
        assert_eq!(answer(&mut net, &[here]), None, "only once");
    }

    fn the_answer_for_an_old_name_is_not_that_for_a_new_one(crypto) {
        let mut net = named(crypto);
        net.cut();
        insist(&mut net, secs(16));
        let other = EndpointName::new("other.example.org", 1);
        rename(&mut net, other.clone());
        insist(&mut net, secs(21));
        let names = net.nodes[0].asked.iter();
        let names: Vec<_> = names.map(|(_, _, name)| Some(name.clone())).collect();
        assert_eq!(names, [Some(name()), other]);
        assert_eq!(answer(&mut net, &[elsewhere()]), None);
    }

    fn who_has_which_name(crypto) {
        let mut net = named(crypto);
        let here = net.nodes[1].address;
        assert_eq!(shown_name(&net), Some(name()));
        net.set_persistent_keepalive(0, 1, 0);
        assert_eq!(shown_name(&net), Some(name()), "nothing was said of the endpoint");
        set_endpoint(&mut net, elsewhere(), Some(name()));
        assert_eq!(shown_name(&net), Some(name()), "both were said");
        set_endpoint(&mut net, here, None);
        assert_eq!(shown_name(&net), None, "an endpoint and no name");
        rename(&mut net, Some(name()));
        rename(&mut net, None);
        assert_eq!(shown_name(&net), None, "forgotten by request");
        assert_eq!(endpoint(&net), Some(here));

        rename(&mut net, Some(name()));
        let update = net.peer_update(1);
        let mut replace = DeviceUpdate { replace_peers: true, ..DeviceUpdate::default() };
        replace.peers.push(PeerUpdate { endpoint: None, ..update });
        net.apply(0, replace);
        assert_eq!(shown_name(&net), None, "another peer of the same key");

        let unknown = net.nodes[0].public;
        let mut update = PeerUpdate::new(unknown);
        update.update_only = true;
        update.endpoint_name = Some(Some(name()));
        net.update(0, update);
        assert_eq!(net.nodes[0].device.status().peers.len(), 1);
    }
}

#[test]
fn what_a_name_is() {
    let long = |length: usize| "a".repeat(length);
    for host in [
        "a",
        "vpn.example.org",
        "vpn.example.org.",
        "b\u{fc}ro",
        &long(253),
    ] {
        let name = EndpointName::new(host, 1).expect(host);
        assert_eq!((name.host(), name.port()), (host, 1));
        assert_eq!(name.to_string(), format!("{host}:1"));
    }
    for host in [
        "",
        &long(254),
        "192.0.2.1",
        "2001:db8::1",
        "[2001:db8::1]",
        "::1",
        "a:1",
        "[a]",
        "a b",
        " a",
        "a\n",
        "a\0",
        "a\u{a0}",
        "a\u{7f}",
    ] {
        assert_eq!(EndpointName::new(host, 1), None, "{host:?}");
    }
    assert_eq!(EndpointName::new("a", 0), None);
    assert!(EndpointName::new("a", u16::MAX).is_some());
}
