//! Whatever /etc/resolv.conf is, a command's is that of the tunnel.

use crate::{BEYOND, NAME, PROGRAM, World};
use std::fs;
use std::os::unix::fs::symlink;
use taupe_lab::{Error, Result, ensure};

const FILE: &str = "/etc/resolv.conf";

fn remove() -> Result<()> {
    fs::remove_file(FILE).map_err(Error::io(FILE))
}

impl World {
    /// Names are asked of the tunnel's server, and of it alone.
    fn ensure_resolves(&self) -> Result<()> {
        let told = self.told(&format!("cat {FILE}; getent ahostsv4 {NAME}"))?;
        let servers = told.lines().filter(|line| line.starts_with("nameserver"));
        let servers: Vec<_> = servers.collect();
        ensure!(servers == ["nameserver 10.77.0.2"], "{told}");
        ensure!(told.contains(&BEYOND.to_string()), "{told}");
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
    // The rest of /etc is there.
    let told = world.told("cat /etc/nsswitch.conf; test -e /etc/passwd && echo there")?;
    ensure!(
        told.contains("hosts: files dns\n") && told.ends_with("there\n"),
        "{told}"
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
