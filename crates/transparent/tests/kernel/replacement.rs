//! Programs and rules are replaced and removed without a gap, and conversations end with them.

use crate::application::install;
use crate::closed::ANY;
use crate::scene::{
    REMOTE, Scene, TUNNEL, at, attached, everything_but, nothing, rules, unmet, without_tcx,
};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::thread::sleep;
use std::time::{Duration, Instant};
use taupe_lab::host::{Host, Transport};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{SystemTest, step};
use taupe_lab::{Error, Result, ensure};
use taupe_transparent::capture::{self, release};
use taupe_transparent::pins::Pins;
use taupe_transparent::programs::{CaptureMode, Programs};
use taupe_transparent::reset::Reset;

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new(
            "connections_end_with_the_tunnel",
            connections_end_with_the_tunnel,
        ),
        SystemTest::new(
            "deselected_connections_end_first",
            deselected_connections_end_first,
        ),
        SystemTest::new(
            "packets_waiting_for_a_neighbour",
            packets_waiting_for_a_neighbour,
        ),
        SystemTest::new(
            "packets_waiting_for_a_neighbour_without_tcx",
            without_tcx(packets_waiting_for_a_neighbour),
        ),
        SystemTest::new("pins_of_deleted_namespaces", pins_of_deleted_namespaces),
        SystemTest::new("maps_of_the_other_mode", maps_of_the_other_mode),
        SystemTest::new("programs_are_replaced", programs_are_replaced),
        SystemTest::new("rules_are_replaced", rules_are_replaced),
        SystemTest::new("removed_completely", removed_completely),
        SystemTest::new(
            "programs_are_replaced_without_tcx",
            without_tcx(programs_are_replaced),
        ),
        SystemTest::new(
            "removed_completely_without_tcx",
            without_tcx(removed_completely),
        ),
    ]
}

/// A process that is killed before it has attached anything leaves maps. In these the network
/// namespace has the number that the other way uses.
fn maps_of_the_other_mode() -> Result<()> {
    let mut scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let home = scene.home.clone();
    let load = |way| home.enter(|| Programs::load(TUNNEL, way).map_err(unmet));
    drop(load(CaptureMode::Fwmark)?);
    scene.set_up(&rules(&["chosen"], &[]), &everything_but(&[]))?;
    for remote in REMOTE {
        scene.expect(&chosen, &["tcp", &at(remote, 80)], "beyond")?;
        scene.expect(&other, &["tcp", &at(remote, 80)], "far")?;
    }
    step("the other way about");
    scene.programs.take();
    home.enter(|| release(TUNNEL).map_err(unmet))?;
    drop(load(CaptureMode::TrafficControl)?);
    let seen = home.enter(|| Programs::open(TUNNEL).map_err(unmet))?;
    ensure!(seen.is_none(), "nothing is attached: {seen:?}");
    let mut marks = load(CaptureMode::Fwmark)?;
    marks.set_mark(MARK);
    home.enter(|| {
        let rules = rules(&["chosen"], &[]);
        let replaced = marks.replace(&rules, &everything_but(&[]));
        replaced
            .and_then(|()| marks.attach([None, None]))
            .map_err(unmet)
    })?;
    // No rule routes the mark, so the packets are blocked.
    let said = scene.run(&chosen, &["udp", &at(REMOTE[0], 80)])?;
    ensure!(said.starts_with("failed"), "by its mark: {said}");
    scene.expect(&other, &["udp", &at(REMOTE[0], 80)], "far")
}

const MARK: u32 = 0x5300_0000;

/// Conversations in the tunnel do not continue outside it.
fn connections_end_with_the_tunnel() -> Result<()> {
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

/// Packets that have passed the programs at sockets and wait for the router's hardware address do
/// not leave outside the tunnel when the filters are removed or the application is no longer
/// selected.
fn packets_waiting_for_a_neighbour() -> Result<()> {
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
fn deselected_connections_end_first() -> Result<()> {
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

fn pins_of_deleted_namespaces() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let away = Host::new("away")?;
    away.enter(|| attached([None, None]).map(drop).map_err(unmet))?;
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
            let mut programs = attached([None, None]).map_err(unmet)?;
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

fn removed_completely() -> Result<()> {
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
