use super::*;
use crate::text::Text;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Time of the readings.
const NOW: u64 = 1_800_000_000;

fn peer(number: u64, name: Value, age: Value) -> Value {
    let age = age.as_u64();
    json!({
        "public_key": format!("{number:043}="),
        "name": name,
        "endpoint": format!("192.0.2.{}:51820", number % 250),
        "latest_handshake": age.map(|age| NOW - age),
        "unanswered_handshakes": 0,
        "received_bytes": 1_000_000 * number,
        "sent_bytes": 100_000 * number,
        "post_quantum": null,
        "lanes": null,
    })
}

fn tunnel(interface: &str, state: &str, findings: Value, peers: Vec<Value>) -> Value {
    json!({
        "interface": interface, "state": state, "findings": findings, "notes": [],
        "mode": "transparent", "file": format!("/etc/wireguard/{interface}.conf"), "via": null,
        "since": NOW - 5000, "kill_switch": "app", "rules": [], "forwarded": false,
        "uplinks": [{"name": "eth0", "guarded": true}], "gaps": [], "counters": [], "peers": peers,
    })
}

fn facts(tunnels: Vec<Value>, applications: Vec<Value>) -> Facts {
    let facts = json!({
        "schema": 1, "at": NOW, "status": {"schema": 1, "state": "up", "tunnels": tunnels},
        "devices": [], "applications": applications, "applications_truncated": false, "blocked_left_out": 0,
        "flows_error": null, "rules": [],
    });
    Facts::parse(facts.to_string().as_bytes()).expect("facts")
}

fn application(path: &str, tunnel: Value, verdict: &str, why: &str) -> Value {
    json!({
        "application": path, "uid": 0, "tunnel": tunnel, "verdict": verdict, "why": why, "connections": 3,
        "processes": 2, "remotes": ["198.51.100.1:443"], "sent_bytes": 1000, "received_bytes": null,
    })
}

fn shown(facts: &Facts) -> String {
    content(facts, &History::default(), None).into_string()
}

#[test]
fn without_tunnels_the_page_says_so() {
    let page = shown(&facts(vec![], vec![]));
    assert!(
        page.contains("<h1 id=\"state\">Taupe has no tunnel up here</h1>"),
        "{page}"
    );
    assert!(page.contains("taupe up"), "{page}");
    // The block stays when the tunnel is gone from the list.
    let blocked = application(
        "/usr/bin/curl",
        json!("home"),
        "refused",
        "its process has ended",
    );
    let page = shown(&facts(vec![], vec![blocked]));
    assert!(
        page.contains("<strong>curl</strong>: 3 connections are blocked"),
        "{page}"
    );
}

#[test]
fn the_state_comes_first_with_its_reason() {
    let finding =
        json!([{"code": "no-handshake", "text": "its peer has never answered", "peer": null}]);
    let tunnels = vec![
        tunnel(
            "home",
            "up",
            json!([]),
            vec![peer(1, json!("gate"), json!(5))],
        ),
        tunnel(
            "work",
            "degraded",
            finding,
            vec![peer(2, Value::Null, Value::Null)],
        ),
    ];
    let page = shown(&facts(tunnels, vec![]));
    assert!(
        page.starts_with("<section class=\"hero degraded\""),
        "{page}"
    );
    let order = [
        "work is degraded, home is up</h1>",
        "<a href=\"#tunnel-work\">work</a>: its peer has never answered",
        "no-handshake",
        "id=\"tunnel-home\"",
        "5 s ago",
        "gate",
        "5 s ago",
        "id=\"tunnel-work\"",
        "never",
    ];
    let mut rest = &*page;
    for words in order {
        let at = rest.find(words);
        rest = at.map_or_else(|| panic!("no {words}: {rest}"), |at| &rest[at..]);
    }
    let down = vec![tunnel("home", "down", json!([]), vec![])];
    assert!(shown(&facts(down, vec![])).contains("home is down</h1>"));
}

#[test]
fn headlines_name_few_tunnels_and_count_many() {
    let headline_of = |states: &[(&str, &str)]| {
        let tunnels = states
            .iter()
            .map(|(name, state)| tunnel(name, state, json!([]), vec![]));
        headline(&facts(tunnels.collect(), vec![]).status.tunnels)
    };
    for (states, expected) in [
        (&[("a", "up")][..], "a is up"),
        (&[("a", "up"), ("b", "up")], "All 2 tunnels are up"),
        (&[("a", "down"), ("b", "up")], "a is down, b is up"),
        (
            &[("a", "up"), ("b", "up"), ("c", "degraded")],
            "c is degraded, the others are up",
        ),
        (
            &[("a", "down"), ("b", "degraded")],
            "2 of 2 tunnels are not fully up",
        ),
    ] {
        assert_eq!(headline_of(states), expected);
    }
}

