//! `userspace-vs-kernel-2021`: a transparent client against kernel drivers.

use super::{DescribedRow, Description, Statistic};
use crate::results::{Better, Metric, Unit};

/// Name of the table, and prefix of its metrics' keys.
pub const NAME: &str = "userspace-vs-kernel-2021";

/// Throughput of four TCP streams up, by `iperf3 -P 4`.
pub fn up() -> Metric {
    let key = format!("{NAME}/up");
    Metric::new(key, "iperf3 -P 4, up", Unit::BitsPerSecond, Better::Higher)
}

/// Throughput of four TCP streams down, by `iperf3 -P 4 -R`.
pub fn down() -> Metric {
    let key = format!("{NAME}/down");
    Metric::new(
        key,
        "iperf3 -P 4 -R, down",
        Unit::BitsPerSecond,
        Better::Higher,
    )
}

/// The contestants in the order of the table.
pub const CONTESTANTS: [&str; 6] = [
    "direct",
    "taupe",
    "boringtun",
    "kernel",
    "wireguard-go",
    "gotatun",
];

/// Returns the table's description.
pub fn description() -> Description {
    let row = DescribedRow::new;
    let published = |up: &'static str, down: &'static str| [Some(up), Some(down)];
    Description {
        name: NAME,
        title: "WireGuard in user space and in the kernel, the best of all rounds",
        source: "the announcement of a transparent WireGuard client for Windows, 2021",
        columns: vec![up(), down()],
        #[rustfmt::skip]
        rows: vec![
            row("no tunnel", Some("direct"), &[]),
            row("Taupe", Some("taupe"), &[]),
            row("WireSock on BoringTun; here boringtun", Some("boringtun"),
                &published("879 Mbit/s", "892 Mbit/s")),
            row("WireGuardNT; here in the kernel", Some("kernel"),
                &published("892 Mbit/s", "719 Mbit/s")),
            row("WireGuard with wintun; here wireguard-go", Some("wireguard-go"),
                &published("288 Mbit/s", "325 Mbit/s")),
            row("TunSafe", None, &published("435 Mbit/s", "284 Mbit/s")),
            row("gotatun", Some("gotatun"), &[]),
        ],
        statistic: Statistic::Best,
        differences: [
            "The published figures are from Windows. Rows name what is closest on Linux: \
             boringtun with its own adapter, not inside a packet filter; wireguard-go, \
             which is the program that used wintun.",
            "Both ends run here on one machine; there one end was a client of a distant \
             server. The link is a virtual cable, limited to 1 Gbit/s.",
            "The published figures are the best of 10 runs; here they are the best of as \
             many as the full run has rounds, and of two of a second each in the short one.",
            "TunSafe has not been maintained since 2018 and is not run.",
        ]
        .map(str::to_owned)
        .to_vec(),
    }
}
