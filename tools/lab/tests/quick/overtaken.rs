//! A route of another program to a network of the tunnel.

use crate::state::State;
use crate::{BEYOND, INTERFACE, World};
use std::time::Duration;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

/// A router announces a network of the tunnel, and its route has priority, because IPv6 prefers the
/// smaller metric. `status` names it; `reload` neither removes it nor the tunnel's own route.
pub(crate) fn by_a_router() -> Result<()> {
    let world = World::new()?;
    for (interface, table) in [("", "main"), ("Table = 1234", "1234")] {
        step(table);
        let file = world.file(interface, "AllowedIPs = 2001:db8:5::/48")?;
        let before = State::of(&world.near)?;
        world.up(&file)?;
        let route = ["2001:db8:5::/48", "via", "2001:db8::2", "table", table];
        let change = |verb: &str| {
            let words = ["-6", "route", verb];
            world
                .near
                .ip(&[&words, &route[..], &["metric", "256"]].concat())
        };
        let is_named = || -> Result<()> {
            let output = world.taupe(&["status", "--json", INTERFACE])?;
            ensure!(output.status == Some(2), "{output:?}");
            for words in [
                "\"bypass-route\"",
                "`2001:db8:5::/48 via 2001:db8::2 dev eth0`",
            ] {
                ensure!(output.stdout.contains(words), "no {words}: {output:?}");
            }
            ensure!(!output.stdout.contains("restores it"), "{output:?}");
            Ok(())
        };
        change("add")?;
        is_named()?;
        let reload = world.taupe(&["reload", &file])?;
        ensure!(reload.status == Some(0), "{reload:?}");
        ensure!(!reload.stderr.contains("restored"), "{reload:?}");
        is_named()?;
        // After the other route is gone the tunnel is complete.
        change("delete")?;
        let output = world.taupe(&["status", INTERFACE])?;
        ensure!(output.status == Some(0), "{output:?}");
        if table == "main" {
            let works = || world.tunnelled(BEYOND[1]);
            wait_until("the tunnel", Duration::from_secs(10), works)?;
        }
        world.down(&file)?;
        let left = before.difference(&State::of(&world.near)?);
        ensure!(left.is_empty(), "left behind:\n{left}");
    }
    Ok(())
}
