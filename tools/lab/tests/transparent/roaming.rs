//! A machine that changes networks while a tunnel is up.

use std::time::{Duration, Instant};

use taupe_lab::capture::Capture;
use taupe_lab::host::add_address;
use taupe_lab::sandbox::{figure, step};
use taupe_lab::{Result, ensure};

use crate::world::{Application, BEYOND, TUNNEL, World, expect};

/// Two seconds are promised, from the change to a new connection's answer.
const PROMISED: Duration = Duration::from_secs(3 * 2);

/// Another lease, another cable, and back: selected applications continue through the tunnel with a
/// new connection, and nothing of them leaves outside it.
pub(crate) fn roaming_between_networks() -> Result<()> {
    let world = World::new()?;
    let (selected, other) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    for family in [0, 1] {
        expect(&world, &selected, family, Some(TUNNEL[family]))?;
    }
    let ip = |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        world.near.ip(&words).map(drop)
    };
    let goes_on = |what: &str| -> Result<()> {
        step(what);
        let changed = Instant::now();
        while world.asks(&selected, BEYOND[0])?.as_deref() != Some(TUNNEL[0]) {
            ensure!(
                changed.elapsed() < PROMISED,
                "{what}: no traffic through the tunnel"
            );
        }
        figure(what, changed.elapsed());
        expect(&world, &selected, 1, Some(TUNNEL[1]))
    };
    let clear = Capture::start(&world.far, "eth0", "src host 192.168.1.7 and tcp port 8080")?;
    ip("address del 192.168.1.1/24 dev eth0")?;
    ip("address add 192.168.1.7/24 dev eth0")?;
    ip("route add default via 192.168.1.2")?;
    goes_on("another lease")?;
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    expect(&world, &other, 0, Some("192.168.1.7"))?;

    world.wire("eth1", "eth1", 9)?;
    let clear = Capture::start(&world.far, "eth1", "tcp port 8080")?;
    ip("link set eth0 down")?;
    ip("route add default via 192.168.9.2")?;
    ip("-6 route add default via 2001:db8:9::2")?;
    goes_on("another cable")?;
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    expect(&world, &other, 0, Some("192.168.9.1"))?;

    ip("link set eth1 down")?;
    ip("link set eth0 up")?;
    add_address(&world.near, "eth0", "2001:db8:1::1/64")?;
    ip("route add default via 192.168.1.2")?;
    ip("-6 route add default via 2001:db8:1::2")?;
    goes_on("back")?;
    world.down(&file)?;
    expect(&world, &selected, 0, Some("192.168.1.7"))
}
