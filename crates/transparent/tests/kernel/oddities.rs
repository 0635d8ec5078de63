//! Unusual packets of selected applications: they resemble the link's own traffic, are fragmented,
//! pass a link above another, or come from the kernel itself.

use crate::application::install;
use crate::attacks::{crumbs, datagram, errors};
use crate::inward::{LIMIT, connect, count, order};
use crate::scene::{HOME, QUIET, REMOTE, Scene, at, everything_but, nothing, rules, unmet};
use std::net::UdpSocket;
use taupe_lab::capture::Capture;
use taupe_lab::host::add_address;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::state::Reason;
use taupe_transparent::uplinks::LinkHeader;

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new(
            "packets_that_imitate_link_traffic",
            packets_that_imitate_link_traffic,
        ),
        SystemTest::new("fragmented_dns_queries", fragmented_dns_queries),
        SystemTest::new("fragments_from_the_tunnel", fragments_from_the_tunnel),
        SystemTest::new("stacked_links", stacked_links),
        SystemTest::new("replies_without_a_socket", replies_without_a_socket),
        SystemTest::new(
            "headers_outside_the_linear_part",
            headers_outside_the_linear_part,
        ),
    ]
}

/// DHCP and neighbour discovery stay on the link.
fn packets_that_imitate_link_traffic() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    // The last term is for the last datagram of `nothing`.
    let filter = "udp port 67 or udp port 547 or dst host 2001:db8:9::1 or udp dst port 9";
    let capture = Capture::start(&scene.far, "down0", filter)?;
    scene.run(&chosen, &["from", "68", &at(REMOTE[0], 67)])?;
    scene.run(&chosen, &["from", "68", "192.0.2.1:67"])?;
    scene.run(&chosen, &["from", "546", &at(REMOTE[1], 547)])?;
    for kind in ["133", "135", "136", "137"] {
        scene.run(&chosen, &["icmp6", kind, REMOTE[1]])?;
    }
    nothing(&scene, capture)?;
    step("a question to everybody on the link");
    let capture = Capture::start(&scene.far, "down0", "udp port 67")?;
    scene.run(&chosen, &["from", "68", "255.255.255.255:67"])?;
    capture.stop_once("the question", |packets| !packets.is_empty())?;
    Ok(())
}

/// DNS queries larger than a packet, to a server outside the tunnel's networks.
fn fragmented_dns_queries() -> Result<()> {
    let mut scene = Scene::new()?;
    let chosen = install("chosen")?;
    let direct = everything_but(&["198.51.100.0/24", "2001:db8:9::/64"]);
    scene.set_up(&rules(&["chosen"], &[]), &direct)?;
    let capture = scene.capture("ip[6:2] & 0x3fff != 0 or ip6[6] = 44 or port 53")?;
    for remote in REMOTE {
        scene.expect(&chosen, &["long-udp", &at(remote, 53)], "beyond")?;
    }
    nothing(&scene, capture)?;
    for remote in REMOTE {
        scene.expect(&chosen, &["long-udp", &at(remote, 80)], "far")?;
    }
    Ok(())
}

/// The kernel would reassemble these fragments with others from the link.
fn fragments_from_the_tunnel() -> Result<()> {
    const PORT: u16 = 81;
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    for remote in REMOTE {
        let socket = scene.beyond.enter(|| {
            let socket = UdpSocket::bind((remote, PORT)).map_err(Error::io("socket"))?;
            socket
                .set_read_timeout(Some(LIMIT))
                .map_err(Error::io("timeout"))?;
            Ok(socket)
        })?;
        let mut asks = scene.start(&chosen, &["ask", &at(remote, PORT)])?;
        let (_, from) = socket
            .recv_from(&mut [0; 64])
            .map_err(Error::io("question"))?;
        let before = count(&mut scene, Reason::Unreadable)?;
        scene.beyond.ip(&["link", "set", "back", "mtu", "1500"])?;
        socket
            .send_to(&[b'.'; 3000], from)
            .map_err(Error::io("in pieces"))?;
        wait_until("its pieces", LIMIT, || {
            Ok(count(&mut scene, Reason::Unreadable)? == before + 3)
        })?;
        socket.send_to(b"true", from).map_err(Error::io("whole"))?;
        let said = asks.line()?;
        ensure!(said == "true", "{remote}: {said}");
        scene.beyond.ip(&["link", "set", "back", "mtu", "65000"])?;
        scene.expect(&chosen, &["long-udp", &at(remote, 80)], "beyond")?;
    }
    Ok(())
}

