//! Tests of routing policy rules.

use taupe_os_linux::netlink::{Netlink, Rule};
use taupe_packet::ip::Family;

use super::{Twins, common::Namespace, refused};

#[test]
fn rules_are_those_of_ip() {
    let mut twins = Twins::new();
    for (family, name) in [(Family::V4, "-4"), (Family::V6, "-6")] {
        // In the order of `wg-quick`, with the priorities that the kernel assigns to rules of `ip`.
        let before = twins.netlink.rules().unwrap();
        let next = Rule::next_priority(&before, family);
        assert_eq!(next, 32765);
        let first = Rule::not_marked(family, next, 51820, 51820);
        let command = format!("{name} rule add not fwmark 51820 table 51820");
        twins.both(|s| s.add_rule(&first), &command);
        let rules = twins.netlink.rules().unwrap();
        let next = Rule::next_priority(&rules, family);
        assert_eq!(next, 32764);
        let second = Rule::suppressing(family, next, 0, 254);
        let command = format!("{name} rule add table main suppress_prefixlength 0");
        twins.both(|s| s.add_rule(&second), &command);
        let third = Rule::marked(family, 100, 0x10, 0xf0, 51820);
        let command = format!("{name} rule add priority 100 fwmark 0x10/0xf0 table 51820");
        twins.both(|s| s.add_rule(&third), &command);

        let source = match family {
            Family::V4 => "10.9.0.2/32",
            Family::V6 => "fd09::2/128",
        };
        let fourth = Rule::from(source.parse().unwrap(), 101, 51820);
        let command = format!("{name} rule add priority 101 from {source} table 51820");
        twins.both(|s| s.add_rule(&fourth), &command);

        let rules = twins.netlink.rules().unwrap();
        for rule in [&first, &second, &third, &fourth] {
            assert!(rules.contains(rule), "{rule:?} in {rules:#?}");
            refused(twins.netlink.add_rule(rule), libc::EEXIST);
        }
        assert_eq!(Rule::next_priority(&rules, family), 99);
        let priorities: Vec<_> = rules
            .iter()
            .filter(|rule| rule.family == family)
            .map(|rule| rule.priority)
            .collect();
        assert!(priorities.is_sorted(), "{priorities:?}");

        for (rule, command) in [
            (first, "not fwmark 51820 table 51820"),
            (second, "table main suppress_prefixlength 0"),
            (third, "priority 100 table 51820"),
            (fourth, "priority 101 table 51820"),
        ] {
            let command = format!("{name} rule delete {command}");
            twins.both(|s| s.remove_rule(&rule), &command);
            let text = refused(twins.netlink.remove_rule(&rule), libc::ENOENT).to_string();
            assert!(text.contains(&rule.priority.to_string()), "{text}");
        }
        assert_eq!(twins.netlink.rules().unwrap(), before);
    }
}

#[test]
fn a_rule_with_more_selectors_is_another_rule() {
    let place = Namespace::new();
    let mut netlink = place.run(|| Netlink::open().unwrap());
    let rule = Rule::suppressing(Family::V4, 500, 0, 254);
    for more in [
        "from 10.0.0.0/8",
        "to 10.0.0.1",
        "iif lo",
        "oif lo",
        "tos 0x10",
        "uidrange 7-9",
        "ipproto udp",
        "dport 53",
        "fwmark 9",
    ] {
        let command = format!("priority 500 {more} table main suppress_prefixlength 0");
        place.ip(&format!("-4 rule add {command}"));
        let listed = netlink.rules().unwrap();
        let found = listed.iter().find(|rule| rule.priority == 500).unwrap();
        assert_ne!(*found, rule, "{more}");
        refused(netlink.remove_rule(&rule), libc::ENOENT);
        if found.is_incomplete {
            refused(netlink.remove_rule(found), libc::EINVAL);
            refused(netlink.add_rule(found), libc::EINVAL);
            place.ip(&format!("-4 rule delete {command}"));
        } else {
            netlink.remove_rule(found).unwrap();
        }
        assert!(
            !netlink
                .rules()
                .unwrap()
                .iter()
                .any(|rule| rule.priority == 500)
        );
    }
    place.ip("rule add priority 500 from 10.0.0.0/8 unreachable");
    let rules = netlink.rules().unwrap();
    let found = rules.iter().find(|rule| rule.priority == 500).unwrap();
    assert!(found.is_incomplete && found.table == 0, "{found:?}");
}

/// Compares [`Rule::next_priority`] with the kernel's choice for several sets of rules.
#[test]
fn the_next_priority_is_the_kernel_s() {
    let place = Namespace::new();
    let mut netlink = place.run(|| Netlink::open().unwrap());
    for family in Family::ALL {
        let name = if family == Family::V4 { "-4" } else { "-6" };
        // Without the local rule, with one rule, with none, with two of the same priority.
        for preparation in [
            "rule add priority 3 table 7",
            "rule add priority 3 table 8",
            "rule delete priority 0",
            "rule add priority 1 table 9",
            "rule flush",
            "rule add priority 50 table 10",
            "rule delete table 10",
        ] {
            place.ip(&format!("{name} {preparation}"));
            let before = netlink.rules().unwrap();
            let expected = Rule::next_priority(&before, family);
            place.ip(&format!("{name} rule add table 4711"));
            let rules = netlink.rules().unwrap();
            let chosen = rules
                .iter()
                .find(|rule| rule.family == family && rule.table == 4711)
                .unwrap();
            assert_eq!(chosen.priority, expected, "{preparation}: {before:#?}");
            netlink.remove_rule(chosen).unwrap();
        }
    }
}
