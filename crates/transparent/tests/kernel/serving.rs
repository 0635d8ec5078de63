//! The packet processes of a tunnel, which are never selected.

use crate::application::install;
use crate::processes::{oracle, replace};
use crate::scene::{REMOTE, Scene, at, everything_but, rules};
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Result, ensure};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("packet_processes_bypass", packet_processes_bypass),
        SystemTest::new(
            "the_end_of_a_packet_process_blocks",
            the_end_of_a_packet_process_blocks,
        ),
    ]
}

fn packet_processes_bypass() -> Result<()> {
    let mut scene = Scene::new()?;
    let (carrier, other) = (install("carrier")?, install("other")?);
    let to = at(REMOTE[0], 80);
    let mut held = scene.start(&carrier, &["hold", &to])?;
    let mut asked = oracle(&scene, &carrier, &[])?;
    let processes = [Some(asked.id()?), Some(held.id())];
    scene.set_up_with(processes, &rules(&["/"], &[]), &everything_but(&[]))?;
    step("by their numbers, not by their program");
    scene.expect(&carrier, &["tcp", &to], "beyond")?;
    asked.says("bypass")?;
    step("also by the next rules");
    replace(&mut scene, &rules(&["carrier"], &[]))?;
    asked.says("bypass")?;
    scene.expect(&other, &["tcp", &to], "far")?;
    scene.expect(&carrier, &["tcp", &to], "beyond")?;
    step("and by sockets from before");
    let said = held.go()?;
    ensure!(said == "far far", "{said}");
    Ok(())
}

/// Nobody carries the packets any more.
fn the_end_of_a_packet_process_blocks() -> Result<()> {
    let mut scene = Scene::new()?;
    let carrier = install("carrier")?;
    let to = at(REMOTE[0], 80);
    for which in [0, 1] {
        let mut carriers = [
            scene.start(&carrier, &["hold", &to])?,
            scene.start(&carrier, &["hold", &to])?,
        ];
        let processes = [Some(carriers[0].id()), Some(carriers[1].id())];
        scene.set_up_with(processes, &rules(&["/"], &[]), &everything_but(&[]))?;
        ensure!(scene.programs()?.is_up(), "it is down");
        step(&format!("packet process {which}"));
        carriers[which].kill()?;
        ensure!(!scene.programs()?.is_up(), "it is up without {which}");
        let tun = scene.tun.clone();
        let again = scene.read_again(&tun);
        let why = again.expect_err("an error").to_string();
        ensure!(why.contains("has ended"), "{why}");
        ensure!(!scene.programs()?.is_up(), "it is up again without {which}");
        let late = scene.set_up_with(processes, &rules(&["/"], &[]), &everything_but(&[]));
        let why = late.expect_err("an error").to_string();
        ensure!(why.contains("has ended"), "{why}");
    }
    Ok(())
}
