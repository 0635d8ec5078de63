//! The system's parts for name resolution, private to the sandbox.

use rustix::mount::mount_bind;
use rustix::process::Signal;
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;
use taupe_adapter::dns::{Dns, Paths, choose};
use taupe_lab::host::{Host, link};
use taupe_lab::packages::SYSTEMD;
use taupe_lab::process::{self, Process, wait_until};
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

pub(crate) const BUS: &str = "/run/dbus/system_bus_socket";
pub(crate) const RESOLV_CONF: &str = "/etc/resolv.conf";

/// The tunnel's interface, and the server behind it.
pub(crate) const INTERFACE: &str = "wg0";
pub(crate) const SERVER: &str = "10.77.0.2";

/// Gives the sandbox an `/etc` of its own, with the machine's content.
pub(crate) fn own_etc() -> Result<()> {
    let folder = scratch("etc").display().to_string();
    let mut copy = Command::new("cp");
    copy.args(["-a", "/etc", &folder]);
    process::run("the sandbox", copy, None)?;
    mount_bind(&folder, "/etc").map_err(Error::io("mount on /etc"))?;
    // The file may be a mount or a symbolic link.
    write_resolv_conf("# of the sandbox\nnameserver 198.51.100.1\n")
}

pub(crate) fn write_resolv_conf(text: &str) -> Result<()> {
    let _ = fs::remove_file(RESOLV_CONF);
    fs::write(RESOLV_CONF, text).map_err(Error::io(RESOLV_CONF))
}

/// Returns `/etc/resolv.conf` and files with similar names: name, link target, content.
pub(crate) fn resolv_conf() -> Result<Vec<(String, Option<PathBuf>, String)>> {
    let mut seen = Vec::new();
    for entry in fs::read_dir("/etc").map_err(Error::io("/etc"))?.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with("resolv.conf") {
            let text = fs::read_to_string(entry.path()).unwrap_or_default();
            seen.push((name, entry.path().read_link().ok(), text));
        }
    }
    seen.sort();
    Ok(seen)
}

/// The interface `wg0` of a tunnel (here a cable) to a machine with a name server.
pub(crate) struct Tunnel {
    pub(crate) near: Host,
    pub(crate) far: Host,
}

impl Tunnel {
    pub(crate) fn new() -> Result<Self> {
        let (near, far) = (Host::new("near")?, Host::new("far")?);
        let (here, there) = (
            ["10.77.0.1/24", "fd77::1/64"],
            ["10.77.0.2/24", "fd77::2/64"],
        );
        link(near.port(INTERFACE, &here), far.port("eth0", &there), 1420)?;
        Ok(Self { near, far })
    }

    pub(crate) fn choose(&self, paths: &Paths, servers: &[&str], search: &[&str]) -> Result<Dns> {
        let servers: Vec<IpAddr> = servers
            .iter()
            .filter_map(|word| word.parse().ok())
            .collect();
        let search: Vec<String> = search.iter().map(|&word| word.to_owned()).collect();
        self.near.enter(|| {
            let chosen = choose(paths, INTERFACE, &servers, &search).map_err(unmet)?;
            chosen.ok_or_else(|| Error::unmet("nothing was chosen"))
        })
    }

    pub(crate) fn apply(&self, dns: &Dns, paths: &Paths) -> Result<()> {
        self.near.enter(|| dns.apply(paths).map_err(unmet))
    }

    pub(crate) fn undo(&self, dns: &Dns, paths: &Paths) -> Result<()> {
        let note = self.near.enter(|| dns.undo(paths).map_err(unmet))?;
        ensure!(note.is_none(), "{note:?}");
        Ok(())
    }
}

/// Returns the difference between the tunnel's name servers and those in force, as a sentence.
pub(crate) fn deviation(tunnel: &Tunnel, dns: &Dns, paths: &Paths) -> Result<Option<String>> {
    let found = tunnel.near.enter(|| dns.verify(paths).map_err(unmet))?;
    Ok(found.map(|found| found.to_string()))
}

