//! Keys of transparent mode.

use super::*;
use crate::application::{AppsOfUser, Children, Rule, User};
use crate::fuzzing::same_file;

/// Returns a file of one peer with additional lines in `[Interface]` and `[Peer]`. They start at
/// lines 3 and 6, if `[Interface]` has at most one.
fn text(interface: &str, peer: &str) -> String {
    format!(
        "[Interface]\nPrivateKey = {OWN}\n{interface}\n[Peer]\nPublicKey = {PEER}\n{peer}\n\
         AllowedIPs = 0.0.0.0/0\n"
    )
}

fn transparent(interface: &str, peer: &str) -> Transparent {
    clean(&text(interface, peer)).transparent
}

/// Returns the applications of a list with their lines.
fn list(rules: &[Rule]) -> String {
    let rules = rules.iter().map(
        |Rule {
             application, line, ..
         }| format!("{line}: {application}"),
    );
    rules.collect::<Vec<_>>().join(", ")
}

/// Returns line, column, severity and kind of all diagnostics.
fn diagnostics(text: &str, dialect: Dialect) -> Vec<(usize, usize, Severity, DiagnosticKind)> {
    let diagnostics = parse(text.as_bytes(), dialect).diagnostics.into_iter();
    diagnostics
        .map(|d| (d.line, d.column, d.severity, d.kind))
        .collect()
}

use DiagnosticKind as Kind;
use Severity::{Error, Warning};

/// The file of 2021 that motivated transparent mode.
#[test]
fn the_first_file_of_transparent_mode() {
    let file = clean(&format!(
        "[Interface]
PrivateKey = {OWN}
Address = 10.7.0.2/32, fd00:7::2/128
DNS = 1.1.1.1, 1.0.0.1
MTU = 1420

[Peer]
PublicKey = {PEER}
AllowedIPs = 0.0.0.0/0, ::/0
Endpoint = vpn.example.org:51820
AllowedApps = chrome
DisallowedIPs = 192.168.1.0/24
"
    ));
    let apps = &file.transparent.apps;
    assert_eq!(list(&apps.allowed), "11: chrome");
    assert_eq!(apps.disallowed, []);
    assert_eq!(file.transparent.first, Some((Key::AllowedApps, 11)));
    let table = crate::destinations::table_for_peers(&file.peers, false);
    let lan = taupe_uapi::prefix::parse("192.168.1.0/24").unwrap();
    assert!(table.contains(&(lan, crate::destinations::Class::Direct)));
}

#[test]
fn keys_in_either_section_with_and_without_a_comment_prefix() {
    let lists = "AllowedApps = Firefox.exe,/opt/My Games/ , uid:1000\nallowedapps=ch*";
    let settings = "BypassLanTraffic = TRUE\nKillSwitch = All\nForwarded = Tunnel\nSystemBus = Allow\nChildren = OWN";
    for mark in ["", "#@ws:", "#@taupe:", "  #@taupe: "] {
        let lines = |lines: &str| -> String {
            let lines = lines.lines().map(|line| format!("{mark}{line}\n"));
            lines.collect()
        };
        let (lists, settings) = (lines(lists), lines(settings));
        for (interface, peer, first) in [
            (&*lists, &*settings, 3),
            (&settings, &lists, 11),
            (&(lists.clone() + &settings), "", 3),
        ] {
            let transparent = transparent(interface, peer);
            let expected = [
                (0, "firefox"),
                (0, "/opt/My Games/"),
                (0, "uid:1000"),
                (1, "ch*"),
            ];
            let expected = expected.map(|(more, text)| format!("{}: {text}", first + more));
            assert_eq!(list(&transparent.apps.allowed), expected.join(", "));
            assert_eq!(transparent.bypass_lan, Some(true));
            assert_eq!(transparent.kill_switch, Some(KillSwitch::All));
            assert_eq!(transparent.forwarded, Some(Forwarded::Tunnel));
            assert_eq!(transparent.system_bus, Some(SystemBus::Allow));
            assert_eq!(transparent.children, Some(Children::Own));
            assert_eq!(transparent.apps.children, Children::Own);
            let mark = Some(mark.trim()).filter(|mark| !mark.is_empty());
            assert_eq!(transparent.comment_prefix, mark);
        }
    }
    // Plain comments: the prefixes must match exactly.
    for mark in ["#@WS:", "#@Taupe:", "# @ws:", "#@ws ", "##@taupe:", "#"] {
        let transparent = transparent(&format!("{mark}AllowedApps = x"), "");
        assert_eq!(transparent, Transparent::default(), "{mark}");
    }
    // Other keys may have the prefix too.
    let file = clean(&text("#@taupe:MTU = 1400\n#@taupe: DNS = 10.0.0.1", ""));
    assert_eq!(file.interface.mtu, Some(1400));
    assert_eq!(file.interface.dns.len(), 1);
}

