//! Packets to selected applications: those that reach them, and those that must not.

use crate::application::install;
use crate::scene::{HOME, QUIET, REMOTE, Scene, at, nothing, unmet, without_tcx};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::thread::sleep;
use std::time::Duration;
use taupe_lab::capture::Capture;
use taupe_lab::host::Host;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::state::Reason;

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("selected_server", selected_server),
        SystemTest::new(
            "selected_server_from_outside_the_tunnel",
            selected_server_from_outside_the_tunnel,
        ),
        SystemTest::new("unselected_services_from_the_tunnel", unselected_services),
        SystemTest::new("spoofed_packets", spoofed_packets),
        SystemTest::new("a_strict_firewall", a_strict_firewall),
        SystemTest::new("selected_server_without_tcx", without_tcx(selected_server)),
    ]
}

pub(crate) const LIMIT: Duration = Duration::from_secs(10);

pub(crate) fn connect(from: &Host, to: &str) -> Result<TcpStream> {
    from.enter(|| {
        let to = to.parse().map_err(unmet)?;
        let stream = TcpStream::connect_timeout(&to, LIMIT / 5).map_err(Error::io("connect"))?;
        stream
            .set_read_timeout(Some(LIMIT))
            .map_err(Error::io("timeout"))?;
        Ok(stream)
    })
}

pub(crate) fn order(stream: &mut TcpStream, order: u8) -> Result<usize> {
    stream.write_all(&[order]).map_err(Error::io("order"))?;
    let mut answer = Vec::new();
    // The connection may end with a reset.
    let _ = stream.read_to_end(&mut answer);
    Ok(answer.len())
}

pub(crate) fn count(scene: &mut Scene, wanted: Reason) -> Result<u64> {
    let counts = scene.programs()?.counts().map_err(unmet)?;
    let found = counts.into_iter().find(|(reason, _)| *reason == wanted);
    Ok(found.map_or(0, |(_, count)| count))
}

fn selected_server() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let _server = scene.start(&chosen, &["serve", "7000"])?;
    let _datagrams = scene.start(&chosen, &["serve-udp", "7000"])?;
    let capture = scene.capture("port 7000 or icmp or icmp6")?;
    for home in HOME {
        let to = at(home, 7000);
        step(&format!("{to}: it closes first"));
        let mut stream = connect(&scene.beyond, &to)?;
        ensure!(order(&mut stream, b'f')? == 6, "the answer is cut");
        let local = stream.local_addr().map_err(Error::io("address"))?;
        drop(stream);
        step("TIME_WAIT answers");
        if home == HOME[0] {
            let seen = Capture::start(&scene.beyond, "back", "src host 192.0.2.2 and tcp")?;
            fin(&scene.beyond, local.port())?;
            seen.stop_once("the answer", |packets| !packets.is_empty())?;
        }
        step("it closes last");
        let mut stream = connect(&scene.beyond, &to)?;
        stream.write_all(b"l").map_err(Error::io("order"))?;
        let mut answer = [0; 6];
        stream
            .read_exact(&mut answer)
            .map_err(Error::io("answer"))?;
        stream
            .shutdown(Shutdown::Both)
            .map_err(Error::io("shutdown"))?;
        drop(stream);
        step("10 MB");
        let mut stream = connect(&scene.beyond, &to)?;
        let length = order(&mut stream, b'm')?;
        ensure!(length == 10_000_000, "{length} bytes");
        step("reset");
        let mut stream = connect(&scene.beyond, &to)?;
        stream
            .write_all(b"rest that is not read")
            .map_err(Error::io("order"))?;
        ensure!(order(&mut stream, b'x').unwrap_or(0) == 0, "no reset");
        step("datagrams");
        scene.beyond.enter(|| {
            let socket = UdpSocket::bind(("::", 0)).map_err(Error::io("socket"))?;
            socket
                .set_read_timeout(Some(LIMIT))
                .map_err(Error::io("timeout"))?;
            let to: std::net::SocketAddr = to.parse().map_err(unmet)?;
            let to = match to.ip() {
                std::net::IpAddr::V4(v4) => (v4.to_ipv6_mapped(), 7000).into(),
                std::net::IpAddr::V6(_) => to,
            };
            socket.send_to(b"who?", to).map_err(Error::io("datagram"))?;
            let (length, _) = socket
                .recv_from(&mut [0; 64])
                .map_err(Error::io("answer"))?;
            ensure!(length == 6, "{length} bytes");
            Ok(())
        })?;
    }
    sleep(QUIET);
    nothing(&scene, capture)?;
    ensure!(
        count(&mut scene, Reason::InDelivered)? > 100,
        "nothing came by the TUN"
    );
    Ok(())
}

