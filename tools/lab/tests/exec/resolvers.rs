//! A command uses the tunnel's resolv.conf, whatever the system's is.

use crate::{BEYOND, NAME, PROGRAM, World, as_user};
use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

const FILE: &str = "/etc/resolv.conf";

const PATIENCE: Duration = Duration::from_secs(60);

fn remove() -> Result<()> {
    fs::remove_file(FILE).map_err(Error::io(FILE))
}

impl World {
    /// Checks that only the tunnel's server resolves names.
    fn ensure_resolves(&self) -> Result<()> {
        let reported = self.output_of(&format!("cat {FILE}; getent ahostsv4 {NAME}"))?;
        let servers = reported
            .lines()
            .filter(|line| line.starts_with("nameserver"));
        let servers: Vec<_> = servers.collect();
        ensure!(servers == ["nameserver 10.77.0.2"], "{reported}");
        ensure!(reported.contains(&BEYOND.to_string()), "{reported}");
        Ok(())
    }
}

pub(crate) fn absent() -> Result<()> {
    let world = World::new()?;
    remove()?;
    world.ensure_resolves()?;
    ensure!(
        fs::symlink_metadata(FILE).is_err(),
        "it has been made outside"
    );
    // The other files of /etc are visible.
    let reported = world.output_of("cat /etc/nsswitch.conf; test -e /etc/passwd && echo there")?;
    ensure!(
        reported.contains("hosts: files dns\n") && reported.ends_with("there\n"),
        "{reported}"
    );
    Ok(())
}

pub(crate) fn dangling() -> Result<()> {
    let world = World::new()?;
    remove()?;
    symlink("../run/nowhere/resolv.conf", FILE).map_err(Error::io(FILE))?;
    world.ensure_resolves()
}

pub(crate) fn hidden() -> Result<()> {
    let world = World::new()?;
    remove()?;
    let folder = "/run/systemd/resolve";
    fs::create_dir_all(folder).map_err(Error::io(folder))?;
    let stub = format!("{folder}/stub-resolv.conf");
    fs::write(&stub, "nameserver 127.0.0.53\n").map_err(Error::io(&*stub))?;
    symlink("../run/systemd/resolve/stub-resolv.conf", FILE).map_err(Error::io(FILE))?;
    world.ensure_resolves()?;
    let outside = fs::read_to_string(FILE).map_err(Error::io(FILE))?;
    ensure!(outside == "nameserver 127.0.0.53\n", "{outside}");
    Ok(())
}

/// Some programs do not modify the file, but replace it.
pub(crate) fn replaced() -> Result<()> {
    const OUTSIDE: &str = "nameserver 192.0.2.2\n# new\n";
    const SWITCH: &str = "/etc/nsswitch.conf";
    let world = World::new()?;
    let put = |path: &str, text: &str| {
        fs::write("/etc/new", text).map_err(Error::io("/etc/new"))?;
        fs::rename("/etc/new", path).map_err(Error::io(path))
    };
    put(SWITCH, "hosts: files resolve dns\n")?;
    let mut first = world.start("echo begun; sleep 600")?;
    wait_until("begun", PATIENCE, || Ok(first.output().contains("begun")))?;
    let is_own = || {
        let reported = world.join(&format!("cat {FILE} {SWITCH}; getent ahostsv4 {NAME}"))?;
        let own = ["nameserver 10.77.0.2\n", "hosts: files dns\n"];
        let has_own = own.iter().all(|line| reported.stdout.contains(line));
        let is_new = reported.stdout.contains("# new");
        ensure!(has_own && !is_new, "{reported:?}");
        ensure!(
            reported.stdout.contains(&BEYOND.to_string()),
            "{reported:?}"
        );
        Ok(())
    };
    is_own()?;
    step("by files");
    put(FILE, OUTSIDE)?;
    put(SWITCH, "hosts: resolve # new\n")?;
    is_own()?;
    step("by a link");
    let folder = "/run/NetworkManager";
    fs::create_dir_all(folder).map_err(Error::io(folder))?;
    fs::write("/run/NetworkManager/resolv.conf", OUTSIDE).map_err(Error::io(folder))?;
    symlink("../run/NetworkManager/resolv.conf", "/etc/new").map_err(Error::io("/etc/new"))?;
    fs::rename("/etc/new", FILE).map_err(Error::io(FILE))?;
    is_own()?;
    ensure!(first.runs()?, "{}", first.output());
    let outside = fs::read_to_string(FILE).map_err(Error::io(FILE))?;
    ensure!(outside == OUTSIDE, "{outside}");
    Ok(())
}

