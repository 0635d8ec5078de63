//! No packet of a selected application is ever seen outside the tunnel, whatever happens to the
//! device, the links, the server and the rules, in any order.
//!
//! A capture at the far end of every cable sees all unencrypted packets of a selected application
//! and of another one, which both send continuously. The other one also starts the selected one
//! with inherited sockets. The selected application is free from `down` to the end of the next
//! `up`, and while no rule names it. Only records made in these times may be seen unencrypted, also
//! later: the kernel retransmits for sockets that were closed meanwhile.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use rustix::mount::mount_bind;
use rustix::process::{Signal, kill_process};
use taupe_lab::capture::Capture;
use taupe_lab::peers::{PeerSettings, Tunnel};
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{figure, scratch_file, step};
use taupe_lab::{Error, Result};

use self::evidence::{UnselectedPeriods, in_the_clear};
use crate::chatter::{self, Chatterer, OTHER, ReceivedCounts, SELECTED};
use crate::world::{BEYOND, ENDPOINT_PORT, NEIGHBOUR, SERVER, TUNNEL, World, succeeded};

mod evidence;

/// Default number of transitions, unless `TRANSITIONS` is set.
const TRANSITIONS: u32 = 30;

/// Time limit for an application to reach the server through a tunnel that is up. A lost handshake
/// is retried after 5 s, and a machine with other work may stall for many seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// The longest pause after a transition, in milliseconds.
const PAUSE: u64 = 50;

/// Captured bytes of a packet: the mark is at the beginning of all payloads.
const CUT: u32 = 512;

/// Addresses that `near` has in turn, in each of its networks.
const HOSTS: [u8; 3] = [1, 10, 11];

/// Returns the time limit of the test. A transition takes about a second, and several times that on
/// a busy machine: at each `up` the kernel verifies the eBPF programs.
pub(crate) fn limit() -> Duration {
    // The test itself reports an invalid number.
    let transitions = transitions().unwrap_or(TRANSITIONS);
    Duration::from_secs(240) + transitions * Duration::from_secs(6)
}

fn transitions() -> Result<u32> {
    Ok(number("TRANSITIONS")?.unwrap_or(TRANSITIONS))
}

/// Returns the number in a variable of the environment.
pub(crate) fn number<T: FromStr>(variable: &str) -> Result<Option<T>> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(None);
    };
    let number = text.parse().map(Some);
    number.map_err(|_| Error::unmet(format!("{variable} is {text:?}, which is no number")))
}

/// Runs the transitions in a random order, which `SEED` repeats.
pub(crate) fn no_transition_leaks() -> Result<()> {
    let seed = number("SEED")?.unwrap_or_else(|| fastrand::u64(..));
    figure("SEED", seed);
    let mut scene = Scene::new(seed)?;
    let ended = scene.run(transitions()?);
    if let Err(error) = &ended {
        eprintln!("{error}");
        scene.describe()?;
    }
    // A leak is reported in preference to other errors.
    scene.judge().and(ended)
}

/// A transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transition {
    /// The device is killed.
    Kill,
    /// The device comes up again, possibly with other rules.
    Up,
    /// The tunnel is taken down, which frees the selected applications, and comes up.
    DownAndUp,
    /// Other rules select the same application, by `app` or by the file and `reload`.
    Rules,
    /// Rules free the selected application, and select it again.
    FreeByRules,
    /// The peer is removed and added again, and its sessions end.
    Rekey,
    /// The interface is down for a moment.
    Interface,
    /// The far end of the cable is down for a moment.
    LinkOutage,
    /// The WireGuard server does not listen for a moment.
    ServerOutage,
    /// The uplink is down for a moment.
    Flap,
    /// The uplink gets other addresses.
    Address,
    /// The uplink is deleted and created again.
    Replug,
    /// A second uplink appears or disappears.
    Second,
    /// The default route moves to the other uplink.
    Route,
    /// The selected application is restarted, possibly by another selected one.
    Restart,
    /// The selected application opens more flows than its limit.
    Flood,
    /// The executable of the running selected application has another name for a moment, as during
    /// a package's upgrade.
    Rename,
    /// A DHCP client sets another resolver.
    Resolver,
}

