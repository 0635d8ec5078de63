use std::{net::SocketAddr, time::Duration};

use taupe_packet::{ip::Packet, split::Split};
use taupe_protocol::time::Instant;

use super::{
    testing::{
        address, echo, icmp_error, in_fragments, partial, set_v4_checksum, socket, tcp, tcp_with,
        udp,
    },
    view::View,
    *,
};
use crate::tcp::{ACK, FIN, RST, SYN};

mod errors;
mod fragments;
mod limits;
mod properties;
mod refused;
mod servers;

/// Addresses of one family: an uplink's, a second uplink's, the tunnel's, a server's, and the
/// tunnel's name server's.
struct Family {
    local: &'static str,
    other: &'static str,
    tunnel: &'static str,
    server: &'static str,
    dns: &'static str,
    public_dns: &'static str,
    router: &'static str,
}

const V4: Family = Family {
    local: "192.168.1.10",
    other: "10.20.30.40",
    tunnel: "10.66.0.2",
    server: "203.0.113.5",
    dns: "10.66.0.1",
    public_dns: "8.8.8.8",
    router: "198.51.100.1",
};
const V6: Family = Family {
    local: "2001:db8:1::10",
    other: "2001:db8:2::40",
    tunnel: "fd66::2",
    server: "2001:db8:f::5",
    dns: "fd66::1",
    public_dns: "2001:4860:4860::8888",
    router: "2001:db8:e::1",
};
const BOTH: [Family; 2] = [V4, V6];

fn settings() -> Settings {
    Settings {
        v4: Some("10.66.0.2".parse().unwrap()),
        v6: Some("fd66::2".parse().unwrap()),
        mtu: 1420,
        dns: ["10.66.0.1", "10.66.0.9", "fd66::1"].map(address).to_vec(),
        capacity: 1000,
    }
}

struct Tunnel {
    translator: Translator,
    outgoing: Outgoing,
    incoming: Incoming,
    now: Instant,
}

impl Tunnel {
    fn new() -> Self {
        Self::with(&settings())
    }

    fn with(settings: &Settings) -> Self {
        let translator = Translator::new(settings);
        let uplink = |text: &str| address(text);
        let (IpAddr::V4(v4), IpAddr::V6(v6)) = (uplink(V4.local), uplink(V6.local)) else {
            panic!("one of each");
        };
        translator.set_main_uplink(Some(v4), Some(v6));
        Self {
            outgoing: translator.outgoing(),
            incoming: translator.incoming(),
            translator,
            now: Instant(1_000_000_000_000),
        }
    }

    fn wait(&mut self, duration: Duration) {
        self.now += duration;
    }

    fn silent_servers(&self) -> Vec<SilentServers> {
        self.translator.silent_servers(self.now)
    }

