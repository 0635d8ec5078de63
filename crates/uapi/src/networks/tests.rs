use proptest::prelude::*;

use super::*;
use ipnet::IpNet;

fn list(text: &str) -> Vec<IpNet> {
    text.split_whitespace()
        .map(|network| crate::prefix::parse(network).unwrap())
        .collect()
}

fn text(networks: &[IpNet]) -> String {
    let texts: Vec<String> = networks.iter().map(|network| network.to_string()).collect();
    texts.join(" ")
}

fn minus(allowed: &str, disallowed: &str) -> String {
    text(&subtract(&list(allowed), &list(disallowed)))
}

#[test]
fn subtraction() {
    assert_eq!(minus("10.0.0.0/8", ""), "10.0.0.0/8");
    assert_eq!(minus("", "10.0.0.0/8"), "");
    assert_eq!(minus("10.0.0.0/8", "10.0.0.0/8"), "");
    assert_eq!(minus("10.0.0.0/8", "0.0.0.0/0"), "");
    assert_eq!(minus("10.0.0.0/30", "10.0.0.1"), "10.0.0.0/32 10.0.0.2/31");
    assert_eq!(
        minus("0.0.0.0/0", "0.0.0.0/32 255.255.255.255/32")
            .split(' ')
            .count(),
        62
    );
    // The result of AllowedIPs calculators on the web.
    assert_eq!(
        minus("0.0.0.0/0", "192.168.1.0/24"),
        "0.0.0.0/1 128.0.0.0/2 192.0.0.0/9 192.128.0.0/11 192.160.0.0/13 192.168.0.0/24 \
         192.168.2.0/23 192.168.4.0/22 192.168.8.0/21 192.168.16.0/20 192.168.32.0/19 \
         192.168.64.0/18 192.168.128.0/17 192.169.0.0/16 192.170.0.0/15 192.172.0.0/14 \
         192.176.0.0/12 192.192.0.0/10 193.0.0.0/8 194.0.0.0/7 196.0.0.0/6 200.0.0.0/5 \
         208.0.0.0/4 224.0.0.0/3"
    );
    // The families are independent.
    assert_eq!(minus("0.0.0.0/0 ::/0", "::/0"), "0.0.0.0/0");
    assert_eq!(minus("0.0.0.0/0 ::/0", "0.0.0.0/0"), "::/0");
    assert_eq!(minus("::/0", "::/1"), "8000::/1");
    assert_eq!(minus("::/0", "8000::/1"), "::/1");
    assert_eq!(minus("::ffff:0.0.0.0/96", "0.0.0.0/0"), "::ffff:0.0.0.0/96");
    // One hole across several ranges, and several holes in one range.
    assert_eq!(
        minus(
            "10.0.0.0/31 10.0.0.4/31 10.0.0.8/31",
            "10.0.0.1 10.0.0.4/30"
        ),
        "10.0.0.0/32 10.0.0.8/31"
    );
    assert_eq!(
        minus("10.0.0.0/28", "10.0.0.3 10.0.0.3 10.0.0.2/31 10.0.0.15"),
        "10.0.0.0/31 10.0.0.4/30 10.0.0.8/30 10.0.0.12/31 10.0.0.14/32"
    );
}

#[test]
fn aggregation() {
    let joined = |networks| text(&aggregate(&list(networks)));
    assert_eq!(joined("0.0.0.0/1 128.0.0.0/1"), "0.0.0.0/0");
    assert_eq!(joined("8000::/1 ::/1"), "::/0");
    assert_eq!(joined("10.0.0.128/25 10.0.0.0/25 10.0.0.7"), "10.0.0.0/24");
    assert_eq!(
        joined("::1 10.0.0.1 10.0.0.2"),
        "10.0.0.1/32 10.0.0.2/32 ::1/128"
    );
    assert_eq!(
        joined("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 255.255.255.255"),
        "255.255.255.255/32 ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"
    );
}

#[test]
fn coverage() {
    let covered = |networks: &str, network| covers(&list(networks), list(network)[0]);
    assert!(covered("0.0.0.0/1 128.0.0.0/1", "0.0.0.0/0"));
    assert!(covered("0.0.0.0/1", "10.0.0.0/8"));
    assert!(!covered("0.0.0.0/1", "0.0.0.0/0"));
    assert!(!covered("::/0", "10.0.0.0/8"));
    assert!(!covered("", "10.0.0.0/32"));

    let public = |networks: &str, family: Family| covers_public(&list(networks), family);
    for (networks, v4, v6) in [
        ("0.0.0.0/0", true, false),
        ("::/0", false, true),
        ("2000::/3", false, true),
        ("0.0.0.0/1 128.0.0.0/1 ::/1 8000::/1", true, true),
        ("0.0.0.0/1 ::/3", false, false),
        ("0.0.0.0/1 128.0.0.0/2", false, false),
        ("", false, false),
    ] {
        assert_eq!(public(networks, Family::V4), v4, "{networks}");
        assert_eq!(public(networks, Family::V6), v6, "{networks}");
    }
    // Everything except local networks, in a common notation, still covers all public addresses.
    let local = "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 224.0.0.0/4 169.254.0.0/16";
    assert!(public(&minus("0.0.0.0/0", local), Family::V4));
    assert!(public(
        &minus("::/0", "fc00::/7 fe80::/10 ff00::/8"),
        Family::V6
    ));
    assert!(!public(&minus("0.0.0.0/0", "8.8.8.8"), Family::V4));
    assert!(!public(&minus("::/0", "2a00::1"), Family::V6));
    for (network, expected) in [
        ("10.1.0.0/16", true),
        ("10.0.0.0/7", false),
        ("9.255.255.255", false),
        ("11.0.0.0", false),
        ("192.168.255.255", true),
        ("192.169.0.0", false),
        // Two adjacent networks of the registry.
        ("224.0.0.0/3", true),
        ("255.255.255.255", true),
        ("0.0.0.0/0", false),
        ("8.8.8.8", false),
        ("fd00::/8", true),
        ("::1", true),
        ("2001:db8::1", true),
        ("2001:db9::", false),
        ("2000::/3", false),
        ("1fff:ffff::", true),
        ("4000::", true),
        ("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", true),
        ("::/0", false),
    ] {
        assert_eq!(is_special(list(network)[0]), expected, "{network}");
    }
    for text in SPECIAL_V4.iter().chain(&SPECIAL_V6) {
        assert!(is_special(list(text)[0]), "{text}");
        assert_eq!(self::text(&list(text)), *text);
    }
}

