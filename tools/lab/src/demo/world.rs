//! The network of the demo: a home with a local network, the internet, a VPN provider.
//!
//! ```text
//! home ─┐
//!       ├─ router ─┬─ vpn
//! printer          └─ web
//! ```

use crate::error::{Error, Result};
use crate::host::{Host, add_address, link};
use crate::peers::Implementation;
use crate::process::{Process, wait_until};
use crate::sandbox::{scratch, scratch_file};
use crate::servers::{self, QueryCount};
use crate::surroundings::own_etc;
use rustix::mount::{MountFlags, mount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// An address of each IP version, in the order of [`FAMILIES`].
pub(super) type Both = [IpAddr; 2];

/// curl's options for the IP versions, and their names.
pub(super) const FAMILIES: [(&str, &str); 2] = [("-4", "IPv4"), ("-6", "IPv6")];

/// Addresses of the home on the internet. For IPv4 it is the router's address, because of NAT, as
/// in most homes.
pub(super) const HOME: Both = [v4(203, 0, 113, 7), v6(1, 0x10)];
/// Addresses of the VPN server, and of all clients behind it.
pub(super) const VPN: Both = [v4(198, 51, 100, 1), v6(2, 1)];
/// Addresses of the web server that reports its client's address.
pub(super) const WEB: Both = [v4(192, 0, 2, 80), v6(3, 0x80)];
/// Address of the printer in the local network, which runs the same web server.
pub(super) const PRINTER: IpAddr = v4(192, 168, 1, 20);
/// The home machine's address in the local network.
pub(super) const HOME_IN_LAN: IpAddr = v4(192, 168, 1, 10);
/// The router's address in the local network; also a name server.
const ROUTER: IpAddr = v4(192, 168, 1, 1);
/// The VPN server's address inside the tunnel; also its name server.
const INSIDE_VPN: IpAddr = v4(10, 64, 0, 1);

/// The web server's name, known to both name servers.
pub(super) const NAME: &str = "web.example.net";

/// The interface of the tunnel, named like its file.
pub(super) const INTERFACE: &str = "home";

/// The file, and its path. The machines have an `/etc` of their own.
const FILE: &str = include_str!("../../../../demo/home.conf");
const PLACE: &str = "/etc/wireguard/home.conf";

/// The server's configuration for `demo/home.conf`; its key is as public as that file.
const SERVER: &str = "\
[Interface]
PrivateKey = iLvmWr2Ktp6rNq7k7zfFS+727W28slAj8RSCaeLJIHE=
Address = 10.64.0.1/24, fd64::1/64
ListenPort = 51820

[Peer]
PublicKey = AKdfq47u5nSyeyyR1Pu9bRcoBJNxfjyLad0L/uB+G2E=
AllowedIPs = 10.64.0.2/32, fd64::2/128
";

/// MTU of every cable.
const MTU: u16 = 1500;

/// Time limit for an answer to a program of the demo, in seconds.
const PATIENCE: &str = "5";

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

/// Returns the address of a machine in a network, by their numbers.
const fn v6(network: u16, machine: u16) -> IpAddr {
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, network, 0, 0, 0, 0, machine))
}

/// The machines and their programs.
#[derive(Debug)]
pub struct World {
    pub(super) home: Host,
    pub(super) router: Host,
    /// A, the selected application: curl.
    pub(super) a: String,
    /// B, a copy of curl by another name.
    pub(super) b: String,
    /// ping by A's name.
    pub(super) ping: String,
    taupe: String,
    /// The name servers of the VPN and of the router.
    names: [QueryCount; 2],
}

/// Result of a request to the web server.
#[derive(Debug)]
pub(super) struct Reply {
    /// The client address as seen by the server; `None` if the request failed.
    pub(super) client: Option<IpAddr>,
    /// Duration by the program's own clock.
    pub(super) took: Duration,
    /// The program's error message.
    pub(super) error: String,
}

impl World {
    /// Makes the machines inside a sandbox.
    ///
    /// # Errors
    ///
    /// [`Error::Start`] and [`Error::Command`] if the machine lacks a program or kernel feature,
    /// [`Error::Missing`] without the program `taupe`.
    pub fn new() -> Result<Self> {
        let taupe = Implementation::Taupe.program()?.display().to_string();
        prepare_etc()?;
        // Each command on a machine has mounts of its own, so pinned objects must be on a mount of
        // the sandbox.
        let pins = "/run/taupe/bpf";
        fs::create_dir_all(pins).map_err(Error::io(pins))?;
        mount("bpf", pins, "bpf", MountFlags::empty(), None).map_err(Error::io(pins))?;

        let [home, router, printer, vpn, web] =
            ["home", "router", "printer", "vpn", "web"].map(Host::new);
        let (home, router, printer, vpn, web) = (home?, router?, printer?, vpn?, web?);
        connect(&home, &router, &printer, &vpn, &web)?;
        servers::serve_web(&printer, PRINTER)?;
        for address in WEB {
            servers::serve_web(&web, address)?;
        }
        let server = scratch_file("vpn.conf", SERVER)?;
        vpn.run(&[&taupe, "up", &server])?;
        let names = [
            servers::serve_names(&vpn, INSIDE_VPN, WEB)?,
            servers::serve_names(&router, ROUTER, WEB)?,
        ];
        Ok(Self {
            a: "curl".to_owned(),
            b: copy("curl", "kurl")?,
            ping: copy("ping", "ping/curl")?,
            taupe,
            names,
            home,
            router,
        })
    }