    fn outcome(&mut self, header: VirtioHeader, packet: &mut [u8]) -> Outcome<'_> {
        self.outgoing.translate(self.now, header, packet)
    }

    /// Sends a packet that is carried as one packet.
    #[track_caller]
    fn send(&mut self, packet: &[u8]) -> Vec<u8> {
        let mut packet = packet.to_vec();
        let outcome = self.outcome(VirtioHeader::default(), &mut packet);
        assert!(
            matches!(outcome, Outcome::Forward(header) if header == VirtioHeader::default()),
            "{outcome:?}"
        );
        packet
    }

    #[track_caller]
    fn refused(&mut self, packet: &[u8]) -> DropReason {
        match self.outcome(VirtioHeader::default(), &mut packet.to_vec()) {
            Outcome::Drop(reason) => reason,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the packets that are carried in place of this one.
    #[track_caller]
    fn instead(&mut self, header: VirtioHeader, packet: &[u8]) -> Vec<Vec<u8>> {
        match self.outcome(header, &mut packet.to_vec()) {
            Outcome::Replace(packets) => packets.map(<[u8]>::to_vec).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn answered(&mut self, header: VirtioHeader, packet: &[u8]) -> (Vec<u8>, DropReason) {
        match self.outcome(header, &mut packet.to_vec()) {
            Outcome::Reply(answer, reason) => (answer, reason),
            other => panic!("{other:?}"),
        }
    }

    /// Delivers a packet; `None` for a fragment that is stored.
    fn arrive(&mut self, packet: &[u8]) -> Result<Option<Vec<u8>>, DropReason> {
        let mut after = packet.to_vec();
        let arrival = self.incoming.batch(self.now).translate(&mut after);
        if arrival != Ok(Received::InPlace) {
            assert_eq!(after, packet, "what is not carried is left as it was");
        }
        arrival.map(|arrival| match arrival {
            Received::InPlace => Some(after),
            Received::Incomplete => None,
            Received::Reassembled(packet) => Some(packet),
        })
    }

    #[track_caller]
    fn try_receive(&mut self, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
        self.arrive(packet)
            .map(|packet| packet.expect("a whole packet"))
    }

    #[track_caller]
    fn receive(&mut self, packet: &[u8]) -> Vec<u8> {
        self.try_receive(packet).unwrap()
    }
}

#[test]
fn udp_goes_out_and_comes_back() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let outside = socket(family.tunnel, 5000);
        let server = socket(family.server, 443);
        // First by the table, then by the cache.
        for payload in [&b"first"[..], b"second", b""] {
            assert_eq!(
                tunnel.send(&udp(local, server, payload)),
                udp(outside, server, payload)
            );
            assert_eq!(
                tunnel.receive(&udp(server, outside, payload)),
                udp(server, local, payload)
            );
        }
        assert_eq!(tunnel.translator.flow_count(), 1);
    }
}

#[test]
fn bytes_of_udp_are_counted_each_way() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let outside = socket(family.tunnel, 5000);
        let server = socket(family.server, 443);
        // First by the table, then by the cache.
        for payload in [10, 200, 0] {
            let payload = vec![7; payload];
            tunnel.send(&udp(local, server, &payload));
            tunnel.receive(&udp(server, outside, &payload));
            tunnel.receive(&udp(server, outside, b"more"));
        }
        tunnel.send(&tcp(local, server, SYN, b""));
        let flow = DatagramFlow {
            local,
            remote: server,
            bytes: [210, 222],
        };
        assert_eq!(tunnel.translator.datagram_flows(), [flow]);
        for port in 6000..6600 {
            tunnel.send(&udp(socket(family.local, port), server, b"x"));
        }
        assert_eq!(tunnel.translator.datagram_flows().len(), 601);
    }
}

#[test]
fn tcp_goes_out_and_comes_back() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let outside = socket(family.tunnel, 5000);
        let server = socket(family.server, 443);
        for (out, flags, payload) in [
            (true, SYN, &b""[..]),
            (false, SYN | ACK, b""),
            (true, ACK, b""),
            (true, ACK, b"a question"),
            (false, ACK, b"an answer"),
            (true, ACK, b"more"),
            (false, ACK, b"of this"),
            (false, FIN | ACK, b""),
            (true, FIN | ACK, b"end"),
            (false, RST, b""),
        ] {
            let (given, expected) = if out {
                let given = tunnel.send(&tcp(local, server, flags, payload));
                (given, tcp(outside, server, flags, payload))
            } else {
                let given = tunnel.receive(&tcp(server, outside, flags, payload));
                (given, tcp(server, local, flags, payload))
            };
            assert_eq!(given, expected, "{flags}");
        }
        assert_eq!(tunnel.translator.flow_count(), 1);
    }
}