/// Sends once more the FIN of a connection that the other side has closed.
fn fin(from: &Host, port: u16) -> Result<()> {
    use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
    let mut segment = [0u8; 20];
    segment[..2].copy_from_slice(&port.to_be_bytes());
    segment[2..4].copy_from_slice(&7000u16.to_be_bytes());
    segment[12] = 5 << 4;
    segment[13] = 0x11;
    // Checksum over the pseudo-header and the segment, in words of 16 bits.
    let mut sum = 6 + 20u32;
    for address in [[198, 51, 100, 1], [192, 0, 2, 2]] {
        sum += u32::from(u16::from_be_bytes([address[0], address[1]]));
        sum += u32::from(u16::from_be_bytes([address[2], address[3]]));
    }
    for word in segment.chunks(2) {
        sum += u32::from(u16::from_be_bytes([word[0], word[1]]));
    }
    while sum > 0xffff {
        sum = (sum >> 16) + (sum & 0xffff);
    }
    segment[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    from.enter(|| {
        let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::TCP))
            .map_err(Error::io("raw socket"))?;
        let from = std::net::SocketAddr::from(([198, 51, 100, 1], 0));
        rustix::net::bind(&raw, &from).map_err(Error::io("bind"))?;
        let to = std::net::SocketAddr::from(([192, 0, 2, 2], 0));
        sendto(&raw, &segment, SendFlags::empty(), &to).map_err(Error::io("segment"))?;
        Ok(())
    })
}

fn selected_server_from_outside_the_tunnel() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let _server = scene.start(&chosen, &["serve", "7000"])?;
    let _datagrams = scene.start(&chosen, &["serve-udp", "7000"])?;
    let capture = scene.capture("src port 7000 or icmp[0] = 3 or icmp6[0] = 1")?;
    for home in HOME {
        let refused = connect(&scene.far, &at(home, 7000));
        ensure!(refused.is_err(), "{home} answers in the clear");
        scene.far.enter(|| {
            let socket = UdpSocket::bind((if home == HOME[0] { "0.0.0.0" } else { "::" }, 0))
                .map_err(Error::io("socket"))?;
            socket
                .set_read_timeout(Some(QUIET))
                .map_err(Error::io("timeout"))?;
            socket
                .send_to(b"who?", (home, 7000))
                .map_err(Error::io("datagram"))?;
            let answer = socket.recv_from(&mut [0; 64]);
            ensure!(answer.is_err(), "{home} answers a datagram in the clear");
            Ok(())
        })?;
    }
    nothing(&scene, capture)
}

fn unselected_services() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let other = install("other")?;
    let _server = scene.start(&other, &["serve", "7001"])?;
    for home in HOME {
        let to = at(home, 7001);
        let mut stream = connect(&scene.far, &to)?;
        ensure!(order(&mut stream, b'f')? == 6, "{to} in the clear");
        let refused = connect(&scene.beyond, &to);
        ensure!(refused.is_err(), "{to} from the tunnel");
    }
    let bounced = count(&mut scene, Reason::InBounced)?;
    ensure!(bounced >= 2, "{bounced} packets were sent back");
    step("an address that is not this machine's");
    let before = count(&mut scene, Reason::InUnknown)?;
    scene.beyond.enter(|| {
        let socket = UdpSocket::bind("0.0.0.0:0").map_err(Error::io("socket"))?;
        socket
            .send_to(b"who?", ("192.0.2.77", 7001))
            .map_err(Error::io("datagram"))?;
        Ok(())
    })?;
    sleep(QUIET);
    ensure!(
        count(&mut scene, Reason::InUnknown)? > before,
        "not counted"
    );
    Ok(())
}

