//! Packets that home forwards for other machines.
//!
//! ```text
//!   guest ── in0              up0 ── far
//!               > home <
//!   shelf ── in1              TUN ── beyond
//! ```

use crate::application::{Application, install};
use crate::client::WORD;
use crate::daemon::{self, CAPTURE, settings};
use crate::inward::LIMIT;
use crate::link_local;
use crate::scene::{
    QUIET, REMOTE, Scene, TUNNEL, at, everything_but, meet, nothing, unmet, without_tcx,
};
use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::thread::sleep;
use taupe_config::file::Forwarded;
use taupe_lab::capture::Capture;
use taupe_lab::host::{Host, link};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::capture::{self, CaptureSettings};
use taupe_transparent::programs::Programs;
use taupe_transparent::state::Reason;

const GUEST: [&str; 2] = ["10.9.0.2", "fd09::2"];

/// Addresses of another machine, on another link.
const SHELF: [&str; 2] = ["10.10.0.2", "fd10::2"];

/// All packets to or from the remote addresses or the guest.
const ANY: &str = "host 198.51.100.1 or host 2001:db8:9::1 or host 10.9.0.2 or host fd09::2";

/// A port on which only a test listens.
const PORT: u16 = 81;

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("forwarded_without_masquerading", || through(false)),
        SystemTest::new("forwarded_and_masqueraded", || through(true)),
        SystemTest::new("forwarded_without_tcx", without_tcx(|| through(true))),
        SystemTest::new("forwarded_outside_the_tunnel", past),
        SystemTest::new("forwarded_without_a_daemon", dead),
        SystemTest::new("forwarded_by_a_new_uplink", by_a_new_uplink),
        SystemTest::new("clients_reached_from_outside_the_tunnel", in_the_clear),
        SystemTest::new("packets_for_vanished_clients", gone),
        SystemTest::new("clients_and_direct_destinations", direct_destinations),
        SystemTest::new("forwarding_changed_while_up", otherwise),
    ]
}

struct Yard {
    scene: Scene,
    guest: Host,
    program: String,
}

