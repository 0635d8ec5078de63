//! A host, and tunnels on it whose devices run in this process.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use taupe_adapter::{
    Compatibility, Devices, Down, DownError, Linux, Options, Report, Request, State, UpError,
    down_on, reload_on, up_on,
};
use taupe_config::file::{Dialect, File, parse};
use taupe_engine::{Engine, Exit, Offloads, TunSource, UapiSource};
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

use crate::faulty::{Fault, FaultInjector, Schedule, mortal};

/// A tunnel of each kind: name, `[Interface]` lines, `[Peer]` lines.
pub(crate) const KINDS: [(&str, &str, &str); 6] = [
    (
        "plain",
        "Address = 10.9.0.2/24, 10.9.0.3/24, fd09::2/64\nMTU = 1280",
        "AllowedIPs = 10.0.0.0/8, fd10::/16",
    ),
    (
        "full",
        "Address = 10.9.0.2/24, fd09::2/64\nDNS = 10.9.0.1, example.org\nPreUp = true\n\
         PostUp = true\nPreDown = true\nPostDown = true",
        "AllowedIPs = 0.0.0.0/0, ::/0, 172.20.0.0/16",
    ),
    (
        "of IPv4",
        "Address = 10.9.0.3/24\nFwMark = 9",
        "AllowedIPs = 0.0.0.0/0",
    ),
    (
        "by halves",
        "Address = 10.9.0.4/24\nDNS = 10.9.0.5",
        "AllowedIPs = 0.0.0.0/1, 128.0.0.0/1, ::/1, 8000::/1",
    ),
    (
        "with its endpoint inside",
        "Address = fd09::2/64",
        "AllowedIPs = 203.0.113.0/24, 192.168.0.0/16",
    ),
    (
        "to a table",
        "Address = 10.9.0.2/32\nTable = 77",
        "AllowedIPs = 0.0.0.0/0, ::/0",
    ),
];

/// Returns a file with these lines in its two sections.
pub(crate) fn file(interface: &str, peer: &str) -> Result<File> {
    let text = format!(
        "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n{interface}\n\
         [Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\n\
         Endpoint = 203.0.113.9:51820\n{peer}\n"
    );
    let parsed = parse(text.as_bytes(), Dialect::WgQuick);
    parsed.file.ok_or_else(|| Error::unmet("a file in order"))
}

/// A host with one uplink, in a sandbox.
pub(crate) struct TestHost(());

impl TestHost {
    pub(crate) fn new() -> Result<Self> {
        // The tests write name servers into a copy of the file.
        run(
            "sh",
            "-c",
            &["cp -a /etc /run/etc && mount --bind /run/etc /etc"],
        )?;
        run(
            "sh",
            "-c",
            &["rm -f /etc/resolv.conf; echo nameserver 192.0.2.1 > /etc/resolv.conf"],
        )?;
        for words in [
            "link set lo up",
            "link add eth0 type veth peer name eth1",
            // Otherwise an address appears some time after the link comes up.
            "link set eth0 addrgenmode none",
            "link set eth1 addrgenmode none",
            "address add 192.168.1.7/24 dev eth0",
            "address add 2001:db8:9::7/64 dev eth0 nodad",
            "link set eth1 up",
            "link set eth0 up",
            "route add default via 192.168.1.1",
            "-6 route add default via 2001:db8:9::1",
        ] {
            ip(words)?;
        }
        let bench = Self(());
        settled(|| bench.state())?;
        Ok(bench)
    }

    /// Returns all state that a tunnel may change.
    pub(crate) fn state(&self) -> Result<String> {
        let mut state = String::new();
        for words in [
            "address",
            "-4 route show table all",
            "-6 route show table all",
            "-4 rule",
            "-6 rule",
        ] {
            state += &ip(words)?;
        }
        state += &run("nft", "list", &["ruleset"])?;
        state += &self.valid_mark()?;
        state += "\n";
        for folder in ["/etc/resolv.conf", "/run/wireguard", "/run/taupe"] {
            // The lock file is not part of the state.
            let listed = run("ls", "-A", &["-I", "resolv.conf.lock", folder]);
            state += &listed.unwrap_or_default();
        }
        state += &fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
        state += &run("sh", "-c", &["ls -A /etc | grep resolv"])?;
        Ok(state)
    }

