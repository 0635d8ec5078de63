//! Traffic that must not leave unencrypted while a tunnel is up.

use crate::{BEYOND, INTERFACE, NEIGHBOUR, World, device_process};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;
use taupe_lab::process::wait_until;
use taupe_lab::{Error, Result, ensure};

/// Programs prefer IPv6 if there is any: with a tunnel for IPv4 only, they would bypass it.
pub(crate) fn ipv6_of_an_ipv4_tunnel() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", "AllowedIPs = 0.0.0.0/0")?;
    ensure!(world.answers(BEYOND[1])?, "no IPv6 before");
    world.up(&file)?;
    ensure!(world.tunnelled(BEYOND[0])?, "no tunnel");
    fails_at_once(&world, 1)?;
    ensure!(world.answers(NEIGHBOUR[1])?, "no local IPv6");
    world.down(&file)?;
    ensure!(world.answers(BEYOND[1])?, "no IPv6 afterwards");
    Ok(())
}

/// If the device is killed, its interface and its routes disappear.
pub(crate) fn killed_device() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", "AllowedIPs = 0.0.0.0/0, ::/0")?;
    world.up(&file)?;
    for address in BEYOND {
        ensure!(world.tunnelled(address)?, "{address} is not in the tunnel");
    }
    kill_device(&world)?;
    for family in [0, 1] {
        fails_at_once(&world, family)?;
        ensure!(world.answers(NEIGHBOUR[family])?, "the neighbour is lost");
    }
    world.down(&file)?;
    for address in BEYOND {
        ensure!(
            world.answers(address)?,
            "{address} does not answer in clear"
        );
    }
    Ok(())
}

/// Kills the device of `near`, and waits until its interface is gone.
pub(crate) fn kill_device(world: &World) -> Result<()> {
    strike_device(world)?;
    wait_until("end of the interface", Duration::from_secs(5), || {
        let shown = world.near.attempt(&["ip", "link", "show", INTERFACE])?;
        Ok(shown.status != Some(0))
    })
}

/// Kills the device of `near` without waiting.
pub(crate) fn strike_device(world: &World) -> Result<()> {
    let number = device_process(&world.near)?;
    let process = i32::try_from(number).ok().and_then(Pid::from_raw);
    let process = process.ok_or_else(|| Error::unmet("a process has no number"))?;
    kill_process(process, Signal::KILL).map_err(Error::io("kill"))
}

/// Checks that the system rejects packets rather than drops them silently: programs then try the
/// other family at once.
fn fails_at_once(world: &World, family: usize) -> Result<()> {
    let address = BEYOND[family].to_string();
    let ping = world
        .near
        .attempt(&["ping", "-n", "-c", "1", "-W", "2", &address])?;
    let text = format!("{}{}", ping.stdout, ping.stderr);
    ensure!(ping.status != Some(0), "{address} answers in clear");
    ensure!(
        text.contains("unreachable") || text.contains("No route to host"),
        "{address}: not refused at once: {text}"
    );
    Ok(())
}
