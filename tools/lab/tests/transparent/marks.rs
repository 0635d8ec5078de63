//! Selected applications in adapter mode, which replaces transparent mode on kernels without the
//! necessary features; requested here by `--adapter`.

use rustix::mount::mount_bind;
use taupe_lab::capture::Capture;
use taupe_lab::sandbox::{scratch_file, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{
    Application, BEYOND, INTERFACE, NEIGHBOUR, TUNNEL, UPLINK, World, expect, expect_refused,
    succeeded,
};

/// Traffic that must not be on the uplink.
const CLEAR: &str = "port 8080";

fn up(world: &World, file: &str) -> Result<String> {
    let up = world.taupe(&["up", "--adapter", file])?;
    succeeded("up", &up)?;
    Ok(up.stderr)
}

/// Only selected applications of both families use the tunnel, and `down` restores the system.
pub(crate) fn selected_by_mark() -> Result<()> {
    let world = World::new()?;
    let (selected, other) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mol*\nDisallowedIPs = 192.168.1.0/24")?;
    let before = world.configuration()?;
    let output = up(&world, &file)?;
    for word in ["adapter mode, because --adapter", "open sockets"] {
        ensure!(output.contains(word), "no {word:?}: {output}");
    }
    let clear = Capture::start(&world.far, "eth0", "tcp port 8080 and not host 192.168.1.2")?;
    for family in [0, 1] {
        expect(&world, &selected, family, Some(TUNNEL[family]))?;
    }
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    let clear = Capture::start(&world.far, "eth0", CLEAR)?;
    for family in [0, 1] {
        expect(&world, &other, family, Some(UPLINK[family]))?;
    }
    let packets = clear.stop()?;
    ensure!(packets.len() >= 8, "{} packets in clear", packets.len());
    let neighbour = world.asks(&selected, NEIGHBOUR)?;
    ensure!(
        neighbour.as_deref() == Some(UPLINK[0]),
        "the local network sees {neighbour:?}"
    );
    let status = world.taupe(&["status", INTERFACE])?;
    ensure!(
        status.stdout.contains("adapter mode by the mark"),
        "{}{}",
        status.stdout,
        status.stderr
    );
    step("other applications");
    succeeded("allow", &world.taupe(&["app", "allow", &file, "bird"])?)?;
    succeeded("deny", &world.taupe(&["app", "deny", &file, "mol*"])?)?;
    expect(&world, &selected, 0, Some(UPLINK[0]))?;
    expect(&world, &other, 1, Some(TUNNEL[1]))?;
    world.down(&file)?;
    world.is_as_before(&before, "something is left")?;
    expect(&world, &other, 1, Some(UPLINK[1]))
}

/// A killed device leaves its applications cut off, whatever happens to rules.
pub(crate) fn killed_by_mark() -> Result<()> {
    let world = World::new()?;
    let (selected, other) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    let before = world.configuration()?;
    up(&world, &file)?;
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    let clear = Capture::start(&world.far, "eth0", CLEAR)?;
    step("killed");
    world.kill_device()?;
    expect_refused(&world, &selected)?;
    step("without its rules");
    for family in ["-4", "-6"] {
        let command = [
            "ip",
            family,
            "rule",
            "delete",
            "fwmark",
            "0x1000000/0x1000000",
        ];
        world.near.run(&command)?;
    }
    is_cut_off(&world, &selected)?;
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    expect(&world, &other, 0, Some(UPLINK[0]))?;
    step("up again, and down");
    up(&world, &file)?;
    for family in [0, 1] {
        expect(&world, &selected, family, Some(TUNNEL[family]))?;
    }
    world.down(&file)?;
    expect(&world, &selected, 0, Some(UPLINK[0]))?;
    world.is_as_before(&before, "something is left")
}

/// If all applications but one are selected, the tunnel's own process and its questions are not.
pub(crate) fn all_but_one_by_mark() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let hosts = scratch_file("hosts", "192.168.1.2 vpn.example.net\n")?;
    mount_bind(&*hosts, "/etc/hosts").map_err(Error::io("/etc/hosts"))?;
    let file = world.file_with_sections(
        "Address = 10.77.0.1/32, fd77::1/128\nDNS = 8.8.8.8\nDisallowedApps = bird",
        "AllowedIPs = 0.0.0.0/0, ::/0\nEndpoint = vpn.example.net:51821",
    )?;
    let before = world.configuration()?;
    let output = up(&world, &file)?;
    ensure!(output.contains("DNS of the file is not used"), "{output}");
    for family in [0, 1] {
        expect(&world, &mole, family, Some(TUNNEL[family]))?;
        expect(&world, &bird, family, Some(UPLINK[family]))?;
    }
    step("reloaded");
    let lines = "AllowedIPs = 198.51.100.0/24\nEndpoint = vpn.example.net:51821";
    let file = world.file_with_sections(
        "Address = 10.77.0.1/32, fd77::1/128\nDisallowedApps = bird",
        lines,
    )?;
    succeeded("reload", &world.taupe(&["reload", &file])?)?;
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    expect(&world, &mole, 1, Some(UPLINK[1]))?;
    world.down(&file)?;
    world.is_as_before(&before, "something is left")
}

