//! Explicit congestion notification through the tunnel (RFC 6040).

use crate::datagrams::Datagrams;
use crate::pair::{FAR, FAR_OUTER, FAR_OUTER6, FAR6, NEAR, NEAR6, Pair, neighbours};
use quinn_udp::EcnCodepoint;
use std::net::IpAddr;
use std::time::Duration;
use taupe_lab::capture::{Capture, Message, Packet, messages};
use taupe_lab::traffic::ping;
use taupe_lab::{Result, ensure};

const MARKS: [Option<EcnCodepoint>; 4] = [
    None,
    Some(EcnCodepoint::Ect1),
    Some(EcnCodepoint::Ect0),
    Some(EcnCodepoint::Ce),
];

const SOON: Duration = Duration::from_secs(5);

/// The outer packet carries the mark of the inner packet, and the mark arrives.
pub(crate) fn out() -> Result<()> {
    for_each_direction(|pair, near, far| {
        for mark in MARKS {
            let bits = bits(mark);
            let outside = Capture::start(&pair.near.host, "eth0", "src port 51820")?;
            let inside = Capture::start(&pair.far.host, "wgfar", "udp")?;
            send(near, far, mark)?;
            far.receive_many(SENT, SOON)?;
            let classes = inner_classes(inside)?;
            ensure!(
                classes.iter().all(|class| *class == bits),
                "{mark:?} inside arrived as {classes:02x?}"
            );
            let outside = outside.stop_once("what was sent", |seen| data(seen) >= 2)?;
            let classes: Vec<_> = messages(&outside, Message::Data)
                .map(|packet| traffic_class(&packet.ip))
                .collect();
            ensure!(
                classes.iter().all(|class| *class == bits),
                "{mark:?} inside left as {classes:02x?}"
            );
        }
        Ok(())
    })
}

/// Congestion marks of the outer network arrive on the inner packet; a packet without ECN support
/// is dropped instead.
pub(crate) fn inward() -> Result<()> {
    for_each_direction(|pair, near, far| {
        let host = &pair.far.host;
        host.run_with_input(
            &["nft", "-f", "-"],
            "table netdev congested { chain in {
                type filter hook ingress device eth0 priority 0;
                udp dport 51821 ip ecn set ce
                udp dport 51821 ip6 ecn set ce
            }
            }",
        )?;
        for mark in MARKS {
            let inside = Capture::start(host, "wgfar", "udp")?;
            send(near, far, mark)?;
            if mark.is_none() {
                let arrived = far.receive(Duration::from_secs(1))?;
                ensure!(arrived.is_empty(), "not dropped: {arrived:?}");
                let seen = inside.stop()?;
                ensure!(seen.is_empty(), "not dropped: {seen:?}");
                continue;
            }
            far.receive_many(SENT, SOON)?;
            let classes = inner_classes(inside)?;
            ensure!(
                classes
                    .iter()
                    .all(|class| *class == bits(Some(EcnCodepoint::Ce))),
                "{mark:?} with congestion outside arrived as {classes:02x?}"
            );
        }
        host.run(&["nft", "delete", "table", "netdev", "congested"])?;
        let inside = Capture::start(host, "wgfar", "udp")?;
        send(near, far, None)?;
        far.receive_many(SENT, SOON)?;
        let classes = inner_classes(inside)?;
        ensure!(classes.iter().all(|class| *class == 0), "{classes:02x?}");
        Ok(())
    })
}

/// Datagrams in [`send`].
const SENT: usize = 6;

/// Sends one datagram, and five as a super-packet.
fn send(from: &Datagrams, to: &Datagrams, mark: Option<EcnCodepoint>) -> Result<()> {
    let to = to.address()?;
    from.send(to, mark, b"one", 3)?;
    from.send(to, mark, &[7; 500], 100)
}

/// Returns the traffic classes of the sent packets: the datagram, then the super-packet or its
/// segments.
fn inner_classes(capture: Capture) -> Result<Vec<u8>> {
    let packets = capture.stop_once("what was sent", |seen| seen.len() >= 2)?;
    let class = |packet: &Packet| traffic_class(&packet.ip);
    Ok(packets.iter().map(class).collect())
}

fn data(packets: &[Packet]) -> usize {
    messages(packets, Message::Data).count()
}

fn bits(mark: Option<EcnCodepoint>) -> u8 {
    mark.map_or(0, |mark| mark as u8)
}

/// Runs a test with IPv4 and IPv6 inside and outside.
fn for_each_direction(test: impl Fn(&Pair, &Datagrams, &Datagrams) -> Result<()>) -> Result<()> {
    let (near, far) = neighbours()?;
    let pair = Pair::between(&near, &far, FAR_OUTER, [&[], &[]])?;
    for outer in [FAR_OUTER, FAR_OUTER6] {
        let endpoint = match outer {
            IpAddr::V4(_) => format!("{outer}:51821"),
            IpAddr::V6(_) => format!("[{outer}]:51821"),
        };
        pair.set_far(&["endpoint", &endpoint])?;
        ping(&near, FAR, 5)?;
        for (here, there) in [(NEAR, FAR), (NEAR6, FAR6)] {
            let sockets = [Datagrams::bind(&near, here)?, Datagrams::bind(&far, there)?];
            test(&pair, &sockets[0], &sockets[1])?;
        }
    }
    Ok(())
}

fn traffic_class(ip: &[u8]) -> u8 {
    match ip {
        [first, second, ..] if first >> 4 == 6 => first << 4 | second >> 4,
        [_, second, ..] => *second,
        _ => 0xff,
    }
}
