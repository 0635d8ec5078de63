//! The inner tunnel's endpoint is a name.

use super::{INNER, Nested};
use crate::resolvers::{Names, serve};
use crate::world::Application;
use rustix::mount::mount_bind;
use std::net::Ipv4Addr;
use taupe_lab::capture::Capture;
use taupe_lab::sandbox::{scratch_file, step};
use taupe_lab::{Error, Result, ensure};

const NAME: &str = "inner.example.org";

/// The inner server, which also has a name server for the outer tunnel.
const DEEP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// The name is asked through the outer tunnel, by `up`, `reload` and the device: the
/// system's name server hears nothing of it.
pub(crate) fn through_the_outer_tunnel() -> Result<()> {
    let nested = Nested::new()?;
    let world = &nested.world;
    let any = Application::new("mole")?;
    let (outside, inside) = (Names::default(), Names::default());
    let system = world.neighbour().to_string();
    serve(&world.far, &system, DEEP, &outside)?;
    serve(&nested.deep, &DEEP.to_string(), DEEP, &inside)?;
    let servers = scratch_file("resolv.conf", &format!("nameserver {system}\n"))?;
    mount_bind(&*servers, "/etc/resolv.conf").map_err(Error::io("/etc/resolv.conf"))?;
    let outer = nested.outer(&format!("DNS = {DEEP}"))?;
    let endpoint = format!("{NAME}:51822");
    for mode in ["--adapter", "--transparent"] {
        step(mode);
        let inner = nested.inner_at("", &endpoint)?;
        let clear = Capture::start(&world.far, "eth0", "port 53")?;
        nested.up(&[mode, &inner, "--via", &outer])?;
        nested.expect_within(&any)?;
        let reload = world.taupe(&["reload", &inner])?;
        ensure!(reload.status == Some(0), "{reload:?}");
        nested.expect_within(&any)?;
        let down = world.taupe(&["down", INNER])?;
        ensure!(down.status == Some(0), "{down:?}");
        let packets = clear.stop()?;
        ensure!(packets.is_empty(), "{} questions in clear", packets.len());
        ensure!(outside.names().is_empty(), "{:?}", outside.names());
        let asked = inside.names();
        ensure!(asked.iter().any(|name| name == NAME), "{asked:?}");
    }
    Ok(())
}
