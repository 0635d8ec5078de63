//! A tunnel as a service: stopped, started again, and the machine going off.

use std::time::Duration;

use rustix::process::Signal;
use taupe_lab::capture::Capture;
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

use crate::world::{Application, TUNNEL, UPLINK, World, expect};

/// `down --keep-closed`, as the service is stopped, holds back until `up` or `down`.
pub(crate) fn stopped_and_closed() -> Result<()> {
    let world = World::new()?;
    let (chosen, other) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    let before = world.configuration()?;
    world.up(&file)?;
    let capture = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    step("closed");
    let down = world.taupe(&["down", "--keep-closed", &file])?;
    ensure!(down.status == Some(0), "down: {}", down.stderr);
    ensure!(down.stderr.contains("held back"), "down: {}", down.stderr);
    world.is_as_before(&before, "something is left")?;
    for family in [0, 1] {
        expect(&world, &chosen, family, None)?;
    }
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    expect(&world, &other, 0, Some(UPLINK[0]))?;
    let status = world.taupe(&["status", "home"])?;
    ensure!(status.stdout.starts_with("home: down"), "{}", status.stdout);
    let all = world.taupe(&["status"])?;
    ensure!(all.stdout == status.stdout, "of all: {}", all.stdout);
    step("up again");
    world.up(&file)?;
    expect(&world, &chosen, 0, Some(TUNNEL[0]))?;
    step("closed, and open");
    for keep in [true, true, false] {
        let options: &[&str] = if keep { &["--keep-closed"] } else { &[] };
        let down = world.taupe(&[&["down"], options, &[&*file]].concat())?;
        ensure!(down.status == Some(0), "{options:?}: {}", down.stderr);
        let who = (!keep).then_some(UPLINK[0]);
        expect(&world, &chosen, 0, who)?;
    }
    let again = world.taupe(&["down", &file])?;
    ensure!(again.status == Some(1), "down once more");
    Ok(())
}

/// The service's own process, ended by a signal or by the command that stops it.
pub(crate) fn the_process_of_a_service() -> Result<()> {
    let world = World::new()?;
    let chosen = Application::new("mole")?;
    let file = world.file("AllowedApps = mole")?;
    for by_command in [false, true] {
        step(if by_command {
            "by command"
        } else {
            "by signal"
        });
        let mut process = world.stay_up(&["--keep-closed"], &file, &chosen)?;
        if by_command {
            let down = world.taupe(&["down", "--keep-closed", &file])?;
            ensure!(down.status == Some(0), "down: {}", down.stderr);
            // As a service manager does when a service goes on after its stop.
            let _ = process.signal(Signal::TERM);
        } else {
            process.signal(Signal::TERM)?;
        }
        let status = process.wait(Duration::from_secs(20))?;
        ensure!(status.success(), "{status}: {}", process.output());
        expect(&world, &chosen, 0, None)?;
    }
    world.down(&file)?;
    expect(&world, &chosen, 0, Some(UPLINK[0]))
}