#[test]
fn commands_in_sentences_are_marked() {
    let marked = sentence(&Text::of("run `taupe up <x>` or `y")).into_string();
    assert_eq!(
        marked,
        "run <code>taupe up &lt;x&gt;</code> or <code>y</code>"
    );
}

#[test]
fn a_blocked_application_is_among_the_reasons() {
    let tunnels = vec![tunnel("home", "up", json!([]), vec![])];
    let applications = vec![
        application(
            "/usr/bin/curl",
            json!("home"),
            "refused",
            "AllowedIPs has no route to it",
        ),
        application("/usr/bin/ssh", json!("home"), "tunnel", "AllowedApps = ssh"),
        application("/usr/bin/apt", Value::Null, "direct", "no rule"),
    ];
    let page = shown(&facts(tunnels, applications));
    let reason = "<strong>curl</strong>: 3 connections are blocked, AllowedIPs has no route to it";
    assert!(page.contains(reason), "{page}");
    assert!(
        page.contains("<span class=\"pill down\">blocked</span>"),
        "{page}"
    );
    assert!(
        page.contains("<span class=\"pill up\">through home</span>"),
        "{page}"
    );
    assert!(
        page.contains("1 application outside every tunnel"),
        "{page}"
    );
}

#[test]
fn a_user_with_many_blocked_applications_leaves_room_for_others() {
    let mut many: Vec<_> = (0..40)
        .map(|number| {
            application(
                &format!("/home/eve/{number:02}"),
                json!("home"),
                "refused",
                "x",
            )
        })
        .collect();
    for one in &mut many {
        one["uid"] = json!(1001);
    }
    many.push(application(
        "/usr/bin/curl",
        json!("home"),
        "refused",
        "no route",
    ));
    let mut facts = facts(vec![tunnel("home", "up", json!([]), vec![])], many);
    facts.blocked_left_out = 7;
    let hero = hero(&facts, &History::default()).into_string();
    assert_eq!(hero.matches("connections are blocked").count(), 5, "{hero}");
    assert!(hero.contains("<strong>curl</strong>"), "{hero}");
    assert!(hero.contains("43 more applications are blocked"), "{hero}");
}

#[test]
fn identifiers_of_tunnels_do_not_collide() {
    let names = [
        "home",
        "home-more",
        "more-home",
        "peers-home",
        "home-peers",
        "title",
    ];
    let peers = || {
        (0..20)
            .map(|number| peer(number, json!("x"), json!(1)))
            .collect()
    };
    let tunnels = names.map(|name| {
        let mut one = tunnel(name, "up", json!([]), peers());
        one["gaps"] = json!([{"code": "x", "text": "a limit"}]);
        one["rules"] = json!([{"line": 1, "key": "AllowedApps", "application": "curl"}]);
        one
    });
    let page = full(&shown(&facts(tunnels.into(), vec![])), "0", false).into_string();
    let mut ids: Vec<_> = page
        .split(" id=\"")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert!(ids.len() == count && count > 6 * names.len(), "{ids:?}");
}

/// Returns the accessible names of buttons on a page with switches.
fn buttons(facts: &Facts) -> Vec<String> {
    let controls = Controls {
        form: "0123".to_owned(),
        latest: None,
    };
    let page = content(facts, &History::default(), Some(&controls)).into_string();
    let forms = page.matches("<form ").count();
    let values = page.matches("name=\"form\" value=\"0123\"").count();
    assert_eq!(forms, values, "{page}");
    let labels = page.split("<button aria-label=\"").skip(1);
    let labels = labels.filter_map(|rest| rest.split('"').next());
    labels.map(str::to_owned).collect()
}

