//! A machine with an uplink, its WireGuard server, and a tunnel of one kind between them.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;
use taupe_lab::host::{Host, neighbours};
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Attempt, Process, wait_until};
use taupe_lab::sandbox::{scratch, scratch_file};
use taupe_lab::server::Server;
use taupe_lab::{Error, Result, ensure};

/// The tunnel's interface.
pub(crate) const INTERFACE: &str = "wgnear";

/// An address behind the default route, and behind the tunnel.
pub(crate) const BEYOND: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

/// The machine's address in the tunnel.
const TUNNEL: &str = "10.77.0.1";

/// The machine's address on the uplink.
const UPLINK: &str = "192.0.2.1";

/// Port of a server that sends its client's address.
const PORT: u16 = 8080;

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// Kind of tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// `taupe device`, configured by `wg` and `ip`.
    Device,
    /// `taupe up` in adapter mode.
    Adapter,
    /// `taupe up` for a selected application.
    Transparent,
}

impl Kind {
    pub(crate) const EACH: [Self; 3] = [Self::Device, Self::Adapter, Self::Transparent];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device",
            Self::Adapter => "adapter",
            Self::Transparent => "transparent",
        })
    }
}

pub(crate) struct World {
    pub(crate) kind: Kind,
    pub(crate) near: Host,
    pub(crate) far: Host,
    pub(crate) server: Server,
    /// The tunnel's file.
    pub(crate) file: String,
    program: String,
    /// The selected application: a shell under another name.
    application: String,
    /// Processes of Taupe that do not belong to the tunnel.
    others: BTreeSet<i32>,
}

impl World {
    pub(crate) fn new(kind: Kind) -> Result<Self> {
        crate::room::separate_run()?;
        let (near, far) = neighbours()?;
        near.ip(&["route", "add", "default", "via", "192.0.2.2"])?;
        far.ip(&["address", "add", &BEYOND.to_string(), "dev", "lo"])?;
        let server = Server::start(&near, &far)?;
        serve(&far, SocketAddr::new(BEYOND, PORT))?;
        // It appears some time after the cable.
        let own = ["ip", "-6", "route", "show", "table", "local", "dev", "eth0"];
        wait_until("the cable's own address", Duration::from_secs(30), || {
            Ok(near.run(&own)?.stdout.contains("fe80:"))
        })?;
        let program = Implementation::Taupe.program()?.display().to_string();
        let mut world = Self {
            kind,
            near,
            far,
            server,
            file: String::new(),
            program,
            application: application()?,
            others: BTreeSet::new(),
        };
        world.others = world.all_processes()?;
        world.file = world.file_with("", "")?;
        Ok(world)
    }

    /// Writes a file with additional lines.
    pub(crate) fn file_with(&self, interface: &str, peer: &str) -> Result<String> {
        let selects = match self.kind {
            Kind::Transparent => format!("AllowedApps = {}", self.application),
            Kind::Device | Kind::Adapter => String::new(),
        };
        let text = self.server.file(
            &format!("{selects}\n{interface}"),
            &format!("AllowedIPs = 0.0.0.0/0, ::/0\n{peer}"),
        );
        scratch_file(&format!("{INTERFACE}.conf"), &text)
    }

    pub(crate) fn taupe(&self, arguments: &[&str]) -> Result<Attempt> {
        self.taupe_under(&[], arguments)
    }

    /// Runs a command of Taupe under another command, such as `prlimit`.
    pub(crate) fn taupe_under(&self, under: &[&str], arguments: &[&str]) -> Result<Attempt> {
        self.near
            .attempt(&[under, &[&self.program], arguments].concat())
    }

