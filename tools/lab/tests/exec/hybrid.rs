//! Hybrid handshakes of an unprivileged user, and the record of post-quantum peers.

use crate::{BEYOND, HOME, PROGRAM, World, as_user, give, home};
use std::fs;
use taupe_lab::process::Attempt;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

/// The record of peers that have been post-quantum.
const KEPT: &str = "/run/exec/home/.local/state/taupe/post-quantum";

/// Seconds to wait for an answer that comes after the 15 s in which `prefer` tries hybrid
/// handshakes, and for an answer that must not come.
const ANSWER: u32 = 60;
const SILENCE: u32 = 25;

impl World {
    /// Makes the server's handshakes hybrid, and writes the user's file with this rule.
    fn hybrid(&self, rule: &str) -> Result<()> {
        let hybrid = self.server.begin_hybrid()?;
        // Beside the configuration file, as users store it.
        let key = format!("{HOME}/server.pq.pub");
        fs::write(&key, &hybrid.server).map_err(Error::io(&*key))?;
        give(&key, 0o600)?;
        let peer =
            format!("0.0.0.0/0, ::/0\nPqPublicKey = file:server.pq.pub\nPostQuantum = {rule}");
        let lines = format!("DNS = 10.77.0.2\n{}", hybrid.interface());
        self.file("home", &lines, &peer).map(drop)
    }

    /// Pings in a tunnel of its own, with other environment variables.
    fn ping(&self, variables: &[&str], seconds: u32) -> Result<Attempt> {
        let ping = format!("ping -n -c 1 -W {seconds} {BEYOND} >/dev/null && echo answered");
        let home = home();
        let command = [PROGRAM, "exec", &*home, "--", "bash", "-c", &*ping];
        let words = [&["env"], variables, &command].concat();
        self.near.attempt(&as_user(&words))
    }
}

fn ensure_answered(attempt: &Attempt) -> Result<()> {
    ensure!(
        attempt.status == Some(0) && attempt.stdout == "answered\n",
        "{attempt:?}"
    );
    Ok(())
}

pub(crate) fn require() -> Result<()> {
    let world = World::new()?;
    world.hybrid("require")?;
    let attempt = world.ping(&[], ANSWER)?;
    ensure_answered(&attempt)?;
    ensure!(attempt.stderr.is_empty(), "{attempt:?}");
    let shown = world.server.shown()?;
    ensure!(shown.contains("post-quantum: hybrid-768"), "{shown}");
    step("no ordinary handshake");
    world.server.set_post_quantum("off")?;
    let attempt = world.ping(&[], SILENCE)?;
    ensure!(attempt.stdout.is_empty(), "{attempt:?}");
    ensure!(
        !fs::exists(KEPT).unwrap_or(true),
        "there is nothing to keep"
    );
    Ok(())
}

pub(crate) fn prefer() -> Result<()> {
    let world = World::new()?;
    world.hybrid("prefer")?;
    step("before there was a hybrid handshake, ordinary ones will do");
    world.server.set_post_quantum("off")?;
    ensure_answered(&world.ping(&[], ANSWER)?)?;
    world.server.set_post_quantum("require")?;
    let attempt = world.ping(&[], ANSWER)?;
    ensure_answered(&attempt)?;
    ensure!(attempt.stderr.is_empty(), "{attempt:?}");
    let shown = world.server.shown()?;
    ensure!(shown.contains("post-quantum: hybrid-768"), "{shown}");

    step("from then on they will not, in another process either");
    world.server.set_post_quantum("off")?;
    let attempt = world.ping(&[], SILENCE)?;
    ensure!(attempt.stdout.is_empty(), "led back: {attempt:?}");
    let state = format!("XDG_STATE_HOME={HOME}/state");
    ensure_answered(&world.ping(&[&state], ANSWER)?)?;

    step("what is damaged is not taken for nothing");
    let folders = fs::read_dir(KEPT).map_err(Error::io(KEPT))?;
    for folder in folders {
        let stray = folder.map_err(Error::io(KEPT))?.path().join("stray");
        fs::write(&stray, "").map_err(Error::io("a stray file"))?;
    }
    let attempt = world.ping(&[], ANSWER)?;
    ensure!(attempt.status == Some(125), "{attempt:?}");
    for word in [KEPT, "stray", "PostQuantum = require"] {
        ensure!(attempt.stderr.contains(word), "{word}: {attempt:?}");
    }
    Ok(())
}

pub(crate) fn without_state_folder() -> Result<()> {
    let world = World::new()?;
    world.hybrid("prefer")?;
    step("a folder that the user may not write");
    fs::create_dir(format!("{HOME}/state")).map_err(Error::io("a folder"))?;
    give(&format!("{HOME}/state"), 0o500)?;
    let state = format!("XDG_STATE_HOME={HOME}/state");
    let attempt = world.ping(&[&state], ANSWER)?;
    ensure_answered(&attempt)?;
    let reported = "cannot save that a peer has completed a post-quantum handshake";
    ensure!(attempt.stderr.contains(reported), "{attempt:?}");

    step("no home");
    for variables in [&["-u", "HOME"][..], &["HOME=/"]] {
        let attempt = world.ping(variables, ANSWER)?;
        ensure_answered(&attempt)?;
        for word in ["PostQuantum = prefer", "/run/exec/session/taupe", "HOME"] {
            ensure!(attempt.stderr.contains(word), "{variables:?}: {attempt:?}");
        }
    }
    step("PostQuantum stays in effect without HOME");
    world.server.set_post_quantum("off")?;
    let attempt = world.ping(&["-u", "HOME"], SILENCE)?;
    ensure!(attempt.stdout.is_empty(), "led back: {attempt:?}");
    Ok(())
}
