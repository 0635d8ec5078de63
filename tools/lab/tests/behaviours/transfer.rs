//! Traffic arrives unchanged, and is counted.

use crate::datagrams::super_packets;
use crate::pair::{
    End, FAR, FAR_OUTER, FAR_OUTER6, FAR6, NEAR, NEAR6, Pair, await_port, neighbours,
};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use taupe_lab::capture::{Capture, Message, Packet, messages};
use taupe_lab::host::Host;
use taupe_lab::peers::{PeerSettings, Settings};
use taupe_lab::traffic::{first_answer, ping, serve_echo, tcp_echo};
use taupe_lab::{Error, Result, ensure};

/// Port of the echo servers.
const ECHO: u16 = 7;

/// Ten pings take a handshake and ten packets of 84 bytes, padded to 96, in messages of 128; on a
/// slow machine possibly one keepalive of 32 bytes.
pub(crate) fn counters() -> Result<()> {
    const INITIATION: u64 = 148;
    const RESPONSE: u64 = 92;
    const DATA: u64 = 10 * 128;
    const KEEPALIVE: u64 = 32;
    let pair = Pair::new()?;
    #[rustfmt::skip]
    pair.near.host.run(&["ping", "-c", "10", "-f", "-W", "1", &FAR.to_string()])?;
    let (received, sent) = pair.near.transfer(&pair.far.keys)?;
    let of_far = pair.far.transfer(&pair.near.keys)?;
    ensure!(
        received == RESPONSE + DATA,
        "{received} bytes received, not 1372"
    );
    let expected = INITIATION + DATA;
    ensure!(
        sent == expected || sent == expected + KEEPALIVE,
        "{sent} bytes sent, not 1428 or 1460"
    );
    ensure!(of_far.0 == sent, "{sent} sent, {} received", of_far.0);
    ensure!(
        of_far.1 == received,
        "{} sent, {received} received",
        of_far.1
    );
    let handshake = pair
        .near
        .tunnel
        .field("latest-handshakes", &pair.far.keys.public)?;
    ensure!(handshake != "0", "no time of the handshake");
    Ok(())
}

pub(crate) fn parallel_streams() -> Result<()> {
    let pair = Pair::new()?;
    for address in [FAR, FAR6] {
        let echo = SocketAddr::new(address, ECHO);
        serve_echo(&pair.far.host, echo)?;
        for (streams, length) in [(4, 3_000_000), (5, 3_000_000), (50, 200_001)] {
            std::thread::scope(|scope| {
                let near = &pair.near.host;
                let running: Vec<_> = (0..streams)
                    .map(|_| scope.spawn(move || tcp_echo(near, echo, length)))
                    .collect();
                running.into_iter().try_for_each(|stream| {
                    let ended = stream.join();
                    ended.unwrap_or_else(|_| Err(Error::unmet("a stream panicked")))?;
                    Ok(())
                })
            })?;
        }
    }
    Ok(())
}

pub(crate) fn every_mtu_over_ipv4() -> Result<()> {
    every_mtu(FAR_OUTER)
}

pub(crate) fn every_mtu_over_ipv6() -> Result<()> {
    every_mtu(FAR_OUTER6)
}

/// Changes the MTU while the interface runs: to one for which each outer packet becomes many
/// fragments of the cable's 1,500 bytes, and to one that is no multiple of 16 and limits the
/// padding.
fn every_mtu(outer: IpAddr) -> Result<()> {
    const JUMBO: usize = 34_816 - 1500 + 1420;
    let (near, far) = neighbours()?;
    let pair = Pair::between(&near, &far, outer, [&[], &[]])?;
    for address in [FAR, FAR6] {
        serve_echo(&far, (address, ECHO).into())?;
    }
    ping(&near, FAR, 5)?;
    for mtu in [1420, JUMBO, 1413] {
        for end in [&pair.near, &pair.far] {
            end.link(&["mtu", &mtu.to_string()])?;
        }
        // Padded to 16 bytes if the MTU allows.
        for length in [mtu - 40, mtu - 20, mtu] {
            let padded = length.next_multiple_of(16).min(mtu);
            ensure_outer_length(&near, length, padded + 32)?;
        }
        for address in [FAR, FAR6] {
            tcp_echo(&near, (address, ECHO).into(), 2_000_003)?;
        }
    }
    Ok(())
}

/// Checks that a ping in one inner packet of `length` bytes leaves as a message of `expected`
/// bytes, by the length in the UDP header, even if it is fragmented.
fn ensure_outer_length(near: &Host, length: usize, expected: usize) -> Result<()> {
    let capture = Capture::start(near, "eth0", "udp or (ip6 and ip6[6] == 44)")?;
    let payload = (length - 28).to_string();
    #[rustfmt::skip]
    near.run(&[
        "ping", "-n", "-c", "1", "-W", "5", "-M", "do", "-s", &payload, &FAR.to_string(),
    ])?;
    let lengths = |packets: &[Packet]| -> Vec<_> {
        let all = packets.iter();
        all.filter_map(|packet| udp_length(&packet.ip)).collect()
    };
    let packets = capture.stop_once("request and answer", |seen| lengths(seen).len() >= 2)?;
    let lengths = lengths(&packets);
    ensure!(
        lengths == [expected + 8; 2],
        "request and answer of {length} bytes left as UDP of {lengths:?}"
    );
    Ok(())
}

