use super::script_warning;
use super::steps::{Explanation, Packets, Sender, Step};
use crate::families::MissingRoute;
use crate::processes::Subject;
use std::fs;
use std::net::IpAddr;
use taupe_config::application::Process;
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

/// Returns the number (from 1) and the text of the step that decides. An empty `path` means forwarded
/// packets.
fn decides(text: &str, path: &str, to: &str) -> Option<(usize, String)> {
    decides_in(text, path, to, false)
}

fn decides_in(text: &str, path: &str, to: &str, is_by_mark: bool) -> Option<(usize, String)> {
    let steps = steps_with(text, path, to, is_by_mark, |_| None);
    let deciding = steps.iter().filter(|step| step.decides).count();
    assert!(deciding <= 1, "{steps:?}");
    let at = steps.iter().position(|step| step.decides)?;
    Some((at + 1, steps[at].text.clone()))
}

fn steps_with(
    text: &str,
    path: &str,
    to: &str,
    is_by_mark: bool,
    missing_route: fn(IpAddr) -> Option<MissingRoute>,
) -> Vec<Step> {
    let parsed = file::parse(text.as_bytes(), Dialect::Taupe);
    let file = parsed.file.expect("a file");
    let explanation = Explanation {
        shown: "h.conf".into(),
        text: text.as_bytes(),
        file: &file,
        is_by_mark,
        missing_route,
    };
    let process = Process {
        path: path.as_bytes(),
        name: path.rsplit('/').next().unwrap_or_default().as_bytes(),
        cgroup: b"/",
        uid: 0,
    };
    let packets = Packets {
        from: match path {
            "" => Sender::Forwarded,
            _ => Sender::Process {
                judgement: file.transparent.apps.decide_with_ancestors(&process, []),
                process,
                is_device_process: path == "/own",
                is_in_other_namespace: path == "/elsewhere",
            },
        },
        to: (!to.is_empty()).then(|| to.parse().expect("a destination")),
        addresses: &["192.168.1.5".parse().expect("an address")],
        is_on_link: ["[fe80::1]:80", "169.254.1.1", "169.254.1.1:53"].contains(&to),
    };
    let steps = explanation.steps(&packets);
    assert_eq!(steps.len(), 6 + usize::from(path == "/elsewhere"));
    steps
}

/// A query to a name server goes through the tunnel by its port, even if `BypassLanTraffic`
/// excludes the server's network.
#[test]
fn queries_to_name_servers_of_a_local_network_use_the_tunnel() {
    let text = FILE.replace("DNS = 8.8.8.8, 1.1.1.1", "DNS = 10.8.0.1");
    let text = format!("{text}BypassLanTraffic = true\n");
    let steps = |to| steps_with(&text, "/usr/bin/curl", to, false, |_| None);
    let asked = steps("10.8.0.1:53");
    assert!(asked[2].decides);
    assert_eq!(asked[2].text, "through the tunnel");
    // Without `BypassLanTraffic` the network would be in the tunnel.
    assert!(asked[5].text.starts_with("through the tunnel"), "{asked:?}");
    // Without a port, the packet may be a DNS query.
    let any = steps("10.8.0.1");
    assert_eq!(any[2].text, "to port 53: through the tunnel");
    assert!(any[3].decides && any[3].text.starts_with("bypasses the tunnel"));
    let lost = text.replace("AllowedIPs = 0.0.0.0/0\n", "");
    let lost = steps_with(&lost, "/usr/bin/curl", "10.8.0.1:53", false, |_| None);
    assert!(lost[2].text.starts_with("nowhere"), "{lost:?}");
}

#[test]
fn an_address_family_that_the_tunnel_lacks_is_refused() {
    let both = FILE.replace("AllowedIPs = 0.0.0.0/0", "AllowedIPs = 0.0.0.0/0, ::/0");
    let to = "[2001:db8:77::1]:443";
    let curl = "/usr/bin/curl";
    let (step, text) = decides(&both, curl, to).unwrap();
    assert!(
        step == 6 && text.starts_with("refused at once: no Address"),
        "{text}"
    );
    let whole = both.replace("10.77.0.1/32", "10.77.0.1/32, fd77::1/128");
    let (_, text) = decides(&whole, curl, to).unwrap();
    assert!(text.starts_with("through the tunnel"), "{text}");
    let lack = |_| Some(MissingRoute::ipv6(false));
    let steps = steps_with(&whole, curl, to, false, lack);
    let text = &steps[5].text;
    assert!(
        text.starts_with("refused at once: there is no route"),
        "{text}"
    );
    // In adapter mode the tunnel itself provides the route.
    let steps = steps_with(&whole, curl, to, true, lack);
    assert!(steps[5].text.starts_with("through the tunnel"), "{steps:?}");
}