impl Yard {
    fn new(masquerades: bool) -> Result<Self> {
        let scene = Scene::new()?;
        let (home, guest) = (scene.home.clone(), Host::new("guest")?);
        let shelf = Host::new("shelf")?;
        for (host, inside, addresses, routers) in [
            (&guest, "in0", GUEST, ["10.9.0.1", "fd09::1"]),
            (&shelf, "in1", SHELF, ["10.10.0.1", "fd10::1"]),
        ] {
            let own = [0, 1].map(|family| network(addresses[family]));
            let other = [0, 1].map(|family| network(routers[family]));
            link(
                home.port(inside, &other.each_ref().map(String::as_str)),
                host.port("eth0", &own.each_ref().map(String::as_str)),
                1500,
            )?;
            for (family, router) in ["-4", "-6"].into_iter().zip(routers) {
                host.ip(&[family, "route", "add", "default", "via", router])?;
            }
            for address in addresses {
                let listener =
                    host.enter(|| TcpListener::bind((address, 80)).map_err(Error::io("listener")))?;
                std::thread::spawn(move || {
                    for stream in listener.incoming() {
                        let _ = stream.and_then(|mut stream| stream.write_all(b"inside"));
                    }
                });
            }
        }
        for family in ["ipv4", "ipv6"] {
            home.sysctl(&format!("net/{family}/conf/all/forwarding"), "1")?;
        }
        if masquerades {
            let rules = "table inet hide {
                chain after {
                    type nat hook postrouting priority 100;
                    oifname \"up*\" masquerade
                }
            }";
            home.run_with_input(&["nft", "-f", "-"], rules)?;
        } else {
            for (host, way) in [
                (&scene.far, ["via", "192.0.2.2", "via", "2001:db8:1::2"]),
                (&scene.beyond, ["dev", "back", "dev", "back"]),
            ] {
                let (v4, v6) = way.split_at(2);
                host.ip(&[&["route", "add", "10.9.0.0/24"], v4].concat())?;
                host.ip(&[&["-6", "route", "add", "fd09::/64"], v6].concat())?;
            }
        }
        meet(&guest, "fd09::1")?;
        meet(&shelf, "fd10::1")?;
        Ok(Self {
            scene,
            guest,
            program: install("visitor")?,
        })
    }

    /// Starts a capture that follows home's links.
    fn begin(&self, settings: &CaptureSettings) -> Result<capture::Capture> {
        let tun = self.scene.tun.index().map_err(Error::io("TUN"))?;
        let begin = || daemon::begin_with(TUNNEL, settings, tun).map_err(unmet);
        self.scene.home.enter(begin)
    }

    /// Starts the same in a process that can be killed.
    fn start(&self) -> Result<Application> {
        let own = std::env::current_exe().map_err(Error::io("own executable"))?;
        let tun = self.scene.tun.index().map_err(Error::io("TUN"))?;
        let mut command = Command::new(own);
        command.args([CAPTURE, "home", "chosen", &tun.to_string(), "forwarded"]);
        Application::start(command)
    }

    /// Runs a program on the guest and returns its output.
    fn ask(&self, words: &[&str]) -> Result<String> {
        let command = [&[&*self.program, WORD], words].concat();
        Ok(self.guest.run(&command)?.text().to_owned())
    }

    /// Fails unless `who` answers the guest by every transport.
    fn expect(&self, who: &str) -> Result<()> {
        for remote in REMOTE {
            for (words, answer) in [
                (["tcp", &at(remote, 80)], who),
                (["udp", &at(remote, 80)], who),
                (["raw", remote], "answered"),
            ] {
                let said = self.ask(&words)?;
                ensure!(said == answer, "{words:?}: {said}, not {answer}");
            }
        }
        Ok(())
    }

    /// Checks that the guest reaches only home and the machines behind it.
    fn is_cut_off(&self) -> Result<()> {
        for (way, remote) in [("tcp", REMOTE[0]), ("udp", REMOTE[1])] {
            let said = self.ask(&[way, &at(remote, 80)])?;
            ensure!(said.starts_with("failed"), "{way}: {said}");
        }
        self.is_inside()
    }

    /// Checks that machines behind home reach each other.
    fn is_inside(&self) -> Result<()> {
        for address in SHELF {
            // On a busy machine, an answer may come later than an application waits.
            wait_until(&format!("{address} reached"), LIMIT, || {
                Ok(self.ask(&["tcp", &at(address, 80)])? == "inside")
            })?;
        }
        Ok(())
    }

    fn counted(&self, reason: Reason) -> Result<u64> {
        let counts = self.scene.home.enter(|| {
            let programs = Programs::open(TUNNEL).map_err(unmet)?;
            let programs = programs.ok_or_else(|| unmet("nothing is pinned"))?;
            programs.counts().map_err(unmet)
        })?;
        let found = counts.into_iter().find(|(other, _)| *other == reason);
        Ok(found.map_or(0, |(_, count)| count))
    }
}

fn network(address: &str) -> String {
    let bits = if address.contains(':') { 64 } else { 24 };
    format!("{address}/{bits}")
}

fn forwarded() -> CaptureSettings {
    CaptureSettings {
        forwarded: Forwarded::Tunnel,
        ..settings("chosen")
    }
}

fn through(masquerades: bool) -> Result<()> {
    let yard = Yard::new(masquerades)?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let _capture = yard.begin(&forwarded())?;
    let clear = yard.scene.capture(ANY)?;
    yard.expect("beyond")?;
    step("fragments");
    let said = yard.ask(&["long-udp", &at(REMOTE[0], 80)])?;
    ensure!(said == "beyond", "{said}");
    step("what home's own send");
    yard.scene
        .expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    yard.is_inside()?;
    nothing(&yard.scene, clear)?;
    for remote in REMOTE {
        yard.scene
            .expect(&other, &["tcp", &at(remote, 80)], "far")?;
        yard.scene
            .expect(&other, &["udp", &at(remote, 80)], "far")?;
    }
    Ok(())
}

fn past() -> Result<()> {
    let yard = Yard::new(false)?;
    let _capture = yard.begin(&settings("chosen"))?;
    yard.expect("far")?;
    yard.is_inside()
}

