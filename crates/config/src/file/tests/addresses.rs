//! Diagnostics of networks, addresses and endpoints.

use DiagnosticKind as Kind;
use Severity::{Error, Warning};

use super::refuse::{diagnostics, in_interface, in_peer, network};
use super::*;

#[test]
fn networks_of_two_peers() {
    let found = diagnostics(
        "[Interface]\nPrivateKey = {own}\n[Peer]\nPublicKey = {peer}\nAllowedIPs = 10.0.0.0/8, 10.0.0.0/8\n\
         [Peer]\nPublicKey = {other}\nAllowedIPs = 10.1.0.0/16, 10.0.0.0/8\n",
    );
    let network = network("10.0.0.0/8");
    // A longer network is only a more specific route.
    assert_eq!(
        found,
        [(8, 27, Warning, Kind::Overlap { network, first: 5 })]
    );
}

#[test]
fn doubtful_networks() {
    let key = Key::AllowedIps;
    assert_eq!(
        in_peer("AllowedIPs = ::/0, 10.1.2.3/16"),
        [(
            20,
            Warning,
            Kind::HostBits {
                key,
                network: network("10.1.0.0/16")
            }
        )]
    );
    assert_eq!(
        in_peer("AllowedIPs = 0.0.0.0"),
        [(
            14,
            Warning,
            Kind::SingleUnspecified {
                network: network("0.0.0.0/32")
            }
        )]
    );
    assert_eq!(in_peer("AllowedIPs = 0.0.0.0/32, ::/128"), []);
    assert_eq!(
        in_peer("DisallowedIPs = 10.1.0.0/16, 11.0.0.0/8"),
        [(
            30,
            Warning,
            Kind::DisallowedOutsideAllowed {
                network: network("11.0.0.0/8")
            }
        )]
    );
    let text = "[Interface]\nPrivateKey = {own}\n[Peer]\nPublicKey = {peer}\nAllowedIPs = 10.0.0.0/8\n\
                DisallowedIPs = 10.0.0.0/9, 10.128.0.0/9\n";
    assert_eq!(diagnostics(text), [(3, 1, Warning, Kind::AllDisallowed)]);
    let text = "[Interface]\nPrivateKey = {own}\n[Peer]\nPublicKey = {peer}\n";
    assert_eq!(diagnostics(text), [(3, 1, Warning, Kind::NoAllowedIps)]);
}

#[test]
fn malformed_networks() {
    for (value, column, problem) in [
        (
            "10.0.0.0/8, 10.0.0.0/33",
            35,
            AddressProblem::Length { max: 32 },
        ),
        ("10.0.0.0/8,::/129", 28, AddressProblem::Length { max: 128 }),
        ("10.0.0.0 / 999", 25, AddressProblem::Length { max: 32 }),
        ("10.0.0.0/", 14, AddressProblem::Length { max: 32 }),
        ("10.0.0.0/-1", 23, AddressProblem::Length { max: 32 }),
        ("10.0.0.0/255.0.0.0", 23, AddressProblem::Mask),
        ("::/0, -10.0.0.0/8", 20, AddressProblem::Change),
        ("::/0,, ::/1", 19, AddressProblem::Empty),
        ("::/0, fe80::%1/64", 20, AddressProblem::Scope),
        ("::/0, 1.2.3/8", 20, AddressProblem::Address),
        ("10.0.0.0/24 10.1.0.0/24", 26, AddressProblem::Separator),
        ("10.0.0.0/24;10.1.0.0/24", 26, AddressProblem::Separator),
        ("0.0.0.0/0 ; ::/0", 26, AddressProblem::Separator),
        ("10.0.0.1 10.0.0.2", 23, AddressProblem::Separator),
        ("10.0.0.0/24;", 25, AddressProblem::Separator),
    ] {
        let found = in_peer(&format!("AllowedIPs = {value}"));
        let [(at, Error, Kind::Address { problem: found, .. })] = &found[..] else {
            panic!("{value}: {found:?}");
        };
        assert_eq!((*at, *found), (column, problem), "{value}");
    }
}

