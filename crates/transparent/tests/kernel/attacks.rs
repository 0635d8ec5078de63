//! Attackers: one on the same link, who sees all packets and sends any, and one at the other end of
//! the tunnel. Neither learns or changes anything.

use crate::application::install;
use crate::inward::{LIMIT, count};
use crate::scene::{HOME, QUIET, REMOTE, Scene, at, everything_but, nothing, rules, unmet};
use etherparse::{IpHeaders, PacketBuilder, PacketBuilderStep};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};
use taupe_lab::capture::Capture;
use taupe_lab::host::Host;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::state::Reason;

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("probes_from_outside_get_no_reply", probes),
        SystemTest::new(
            "spoofed_segments_do_not_disturb_a_connection",
            a_live_connection,
        ),
        SystemTest::new("spoofed_dns_replies", spoofed_answers),
        SystemTest::new("probes_for_the_tunnel_address", the_tunnels_address),
        SystemTest::new("unselected_sockets_on_the_same_port", unselected_sockets),
        SystemTest::new("reused_ports", ports_used_again),
        SystemTest::new(
            "remote_hosts_fill_only_their_share",
            remote_hosts_fill_only_their_share,
        )
        .limit(Duration::from_secs(180)),
        SystemTest::new("routes_from_dhcp_bypass_nothing", routes),
    ]
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address with a port")
}

fn ip(from: IpAddr, to: IpAddr) -> PacketBuilderStep<IpHeaders> {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => PacketBuilder::ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => PacketBuilder::ipv6(from.octets(), to.octets(), 64),
        _ => panic!("two families"),
    }
}

/// Builds a TCP segment. `flags` has a letter for each flag.
pub(crate) fn segment(from: &str, to: &str, flags: &str, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (address(from), address(to));
    let mut header = etherparse::TcpHeader::new(from.port(), to.port(), sequence, 500);
    header.syn = flags.contains('S');
    header.ack = flags.contains('A');
    header.fin = flags.contains('F');
    header.rst = flags.contains('R');
    header.acknowledgment_number = u32::from(header.ack);
    let mut packet = Vec::new();
    let built = ip(from.ip(), to.ip()).tcp_header(header);
    built.write(&mut packet, payload).expect("it fits");
    packet
}

pub(crate) fn datagram(from: &str, to: &str, payload: &[u8]) -> Vec<u8> {
    let (from, to) = (address(from), address(to));
    let mut packet = Vec::new();
    let built = ip(from.ip(), to.ip()).udp(from.port(), to.port());
    built.write(&mut packet, payload).expect("it fits");
    packet
}

/// Builds a router's ICMP errors about a packet: port unreachable, and too big for 600 bytes (IPv6:
/// 1,280).
pub(crate) fn errors(router: &str, about: &[u8]) -> [Vec<u8>; 2] {
    use etherparse::{Icmpv4Type, Icmpv6Type, icmpv4, icmpv6};
    let router: IpAddr = router.parse().expect("an address");
    let build = |too_big| {
        let mut packet = Vec::new();
        match router {
            IpAddr::V4(_) => {
                let to = <[u8; 4]>::try_from(&about[12..16]).expect("four bytes");
                let kind = match too_big {
                    true => {
                        icmpv4::DestUnreachableHeader::FragmentationNeeded { next_hop_mtu: 600 }
                    }
                    false => icmpv4::DestUnreachableHeader::Port,
                };
                let kind = Icmpv4Type::DestinationUnreachable(kind);
                ip(router, to.into()).icmpv4(kind).write(&mut packet, about)
            }
            IpAddr::V6(_) => {
                let to = <[u8; 16]>::try_from(&about[8..24]).expect("16 bytes");
                let kind = match too_big {
                    true => Icmpv6Type::PacketTooBig { mtu: 1280 },
                    false => Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Port),
                };
                ip(router, to.into()).icmpv6(kind).write(&mut packet, about)
            }
        }
        .expect("it fits");
        packet
    };
    [build(false), build(true)]
}

