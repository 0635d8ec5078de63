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

/// Which step decides for an executable, or what is forwarded, and a destination; and
/// what it says.
fn decides(text: &str, path: &str, to: &str) -> Option<(usize, String)> {
    decides_in(text, path, to, false)
}

fn decides_in(text: &str, path: &str, to: &str, by_mark: bool) -> Option<(usize, String)> {
    let parsed = file::parse(text.as_bytes(), Dialect::Taupe);
    let file = parsed.file.expect("a file");
    let explanation = Explanation {
        shown: "h.conf".into(),
        text: text.as_bytes(),
        file: &file,
        by_mark,
    };
    let process = Process {
        path: path.as_bytes(),
        name: path.rsplit('/').next().unwrap_or_default().as_bytes(),
        cgroup: b"/",
        uid: 0,
    };
    let question = Question {
        from: match path {
            "" => Sender::Elsewhere,
            _ => Sender::Process {
                process,
                is_own: path == "/own",
                is_elsewhere: path == "/elsewhere",
            },
        },
        to: (!to.is_empty()).then(|| to.parse().expect("a destination")),
        addresses: &["192.168.1.5".parse().expect("an address")],
    };
    let steps = explanation.steps(&question);
    assert_eq!(steps.len(), 6 + usize::from(path == "/elsewhere"));
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
        ("/elsewhere", "198.51.100.1", 1, "its own network"),
        (
            curl,
            "127.0.0.53:53",
            3,
            "h.conf:4: DNS = 8.8.8.8), or the next",
        ),
        (curl, "192.168.1.5:53", 3, "h.conf:4: DNS = 8.8.8.8"),
        (curl, "127.0.0.53:54", 2, "this host"),
        ("/usr/bin/wget", "127.0.0.53:53", 2, "this host"),
        (curl, "[::ffff:192.168.1.5]:443", 2, "this host"),
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
        (
            curl,
            "::ffff:9.9.9.9",
            6,
            "h.conf:7: AllowedIPs = 0.0.0.0/0",
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
    // Of a family that the servers do not have.
    let other = FILE.replace("8.8.8.8, 1.1.1.1", "fd00::1");
    let (at, text) = decides(&other, curl, "127.0.0.53:53").expect("a decision");
    assert_eq!((at, text.contains("refused at once")), (3, true), "{text}");
    let without = FILE.replace("DNS", "#DNS");
    let (at, text) = decides(&without, curl, "127.0.0.53:53").expect("a decision");
    assert_eq!(at, 2, "{text}");
    // In adapter mode questions for names are nothing of their own.
    let (at, text) = decides_in(FILE, curl, "9.9.9.9:53", true).expect("a decision");
    assert_eq!(at, 6, "{text}");
    // Without a destination it is the application that may decide, or its network.
    assert_eq!(decides(FILE, curl, ""), None);
    let (at, _) = decides(FILE, "/usr/bin/wget", "").expect("a decision");
    assert_eq!(at, 5);
}

#[test]
fn who_is_held_back_with_the_chosen_is_told() {
    let wget = "/usr/bin/wget";
    for (lock, to, said) in [
        ("app", "198.51.100.1", "past the tunnel:"),
        ("all", "198.51.100.1", "past the tunnel, or nowhere while"),
        (
            "all",
            "",
            "past the tunnel, but while its process is gone only",
        ),
        // The first step that applies has said it.
        ("all", "203.0.113.5", "past the tunnel ("),
        ("all", "203.0.113.5:53", "past the tunnel, or nowhere while"),
        ("off", "198.51.100.1", "past the tunnel:"),
    ] {
        let file = format!("{FILE}KillSwitch = {lock}\n");
        let (_, text) = decides(&file, wget, to).expect("a decision");
        assert!(text.starts_with(said), "{lock}, {to}: {text}");
    }
    let file = format!("{FILE}KillSwitch = off\n");
    let (_, text) = decides(&file, "/usr/bin/curl", "198.51.100.1").expect("a decision");
    assert!(text.contains("past it while its process is gone"), "{text}");
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

#[test]
fn a_script_is_said_to_be_one() {
    let path = std::env::temp_dir().join(format!("taupe-script-{}", std::process::id()));
    let said = |text: &str| {
        fs::write(&path, text).expect("written");
        let subject = Subject::find(path.as_os_str()).expect("a file");
        doubt(&subject).map(|doubt| doubt.to_string())
    };
    let (program, script) = (said("\x7fELF"), said("#!/bin/sh\n"));
    fs::remove_file(&path).expect("removed");
    assert_eq!(program, None);
    let script = script.expect("a doubt");
    assert!(
        script.contains("is a script: what runs is /bin/sh"),
        "{script}"
    );
}

#[test]
fn what_is_forwarded_has_a_line_of_its_own() {
    let (at, text) = decides(FILE, "", "9.9.9.9").expect("a decision");
    assert_eq!(at, 5);
    assert!(text.contains("no Forwarded"), "{text}");
    let direct = format!("{FILE}Forwarded = direct\n");
    let (at, text) = decides(&direct, "", "9.9.9.9").expect("a decision");
    assert_eq!(at, 5);
    assert!(text.contains("h.conf:11: Forwarded = direct"), "{text}");
    let tunnel = format!("{FILE}Forwarded = tunnel\n");
    for (to, step, part) in [
        ("9.9.9.9", 6, "h.conf:7: AllowedIPs = 0.0.0.0/0"),
        ("9.9.9.9:53", 3, "h.conf:4: DNS = 8.8.8.8"),
        ("203.0.113.5:80", 4, "past"),
        ("2001:db8::1", 6, "nothing of IPv6"),
    ] {
        let (at, text) = decides(&tunnel, "", to).expect("a decision");
        assert_eq!(at, step, "{to}: {text}");
        assert!(text.contains(part), "{to}: {text}");
    }
    // Nobody else is meant.
    let (at, _) = decides(&tunnel, "/usr/bin/wget", "9.9.9.9").expect("a decision");
    assert_eq!(at, 5);
}
