//! A tunnel through another tunnel: both in one process (`--via`), and through an interface of
//! another implementation.

pub(crate) mod names;
pub(crate) mod silence;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::Duration;

use rustix::process::{Signal, kill_process};
use taupe_lab::capture::Capture;
use taupe_lab::host::{Host, add_address, link};
use taupe_lab::peers::{Implementation, Keys, PeerSettings, Settings, Tunnel};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch_file, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{Application, ENDPOINT_PORT, PORT, TUNNEL, UPLINK, World, serve, succeeded};

/// The inner tunnel; the outer one is the first machine's.
const INNER: &str = "inner";

/// The first machine's addresses in the inner tunnel.
const WITHIN: [&str; 2] = ["10.88.0.1", "fd88::1"];

/// The inner server's endpoint, beyond the outer tunnel.
const ENDPOINT: &str = "203.0.113.2:51822";

/// Addresses of a web server behind the inner tunnel.
const WEB: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0xaaaa, 0, 0, 0, 0, 1)),
];

/// Port of a server that receives and sends large amounts.
const BULK_PORT: u16 = 9000;

/// Bytes sent in each direction, by IPv4 and by IPv6.
const BULK: [u32; 2] = [100_000_000, 10_000_000];

/// A cable's MTU minus 80 bytes, twice.
const INNER_MTU: &str = "mtu 1340 ";

/// Fragments of IPv4 and of IPv6, in the language of `pcap-filter(7)`.
const FRAGMENTS: &str = "(ip[6:2] & 0x3fff != 0) or (ip6[6] == 44)";

/// A world with a second WireGuard server, on a machine behind the first.
struct Nested {
    world: World,
    deep: Host,
    _server: Tunnel,
    keys: Keys,
    server_key: String,
}

impl Nested {
    fn new() -> Result<Self> {
        let world = World::new()?;
        let deep = Host::new("deep")?;
        deep.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
        link(
            world
                .far
                .port("eth9", &["203.0.113.1/24", "2001:db8:f::1/64"]),
            deep.port("eth0", &["203.0.113.2/24", "2001:db8:f::2/64"]),
            1500,
        )?;
        world.far.sysctl("net/ipv4/ip_forward", "1")?;
        world.far.sysctl("net/ipv6/conf/all/forwarding", "1")?;
        deep.ip(&["route", "add", "default", "via", "203.0.113.1"])?;
        deep.ip(&["-6", "route", "add", "default", "via", "2001:db8:f::1"])?;
        for (address, bulk) in WEB.into_iter().zip(BULK) {
            add_address(&deep, "lo", &address.to_string())?;
            let network = match address {
                IpAddr::V4(_) => {
                    [&*format!("{address}/32"), "via", "203.0.113.2"].map(str::to_owned)
                }
                IpAddr::V6(_) => {
                    [&*format!("{address}/128"), "via", "2001:db8:f::2"].map(str::to_owned)
                }
            };
            let network = network.each_ref().map(String::as_str);
            world.far.ip(&[&["route", "add"], &network[..]].concat())?;
            serve(&deep, SocketAddr::new(address, PORT))?;
            serve_bulk(&deep, SocketAddr::new(address, BULK_PORT), bulk)?;
        }
        let (keys, servers) = (Keys::new(&world.near)?, Keys::new(&deep)?);
        let server = Implementation::Taupe.start(&deep, "wgdeep")?;
        server.configure(&Settings {
            private_key: &servers.private,
            listen_port: Some(51822),
            addresses: &["10.88.0.254/24", "fd88::fe/64"],
            peers: &[PeerSettings {
                public_key: &keys.public,
                preshared_key: None,
                endpoint: None,
                allowed_ips: &format!("{}/32, {}/128", WITHIN[0], WITHIN[1]),
            }],
        })?;
        Ok(Self {
            world,
            deep,
            _server: server,
            keys,
            server_key: servers.public,
        })
    }