#[test]
fn pings_go_out_and_come_back() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let [local, other] = [family.local, family.other].map(address);
        let [outside, server] = [family.tunnel, family.server].map(address);
        for _ in 0..2 {
            assert_eq!(
                tunnel.send(&echo(local, server, 77, true)),
                echo(outside, server, 77, true)
            );
            assert_eq!(
                tunnel.receive(&echo(server, outside, 77, false)),
                echo(server, local, 77, false)
            );
        }
        // The same identifier from another address is replaced.
        let sent = tunnel.send(&echo(other, server, 77, true));
        let id = View::parse(&sent).unwrap().outgoing().local.port;
        assert_ne!(id, 77);
        assert_eq!(sent, echo(outside, server, id, true));
        assert_eq!(
            tunnel.receive(&echo(server, outside, id, false)),
            echo(server, other, 77, false)
        );
        // An echo request from the tunnel, and a reply without a request.
        let asked = tunnel.try_receive(&echo(server, outside, 77, true));
        assert_eq!(asked, Err(DropReason::NoFlow));
        let strange = tunnel.try_receive(&echo(server, outside, 78, false));
        assert_eq!(strange, Err(DropReason::NoFlow));
        assert_eq!(
            tunnel.refused(&echo(local, server, 77, false)),
            DropReason::NoFlow
        );
    }
}

#[test]
fn two_uplinks_with_the_same_ports() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let (one, two) = (socket(family.local, 5000), socket(family.other, 5000));
        let outside = socket(family.tunnel, 5000);
        let server = socket(family.server, 443);
        assert_eq!(
            tunnel.send(&udp(one, server, b"one")),
            udp(outside, server, b"one")
        );
        let sent = tunnel.send(&udp(two, server, b"two"));
        let port = View::parse(&sent).unwrap().outgoing().local.port;
        let elsewhere = socket(family.tunnel, port);
        assert_eq!(sent, udp(elsewhere, server, b"two"));
        assert_eq!(
            tunnel.receive(&udp(server, elsewhere, b"2")),
            udp(server, two, b"2")
        );
        assert_eq!(
            tunnel.receive(&udp(server, outside, b"1")),
            udp(server, one, b"1")
        );
        // TCP has its own ports.
        assert_eq!(
            tunnel.send(&tcp(two, server, SYN, b"")),
            tcp(outside, server, SYN, b"")
        );
    }
}

#[test]
fn questions_go_to_the_tunnels_name_server_and_answers_come_from_the_one_asked() {
    for family in BOTH {
        for (packet, flags) in [(None, 0), (Some(()), SYN)] {
            let build = |from: SocketAddr, to: SocketAddr, payload: &[u8]| match packet {
                None => udp(from, to, payload),
                Some(()) => tcp(from, to, flags, payload),
            };
            let mut tunnel = Tunnel::new();
            let local = socket(family.local, 5000);
            let outside = socket(family.tunnel, 5000);
            let (asked, second) = (socket(family.public_dns, 53), socket(family.server, 53));
            let dns = socket(family.dns, 53);
            for _ in 0..2 {
                assert_eq!(
                    tunnel.send(&build(local, asked, b"q")),
                    build(outside, dns, b"q")
                );
                assert_eq!(
                    tunnel.receive(&build(dns, outside, b"a")),
                    build(asked, local, b"a")
                );
            }
            // Another server from the same port: the flow needs another port in the tunnel.
            let sent = tunnel.send(&build(local, second, b"Q"));
            let elsewhere = socket(
                family.tunnel,
                View::parse(&sent).unwrap().outgoing().local.port,
            );
            assert_ne!(elsewhere, outside);
            assert_eq!(sent, build(elsewhere, dns, b"Q"));
            assert_eq!(
                tunnel.receive(&build(dns, elsewhere, b"A")),
                build(second, local, b"A")
            );
        }
    }
}