    /// Returns the normalised state once it no longer changes.
    pub(crate) fn settled(&self) -> Result<String> {
        settled(|| self.likeness())
    }

    /// Returns the state without details that differ from interface to interface: numbers, random
    /// addresses, and the order of addresses.
    fn likeness(&self) -> Result<String> {
        let state = self.state()?;
        let mut lines: Vec<String> = state
            .lines()
            .filter(|line| !line.contains("fe80:") && !line.contains("wgt.sock"))
            .map(|line| match line.split_once(": wgt:") {
                Some((_, rest)) => rest.to_owned(),
                None => line.replace(" secondary", ""),
            })
            .collect();
        lines.sort();
        Ok(lines.join("\n"))
    }

    /// Checks that the state is unchanged. First resets a sysctl that `wg-quick` leaves changed.
    pub(crate) fn is_as(&self, before: &str, compatibility: Compatibility) -> Result<()> {
        if compatibility == Compatibility::WgQuick {
            self.reset_valid_mark()?;
        }
        let after = self.state()?;
        let (gone, new) = (only(before, &after), only(&after, before));
        ensure!(after == before, "gone: {gone:#?}, new: {new:#?}");
        Ok(())
    }

    pub(crate) fn valid_mark(&self) -> Result<String> {
        let text = fs::read_to_string(VALID_MARK);
        let text = text.map_err(|error| Error::unmet(error.to_string()))?;
        Ok(text.trim().to_owned())
    }

    pub(crate) fn reset_valid_mark(&self) -> Result<()> {
        let written = fs::write(VALID_MARK, "0");
        written.map_err(|error| Error::unmet(error.to_string()))
    }

    /// Runs `ip`.
    pub(crate) fn ip(&self, words: &str) -> Result<()> {
        ip(words).map(drop)
    }

    pub(crate) fn routes_by(&self, interface: &str) -> Result<usize> {
        Ok(ip(&format!("-4 route show dev {interface}"))?
            .lines()
            .count())
    }
}

const VALID_MARK: &str = "/proc/sys/net/ipv4/conf/all/src_valid_mark";

/// Returns the lines of a text that the other one lacks.
pub(crate) fn only(text: &str, other: &str) -> Vec<String> {
    let other: Vec<&str> = other.lines().collect();
    let lines = text.lines().filter(|line| !other.contains(line));
    lines.map(str::to_owned).collect()
}

/// Calls `look` until its result no longer changes: the kernel adds IPv6 addresses and links with a
/// delay.
fn settled(look: impl Fn() -> Result<String>) -> Result<String> {
    let mut last = look()?;
    loop {
        thread::sleep(Duration::from_millis(200));
        let next = look()?;
        if next == last {
            return Ok(last);
        }
        last = next;
    }
}

fn ip(words: &str) -> Result<String> {
    let words: Vec<&str> = words.split(' ').collect();
    match words.split_first() {
        Some((first, rest)) => run("ip", first, rest),
        None => Ok(String::new()),
    }
}

fn run(program: &str, first: &str, rest: &[&str]) -> Result<String> {
    let output = Command::new(program).arg(first).args(rest).output();
    let output = output.map_err(|error| Error::unmet(format!("{program}: {error}")))?;
    let result = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{program} {first} {rest:?}: {result}"
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Devices in this process.
#[derive(Default)]
struct InProcess(Vec<JoinHandle<Exit>>);

impl Devices for InProcess {
    fn start(&mut self, interface: &str) -> std::result::Result<(), String> {
        let options = taupe_engine::Options {
            interface: interface.to_owned(),
            tun: TunSource::Create { lanes: None },
            underlay: taupe_engine::Underlay::Here,
            outer_mark: None,
            tap: None,
            uapi: UapiSource::Bind,
            offloads: Offloads::default(),
            state_dir: Some(scratch("labels")),
            notices: None,
        };
        let engine = Engine::start(options).map_err(|error| error.to_string())?;
        self.0.push(thread::spawn(|| engine.run()));
        Ok(())
    }
}

struct StderrReport;

impl Report for StderrReport {
    fn step(&mut self, _: &str) {}

    fn note(&mut self, sentence: &str) {
        eprintln!("{sentence}");
    }
}

/// A tunnel to be brought up and down.
pub(crate) struct Tunnel<'a> {
    interface: &'static str,
    file: &'a File,
    compatibility: Compatibility,
    state: State,
    devices: InProcess,
    schedule: Schedule,
}