    /// Returns the lines of the file that begin with one of these words.
    pub(super) fn lines(words: &[&str]) -> impl Iterator<Item = &'static str> {
        let wanted = |line: &&str| words.iter().any(|word| line.starts_with(word));
        FILE.lines().filter(wanted)
    }

    /// Runs `taupe up` or `taupe down` with the file.
    pub fn taupe(&self, verb: &str) -> Result<()> {
        self.home.run(&[&self.taupe, verb, INTERFACE]).map(drop)
    }

    /// Lets a copy of curl ask a web server for the client address, with an option of curl's.
    pub(super) fn request(&self, program: &str, option: &str, server: &str) -> Result<Reply> {
        let url = format!("http://{server}/");
        #[rustfmt::skip]
        let attempt = self.home.attempt(&[
            program, "-q", "-sS", "--noproxy", "*", "-m", PATIENCE, option,
            "-w", "\n%{time_total}", &url,
        ])?;
        let (output, took) = attempt.stdout.rsplit_once('\n').unwrap_or_default();
        let took = took.parse().map_err(|_| Error::Malformed {
            what: "the time that curl took".to_owned(),
            why: format!("{}{}", attempt.stdout, attempt.stderr),
        })?;
        Ok(Reply {
            client: output.trim().parse().ok(),
            took: Duration::try_from_secs_f64(took).unwrap_or_default(),
            error: attempt.stderr.trim().to_owned(),
        })
    }

    /// Lets a copy of curl download for a while; returns bit/s.
    pub(super) fn download(&self, program: &str) -> Result<f64> {
        let url = format!("http://{NAME}{}", servers::BULK);
        let limit = (servers::BULK_TIME * 10).as_secs().to_string();
        #[rustfmt::skip]
        let output = self.home.run(&[
            program, "-q", "-sS", "-4", "--noproxy", "*", "-m", &limit,
            "-o", "/dev/null", "-w", "%{speed_download}", &url,
        ])?;
        let speed = output.text().parse::<f64>();
        let speed = speed.map_err(|_| Error::unmet(format!("curl's speed: {}", output.text())))?;
        Ok(speed * 8.0)
    }

    /// Starts a slow download of A.
    pub(super) fn begin_download(&self) -> Result<Process> {
        let url = format!("http://{NAME}{}", servers::BULK);
        #[rustfmt::skip]
        let process = self.home.spawn(&[
            &self.a, "-q", "-sS", "-4", "--noproxy", "*", "--limit-rate", "1M",
            "-o", "/dev/null", &url,
        ])?;
        wait_until("bytes of a download", Duration::from_secs(10), || {
            let statistics = format!("/sys/class/net/{INTERFACE}/statistics/rx_bytes");
            let count = self.home.run(&["cat", &statistics])?;
            Ok(count.text().parse().is_ok_and(|bytes: u64| bytes > 100_000))
        })?;
        Ok(process)
    }

    /// Pings with a copy of ping; returns the mean round trip and the number of lost pings.
    pub(super) fn round_trip(&self, program: &str) -> Result<(Duration, u32)> {
        const COUNT: u32 = 50;
        let (count, target) = (COUNT.to_string(), WEB[0].to_string());
        #[rustfmt::skip]
        let output = self.home.run(&[
            program, "-q", "-n", "-c", &count, "-i", "0.01", "-W", PATIENCE, &target,
        ])?;
        let malformed = || Error::unmet(format!("ping: {}", output.stdout));
        let received = output.stdout.split(" packets transmitted, ").nth(1);
        let received = received.and_then(|rest| rest.split(' ').next()?.parse::<u32>().ok());
        let times = output.stdout.split(" = ").nth(1);
        let mean = times.and_then(|times| times.split('/').nth(1)?.parse::<f64>().ok());
        let mean = Duration::try_from_secs_f64(mean.ok_or_else(malformed)? / 1e3);
        let lost = COUNT.saturating_sub(received.ok_or_else(malformed)?);
        Ok((mean.map_err(|_| malformed())?, lost))
    }

    /// Returns the numbers of questions to the VPN's and to the router's name server.
    pub(super) fn questions(&self) -> [usize; 2] {
        [0, 1].map(|server| self.names[server].count())
    }

    /// Returns the process of the tunnel.
    pub(super) fn device(&self) -> Result<Pid> {
        let socket = crate::uapi::socket(INTERFACE).display().to_string();
        let listed = self.home.run(&["ss", "-xlpH", "src", &socket])?;
        let number = listed.stdout.split("pid=").nth(1);
        let number = number.and_then(|rest| rest.split([',', ')']).next()?.parse().ok());
        let process = number.and_then(Pid::from_raw);
        process.ok_or_else(|| Error::unmet(format!("no process at {socket}: {}", listed.stdout)))
    }

    /// Kills this process, and waits until its interface is gone.
    pub(super) fn kill_device(&self) -> Result<()> {
        kill_process(self.device()?, Signal::KILL).map_err(Error::io("kill"))?;
        wait_until("end of the interface", Duration::from_secs(5), || {
            let shown = self
                .home
                .attempt(&["ip", "link", "show", "dev", INTERFACE])?;
            Ok(shown.status != Some(0))
        })
    }
}