fn dead() -> Result<()> {
    let yard = Yard::new(false)?;
    let other = install("other")?;
    let mut daemon = yard.start()?;
    let said = yard.ask(&["tcp", &at(REMOTE[0], 80)])?;
    ensure!(said == "beyond", "{said}");
    let clear = yard.scene.capture(ANY)?;
    daemon.kill()?;
    yard.is_cut_off()?;
    nothing(&yard.scene, clear)?;
    yard.scene
        .expect(&other, &["tcp", &at(REMOTE[0], 80)], "far")?;
    step("again");
    let _daemon = yard.start()?;
    let said = yard.ask(&["tcp", &at(REMOTE[1], 80)])?;
    ensure!(said == "beyond", "{said}");
    Ok(())
}

/// A new uplink while no process runs that could guard it.
fn by_a_new_uplink() -> Result<()> {
    let yard = Yard::new(true)?;
    let other = install("other")?;
    let mut daemon = yard.start()?;
    daemon.kill()?;
    let (home, far) = (&yard.scene.home, &yard.scene.far);
    home.ip(&["link", "delete", "up0"])?;
    link(
        home.port("up1", &["203.0.113.2/24", "2001:db8:2::2/64"]),
        far.port("down1", &["203.0.113.1/24", "2001:db8:2::1/64"]),
        1500,
    )?;
    for (family, router) in [("-4", "203.0.113.1"), ("-6", "2001:db8:2::1")] {
        home.ip(&[family, "route", "add", "default", "via", router])?;
    }
    let clear = Capture::start(far, "down1", &format!("({ANY}) and not port 123"))?;
    yard.is_cut_off()?;
    // This datagram shows that nothing else was on the link before.
    let port = Capture::start(far, "down1", "port 123")?;
    yard.scene
        .expect(&other, &["udp", &at(REMOTE[0], 123)], "far")?;
    port.stop_once("another's", |packets| !packets.is_empty())?;
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in the clear", packets.len());
    ensure!(yard.counted(Reason::OutUnguarded)? > 0, "none was dropped");
    Ok(())
}

fn in_the_clear() -> Result<()> {
    let yard = Yard::new(false)?;
    let _capture = yard.begin(&forwarded())?;
    for (family, remote) in REMOTE.into_iter().enumerate() {
        let bind = |host: &Host| {
            host.enter(|| {
                let socket = UdpSocket::bind((remote, PORT)).map_err(Error::io("socket"))?;
                let limit = socket.set_read_timeout(Some(LIMIT));
                limit.map_err(Error::io("timeout"))?;
                Ok(socket)
            })
        };
        let (true_one, false_one) = (bind(&yard.scene.beyond)?, bind(&yard.scene.far)?);
        step("for a flow that is in the tunnel");
        let before = yard.counted(Reason::ClearFlow)?;
        let program = [&*yard.program, WORD, "ask", &at(remote, PORT)];
        let mut asks = Application::start(yard.guest.command(&program))?;
        let heard = true_one.recv_from(&mut [0; 64]);
        let (_, from) = heard.map_err(Error::io("question"))?;
        ensure!(from.ip().to_string() == GUEST[family], "it is {from}");
        let sent = false_one.send_to(b"spoofed", from);
        sent.map_err(Error::io("spoofed"))?;
        sleep(QUIET);
        true_one.send_to(b"true", from).map_err(Error::io("true"))?;
        let said = asks.line()?;
        ensure!(said == "true", "{remote}: {said}");
        let dropped = yard.counted(Reason::ClearFlow)? - before;
        ensure!(dropped == 1, "{dropped} of 1 was dropped");
        step("for none");
        let to: SocketAddr = at(GUEST[family], 80).parse().map_err(unmet)?;
        for host in [&yard.scene.far, &yard.scene.beyond] {
            let tried = host.enter(|| Ok(TcpStream::connect_timeout(&to, QUIET)))?;
            ensure!(tried.is_err(), "{} reaches the guest", host.name());
        }
    }
    for reason in [Reason::ClearClient, Reason::InUnknown] {
        let dropped = yard.counted(reason)?;
        ensure!(dropped >= 2, "{dropped} {}", reason.text());
    }
    Ok(())
}

