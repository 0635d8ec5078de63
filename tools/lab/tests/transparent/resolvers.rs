//! Name servers that get selected applications' questions, and those that must not.
//!
//! Every resolver records the names it is asked for, and answers with an address of its own, which
//! identifies it.

pub(crate) mod several;
pub(crate) mod told;

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::exit;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::mount_bind;
use taupe_lab::capture::{Capture, Packet};
use taupe_lab::host::{Host, add_address};
use taupe_lab::packages::NSS_RESOLVE;
use taupe_lab::process::Attempt;
use taupe_lab::sandbox::{scratch_file, step};
use taupe_lab::{Error, Result, ensure};

use crate::forwarding::guest;
use crate::world::{Application, SERVER, World};

/// First argument of this program as a client.
pub(crate) const WORD: &str = "--ask";

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
const SECRET: &str = "mole";

/// Part of the names that another application looks up.
const OPEN: &str = "bird";

/// The last name looked up.
const LAST: &str = "goodbye";

/// Filter for name server traffic.
const WIRE: &str = "port 53 or port 5353 or port 5355";

/// Through the C library, with a resolver on this machine.
pub(crate) fn on_this_machine() -> Result<()> {
    let scene = Scene::new(&format!("nameserver {STUB}\nsearch corp.example\n"))?;
    let world = &scene.world;
    let file = scene.file(&SERVER.join(", "), "")?;
    world.up(&file)?;
    scene.library_asks()?;
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
            let said = scene.mole.asks(world, how, server, name)?;
            let wanted = match how {
                "edns" => format!("{server} 10.9.9.9 100"),
                _ => format!("{server} 10.9.9.9 1"),
            };
            ensure!(said == wanted, "{how} {server}: {said}");
        }
    }
    scene.nobody_else()?;
    step("killed");
    world.kill_device()?;
    let began = Instant::now();
    ensure!(
        scene.mole.resolves(world, "mole-down.example")?.is_empty(),
        "resolved"
    );
    ensure!(
        began.elapsed() < Duration::from_secs(6),
        "it was not told at once"
    );
    ensure!(
        scene.bird.resolves(world, "bird-down.example")? == [OUTSIDE],
        "the other"
    );
    scene.nobody_else()?;
    step("up again, and down");
    world.up(&file)?;
    scene.library_asks()?;
    scene.nobody_else()?;
    world.down(&file)?;
    ensure!(
        scene.mole.resolves(world, "down.example")? == [OUTSIDE],
        "still held back"
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
    scene.library_asks()?;
    let said = scene
        .mole
        .asks(&scene.world, "udp", STUB, "mole-stub.example")?;
    ensure!(said == format!("{STUB} 10.9.9.9 1"), "{said}");
    let said = scene
        .mole
        .asks(&scene.world, "tcp", ROUTER, "mole-router.example")?;
    ensure!(said == format!("{ROUTER} 10.9.9.9 1"), "{said}");
    step("groups of the link");
    for group in [
        "224.0.0.251:5353",
        "224.0.0.252:5355",
        "[ff02::fb%eth0]:5353",
        "[ff02::1:3%eth0]:5355",
    ] {
        for (application, name) in [(&scene.mole, "mole.local"), (&scene.bird, "bird.local")] {
            application.says(&scene.world, group, name)?;
        }
    }
    // The other application's question to the router and its answer, and one question to each
    // group.
    let open = scene.nobody_else()?;
    ensure!(open >= 6, "only {open} packets of the other");
    scene.world.down(&file)
}

/// The first server is silent: this delays one question, and no others.
pub(crate) fn a_server_that_is_silent() -> Result<()> {
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
    scene.nobody_else()?;
    world.down(&file)?;
    step("alone");
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
pub(crate) fn servers_that_are_missing() -> Result<()> {
    let scene = Scene::new(&format!("nameserver {STUB}\n"))?;
    let world = &scene.world;
    let said = |file: &str, part: &str| -> Result<()> {
        let up = world.taupe(&["up", file])?;
        ensure!(
            up.status == Some(0) && up.stderr.contains(part),
            "{}",
            up.stderr
        );
        Ok(())
    };
    let file = scene.file("", "")?;
    said(&file, "there is no DNS")?;
    ensure!(
        scene.mole.resolves(world, "without.example")? == [OUTSIDE],
        "no answer"
    );
    world.down(&file)?;
    let file = scene.file(SERVER[1], "")?;
    said(&file, "no server in DNS has an IPv4 address")?;
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
    let said = scene.mole.asks(world, "udp", "::1", "mole-v6.example")?;
    ensure!(said == "::1 10.9.9.9 1", "{said}");
    scene.nobody_else()?;
    world.down(&file)
}

/// Services that the C library asks through their sockets.
pub(crate) fn services_of_this_machine() -> Result<()> {
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
    scene.nobody_else()?;
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
            let said = scene.bird.asks_from(&guest, how, server, name)?;
            ensure!(
                said == format!("{server} 10.9.9.9 1"),
                "{how} {server}: {said}"
            );
        }
    }
    scene.nobody_else()?;
    world.down(&file)
}

