//! Paths whose MTU is too small for IPv6 in one datagram.

use crate::{World, read};
use std::net::IpAddr;
use taupe_lab::capture::Capture;
use taupe_lab::{Error, Result, ensure};

/// The MTU left for the tunnel is below IPv6's 1280. With it, the kernel would remove IPv6 from the
/// interface, and packets for the tunnel's IPv6 networks would leave unencrypted.
pub(crate) fn keeps_ipv6() -> Result<()> {
    let world = World::new()?;
    for side in [&world.near, &world.far] {
        side.ip(&["link", "set", "eth0", "mtu", "1340"])?;
    }
    // Only the addresses create these routes.
    let file = world.file("", "AllowedIPs = 10.77.0.0/24, fd77::/64")?;
    ensure!(!read(&file)?.contains("MTU"), "the file has an MTU");
    let clear = Capture::start(&world.far, "eth0", "net fd77::/64")?;
    let up = world.up(&file)?;
    ensure!(
        up.stderr.contains("MTU 1280, the least that IPv6 needs"),
        "nothing is said of the MTU: {up:?}"
    );
    let inside: IpAddr = "fd77::2".parse().map_err(|_| Error::unmet("address"))?;
    ensure!(world.tunnelled(inside)?, "IPv6 is not in the tunnel");
    // A full packet, in as many fragments as necessary.
    for (address, length) in [("10.77.0.2", "1252"), ("fd77::2", "1232")] {
        let ping = ["ping", "-n", "-c", "1", "-W", "2", "-s", length, address];
        let answered = world.near.attempt(&ping)?;
        ensure!(answered.status == Some(0), "{length}: {answered:?}");
    }
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.down(&file).map(drop)
}
