//! The goals, in the order in which they were published.

use super::{Bound, Reference, Target, TargetFigure};
use crate::measure::stages::{BATCH, PAYLOAD};
use crate::results::Unit;

/// Number of full batches in a gigabyte of TCP payload.
const BATCHES_PER_GIGABYTE: f64 = 1e9 / (BATCH * PAYLOAD) as f64;

const OPENVPN: &[&str] = &[
    "openvpn-static-bf",
    "openvpn-static-aes",
    "openvpn-tls-aes",
    "openvpn-tls-chacha",
];

const GO: Reference = Reference::Contestant("wireguard-go");

const DIRECT: Reference = Reference::Contestant("direct");

const TAUPE: Reference = Reference::Contestant("taupe");

/// Contestants of transparent mode: a selected application, and one that is not selected.
const SELECTED: &str = "taupe-transparent";

const UNSELECTED: &str = "direct-past-taupe";

const fn relative(
    title: &'static str,
    figure: TargetFigure,
    beside: Reference,
    bound: Bound,
) -> Target {
    Target {
        title,
        of: "taupe",
        figure,
        beside,
        bound,
        unit: Unit::Count,
        limits: &[],
    }
}

const fn absolute(title: &'static str, figure: TargetFigure, bound: Bound, unit: Unit) -> Target {
    Target {
        unit,
        ..relative(title, figure, Reference::Nothing, bound)
    }
}

/// Returns all goals, in the order in which they were published.
pub fn all() -> Vec<Target> {
    use Bound::{AtLeast, AtMost};
    use TargetFigure::{Each, Elsewhere, Of, Rate, Times};
    let mut all = Vec::new();
    for (title, key) in [
        ("TCP up, 1 stream", "tcp/1/up"),
        ("TCP down, 1 stream", "tcp/1/down"),
        ("TCP up, 4 streams", "tcp/4/up"),
        ("TCP down, 4 streams", "tcp/4/down"),
    ] {
        all.push(relative(title, Of(key), GO, AtLeast(2.5)));
    }
    for (title, key) in [
        ("TCP up, 1 stream", "tcp/1/up"),
        ("TCP down, 1 stream", "tcp/1/down"),
    ] {
        all.push(relative(title, Of(key), DIRECT, AtLeast(0.4)));
    }
    let aead = Elsewhere("make bench-micro");
    all.push(absolute(
        "AEAD of 1,440 B in a batch, beside AWS-LC",
        aead,
        AtLeast(2.5),
        Unit::Count,
    ));
    for (beside, most) in [
        (Reference::Contestant("boringtun"), 1.0),
        (Reference::Least(OPENVPN), 1.0),
        (DIRECT, 1.35),
    ] {
        all.push(relative(
            "qperf tcp_lat, idle",
            Of("qperf/tcp_lat"),
            beside,
            AtMost(most),
        ));
    }
    let loaded = Of("latency/loaded/p99");
    all.push(relative("p99 under a TCP stream", loaded, GO, AtMost(0.5)));
    all.push(relative(
        "CPU time per GB",
        Of("cost/cpu/total"),
        GO,
        AtMost(0.4),
    ));
    let calls = Times("cost/programs/syscalls/up", 1.0 / BATCHES_PER_GIGABYTE);
    all.push(absolute(
        "system calls per full batch, one direction",
        calls,
        AtMost(4.3),
        Unit::Count,
    ));
    let calls = Of("cost/programs/syscalls");
    all.push(absolute(
        "system calls per GB, both ends",
        calls,
        AtMost(130e3),
        Unit::PerGigabyte,
    ));
    for (title, key, limits) in [
        (
            "UDP of 64 B, sent one by one",
            "udp/64/rate",
            &["udp/64/limit/sender", "udp/64/limit/receiver"],
        ),
        (
            "UDP of 64 B, cut by the kernel",
            "udp/64/gso/rate",
            &["udp/64/gso/limit/sender", "udp/64/gso/limit/receiver"],
        ),
    ] {
        all.push(Target {
            limits,
            ..relative(title, Of(key), GO, AtLeast(2.0))
        });
    }
    // The metric covers both ends together; the goal is for one.
    let memory = Times("memory/resident", 0.5);
    all.push(absolute(
        "memory of an end, one peer",
        memory,
        AtMost(24e6),
        Unit::Bytes,
    ));
    let slope = Of("memory/slope");
    all.push(absolute(
        "memory's growth in 10 minutes",
        slope,
        AtMost(100e3),
        Unit::Bytes,
    ));
    all.push(Target {
        of: "x25519",
        ..absolute(
            "handshakes answered by a core",
            Rate("handshake-pq/server"),
            AtLeast(12e3),
            Unit::PerSecond,
        )
    });
    all.extend(handshakes());
    for (title, key, most) in [
        ("taupe up", "command/up", 0.6),
        ("taupe status", "command/status", 15e-3),
        ("taupe flows", "command/flows", 30e-3),
        ("taupe app allow", "command/app-allow", 80e-3),
        ("taupe down", "command/down", 0.45),
        ("taupe doctor, first", "command/doctor-fresh", 0.5),
        ("taupe check", "command/check", 20e-3),
    ] {
        all.push(absolute(title, Of(key), AtMost(most), Unit::Seconds));
    }
    for (title, key) in [
        (
            "TCP share left in a flood without mac1, up",
            "flood/strangers/up/kept",
        ),
        (
            "TCP share left in a flood without mac1, down",
            "flood/strangers/down/kept",
        ),
        (
            "TCP share left in a flood with mac1, up",
            "flood/informed/up/kept",
        ),
        (
            "TCP share left in a flood with mac1, down",
            "flood/informed/down/kept",
        ),
    ] {
        all.push(absolute(title, Of(key), AtLeast(0.9), Unit::Share));
    }
    let each = Each("peers/1/resident", "peers/100000/resident", 99_999.0);
    all.push(absolute(
        "100,000 peers: memory of each",
        each,
        AtMost(1.2e3),
        Unit::Bytes,
    ));
    let configure = Times("peers/100000/add", 1e5);
    all.push(absolute(
        "100,000 peers: time to configure",
        configure,
        AtMost(2.0),
        Unit::Seconds,
    ));
    let one_peer = Reference::Own(Of("peers/1/tcp"));
    all.push(relative(
        "100,000 peers: TCP of one of them",
        Of("peers/100000/tcp"),
        one_peer,
        AtLeast(0.95),
    ));
    for (title, of, key, beside, least) in [
        (
            "a selected application, TCP up",
            SELECTED,
            "tcp/1/up",
            TAUPE,
            0.9,
        ),
        (
            "a selected application, TCP down",
            SELECTED,
            "tcp/1/down",
            TAUPE,
            0.9,
        ),
        ("any other, TCP up", UNSELECTED, "tcp/1/up", DIRECT, 0.97),
        (
            "any other, TCP down",
            UNSELECTED,
            "tcp/1/down",
            DIRECT,
            0.97,
        ),
    ] {
        let target = relative(title, Of(key), beside, AtLeast(least));
        all.push(Target { of, ..target });
    }
    all
}