#[test]
fn defaults() {
    let transparent = transparent("", "");
    assert_eq!(transparent, Transparent::default());
    assert!(transparent.apps.is_empty());
    assert_eq!(transparent.first, None);
    assert_eq!(KillSwitch::default(), KillSwitch::App);
    assert_eq!(Forwarded::default(), Forwarded::Direct);
    let transparent = super::transparent::transparent("KillSwitch = off", "Forwarded = direct");
    assert_eq!(transparent.kill_switch, Some(KillSwitch::Off));
    assert_eq!(transparent.forwarded, Some(Forwarded::Direct));
    assert_eq!(transparent.first, Some((Key::KillSwitch, 3)));
}

#[test]
fn applications_of_one_user() {
    for (value, user) in [
        ("alice", User::Name("alice".to_owned())),
        ("0", User::Id(0)),
        ("4294967294", User::Id(u32::MAX - 1)),
        (r"EXAMPLE\alice", User::Name(r"EXAMPLE\alice".to_owned())),
    ] {
        for list in ["AllowedApps", "DisallowedApps"] {
            for mark in ["", "#@taupe:", "#@ws:"] {
                let lines = format!("{mark}{list} = x\n{mark}appsOfUser = {value} # x");
                let read = transparent("", &lines);
                let line = 7;
                let user = user.clone();
                assert_eq!(read.apps.of_user, Some(AppsOfUser { user, line }));
                let file = clean(&text("", &lines));
                let again = clean(&print(&file));
                assert!(same_file(&file, &again), "{}", *print(&file));
            }
        }
    }
}

#[test]
fn misuse_of_apps_of_user_is_one_diagnostic() {
    let other = |value: &str| Kind::OtherUser {
        value: Some(value.to_owned()),
        only: 6,
    };
    let all = Kind::NotOfOneUser {
        setting: "KillSwitch = all",
    };
    let forwarded = Kind::NotOfOneUser {
        setting: "Forwarded = tunnel",
    };
    for (lines, at, severity, kind) in [
        ("AppsOfUser = alice", (6, 14), Error, Kind::NoAppsOfUser),
        (
            "AppsOfUser = alice\nKillSwitch = off",
            (6, 14),
            Error,
            Kind::NoAppsOfUser,
        ),
        ("AppsOfUser = -a", (6, 14), Error, Kind::AppsOfUser),
        ("AppsOfUser = uid:1", (6, 14), Error, Kind::AppsOfUser),
        ("AppsOfUser = 1, 2", (6, 14), Error, Kind::AppsOfUser),
        ("AppsOfUser = 4294967295", (6, 14), Error, Kind::AppsOfUser),
        (
            "AppsOfUser =",
            (6, 1),
            Error,
            Kind::NoValue {
                key: Key::AppsOfUser,
            },
        ),
        (
            "AppsOfUser = 1\nAllowedApps = x\nKillSwitch = all",
            (6, 14),
            Error,
            all,
        ),
        (
            "AppsOfUser = 1\nAllowedApps = x\nForwarded = tunnel",
            (6, 14),
            Error,
            forwarded,
        ),
        (
            "AppsOfUser = 1\nAllowedApps = x\nAppsOfUser = 2",
            (8, 14),
            Error,
            Kind::Repeated {
                key: Key::AppsOfUser,
                first: 6,
                same: false,
            },
        ),
        (
            "AppsOfUser = 1\nAllowedApps = uid:1, uid:alice, uid:2",
            (7, 33),
            Warning,
            other("uid:2"),
        ),
        (
            "AppsOfUser = 1\nDisallowedApps = uid:2",
            (7, 18),
            Warning,
            other("uid:2"),
        ),
    ] {
        let found = diagnostics(&text("", lines), Dialect::Taupe);
        let (line, column) = at;
        assert_eq!(found, [(line, column, severity, kind)], "{lines}");
        assert!(!found[0].3.fix().is_empty());
    }
    let clean = "AppsOfUser = 1\nAllowedApps = x\nKillSwitch = app\nForwarded = direct";
    assert_eq!(diagnostics(&text("", clean), Dialect::Taupe), []);
}

