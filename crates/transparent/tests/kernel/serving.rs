//! The packet processes of a tunnel, which are never selected.

use crate::application::{Application, install};
use crate::daemon::{begin, daemon_words, start_daemon};
use crate::processes::{oracle, replace};
use crate::scene::{REMOTE, Scene, TUNNEL, at, everything_but, rules, unmet};
use std::fs;
use std::process::Command;
use std::time::Duration;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("packet_processes_bypass", packet_processes_bypass),
        SystemTest::new(
            "the_end_of_a_packet_process_blocks",
            the_end_of_a_packet_process_blocks,
        ),
        SystemTest::new("foreign_packet_processes", foreign_packet_processes),
        SystemTest::new(
            "a_packet_process_in_a_pid_namespace",
            a_packet_process_in_a_pid_namespace,
        ),
        SystemTest::new("a_daemon_that_was_replaced", a_daemon_that_was_replaced),
    ]
}

fn packet_processes_bypass() -> Result<()> {
    let mut scene = Scene::new()?;
    let (carrier, other) = (install("carrier")?, install("other")?);
    let to = at(REMOTE[0], 80);
    let mut holder = scene.start(&carrier, &["hold", &to])?;
    let mut asker = oracle(&scene, &carrier, &[])?;
    let processes = [Some(asker.id()?), Some(holder.id())];
    scene.set_up_with(processes, &rules(&["/"], &[]), &everything_but(&[]))?;
    step("by their numbers, not by their program");
    scene.expect(&carrier, &["tcp", &to], "beyond")?;
    asker.says("bypass")?;
    step("also by the next rules");
    replace(&mut scene, &rules(&["carrier"], &[]))?;
    asker.says("bypass")?;
    scene.expect(&other, &["tcp", &to], "far")?;
    scene.expect(&carrier, &["tcp", &to], "beyond")?;
    step("and by sockets from before");
    let answer = holder.go()?;
    ensure!(answer == "far far", "{answer}");
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
        ensure!(why.contains("does not carry packets"), "{why}");
        ensure!(!scene.programs()?.is_up(), "it is up again without {which}");
        let late = scene.set_up_with(processes, &rules(&["/"], &[]), &everything_but(&[]));
        let why = late.expect_err("an error").to_string();
        ensure!(why.contains("does not carry packets"), "{why}");
    }
    Ok(())
}

/// Only a child of the daemon that runs is accepted. Nobody else may be exempt.
fn foreign_packet_processes() -> Result<()> {
    let mut scene = Scene::new()?;
    let carrier = install("carrier")?;
    let grandchild = oracle(&scene, &carrier, &["launch", &carrier])?;
    let mut refused = |what: &str, id: u32| -> Result<()> {
        step(what);
        let set_up = scene.set_up_with(
            [None, Some(id)],
            &rules(&["carrier"], &[]),
            &everything_but(&[]),
        );
        let why = set_up.err().map(|error| error.to_string());
        let expected = format!("the process {id} does not carry packets");
        ensure!(
            why.as_deref().is_some_and(|it| it.contains(&expected)),
            "{what}: {why:?}"
        );
        Ok(())
    };
    refused("a process of somebody else", grandchild.id()?)?;
    let mut ended = Command::new("true").spawn().map_err(Error::io("true"))?;
    let stat = format!("/proc/{}/stat", ended.id());
    wait_until("its end", Duration::from_secs(20), || {
        let stat = fs::read_to_string(&stat).map_err(Error::io(&*stat))?;
        Ok(stat.contains(") Z "))
    })?;
    refused("a child that has ended", ended.id())?;
    ended.wait().map_err(Error::io("true"))?;
    refused("no process", ended.id())
}

/// The daemon and its child have other numbers outside the namespace.
fn a_packet_process_in_a_pid_namespace() -> Result<()> {
    let scene = Scene::new()?;
    let carrier = install("carrier")?;
    let mut words = daemon_words(&scene, "carrier")?;
    words.extend([carrier.clone(), at(REMOTE[0], 80)]);
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
    command.args(words);
    let mut daemon = Application::start(command)?;
    daemon.line()?;
    scene.expect(&carrier, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    let answer = daemon.ask()?;
    ensure!(answer == "far far", "{answer}");
    Ok(())
}

/// Its end does not set down the tunnel of the next daemon.
fn a_daemon_that_was_replaced() -> Result<()> {
    let scene = Scene::new()?;
    let carrier = install("carrier")?;
    let tun = scene.tun.index().map_err(Error::io("TUN"))?;
    let capture = scene
        .home
        .enter(|| begin(TUNNEL, "carrier", tun).map_err(unmet))?;
    let mut next = start_daemon(&scene, "carrier")?;
    drop(capture);
    let to = at(REMOTE[0], 80);
    scene.expect(&carrier, &["tcp", &to], "beyond")?;
    next.kill()?;
    step("the last one's does");
    scene.expect(&carrier, &["tcp", &to], "failed 101 at once")
}
