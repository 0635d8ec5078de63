//! Fail closed: no packet leaves outside the tunnel when a part is missing.

use crate::application::{Application, install};
use crate::daemon::{CAPTURE, daemon_words, start_daemon};
use crate::scene::{QUIET, REMOTE, Scene, TUNNEL, at, nothing, open, unmet, without_tcx};
use aya::maps::{HashMap, Map, MapData};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;
use taupe_lab::capture::Capture;
use taupe_lab::host::{add_address, link};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::capture::release;
use taupe_transparent::pins::Pins;
use taupe_transparent::programs::Guard;
use taupe_transparent::state::Lock;

/// All packets of a selected application to the remote addresses.
pub(crate) const ANY: &str = "host 198.51.100.1 or host 2001:db8:9::1";

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("errors_at_once_while_down", errors_at_once_while_down),
        SystemTest::new("connections_survive_a_pause", connections_survive_a_pause),
        SystemTest::new(
            "blocked_after_the_daemon_is_killed",
            blocked_after_the_daemon_is_killed,
        ),
        SystemTest::new("new_uplinks_without_a_daemon", new_uplinks_without_a_daemon),
        SystemTest::new(
            "pins_outlive_a_mount_namespace",
            pins_outlive_a_mount_namespace,
        ),
        SystemTest::new("removed_filter", removed_filter),
        SystemTest::new("removed_filter_without_tcx", without_tcx(removed_filter)),
        SystemTest::new("reused_interface_index", reused_interface_index),
        SystemTest::new(
            "reused_interface_index_without_tcx",
            without_tcx(reused_interface_index),
        ),
        SystemTest::new("deleted_link", deleted_link),
        SystemTest::new("failure_to_start_a_thread", failure_to_start_a_thread),
        SystemTest::new(
            "filter_without_a_map_entry",
            without_tcx(filter_without_a_map_entry),
        ),
        SystemTest::new("deleted_tun", deleted_tun),
        SystemTest::new(
            "errors_at_once_while_down_without_tcx",
            without_tcx(errors_at_once_while_down),
        ),
    ]
}

/// Checks the errors that a selected application gets while the tunnel is down.
fn fails_at_once(scene: &Scene, chosen: &str) -> Result<()> {
    for remote in REMOTE {
        scene.expect(chosen, &["tcp", &at(remote, 80)], "failed 101 at once")?;
        scene.expect(chosen, &["udp", &at(remote, 80)], "failed 1 at once")?;
        let words = ["connected-udp", &at(remote, 80)];
        scene.expect(chosen, &words, "failed 101 at once")?;
    }
    scene.expect(chosen, &["udp", &at(REMOTE[0], 53)], "failed 1 at once")?;
    // No hook at a system call sees these packets.
    let said = scene.run(chosen, &["raw", REMOTE[0]])?;
    ensure!(said.starts_with("failed"), "raw: {said}");
    Ok(())
}

fn errors_at_once_while_down() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let capture = scene.capture(ANY)?;
    scene.programs()?.set_down();
    fails_at_once(&scene, &chosen)?;
    nothing(&scene, capture)?;
    scene.expect(&other, &["tcp", &at(REMOTE[0], 80)], "far")?;
    scene.expect(&other, &["udp", &at(REMOTE[1], 80)], "far")?;
    scene.read_again(&scene.tun.clone())?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")
}

fn connections_survive_a_pause() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let listener = scene
        .beyond
        .enter(|| std::net::TcpListener::bind((REMOTE[0], 7000)).map_err(Error::io("listener")))?;
    let mut kept = scene.start(&chosen, &["stay", &at(REMOTE[0], 7000)])?;
    let (mut stream, _) = listener.accept().map_err(Error::io("accept"))?;
    let capture = scene.capture(ANY)?;
    scene.programs()?.set_down();
    let said = kept.go()?;
    ensure!(said == "sent", "{said}");
    sleep(QUIET);
    nothing(&scene, capture)?;
    scene.read_again(&scene.tun.clone())?;
    use std::io::Read as _;
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .map_err(Error::io("timeout"))?;
    let mut heard = [0; 5];
    stream
        .read_exact(&mut heard)
        .map_err(Error::io("what was held"))?;
    ensure!(heard == *b"later", "{heard:?}");
    Ok(())
}

