//! Full tunnels: all traffic goes through, except the tunnel's own packets and the local network.

use crate::state::State;
use crate::{BEYOND, NEIGHBOUR, World};
use taupe_lab::{Result, ensure};

pub(crate) fn ipv4() -> Result<()> {
    full("", "AllowedIPs = 0.0.0.0/0", [true, false])
}

pub(crate) fn ipv6() -> Result<()> {
    full("", "AllowedIPs = ::/0", [false, true])
}

pub(crate) fn dual() -> Result<()> {
    full("", "AllowedIPs = 0.0.0.0/0, ::/0", [true, true])?;
    Ok(())
}

/// Two halves, the common replacement for a default route.
pub(crate) fn halves() -> Result<()> {
    full(
        "FwMark = 0x77",
        "AllowedIPs = 0.0.0.0/1, 128.0.0.0/1, ::/1, 8000::/1",
        [true, true],
    )
}

/// A network excluded from a full tunnel is reached as before.
pub(crate) fn disallowed() -> Result<()> {
    let world = World::new()?;
    let outside = ["198.51.100.200", "2001:db8:5::200"];
    for address in outside {
        world.far.ip(&["address", "add", address, "dev", "lo"])?;
    }
    let file = world.file(
        "",
        "AllowedIPs = 0.0.0.0/0, ::/0\nDisallowedIPs = 198.51.100.128/25, 2001:db8:5::200/120",
    )?;
    let before = State::of(&world.near)?;
    world.up(&file)?;
    for address in BEYOND {
        ensure!(world.tunnelled(address)?, "{address} is not in the tunnel");
    }
    for address in outside
        .map(|address| address.parse().ok())
        .into_iter()
        .flatten()
    {
        ensure!(world.answers(address)?, "{address} does not answer");
        ensure!(!world.tunnelled(address)?, "{address} is in the tunnel");
    }
    world.down(&file)?;
    let left = before.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

/// Brings up a tunnel for all destinations of these families (IPv4, IPv6), with strict reverse path
/// filtering as in distributions, and takes it down again.
fn full(interface: &str, peer: &str, families: [bool; 2]) -> Result<()> {
    let world = World::new()?;
    for side in ["all", "eth0"] {
        let name = format!("net/ipv4/conf/{side}/rp_filter");
        world.near.sysctl(&name, "1")?;
    }
    let file = world.file(interface, peer)?;
    let before = State::of(&world.near)?;
    for address in BEYOND {
        ensure!(
            world.answers(address)?,
            "{address} does not answer in clear"
        );
    }

    world.up(&file)?;
    for (address, tunnelled) in BEYOND.into_iter().zip(families) {
        if tunnelled {
            ensure!(world.tunnelled(address)?, "{address} is not in the tunnel");
        } else {
            ensure!(
                !world.tunnelled(address)?,
                "{address} is in a tunnel that is not for it"
            );
        }
    }
    for address in NEIGHBOUR {
        let carried = world.carried()?;
        ensure!(world.answers(address)?, "the neighbour {address} is lost");
        ensure!(world.carried()? == carried, "{address} is in the tunnel");
    }

    world.down(&file)?;
    let left = before.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "left behind:\n{left}");
    for address in BEYOND {
        ensure!(
            world.answers(address)?,
            "{address} does not answer any more"
        );
    }
    Ok(())
}
