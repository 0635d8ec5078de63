//! Whose a socket is, whoever made it and whatever has happened since.

use crate::scene::{
    self, REMOTE, Scene, TUNNEL, at, everything_but, install, rules, start_daemon, unmet,
};
use std::io::Read as _;
use std::net::TcpStream;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::programs::Programs;

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![SystemTest::new(
        "rules_from_another_process",
        rules_from_another_process,
    )]
}

/// What the daemon has attached, to be changed from here.
fn open(scene: &Scene) -> Result<Programs> {
    let programs = scene.home.enter(|| Programs::open(TUNNEL).map_err(unmet))?;
    programs.ok_or_else(|| Error::unmet("nothing is attached"))
}

/// Asks by TCP who is there.
fn is(scene: &Scene, program: &str, who: &str) -> Result<()> {
    scene.expect(program, &["tcp", &at(REMOTE[0], 80)], who)
}

fn rules_from_another_process() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    ensure!(
        scene
            .home
            .enter(|| Programs::open(TUNNEL).map_err(unmet))?
            .is_none(),
        "there is something before anything was attached"
    );
    let mut daemon = start_daemon(&scene, "chosen")?;
    let mut held = scene.start(&other, &["hold", &at(REMOTE[0], 80)])?;
    let mut programs = open(&scene)?;
    let number = programs.daemon();
    ensure!(number.is_some(), "nobody is the daemon");
    let mut replace = |allowed: &[&str]| {
        let rules = rules(allowed, &[]);
        scene.home.enter(|| {
            programs
                .replace(&rules, &everything_but(&[]))
                .map_err(unmet)
        })
    };
    replace(&["other"])?;
    is(&scene, &chosen, "far")?;
    is(&scene, &other, "beyond")?;
    let said = held.go()?;
    ensure!(said == "beyond beyond", "a socket from before: {said}");
    step("who changes rules is as everybody else");
    replace(&["/"])?;
    let said = scene.home.enter(|| {
        let to = at(REMOTE[0], 80).parse().map_err(unmet)?;
        let mut said = String::new();
        TcpStream::connect_timeout(&to, scene::QUIET * 5)
            .and_then(|mut stream| stream.read_to_string(&mut said))
            .map_err(Error::io("asking"))?;
        Ok(said)
    })?;
    ensure!(said == "beyond", "{said}");
    ensure!(programs.daemon() == number, "{:?}", programs.daemon());
    ensure!(programs.is_up(), "it is down");
    step("and the daemon's end is its end");
    daemon.kill()?;
    ensure!(!programs.is_up(), "it is up without a daemon");
    // Whoever gets its number next is not it.
    ensure!(programs.daemon().is_none(), "{:?}", programs.daemon());
    Ok(())
}
