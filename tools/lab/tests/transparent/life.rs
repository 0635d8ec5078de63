//! Up, killed, up again, down: the path of each application's traffic meanwhile.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use rustix::mount::mount_bind;
use rustix::process::{Signal, kill_process};
use taupe_lab::capture::Capture;
use taupe_lab::sandbox::{scratch, scratch_file, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{
    Application, INTERFACE, NEIGHBOUR, TUNNEL, UPLINK, World, expect, expect_refused, succeeded,
};

/// A file as Windows users have it, with other keys: it works without changes.
pub(crate) fn windows_client_file_of_2021() -> Result<()> {
    let world = World::new()?;
    let hosts = scratch_file("hosts", "192.168.1.2 vpn.example.net\n")?;
    mount_bind(&*hosts, "/etc/hosts").map_err(Error::io("/etc/hosts"))?;
    let file = world.file_with_sections(
        "Address = 10.77.0.1/32, fd77::1/128\nDNS = 8.8.8.8, 1.1.1.1\nMTU = 1420",
        "AllowedIPs = 0.0.0.0/0, ::/0\nEndpoint = vpn.example.net:51821\n\
         AllowedApps = chrome\nDisallowedIPs = 192.168.1.0/24",
    )?;
    let (chrome, firefox) = (Application::new("chrome")?, Application::new("firefox")?);
    let check = world.taupe(&["check", &file])?;
    ensure!(
        check.status == Some(0) && check.stdout.ends_with("can be used, with 1 warning\n"),
        "check: {}",
        check.stdout
    );
    // The application is in no folder of installed programs.
    ensure!(
        check
            .stdout
            .contains("is called chrome: this matches nothing yet"),
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

/// No packet of a selected application is on the uplink; all packets of another one are.
pub(crate) fn selected_and_unselected() -> Result<()> {
    let world = World::new()?;
    let selected = Application::new("mole")?;
    let other = Application::new("bird")?;
    let file = world.file("AllowedApps = mol*")?;
    world.up(&file)?;
    let capture = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    for family in [0, 1] {
        expect(&world, &selected, family, Some(TUNNEL[family]))?;
    }
    for family in [0, 1] {
        expect(&world, &other, family, Some(UPLINK[family]))?;
    }
    let packets = capture.stop()?;
    // A connection of each family: three packets to open it, and more.
    ensure!(packets.len() >= 8, "{} packets in clear", packets.len());
    let capture = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    for family in [0, 1] {
        expect(&world, &selected, family, Some(TUNNEL[family]))?;
    }
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.down(&file)
}

/// A killed device leaves its applications cut off, at once and until it is up again or taken down.
pub(crate) fn killed_then_up_then_down() -> Result<()> {
    let world = World::new()?;
    let (selected, other) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    let before = world.configuration()?;
    world.up(&file)?;
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    let capture = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    step("killed");
    world.kill_device()?;
    expect_refused(&world, &selected)?;
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    expect(&world, &other, 0, Some(UPLINK[0]))?;
    step("up again");
    world.up(&file)?;
    for family in [0, 1] {
        expect(&world, &selected, family, Some(TUNNEL[family]))?;
    }
    expect(&world, &other, 1, Some(UPLINK[1]))?;
    step("killed, then down");
    world.kill_device()?;
    world.down(&file)?;
    expect(&world, &selected, 0, Some(UPLINK[0]))?;
    world.is_as_before(&before, "something is left")?;
    let again = world.taupe(&["down", &file])?;
    ensure!(again.status == Some(1), "down twice");
    Ok(())
}

/// If the device is killed while `up` runs commands, the application stays blocked.
pub(crate) fn killed_before_it_was_up() -> Result<()> {
    let world = World::new()?;
    let selected = Application::new("mole")?;
    let kill = "PostUp = pkill -KILL -P $PPID -x taupe-packets; false";
    let file = world.file("AllowedApps = mole")?;
    let text = fs::read_to_string(&file).map_err(Error::io(&*file))?;
    let killing = text.replace("[Peer]", &format!("{kill}\n[Peer]"));
    fs::write(&file, killing).map_err(Error::io(&*file))?;
    let up = world.taupe(&["up", "--foreground", &file])?;
    ensure!(up.status == Some(75), "{up:?}");
    expect_refused(&world, &selected)?;
    step("begun anew");
    fs::write(&file, text).map_err(Error::io(&*file))?;
    world.up(&file)?;
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    world.down(&file)?;
    expect(&world, &selected, 0, Some(UPLINK[0]))
}

/// `up` directly after `kill -9`: the dying device still exists for a moment.
pub(crate) fn killed_and_up_at_once() -> Result<()> {
    let world = World::new()?;
    let selected = Application::new("mole")?;
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    let capture = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    for _ in 0..5 {
        kill_process(world.device()?, Signal::KILL).map_err(Error::io("kill"))?;
        world.up(&file)?;
    }
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    step("a device that lives, if silently");
    let device = world.device()?;
    kill_process(device, Signal::STOP).map_err(Error::io("stop"))?;
    let up = world.taupe(&["up", &file])?;
    kill_process(device, Signal::CONT).map_err(Error::io("continue"))?;
    ensure!(up.stderr.contains("is up already"), "{}", up.stderr);
    world.down(&file)
}

/// With `--foreground` a signal takes the tunnel down, with its applications' rules.
pub(crate) fn foreground() -> Result<()> {
    let world = World::new()?;
    let selected = Application::new("mole")?;
    let file = world.file("#@ws:AllowedApps = mole")?;
    let mut process = world.stay_up(&[], &file, &selected)?;
    process.signal(Signal::TERM)?;
    let status = process.wait(Duration::from_secs(10))?;
    let output = process.output();
    ensure!(status.success(), "{status}: {output}");
    // The missing interface is no fault.
    ensure!(!output.contains("No such device"), "{output}");
    expect(&world, &selected, 0, Some(UPLINK[0]))?;
    for (what, line) in [("deleted", ""), ("not undone", "\nPostDown = false")] {
        step(what);
        let file = world.file_with_sections(
            &format!("Address = 10.77.0.1/32{line}"),
            "Endpoint = 192.168.1.2:51821\nAllowedIPs = 0.0.0.0/0\nAllowedApps = mole",
        )?;
        let mut process = world.stay_up(&[], &file, &selected)?;
        match what {
            "deleted" => drop(world.near.ip(&["link", "delete", "dev", INTERFACE])?),
            _ => process.signal(Signal::TERM)?,
        }
        let status = process.wait(Duration::from_secs(30))?;
        let output = process.output();
        ensure!(status.code() == Some(1), "{what}: {status}: {output}");
        ensure!(output.contains("is blocked"), "{what}: {output}");
        ensure!(!output.contains("has been undone"), "{what}: {output}");
        expect(&world, &selected, 0, None)?;
        world.down(&file)?;
        expect(&world, &selected, 0, Some(UPLINK[0]))?;
    }
    Ok(())
}

/// The interface lacks the file's settings: nothing is saved from it, and adapter mode is not
/// applied to it.
pub(crate) fn file_is_not_saved_from_the_interface() -> Result<()> {
    let world = World::new()?;
    let selected = Application::new("mole")?;
    let file = world.file_with_sections(
        "Address = 10.77.0.1/32 # mine\nSaveConfig = true",
        "Endpoint = 192.168.1.2:51821\nAllowedIPs = 0.0.0.0/0\n#@ws:AllowedApps = mole",
    )?;
    let read = || std::fs::read_to_string(&file).map_err(Error::io(&*file));
    let before = read()?;
    world.up(&file)?;
    step("save");
    let save = world.taupe(&["save", &file])?;
    ensure!(save.status == Some(1), "save: {}", save.stderr);
    ensure!(save.stderr.contains("transparent mode"), "{}", save.stderr);
    ensure!(read()? == before, "{}", read()?);
    step("kept closed");
    let down = world.taupe(&["down", "--keep-closed", &file])?;
    succeeded("down", &down)?;
    ensure!(read()? == before, "{}", read()?);
    let up = world.taupe(&["up", "--adapter", &file])?;
    ensure!(up.status == Some(1), "up --adapter: {}", up.stderr);
    let other =
        world.file_with_sections("Address = 10.77.0.1/32", "Endpoint = 192.168.1.2:51821")?;
    let up = world.taupe(&["up", &other])?;
    ensure!(up.status == Some(1), "up: {}", up.stderr);
    ensure!(up.stderr.contains("taupe down home"), "{}", up.stderr);
    std::fs::write(&file, &before).map_err(Error::io(&*file))?;
    step("down");
    world.up(&file)?;
    world.down(&file)?;
    ensure!(read()? == before, "{}", read()?);
    step("in the foreground");
    let mut process = world.stay_up(&[], &file, &selected)?;
    process.signal(Signal::TERM)?;
    let status = process.wait(Duration::from_secs(30))?;
    ensure!(status.success(), "{status}: {}", process.output());
    ensure!(read()? == before, "{}", read()?);
    Ok(())
}

/// The tunnel is named after a link to a file whose own name is no valid name.
pub(crate) fn symbolic_link_names_the_tunnel() -> Result<()> {
    let world = World::new()?;
    let selected = Application::new("mole")?;
    let file = world.file("AllowedApps = mole")?;
    let real = scratch("provider, as of today.conf");
    std::fs::rename(&file, &real).map_err(Error::io(&*file))?;
    symlink(&real, &file).map_err(Error::io(&*file))?;
    world.up(&file)?;
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    succeeded("reload", &world.taupe(&["reload", &file])?)?;
    world.down(&file)?;
    expect(&world, &selected, 0, Some(UPLINK[0]))
}

/// Settings that this version does not support are rejected before any change.
pub(crate) fn refused() -> Result<()> {
    let world = World::new()?;
    let selected = Application::new("mole")?;
    let before = world.configuration()?;
    for (lines, word) in [
        ("AllowedApps = uid:nobody-of-that-name", "no user"),
        (
            "AllowedApps = mole\nForwarded = sideways",
            "neither tunnel nor direct",
        ),
    ] {
        let file = world.file(lines)?;
        let up = world.taupe(&["up", &file])?;
        ensure!(up.status == Some(1), "{lines}: {:?}", up.status);
        ensure!(up.stderr.contains(word), "{lines}: {}", up.stderr);
        world.is_as_before(&before, &format!("{lines}: something is left"))?;
        expect(&world, &selected, 0, Some(UPLINK[0]))?;
    }
    step("a step after the capture fails");
    let file = world.file_with_sections(
        "Address = 10.77.0.1/32\nPostUp = false",
        "Endpoint = 192.168.1.2:51821\nAllowedIPs = 0.0.0.0/0\nAllowedApps = mole",
    )?;
    for options in [&["up"][..], &["up", "--foreground"]] {
        let up = world.taupe(&[options, &[&*file]].concat())?;
        ensure!(up.status == Some(1), "{options:?}: {up:?}");
        world.is_as_before(&before, &format!("{options:?}: something is left"))?;
        expect(&world, &selected, 0, Some(UPLINK[0]))?;
    }
    Ok(())
}