/// Gives the sandbox an `/etc` of its own, with the router as the name server, and an entry for the
/// VPN server's name.
fn prepare_etc() -> Result<()> {
    own_etc(&format!("nameserver {ROUTER}\n"))?;
    for (path, text) in [
        ("/etc/nsswitch.conf", "hosts: files dns\n".to_owned()),
        (
            "/etc/hosts",
            format!("127.0.0.1 localhost\n{} vpn.example.net\n", VPN[0]),
        ),
    ] {
        fs::write(path, text).map_err(Error::io(path))?;
    }
    let made = fs::create_dir_all("/etc/wireguard");
    made.and_then(|()| fs::write(PLACE, FILE))
        .and_then(|()| fs::set_permissions(PLACE, fs::Permissions::from_mode(0o600)))
        .map_err(Error::io(PLACE))
}

/// Copies a program to another name.
fn copy(program: &str, name: &str) -> Result<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join(program));
    let original = places.find(|place| place.is_file());
    let original = original.ok_or_else(|| {
        Error::unmet(format!("there is no {program} on this machine: install it"))
    })?;
    let copy = scratch(name);
    let what = copy.display().to_string();
    if let Some(folder) = copy.parent() {
        fs::create_dir_all(folder).map_err(Error::io(&*what))?;
    }
    fs::copy(original, &copy).map_err(Error::io(&*what))?;
    Ok(what)
}

/// Connects the machines, and configures forwarding and NAT on the router and the VPN server.
fn connect(home: &Host, router: &Host, printer: &Host, vpn: &Host, web: &Host) -> Result<()> {
    for host in [home, router, printer, vpn, web] {
        // Otherwise addresses appear a second later.
        host.sysctl("net/ipv6/conf/default/accept_dad", "0")?;
    }
    // The strictest setting.
    home.sysctl("net/ipv4/conf/all/rp_filter", "1")?;
    router.ip(&["link", "add", "lan", "type", "bridge"])?;
    router.ip(&["link", "set", "lan", "up"])?;
    for address in ["192.168.1.1/24", "2001:db8:1::1/64"] {
        add_address(router, "lan", address)?;
    }
    let at_home = ["192.168.1.10/24", "2001:db8:1::10/64"];
    link(home.port("eth0", &at_home), router.port("home", &[]), MTU)?;
    let at_home = ["192.168.1.20/24"];
    link(
        printer.port("eth0", &at_home),
        router.port("printer", &[]),
        MTU,
    )?;
    for port in ["home", "printer"] {
        router.ip(&["link", "set", port, "master", "lan"])?;
    }
    link(
        vpn.port("eth0", &["198.51.100.1/24", "2001:db8:2::1/64"]),
        router.port("vpn", &["198.51.100.254/24", "2001:db8:2::fe/64"]),
        MTU,
    )?;
    link(
        web.port("eth0", &["192.0.2.80/24", "2001:db8:3::80/64"]),
        router.port("web", &["192.0.2.254/24", "2001:db8:3::fe/64"]),
        MTU,
    )?;
    for (host, v4, v6) in [
        (home, "192.168.1.1", "2001:db8:1::1"),
        (vpn, "198.51.100.254", "2001:db8:2::fe"),
        (web, "192.0.2.254", "2001:db8:3::fe"),
    ] {
        host.ip(&["route", "add", "default", "via", v4])?;
        host.ip(&["-6", "route", "add", "default", "via", v6])?;
    }
    for (host, rules) in [
        (
            router,
            format!("ip saddr 192.168.1.0/24 oif != lan snat ip to {}", HOME[0]),
        ),
        (vpn, "oif eth0 masquerade".to_owned()),
    ] {
        host.sysctl("net/ipv4/ip_forward", "1")?;
        host.sysctl("net/ipv6/conf/all/forwarding", "1")?;
        let table = format!(
            "table inet demo {{\n chain out {{\n\
             type nat hook postrouting priority srcnat\n{rules}\n}}\n}}\n"
        );
        host.run_with_input(&["nft", "-f", "-"], &table)?;
    }
    Ok(())
}
