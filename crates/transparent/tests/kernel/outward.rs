//! Packets that selected applications send.

use crate::application::install;
use crate::scene::{REMOTE, Scene, at, everything_but, nothing, rules, unmet, without_tcx};
use aya::programs::loaded_programs;
use std::collections::BTreeMap;
use taupe_config::destinations;
use taupe_lab::sandbox::{SystemTest, figure, step};
use taupe_lab::{Result, ensure};
use taupe_transparent::state::Reason;

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("every_transport_in_both_families", every_transport),
        SystemTest::new("special_sockets", special_sockets),
        SystemTest::new("destination_classes", destination_classes),
        SystemTest::new("missing_address_family", missing_address_family),
        SystemTest::new("fragments", fragments),
        SystemTest::new("bound_to_the_tun", bound_to_the_tun),
        SystemTest::new("full_flow_table", full_flow_table),
        SystemTest::new("every_transport_without_tcx", without_tcx(every_transport)),
    ]
}

fn every_transport() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let capture = scene.capture("host 198.51.100.1 or host 2001:db8:9::1")?;
    for remote in REMOTE {
        for (words, answer) in [
            (["tcp", &at(remote, 80)], "beyond"),
            (["udp", &at(remote, 80)], "beyond"),
            (["connected-udp", &at(remote, 80)], "beyond"),
            (["ping", remote], "answered"),
            (["raw", remote], "answered"),
            (["uring", &at(remote, 80)], "beyond"),
        ] {
            step(&words.join(" "));
            scene.expect(&chosen, &words, answer)?;
        }
    }
    scene.expect(&chosen, &["tcp", "[::ffff:198.51.100.1]:80"], "beyond")?;
    scene.expect(&chosen, &["udp", "[::ffff:198.51.100.1]:80"], "beyond")?;
    nothing(&scene, capture)?;
    for remote in REMOTE {
        scene.expect(&other, &["tcp", &at(remote, 80)], "far")?;
        scene.expect(&other, &["udp", &at(remote, 80)], "far")?;
        scene.expect(&other, &["ping", remote], "answered")?;
    }
    Ok(())
}

fn special_sockets() -> Result<()> {
    let scene = Scene::with(&["chosen"], &[])?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    for remote in REMOTE {
        let words = ["mptcp", &at(remote, 80)];
        scene.expect(&chosen, &words, "failed 93 at once")?;
        scene.expect(&other, &words, "made")?;
        scene.expect(&other, &["uring", &at(remote, 80)], "far")?;
    }
    Ok(())
}

fn destination_classes() -> Result<()> {
    let mut scene = Scene::new()?;
    let chosen = install("chosen")?;
    scene.set_up(
        &rules(&["chosen"], &[]),
        &everything_but(&["198.51.100.0/24"]),
    )?;
    step("what is disallowed goes direct");
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "far")?;
    scene.expect(&chosen, &["udp", &at(REMOTE[0], 80)], "far")?;
    scene.expect(&chosen, &["ping", REMOTE[0]], "answered")?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[1], 80)], "beyond")?;
    step("names are asked through the tunnel");
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 53)], "beyond")?;
    scene.expect(&chosen, &["udp", &at(REMOTE[0], 53)], "beyond")?;
    step("multicast and broadcast go nowhere");
    let capture = scene.capture("ip multicast or ip broadcast or ip6 multicast")?;
    for to in ["224.0.0.99:7777", "239.1.2.3:7777", "[ff0e::99]:7777"] {
        let said = scene.run(&chosen, &["udp", to])?;
        ensure!(said.starts_with("failed"), "{to}: {said}");
    }
    nothing(&scene, capture)?;
    step("loopback");
    scene.home.enter(|| {
        let listener = std::net::TcpListener::bind("[::]:8080").map_err(unmet)?;
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                use std::io::Write as _;
                let _ = stream.and_then(|mut stream| stream.write_all(b"home"));
            }
        });
        Ok(())
    })?;
    for to in ["127.0.0.1", "::1", "0.0.0.0", "::", "192.0.2.2"] {
        scene.expect(&chosen, &["tcp", &at(to, 8080)], "home")?;
    }
    Ok(())
}

fn missing_address_family() -> Result<()> {
    let mut scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let table = destinations::table(&crate::scene::networks(&["0.0.0.0/0"]), &[], false);
    scene.set_up(&rules(&["chosen"], &[]), &table)?;
    let capture = scene.capture("ip6")?;
    for words in [
        ["tcp", &at(REMOTE[1], 80)],
        ["udp", &at(REMOTE[1], 80)],
        ["connected-udp", &at(REMOTE[1], 80)],
        ["udp", &at(REMOTE[1], 53)],
    ] {
        scene.expect(&chosen, &words, "failed 101 at once")?;
    }
    let said = scene.run(&chosen, &["ping", REMOTE[1]])?;
    ensure!(said.starts_with("failed"), "ping: {said}");
    nothing(&scene, capture)?;
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")?;
    scene.expect(&other, &["tcp", &at(REMOTE[1], 80)], "far")
}

fn fragments() -> Result<()> {
    let scene = Scene::with(&["ping"], &[])?;
    let capture = scene.capture("host 198.51.100.1 or host 2001:db8:9::1")?;
    for remote in REMOTE {
        scene.home.run(&[
            "ping", "-c", "2", "-i", "0.1", "-W", "2", "-s", "6000", remote,
        ])?;
    }
    nothing(&scene, capture)
}