#[test]
fn doubtful_addresses() {
    let key = Key::Address;
    for (line, what, severity) in [
        ("Address = 127.0.0.2/8", UnusableAddress::Loopback, Warning),
        ("Address = 10.0.0.0/24", UnusableAddress::Network, Warning),
        ("Address = fd00::/64", UnusableAddress::Network, Warning),
        (
            "Address = 10.0.0.255/24",
            UnusableAddress::SubnetBroadcast,
            Warning,
        ),
        (
            "Address = 10.0.0.3/30",
            UnusableAddress::SubnetBroadcast,
            Warning,
        ),
        ("Address = 10.0.0.1/0", UnusableAddress::ZeroLength, Warning),
        ("Address = fd00::1/0", UnusableAddress::ZeroLength, Warning),
        (
            "Address = 255.255.255.255",
            UnusableAddress::Broadcast,
            Error,
        ),
        ("Address = ::", UnusableAddress::Unspecified, Error),
    ] {
        let kind = Kind::Unusable { key, what };
        assert_eq!(in_interface(line), [(11, severity, kind)], "{line}");
    }
    assert_eq!(
        in_interface("Address = 10.0.0.2/30, 10.0.1.0, 10.0.2.255/31"),
        []
    );
    let (key, what) = (Key::Dns, UnusableAddress::NoScope);
    assert_eq!(
        in_interface("DNS = 10.0.0.1, fe80::1"),
        [(17, Warning, Kind::Unusable { key, what })]
    );
    let what = UnusableAddress::Multicast;
    let key = Key::Endpoint;
    assert_eq!(
        in_peer("Endpoint = [ff02::1]:5"),
        [(12, Error, Kind::Unusable { key, what })]
    );
    let problem = EndpointProblem::NoScope;
    for value in ["[fe80::1]:51820", "[fe80::1%0]:51820"] {
        assert_eq!(
            in_peer(&format!("Endpoint = {value}")),
            [(12, Warning, Kind::Endpoint { problem })]
        );
    }
    let problem = EndpointProblem::Unbracketed;
    assert_eq!(
        in_peer("Endpoint = 2001:db8::1:51820"),
        [(12, Warning, Kind::Endpoint { problem })]
    );
}

#[test]
fn malformed_endpoints() {
    for (value, problem) in [
        ("vpn.example.org", EndpointProblem::NoPort),
        ("vpn.example.org:", EndpointProblem::NoPort),
        ("2001:db8::1", EndpointProblem::NoPort),
        ("[2001:db8::1]51820", EndpointProblem::NoPort),
        ("[2001:db8::1:51820", EndpointProblem::NoBracket),
        ("vpn:65536", EndpointProblem::Port),
        ("vpn:+5", EndpointProblem::Port),
        ("vpn:domain", EndpointProblem::Port),
        ("vpn:0", EndpointProblem::PortZero),
        (":51820", EndpointProblem::NoHost),
        ("[]:51820", EndpointProblem::NoHost),
        ("1.2.3:51820", EndpointProblem::Host),
        ("a..b:51820", EndpointProblem::Host),
        ("vpn.exämple.org:51820", EndpointProblem::Host),
        ("<server>:51820", EndpointProblem::Host),
        ("-vpn.example.org:51820", EndpointProblem::Host),
        ("[fe80::1%]:51820", EndpointProblem::Host),
        ("[fe80::1%a/b]:51820", EndpointProblem::Host),
        ("udp://vpn.example.org:51820", EndpointProblem::Url),
    ] {
        let found = in_peer(&format!("Endpoint = {value}"));
        assert_eq!(found, [(12, Error, Kind::Endpoint { problem })], "{value}");
    }
    let label = "a".repeat(64);
    assert_eq!(in_peer(&format!("Endpoint = {label}:5")).len(), 1);
    assert_eq!(in_peer(&format!("Endpoint = {}:5", &label[1..])), []);
}
