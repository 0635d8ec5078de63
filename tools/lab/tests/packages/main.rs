//! Debian packages of Taupe in a minimal Debian, with and without systemd: installed, upgraded, removed;
//! over an installation by hand, and on a full disk.
//!
//! `SYSTEMS=all` adds other releases of Debian and Ubuntu, `DOWNLOAD=60` makes the download across an
//! upgrade last that many seconds, `IMAGE=1` adds the container image, which needs podman and the programs
//! of `make musl`.

mod build;
mod image;
mod machine;
mod systemd;
mod systems;

use machine::Machine;
use std::fs;
use std::time::{Duration, Instant};
use systems::System;
use taupe_lab::capture::Capture;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{Suite, SystemTest, figure, step};
use taupe_lab::{Error, Result, ensure};

/// Target for the time from the package to the first request through the tunnel. A busy machine may
/// take three times as long.
const FIRST_REQUEST: Duration = Duration::from_secs(60);

const SOON: Duration = Duration::from_secs(30);

/// Time limit of a test.
const LIMIT: Duration = Duration::from_secs(180);

/// A test of one system.
type Body = fn(System) -> Result<()>;

/// The tests, in the order of their start.
const TESTS: [(&str, Body); 9] = [
    ("upgrade_with_systemd", systemd::upgrade_and_removal),
    ("upgrade_keeps_tunnels", upgrade_keeps_tunnels),
    ("downgrade_keeps_tunnels", downgrade_keeps_tunnels),
    ("first_request", first_request),
    ("removal_takes_tunnels_down", removal_takes_tunnels_down),
    ("removal_is_refused", removal_is_refused),
    ("purge_leaves_nothing", purge_leaves_nothing),
    ("installed_by_hand", installed_by_hand),
    ("disk_full_at_the_upgrade", disk_full_at_the_upgrade),
];

fn main() {
    let mut tests = Vec::new();
    for &system in System::all() {
        tests.extend(TESTS.map(|(name, body)| {
            let name = match system {
                System::Bookworm => name.to_owned(),
                other => format!("{name}_on_{}", other.release()),
            };
            SystemTest::new(name, move || body(system)).limit(LIMIT + 4 * download_time())
        }));
    }
    let with_image = std::env::var_os("IMAGE").is_some();
    if with_image {
        tests.push(SystemTest::new("image_proxy", image::proxy));
        tests.push(SystemTest::new("image_gateway", image::gateway));
        tests.push(SystemTest::new("image_all_traffic", image::all_traffic));
    }
    Suite::new(tests)
        .prepare(move || {
            build::prepare()?;
            if with_image {
                build::prepare_image()?;
            }
            Ok(())
        })
        .parallel(3)
        .main()
}

/// Installing the package takes a newcomer to a request through the tunnel.
fn first_request(system: System) -> Result<()> {
    let machine = Machine::new(system)?;
    let start = Instant::now();
    machine.succeeds(&["apt-get", "install", "--yes", "/packages/new.deb"])?;
    machine.succeeds(&["taupe", "up", "home"])?;
    machine.must_be_tunnelled("installed")?;
    let elapsed = start.elapsed();
    figure("seconds to the first request", elapsed.as_secs_f64());
    ensure!(elapsed < 3 * FIRST_REQUEST, "{elapsed:?}");
    // Everything that the documentation names is there.
    for file in [
        "/usr/share/man/man1/taupe.1.gz",
        "/usr/share/man/man5/taupe.conf.5.gz",
        "/usr/share/bash-completion/completions/taupe",
        "/usr/lib/systemd/system/taupe@.service",
        "/usr/share/doc/taupe/copyright",
    ] {
        ensure!(machine.path(file).exists(), "no {file}");
    }
    machine.succeeds(&["taupe", "down", "home"])
}

/// Upgrading keeps tunnels up, and the new command works on them.
fn upgrade_keeps_tunnels(system: System) -> Result<()> {
    replaced(system, "old.deb", "new.deb")
}