#[test]
fn invalid_applications_are_quoted() {
    for (value, column, problem, shown) in [
        ("a, , b", 18, "Empty", None),
        ("a,", 17, "Empty", None),
        ("chrome firefox", 15, "Separator", Some("chrome firefox")),
        (r"a, name:x\y", 18, "WindowsPath", Some(r"name:x\y")),
        ("bin/x", 15, "Relative", Some("bin/x")),
        ("a*b", 15, "Wildcard", Some("a*b")),
        ("app:x", 15, "UnknownKind", Some("app:x")),
        (OWN, 15, "Separator", None),
    ] {
        let value = value.replace(OWN, &format!("{OWN} x"));
        let found = diagnostics(&text("", &format!("AllowedApps = {value}")), Dialect::Taupe);
        let [
            (
                6,
                at,
                Error,
                Kind::Application {
                    problem: found,
                    value: quoted,
                },
            ),
        ] = &found[..]
        else {
            panic!("{value}: {found:?}");
        };
        assert_eq!(*at, column, "{value}");
        assert_eq!(format!("{found:?}"), problem, "{value}");
        assert_eq!(quoted.as_deref(), shown, "{value}");
    }
    let found = diagnostics(&text("", "DisallowedApps = ./x"), Dialect::Taupe);
    assert_eq!(
        found[0].3.to_string(),
        "`./x' is a path that does not begin with /"
    );
    assert_eq!(
        found[0].3.fix(),
        "write the complete path, for example /usr/bin/curl, or only the name"
    );
}

#[test]
fn a_comment_does_not_cut_a_path() {
    let problem = crate::application::ApplicationError::Character;
    let value = None;
    assert_eq!(
        diagnostics(&text("", "AllowedApps = a, /opt/c#/run"), Dialect::Taupe),
        [(6, 24, Error, Kind::Application { problem, value })]
    );
    let rules = transparent("", "AllowedApps = a, /opt/c # x");
    assert_eq!(list(&rules.apps.allowed), "6: a, 6: /opt/c");
}

#[test]
fn quoted_and_empty_values() {
    let key = Key::AllowedApps;
    for value in ["\"firefox\"", "'firefox'", "firefox, \"x\""] {
        let found = diagnostics(&text("", &format!("AllowedApps = {value}")), Dialect::Taupe);
        let [(6, _, Error, kind)] = &found[..] else {
            panic!("{value}: {found:?}");
        };
        assert_eq!(*kind, Kind::Quoted { key });
        assert_eq!(kind.fix(), "delete the quotation marks");
    }
    // All applications would use the tunnel.
    assert_eq!(
        diagnostics(&text("", "AllowedApps ="), Dialect::Taupe),
        [(6, 1, Error, Kind::NoValue { key })]
    );
    let kind = Kind::NoValue { key };
    assert!(kind.fix().contains("AllowedApps = firefox, /opt/games/"));
}

