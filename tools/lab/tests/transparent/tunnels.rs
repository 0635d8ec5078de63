//! Several tunnels on one machine, several uplinks, and networks that exist on both sides.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;
use taupe_lab::capture::Capture;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

use crate::world::{Application, BEYOND, NEIGHBOUR, TUNNEL, UPLINK, World, expect};

/// One tunnel selects the application that the other one leaves out; a third knows of neither. Each
/// applies only to its own network namespace.
pub(crate) fn opposite_rules_in_two_namespaces() -> Result<()> {
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let first = World::new()?;
    let second = first.beside(2, "second", "work")?;
    let third = first.beside(3, "third", "none")?;
    let [allows, denies] = [
        first.file("AllowedApps = mole")?,
        second.file("DisallowedApps = mole")?,
    ];
    let before = [
        first.configuration()?,
        second.configuration()?,
        third.configuration()?,
    ];
    first.up(&allows)?;
    second.up(&denies)?;
    // The client addresses of the mole and the bird while their tunnels are up, killed or down.
    let up = |world: &World, selected: &Application, other: &Application| {
        (0..2).try_for_each(|family| {
            expect(world, selected, family, Some(&world.tunnel()[family]))?;
            expect(world, other, family, Some(&world.uplink()[family]))
        })
    };
    let killed = |world: &World, selected: &Application, other: &Application| {
        (0..2).try_for_each(|family| {
            expect(world, selected, family, None)?;
            expect(world, other, family, Some(&world.uplink()[family]))
        })
    };
    let without = |world: &World| {
        (0..2).try_for_each(|family| {
            expect(world, &mole, family, Some(&world.uplink()[family]))?;
            expect(world, &bird, family, Some(&world.uplink()[family]))
        })
    };
    step("both up");
    up(&first, &mole, &bird)?;
    up(&second, &bird, &mole)?;
    without(&third)?;
    third.is_as_before(&before[2], "the third has changed")?;
    step("the second killed");
    second.kill_device()?;
    up(&first, &mole, &bird)?;
    killed(&second, &bird, &mole)?;
    without(&third)?;
    step("both killed");
    first.kill_device()?;
    killed(&first, &mole, &bird)?;
    killed(&second, &bird, &mole)?;
    without(&third)?;
    step("the second down");
    second.down(&denies)?;
    without(&second)?;
    killed(&first, &mole, &bird)?;
    step("the first up again, then down");
    first.up(&allows)?;
    up(&first, &mole, &bird)?;
    without(&second)?;
    first.down(&allows)?;
    without(&first)?;
    for (world, before) in [&first, &second, &third].into_iter().zip(&before) {
        world.is_as_before(before, "something is left")?;
    }
    Ok(())
}

/// Two tunnels of one machine at once, each with an application of its own. Events of one affect
/// neither the other nor other applications.
pub(crate) fn two_tunnels_at_once() -> Result<()> {
    let [mole, bird, other] = ["mole", "bird", "other"].map(Application::new);
    let (mole, bird, other) = (mole?, bird?, other?);
    let home = World::new()?;
    let work = home.with_another("work", 9)?;
    let (of_home, of_work) = (
        home.file("AllowedApps = mole")?,
        work.file("AllowedApps = bird")?,
    );
    let before = home.configuration()?;
    let (tunnel, uplink) = ([home.tunnel(), work.tunnel()], home.uplink());
    let are = |mole_is: Option<&[String; 2]>, bird_is: Option<&[String; 2]>| {
        (0..2).try_for_each(|family| {
            let of = |who: Option<&[String; 2]>| who.map(|who| who[family].clone());
            expect(&home, &mole, family, of(mole_is).as_deref())?;
            expect(&home, &bird, family, of(bird_is).as_deref())?;
            expect(&home, &other, family, Some(&uplink[family]))
        })
    };
    home.up(&of_home)?;
    work.up(&of_work)?;
    step("both up");
    are(Some(&tunnel[0]), Some(&tunnel[1]))?;
    expect_states(&home, 0, ["up", "up"])?;
    step("the first killed");
    home.kill_device()?;
    are(None, Some(&tunnel[1]))?;
    expect_states(&home, 2, ["degraded", "up"])?;
    step("the first up again, the second killed");
    home.up(&of_home)?;
    work.kill_device()?;
    are(Some(&tunnel[0]), None)?;
    step("the first down, the second up again");
    home.down(&of_home)?;
    work.up(&of_work)?;
    are(Some(&uplink), Some(&tunnel[1]))?;
    work.down(&of_work)?;
    are(Some(&uplink), Some(&uplink))?;
    home.is_as_before(&before, "something is left")
}

