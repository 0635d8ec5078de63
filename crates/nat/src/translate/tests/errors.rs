//! ICMP errors in both directions.

use super::*;

#[test]
fn errors_from_the_tunnel_find_the_one_they_are_about() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let outside = socket(family.tunnel, 5000);
        let server = socket(family.server, 443);
        let router = address(family.router);
        for (inner, outer) in [
            (
                udp(local, server, b"question"),
                udp(outside, server, b"question"),
            ),
            (tcp(local, server, SYN, b""), tcp(outside, server, SYN, b"")),
            (
                echo(local.ip(), server.ip(), 9, true),
                echo(outside.ip(), server.ip(), 9, true),
            ),
        ] {
            assert_eq!(tunnel.send(&inner), outer);
            // The whole packet, its first part with the checksum, and the ports only.
            let header_len = outer.len() - Packet::parse(&outer).map(|p| p.header_len()).unwrap();
            let header_len = outer.len() - header_len;
            for quoted in [outer.len(), outer.len() - 1, header_len + 8] {
                let error = icmp_error(router, outside.ip(), &outer[..quoted]);
                let expected = icmp_error(router, local.ip(), &inner[..quoted]);
                assert_eq!(tunnel.receive(&error), expected, "{quoted} bytes quoted");
            }
            for cut in 0..header_len + 8 {
                let error = icmp_error(router, outside.ip(), &outer[..cut]);
                assert_eq!(
                    tunnel.try_receive(&error),
                    Err(DropReason::Malformed),
                    "{cut}"
                );
            }
        }
        // About a packet that was never sent.
        let strange = udp(socket(family.tunnel, 5001), server, b"question");
        let error = icmp_error(router, outside.ip(), &strange);
        assert_eq!(tunnel.try_receive(&error), Err(DropReason::NoFlow));
    }
}

#[test]
fn errors_about_questions_name_the_server_that_was_asked() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let outside = socket(family.tunnel, 5000);
        let (asked, dns) = (socket(family.public_dns, 53), socket(family.dns, 53));
        let router = address(family.router);
        let (inner, outer) = (udp(local, asked, b"q"), udp(outside, dns, b"q"));
        assert_eq!(tunnel.send(&inner), outer);
        assert_eq!(
            tunnel.receive(&icmp_error(router, outside.ip(), &outer)),
            icmp_error(router, local.ip(), &inner)
        );
        assert_eq!(
            tunnel.receive(&icmp_error(dns.ip(), outside.ip(), &outer)),
            icmp_error(asked.ip(), local.ip(), &inner)
        );
        // In the other direction, about a reply.
        let (outer, inner) = (udp(dns, outside, b"a"), udp(asked, local, b"a"));
        assert_eq!(tunnel.receive(&outer), inner);
        assert_eq!(
            tunnel.send(&icmp_error(local.ip(), asked.ip(), &inner)),
            icmp_error(outside.ip(), dns.ip(), &outer)
        );
    }
}

#[test]
fn errors_go_out_as_from_the_tunnel() {
    for family in BOTH {
        let mut tunnel = Tunnel::new();
        let local = socket(family.local, 5000);
        let outside = socket(family.tunnel, 5000);
        let server = socket(family.server, 443);
        tunnel.send(&udp(local, server, b"question"));
        let (outer, inner) = (udp(server, outside, b"late"), udp(server, local, b"late"));
        assert_eq!(tunnel.receive(&outer), inner);
        assert_eq!(
            tunnel.send(&icmp_error(local.ip(), server.ip(), &inner)),
            icmp_error(outside.ip(), server.ip(), &outer)
        );
        let strange = udp(server, socket(family.local, 5001), b"late");
        let error = icmp_error(local.ip(), server.ip(), &strange);
        assert_eq!(tunnel.refused(&error), DropReason::NoFlow);
    }
}