struct Scene {
    world: World,
    mole: Asker,
    bird: Asker,
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
        let wire = Capture::start(&world.far, "eth0", WIRE)?;
        Ok(Self {
            world,
            mole: Asker::new("mole")?,
            bird: Asker::new("bird")?,
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
        self.world.whole_file(
            &format!("Address = {v4}/32, {v6}/128\n{dns}"),
            &format!(
                "Endpoint = {endpoint}\nAllowedIPs = 0.0.0.0/0, ::/0\nAllowedApps = mole, mole-asks\n{more}"
            ),
        )
    }

    /// Asks from a selected application and from another one, by `getaddrinfo(3)`.
    fn library_asks(&self) -> Result<()> {
        for (asker, name, address, asked) in [
            (&self.mole, "www.mole.example", INSIDE, true),
            (&self.bird, "www.bird.example", OUTSIDE, false),
        ] {
            let found = asker.resolves(&self.world, name)?;
            ensure!(found == [address], "{name}: {found:?}");
            ensure!(self.inside.has(name) == asked, "{:?}", self.inside.names());
        }
        Ok(())
    }

    /// Checks that no other server has been asked, and that the wire has no packet of the selected
    /// application. Returns the number of the other application's packets since the last call.
    fn nobody_else(&self) -> Result<usize> {
        for (address, names) in &self.outside {
            let names = names.names();
            let leaked = names.iter().find(|name| name.contains(SECRET));
            ensure!(leaked.is_none(), "{address} is asked for {leaked:?}");
        }
        let has = |packet: &Packet, word: &str| {
            let mut parts = packet.ip.windows(word.len());
            parts.any(|part| part == word.as_bytes())
        };
        // Sent after all others.
        self.bird.says(&self.world, &format!("{PUBLIC}:53"), LAST)?;
        let again = Capture::start(&self.world.far, "eth0", WIRE)?;
        let wire = self.wire.replace(Some(again));
        let wire = wire.ok_or_else(|| Error::unmet("there was no capture"))?;
        let is_whole = |seen: &[Packet]| seen.iter().any(|packet| has(packet, LAST));
        let packets = wire.stop_once("the last question", is_whole)?;
        if let Some(packet) = packets.iter().find(|packet| has(packet, SECRET)) {
            return Err(Error::unmet(format!("in clear: {:02x?}", packet.ip)));
        }
        Ok(packets.iter().filter(|packet| has(packet, OPEN)).count())
    }
}

/// Programs of one name: one that asks the C library, and this one.
struct Asker {
    library: Application,
    own: Application,
}

impl Asker {
    fn new(name: &str) -> Result<Self> {
        let own = std::env::current_exe().map_err(Error::io("own executable"))?;
        Ok(Self {
            library: Application::copy_of(Path::new("/usr/bin/getent"), name)?,
            own: Application::copy_of(&own, &format!("{name}-asks"))?,
        })
    }

