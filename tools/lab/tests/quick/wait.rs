//! `taupe up --wait`, and the names of peers.

use crate::closed::kill_device;
use crate::{INTERFACE, World, read};
use rustix::process::Signal;
use std::time::Duration;
use taupe_lab::peers::Implementation;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

/// A network to which no application sends a packet by itself.
const NARROW: &str = "AllowedIPs = 10.77.0.0/24";

const SOON: Duration = Duration::from_secs(30);

/// `up --wait` succeeds once the peer has answered, although no application has sent a packet.
pub(crate) fn answered() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", &format!("# Name = the server's name\n{NARROW}"))?;
    let up = world.taupe(&["up", "--wait", "--adapter", &file])?;
    ensure!(up.status == Some(0), "{up:?}");
    ensure!(
        up.stderr
            .contains("every peer with an Endpoint has answered"),
        "{up:?}"
    );
    // A tunnel that is up is found by its name, although its file is elsewhere.
    let reload = world.taupe(&["reload", INTERFACE])?;
    ensure!(reload.status == Some(0), "{reload:?}");
    let shown = world.taupe(&["show", INTERFACE, "latest-handshakes"])?;
    ensure!(!shown.stdout.trim().ends_with("\t0"), "{shown:?}");
    for (command, line) in [
        (["show", INTERFACE], "  name: the server's name"),
        (
            ["status", INTERFACE],
            "  peer the server's name (192.0.2.2:51821):",
        ),
    ] {
        let shown = world.taupe(&command)?.stdout;
        ensure!(
            shown.lines().any(|it| it.starts_with(line)),
            "no {line:?}: {shown}"
        );
    }
    let json = world.taupe(&["status", "--json"])?.stdout;
    let json: serde_json::Value =
        serde_json::from_str(&json).map_err(|error| Error::unmet(format!("{error}: {json}")))?;
    let name = &json["tunnels"][0]["peers"][0]["name"];
    ensure!(name == "the server's name", "{name}");
    world.down(&file).map(drop)
}

/// A peer that does not answer is an error with its usual causes. The tunnel stays up.
pub(crate) fn unanswered() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", NARROW)?;
    let right = read(&file)?;
    let key = &world.server.keys.public;
    let other = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=";
    for (wrong, reasons) in [
        // A key that the server does not have, and a port at which nobody listens.
        (right.replace(&**key, other), &["PublicKey"][..]),
        (
            right.replace("192.0.2.2:51821", "192.0.2.2:9"),
            &["a firewall"],
        ),
    ] {
        ensure!(wrong != right, "unchanged");
        std::fs::write(&file, wrong).map_err(Error::io("file"))?;
        let up = world.taupe(&["up", "--wait=2", "--adapter", &file])?;
        ensure!(up.status == Some(1), "{up:?}");
        let sentence = format!(
            "{INTERFACE} is up, but at least one peer with an Endpoint did not answer within 2 s: "
        );
        ensure!(up.stderr.contains(&sentence), "{up:?}");
        for reason in reasons {
            ensure!(up.stderr.contains(reason), "no {reason}: {up:?}");
        }
        world.down(&file)?;
    }
    Ok(())
}

/// `up --wait` ends at once if another command takes the tunnel down.
pub(crate) fn taken_down() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", NARROW)?;
    let other = read(&file)?.replace("192.0.2.2:51821", "192.0.2.2:9");
    std::fs::write(&file, other).map_err(Error::io("file"))?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let up = [&*program, "up", "--wait=600", "--adapter", &file];
    let mut up = world.near.spawn(&up)?;
    wait_until("a handshake", SOON, || {
        let status = world.taupe(&["status", INTERFACE, "--json"])?.stdout;
        let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_default();
        let unanswered = &status["tunnels"][0]["peers"][0]["unanswered_handshakes"];
        Ok(unanswered.as_u64().is_some_and(|count| count > 0))
    })?;
    world.down(&file)?;
    let status = up.wait(SOON)?;
    ensure!(
        status.code() == Some(1) && up.output().contains("and has ended since"),
        "{status}: {}",
        up.output()
    );
    Ok(())
}

/// `taupe events` tells of a tunnel that comes, loses its process and goes, and of its peer, and runs a
/// command for each.
pub(crate) fn events() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", NARROW)?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let told = scratch("told");
    let command = format!("echo $TAUPE_EVENT $TAUPE_TUNNEL >> {}", told.display());
    let mut events = world
        .near
        .spawn(&[&program, "events", "--json", "--exec", &command])?;
    let mut seen = |event: &str| {
        let line = format!("\"event\":\"{event}\"");
        wait_until(&line, SOON, || {
            ensure!(events.runs()?, "{}", events.output());
            Ok(events.output().contains(&line))
        })
    };
    let up = world.taupe(&["up", "--wait", "--adapter", &file])?;
    ensure!(up.status == Some(0), "{up:?}");
    seen("up")?;
    seen("peer-connected")?;
    kill_device(&world)?;
    seen("degraded")?;
    seen("peer-gone")?;
    world.down(&file)?;
    seen("down")?;
    let words = ["up", "peer-connected", "degraded", "peer-gone", "down"]
        .map(|it| format!("{it} {INTERFACE}"));
    wait_until("commands", SOON, || {
        let told = read(&told)?;
        Ok(words
            .iter()
            .all(|word| told.lines().any(|line| line == word)))
    })?;
    events.signal(Signal::TERM)?;
    events.wait(SOON).map(drop)
}
