//! Meaning of valid files.

use super::*;
use ipnet::IpNet;
use taupe_uapi::{networks, prefix};

fn networks(text: &str) -> Vec<IpNet> {
    text.split_whitespace()
        .map(|network| prefix::parse(network).unwrap())
        .collect()
}

fn interface(lines: &str) -> Interface {
    clean(&format!("[Interface]\nPrivateKey = {OWN}\n{lines}\n")).interface
}

fn peer(lines: &str) -> Peer {
    let text = format!(
        "[Interface]\nPrivateKey = {OWN}\n[Peer]\nPublicKey = {PEER}\nAllowedIPs = 10.0.0.0/8\n{lines}\n"
    );
    clean(&text).peers.remove(0)
}

fn address(text: &str) -> IpNet {
    text.parse().unwrap()
}

#[test]
fn everything() {
    let file = clean(&format!(
        "# a comment
[Interface]
PrivateKey = {OWN} # mine
ListenPort = 51820
FwMark = 0xca6c
Address = 10.0.0.2/24, fd00::2/64
Address = 192.0.2.7
DNS = 10.0.0.1, fd00::1, example.org
MTU = 1420
Table = 1234
PreUp = echo pre up
PostUp = echo '#'; echo a = b # c
PostUp = iptables -A FORWARD -i %i -j ACCEPT
PreDown = echo pre down
PostDown = echo post down
SaveConfig = true
Lanes = 4

[Peer]
PublicKey = {PEER}
PresharedKey = AwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwM=
Endpoint = vpn.example.org:51820
AllowedIPs = 0.0.0.0/0
AllowedIPs = ::/0, 10.1.0.0/16
DisallowedIPs = 192.168.1.0/24
PersistentKeepalive = 25

[Peer]
PublicKey = {OTHER}
AllowedIPs = 10.2.0.0/16
"
    ));
    let Interface {
        private_key,
        private_key_file: None,
        pq_private_key,
        pq_private_key_file: None,
        listen_port,
        fwmark,
        addresses,
        dns,
        dns_search,
        mtu,
        table,
        hooks,
        save_config,
        lanes,
    } = file.interface
    else {
        panic!("keys in files");
    };
    assert!(private_key == PrivateKey::new([8; 32]));
    assert!(pq_private_key.is_none());
    assert_eq!(listen_port, Some(51820));
    assert_eq!(fwmark, Some(0xca6c));
    assert_eq!(
        addresses,
        ["10.0.0.2/24", "fd00::2/64", "192.0.2.7/32"].map(address)
    );
    assert_eq!(
        dns,
        ["10.0.0.1", "fd00::1"].map(|a| a.parse::<IpAddr>().unwrap())
    );
    assert_eq!(dns_search, ["example.org"]);
    assert_eq!(mtu, Some(1420));
    assert_eq!(lanes, Lanes::new(4));
    assert_eq!(table, Table::Id(1234));
    assert_eq!(hooks.pre_up, ["echo pre up"]);
    assert_eq!(
        hooks.post_up,
        [
            "echo '#'; echo a = b # c",
            "iptables -A FORWARD -i %i -j ACCEPT"
        ]
    );
    assert_eq!(hooks.pre_down, ["echo pre down"]);
    assert_eq!(hooks.post_down, ["echo post down"]);
    assert!(save_config);

    let [first, second] = &file.peers[..] else {
        panic!("not two peers");
    };
    assert_eq!(first.public_key, PublicKey([1; 32]));
    assert!(first.preshared_key == Some(PresharedKey::new([3; 32])));
    let name = Endpoint::Name {
        host: "vpn.example.org".into(),
        port: 51820,
    };
    assert_eq!(first.endpoint, Some(name));
    assert_eq!(first.allowed_ips, networks("0.0.0.0/0 ::/0 10.1.0.0/16"));
    assert_eq!(first.disallowed_ips, networks("192.168.1.0/24"));
    assert_eq!(first.persistent_keepalive, Some(25));
    assert_eq!(first.line, 19);
    let routed = first.routed();
    assert_eq!(routed.len(), 25);
    assert!(!networks::covers(&routed, networks("192.168.1.0/24")[0]));
    assert!(networks::covers(&routed, networks("192.168.0.0/24")[0]));

    assert_eq!(second.public_key, PublicKey([2; 32]));
    assert!(second.preshared_key.is_none());
    assert_eq!(second.endpoint, None);
    assert_eq!(second.persistent_keepalive, None);
    assert_eq!(second.line, 28);
    // In the order of the file, not sorted.
    assert_eq!(second.routed(), networks("10.2.0.0/16"));
}

