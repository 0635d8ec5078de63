//! Hybrid handshakes, and what is remembered of them for a user who is not root.

use crate::socks::connected;
use crate::world::{BEYOND, ECHO, World, end};
use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use taupe_lab::sandbox::step;
use taupe_lab::traffic::serve_echo;
use taupe_lab::{Error, Result, ensure};

/// Where it is remembered which peers have been post-quantum.
const KEPT: &str = "/run/lab/home/.local/state/taupe/post-quantum";

impl World {
    /// Runs a proxy with a file, and sends something through it to a server that returns it;
    /// whether it does. The proxy's output goes with it.
    ///
    /// A connection waits for 15 s, for as long as `prefer` tries hybrid handshakes before it
    /// tries ordinary ones: the second would have those.
    fn echoes(&self, file: &str) -> Result<(bool, String)> {
        let proxy = self.proxy(file, &[])?;
        let echo = || -> Result<()> {
            let mut stream = connected(self, SocketAddr::new(BEYOND[0], ECHO))?;
            stream.write_all(b"taupe").map_err(Error::io("echo"))?;
            let mut back = [0; 5];
            stream.read_exact(&mut back).map_err(Error::io("echo"))?;
            ensure!(&back == b"taupe", "{back:?}");
            Ok(())
        };
        let answered = echo().or_else(|_| echo()).is_ok();
        let output = proxy.output();
        end(proxy)?;
        Ok((answered, output))
    }
}

pub(crate) fn hybrid() -> Result<()> {
    const EVERYTHING: &str = "AllowedIPs = 0.0.0.0/0, ::/0";
    let world = World::new()?;
    serve_echo(&world.far, SocketAddr::new(BEYOND[0], ECHO))?;
    let hybrid = world.server.begin_hybrid()?;
    let file = |rule: &str| {
        let peer = format!("{EVERYTHING}\n{}", hybrid.peer(rule));
        world.file(&hybrid.interface(), &peer)
    };
    let ensure_hybrid = |(answered, output): (bool, String)| -> Result<()> {
        ensure!(answered, "{output}");
        ensure!(!output.contains("post-quantum"), "{output}");
        let shown = world.server.shown()?;
        ensure!(shown.contains("post-quantum: hybrid-768"), "{shown}");
        Ok(())
    };
    step("require");
    ensure_hybrid(world.echoes(&file("require")?)?)?;
    ensure!(
        !fs::exists(KEPT).unwrap_or(true),
        "there is nothing to keep"
    );

    step("prefer, before there was a hybrid handshake");
    world.server.set_post_quantum("off")?;
    let (answered, output) = world.echoes(&file("prefer")?)?;
    ensure!(answered, "{output}");

    step("after it nothing else will do, in another process either");
    world.server.set_post_quantum("require")?;
    ensure_hybrid(world.echoes(&file("prefer")?)?)?;
    world.server.set_post_quantum("off")?;
    let (answered, output) = world.echoes(&file("prefer")?)?;
    ensure!(!answered, "led back: {output}");

    step("what is damaged is not taken for nothing");
    for folder in fs::read_dir(KEPT).map_err(Error::io(KEPT))? {
        let stray = folder.map_err(Error::io(KEPT))?.path().join("stray");
        fs::write(&stray, "").map_err(Error::io("a stray file"))?;
    }
    let attempt = world.attempt(&[&file("prefer")?])?;
    ensure!(attempt.status == Some(1), "{attempt:?}");
    for word in [KEPT, "stray", "PostQuantum = require"] {
        ensure!(attempt.stderr.contains(word), "{word}: {attempt:?}");
    }
    Ok(())
}