    /// Returns the outer file, with these lines in its `[Interface]`.
    fn outer(&self, lines: &str) -> Result<String> {
        let endpoint = SocketAddr::new(self.world.neighbour(), ENDPOINT_PORT);
        let [v4, v6] = TUNNEL;
        self.world.file_with_sections(
            &format!("Address = {v4}/32, {v6}/128\n{lines}"),
            &format!("Endpoint = {endpoint}\nAllowedIPs = 0.0.0.0/0, ::/0"),
        )
    }

    /// Returns the inner file, with these lines in its `[Interface]`.
    fn inner(&self, lines: &str) -> Result<String> {
        self.inner_at(lines, ENDPOINT)
    }

    fn inner_at(&self, lines: &str, endpoint: &str) -> Result<String> {
        let [v4, v6] = WITHIN;
        let (private, public) = (&self.keys.private, &self.server_key);
        scratch_file(
            &format!("{INNER}.conf"),
            &format!(
                "[Interface]\nPrivateKey = {private}\nAddress = {v4}/32, {v6}/128\n{lines}\n\
                 [Peer]\nPublicKey = {public}\nEndpoint = {endpoint}\nAllowedIPs = 0.0.0.0/0, ::/0\n"
            ),
        )
    }

    /// Runs `up`; returns its messages.
    fn up(&self, arguments: &[&str]) -> Result<String> {
        let attempt = self.world.taupe(&[&["up"], arguments].concat())?;
        succeeded("up", &attempt)?;
        Ok(attempt.stdout + &attempt.stderr)
    }

    /// Checks the client addresses that the web server sees of an application.
    fn expect(&self, application: &Application, who: [Option<&str>; 2]) -> Result<()> {
        for (address, who) in WEB.into_iter().zip(who) {
            let found = self.world.asks(application, address)?;
            ensure!(
                found.as_deref() == who,
                "{} is {found:?} to {address}, not {who:?}",
                application.0
            );
        }
        Ok(())
    }

    fn expect_within(&self, application: &Application) -> Result<()> {
        self.expect(application, WITHIN.map(Some))
    }

    /// Kills the inner tunnel's process, and waits until its interface is gone.
    fn kill(&self) -> Result<()> {
        kill_process(self.world.server_of(INNER)?, Signal::KILL).map_err(Error::io("kill"))?;
        wait_until("end of the interface", Duration::from_secs(15), || {
            let show = ["ip", "link", "show", "dev", INNER];
            Ok(self.world.near.attempt(&show)?.status != Some(0))
        })
    }

    /// Sends much data in each direction. Neither the wire nor the outer tunnel has fragments, and
    /// all packets in the outer tunnel are for the inner server.
    fn carry(&self, application: &Application) -> Result<()> {
        let Application(path) = application;
        let wire = Capture::start(&self.world.far, "eth0", FRAGMENTS)?;
        let outer = Capture::start(&self.world.far, "wgfar", FRAGMENTS)?;
        let clear = Capture::start(&self.world.far, "eth0", &format!("port {BULK_PORT}"))?;
        let other = format!("host {} and not udp port 51822", TUNNEL[0]);
        let other = Capture::start(&self.world.far, "wgfar", &other)?;
        for (address, bulk) in WEB.into_iter().zip(BULK) {
            let carry = format!(
                "exec 3<>/dev/tcp/{address}/{BULK_PORT} && head -c {bulk} /dev/zero >&3 && \
                 head -c {bulk} <&3 | wc -c"
            );
            let carried = self
                .world
                .near
                .attempt(&["timeout", "240", path, "-c", &carry])?;
            ensure!(
                carried.stdout.trim() == bulk.to_string(),
                "to {address}: {}{}",
                carried.stdout,
                carried.stderr
            );
        }
        for (capture, what) in [
            (wire, "fragments on the wire"),
            (outer, "fragments in the outer tunnel"),
            (clear, "packets in clear"),
            (other, "other packets in the outer tunnel"),
        ] {
            let packets = capture.stop()?;
            ensure!(packets.is_empty(), "{} {what}", packets.len());
        }
        Ok(())
    }
}

