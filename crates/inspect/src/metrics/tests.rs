//! The text, line by line, and its size with many peers.

use super::*;
use crate::status::{Counter, Finding, FindingCode, Peer, Tunnel};
use std::time::Duration;
use taupe_client::{Device, PublicKey};

fn device(peers: usize) -> Device {
    let mut device = Device::new("wg0");
    for number in 0..peers {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(number as u64 + 1).to_be_bytes());
        taupe_uapi::push_peer(&mut device.status.peers, PublicKey(key));
    }
    device
}

fn status(tunnels: Vec<Tunnel>) -> Status {
    Status {
        schema: 1,
        state: None,
        tunnels,
    }
}

fn peer(key: &str, name: &str) -> Peer {
    Peer {
        public_key: key.to_owned(),
        name: Some(name.to_owned()),
        endpoint: None,
        latest_handshake: None,
        unanswered_handshakes: 0,
        received_bytes: 0,
        sent_bytes: 0,
        post_quantum: None,
        lanes: None,
    }
}

/// Returns the lines of a histogram's ranges.
fn ranges(name: &str, counts: [u64; 11]) -> String {
    let bounds = [
        "0.0001", "0.0005", "0.002", "0.01", "0.025", "0.05", "0.1", "0.25", "1.0", "5.0", "+Inf",
    ];
    let lines = bounds.iter().zip(counts).map(|(bound, count)| {
        format!("{name}_seconds_bucket{{le=\"{bound}\",device=\"home\"}} {count}")
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn the_whole_text() {
    let mut one = device(2);
    let first = &mut one.status.peers[0];
    (first.rx_bytes, first.tx_bytes) = (u64::MAX, 7);
    first.latest_handshake = Some(Duration::new(1_700_000_000, 5));
    let key = status::encoded(first);
    let other = status::encoded(&one.status.peers[1]);
    for (group, name, count) in [
        ("drop", "mac1", 3),
        ("handshake", "initiated", 2),
        ("queue", "marked", 1),
        ("device", "lanes", 4),
        ("handshake-time", "500", 2),
        ("handshake-time", "25000", 1),
        ("handshake-time", "more", 1),
        ("handshake-time", "sum", 7_500_000),
        ("later", "unknown", 1),
    ] {
        one.counters.push(taupe_uapi::Counter {
            group: group.into(),
            name: name.into(),
            count,
        });
    }
    let finding = |code| Finding {
        code,
        text: String::new(),
        peer: None,
    };
    let home = Tunnel {
        state: State::Degraded,
        findings: vec![
            finding(FindingCode::PeerSilent),
            finding(FindingCode::NoRoute),
            finding(FindingCode::PeerSilent),
        ],
        counters: vec![Counter {
            name: "no-room".to_owned(),
            count: 4,
            text: "",
        }],
        peers: vec![peer(&key, "a \"b\" \\")],
        ..Tunnel::named("home")
    };
    let metrics = Metrics::of("1.2.3", &status(vec![home]), vec![("home".to_owned(), one)]);
    assert!(metrics.carries_all() && !metrics.is_empty());
    let text = metrics.text(Format::OpenMetrics);
    let samples: Vec<_> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let named = format!("{{device=\"home\",public_key=\"{key}\",name=\"a \\\"b\\\" \\\\\"}}");
    let unnamed = format!("{{device=\"home\",public_key=\"{other}\",name=\"\"}}");
    let expected = [
        "taupe_build_info{version=\"1.2.3\"} 1".to_owned(),
        "taupe_tunnel_state{tunnel=\"home\",state=\"up\"} 0".to_owned(),
        "taupe_tunnel_state{tunnel=\"home\",state=\"degraded\"} 1".to_owned(),
        "taupe_tunnel_state{tunnel=\"home\",state=\"down\"} 0".to_owned(),
        "taupe_tunnel_findings{tunnel=\"home\",code=\"peer-silent\"} 2".to_owned(),
        "taupe_tunnel_findings{tunnel=\"home\",code=\"no-route\"} 1".to_owned(),
        "taupe_capture_dropped_packets_total{tunnel=\"home\",reason=\"no-room\"} 4".to_owned(),
        "taupe_peers{device=\"home\"} 2".to_owned(),
        "taupe_device_lanes{device=\"home\"} 4".to_owned(),
        "taupe_dropped_packets_total{device=\"home\",reason=\"mac1\"} 3".to_owned(),
        "taupe_handshakes_total{device=\"home\",result=\"initiated\"} 2".to_owned(),
        "taupe_queue_segments_total{device=\"home\",action=\"marked\"} 1".to_owned(),
        "taupe_handshake_duration_seconds_sum{device=\"home\"} 7.5".to_owned(),
        "taupe_handshake_duration_seconds_count{device=\"home\"} 4".to_owned(),
        ranges(
            "taupe_handshake_duration",
            [0, 2, 2, 2, 3, 3, 3, 3, 3, 3, 4],
        ),
        "taupe_queue_wait_seconds_sum{device=\"home\"} 0.0".to_owned(),
        "taupe_queue_wait_seconds_count{device=\"home\"} 0".to_owned(),
        ranges("taupe_queue_wait", [0; 11]),
        format!("taupe_peer_received_bytes_total{named} {}", u64::MAX),
        format!("taupe_peer_received_bytes_total{unnamed} 0"),
        format!("taupe_peer_sent_bytes_total{named} 7"),
        format!("taupe_peer_sent_bytes_total{unnamed} 0"),
        format!("taupe_peer_latest_handshake_timestamp_seconds{named} 1700000000"),
        format!("taupe_peer_unanswered_handshakes{named} 0"),
        format!("taupe_peer_unanswered_handshakes{unnamed} 0"),
    ];
    assert_eq!(samples.join("\n"), expected.join("\n"));
    assert!(text.ends_with("# EOF\n"), "{text}");
    // Every family has its type and its help before its samples.
    for line in &samples {
        let name = line.split('{').next().expect("a name");
        let suffixes = ["_total", "_sum", "_count", "_bucket"].into_iter();
        let mut family = suffixes.filter_map(|suffix| name.strip_suffix(suffix));
        let family = family.next().unwrap_or(name);
        for kind in ["TYPE", "HELP"] {
            assert!(
                text.contains(&format!("# {kind} {family} ")),
                "{kind} {family}"
            );
        }
    }
}

#[test]
fn names_are_left_out_above_a_limit() {
    for (count, has_names) in [(MAX_NAMED_PEERS, true), (MAX_NAMED_PEERS + 1, false)] {
        let one = device(count);
        let keys = one.status.peers.iter().map(status::encoded);
        let home = Tunnel {
            peers: keys.map(|key| peer(&key, "somebody")).collect(),
            ..Tunnel::named("home")
        };
        let metrics = Metrics::of("1", &status(vec![home]), vec![("home".to_owned(), one)]);
        let text = metrics.text(Format::OpenMetrics);
        assert_eq!(text.contains("somebody"), has_names);
        let samples = text
            .lines()
            .filter(|it| it.starts_with("taupe_peer_sent_bytes_total"));
        assert_eq!(samples.count(), count);
    }
}

#[test]
fn devices_without_tunnels_have_figures() {
    let metrics = Metrics::of("1", &status(vec![]), vec![("wg0".to_owned(), device(1))]);
    assert!(metrics.carries_all() && !metrics.is_empty());
    let text = metrics.text(Format::OpenMetrics);
    assert!(text.contains("\ntaupe_peers{device=\"wg0\"} 1\n"), "{text}");
}

#[test]
fn tunnels_that_nobody_carries() {
    for (state, code, is_carried) in [
        (State::Degraded, FindingCode::PeerSilent, true),
        (State::Degraded, FindingCode::ProcessEnded, false),
        (State::Degraded, FindingCode::ProcessSilent, false),
        (State::Degraded, FindingCode::Changing, false),
        (State::Down, FindingCode::Down, false),
    ] {
        let finding = Finding {
            code,
            text: String::new(),
            peer: None,
        };
        let home = Tunnel {
            state,
            findings: vec![finding],
            ..Tunnel::named("home")
        };
        let metrics = Metrics::of("1", &status(vec![home]), vec![]);
        assert_eq!(metrics.carries_all(), is_carried, "{code:?}");
    }
}

#[test]
fn the_older_format_names_counters_as_their_samples() {
    let metrics = Metrics::of("1", &status(vec![]), vec![("wg0".to_owned(), device(1))]);
    let text = metrics.text(Format::Prometheus);
    assert!(
        text.contains("# TYPE taupe_peer_sent_bytes_total counter\n"),
        "{text}"
    );
    assert!(!text.contains("# EOF"), "{text}");
}

#[test]
fn running_processes_of_selected_applications_are_counted() {
    let own = std::env::current_exe().expect("a program");
    let text = format!(
        "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
         AllowedApps = {0}, {0}, /no/such/program\n",
        own.display()
    );
    let file = taupe_config::file::parse(text.as_bytes(), taupe_config::file::Dialect::Taupe).file;
    let rules = file.expect("a file").transparent.apps;
    let tunnels = ["home", "other"].map(Tunnel::named).into();
    let mut metrics = Metrics::of("1", &status(tunnels), Vec::new());
    metrics.count_processes(BTreeMap::from([("home".to_owned(), rules)]));
    let text = metrics.text(Format::OpenMetrics);
    let lines = text
        .lines()
        .filter(|it| it.starts_with("taupe_application_processes{"));
    let counts: Vec<_> = lines
        .map(|line| line.rsplit_once(' ').expect("a number"))
        .collect();
    let [(one, count), (missing, "0")] = counts[..] else {
        panic!("{counts:?}");
    };
    assert!(one.contains("tunnel=\"home\",key=\"AllowedApps\""), "{one}");
    assert!(one.contains(&*own.display().to_string()), "{one}");
    assert!(missing.contains("/no/such/program"), "{missing}");
    // Other tests of this program may run beside this one.
    assert!(count.parse::<u64>().expect("a number") >= 1, "{count}");
}