/// Checks that `status`, as text and as JSON, lists both tunnels of [`two_tunnels_at_once`] with these
/// states and their applications.
fn expect_states(home: &World, code: i32, states: [&str; 2]) -> Result<()> {
    let (text, json) = (home.taupe(&["status"])?, home.taupe(&["status", "--json"])?);
    let reported: Value = serde_json::from_str(&json.stdout)
        .map_err(|error| Error::unmet(format!("{error}: {json:?}")))?;
    ensure!(
        text.status == Some(code) && json.status == Some(code),
        "{text:?} {json:?}"
    );
    let tunnels = reported["tunnels"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    let [first, second] = tunnels else {
        return Err(Error::unmet(format!("not two: {reported}")));
    };
    for (tunnel, (name, application), state) in [
        (first, ("home", "mole"), states[0]),
        (second, ("work", "bird"), states[1]),
    ] {
        ensure!(
            tunnel["interface"] == name
                && tunnel["state"] == state
                && tunnel["rules"][0]["application"] == application,
            "{name}: {reported}"
        );
        let head = format!("{name}: {state}, for selected applications");
        ensure!(
            text.stdout.lines().any(|line| line == head),
            "no {head}: {}",
            text.stdout
        );
    }
    Ok(())
}

/// A local network that is also in the tunnel is reached through the tunnel unless the file says
/// otherwise.
pub(crate) fn local_network_also_in_the_tunnel() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let asks = |application: &Application, whom: IpAddr, who: &str| {
        let found = world.asks(application, whom)?;
        ensure!(
            found.as_deref() == Some(who),
            "{} is {found:?} to {whom}, not {who}",
            application.0
        );
        Ok(())
    };
    for (allowed, line, neighbour, beyond) in [
        ("0.0.0.0/0, ::/0", "", TUNNEL[0], TUNNEL[0]),
        ("192.168.0.0/16", "", TUNNEL[0], UPLINK[0]),
        ("0.0.0.0/0", "BypassLanTraffic = true", UPLINK[0], TUNNEL[0]),
        (
            "0.0.0.0/0",
            "DisallowedIPs = 192.168.1.0/24",
            UPLINK[0],
            TUNNEL[0],
        ),
    ] {
        step(&format!("{allowed} {line}"));
        let file = world.file_with_sections(
            "Address = 10.77.0.1/32, fd77::1/128",
            &format!(
                "Endpoint = 192.168.1.2:51821\nAllowedIPs = {allowed}\nAllowedApps = mole\n{line}"
            ),
        )?;
        world.up(&file)?;
        let capture = Capture::start(&world.far, "eth0", "tcp port 8080")?;
        asks(&mole, NEIGHBOUR, neighbour)?;
        asks(&mole, BEYOND[0], beyond)?;
        let clear = [neighbour, beyond].contains(&UPLINK[0]);
        let packets = match clear {
            // `tcpdump` writes a packet some time after it was on the wire.
            true => capture.stop_once("packets in clear", |packets| packets.len() >= 4)?,
            false => capture.stop()?,
        };
        ensure!(
            packets.is_empty() != clear,
            "{} packets in clear",
            packets.len()
        );
        asks(&bird, NEIGHBOUR, UPLINK[0])?;
        asks(&bird, BEYOND[0], UPLINK[0])?;
        world.down(&file)?;
    }
    Ok(())
}

/// Wherever the routes lead, selected applications use the tunnel, and others use the uplink of the
/// route.
pub(crate) fn several_uplinks() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    world.wire("eth1", "eth1", 2)?;
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    let second = ["192.168.2.1", "2001:db8:2::1"];
    let route = |family: &str, verb: &str, what: &str, via: &str| {
        world
            .near
            .ip(&[family, "route", verb, what, "via", via])
            .map(drop)
    };
    let all = |who: [Option<&str>; 2], other: [&str; 2]| {
        (0..2).try_for_each(|family| {
            expect(&world, &mole, family, who[family])?;
            expect(&world, &bird, family, Some(other[family]))
        })
    };
    let captures = || -> Result<[Capture; 2]> {
        let capture = |port| Capture::start(&world.far, port, "tcp port 8080");
        Ok([capture("eth0")?, capture("eth1")?])
    };
    let tunnel = TUNNEL.map(Some);
    step("by the first");
    all(tunnel, UPLINK)?;
    step("one place by the second");
    for (family, whom, via) in [
        ("-4", "198.51.100.1", "192.168.2.2"),
        ("-6", "2001:db8:ffff::1", "2001:db8:2::2"),
    ] {
        route(family, "add", whom, via)?;
    }
    all(tunnel, second)?;
    let seen = captures()?;
    for family in [0, 1] {
        expect(&world, &mole, family, tunnel[family])?;
    }
    for capture in seen {
        ensure!(capture.stop()?.is_empty(), "packets in clear");
    }
    step("everything by the second, the first unplugged");
    world.near.ip(&["link", "delete", "dev", "eth0"])?;
    route("-4", "add", "default", "192.168.2.2")?;
    route("-6", "add", "default", "2001:db8:2::2")?;
    // The server's address belonged to the removed cable.
    taupe_lab::host::add_address(&world.far, "lo", "192.168.1.2/32")?;
    wait_until(
        "the tunnel by the other uplink",
        Duration::from_secs(60),
        || Ok(world.asks(&mole, BEYOND[0])?.as_deref() == Some(TUNNEL[0])),
    )?;
    all(tunnel, second)?;
    world.kill_device()?;
    all([None; 2], second)?;
    world.down(&file)?;
    all(second.map(Some), second)
}

/// `down --all` ends a tunnel, one whose process was killed, and a lock.
pub(crate) fn all_down() -> Result<()> {
    let (mole, bird, newt) = (
        Application::new("mole")?,
        Application::new("bird")?,
        Application::new("newt")?,
    );
    let home = World::new()?;
    let work = home.with_another("work", 9)?;
    let away = home.with_another("away", 3)?;
    let before = home.configuration()?;
    let nothing = home.taupe(&["down", "--all"])?;
    ensure!(nothing.status == Some(0), "{}", nothing.stderr);
    home.up(&home.file("AllowedApps = mole")?)?;
    work.up(&work.file("AllowedApps = bird")?)?;
    work.kill_device()?;
    let lock = away.taupe(&["lock", &away.file("AllowedApps = newt")?])?;
    ensure!(lock.status == Some(0), "{}", lock.stderr);
    expect(&home, &mole, 0, Some(TUNNEL[0]))?;
    expect(&work, &bird, 0, None)?;
    expect(&away, &newt, 0, None)?;
    step("all down");
    let down = home.taupe(&["down", "--all"])?;
    ensure!(down.status == Some(0), "{}", down.stderr);
    for application in [&mole, &bird, &newt] {
        expect(&home, application, 0, Some(UPLINK[0]))?;
    }
    home.is_as_before(&before, "something is left")
}