/// Splits a packet into the smallest possible fragments.
pub(crate) fn crumbs(packet: &[u8], id: u16) -> Vec<Vec<u8>> {
    let is_v4 = packet[0] >> 4 == 4;
    let (header, payload) = packet.split_at(if is_v4 { 20 } else { 40 });
    // The first fragment of IPv6 must hold the whole transport header.
    let size = if is_v4 { 8 } else { 24 };
    let count = payload.chunks(size).count();
    let fragment = |(i, part): (usize, &[u8])| {
        let more = i + 1 < count;
        let mut fragment = header.to_vec();
        if is_v4 {
            let word = (i * size / 8) as u16 | if more { 0x2000 } else { 0 };
            fragment[2..4].copy_from_slice(&((20 + part.len()) as u16).to_be_bytes());
            fragment[4..6].copy_from_slice(&id.to_be_bytes());
            fragment[6..8].copy_from_slice(&word.to_be_bytes());
            let (parsed, _) = etherparse::Ipv4Header::from_slice(&fragment).expect("a header");
            fragment[10..12].copy_from_slice(&parsed.calc_header_checksum().to_be_bytes());
        } else {
            fragment[4..6].copy_from_slice(&((8 + part.len()) as u16).to_be_bytes());
            let protocol = std::mem::replace(&mut fragment[6], 44);
            fragment.extend([protocol, 0]);
            fragment.extend(((i * size) as u16 | u16::from(more)).to_be_bytes());
            fragment.extend(u32::from(id).to_be_bytes());
        }
        fragment.extend(part);
        fragment
    };
    payload.chunks(size).enumerate().map(fragment).collect()
}

/// As many extension headers as the eBPF programs follow, and one more.
const EXTENSIONS: [usize; 2] = [8, 9];

/// Inserts `count` destination options headers without effect into an IPv6 packet.
fn behind_options(packet: &[u8], count: usize) -> Vec<u8> {
    let (header, payload) = packet.split_at(40);
    let mut packet = header.to_vec();
    let protocol = std::mem::replace(&mut packet[6], 60);
    for left in (0..count).rev() {
        packet.extend([if left == 0 { protocol } else { 60 }, 0, 1, 4, 0, 0, 0, 0]);
    }
    packet.extend(payload);
    let length = (packet.len() - 40) as u16;
    packet[4..6].copy_from_slice(&length.to_be_bytes());
    packet
}

/// Sends packets unchanged.
pub(crate) fn inject(from: &Host, packets: &[Vec<u8>]) -> Result<()> {
    from.enter(|| {
        for packet in packets {
            let (family, to): (_, IpAddr) = match packet[0] >> 4 {
                4 => {
                    let to = <[u8; 4]>::try_from(&packet[16..20]).map_err(unmet)?;
                    (AddressFamily::INET, to.into())
                }
                _ => {
                    let to = <[u8; 16]>::try_from(&packet[24..40]).map_err(unmet)?;
                    (AddressFamily::INET6, to.into())
                }
            };
            let raw = socket(family, SocketType::RAW, Some(ipproto::RAW))
                .map_err(Error::io("raw socket"))?;
            sendto(&raw, packet, SendFlags::empty(), &SocketAddr::new(to, 0))
                .map_err(Error::io("raw packet"))?;
        }
        Ok(())
    })
}

/// Builds every kind of probe that can reveal a listener.
fn all_probes(from: &str, to: &str) -> Vec<Vec<u8>> {
    let flags = ["S", "A", "FA", "SA", "R", "F", "SF", ""];
    let mut probes: Vec<_> = flags
        .iter()
        .map(|flags| segment(from, to, flags, 1, b""))
        .collect();
    probes.push(segment(from, to, "S", 1, b"fast open"));
    probes.push(datagram(from, to, b"who?"));
    if from.starts_with('[') {
        let behind: Vec<_> = probes
            .iter()
            .flat_map(|probe| EXTENSIONS.map(|count| behind_options(probe, count)))
            .collect();
        probes.extend(behind);
    }
    let whole = probes.len();
    for i in 0..whole {
        let crumbs = crumbs(&probes[i], i as u16 + 1);
        if crumbs.len() > 1 {
            probes.extend(crumbs);
        }
    }
    // As if the listener had sent the packet that the error quotes.
    for quoted in [segment(to, from, "S", 1, b""), datagram(to, from, b"who?")] {
        let router = address(from).ip().to_string();
        probes.extend(errors(&router, &quoted));
    }
    probes
}

