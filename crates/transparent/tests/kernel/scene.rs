//! A machine with two paths to the remote addresses.
//!
//! ```text
//!          up0 ── far          in the clear: captured
//!   home <
//!          TUN ── beyond       the tunnel, without encryption and translation
//! ```
//!
//! `far` and `beyond` have the same addresses and services, and answer with their names.

use crate::application::Application;
use crate::client;
use ipnet::IpNet;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taupe_config::application::{AppRules, Rule};
use taupe_config::destinations::{self, Class};
use taupe_lab::capture::Capture;
use taupe_lab::host::{Host, add_address, link};
use taupe_lab::process::wait_until;
use taupe_lab::{Error, Result, ensure};
use taupe_os_linux::netlink::Address;
use taupe_os_linux::tun::{Offloads, Tun};
use taupe_transparent::error::TransparentError;
use taupe_transparent::programs::{CaptureMode, Programs};
use taupe_transparent::state::PacketProcesses;
use taupe_transparent::uplinks::{LinkHeader, Uplink};
use taupe_uapi::prefix;

/// Name of the TUN and of the tunnel.
pub(crate) const TUNNEL: &str = "tp0";

/// Name of a second TUN and tunnel; see [`Scene::second_tunnel`].
pub(crate) const SECOND: &str = "tp1";

/// The remote addresses, one per family.
pub(crate) const REMOTE: [&str; 2] = ["198.51.100.1", "2001:db8:9::1"];

pub(crate) const HOME: [&str; 2] = ["192.0.2.2", "2001:db8:1::2"];

const HOME_NETWORKS: [&str; 2] = ["192.0.2.2/24", "2001:db8:1::2/64"];

pub(crate) fn at(address: &str, port: u16) -> String {
    let address: IpAddr = address.parse().expect("an address");
    SocketAddr::new(address, port).to_string()
}

/// Turns any message into an error.
pub(crate) fn unmet(error: impl std::fmt::Display) -> Error {
    Error::unmet(error.to_string())
}

/// Builds rules from entries as in a file.
pub(crate) fn rules(allowed: &[&str], disallowed: &[&str]) -> AppRules {
    let list = |list: &[&str]| {
        list.iter()
            .map(|entry| Rule::new(entry.parse().expect("an application"), 0))
            .collect()
    };
    AppRules {
        allowed: list(allowed),
        disallowed: list(disallowed),
        ..AppRules::default()
    }
}

/// Returns destinations with everything in the tunnel except `direct`.
pub(crate) fn everything_but(direct: &[&str]) -> Vec<(IpNet, Class)> {
    let all = networks(&["0.0.0.0/0", "::/0"]);
    destinations::table(&all, &networks(direct), false)
}

pub(crate) fn networks(list: &[&str]) -> Vec<IpNet> {
    list.iter()
        .map(|text| prefix::parse(text).expect("a network"))
        .collect()
}

/// Waits until a host finds its neighbour, which may take longer than an application waits.
pub(crate) fn meet(host: &Host, neighbour: &str) -> Result<()> {
    let ping = ["ping", "-n", "-c", "1", "-W", "1", neighbour];
    wait_until(neighbour, Duration::from_secs(30), || {
        Ok(host.attempt(&ping)?.status == Some(0))
    })
}

/// The machines and their links.
pub(crate) struct Scene {
    pub(crate) home: Host,
    pub(crate) far: Host,
    pub(crate) beyond: Host,
    pub(crate) tun: Arc<Tun>,
    pub(crate) programs: Option<Programs>,
    pumps: Vec<Arc<Tun>>,
}

impl Scene {
    /// Creates the machines and the TUN, and loads nothing.
    pub(crate) fn new() -> Result<Self> {
        let (home, far) = (Host::new("home")?, Host::new("far")?);
        link(
            home.port("up0", &HOME_NETWORKS),
            far.port("down0", &["192.0.2.1/24", "2001:db8:1::1/64"]),
            1500,
        )?;
        home.ip(&["route", "add", "default", "via", "192.0.2.1"])?;
        home.ip(&["-6", "route", "add", "default", "via", "2001:db8:1::1"])?;
        home.sysctl("net/ipv4/conf/all/rp_filter", "1")?;
        home.sysctl("net/ipv4/ping_group_range", "0 2147483647")?;
        meet(&home, "2001:db8:1::1")?;
        meet(&far, "2001:db8:1::2")?;
        answers(&far, "far")?;
        let (tun, beyond, pumps) = tunnel(&home, TUNNEL, "beyond")?;
        Ok(Self {
            home,
            far,
            beyond,
            pumps,
            tun,
            programs: None,
        })
    }

    /// Creates a second TUN of home for the tunnel [`SECOND`]. At its other end is `yonder`, with
    /// the same addresses and services as the others.
    pub(crate) fn second_tunnel(&mut self) -> Result<(Arc<Tun>, Host)> {
        let (tun, yonder, pumps) = tunnel(&self.home, SECOND, "yonder")?;
        self.pumps.extend(pumps);
        Ok((tun, yonder))
    }