/// Packets from the tunnel for the guest do not leave outside it.
fn gone() -> Result<()> {
    let yard = Yard::new(false)?;
    let _capture = yard.begin(&forwarded())?;
    let socket = yard
        .scene
        .beyond
        .enter(|| UdpSocket::bind((REMOTE[0], PORT)).map_err(Error::io("socket")))?;
    let said = yard.ask(&["udp", &at(REMOTE[0], PORT)]);
    let heard = socket.recv_from(&mut [0; 64]);
    let (_, from) = heard.map_err(Error::io("question"))?;
    drop(said);
    let clear = yard.scene.capture(ANY)?;
    yard.scene.home.ip(&["link", "delete", "in0"])?;
    let before = yard.counted(Reason::InUnknown)?;
    socket.send_to(b"late", from).map_err(Error::io("answer"))?;
    sleep(QUIET);
    nothing(&yard.scene, clear)?;
    let dropped = yard.counted(Reason::InUnknown)? - before;
    ensure!(dropped > 0, "it was dropped elsewhere");
    Ok(())
}

fn direct_destinations() -> Result<()> {
    let yard = Yard::new(false)?;
    let settings = CaptureSettings {
        destinations: everything_but(&["198.51.100.0/24"]),
        ..forwarded()
    };
    let _capture = yard.begin(&settings)?;
    for (way, remote, port, who) in [
        ("tcp", REMOTE[0], 80, "far"),
        ("udp", REMOTE[0], 80, "far"),
        ("tcp", REMOTE[1], 80, "beyond"),
        // DNS queries go through the tunnel.
        ("udp", REMOTE[0], 53, "beyond"),
        ("tcp", REMOTE[0], 53, "beyond"),
    ] {
        let said = yard.ask(&[way, &at(remote, port)])?;
        ensure!(said == who, "{way} {remote} {port}: {said}");
    }
    step("link-local, behind a router");
    let [behind, _] = link_local::BEHIND;
    link_local::answer(&yard.scene.far, "lo", behind, "far")?;
    link_local::answer(&yard.scene.beyond, "lo", behind, "beyond")?;
    let said = yard.ask(&["udp", &at(behind, 80)])?;
    ensure!(said == "beyond", "{behind}: {said}");
    step("from there");
    let to: SocketAddr = at(GUEST[0], 80).parse().map_err(unmet)?;
    yard.scene.far.enter(|| {
        let from = SocketAddr::from(([198, 51, 100, 1], 0));
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.map_err(Error::io("socket"))?;
        socket.bind(&from.into()).map_err(Error::io("bind"))?;
        let connected = socket.connect_timeout(&to.into(), LIMIT);
        connected.map_err(Error::io("connect"))
    })?;
    step("an error that says to be about it, for another");
    let clear = yard.scene.capture("host 203.0.113.9")?;
    yard.guest.enter(|| lie("203.0.113.9"))?;
    sleep(QUIET);
    nothing(&yard.scene, clear)
}

/// Sends an ICMP error that quotes a packet which its receiver has not sent.
fn lie(to: &str) -> Result<()> {
    use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};
    let mut message = vec![11, 0, 0, 0, 0, 0, 0, 0];
    // A datagram from 198.51.100.1 to the guest.
    message.extend([0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
    message.extend([198, 51, 100, 1, 10, 9, 0, 2, 0, 80, 0, 80, 0, 8, 0, 0]);
    let words = message.as_chunks::<2>().0;
    let sum: u32 = words
        .iter()
        .map(|word| u32::from(u16::from_be_bytes(*word)))
        .sum();
    let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::ICMP));
    let raw = raw.map_err(Error::io("raw socket"))?;
    let to = SocketAddr::new(to.parse().map_err(unmet)?, 0);
    let sent = sendto(&raw, &message, SendFlags::empty(), &to);
    sent.map(drop).map_err(Error::io("the error"))
}

fn otherwise() -> Result<()> {
    const FROM: &str = "5555";
    let yard = Yard::new(false)?;
    let _capture = yard.begin(&forwarded())?;
    let replace = |settings: &CaptureSettings| {
        let replaced = || capture::replace(TUNNEL, settings).map_err(unmet);
        yard.scene.home.enter(replaced).map(drop)
    };
    // The same flows each time.
    let is = |who: &str| -> Result<()> {
        for remote in REMOTE {
            let said = yard.ask(&["from", FROM, &at(remote, 80)])?;
            ensure!(said == who, "{remote}: {said}, not {who}");
        }
        Ok(())
    };
    is("beyond")?;
    replace(&settings("chosen"))?;
    is("far")?;
    replace(&forwarded())?;
    is("beyond")
}
