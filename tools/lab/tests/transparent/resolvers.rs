//! Name servers that get selected applications' questions, and those that must not.
//!
//! Every resolver records the names it is asked for, and answers with an address of its own, which
//! identifies it.

mod client;
pub(crate) mod flows;
mod server;
pub(crate) mod several;

pub(crate) use client::{WORD, main};
pub(crate) use server::{Names, serve};

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use rustix::mount::mount_bind;
use taupe_lab::capture::{Capture, Packet};
use taupe_lab::host::add_address;
use taupe_lab::sandbox::{scratch_file, step};
use taupe_lab::{Error, Result, ensure};

use client::Client;
use server::{accept, serve_varlink};

use crate::forwarding::guest;
use crate::world::{SERVER, World};

/// Answers of the tunnel's server, and of all others.
const INSIDE: Ipv4Addr = Ipv4Addr::new(10, 9, 9, 9);
const OUTSIDE: Ipv4Addr = Ipv4Addr::new(192, 168, 9, 9);

/// A resolver on this machine, one in its network and one outside.
const STUB: &str = "127.0.0.53";
const ROUTER: &str = "192.168.1.2";
const PUBLIC: &str = "198.51.100.1";

/// Additional loopback addresses of this machine.
const ALIASES: [&str; 2] = ["10.8.8.8", "fd08::8"];

/// Part of the names that a selected application looks up.
const TUNNELLED_WORD: &str = "mole";

/// Part of the names that another application looks up.
const DIRECT_WORD: &str = "bird";

/// The last name looked up.
const LAST_WORD: &str = "goodbye";

/// Filter for name server traffic.
const DNS_FILTER: &str = "port 53 or port 5353 or port 5355";

/// Through the C library, with a resolver on this machine.
pub(crate) fn on_this_machine() -> Result<()> {
    let scene = Scene::new(&format!("nameserver {STUB}\nsearch corp.example\n"))?;
    let world = &scene.world;
    let file = scene.file(&SERVER.join(", "), "")?;
    world.up(&file)?;
    scene.query_by_library()?;
    step("by TCP, for what is long");
    ensure!(
        scene.mole.resolves(world, "large.mole.example")?.len() == 100,
        "not all"
    );
    ensure!(
        scene.bird.resolves(world, "large.bird.example")?.len() == 100,
        "not all"
    );
    step("a search list");
    let short = scene.mole.resolves(world, "mole-short")?;
    ensure!(short == [INSIDE], "{short:?}");
    ensure!(
        scene.inside.has("mole-short.corp.example"),
        "{:?}",
        scene.inside.names()
    );
    step("by itself, one socket and several servers, and long answers");
    for (how, name) in [
        ("udp", "mole-udp.example"),
        ("edns", "large.mole.edns"),
        ("tcp", "mole-tcp.example"),
    ] {
        let here = [STUB, "127.0.0.1", "192.168.1.1", "::1"];
        for server in [&here[..], &ALIASES, &[ROUTER, PUBLIC]].concat() {
            let output = scene.mole.query(world, how, server, name)?;
            let wanted = match how {
                "edns" => format!("{server} 10.9.9.9 100"),
                _ => format!("{server} 10.9.9.9 1"),
            };
            ensure!(output == wanted, "{how} {server}: {output}");
        }
    }
    scene.check_no_leak()?;
    step("killed");
    world.kill_device()?;
    let began = Instant::now();
    ensure!(
        scene.mole.resolves(world, "mole-down.example")?.is_empty(),
        "resolved"
    );
    ensure!(
        began.elapsed() < Duration::from_secs(6),
        "it was not refused at once"
    );
    ensure!(
        scene.bird.resolves(world, "bird-down.example")? == [OUTSIDE],
        "the other"
    );
    scene.check_no_leak()?;
    step("up again, and down");
    world.up(&file)?;
    scene.query_by_library()?;
    scene.check_no_leak()?;
    world.down(&file)?;
    ensure!(
        scene.mole.resolves(world, "down.example")? == [OUTSIDE],
        "still blocked"
    );
    Ok(())
}