fn probes() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let _server = scene.start(&chosen, &["serve", "7000"])?;
    let _datagrams = scene.start(&chosen, &["serve-udp", "7000"])?;
    let _others = scene.start(&other, &["serve", "7001"])?;
    let _other_datagrams = scene.start(&other, &["serve-udp", "7001"])?;
    let links = ["192.0.2.1", "2001:db8:1::1"];
    for (home, link) in HOME.into_iter().zip(links) {
        let tunnel = Capture::start(&scene.beyond, "back", "not icmp6")?;
        let capture = scene.capture(&format!("src host {home}"))?;
        for (sender, port) in [(link, 4000), (REMOTE[usize::from(home != HOME[0])], 4001)] {
            inject(&scene.far, &all_probes(&at(sender, port), &at(home, 7000)))?;
        }
        sleep(QUIET);
        nothing(&scene, capture)?;
        let seen = tunnel.stop()?;
        ensure!(seen.is_empty(), "{} answers through the tunnel", seen.len());
        step("the same are answered by others");
        let capture = Capture::start(
            &scene.far,
            "down0",
            &format!("src host {home} and port 4000"),
        )?;
        inject(&scene.far, &all_probes(&at(link, 4000), &at(home, 7001)))?;
        capture.stop_once("answers to TCP and UDP", |seen| {
            let datagrams = seen.iter().filter(|packet| packet.datagram().is_some());
            datagrams.clone().count() >= 1 && seen.len() - datagrams.count() >= 4
        })?;
    }
    ensure!(
        count(&mut scene, Reason::ClearSocket)? > 0,
        "nothing was dropped"
    );
    Ok(())
}

