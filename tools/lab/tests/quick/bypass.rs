//! Routes in the main table that bypass a full tunnel, as a DHCP server adds them.

use crate::drift::expect;
use crate::{World, read};
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

const FULL: &str = "AllowedIPs = 0.0.0.0/0, ::/0";
const FINDING: &str = "bypass-route";

/// `up` names existing routes, `status` names later ones; neither removes any.
pub(crate) fn all() -> Result<()> {
    let world = World::new()?;
    let route = |verb: &str, destination: &str| {
        let (family, gateway) = match destination.contains(':') {
            true => ("-6", "2001:db8::2"),
            false => ("-4", "192.0.2.2"),
        };
        let words = [family, "route", verb, destination, "via", gateway];
        world.near.ip(&words).map(drop)
    };
    route("add", "8.8.8.8/32")?;
    let hook = "PostUp = ip route add 9.9.9.9/32 via 192.0.2.2";
    let file = world.file(hook, FULL)?;
    let up = world.up(&file)?;
    let named = "`8.8.8.8/32 via 192.0.2.2 dev eth0` bypasses";
    let count = up.stderr.matches(named).count();
    ensure!(count == 1, "named {count} times: {}", up.stderr);
    // The user knows of both from `up`.
    expect(&world, 0, None)?;

    for destination in ["0.0.0.0/1", "1.1.1.1/32", "2000::/3"] {
        step(destination);
        route("add", destination)?;
        expect(&world, 2, Some(FINDING))?;
        let status = world.taupe(&["status"])?;
        ensure!(
            status.stdout.contains(&format!("`{destination} via ")),
            "not named: {status:?}"
        );
        // The route stays, and the tunnel is degraded.
        let reload = world.taupe(&["reload", &file])?;
        ensure!(reload.status == Some(0), "{reload:?}");
        expect(&world, 2, Some(FINDING))?;
        route("del", destination)?;
        expect(&world, 0, None)?;
    }
    for destination in ["10.99.0.0/16", "169.254.9.0/24", "fd99::/64"] {
        step(destination);
        route("add", destination)?;
        expect(&world, 0, None)?;
    }
    step("an exception of the file");
    let text = read(&file)?.replace(FULL, &format!("{FULL}\nDisallowedIPs = 1.1.1.0/24"));
    std::fs::write(&file, text).map_err(taupe_lab::Error::io("file"))?;
    let reload = world.taupe(&["reload", &file])?;
    ensure!(reload.status == Some(0), "{reload:?}");
    route("add", "1.1.1.1/32")?;
    expect(&world, 0, None)?;
    route("add", "1.1.0.0/16")?;
    expect(&world, 2, Some(FINDING))?;
    world.down(&file).map(drop)
}
