//! That nothing of a chosen application's is ever seen outside the tunnel, whatever
//! happens to the device, the links, the server and the rules, in whatever order.
//!
//! A capture at the far end of every cable sees all that leaves in the clear, a
//! chosen application's and another's, which talk all the time. The other also starts the
//! chosen one with sockets of its own. The chosen one is free
//! from `down` to the end of the `up` after it, and while rules do not name it. What it
//! says then, and nothing else, may be seen in the clear, and seen later: the kernel says
//! it again for sockets that were closed meanwhile.

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

use self::evidence::{Freedom, in_the_clear};
use crate::chatter::{self, CHOSEN, Heard, OTHER, Voice};
use crate::world::{BEYOND, ENDPOINT_PORT, NEIGHBOUR, SERVER, TUNNEL, World, succeeded};

mod evidence;

/// How many there are unless `TRANSITIONS` says otherwise.
const TRANSITIONS: u32 = 100;

/// How long an application may take to get through a tunnel that is up: a handshake
/// that was lost is tried again after 5 s.
const PATIENCE: Duration = Duration::from_secs(40);

/// The longest pause after a transition, in milliseconds.
const PAUSE: u64 = 50;

/// How much of a packet is kept: the mark is at the beginning of all payloads.
const CUT: u32 = 512;

/// Addresses that `near` has one after the other, in each of its networks.
const HOSTS: [u8; 3] = [1, 10, 11];

/// How long the test may take. A transition takes a second or so, and several times that
/// where other programs want the processors: each `up` has the kernel verify its programs.
pub(crate) fn limit() -> Duration {
    // What is no number ends the test at once.
    let transitions = transitions().unwrap_or(TRANSITIONS);
    Duration::from_secs(120) + transitions * Duration::from_secs(6)
}

fn transitions() -> Result<u32> {
    Ok(number("TRANSITIONS")?.unwrap_or(TRANSITIONS))
}

fn number<T: FromStr>(variable: &str) -> Result<Option<T>> {
    let Ok(text) = std::env::var(variable) else {
        return Ok(None);
    };
    let number = text.parse().map(Some);
    number.map_err(|_| Error::unmet(format!("{variable} is {text:?}, which is no number")))
}