/// Returns the time that the download across an upgrade takes at least, which `DOWNLOAD` sets in seconds.
fn download_time() -> Duration {
    let seconds = std::env::var("DOWNLOAD").ok();
    Duration::from_secs(seconds.map_or(0, |seconds| seconds.parse().expect("DOWNLOAD")))
}

/// Downgrading keeps tunnels up.
fn downgrade_keeps_tunnels(system: System) -> Result<()> {
    replaced(system, "new.deb", "old.deb")
}

fn replaced(system: System, first: &str, second: &str) -> Result<()> {
    let machine = Machine::new(system)?;
    machine.install(first)?;
    machine.succeeds(&["taupe", "up", "home"])?;
    machine.must_be_tunnelled("with the first version")?;
    let filter = format!("tcp port {}", machine::DOWNLOAD);
    let capture = Capture::start(&machine.far, "eth0", &filter)?;
    let mut download = machine.download()?;
    download.goes_on("before")?;
    let time = download_time();
    download.lasts(time / 3)?;
    step("replaced");
    machine.install(second)?;
    download.goes_on("after")?;
    download.lasts(time)?;
    step("status");
    let status = machine.taupe(&["status", "home"])?;
    ensure!(status.stdout.starts_with("home: up"), "{status:?}");
    let all = machine.taupe(&["status"])?;
    ensure!(all.stdout.contains("`taupe status home`"), "{all:?}");
    let flows = machine.taupe(&["flows", "home"])?;
    ensure!(flows.stdout.contains("mole"), "{flows:?}");
    step("app, reload, lock");
    machine.succeeds(&["taupe", "app", "allow", "home", "bird"])?;
    machine.must_be("bird", Some(machine::TUNNEL), "allowed")?;
    machine.succeeds(&["taupe", "lock", "home"])?;
    machine.edit("AllowedApps", "AllowedApps = mole")?;
    machine.succeeds(&["taupe", "reload", "home"])?;
    machine.must_be("bird", Some(machine::UPLINK), "not allowed any more")?;
    download.goes_on("after all of it")?;
    let received = download.end()?;
    ensure!(received.duration >= time, "{received:?}");
    figure("seconds of the download", received.duration.as_secs_f64());
    figure(
        "its longest pause, in ms",
        received.longest_pause.as_millis(),
    );
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    step("down, and up with the second version");
    machine.succeeds(&["taupe", "down", "home"])?;
    machine.must_be("mole", Some(machine::UPLINK), "down")?;
    machine.succeeds(&["taupe", "up", "home"])?;
    machine.must_be_tunnelled("with the second version")?;
    machine.succeeds(&["taupe", "down", "home"])
}

/// Removing takes tunnels down: afterwards nobody could unblock their applications.
fn removal_takes_tunnels_down(system: System) -> Result<()> {
    let machine = Machine::new(system)?;
    machine.install("new.deb")?;
    let before = machine.network()?;
    machine.succeeds(&["taupe", "up", "home"])?;
    machine.must_be_tunnelled("up")?;
    machine.succeeds(&["dpkg", "--remove", "taupe"])?;
    machine.must_be("mole", Some(machine::UPLINK), "removed")?;
    ensure!(
        !machine.path("/usr/bin/taupe").exists(),
        "the program stays"
    );
    let after = machine.network()?;
    ensure!(before == after, "before: {before}\nafter: {after}");
    ensure!(machine.path("/etc/wireguard/home.conf").exists(), "no file");
    Ok(())
}

