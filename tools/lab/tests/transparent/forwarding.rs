//! Traffic that the machine forwards: `Forwarded`.

use std::net::SocketAddr;
use std::time::Duration;

use taupe_lab::capture::Capture;
use taupe_lab::host::{Host, link};
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

use crate::world::{
    Application, BEYOND, ENDPOINT_PORT, SERVER, TUNNEL, UPLINK, World, expect, succeeded,
};

/// Guests of this machine, as in a container's network, use the tunnel's address, or are blocked.
pub(crate) fn forwarded_traffic() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let guest = guest(&world)?;
    let is = |who: [Option<&str>; 2]| {
        (0..2).try_for_each(|family| {
            let found = world.asks_from(&guest, &bird, BEYOND[family])?;
            ensure!(found.as_deref() == who[family], "the guest is {found:?}");
            expect(&world, &bird, family, Some(UPLINK[family]))
        })
    };
    let tunnel = world.file("AllowedApps = mole\nForwarded = tunnel")?;
    let before = world.configuration()?;
    world.up(&tunnel)?;
    is(TUNNEL.map(Some))?;
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    let explained = world.taupe(&["explain", "--conf", &tunnel, "--forwarded", "198.51.100.1"])?;
    succeeded("explain", &explained)?;
    ensure!(explained.stdout.contains("6  =>"), "{}", explained.stdout);
    step("the file has changed: guests bypass the tunnel");
    let direct = world.file("AllowedApps = mole")?;
    succeeded("reload", &world.taupe(&["reload", &direct])?)?;
    is(UPLINK.map(Some))?;
    let tunnel = world.file("AllowedApps = mole\nForwarded = tunnel")?;
    succeeded("reload", &world.taupe(&["reload", &tunnel])?)?;
    is(TUNNEL.map(Some))?;
    step("killed");
    let ping = || guest.attempt(&["ping", "-c", "1", "-W", "1", "198.51.100.1"]);
    ensure!(ping()?.status == Some(0), "no answer through the tunnel");
    let clear = Capture::start(&world.far, "eth0", "icmp")?;
    world.kill_device()?;
    ensure!(ping()?.status != Some(0), "an answer without a tunnel");
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.down(&tunnel)?;
    is(UPLINK.map(Some))?;
    world.is_as_before(&before, "something is left")
}

/// Guests' name server questions: their permitted and forbidden destinations.
pub(crate) fn forwarded_dns() -> Result<()> {
    let scene = Hotspot::new()?;
    let world = &scene.world;
    step("guests bypass the tunnel");
    let direct = scene.file("mole", "")?;
    world.up(&direct)?;
    for resolver in [ROUTER, PUBLIC] {
        scene.learns(resolver, Some(OUTSIDE))?;
    }
    step("through the tunnel, wherever the name server is");
    let file = scene.file("mole", "Forwarded = tunnel\nDisallowedIPs = 192.168.1.0/24")?;
    succeeded("reload", &world.taupe(&["reload", &file])?)?;
    let clear = scene.wire()?;
    for resolver in [ROUTER, PUBLIC] {
        scene.learns(resolver, Some(INSIDE))?;
    }
    step("killed");
    world.kill_device()?;
    for resolver in [ROUTER, PUBLIC] {
        scene.learns(resolver, None)?;
    }
    scene.is_clean(clear)?;
    step("locked");
    world.down(&file)?;
    succeeded("lock", &world.taupe(&["lock", &file])?)?;
    let clear = scene.wire()?;
    for resolver in [ROUTER, PUBLIC] {
        scene.learns(resolver, None)?;
    }
    scene.is_clean(clear)?;
    world.down(&file)?;
    scene.learns(PUBLIC, Some(OUTSIDE))
}

/// Guests ask this machine, as on a hotspot: its resolver, if it is selected, asks through the
/// tunnel, and answers them.
pub(crate) fn hotspot_with_a_resolver() -> Result<()> {
    let scene = Hotspot::new()?;
    let world = &scene.world;
    let upstream = format!("--server={ROUTER}");
    let ours = dnsmasq(&world.near, "10.9.0.1", &[&*upstream, "--cache-size=0"])?;
    let guests = "Forwarded = tunnel\nDisallowedIPs = 10.9.0.0/24, fd09::/64";
    step("the resolver is not selected");
    let file = scene.file("mole", guests)?;
    world.up(&file)?;
    scene.learns("10.9.0.1", Some(OUTSIDE))?;
    step("the resolver is selected");
    let selected = scene.file("dnsmasq", guests)?;
    succeeded("reload", &world.taupe(&["reload", &selected])?)?;
    let clear = scene.wire()?;
    scene.learns("10.9.0.1", Some(INSIDE))?;
    step("the resolver is selected, and its guests do not bypass the tunnel");
    let single = scene.file("dnsmasq", "Forwarded = tunnel")?;
    succeeded("reload", &world.taupe(&["reload", &single])?)?;
    scene.learns("10.9.0.1", None)?;
    step("the local network bypasses the tunnel");
    let local = scene.file("dnsmasq", "Forwarded = tunnel\nBypassLanTraffic = true")?;
    succeeded("reload", &world.taupe(&["reload", &local])?)?;
    scene.learns("10.9.0.1", Some(INSIDE))?;
    succeeded("reload", &world.taupe(&["reload", &selected])?)?;
    step("started while the tunnel is up");
    drop(ours);
    let _ours = dnsmasq(&world.near, "10.9.0.1", &[&*upstream, "--cache-size=0"])?;
    scene.learns("10.9.0.1", Some(INSIDE))?;
    step("killed");
    world.kill_device()?;
    scene.learns("10.9.0.1", None)?;
    scene.is_clean(clear)?;
    world.down(&selected)?;
    scene.learns("10.9.0.1", Some(OUTSIDE))
}

