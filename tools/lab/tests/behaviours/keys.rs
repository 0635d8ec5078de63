//! Keys, and the packets that they authenticate.

use crate::pair::{End, FAR, FAR6, NEAR, NEAR6, Pair, neighbours};
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;
use taupe_lab::capture::{Capture, Message, Packet, messages};
use taupe_lab::host::{Host, add_address};
use taupe_lab::peers::Keys;
use taupe_lab::sandbox::scratch_file;
use taupe_lab::traffic::{first_answer, ping};
use taupe_lab::{Error, Result, ensure, uapi};

/// A packet whose inner source belongs to another peer is dropped. Its outer source still updates
/// the sender's endpoint.
pub(crate) fn crypto_routing() -> Result<()> {
    let pair = Pair::new()?;
    let Pair { near, far } = &pair;
    pair.set_far(&["allowed-ips", "10.77.0.0/24,fd77::/64"])?;
    ping(&near.host, FAR, 5)?;
    let cases = [(FAR, NEAR), (FAR6, NEAR6)];
    for (from, to) in cases {
        ensure!(arrives(far, near, from, to)?, "{from} is not heard");
    }
    let third = Keys::new(&near.host)?;
    let stolen = "10.77.0.2/32,fd77::2/128";
    near.tunnel
        .set(&["peer", &third.public, "allowed-ips", stolen])?;
    for ((from, to), port) in cases.into_iter().zip([9997, 9996]) {
        far.tunnel.set(&["listen-port", &port.to_string()])?;
        let capture = Capture::start(&near.host, "wgnear", "udp")?;
        ensure!(!arrives(far, near, from, to)?, "{from} is heard");
        let seen = capture.stop()?;
        ensure!(seen.is_empty(), "packets on the interface: {seen:?}");
        near.ensure_endpoint(&far.keys, &format!("192.0.2.2:{port}"))?;
    }
    near.tunnel.set(&["peer", &third.public, "remove"])?;
    for (from, to) in cases {
        ensure!(arrives(far, near, from, to)?, "{from} is not heard again");
    }
    Ok(())
}

/// Returns true if a datagram from one inner address reaches the other.
fn arrives(sender: &End, receiver: &End, from: IpAddr, to: IpAddr) -> Result<bool> {
    let bind = |host: &Host, address: IpAddr| {
        host.enter(|| UdpSocket::bind((address, 0)).map_err(Error::io("bind")))
    };
    let (source, target) = (bind(&sender.host, from)?, bind(&receiver.host, to)?);
    target
        .set_read_timeout(Some(Duration::from_millis(1000)))
        .map_err(Error::io("timeout"))?;
    let address = target.local_addr().map_err(Error::io("getsockname"))?;
    source.send_to(b"X", address).map_err(Error::io("send"))?;
    let mut block = [0; 8];
    match target.recv_from(&mut block) {
        Ok((1, _)) => Ok(block.starts_with(b"X")),
        Ok((length, _)) => Err(Error::unmet(format!("{length} bytes came"))),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
        Err(error) => Err(Error::io("receive")(error)),
    }
}

/// A new private key ends every session, and the next handshake begins at once, not 5 s after the
/// last one.
pub(crate) fn private_key_change() -> Result<()> {
    let pair = Pair::new()?;
    let Pair { near, far } = &pair;
    ping(&near.host, FAR, 5)?;
    let new = Keys::new(&near.host)?;
    let allowed = "10.77.0.1/32,fd77::1/128";
    far.tunnel
        .set(&["peer", &new.public, "allowed-ips", allowed])?;
    far.tunnel.set(&["peer", &near.keys.public, "remove"])?;
    let capture = Capture::start(&near.host, "eth0", "udp")?;
    let file = scratch_file("new", &new.private)?;
    near.tunnel.set(&["private-key", &file])?;
    first_answer(&near.host, FAR, Duration::from_secs(4))?;
    let packets = capture.stop_once("messages", |seen| !seen.is_empty())?;
    let first = packets.iter().find_map(|packet| packet.message());
    ensure!(
        first == Some(Message::Initiation),
        "the first message after the change is {first:?}"
    );
    let handshake = far.tunnel.field("latest-handshakes", &new.public)?;
    ensure!(handshake != "0", "no handshake with the new key");
    Ok(())
}

