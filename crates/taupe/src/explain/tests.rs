use super::*;
use taupe_config::file::{self, Dialect};

const FILE: &str = "\
[Interface]
PrivateKey = CAgICAgICAgICAgICAgICAgICAgICAgICAgICAgICEg=
Address = 10.77.0.1/32
DNS = 8.8.8.8, 1.1.1.1
[Peer]
PublicKey = AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=
AllowedIPs = 0.0.0.0/0
AllowedIPs = 198.51.100.0/24
DisallowedIPs = 203.0.113.0/24
#@ws:AllowedApps = curl, /opt/games/
";

/// Which step decides for an executable and a destination, and what it says.
fn decides(text: &str, path: &str, to: &str) -> Option<(usize, String)> {
    let parsed = file::parse(text.as_bytes(), Dialect::Taupe);
    let file = parsed.file.expect("a file");
    let explanation = Explanation {
        shown: "h.conf".into(),
        text: text.as_bytes(),
        file: &file,
    };
    let question = Question {
        process: Process {
            path: path.as_bytes(),
            name: path.rsplit('/').next().unwrap_or_default().as_bytes(),
            cgroup: b"/",
            uid: 0,
        },
        is_own: path == "/own",
        to: (!to.is_empty()).then(|| to.parse().expect("a destination")),
    };
    let steps = explanation.steps(&question);
    assert_eq!(steps.len(), 6);
    let deciding = steps.iter().filter(|step| step.decides).count();
    assert!(deciding <= 1, "{steps:?}");
    let at = steps.iter().position(|step| step.decides)?;
    Some((at + 1, steps[at].text.clone()))
}

#[test]
fn the_first_decision_that_applies_is_the_one() {
    let curl = "/usr/bin/curl";
    for (path, to, step, part) in [
        ("/own", "198.51.100.1", 1, "past"),
        (curl, "127.0.0.53:53", 2, "this host"),
        (curl, "[fe80::1]:80", 2, "link-local"),
        (curl, "169.254.1.1:53", 3, "through"),
        (curl, "9.9.9.9:53", 3, "h.conf:4: DNS = 8.8.8.8"),
        (curl, "1.1.1.1:53", 3, "through the tunnel"),
        // Where the server is on the link does not matter.
        (curl, "203.0.113.5:53", 3, "through"),
        (
            curl,
            "203.0.113.5:80",
            4,
            "h.conf:9: DisallowedIPs = 203.0.113.0/24",
        ),
        ("/usr/bin/wget", "203.0.113.5", 4, "past"),
        ("/usr/bin/wget", "9.9.9.9:53", 5, "none of the 2"),
        (
            curl,
            "198.51.100.1",
            6,
            "h.conf:8: AllowedIPs = 198.51.100.0/24",
        ),
        (curl, "9.9.9.9", 6, "h.conf:7: AllowedIPs = 0.0.0.0/0"),
        ("/opt/games/a/b", "10.0.0.1:443", 6, "through"),
        (curl, "2001:db8::1", 6, "nothing of IPv6"),
        // The tunnel has no IPv6: not to its servers, nor to others.
        (curl, "[2001:db8::1]:53", 6, "refused"),
        (curl, "224.0.0.1", 6, "dropped"),
    ] {
        let (at, text) = decides(FILE, path, to).expect("a decision");
        assert_eq!(at, step, "{path} {to}: {text}");
        assert!(text.contains(part), "{path} {to}: {text}");
    }
    // Without a destination it is the application that may decide, or its network.
    assert_eq!(decides(FILE, curl, ""), None);
    let (at, _) = decides(FILE, "/usr/bin/wget", "").expect("a decision");
    assert_eq!(at, 5);
}

#[test]
fn the_line_that_decides_is_named() {
    let all = FILE.replace("#@ws:AllowedApps", "DisallowedApps");
    let (at, text) = decides(&all, "/usr/bin/curl", "9.9.9.9").expect("a decision");
    assert_eq!(
        (at, text.as_str()),
        (5, "past the tunnel (h.conf:10: DisallowedApps = curl)")
    );
    let (at, _) = decides(&all, "/usr/bin/wget", "9.9.9.9").expect("a decision");
    assert_eq!(at, 6);
    let local = format!("{FILE}BypassLanTraffic = true\n");
    for to in ["192.168.1.1", "224.0.0.1"] {
        let (at, text) = decides(&local, "/usr/bin/curl", to).expect("a decision");
        assert_eq!(at, 4, "{text}");
        assert!(
            text.contains("h.conf:11: BypassLanTraffic = true"),
            "{text}"
        );
    }
    let (at, _) = decides(&local, "/usr/bin/curl", "172.15.0.1").expect("a decision");
    assert_eq!(at, 6);
}