impl<'a> Tunnel<'a> {
    pub(crate) fn new(
        interface: &'static str,
        file: &'a File,
        compatibility: Compatibility,
    ) -> Self {
        Self {
            interface,
            file,
            compatibility,
            state: State::default(),
            devices: InProcess::default(),
            schedule: Schedule::default(),
        }
    }

    pub(crate) fn strike(&mut self, number: usize, fault: Fault) {
        self.schedule = Schedule {
            due: Some((number, fault)),
            ..Schedule::default()
        };
    }

    pub(crate) fn struck(&self) -> bool {
        self.schedule.struck
    }

    pub(crate) fn has_journal(&self) -> bool {
        Path::new("/run/taupe")
            .join(format!("{}.journal", self.interface))
            .exists()
    }

    fn request<'b>(&self, file: &'b File) -> Request<'b> {
        Request {
            transparent: None,
            outer: None,
            outer_stamp: None,
            interface: self.interface,
            config: Path::new("/etc/wireguard/wgt.conf"),
            stamp: None,
            file,
            compatibility: self.compatibility,
            options: Options::default(),
        }
    }

    /// Brings it up; `None` if its process died.
    pub(crate) fn up(&mut self) -> Option<std::result::Result<(), UpError>> {
        let request = self.request(self.file);
        let state = self.state.clone();
        let mut machine = self.machine();
        mortal(|| up_on(&mut machine, &state, &request, &mut StderrReport))
    }

    /// Takes it down; `None` if its process died.
    pub(crate) fn down(&mut self) -> Option<std::result::Result<(), DownError>> {
        let request = Down {
            interface: self.interface,
            file: None,
            problem: None,
            compatibility: self.compatibility,
            save: true,
        };
        let state = self.state.clone();
        let mut machine = self.machine();
        mortal(|| down_on(&mut machine, &state, &request, &mut StderrReport))
    }

    /// Brings it up without a fault.
    pub(crate) fn make(&mut self) -> Result<()> {
        self.schedule = Schedule::default();
        match self.up() {
            Some(Ok(())) => Ok(()),
            other => Err(Error::unmet(format!("up: {other:?}"))),
        }
    }

    /// Takes it down without a fault, and waits for its devices.
    pub(crate) fn end(&mut self) -> Result<()> {
        self.schedule = Schedule::default();
        let down = self.down();
        let down_fine = matches!(down, Some(Ok(()))) || !self.has_journal();
        ensure!(down_fine, "down: {down:?}");
        for device in self.devices.0.drain(..) {
            let exit = device.join();
            ensure!(exit.is_ok(), "a device panicked");
        }
        Ok(())
    }

    pub(crate) fn reload(&mut self, file: &File) -> Result<()> {
        self.schedule = Schedule::default();
        let request = self.request(file);
        let state = self.state.clone();
        let mut machine = self.machine();
        let reloaded = reload_on(
            &mut machine,
            &state,
            &request,
            &mut || Ok(()),
            &mut StderrReport,
        );
        ensure!(reloaded.is_ok(), "reload: {reloaded:?}");
        Ok(())
    }

    pub(crate) fn machine(&mut self) -> FaultInjector<'_, '_> {
        let inner = Linux::new(self.interface, &self.state, &mut self.devices);
        FaultInjector {
            inner: inner.expect("netlink"),
            schedule: &mut self.schedule,
        }
    }
}
