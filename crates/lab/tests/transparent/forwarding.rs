//! What the machine forwards for others: `Forwarded`.

use taupe_lab::capture::Capture;
use taupe_lab::host::{Host, link};
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

use crate::world::{Application, BEYOND, TUNNEL, UPLINK, World, expect, succeeded};

/// Guests of this machine, as in a container's network, are who the tunnel is, or nobody.
pub(crate) fn what_guests_send() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let guest = guest(&world)?;
    let is = |who: [Option<&str>; 2]| {
        (0..2).try_for_each(|family| {
            let found = world.asks_from(&guest, &bird, BEYOND[family])?;
            ensure!(found.as_deref() == who[family], "the guest is {found:?}");
            expect(&world, &bird, family, Some(UPLINK[family]))
        })
    };
    let tunnel = world.file("AllowedApps = mole\nForwarded = tunnel")?;
    let before = world.configuration()?;
    world.up(&tunnel)?;
    is(TUNNEL.map(Some))?;
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    let explained = world.taupe(&["explain", &tunnel, "--forwarded", "--to", "198.51.100.1"])?;
    succeeded("explain", &explained)?;
    ensure!(explained.stdout.contains("6  =>"), "{}", explained.stdout);
    step("past it, by a change of the file");
    let direct = world.file("AllowedApps = mole")?;
    succeeded("reload", &world.taupe(&["reload", &direct])?)?;
    is(UPLINK.map(Some))?;
    let tunnel = world.file("AllowedApps = mole\nForwarded = tunnel")?;
    succeeded("reload", &world.taupe(&["reload", &tunnel])?)?;
    is(TUNNEL.map(Some))?;
    step("killed");
    let ping = || guest.attempt(&["ping", "-c", "1", "-W", "1", "198.51.100.1"]);
    ensure!(ping()?.status == Some(0), "no answer through the tunnel");
    let clear = Capture::start(&world.far, "eth0", "icmp")?;
    world.kill_device()?;
    ensure!(ping()?.status != Some(0), "an answer without a tunnel");
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.down(&tunnel)?;
    is(UPLINK.map(Some))?;
    world.is_as_before(&before, "something is left")
}

/// A machine behind this one, which hides it.
fn guest(world: &World) -> Result<Host> {
    let guest = Host::new("guest")?;
    link(
        world.near.port("in0", &["10.9.0.1/24", "fd09::1/64"]),
        guest.port("eth0", &["10.9.0.2/24", "fd09::2/64"]),
        1500,
    )?;
    for (family, router) in [("-4", "10.9.0.1"), ("-6", "fd09::1")] {
        guest.ip(&[family, "route", "add", "default", "via", router])?;
    }
    for family in ["ipv4", "ipv6"] {
        let forwarding = format!("net/{family}/conf/all/forwarding");
        world.near.sysctl(&forwarding, "1")?;
    }
    let rules = "table inet hide {
        chain after { type nat hook postrouting priority 100; oifname eth0 masquerade; }
    }";
    world.near.run_with_input(&["nft", "-f", "-"], rules)?;
    Ok(guest)
}