/// The transitions with their relative frequencies.
const WEIGHTS: [(Transition, u32); 18] = [
    (Transition::Kill, 12),
    (Transition::Up, 24),
    (Transition::DownAndUp, 3),
    (Transition::Rules, 10),
    (Transition::FreeByRules, 3),
    (Transition::Rekey, 5),
    (Transition::Interface, 3),
    (Transition::LinkOutage, 6),
    (Transition::ServerOutage, 4),
    (Transition::Flap, 8),
    (Transition::Address, 8),
    (Transition::Replug, 10),
    (Transition::Second, 10),
    (Transition::Route, 8),
    (Transition::Flood, 3),
    (Transition::Restart, 6),
    (Transition::Rename, 6),
    (Transition::Resolver, 6),
];

/// The uplinks: the number of the network, and the interface.
const UPLINKS: [(u8, &str); 2] = [(1, "eth0"), (2, "eth1")];

/// Resolvers that a network may announce: a program of this machine that forwards questions to the
/// router, the router, and a public one.
const RESOLVERS: [IpAddr; 4] = [chatter::STUB, NEIGHBOUR, BEYOND[0], BEYOND[1]];

struct Scene {
    world: World,
    rng: Rng,
    /// The tunnel's own interface, as `wg` sees it.
    device: Tunnel,
    file: String,
    /// The file mounted at `/etc/resolv.conf`.
    resolv_conf: String,
    selected: String,
    /// The executable that the selected application starts, which no rule names.
    started: String,
    talking: [Process; 2],
    heard: [Arc<ReceivedCounts>; 2],
    capture: Capture,
    /// True while the device runs.
    up: bool,
    /// True while there is a second uplink.
    second: bool,
    /// Index of the uplink with the default route.
    route: usize,
    /// The host part of the first uplink, one of `HOSTS`.
    host: u8,
    free: UnselectedPeriods,
    happened: Vec<(Duration, Transition)>,
}

impl Scene {
    fn new(seed: u64) -> Result<Self> {
        let world = World::new()?;
        for host in [&world.near, &world.far] {
            // Otherwise the addresses disappear with the link.
            host.sysctl("net/ipv6/conf/all/keep_addr_on_down", "1")?;
            host.sysctl("net/ipv4/conf/all/promote_secondaries", "1")?;
        }
        world
            .near
            .sysctl("net/ipv4/ping_group_range", "0 2147483647")?;
        // The tunnel may reach the server at either address and then gets answers from there, so
        // the server keeps both when a cable is removed.
        for (network, _) in UPLINKS {
            taupe_lab::host::add_address(&world.far, "lo", &format!("192.168.{network}.2/32"))?;
        }
        let resolv_conf = scratch_file("resolv.conf", "")?;
        write_resolver(&resolv_conf, RESOLVERS[0])?;
        mount_bind(&*resolv_conf, "/etc/resolv.conf").map_err(Error::io("/etc/resolv.conf"))?;
        chatter::forward_questions(&world.near)?;
        let (selected, other) = (chatter::install(chatter::MOLE)?, chatter::install("bird")?);
        let started = chatter::install("vole")?;
        let tunnel = TUNNEL.map(address);
        let receive = |voice: &'static Chatterer| chatter::receive(&world.far, voice, tunnel);
        let heard = [receive(&SELECTED)?, receive(&OTHER)?];
        let networks = HOSTS.iter().flat_map(|host| {
            [
                address(&format!("192.168.1.{host}")),
                address(&format!("2001:db8:1::{host}")),
            ]
        });
        // Visitors served at these addresses have reached a selected application outside the
        // tunnel.
        chatter::visit(&world.far, &SELECTED, networks.collect(), &Arc::default())?;
        chatter::visit(&world.far, &SELECTED, tunnel.to_vec(), &heard[0])?;
        let capture = Capture::start_truncated(&world.far, "any", &in_the_clear(&world.far)?, CUT)?;
        let file = choose(&world, "mole")?;
        world.up(&file)?;
        let talking = [
            chatter::start(&world.near, &selected, &SELECTED)?,
            chatter::start(&world.near, &other, &OTHER)?,
        ];
        let quirks = world.server().quirks();
        Ok(Self {
            device: Tunnel::at("taupe", world.near.clone(), &world.interface, quirks),
            world,
            rng: Rng::with_seed(seed),
            file,
            resolv_conf,
            selected,
            started,
            talking,
            heard,
            capture,
            up: true,
            second: false,
            route: 0,
            host: 1,
            free: UnselectedPeriods::default(),
            happened: Vec::new(),
        })
    }

