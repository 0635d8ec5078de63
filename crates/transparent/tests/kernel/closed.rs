//! Fail closed: no packet leaves outside the tunnel when a part is missing.

use crate::scene::{
    Application, CAPTURE, QUIET, REMOTE, Scene, TUNNEL, at, attached, daemon_words, everything_but,
    install, nothing, open, rules, start_daemon, unmet, without_tcx,
};
use aya::maps::{HashMap, Map, MapData};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use taupe_lab::capture::Capture;
use taupe_lab::host::{Host, Transport, add_address, link};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::capture::{self, release};
use taupe_transparent::pins::Pins;
use taupe_transparent::programs::{Guard, Programs, Way};
use taupe_transparent::reset::Reset;
use taupe_transparent::state::Lock;

/// All packets of a selected application to the remote addresses.
const ANY: &str = "host 198.51.100.1 or host 2001:db8:9::1";

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("down_is_told_at_once", down_is_told_at_once),
        SystemTest::new("connections_outlive_a_pause", connections_outlive_a_pause),
        SystemTest::new("the_daemon_is_killed", the_daemon_is_killed),
        SystemTest::new(
            "uplinks_come_while_it_is_dead",
            uplinks_come_while_it_is_dead,
        ),
        SystemTest::new("mounts_of_a_command_end", mounts_of_a_command_end),
        SystemTest::new("a_filter_is_taken_away", a_filter_is_taken_away),
        SystemTest::new(
            "a_filter_is_taken_away_without_tcx",
            without_tcx(a_filter_is_taken_away),
        ),
        SystemTest::new("a_number_is_used_again", a_number_is_used_again),
        SystemTest::new(
            "a_number_is_used_again_without_tcx",
            without_tcx(a_number_is_used_again),
        ),
        SystemTest::new("a_link_that_is_gone", a_link_that_is_gone),
        SystemTest::new("no_thread_is_to_be_had", no_thread_is_to_be_had),
        SystemTest::new("connections_end_with_it", connections_end_with_it),
        SystemTest::new("what_leaves_ends_first", what_leaves_ends_first),
        SystemTest::new("what_waits_for_a_neighbour", what_waits_for_a_neighbour),
        SystemTest::new(
            "a_filter_without_an_entry",
            without_tcx(a_filter_without_an_entry),
        ),
        SystemTest::new(
            "what_waits_for_a_neighbour_without_tcx",
            without_tcx(what_waits_for_a_neighbour),
        ),
        SystemTest::new("namespaces_that_are_gone", namespaces_that_are_gone),
        SystemTest::new("the_tun_vanishes", the_tun_vanishes),
        SystemTest::new("maps_of_the_other_way", maps_of_the_other_way),
        SystemTest::new("programs_are_replaced", programs_are_replaced),
        SystemTest::new("rules_are_replaced", rules_are_replaced),
        SystemTest::new("removed_without_a_trace", removed_without_a_trace),
        SystemTest::new(
            "programs_are_replaced_without_tcx",
            without_tcx(programs_are_replaced),
        ),
        SystemTest::new(
            "removed_without_a_trace_without_tcx",
            without_tcx(removed_without_a_trace),
        ),
        SystemTest::new(
            "down_is_told_at_once_without_tcx",
            without_tcx(down_is_told_at_once),
        ),
    ]
}

/// A process that is killed before it has attached anything leaves maps. In these the network
/// namespace has the number that the other way uses.
fn maps_of_the_other_way() -> Result<()> {
    let mut scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let home = scene.home.clone();
    let load = |way| home.enter(|| Programs::load(TUNNEL, way).map_err(unmet));
    drop(load(Way::Marks)?);
    scene.set_up(&rules(&["chosen"], &[]), &everything_but(&[]))?;
    for remote in REMOTE {
        scene.expect(&chosen, &["tcp", &at(remote, 80)], "beyond")?;
        scene.expect(&other, &["tcp", &at(remote, 80)], "far")?;
    }
    step("the other way about");
    scene.programs.take();
    home.enter(|| release(TUNNEL).map_err(unmet))?;
    drop(load(Way::Filters)?);
    let seen = home.enter(|| Programs::open(TUNNEL).map_err(unmet))?;
    ensure!(seen.is_none(), "nothing is attached: {seen:?}");
    let mut marks = load(Way::Marks)?;
    marks.set_mark(MARK);
    home.enter(|| {
        let rules = rules(&["chosen"], &[]);
        let replaced = marks.replace(&rules, &everything_but(&[]));
        replaced.and_then(|()| marks.attach()).map_err(unmet)
    })?;
    // No rule routes the mark, so the packets are blocked.
    let said = scene.run(&chosen, &["udp", &at(REMOTE[0], 80)])?;
    ensure!(said.starts_with("failed"), "by its mark: {said}");
    scene.expect(&other, &["udp", &at(REMOTE[0], 80)], "far")
}

const MARK: u32 = 0x5300_0000;

