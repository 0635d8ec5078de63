use super::{Colours, Extra, Field, PrettyOptions, field, pretty, showconf};

use core::time::Duration;

use ipnet::IpNet;
use taupe_protocol::key::{PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::time::Instant;
use taupe_protocol::update::EndpointName;

use crate::{Device, push_peer};

const NOW: Duration = Duration::from_secs(1_800_000_000);

/// The key of 32 bytes 0x11, in base64.
const ONES: &str = "ERERERERERERERERERERERERERERERERERERERERERE=";
const TWOS: &str = "IiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiIiI=";

fn scopes(index: u32) -> Option<String> {
    (index == 7).then(|| "eth0".to_owned())
}

fn device() -> Device {
    let mut device = Device::new("wg0");
    device.status.private_key = PrivateKey::new([0x48; 32]);
    device.public_key = Some(PublicKey([0x33; 32]));
    device.listen_port = 51820;
    device.fwmark = 0xca6c;
    push_peer(&mut device.status.peers, PublicKey([0x11; 32]));
    push_peer(&mut device.status.peers, PublicKey([0x22; 32]));
    let peer = &mut device.status.peers[1];
    peer.preshared_key = PresharedKey::new([0x11; 32]);
    peer.endpoint = "[fe80::1%7]:99".parse().ok();
    peer.endpoint_name = EndpointName::new("vpn.example.org", 99);
    peer.latest_handshake = Some(NOW - Duration::from_secs(63));
    peer.rx_bytes = 1_237_000;
    peer.tx_bytes = 92;
    peer.persistent_keepalive = 25;
    peer.allowed_ips = ["10.0.0.0/24", "fd00::/64"]
        .map(|text| crate::prefix::parse(text).expect("a prefix"))
        .to_vec();
    device
}

fn shown(device: &Device, how: &PrettyOptions<'_>) -> String {
    let mut text = String::new();
    pretty(&mut text, device, how).expect("a string takes everything");
    text
}

fn plain() -> PrettyOptions<'static> {
    PrettyOptions {
        colours: Colours::Off,
        show_keys: false,
        now: NOW,
        boot: Instant(0),
        scopes: &scopes,
        extra: None,
    }
}

#[test]
fn human_readable_form_with_all_fields() {
    let text = shown(&device(), &plain());
    let public = "MzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzM=";
    let expected = format!(
        "interface: wg0\n  public key: {public}\n  private key: (hidden)\n  \
         listening port: 51820\n  fwmark: 0xca6c\n\n\
         peer: {TWOS}\n  preshared key: (hidden)\n  endpoint: [fe80::1%eth0]:99\n  \
         allowed ips: 10.0.0.0/24, fd00::/64\n  latest handshake: 1 minute, 3 seconds ago\n  \
         transfer: 1.18 MiB received, 92 B sent\n  persistent keepalive: every 25 seconds\n\n\
         peer: {ONES}\n  allowed ips: (none)\n"
    );
    assert_eq!(text, expected);
}

#[test]
fn colours_change_nothing_else() {
    let how = PrettyOptions {
        colours: Colours::On,
        ..plain()
    };
    let text = shown(&device(), &how);
    assert!(text.starts_with("\x1b[0m\x1b[32m\x1b[1minterface\x1b[0m: \x1b[32mwg0\x1b[0m\n"));
    let mut stripped = text;
    for code in ["0", "1", "31", "32", "33", "36"] {
        stripped = stripped.replace(&format!("\x1b[{code}m"), "");
    }
    assert_eq!(stripped, shown(&device(), &plain()));
}

#[test]
fn keys_are_hidden_by_default() {
    let keys = ["SEhISEhISEhISEhISEhISEhISEhISEhISEhISEhISEg=", ONES];
    let how = PrettyOptions {
        show_keys: true,
        ..plain()
    };
    let text = shown(&device(), &how);
    let lines = [
        format!("  private key: {}\n", keys[0]),
        format!("  preshared key: {}\n", keys[1]),
    ];
    for line in lines {
        assert!(text.contains(&line), "{text}");
    }
}

#[test]
fn additions_follow_the_output_of_wg() {
    let notes = [("file", "/etc/wireguard/wg0.conf".to_owned())];
    let how = PrettyOptions {
        extra: Some(Extra {
            lines: &notes,
            name: &|key| (key.0 == [0x22; 32]).then(|| "alice".to_owned()),
        }),
        ..plain()
    };
    let text = shown(&device(), &how);
    let file = "  fwmark: 0xca6c\n  file: /etc/wireguard/wg0.conf\n\npeer:";
    assert!(text.contains(file), "{text}");
    let named = format!("peer: {TWOS}\n  name: alice\n");
    assert!(text.contains(&named), "{text}");
    assert_eq!(text.matches("  name: ").count(), 1);
    let name = "  persistent keepalive: every 25 seconds\n  endpoint name: vpn.example.org:99\n\n";
    assert!(text.contains(name), "{text}");
}