#[test]
fn name_servers_of_the_tunnel_are_asked_themselves() {
    let mut tunnel = Tunnel::new();
    let local = socket(V4.local, 5000);
    let outside = socket(V4.tunnel, 5000);
    let second = socket("10.66.0.9", 53);
    assert_eq!(
        tunnel.send(&udp(local, second, b"q")),
        udp(outside, second, b"q")
    );
    // Without name servers the query goes to the server that was asked.
    let mut tunnel = Tunnel::with(&Settings {
        dns: Vec::new(),
        ..settings()
    });
    let asked = socket(V4.public_dns, 53);
    assert_eq!(
        tunnel.send(&udp(local, asked, b"q")),
        udp(outside, asked, b"q")
    );
}

#[test]
fn udp_without_checksum_stays_without() {
    let mut tunnel = Tunnel::new();
    let strip = |mut packet: Vec<u8>| {
        packet[26..28].fill(0);
        packet
    };
    let (local, outside) = (socket(V4.local, 5000), socket(V4.tunnel, 5000));
    let server = socket(V4.server, 443);
    for _ in 0..2 {
        assert_eq!(
            tunnel.send(&strip(udp(local, server, b"q"))),
            strip(udp(outside, server, b"q"))
        );
        assert_eq!(
            tunnel.receive(&strip(udp(server, outside, b"a"))),
            strip(udp(server, local, b"a"))
        );
    }
}

/// All payloads of two bytes; one of them has a checksum of zero.
#[test]
fn a_udp_checksum_never_becomes_none() {
    let mut tunnel = Tunnel::new();
    let (local, outside) = (socket(V4.local, 5000), socket(V4.tunnel, 5000));
    let server = socket(V4.server, 443);
    let mut ones = 0;
    for payload in 0..=u16::MAX {
        let expected = udp(outside, server, &payload.to_be_bytes());
        ones += usize::from(expected[26..28] == [0xff, 0xff]);
        let sent = tunnel.send(&udp(local, server, &payload.to_be_bytes()));
        assert_eq!(sent, expected);
    }
    assert_eq!(ones, 1);
}

#[test]
fn partial_checksums_and_super_packets() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let outside = socket(family.tunnel, 5000);
        let server = socket(family.server, 443);
        let payload: Vec<_> = (0..20_000u32).map(|i| (i * 7) as u8).collect();
        for (packet, expected, size) in [
            (
                tcp(local, server, ACK, &payload),
                tcp(outside, server, ACK, &payload),
                1360,
            ),
            (
                tcp(local, server, SYN, b""),
                tcp(outside, server, SYN, b""),
                0,
            ),
            (
                tcp(local, server, ACK, b"x"),
                tcp(outside, server, ACK, b"x"),
                0,
            ),
            (
                udp(local, server, &payload),
                udp(outside, server, &payload),
                1000,
            ),
            (
                udp(local, server, b"short"),
                udp(outside, server, b"short"),
                0,
            ),
        ] {
            // First by the table, then by the cache.
            for _ in 0..2 {
                let (header, mut packet) = partial(packet.clone(), size);
                let (_, expected) = partial(expected.clone(), size);
                let outcome = tunnel.outcome(header, &mut packet);
                assert!(
                    matches!(outcome, Outcome::Forward(after) if after == header),
                    "{outcome:?}"
                );
                assert_eq!(packet, expected);
                assert!(Split::new(header, &packet).is_ok());
            }
        }
    }
}

#[test]
fn segments_fit_the_tunnel_both_ways() {
    for (family, most) in [(V4, 1380u16), (V6, 1360)] {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let outside = socket(family.tunnel, 5000);
        let server = socket(family.server, 443);
        let mss = |size: u16| [&[2, 4][..], &size.to_be_bytes(), &[1, 3, 3, 7]].concat();
        for (said, expected) in [(1460, most), (most, most), (536, 536)] {
            let sent = tunnel.send(&tcp_with(local, server, SYN, &mss(said), b""));
            assert_eq!(sent, tcp_with(outside, server, SYN, &mss(expected), b""));
            let answer = tcp_with(server, outside, SYN | ACK, &mss(said), b"");
            let received = tunnel.receive(&answer);
            assert_eq!(
                received,
                tcp_with(server, local, SYN | ACK, &mss(expected), b"")
            );
            let (header, mut packet) = partial(tcp_with(local, server, SYN, &mss(said), b""), 0);
            assert!(matches!(
                tunnel.outcome(header, &mut packet),
                Outcome::Forward(_)
            ));
            let expected = tcp_with(outside, server, SYN, &mss(expected), b"");
            assert_eq!(packet, partial(expected, 0).1);
        }
    }
}

