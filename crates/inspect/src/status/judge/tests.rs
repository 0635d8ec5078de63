use super::*;

const ENDED: Process<'_> = Process {
    interface: "home",
    word: "home",
    is_running: false,
    is_killed: true,
    is_changing: false,
    answers: false,
    lock: Some(Lock::Selected),
};

fn judged(process: &Process<'_>) -> (State, Option<&'static str>) {
    let findings: Vec<_> = super::process(process).into_iter().collect();
    let code = findings.first().map(|finding| finding.code.name());
    (state(process.is_running, &findings), code)
}

#[test]
fn a_tunnel_without_a_process_is_degraded_while_it_holds_back_and_down_otherwise() {
    assert_eq!(judged(&ENDED), (State::Degraded, Some("process-ended")));
    let adapter = Process {
        lock: None,
        ..ENDED
    };
    assert_eq!(judged(&adapter), (State::Degraded, Some("process-ended")));
    let open = Process {
        lock: Some(Lock::Off),
        ..ENDED
    };
    assert_eq!(judged(&open), (State::Down, Some("down")));
    // A user has taken it down.
    let closed = Process {
        is_killed: false,
        ..ENDED
    };
    assert_eq!(judged(&closed), (State::Down, Some("down")));
    let never = Process {
        lock: None,
        ..closed
    };
    assert_eq!(judged(&never), (State::Down, None));
    let begun = Process {
        is_changing: true,
        ..never
    };
    assert_eq!(judged(&begun), (State::Down, Some("changing")));
    let up = Process {
        is_running: true,
        is_killed: false,
        answers: true,
        ..ENDED
    };
    assert_eq!(judged(&up), (State::Up, None));
    let stopped = Process {
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
    let one = name_servers(&servers(&["10.77.0.53"]));
    assert!(
        one.text
            .starts_with("10.77.0.53 in DNS has not answered for 12 s")
    );
    let two = name_servers(&servers(&["10.77.0.53", "10.77.0.54"]));
    assert!(
        two.text
            .starts_with("10.77.0.53, 10.77.0.54 in DNS have not")
    );
    assert_eq!(state(true, &[one]), State::Degraded);
}

#[test]
fn the_worst_of_several_counts() {
    assert!(State::Up < State::Degraded && State::Degraded < State::Down);
    let statuses = [State::Up, State::Down, State::Degraded].map(State::exit_status);
    assert_eq!(statuses, [0, 1, 2]);
}

fn hop(address: &str) -> Hop {
    Hop {
        address: address.parse().unwrap(),
        link: "wlan0".into(),
    }
}

/// Returns the code and the text for a peer at 192.0.2.1.
fn told(
    age: Option<u64>,
    unanswered: Option<(u32, u64)>,
    has_sent: bool,
    way: Way,
) -> Option<(&'static str, String)> {
    let seen = Peer {
        is_caller: false,
        age: age.map(Duration::from_secs),
        unanswered: unanswered.map(|(count, time)| (count, Duration::from_secs(time))),
        has_sent,
        way,
    };
    match peer("its peer", "192.0.2.1:51820".parse().ok(), &seen)? {
        Heard::Finding(Finding { code, text }) => Some((code.name(), text)),
        Heard::Note(text) => Some(("note", text)),
        Heard::NotCalled => None,
    }
}

#[test]
fn a_peer_that_does_not_answer_is_told_from_one_that_was_not_asked() {
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
        for way in [Way::Unknown, Way::Answers(hop("198.51.100.9"))] {
            let told = told(age, unanswered, has_sent, way);
            assert_eq!(told.map(|(code, _)| code), code, "{age:?} {unanswered:?}");
        }
    }
}

