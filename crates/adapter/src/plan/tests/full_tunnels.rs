//! Tests of tunnels that carry all of a family.

use super::*;

#[test]
fn a_dual_full_tunnel_as_wg_quick_makes_it() {
    let file = file(
        "Address = 10.9.0.2/24, fd09::2/64",
        "AllowedIPs = 0.0.0.0/0, ::/0, 172.20.0.0/16",
    );
    let made = wg_quick(&file, &host());
    assert_eq!(
        made.routing(),
        [
            "ip -4 route add 172.20.0.0/16 dev wg0",
            "wg set wg0 fwmark 51820",
            "ip -6 route add ::/0 dev wg0 table 51820",
            "ip -6 rule add not fwmark 51820 table 51820",
            "ip -6 rule add table main suppress_prefixlength 0",
            "nft -f /dev/fd/63 (table ip6 wg-quick-wg0)",
            "ip -4 route add 0.0.0.0/0 dev wg0 table 51820",
            "ip -4 rule add not fwmark 51820 table 51820",
            "ip -4 rule add table main suppress_prefixlength 0",
            "sysctl -q net.ipv4.conf.all.src_valid_mark=1",
            "nft -f /dev/fd/63 (table ip wg-quick-wg0)",
        ]
    );
    assert_eq!(made.priorities(), [32765, 32764, 32765, 32764]);
    assert!(made.changes.contains(&Change::ValidMark { original: None }));
    assert_eq!(made.notes, [""; 0]);
}

#[test]
fn taupe_also_refuses_what_a_killed_full_tunnel_would_let_out() {
    let file = file("", "AllowedIPs = 0.0.0.0/0, ::/0");
    let made = taupe(&file, &host());
    assert_eq!(
        made.routing(),
        [
            "wg set wg0 fwmark 51820",
            "ip -6 route add ::/0 dev wg0 table 51820",
            "ip -6 route add unreachable ::/0 metric 4294967295 table 51820",
            "ip -6 rule add not fwmark 51820 table 51820",
            "ip -6 rule add table main suppress_prefixlength 0",
            "nft -f /dev/fd/63 (table ip6 wg-quick-wg0)",
            "ip -4 route add 0.0.0.0/0 dev wg0 table 51820",
            "ip -4 route add unreachable 0.0.0.0/0 metric 4294967295 table 51820",
            "ip -4 rule add not fwmark 51820 table 51820",
            "ip -4 rule add table main suppress_prefixlength 0",
            "sysctl -q net.ipv4.conf.all.src_valid_mark=1",
            "nft -f /dev/fd/63 (table ip wg-quick-wg0)",
        ]
    );
    assert!(
        made.changes
            .contains(&Change::ValidMark { original: Some(0) })
    );
    assert_eq!(made.notes, [""; 0]);
}

#[test]
fn a_full_tunnel_of_ipv4_refuses_ipv6() {
    let file = file("", "AllowedIPs = 0.0.0.0/0, fd10::/64");
    let made = taupe(&file, &host());
    assert_eq!(
        made.routing()[..6],
        [
            "ip -6 route add fd10::/64 dev wg0",
            "wg set wg0 fwmark 51820",
            "ip -6 route add unreachable ::/0 metric 4294967295 table 51820",
            "ip -6 rule add not fwmark 51820 table 51820",
            "ip -6 rule add table main suppress_prefixlength 0",
            "ip -4 route add 0.0.0.0/0 dev wg0 table 51820",
        ]
    );
    assert!(made.notes[0].contains("IPv6"), "{:?}", made.notes);
    // Local networks are not blocked, so overriding them changes nothing.
    let overridden = overriding(&file, &host());
    assert_eq!(overridden.routing()[..6], made.routing()[..6]);

    let no_ipv6 = Snapshot {
        ipv6: false,
        ..host()
    };
    assert!(
        !taupe(&file, &no_ipv6)
            .routing()
            .iter()
            .any(|c| c.contains("unreachable ::/0"))
    );
    assert!(
        !wg_quick(&file, &host())
            .routing()
            .iter()
            .any(|c| c.contains("ip -6 rule"))
    );
}

#[test]
fn where_ipv6_is_switched_off_a_dual_tunnel_does_without() {
    let file = file(
        "Address = 10.9.0.2/32, fd09::2/64",
        "AllowedIPs = 0.0.0.0/0, ::/0, fd10::/16",
    );
    let off = Snapshot {
        ipv6_on_interfaces: false,
        ..host()
    };
    let made = taupe(&file, &off);
    let of_device = |command: &&String| command.contains("ip -6") && command.contains("dev wg0");
    assert_eq!(made.commands.iter().find(of_device), None);
    // Another interface may still have IPv6.
    assert_eq!(
        made.routing()[..3],
        [
            "wg set wg0 fwmark 51820",
            "ip -6 route add unreachable ::/0 metric 4294967295 table 51820",
            "ip -6 rule add not fwmark 51820 table 51820",
        ]
    );
    assert_eq!(made.notes.len(), 1);
    assert!(made.notes[0].starts_with("IPv6 is switched off on this system"));
    let exact = wg_quick(&file, &off);
    assert_eq!(exact.commands, wg_quick(&file, &host()).commands);
}

#[test]
fn a_full_tunnel_of_ipv6_leaves_ipv4_alone() {
    let file = file("", "AllowedIPs = ::/0");
    let made = taupe(&file, &host());
    assert_eq!(
        made.routing(),
        [
            "wg set wg0 fwmark 51820",
            "ip -6 route add ::/0 dev wg0 table 51820",
            "ip -6 route add unreachable ::/0 metric 4294967295 table 51820",
            "ip -6 rule add not fwmark 51820 table 51820",
            "ip -6 rule add table main suppress_prefixlength 0",
            "nft -f /dev/fd/63 (table ip6 wg-quick-wg0)",
        ]
    );
}

#[test]
fn a_mark_of_the_file_is_the_table() {
    let given = file("FwMark = 0x1f", "AllowedIPs = 0.0.0.0/0");
    for made in [taupe(&given, &host()), wg_quick(&given, &host())] {
        let routing = made.routing().join("\n");
        assert!(routing.contains("ip -4 route add 0.0.0.0/0 dev wg0 table 31"));
        assert!(routing.contains("ip -4 rule add not fwmark 31 table 31"));
        assert!(!routing.contains("wg set"));
    }
    let off = file("FwMark = off", "AllowedIPs = 0.0.0.0/0");
    assert!(
        taupe(&off, &host())
            .routing()
            .contains(&"wg set wg0 fwmark 51820")
    );
}

#[test]
fn an_overriding_full_tunnel_is_asked_before_the_main_table() {
    let file = file("", "AllowedIPs = 0.0.0.0/0, ::/0");
    let made = overriding(&file, &host());
    let rules: Vec<_> = made
        .routing()
        .into_iter()
        .filter(|c| c.contains("rule add"))
        .collect();
    assert_eq!(
        rules,
        [
            "ip -6 rule add not fwmark 51820 table 51820",
            "ip -4 rule add not fwmark 51820 table 51820",
        ]
    );
    let bare = Options {
        firewall: false,
        ..OVERRIDE
    };
    let made = outcome(&file, &host(), Compatibility::Taupe, bare);
    assert!(!made.routing().iter().any(|command| command.contains("nft")));
}