#[test]
fn fragments_follow_their_first_and_come_back_whole() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let outside = socket(family.tunnel, 5000);
        let server = socket(family.server, 443);
        let dns = (socket(family.public_dns, 53), socket(family.dns, 53));
        let payload = [7; 3000];
        for (inner, outer) in [(server, server), dns] {
            let sent = in_fragments(&udp(local, inner, &payload), 1200, 99);
            let expected = in_fragments(&udp(outside, outer, &payload), 1200, 99);
            assert_eq!(tunnel.refused(&sent[1]), DropReason::UnknownFragment);
            for (sent, expected) in sent.iter().zip(&expected) {
                assert_eq!(tunnel.send(sent), *expected);
            }
            // In any order; the packet arrives reassembled.
            let received = in_fragments(&udp(outer, outside, &payload), 1200, 98);
            let mut expected = udp(inner, local, &payload);
            if local.is_ipv4() {
                expected[4..8].copy_from_slice(&[0, 98, 0, 0]);
                set_v4_checksum(&mut expected);
            }
            assert_eq!(tunnel.arrive(&received[2]), Ok(None));
            assert_eq!(tunnel.arrive(&received[0]), Ok(None));
            assert_eq!(tunnel.receive(&received[1]), expected);
            tunnel.wait(Duration::from_secs(30));
            assert_eq!(tunnel.refused(&sent[1]), DropReason::UnknownFragment);
        }
        // Too short for a TCP header, so the checksum would be in another fragment.
        let tiny = in_fragments(&tcp(local, server, ACK, &payload), 16, 5);
        assert_eq!(tunnel.refused(&tiny[0]), DropReason::Malformed);
    }
}

#[test]
fn other_protocols_have_one_flow_with_a_host() {
    let gre = |from: &str, to: &str| {
        let mut packet = udp(socket(from, 0x2000), socket(to, 0x0800), b"tunnelled");
        packet[9] = 47;
        packet[26..28].fill(0);
        set_v4_checksum(&mut packet);
        packet
    };
    let mut tunnel = Tunnel::new();
    assert_eq!(
        tunnel.send(&gre(V4.local, V4.server)),
        gre(V4.tunnel, V4.server)
    );
    assert_eq!(
        tunnel.receive(&gre(V4.server, V4.tunnel)),
        gre(V4.server, V4.local)
    );
    assert_eq!(
        tunnel.refused(&gre(V4.other, V4.server)),
        DropReason::NoPort
    );
    let strange = tunnel.try_receive(&gre(V4.router, V4.tunnel));
    assert_eq!(strange, Err(DropReason::NoFlow));
    let mut udp_lite = gre(V4.local, V4.server);
    udp_lite[9] = 136;
    assert_eq!(tunnel.refused(&udp_lite), DropReason::Unsupported);
}

#[test]
fn what_was_dropped_is_counted() {
    let mut tunnel = Tunnel::new();
    tunnel.refused(&[0x45]);
    tunnel.refused(&echo(address(V4.local), address(V4.server), 1, false));
    assert!(tunnel.try_receive(b"no packet").is_err());
    let dropped: Vec<_> = tunnel
        .translator
        .dropped()
        .filter(|(_, count)| *count > 0)
        .collect();
    assert_eq!(
        dropped,
        [(DropReason::Malformed, 2), (DropReason::NoFlow, 1)]
    );
}