/// Checks that another program's change is detected, and that setting the servers again repairs it.
pub(crate) fn found_and_restored(
    tunnel: &Tunnel,
    dns: &Dns,
    paths: &Paths,
    words: &str,
) -> Result<()> {
    let found = deviation(tunnel, dns, paths)?.unwrap_or_default();
    ensure!(found.contains(words), "{words}: {found:?}");
    tunnel.near.enter(|| dns.restore(paths).map_err(unmet))?;
    let found = deviation(tunnel, dns, paths)?;
    ensure!(found.is_none(), "set again: {found:?}");
    Ok(())
}

/// Converts an error into an unmet expectation.
pub(crate) fn unmet(error: impl std::fmt::Display) -> Error {
    Error::unmet(error.to_string())
}

/// A message bus in a machine, which can start systemd-resolved there.
pub(crate) struct Bus {
    process: Process,
}

impl Bus {
    /// Starts the bus. If `startable` is true, a request starts systemd-resolved.
    pub(crate) fn start(host: &Host, startable: bool) -> Result<Self> {
        let services = scratch("services");
        for folder in [services.as_path(), "/run/dbus".as_ref()] {
            fs::create_dir_all(folder).map_err(Error::io(folder.display().to_string()))?;
        }
        if startable {
            // Like the package's file, but the bus starts the service, since there is no systemd.
            let text = format!(
                "[D-BUS Service]\nName=org.freedesktop.resolve1\nExec={}\n",
                ResolvedDaemon::command()?.join(" ")
            );
            let file = services.join("org.freedesktop.resolve1.service");
            fs::write(&file, text).map_err(Error::io("service file"))?;
        }
        // As permissive as the policy of a real system bus is for root.
        let configuration = format!(
            "<!DOCTYPE busconfig PUBLIC \"-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN\" \
             \"http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd\">\n\
             <busconfig><listen>unix:path={BUS}</listen><auth>EXTERNAL</auth>\
             <servicedir>{}</servicedir><policy context=\"default\"><allow user=\"*\"/>\
             <allow own=\"*\"/><allow send_destination=\"*\"/><allow receive_sender=\"*\"/>\
             </policy></busconfig>",
            services.display()
        );
        let file = scratch("bus.conf").display().to_string();
        fs::write(&file, configuration).map_err(Error::io("bus.conf"))?;
        let option = format!("--config-file={file}");
        let process = host.spawn(&["dbus-daemon", &option, "--nofork", "--nopidfile"])?;
        wait_until("socket of the bus", Duration::from_secs(5), || {
            Ok(fs::exists(BUS).unwrap_or(false))
        })?;
        Ok(Self { process })
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }
}

/// systemd-resolved in a machine.
pub(crate) struct ResolvedDaemon {
    process: Process,
}

impl ResolvedDaemon {
    /// Returns the program's command line.
    fn command() -> Result<[String; 3]> {
        let folder = SYSTEMD.folder()?.display().to_string();
        Ok([
            "/usr/bin/env".to_owned(),
            format!("LD_LIBRARY_PATH={}", libraries()?),
            format!("{folder}/lib/systemd/systemd-resolved"),
        ])
    }

    /// Prepares for the service: its user, and `/etc/resolv.conf` as its link.
    pub(crate) fn prepare() -> Result<()> {
        own_etc()?;
        for (file, line) in [
            (
                "/etc/passwd",
                "systemd-resolve:x:997:997::/:/usr/sbin/nologin\n",
            ),
            ("/etc/group", "systemd-resolve:x:997:\n"),
        ] {
            let text = fs::read_to_string(file).map_err(Error::io(file))?;
            if !text
                .lines()
                .any(|line| line.starts_with("systemd-resolve:"))
            {
                fs::write(file, text + line).map_err(Error::io(file))?;
            }
        }
        // Names are resolved only with the servers in resolv.conf.
        fs::write("/etc/nsswitch.conf", "hosts: dns\n").map_err(Error::io("nsswitch.conf"))?;
        fs::create_dir_all("/run/systemd").map_err(Error::io("/run/systemd"))?;
        let _ = fs::remove_file(RESOLV_CONF);
        let stub = "../run/systemd/resolve/stub-resolv.conf";
        symlink(stub, RESOLV_CONF).map_err(Error::io(RESOLV_CONF))
    }

