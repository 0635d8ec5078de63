//! A tunnel as a service: stopped, started again, and during shutdown.

use std::net::Ipv4Addr;
use std::time::Duration;

use rustix::process::Signal;
use taupe_lab::capture::Capture;
use taupe_lab::host::add_address;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{Application, BEYOND, TUNNEL, UPLINK, World, expect, private_key};

/// `down --keep-closed`, which stops the service, blocks traffic until `up` or `down`.
pub(crate) fn service_stop_keeps_blocking() -> Result<()> {
    let world = World::new()?;
    let (selected, other) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    let before = world.configuration()?;
    world.up(&file)?;
    let capture = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    step("closed");
    let down = world.taupe(&["down", "--keep-closed", &file])?;
    ensure!(down.status == Some(0), "down: {}", down.stderr);
    ensure!(down.stderr.contains("is blocked"), "down: {}", down.stderr);
    world.is_as_before(&before, "something is left")?;
    for family in [0, 1] {
        expect(&world, &selected, family, None)?;
    }
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    expect(&world, &other, 0, Some(UPLINK[0]))?;
    let status = world.taupe(&["status", "home"])?;
    ensure!(status.stdout.starts_with("home: down"), "{}", status.stdout);
    let all = world.taupe(&["status"])?;
    ensure!(all.stdout == status.stdout, "of all: {}", all.stdout);
    step("up again");
    world.up(&file)?;
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    step("closed, and open");
    for keep in [true, true, false] {
        let options: &[&str] = if keep { &["--keep-closed"] } else { &[] };
        let down = world.taupe(&[&["down"], options, &[&*file]].concat())?;
        ensure!(down.status == Some(0), "{options:?}: {}", down.stderr);
        let who = (!keep).then_some(UPLINK[0]);
        expect(&world, &selected, 0, who)?;
    }
    let again = world.taupe(&["down", &file])?;
    ensure!(again.status == Some(1), "down once more");
    Ok(())
}

/// The service's own process, ended by a signal or by its stop command.
pub(crate) fn service_main_process() -> Result<()> {
    let world = World::new()?;
    let selected = Application::new("mole")?;
    let file = world.file("AllowedApps = mole")?;
    for by_command in [false, true] {
        step(if by_command {
            "by command"
        } else {
            "by signal"
        });
        let mut process = world.stay_up(&["--keep-closed"], &file, &selected)?;
        if by_command {
            let down = world.taupe(&["down", "--keep-closed", &file])?;
            ensure!(down.status == Some(0), "down: {}", down.stderr);
            // Like a service manager with a service that continues after its stop command.
            let _ = process.signal(Signal::TERM);
        } else {
            process.signal(Signal::TERM)?;
        }
        let status = process.wait(Duration::from_secs(20))?;
        ensure!(status.success(), "{status}: {}", process.output());
        expect(&world, &selected, 0, None)?;
    }
    world.down(&file)?;
    expect(&world, &selected, 0, Some(UPLINK[0]))
}

/// `taupe lock` before there is a network; then the network; then the tunnel.
pub(crate) fn locked_before_the_network() -> Result<()> {
    let world = World::new()?;
    let (selected, other) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    let routes = [
        ("-4", "default", "192.168.1.2"),
        ("-6", "default", "2001:db8:1::2"),
    ];
    world.near.ip(&["link", "set", "eth0", "down"])?;
    let lock = world.taupe(&["lock", &file])?;
    ensure!(lock.status == Some(0), "lock: {}", lock.stderr);
    ensure!(
        lock.stderr.starts_with("home is locked: ") && lock.stderr.contains("is blocked"),
        "lock: {}",
        lock.stderr
    );
    // The file is in no folder where its name would suffice.
    let advice = format!("`taupe up {file}`");
    ensure!(lock.stderr.contains(&advice), "lock: {}", lock.stderr);
    let explained = world.taupe(&["explain", &selected.0, "198.51.100.1:8080", "--conf", &file])?;
    ensure!(
        explained.stdout.contains("home is down: ") && explained.stdout.contains("is blocked"),
        "explained: {explained:?}"
    );
    let clear = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    step("the network comes");
    // One link that existed at the time of the lock, and one that did not.
    world.near.ip(&["link", "set", "eth0", "up"])?;
    add_address(&world.near, "eth0", "2001:db8:1::1/64")?;
    world.wire("eth1", "eth1", 9)?;
    for (family, to, via) in routes {
        world
            .near
            .ip(&[family, "route", "replace", to, "via", via])?;
    }
    for family in [0, 1] {
        expect(&world, &selected, family, None)?;
    }
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    for family in [0, 1] {
        wait_until("the network", Duration::from_secs(20), || {
            let who = world.asks(&other, BEYOND[family])?;
            Ok(who.as_deref() == Some(UPLINK[family]))
        })?;
    }
    let by_another_link = world.asks(&selected, Ipv4Addr::new(192, 168, 9, 2).into())?;
    ensure!(by_another_link.is_none(), "it reaches {by_another_link:?}");
    step("locked again, with other rules");
    let text = std::fs::read_to_string(&file).map_err(Error::io(&*file))?;
    std::fs::write(&file, text.replace("= mole", "= bird")).map_err(Error::io(&*file))?;
    let again = world.taupe(&["lock", &file])?;
    ensure!(again.status == Some(0), "again: {}", again.stderr);
    expect(&world, &other, 0, None)?;
    expect(&world, &selected, 0, Some(UPLINK[0]))?;
    std::fs::write(&file, text).map_err(Error::io(&*file))?;
    step("up");
    world.up(&file)?;
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    expect(&world, &other, 0, Some(UPLINK[0]))?;
    let needless = world.taupe(&["lock", &file])?;
    ensure!(needless.status == Some(0), "up: {}", needless.stderr);
    ensure!(
        needless.stderr.starts_with("home is up"),
        "{}",
        needless.stderr
    );
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    step("down");
    world.down(&file)?;
    expect(&world, &selected, 0, Some(UPLINK[0]))?;
    step("locked and opened without a tunnel");
    let lock = world.taupe(&["lock", &file])?;
    ensure!(lock.status == Some(0), "lock: {}", lock.stderr);
    expect(&world, &selected, 0, None)?;
    world.down(&file)?;
    expect(&world, &selected, 0, Some(UPLINK[0]))
}