/// The process has ended when `down` returns: the next `up` needs the same two names.
pub(crate) fn again_at_once() -> Result<()> {
    let nested = Nested::new()?;
    let (inner, outer) = (nested.inner("")?, nested.outer("")?);
    for number in 0..12 {
        step(&format!("{number}"));
        nested.up(&["--adapter", &inner, "--via", &outer])?;
        let process = nested.world.server_of(INNER)?;
        nested.world.down(&inner)?;
        let stat = format!("/proc/{}/stat", process.as_raw_nonzero());
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        // Its parent may not have waited for it yet.
        let has_ended = stat.is_empty() || stat.contains(") Z ");
        ensure!(has_ended, "it is there after `down`: {stat}");
    }
    Ok(())
}

/// Receives `bulk` bytes and sends as many back.
fn serve_bulk(host: &Host, at: SocketAddr, bulk: u32) -> Result<()> {
    let listener = host.enter(|| TcpListener::bind(at).map_err(Error::io(at.to_string())))?;
    // Until the sandbox ends.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let taken =
                    std::io::copy(&mut (&stream).take(u64::from(bulk)), &mut std::io::sink());
                if taken.is_ok_and(|taken| taken == u64::from(bulk)) {
                    let zeros = vec![0_u8; 1 << 20];
                    let mut left = bulk as usize;
                    while left > 0 {
                        let Ok(sent) = stream.write(zeros.get(..left).unwrap_or(&zeros)) else {
                            return;
                        };
                        left -= sent;
                    }
                    // Until the client closes.
                    let _ = stream.read(&mut [0]);
                }
            });
        }
    });
    Ok(())
}

/// A full tunnel on an adapter through another tunnel: packets of the outer one do not enter the
/// inner one, only the inner interface is visible, and a killed process fails closed.
pub(crate) fn in_adapter_mode() -> Result<()> {
    let nested = Nested::new()?;
    let world = &nested.world;
    let any = Application::new("mole")?;
    let (inner, outer) = (nested.inner("MTU = 1400")?, nested.outer("")?);
    let before = world.configuration()?;
    let output = nested.up(&[&inner, "--via", &outer])?;
    ensure!(
        output.contains("MTU 1340, since it goes through home (1420): MTU = 1400 of"),
        "{output}"
    );
    let links = world.near.run(&["ip", "-o", "link"])?.stdout;
    let come: Vec<_> = links
        .lines()
        .filter(|line| !before.1.iter().any(|old| old == line))
        .collect();
    ensure!(
        matches!(come.as_slice(), [line] if line.contains("inner:") && line.contains(INNER_MTU)),
        "{come:#?}"
    );
    nested.expect_within(&any)?;
    step("the outer tunnel's packets");
    // Without a mark the outer packets would enter the inner tunnel.
    let mark =
        |name| -> Result<String> { Ok(world.near.run(&["wg", "show", name, "fwmark"])?.stdout) };
    ensure!(mark(INNER)? != "off\n", "no mark");
    ensure!(
        mark("home")? == mark(INNER)?,
        "{} is the outer's",
        mark("home")?
    );
    step("100 MB");
    nested.carry(&any)?;
    step("up again");
    let again = world.taupe(&["up", &inner])?;
    ensure!(
        again.status == Some(1) && again.stderr.contains("through home;"),
        "{}",
        again.stderr
    );
    let taken = world.taupe(&["up", &outer])?;
    let words = "home is up already, because inner goes through it; `taupe down inner` ends both";
    ensure!(
        taken.status == Some(1) && taken.stderr.contains(words),
        "{}",
        taken.stderr
    );
    let status = world.taupe(&["status", INNER])?.stdout;
    ensure!(status.contains("\n  goes through home\n"), "{status}");
    step("reload");
    std::fs::write(
        &outer,
        std::fs::read_to_string(&outer).map_err(Error::io("outer"))? + "\n",
    )
    .map_err(Error::io("outer"))?;
    let reloaded = world.taupe(&["reload", &inner])?;
    succeeded("reload", &reloaded)?;
    ensure!(
        reloaded.stderr.contains("was edited"),
        "{}",
        reloaded.stderr
    );
    nested.expect_within(&any)?;
    step("killed, and the outer device's process does not end at once");
    let outer_process = world.server_of("home")?;
    let send = |signal| kill_process(outer_process, signal).map_err(Error::io("kill"));
    send(Signal::STOP)?;
    nested.kill()?;
    nested.expect(&any, [None, None])?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let mut up = world
        .near
        .spawn(&[&program, "up", &inner, "--via", &outer])?;
    wait_until("`up`, which waits", Duration::from_secs(15), || {
        Ok(!up.runs()? || up.watches_a_process())
    })?;
    send(Signal::CONT)?;
    let status = up.wait(Duration::from_secs(30))?;
    ensure!(status.success(), "{status}: {}", up.output());
    nested.expect_within(&any)?;
    world.down(&inner)?;
    world.is_as_before(&before, "after down")?;
    wait_until(
        "the end of the outer device",
        Duration::from_secs(15),
        || Ok(world.device().is_err()),
    )?;
    nested.expect(&any, UPLINK.map(Some))
}