#[test]
fn a_long_list_is_written_as_everything_except() {
    let parse = |text: &str| crate::prefix::parse(text).unwrap();
    let mut device = device();
    let lan = parse("192.168.1.0/24");
    let all = ["0.0.0.0/0", "::/0"].map(parse);
    let own = crate::networks::subtract(&all, &[lan]);
    assert_eq!(own.len(), 25);
    device.status.peers[0].allowed_ips = own.clone();
    let how = PrettyOptions {
        extra: Some(Extra {
            lines: &[],
            name: &|_| None,
        }),
        ..plain()
    };
    let line = "  allowed ips: 0.0.0.0/0, ::/0 except 192.168.1.0/24\n";
    assert!(shown(&device, &how).contains(line));
    // `wg` lists every network.
    let text = shown(&device, &plain());
    let first = own[0].to_string();
    assert!(!text.contains("except") && text.contains(&first), "{text}");
    // A list that covers much less than everything is not shortened.
    let few: Vec<IpNet> = (0..20).map(|n| parse(&format!("10.{n}.0.0/24"))).collect();
    device.status.peers[0].allowed_ips = few;
    assert!(!shown(&device, &how).contains("except"));
}

/// Observed with wireguard-tools 1.0.20210914.
#[test]
fn times() {
    let handshakes = [
        (0, "Now"),
        (1, "1 second ago"),
        (59, "59 seconds ago"),
        (60, "1 minute ago"),
        (61, "1 minute, 1 second ago"),
        (3600, "1 hour ago"),
        (3661, "1 hour, 1 minute, 1 second ago"),
        (86_400, "1 day ago"),
        (31_536_000, "1 year ago"),
        (63_158_461, "2 years, 1 day, 1 minute, 1 second ago"),
    ];
    for (age, expected) in handshakes {
        let mut device = device();
        device.status.peers[1].latest_handshake = Some(NOW - Duration::from_secs(age));
        let text = shown(&device, &plain());
        let line = format!("  latest handshake: {expected}\n");
        assert!(text.contains(&line), "{age}: {text}");
    }
    let mut device = device();
    device.status.peers[1].latest_handshake = Some(NOW + Duration::from_secs(1));
    let line =
        "  latest handshake: (System clock wound backward; connection problems may ensue.)\n";
    assert!(shown(&device, &plain()).contains(line));
}

#[test]
fn amounts() {
    for (bytes, expected) in [
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1290, "1.26 KiB"),
        (1285, "1.25 KiB"),
        ((1 << 20) - 1, "1024.00 KiB"),
        (1 << 20, "1.00 MiB"),
        (1 << 30, "1.00 GiB"),
        (1 << 40, "1.00 TiB"),
        (1 << 50, "1024.00 TiB"),
        (u64::MAX, "16777216.00 TiB"),
    ] {
        let mut device = device();
        device.status.peers[0].rx_bytes = bytes;
        let line = format!("  transfer: {expected} received, 0 B sent\n");
        let text = shown(&device, &plain());
        assert!(text.contains(&line), "{bytes}: {text}");
    }
}

#[test]
fn the_latest_handshake_comes_first() {
    let mut device = Device::new("wg0");
    let handshakes = [None, Some(5), None, Some(9), Some(1), Some(9)];
    for (byte, handshake) in (0..).zip(handshakes) {
        push_peer(&mut device.status.peers, PublicKey([byte; 32]));
        device.status.peers[usize::from(byte)].latest_handshake =
            handshake.map(Duration::from_secs);
    }
    let text = shown(&device, &plain());
    let order: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("peer: "))
        .collect();
    let expected = [3u8, 5, 1, 4, 0, 2]
        .map(|byte| crate::key::Encoding::Base64.encode(&[byte; 32]).to_string());
    assert_eq!(order, expected);
}

fn field_text(device: &Device, name: &str, with_name: bool) -> String {
    let mut text = String::new();
    let which: Field = name.parse().expect(name);
    field(&mut text, device, which, with_name, &scopes).expect("a string takes everything");
    text
}