/// `taupe lock` needs no key: the file that contains it may appear later, or be gone.
pub(crate) fn locked_without_a_key() -> Result<()> {
    let world = World::new()?;
    let selected = Application::new("mole")?;
    let file = world.file("AllowedApps = mole")?;
    let text = std::fs::read_to_string(&file).map_err(Error::io(&*file))?;
    let (line, secret) = private_key(&text)?;
    let key = scratch("home.key");
    let text = text.replace(line, &format!("PrivateKey = file:{}", key.display()));
    std::fs::write(&file, text).map_err(Error::io(&*file))?;
    let write = |text| std::fs::write(&key, text).map_err(Error::io("the key"));
    step("no file, and an empty one");
    for attempt in 0..2 {
        let lock = world.taupe(&["lock", &file])?;
        ensure!(
            lock.status == Some(0) && lock.stderr.starts_with("home is locked: "),
            "{lock:?}"
        );
        expect(&world, &selected, 0, None)?;
        let up = world.taupe(&["up", &file])?;
        ensure!(
            up.status == Some(1) && up.stderr.contains(" of PrivateKey "),
            "{up:?}"
        );
        expect(&world, &selected, 0, None)?;
        match attempt {
            0 => write("")?,
            _ => write(secret)?,
        }
    }
    step("the key");
    world.up(&file)?;
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    step("the key of another tunnel has gone");
    std::fs::remove_file(&key).map_err(Error::io("the key"))?;
    let other = Application::new("bird")?;
    let another = world.with_another("away", 3)?;
    let another = another.file("AllowedApps = bird")?;
    let explained = world.taupe(&["explain", &selected.0, "198.51.100.1:8080", "--conf", &file])?;
    ensure!(explained.status == Some(0), "{explained:?}");
    let status = world.taupe(&["status", "home"])?;
    ensure!(
        status.status == Some(0) && !status.stdout.contains("errors"),
        "{status:?}"
    );
    let lock = world.taupe(&["lock", &another])?;
    ensure!(lock.status == Some(0), "{lock:?}");
    expect(&world, &other, 0, None)?;
    world.down("away")?;
    world.down("home")?;
    expect(&world, &selected, 0, Some(UPLINK[0]))
}

/// Files that do not permit a lock, with the reason.
pub(crate) fn not_locked() -> Result<()> {
    let world = World::new()?;
    let before = world.configuration()?;
    let selected = Application::new("mole")?;
    for (lines, reason) in [
        ("", "selects no applications"),
        ("AllowedApps = mole\nKillSwitch = off", "KillSwitch = off"),
        ("AllowedApps = uid:nobody-at-all", "no user nobody-at-all"),
        ("AllowedApps = mole\nColour = taupe", "1 error"),
    ] {
        let file = world.file(lines)?;
        let lock = world.taupe(&["lock", &file])?;
        ensure!(
            lock.status == Some(1) && lock.stderr.contains(reason),
            "{lines}: {lock:?}"
        );
        expect(&world, &selected, 0, Some(UPLINK[0]))?;
    }
    let file = world.file("")?;
    step("up for all in adapter mode");
    world.up(&file)?;
    let choosing = world.file("AllowedApps = mole")?;
    let lock = world.taupe(&["lock", &choosing])?;
    ensure!(
        lock.status == Some(1) && lock.stderr.contains("`taupe down` it first"),
        "{lock:?}"
    );
    expect(&world, &selected, 0, Some(TUNNEL[0]))?;
    world.down(&file)?;
    world.is_as_before(&before, "something is left")
}