/// The resolver would be outside the tunnel.
pub(crate) fn in_the_local_network() -> Result<()> {
    let scene = Scene::new(&format!("nameserver {ROUTER}\n"))?;
    let file = scene.file(
        &SERVER.join(", "),
        "DisallowedIPs = 192.168.1.0/24, 127.0.0.0/8\nBypassLanTraffic = false",
    )?;
    scene.world.up(&file)?;
    scene.query_by_library()?;
    let output = scene
        .mole
        .query(&scene.world, "udp", STUB, "mole-stub.example")?;
    ensure!(output == format!("{STUB} 10.9.9.9 1"), "{output}");
    let output = scene
        .mole
        .query(&scene.world, "tcp", ROUTER, "mole-router.example")?;
    ensure!(output == format!("{ROUTER} 10.9.9.9 1"), "{output}");
    step("groups of the link");
    for group in [
        "224.0.0.251:5353",
        "224.0.0.252:5355",
        "[ff02::fb%eth0]:5353",
        "[ff02::1:3%eth0]:5355",
    ] {
        for (application, name) in [(&scene.mole, "mole.local"), (&scene.bird, "bird.local")] {
            application.send(&scene.world, group, name)?;
        }
    }
    // The other application's question to the router and its answer, and one question to each
    // group.
    let open = scene.check_no_leak()?;
    ensure!(open >= 6, "only {open} packets of the other");
    scene.world.down(&file)
}

/// The first server is silent: this delays one question, and no others.
pub(crate) fn silent_name_server() -> Result<()> {
    let scene = Scene::new(&format!(
        "nameserver {STUB}\noptions timeout:2 attempts:2\n"
    ))?;
    let world = &scene.world;
    let file = scene.file("10.77.0.253, 10.77.0.254", "")?;
    let up = world.taupe(&["up", &file])?;
    ensure!(up.status == Some(0), "up: {}", up.stderr);
    let first = scene.mole.resolves(world, "mole-first.example")?;
    ensure!(first == [INSIDE], "{first:?}");
    let began = Instant::now();
    for number in 0..5 {
        let name = format!("mole-{number}.example");
        ensure!(scene.mole.resolves(world, &name)? == [INSIDE], "{name}");
    }
    ensure!(
        began.elapsed() < Duration::from_secs(6),
        "each waits for the first server"
    );
    scene.check_no_leak()?;
    world.down(&file)?;
    step("a name server that does not answer, and no other");
    let file = scene.file("10.77.0.253", "")?;
    world.up(&file)?;
    let state = || world.taupe(&["status", "--json", "home"]);
    let code = "\"name-servers-silent\"";
    let before = state()?;
    ensure!(
        before.status == Some(0) && !before.stdout.contains(code),
        "nobody has asked: {before:?}"
    );
    let none = scene.mole.resolves(world, "mole-alone.example")?;
    ensure!(none.is_empty(), "{none:?}");
    let after = state()?;
    ensure!(
        after.status == Some(2) && after.stdout.contains(code),
        "status: {after:?}"
    );
    let status = world.taupe(&["status", "home"])?.stdout;
    ensure!(
        status.starts_with("home: degraded") && status.contains("10.77.0.253 in DNS has not"),
        "{status}"
    );
    world.down(&file)
}

/// Messages of `up` about name servers.
pub(crate) fn no_usable_name_server() -> Result<()> {
    let scene = Scene::new(&format!("nameserver {STUB}\n"))?;
    let world = &scene.world;
    let output = |file: &str, part: &str| -> Result<()> {
        let up = world.taupe(&["up", file])?;
        ensure!(
            up.status == Some(0) && up.stderr.contains(part),
            "{}",
            up.stderr
        );
        Ok(())
    };
    let file = scene.file("", "")?;
    output(&file, "there is no DNS")?;
    ensure!(
        scene.mole.resolves(world, "without.example")? == [OUTSIDE],
        "no answer"
    );
    world.down(&file)?;
    let file = scene.file(SERVER[1], "")?;
    output(&file, "no server in DNS has an IPv4 address")?;
    ensure!(
        scene
            .mole
            .resolves(world, "mole-family.example")?
            .is_empty(),
        "resolved"
    );
    ensure!(
        scene.bird.resolves(world, "bird-family.example")? == [OUTSIDE],
        "the other"
    );
    let status = world.taupe(&["status", "home"])?.stdout;
    ensure!(
        status.contains("no server in DNS has an address of their family"),
        "{status}"
    );
    let output = scene.mole.query(world, "udp", "::1", "mole-v6.example")?;
    ensure!(output == "::1 10.9.9.9 1", "{output}");
    scene.check_no_leak()?;
    world.down(&file)
}

