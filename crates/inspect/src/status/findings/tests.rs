use super::*;

const ENDED: ProcessObservation<'_> = ProcessObservation {
    interface: "home",
    word: "home",
    is_running: false,
    is_killed: true,
    is_changing: false,
    answers: false,
    lock: Some(Lock::Selected),
    blocks: false,
};

fn judged(process: &ProcessObservation<'_>) -> (State, Option<&'static str>) {
    let findings: Vec<_> = process_finding(process).into_iter().collect();
    let code = findings.first().map(|finding| finding.code.name());
    (overall_state(process.is_running, &findings), code)
}

#[test]
fn hybrid_causes_are_named_for_a_peer_that_has_never_answered() {
    let finding = |code| Finding::new(code, "it is silent");
    let named = with_hybrid_causes(finding(FindingCode::NoHandshake));
    assert!(
        named
            .text
            .starts_with("it is silent; hybrid handshakes are required")
    );
    let other = with_hybrid_causes(finding(FindingCode::HandshakeOld));
    assert_eq!(other.text, "it is silent");
}

#[test]
fn a_tunnel_without_a_process_is_degraded_while_it_blocks_traffic_and_down_otherwise() {
    assert_eq!(judged(&ENDED), (State::Degraded, Some("process-ended")));
    let adapter = ProcessObservation {
        lock: None,
        ..ENDED
    };
    assert_eq!(judged(&adapter), (State::Degraded, Some("process-ended")));
    let open = ProcessObservation {
        lock: Some(Lock::Off),
        ..ENDED
    };
    assert_eq!(judged(&open), (State::Down, Some("down")));
    // A user has taken it down.
    let closed = ProcessObservation {
        is_killed: false,
        ..ENDED
    };
    assert_eq!(judged(&closed), (State::Down, Some("down")));
    let never = ProcessObservation {
        lock: None,
        ..closed
    };
    assert_eq!(judged(&never), (State::Down, None));
    let begun = ProcessObservation {
        is_changing: true,
        ..never
    };
    assert_eq!(judged(&begun), (State::Down, Some("changing")));
    let up = ProcessObservation {
        is_running: true,
        is_killed: false,
        answers: true,
        ..ENDED
    };
    assert_eq!(judged(&up), (State::Up, None));
    let stopped = ProcessObservation {
        answers: false,
        ..up
    };
    assert_eq!(judged(&stopped), (State::Degraded, Some("process-silent")));
}

#[test]
fn silent_name_servers_degrade_a_tunnel() {
    let servers = |texts: &[&str]| SilentServers {
        servers: texts.iter().map(|text| text.parse().unwrap()).collect(),
        time: Duration::from_secs(12),
    };
    let one = silent_name_servers(&servers(&["10.77.0.53"]));
    assert!(
        one.text
            .starts_with("10.77.0.53 in DNS has not answered for 12 s")
    );
    let two = silent_name_servers(&servers(&["10.77.0.53", "10.77.0.54"]));
    assert!(
        two.text
            .starts_with("10.77.0.53, 10.77.0.54 in DNS have not")
    );
    assert_eq!(overall_state(true, &[one]), State::Degraded);
}

#[test]
fn the_worst_of_several_counts() {
    assert!(State::Up < State::Degraded && State::Degraded < State::Down);
    let statuses = [State::Up, State::Down, State::Degraded].map(State::exit_status);
    assert_eq!(statuses, [0, 1, 2]);
}

fn next_hop(address: &str) -> NextHop {
    NextHop {
        address: address.parse().unwrap(),
        link: "wlan0".into(),
    }
}

/// Returns the code and the text for a peer at 192.0.2.1.
fn assessed(
    age: Option<u64>,
    unanswered: Option<(u32, u64)>,
    has_sent: bool,
    path: EndpointPath,
) -> Option<(&'static str, String)> {
    let seen = PeerObservation {
        is_initiator: false,
        age: age.map(Duration::from_secs),
        unanswered: unanswered.map(|(count, time)| (count, Duration::from_secs(time))),
        has_sent,
        path,
    };
    match assess_peer("its peer", "192.0.2.1:51820".parse().ok(), &seen)? {
        PeerAssessment::Finding(Finding { code, text, .. }) => Some((code.name(), text)),
        PeerAssessment::Note(text) => Some(("note", text)),
        PeerAssessment::AwaitingInitiation => None,
    }
}

#[test]
fn an_unanswered_handshake_is_a_finding_and_an_idle_tunnel_is_not() {
    for (age, unanswered, has_sent, code) in [
        (None, None, false, Some("note")),
        (None, Some((1, 0)), true, Some("note")),
        (None, Some((2, 5)), true, Some("no-handshake")),
        // The handshake was given up.
        (None, None, true, Some("no-handshake")),
        // An idle tunnel makes no handshakes.
        (Some(9999), None, true, None),
        (Some(9999), Some((1, 0)), true, None),
        (Some(180), Some((2, 5)), true, Some("handshake-old")),
        (Some(179), Some((2, 5)), true, Some("peer-silent")),
    ] {
        for path in [
            EndpointPath::Unknown,
            EndpointPath::NextHopAnswers(next_hop("198.51.100.9")),
        ] {
            let assessed = assessed(age, unanswered, has_sent, path);
            assert_eq!(
                assessed.map(|(code, _)| code),
                code,
                "{age:?} {unanswered:?}"
            );
        }
    }
}