/// A link that encapsulates its packets in packets of another link, both guarded. A packet that the
/// first link's filter has let pass also passes the second link's filter, although its outer
/// destination belongs to the tunnel.
fn stacked_links() -> Result<()> {
    let mut scene = Scene::new()?;
    let chosen = install("chosen")?;
    let ends = [
        (&scene.home, HOME[0], "192.0.2.1", "3"),
        (&scene.far, "192.0.2.1", HOME[0], "4"),
    ];
    for (host, from, to, own) in ends {
        #[rustfmt::skip]
        host.ip(&[
            "link", "add", "upon", "type", "vxlan", "id", "5", "dstport", "4789",
            "local", from, "remote", to,
        ])?;
        host.ip(&["link", "set", "upon", "up"])?;
        host.ip(&[
            "address",
            "add",
            &format!("203.0.113.{own}/24"),
            "dev",
            "upon",
        ])?;
    }
    scene.far.enter(|| {
        let socket = UdpSocket::bind("203.0.113.4:80").map_err(Error::io("socket"))?;
        std::thread::spawn(move || {
            while let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
                let _ = socket.send_to(b"upon", from);
            }
        });
        Ok(())
    })?;
    scene.set_up(
        &rules(&["chosen"], &[]),
        &everything_but(&["203.0.113.0/24"]),
    )?;
    let upon = scene.uplink("upon")?;
    let home = scene.home.clone();
    let programs = scene.programs()?;
    home.enter(|| programs.guard(&upon).map_err(unmet))?;
    scene.expect(&chosen, &["udp", "203.0.113.4:80"], "upon")?;
    step("by that link into the tunnel");
    scene.home.ip(&[
        "route",
        "add",
        REMOTE[0],
        "via",
        "203.0.113.4",
        "src",
        HOME[0],
    ])?;
    let capture = Capture::start(&scene.far, "upon", "host 198.51.100.1")?;
    scene.expect(&chosen, &["udp", &at(REMOTE[0], 80)], "beyond")?;
    ensure!(capture.stop()?.is_empty(), "packets in the clear");
    Ok(())
}

/// Replies that the kernel itself sends to clients of a selected listener.
fn replies_without_a_socket() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let _server = scene.start(&chosen, &["serve", "7000"])?;
    let capture = scene.capture("port 7000")?;
    step("SYN cookies");
    scene.home.sysctl("net/ipv4/tcp_syncookies", "2")?;
    for home in HOME {
        let mut stream = connect(&scene.beyond, &at(home, 7000))?;
        ensure!(order(&mut stream, b'f')? == 6, "{home}: the answer is cut");
    }
    step("resets");
    for (home, remote) in HOME.into_iter().zip(REMOTE) {
        let seen = Capture::start(&scene.beyond, "back", &format!("src host {home} and tcp"))?;
        let stray = crate::attacks::segment(&at(remote, 4000), &at(home, 7000), "A", 1, b"");
        crate::attacks::inject(&scene.beyond, &[stray])?;
        seen.stop_once("a reset", |packets| !packets.is_empty())?;
    }
    std::thread::sleep(QUIET);
    nothing(&scene, capture)
}