/// Services that the C library asks through their sockets.
pub(crate) fn local_name_services() -> Result<()> {
    let scene = Scene::new(&format!("nameserver {STUB}\n"))?;
    let world = &scene.world;
    let switch = scratch_file(
        "nsswitch.conf",
        "hosts: files resolve [!UNAVAIL=return] dns\n",
    )?;
    mount_bind(&*switch, "/etc/nsswitch.conf").map_err(Error::io("/etc/nsswitch.conf"))?;
    let resolved = Names::default();
    serve_varlink(&resolved)?;
    let (nscd, bus) = (Names::default(), Names::default());
    // A service that closes the connection at once has not answered.
    accept("/var/run/nscd/socket", &nscd)?;
    accept("/run/dbus/system_bus_socket", &bus)?;
    let file = scene.file(&SERVER.join(", "), "")?;
    let up = world.taupe(&["up", &file])?;
    ensure!(up.status == Some(0), "up: {}", up.stderr);
    // The programs that can block them need Linux 6.7.
    if is_before(6, 7)? {
        ensure!(up.stderr.contains("Linux 6.7"), "up: {}", up.stderr);
        return world.down(&file);
    }
    ensure!(
        scene.bird.resolves(world, "bird-1.example")? == [OUTSIDE],
        "the other"
    );
    ensure!(resolved.has("bird-1.example"), "{:?}", resolved.names());
    ensure!(nscd.count() > 0, "nscd is not asked");
    let (by_varlink, by_nscd) = (resolved.count(), nscd.count());
    let name = "mole-1.example";
    ensure!(
        scene.mole.resolves(world, name)? == [INSIDE],
        "not by the tunnel's server"
    );
    ensure!(scene.inside.has(name), "{:?}", scene.inside.names());
    ensure!(
        (resolved.count(), nscd.count()) == (by_varlink, by_nscd),
        "{:?} {:?}",
        resolved.names(),
        nscd.names()
    );
    step("the system bus");
    let socket = "/run/dbus/system_bus_socket";
    ensure!(!scene.mole.reaches(world, socket)?, "the bus is open");
    ensure!(
        scene.bird.reaches(world, socket)?,
        "the bus is closed to others"
    );
    let open = scene.file(&SERVER.join(", "), "SystemBus = allow")?;
    let reload = world.taupe(&["reload", &open])?;
    ensure!(reload.status == Some(0), "reload: {}", reload.stderr);
    ensure!(scene.mole.reaches(world, socket)?, "the bus is closed");
    ensure!(
        scene.mole.resolves(world, "mole-2.example")? == [INSIDE],
        "resolved"
    );
    ensure!(resolved.count() == by_varlink, "{:?}", resolved.names());
    scene.check_no_leak()?;
    step("killed, and down");
    world.kill_device()?;
    ensure!(
        scene.mole.resolves(world, "mole-3.example")?.is_empty(),
        "an answer"
    );
    ensure!(resolved.count() == by_varlink, "{:?}", resolved.names());
    world.down(&open)?;
    ensure!(
        scene.mole.resolves(world, "down.example")? == [OUTSIDE],
        "still refused"
    );
    ensure!(resolved.has("down.example"), "{:?}", resolved.names());
    Ok(())
}

/// Guests' questions to outside servers are asked in the tunnel.
pub(crate) fn of_guests() -> Result<()> {
    let scene = Scene::new(&format!("nameserver {STUB}\n"))?;
    let world = &scene.world;
    let guest = guest(world)?;
    let file = scene.file(&SERVER.join(", "), "Forwarded = tunnel")?;
    world.up(&file)?;
    for (how, name) in [
        ("udp", "mole-guest.example"),
        ("tcp", "mole-guest-tcp.example"),
    ] {
        for server in [ROUTER, PUBLIC] {
            let output = scene.bird.query_from(&guest, how, server, name)?;
            ensure!(
                output == format!("{server} 10.9.9.9 1"),
                "{how} {server}: {output}"
            );
        }
    }
    scene.check_no_leak()?;
    world.down(&file)
}

