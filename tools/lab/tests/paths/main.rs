//! Every fast path enabled and disabled, over links that lose, reorder, duplicate, corrupt, mark
//! and delay packets, with both IP versions inside and outside; and kernels that refuse a path.
//!
//! A stream is compared byte by byte, datagrams are counted, and the checksums of every packet from
//! the tunnel are verified. The tests detect from outside whether a path is in use: by the amount
//! that crosses an interface or a socket at a time.

#[path = "../behaviours/datagrams.rs"]
mod datagrams;
mod inspector;
mod refused;
mod relay;
mod scene;
mod transfer;

use crate::datagrams::super_packets;
use crate::relay::Impairments;
use crate::scene::{FAR, Family, NEAR, Scene, packets};
use std::time::Duration;
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{Suite, SystemTest, step};
use taupe_lab::{Result, ensure};

/// The links.
const ROADS: [Impairments; 7] = [
    Impairments::CLEAN,
    Impairments {
        name: "losing",
        lose: 10,
        ..Impairments::CLEAN
    },
    Impairments {
        name: "reordering",
        hold: 20,
        ..Impairments::CLEAN
    },
    Impairments {
        name: "duplicating",
        double: 50,
        ..Impairments::CLEAN
    },
    Impairments {
        name: "corrupting",
        corrupt: 10,
        ..Impairments::CLEAN
    },
    Impairments {
        name: "congested",
        mark: 50,
        ..Impairments::CLEAN
    },
    Impairments {
        name: "all at once, and slow",
        lose: 5,
        double: 10,
        hold: 10,
        corrupt: 5,
        mark: 10,
        delay: Duration::from_millis(5),
    },
];

/// The paths in use for a setting of `--no-offload`.
#[derive(Debug, Clone, Copy)]
struct Paths {
    /// TCP super-packets are read from the TUN and written to it.
    tso: bool,
    /// UDP super-packets likewise.
    uso: bool,
    /// Batches are sent to the network.
    gso: bool,
    /// Batches are received from it.
    gro: bool,
}

impl Paths {
    const ALL: Self = Self {
        tso: true,
        uso: true,
        gso: true,
        gro: true,
    };
}

/// The values of `--no-offload`, with the remaining paths.
const SETTINGS: [(&str, Paths); 8] = [
    ("nothing", Paths::ALL),
    (
        "tso",
        Paths {
            tso: false,
            ..Paths::ALL
        },
    ),
    (
        "uso",
        Paths {
            uso: false,
            ..Paths::ALL
        },
    ),
    (
        "gso",
        Paths {
            gso: false,
            ..Paths::ALL
        },
    ),
    (
        "gro",
        Paths {
            gro: false,
            ..Paths::ALL
        },
    ),
    (
        "checksum",
        Paths {
            tso: false,
            uso: false,
            ..Paths::ALL
        },
    ),
    ("avx512", Paths::ALL),
    (
        "all",
        Paths {
            tso: false,
            uso: false,
            gso: false,
            gro: false,
        },
    ),
];

fn main() {
    if let Some(interface) = refused::device_of_this_process() {
        return refused::run_device(interface);
    }
    let mut tests = Vec::new();
    for (name, paths) in SETTINGS {
        for outer in Family::BOTH {
            let test = move || without(name, paths, outer);
            let name = format!("without_{name}_over_{}", outer.name());
            tests.push(SystemTest::new(name, test).limit(Duration::from_secs(120)));
        }
    }
    tests.extend([
        SystemTest::new("batches_too_long_for_ipv4", || {
            refused::batches_too_long(Family::V4)
        }),
        SystemTest::new("batches_too_long_for_ipv6", || {
            refused::batches_too_long(Family::V6)
        }),
        SystemTest::new("batches_refused", refused::batches),
        SystemTest::new("tun_offloads_refused", refused::tun_offloads),
    ]);
    Suite::new(tests)
        .prepare(|| Implementation::Taupe.install().map(drop))
        .main()
}