    /// Returns the IPv4 addresses of a name, by `getaddrinfo(3)`.
    fn resolves(&self, world: &World, name: &str) -> Result<Vec<Ipv4Addr>> {
        let folder = NSS_RESOLVE.folder()?.join("usr/lib/x86_64-linux-gnu");
        let folder = format!("LD_LIBRARY_PATH={}", folder.display());
        let command = [
            "timeout",
            "30",
            "env",
            &folder,
            &self.library.0,
            "ahostsv4",
            name,
        ];
        let Attempt { stdout, .. } = world.near.attempt(&command)?;
        let mut found: Vec<Ipv4Addr> = stdout
            .lines()
            .filter_map(|line| line.split(' ').next()?.parse().ok())
            .collect();
        found.dedup();
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Returns the source, content and number of answers to a question.
    fn asks(&self, world: &World, how: &str, server: &str, name: &str) -> Result<String> {
        self.asks_from(&world.near, how, server, name)
    }

    fn asks_from(&self, host: &Host, how: &str, server: &str, name: &str) -> Result<String> {
        let command = [&*self.own.0, WORD, how, server, name];
        Ok(host.run(&command)?.text().to_owned())
    }

    /// Sends a question without waiting.
    fn says(&self, world: &World, group: &str, name: &str) -> Result<()> {
        let command = [&*self.own.0, WORD, "say", group, name];
        world.near.run(&command).map(drop)
    }

    /// Returns true if it can connect to a service's socket.
    fn reaches(&self, world: &World, socket: &str) -> Result<bool> {
        let command = [&*self.own.0, WORD, "unix", socket, ""];
        Ok(world.near.run(&command)?.text() == "connected")
    }
}

/// Runs this program as an application.
pub(crate) fn main(words: &[&str]) -> ! {
    let said = match words {
        ["unix", path, _] => Ok(match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => "connected".to_owned(),
            Err(error) => error.to_string(),
        }),
        ["say", group, name] => say(group, name).map(|()| String::new()),
        [how, server, name] => ask(how, server, name),
        _ => Err(std::io::Error::other(format!("{words:?}"))),
    };
    println!("{}", said.unwrap_or_else(|error| error.to_string()));
    exit(0)
}

/// Sends a question. A rejection would be immediate; a drop is not visible here.
fn say(group: &str, name: &str) -> std::io::Result<()> {
    use std::net::{SocketAddrV6, ToSocketAddrs as _};
    let (address, port) = group
        .rsplit_once(':')
        .ok_or(std::io::ErrorKind::InvalidInput)?;
    let port = port.parse().map_err(std::io::Error::other)?;
    let query = question(name, false);
    let to = match address.trim_matches(['[', ']']).split_once('%') {
        Some((address, link)) => {
            let index =
                taupe_os_linux::interface::index(link).ok_or(std::io::ErrorKind::NotFound)?;
            let address = address.parse().map_err(std::io::Error::other)?;
            SocketAddr::V6(SocketAddrV6::new(address, port, 0, index))
        }
        None => group
            .to_socket_addrs()?
            .next()
            .ok_or(std::io::ErrorKind::NotFound)?,
    };
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let _ = UdpSocket::bind(any)?.send_to(&query, to);
    Ok(())
}

/// Returns the source, the first address and the number of answers.
fn ask(how: &str, server: &str, name: &str) -> std::io::Result<String> {
    let ip: IpAddr = server.parse().map_err(std::io::Error::other)?;
    let to = SocketAddr::new(ip, 53);
    let query = question(name, how == "edns");
    let patience = Some(Duration::from_secs(20));
    let mut answer = vec![0; 65_535];
    let (length, from) = if how == "tcp" {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(20))?;
        stream.set_read_timeout(patience)?;
        stream.write_all(&(query.len() as u16).to_be_bytes())?;
        stream.write_all(&query)?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let length = usize::from(u16::from_be_bytes(length));
        stream.read_exact(&mut answer[..length])?;
        (length, stream.peer_addr()?)
    } else {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        socket.set_read_timeout(patience)?;
        // Asks two servers at once, as some clients do: the other server's answer is ignored.
        let other = SocketAddr::new(
            if to.is_ipv4() {
                [127, 0, 0, 77].into()
            } else {
                ip
            },
            53,
        );
        socket.send_to(&query, to)?;
        if other != to {
            socket.send_to(&query, other)?;
        }
        loop {
            let (length, from) = socket.recv_from(&mut answer)?;
            if from == to {
                break (length, from);
            }
            if from != other {
                return Ok(format!("{from} has answered"));
            }
        }
    };
    let answer = &answer[..length];
    let count = u16::from_be_bytes([answer[6], answer[7]]);
    let first = answer.len() - if how == "edns" { 11 } else { 0 };
    let address: [u8; 4] = answer[first - 4..first].try_into().unwrap_or_default();
    Ok(format!("{} {} {count}", from.ip(), Ipv4Addr::from(address)))
}

/// Returns a question for an IPv4 address (RFC 1035), with space for a long answer (RFC 6891).
fn question(name: &str, is_long: bool) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(is_long)];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    if is_long {
        query.extend([0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    }
    query
}

/// Names that a server was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Arc<Mutex<Vec<String>>>);

impl Names {
    fn note(&self, name: String) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.push(name);
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.clone()
    }

    fn has(&self, name: &str) -> bool {
        self.names().iter().any(|other| other == name)
    }

    fn count(&self) -> usize {
        self.names().len()
    }
}