    fn run(&mut self, count: u32) -> Result<()> {
        step("carried before anything happens");
        self.carried()?;
        for number in 0..count {
            let transition = self.next();
            step(&format!("{number}: {transition:?}"));
            self.happened.push((now()?, transition));
            self.apply(transition)?;
            sleep(Duration::from_millis(self.rng.u64(..=PAUSE)));
            if self.up && self.rng.u32(..12) == 0 {
                self.carried()?;
            }
        }
        step("all in order again");
        if !self.up {
            self.start()?;
        }
        self.carried()?;
        self.set_route(0)?;
        self.carried()?;
        grows("the other application", &self.heard[1].otherwise)
    }

    /// Chooses the next of the possible transitions.
    fn next(&mut self) -> Transition {
        let possible = WEIGHTS.iter().filter(|(transition, _)| match transition {
            Transition::Kill
            | Transition::Rekey
            | Transition::Interface
            | Transition::Rules
            | Transition::FreeByRules => self.up,
            Transition::Up => !self.up,
            Transition::Route => self.second,
            _ => true,
        });
        let possible: Vec<_> = possible.collect();
        let all: u32 = possible.iter().map(|(_, weight)| weight).sum();
        let mut left = self.rng.u32(..all);
        for (transition, weight) in possible {
            match left.checked_sub(*weight) {
                Some(rest) => left = rest,
                None => return *transition,
            }
        }
        Transition::Restart
    }