    pub(crate) fn start(host: &Host) -> Result<Self> {
        let command = Self::command()?;
        let process = host.spawn(&command.each_ref().map(String::as_str))?;
        let limit = Duration::from_secs(10);
        wait_until("systemd-resolved", limit, || {
            Ok(resolvectl(host, &["dns"]).is_ok())
        })?;
        Ok(Self { process })
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }
}

fn libraries() -> Result<String> {
    let folder = SYSTEMD.folder()?;
    // `lib/x86_64-linux-gnu/systemd`, or that of another architecture.
    let lib = folder.join("usr/lib");
    let entries = fs::read_dir(&lib).map_err(Error::io(lib.display().to_string()))?;
    let mut folders = entries.flatten().map(|entry| entry.path().join("systemd"));
    let found = folders.find(|folder| folder.parent().is_some_and(is_triplet) && folder.is_dir());
    found
        .map(|folder| folder.display().to_string())
        .ok_or_else(|| Error::unmet("no libraries of systemd"))
}

fn is_triplet(folder: &std::path::Path) -> bool {
    folder.to_string_lossy().contains("-linux-gnu")
}

pub(crate) fn resolvectl(host: &Host, arguments: &[&str]) -> Result<String> {
    systemd_program(host, "resolvectl", arguments, None)
}

/// Runs systemd's own `resolvconf`, which is `resolvectl` by another name.
pub(crate) fn systemd_resolvconf(host: &Host, arguments: &[&str], input: &str) -> Result<()> {
    systemd_program(host, "resolvconf", arguments, Some(input)).map(drop)
}

fn systemd_program(
    host: &Host,
    name: &str,
    arguments: &[&str],
    input: Option<&str>,
) -> Result<String> {
    let program = SYSTEMD.folder()?.join("usr/bin/resolvectl");
    let called = scratch(name);
    if !called.exists() {
        symlink(program, &called).map_err(Error::io("link to resolvectl"))?;
    }
    let called = called.display().to_string();
    let mut command = host.command(&[&[&*called], arguments].concat());
    command
        .env("LD_LIBRARY_PATH", libraries()?)
        .env("SYSTEMD_PAGER", "");
    Ok(process::run(host.name(), command, input)?.stdout)
}

/// Returns the name server settings of a machine, as printed.
pub(crate) fn settings(host: &Host) -> Result<String> {
    let mut text = String::new();
    for what in ["dns", "domain", "default-route", "status"] {
        text.push_str(&resolvectl(host, &[what])?);
    }
    Ok(text)
}

/// Starts a name server that answers every name with one address.
pub(crate) fn serve_names(host: &Host, address: [u8; 4]) -> Result<mpsc::Receiver<String>> {
    let (sender, receiver) = mpsc::channel();
    let server = host.enter(|| UdpSocket::bind((SERVER, 53)).map_err(Error::io("port 53")))?;
    std::thread::spawn(move || {
        let mut buffer = [0; 1500];
        while let Ok((length, client)) = server.recv_from(&mut buffer) {
            if let Some((name, answer)) = answer(&buffer[..length], address) {
                let _ = sender.send(name);
                let _ = server.send_to(&answer, client);
            }
        }
    });
    Ok(receiver)
}

/// Returns the name in a query, and the answer (RFC 1035, section 4).
fn answer(query: &[u8], address: [u8; 4]) -> Option<(String, Vec<u8>)> {
    let (header, rest) = query.split_at_checked(12)?;
    let (mut name, mut position) = (String::new(), 0);
    loop {
        let length = usize::from(*rest.get(position)?);
        position += 1;
        if length == 0 {
            break;
        }
        let label = rest.get(position..position + length)?;
        name = format!("{name}{}.", String::from_utf8_lossy(label));
        position += length;
    }
    let question = rest.get(..position + 4)?;
    let is_address = question[position..] == [0, 1, 0, 1];
    let mut answer = header[..2].to_vec();
    // A response, recursion desired and available; one question.
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_address), 0, 0, 0, 0]);
    answer.extend(question);
    if is_address {
        // The name of the question; type A, class IN, 60 s, 4 bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(address);
    }
    Some((name, answer))
}
