//! The port of a device's sockets. The tests need root.

#![cfg(target_os = "linux")]

#[path = "../../os-linux/tests/common/mod.rs"]
mod common;

use common::{Namespace, forbid_family};
use taupe_engine::{BindRequest, BoundSockets};
use taupe_os_linux::udp::{Options, Socket, SocketGroup};
use taupe_packet::ip::Family;

fn request(port: u16) -> BindRequest {
    BindRequest {
        port,
        mark: 0,
        gso: true,
        gro: true,
        lanes: 1,
        multiplier: 1,
    }
}

/// Returns the ports of IPv4 and IPv6.
fn ports(bound: &BoundSockets) -> [Option<u16>; 2] {
    let port = |group: &SocketGroup| group.data[0].local_port();
    [&bound.v4, &bound.v6].map(|group| group.as_ref().map(port))
}

#[test]
fn a_system_without_a_family_gets_the_requested_port_of_the_other() {
    for (missing, index) in [(libc::AF_INET, 0), (libc::AF_INET6, 1)] {
        for port in [51820, 0] {
            Namespace::new().run(|| {
                forbid_family(missing);
                let ports = ports(&request(port).bind().unwrap());
                assert_eq!(ports[index], None);
                let got = ports[1 - index].expect("the other family's port");
                assert!(got != 0 && (port == 0 || got == port), "{got}, not {port}");
            });
        }
    }
}

#[test]
fn a_free_port_is_free_in_both_families() {
    let namespace = Namespace::new();
    namespace.sysctl("ipv4/ip_local_port_range", "40000 40003");
    namespace.run(|| {
        let _others = [40000, 40001, 40003]
            .map(|port| Socket::bind(Family::V6, port, Options::default()).unwrap());
        for _ in 0..20 {
            let bound = request(0).bind().unwrap();
            assert_eq!(ports(&bound), [Some(40002); 2]);
        }
    });
}