struct Scene {
    world: World,
    mole: Client,
    bird: Client,
    /// Questions to the tunnel's server.
    inside: Names,
    outside: Vec<(&'static str, Names)>,
    wire: std::cell::RefCell<Option<Capture>>,
}

impl Scene {
    fn new(resolv_conf: &str) -> Result<Self> {
        let world = World::new()?;
        let file = scratch_file("resolv.conf", resolv_conf)?;
        mount_bind(&*file, "/etc/resolv.conf").map_err(Error::io("/etc/resolv.conf"))?;
        let inside = Names::default();
        for address in SERVER {
            serve(&world.far, address, INSIDE, &inside)?;
        }
        let mut outside = Vec::new();
        for address in ALIASES {
            add_address(&world.near, "lo", address)?;
        }
        let here = [STUB, "127.0.0.1", "192.168.1.1", "::1"];
        for address in here.into_iter().chain(ALIASES) {
            let names = Names::default();
            serve(&world.near, address, OUTSIDE, &names)?;
            outside.push((address, names));
        }
        for address in [ROUTER, PUBLIC] {
            let names = Names::default();
            serve(&world.far, address, OUTSIDE, &names)?;
            outside.push((address, names));
        }
        let wire = Capture::start(&world.far, "eth0", DNS_FILTER)?;
        Ok(Self {
            world,
            mole: Client::new("mole")?,
            bird: Client::new("bird")?,
            inside,
            outside,
            wire: Some(wire).into(),
        })
    }

    /// Returns a file with these name servers.
    fn file(&self, servers: &str, more: &str) -> Result<String> {
        let [v4, v6] = self.world.tunnel();
        let dns = match servers {
            "" => String::new(),
            servers => format!("DNS = {servers}\n"),
        };
        let endpoint = SocketAddr::new(self.world.neighbour(), crate::world::ENDPOINT_PORT);
        self.world.file_with_sections(
            &format!("Address = {v4}/32, {v6}/128\n{dns}"),
            &format!(
                "Endpoint = {endpoint}\nAllowedIPs = 0.0.0.0/0, ::/0\nAllowedApps = mole, mole-asks\n{more}"
            ),
        )
    }

    /// Asks from a selected application and from another one, by `getaddrinfo(3)`.
    fn query_by_library(&self) -> Result<()> {
        for (client, name, address, queries) in [
            (&self.mole, "www.mole.example", INSIDE, true),
            (&self.bird, "www.bird.example", OUTSIDE, false),
        ] {
            let found = client.resolves(&self.world, name)?;
            ensure!(found == [address], "{name}: {found:?}");
            ensure!(
                self.inside.has(name) == queries,
                "{:?}",
                self.inside.names()
            );
        }
        Ok(())
    }

    /// Checks that no other server has been asked, and that the wire has no packet of the selected
    /// application. Returns the number of the other application's packets since the last call.
    fn check_no_leak(&self) -> Result<usize> {
        for (address, names) in &self.outside {
            let names = names.names();
            let leaked = names.iter().find(|name| name.contains(TUNNELLED_WORD));
            ensure!(leaked.is_none(), "{address} is asked for {leaked:?}");
        }
        let has = |packet: &Packet, word: &str| {
            let mut parts = packet.ip.windows(word.len());
            parts.any(|part| part == word.as_bytes())
        };
        // Sent after all others.
        self.bird
            .send(&self.world, &format!("{PUBLIC}:53"), LAST_WORD)?;
        let again = Capture::start(&self.world.far, "eth0", DNS_FILTER)?;
        let wire = self.wire.replace(Some(again));
        let wire = wire.ok_or_else(|| Error::unmet("there was no capture"))?;
        let is_complete = |seen: &[Packet]| seen.iter().any(|packet| has(packet, LAST_WORD));
        let packets = wire.stop_once("the last question", is_complete)?;
        if let Some(packet) = packets.iter().find(|packet| has(packet, TUNNELLED_WORD)) {
            return Err(Error::unmet(format!("in clear: {:02x?}", packet.ip)));
        }
        Ok(packets
            .iter()
            .filter(|packet| has(packet, DIRECT_WORD))
            .count())
    }
}

/// Returns true if the kernel is older.
fn is_before(major: u32, minor: u32) -> Result<bool> {
    let release = "/proc/sys/kernel/osrelease";
    let text = std::fs::read_to_string(release).map_err(Error::io(release))?;
    let mut numbers = text.split(['.', '-']).map_while(|part| part.parse().ok());
    let (first, second) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Ok((first, second) < (major, minor))
}
