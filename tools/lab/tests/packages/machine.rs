//! A machine with a minimal Debian as its root directory, and a server at the far end of its cable.

use crate::build;
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
    /// Keeps the server running.
    _server: Server,
}

impl Machine {
    pub(crate) fn new() -> Result<Self> {
        Self::with_room(1 << 30)
    }

    /// Returns a machine whose disk has room for this number of bytes.
    pub(crate) fn with_room(bytes: u64) -> Result<Self> {
        let (near, far) = neighbours()?;
        near.ip(&["route", "add", "default", "via", "192.0.2.2"])?;
        far.ip(&["address", "add", &BEYOND.to_string(), "dev", "lo"])?;
        serve(&far)?;
        let server = Server::start(&near, &far)?;
        let root = root(bytes)?;
        let packages = root.join("packages");
        fs::create_dir(&packages).map_err(Error::io("/packages"))?;
        bind(&build::packages()?, &packages)?;
        for name in ["mole", "bird"] {
            let shell = root.join("bin/bash");
            let to = root.join("usr/local/bin").join(name);
            fs::copy(shell, to).map_err(Error::io(name))?;
        }
        let folder = root.join("etc/wireguard");
        fs::create_dir(&folder).map_err(Error::io("/etc/wireguard"))?;
        let text = server.file("AllowedApps = mole", "AllowedIPs = 0.0.0.0/0, ::/0");
        fs::write(folder.join("home.conf"), text).map_err(Error::io("home.conf"))?;
        let machine = Self {
            near,
            far,
            root,
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
        let root = self.root.display().to_string();
        self.near.attempt(&[&in_root(&root), command].concat())
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
            "exec 3<>/dev/tcp/{BEYOND}/{DOWNLOAD} && while read -r -u 3 line; do echo $line; done"
        );
        let root = self.root.display().to_string();
        let command = [&in_root(&root)[..], &["mole", "-c", &read]].concat();
        let process = self.near.spawn(&command)?;
        Ok(Download { process })
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
        let script = "ip -o link; ip -o address; ip rule; ip -6 rule; ip route show table all; \
                      find /run/taupe /sys/fs/bpf /run/wireguard -type f -not -name '*.lock' \
                      -not -name '*.debug' 2>/dev/null";
        let lines = self.near.attempt(&["sh", "-c", script])?.stdout;
        let lines = lines.lines().filter(|line| !line.contains("fe80:"));
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

/// A connection that receives lines, one every 20 ms.
pub(crate) struct Download {
    process: Process,
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

    /// Ends it, and fails if a line is missing.
    pub(crate) fn end(mut self) -> Result<()> {
        let numbers = self.process.output();
        for (expected, line) in numbers.lines().enumerate() {
            ensure!(
                line == expected.to_string(),
                "{line} in place of {expected}"
            );
        }
        self.process.signal(Signal::TERM)?;
        self.process.wait(SOON).map(drop)
    }
}

/// Returns the words before a command that runs it in this root directory.
fn in_root(root: &str) -> [&str; 6] {
    const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    // dpkg asks no questions.
    [
        "env",
        "-i",
        PATH,
        "DEBIAN_FRONTEND=noninteractive",
        "chroot",
        root,
    ]
}

/// Mounts a Debian that can be written to.
fn root(bytes: u64) -> Result<PathBuf> {
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
        build::debian().display(),
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
                    thread::sleep(Duration::from_millis(20));
                }
            });
        }
    });
    Ok(())
}