#[test]
fn defaults() {
    let interface = interface("");
    assert_eq!(interface.listen_port, None);
    assert_eq!(interface.fwmark, None);
    assert_eq!(interface.mtu, None);
    assert_eq!(interface.table, Table::Auto);
    assert!(!interface.save_config);
    assert_eq!(interface.hooks, Hooks::default());
}

#[test]
fn case_blanks_and_line_ends_do_not_matter() {
    for text in [
        format!("[interface]\nPRIVATEKEY={OWN}\n[PEER]\npublickey={PEER}\nallowedips=::/0"),
        format!(
            "\t[Interface] # x\r\n  PrivateKey\t= {OWN}\r\n\r\n[ Peer ]\r\nPublic Key = {PEER} \r\n\
             AllowedIPs = : : / 0\r\n"
        ),
        format!(
            "\u{feff}[Interface]\n#\nPrivateKey = {OWN}#x\n[Peer]\nPublicKey = {PEER}\nAllowedIPs=::/000"
        ),
        // Sections in any order, and on single lines.
        format!("[Peer]\nAllowedIPs = ::/0\nPublicKey = {PEER}\n[Interface]\nPrivateKey = {OWN}\n"),
    ] {
        let file = clean(&text);
        assert!(file.interface.private_key.is_some(), "{text}");
        assert_eq!(file.peers.len(), 1, "{text}");
        assert_eq!(file.peers[0].allowed_ips, networks("::/0"), "{text}");
    }
    let (first, second) = PEER.split_at(20);
    let spaced = format!(
        "[Interface]\nPrivateKey = {OWN}\n[Peer]\nPublicKey = {first} {second}\nAllowedIPs = ::/0"
    );
    assert_eq!(clean(&spaced).peers[0].public_key, PublicKey([1; 32]));
}

#[test]
fn comments_need_not_be_utf8() {
    let mut text = format!("[Interface]\nPrivateKey = {OWN} # ").into_bytes();
    text.extend(b"\xe9\n# \xff\n");
    let parsed = parse(&text, Dialect::Taupe);
    assert_eq!(parsed.diagnostics, []);
    assert_eq!(parsed.private_key_at, Some((2, 14)));
}

#[test]
fn values_of_the_interface() {
    for (line, expected) in [
        ("ListenPort = 0", Some(0)),
        ("ListenPort = 65535", Some(65535)),
        ("ListenPort = 007", Some(7)),
    ] {
        assert_eq!(interface(line).listen_port, expected, "{line}");
    }
    for (line, expected) in [
        ("FwMark = off", Some(0)),
        ("FwMark = OFF", Some(0)),
        ("FwMark = 0", Some(0)),
        ("FwMark = 4294967295", Some(u32::MAX)),
        ("FwMark = 0xFFffFFff", Some(u32::MAX)),
    ] {
        assert_eq!(interface(line).fwmark, expected, "{line}");
    }
    for (line, expected) in [
        ("Table = auto", Table::Auto),
        ("Table = OFF", Table::Off),
        ("Table = 1", Table::Id(1)),
        ("Table = 0x10", Table::Id(16)),
        ("Table = 4294967295", Table::Id(u32::MAX)),
        ("Table = main", Table::Name("main".into())),
        ("Table = my-table_2.x", Table::Name("my-table_2.x".into())),
    ] {
        assert_eq!(interface(line).table, expected, "{line}");
    }
    for (line, expected) in [
        ("MTU = 576", 576),
        ("MTU = 65455", 65455),
        ("MTU = 1280\nAddress = fd00::1/64", 1280),
    ] {
        assert_eq!(interface(line).mtu, Some(expected), "{line}");
    }
    assert!(interface("SaveConfig = True").save_config);
    assert!(!interface("SaveConfig = FALSE").save_config);
}