#[test]
fn applications_have_the_switches_that_apply() {
    let with_rules = |name: &str, rules: Value| {
        let mut one = tunnel(name, "up", json!([]), vec![]);
        one["rules"] = rules;
        one
    };
    let rule =
        |key: &str, application: &str| json!({"line": 1, "key": key, "application": application});
    let applications = || {
        vec![
            application("/usr/bin/curl", json!("home"), "tunnel", "x"),
            application("/usr/bin/ssh", json!("home"), "direct", "x"),
            application("/usr/bin/apt", Value::Null, "direct", "x"),
        ]
    };
    let allowed = with_rules("home", json!([rule("AllowedApps", "curl")]));
    let expected = [
        "Out of home: curl",
        "Into home: /usr/bin/ssh",
        "Into home: /usr/bin/apt",
        "Remove curl from the lists of home",
    ];
    assert_eq!(
        buttons(&facts(vec![allowed.clone()], applications())),
        expected
    );
    // The button would select another program.
    for path in ["/usr/bin/cu\u{200b}rl", "/usr/bin/cu\\x0arl", "curl"] {
        let hidden = vec![application(path, Value::Null, "direct", "x")];
        let shown = buttons(&facts(vec![allowed.clone()], hidden));
        assert_eq!(shown, ["Remove curl from the lists of home"], "{path:?}");
    }
    // An entry that is no path or name of the program has a control of its own only.
    let pattern = with_rules("home", json!([rule("AllowedApps", "cur*")]));
    let shown = buttons(&facts(vec![pattern], applications()));
    assert!(
        !shown.iter().any(|it| it.contains("/usr/bin/curl")),
        "{shown:?}"
    );
    // All applications except some.
    let excluded = with_rules("home", json!([rule("DisallowedApps", "ssh")]));
    let expected = [
        "Out of home: /usr/bin/curl",
        "Into home: ssh",
        "Remove ssh from the lists of home",
    ];
    assert_eq!(buttons(&facts(vec![excluded], applications())), expected);
    // Another tunnel carries it.
    let work = with_rules("work", json!([rule("AllowedApps", "x")]));
    let shown = buttons(&facts(vec![allowed.clone(), work], applications()));
    assert!(
        !shown.iter().any(|it| it == "Into work: /usr/bin/curl"),
        "{shown:?}"
    );
    assert!(
        shown.iter().any(|it| it == "Into work: /usr/bin/apt"),
        "{shown:?}"
    );
    let rest = with_rules("work", json!([rule("DisallowedApps", "x")]));
    let shown = buttons(&facts(vec![allowed.clone(), rest], applications()));
    assert!(
        !shown.iter().any(|it| it.contains("work: /usr/bin/curl")),
        "{shown:?}"
    );
    for (member, value) in [("mode", json!("marks")), ("file", Value::Null)] {
        let mut fixed = allowed.clone();
        fixed[member] = value;
        assert!(
            buttons(&facts(vec![fixed], applications())).is_empty(),
            "{member}"
        );
    }
    assert!(
        !super::content(
            &facts(vec![allowed], applications()),
            &History::default(),
            None
        )
        .into_string()
        .contains("<form")
    );
}

#[test]
fn text_from_outside_is_escaped_and_changes_no_other_text() {
    const HOSTILE: &str = "<script>alert(1)</script>\"'&\u{202e}\u{7}\n";
    let mut hostile = tunnel(
        HOSTILE,
        "degraded",
        json!([{"code": HOSTILE, "text": HOSTILE}]),
        vec![],
    );
    let texts = json!([{"name": HOSTILE, "count": 1, "text": HOSTILE, "code": HOSTILE}]);
    for (member, value) in [
        ("notes", json!([HOSTILE])),
        ("file", json!(HOSTILE)),
        ("via", json!(HOSTILE)),
        (
            "rules",
            json!([{"line": 1, "key": HOSTILE, "application": HOSTILE}]),
        ),
        ("uplinks", json!([{"name": HOSTILE, "guarded": true}])),
        ("gaps", texts.clone()),
        ("counters", texts),
        (
            "peers",
            json!([{
                "public_key": HOSTILE, "name": HOSTILE, "endpoint": HOSTILE, "latest_handshake": null,
                "unanswered_handshakes": 0, "received_bytes": 0, "sent_bytes": 0,
                "post_quantum": {"text": HOSTILE},
            }]),
        ),
    ] {
        hostile[member] = value;
    }
    let applications = ["refused", "tunnel", "direct"]
        .map(|verdict| application(HOSTILE, json!(HOSTILE), verdict, HOSTILE));
    let mut facts = facts(vec![hostile], applications.into());
    facts.devices.push(crate::facts::Device {
        interface: Text::of(HOSTILE),
        drops: vec![crate::facts::DropCount {
            reason: Text::of(HOSTILE),
            count: 1,
        }],
        ..Default::default()
    });
    let page = shown(&facts);
    let controls = Controls {
        form: "0".to_owned(),
        latest: None,
    };
    let with_switches = content(&facts, &History::default(), Some(&controls)).into_string();
    assert!(with_switches.contains("<form"), "{with_switches}");
    let pages = [
        page.clone(),
        with_switches,
        unreadable(&Text::of(HOSTILE)).into_string(),
        message(HOSTILE).into_string(),
    ];
    for page in &pages {
        assert!(!page.contains("<script>"), "{page}");
        assert!(
            page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"),
            "{page}"
        );
        // In an attribute, a quotation mark would end it.
        assert!(page.contains("&lt;/script&gt;&quot;'&amp;"), "{page}");
        assert!(!page.contains("&lt;/script&gt;\"'"), "{page}");
        let is_harmless = |c: char| !c.is_control() && c != '\u{202e}';
        assert!(page.chars().all(is_harmless), "{page}");
    }
    assert!(page.matches("&lt;script&gt;").count() > 20);
}