/// The peer may have left, even if packets are still sent to it.
#[test]
fn silence_of_a_peer_that_starts_handshakes_itself_is_normal() {
    for (age, assessment) in [
        (None, Some(PeerAssessment::AwaitingInitiation)),
        (Some(9999), None),
    ] {
        for unanswered in [None, Some((20, 100))] {
            let seen = PeerObservation {
                is_initiator: true,
                age: age.map(Duration::from_secs),
                unanswered: unanswered.map(|(count, time)| (count, Duration::from_secs(time))),
                has_sent: true,
                path: no_route(&["eth0"]),
            };
            let endpoint = "192.0.2.1:51820".parse().ok();
            assert_eq!(assess_peer("its peer", endpoint, &seen), assessment);
        }
    }
    assert_eq!(awaiting_note(0, 50), None);
    let text = awaiting_note(3, 50).unwrap();
    assert!(text.contains("3 of its 50 peers"), "{text}");
}

fn no_route(down: &[&str]) -> EndpointPath {
    let down = down.iter().map(|&name| name.to_owned()).collect();
    EndpointPath::NoRoute { down }
}

/// The finding appears before anything was sent, and during a session.
#[test]
fn an_endpoint_without_a_path_degrades_a_tunnel_at_once() {
    let no_carrier = EndpointPath::NoCarrier {
        link: "wlan0".into(),
    };
    let many = ["eth0", "eth1", "eth2", "eth3", "eth4", "eth5"];
    for (path, code, word) in [
        (no_route(&[]), "no-route", "192.0.2.1:51820: no packet"),
        (no_route(&["eth0"]), "no-route", "(eth0 is down"),
        (no_route(&many[..2]), "no-route", "(eth0, eth1 are down"),
        (no_route(&many), "no-route", "eth3 and 2 more are down"),
        (no_carrier, "no-carrier", "leaves by wlan0, which is down"),
    ] {
        for (age, has_sent) in [(None, false), (None, true), (Some(10), true)] {
            let (found, text) = assessed(age, None, has_sent, path.clone()).unwrap();
            assert_eq!(found, code, "{path:?}");
            assert!(text.contains(word), "{word}: {text}");
            assert!(!text.contains("unanswered"), "{text}");
        }
    }
}

#[test]
fn the_path_decides_which_cause_a_silent_peer_gets() {
    let router = next_hop("198.51.100.9");
    let itself = next_hop("192.0.2.1");
    let portal = "drop UDP to 192.0.2.1:51820 (a captive portal's login page";
    let drops = "drops UDP to 192.0.2.1:51820 (a captive portal's login page";
    for (age, time, path, code, word) in [
        // It appears immediately, even after earlier handshakes.
        (None, 5, no_route(&[]), "no-route", "ip route get 192.0.2.1"),
        (
            Some(100),
            5,
            no_route(&[]),
            "no-route",
            "unanswered for 5 s",
        ),
        (
            None,
            5,
            EndpointPath::NextHopSilent(router.clone()),
            "next-hop-silent",
            "198.51.100.9",
        ),
        (
            Some(9),
            5,
            EndpointPath::NextHopSilent(itself.clone()),
            "next-hop-silent",
            "wlan0",
        ),
        // A silent peer becomes a finding after some time, because a datagram may be lost.
        (
            Some(99),
            14,
            EndpointPath::NextHopAnswers(router.clone()),
            "peer-silent",
            "99 s old",
        ),
        (
            Some(99),
            15,
            EndpointPath::NextHopAnswers(router.clone()),
            "udp-swallowed",
            portal,
        ),
        (
            Some(999),
            25,
            EndpointPath::NextHopAnswers(router.clone()),
            "udp-swallowed",
            "unanswered for 25 s",
        ),
        (
            Some(999),
            25,
            EndpointPath::NextHopAnswers(router.clone()),
            "udp-swallowed",
            "16 min ago",
        ),
        // Without any handshake, the keys may be wrong.
        (
            None,
            14,
            EndpointPath::NextHopAnswers(router.clone()),
            "no-handshake",
            "of them",
        ),
        (
            None,
            15,
            EndpointPath::NextHopAnswers(router.clone()),
            "no-handshake",
            drops,
        ),
        (
            None,
            15,
            EndpointPath::NextHopAnswers(router),
            "no-handshake",
            "wrong PublicKey",
        ),
        // In the local network, datagrams do not cross a network that could drop them.
        (
            Some(99),
            15,
            EndpointPath::NextHopAnswers(itself.clone()),
            "peer-silent",
            "no program listens",
        ),
        (
            None,
            15,
            EndpointPath::NextHopAnswers(itself),
            "no-handshake",
            "PublicKey, PrivateKey",
        ),
        (
            Some(999),
            99,
            EndpointPath::Unknown,
            "handshake-old",
            "an endpoint that has moved",
        ),
    ] {
        let (found, text) = assessed(age, Some((2, time)), true, path.clone()).unwrap();
        assert_eq!(found, code, "{age:?} {time} {path:?}");
        assert!(text.contains(word), "{word}: {text}");
    }
}
