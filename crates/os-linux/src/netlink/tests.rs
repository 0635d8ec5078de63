//! Tests that need private items: parsing any answer ends without a panic.

use netlink_bindings::utils::{find_attr, push_header, push_header_type};
use proptest::prelude::*;
use rustix::io::Errno;
use taupe_packet::ip::Family;

use super::{
    Firewall, InterfaceMatch, Netlink, address, client::is_interface_name, firewall, link,
    neighbour, route, rule, tun_link,
};

/// Bytes that mostly look like a header and attributes.
fn answer() -> impl Strategy<Value = Vec<u8>> {
    let attribute = (0u16..70, prop::collection::vec(any::<u8>(), 0..40));
    (
        prop::collection::vec(any::<u8>(), 0..20),
        prop::collection::vec(attribute, 0..8),
        prop::collection::vec(any::<u8>(), 0..8),
    )
        .prop_map(|(mut bytes, attributes, tail)| {
            for (kind, data) in attributes {
                push_header(&mut bytes, kind, data.len() as u16);
                bytes.extend(data);
            }
            bytes.extend(tail);
            bytes
        })
}

proptest! {
    #[test]
    fn any_answer_is_read(bytes in prop_oneof![answer(), prop::collection::vec(any::<u8>(), 0..200)]) {
        link::parse(&bytes);
        tun_link::parse(&bytes);
        tun_link::parse_namespace_id(&bytes);
        address::parse(&bytes);
        neighbour::parse_incomplete(&bytes);
        neighbour::parse_reachability(&bytes);
        route::parse(&bytes).for_each(drop);
        route::parse_lookup(&bytes);
        rule::parse(&bytes);
        firewall::parse(&bytes);
        firewall::has_dormant_flag(&bytes);
        firewall::chain(&bytes, Family::V4, c"wg-quick-tun7");
        firewall::listed_rule(&bytes, Family::V4, c"wg-quick-tun7");
    }

    #[test]
    fn any_next_hops_are_read(
        family in prop_oneof![Just(libc::AF_INET as u8), Just(libc::AF_INET6 as u8)],
        hops in prop::collection::vec(any::<u8>(), 0..60),
    ) {
        const RTA_MULTIPATH: u16 = 9;
        let mut bytes = vec![0; 12];
        bytes[0] = family;
        bytes[7] = libc::RTN_UNICAST;
        push_header(&mut bytes, RTA_MULTIPATH, hops.len() as u16);
        bytes.extend(&hops);
        prop_assert!(route::parse(&bytes).count() <= hops.len() / 8);
    }
}

/// The parsers rely on this property of the bindings.
#[test]
fn attributes_are_found_behind_others() {
    let mut bytes = Vec::new();
    let mut push = |kind, data: &[u8], is_nested| {
        push_header_type(&mut bytes, kind, data.len() as u16, is_nested);
        bytes.extend(data);
    };
    push(1, b"odd", false);
    push(2, &[], false);
    push(3, &[1, 2, 3, 4, 5], false);
    push(5, &[6], true);
    assert_eq!(find_attr(&bytes, 3), Some([1, 2, 3, 4, 5].as_slice()));
    assert_eq!(find_attr(&bytes, 2), Some([].as_slice()));
    assert_eq!(find_attr(&bytes, 5), Some([6].as_slice()));
    assert_eq!(find_attr(&bytes, 4), None);
}

#[test]
fn names_are_what_the_kernel_takes() {
    for name in ["a", "wg0", "fifteen-bytes-x", "a.b", "é"] {
        assert!(is_interface_name(name), "{name:?}");
    }
    for name in [
        "",
        ".",
        "..",
        "sixteen-bytes-xx",
        "a/b",
        "a:b",
        "a b",
        "a\tb",
        "a\0",
    ] {
        assert!(!is_interface_name(name), "{name:?}");
    }
}

#[test]
fn a_kernel_without_netfilter_is_named() {
    let mut netlink = Netlink::open().unwrap();
    netlink.netfilter = Err(Errno::PROTONOSUPPORT);
    let firewall = Firewall {
        family: Family::V4,
        name: "wg-quick-tun7".to_owned(),
        interface: InterfaceMatch::Index(7),
        addresses: Vec::new(),
        mark: 7,
    };
    let errors = [
        netlink.firewall_tables().unwrap_err(),
        netlink.add_firewall(&firewall).unwrap_err(),
        netlink.firewall_state(&firewall).unwrap_err(),
        netlink
            .remove_firewall(Family::V4, &firewall.name)
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.errno(), Some(libc::EOPNOTSUPP));
        assert!(error.to_string().contains("no nf_tables"), "{error}");
    }
}

/// Journals of tunnels that are up contain these words.
#[test]
fn a_family_is_one_word_in_a_journal() {
    for (family, word) in [(Family::V4, "\"Ipv4\""), (Family::V6, "\"Ipv6\"")] {
        assert_eq!(serde_json::to_string(&family).unwrap(), word);
        assert_eq!(serde_json::from_str::<Family>(word).unwrap(), family);
    }
}
