//! Tunnels for networks that the system already reaches.

use crate::closed::kill_device;
use crate::faults::own_resolv_conf;
use crate::state::State;
use crate::{INTERFACE, NEIGHBOUR, World, called};
use taupe_lab::capture::Capture;
use taupe_lab::{Result, ensure};

/// The tunnel's network equals that of the uplink.
pub(crate) fn network() -> Result<()> {
    let world = World::new()?;
    let file = world.file(
        "",
        "AllowedIPs = 192.0.2.0/24, 2001:db8::/64, 198.51.100.0/24",
    )?;
    let before = State::of(&world.near)?;
    let up = world.up(&file)?;
    for (network, uplink) in [("192.0.2.0/24", "eth0"), ("2001:db8::/64", "eth0")] {
        let line = up.stderr.lines().find(|line| {
            line.contains(network) && line.contains(uplink) && line.contains("--override-routes")
        });
        ensure!(
            line.is_some(),
            "nothing is said of {network}: {}",
            up.stderr
        );
    }
    for address in NEIGHBOUR {
        ensure!(world.answers(address)?, "the neighbour {address} is lost");
    }
    ensure!(
        world.tunnelled(crate::BEYOND[0])?,
        "the rest is not in the tunnel"
    );
    world.down(&file)?;
    unchanged(&world, &before)?;

    // With the option the tunnel gets the network, and its own packets still leave outside.
    let program = called("taupe")?;
    let up = world
        .near
        .attempt(&[&program, "up", "--adapter", "--override-routes", &file])?;
    ensure!(up.status == Some(0), "{up:?}");
    world
        .far
        .ip(&["address", "add", "192.0.2.99/32", "dev", "lo"])?;
    let inside = "192.0.2.99"
        .parse()
        .map_err(|_| taupe_lab::Error::unmet("address"))?;
    ensure!(world.tunnelled(inside)?, "--override-routes does nothing");
    world.down(&file)?;
    unchanged(&world, &before)?;

    // wg-quick fails, and so does Taupe under its name: nothing remains.
    let program = called("wg-quick")?;
    let up = world.near.attempt(&[&program, "up", &file])?;
    ensure!(up.status == Some(1), "as wg-quick: {up:?}");
    unchanged(&world, &before)
}

/// An existing route for a network of the tunnel, with a metric as network managers set it, would
/// lose against the tunnel's route.
pub(crate) fn route() -> Result<()> {
    let world = World::new()?;
    #[rustfmt::skip]
    world.near.ip(&[
        "route", "add", "198.51.100.0/24", "via", "192.0.2.2", "metric", "600",
    ])?;
    let file = world.file("", "AllowedIPs = 198.51.100.0/24, 10.88.0.0/16")?;
    let before = State::of(&world.near)?;
    let up = world.up(&file)?;
    let line = up.stderr.lines().find(|line| {
        line.contains("198.51.100.0/24")
            && line.contains("eth0")
            && line.contains("--override-routes")
    });
    ensure!(
        line.is_some(),
        "nothing is said of the route: {}",
        up.stderr
    );
    ensure!(world.answers(crate::BEYOND[0])?, "the route is lost");
    ensure!(
        !world.tunnelled(crate::BEYOND[0])?,
        "the route is overridden"
    );
    world.down(&file)?;
    unchanged(&world, &before)
}

/// The endpoint is inside the tunnel's networks: the tunnel must not carry its own packets.
pub(crate) fn endpoint() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", "AllowedIPs = 192.0.0.0/8, 198.0.0.0/8")?;
    let before = State::of(&world.near)?;
    world.up(&file)?;
    ensure!(
        world.tunnelled(crate::BEYOND[0])?,
        "the tunnel does not work"
    );
    ensure!(world.answers(NEIGHBOUR[0])?, "the neighbour is lost");
    world.down(&file)?;
    unchanged(&world, &before)
}

/// A file of a home router, in a network with the same addresses: the name server behind the tunnel
/// has the address of a local one. Questions stay in the tunnel, also when it is gone.
pub(crate) fn name_server() -> Result<()> {
    own_resolv_conf()?;
    let world = World::new()?;
    let server = "192.0.2.53";
    let address = format!("{server}/24");
    world.far.ip(&["address", "add", &address, "dev", "eth0"])?;
    let file = world.file(
        "Address = 192.0.2.209/24\nDNS = 192.0.2.53",
        "AllowedIPs = 192.0.2.0/24, 0.0.0.0/0",
    )?;
    let before = State::of(&world.near)?;
    let up = world.up(&file)?;
    for words in [
        ["192.0.2.0/24 is not tunnelled", "eth0"],
        [
            "the name server 192.0.2.53 is asked through the tunnel",
            "eth0",
        ],
    ] {
        let mut lines = up.stderr.lines();
        let is_reported = lines.any(|line| words.iter().all(|word| line.contains(word)));
        ensure!(is_reported, "nothing is said of {words:?}: {}", up.stderr);
    }
    let clear = Capture::start(&world.far, "eth0", "udp port 53")?;
    let inside = Capture::start(&world.far, "wgfar", "udp port 53")?;
    let asks = format!("echo a question > /dev/udp/{server}/53");
    world.near.run(&["bash", "-c", &asks])?;
    inside.stop_once("the question in the tunnel", |packets| !packets.is_empty())?;
    // The system's name server may have the same address: the device's own questions, which carry
    // the mark, leave outside the tunnel.
    let marked = ["route", "get", server, "mark", "51820"];
    let lookup = world.near.ip(&marked)?.stdout;
    ensure!(lookup.contains("dev eth0"), "the device's own: {lookup}");
    ensure!(world.answers(NEIGHBOUR[0])?, "the neighbour is lost");
    let is_refused = |what: &str| {
        let queries = world.near.attempt(&["bash", "-c", &asks])?;
        ensure!(queries.status != Some(0), "{what}: {queries:?}");
        ensure!(
            world.answers(NEIGHBOUR[0])?,
            "{what}: the neighbour is lost"
        );
        Ok(())
    };
    world.near.ip(&["link", "set", INTERFACE, "down"])?;
    is_refused("the interface is down")?;
    kill_device(&world)?;
    is_refused("the device was killed")?;
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} questions in clear", packets.len());
    world.down(&file)?;
    unchanged(&world, &before)
}

fn unchanged(world: &World, before: &State) -> Result<()> {
    let left = before.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}