/// Runs a resolver until the sandbox ends.
pub(crate) fn serve(host: &Host, address: &str, answer: Ipv4Addr, names: &Names) -> Result<()> {
    let at = SocketAddr::new(address.parse().map_err(|_| Error::unmet(address))?, 53);
    let (socket, listener) = host.enter(|| {
        let socket = UdpSocket::bind(at).map_err(Error::io(at.to_string()))?;
        let listener = TcpListener::bind(at).map_err(Error::io(at.to_string()))?;
        Ok((socket, listener))
    })?;
    let by_udp = names.clone();
    thread::spawn(move || {
        let mut query = [0; 2048];
        loop {
            // The error may belong to an earlier answer, whose client is gone.
            let Ok((length, from)) = socket.recv_from(&mut query) else {
                continue;
            };
            if let Some(answer) = answer_to(&query[..length], answer, &by_udp, true) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    let by_tcp = names.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), names) = (stream, by_tcp.clone()) else {
                continue;
            };
            thread::spawn(move || -> std::io::Result<()> {
                loop {
                    let mut length = [0; 2];
                    stream.read_exact(&mut length)?;
                    let mut query = vec![0; u16::from_be_bytes(length).into()];
                    stream.read_exact(&mut query)?;
                    let answer = answer_to(&query, answer, &names, false).unwrap_or_default();
                    stream.write_all(&(answer.len() as u16).to_be_bytes())?;
                    stream.write_all(&answer)?;
                }
            });
        }
    });
    Ok(())
}

/// Returns one address for every name, and a hundred for names that begin with `large`; by UDP only
/// if they fit.
fn answer_to(query: &[u8], address: Ipv4Addr, names: &Names, by_udp: bool) -> Option<Vec<u8>> {
    let name_end = 12 + query.get(12..)?.iter().position(|byte| *byte == 0)? + 1;
    let question = query.get(12..name_end + 4)?;
    let mut labels = Vec::new();
    let mut rest = query.get(12..name_end - 1)?;
    while let Some((length, more)) = rest.split_first() {
        let (label, more) = more.split_at_checked((*length).into())?;
        labels.push(String::from_utf8_lossy(label).into_owned());
        rest = more;
    }
    let name = labels.join(".");
    names.note(name.clone());
    let is_long = query.get(11) == Some(&1);
    let count: u8 = match (question.ends_with(&[0, 1, 0, 1]), name.starts_with("large")) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 100,
    };
    let is_cut = by_udp && count > 1 && !is_long;
    let count = if is_cut { 0 } else { count };
    let mut answer = query.get(..2)?.to_vec();
    answer.extend([0x81 | u8::from(is_cut) << 1, 0x80, 0, 1, 0, count, 0, 0]);
    answer.extend([0, u8::from(is_long)]);
    answer.extend(question);
    let [first, second, third, last] = address.octets();
    for number in 0..count {
        // The name of the question, class Internet, for a second. The last one is the address.
        let last = last.wrapping_add(count - 1 - number);
        answer.extend([
            0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, first, second, third, last,
        ]);
    }
    if is_long {
        answer.extend([0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    }
    Some(answer)
}

/// Serves systemd-resolved's socket for nss-resolve: Varlink.
fn serve_varlink(names: &Names) -> Result<()> {
    let listener = listener("/run/systemd/resolve/io.systemd.Resolve")?;
    let names = names.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), names) = (stream, names.clone()) else {
                continue;
            };
            thread::spawn(move || -> std::io::Result<()> {
                let mut said = Vec::new();
                let mut byte = [0];
                while stream.read(&mut byte)? == 1 {
                    if byte != [0] {
                        said.extend(byte);
                        continue;
                    }
                    let text = String::from_utf8_lossy(&said).into_owned();
                    let name = text.split("\"name\":\"").nth(1);
                    let name = name
                        .and_then(|rest| rest.split('"').next())
                        .unwrap_or(&text);
                    names.note(name.to_owned());
                    let address = OUTSIDE.octets().map(|byte| byte.to_string()).join(",");
                    write!(
                        stream,
                        "{{\"parameters\":{{\"addresses\":[{{\"family\":2,\"address\":[{address}]}}],\
                         \"name\":\"{name}\",\"flags\":1}}}}\0"
                    )?;
                    said.clear();
                }
                Ok(())
            });
        }
    });
    Ok(())
}

/// Runs a service that records its clients, and sends nothing.
fn accept(path: &'static str, names: &Names) -> Result<()> {
    let listener = listener(path)?;
    let names = names.clone();
    thread::spawn(move || {
        for _ in listener.incoming() {
            names.note(path.to_owned());
        }
    });
    Ok(())
}

fn listener(path: &str) -> Result<UnixListener> {
    let folder = Path::new(path).parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).map_err(Error::io(path))?;
    UnixListener::bind(path).map_err(Error::io(path))
}

/// Returns true if the kernel is older.
fn is_before(major: u32, minor: u32) -> Result<bool> {
    let release = "/proc/sys/kernel/osrelease";
    let text = std::fs::read_to_string(release).map_err(Error::io(release))?;
    let mut numbers = text.split(['.', '-']).map_while(|part| part.parse().ok());
    let (first, second) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Ok((first, second) < (major, minor))
}
