//! `gigabit-2018`: OpenVPN against WireGuard on a gigabit link.

use super::{DescribedRow, Description, Statistic};
use crate::pair::Link;
use crate::results::{Better, Metric, Unit};

/// Name of the table, and prefix of its metrics' keys.
pub const NAME: &str = "gigabit-2018";

/// The table's link: 1 Gbit/s in each direction.
pub const LINK: Link = Link::Limited {
    rate: 1_000_000_000,
};

/// Time from the start of the client's program to the first answered ping.
pub fn startup() -> Metric {
    metric("startup", "start-up", Unit::Seconds, Better::Lower)
}

/// Throughput of one TCP stream up, by iperf3.
pub fn iperf() -> Metric {
    metric("iperf", "iperf", Unit::BitsPerSecond, Better::Higher)
}

/// Throughput by qperf's `tcp_bw`.
pub fn bandwidth() -> Metric {
    metric(
        "tcp_bw",
        "qperf tcp_bw",
        Unit::BitsPerSecond,
        Better::Higher,
    )
}

/// Latency by qperf's `tcp_lat`.
pub fn latency() -> Metric {
    metric("tcp_lat", "qperf tcp_lat", Unit::Seconds, Better::Lower)
}

fn metric(key: &str, title: &str, unit: Unit, better: Better) -> Metric {
    Metric::new(format!("{NAME}/{key}"), title, unit, better)
}

/// Returns the table's description.
pub fn description() -> Description {
    let row = DescribedRow::new;
    Description {
        name: NAME,
        title: "OpenVPN and WireGuard on a link of 1 Gbit/s, medians",
        source: "a comparison of OpenVPN with WireGuard published in 2018",
        columns: vec![startup(), iperf(), bandwidth(), latency()],
        #[rustfmt::skip]
        rows: vec![
            row("no tunnel", Some("direct"), &[None, None, Some("840 Mb/s"), Some("102 µs")]),
            row("OpenVPN, static key (BF-CBC)", Some("openvpn-static-bf"),
                &[Some("7 s"), Some("428 Mbit/s"), Some("337 Mb/s"), Some("144 µs")]),
            row("OpenVPN, static key (AES-256-CBC)", Some("openvpn-static-aes"), &[]),
            row("OpenVPN, TLS (AES-256-GCM)", Some("openvpn-tls-aes"),
                &[Some("5 s"), Some("882 Mbit/s"), Some("842 Mb/s"), Some("105 µs")]),
            row("OpenVPN, TLS (ChaCha20-Poly1305)", Some("openvpn-tls-chacha"), &[]),
            row("WireGuard, in the kernel", Some("kernel"),
                &[Some("< 1 s"), Some("898 Mbit/s"), Some("893 Mb/s"), Some("317 µs")]),
            row("Taupe", Some("taupe"), &[]),
            row("wireguard-go", Some("wireguard-go"), &[]),
            row("boringtun", Some("boringtun"), &[]),
            row("gotatun", Some("gotatun"), &[]),
        ],
        statistic: Statistic::Median,
        differences: [
            "Both ends are on one machine, in network namespaces; there they were two machines.",
            "The link is a virtual cable with a token bucket filter of 1 Gbit/s at both ends, \
             so a round trip has no card, wire or switch in it: latencies are not comparable \
             with the published ones, only with one another.",
            "The short run measures a second at a time: twice, and start-up once. Such a second \
             has TCP's slow beginning in it.",
            "OpenVPN is 2.6, whose static-key mode and BF-CBC have to be allowed explicitly.",
            "The 4,096-bit Diffie-Hellman group is RFC 7919's ffdhe4096, which takes no time \
             to generate; with the cipher suite that is set it is not used.",
            "Start-up is from the start of the client's program to the first answered ping, \
             with the server up already; WireGuard's includes `wg` and `ip`, which set up the \
             interface, as OpenVPN does itself. How the published one was measured is not said.",
            "TCP's congestion control is that of the run for iperf3 (cubic, unless `--congestion` \
             sets another), and reno for qperf, which cannot be configured.",
            "tcp_lat reports half a round trip, there too.",
        ]
        .map(str::to_owned)
        .to_vec(),
    }
}