/// Checks the errors that a selected application gets while the tunnel is down.
fn is_told(scene: &Scene, chosen: &str) -> Result<()> {
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

fn down_is_told_at_once() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let capture = scene.capture(ANY)?;
    scene.programs()?.set_down();
    is_told(&scene, &chosen)?;
    nothing(&scene, capture)?;
    scene.expect(&other, &["tcp", &at(REMOTE[0], 80)], "far")?;
    scene.expect(&other, &["udp", &at(REMOTE[1], 80)], "far")?;
    scene.read_again(&scene.tun.clone())?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")
}

fn connections_outlive_a_pause() -> Result<()> {
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

fn the_daemon_is_killed() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let mut daemon = start_daemon(&scene, "chosen")?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    let mut busy = scene.start(&chosen, &["flood", &at(REMOTE[0], 80), "3"])?;
    let capture = scene.capture(ANY)?;
    sleep(QUIET);
    daemon.kill()?;
    is_told(&scene, &chosen)?;
    step("another one takes over");
    let mut daemon = start_daemon(&scene, "chosen")?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    daemon.kill()?;
    is_told(&scene, &chosen)?;
    ensure!(busy.line()? == "done", "the flood has ended early");
    nothing(&scene, capture)?;
    scene.expect(&other, &["tcp", &at(REMOTE[0], 80)], "far")
}

fn uplinks_come_while_it_is_dead() -> Result<()> {
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
    is_told(&scene, &chosen)?;
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
    is_told(&scene, &chosen)?;
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
fn mounts_of_a_command_end() -> Result<()> {
    let scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let capture = scene.capture(ANY)?;
    for _ in 0..2 {
        let words = daemon_words(&scene, "chosen")?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut daemon = Application::start(scene.home.command(&words))?;
        scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
        daemon.kill()?;
        is_told(&scene, &chosen)?;
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

fn a_filter_is_taken_away() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    let uplink = scene.uplink("up0")?;
    let home = scene.home.clone();
    let look = |scene: &mut Scene| {
        let programs = scene.programs()?;
        home.enter(|| programs.look_at(&uplink).map_err(unmet))
    };
    ensure!(look(&mut scene)? == Guard::Whole, "not guarded");
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
    ensure!(look(&mut scene)? == Guard::Whole, "it is not back");
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

fn a_number_is_used_again() -> Result<()> {
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

fn a_link_that_is_gone() -> Result<()> {
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
fn no_thread_is_to_be_had() -> Result<()> {
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
    is_told(&scene, &chosen)?;
    nothing(&scene, capture)?;
    step("without one before");
    scene.home.enter(|| release(TUNNEL).map_err(unmet))?;
    let _alive = begin()?;
    ensure!(Pins::all().next().is_none(), "pins are left");
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "far")
}

/// Conversations in the tunnel do not continue outside it.
fn connections_end_with_it() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let mut kept = Vec::new();
    for (program, host) in [(&chosen, &scene.beyond), (&other, &scene.far)] {
        for remote in REMOTE {
            let bind = || TcpListener::bind((remote, 7000)).map_err(Error::io("listener"));
            let listener = host.enter(bind)?;
            let application = scene.start(program, &["stay", &at(remote, 7000)])?;
            let accepted = listener.accept().map_err(Error::io("accept"))?;
            kept.push((program, application, accepted));
        }
    }
    let mut datagrams = scene.start(&chosen, &["hold", &at(REMOTE[0], 80)])?;
    let _server = scene.start(&chosen, &["serve", "7001"])?;
    let capture = scene.capture("(host 198.51.100.1 or host 2001:db8:9::1) and tcp port 7000")?;
    let home = &scene.home;
    let ended = home.enter(|| capture::reset(TUNNEL).map_err(unmet))?;
    ensure!(ended == Reset { ended: 2, left: 0 }, "{ended:?}");
    let mut kept = kept.into_iter();
    for (_, mut application, _) in kept.by_ref().take(2) {
        let said = application.go()?;
        ensure!(said.starts_with("failed 103"), "a connection says {said:?}");
    }
    nothing(&scene, capture)?;
    home.enter(|| release(TUNNEL).map_err(unmet))?;
    for (_, mut application, _) in kept {
        let said = application.go()?;
        ensure!(said == "sent", "an unchosen one says {said:?}");
    }
    // The TCP connection is made only now; the UDP socket got an error.
    let said = datagrams.go()?;
    ensure!(said == "far failed:103", "{said}");
    ensure!(
        scene.home.listens(Transport::Tcp, 7001)?,
        "a listener has gone"
    );
    Ok(())
}

/// A filter is removed with the rest even if its map entry has gone before: by an interrupted
/// command, or because another filter preceded it.
fn a_filter_without_an_entry() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let index = scene.uplink("up0")?.index;
    scene.programs()?.set_lock(Lock::Everybody).map_err(unmet)?;
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

/// Packets that have passed the programs at sockets and wait for the router's hardware address do
/// not leave outside the tunnel when the filters are removed or the application is no longer
/// selected.
fn what_waits_for_a_neighbour() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let answers = |scene: &Scene, on| scene.far.ip(&["link", "set", "down0", "arp", on]).map(drop);
    let wait = |scene: &Scene| -> Result<_> {
        answers(scene, "off")?;
        scene.home.ip(&["neighbour", "flush", "dev", "up0"])?;
        let application = scene.start(&chosen, &["say", &at(REMOTE[0], 80)])?;
        wait_until("packets wait", Duration::from_secs(5), || {
            let list = ["-4", "neighbour", "show", "dev", "up0", "nud", "incomplete"];
            Ok(!scene.home.ip(&list)?.text().is_empty())
        })?;
        Ok(application)
    };
    step("other rules");
    let capture = scene.capture(ANY)?;
    let application = wait(&scene)?;
    scene.replace(&["other"])?;
    answers(&scene, "on")?;
    nothing(&scene, capture)?;
    drop(application);
    step("the end");
    scene.replace(&["chosen"])?;
    let capture = scene.capture(ANY)?;
    let _application = wait(&scene)?;
    scene.home.enter(|| release(TUNNEL).map_err(unmet))?;
    answers(&scene, "on")?;
    nothing(&scene, capture)
}

/// An application that is no longer selected does not continue its conversations outside the
/// tunnel, however busy it is.
fn what_leaves_ends_first() -> Result<()> {
    const MOMENT: Duration = Duration::from_millis(50);
    const SYN: u8 = 2;
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    for host in [&scene.beyond, &scene.far] {
        let bind = || TcpListener::bind((REMOTE[0], 7000)).map_err(Error::io("listener"));
        let listener = host.enter(bind)?;
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
            }
        });
    }
    let mut busy = scene.start(&chosen, &["flood", &at(REMOTE[0], 7000), "3"])?;
    let capture = scene.capture("src host 192.0.2.2 and tcp dst port 7000")?;
    for _ in 0..10 {
        sleep(MOMENT);
        scene.replace(&["nobody"])?;
        sleep(MOMENT);
        scene.replace(&["chosen"])?;
    }
    ensure!(busy.line()? == "done", "the flood has ended early");
    let mut begun = BTreeSet::new();
    for packet in capture.stop()? {
        let port = packet.ip.get(20..22).map(<[u8]>::to_vec);
        if packet.ip.get(33).is_some_and(|flags| flags & SYN != 0) {
            begun.insert(port.clone());
        }
        ensure!(
            begun.contains(&port),
            "it goes on in the clear: {:02x?}",
            packet.ip
        );
    }
    ensure!(!begun.is_empty(), "nothing was begun in the clear");
    Ok(())
}