    /// Creates the scene and sets everything up for these applications.
    pub(crate) fn with(allowed: &[&str], disallowed: &[&str]) -> Result<Self> {
        let mut scene = Self::new()?;
        scene.set_up(&rules(allowed, disallowed), &everything_but(&[]))?;
        Ok(scene)
    }

    /// Loads and attaches everything. This process is the daemon.
    pub(crate) fn set_up(
        &mut self,
        rules: &AppRules,
        destinations: &[(IpNet, Class)],
    ) -> Result<()> {
        self.set_up_with([None, None], rules, destinations)
    }

    /// As [`Self::set_up`], with packet processes.
    pub(crate) fn set_up_with(
        &mut self,
        packet_processes: PacketProcesses,
        rules: &AppRules,
        destinations: &[(IpNet, Class)],
    ) -> Result<()> {
        let uplink = self.uplink("up0")?;
        let tun = self.tun.index().map_err(Error::io("TUN"))?;
        let programs = self.home.enter(|| {
            set_up_all(uplink, tun, packet_processes, rules, destinations).map_err(unmet)
        })?;
        self.programs = Some(programs);
        Ok(())
    }

    /// Sets the tunnel up again with this TUN.
    pub(crate) fn read_again(&mut self, tun: &Tun) -> Result<()> {
        let home = self.home.clone();
        let index = tun.index().map_err(Error::io("TUN"))?;
        let programs = self.programs()?;
        home.enter(|| programs.set_up(index).map_err(unmet))
    }

    pub(crate) fn programs(&mut self) -> Result<&mut Programs> {
        let programs = self.programs.as_mut();
        programs.ok_or_else(|| Error::unmet("nothing is loaded"))
    }

    /// Selects these applications instead.
    pub(crate) fn replace(&mut self, allowed: &[&str]) -> Result<()> {
        let rules = rules(allowed, &[]);
        let home = self.home.clone();
        let programs = self.programs()?;
        home.enter(|| {
            programs
                .replace(&rules, &everything_but(&[]))
                .map_err(unmet)
        })
    }

    pub(crate) fn uplink(&self, name: &str) -> Result<Uplink> {
        uplink(&self.home, name)
    }

    /// Runs an application to its end, and returns its output.
    pub(crate) fn run(&self, program: &str, words: &[&str]) -> Result<String> {
        let command = [&[program, client::WORD], words].concat();
        Ok(self.home.run(&command)?.text().to_owned())
    }

    /// Starts an application that waits until it is told to continue.
    pub(crate) fn start(&self, program: &str, words: &[&str]) -> Result<Application> {
        Application::start(
            self.home
                .command(&[&[program, client::WORD], words].concat()),
        )
    }

    /// Captures packets that arrive at the far end.
    pub(crate) fn capture(&self, filter: &str) -> Result<Capture> {
        // Traffic of the link itself is always there.
        let link = "arp or icmp6[0] >= 130 or (ip6 and ip6[6] = 0)";
        let filter = format!("udp dst port {LAST} or ({filter}) and not ({link})");
        Capture::start(&self.far, "down0", &filter)
    }

    /// Fails unless `who` answers the application.
    pub(crate) fn expect(&self, program: &str, words: &[&str], who: &str) -> Result<()> {
        let said = self.run(program, words)?;
        ensure!(said == who, "{program} {words:?}: {said}, not {who}");
        Ok(())
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        for tun in &self.pumps {
            let _ = tun.shutdown();
        }
    }
}

/// Set to attach filters as before Linux 6.6.
static WITHOUT_TCX: AtomicBool = AtomicBool::new(false);

/// Returns the same test with filters as before Linux 6.6.
pub(crate) fn without_tcx(
    test: fn() -> Result<()>,
) -> impl Fn() -> Result<()> + Send + Sync + 'static {
    move || {
        WITHOUT_TCX.store(true, Ordering::Relaxed);
        test()
    }
}

/// Port of the last datagram of a capture.
const LAST: u16 = 9;

/// Ends a capture that must be empty. A last datagram of this process shows that the capture has
/// seen all earlier packets.
pub(crate) fn nothing(scene: &Scene, capture: Capture) -> Result<()> {
    scene.home.enter(|| {
        let socket = UdpSocket::bind("192.0.2.2:0").map_err(Error::io("socket"))?;
        socket
            .send_to(b"the last", ("192.0.2.1", LAST))
            .map_err(Error::io("the last datagram"))?;
        Ok(())
    })?;
    let is_last = |packet: &taupe_lab::capture::Packet| {
        let datagram = packet.datagram();
        datagram.is_some_and(|datagram| datagram.destination.port() == LAST)
    };
    let mut packets = capture.stop_once("the last datagram", |seen| seen.iter().any(is_last))?;
    packets.retain(|packet| !is_last(packet));
    // Ignore the answer to the last datagram, whose port is closed.
    packets.retain(|packet| packet.ip.get(9) != Some(&1) || packet.ip.get(20) != Some(&3));
    ensure!(
        packets.is_empty(),
        "{} packets in the clear, the first: {:02x?}",
        packets.len(),
        packets.first().map(|packet| &packet.ip)
    );
    Ok(())
}