fn blocked_after_the_daemon_is_killed() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let mut daemon = start_daemon(&scene, "chosen")?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    let mut busy = scene.start(&chosen, &["flood", &at(REMOTE[0], 80), "3"])?;
    let capture = scene.capture(ANY)?;
    sleep(QUIET);
    daemon.kill()?;
    fails_at_once(&scene, &chosen)?;
    step("another one takes over");
    let mut daemon = start_daemon(&scene, "chosen")?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    daemon.kill()?;
    fails_at_once(&scene, &chosen)?;
    ensure!(busy.line()? == "done", "the flood has ended early");
    nothing(&scene, capture)?;
    scene.expect(&other, &["tcp", &at(REMOTE[0], 80)], "far")
}

fn new_uplinks_without_a_daemon() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let mut daemon = start_daemon(&scene, "chosen")?;
    let mut busy = scene.start(&chosen, &["flood", &at(REMOTE[0], 80), "4"])?;
    daemon.kill()?;
    step("a second uplink");
    link(
        scene
            .home
            .port("up1", &["203.0.113.2/24", "2001:db8:2::2/64"]),
        scene
            .far
            .port("down1", &["203.0.113.1/24", "2001:db8:2::1/64"]),
        1500,
    )?;
    let capture = Capture::start(&scene.far, "down1", ANY)?;
    let by = |gateway: [&str; 2], interface: &str| -> Result<()> {
        for (network, gateway) in ["198.51.100.0/24", "2001:db8:9::/64"].iter().zip(gateway) {
            let words = [
                "route", "replace", network, "via", gateway, "dev", interface,
            ];
            let family = if network.contains(':') { "-6" } else { "-4" };
            scene.home.ip(&[&[family], &words[..]].concat())?;
        }
        Ok(())
    };
    by(["203.0.113.1", "2001:db8:2::1"], "up1")?;
    fails_at_once(&scene, &chosen)?;
    scene.run(&chosen, &["flood", &at(REMOTE[0], 80), "1"])?;
    scene.run(&chosen, &["raw", REMOTE[1]])?;
    scene.run(&chosen, &["ping", REMOTE[0]])?;
    let packets = capture.stop()?;
    ensure!(
        packets.is_empty(),
        "{} packets by the second uplink",
        packets.len()
    );
    scene.expect(&other, &["tcp", &at(REMOTE[1], 80)], "far")?;
    step("the first one, made again");
    scene.home.ip(&["link", "delete", "up0"])?;
    link(
        scene
            .home
            .port("up0", &["192.0.2.2/24", "2001:db8:1::2/64"]),
        scene
            .far
            .port("down0", &["192.0.2.1/24", "2001:db8:1::1/64"]),
        1500,
    )?;
    let capture = scene.capture(ANY)?;
    by(["192.0.2.1", "2001:db8:1::1"], "up0")?;
    fails_at_once(&scene, &chosen)?;
    scene.run(&chosen, &["flood", &at(REMOTE[0], 80), "1"])?;
    nothing(&scene, capture)?;
    ensure!(busy.line()? == "done", "the flood has ended early");
    scene.expect(&other, &["tcp", &at(REMOTE[0], 80)], "far")?;
    step("guarded again");
    let _daemon = start_daemon(&scene, "chosen")?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    scene.expect(&chosen, &["udp", &at(REMOTE[1], 80)], "beyond")
}