    fn apply(&mut self, transition: Transition) -> Result<()> {
        let (near, far) = (self.world.near.clone(), self.world.far.clone());
        let (network, uplink) = UPLINKS[self.rng.usize(..=usize::from(self.second))];
        match transition {
            Transition::Kill => {
                kill_process(self.world.device()?, Signal::KILL).map_err(Error::io("kill"))?;
                self.up = false;
            }
            Transition::Up => self.start()?,
            Transition::DownAndUp => {
                self.free.begin(now()?);
                self.world.down(&self.file)?;
                self.pause();
                self.start()?;
                self.free.end(now()?);
            }
            Transition::Rules => match self.rng.bool() {
                true => {
                    self.file = self.choose_any()?;
                    self.follow(&["reload", &self.file])?;
                }
                false => {
                    let beside = ["cat", "uid:12345", "/opt/games/"];
                    let beside = beside[self.rng.usize(..beside.len())];
                    for verb in ["allow", "remove"] {
                        self.follow(&["app", verb, &self.file, beside])?;
                    }
                }
            },
            Transition::FreeByRules => {
                self.free.begin(now()?);
                self.file = choose(&self.world, "nobody-at-all")?;
                self.follow(&["reload", &self.file])?;
                self.pause();
                self.file = self.choose_any()?;
                self.follow(&["reload", &self.file])?;
                self.free.end(now()?);
            }
            Transition::Rekey => self.device.replace_peer(&PeerSettings {
                public_key: self.world.server_key(),
                preshared_key: None,
                endpoint: Some((BEYOND[0], ENDPOINT_PORT).into()),
                allowed_ips: "0.0.0.0/0, ::/0",
            })?,
            Transition::Interface => {
                near.ip(&["link", "set", "dev", &self.world.interface, "down"])?;
                self.pause();
                near.ip(&["link", "set", "dev", &self.world.interface, "up"])?;
            }
            Transition::LinkOutage => {
                far.ip(&["link", "set", "dev", uplink, "down"])?;
                self.pause();
                far.ip(&["link", "set", "dev", uplink, "up"])?;
            }
            Transition::ServerOutage => {
                far.ip(&["link", "set", "dev", "wgfar", "down"])?;
                self.pause();
                far.ip(&["link", "set", "dev", "wgfar", "up"])?;
            }
            Transition::Flap => {
                near.ip(&["link", "set", "dev", uplink, "down"])?;
                self.pause();
                near.ip(&["link", "set", "dev", uplink, "up"])?;
                self.set_route(self.route)?;
            }
            Transition::Address => self.readdress()?,
            Transition::Replug => {
                near.ip(&["link", "delete", "dev", uplink])?;
                self.pause();
                self.plug(network, uplink)?;
                if uplink == "eth0" {
                    self.host = HOSTS[0];
                }
                self.set_route(self.route)?;
            }
            Transition::Second => {
                let (network, uplink) = UPLINKS[1];
                match self.second {
                    true => {
                        near.ip(&["link", "delete", "dev", uplink])?;
                        self.set_route(0)?;
                    }
                    false => {
                        self.plug(network, uplink)?;
                        let by = self.rng.usize(..2);
                        self.set_route(by)?;
                    }
                }
                self.second = !self.second;
            }
            Transition::Route => self.set_route(1 - self.route)?,
            Transition::Restart => {
                self.talking[0] = match self.rng.bool() {
                    true => chatter::start(&near, &self.selected, &SELECTED)?,
                    false => chatter::launch(&near, &self.selected, &self.started, &SELECTED)?,
                };
            }
            Transition::Rename => {
                let old = format!("{}.old", self.selected);
                let rename = |from: &str, to: &str| {
                    std::fs::rename(from, to).map_err(Error::io(from.to_owned()))
                };
                rename(&self.selected, &old)?;
                // Long enough for new sockets to be opened meanwhile.
                sleep(Duration::from_millis(PAUSE));
                self.pause();
                rename(&old, &self.selected)?;
            }
            Transition::Resolver => {
                let resolver = RESOLVERS[self.rng.usize(..RESOLVERS.len())];
                write_resolver(&self.resolv_conf, resolver)?;
            }
            Transition::Flood => chatter::flood_by(&near, &self.selected, &SELECTED)?,
        }
        Ok(())
    }

    fn pause(&mut self) {
        sleep(Duration::from_millis(self.rng.u64(..=PAUSE)));
    }

    /// Runs `up`, even directly after a kill.
    fn start(&mut self) -> Result<()> {
        self.file = self.choose_any()?;
        match self.rng.bool() {
            true => self.world.up(&self.file)?,
            false => self.world.up_from_a_container(&self.file)?,
        }
        self.up = true;
        Ok(())
    }

    /// Writes the file with a random rule that selects the same application.
    fn choose_any(&mut self) -> Result<String> {
        let rules = [
            "mole",
            "mol*",
            "mole, dog",
            &self.selected,
            "MOLE, uid:4711",
        ];
        choose(&self.world, rules[self.rng.usize(..rules.len())])
    }

    /// Applies other rules to the tunnel.
    fn follow(&self, command: &[&str]) -> Result<()> {
        succeeded(&command.join(" "), &self.world.taupe(command)?)
    }

    /// Connects a new cable, which is used before any program has noticed it.
    fn plug(&self, network: u8, uplink: &str) -> Result<()> {
        let World { near, far, .. } = &self.world;
        #[rustfmt::skip]
        near.ip(&[
            "link", "add", uplink, "type", "veth", "peer", "name", uplink, "netns", far.name(),
        ])?;
        for (host, own) in [(near, 1), (far, 2)] {
            for address in addresses(network, own) {
                taupe_lab::host::add_address(host, uplink, &address)?;
            }
            host.ip(&["link", "set", "dev", uplink, "up"])?;
        }
        Ok(())
    }