/// Returns the length field of UDP, unless this is a later fragment.
fn udp_length(ip: &[u8]) -> Option<usize> {
    let udp = match ip.first()? >> 4 {
        4 => {
            let offset = u16::from_be_bytes([*ip.get(6)?, *ip.get(7)?]) & 0x1fff;
            (offset == 0).then_some(20)?
        }
        _ => match ip.get(6)? {
            44 => {
                let offset = u16::from_be_bytes([*ip.get(42)?, *ip.get(43)?]) >> 3;
                (offset == 0).then_some(48)?
            }
            _ => 40,
        },
    };
    let length = u16::from_be_bytes([*ip.get(udp + 4)?, *ip.get(udp + 5)?]);
    Some(usize::from(length))
}

/// The inner packets of one pair are the outer packets of a second pair.
pub(crate) fn wireguard_in_wireguard() -> Result<()> {
    let pair = Pair::new()?;
    let (near, far) = (&pair.near.host, &pair.far.host);
    let inner = [
        End::start(near, "wgnear2", &[])?,
        End::start(far, "wgfar2", &[])?,
    ];
    let keys = [&inner[0].keys, &inner[1].keys];
    inner[0].tunnel.configure(&Settings {
        private_key: &keys[0].private,
        listen_port: None,
        addresses: &["10.78.0.1/24", "fd78::1/64"],
        peers: &[PeerSettings {
            public_key: &keys[1].public,
            preshared_key: None,
            endpoint: Some((FAR, 51831).into()),
            allowed_ips: "10.78.0.2/32, fd78::2/128",
        }],
    })?;
    inner[1].tunnel.configure(&Settings {
        private_key: &keys[1].private,
        listen_port: Some(51831),
        addresses: &["10.78.0.2/24", "fd78::2/64"],
        peers: &[PeerSettings {
            public_key: &keys[0].public,
            preshared_key: None,
            endpoint: None,
            allowed_ips: "10.78.0.1/32, fd78::1/128",
        }],
    })?;
    await_port(far, 51831)?;
    for end in &inner {
        end.link(&["mtu", "1340"])?;
    }
    let capture = Capture::start(near, "wgnear", "udp port 51831")?;
    let full = [
        "ping", "-c", "10", "-f", "-W", "5", "-M", "do", "-s", "1312",
    ];
    near.run(&[&full[..], &["10.78.0.2"]].concat())?;
    // The outer tunnel's interface takes several messages in one super-packet, so bytes are counted:
    // a ping of 1,340 bytes is a UDP payload of 1,372.
    capture.stop_once("inner messages in the outer tunnel", |seen| {
        let packets = messages(seen, Message::Data);
        packets.map(|it| it.ip.len() - 28).sum::<usize>() >= 20 * 1372
    })?;
    for address in ["10.78.0.2", "fd78::2"] {
        let address: IpAddr = address.parse().map_err(|_| Error::unmet("address"))?;
        serve_echo(far, (address, ECHO).into())?;
        tcp_echo(near, (address, ECHO).into(), 3_000_001)?;
    }
    inner[1].ensure_endpoint(keys[0], &{
        let port = inner[0].tunnel.show(Some("listen-port"))?;
        format!("{NEAR}:{}", port.text())
    })
}

/// Every twentieth packet is lost, in both directions, including handshakes.
pub(crate) fn lossy_link() -> Result<()> {
    const RULES: &str = "table inet loss {
        chain in {
            type filter hook input priority 0;
            udp dport { 51820, 51821 } numgen random mod 100 < 5 counter drop
        }
    }";
    let (near, far) = neighbours()?;
    for host in [&near, &far] {
        host.run_with_input(&["nft", "-f", "-"], RULES)?;
    }
    let _pair = Pair::between(&near, &far, FAR_OUTER, [&[], &[]])?;
    first_answer(&near, FAR, Duration::from_secs(30))?;
    serve_echo(&far, (FAR, ECHO).into())?;
    tcp_echo(&near, (FAR, ECHO).into(), 8 << 20)?;
    for host in [&near, &far] {
        let rules = host.run(&["nft", "list", "table", "inet", "loss"])?;
        let none = rules.stdout.contains("packets 0 ");
        ensure!(!none, "nothing was lost: {}", rules.stdout);
    }
    Ok(())
}

/// Sends super-packets both ways, as all tests of this file do by default.
pub(crate) fn in_both_directions(pair: &Pair) -> Result<()> {
    let (near, far) = (&pair.near.host, &pair.far.host);
    for (here, there) in [(NEAR, FAR), (NEAR6, FAR6)] {
        let echo = SocketAddr::new(there, ECHO);
        serve_echo(far, echo)?;
        tcp_echo(near, echo, 2_000_003)?;
        super_packets((near, here), (far, there))?;
        super_packets((far, there), (near, here))?;
    }
    Ok(())
}