/// `ip netns exec` gives a command a mount namespace of its own, with another `/sys`.
fn pins_outlive_a_mount_namespace() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let capture = scene.capture(ANY)?;
    for _ in 0..2 {
        let words = daemon_words(&scene, "chosen")?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut daemon = Application::start(scene.home.command(&words))?;
        scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
        daemon.kill()?;
        fails_at_once(&scene, &chosen)?;
    }
    nothing(&scene, capture)?;
    scene.expect(&other, &["tcp", &at(REMOTE[0], 80)], "far")?;
    step("found from anywhere");
    let found = scene.home.enter(|| release(TUNNEL).map_err(unmet))?;
    ensure!(found.is_some(), "the pins are not found");
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "far")
}

/// Removes the egress filter of an interface, as far as another program can.
fn take_filter(scene: &Scene, index: u32) -> Result<()> {
    let pin = Pins::all().find_map(|pins| {
        let pin = pins.directory().join(format!("links/{index}-taupe_out"));
        pin.exists().then_some(pin)
    });
    match pin {
        Some(pin) => std::fs::remove_file(pin).map_err(Error::io("pin")),
        None => scene
            .home
            .run(&["tc", "qdisc", "delete", "dev", "up0", "clsact"])
            .map(drop),
    }
}

fn removed_filter() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    let uplink = scene.uplink("up0")?;
    let home = scene.home.clone();
    let look = |scene: &mut Scene| {
        let programs = scene.programs()?;
        home.enter(|| programs.check_guard(&uplink).map_err(unmet))
    };
    ensure!(look(&mut scene)? == Guard::Intact, "not guarded");
    let capture = scene.capture(ANY)?;
    take_filter(&scene, uplink.index)?;
    // A link ends some time after its pin.
    wait_until("the filter is gone", Duration::from_secs(10), || {
        let said = scene.run(&chosen, &["tcp", &at(REMOTE[0], 80)])?;
        Ok(said.starts_with("failed"))
    })?;
    is_cut_off(&scene, &chosen)?;
    nothing(&scene, capture)?;
    scene.expect(&other, &["tcp", &at(REMOTE[0], 80)], "far")?;
    ensure!(look(&mut scene)? == Guard::Broken, "it is not noticed");
    step("put back");
    let programs = scene.programs()?;
    home.enter(|| programs.guard(&uplink).map_err(unmet))?;
    ensure!(look(&mut scene)? == Guard::Intact, "it is not back");
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")
}

/// Checks that a selected application reaches nobody, with or without an error.
fn is_cut_off(scene: &Scene, chosen: &str) -> Result<()> {
    for remote in REMOTE {
        for way in ["tcp", "udp", "raw", "ping"] {
            let to = match way {
                "raw" | "ping" => remote.to_owned(),
                _ => at(remote, 80),
            };
            let said = scene.run(chosen, &[way, &to])?;
            ensure!(said.starts_with("failed"), "{way}: {said}");
        }
    }
    Ok(())
}

fn reused_interface_index() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let index = scene.uplink("up0")?.index.to_string();
    scene.home.ip(&["link", "delete", "up0"])?;
    #[rustfmt::skip]
    scene.home.ip(&[
        "link", "add", "up0", "index", &index, "type", "veth", "peer", "name", "down0",
        "netns", scene.far.name(),
    ])?;
    for (host, link, addresses) in [
        (&scene.home, "up0", ["192.0.2.2/24", "2001:db8:1::2/64"]),
        (&scene.far, "down0", ["192.0.2.1/24", "2001:db8:1::1/64"]),
    ] {
        for address in addresses {
            add_address(host, link, address)?;
        }
        host.ip(&["link", "set", link, "up"])?;
    }
    scene
        .home
        .ip(&["route", "add", "default", "via", "192.0.2.1"])?;
    scene
        .home
        .ip(&["-6", "route", "add", "default", "via", "2001:db8:1::1"])?;
    wait_until("the new link", Duration::from_secs(10), || {
        Ok(scene.run(&other, &["tcp", &at(REMOTE[1], 80)])? == "far")
    })?;
    let capture = scene.capture(ANY)?;
    is_cut_off(&scene, &chosen)?;
    nothing(&scene, capture)?;
    step("guarded");
    let uplink = scene.uplink("up0")?;
    ensure!(uplink.index.to_string() == index, "{uplink:?}");
    let home = scene.home.clone();
    let programs = scene.programs()?;
    home.enter(|| programs.guard(&uplink).map_err(unmet))?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")
}

