//! Tests that the netlink client creates the same network configuration as `ip` and `nft`. They
//! need root.

#![cfg(target_os = "linux")]

#[path = "../common/mod.rs"]
mod common;
mod firewalls;
mod reader;
mod routes;
mod rules;

use std::{
    io::Write,
    net::IpAddr,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use common::Namespace;
use firewalls::firewall;
use ipnet::IpNet;
use taupe_os_linux::netlink::{
    Address, InterfaceMatch, Link, Medium, Netlink, NetlinkError, Route, RouteKind, Rule,
};
use taupe_packet::ip::Family;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Returns the output of a program.
fn output(place: &Namespace, program: &str, arguments: &str) -> String {
    let output = place.run(|| {
        Command::new(program)
            .args(arguments.split(' '))
            .output()
            .unwrap()
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments}: {errors}");
    String::from_utf8(output.stdout).unwrap()
}

/// Runs `nft` with a file as input.
fn nft(place: &Namespace, file: &str) {
    let status = place.run(|| {
        let mut child = Command::new("nft")
            .args(["-f", "-"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(file.as_bytes())
            .unwrap();
        child.wait().unwrap()
    });
    assert!(status.success(), "{file}");
}

/// Returns the configuration of a namespace without the parts that always differ: hardware
/// addresses, values derived from them, and times.
fn state(place: &Namespace) -> String {
    let mut all = String::new();
    for question in [
        "-d -o link",
        "-d -o address",
        "-d -4 route show table all",
        "-d -6 route show table all",
        "-d -4 rule",
        "-d -6 rule",
    ] {
        all += &format!("# ip {question}\n{}", output(place, "ip", question));
    }
    all + "# nft\n" + &output(place, "nft", "list ruleset")
}

/// Two namespaces in the same state, with a netlink client in one of them.
struct Twins {
    ours: Namespace,
    theirs: Namespace,
    netlink: Netlink,
}

impl Twins {
    fn new() -> Self {
        let [ours, theirs] = [(); 2].map(|()| Namespace::new());
        for place in [&ours, &theirs] {
            // An interface without a hardware address, which would differ.
            place.ip("tuntap add tun7 mode tun");
            place.ip("tuntap add tun8 mode tun");
            for link in ["tun7", "tun8"] {
                place.ip(&format!("link set {link} addrgenmode none"));
                place.ip(&format!("link set {link} up"));
            }
        }
        let netlink = ours.run(|| Netlink::open().unwrap());
        let twins = Self {
            ours,
            theirs,
            netlink,
        };
        twins.compare();
        twins
    }

    fn index(&mut self, name: &str) -> u32 {
        self.netlink.link(name).unwrap().unwrap().index
    }

    #[track_caller]
    fn compare(&self) {
        self.ours.settle();
        self.theirs.settle();
        assert_eq!(state(&self.ours), state(&self.theirs));
    }

    /// Makes the same change in both namespaces and compares them.
    #[track_caller]
    fn both(&mut self, ours: impl FnOnce(&mut Netlink) -> Result<(), NetlinkError>, theirs: &str) {
        let before = state(&self.ours);
        ours(&mut self.netlink).unwrap();
        self.theirs.ip(theirs);
        self.compare();
        assert_ne!(state(&self.ours), before, "{theirs} changes something");
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, NetlinkError>, errno: i32) -> NetlinkError {
    let error = result.unwrap_err();
    assert_eq!(error.errno(), Some(errno), "{error}");
    error
}

#[test]
fn a_link_says_what_it_is_a_part_of_and_what_wraps_its_packets() {
    let mut twins = Twins::new();
    for line in [
        "link add br7 type bridge",
        "link add eth7 address 02:00:00:00:00:07 type veth peer name eth8",
        "link set eth7 master br7",
    ] {
        twins.ours.ip(line);
    }
    let mut link = |name| twins.netlink.link(name).unwrap().unwrap();
    let (bridge, port) = (link("br7"), link("eth7"));
    assert_eq!(port.medium, Medium::Ethernet([2, 0, 0, 0, 0, 7]));
    assert_eq!(port.controller, Some(bridge.index));
    assert_eq!(bridge.kind.as_deref(), Some("bridge"));
    assert_eq!(bridge.controller, None);
}

#[test]
fn links_are_listed_changed_and_deleted() {
    let mut twins = Twins::new();
    let index = twins.index("tun7");
    let links = twins.netlink.links().unwrap();
    let names: Vec<_> = links.iter().map(|link| link.name.as_str()).collect();
    for name in ["lo", "tun7", "tun8"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let tun = Link {
        index,
        name: "tun7".to_owned(),
        up: true,
        mtu: 1500,
        kind: Some("tun".to_owned()),
        medium: Medium::Other(libc::ARPHRD_NONE),
        controller: None,
    };
    assert!(links.contains(&tun), "{links:?}");
    assert_eq!(twins.netlink.link("tun7").unwrap(), Some(tun.clone()));
    let lo = twins.netlink.link("lo").unwrap().unwrap();
    assert_eq!((lo.kind, lo.medium), (None, Medium::Loopback));
    assert_eq!(twins.netlink.link("tun9").unwrap(), None);

    twins.both(|s| s.set_mtu(index, 1380), "link set mtu 1380 dev tun7");
    twins.both(|s| s.set_up(index, false), "link set down dev tun7");
    let changed = twins.netlink.link("tun7").unwrap().unwrap();
    assert_eq!((changed.mtu, changed.up), (1380, false));
    twins.both(|s| s.set_up(index, true), "link set up dev tun7");
    // Setting the present state again is not an error.
    twins.netlink.set_up(index, true).unwrap();

    let error = refused(twins.netlink.set_mtu(index, 67), libc::EINVAL);
    let text = error.to_string();
    assert!(
        text.starts_with("cannot set the MTU of tun7 to 67: "),
        "{text}"
    );
    assert!(error.reason.is_some(), "the kernel's words: {text}");

    twins.both(|s| s.delete_link(index), "link delete dev tun7");
    assert_eq!(twins.netlink.link("tun7").unwrap(), None);
    refused(twins.netlink.delete_link(index), libc::ENODEV);
    refused(twins.netlink.set_up(index, true), libc::ENODEV);
    refused(twins.netlink.set_mtu(index, 1400), libc::ENODEV);
    for nowhere in [0, u32::MAX] {
        refused(twins.netlink.delete_link(nowhere), libc::ENODEV);
    }
}

#[test]
fn names_that_cannot_be_are_refused() {
    let place = Namespace::new();
    let mut netlink = place.run(|| Netlink::open().unwrap());
    for name in ["", "sixteen-bytes-xx", "a/b", "a b", "a\0b"] {
        refused(netlink.link(name), libc::EINVAL);
        let mut firewall = firewall(Family::V4, &[]);
        firewall.interface = InterfaceMatch::Name(name.to_owned());
        refused(netlink.add_firewall(&firewall), libc::EINVAL);
    }
    let long = "x".repeat(256);
    for name in ["", "a\0b", &long] {
        let mut firewall = firewall(Family::V4, &[]);
        firewall.name = name.to_owned();
        refused(netlink.add_firewall(&firewall), libc::EINVAL);
        refused(netlink.remove_firewall(Family::V4, name), libc::EINVAL);
    }
    let mut strange = firewall(Family::V4, &["fd00::1"]);
    refused(netlink.add_firewall(&strange), libc::EINVAL);
    assert_eq!(netlink.firewall_tables().unwrap(), []);
    // The longest name.
    strange.addresses.clear();
    strange.name = "x".repeat(255);
    strange.interface = InterfaceMatch::Name("fifteen-bytes-x".to_owned());
    netlink.add_firewall(&strange).unwrap();
    let listed = netlink.firewall_tables().unwrap();
    assert_eq!(listed, [(Family::V4, strange.name)]);
}

#[test]
fn addresses_are_those_of_ip() {
    let mut twins = Twins::new();
    let interface = twins.index("tun7");
    let addresses = [
        "10.1.2.3/24",
        "10.1.2.4/24",
        "192.0.2.1/32",
        "127.9.9.9/8",
        "169.254.1.1/16",
        "fd00:1::2/64",
        "fd00:1::3/128",
        "fe80::77/64",
        "2001:db8::1/48",
    ]
    .map(|network| Address {
        interface,
        network: net(network),
    });
    for address in &addresses {
        let command = format!("address add {} dev tun7", address.network);
        twins.both(|s| s.add_address(address), &command);
        let text = refused(twins.netlink.add_address(address), libc::EEXIST).to_string();
        let begin = format!("cannot give tun7 the address {}: ", address.network);
        assert!(text.starts_with(&begin), "{text}");
    }
    let listed = twins.netlink.addresses().unwrap();
    for address in &addresses {
        assert!(listed.contains(address), "{address:?} in {listed:?}");
    }
    // Deleting a network's first address deletes the others of that network too.
    for address in addresses.iter().rev() {
        let command = format!("address delete {} dev tun7", address.network);
        twins.both(|s| s.remove_address(address), &command);
        refused(twins.netlink.remove_address(address), libc::EADDRNOTAVAIL);
    }
    let elsewhere = Address {
        interface: 9999,
        network: net("10.0.0.1/24"),
    };
    refused(twins.netlink.add_address(&elsewhere), libc::ENODEV);
}

#[test]
fn the_address_of_this_end_is_listed() {
    let place = Namespace::new();
    place.ip("tuntap add tun7 mode tun");
    place.ip("address add 10.0.0.1 peer 10.0.0.2/32 dev tun7");
    let mut netlink = place.run(|| Netlink::open().unwrap());
    let listed = netlink.addresses().unwrap();
    let networks: Vec<_> = listed.iter().map(|address| address.network).collect();
    assert!(networks.contains(&net("10.0.0.1/32")), "{networks:?}");
}

/// The kernel flags a list that changed during the dump; the client then requests it again.
#[test]
fn a_list_that_changes_while_it_is_made_is_made_again() {
    const ROUNDS: usize = 100;
    let place = Namespace::new();
    place.ip("tuntap add tun7 mode tun");
    let mut netlink = place.run(|| Netlink::open().unwrap());
    let interface = netlink.link("tun7").unwrap().unwrap().index;
    let address = |network| Address { interface, network };
    let steady: Vec<_> = (0..1500)
        .map(|number| std::net::Ipv4Addr::from((10 << 24) + number))
        .map(|ip| address(IpAddr::from(ip).into()))
        .collect();
    for address in &steady {
        netlink.add_address(address).unwrap();
    }
    // The kernel lists this address before all others, whose offsets then change.
    let restless = address(net("127.9.9.9/32"));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let mut other = place.run(|| Netlink::open().unwrap());
        let (stop, restless) = (&stop, &restless);
        scope.spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                other.add_address(restless).unwrap();
                thread::sleep(Duration::from_millis(5));
                other.remove_address(restless).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
        });
        let lists: Vec<_> = (0..ROUNDS).map(|_| netlink.addresses()).collect();
        stop.store(true, Ordering::Relaxed);
        for list in lists {
            let mut list = list.unwrap();
            list.retain(|listed| listed.interface == interface && listed != restless);
            assert!(list == steady, "{} of {}", list.len(), steady.len());
        }
    });
}

#[test]
fn a_namespace_stays_the_one_it_was_opened_in() {
    let [home, abroad] = [(); 2].map(|()| Namespace::new());
    home.ip("tuntap add tun7 mode tun");
    let mut netlink = home.run(|| Netlink::open().unwrap());
    abroad.run(|| {
        assert!(netlink.link("tun7").unwrap().is_some());
        netlink.add_firewall(&firewall(Family::V4, &[])).unwrap();
    });
    assert!(output(&home, "nft", "list tables").contains("wg-quick-tun7"));
    assert_eq!(output(&abroad, "nft", "list tables"), "");
}

#[test]
fn without_privileges_everything_can_be_read_and_nothing_changed() {
    let place = Namespace::new();
    place.ip("tuntap add tun7 mode tun");
    place.run(|| {
        let none = rustix::thread::CapabilitySet::empty();
        let none = rustix::thread::CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        };
        rustix::thread::set_capabilities(None, none).unwrap();
        let mut netlink = Netlink::open().unwrap();
        let interface = netlink.link("tun7").unwrap().unwrap().index;
        netlink.links().unwrap();
        netlink.addresses().unwrap();
        netlink.routes().unwrap();
        netlink.rules().unwrap();
        let address = Address {
            interface,
            network: net("10.0.0.1/24"),
        };
        refused(netlink.add_address(&address), libc::EPERM);
        refused(netlink.set_up(interface, true), libc::EPERM);
        let rule = Rule::suppressing(Family::V4, 500, 0, 254);
        refused(netlink.add_rule(&rule), libc::EPERM);
        refused(
            netlink.add_firewall(&firewall(Family::V4, &[])),
            libc::EPERM,
        );
    });
}

/// Everything that is written to a journal can be read again.
#[test]
fn everything_is_plain_data() {
    fn again<T>(value: &T)
    where
        T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug,
    {
        let text = serde_json::to_string(value).unwrap();
        assert_eq!(serde_json::from_str::<T>(&text).unwrap(), *value, "{text}");
    }
    again(&Route {
        mtu: Some(1400),
        kind: RouteKind::Other(6),
        ..Route::by_interface(net("fd00::/8"), 7, 254)
    });
    again(&Rule::not_marked(Family::V6, 5, 51820, 51820));
    again(&firewall(Family::V6, &["fd00::1"]));
    again(&Address {
        interface: 7,
        network: net("10.1.2.3/8"),
    });
}