/// Returns the sequence numbers that an attacker who sees everything would know: those of the next
/// segments to home and from home.
fn numbers(acknowledgement: &[u8]) -> Option<(u32, u32)> {
    let at = if acknowledgement.first()? >> 4 == 4 {
        20
    } else {
        40
    };
    let number = |from: usize| {
        let bytes = acknowledgement.get(at + from..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    };
    Some((number(8)?, number(4)?))
}

fn a_live_connection() -> Result<()> {
    const PORT: u16 = 81;
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    for (remote, link) in REMOTE.into_iter().zip(["192.0.2.1", "2001:db8:1::1"]) {
        let to = at(remote, PORT);
        let listener = scene
            .beyond
            .enter(|| TcpListener::bind(&to).map_err(Error::io("listener")))?;
        let handshake = Capture::start(&scene.beyond, "back", &format!("dst port {PORT}"))?;
        let mut hears = scene.start(&chosen, &["hear", &to])?;
        let (mut stream, from) = listener.accept().map_err(Error::io("accept"))?;
        let seen = handshake.stop_once("the handshake", |packets| packets.len() >= 2)?;
        let (next, sent) = seen
            .last()
            .and_then(|packet| numbers(&packet.ip))
            .ok_or_else(|| Error::unmet("no handshake"))?;
        let home = from.to_string();
        for forgotten in [false, true] {
            step(&format!("{remote}, its flow forgotten: {forgotten}"));
            if forgotten {
                scene
                    .programs()?
                    .expire_flows(Duration::ZERO)
                    .map_err(unmet)?;
            }
            let mut spoofed = Vec::new();
            for flags in ["R", "RA", "A", "FA", "S", "SA"] {
                spoofed.push(segment(&to, &home, flags, next, b"spoofed"));
                spoofed.push(segment(&to, &home, flags, next, b""));
            }
            spoofed.extend(errors(link, &segment(&home, &to, "A", sent, &[0; 700])));
            if remote == REMOTE[1] {
                let about = segment(&home, &to, "A", sent, &[0; 700]);
                for count in EXTENSIONS {
                    spoofed.extend(errors(link, &behind_options(&about, count)));
                }
                let behind: Vec<_> = spoofed
                    .iter()
                    .flat_map(|packet| EXTENSIONS.map(|count| behind_options(packet, count)))
                    .collect();
                spoofed.extend(behind);
            }
            let numbered = spoofed.iter().zip(1..);
            let crumbs: Vec<_> = numbered
                .flat_map(|(packet, id)| crumbs(packet, id))
                .collect();
            inject(&scene.far, &spoofed)?;
            inject(&scene.far, &crumbs)?;
            sleep(QUIET);
            let route = scene.home.run(&["ip", "route", "get", remote])?;
            ensure!(!route.text().contains("mtu"), "{}", route.text());
            stream
                .write_all(b"true ")
                .map_err(Error::io("the other end"))?;
        }
        drop(stream);
        let said = hears.line()?;
        ensure!(said.trim_end() == "true true", "{remote}: {said}");
    }
    ensure!(
        count(&mut scene, Reason::ClearFlow)? > 0,
        "nothing was dropped"
    );
    Ok(())
}

fn spoofed_answers() -> Result<()> {
    // Other servers use these ports already, at other addresses.
    const SERVER: &str = "198.51.100.2:53";
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    scene
        .beyond
        .ip(&["address", "add", "198.51.100.2", "dev", "lo"])?;
    let server = scene.beyond.enter(|| {
        let socket = UdpSocket::bind(SERVER).map_err(Error::io("socket"))?;
        socket
            .set_read_timeout(Some(LIMIT))
            .map_err(Error::io("timeout"))?;
        Ok(socket)
    })?;
    let mut asks = scene.start(&chosen, &["ask", SERVER])?;
    let (_, from) = server
        .recv_from(&mut [0; 64])
        .map_err(Error::io("question"))?;
    let spoofed = datagram(SERVER, &from.to_string(), &[b's'; 100]);
    let crumbs: Vec<_> = (1..50).flat_map(|id| crumbs(&spoofed, id)).collect();
    inject(&scene.far, &vec![spoofed; 49])?;
    inject(&scene.far, &crumbs)?;
    sleep(QUIET);
    server.send_to(b"true", from).map_err(Error::io("answer"))?;
    let said = asks.line()?;
    ensure!(said == "true", "{said}");
    let dropped = count(&mut scene, Reason::ClearFlow)?;
    ensure!(dropped == 2 * 49, "{dropped} were dropped");
    Ok(())
}

/// Probes for the tunnel's address from the link get no answer (CVE-2019-14899).
fn the_tunnels_address() -> Result<()> {
    const TUNNEL: [&str; 2] = ["10.66.0.2", "fd66::2"];
    let scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    for ((remote, own), home) in REMOTE.into_iter().zip(TUNNEL).zip(HOME) {
        scene.far.ip(&["route", "add", own, "via", home])?;
        let to = at(remote, 81);
        let listener = scene
            .beyond
            .enter(|| TcpListener::bind(&to).map_err(Error::io("listener")))?;
        let _hears = scene.start(&chosen, &["hear", &to])?;
        let (_stream, from) = listener.accept().map_err(Error::io("accept"))?;
        let capture = scene.capture(&format!("src host {home} or src host {own}"))?;
        for port in [from.port(), from.port() ^ 1, 80] {
            inject(&scene.far, &all_probes(&to, &at(own, port)))?;
        }
        sleep(QUIET);
        nothing(&scene, capture)?;
    }
    Ok(())
}

/// Sends `count` datagrams from beyond to a port of home, each from another port.
fn send(scene: &Scene, count: u16, port: u16) -> Result<()> {
    let packet = |from| datagram(&at(REMOTE[0], 5000 + from), &at(HOME[0], port), b"who?");
    inject(&scene.beyond, &(0..count).map(packet).collect::<Vec<_>>())
}

fn unselected_sockets() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    step("a group of both");
    let mut both = [
        scene.start(&chosen, &["share", "7002"])?,
        scene.start(&other, &["share", "7002"])?,
    ];
    send(&scene, 64, 7002)?;
    sleep(QUIET);
    let [got, not_got] = both.each_mut().map(|application| application.go());
    let (got, not_got) = (got?, not_got?);
    ensure!(
        got != "0" && not_got == "0",
        "chosen: {got}, unchosen: {not_got}"
    );
    step("one is bound to the uplink");
    let mut own = scene.start(&chosen, &["share", "7003"])?;
    let mut bound = scene.start(&other, &["share", "7003", "up0"])?;
    send(&scene, 16, 7003)?;
    sleep(QUIET);
    let (own, bound) = (own.go()?, bound.go()?);
    ensure!(
        own == "0" && bound == "0",
        "chosen: {own}, unchosen: {bound}"
    );
    let mut bound = scene.start(&chosen, &["share", "7004", "up0"])?;
    send(&scene, 16, 7004)?;
    wait_until("all that is for it", LIMIT, || {
        Ok(count(&mut scene, Reason::OutTunnel)? > 0)
    })?;
    sleep(QUIET);
    let bound = bound.go()?;
    ensure!(
        bound == "16",
        "a chosen one that is bound to the uplink: {bound}"
    );
    step("one has the port of a chosen one that is gone");
    scene.expect(&chosen, &["from", "7005", &at(REMOTE[0], 80)], "beyond")?;
    let mut heir = scene.start(&other, &["share", "7005"])?;
    let late = datagram(&at(REMOTE[0], 80), &at(HOME[0], 7005), b"late");
    inject(&scene.beyond, &[late])?;
    wait_until("its end", LIMIT, || {
        Ok(count(&mut scene, Reason::InUnselected)? == 1)
    })?;
    let heir = heir.go()?;
    ensure!(heir == "0", "the unchosen heir: {heir}");
    Ok(())
}