/// A device with a persistent keepalive uses a new private key only when it has something to send.
/// The peer may have to learn the key first, and after an initiation that comes too early the next
/// one follows only 5 s later.
pub(crate) fn private_key_change_with_keepalive() -> Result<()> {
    let pair = Pair::new()?;
    let Pair { near, far } = &pair;
    pair.set_far(&["persistent-keepalive", "25"])?;
    ping(&near.host, FAR, 5)?;
    let new = Keys::new(&near.host)?;
    let file = scratch_file("new", &new.private)?;
    let capture = Capture::start(&near.host, "eth0", "udp src port 51820")?;
    near.tunnel.set(&["private-key", &file])?;
    far.tunnel.set(&["peer", &near.keys.public, "remove"])?;
    let allowed = "10.77.0.1/32,fd77::1/128";
    far.tunnel
        .set(&["peer", &new.public, "allowed-ips", allowed])?;
    first_answer(&near.host, FAR, Duration::from_secs(20))?;
    let sent = |packets: &[Packet]| messages(packets, Message::Initiation).count();
    let packets = capture.stop_once("an initiation", |seen| sent(seen) > 0)?;
    ensure!(sent(&packets) == 1, "{} initiations", sent(&packets));
    Ok(())
}

/// The points of small order on Curve25519 and its twist in their encodings (Bernstein,
/// "Curve25519: new Diffie-Hellman speed records", and RFC 7748 section 6.1): with each the shared
/// secret is zero.
const LOW_ORDER: [&str; 7] = [
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
];

/// A peer with such a key is accepted, but no handshake is sent to it.
pub(crate) fn low_order_points() -> Result<()> {
    let (host, _far) = neighbours()?;
    let end = End::start(&host, "wg0", &[])?;
    let file = scratch_file("key", &end.keys.private)?;
    end.tunnel.set(&["private-key", &file])?;
    end.link(&["up"])?;
    add_address(&host, "wg0", "10.200.0.100/24")?;
    let peer = |number: usize, key: &str| {
        format!(
            "public_key={key}\nendpoint=192.0.2.2:{port}\nallowed_ip=10.200.0.{number}/32\n\
             persistent_keepalive_interval=1\n",
            port = 1000 + number
        )
    };
    let mut lines = String::new();
    for (number, key) in (1..).zip(LOW_ORDER) {
        let _ = write!(lines, "{}", peer(number, key));
    }
    let capture = Capture::start(&host, "eth0", "udp")?;
    uapi::set("wg0", &lines)?;
    let peers = end.tunnel.show(Some("peers"))?.stdout;
    ensure!(peers.lines().count() == LOW_ORDER.len(), "peers: {peers}");
    let socket = host.enter(|| UdpSocket::bind("10.200.0.100:0").map_err(Error::io("bind")))?;
    for number in 1..=7 {
        let to = SocketAddr::from(([10, 200, 0, number], 9));
        socket.send_to(b"X", to).map_err(Error::io("send"))?;
    }
    std::thread::sleep(Duration::from_millis(2500));
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "packets were sent: {packets:?}");

    // An ordinary peer in the same place gets a handshake.
    let capture = Capture::start(&host, "eth0", "udp")?;
    uapi::set("wg0", &peer(8, &"42".repeat(32)))?;
    capture.stop_once("an initiation to an ordinary peer", initiated)?;
    Ok(())
}

fn initiated(packets: &[Packet]) -> bool {
    messages(packets, Message::Initiation).next().is_some()
}

