//! The shares of applications in the table of flows, and the sockets that may use a flow.

use crate::application::install;
use crate::attacks::{datagram, inject};
use crate::inward::{LIMIT, count};
use crate::scene::{HOME, REMOTE, Scene, at, nothing, unmet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use taupe_lab::capture::Capture;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::state::Reason;

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("flow_flood_fills_only_its_share", flood),
        SystemTest::new("flow_of_another_socket", another_socket),
        SystemTest::new("pins_are_for_root_only", pins_for_root),
    ]
}

/// An application that opens as many flows as it can fills its share, and others have room.
fn flood() -> Result<()> {
    let mut scene = Scene::with(&["chosen", "second", "third"], &[])?;
    let (chosen, second) = (install("chosen")?, install("second")?);
    let refused = |scene: &mut Scene| {
        scene
            .programs()
            .map(|programs| programs.are_flows_refused())
    };
    ensure!(!refused(&mut scene)?, "refused before the flood");
    let clear = scene.capture("host 198.51.100.1 or host 2001:db8:9::1")?;
    step("a flood");
    scene.run(&chosen, &["ports", &at(REMOTE[0], 0)])?;
    let dropped = count(&mut scene, Reason::OutFlowsFull)?;
    ensure!(dropped > 1000, "only {dropped} were refused");
    ensure!(refused(&mut scene)?, "nobody tells of the flood");
    step("another application");
    for remote in REMOTE {
        for way in ["tcp", "udp"] {
            scene.expect(&second, &[way, &at(remote, 80)], "beyond")?;
        }
        scene.expect(&second, &["ping", remote], "answered")?;
    }
    step("floods of copies, which have no shares of their own");
    for copy in ["1/chosen", "2/chosen", "3/chosen"] {
        scene.run(&install(copy)?, &["ports", &at(REMOTE[0], 0)])?;
    }
    step("a flood of the other one, too");
    let before = count(&mut scene, Reason::OutTunnel)?;
    scene.run(&second, &["ports", &at(REMOTE[1], 0)])?;
    let carried = count(&mut scene, Reason::OutTunnel)? - before;
    ensure!(carried > 8192, "only {carried} flows were left for it");
    let third = install("third")?;
    scene.expect(&third, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    step("the same applications, once the unanswered have given way");
    for program in [&chosen, &second] {
        // The newest flow is a second old by then.
        wait_until("room for it", LIMIT, || {
            let programs = scene.programs()?;
            programs.make_room_for_flows(|_| Ok(())).map_err(unmet)?;
            let said = scene.run(program, &["tcp", &at(REMOTE[0], 80)])?;
            Ok(said == "beyond")
        })?;
    }
    nothing(&scene, clear)
}

/// An unselected socket does not get into the tunnel by using the addresses and ports of a selected
/// socket's flow.
fn another_socket() -> Result<()> {
    const PORT: u16 = 7030;
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    for (own, remote) in HOME.into_iter().zip(REMOTE) {
        let to = at(remote, 80);
        scene.expect(&chosen, &["from", &PORT.to_string(), &to], "beyond")?;
        let before = count(&mut scene, Reason::OutTunnel)?;
        let clear = Capture::start(&scene.far, "down0", &format!("udp src port {PORT}"))?;
        inject(&scene.home, &[datagram(&at(own, PORT), &to, b"mine")])?;
        clear.stop_once("the packet of a raw socket", |packets| !packets.is_empty())?;
        let after = count(&mut scene, Reason::OutTunnel)?;
        ensure!(
            before == after,
            "{remote}: {} in the tunnel",
            after - before
        );
    }
    Ok(())
}

/// Only root can open the directories: whoever can open one can lock it, and keep a tunnel from
/// coming up.
fn pins_for_root() -> Result<()> {
    rustix::process::umask(rustix::fs::Mode::empty());
    let _scene = Scene::with(&["chosen"], &[])?;
    for folder in ["/run/taupe", "/run/taupe/bpf", "/run/taupe/bpf/taupe"] {
        let metadata = Path::new(folder).metadata().map_err(Error::io(folder))?;
        let mode = metadata.permissions().mode() & 0o777;
        ensure!(mode == 0o700, "{folder} has the mode {mode:o}");
    }
    Ok(())
}