    /// Returns the words that bring the tunnel up, with options.
    fn up_words<'a>(&'a self, options: &[&'a str]) -> Vec<&'a str> {
        let (verb, last): (&[_], _) = match self.kind {
            Kind::Device => (&["device"], INTERFACE),
            Kind::Adapter => (&["up", "--adapter"], &*self.file),
            Kind::Transparent => (&["up"], &*self.file),
        };
        [verb, options, &[last]].concat()
    }

    /// Starts the tunnel in the background under another command. On success it is configured.
    pub(crate) fn start(&self, under: &[&str]) -> Result<Attempt> {
        let attempt = self.start_only(under)?;
        if attempt.status == Some(0) {
            self.configure()?;
        }
        Ok(attempt)
    }

    /// Starts the tunnel in the background under another command, and does not configure a device.
    pub(crate) fn start_only(&self, under: &[&str]) -> Result<Attempt> {
        self.taupe_under(under, &self.up_words(&[]))
    }

    /// Starts the tunnel, which must succeed.
    pub(crate) fn up(&self) -> Result<Attempt> {
        let attempt = self.start(&[])?;
        ensure!(attempt.status == Some(0), "{attempt:?}");
        Ok(attempt)
    }

    /// Starts the tunnel in the foreground, with a log of warnings, and waits until it carries
    /// packets.
    pub(crate) fn stay_up(&self) -> Result<Process> {
        let command = [
            &["env", "LOG_LEVEL=warn", &self.program],
            &*self.up_words(&["--foreground"]),
        ];
        let mut process = self.near.spawn(&command.concat())?;
        wait_until("the tunnel", SOON, || {
            ensure!(process.runs()?, "it ended: {}", process.output());
            match self.kind {
                Kind::Device => {
                    Ok(self.near.attempt(&["wg", "show", INTERFACE])?.status == Some(0))
                }
                // Its journal is complete, so it can be asked for.
                _ => {
                    let shown = self.taupe(&["status", INTERFACE])?;
                    Ok(!shown.stdout.is_empty() && shown.status != Some(1))
                }
            }
        })?;
        self.configure()?;
        wait_until("packets in the tunnel", SOON, || self.carries())?;
        Ok(process)
    }

    /// Does what `wg-quick` would do with a device; the other kinds have done it themselves.
    pub(crate) fn configure(&self) -> Result<()> {
        if self.kind != Kind::Device {
            return Ok(());
        }
        let stripped = self.taupe(&["strip", &self.file])?;
        ensure!(stripped.status == Some(0), "{stripped:?}");
        let settings = scratch_file("device.conf", &stripped.stdout)?;
        self.near.run(&["wg", "setconf", INTERFACE, &settings])?;
        let address = format!("{TUNNEL}/24");
        self.near
            .ip(&["address", "add", &address, "dev", INTERFACE])?;
        self.near
            .ip(&["link", "set", INTERFACE, "mtu", "1420", "up"])?;
        let beyond = BEYOND.to_string();
        self.near
            .ip(&["route", "add", &beyond, "dev", INTERFACE])
            .map(drop)
    }

    /// Ends the tunnel, and waits until all its processes have ended.
    pub(crate) fn down(&self) -> Result<Attempt> {
        let attempt = match self.kind {
            Kind::Device => {
                let delete = ["ip", "link", "delete", INTERFACE];
                self.near.attempt(&delete)?
            }
            Kind::Adapter | Kind::Transparent => self.taupe(&["down", &self.file])?,
        };
        self.await_end()?;
        Ok(attempt)
    }

    /// Waits until the tunnel has no process any more.
    pub(crate) fn await_end(&self) -> Result<()> {
        wait_until("end of the tunnel's processes", SOON, || {
            Ok(self.processes()?.is_empty())
        })
    }

    /// Returns true if the tunnel carries a packet there and back.
    pub(crate) fn carries(&self) -> Result<bool> {
        match self.kind {
            Kind::Transparent => Ok(self.seen_as()?.as_deref() == Some(TUNNEL)),
            Kind::Device | Kind::Adapter => {
                let before = self.received()?;
                Ok(self.answers()? && self.received()? > before)
            }
        }
    }

    /// Fails if the tunnel carries nothing.
    pub(crate) fn must_carry(&self, when: &str) -> Result<()> {
        ensure!(self.carries()?, "{when}: nothing goes through the tunnel");
        Ok(())
    }

    fn answers(&self) -> Result<bool> {
        let address = BEYOND.to_string();
        let ping = ["ping", "-n", "-c", "1", "-W", "2", &address];
        Ok(self.near.attempt(&ping)?.status == Some(0))
    }

    /// Returns the number of packets that the server has received from the tunnel.
    fn received(&self) -> Result<u64> {
        let path = "/sys/class/net/wgfar/statistics/rx_packets";
        let text = self.far.run(&["cat", path])?;
        let count = text.text().parse();
        count.map_err(|_| Error::unmet("packets of wgfar"))
    }

    /// Returns the address as which the server beyond sees the selected application; `None` if it
    /// cannot be reached.
    fn seen_as(&self) -> Result<Option<String>> {
        // The shell opens the connection itself.
        let ask = format!("exec 3<>/dev/tcp/{BEYOND}/{PORT} && read -r -u 3 line && echo $line");
        let attempt = self
            .near
            .attempt(&["timeout", "5", &self.application, "-c", &ask])?;
        Ok((attempt.status == Some(0)).then(|| attempt.stdout.trim().to_owned()))
    }

    /// Fails if the selected application reaches anything.
    pub(crate) fn must_be_blocked(&self, when: &str) -> Result<()> {
        let seen = self.seen_as()?;
        ensure!(seen.is_none(), "{when}: the application is {seen:?}");
        Ok(())
    }

    /// Fails if the application does not use the uplink.
    pub(crate) fn must_be_free(&self, when: &str) -> Result<()> {
        let seen = self.seen_as()?;
        ensure!(
            seen.as_deref() == Some(UPLINK),
            "{when}: the application is {seen:?}"
        );
        Ok(())
    }

    /// Returns the processes of the tunnel.
    pub(crate) fn processes(&self) -> Result<BTreeSet<i32>> {
        Ok(&self.all_processes()? - &self.others)
    }

    /// Returns all processes that run the program.
    fn all_processes(&self) -> Result<BTreeSet<i32>> {
        let identity = |path: PathBuf| {
            let data = fs::metadata(path).ok()?;
            Some((data.dev(), data.ino()))
        };
        let own = identity(PathBuf::from(&self.program));
        ensure!(own.is_some(), "no {}", self.program);
        let entries = fs::read_dir("/proc").map_err(Error::io("/proc"))?;
        let numbers = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        // A process that has ended has no program.
        let runs = |number: &i32| identity(format!("/proc/{number}/exe").into()) == own;
        Ok(numbers.filter(runs).collect())
    }

    /// Returns everything that a tunnel may change, for a comparison.
    pub(crate) fn state(&self) -> Result<State> {
        const COMMANDS: [&[&str]; 10] = [
            &["ip", "-4", "rule"],
            &["ip", "-6", "rule"],
            &["ip", "-4", "route", "show", "table", "all"],
            &["ip", "-6", "route", "show", "table", "all"],
            &["ip", "-o", "address"],
            &["nft", "list", "ruleset"],
            &["cat", "/proc/sys/net/ipv4/conf/all/src_valid_mark"],
            &["cat", "/etc/resolv.conf"],
            &["find", "/run/wireguard", "-name", "*.sock"],
            // Journals, locks, and the pins of programs.
            &[
                "find",
                "/run/taupe",
                "-type",
                "f",
                "-not",
                "-name",
                "*.debug",
            ],
        ];
        let show = |command: &&[&str]| {
            let shown = self.near.attempt(command)?;
            let mut lines: Vec<_> = shown.stdout.lines().map(str::to_owned).collect();
            lines.sort();
            Ok((command.join(" "), lines))
        };
        let mut shown = COMMANDS.iter().map(show).collect::<Result<Vec<_>>>()?;
        let processes = self.processes()?;
        let processes = processes.iter().map(i32::to_string);
        shown.push(("processes".to_owned(), processes.collect()));
        Ok(State(shown))
    }

    /// Fails if anything is not as before.
    pub(crate) fn is_as_before(&self, before: &State, what: &str) -> Result<()> {
        let now = self.state()?;
        for ((command, was), (_, is)) in before.0.iter().zip(&now.0) {
            ensure!(was == is, "{what}: {command}: {was:#?}, now {is:#?}");
        }
        Ok(())
    }

    /// Returns the names of the pinned links of programs, which protect selected applications.
    pub(crate) fn links(&self) -> Result<Vec<String>> {
        let find = "find /run/taupe/bpf -path '*/links/*' -type f -printf '%f\\n'";
        let shown = self.near.attempt(&["sh", "-c", find])?;
        // Filters have the number of their interface, which is another one for each tunnel.
        let name = |line: &str| {
            let digits = |c: char| c.is_ascii_digit();
            line.trim_start_matches(digits).to_owned()
        };
        let mut names: Vec<_> = shown.stdout.lines().map(name).collect();
        names.sort();
        Ok(names)
    }
}

/// The output of all commands that show the state.
pub(crate) struct State(Vec<(String, Vec<String>)>);

/// Creates the selected application.
fn application() -> Result<String> {
    let path = scratch("mole");
    fs::copy("/bin/bash", &path).map_err(Error::io("/bin/bash"))?;
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&path, mode).map_err(Error::io("mole"))?;
    Ok(path.display().to_string())
}

/// Runs a server that tells every client its address, until the sandbox ends.
fn serve(host: &Host, at: SocketAddr) -> Result<()> {
    let listener = host.enter(|| TcpListener::bind(at).map_err(Error::io(at.to_string())))?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            if let Ok(peer) = stream.peer_addr() {
                let _ = writeln!(stream, "{}", peer.ip());
            }
        }
    });
    Ok(())
}