/// Resolvers that guests may ask outside the tunnel: the router, and one beyond.
const ROUTER: &str = "192.168.1.2";
const PUBLIC: &str = "198.51.100.1";

/// Answers of the resolvers outside, and of the tunnel's server.
const OUTSIDE: &str = "192.0.2.53";
const INSIDE: &str = "203.0.113.53";

/// A machine with a guest, and resolvers whose answers identify their place.
struct Hotspot {
    world: World,
    guest: Host,
    _resolvers: Vec<Process>,
}

impl Hotspot {
    fn new() -> Result<Self> {
        let world = World::new()?;
        let guest = guest(&world)?;
        let resolvers = [(SERVER[0], INSIDE), (ROUTER, OUTSIDE), (PUBLIC, OUTSIDE)];
        let resolvers = resolvers.map(|(at, answer)| {
            let answer = format!("--address=/#/{answer}");
            dnsmasq(&world.far, at, &[&answer])
        });
        Ok(Self {
            world,
            guest,
            _resolvers: resolvers.into_iter().collect::<Result<_>>()?,
        })
    }

    /// Writes a file with name servers that selects these applications.
    fn file(&self, applications: &str, more: &str) -> Result<String> {
        let [v4, v6] = self.world.tunnel();
        let endpoint = SocketAddr::new(self.world.neighbour(), ENDPOINT_PORT);
        self.world.file_with_sections(
            &format!("Address = {v4}/32, {v6}/128\nDNS = {}", SERVER[0]),
            &format!(
                "Endpoint = {endpoint}\nAllowedIPs = 0.0.0.0/0, ::/0\nAllowedApps = \
                 {applications}\n{more}"
            ),
        )
    }

    /// Returns a resolver's answer to the guest within some seconds; `None` without an answer.
    fn asks(&self, resolver: &str, patience: &str) -> Result<Option<String>> {
        let look_up = ["timeout", patience, "busybox", "nslookup", "-type=a"];
        let attempt = self
            .guest
            .attempt(&[&look_up[..], &["name.example", resolver]].concat())?;
        let answer = attempt.stdout.rsplit("Address: ").next();
        Ok(answer
            .filter(|_| attempt.status == Some(0))
            .map(|answer| answer.trim().to_owned()))
    }

    fn learns(&self, resolver: &str, what: Option<&str>) -> Result<()> {
        let patience = if what.is_some() { "20" } else { "2" };
        let found = self.asks(resolver, patience)?;
        ensure!(
            found.as_deref() == what,
            "the guest learns {found:?} from {resolver}, not {what:?}"
        );
        Ok(())
    }

    /// Captures unencrypted questions and answers.
    fn wire(&self) -> Result<Capture> {
        Capture::start(&self.world.far, "eth0", "port 53")
    }

    fn is_clean(&self, wire: Capture) -> Result<()> {
        let packets = wire.stop()?;
        ensure!(packets.is_empty(), "{} packets in clear", packets.len());
        Ok(())
    }
}

/// Runs a resolver at an address of a machine.
fn dnsmasq(host: &Host, address: &str, options: &[&str]) -> Result<Process> {
    let listen = format!("--listen-address={address}");
    let common = [
        "dnsmasq",
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--bind-interfaces",
        "--user=root",
        "--pid-file=",
        "--log-facility=-",
        "--log-queries",
        &listen,
    ];
    let mut process = host.spawn(&[&common, options].concat())?;
    let filter = format!("src {address}:53");
    wait_until("a resolver", Duration::from_secs(20), || {
        ensure!(process.runs()?, "it ended: {}", process.output());
        let listening = host.run(&["ss", "-H", "-l", "-n", "-u", &filter])?;
        Ok(!listening.text().is_empty())
    })?;
    Ok(process)
}

/// Creates a machine behind this one, which hides it by NAT.
pub(crate) fn guest(world: &World) -> Result<Host> {
    let guest = Host::new("guest")?;
    link(
        world.near.port("in0", &["10.9.0.1/24", "fd09::1/64"]),
        guest.port("eth0", &["10.9.0.2/24", "fd09::2/64"]),
        1500,
    )?;
    for (family, router) in [("-4", "10.9.0.1"), ("-6", "fd09::1")] {
        guest.ip(&[family, "route", "add", "default", "via", router])?;
    }
    for family in ["ipv4", "ipv6"] {
        let forwarding = format!("net/{family}/conf/all/forwarding");
        world.near.sysctl(&forwarding, "1")?;
    }
    let rules = "table inet hide {
        chain after { type nat hook postrouting priority 100; oifname eth0 masquerade; }
    }";
    world.near.run_with_input(&["nft", "-f", "-"], rules)?;
    Ok(guest)
}
