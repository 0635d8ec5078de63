//! Up, killed, up again, down: who goes where meanwhile.

use std::time::{Duration, Instant};

use rustix::mount::mount_bind;
use rustix::process::Signal;
use taupe_lab::capture::Capture;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch_file, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{Application, BEYOND, INTERFACE, NEIGHBOUR, TUNNEL, UPLINK, World, expect};

/// What a person who comes from Windows has, with other keys: it works, and
/// nothing has to be changed in it.
pub(crate) fn the_file_of_2021() -> Result<()> {
    let world = World::new()?;
    let hosts = scratch_file("hosts", "192.168.1.2 vpn.example.net\n")?;
    mount_bind(&*hosts, "/etc/hosts").map_err(Error::io("/etc/hosts"))?;
    let file = world.whole_file(
        "Address = 10.77.0.1/32, fd77::1/128\nDNS = 8.8.8.8, 1.1.1.1\nMTU = 1420",
        "AllowedIPs = 0.0.0.0/0, ::/0\nEndpoint = vpn.example.net:51821\n\
         AllowedApps = chrome\nDisallowedIPs = 192.168.1.0/24",
    )?;
    let (chrome, firefox) = (Application::new("chrome")?, Application::new("firefox")?);
    let check = world.taupe(&["check", &file])?;
    ensure!(
        check.status == Some(0) && check.stdout.ends_with("is fine\n"),
        "check: {}",
        check.stdout
    );
    let before = world.configuration()?;
    world.up(&file)?;
    let during = world.configuration()?;
    for family in [0, 1] {
        expect(&world, &chrome, family, Some(TUNNEL[family]))?;
        expect(&world, &firefox, family, Some(UPLINK[family]))?;
    }
    let neighbour = world.asks(&chrome, NEIGHBOUR)?;
    ensure!(
        neighbour.as_deref() == Some(UPLINK[0]),
        "the local network sees {neighbour:?}"
    );
    ensure!(before.0 == during.0, "{}\n---\n{}", before.0, during.0);
    let new: Vec<_> = during
        .1
        .iter()
        .filter(|line| !before.1.contains(line))
        .collect();
    ensure!(
        new.len() == 1 && new[0].contains(INTERFACE),
        "new links: {new:?}"
    );
    world.down(&file)?;
    world.is_as_before(&before, "something is left")?;
    expect(&world, &chrome, 0, Some(UPLINK[0]))
}

/// Nothing of a chosen application's is on the uplink, and everything of another's.
pub(crate) fn chosen_and_not_chosen() -> Result<()> {
    let world = World::new()?;
    let chosen = Application::new("mole")?;
    let other = Application::new("bird")?;
    let file = world.file("AllowedApps = mol*")?;
    world.up(&file)?;
    let capture = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    for family in [0, 1] {
        expect(&world, &chosen, family, Some(TUNNEL[family]))?;
    }
    for family in [0, 1] {
        expect(&world, &other, family, Some(UPLINK[family]))?;
    }
    let packets = capture.stop()?;
    // A connection of each family: three packets to open it, and more.
    ensure!(packets.len() >= 8, "{} packets in clear", packets.len());
    let capture = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    for family in [0, 1] {
        expect(&world, &chosen, family, Some(TUNNEL[family]))?;
    }
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.down(&file)
}

/// A device that is killed leaves its applications cut off, at once and until it
/// is up again or taken down.
pub(crate) fn killed_then_up_then_down() -> Result<()> {
    let world = World::new()?;
    let (chosen, other) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    let before = world.configuration()?;
    world.up(&file)?;
    expect(&world, &chosen, 0, Some(TUNNEL[0]))?;
    let capture = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    step("killed");
    world.kill_device()?;
    for family in [0, 1] {
        let began = Instant::now();
        expect(&world, &chosen, family, None)?;
        ensure!(
            began.elapsed() < Duration::from_secs(10),
            "it was not told at once"
        );
    }
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    expect(&world, &other, 0, Some(UPLINK[0]))?;
    step("up again");
    world.up(&file)?;
    for family in [0, 1] {
        expect(&world, &chosen, family, Some(TUNNEL[family]))?;
    }
    expect(&world, &other, 1, Some(UPLINK[1]))?;
    step("killed, then down");
    world.kill_device()?;
    world.down(&file)?;
    expect(&world, &chosen, 0, Some(UPLINK[0]))?;
    world.is_as_before(&before, "something is left")?;
    let again = world.taupe(&["down", &file])?;
    ensure!(again.status == Some(1), "down twice");
    Ok(())
}

/// With `--foreground` a signal takes it down, with all that was chosen.
pub(crate) fn in_the_foreground() -> Result<()> {
    let world = World::new()?;
    let chosen = Application::new("mole")?;
    let file = world.file("#@ws:AllowedApps = mole")?;
    let program = taupe_lab::peers::Implementation::Taupe.program()?;
    let program = program.display().to_string();
    let command = [&*program, "up", "--foreground", &file];
    let mut process = world.near.spawn(&command)?;
    wait_until("the tunnel", Duration::from_secs(20), || {
        ensure!(process.runs()?, "it ended: {}", process.output());
        Ok(world.asks(&chosen, BEYOND[0])?.as_deref() == Some(TUNNEL[0]))
    })?;
    process.signal(Signal::TERM)?;
    let status = process.wait(Duration::from_secs(10))?;
    ensure!(status.success(), "{status}: {}", process.output());
    expect(&world, &chosen, 0, Some(UPLINK[0]))
}

/// What this version cannot do is refused before anything is done.
pub(crate) fn refused() -> Result<()> {
    let world = World::new()?;
    let chosen = Application::new("mole")?;
    let before = world.configuration()?;
    for (lines, word) in [
        ("AllowedApps = mole\nForwarded = tunnel", "Forwarded"),
        ("AllowedApps = uid:nobody-of-that-name", "no user"),
    ] {
        let file = world.file(lines)?;
        let up = world.taupe(&["up", &file])?;
        ensure!(up.status == Some(1), "{lines}: {:?}", up.status);
        ensure!(up.stderr.contains(word), "{lines}: {}", up.stderr);
        world.is_as_before(&before, &format!("{lines}: something is left"))?;
        expect(&world, &chosen, 0, Some(UPLINK[0]))?;
    }
    step("a step after the capture fails");
    let file = world.whole_file(
        "Address = 10.77.0.1/32\nPostUp = false",
        "Endpoint = 192.168.1.2:51821\nAllowedIPs = 0.0.0.0/0\nAllowedApps = mole",
    )?;
    for options in [&["up"][..], &["up", "--foreground"]] {
        let up = world.taupe(&[options, &[&*file]].concat())?;
        ensure!(up.status == Some(1), "{options:?}: {:?}", up.status);
        world.is_as_before(&before, &format!("{options:?}: something is left"))?;
        expect(&world, &chosen, 0, Some(UPLINK[0]))?;
    }
    Ok(())
}