    /// Gives the first uplink other addresses.
    fn readdress(&mut self) -> Result<()> {
        let old = self.host;
        let others: Vec<u8> = HOSTS.into_iter().filter(|host| *host != old).collect();
        self.host = others[self.rng.usize(..others.len())];
        let (network, uplink) = UPLINKS[0];
        let near = &self.world.near;
        let add = || -> Result<()> {
            let new = addresses(network, self.host);
            new.iter()
                .try_for_each(|new| taupe_lab::host::add_address(near, uplink, new))
        };
        let remove = || -> Result<()> {
            let old = addresses(network, old);
            old.iter().try_for_each(|old| {
                near.ip(&["address", "delete", old, "dev", uplink])
                    .map(drop)
            })
        };
        match self.rng.bool() {
            true => add().and_then(|()| remove())?,
            false => remove().and_then(|()| add())?,
        }
        self.set_route(self.route)
    }

    /// Moves the default routes to this uplink.
    fn set_route(&mut self, by: usize) -> Result<()> {
        self.route = by;
        let (network, uplink) = UPLINKS[by];
        for (family, gateway) in [
            ("-4", format!("192.168.{network}.2")),
            ("-6", format!("2001:db8:{network}::2")),
        ] {
            let near = &self.world.near;
            // `replace` would keep a route by another device.
            near.attempt(&["ip", family, "route", "delete", "default"])?;
            near.ip(&[
                family, "route", "add", "default", "via", &gateway, "dev", uplink,
            ])?;
        }
        Ok(())
    }

    /// Waits until the selected application is received through the tunnel, and its server is
    /// reached through it.
    fn carried(&self) -> Result<()> {
        grows(
            "the selected application, by the tunnel",
            &self.heard[0].by_tunnel,
        )?;
        grows("the selected server, by the tunnel", &self.heard[0].served)
    }

    /// Prints the state of the system for the analysis of a failure.
    fn describe(&self) -> Result<()> {
        let device = &self.world.interface;
        for command in [
            &["ip", "-br", "address"][..],
            &["ip", "route"],
            &["ip", "-6", "route"],
            &["wg", "show", device],
            &["ss", "-tunOp"],
            &["ip", "-s", "link", "show", "dev", device],
        ] {
            let output = self.world.near.attempt(command)?;
            eprintln!("{}{}", output.stdout, output.stderr);
        }
        let status = self.world.taupe(&["status", device])?;
        eprintln!("{}{}", status.stdout, status.stderr);
        Ok(())
    }
}

/// Writes a file that selects these applications.
fn choose(world: &World, applications: &str) -> Result<String> {
    let [v4, v6] = TUNNEL;
    world.file_with_sections(
        &format!("Address = {v4}/32, {v6}/128\nDNS = {}", SERVER[0]),
        &format!(
            "Endpoint = {}:{ENDPOINT_PORT}\nAllowedIPs = 0.0.0.0/0, ::/0\n\
             AllowedApps = {applications}",
            BEYOND[0]
        ),
    )
}

/// Sets the resolver in place, like dhclient-script(8).
fn write_resolver(file: &str, resolver: IpAddr) -> Result<()> {
    std::fs::write(file, format!("nameserver {resolver}\n")).map_err(Error::io(file.to_owned()))
}

/// Waits until both counts grow.
fn grows(what: &str, counts: &[AtomicU64; 2]) -> Result<()> {
    let now = || counts.each_ref().map(|count| count.load(Ordering::Relaxed));
    let before = now();
    wait_until(what, PATIENCE, || {
        Ok(now().iter().zip(before).all(|(now, before)| *now > before))
    })
}

fn addresses(network: u8, host: u8) -> [String; 2] {
    [
        format!("192.168.{network}.{host}/24"),
        format!("2001:db8:{network}::{host}/64"),
    ]
}

fn address(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Returns the time in the captures' form.
fn now() -> Result<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_err(|error| Error::unmet(error.to_string()))
}