#[test]
fn fifty_peers_are_shown_and_of_many_the_latest() {
    let peers = |count| (1..=count).map(|it| peer(it, json!(format!("peer {it}")), json!(it)));
    let fifty = vec![tunnel("gateway", "up", json!([]), peers(50).collect())];
    let page = shown(&facts(fifty, vec![]));
    assert_eq!(page.matches("<span class=\"name\">peer ").count(), 50);
    assert!(
        page.contains("50 peers<span class=\"small\"> 50 with a session"),
        "{page}"
    );
    let many = vec![tunnel(
        "gateway",
        "up",
        json!([]),
        peers(1000).rev().collect(),
    )];
    let page = shown(&facts(many, vec![]));
    assert_eq!(page.matches("<span class=\"name\">peer ").count(), 100);
    assert!(
        page.contains(">peer 1<") && !page.contains(">peer 101<"),
        "{page}"
    );
    assert!(page.contains("and 900 more"), "{page}");
}

#[test]
fn rates_and_latencies_have_units() {
    let mut first = facts(
        vec![tunnel(
            "home",
            "up",
            json!([]),
            vec![peer(0, json!("a"), json!(1))],
        )],
        vec![],
    );
    let mut second = facts(
        vec![tunnel(
            "home",
            "up",
            json!([]),
            vec![peer(1, json!("a"), json!(1))],
        )],
        vec![],
    );
    second.status.tunnels[0].peers[0].public_key =
        first.status.tunnels[0].peers[0].public_key.clone();
    for (facts, count) in [(&mut first, 0), (&mut second, 4)] {
        facts.devices.push(crate::facts::Device {
            interface: Text::of("home"),
            handshakes: Some(crate::facts::Times {
                bounds: vec![0.025, 0.05],
                counts: vec![3, 1, 0],
                seconds: 0.08,
            }),
            waits: Some(crate::facts::Times {
                bounds: vec![0.0005],
                counts: vec![count, 0],
                seconds: count as f64 / 10_000.0,
            }),
            ..Default::default()
        });
    }
    let (mut history, start) = (History::default(), Instant::now());
    history.add(&first, start);
    history.add(&second, start + Duration::from_secs(1));
    let page = content(&second, &history, None).into_string();
    for words in [
        "<dd>8.0 Mbit/s</dd>",
        "<dd>800.0 kbit/s</dd>",
        "976.6 KiB in all",
        "<dd>within 25 ms</dd><dd class=\"small\">half of them; 95 % within 50 ms",
        "<dd>100 µs</dd><dd class=\"small\">mean of 2 min; 95 % within 500 µs",
        "↓ 8.0 Mbit/s ↑ 800.0 kbit/s",
    ] {
        assert!(page.contains(words), "no {words}: {page}");
    }
}

#[test]
fn an_event_of_the_content_is_one_line() {
    let finding = json!([{"code": "down", "text": "a\nb\r\nc", "peer": null}]);
    let tunnels = vec![tunnel(
        "home",
        "down",
        finding,
        vec![peer(1, json!("x\ny"), json!(1))],
    )];
    assert!(!shown(&facts(tunnels, vec![])).contains(['\n', '\r']));
}
