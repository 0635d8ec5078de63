//! Traffic that must not leave unencrypted while a tunnel is up.

use crate::{BEYOND, INTERFACE, NEIGHBOUR, World, device_process};
use rustix::mount::mount_bind;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::Duration;
use taupe_lab::capture::Capture;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch_file, step};
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
    answers_in_clear(&world)
}

/// A service manager starts a killed tunnel again. Its name servers cannot be asked meanwhile.
pub(crate) fn killed_device_and_up_again() -> Result<()> {
    const NAME: &str = "gateway.example";
    let world = World::new()?;
    let hosts = replace("/etc/hosts", "hosts", &format!("192.0.2.2 {NAME}\n"))?;
    replace(
        "/etc/resolv.conf",
        "resolv.conf",
        "nameserver 203.0.113.53\n",
    )?;
    let file = world.file("", "AllowedIPs = 0.0.0.0/0, ::/0")?;
    let edit = |from: &str, to: &str| -> Result<()> {
        let text = fs::read_to_string(&file).map_err(Error::io(&*file))?;
        ensure!(text.contains(from), "{text}");
        fs::write(&file, text.replace(from, to)).map_err(Error::io(&*file))
    };
    edit("Endpoint = 192.0.2.2", &format!("Endpoint = {NAME}"))?;
    world.up(&file)?;
    fs::write(&hosts, "127.0.0.1 localhost\n").map_err(Error::io(&*hosts))?;
    let [v4, v6] = BEYOND.map(|address| address.to_string());
    let filter = format!("(icmp and dst {v4}) or (icmp6 and dst {v6})");
    let clear = Capture::start(&world.far, "eth0", &filter)?;
    let _pings =
        [&v4, &v6].map(|address| world.near.spawn(&["ping", "-n", "-i", "0.002", address]));
    for _ in 0..3 {
        for address in BEYOND {
            ensure!(world.tunnelled(address)?, "{address} is not in the tunnel");
        }
        kill_device(&world)?;
        let again = world.up(&file)?;
        ensure!(again.stderr.contains("stays blocked"), "{again:?}");
    }
    step("an up that fails");
    kill_device(&world)?;
    edit("[Interface]", "[Interface]\nTable = no-such-table")?;
    let failed = world.taupe(&["up", "--adapter", &file])?;
    ensure!(failed.status == Some(1), "{failed:?}");
    ensure!(
        failed.stderr.contains("traffic stays blocked"),
        "{failed:?}"
    );
    let status = world.taupe(&["status", INTERFACE])?;
    ensure!(status.stdout.contains("is blocked until"), "{status:?}");
    for family in [0, 1] {
        fails_at_once(&world, family)?;
    }
    edit("[Interface]\nTable = no-such-table", "[Interface]")?;
    world.up(&file)?;
    ensure!(world.tunnelled(BEYOND[0])?, "it is not in the tunnel");
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.down(&file)?;
    answers_in_clear(&world)
}

/// Checks that nothing is blocked after `down`.
fn answers_in_clear(world: &World) -> Result<()> {
    for address in BEYOND {
        let answers = world.answers(address)?;
        ensure!(answers, "{address} does not answer in clear");
    }
    Ok(())
}

/// Replaces a file of this test's mount namespace. Returns the path at which to change it.
fn replace(path: &str, name: &str, text: &str) -> Result<String> {
    let file = scratch_file(name, text)?;
    mount_bind(&*file, path).map_err(Error::io(path))?;
    Ok(file)
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