/// The peer may have left, even if packets are still sent to it.
#[test]
fn a_peer_that_calls_and_is_silent_is_normal() {
    for (age, heard) in [(None, Some(Heard::NotCalled)), (Some(9999), None)] {
        for unanswered in [None, Some((20, 100))] {
            let seen = Peer {
                is_caller: true,
                age: age.map(Duration::from_secs),
                unanswered: unanswered.map(|(count, time)| (count, Duration::from_secs(time))),
                has_sent: true,
                way: no_route(&["eth0"]),
            };
            let endpoint = "192.0.2.1:51820".parse().ok();
            assert_eq!(peer("its peer", endpoint, &seen), heard);
        }
    }
    assert_eq!(not_called(0, 50), None);
    let text = not_called(3, 50).unwrap();
    assert!(text.contains("3 of its 50 peers"), "{text}");
}

fn no_route(down: &[&str]) -> Way {
    let down = down.iter().map(|&name| name.to_owned()).collect();
    Way::NoRoute { down }
}

/// The finding appears before anything was sent, and during a session.
#[test]
fn an_endpoint_that_no_datagram_leaves_for_degrades_a_tunnel_at_once() {
    let no_carrier = Way::NoCarrier {
        link: "wlan0".into(),
    };
    let many = ["eth0", "eth1", "eth2", "eth3", "eth4", "eth5"];
    for (way, code, word) in [
        (no_route(&[]), "no-route", "192.0.2.1:51820: nothing"),
        (no_route(&["eth0"]), "no-route", "(eth0 is down"),
        (no_route(&many[..2]), "no-route", "(eth0, eth1 are down"),
        (no_route(&many), "no-route", "eth3 and 2 more are down"),
        (no_carrier, "no-carrier", "leaves by wlan0, which is down"),
    ] {
        for (age, has_sent) in [(None, false), (None, true), (Some(10), true)] {
            let (found, text) = told(age, None, has_sent, way.clone()).unwrap();
            assert_eq!(found, code, "{way:?}");
            assert!(text.contains(word), "{word}: {text}");
            assert!(!text.contains("unanswered"), "{text}");
        }
    }
}

#[test]
fn where_handshakes_are_lost_is_told_by_the_way() {
    let router = hop("198.51.100.9");
    let itself = hop("192.0.2.1");
    let portal = "swallow UDP to 192.0.2.1:51820 (a captive portal's login page";
    let swallows = "swallows UDP to 192.0.2.1:51820 (a captive portal's login page";
    for (age, time, way, code, word) in [
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
            Way::Silent(router.clone()),
            "next-hop-silent",
            "198.51.100.9",
        ),
        (
            Some(9),
            5,
            Way::Silent(itself.clone()),
            "next-hop-silent",
            "wlan0",
        ),
        // A silent peer becomes a finding after some time, because a datagram may be lost.
        (
            Some(99),
            14,
            Way::Answers(router.clone()),
            "peer-silent",
            "99 s old",
        ),
        (
            Some(99),
            15,
            Way::Answers(router.clone()),
            "udp-swallowed",
            portal,
        ),
        (
            Some(999),
            25,
            Way::Answers(router.clone()),
            "udp-swallowed",
            "unanswered for 25 s",
        ),
        (
            Some(999),
            25,
            Way::Answers(router.clone()),
            "udp-swallowed",
            "16 min ago",
        ),
        // Without any handshake, the keys may be wrong.
        (
            None,
            14,
            Way::Answers(router.clone()),
            "no-handshake",
            "of them",
        ),
        (
            None,
            15,
            Way::Answers(router.clone()),
            "no-handshake",
            swallows,
        ),
        (
            None,
            15,
            Way::Answers(router),
            "no-handshake",
            "wrong PublicKey",
        ),
        // In the local network, datagrams do not cross a network that could drop them.
        (
            Some(99),
            15,
            Way::Answers(itself.clone()),
            "peer-silent",
            "nobody listens",
        ),
        (
            None,
            15,
            Way::Answers(itself),
            "no-handshake",
            "PublicKey, PrivateKey",
        ),
        (
            Some(999),
            99,
            Way::Unknown,
            "handshake-old",
            "an endpoint that has moved",
        ),
    ] {
        let (found, text) = told(age, Some((2, time)), true, way.clone()).unwrap();
        assert_eq!(found, code, "{age:?} {time} {way:?}");
        assert!(text.contains(word), "{word}: {text}");
    }
}