#[test]
fn lists_of_the_interface() {
    let lines = "Address = 10.0.0.1/24,,10.0.1.1/255.255.255.0\t10.0.2.1 , ::1:2";
    assert_eq!(
        interface(lines).addresses,
        ["10.0.0.1/24", "10.0.1.1/24", "10.0.2.1/32", "::1:2/128"].map(address)
    );
    // The same address in two networks, and both hosts of a /31.
    let lines = "Address = 10.0.0.1/24, 10.0.0.1/32, 10.0.0.4/31, 10.0.0.5/31, fd00::/127";
    assert_eq!(interface(lines).addresses.len(), 5);
    let dns = interface("DNS = 127.0.0.53 ~. example.org., _x.local\nDNS = ::1");
    assert_eq!(dns.dns.len(), 2);
    assert_eq!(dns.dns_search, ["~.", "example.org.", "_x.local"]);
}

#[test]
fn a_hook_may_set_the_private_key() {
    for line in [
        "PostUp = wg set %i private-key /etc/wireguard/key",
        "PreUp = wg setconf %i <(gpg -d key.gpg)",
    ] {
        let parsed = quick(&format!("[Interface]\n{line}\n"));
        assert_eq!(parsed.diagnostics, [], "{line}");
        assert!(parsed.file.unwrap().interface.private_key.is_none());
    }
}

#[test]
fn endpoints() {
    for (text, expected) in [
        ("192.0.2.1:51820", "192.0.2.1:51820"),
        ("[2001:db8::1]:1", "[2001:db8::1]:1"),
        ("[192.0.2.1]:65535", "192.0.2.1:65535"),
        ("[fe80::1%3]:5", "[fe80::1%3]:5"),
        ("192.0.2.1:00005", "192.0.2.1:5"),
    ] {
        let expected: SocketAddr = expected.parse().unwrap();
        let endpoint = peer(&format!("Endpoint = {text}")).endpoint;
        assert_eq!(endpoint, Some(Endpoint::Address(expected)), "{text}");
    }
    for (text, host) in [
        ("localhost:5", "localhost"),
        ("a-b.example.org.:5", "a-b.example.org."),
        ("1e100.net:5", "1e100.net"),
        ("[fe80::1%eth0]:5", "fe80::1%eth0"),
        ("[fe80::1%wg-1.2]:5", "fe80::1%wg-1.2"),
        ("[example.org]:5", "example.org"),
        // `wg` ignores blanks.
        ("exa mple.org : 5", "example.org"),
    ] {
        let endpoint = peer(&format!("Endpoint = {text}")).endpoint.unwrap();
        let name = Endpoint::Name {
            host: host.into(),
            port: 5,
        };
        assert_eq!(endpoint, name, "{text}");
        let again = peer(&format!("Endpoint = {endpoint}")).endpoint;
        assert_eq!(again, Some(endpoint), "{text}");
    }
}

#[test]
fn values_of_a_peer() {
    for (line, expected) in [
        ("PersistentKeepalive = off", Some(0)),
        ("PersistentKeepalive = 0", Some(0)),
        ("PersistentKeepalive = 65535", Some(65535)),
    ] {
        assert_eq!(peer(line).persistent_keepalive, expected, "{line}");
    }
    let lines = "AllowedIPs = 1.2.3.4,::ffff:10.0.0.1/128 , 192.0.2.0/24";
    assert_eq!(
        peer(lines).allowed_ips,
        networks("10.0.0.0/8 1.2.3.4 ::ffff:10.0.0.1 192.0.2.0/24")
    );
}