/// The device's process, which is confined by then, looks the name of a silent peer up again, in a file
/// that has replaced the first.
pub(crate) fn endpoint_name() -> Result<()> {
    const HOSTS: &str = "/etc/hosts";
    let world = World::new()?;
    let put = |address: &str| {
        let text = format!("127.0.0.1 localhost\n{address} peer.test\n");
        fs::write("/etc/new", text).map_err(Error::io("/etc/new"))?;
        fs::rename("/etc/new", HOSTS).map_err(Error::io(HOSTS))
    };
    put("192.0.2.99")?;
    let path = world.file("named", "", "0.0.0.0/0, ::/0")?;
    let text = fs::read_to_string(&path).map_err(Error::io(&*path))?;
    let named = text.replace("Endpoint = 192.0.2.2:", "Endpoint = peer.test:");
    ensure!(named != text, "{text}");
    fs::write(&path, named).map_err(Error::io(&*path))?;
    let script = format!(
        "echo begun; until ping -n -c 1 -W 1 {BEYOND} >/dev/null; do :; done; echo answered"
    );
    let words = [PROGRAM, "exec", &path, "--", "bash", "-c", &script];
    let command = world.near.spawn(&as_user(&words))?;
    wait_until("begun", PATIENCE, || Ok(command.output().contains("begun")))?;
    put("192.0.2.2")?;
    wait_until("answered", PATIENCE, || {
        Ok(command.output().contains("answered"))
    })
}

/// The same if the file was a symbolic link to elsewhere before the command.
pub(crate) fn linked() -> Result<()> {
    let world = World::new()?;
    remove()?;
    let folder = "/run/NetworkManager";
    let file = "/run/NetworkManager/resolv.conf";
    fs::create_dir_all(folder).map_err(Error::io(folder))?;
    fs::write(file, "nameserver 192.0.2.2\n").map_err(Error::io(file))?;
    symlink("../run/NetworkManager/resolv.conf", FILE).map_err(Error::io(FILE))?;
    let mut first = world.start("echo begun; sleep 600")?;
    wait_until("begun", PATIENCE, || Ok(first.output().contains("begun")))?;
    let new = "/run/NetworkManager/new";
    fs::write(new, "nameserver 192.0.2.2\n# new\n").map_err(Error::io(new))?;
    fs::rename(new, file).map_err(Error::io(file))?;
    let reported = world.join(&format!("cat {FILE}"))?;
    let servers: Vec<_> = reported
        .stdout
        .lines()
        .filter(|line| line.starts_with("nameserver"))
        .collect();
    ensure!(servers == ["nameserver 10.77.0.2"], "{reported:?}");
    ensure!(first.runs()?, "{}", first.output());
    Ok(())
}

pub(crate) fn no_dns() -> Result<()> {
    let world = World::new()?;
    let file = world.file("plain", "", "0.0.0.0/0")?;
    let cat = [PROGRAM, "exec", &file, "--", "cat", FILE];
    let attempt = world.user(&cat)?;
    ensure!(attempt.stdout == "nameserver 192.0.2.2\n", "{attempt:?}");
    ensure!(
        attempt
            .stderr
            .contains("192.0.2.2 of /etc/resolv.conf will be asked"),
        "{attempt:?}"
    );
    fs::write(FILE, "nameserver 127.0.0.53\n").map_err(Error::io(FILE))?;
    let attempt = world.user(&cat)?;
    ensure!(attempt.stderr.contains("add a line DNS"), "{attempt:?}");
    Ok(())
}