/// Returns the goals for hybrid handshakes, compared with a published one in the table of
/// handshakes.
fn handshakes() -> [Target; 9] {
    use Bound::{AtLeast, AtMost};
    use TargetFigure::Of;
    use Unit::{Bytes, PerSecond, Seconds};
    const VANILLA: Reference = Reference::Contestant("x25519");
    let [client, server] = ["handshake-pq/client", "handshake-pq/server"].map(Of);
    let [hybrid, published] =
        ["hybrid-768", "repro-k512-tk512"].map(|of| move |target: Target| Target { of, ..target });
    [
        hybrid(absolute(
            "hybrid-768, client",
            client,
            AtMost(110e-6),
            Seconds,
        )),
        hybrid(absolute(
            "hybrid-768, server",
            server,
            AtMost(100e-6),
            Seconds,
        )),
        hybrid(relative("hybrid-768, client", client, VANILLA, AtMost(2.0))),
        hybrid(relative("hybrid-768, server", server, VANILLA, AtMost(2.0))),
        hybrid(absolute(
            "hybrid-768, handshakes answered by a core",
            Of("handshake-pq/answered"),
            AtLeast(8e3),
            PerSecond,
        )),
        hybrid(absolute(
            "hybrid-768, memory of an idle peer, beyond X25519's",
            Of("handshake-pq/memory"),
            AtMost(3e3),
            Bytes,
        )),
        hybrid(relative(
            "hybrid-768, a packet",
            Of("handshake-pq/packet"),
            VANILLA,
            AtMost(1.05),
        )),
        published(absolute(
            "K512+tK512, client",
            client,
            AtMost(100e-6),
            Seconds,
        )),
        published(absolute(
            "K512+tK512, server",
            server,
            AtMost(100e-6),
            Seconds,
        )),
    ]
}