/// An unselected application that uses the ports of a selected one that has ended gets its replies.
fn ports_used_again() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    for (remote, port) in REMOTE.into_iter().zip(["7010", "7011"]) {
        let to = at(remote, 80);
        scene.expect(&chosen, &["from", port, &to], "beyond")?;
        scene.expect(&other, &["from", port, &to], "far")?;
        scene.expect(&chosen, &["from", port, &to], "beyond")?;
    }
    Ok(())
}

/// However many strangers query a selected server, the machine's own flows have room.
fn remote_hosts_fill_only_their_share() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let _server = scene.start(&chosen, &["serve-udp", "7000"])?;
    let raw = scene.beyond.enter(|| {
        socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::RAW))
            .map_err(Error::io("raw socket"))
    })?;
    let home = SocketAddr::from(([192, 0, 2, 2], 0));
    let began = Instant::now();
    let mut sent = 0_u32;
    // More flows than the whole table can hold.
    while sent < 80_000 {
        for _ in 0..100 {
            let [_, high, middle, low] = sent.to_be_bytes();
            let from = format!("203.{high}.{middle}.{low}:4000");
            let packet = datagram(&from, "192.0.2.2:7000", b"who?");
            sendto(&raw, &packet, SendFlags::empty(), &home).map_err(Error::io("datagram"))?;
            sent += 1;
        }
        let answered = |scene: &mut Scene| -> Result<u64> {
            Ok(count(scene, Reason::OutTunnel)? + count(scene, Reason::OutFlowsFull)?)
        };
        // Some packets are lost if the server cannot keep up.
        let patience = Instant::now() + Duration::from_millis(20);
        while answered(&mut scene)? < u64::from(sent) && Instant::now() < patience {
            std::thread::yield_now();
        }
    }
    eprintln!("{sent} strangers in {:?}", began.elapsed());
    let refused = count(&mut scene, Reason::OutFlowsFull)?;
    ensure!(refused > 1000, "only {refused} were refused");
    scene.expect(&chosen, &["udp", &at(REMOTE[0], 80)], "beyond")?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    step("room for strangers again");
    let left = scene
        .programs()?
        .expire_flows(Duration::ZERO)
        .map_err(unmet)?;
    ensure!(left == 0, "{left} flows are left");
    let before = count(&mut scene, Reason::OutTunnel)?;
    send(&scene, 1, 7000)?;
    wait_until("an answer", LIMIT, || {
        Ok(count(&mut scene, Reason::OutTunnel)? > before)
    })?;
    Ok(())
}