#[test]
fn every_field() {
    let private = "SEhISEhISEhISEhISEhISEhISEhISEhISEhISEhISEg=";
    let public = "MzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzMzM=";
    let handshake = NOW.as_secs() - 63;
    let cases = [
        ("public-key", format!("{public}\n")),
        ("private-key", format!("{private}\n")),
        ("listen-port", "51820\n".to_owned()),
        ("fwmark", "0xca6c\n".to_owned()),
        ("peers", format!("{ONES}\n{TWOS}\n")),
        (
            "preshared-keys",
            format!("{ONES}\t(none)\n{TWOS}\t{ONES}\n"),
        ),
        (
            "endpoints",
            format!("{ONES}\t(none)\n{TWOS}\t[fe80::1%eth0]:99\n"),
        ),
        (
            "allowed-ips",
            format!("{ONES}\t(none)\n{TWOS}\t10.0.0.0/24 fd00::/64\n"),
        ),
        (
            "latest-handshakes",
            format!("{ONES}\t0\n{TWOS}\t{handshake}\n"),
        ),
        ("transfer", format!("{ONES}\t0\t0\n{TWOS}\t1237000\t92\n")),
        ("persistent-keepalive", format!("{ONES}\toff\n{TWOS}\t25\n")),
        (
            "dump",
            format!(
                "{private}\t{public}\t51820\t0xca6c\n\
                 {ONES}\t(none)\t(none)\t(none)\t0\t0\t0\toff\n\
                 {TWOS}\t{ONES}\t[fe80::1%eth0]:99\t10.0.0.0/24,fd00::/64\t{handshake}\t1237000\t92\t25\n"
            ),
        ),
    ];
    assert_eq!(cases.len(), Field::ALL.len());
    let device = device();
    for (name, expected) in cases {
        assert_eq!(field_text(&device, name, false), expected, "{name}");
        let with_name: String = expected
            .lines()
            .map(|line| format!("wg0\t{line}\n"))
            .collect();
        assert_eq!(field_text(&device, name, true), with_name, "{name}");
    }
    assert!("Peers".parse::<Field>().is_err());
}

#[test]
fn an_empty_device_is_shown() {
    let device = Device::new("wg0");
    assert_eq!(shown(&device, &plain()), "interface: wg0\n");
    assert_eq!(
        field_text(&device, "dump", false),
        "(none)\t(none)\t0\toff\n"
    );
    assert_eq!(field_text(&device, "peers", true), "");
    let mut text = String::new();
    showconf(&mut text, &device, true, &scopes).expect("a string takes everything");
    assert_eq!(text, "[Interface]\n\n");
}

#[test]
fn a_file() {
    let mut text = String::new();
    showconf(&mut text, &device(), true, &scopes).expect("a string takes everything");
    let expected = format!(
        "[Interface]\nListenPort = 51820\nFwMark = 0xca6c\n\
         PrivateKey = SEhISEhISEhISEhISEhISEhISEhISEhISEhISEhISEg=\n\n\
         [Peer]\nPublicKey = {ONES}\n\n\
         [Peer]\nPublicKey = {TWOS}\nPresharedKey = {ONES}\n\
         AllowedIPs = 10.0.0.0/24, fd00::/64\nEndpoint = [fe80::1%eth0]:99\n\
         PersistentKeepalive = 25\n"
    );
    assert_eq!(text, expected);
}

/// As `getnameinfo` and `inet_ntop` of glibc 2.36 format them.
#[test]
fn addresses() {
    for (address, expected) in [
        ("192.0.2.1:1", "192.0.2.1:1"),
        ("[::]:1", "[::]:1"),
        ("[::1]:1", "[::1]:1"),
        ("[::1:0]:1", "[::0.1.0.0]:1"),
        ("[::102:304]:1", "[::1.2.3.4]:1"),
        ("[::ffff:102:304]:1", "[::ffff:1.2.3.4]:1"),
        ("[::1:102:304]:1", "[::1:102:304]:1"),
        ("[2001:db8:0:0:1:0:0:1]:1", "[2001:db8::1:0:0:1]:1"),
        ("[fe80::1%7]:1", "[fe80::1%eth0]:1"),
        ("[fe80::1%77]:1", "[fe80::1%77]:1"),
        ("[ff02::1%7]:1", "[ff02::1%eth0]:1"),
        ("[ff05::1%7]:1", "[ff05::1%7]:1"),
        ("[2001:db8::1%7]:1", "[2001:db8::1%7]:1"),
    ] {
        let mut device = device();
        device.status.peers[1].endpoint = address.parse().ok();
        let text = field_text(&device, "endpoints", false);
        assert!(text.ends_with(&format!("\t{expected}\n")), "{text}");
    }
    let mut device = device();
    device.status.peers[1].allowed_ips = vec![crate::prefix::parse("::1.2.3.4").unwrap()];
    let text = field_text(&device, "allowed-ips", false);
    assert!(text.ends_with("\t::1.2.3.4/128\n"), "{text}");
}
