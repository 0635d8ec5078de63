//! If there can be no tunnel, the error gives the reason and a remedy, and no command runs.

use crate::{HOME, PROGRAM, World, home};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use taupe_lab::process::Attempt;
use taupe_lab::{Error, Result, ensure};

/// Checks for a single line with these words.
fn ensure_refused(attempt: &Attempt, words: &[&str]) -> Result<()> {
    ensure!(attempt.status == Some(125), "{attempt:?}");
    ensure!(attempt.stdout.is_empty(), "{attempt:?}");
    ensure!(attempt.stderr.lines().count() == 1, "{attempt:?}");
    for word in words {
        ensure!(attempt.stderr.contains(word), "{word}: {attempt:?}");
    }
    Ok(())
}

pub(crate) fn namespaces() -> Result<()> {
    let world = World::new()?;
    // A user namespace has limits of its own.
    for kind in ["user", "net", "mnt"] {
        let script = format!(
            "echo 0 > /proc/sys/user/max_{kind}_namespaces; \
             exec {PROGRAM} exec {} -- echo run",
            home()
        );
        let inside = [
            "unshare",
            "--user",
            "--map-root-user",
            "bash",
            "-c",
            &script,
        ];
        let name = format!("user.max_{kind}_namespaces is 0");
        let fix = format!("sudo sysctl -w user.max_{kind}_namespaces=");
        ensure_refused(&world.user(&inside)?, &[&name, &fix])?;
    }
    Ok(())
}

pub(crate) fn tun() -> Result<()> {
    const TUN: &str = "/dev/net/tun";
    let world = World::new()?;
    let try_it = || world.exec("echo run");
    let private = Permissions::from_mode(0o600);
    fs::set_permissions(TUN, private).map_err(Error::io(TUN))?;
    ensure_refused(
        &try_it()?,
        &[TUN, "user 4711", "sudo chmod 0666 /dev/net/tun"],
    )?;
    fs::remove_file(TUN).map_err(Error::io(TUN))?;
    ensure_refused(&try_it()?, &[TUN, "sudo modprobe tun"])
}

pub(crate) fn file() -> Result<()> {
    let world = World::new()?;
    let run = |file: &str| world.user(&[PROGRAM, "exec", file, "--", "echo", "run"]);
    ensure_refused(
        &run("/run/exec/home/none.conf")?,
        &["/run/exec/home/none.conf"],
    )?;
    let path = format!("{HOME}/home.conf");
    let text = fs::read_to_string(&path).map_err(Error::io(&*path))?;
    fs::write(&path, text.replace("0.0.0.0/0", "nonsense")).map_err(Error::io(&*path))?;
    let attempt = run(&path)?;
    ensure!(
        attempt.status == Some(125) && attempt.stdout.is_empty(),
        "{attempt:?}"
    );
    ensure!(attempt.stderr.contains("home.conf:8:"), "{attempt:?}");
    ensure!(
        attempt.stderr.contains("nothing was started"),
        "{attempt:?}"
    );
    let hooks = "PostUp = touch /run/exec/home/ran\nAllowedApps = curl\nFwMark = 7";
    let path = world.file("hooks", hooks, "10.77.0.0/24")?;
    let attempt = run(&path)?;
    ensure!(
        attempt.status == Some(0) && attempt.stdout == "run\n",
        "{attempt:?}"
    );
    for word in ["PostUp", "AllowedApps in line 5", "FwMark is not used"] {
        ensure!(attempt.stderr.contains(word), "{word}: {attempt:?}");
    }
    ensure!(
        !fs::exists(format!("{HOME}/ran")).unwrap_or(true),
        "the hook was run"
    );
    Ok(())
}

/// A port that is in use, and one that only root may use.
pub(crate) fn port() -> Result<()> {
    let world = World::new()?;
    let socket = world
        .near
        .enter(|| std::net::UdpSocket::bind("0.0.0.0:51999").map_err(Error::io("UDP port")))?;
    for port in [51999, 80] {
        let path = world.file(
            "port",
            &format!("DNS = 10.77.0.2\nListenPort = {port}"),
            "0.0.0.0/0",
        )?;
        let command = [
            "env",
            "LOG_LEVEL=silent",
            PROGRAM,
            "exec",
            &path,
            "--",
            "echo",
            "run",
        ];
        let named = format!("UDP port {port} is not available");
        ensure_refused(
            &world.user(&command)?,
            &[&named, "delete the line ListenPort"],
        )?;
    }
    drop(socket);
    Ok(())
}