#[test]
fn disallowed_ips_with_and_without_a_comment_prefix() {
    for line in [
        "DisallowedIPs = 10.1.0.0/16,10.2.0.0/16",
        "disallowedips=10.1.0.0/16\nDisallowedIPs = 10.2.0.0/16",
        "#@ws:DisallowedIPs = 10.1.0.0/16, 10.2.0.0/16",
        "  #@ws: disallowedIPs = 10.1.0.0/16, 10.2.0.0/16 # local",
    ] {
        let peer = peer(line);
        assert_eq!(
            peer.disallowed_ips,
            networks("10.1.0.0/16 10.2.0.0/16"),
            "{line}"
        );
        assert_eq!(
            peer.routed(),
            networks(
                "10.0.0.0/16 10.3.0.0/16 10.4.0.0/14 10.8.0.0/13 10.16.0.0/12 10.32.0.0/11 \
                 10.64.0.0/10 10.128.0.0/9"
            )
        );
    }
    // Plain comments: the prefix must match exactly.
    for line in ["#@WS:Jc = 4", "#@ws Jc = 4", "# @ws:Jc = 4", "##@ws:Jc = 4"] {
        assert!(peer(line).disallowed_ips.is_empty(), "{line}");
    }
}

#[test]
fn many_peers() {
    let mut text = format!("[Interface]\nPrivateKey = {OWN}\n");
    for number in 1..=3000_u32 {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        let key = taupe_uapi::key::Encoding::Base64.encode(&key);
        let address = core::net::Ipv4Addr::from(0x0a00_0000 + number);
        text += &format!(
            "[Peer]\nPublicKey = {}\nPresharedKey = {}\nAllowedIPs = {address}\n",
            *key, *key
        );
    }
    let parsed = quick(&text);
    // All are reported, up to a limit.
    assert_eq!(parsed.diagnostics.len(), 1001);
    let last = parsed.diagnostics.last().unwrap();
    assert_eq!(last.kind, DiagnosticKind::More { more: 2000 });
    assert_eq!(last.line, 2 + 1000 * 4 + 3);
    let file = parsed.file.unwrap();
    assert_eq!(file.peers.len(), 3000);
    for (index, peer) in file.peers.iter().enumerate() {
        let number = index as u32 + 1;
        assert_eq!(peer.public_key.0[..4], number.to_be_bytes());
        let preshared_key = peer.preshared_key.as_ref().unwrap();
        assert_eq!(preshared_key.expose()[..4], number.to_be_bytes());
        assert_eq!(peer.line, 3 + index * 4);
    }
}

#[test]
fn a_shared_list_of_peers_may_include_the_tunnel_itself() {
    // The output of `wg pubkey` for OWN.
    let own = "MdSras7slhE3kXA3k25gcW+sVzr+lNnahKgCBEjfwRI=";
    let text = |other: &str| {
        format!(
            "[Peer]\nPublicKey = {own}\nEndpoint = a.example:1\nAllowedIPs = 10.0.0.1/32\n\
             {other}[Interface]\nPrivateKey = {OWN}\n"
        )
    };
    let other = format!("[Peer]\nPublicKey = {PEER}\nAllowedIPs = 10.0.0.2/32\n");
    let shared = quick(&text(&other));
    let found: Vec<_> = shared.diagnostics.iter().map(name).collect();
    assert_eq!(found, ["PeerIsSelf"]);
    let peers = shared.file.expect("only a warning").peers;
    assert_eq!(peers[0].allowed_ips, []);
    assert_eq!(peers[0].endpoint, None, "is not looked up");
    assert_eq!(peers[1].allowed_ips, networks("10.0.0.2/32"));
    assert!(quick(&text("")).file.is_none(), "it is alone");
    // The peer's networks do not count, so the MTU need not suit them.
    let ipv6 = text(&other).replace("10.0.0.1/32", "::/0") + "MTU = 1279\n";
    let file = quick(&ipv6).file.expect("only a warning");
    assert!(!file.carries_ipv6());
    let wg = parse(text("").as_bytes(), Dialect::Wg);
    let peers = wg.file.expect("wg takes it").peers;
    assert_eq!(peers[0].allowed_ips.len(), 1, "as it stands there");
}
