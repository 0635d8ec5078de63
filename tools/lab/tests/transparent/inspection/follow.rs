//! `flows --follow` while tunnels appear and disappear, and its end.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

use super::flows::{serve, talk};
use crate::world::{Application, INTERFACE, World};

/// A failed query is reported once, and further queries follow. It ends on a signal, or when its
/// reader is gone.
pub(crate) fn to_the_end() -> Result<()> {
    let world = World::new()?;
    serve(&world)?;
    let mole = Application::new("mole")?;
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let follow = [&*program, "flows", "--follow", "--json", INTERFACE];
    let mut follow = world.near.spawn(&follow)?;
    let first = talk(&world, &mole)?;
    wait_for(&follow, "begun", &first)?;
    step("down");
    world.down(&file)?;
    wait_for(&follow, "ended", &first)?;
    let complaint = "home is not up";
    wait_until("the complaint", Duration::from_secs(10), || {
        Ok(follow.output().contains(complaint))
    })?;
    // Time for some more queries.
    std::thread::sleep(Duration::from_secs(3));
    ensure!(follow.runs()?, "it has ended: {}", follow.output());
    step("up again");
    world.up(&file)?;
    let second = talk(&world, &mole)?;
    wait_for(&follow, "begun", &second)?;
    let result = follow.output();
    ensure!(result.matches(complaint).count() == 1, "not once: {result}");
    step("down again");
    world.down(&file)?;
    wait_until("another complaint", Duration::from_secs(10), || {
        Ok(follow.output().matches(complaint).count() == 2)
    })?;
    follow.signal(Signal::INT)?;
    follow.wait(Duration::from_secs(5))?;
    step("unread");
    world.up(&file)?;
    // No change that would be printed.
    let read_once = format!("{program} flows --follow | head -n 1");
    let _third = talk(&world, &mole)?;
    let read = world
        .near
        .attempt(&["timeout", "20", "sh", "-c", &read_once])?;
    ensure!(read.status == Some(0), "it goes on: {read:?}");
    ensure!(read.stdout.lines().count() == 1, "{read:?}");
    ensure!(read.stderr.is_empty(), "{read:?}");
    world.down(&file)
}

fn wait_for(follow: &Process, event: &str, process: &Process) -> Result<()> {
    wait_until(event, Duration::from_secs(30), || {
        let result = follow.output();
        let mut events = result
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(events.any(|one| one["event"] == event && one["pid"] == process.id()))
    })
}
