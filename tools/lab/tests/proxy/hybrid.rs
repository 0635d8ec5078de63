//! Hybrid handshakes of an unprivileged user, and the record of post-quantum peers.

use crate::socks::connected;
use crate::world::{BEYOND, ECHO, World, end};
use std::fs;
use std::io::{Read, Write};
use std::net::SocketAddr;
use taupe_lab::sandbox::step;
use taupe_lab::traffic::serve_echo;
use taupe_lab::{Error, Result, ensure};

/// The record of peers that have been post-quantum.
const KEPT: &str = "/run/lab/home/.local/state/taupe/post-quantum";

impl World {
    /// Runs a proxy with a file, and sends data through it to an echo server. Returns true if the
    /// data came back, and the proxy's output.
    ///
    /// A connection waits for 15 s, the time in which `prefer` tries hybrid handshakes before
    /// ordinary ones. A second connection would use the ordinary ones.
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