/// Packets as drivers of some cards deliver them: everything after the IP header is in a separate
/// page.
fn headers_outside_the_linear_part() -> Result<()> {
    const CARD: &str = "card0";
    const PORT: u16 = 81;
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let card = scene.home.enter(|| pages::open(CARD))?;
    for address in ["203.0.113.2/24", "2001:db8:2::2/64"] {
        add_address(&scene.home, CARD, address)?;
    }
    scene.home.ip(&["link", "set", CARD, "up"])?;
    let (uplink, home) = (scene.uplink(CARD)?, scene.home.clone());
    let programs = scene.programs()?;
    home.enter(|| programs.guard(&uplink).map_err(unmet))?;
    let LinkHeader::Ethernet(mac) = uplink.header else {
        return Err(Error::unmet("no Ethernet"));
    };
    let limited = |socket: UdpSocket| {
        let limit = socket.set_read_timeout(Some(LIMIT));
        limit.map(|()| socket).map_err(Error::io("timeout"))
    };
    let bind = |address| UdpSocket::bind(address).map_err(Error::io("socket"));
    for ((remote, own), router) in REMOTE
        .into_iter()
        .zip(HOME)
        .zip(["203.0.113.1", "2001:db8:2::1"])
    {
        step(&format!("errors about a flow to {remote}"));
        let to = at(remote, PORT);
        let server = limited(scene.beyond.enter(|| bind((remote, PORT)))?)?;
        let mut asks = scene.start(&chosen, &["ask", &to])?;
        let (_, from) = server
            .recv_from(&mut [0; 64])
            .map_err(Error::io("question"))?;
        let before = count(&mut scene, Reason::ClearFlow)?;
        let errors = errors(router, &datagram(&from.to_string(), &to, &[0; 700]));
        for error in &errors {
            pages::send(&card, mac, error)?;
        }
        wait_until("they are dropped", LIMIT, || {
            Ok(count(&mut scene, Reason::ClearFlow)? == before + errors.len() as u64)
        })?;
        let route = scene.home.run(&["ip", "route", "get", remote])?;
        ensure!(!route.text().contains("mtu"), "{}", route.text());
        server.send_to(b"true", from).map_err(Error::io("answer"))?;
        let said = asks.line()?;
        ensure!(said == "true", "{remote}: {said}");
        step("fragments for others");
        let socket = limited(scene.home.enter(|| bind((own, PORT)))?)?;
        for crumb in crumbs(&datagram(&at(router, PORT), &at(own, PORT), &[b'!'; 99]), 7) {
            pages::send(&card, mac, &crumb)?;
        }
        let length = socket.recv(&mut [0; 200]).map_err(Error::io("datagram"))?;
        ensure!(length == 99, "{length} bytes");
    }
    Ok(())
}

/// An Ethernet card (TAP) whose driver leaves payloads in pages.
mod pages {
    use std::fs::File;
    use std::io::{self, IoSlice, Write as _};
    use std::os::fd::AsRawFd as _;
    use taupe_lab::{Error, Result};

    /// `IFF_TAP`, `IFF_NAPI`, `IFF_NAPI_FRAGS` and `IFF_NO_PI`.
    const FLAGS: u16 = 0x0002 | 0x0010 | 0x0020 | 0x1000;

    /// Creates an interface of this name in the calling thread's namespace.
    pub(super) fn open(name: &str) -> Result<File> {
        /// `struct ifreq`.
        #[repr(C)]
        struct Interface {
            name: [u8; 16],
            flags: u16,
            rest: [u8; 22],
        }
        let mut interface = Interface {
            name: [0; 16],
            flags: FLAGS,
            rest: [0; 22],
        };
        interface.name[..name.len()].copy_from_slice(name.as_bytes());
        let mut options = File::options();
        let file = options.read(true).write(true).open("/dev/net/tun");
        let file = file.map_err(Error::io("/dev/net/tun"))?;
        // SAFETY: the kernel reads and writes a `struct ifreq`, which `interface` is.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &raw mut interface) };
        match made {
            0 => Ok(file),
            _ => Err(Error::io("TUNSETIFF")(io::Error::last_os_error())),
        }
    }

    /// Delivers a packet by the card.
    pub(super) fn send(mut card: &File, to: [u8; 6], packet: &[u8]) -> Result<()> {
        let (header, protocol) = match packet[0] >> 4 {
            4 => (20, [8, 0]),
            _ => (40, [0x86, 0xdd]),
        };
        let (header, payload) = packet.split_at(header);
        let first = [&to[..], &[2, 0, 0, 0, 0, 1], &protocol, header].concat();
        // Each vector becomes a fragment of the same size.
        let sent = card.write_vectored(&[IoSlice::new(&first), IoSlice::new(payload)]);
        sent.map(drop).map_err(Error::io("packet"))
    }
}
