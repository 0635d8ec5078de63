//! A machine with a minimal system as its root directory, and a server at the far end of its cable.

use crate::build;
use crate::systemd::Systemd;
use crate::systems::System;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind_recursive, mount_change};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use taupe_lab::host::{Host, neighbours};
use taupe_lab::process::{Attempt, Process, wait_until};
use taupe_lab::sandbox::scratch;
use taupe_lab::server::Server;
use taupe_lab::{Error, Result, ensure};

/// An address behind the default route, and behind the tunnel.
pub(crate) const BEYOND: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

/// Port of a server that sends its client's address.
pub(crate) const PORT: u16 = 8080;

/// Port of a server that sends lines until its client ends.
pub(crate) const DOWNLOAD: u16 = 8081;

/// The machine's address in the tunnel.
pub(crate) const TUNNEL: &str = "10.77.0.1";

/// The machine's address on the uplink.
pub(crate) const UPLINK: &str = "192.0.2.1";

const SOON: Duration = Duration::from_secs(30);

pub(crate) struct Machine {
    pub(crate) near: Host,
    pub(crate) far: Host,
    root: PathBuf,
    /// The words before a command that runs it on the machine.
    enter: Vec<String>,
    systemd: Option<Systemd>,
    /// Keeps the server running.
    _server: Server,
}

impl Machine {
    /// Returns a machine without systemd, like most containers.
    pub(crate) fn new(system: System) -> Result<Self> {
        Self::with_room(system, 1 << 30)
    }

    /// Returns a machine that systemd has started.
    pub(crate) fn booted(system: System) -> Result<Self> {
        let mut machine = Self::with(system, 1 << 30)?;
        let systemd = Systemd::start(&machine.near, &machine.root)?;
        machine.enter = systemd.enter()?;
        machine.enter.extend(environment());
        machine.systemd = Some(systemd);
        machine.wait_for_boot()?;
        Ok(machine)
    }

    /// Returns a machine without systemd whose disk has room for this number of bytes.
    pub(crate) fn with_room(system: System, bytes: u64) -> Result<Self> {
        let machine = Self::with(system, bytes)?;
        // A script that calls it fails.
        for name in ["usr/bin/systemctl", "bin/systemctl"] {
            let _ = fs::remove_file(machine.path(name));
        }
        Ok(machine)
    }

    fn with(system: System, bytes: u64) -> Result<Self> {
        let (near, far) = neighbours()?;
        near.ip(&["route", "add", "default", "via", "192.0.2.2"])?;
        far.ip(&["address", "add", &BEYOND.to_string(), "dev", "lo"])?;
        serve(&far)?;
        let server = Server::start(&near, &far)?;
        let root = root(system, bytes)?;
        let packages = root.join("packages");
        fs::create_dir(&packages).map_err(Error::io("/packages"))?;
        bind(&build::packages()?, &packages)?;
        for name in ["mole", "bird"] {
            let shell = root.join("bin/bash");
            let to = root.join("usr/local/bin").join(name);
            fs::copy(shell, to).map_err(Error::io(name))?;
        }
        // Ubuntu's is a link to a file that systemd-resolved would write.
        let servers = root.join("etc/resolv.conf");
        let _ = fs::remove_file(&servers);
        fs::write(servers, "nameserver 192.0.2.2\n").map_err(Error::io("resolv.conf"))?;
        let folder = root.join("etc/wireguard");
        fs::create_dir(&folder).map_err(Error::io("/etc/wireguard"))?;
        let text = server.file("AllowedApps = mole", "AllowedIPs = 0.0.0.0/0, ::/0");
        fs::write(folder.join("home.conf"), text).map_err(Error::io("home.conf"))?;
        let mut enter = environment();
        enter.extend(["chroot".to_owned(), root.display().to_string()]);
        let machine = Self {
            near,
            far,
            root,
            enter,
            systemd: None,
            _server: server,
        };
        machine.succeeds(&["chmod", "600", "/etc/wireguard/home.conf"])?;
        Ok(machine)
    }

    /// Returns a path of the machine, as others see it.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Runs a command on the machine.
    pub(crate) fn attempt(&self, command: &[&str]) -> Result<Attempt> {
        self.near.attempt(&self.words(command))
    }