fn spoofed_packets() -> Result<()> {
    const PORT: u16 = 81;
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    for remote in REMOTE {
        let bind = |host: &Host| {
            host.enter(|| {
                let socket = UdpSocket::bind((remote, PORT)).map_err(Error::io("socket"))?;
                socket
                    .set_read_timeout(Some(LIMIT))
                    .map_err(Error::io("timeout"))?;
                Ok(socket)
            })
        };
        let (true_one, false_one) = (bind(&scene.beyond)?, bind(&scene.far)?);
        let before = count(&mut scene, Reason::ClearFlow)?;
        let mut asks = scene.start(&chosen, &["ask", &at(remote, PORT)])?;
        let (_, from) = true_one
            .recv_from(&mut [0; 64])
            .map_err(Error::io("question"))?;
        for _ in 0..3 {
            false_one
                .send_to(b"spoofed", from)
                .map_err(Error::io("spoofed"))?;
        }
        sleep(QUIET);
        true_one.send_to(b"true", from).map_err(Error::io("true"))?;
        let said = asks.line()?;
        ensure!(said == "true", "{remote}: {said}");
        let dropped = count(&mut scene, Reason::ClearFlow)? - before;
        ensure!(dropped == 3, "{dropped} of 3 were dropped at the uplink");
    }
    step("for a socket whose flow is forgotten");
    let bind = |host: &Host| {
        host.enter(|| UdpSocket::bind((REMOTE[0], PORT)).map_err(Error::io("socket")))
    };
    let (true_one, false_one) = (bind(&scene.beyond)?, bind(&scene.far)?);
    let mut asks = scene.start(&chosen, &["ask", &at(REMOTE[0], PORT)])?;
    let (_, from) = true_one
        .recv_from(&mut [0; 64])
        .map_err(Error::io("question"))?;
    scene
        .programs()?
        .expire_flows(Duration::ZERO)
        .map_err(unmet)?;
    let before = count(&mut scene, Reason::ClearSocket)?;
    false_one
        .send_to(b"spoofed", from)
        .map_err(Error::io("spoofed"))?;
    sleep(QUIET);
    true_one.send_to(b"true", from).map_err(Error::io("true"))?;
    let said = asks.line()?;
    ensure!(said == "true", "{said}");
    let dropped = count(&mut scene, Reason::ClearSocket)? - before;
    ensure!(dropped == 1, "{dropped} of 1 was dropped at the socket");
    Ok(())
}

fn a_strict_firewall() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    scene.home.run_with_input(
        &["nft", "-f", "-"],
        "table inet strict {
            chain input {
                type filter hook input priority 0; policy drop;
                iifname lo accept
                iifname up0 ct state established accept
                icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept
            }
        }",
    )?;
    step("with a filter of somebody else");
    scene
        .home
        .run(&["tc", "qdisc", "add", "dev", "up0", "clsact"])?;
    for side in ["ingress", "egress"] {
        #[rustfmt::skip]
        scene.home.run(&[
            "tc", "filter", "add", "dev", "up0", side, "bpf", "bytecode", "1,6 0 0 4294967295,",
            "flowid", "1:1",
        ])?;
    }
    for remote in REMOTE {
        scene.expect(&chosen, &["tcp", &at(remote, 80)], "beyond")?;
        scene.expect(&chosen, &["udp", &at(remote, 80)], "beyond")?;
        scene.expect(&chosen, &["ping", remote], "answered")?;
        scene.expect(&chosen, &["bound", "up0", &at(remote, 80)], "beyond")?;
    }
    Ok(())
}