/// As many transitions as there is time for, in an order that `SEED` repeats.
pub(crate) fn no_transition_leaks() -> Result<()> {
    let seed = number("SEED")?.unwrap_or_else(|| fastrand::u64(..));
    figure("SEED", seed);
    let mut scene = Scene::new(seed)?;
    let ended = scene.run(transitions()?);
    if let Err(error) = &ended {
        eprintln!("{error}");
        scene.describe()?;
    }
    // A leak is worse than whatever else went wrong.
    scene.judge().and(ended)
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Transition {
    /// The device is killed.
    Kill,
    /// It comes up again, perhaps with other rules.
    Up,
    /// It is taken down, which frees the chosen ones, and comes up.
    DownAndUp,
    /// Other rules choose the same application, by `app` or by the file and `reload`.
    Rules,
    /// Rules free the chosen application, and choose it again.
    FreeByRules,
    /// Its peer is made anew, and with it all sessions.
    Rekey,
    /// Its interface is down for a moment.
    Interface,
    /// The far end of the cable is down for a moment.
    LinkOutage,
    /// The WireGuard server does not listen for a moment.
    ServerOutage,
    /// The uplink is down for a moment.
    Flap,
    /// The uplink gets other addresses.
    Address,
    /// The uplink is deleted and made again.
    Replug,
    /// A second uplink comes or goes.
    Second,
    /// The default route moves to the other uplink.
    Route,
    /// The chosen application is started again, perhaps by another one that is chosen.
    Restart,
    /// The chosen application opens more flows than it may have.
    Flood,
    /// The file of the chosen application that runs has another name for a moment, as while
    /// a package is upgraded.
    Rename,
    /// A DHCP client names another resolver.
    Resolver,
}

/// Each with how often it is taken.
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

/// The uplinks, numbered as their networks and by what they are called.
const UPLINKS: [(u8, &str); 2] = [(1, "eth0"), (2, "eth1")];

/// Resolvers that a network may name: a program of this machine that forwards questions to the
/// router, the router, and a public one.
const RESOLVERS: [IpAddr; 4] = [chatter::STUB, NEIGHBOUR, BEYOND[0], BEYOND[1]];

struct Scene {
    world: World,
    rng: Rng,
    /// The tunnel's own interface, as `wg` sees it.
    device: Tunnel,
    file: String,
    /// The file that is mounted at `/etc/resolv.conf`.
    resolv_conf: String,
    chosen: String,
    /// What the chosen application starts, which no rule names.
    started: String,
    talking: [Process; 2],
    heard: [Arc<Heard>; 2],
    capture: Capture,
    /// Whether the device runs.
    up: bool,
    /// Whether there is a second uplink.
    second: bool,
    /// Which of them the default route is by.
    route: usize,
    /// Which of `HOSTS` the first uplink is.
    host: u8,
    free: Freedom,
    happened: Vec<(Duration, Transition)>,
}

impl Scene {
    fn new(seed: u64) -> Result<Self> {
        let world = World::new()?;
        for host in [&world.near, &world.far] {
            // Otherwise they go with the link.
            host.sysctl("net/ipv6/conf/all/keep_addr_on_down", "1")?;
            host.sysctl("net/ipv4/conf/all/promote_secondaries", "1")?;
        }
        world
            .near
            .sysctl("net/ipv4/ping_group_range", "0 2147483647")?;
        // The server may be heard from either of its addresses, and is then spoken to
        // there: it keeps both when a cable goes.
        for (network, _) in UPLINKS {
            taupe_lab::host::add_address(&world.far, "lo", &format!("192.168.{network}.2/32"))?;
        }
        let resolv_conf = scratch_file("resolv.conf", "")?;
        write_resolver(&resolv_conf, RESOLVERS[0])?;
        mount_bind(&*resolv_conf, "/etc/resolv.conf").map_err(Error::io("/etc/resolv.conf"))?;
        chatter::forward_questions(&world.near)?;
        let (chosen, other) = (chatter::install(chatter::MOLE)?, chatter::install("bird")?);
        let started = chatter::install("vole")?;
        let tunnel = TUNNEL.map(address);
        let hear = |voice: &'static Voice| chatter::hear(&world.far, voice, tunnel);
        let heard = [hear(&CHOSEN)?, hear(&OTHER)?];
        let networks = HOSTS.iter().flat_map(|host| {
            [
                address(&format!("192.168.1.{host}")),
                address(&format!("2001:db8:1::{host}")),
            ]
        });
        // Whoever is served at these has seen a chosen application in the clear.
        chatter::visit(&world.far, &CHOSEN, networks.collect(), &Arc::default())?;
        chatter::visit(&world.far, &CHOSEN, tunnel.to_vec(), &heard[0])?;
        let capture = Capture::start_cut(&world.far, "any", &in_the_clear(&world.far)?, CUT)?;
        let file = choose(&world, "mole")?;
        world.up(&file)?;
        let talking = [
            chatter::start(&world.near, &chosen, &CHOSEN)?,
            chatter::start(&world.near, &other, &OTHER)?,
        ];
        let quirks = world.server().quirks();
        Ok(Self {
            device: Tunnel::at("taupe", world.near.clone(), &world.interface, quirks),
            world,
            rng: Rng::with_seed(seed),
            file,
            resolv_conf,
            chosen,
            started,
            talking,
            heard,
            capture,
            up: true,
            second: false,
            route: 0,
            host: 1,
            free: Freedom::default(),
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

    /// What happens next, of all that can.
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
            Transition::Rekey => self.device.forget_and_add(&PeerSettings {
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
                    true => chatter::start(&near, &self.chosen, &CHOSEN)?,
                    false => chatter::launch(&near, &self.chosen, &self.started, &CHOSEN)?,
                };
            }
            Transition::Rename => {
                let old = format!("{}.old", self.chosen);
                let rename = |from: &str, to: &str| {
                    std::fs::rename(from, to).map_err(Error::io(from.to_owned()))
                };
                rename(&self.chosen, &old)?;
                // Long enough for sockets to be made meanwhile.
                sleep(Duration::from_millis(PAUSE));
                self.pause();
                rename(&old, &self.chosen)?;
            }
            Transition::Resolver => {
                let resolver = RESOLVERS[self.rng.usize(..RESOLVERS.len())];
                write_resolver(&self.resolv_conf, resolver)?;
            }
            Transition::Flood => chatter::flood_by(&near, &self.chosen, &CHOSEN)?,
        }
        Ok(())
    }

    fn pause(&mut self) {
        sleep(Duration::from_millis(self.rng.u64(..=PAUSE)));
    }

    /// `up`, however short a time ago it was killed.
    fn start(&mut self) -> Result<()> {
        self.file = self.choose_any()?;
        match self.rng.bool() {
            true => self.world.up(&self.file)?,
            false => self.world.up_from_a_container(&self.file)?,
        }
        self.up = true;
        Ok(())
    }

    /// Writes the file with rules that choose the same application in some way.
    fn choose_any(&mut self) -> Result<String> {
        let rules = ["mole", "mol*", "mole, dog", &self.chosen, "MOLE, uid:4711"];
        choose(&self.world, rules[self.rng.usize(..rules.len())])
    }

    /// Has the tunnel follow other rules.
    fn follow(&self, command: &[&str]) -> Result<()> {
        succeeded(&command.join(" "), &self.world.taupe(command)?)
    }

    /// A new cable, which is used before anybody has noticed.
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

    /// The first uplink gets other addresses.
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

    /// Has the default routes go by this uplink.
    fn set_route(&mut self, by: usize) -> Result<()> {
        self.route = by;
        let (network, uplink) = UPLINKS[by];
        for (family, gateway) in [
            ("-4", format!("192.168.{network}.2")),
            ("-6", format!("2001:db8:{network}::2")),
        ] {
            let near = &self.world.near;
            // `replace` would leave one by another device where it is.
            near.attempt(&["ip", family, "route", "delete", "default"])?;
            near.ip(&[
                family, "route", "add", "default", "via", &gateway, "dev", uplink,
            ])?;
        }
        Ok(())
    }

    /// Waits until the chosen application is heard, and its server reached, through
    /// the tunnel.
    fn carried(&self) -> Result<()> {
        grows(
            "the chosen application, by the tunnel",
            &self.heard[0].by_tunnel,
        )?;
        grows("the chosen server, by the tunnel", &self.heard[0].served)
    }

    /// Prints how everything is, for who looks for a failure's cause.
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
            let said = self.world.near.attempt(command)?;
            eprintln!("{}{}", said.stdout, said.stderr);
        }
        let status = self.world.taupe(&["status", device])?;
        eprintln!("{}{}", status.stdout, status.stderr);
        Ok(())
    }
}

/// Writes the file that chooses these.
fn choose(world: &World, applications: &str) -> Result<String> {
    let [v4, v6] = TUNNEL;
    world.whole_file(
        &format!("Address = {v4}/32, {v6}/128\nDNS = {}", SERVER[0]),
        &format!(
            "Endpoint = {}:{ENDPOINT_PORT}\nAllowedIPs = 0.0.0.0/0, ::/0\n\
             AllowedApps = {applications}",
            BEYOND[0]
        ),
    )
}

/// Names the resolver, in place as dhclient-script(8) does.
fn write_resolver(file: &str, resolver: IpAddr) -> Result<()> {
    std::fs::write(file, format!("nameserver {resolver}\n")).map_err(Error::io(file.to_owned()))
}

/// Waits until both of these grow.
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

/// The time, as captures have it.
fn now() -> Result<Duration> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_err(|error| Error::unmet(error.to_string()))
}
