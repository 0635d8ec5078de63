//! The firewall table of a default route by a tunnel.

use taupe_net::system::{Family, Firewall, System};

use super::{Twins, common::Namespace, ip, nft, output, refused};

pub(crate) fn firewall(family: Family, addresses: &[&str]) -> Firewall {
    Firewall {
        family,
        name: "wg-quick-tun7".to_owned(),
        interface: "tun7".to_owned(),
        addresses: addresses.iter().copied().map(ip).collect(),
        mark: 51820,
    }
}

/// The table that `wg-quick` makes, in the language of `nft`.
fn written(firewall: &Firewall) -> String {
    let family = match firewall.family {
        Family::Ipv4 => "ip",
        Family::Ipv6 => "ip6",
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
    for address in addresses {
        text += &format!(
            "add rule {family} {name} preraw iifname != \"{interface}\" {family} daddr {address} \
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
        firewall(Family::Ipv4, &["10.0.0.2", "192.0.2.7"]),
        firewall(Family::Ipv6, &["fd00::2", "fe80::1"]),
        Firewall {
            name: "wg-quick-a.b_c-d".to_owned(),
            interface: "a.b_c-d".to_owned(),
            mark: 0x8000_0001,
            ..firewall(Family::Ipv4, &[])
        },
    ];
    for (done, firewall) in firewalls.iter().enumerate() {
        twins.system.add_firewall(firewall).unwrap();
        nft(&twins.theirs, &written(firewall));
        twins.compare();
        // Byte for byte what the kernel was told.
        let [ours, theirs] = [&twins.ours, &twins.theirs]
            .map(|place| output(place, "nft", "--debug=netlink list ruleset"));
        assert_eq!(ours, theirs);
        let text = refused(twins.system.add_firewall(firewall), libc::EEXIST).to_string();
        assert!(text.contains(&firewall.name), "{text}");
        twins.compare();
        let listed = twins.system.firewall_tables().unwrap();
        assert_eq!(listed.len(), done + 1);
        assert!(listed.contains(&(firewall.family, firewall.name.clone())));
        let chains = |system: &mut System| {
            let mut chains = system
                .firewall_rules(firewall.family, &firewall.name)
                .unwrap();
            chains.sort();
            chains
        };
        let mut expected = vec!["postmangle".to_owned(), "premangle".to_owned()];
        expected.extend(firewall.addresses.iter().map(|_| "preraw".to_owned()));
        assert_eq!(chains(&mut twins.system), expected);
    }
    for place in [&twins.ours, &twins.theirs] {
        nft(place, &format!("flush table ip {}\n", firewalls[0].name));
    }
    for name in [&*firewalls[0].name, "not-there"] {
        let rules = twins.system.firewall_rules(Family::Ipv4, name).unwrap();
        assert_eq!(rules, Vec::<String>::new(), "{name}");
    }
    for Firewall { family, name, .. } in &firewalls {
        twins.system.remove_firewall(*family, name).unwrap();
        let word = if *family == Family::Ipv4 { "ip" } else { "ip6" };
        nft(&twins.theirs, &format!("delete table {word} {name}\n"));
        twins.compare();
        let text = refused(twins.system.remove_firewall(*family, name), libc::ENOENT).to_string();
        assert!(text.contains(name.as_str()), "{text}");
    }
    assert_eq!(twins.system.firewall_tables().unwrap(), []);
}

#[test]
fn tables_of_other_families_are_not_listed() {
    let place = Namespace::new();
    nft(&place, "add table inet both\nadd table ip6 six\n");
    let mut system = place.run(|| System::open().unwrap());
    let listed = system.firewall_tables().unwrap();
    assert_eq!(listed, [(Family::Ipv6, "six".to_owned())]);
    assert_eq!(
        system
            .remove_firewall(Family::Ipv4, "six")
            .unwrap_err()
            .errno(),
        Some(libc::ENOENT)
    );
}