fn without(name: &'static str, paths: Paths, outer: Family) -> Result<()> {
    let option = ["--no-offload", name];
    let options: &[&str] = if name == "nothing" { &[] } else { &option };
    let scene = Scene::new(outer, 1500, |host, interface| {
        Implementation::Taupe.start_with(host, interface, options)
    })?;
    transfer::serve(&scene)?;
    for inner in Family::BOTH {
        step(&format!("{} inside, what is in use", inner.name()));
        ensure_in_use(&scene, inner, paths)?;
        let (here, there) = (inner.near(), inner.beyond());
        super_packets((&scene.near, here), (&scene.beyond, there))?;
        super_packets((&scene.beyond, there), (&scene.near, here))?;
        for road in ROADS {
            step(&format!("{} inside, {} road", inner.name(), road.name));
            over(&scene, inner, &road)?;
        }
    }
    Ok(())
}

/// Sends all kinds of traffic over one link.
fn over(scene: &Scene, inner: Family, road: &Impairments) -> Result<()> {
    scene.relay.change(*road);
    transfer::stream(scene, inner)?;
    let seen = scene.inspector.take()?;
    ensure!(
        (seen.marked > 0) == (road.mark > 0),
        "marked as congested: {seen:?}"
    );
    transfer::datagrams(scene, inner, road)?;
    scene.inspector.take()?;
    scene.relay.change(Impairments::CLEAN);
    Ok(())
}

/// Checks that each path is in use, or is not.
///
/// A path may be unused although it is enabled: small packets are batched only if they wait, and
/// merged only if they arrive together.
fn ensure_in_use(scene: &Scene, inner: Family, paths: Paths) -> Result<()> {
    let tcp = counted(scene, || transfer::stream(scene, inner))?;
    let udp = counted(scene, || {
        transfer::datagrams(scene, inner, &Impairments::CLEAN)
    })?;
    // The kernels' own packets may be counted in one place only.
    let fewer = |pieces: u64, packets: u64| pieces + 8 < packets;
    for (protocol, super_packets, counts) in [("TCP", paths.tso, tcp), ("UDP", paths.uso, udp)] {
        let ensure_where = |is: bool, must: bool, must_not: bool, what: &str| {
            ensure!(
                (is || !must) && (!is || !must_not),
                "{protocol} in {what} is {is}: {counts:?}"
            );
            Ok(())
        };
        ensure_where(
            fewer(counts.read, counts.passed),
            super_packets,
            !super_packets,
            "super-packets from the TUN",
        )?;
        ensure_where(
            counts.largest_batch > 1,
            super_packets && paths.gso,
            !paths.gso,
            "batches to the network",
        )?;
        ensure_where(
            fewer(counts.received, counts.data),
            super_packets && paths.gso && paths.gro,
            !paths.gro,
            "batches from the network",
        )?;
        ensure_where(
            fewer(counts.written, counts.passed),
            super_packets && paths.gso && paths.gro,
            !super_packets,
            "super-packets to the TUN",
        )?;
    }
    Ok(())
}

/// Counts at each point of the path from near to beyond.
#[derive(Debug, Clone, Copy)]
struct Counts {
    /// Packets and super-packets that near's tunnel read.
    read: u64,
    /// Largest number of long messages that near sent at once.
    largest_batch: usize,
    /// Messages on the link to far.
    data: u64,
    /// Reads by which they were received.
    received: u64,
    /// Packets and super-packets that far's tunnel wrote.
    written: u64,
    /// Packets that left this tunnel.
    passed: u64,
}

fn counted(scene: &Scene, what: impl FnOnce() -> Result<()>) -> Result<Counts> {
    let look = || -> Result<_> {
        let (_, read) = packets(&scene.near, NEAR)?;
        let (written, _) = packets(&scene.far, FAR)?;
        Ok((read, written, scene.receives_of_far()?))
    };
    scene.inspector.take()?;
    scene.relay.take_passed();
    let before = look()?;
    what()?;
    let after = look()?;
    let (seen, road) = (scene.inspector.take()?, scene.relay.take_passed());
    Ok(Counts {
        read: after.0 - before.0,
        largest_batch: road.largest_batch,
        data: road.data,
        received: after.2 - before.2,
        written: after.1 - before.1,
        passed: seen.tcp + seen.udp,
    })
}