#[test]
fn entries_without_effect_are_warnings() {
    let value = |text: &str| Some(text.to_owned());
    for (lines, expected) in [
        (
            "AllowedApps = fire*, chrome, firefox",
            vec![(
                6,
                30,
                Kind::Covered {
                    value: value("firefox"),
                    first: 6,
                },
            )],
        ),
        (
            "AllowedApps = firefox\nAllowedApps = fire*",
            vec![(
                6,
                15,
                Kind::Covered {
                    value: value("firefox"),
                    first: 7,
                },
            )],
        ),
        (
            "AllowedApps = a, b\nAllowedApps = A.exe",
            vec![(
                7,
                15,
                Kind::Covered {
                    value: value("A.exe"),
                    first: 6,
                },
            )],
        ),
        (
            "DisallowedApps = /opt/, /opt/x",
            vec![(
                6,
                25,
                Kind::Covered {
                    value: value("/opt/x"),
                    first: 6,
                },
            )],
        ),
        (
            "DisallowedApps = b, firefox\nAllowedApps = fire*",
            vec![
                (6, 18, Kind::DisallowedAppsWithoutEffect { allowed: 7 }),
                (
                    6,
                    21,
                    Kind::AllowedWins {
                        value: value("firefox"),
                        allowed: 7,
                    },
                ),
            ],
        ),
    ] {
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(line, column, kind)| (line, column, Warning, kind))
            .collect();
        assert_eq!(
            diagnostics(&text("", lines), Dialect::Taupe),
            expected,
            "{lines}"
        );
    }
}

#[test]
fn limits_of_a_list() {
    let names = |count: usize| -> String {
        let names: Vec<_> = (0..count).map(|i| format!("name{i}.")).collect();
        names.join(",")
    };
    let key = Key::AllowedApps;
    let whole =
        |value: &str| diagnostics(&text("", &format!("AllowedApps = {value}")), Dialect::Taupe);
    assert_eq!(whole(&names(1024)), []);
    let [(6, _, Error, kind)] = &whole(&names(2000))[..] else {
        panic!("not one diagnostic");
    };
    assert_eq!(*kind, Kind::TooManyApplications { key });
    assert_eq!(
        kind.to_string(),
        "AllowedApps has more than 1024 applications or 64 KiB"
    );
    // Lines of one list are counted together.
    let two = format!("{}\nAllowedApps = x", names(1024));
    assert_eq!(whole(&two).len(), 1);
    // Bytes too: 64 lines of a KiB, and one more.
    let kib = |line: usize| {
        let paths = (0..8).map(|path| format!("/{line:02}/{path}/{:x<121}", ""));
        let line = paths.collect::<Vec<_>>().join(",");
        format!("{line:x<1024}")
    };
    let lines = |count| {
        (0..count)
            .map(kib)
            .collect::<Vec<_>>()
            .join("\nAllowedApps = ")
    };
    assert_eq!(whole(&lines(64)), []);
    assert_eq!(whole(&(lines(64) + "\nAllowedApps = x")).len(), 1);
}

#[test]
fn keys_of_the_tunnel_below_one_of_several_peers() {
    let second = format!("[Peer]\nPublicKey = {OTHER}\nAllowedIPs = 10.0.0.0/8\n");
    let at_peer = text("", "#@ws:AllowedApps = x\nKillSwitch = app") + &second;
    let kind = |key| Kind::TunnelKeyInPeer { key, peers: 2 };
    let expected = [
        (6, 20, Error, kind(Key::AllowedApps)),
        (7, 14, Error, kind(Key::KillSwitch)),
    ];
    assert_eq!(diagnostics(&at_peer, Dialect::Taupe), expected);
    assert_eq!(expected[0].3.fix(), "move it below [Interface]");
    let at_interface = text("AllowedApps = x\nKillSwitch = app", "") + &second;
    assert_eq!(diagnostics(&at_interface, Dialect::Taupe), []);
}

#[test]
fn keys_in_the_wrong_section() {
    for (interface, peer, key) in [
        ("DisallowedIPs = 10.0.0.0/8", "", Key::DisallowedIps),
        ("", "#@ws:DNS = 10.0.0.1", Key::Dns),
        ("", "#@taupe:MTU = 1400", Key::Mtu),
    ] {
        let found = diagnostics(&text(interface, peer), Dialect::Taupe);
        let [(_, _, Error, kind)] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(*kind, Kind::Misplaced { key });
        assert!(kind.fix().starts_with("move it below ["));
    }
    let above = format!("AllowedApps = x\n{}", text("", ""));
    let [(1, 1, Error, kind)] = &diagnostics(&above, Dialect::Taupe)[..] else {
        panic!("not one diagnostic");
    };
    assert_eq!(kind.fix(), "write [Interface] before it");
}

