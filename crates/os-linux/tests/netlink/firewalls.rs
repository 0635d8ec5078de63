//! Tests of the firewall table for a default route through a tunnel.

use taupe_os_linux::netlink::{Firewall, FirewallState, InterfaceMatch, Netlink};
use taupe_packet::ip::Family;

use super::{Twins, common::Namespace, ip, nft, output, refused};

pub(crate) fn firewall(family: Family, addresses: &[&str]) -> Firewall {
    Firewall {
        family,
        name: "wg-quick-tun7".to_owned(),
        interface: InterfaceMatch::Name("tun7".to_owned()),
        addresses: addresses.iter().copied().map(ip).collect(),
        mark: 51820,
    }
}

/// Returns the table that `wg-quick` creates, in the language of `nft`.
fn written(firewall: &Firewall) -> String {
    let family = match firewall.family {
        Family::V4 => "ip",
        Family::V6 => "ip6",
    };
    let Firewall {
        name,
        interface,
        addresses,
        mark,
        ..
    } = firewall;
    let mut text = format!("add table {family} {name}\n");
    for (chain, hook, priority) in [
        ("preraw", "prerouting", -300),
        ("premangle", "prerouting", -150),
        ("postmangle", "postrouting", -150),
    ] {
        text += &format!(
            "add chain {family} {name} {chain} {{ type filter hook {hook} priority {priority}; }}\n"
        );
    }
    let is_not = match interface {
        InterfaceMatch::Name(name) => format!("iifname != \"{name}\""),
        InterfaceMatch::Index(index) => format!("iif != {index}"),
    };
    for address in addresses {
        text += &format!(
            "add rule {family} {name} preraw {is_not} {family} daddr {address} \
             fib saddr type != local drop\n"
        );
    }
    let rule = format!("add rule {family} {name}");
    text += &format!("{rule} postmangle meta l4proto udp mark {mark} ct mark set mark\n");
    text += &format!("{rule} premangle meta l4proto udp meta mark set ct mark\n");
    text
}

#[test]
fn firewalls_are_those_of_nft() {
    let mut twins = Twins::new();
    let firewalls = [
        firewall(Family::V4, &["10.0.0.2", "192.0.2.7"]),
        firewall(Family::V6, &["fd00::2", "fe80::1"]),
        Firewall {
            name: "wg-quick-a.b_c-d".to_owned(),
            interface: InterfaceMatch::Name("a.b_c-d".to_owned()),
            mark: 0x8000_0001,
            ..firewall(Family::V4, &[])
        },
        Firewall {
            name: "wg-quick-by-number".to_owned(),
            interface: InterfaceMatch::Index(1),
            ..firewall(Family::V4, &["10.0.0.2"])
        },
    ];
    for (done, firewall) in firewalls.iter().enumerate() {
        twins.netlink.add_firewall(firewall).unwrap();
        nft(&twins.theirs, &written(firewall));
        twins.compare();
        // Compare the requests that reached the kernel byte for byte.
        let [ours, theirs] = [&twins.ours, &twins.theirs]
            .map(|place| output(place, "nft", "--debug=netlink list ruleset"));
        assert_eq!(ours, theirs);
        let text = refused(twins.netlink.add_firewall(firewall), libc::EEXIST).to_string();
        assert!(text.contains(&firewall.name), "{text}");
        twins.compare();
        let listed = twins.netlink.firewall_tables().unwrap();
        assert_eq!(listed.len(), done + 1);
        assert!(listed.contains(&(firewall.family, firewall.name.clone())));
        let state = twins.netlink.firewall_state(firewall).unwrap();
        assert_eq!(state, FirewallState::Intact, "{firewall:?}");
    }
    for Firewall { family, name, .. } in &firewalls {
        twins.netlink.remove_firewall(*family, name).unwrap();
        let word = if *family == Family::V4 { "ip" } else { "ip6" };
        nft(&twins.theirs, &format!("delete table {word} {name}\n"));
        twins.compare();
        let text = refused(twins.netlink.remove_firewall(*family, name), libc::ENOENT).to_string();
        assert!(text.contains(name.as_str()), "{text}");
    }
    assert_eq!(twins.netlink.firewall_tables().unwrap(), []);
}

#[test]
fn tables_of_other_families_are_not_listed() {
    let place = Namespace::new();
    nft(&place, "add table inet both\nadd table ip6 six\n");
    let mut netlink = place.run(|| Netlink::open().unwrap());
    let listed = netlink.firewall_tables().unwrap();
    assert_eq!(listed, [(Family::V6, "six".to_owned())]);
    assert_eq!(
        netlink
            .remove_firewall(Family::V4, "six")
            .unwrap_err()
            .errno(),
        Some(libc::ENOENT)
    );
}

/// Another program makes one change after another; the comparison detects each.
#[test]
fn altered_firewalls_are_recognised() {
    let place = Namespace::new();
    let mut netlink = place.run(|| Netlink::open().unwrap());
    let firewall = Firewall {
        interface: InterfaceMatch::Index(1),
        ..firewall(Family::V4, &["10.0.0.2", "192.0.2.7"])
    };
    let state =
        |netlink: &mut Netlink, firewall: &Firewall| netlink.firewall_state(firewall).unwrap();
    assert_eq!(state(&mut netlink, &firewall), FirewallState::Missing);
    let table = "ip wg-quick-tun7";
    let spoofed = "ip daddr 10.0.0.2 fib saddr type != local";
    let chain = "type filter hook prerouting priority";
    let alterations = [
        format!("insert rule {table} preraw accept"),
        format!("add rule {table} preraw iif != 2 {spoofed} drop"),
        format!("add rule {table} preraw iif != 1 {spoofed} accept"),
        format!("add rule {table} preraw iif != 1 {spoofed} counter drop"),
        format!("add rule {table} premangle meta mark set 7"),
        format!("flush chain {table} preraw"),
        format!("flush chain {table} premangle"),
        format!("flush chain {table} postmangle"),
        format!("flush chain {table} preraw\ndelete chain {table} preraw"),
        format!("add chain {table} preraw {{ {chain} -300; policy drop; }}"),
        format!("add table {table} {{ flags dormant; }}"),
        format!(
            "flush chain {table} premangle\ndelete chain {table} premangle\n\
             add chain {table} premangle {{ {chain} 0; }}\n\
             add rule {table} premangle meta l4proto udp meta mark set ct mark"
        ),
    ];
    for alteration in alterations {
        netlink.add_firewall(&firewall).unwrap();
        assert_eq!(state(&mut netlink, &firewall), FirewallState::Intact);
        nft(&place, &format!("{alteration}\n"));
        let altered = state(&mut netlink, &firewall);
        assert_eq!(altered, FirewallState::Altered, "{alteration}");
        netlink
            .remove_firewall(firewall.family, &firewall.name)
            .unwrap();
    }
    netlink.add_firewall(&firewall).unwrap();
    let fewer = Firewall {
        addresses: firewall.addresses.iter().copied().take(1).collect(),
        ..firewall.clone()
    };
    assert_eq!(state(&mut netlink, &fewer), FirewallState::Intact);
    let named = Firewall {
        interface: InterfaceMatch::Name("lo".to_owned()),
        ..firewall.clone()
    };
    assert_eq!(state(&mut netlink, &named), FirewallState::Altered);
    let marked = Firewall {
        mark: 1,
        ..firewall.clone()
    };
    assert_eq!(state(&mut netlink, &marked), FirewallState::Altered);
    nft(&place, &format!("flush table {table}\n"));
    assert_eq!(state(&mut netlink, &firewall), FirewallState::Missing);
}
