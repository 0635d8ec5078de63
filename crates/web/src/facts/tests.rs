use super::*;
use serde_json::Value;
use taupe_inspect::flows::Verdict as InspectVerdict;
use taupe_inspect::metrics::live;
use taupe_inspect::status::{self, FindingCode};

/// Facts as `taupe web` sends them, with a value in each member.
fn sent() -> Value {
    let mut tunnel = status::Tunnel::named("home");
    tunnel.state = status::State::Degraded;
    tunnel.findings = vec![status::Finding {
        code: FindingCode::NoHandshake,
        text: "a finding".into(),
        peer: Some("key".into()),
    }];
    tunnel.notes = vec!["a note".into()];
    tunnel.mode = Some(status::Mode::Transparent);
    tunnel.file = Some("/etc/wireguard/home.conf".into());
    tunnel.via = Some("work".into());
    tunnel.since = Some(1);
    tunnel.kill_switch = Some("app");
    tunnel.rules = vec![status::RuleLine {
        line: 1,
        key: "AllowedApps",
        application: "curl".into(),
    }];
    tunnel.uplinks = vec![status::Uplink {
        name: "eth0".into(),
        guarded: true,
    }];
    tunnel.gaps = vec![status::GapLine {
        code: "code",
        text: "a gap".into(),
    }];
    tunnel.counters = vec![status::Counter {
        name: "name".into(),
        count: 2,
        text: "packets",
    }];
    tunnel.peers = vec![status::Peer {
        public_key: "key".into(),
        name: Some("gate".into()),
        endpoint: Some("192.0.2.1:1".into()),
        latest_handshake: Some(3),
        unanswered_handshakes: 4,
        received_bytes: 5,
        sent_bytes: 6,
        post_quantum: Some(status::PostQuantumStatus {
            wanted: "require",
            latched: false,
            suite: None,
            session: None,
            text: "required".into(),
        }),
        lanes: None,
    }];
    let times = || live::TimeFacts {
        bounds: vec![0.1],
        counts: vec![1, 2],
        seconds: 0.5,
    };
    let facts = live::Facts {
        schema: 1,
        at: 7,
        status: status::Status {
            schema: 1,
            state: Some(status::State::Degraded),
            tunnels: vec![tunnel],
        },
        devices: vec![live::DeviceFacts {
            interface: "home".into(),
            handshakes: Some(times()),
            waits: Some(times()),
            drops: vec![live::DropFacts {
                reason: "mac1".into(),
                count: 8,
            }],
        }],
        applications: vec![live::ApplicationFacts {
            application: Some("/usr/bin/curl".into()),
            uid: 1000,
            tunnel: Some("home".into()),
            verdict: InspectVerdict::Refused,
            why: Some("no route".into()),
            connections: 9,
            processes: 10,
            remotes: vec!["198.51.100.1:443".into()],
            sent_bytes: Some(11),
            received_bytes: Some(12),
        }],
        applications_truncated: true,
        blocked_left_out: 13,
        flows_error: Some("an error".into()),
        rules: vec![live::RuleFacts {
            tunnel: "home".into(),
            key: "AllowedApps",
            application: "curl".into(),
            processes: 14,
        }],
    };
    serde_json::to_value(facts).expect("JSON")
}

#[test]
fn facts_are_parsed_as_they_are_sent() {
    let facts = Facts::parse(sent().to_string().as_bytes()).expect("facts");
    let tunnel = facts.status.tunnels.first().expect("a tunnel");
    let peer = tunnel.peers.first().expect("a peer");
    // A missing member with `Option` would be `None`.
    let optional = [
        tunnel.mode.is_some(),
        tunnel.file.is_some(),
        tunnel.via.is_some(),
        tunnel.since.is_some(),
        tunnel.kill_switch.is_some(),
        peer.name.is_some(),
        peer.endpoint.is_some(),
        peer.latest_handshake.is_some(),
        peer.post_quantum.is_some(),
        facts.flows_error.is_some(),
        facts
            .devices
            .iter()
            .all(|it| it.handshakes.is_some() && it.waits.is_some()),
    ];
    assert_eq!(optional, [true; 11]);
    let application = facts.applications.first().expect("an application");
    assert!(
        [
            &application.application,
            &application.tunnel,
            &application.why
        ]
        .iter()
        .all(|it| it.is_some())
    );
    assert_eq!(
        (application.sent_bytes, application.received_bytes),
        (Some(11), Some(12))
    );
}

#[test]
fn no_member_may_be_missing() {
    for (pointer, member) in [
        ("", "devices"),
        ("", "applications_truncated"),
        ("", "blocked_left_out"),
        ("/status/tunnels/0", "findings"),
        ("/status/tunnels/0", "forwarded"),
        ("/status/tunnels/0/peers/0", "sent_bytes"),
        ("/applications/0", "uid"),
    ] {
        let mut facts = sent();
        let object = facts.pointer_mut(pointer).and_then(Value::as_object_mut);
        object.expect("an object").remove(member).expect("a member");
        let parsed = Facts::parse(facts.to_string().as_bytes());
        assert!(parsed.is_err(), "{pointer} {member}");
    }
}