/// `wg-quick` fails at the first form, and ignores the second.
#[test]
fn wg_quick_refuses_keys_of_transparent_mode_or_ignores_them_in_comments() {
    for key in Key::ALL.into_iter().filter(|key| key.is_transparent_mode()) {
        let line = key.example();
        for (interface, peer, at) in [(&*line, "", 3), ("", &*line, 6)] {
            let kind = Kind::NotForWgQuick {
                key,
                comment: false,
            };
            let expected = [(at, 1, Error, kind)];
            assert_eq!(
                diagnostics(&text(interface, peer), Dialect::WgQuick),
                expected
            );
        }
        let kind = Kind::NotForWgQuick { key, comment: true };
        for mark in ["#@ws:", "#@taupe:"] {
            let text = text("", &format!("{mark}{line}"));
            let parsed = parse(text.as_bytes(), Dialect::WgQuick);
            let expected = [(6, mark.len() + 1, Warning, kind.clone())];
            assert_eq!(diagnostics(&text, Dialect::WgQuick), expected);
            let file = parsed.file.expect("only a warning");
            assert_eq!(file.transparent, Transparent::default());
        }
        let found = diagnostics(&text(&line, ""), Dialect::Wg);
        assert!(
            found.contains(&(3, 1, Error, Kind::NotForWg { key })),
            "{found:?}"
        );
    }
}

#[test]
fn strip_removes_the_keys_of_transparent_mode() {
    let lines = "AllowedApps = a\n\tbypasslantraffic=true # x";
    let all = text(lines, lines);
    let stripped = |dialect| {
        String::from_utf8(strip(all.as_bytes(), dialect, Path::new("/folder"), &no_files).to_vec())
            .unwrap()
    };
    let expected = text("", "").replace("\n\n", "\n") + "\n";
    assert_eq!(stripped(Dialect::Taupe), expected);
    // `wg` reports the error, as with `wg-quick`.
    assert!(stripped(Dialect::WgQuick).contains("\nAllowedApps = a\nbypasslantraffic=true # x\n"));
    let comments = text("#@taupe:AllowedApps = a", "#@ws:KillSwitch = off");
    for dialect in [Dialect::Taupe, Dialect::WgQuick] {
        let stripped = strip(
            comments.as_bytes(),
            dialect,
            Path::new("/folder"),
            &no_files,
        );
        assert_eq!(*stripped, (comments.clone() + "\n").into_bytes());
    }
}

#[test]
fn strip_applies_commented_disallowed_ips_except_for_wg_quick() {
    let marked = text("", "#@taupe:DisallowedIPs = 128.0.0.0/1");
    for (dialect, end) in [
        (Dialect::Taupe, "\nAllowedIPs = 0.0.0.0/1\n\n"),
        (
            Dialect::WgQuick,
            "\n#@taupe:DisallowedIPs = 128.0.0.0/1\nAllowedIPs = 0.0.0.0/0\n\n",
        ),
    ] {
        let stripped = strip(marked.as_bytes(), dialect, Path::new("/folder"), &no_files);
        let stripped = String::from_utf8_lossy(&stripped);
        assert!(stripped.ends_with(end), "{stripped}");
    }
}

#[test]
fn comment_prefixes_are_printed_again() {
    for mark in ["", "#@ws:", "#@taupe:"] {
        let lines = format!(
            "{mark}AllowedApps = firefox, name:two words, /opt/games/\n\
             {mark}DisallowedApps = uid:7\n{mark}BypassLanTraffic = false\n\
             {mark}KillSwitch = off\n{mark}Forwarded = tunnel\n"
        );
        let file = quick(&text("", &lines)).file.unwrap();
        let printed = print(&file);
        assert!(printed.contains(&lines), "{}", *printed);
        let again = quick(&printed).file.unwrap();
        assert!(same_file(&file, &again));
    }
}