/// Traffic blocked while there is no tunnel: after `down --keep-closed`, and before an `up` in the
/// other mode.
pub(crate) fn closed_by_mark() -> Result<()> {
    let world = World::new()?;
    let (selected, other) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    let before = world.configuration()?;
    up(&world, &file)?;
    let clear = Capture::start(&world.far, "eth0", CLEAR)?;
    let down = world.taupe(&["down", "--keep-closed", &file])?;
    succeeded("down --keep-closed", &down)?;
    ensure!(down.stderr.contains("is blocked"), "{}", down.stderr);
    world.is_as_before(&before, "something is left")?;
    is_cut_off(&world, &selected)?;
    step("up again");
    let needless = world.taupe(&["lock", &file])?;
    ensure!(
        needless.status == Some(1) && needless.stderr.contains("of another mode"),
        "{needless:?}"
    );
    up(&world, &file)?;
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    expect(&world, &other, 0, Some(UPLINK[0]))?;
    world.down(&file)?;
    expect(&world, &selected, 0, Some(UPLINK[0]))?;
    step("locked in the other mode");
    succeeded("lock", &world.taupe(&["lock", &file])?)?;
    let refused = world.taupe(&["up", "--adapter", &file])?;
    ensure!(
        refused.status == Some(1) && refused.stderr.contains("`taupe down home` first"),
        "{refused:?}"
    );
    is_cut_off(&world, &selected)?;
    world.down(&file)?;
    up(&world, &file)?;
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    world.down(&file)?;
    world.is_as_before(&before, "something is left")
}

/// `KillSwitch = off`: selected applications bypass a tunnel that is down.
pub(crate) fn open_by_mark() -> Result<()> {
    let world = World::new()?;
    let selected = Application::new("mole")?;
    let file = world.file("AllowedApps = mole\nKillSwitch = off")?;
    let before = world.configuration()?;
    up(&world, &file)?;
    for family in [0, 1] {
        expect(&world, &selected, family, Some(TUNNEL[family]))?;
    }
    world.kill_device()?;
    for family in [0, 1] {
        expect(&world, &selected, family, Some(UPLINK[family]))?;
    }
    up(&world, &file)?;
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    world.down(&file)?;
    expect(&world, &selected, 0, Some(UPLINK[0]))?;
    world.is_as_before(&before, "something is left")
}

/// Checks that a selected application gets no connection within half a second. It gets no immediate
/// error if only the second program blocks it.
fn is_cut_off(world: &World, selected: &Application) -> Result<()> {
    for server in BEYOND {
        let ask = format!("exec 3<>/dev/tcp/{server}/8080");
        let attempt = world
            .near
            .attempt(&["timeout", "0.5", &selected.0, "-c", &ask])?;
        ensure!(attempt.status != Some(0), "it has got out to {server}");
    }
    Ok(())
}

/// Settings that marks cannot implement are rejected, and nothing changes.
pub(crate) fn unsupported_by_mark() -> Result<()> {
    let world = World::new()?;
    let before = world.configuration()?;
    let file = world.file("AllowedApps = mole\nKillSwitch = all")?;
    let up = world.taupe(&["up", "--adapter", &file])?;
    ensure!(up.status == Some(1), "{:?}", up.status);
    ensure!(up.stderr.contains("KillSwitch = app"), "{}", up.stderr);
    world.is_as_before(&before, "something is left")
}
