//! Two tunnels in one network namespace, each with an application of its own.

use crate::application::install;
use crate::daemon::{self};
use crate::links::served;
use crate::scene::{HOME, REMOTE, SECOND, Scene, TUNNEL, at, nothing, unmet};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;
use taupe_lab::host::Host;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_os_linux::tun::Tun;
use taupe_transparent::capture::{self, Capture};
use taupe_transparent::pins::Pins;

/// Three times the interval in which a capture checks its filters.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("two_tunnels_at_once", two_tunnels_at_once),
        SystemTest::new("filters_of_two_tunnels", filters_of_two_tunnels),
    ]
}

/// Starts a capture that follows home's links for this application.
fn begin(home: &Host, tunnel: &str, application: &str, tun: &Tun) -> Result<Capture> {
    let index = tun.index().map_err(Error::io("TUN"))?;
    home.enter(|| daemon::begin(tunnel, application, index).map_err(unmet))
}

/// Checks that `who` answers an application by TCP and UDP in both families.
fn is_answered_by(scene: &Scene, application: &str, who: &str) -> Result<()> {
    for remote in REMOTE {
        for way in ["tcp", "udp"] {
            scene.expect(application, &[way, &at(remote, 80)], who)?;
        }
    }
    Ok(())
}

fn two_tunnels_at_once() -> Result<()> {
    let mut scene = Scene::new()?;
    let (tun, yonder) = scene.second_tunnel()?;
    let [mole, bird, other] = ["mole", "bird", "other"].map(install);
    let (mole, bird, other) = (mole?, bird?, other?);
    let first = begin(&scene.home, TUNNEL, "mole", &scene.tun)?;
    let _second = begin(&scene.home, SECOND, "bird", &tun)?;
    let clear = scene.capture("host 198.51.100.1 or host 2001:db8:9::1")?;
    step("each in its own");
    is_answered_by(&scene, &mole, "beyond")?;
    is_answered_by(&scene, &bird, "yonder")?;
    for application in [&mole, &bird] {
        for remote in REMOTE {
            scene.expect(application, &["ping", remote], "answered")?;
        }
    }
    step("servers");
    let _servers = [
        scene.start(&mole, &["serve", "7000"])?,
        scene.start(&bird, &["serve", "7001"])?,
    ];
    for (from, port, is_reached) in [
        (&scene.beyond, 7000, true),
        (&scene.beyond, 7001, false),
        (&yonder, 7000, false),
        (&yonder, 7001, true),
        (&scene.far, 7000, false),
        (&scene.far, 7001, false),
    ] {
        let found = from.enter(|| served(&at(HOME[0], port)))?;
        ensure!(found == is_reached, "{port} from {}: {found}", from.name());
    }
    step("one dead");
    drop(first);
    for remote in REMOTE {
        let said = scene.run(&mole, &["tcp", &at(remote, 80)])?;
        ensure!(said == "failed 101 at once", "{said}");
    }
    is_answered_by(&scene, &bird, "yonder")?;
    nothing(&scene, clear)?;
    is_answered_by(&scene, &other, "far")?;
    step("one gone");
    let release = |tunnel| capture::release(tunnel).map_err(unmet);
    ensure!(
        scene.home.enter(|| release(TUNNEL))?.is_some(),
        "there was no first one"
    );
    is_answered_by(&scene, &mole, "far")?;
    let clear = scene.capture("host 198.51.100.1 or host 2001:db8:9::1")?;
    is_answered_by(&scene, &bird, "yonder")?;
    nothing(&scene, clear)
}

/// Each tunnel accepts the other's filters before its own.
fn filters_of_two_tunnels() -> Result<()> {
    let mut scene = Scene::new()?;
    let (tun, _yonder) = scene.second_tunnel()?;
    let (mole, bird) = (install("mole")?, install("bird")?);
    let _first = begin(&scene.home, TUNNEL, "mole", &scene.tun)?;
    let _second = begin(&scene.home, SECOND, "bird", &tun)?;
    // Each tunnel has two filters on the uplink, on its own TUN, on the other's, and on both ends
    // of each cable. When all are there, both tunnels have checked the earlier ones.
    let cable = |number: usize| -> Result<()> {
        let names = [format!("a{number}"), format!("b{number}")];
        let [a, b] = names.each_ref().map(String::as_str);
        let words = ["link", "add", a, "type", "veth", "peer", "name", b];
        scene.home.ip(&words)?;
        wait_until("both guard the new links", PATIENCE, || {
            Ok(pinned().len() == 2 * (6 + 4 * number))
        })
    };
    cable(1)?;
    let before = pinned();
    cable(2)?;
    let now = pinned();
    ensure!(
        before.iter().all(|(pin, file)| now.get(pin) == Some(file)),
        "{before:?} has become {now:?}"
    );
    is_answered_by(&scene, &mole, "beyond")?;
    is_answered_by(&scene, &bird, "yonder")
}

/// Returns the pinned filters with the inodes of their pins. A filter that has been restored has
/// another inode.
fn pinned() -> BTreeMap<String, u64> {
    let folders = Pins::all().map(|pins| pins.directory().join("links"));
    let entries = folders.flat_map(std::fs::read_dir).flatten().flatten();
    let pins = entries.filter_map(|entry| {
        let name = entry.path().display().to_string();
        Some((name, entry.metadata().ok()?.ino()))
    });
    let is_filter = |(name, _): &(String, u64)| {
        let file = name.rsplit('/').next().unwrap_or_default();
        file.starts_with(|first: char| first.is_ascii_digit())
    };
    pins.filter(is_filter).collect()
}
