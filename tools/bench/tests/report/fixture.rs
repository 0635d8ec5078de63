//! Reports with invented figures for the tests.

use taupe_bench::results::{
    Better, Cell, Column, Distribution, Entry, FORMAT, Failure, Machine, Metric, Report, Row,
    Settings, Table, Unit,
};

/// Contestants of [`full`]: id, title, speed relative to no tunnel.
const CONTESTANTS: [(&str, &str, f64); 10] = [
    ("direct", "no tunnel", 1.0),
    ("taupe", "Taupe", 0.31),
    ("wireguard-go", "wireguard-go", 0.24),
    ("boringtun", "BoringTun (boringtun-cli)", 0.09),
    ("gotatun", "GotaTun (gotatun-cli)", 0.12),
    ("kernel", "WireGuard in the kernel", 0.0),
    ("openvpn-static-bf", "OpenVPN, static key, BF-CBC", 0.02),
    (
        "openvpn-static-aes",
        "OpenVPN, static key, AES-256-CBC",
        0.035,
    ),
    ("openvpn-tls-aes", "OpenVPN, TLS, AES-256-GCM", 0.055),
    (
        "openvpn-tls-chacha",
        "OpenVPN, TLS, ChaCha20-Poly1305",
        0.05,
    ),
];

/// A report with all features and all kinds of failures.
pub(crate) fn full() -> Report {
    let mut report = empty();
    report.complete = true;
    report.contestants = CONTESTANTS
        .iter()
        .map(|(id, title, speed)| Entry {
            id: (*id).to_owned(),
            title: (*title).to_owned(),
            version: (*speed > 0.0 && *id != "direct").then(|| "0.0.0 of the tests".to_owned()),
            unavailable: (*speed == 0.0).then(|| {
                "this kernel has no WireGuard: ip link add type wireguard: Operation not supported"
                    .to_owned()
            }),
        })
        .collect();
    for (at, (id, _, speed)) in CONTESTANTS.into_iter().enumerate() {
        if speed > 0.0 {
            measure(&mut report, id, speed, at);
        }
    }
    // Special cases: a single sample, none, huge and tiny values.
    report
        .series
        .retain(|series| (&*series.contestant, &*series.metric) != ("gotatun", "tcp/16/down"));
    let single = report
        .series
        .iter_mut()
        .find(|series| (&*series.contestant, &*series.metric) == ("openvpn-static-bf", "tcp/4/up"));
    single.expect("a series").samples.truncate(1);
    report.failures = vec![Failure {
        what: "tcp/16/down".to_owned(),
        contestant: "gotatun".to_owned(),
        reason: "iperf3: error - unable to connect to server: <Connection refused>".to_owned(),
    }];
    report.tables = vec![gigabit(), handshake()];
    report
}

/// A report of a run that was interrupted before the first measurement.
pub(crate) fn empty() -> Report {
    Report {
        format: FORMAT,
        started: "2020-01-02T03:04:05Z".to_owned(),
        seconds: 512.0,
        complete: false,
        settings: Settings {
            kind: "bench-full".to_owned(),
            rounds: 5,
            seconds: 3.0,
            link: "cable".to_owned(),
            ..Settings::default()
        },
        machine: Machine {
            processor: "Made-up Processor 9000 @ 3.00 GHz".to_owned(),
            cores: 2,
            memory: 8_000_000_000,
            kernel: "6.1.0-test".to_owned(),
            system: "Debian GNU/Linux 12 (bookworm)".to_owned(),
            congestion_control: "cubic".to_owned(),
        },
        tools: [("iperf3", "3.12"), ("qperf", "0.4.11")]
            .map(|(name, version)| (name.to_owned(), version.to_owned()))
            .into(),
        contestants: Vec::new(),
        metrics: Vec::new(),
        series: Vec::new(),
        distributions: Vec::new(),
        failures: Vec::new(),
        tables: Vec::new(),
    }
}