/// Loads and attaches the programs, or takes them over.
pub(crate) fn attached(
    packet_processes: PacketProcesses,
) -> std::result::Result<Programs, TransparentError> {
    let mut programs = Programs::load(TUNNEL, CaptureMode::TrafficControl)?;
    if WITHOUT_TCX.load(Ordering::Relaxed) {
        programs.disable_tcx();
    }
    programs.attach(packet_processes)?;
    Ok(programs)
}

/// Runs all steps of a daemon in their order.
pub(crate) fn set_up_all(
    uplink: Uplink,
    tun: u32,
    packet_processes: PacketProcesses,
    rules: &AppRules,
    destinations: &[(IpNet, Class)],
) -> std::result::Result<Programs, TransparentError> {
    let mut programs = attached(packet_processes)?;
    programs.replace(rules, destinations)?;
    programs.guard(&uplink)?;
    let addresses: Vec<Address> = HOME_NETWORKS
        .iter()
        .map(|network| Address {
            interface: uplink.index,
            network: network.parse().expect("a network"),
        })
        .collect();
    programs.set_addresses(&addresses, &[])?;
    programs.set_up(tun)?;
    Ok(programs)
}

pub(crate) fn uplink(host: &Host, name: &str) -> Result<Uplink> {
    let show = |file: &str| {
        let path = format!("/sys/class/net/{name}/{file}");
        host.run(&["cat", &path])
            .map(|output| output.text().to_owned())
    };
    let mut mac = [0; 6];
    for (to, from) in mac.iter_mut().zip(show("address")?.split(':')) {
        *to = u8::from_str_radix(from, 16).map_err(unmet)?;
    }
    Ok(Uplink {
        index: show("ifindex")?.parse().map_err(unmet)?,
        name: name.to_owned(),
        header: LinkHeader::Ethernet(mac),
        has_default_route: true,
    })
}

/// Creates a TUN of home, the machine at its other end, and the threads that carry packets between
/// them.
fn tunnel(
    home: &Host,
    tunnel: &str,
    name: &'static str,
) -> Result<(Arc<Tun>, Host, Vec<Arc<Tun>>)> {
    let there = Host::new(name)?;
    let (tun, back) = (open(home, tunnel)?, open(&there, "back")?);
    there.ip(&["route", "add", "192.0.2.0/24", "dev", "back"])?;
    there.sysctl("net/ipv6/conf/back/disable_ipv6", "0")?;
    there.ip(&["-6", "route", "add", "2001:db8:1::/64", "dev", "back"])?;
    // Packets from the tunnel arrive unfragmented, since no translator is in between.
    there.ip(&["link", "set", "back", "mtu", "65000"])?;
    answers(&there, name)?;
    pump(&tun, &back);
    pump(&back, &tun);
    Ok((Arc::clone(&tun), there, vec![tun, back]))
}

/// Gives a host the remote addresses and starts its services.
fn answers(host: &Host, name: &'static str) -> Result<()> {
    for address in REMOTE {
        add_address(host, "lo", address)?;
    }
    services(host, name)
}

/// Creates a TUN without addresses and sets it up.
pub(crate) fn open(host: &Host, name: &str) -> Result<Arc<Tun>> {
    let tun = host.enter(|| Tun::create(name, Offloads::default()).map_err(unmet))?;
    host.sysctl(&format!("net/ipv6/conf/{name}/disable_ipv6"), "1")?;
    host.enter(|| tun.set_up(true).map_err(Error::io("TUN")))?;
    Ok(Arc::new(tun))
}

/// Copies packets from one TUN to another, including offload headers.
pub(crate) fn pump(from: &Arc<Tun>, to: &Arc<Tun>) {
    let (from, to) = (Arc::clone(from), Arc::clone(to));
    std::thread::spawn(move || {
        let mut buffer = vec![0; 70_000];
        while let Ok(length) = rustix::io::read(from.as_fd(), &mut buffer[..]) {
            // A packet that the other TUN refuses is lost.
            let _ = rustix::io::write(to.as_fd(), &buffer[..length]);
        }
    });
}

/// Starts TCP and UDP servers that answer with the host's name.
fn services(host: &Host, name: &'static str) -> Result<()> {
    const PORTS: [u16; 3] = [80, 53, 123];
    for (address, port) in REMOTE
        .into_iter()
        .flat_map(|at| PORTS.map(|port| (at, port)))
    {
        let (listener, socket) = host.enter(|| {
            let listener = TcpListener::bind((address, port)).map_err(Error::io("listener"))?;
            let socket = UdpSocket::bind((address, port)).map_err(Error::io("socket"))?;
            Ok((listener, socket))
        })?;
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let _ = stream.and_then(|mut stream| stream.write_all(name.as_bytes()));
            }
        });
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while let Ok((_, from)) = socket.recv_from(&mut buffer) {
                let _ = socket.send_to(name.as_bytes(), from);
            }
        });
    }
    Ok(())
}

/// Time to wait for packets that must not come.
pub(crate) const QUIET: Duration = Duration::from_millis(300);