    fn words<'a>(&'a self, command: &[&'a str]) -> Vec<&'a str> {
        let enter = self.enter.iter().map(String::as_str);
        enter.chain(command.iter().copied()).collect()
    }

    fn wait_for_boot(&self) -> Result<()> {
        wait_until("the end of the start", SOON, || {
            let state = self.attempt(&["systemctl", "is-system-running"])?;
            Ok(["running", "degraded"].contains(&state.stdout.trim()))
        })
        .map_err(|error| Error::unmet(format!("{error}: {}", self.console())))
    }

    /// Returns the messages of systemd, if there is one.
    pub(crate) fn console(&self) -> String {
        self.systemd
            .as_ref()
            .map_or_else(String::new, Systemd::console)
    }

    /// Runs a command that must succeed.
    pub(crate) fn succeeds(&self, command: &[&str]) -> Result<()> {
        let attempt = self.attempt(command)?;
        ensure!(attempt.status == Some(0), "{command:?}: {attempt:?}");
        Ok(())
    }

    pub(crate) fn taupe(&self, arguments: &[&str]) -> Result<Attempt> {
        self.attempt(&[&["taupe"], arguments].concat())
    }

    /// Installs a package, over another version if there is one.
    pub(crate) fn install(&self, package: &str) -> Result<()> {
        self.succeeds(&["dpkg", "--install", &format!("/packages/{package}")])
    }

    /// Replaces the line of a key in the tunnel's file.
    pub(crate) fn edit(&self, key: &str, line: &str) -> Result<()> {
        let command = format!("s/^{key} .*/{line}/");
        self.succeeds(&["sed", "-i", &command, "/etc/wireguard/home.conf"])
    }

    /// Fails unless the server sees the application at this address. `None`: blocked.
    pub(crate) fn must_be(&self, name: &str, who: Option<&str>, when: &str) -> Result<()> {
        let ask = format!("exec 3<>/dev/tcp/{BEYOND}/{PORT} && read -r -u 3 line && echo $line");
        let asked = self.attempt(&["timeout", "10", name, "-c", &ask])?;
        let seen = (asked.status == Some(0)).then(|| asked.stdout.trim().to_owned());
        ensure!(
            seen.as_deref() == who,
            "{when}: {name} is {seen:?}, not {who:?}"
        );
        Ok(())
    }

    pub(crate) fn must_be_tunnelled(&self, when: &str) -> Result<()> {
        self.must_be("mole", Some(TUNNEL), when)
    }

    /// Starts a download of the selected application.
    pub(crate) fn download(&self) -> Result<Download> {
        let read = format!(
            "exec 3<>/dev/tcp/{BEYOND}/{DOWNLOAD} && \
             while read -r -u 3 line; do echo $line ${{EPOCHREALTIME/[!0-9]/}}; done"
        );
        let process = self.spawn(&["mole", "-c", &read])?;
        Ok(Download { process })
    }

    /// Starts a program on the machine.
    pub(crate) fn spawn(&self, command: &[&str]) -> Result<Process> {
        self.near.spawn(&self.words(command))
    }

    /// Kills the tunnel's processes.
    pub(crate) fn kill_tunnel(&self) -> Result<()> {
        for id in self.processes()?.into_iter().filter_map(Pid::from_raw) {
            // The second one may have ended with the first.
            let _ = kill_process(id, Signal::KILL);
        }
        wait_until("the end of the tunnel's processes", SOON, || {
            Ok(self.processes()?.is_empty())
        })
    }

    /// Returns the processes that run the package's program.
    fn processes(&self) -> Result<Vec<i32>> {
        let program = self.path("/usr/bin/taupe");
        let entries = fs::read_dir("/proc").map_err(Error::io("/proc"))?;
        let numbers = entries
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let runs = |number: &i32| {
            fs::read_link(format!("/proc/{number}/exe")).is_ok_and(|it| it == program)
        };
        Ok(numbers.filter(runs).collect())
    }

    /// Returns the machine's interfaces, addresses, routes, rules and pins.
    pub(crate) fn network(&self) -> Result<String> {
        // A minimal system has no `ip`.
        let links = "ip -o link; ip -o address; ip rule; ip -6 rule; ip route show table all";
        let files = "find /run/taupe /sys/fs/bpf /run/wireguard -type f -not -name '*.lock' \
                     -not -name '*.debug' 2>/dev/null";
        let links = self.near.attempt(&["sh", "-c", links])?.stdout;
        let files = self.attempt(&["sh", "-c", files])?.stdout;
        let lines = links.lines().chain(files.lines());
        let lines = lines.filter(|line| !line.contains("fe80:"));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// Returns the paths of all files but those of dpkg and of the kernel.
    pub(crate) fn files(&self) -> Result<BTreeSet<String>> {
        let script = "find / -xdev -not -path '/var/lib/dpkg/*' -not -path '/var/log/*' \
                      -not -path '/run/lock/*' -not -path '/packages/*' -not -name '*-old'";
        let found = self.attempt(&["sh", "-c", script])?;
        Ok(found.stdout.lines().map(str::to_owned).collect())
    }

    /// Leaves no room on the disk. Returns the file that takes it.
    pub(crate) fn fill(&self) -> Result<PathBuf> {
        let path = self.path("/filler");
        let file = File::create(&path).map_err(Error::io("/filler"))?;
        let zeros = vec![0; 64 << 10];
        let mut length = 0;
        while file.write_all_at(&zeros, length).is_ok() {
            length += zeros.len() as u64;
        }
        Ok(path)
    }
}

/// Time between two lines of a download.
const INTERVAL: Duration = Duration::from_millis(20);

/// A connection that receives a line every 20 ms. Its process prints each with the time of arrival.
pub(crate) struct Download {
    process: Process,
}

/// Figures of a download that has ended.
#[derive(Debug)]
pub(crate) struct Received {
    /// Time between the first and the last line.
    pub(crate) duration: Duration,
    /// The longest time between two lines.
    pub(crate) longest_pause: Duration,
}

impl Download {
    /// Fails if no further lines arrive.
    pub(crate) fn goes_on(&mut self, when: &str) -> Result<()> {
        let before = self.process.output().lines().count();
        wait_until(&format!("{when}: lines of the download"), SOON, || {
            ensure!(self.process.runs()?, "{when}: the download has ended");
            Ok(self.process.output().lines().count() > before + 10)
        })
    }

    /// Waits until it has received the lines of this time.
    pub(crate) fn lasts(&mut self, time: Duration) -> Result<()> {
        let lines = time.as_millis() / INTERVAL.as_millis();
        wait_until(&format!("{lines} lines"), 3 * time + SOON, || {
            ensure!(self.process.runs()?, "the download has ended");
            Ok(self.process.output().lines().count() as u128 >= lines)
        })
    }

    /// Ends it, and fails if a line is missing.
    pub(crate) fn end(mut self) -> Result<Received> {
        let lines = self.process.output();
        let mut times = Vec::new();
        for (expected, line) in lines.lines().enumerate() {
            let (number, time) = line.split_once(' ').unwrap_or((line, ""));
            ensure!(
                number == expected.to_string(),
                "{line} in place of {expected}"
            );
            times.extend(time.parse().ok().map(Duration::from_micros));
        }
        self.process.signal(Signal::TERM)?;
        self.process.wait(SOON)?;
        let pauses = times.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
        Ok(Received {
            duration: pauses.clone().sum(),
            longest_pause: pauses.max().unwrap_or_default(),
        })
    }
}

/// Returns the words before a command that give it the environment of a system's administrator.
fn environment() -> Vec<String> {
    const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    // dpkg asks no questions.
    const WORDS: [&str; 4] = ["env", "-i", PATH, "DEBIAN_FRONTEND=noninteractive"];
    WORDS.map(str::to_owned).to_vec()
}

/// Mounts a system that can be written to.
fn root(system: System, bytes: u64) -> Result<PathBuf> {
    let disk = scratch("disk");
    let root = scratch("root");
    for folder in [&disk, &root] {
        fs::create_dir_all(folder).map_err(Error::io("a folder"))?;
    }
    let size = CString::new(format!("size={bytes}")).unwrap_or_default();
    mount("disk", &disk, "tmpfs", MountFlags::empty(), Some(&*size))
        .map_err(Error::io("a disk"))?;
    let (upper, work) = (disk.join("upper"), disk.join("work"));
    for folder in [&upper, &work] {
        fs::create_dir(folder).map_err(Error::io("a folder"))?;
    }
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        system.root().display(),
        upper.display(),
        work.display()
    );
    let options = CString::new(options).unwrap_or_default();
    mount(
        "root",
        &root,
        "overlay",
        MountFlags::empty(),
        Some(&*options),
    )
    .map_err(Error::io("an overlay"))?;
    for folder in ["proc", "sys", "dev", "run"] {
        bind(&Path::new("/").join(folder), &root.join(folder))?;
    }
    Ok(root)
}

fn bind(from: &Path, to: &Path) -> Result<()> {
    mount_bind_recursive(from, to).map_err(Error::io(to.display().to_string()))?;
    mount_change(to, MountPropagationFlags::PRIVATE).map_err(Error::io(to.display().to_string()))
}

/// Runs the servers, until the sandbox ends.
pub(crate) fn serve(far: &Host) -> Result<()> {
    let listen = |port| {
        let at = SocketAddr::new(BEYOND, port);
        far.enter(|| TcpListener::bind(at).map_err(Error::io(at.to_string())))
    };
    let (who, lines) = (listen(PORT)?, listen(DOWNLOAD)?);
    thread::spawn(move || {
        for mut stream in who.incoming().flatten() {
            if let Ok(peer) = stream.peer_addr() {
                let _ = writeln!(stream, "{}", peer.ip());
            }
        }
    });
    thread::spawn(move || {
        for mut stream in lines.incoming().flatten() {
            thread::spawn(move || {
                let mut number = 0_u64;
                while writeln!(stream, "{number}").is_ok() {
                    number += 1;
                    thread::sleep(INTERVAL);
                }
            });
        }
    });
    Ok(())
}