fn bound_to_the_tun() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let other = install("other")?;
    let chosen = install("chosen")?;
    for program in [&chosen, &other] {
        let said = scene.run(
            program,
            &["bound", crate::scene::TUNNEL, &at(REMOTE[0], 80)],
        )?;
        // ENETUNREACH
        ensure!(said == "failed 101 at once", "{program}: {said}");
    }
    let counts = scene.programs()?.counts().map_err(unmet)?;
    let dropped = counts
        .iter()
        .find(|(reason, _)| *reason == Reason::TunMisused);
    ensure!(
        dropped.is_some_and(|(_, count)| *count > 0),
        "nothing was dropped"
    );
    Ok(())
}

fn full_flow_table() -> Result<()> {
    let mut scene = Scene::with(&["chosen"], &[])?;
    let chosen = install("chosen")?;
    let capture = scene.capture("host 198.51.100.1")?;
    scene.run(&chosen, &["ports", &at(REMOTE[0], 0)])?;
    let refused = |scene: &mut Scene| -> Result<u64> {
        let counts = scene.programs()?.counts().map_err(unmet)?;
        let refused = counts
            .into_iter()
            .find(|(reason, _)| *reason == Reason::OutFlowsFull);
        Ok(refused.map_or(0, |(_, count)| count))
    };
    let count = refused(&mut scene)?;
    ensure!(count > 1000, "only {count} were refused");
    let said = scene.run(&chosen, &["tcp", &at(REMOTE[0], 80)])?;
    ensure!(said.starts_with("failed"), "with a full table: {said}");
    nothing(&scene, capture)?;
    step("room again");
    let left = scene
        .programs()?
        .expire_flows(std::time::Duration::ZERO)
        .map_err(unmet)?;
    ensure!(left == 0, "{left} flows are left");
    scene.expect(&chosen, &["tcp", &at(REMOTE[0], 80)], "beyond")
}

/// Measurements, which cannot fail. They run only if `COSTS` is in the environment.
pub(crate) fn costs() -> Vec<SystemTest> {
    if std::env::var_os("COSTS").is_none() {
        return Vec::new();
    }
    vec![
        SystemTest::new("cost_of_a_socket", cost_of_a_socket),
        SystemTest::new("cost_of_a_packet", cost_of_a_packet),
        SystemTest::new("cost_of_loading", cost_of_loading),
    ]
}

/// Prints the number of instructions that the kernel's verifier goes through for each program, on
/// all paths: most of the time that loading takes.
fn cost_of_loading() -> Result<()> {
    let mut scene = Scene::new()?;
    scene.set_up(&rules(&["chosen"], &[]), &everything_but(&[]))?;
    // Programs of other tests have the same names, and the same numbers.
    let mut verified = BTreeMap::new();
    for program in loaded_programs() {
        let program = program.map_err(unmet)?;
        let name = program.name_as_str().unwrap_or_default();
        if name.starts_with("taupe_") {
            let count = program.verified_instruction_count();
            verified.insert(name.to_owned(), count.unwrap_or_default());
        }
    }
    ensure!(!verified.is_empty(), "no programs are loaded");
    for (name, count) in &verified {
        figure(&format!("verified instructions of {name}"), count);
    }
    figure("in all", verified.values().sum::<u32>());
    Ok(())
}

/// Prints nanoseconds for a socket, and for a connected one, as medians of rounds.
fn cost_of_a_socket() -> Result<()> {
    let mut scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let measure = |scene: &Scene, program: &str| -> Result<(u32, u32)> {
        let mut rounds = Vec::new();
        for _ in 0..9 {
            let said = scene.run(program, &["connects", &at(REMOTE[0], 80), "10000"])?;
            let figures = said.split_once(' ');
            let (made, connected) = figures.ok_or_else(|| unmet(&said))?;
            rounds.push((
                made.parse().map_err(unmet)?,
                connected.parse().map_err(unmet)?,
            ));
        }
        let middle = |mut list: Vec<u32>| {
            list.sort_unstable();
            list[list.len() / 2]
        };
        Ok((
            middle(rounds.iter().map(|(made, _)| *made).collect()),
            middle(rounds.iter().map(|(_, connected)| *connected).collect()),
        ))
    };
    figure(
        "ns without: socket, socket and connect",
        measure(&scene, &other)?,
    );
    scene.set_up(&rules(&["chosen", "fire*"], &[]), &everything_but(&[]))?;
    figure("ns, names, unchosen", measure(&scene, &other)?);
    figure("ns, names, chosen", measure(&scene, &chosen)?);
    let all = [
        "/usr/bin/curl",
        "/opt/games/",
        "cgroup:app-x*",
        "cgroup:/a/b",
        "uid:4711",
        "x",
    ];
    scene
        .programs()?
        .replace(&rules(&all, &[]), &everything_but(&[]))
        .map_err(unmet)?;
    figure("ns, every kind of rule, unchosen", measure(&scene, &other)?);
    Ok(())
}

/// Prints nanoseconds for a datagram without a reply, as medians of rounds.
fn cost_of_a_packet() -> Result<()> {
    let mut scene = Scene::new()?;
    let (chosen, other) = (install("chosen")?, install("other")?);
    let measure = |scene: &Scene, program: &str| -> Result<u32> {
        let mut rounds = Vec::new();
        for _ in 0..7 {
            let said = scene.run(program, &["blast", "198.51.100.1:9", "100000"])?;
            rounds.push(said.parse().map_err(unmet)?);
        }
        rounds.sort_unstable();
        Ok(rounds[rounds.len() / 2])
    };
    figure("ns without", measure(&scene, &other)?);
    scene.set_up(
        &rules(&["chosen"], &[]),
        &everything_but(&["198.51.100.0/24"]),
    )?;
    figure("ns, unchosen", measure(&scene, &other)?);
    figure(
        "ns, chosen, to a place that is not tunnelled",
        measure(&scene, &chosen)?,
    );
    Ok(())
}