/// If a tunnel cannot be taken down, the package stays, and the message has the command to run.
fn removal_is_refused(system: System) -> Result<()> {
    let machine = Machine::new(system)?;
    machine.install("new.deb")?;
    machine.succeeds(&["taupe", "up", "home"])?;
    // Undoing is impossible while the journal claims a newer format.
    let journal = "/run/taupe/home.journal";
    let path = machine.path(journal);
    let text = fs::read_to_string(&path).map_err(Error::io(journal))?;
    let other = text.replacen("\"taupe_journal\":1,", "\"taupe_journal\":99,", 1);
    ensure!(text != other, "{text}");
    machine.kill_tunnel()?;
    fs::write(&path, &other).map_err(Error::io(journal))?;
    let refused = machine.attempt(&["dpkg", "--remove", "taupe"])?;
    ensure!(refused.status != Some(0), "{refused:?}");
    ensure!(refused.stderr.contains("`taupe down NAME`"), "{refused:?}");
    machine.must_be("mole", None, "not removed")?;
    step("mended, and removed");
    fs::write(&path, &text).map_err(Error::io(journal))?;
    machine.succeeds(&["dpkg", "--remove", "taupe"])?;
    machine.must_be("mole", Some(machine::UPLINK), "removed")
}

/// After a purge, the files of the system are those from before, except for the user's tunnels.
fn purge_leaves_nothing(system: System) -> Result<()> {
    let machine = Machine::new(system)?;
    let before = machine.files()?;
    machine.install("new.deb")?;
    machine.succeeds(&["taupe", "up", "home"])?;
    machine.must_be_tunnelled("up")?;
    let wants = machine.path("/etc/systemd/system/multi-user.target.wants");
    fs::create_dir_all(&wants).map_err(Error::io("wants"))?;
    let unit = "/usr/lib/systemd/system/taupe@.service";
    std::os::unix::fs::symlink(unit, wants.join("taupe@home.service")).map_err(Error::io(unit))?;
    machine.succeeds(&["dpkg", "--purge", "taupe"])?;
    let _ = fs::remove_dir(&wants);
    let after = machine.files()?;
    let left: Vec<_> = after.difference(&before).collect();
    ensure!(left.is_empty(), "left: {left:#?}");
    let gone: Vec<_> = before.difference(&after).collect();
    ensure!(gone.is_empty(), "gone: {gone:#?}");
    Ok(())
}

/// Installing warns about a program in /usr/local, which hides the package's.
fn installed_by_hand(system: System) -> Result<()> {
    let machine = Machine::new(system)?;
    let own = machine.path("/usr/local/bin/taupe");
    fs::write(&own, "#!/bin/sh\n").map_err(Error::io("/usr/local/bin/taupe"))?;
    let installed = machine.attempt(&["dpkg", "--install", "/packages/new.deb"])?;
    ensure!(installed.status == Some(0), "{installed:?}");
    let said = "/usr/local/bin/taupe is of an installation by hand";
    ensure!(installed.stderr.contains(said), "{installed:?}");
    Ok(())
}

/// An upgrade for which there is no room changes nothing, and works once there is.
fn disk_full_at_the_upgrade(system: System) -> Result<()> {
    let machine = Machine::with_room(system, 256 << 20)?;
    machine.install("old.deb")?;
    let program = || fs::read(machine.path("/usr/bin/taupe")).map_err(Error::io("the program"));
    let before = program()?;
    machine.succeeds(&["taupe", "up", "home"])?;
    let mut download = machine.download()?;
    download.goes_on("before")?;
    let rest = machine.fill()?;
    let full = machine.attempt(&["dpkg", "--install", "/packages/new.deb"])?;
    ensure!(full.status != Some(0), "{full:?}");
    ensure!(full.stderr.contains("No space left"), "{full:?}");
    download.goes_on("on a full disk")?;
    ensure!(before == program()?, "the program has changed");
    machine.must_be_tunnelled("on a full disk")?;
    fs::remove_file(rest).map_err(Error::io("what fills the disk"))?;
    machine.install("new.deb")?;
    ensure!(before != program()?, "the program has not changed");
    download.goes_on("upgraded")?;
    download.end()?;
    wait_until("the tunnel's end", SOON, || {
        Ok(machine.taupe(&["down", "home"])?.status == Some(0))
    })?;
    machine.must_be("mole", Some(machine::UPLINK), "down")
}