/// Selected applications through two tunnels. The blocking after a kill, of selected or of all
/// applications, does not affect the packets of the next outer tunnel.
pub(crate) fn in_transparent_mode() -> Result<()> {
    let nested = Nested::new()?;
    let world = &nested.world;
    let (selected, other) = (Application::new("mole")?, Application::new("bird")?);
    let outer = nested.outer("PostUp = touch /run/nobody-runs-this\nDNS = 10.0.0.1")?;
    let inner = nested.inner("AllowedApps = mole")?;
    let before = world.configuration()?;
    let result = nested.up(&[&inner, "--via", &outer])?;
    ensure!(
        result.contains("MTU 1340, since it goes through home (1420)"),
        "{result}"
    );
    ensure!(result.contains("PostUp: no effect"), "{result}");
    ensure!(
        !std::path::Path::new("/run/nobody-runs-this").exists(),
        "PostUp was run"
    );
    nested.expect_within(&selected)?;
    nested.expect(&other, UPLINK.map(Some))?;
    let (all, mut links) = world.configuration()?;
    links.retain(|line| !line.contains("inner:"));
    ensure!(
        (all, links) == before,
        "more than the inner interface is seen: {:#?}",
        world.is_as_before(&before, "up")
    );
    step("100 MB");
    nested.carry(&selected)?;
    step("killed");
    nested.kill()?;
    nested.expect(&selected, [None, None])?;
    nested.expect(&other, UPLINK.map(Some))?;
    nested.up(&[&inner, "--via", &outer])?;
    nested.expect_within(&selected)?;
    world.down(&inner)?;
    nested.expect(&selected, UPLINK.map(Some))?;
    world.is_as_before(&before, "after down")?;

    step("everybody");
    let inner = nested.inner("AllowedApps = mole\nKillSwitch = all")?;
    nested.up(&[&inner, "--via", &outer])?;
    nested.expect_within(&selected)?;
    nested.expect(&other, UPLINK.map(Some))?;
    nested.kill()?;
    nested.expect(&selected, [None, None])?;
    nested.expect(&other, [None, None])?;
    // Neither the outer device's packets nor its process's questions are blocked.
    nested.up(&[&inner, "--via", &outer])?;
    nested.expect_within(&selected)?;
    world.down(&inner)?;

    step("in the foreground");
    let program = Implementation::Taupe.program()?.display().to_string();
    let command = [&*program, "up", "--foreground", &*inner, "--via", &*outer];
    let mut process = world.near.spawn(&command)?;
    wait_until("the tunnel", Duration::from_secs(20), || {
        ensure!(process.runs()?, "it ended: {}", process.output());
        Ok(world.asks(&selected, WEB[0])?.as_deref() == Some(WITHIN[0]))
    })?;
    // The outer device is unreachable now and ends, and the inner one with it.
    std::fs::remove_file("/var/run/wireguard/home.sock").map_err(Error::io("socket"))?;
    wait_until("the end", Duration::from_secs(20), || Ok(!process.runs()?))?;
    let output = process.output();
    ensure!(
        output.contains("home, which it goes through, has ended"),
        "{output}"
    );
    nested.expect(&selected, [None, None])?;
    world.taupe(&["down", &inner])?;
    world.is_as_before(&before, "after the foreground")
}

