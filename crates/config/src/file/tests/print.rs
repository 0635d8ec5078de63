//! Printing files, and saving a running tunnel.

use core::time::Duration;

use ipnet::IpNet;
use taupe_protocol::update::{DeviceStatus, EndpointName, PeerStatus};

use super::*;

fn networks(text: &str) -> Vec<IpNet> {
    text.split_whitespace()
        .map(|network| taupe_uapi::prefix::parse(network).unwrap())
        .collect()
}

fn status(key: [u8; 32], endpoint: Option<&str>, allowed_ips: &str) -> PeerStatus {
    PeerStatus {
        public_key: PublicKey(key),
        preshared_key: PresharedKey::NONE,
        pq_public_key: None,
        post_quantum: None,
        pq_pinned: false,
        session: None,
        lanes: None,
        endpoint: endpoint.map(|endpoint| endpoint.parse().unwrap()),
        endpoint_name: None,
        latest_handshake: Some(Duration::from_secs(1)),
        unanswered: None,
        tx_bytes: 1,
        rx_bytes: 2,
        persistent_keepalive: 0,
        allowed_ips: networks(allowed_ips),
    }
}

/// Saves a tunnel with the addresses 10.0.0.2/24 and fe80::1/64.
fn saved(old: &str, peers: Vec<PeerStatus>) -> String {
    let old = quick(old).file.unwrap();
    let device = DeviceStatus {
        private_key: PrivateKey::new([8; 32]),
        pq_private_key: None,
        peers,
    };
    let addresses = ["10.0.0.2/24", "fe80::1/64"].map(|own| own.parse().unwrap());
    let current = Current {
        status: &device,
        listen_port: 51820,
        fwmark: 0xca6c,
        addresses: &addresses,
        dns: &["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        dns_search: &["example.org".to_owned()],
        mtu: 1380,
    };
    let text = save(&old, &current);
    let again = quick(&text);
    assert!(again.file.is_some(), "{}", *text);
    text.to_string()
}

/// Order and format as `wg-quick save` of wireguard-tools 1.0.20210914 writes them.
#[test]
fn everything() {
    let old = format!(
        "[Interface]\nPrivateKey = {OTHER}\nListenPort = 1\nPostDown = d\nPreDown = c # x\nPostUp = b\n\
         PreUp = a\nPreUp = a2\nSaveConfig = true\nTable = 1234\nMTU = 1400\nAddress = 10.0.0.9/24\n\
         # a comment\n[Peer]\nPublicKey = {OWN}\nAllowedIPs = 10.9.0.0/16\n"
    );
    let mut first = status([1; 32], Some("192.0.2.1:5"), "10.1.0.0/16 fd00::/64");
    first.preshared_key = PresharedKey::new([2; 32]);
    first.persistent_keepalive = 25;
    let second = status([2; 32], Some("[2001:db8::1]:5"), "");
    let third = status([3; 32], None, "10.3.0.0/16");
    assert_eq!(
        saved(&old, vec![first, second, third]),
        format!(
            "[Interface]
Address = 10.0.0.2/24
Address = fe80::1/64
DNS = 10.0.0.1
DNS = fd00::1
DNS = example.org
MTU = 1380
Table = 1234
SaveConfig = true
PreUp = a
PreUp = a2
PostUp = b
PreDown = c # x
PostDown = d
ListenPort = 51820
FwMark = 0xca6c
PrivateKey = {OWN}

[Peer]
PublicKey = {PEER}
PresharedKey = {OTHER}
AllowedIPs = 10.1.0.0/16, fd00::/64
Endpoint = 192.0.2.1:5
PersistentKeepalive = 25

[Peer]
PublicKey = {OTHER}
Endpoint = [2001:db8::1]:5

[Peer]
PublicKey = AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=
AllowedIPs = 10.3.0.0/16
"
        )
    );
}

#[test]
fn settings_that_the_old_file_lacks_are_not_written() {
    let old = format!("[Interface]\nPrivateKey = {OWN}\nTable = auto\n");
    let text = saved(&old, Vec::new());
    for word in ["MTU", "Table", "SaveConfig", "PreUp", "[Peer]"] {
        assert!(!text.contains(word), "{word}");
    }
    assert!(text.ends_with(&format!("PrivateKey = {OWN}\n")));
}

#[test]
fn endpoint_names_are_saved() {
    let old = format!(
        "[Interface]\nPrivateKey = {OWN}\n[Peer]\nPublicKey = {PEER}\nEndpoint = vpn.example.org:5\n\
         AllowedIPs = ::/0\n"
    );
    let mut first = status([1; 32], Some("192.0.2.1:5"), "::/0");
    let second = || status([2; 32], Some("192.0.2.2:5"), "10.0.0.0/8");
    first.endpoint_name = EndpointName::new("vpn.example.org", 5);
    let text = saved(&old, vec![first, second()]);
    assert!(text.contains("\nEndpoint = vpn.example.org:5\n"));
    assert!(text.contains("\nEndpoint = 192.0.2.2:5\n"));
    // The device no longer has the name: an address was set.
    let first = status([1; 32], Some("192.0.2.1:5"), "::/0");
    let text = saved(&old, vec![first, second()]);
    assert!(text.contains("\nEndpoint = 192.0.2.1:5\n"));
}

#[test]
fn disallowed_ips_are_saved_until_the_networks_change() {
    let old = format!(
        "[Interface]\nPrivateKey = {OWN}\n[Peer]\nPublicKey = {PEER}\n\
         AllowedIPs = 10.0.0.0/24, 10.1.0.0/30\nDisallowedIPs = 10.0.0.0/25, 10.1.0.0/31\n"
    );
    let kept = "AllowedIPs = 10.0.0.0/24, 10.1.0.0/30\nDisallowedIPs = 10.0.0.0/25, 10.1.0.0/31\n";
    for (running, expected) in [
        ("10.1.0.2/31 10.0.0.128/25", kept),
        // The same networks, split differently.
        ("10.0.0.128/26 10.0.0.192/26 10.1.0.2 10.1.0.3", kept),
        // Changed on the device: fewer networks, or excluded networks added.
        ("10.0.0.128/25", "AllowedIPs = 10.0.0.128/25\n"),
        (
            "10.0.0.0/24 10.1.0.0/30",
            "AllowedIPs = 10.0.0.0/24, 10.1.0.0/30\n",
        ),
        ("", ""),
    ] {
        let text = saved(&old, vec![status([1; 32], None, running)]);
        let expected = format!("PublicKey = {PEER}\n{expected}");
        assert!(text.ends_with(&expected), "{running}: {text}");
    }
}

#[test]
fn long_lists_read_back() {
    let networks: Vec<IpNet> = (0..250_000_u32)
        .map(|i| {
            let address = core::net::Ipv6Addr::from(u128::MAX - u128::from(i) * 2);
            IpNet::from(core::net::IpAddr::from(address))
        })
        .collect();
    let file = File {
        interface: Interface {
            private_key: PrivateKey::new([8; 32]),
            ..Interface::default()
        },
        peers: vec![Peer {
            public_key: PublicKey([1; 32]),
            preshared_key: None,
            preshared_key_file: None,
            pq_public_key: None,
            post_quantum: None,
            endpoint: None,
            allowed_ips: networks,
            disallowed_ips: Vec::new(),
            persistent_keepalive: Some(0),
            name: None,
            line: 0,
        }],
        transparent: Transparent::default(),
    };
    let text = print(&file);
    assert_eq!(text.matches("AllowedIPs").count(), 3);
    assert!(text.lines().all(|line| line.len() < MAX_LINE / 2));
    assert!(crate::fuzzing::same_file(&clean(&text), &file));
}

/// Growth of the buffer would leave a copy of the text.
#[test]
fn the_buffer_has_its_final_size() {
    let text = crate::fuzzing::malformed::valid(7);
    let file = parse(&text, Dialect::Taupe).file.unwrap();
    let printed = print(&file);
    assert_eq!(printed.capacity(), printed.len());
}