/// A DHCP server on the link can decide where packets leave, but not that they bypass the tunnel
/// (CVE-2024-3661, and TunnelCrack).
fn routes() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    scene
        .far
        .ip(&["address", "add", "192.0.2.66/24", "dev", "down0"])?;
    scene.far.ip(&[
        "address",
        "add",
        "2001:db8:1::66/64",
        "dev",
        "down0",
        "nodad",
    ])?;
    let filter = "host 198.51.100.1 or host 2001:db8:9::1";
    step("routes that are more specific");
    for routes in [
        [("0.0.0.0/1", "::/1"), ("128.0.0.0/1", "8000::/1")],
        [
            ("198.51.100.0/24", "2001:db8:9::/64"),
            ("198.51.100.1/32", "2001:db8:9::1/128"),
        ],
    ] {
        for (v4, v6) in routes {
            scene.home.ip(&["route", "add", v4, "via", "192.0.2.66"])?;
            scene
                .home
                .ip(&["-6", "route", "add", v6, "via", "2001:db8:1::66"])?;
        }
        let capture = scene.capture(filter)?;
        for remote in REMOTE {
            scene.expect(&chosen, &["tcp", &at(remote, 80)], "beyond")?;
            scene.expect(&chosen, &["udp", &at(remote, 80)], "beyond")?;
            scene.expect(&chosen, &["ping", remote], "answered")?;
        }
        nothing(&scene, capture)?;
    }
    for remote in REMOTE {
        scene.expect(&other, &["tcp", &at(remote, 80)], "far")?;
    }
    step("everything is the local network");
    scene.home.ip(&["route", "del", "198.51.100.0/24"])?;
    scene.home.ip(&["route", "del", "198.51.100.1/32"])?;
    scene
        .home
        .ip(&["address", "add", "198.51.100.77/24", "dev", "up0"])?;
    scene
        .beyond
        .ip(&["route", "add", "198.51.100.77", "dev", "back"])?;
    scene
        .far
        .ip(&["route", "add", "198.51.100.77", "dev", "down0"])?;
    let capture = scene.capture("host 198.51.100.1")?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    nothing(&scene, capture)?;
    scene.expect(&other, &["tcp", &at(REMOTE[0], 80)], "far")?;
    step("the tunnel's own server is no exception");
    let server = scene
        .far
        .enter(|| UdpSocket::bind("192.0.2.1:80").map_err(Error::io("socket")))?;
    std::thread::spawn(move || {
        while let Ok((_, from)) = server.recv_from(&mut [0; 64]) {
            let _ = server.send_to(b"server", from);
        }
    });
    let capture = scene.capture("port 80")?;
    let said = scene.run(&chosen, &["udp", "192.0.2.1:80"])?;
    ensure!(said.starts_with("failed"), "{said}");
    nothing(&scene, capture)?;
    step("unless it is said to be");
    let home = scene.home.clone();
    let programs = scene.programs()?;
    let table = everything_but(&["192.0.2.0/24"]);
    home.enter(|| {
        programs
            .replace(&rules(&["chosen"], &[]), &table)
            .map_err(unmet)
    })?;
    scene.expect(&chosen, &["udp", "192.0.2.1:80"], "server")
}