#[test]
fn overlap() {
    let overlap = |a, b| overlaps(list(a)[0], list(b)[0]);
    assert!(overlap("10.0.0.0/8", "10.1.2.3"));
    assert!(overlap("10.1.2.3", "10.0.0.0/8"));
    assert!(overlap("::/0", "::1"));
    assert!(!overlap("10.0.0.0/8", "11.0.0.0/8"));
    assert!(!overlap("::/0", "0.0.0.0/0"));
    assert!(!overlap("::a00:0/104", "10.0.0.0/8"));
}

/// A network within the last 64 addresses of a family.
fn small(family: Family) -> impl Strategy<Value = IpNet> {
    (0_u8..64, 0_u32..=6).prop_map(move |(address, host)| {
        let bits = address_bits(family);
        let last = match family {
            Family::V4 => u32::MAX.into(),
            Family::V6 => u128::MAX,
        };
        network(family, last - u128::from(address), bits - host).unwrap()
    })
}

fn lists(family: Family) -> impl Strategy<Value = Vec<IpNet>> {
    prop::collection::vec(small(family), 0..12)
}

fn contains(networks: &[IpNet], address: IpNet) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

/// Returns all networks of the universe within `list`, except those within another one: the
/// shortest list, by brute force.
fn brute_force(universe: &[IpNet], wanted: impl Fn(IpNet) -> bool) -> Vec<IpNet> {
    let within = |network: IpNet| {
        universe
            .iter()
            .filter(|address| contains(&[network], **address))
            .all(|address| wanted(*address))
    };
    let mut minimal: Vec<IpNet> = Vec::new();
    let bits = address_bits(family(universe[0]));
    for host in (0..=6).rev() {
        for address in universe {
            let length = u8::try_from(bits - host).unwrap();
            let network = prefix::network(address.addr(), length).unwrap();
            if within(network) && !contains(&minimal, *address) {
                minimal.push(network);
            }
        }
    }
    minimal.sort_unstable();
    minimal
}

fn universe(family: Family) -> Vec<IpNet> {
    // All addresses that `small` can return.
    let first = match family {
        Family::V4 => u128::from(u32::MAX) - 63,
        Family::V6 => u128::MAX - 63,
    };
    (0..64)
        .map(|i| network(family, first + i, address_bits(family)).unwrap())
        .collect()
}

proptest! {
    #[test]
    fn subtraction_is_right_and_minimal(
        v6 in any::<bool>(),
        (allowed, disallowed) in (lists(Family::V4), lists(Family::V4)),
        (allowed_v6, disallowed_v6) in (lists(Family::V6), lists(Family::V6)),
    ) {
        let (family, allowed, disallowed) = if v6 {
            (Family::V6, allowed_v6, disallowed_v6)
        } else {
            (Family::V4, allowed, disallowed)
        };
        let wanted = |address| contains(&allowed, address) && !contains(&disallowed, address);
        let result = subtract(&allowed, &disallowed);
        prop_assert_eq!(&result, &brute_force(&universe(family), wanted));
        for address in universe(family) {
            prop_assert_eq!(covers(&result, address), wanted(address));
        }
    }

    #[test]
    fn results_are_bounded_and_stable(
        allowed in prop::collection::vec((any::<u128>(), 0_u32..=128), 0..20),
        disallowed in prop::collection::vec((any::<u128>(), 0_u32..=128), 0..20),
    ) {
        let all = |list: &[(u128, u32)]| -> Vec<IpNet> {
            list.iter().filter_map(|(a, l)| network(Family::V6, *a, *l)).collect()
        };
        let (allowed, disallowed) = (all(&allowed), all(&disallowed));
        let result = subtract(&allowed, &disallowed);
        prop_assert!(result.len() <= (allowed.len() + disallowed.len()) * 254);
        prop_assert_eq!(&aggregate(&result), &result);
        for network in &result {
            prop_assert!(covers(&allowed, *network));
            prop_assert!(disallowed.iter().all(|taken| !overlaps(*taken, *network)));
        }
        for network in &allowed {
            let both = [&result[..], &disallowed].concat();
            prop_assert!(covers(&both, *network));
        }
    }
}