/// A private key is read back in its clamped form (RFC 7748 section 5).
pub(crate) fn clamped_key() -> Result<()> {
    let host = Host::new("a")?;
    let end = End::start(&host, "wg0", &[])?;
    let ones = format!("{}8=", "/".repeat(42));
    let clamped = format!("+P{}38=", "/".repeat(39));
    let file = scratch_file("ones", &ones)?;
    end.tunnel.set(&["private-key", &file])?;
    let shown = end.tunnel.show(Some("private-key"))?;
    ensure!(
        shown.text() == clamped,
        "{} and not {clamped}",
        shown.text()
    );
    let public = host.run_with_input(&["wg", "pubkey"], &ones)?;
    let shown = end.tunnel.show(Some("public-key"))?;
    ensure!(shown.text() == public.text(), "public key {}", shown.text());

    // The device's own key is never a peer.
    end.tunnel
        .set(&["peer", public.text(), "allowed-ips", "10.0.0.0/8"])?;
    let peers = end.tunnel.show(Some("peers"))?;
    ensure!(peers.text().is_empty(), "peers: {}", peers.text());
    let file = scratch_file("none", "")?;
    end.tunnel.set(&["private-key", &file])?;
    let shown = end.tunnel.show(Some("private-key"))?;
    ensure!(shown.text() == "(none)", "{} remains", shown.text());
    ensure!(
        host.run(&["wg", "show", "doesnotexist"]).is_err(),
        "an interface that does not exist is shown"
    );
    Ok(())
}

/// The longest of overlapping allowed IPs selects the peer, as shown by the port to which the
/// handshake goes.
pub(crate) fn longest_prefix() -> Result<()> {
    const PEERS: [(&str, u16); 5] = [
        ("0.0.0.0/0 ::/0", 1000),
        ("10.0.0.0/8 fd00::/8", 1001),
        ("10.64.0.0/10 fd40::/10", 1002),
        ("10.80.0.0/12 fd50::/12", 1003),
        ("10.80.1.1/32 fd50::1/128", 1004),
    ];
    const EXPECTED: [(&str, u16); 14] = [
        ("11.0.0.1", 1000),
        ("9.255.255.255", 1000),
        ("10.0.0.1", 1001),
        ("10.128.0.1", 1001),
        ("10.64.0.1", 1002),
        ("10.96.0.1", 1002),
        ("10.95.255.255", 1003),
        ("10.80.1.1", 1004),
        ("10.80.1.2", 1003),
        ("2001:db8:7::1", 1000),
        ("fd80::1", 1001),
        ("fd7f::1", 1002),
        ("fd50::2", 1003),
        ("fd50::1", 1004),
    ];
    let (host, _far) = neighbours()?;
    let end = End::start(&host, "wg0", &[])?;
    add_address(&host, "wg0", "10.200.0.100/32")?;
    add_address(&host, "wg0", "fd99::100/128")?;
    // The kernel's own multicast would also match a peer.
    host.run_with_input(
        &["nft", "-f", "-"],
        "table ip6 quiet { chain out {
            type filter hook output priority 0;
            oifname wg0 meta l4proto ipv6-icmp drop
        }
        }",
    )?;
    uapi::set("wg0", &format!("private_key={}\n", "18".repeat(32)))?;
    end.link(&["up"])?;
    host.ip(&["-4", "route", "add", "default", "dev", "wg0"])?;
    host.ip(&["-6", "route", "add", "default", "dev", "wg0"])?;
    // Replaces the peers each time, so that no handshake is delayed by an earlier one.
    let mut number = 0_u32;
    for (address, port) in EXPECTED {
        let mut lines = "replace_peers=true\n".to_owned();
        for (prefixes, port) in PEERS {
            number += 1;
            let _ = write!(
                lines,
                "public_key={}{number:08x}\nendpoint=192.0.2.2:{port}\n",
                "42".repeat(28)
            );
            for prefix in prefixes.split(' ') {
                let _ = writeln!(lines, "allowed_ip={prefix}");
            }
        }
        uapi::set("wg0", &lines)?;
        let capture = Capture::start(&host, "eth0", "udp")?;
        let to: IpAddr = address.parse().map_err(|_| Error::unmet("address"))?;
        let socket = host.enter(|| match to {
            IpAddr::V4(_) => UdpSocket::bind("10.200.0.100:0").map_err(Error::io("bind")),
            IpAddr::V6(_) => UdpSocket::bind("[fd99::100]:0").map_err(Error::io("bind")),
        })?;
        socket.send_to(b"X", (to, 9)).map_err(Error::io("send"))?;
        let packets = capture.stop_once("an initiation", initiated)?;
        let ports: Vec<_> = messages(&packets, Message::Initiation)
            .filter_map(|packet| Some(packet.datagram()?.destination.port()))
            .collect();
        ensure!(ports == [port], "{address} goes to {ports:?}, not {port}");
    }
    Ok(())
}
