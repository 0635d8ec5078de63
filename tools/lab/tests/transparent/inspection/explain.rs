//! `explain`: the decision for an application or a process.

use std::fs;
use std::time::Duration;

use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

use super::status;
use crate::world::{Application, World, succeeded};

/// `explain` for each tunnel that is up, and for a file, up or not.
pub(crate) fn explained() -> Result<()> {
    let world = World::new()?;
    let office = world.with_another("office", 9)?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let to = "198.51.100.1:443";
    let none = world.taupe(&["explain", &mole.0, to])?;
    ensure!(none.status == Some(1), "{none:?}");
    ensure!(none.stderr.contains("--conf CONF"), "{}", none.stderr);
    let home = world.file("AllowedApps = mole")?;
    let what_if = world.taupe(&["explain", "--conf", &home, &mole.0, to])?;
    succeeded("explain", &what_if)?;
    ensure!(what_if.stdout.contains("6  =>"), "{}", what_if.stdout);
    world.up(&home)?;
    let file = office.file("AllowedApps = bird")?;
    world.up(&file)?;
    let both = world.taupe(&["explain", &bird.0, to])?;
    succeeded("explain", &both)?;
    let (of_home, of_office) = both
        .stdout
        .split_once("office (")
        .ok_or_else(|| Error::unmet(format!("not of both: {}", both.stdout)))?;
    ensure!(of_home.contains("5  =>"), "{of_home}");
    ensure!(of_office.contains("6  =>"), "{of_office}");
    ensure!(of_office.contains(": AllowedApps = bird"), "{of_office}");
    in_another_network(&world, &mole, to)?;
    let (code, output) = status(&world, &[])?;
    ensure!(code == Some(0), "{output}");
    ensure!(
        output["tunnels"].as_array().map(Vec::len) == Some(2),
        "{output}"
    );
    step("the worst of several");
    office.kill_device()?;
    let (code, output) = status(&world, &[])?;
    ensure!(code == Some(2) && output["state"] == "degraded", "{output}");
    world.down(&file)?;
    world.down(&home)
}

/// No rule selects a process in a network namespace of its own, whatever its name.
fn in_another_network(world: &World, mole: &Application, to: &str) -> Result<()> {
    let Application(path) = mole;
    let wait = [path, "-c", "sleep 300; :"];
    let here = world.near.spawn(&wait)?;
    let there = world
        .near
        .spawn(&[&["unshare", "-n"], &wait[..]].concat())?;
    let runs = |process: &Process| {
        let link = fs::read_link(format!("/proc/{}/exe", process.id()));
        link.is_ok_and(|link| link.as_os_str() == path.as_str())
    };
    wait_until("both processes", Duration::from_secs(15), || {
        Ok(runs(&here) && runs(&there))
    })?;
    for (process, step) in [(&here, "6  =>"), (&there, "1  => network")] {
        let output = world.taupe(&["explain", &process.id().to_string(), to])?;
        succeeded("explain", &output)?;
        let (of_home, _) = output.stdout.split_once("office (").unwrap_or_default();
        ensure!(of_home.contains(step), "{step}: {}", output.stdout);
    }
    Ok(())
}
