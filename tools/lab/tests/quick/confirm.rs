//! `up` confirms that its changes last before it runs the file's commands.

use crate::state::State;
use crate::{INTERFACE, World};
use std::os::unix::fs::PermissionsExt as _;
use taupe_lab::capture::Capture;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

/// The program for name servers that `up` runs lowers the MTU below IPv6's minimum. The kernel then
/// removes the interface's IPv6 addresses without an error, and packets for the tunnel's IPv6
/// network would leave through the uplink.
pub(crate) fn before_post_up() -> Result<()> {
    let world = World::new()?;
    let ran = scratch("ran").display().to_string();
    let file = world.file(
        &format!("DNS = 10.77.0.53\nPostUp = touch {ran}"),
        // The addresses alone create these routes, so no later step fails.
        "AllowedIPs = 10.77.0.0/24, fd77::/64",
    )?;
    let path = resolvconf(&format!("ip link set dev {INTERFACE} mtu 1279"))?;
    let before = State::of(&world.near)?;
    let clear = Capture::start(&world.far, "eth0", "net fd77::/64")?;

    let up = up_with(&world, &path, &file)?;
    ensure!(up.status == Some(1), "up: {up:?}");
    let command = format!("`ip -6 address add fd77::1/64 dev {INTERFACE}` did not last");
    ensure!(up.stderr.contains(&command), "up: {}", up.stderr);
    let has_run = std::path::Path::new(&ran).exists();
    ensure!(!has_run, "PostUp has run: {}", up.stderr);
    let left = before.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "left behind:\n{left}");

    // Without this change the file is valid, and PostUp runs.
    let path = resolvconf("true")?;
    let up = up_with(&world, &path, &file)?;
    ensure!(up.status == Some(0), "up: {up:?}");
    ensure!(std::path::Path::new(&ran).exists(), "PostUp has not run");
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.down(&file).map(drop)
}

/// Writes a program `resolvconf` that runs `command` when it is given servers. Returns a `PATH`
/// that begins with its folder.
fn resolvconf(command: &str) -> Result<String> {
    let folder = scratch("bin");
    std::fs::create_dir_all(&folder).map_err(Error::io("bin"))?;
    let program = folder.join("resolvconf");
    let script = format!("#!/bin/sh\n[ \"$1\" != -a ] || {{ cat > /dev/null; {command}; }}\n");
    std::fs::write(&program, script).map_err(Error::io("resolvconf"))?;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&program, mode).map_err(Error::io("resolvconf"))?;
    let path = std::env::var("PATH").unwrap_or_default();
    Ok(format!("PATH={}:{path}", folder.display()))
}

fn up_with(world: &World, path: &str, file: &str) -> Result<taupe_lab::process::Attempt> {
    let program = Implementation::Taupe.program()?.display().to_string();
    let command = ["env", path, &program, "up", "--adapter", file];
    world.near.attempt(&command)
}