#[test]
fn the_first_step_that_applies_decides() {
    let curl = "/usr/bin/curl";
    for (path, to, step, part) in [
        ("/own", "198.51.100.1", 1, "bypasses"),
        ("/elsewhere", "198.51.100.1", 1, "another network namespace"),
        (
            curl,
            "127.0.0.53:53",
            3,
            "h.conf:4: DNS = 8.8.8.8) or the next",
        ),
        (curl, "192.168.1.5:53", 3, "h.conf:4: DNS = 8.8.8.8"),
        (curl, "127.0.0.53:54", 2, "this host"),
        ("/usr/bin/wget", "127.0.0.53:53", 2, "this host"),
        (curl, "[::ffff:192.168.1.5]:443", 2, "this host"),
        (curl, "[fe80::1]:80", 2, "link-local"),
        (curl, "169.254.1.1", 2, "link-local"),
        (curl, "169.254.1.1:53", 3, "through"),
        (curl, "169.254.169.254", 6, "through the tunnel"),
        (curl, "9.9.9.9:53", 3, "h.conf:4: DNS = 8.8.8.8"),
        (curl, "1.1.1.1:53", 3, "through the tunnel"),
        // The server is in the local network, which makes no difference.
        (curl, "203.0.113.5:53", 3, "through"),
        (
            curl,
            "203.0.113.5:80",
            4,
            "h.conf:9: DisallowedIPs = 203.0.113.0/24",
        ),
        ("/usr/bin/wget", "203.0.113.5", 4, "bypasses"),
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
        (curl, "2001:db8::1", 6, "none of IPv6"),
        // The tunnel carries no IPv6, neither to its name servers nor to other destinations.
        (curl, "[2001:db8::1]:53", 6, "refused"),
        (curl, "224.0.0.1", 6, "dropped"),
    ] {
        let (at, text) = decides(FILE, path, to).expect("a decision");
        assert_eq!(at, step, "{path} {to}: {text}");
        assert!(text.contains(part), "{path} {to}: {text}");
    }
    // The file has no name server of the query's address family.
    let other = FILE.replace("8.8.8.8, 1.1.1.1", "fd00::1");
    let (at, text) = decides(&other, curl, "127.0.0.53:53").expect("a decision");
    assert_eq!((at, text.contains("refused at once")), (3, true), "{text}");
    let without = FILE.replace("DNS", "#DNS");
    let (at, text) = decides(&without, curl, "127.0.0.53:53").expect("a decision");
    assert_eq!(at, 2, "{text}");
    // Adapter mode has no separate step for DNS queries.
    let (at, text) = decides_in(FILE, curl, "9.9.9.9:53", true).expect("a decision");
    assert_eq!(at, 6, "{text}");
    // Without a destination, the outcome is known only for applications that bypass the tunnel.
    assert_eq!(decides(FILE, curl, ""), None);
    let (at, _) = decides(FILE, "/usr/bin/wget", "").expect("a decision");
    assert_eq!(at, 5);
}

#[test]
fn the_kill_switch_for_all_blocks_other_applications_too() {
    let wget = "/usr/bin/wget";
    for (lock, to, said) in [
        ("app", "198.51.100.1", "bypasses the tunnel:"),
        ("all", "198.51.100.1", "bypasses the tunnel; blocked while"),
        (
            "all",
            "",
            "bypasses the tunnel; while its process is gone, only",
        ),
        // An earlier step has already mentioned the kill switch.
        ("all", "203.0.113.5", "bypasses the tunnel ("),
        (
            "all",
            "203.0.113.5:53",
            "bypasses the tunnel; blocked while",
        ),
        ("off", "198.51.100.1", "bypasses the tunnel:"),
    ] {
        let file = format!("{FILE}KillSwitch = {lock}\n");
        let (_, text) = decides(&file, wget, to).expect("a decision");
        assert!(text.starts_with(said), "{lock}, {to}: {text}");
    }
    let file = format!("{FILE}KillSwitch = off\n");
    let (_, text) = decides(&file, "/usr/bin/curl", "198.51.100.1").expect("a decision");
    assert!(
        text.contains("bypasses it while its process is gone"),
        "{text}"
    );
}

#[test]
fn the_deciding_line_of_the_file_is_named() {
    let all = FILE.replace("#@ws:AllowedApps", "DisallowedApps");
    let (at, text) = decides(&all, "/usr/bin/curl", "9.9.9.9").expect("a decision");
    assert_eq!(
        (at, text.as_str()),
        (5, "bypasses the tunnel (h.conf:10: DisallowedApps = curl)")
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

/// The process is root's.
#[test]
fn another_users_process_bypasses_the_tunnel() {
    let of = |user: &str| format!("{FILE}AppsOfUser = {user}\n");
    let (at, text) = decides(&of("1000"), "/usr/bin/curl", "9.9.9.9").expect("a decision");
    assert_eq!(
        (at, text.as_str()),
        (
            5,
            "bypasses the tunnel: it belongs to user 0, and the tunnel is for applications of one \
             user (h.conf:11: AppsOfUser = 1000)"
        )
    );
    assert_eq!(
        decides(&of("0"), "/usr/bin/curl", "9.9.9.9"),
        decides(FILE, "/usr/bin/curl", "9.9.9.9")
    );
}

#[test]
fn a_script_is_warned_of() {
    let path = std::env::temp_dir().join(format!("taupe-script-{}", std::process::id()));
    let said = |text: &str| {
        fs::write(&path, text).expect("written");
        let subject = Subject::find(path.as_os_str()).expect("a file");
        script_warning(&subject).map(|warning| warning.to_string())
    };
    let (program, script) = (said("\x7fELF"), said("#!/bin/sh\n"));
    fs::remove_file(&path).expect("removed");
    assert_eq!(program, None);
    let script = script.expect("a doubt");
    assert!(
        script.contains("is a script: the running program is /bin/sh"),
        "{script}"
    );
}

#[test]
fn forwarded_packets_are_decided_by_their_own_key() {
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
        ("203.0.113.5:80", 4, "bypasses"),
        ("2001:db8::1", 6, "none of IPv6"),
    ] {
        let (at, text) = decides(&tunnel, "", to).expect("a decision");
        assert_eq!(at, step, "{to}: {text}");
        assert!(text.contains(part), "{to}: {text}");
    }
    // `Forwarded` does not affect applications of this host.
    let (at, _) = decides(&tunnel, "/usr/bin/wget", "9.9.9.9").expect("a decision");
    assert_eq!(at, 5);
}