fn namespaces_that_are_gone() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let away = Host::new("away")?;
    away.enter(|| attached().map(drop).map_err(unmet))?;
    let count = || Pins::all().count();
    let left = scene.programs()?.remove_orphans().map_err(unmet)?;
    ensure!(
        (left, count()) == (0, 2),
        "{left} removed, {} there",
        count()
    );
    away.delete()?;
    wait_until("the namespace is gone", Duration::from_secs(30), || {
        scene.programs()?.remove_orphans().map_err(unmet)?;
        Ok(count() == 1)
    })?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")
}

fn the_tun_vanishes() -> Result<()> {
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

fn programs_are_replaced() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let mut busy = scene.start(&chosen, &["flood", &at(REMOTE[0], 80), "3"])?;
    let capture = scene.capture(ANY)?;
    let uplink = scene.uplink("up0")?;
    // At least once: on an emulated processor one round takes seconds.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        let programs = scene.home.enter(|| {
            let mut programs = attached().map_err(unmet)?;
            programs.guard(&uplink).map_err(unmet)?;
            Ok(programs)
        })?;
        scene.programs = Some(programs);
        sleep(Duration::from_millis(50));
    }
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    ensure!(busy.line()? == "done", "the flood has ended early");
    nothing(&scene, capture)
}

fn rules_are_replaced() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let mut busy = scene.start(&chosen, &["flood", &at(REMOTE[0], 80), "5"])?;
    let capture = scene.capture(ANY)?;
    for round in 0..40 {
        let name = format!("other{round}");
        let allowed = rules(&["chosen", &name, &chosen], &[]);
        scene
            .programs()?
            .replace(&allowed, &everything_but(&["10.0.0.0/8"]))
            .map_err(unmet)?;
        scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    }
    ensure!(busy.line()? == "done", "the flood has ended early");
    nothing(&scene, capture)
}

fn removed_without_a_trace() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    let programs = scene.programs.take();
    let programs = programs.ok_or_else(|| Error::unmet("nothing is loaded"))?;
    scene.home.enter(|| programs.remove().map_err(unmet))?;
    let filters = scene
        .home
        .run(&["tc", "filter", "show", "dev", "up0", "egress"])?;
    ensure!(filters.text().is_empty(), "{}", filters.text());
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "far")?;
    ensure!(Pins::all().next().is_none(), "pins are left");
    step("rules that cannot be taken");
    let long = "x".repeat(255);
    let refused = scene.set_up(&rules(&[&long], &[]), &everything_but(&[]));
    ensure!(refused.is_err(), "a name that long was taken");
    Ok(())
}
