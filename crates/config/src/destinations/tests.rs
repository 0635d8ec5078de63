use core::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use taupe_protocol::key::PublicKey;

use super::*;
use taupe_uapi::networks::covers;

fn networks(text: &str) -> Vec<IpNet> {
    parse_networks(&text.split_whitespace().collect::<Vec<_>>())
}

fn contains(network: IpNet, address: IpAddr) -> bool {
    network.contains(&address)
}

/// Returns the class by the longest match.
fn class(table: &[(IpNet, Class)], address: IpAddr) -> Class {
    let matching = table.iter().filter(|(net, _)| contains(*net, address));
    let longest = matching.max_by_key(|(net, _)| net.prefix_len());
    longest.expect("every address matches").1
}

/// Applies the rules in order to one address.
fn judged(allowed: &[IpNet], disallowed: &[IpNet], bypass_lan: bool, to: IpAddr) -> Class {
    let among = |list: &[IpNet]| list.iter().any(|net| contains(*net, to));
    let (this_host, local, group) = match to {
        IpAddr::V4(a) => (
            a.is_unspecified() || a.is_loopback(),
            a.is_private(),
            a.is_multicast() || a.is_broadcast(),
        ),
        IpAddr::V6(a) => (
            a.is_unspecified() || a.is_loopback(),
            a.is_unique_local(),
            a.is_multicast(),
        ),
    };
    if this_host || among(disallowed) || bypass_lan && (local || group) {
        return Class::Direct;
    }
    if group {
        return Class::Drop;
    }
    if among(allowed) {
        return Class::Tunnel;
    }
    let (this, other) = match to {
        IpAddr::V4(_) => (Family::V4, Family::V6),
        IpAddr::V6(_) => (Family::V6, Family::V4),
    };
    let mut of_this = allowed.iter().filter(|net| family(**net) == this);
    if networks::covers_public(allowed, other) && of_this.all(|net| networks::is_special(*net)) {
        Class::Refuse
    } else {
        Class::Direct
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn peer(allowed: &str, disallowed: &str) -> Peer {
    Peer {
        public_key: PublicKey([1; 32]),
        preshared_key: None,
        preshared_key_file: None,
        pq_public_key: None,
        post_quantum: None,
        endpoint: None,
        allowed_ips: networks(allowed),
        disallowed_ips: networks(disallowed),
        persistent_keepalive: None,
        name: None,
        line: 0,
    }
}

#[test]
fn all_of_ipv4_except_the_lan() {
    let table = table(
        &networks("0.0.0.0/0"),
        &networks("192.168.1.0/24 10.1.0.0/16"),
        false,
    );
    for (to, expected) in [
        ("192.0.2.1", Class::Tunnel),
        ("192.168.1.255", Class::Direct),
        ("192.168.2.1", Class::Tunnel),
        ("10.1.2.3", Class::Direct),
        ("127.0.0.53", Class::Direct),
        ("0.0.0.0", Class::Direct),
        ("0.0.0.1", Class::Tunnel),
        // Behind a router. The table does not decide for neighbours.
        ("169.254.169.254", Class::Tunnel),
        ("224.0.0.251", Class::Drop),
        ("255.255.255.255", Class::Drop),
        ("2001:db8::1", Class::Refuse),
        ("fd00::1", Class::Refuse),
        ("::1", Class::Direct),
        ("fe80::1", Class::Refuse),
        ("ff02::fb", Class::Drop),
    ] {
        assert_eq!(class(&table, address(to)), expected, "{to}");
    }
}

#[test]
fn disallowed_networks_win_over_longer_allowed_ones() {
    let allowed = networks("10.0.0.0/8 10.1.2.0/24 10.1.0.0/16 192.0.2.0/24");
    let table = table(&allowed, &networks("10.1.0.0/16"), false);
    for (to, expected) in [
        ("10.1.2.3", Class::Direct),
        ("10.1.3.3", Class::Direct),
        ("10.2.2.3", Class::Tunnel),
        ("192.0.2.9", Class::Tunnel),
        ("192.0.3.9", Class::Direct),
        ("2001:db8::1", Class::Direct),
    ] {
        assert_eq!(class(&table, address(to)), expected, "{to}");
    }
}

#[test]
fn local_networks_bypass_the_tunnel_if_configured() {
    let allowed = networks("0.0.0.0/0 ::/0");
    for (to, without) in [
        ("192.168.255.1", Class::Tunnel),
        ("10.255.0.1", Class::Tunnel),
        ("172.31.0.1", Class::Tunnel),
        ("224.0.0.251", Class::Drop),
        ("255.255.255.255", Class::Drop),
        ("fdff::1", Class::Tunnel),
        ("ff02::1:3", Class::Drop),
    ] {
        let to = address(to);
        assert_eq!(class(&table(&allowed, &[], false), to), without, "{to}");
        assert_eq!(class(&table(&allowed, &[], true), to), Class::Direct);
    }
    let table = table(&allowed, &[], true);
    assert_eq!(class(&table, address("172.32.0.1")), Class::Tunnel);
}

#[test]
fn a_family_missing_from_a_full_tunnel_is_refused() {
    let refused = |allowed: &str| {
        let table = table(&networks(allowed), &[], false);
        ["192.0.3.1", "2620:fe::9"].map(|to| class(&table, address(to)) == Class::Refuse)
    };
    assert_eq!(refused("0.0.0.0/0"), [false, true]);
    assert_eq!(refused("0.0.0.0/1 128.0.0.0/1"), [false, true]);
    assert_eq!(refused("::/0"), [true, false]);
    assert_eq!(refused("0.0.0.0/0 ::/0"), [false, false]);
    assert_eq!(refused("0.0.0.0/0 2620::/16"), [false, false]);
    assert_eq!(refused("0.0.0.0/1"), [false, false]);
    assert_eq!(refused(""), [false, false]);
    // An address of the tunnel itself does not cover the family.
    assert_eq!(refused("0.0.0.0/0 fd00::/64"), [false, true]);
    // All public addresses, as AllowedIPs calculators print them.
    let public = networks::subtract(&networks("0.0.0.0/0"), &networks("10.0.0.0/8"));
    let table = table(&public, &[], false);
    assert_eq!(class(&table, address("2620:fe::9")), Class::Refuse);
    assert_eq!(class(&table, address("10.0.0.1")), Class::Direct);
}

#[test]
fn networks_of_another_peer_are_not_excluded() {
    let peers = [
        peer("0.0.0.0/0", "10.0.0.0/8 192.168.0.0/16"),
        peer("10.1.0.0/16", "10.1.1.0/24"),
    ];
    let table = table_for_peers(&peers, false);
    for (to, expected) in [
        ("192.0.2.1", Class::Tunnel),
        ("10.0.0.1", Class::Direct),
        ("10.1.0.1", Class::Tunnel),
        ("10.1.1.1", Class::Direct),
        ("192.168.0.1", Class::Direct),
        ("2001:db8::1", Class::Refuse),
    ] {
        assert_eq!(class(&table, address(to)), expected, "{to}");
    }
    let alone = table_for_peers(&peers[..1], true);
    let flat = super::table(&peers[0].allowed_ips, &peers[0].disallowed_ips, true);
    assert_eq!(alone, flat);
}

/// A network near the networks that the rules name.
fn network() -> impl Strategy<Value = IpNet> {
    let v4 = prop::sample::select(vec![
        0,
        0x0a00_0000,
        0x0a01_0200,
        0x7f00_0001,
        0xa9fe_0101,
        0xac10_0000,
        0xc0a8_0101,
        0xe000_00fb,
        0xffff_ffff,
        0x0808_0808,
        0x8000_0000,
    ]);
    let v6 = prop::sample::select(vec![
        0,
        1,
        0xffff_0a00_0001,
        0xfc00 << 112,
        0xfd00 << 112,
        0xfe80 << 112,
        0xff02 << 112,
        0x2620 << 112,
        0x2001_0db8 << 96,
        0x8000 << 112,
        u128::MAX,
    ]);
    let v4 = (v4, any::<u32>(), 0_u32..33, 0_u8..33).prop_map(|(near, change, keep, length)| {
        let change = change.checked_shr(keep).unwrap_or(0);
        prefix::network(Ipv4Addr::from(near ^ change).into(), length)
    });
    let v6 = (v6, any::<u128>(), 0_u32..129, 0_u8..129).prop_map(|(near, change, keep, length)| {
        let change = change.checked_shr(keep).unwrap_or(0);
        prefix::network(Ipv6Addr::from(near ^ change).into(), length)
    });
    prop_oneof![v4, v6].prop_filter_map("a length too great", |network| network)
}

/// Returns the first and last address of a network, and the addresses next to them.
fn ends(network: IpNet) -> Vec<IpAddr> {
    match network.network() {
        IpAddr::V4(address) => {
            let host = u32::MAX
                .checked_shr(network.prefix_len().into())
                .unwrap_or(0);
            let first = u32::from(address);
            let last = first | host;
            [first.wrapping_sub(1), first, last, last.wrapping_add(1)]
                .map(|a| Ipv4Addr::from(a).into())
                .into()
        }
        IpAddr::V6(address) => {
            let host = u128::MAX
                .checked_shr(network.prefix_len().into())
                .unwrap_or(0);
            let first = u128::from(address);
            let last = first | host;
            [first.wrapping_sub(1), first, last, last.wrapping_add(1)]
                .map(|a| Ipv6Addr::from(a).into())
                .into()
        }
    }
}

proptest! {
    #[test]
    fn the_longest_match_follows_the_documented_order(
        allowed in prop::collection::vec(network(), 0..12),
        disallowed in prop::collection::vec(network(), 0..6),
        full in 0_u8..4,
        bypass_lan in any::<bool>(),
        elsewhere in prop::collection::vec(any::<u128>(), 8),
    ) {
        let mut allowed = allowed;
        let everything = parse_networks(&EVERYTHING);
        allowed.extend((0..2).filter(|bit| full >> bit & 1 == 1).map(|bit| everything[bit]));
        let table = table(&allowed, &disallowed, bypass_lan);
        prop_assert!(table.len() <= allowed.len() + disallowed.len() + 18);
        let constants = [&THIS_HOST[..], &LINK_LOCAL, &LAN, &MULTICAST_AND_BROADCAST, &EVERYTHING].concat();
        let constants = parse_networks(&constants);
        let interesting = allowed.iter().chain(&disallowed).chain(&constants);
        let random = elsewhere.iter().flat_map(|a| {
            [Ipv4Addr::from(*a as u32).into(), IpAddr::from(Ipv6Addr::from(*a))]
        });
        for to in interesting.flat_map(|network| ends(*network)).chain(random) {
            if let IpAddr::V6(v6) = to && v6.to_ipv4_mapped().is_some() {
                continue;
            }
            prop_assert_eq!(class(&table, to), judged(&allowed, &disallowed, bypass_lan, to), "{}", to);
        }
        let mapped = parse_networks(&["::ffff:0.0.0.0/96"])[0];
        prop_assert!(table.iter().all(|(net, _)| !covers(&[mapped], *net)));
        let mut keys: Vec<_> = table.iter().map(|(net, _)| *net).collect();
        keys.sort_unstable();
        let count = keys.len();
        keys.dedup();
        prop_assert_eq!(keys.len(), count, "a network with two classes");
    }

    #[test]
    fn the_table_routes_each_peers_networks(
        lists in prop::collection::vec(
            (prop::collection::vec(network(), 0..5), prop::collection::vec(network(), 0..3)),
            1..4,
        ),
    ) {
        let peers: Vec<Peer> = lists
            .iter()
            .map(|(allowed, disallowed)| Peer {
                allowed_ips: allowed.clone(),
                disallowed_ips: disallowed.clone(),
                ..peer("", "")
            })
            .collect();
        let table = table_for_peers(&peers, false);
        let routed: Vec<IpNet> = peers.iter().flat_map(Peer::routed).collect();
        for to in lists.iter().flat_map(|(a, d)| a.iter().chain(d)).flat_map(|net| ends(*net)) {
            let class = class(&table, to);
            let special = judged(&[], &[], false, to) != Class::Direct
                || contains_any(&parse_networks(&THIS_HOST), to);
            let mapped = matches!(to, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
            if !special && !mapped {
                prop_assert_eq!(class == Class::Tunnel, contains_any(&routed, to), "{}", to);
            }
        }
    }
}

fn contains_any(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| contains(*network, address))
}