fn deleted_link() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let uplink = scene.uplink("up0")?;
    scene.home.ip(&["link", "delete", "up0"])?;
    let home = scene.home.clone();
    let programs = scene.programs()?;
    let guarded = home.enter(|| Ok(programs.guard(&uplink)))?;
    ensure!(guarded.is_err(), "what is gone is guarded");
    let guarded = programs.guarded().map_err(unmet)?;
    ensure!(guarded.is_empty(), "{guarded:?} count as guarded");
    Ok(())
}

/// If the capture's thread cannot start, the tunnel is down, although the process lives on.
fn failure_to_start_a_thread() -> Result<()> {
    let scene = Scene::new()?;
    let chosen = install("chosen")?;
    let begin = || -> Result<Application> {
        let own = std::env::current_exe().map_err(Error::io("own executable"))?;
        let tun = scene.tun.index().map_err(Error::io("TUN"))?;
        let mut command = Command::new(own);
        command.args([CAPTURE, "home", "chosen", &tun.to_string()]);
        // More than the address space.
        command.env("RUST_MIN_STACK", (1_u64 << 47).to_string());
        let mut process = Application::start(command)?;
        let said = process.line()?;
        ensure!(said.contains("starting a thread"), "it says {said:?}");
        Ok(process)
    };
    let mut daemon = start_daemon(&scene, "chosen")?;
    daemon.kill()?;
    let capture = scene.capture(ANY)?;
    let _alive = begin()?;
    fails_at_once(&scene, &chosen)?;
    nothing(&scene, capture)?;
    step("without one before");
    scene.home.enter(|| release(TUNNEL).map_err(unmet))?;
    let _alive = begin()?;
    ensure!(Pins::all().next().is_none(), "pins are left");
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "far")
}

/// A filter is removed with the rest even if its map entry has gone before: by an interrupted
/// command, or because another filter preceded it.
fn filter_without_a_map_entry() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let index = scene.uplink("up0")?.index;
    scene.programs()?.set_lock(Lock::All).map_err(unmet)?;
    let pins = Pins::all().next().ok_or_else(|| unmet("no pins"))?;
    let pinned = MapData::from_pin(pins.directory().join("uplinks")).map_err(unmet)?;
    let uplinks = HashMap::<_, u32, [u8; 12]>::try_from(Map::from_map_data(pinned).map_err(unmet)?);
    uplinks.map_err(unmet)?.remove(&index).map_err(unmet)?;
    scene.home.enter(|| release(TUNNEL).map_err(unmet))?;
    for direction in ["egress", "ingress"] {
        let list = ["tc", "filter", "show", "dev", "up0", direction];
        let filters = scene.home.run(&list)?;
        ensure!(!filters.text().contains("taupe_"), "{}", filters.text());
    }
    for program in [&chosen, &other] {
        scene.expect(program, &["tcp", &at(REMOTE[0], 80)], "far")?;
    }
    Ok(())
}

fn deleted_tun() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let capture = scene.capture(ANY)?;
    scene.tun.shutdown().map_err(Error::io("TUN"))?;
    for remote in REMOTE {
        let said = scene.run(&chosen, &["tcp", &at(remote, 80)])?;
        ensure!(said.starts_with("failed"), "{said}");
        let said = scene.run(&chosen, &["udp", &at(remote, 80)])?;
        ensure!(said.starts_with("failed"), "{said}");
    }
    nothing(&scene, capture)?;
    step("a new one");
    let tun = open(&scene.home, "tp1")?;
    scene.read_again(&tun)?;
    scene.run(&chosen, &["udp", &at(REMOTE[0], 80)])?;
    let mut buffer = vec![0; 70_000];
    let packet = tun.read_queued(&mut buffer);
    ensure!(packet.is_some(), "nothing came to the new TUN");
    Ok(())
}