/// Each is rejected with one line that gives a remedy, and changes nothing.
pub(crate) fn refused() -> Result<()> {
    let nested = Nested::new()?;
    let world = &nested.world;
    let before = world.configuration()?;
    let inner = nested.inner("")?;
    // One file with changing contents.
    for (interface, peer, words) in [
        (
            "",
            "AllowedIPs = 0.0.0.0/0",
            "home.conf: there is no Address under [Interface]",
        ),
        (
            "Address = 10.77.0.1/32",
            "AllowedIPs = 10.0.0.0/8",
            "AllowedIPs of",
        ),
        (
            "Address = fd77::1/128",
            "AllowedIPs = ::/0, 0.0.0.0/0",
            "has no IPv4 address to send from",
        ),
        (
            "Address = 10.77.0.1/32\nMTU = 1300",
            "AllowedIPs = 0.0.0.0/0",
            "IPv6 needs 1280: write MTU = 1360 or more in",
        ),
        (
            "Address = 10.77.0.1/32\nMTU = many",
            "AllowedIPs = 0.0.0.0/0",
            "1 error",
        ),
    ] {
        let file = world.file_with_sections(interface, peer)?;
        let refused = world.taupe(&["up", &inner, "--via", &file])?;
        ensure!(
            refused.status == Some(1) && refused.stderr.contains(words),
            "{words}: {}",
            refused.stderr
        );
        world.is_as_before(&before, words)?;
    }
    let refused = world.taupe(&["up", &inner, "--via", &inner])?;
    ensure!(
        refused.stderr.contains("inner cannot go through itself"),
        "{}",
        refused.stderr
    );
    let outer = nested.outer("")?;
    world.up(&outer)?;
    let refused = world.taupe(&["up", &inner, "--via", &outer])?;
    ensure!(
        refused
            .stderr
            .contains("home is up already; run `taupe down home`"),
        "{}",
        refused.stderr
    );
    world.down(&outer)?;
    world.is_as_before(&before, "at the end")
}

/// The uplink is another implementation's tunnel.
pub(crate) fn by_wireguard_go() -> Result<()> {
    let nested = Nested::new()?;
    let world = &nested.world;
    let (selected, other) = (Application::new("mole")?, Application::new("bird")?);
    // With the first machine's keys.
    let file = nested.outer("")?;
    let stripped = world.taupe(&["strip", &file])?.stdout;
    let uplink = Implementation::WireguardGo.start(&world.near, "wggo")?;
    uplink.wg_with_input("setconf", &stripped)?;
    for address in TUNNEL {
        add_address(&world.near, "wggo", address)?;
    }
    world
        .near
        .ip(&["link", "set", "wggo", "mtu", "1420", "up"])?;
    world
        .near
        .ip(&["route", "replace", "default", "dev", "wggo"])?;
    world
        .near
        .ip(&["-6", "route", "replace", "default", "dev", "wggo"])?;
    nested.expect(&other, TUNNEL.map(Some))?;
    let before = world.configuration()?;
    let inner = nested.inner("AllowedApps = mole")?;
    world.up(&inner)?;
    let link = world
        .near
        .run(&["ip", "-o", "link", "show", "dev", INNER])?
        .stdout;
    ensure!(link.contains(INNER_MTU), "{link}");
    nested.expect_within(&selected)?;
    nested.expect(&other, TUNNEL.map(Some))?;
    step("100 MB");
    nested.carry(&selected)?;
    step("killed");
    nested.kill()?;
    nested.expect(&selected, [None, None])?;
    nested.expect(&other, TUNNEL.map(Some))?;
    world.up(&inner)?;
    nested.expect_within(&selected)?;
    world.down(&inner)?;
    world.is_as_before(&before, "after down")
}
