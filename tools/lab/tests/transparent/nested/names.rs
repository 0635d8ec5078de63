//! The inner tunnel's endpoint is a name.

use super::{INNER, Nested};
use crate::resolvers::{Names, serve};
use crate::world::{Application, BEYOND};
use rustix::mount::mount_bind;
use std::net::Ipv4Addr;
use std::time::Duration;
use taupe_lab::capture::Capture;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch_file, step};
use taupe_lab::{Error, Result, ensure};

const NAME: &str = "inner.example.org";

/// The inner server, which also runs a name server for the outer tunnel.
const DEEP: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// `up`, `reload` and the device resolve the name through the outer tunnel; the system's name
/// server gets no question.
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
        let queries = inside.names();
        ensure!(queries.iter().any(|name| name == NAME), "{queries:?}");
    }
    Ok(())
}

/// Without DNS in the outer file, the system's name servers are asked through the outer tunnel,
/// except one with a local address, which would be another machine there.
pub(crate) fn by_the_servers_of_the_system() -> Result<()> {
    let nested = Nested::new()?;
    let world = &nested.world;
    let any = Application::new("mole")?;
    let [local, public] = [world.neighbour(), BEYOND[0]].map(|server| server.to_string());
    // The router has this address at both ends of the outer tunnel.
    let (of_local, of_public) = (Names::default(), Names::default());
    serve(&world.far, &local, DEEP, &of_local)?;
    serve(&world.far, &public, DEEP, &of_public)?;
    let servers = scratch_file("resolv.conf", &format!("nameserver {local}\n"))?;
    mount_bind(&*servers, "/etc/resolv.conf").map_err(Error::io("/etc/resolv.conf"))?;
    let hosts = scratch_file("hosts", "127.0.0.1 localhost\n")?;
    mount_bind(&*hosts, "/etc/hosts").map_err(Error::io("/etc/hosts"))?;
    let write = |file: &str, text: String| std::fs::write(file, text).map_err(Error::io(file));
    let outer = nested.outer("")?;
    let inner = nested.inner_at("", &format!("{NAME}:51822"))?;
    let clear = Capture::start(&world.far, "eth0", "port 53")?;
    step("a local server");
    let output = nested.up(&[&inner, "--via", &outer])?;
    ensure!(of_local.names().is_empty(), "{:?}", of_local.names());
    let left_out = format!("{local} of this system is not used there");
    ensure!(
        output.contains("has no DNS, and no name server") && output.contains(&left_out),
        "{output}"
    );
    let mode = "adapter mode, because the file selects no applications";
    ensure!(output.contains(mode), "{output}");
    step("/etc/hosts");
    write(&hosts, format!("{DEEP} other {NAME} # the inner server\n"))?;
    wait_until("an address", Duration::from_secs(60), || {
        Ok(world
            .taupe(&["show", INNER])?
            .stdout
            .contains("203.0.113.2:51822"))
    })?;
    nested.expect_within(&any)?;
    world.down(INNER)?;
    let output = nested.up(&[&inner, "--via", &outer])?;
    ensure!(!output.contains("no address"), "{output}");
    nested.expect_within(&any)?;
    world.down(INNER)?;
    ensure!(of_public.names().is_empty(), "{:?}", of_public.names());
    step("another server beside it");
    write(&hosts, "127.0.0.1 localhost\n".to_owned())?;
    write(
        &servers,
        format!("nameserver {local}\nnameserver {public}\n"),
    )?;
    let output = nested.up(&[&inner, "--via", &outer])?;
    let queries = format!("looked up through that tunnel at {public} ({left_out}");
    ensure!(output.contains(&queries), "{output}");
    nested.expect_within(&any)?;
    world.down(INNER)?;
    let queries = of_public.names();
    ensure!(queries.iter().any(|name| name == NAME), "{queries:?}");
    ensure!(of_local.names().is_empty(), "{:?}", of_local.names());
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} questions in clear", packets.len());
    Ok(())
}