/// A report with names and figures meant to break a page.
pub(crate) fn nasty() -> Report {
    let mut report = full();
    let script = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&amp;|`*";
    report.machine.processor = format!("{script}\u{1b}[31m");
    for (at, entry) in report.contestants.iter_mut().enumerate() {
        entry.title = format!("{script}{}{at}", "W".repeat(70));
    }
    for metric in &mut report.metrics {
        metric.title = format!("{script} {}", metric.title);
    }
    for table in &mut report.tables {
        table.title = script.to_owned();
        table.source = format!("https://example.org/{}", "a".repeat(300));
        table.name = script.to_owned();
        table.differences.push(script.to_owned());
        for row in &mut table.rows {
            row.label = script.to_owned();
            row.note = Some(script.to_owned());
            row.cells.pop();
        }
    }
    for series in report
        .series
        .iter_mut()
        .filter(|series| series.contestant == "taupe")
    {
        series.samples = vec![1e300, 1e-300, 0.0, -5.0, 1e18];
    }
    let unknown = Metric::new("what/is/this", "", Unit::Count, Better::Lower);
    report.record("nobody <b>listed</b>", &unknown, f64::MAX);
    report.record("nobody <b>listed</b>", &unknown, f64::MIN_POSITIVE);
    report.metrics.retain(|metric| metric.key != "startup");
    let distribution = report.distributions.first_mut().expect("a distribution");
    distribution.quantiles = vec![
        (2.0, -1.0),
        (0.5, 0.0),
        (0.999_999_999_999, 1e300),
        (0.1, 1e-300),
    ];
    report
}

/// Records five samples spread around a value.
fn rounds(report: &mut Report, id: &str, metric: &Metric, value: f64, seed: usize) {
    for round in 0..5 {
        let wobble = ((seed * 7 + round * 13 + metric.key.len() * 5) % 11) as f64 / 11.0 - 0.5;
        report.record(id, metric, value * (1.0 + 0.06 * wobble));
    }
}

fn measure(report: &mut Report, id: &str, speed: f64, seed: usize) {
    let tunnel = id != "direct";
    for (streams, more) in [(1, 1.0), (4, 1.12), (16, 1.08)] {
        let s = if streams == 1 { "" } else { "s" };
        for (way, words, factor) in [
            ("up", "up", 1.0),
            ("down", "down", 0.94),
            ("both", "both ways", 1.3),
        ] {
            let metric = Metric::new(
                format!("tcp/{streams}/{way}"),
                format!("TCP {words}, {streams} stream{s}"),
                Unit::BitsPerSecond,
                Better::Higher,
            );
            rounds(report, id, &metric, 38.4e9 * speed * more * factor, seed);
        }
    }
    for size in [64, 512, 1420] {
        let metric = Metric::new(
            format!("udp/{size}/rate"),
            format!("UDP packets of {size} B"),
            Unit::PacketsPerSecond,
            Better::Higher,
        );
        rounds(
            report,
            id,
            &metric,
            9e5 * speed.sqrt() * (1.0 - f64::from(size) / 9000.0),
            seed,
        );
    }
    for (kind, words, base) in [("idle", "idle", 24e-6), ("loaded", "under load", 210e-6)] {
        let typical = base / speed.sqrt();
        let tail = |share: f64| typical * (1.0 + (1.0 / (1.0 - share)).log10().powf(2.2) / 3.0);
        for (share, name) in [(0.5, "p50"), (0.99, "p99"), (0.999, "p99.9")] {
            let metric = Metric::new(
                format!("latency/{kind}/{name}"),
                format!("round trip {words}, {name}"),
                Unit::Seconds,
                Better::Lower,
            );
            rounds(report, id, &metric, tail(share), seed);
        }
        let shares = (0..=400).map(|at| 1.0 - 10f64.powf(-f64::from(at) / 100.0));
        let mut quantiles: Vec<(f64, f64)> = shares.map(|share| (share, tail(share))).collect();
        quantiles.extend([
            (0.5, tail(0.5)),
            (0.9, tail(0.9)),
            (0.99, tail(0.99)),
            (0.999, tail(0.999)),
        ]);
        quantiles.sort_by(|a, b| a.0.total_cmp(&b.0));
        quantiles.push((1.0, tail(0.99999)));
        report.distributions.push(Distribution {
            metric: format!("latency/{kind}"),
            contestant: id.to_owned(),
            count: 50_000,
            lost: seed as u64 % 3,
            quantiles,
        });
    }
    for (what, words) in [
        ("cpu", "CPU of the machine"),
        ("programs", "CPU of the programs"),
    ] {
        if what == "programs" && !tunnel {
            continue;
        }
        for (part, share) in [("user", 0.08 / speed), ("system", 0.25 + 0.11 / speed)] {
            let metric = Metric::new(
                format!("cost/{what}/{part}"),
                format!("{words}, {part}"),
                Unit::SecondsPerGigabyte,
                Better::Lower,
            );
            rounds(report, id, &metric, share, seed);
        }
    }
    for (key, title, unit, value) in [
        (
            "cost/syscalls",
            "system calls",
            Unit::PerGigabyte,
            2.1e4 / speed,
        ),
        (
            "cost/switches",
            "context switches",
            Unit::PerGigabyte,
            0.9e4 / speed,
        ),
        (
            "memory/resident",
            "resident memory",
            Unit::Bytes,
            4e6 / speed,
        ),
        (
            "startup",
            "program start to first answer",
            Unit::Seconds,
            0.02 / speed,
        ),
        (
            "qperf/tcp_lat",
            "qperf tcp_lat",
            Unit::Seconds,
            13e-6 / speed.sqrt(),
        ),
    ] {
        let metric = Metric::new(key, title, unit, Better::Lower);
        rounds(report, id, &metric, value, seed);
    }
    if tunnel && !id.starts_with("openvpn") {
        for (power, count) in [1u32, 10, 100, 1000, 10_000].into_iter().enumerate() {
            for (what, words, unit, value) in [
                (
                    "resident",
                    "resident memory",
                    Unit::Bytes,
                    4e6 / speed + f64::from(count) * 5e3,
                ),
                (
                    "setup",
                    "time to add",
                    Unit::Seconds,
                    0.002 + f64::from(count) * 3e-5 / speed,
                ),
                (
                    "tcp",
                    "TCP up",
                    Unit::BitsPerSecond,
                    38e9 * speed * (1.0 - 0.05 * power as f64),
                ),
            ] {
                let better = if what == "tcp" {
                    Better::Higher
                } else {
                    Better::Lower
                };
                let metric = Metric::new(
                    format!("peers/{count}/{what}"),
                    format!("{count} peers: {words}"),
                    unit,
                    better,
                );
                rounds(report, id, &metric, value, seed);
            }
        }
    }
    many_cores(report, id, speed, seed);
    let metric = Metric::new(
        "gigabit-2018/iperf",
        "iperf",
        Unit::BitsPerSecond,
        Better::Higher,
    );
    rounds(report, id, &metric, 930e6 * speed.min(0.99), seed);
}

/// Records figures of saturated machines: of workers, for some contestants, and of gateways.
fn many_cores(report: &mut Report, id: &str, speed: f64, seed: usize) {
    let workers: &[&str] = match id {
        "direct" => &["default"],
        "taupe" | "wireguard-go" => &["1", "2", "4", "8"],
        _ => return,
    };
    let keys = workers.iter().map(|count| format!("workers/{count}"));
    let gateways = [1, 4, 8].map(|count| format!("gateway/{count}"));
    for key in keys.chain(gateways) {
        let count = key.rsplit('/').next().and_then(|count| count.parse().ok());
        let factor: f64 = count.unwrap_or(1.0);
        for (end, unit, value) in [
            ("up", Unit::BitsPerSecond, 9e9 * speed * factor),
            ("down", Unit::BitsPerSecond, 8e9 * speed * factor),
            ("up/cores", Unit::Cores, 2.0 + factor),
            ("up/cores-per-gbit", Unit::CoresPerGigabit, 0.1 / speed),
            ("up/reorderings", Unit::Count, 3.0),
        ] {
            let better = match unit {
                Unit::BitsPerSecond => Better::Higher,
                _ => Better::Lower,
            };
            let title = format!("{}: {end}", key.replace('/', " "));
            let metric = Metric::new(format!("{key}/{end}"), title, unit, better);
            rounds(report, id, &metric, value, seed);
        }
    }
}

fn gigabit() -> Table {
    let cell = |published: &str, measured: Option<f64>, mad: f64| Cell {
        published: (!published.is_empty()).then(|| published.to_owned()),
        measured,
        mad: measured.map(|_| mad),
    };
    let column = |title: &str, unit| Column {
        title: title.to_owned(),
        unit,
    };
    let row = |label: &str, contestant: Option<&str>, cells: Vec<Cell>, note: Option<&str>| Row {
        label: label.to_owned(),
        contestant: contestant.map(str::to_owned),
        cells,
        note: note.map(str::to_owned),
    };
    Table {
        name: "gigabit-2018".to_owned(),
        title: "Tunnels over a gigabit link, 2018".to_owned(),
        source: "a post of 2018 (made up for the tests)".to_owned(),
        columns: vec![
            column("start-up", Unit::Seconds),
            column("iperf", Unit::BitsPerSecond),
            column("qperf tcp_bw", Unit::BitsPerSecond),
            column("qperf tcp_lat", Unit::Seconds),
        ],
        rows: vec![
            row(
                "no tunnel",
                Some("direct"),
                vec![
                    Cell::default(),
                    cell("", Some(935e6), 1e6),
                    cell("840 Mb/s", Some(930e6), 2e6),
                    cell("102 µs", Some(33e-6), 1e-6),
                ],
                None,
            ),
            row(
                "OpenVPN, static key",
                Some("openvpn-static-bf"),
                vec![
                    cell("7 s", Some(1.2), 0.1),
                    cell("428 Mbit/s", Some(310e6), 9e6),
                    cell("337 Mb/s", None, 0.0),
                    cell("144 µs", Some(90e-6), 3e-6),
                ],
                Some("gigabit-2018/tcp_bw: qperf: failed to receive results"),
            ),
            row(
                "WireGuard",
                Some("kernel"),
                vec![
                    cell("< 1 s", None, 0.0),
                    cell("898 Mbit/s", None, 0.0),
                    cell("893 Mb/s", None, 0.0),
                    cell("317 µs", None, 0.0),
                ],
                Some("cannot run here: this kernel has no WireGuard"),
            ),
            row(
                "Taupe",
                Some("taupe"),
                vec![
                    cell("", Some(0.031), 0.002),
                    cell("", Some(912e6), 3e6),
                    cell("", Some(905e6), 4e6),
                    cell("", Some(61e-6), 2e-6),
                ],
                None,
            ),
        ],
        differences: vec![
            "Both machines are on one computer, and share its cores.".to_owned(),
            "The link is limited by a token bucket filter, not by network cards.".to_owned(),
        ],
    }
}

fn handshake() -> Table {
    let rows = [
        ("K+K", "4816", "0.64"),
        ("Hülsing et al.", "without figures here", ""),
    ];
    Table {
        name: "handshake-pq".to_owned(),
        title: "Handshakes against quantum computers".to_owned(),
        source: "a post of 2021 (made up for the tests)".to_owned(),
        columns: vec![
            Column {
                title: "traffic".to_owned(),
                unit: Unit::Bytes,
            },
            Column {
                title: "client".to_owned(),
                unit: Unit::Seconds,
            },
        ],
        rows: rows
            .map(|(label, traffic, client)| Row {
                label: label.to_owned(),
                contestant: None,
                cells: vec![
                    Cell {
                        published: Some(traffic.to_owned()),
                        ..Cell::default()
                    },
                    Cell {
                        published: (!client.is_empty()).then(|| client.to_owned()),
                        ..Cell::default()
                    },
                ],
                note: None,
            })
            .into(),
        differences: Vec::new(),
    }
}
