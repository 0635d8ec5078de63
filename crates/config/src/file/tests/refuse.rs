//! Diagnostics and their positions.

use super::*;
use ipnet::IpNet;

/// Returns line, column, severity and kind of all diagnostics.
pub(super) fn diagnostics(text: &str) -> Vec<(usize, usize, Severity, DiagnosticKind)> {
    let text = text.replace("{own}", OWN).replace("{peer}", PEER);
    let text = text.replace("{other}", OTHER);
    quick(&text)
        .diagnostics
        .into_iter()
        .map(|d| (d.line, d.column, d.severity, d.kind))
        .collect()
}

/// Returns the same for a line of `[Interface]`, without the line number.
pub(super) fn in_interface(line: &str) -> Vec<(usize, Severity, DiagnosticKind)> {
    diagnostics(&format!("[Interface]\nPrivateKey = {{own}}\n{line}\n"))
        .into_iter()
        .map(|(line, column, severity, kind)| {
            assert_eq!(line, 3);
            (column, severity, kind)
        })
        .collect()
}

/// Returns the same for a line of `[Peer]`.
pub(super) fn in_peer(line: &str) -> Vec<(usize, Severity, DiagnosticKind)> {
    let text = format!(
        "[Interface]\nPrivateKey = {{own}}\n[Peer]\nAllowedIPs = 10.0.0.0/8\nPublicKey = {{peer}}\n{line}"
    );
    diagnostics(&text)
        .into_iter()
        .map(|(line, column, severity, kind)| {
            assert_eq!(line, 6, "{kind:?}");
            (column, severity, kind)
        })
        .collect()
}

pub(super) fn network(text: &str) -> IpNet {
    taupe_uapi::prefix::parse(text).unwrap()
}

use DiagnosticKind as Kind;
use Severity::{Error, Warning};

#[test]
fn all_diagnostics_are_reported_in_order() {
    let found = diagnostics(
        "MTU = 5\n[Interface]\nFoo = 1\nMTU = x\n[Peer]\nBar\nAllowedIPs = x, y\n[Baz]\n",
    );
    let places: Vec<_> = found
        .iter()
        .map(|(line, column, ..)| (*line, *column))
        .collect();
    assert_eq!(
        places,
        [
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 7),
            (5, 1),
            (6, 1),
            (7, 14),
            (7, 17),
            (8, 1)
        ]
    );
}

#[test]
fn columns_count_characters() {
    assert_eq!(
        in_interface("PostUp = é; echo “x”"),
        [(
            18,
            Warning,
            Kind::LookAlike {
                character: '\u{201c}'
            }
        )]
    );
    assert_eq!(
        in_interface("\t Address = 10.0.0.1/24 ,\t10.0.0.300/24")[0].0,
        27
    );
    // An invisible character is to be deleted.
    let found = in_interface("MTU = \u{feff}1400");
    assert_eq!(found[0].0, 7);
    assert_eq!(found[0].2.fix(), "delete it");
    let reason = "an invisible character (U+FEFF), often copied from a web page or word processor";
    assert_eq!(found[0].2.to_string(), reason);
    // After a byte-order mark.
    let text = format!("\u{feff}x[Interface]\nPrivateKey = {OWN}\n");
    assert_eq!(quick(&text).diagnostics[0].column, 1);
    // In a key, the position is the wrong character's, even if the key contains blanks.
    let broken = format!(
        "PresharedKey = {} {}",
        &OTHER[..10],
        OTHER[10..].replacen('A', "!", 1)
    );
    let problem = KeyProblem::Character;
    let key = Key::PresharedKey;
    let place = broken.find('!').unwrap() + 1;
    assert_eq!(
        in_peer(&broken),
        [(place, Error, Kind::NotAKey { key, problem })]
    );
}

#[test]
fn malformed_keys() {
    let key = Key::PresharedKey;
    let found = 43;
    // Not a path, though it begins like one.
    let slash = format!("/{}!{}", &OTHER[1..10], &OTHER[11..]);
    for (value, column, problem) in [
        ("/etc/psk", 16, KeyProblem::PathWithoutPrefix),
        ("~/.psk", 16, KeyProblem::PathWithoutPrefix),
        ("wg0.psk", 16, KeyProblem::PathWithoutPrefix),
        (&OTHER[1..], 16, KeyProblem::Length { found }),
        (&"ab".repeat(32), 16, KeyProblem::Hex),
        (&slash, 26, KeyProblem::Character),
        (&OTHER.replace("gI=", "gJ="), 58, KeyProblem::TrailingBits),
        (&OTHER.replace("gI=", "gIA"), 59, KeyProblem::Character),
    ] {
        let expected = Kind::NotAKey { key, problem };
        let found = in_peer(&format!("PresharedKey = {value}"));
        assert_eq!(found, [(column, Error, expected)], "{value}");
    }
}

#[test]
fn the_nearest_key_is_suggested() {
    for (line, name, meant) in [
        ("Adress = 1", Some("Adress"), Some(Key::Address)),
        ("Pre-Up = 1", Some("Pre-Up"), Some(Key::PreUp)),
        ("MTUU = 1", Some("MTUU"), Some(Key::Mtu)),
        ("AllowedIP = 1", Some("AllowedIP"), Some(Key::AllowedIps)),
        ("Comment = 1", Some("Comment"), None),
        // Too long, or with characters that no key has: it may be a secret.
        ("QkFEQkFEQkFEQkFEQkFEQkFEQkFEQkFEQkFEQkFEQkE=", None, None),
        ("a+b/c = 1", None, None),
    ] {
        let name = name.map(str::to_owned);
        let kind = Kind::UnknownKey { name, meant };
        assert_eq!(in_interface(line), [(1, Error, kind)], "{line}");
    }
    let [(_, _, kind)] = &in_interface("AllowedIP = 1")[..] else {
        panic!("not one diagnostic");
    };
    assert_eq!(kind.to_string(), "`AllowedIP' is not a known key");
    assert_eq!(kind.fix(), "write AllowedIPs (in [Peer])");
}

#[test]
fn a_wrong_section_is_read_as_the_right_one() {
    let found =
        diagnostics("[Interface]\nPrivateKey = {own}\n[Peers]\nPublicKey = {peer}\nMTU = 5\n");
    let kinds: Vec<_> = found
        .into_iter()
        .map(|(line, _, _, kind)| (line, kind))
        .collect();
    assert_eq!(
        kinds,
        [
            (
                3,
                Kind::UnknownSection {
                    name: Some("[Peers]".into()),
                    meant: Some(Section::Peer),
                }
            ),
            (3, Kind::NoAllowedIps),
            (5, Kind::Misplaced { key: Key::Mtu }),
        ]
    );
}

#[test]
fn an_unknown_section_is_reported_once() {
    let found =
        diagnostics("[Interface]\nPrivateKey = {own}\n[Wireguard]\nA = 1\nB\n[Interface]\nC = 1\n");
    let lines: Vec<_> = found.iter().map(|(line, ..)| *line).collect();
    assert_eq!(lines, [3, 6, 7]);
}

#[test]
fn repetition() {
    let key = Key::ListenPort;
    for (value, severity, same) in [
        ("1", Warning, true),
        ("01", Warning, true),
        ("2", Error, false),
    ] {
        let found = diagnostics(&format!(
            "[Interface]\nPrivateKey = {{own}}\nListenPort = 1\n[Interface]\nlistenport = {value}\n"
        ));
        let expected = [
            (4, 1, Warning, Kind::RepeatedInterface { first: 1 }),
            (
                5,
                14,
                severity,
                Kind::Repeated {
                    key,
                    first: 3,
                    same,
                },
            ),
        ];
        assert_eq!(found, expected);
    }
    let found = diagnostics(
        "[Interface]\nPrivateKey = {own}\n[Peer]\nPublicKey = {peer}\nAllowedIPs = ::/0\n\
         [Peer]\nAllowedIPs = 10.0.0.0/8\nPublicKey = {peer}\n",
    );
    assert_eq!(found, [(8, 13, Error, Kind::RepeatedPeer { first: 4 })]);
}

#[test]
fn missing_commas() {
    for (line, column, fix) in [
        (
            "Address = 10.0.0.1/24;10.0.1.1/24",
            23,
            "write commas, for example Address = 10.0.0.2/24, fd00::2/64",
        ),
        (
            "DNS = 10.0.0.1;10.0.0.2",
            16,
            "write commas, for example DNS = 10.0.0.1, example.org",
        ),
    ] {
        let found = in_interface(line);
        let [(at, Error, kind)] = &found[..] else {
            panic!("{line}: {found:?}");
        };
        assert_eq!((*at, &*kind.fix()), (column, fix), "{line}");
    }
    let found = in_peer("AllowedIPs = 10.0.0.0/24 10.1.0.0/24");
    assert_eq!(
        found[0].2.to_string(),
        "`10.1.0.0/24' is not separated by a comma from the entry before it"
    );
    assert_eq!(
        found[0].2.fix(),
        "write commas, for example AllowedIPs = 10.0.0.0/24, fd00::/64"
    );
    // `wg` ignores blanks; `ip` and resolvers split at them.
    assert_eq!(in_peer("AllowedIPs = 10.0.0.0 / 2 4 , ::/0"), []);
    assert_eq!(in_interface("Address = 10.0.0.1/24 10.0.1.1/24"), []);
    assert_eq!(in_interface("DNS = 10.0.0.1 10.0.0.2"), []);
}

#[test]
fn search_domains_without_a_server() {
    assert_eq!(
        in_interface("DNS = corp.example, b"),
        [(7, Warning, Kind::NoDnsServer)]
    );
    assert_eq!(in_interface("DNS = corp.example, 10.0.0.1"), []);
    // A server was meant.
    assert_eq!(in_interface("DNS = corp.example, 10.0.0.300").len(), 1);
    // Resolver configuration would treat it as an option.
    assert_eq!(
        in_interface("DNS = 10.0.0.1, -x"),
        [(17, Error, Kind::SearchDomain)]
    );
}

#[test]
fn a_mistyped_key_is_not_reported_as_missing_too() {
    let places = |text: &str| -> Vec<_> {
        let found = diagnostics(text).into_iter();
        found
            .map(|(line, .., kind)| (line, kind.to_string()))
            .collect()
    };
    let unknown = |line, name| (line, format!("`{name}' is not a known key"));
    let begin = "[Interface]\nPrivateKey = {own}\n[Peer]\n";
    assert_eq!(
        places(&format!("{begin}PublicKey = {{peer}}\nAlowedIPs = ::/0\n")),
        [unknown(5, "AlowedIPs")]
    );
    assert_eq!(
        places(&format!("{begin}PublicKy = {{peer}}\nAllowedIPs = ::/0\n")),
        [unknown(4, "PublicKy")]
    );
    assert_eq!(
        places("[Interface]\nPrivatKey = {own}\n"),
        [unknown(2, "PrivatKey")]
    );
    // Another peer's missing key is reported, and the correct key is not a repetition.
    let text = format!(
        "{begin}PublicKy = {{peer}}\nPublicKey = {{peer}}\nAlowedIPs = ::/0\n[Peer]\nPublicKey = {{other}}\n"
    );
    let lines: Vec<_> = diagnostics(&text)
        .into_iter()
        .map(|found| found.0)
        .collect();
    assert_eq!(lines, [4, 6, 7]);
}

#[test]
fn mtu_limits() {
    let small = |mtu, min, ipv6| Kind::MtuTooSmall { mtu, min, ipv6 };
    let max = MAX_MTU;
    for (line, expected) in [
        ("MTU = 67", Some((Error, small(67, 68, false)))),
        ("MTU = 68", Some((Warning, small(68, 576, false)))),
        ("MTU = 575", Some((Warning, small(575, 576, false)))),
        ("MTU = 576", None),
        ("MTU = 1279", None),
        ("MTU = 65455", None),
        (
            "MTU = 65456",
            Some((Error, Kind::MtuTooLarge { mtu: 65456, max })),
        ),
        (
            "MTU = 99999999999",
            Some((
                Error,
                Kind::MtuTooLarge {
                    mtu: 99_999_999_999,
                    max,
                },
            )),
        ),
    ] {
        let expected: Vec<_> = expected.map(|(s, kind)| (7, s, kind)).into_iter().collect();
        assert_eq!(in_interface(line), expected, "{line}");
    }
    for lines in [
        "Address = fd00::2/64",
        "[Peer]\nPublicKey = {peer}\nAllowedIPs = ::/0",
    ] {
        let found = diagnostics(&format!(
            "[Interface]\nPrivateKey = {{own}}\nMTU = 1279\n{lines}\n"
        ));
        assert_eq!(found, [(3, 7, Error, small(1279, 1280, true))], "{lines}");
    }
}

#[test]
fn empty_values() {
    for key in [Key::Address, Key::Dns, Key::Mtu, Key::Table, Key::PostUp] {
        let found = in_interface(&format!("{key} = # nothing"));
        let column = if key == Key::PostUp { 10 } else { 1 };
        // The value of a hook extends to the end of the line.
        if key == Key::PostUp {
            assert_eq!(found, []);
        } else {
            assert_eq!(found, [(column, Warning, Kind::NoValue { key })]);
        }
    }
    let key = Key::PostUp;
    let found = in_interface("PostUp =");
    assert_eq!(found, [(9, Warning, Kind::NoValue { key })]);
}

#[test]
fn related_keys() {
    // The output of `wg pubkey`.
    let private = OWN;
    let public = "MdSras7slhE3kXA3k25gcW+sVzr+lNnahKgCBEjfwRI=";
    let text = |public: &str, preshared: &str| {
        diagnostics(&format!(
            "[Interface]\nPrivateKey = {private}\n[Peer]\nAllowedIPs = ::/0\nPublicKey = {public}\n{preshared}\n"
        ))
    };
    assert_eq!(text("{peer}", ""), []);
    assert_eq!(
        text(public, ""),
        [(5, 13, Error, Kind::PeerIsSelf { private: 2 })]
    );
    assert_eq!(
        text(private, ""),
        [(5, 13, Error, Kind::PublicKeyIsPrivate { private: 2 })]
    );
    assert_eq!(text("{peer}", "PresharedKey = {other}"), []);
    assert_eq!(
        text("{peer}", "PresharedKey = {peer}"),
        [(6, 16, Warning, Kind::PresharedKeyIsPublic { public: 5 })]
    );
    assert_eq!(
        text("{peer}", &format!("PresharedKey = {private}")),
        [(6, 16, Warning, Kind::PresharedKeyIsPrivate { private: 2 })]
    );
    let key = Key::PresharedKey;
    let zero = "A".repeat(43) + "=";
    assert_eq!(
        text("{peer}", &format!("PresharedKey = {zero}")),
        [(6, 16, Warning, Kind::ZeroKey { key })]
    );
    let key = Key::PublicKey;
    assert_eq!(text(&zero, ""), [(5, 13, Error, Kind::ZeroKey { key })]);
}

#[test]
fn too_long() {
    let file = vec![b'#'; MAX_FILE + 1];
    let parsed = parse(&file, Dialect::Taupe);
    assert_eq!(parsed.diagnostics.len(), 1);
    assert_eq!(parsed.diagnostics[0].kind, Kind::FileTooLong);

    let mut text = format!("[Interface]\nPrivateKey = {OWN}\n#");
    text += &"x".repeat(MAX_LINE - 1);
    assert_eq!(quick(&text).diagnostics, []);
    text += "x\nFoo = 1\n";
    let lines: Vec<_> = quick(&text)
        .diagnostics
        .into_iter()
        .map(|d| (d.line, d.kind))
        .collect();
    assert_eq!(lines[0], (3, Kind::LineTooLong));
    assert_eq!(lines[1].0, 4);
}

#[test]
fn many_errors_are_counted() {
    let text = "[Interface]\n".to_owned() + &"x\n".repeat(5000);
    let diagnostics = quick(&text).diagnostics;
    assert_eq!(diagnostics.len(), 1001);
    // Those of the lines, and the missing private key, which is found last.
    let last = diagnostics.last().unwrap();
    assert_eq!((last.line, last.severity), (1002, Error));
    assert_eq!(last.kind, Kind::More { more: 4001 });
}

#[test]
fn world_accessible() {
    let text = format!("[Interface]\nAddress = 10.0.0.1/24\nPrivateKey = {OWN}\nMTU = 500\n");
    for (file, folder, expected) in [
        (0o100_600, 0o40755, false),
        (0o100_640, 0o40755, false),
        (0o100_644, 0o40755, true),
        (0o100_602, 0o40777, true),
        (0o100_644, 0o40700, false),
    ] {
        let mut parsed = quick(&text);
        parsed.check_permissions(file, folder);
        let found: Vec<_> = parsed
            .diagnostics
            .iter()
            .map(|d| (d.line, d.column, name(d)))
            .collect();
        let mtu = (4, 7, "MtuTooSmall".to_owned());
        if expected {
            assert_eq!(found, [(3, 14, "WorldAccessible".to_owned()), mtu]);
        } else {
            assert_eq!(found, [mtu]);
        }
    }
    // The keys are in other files. Write access still matters, because the file's commands run as
    // root.
    let elsewhere = "[Interface]\nPrivateKey = file:own.key\nAddress = 10.0.0.1/24\n";
    for (file, expected) in [(0o100_644, 0), (0o100_646, 1)] {
        let mut parsed = parse_without_key_files(elsewhere.as_bytes(), Dialect::Taupe);
        parsed.check_permissions(file, 0o40777);
        assert_eq!(parsed.diagnostics.len(), expected, "{file:o}");
    }
    let mut parsed = quick(&text);
    parsed.check_permissions(0o100_644, 0o40755);
    assert_eq!(
        parsed.diagnostics[0].to_string(),
        "line 3, column 14: warning: the file's mode is 0644: every user of this system can read it; \
         chmod 600 the file, and make new keys if anyone may have read it"
    );
}

/// Checks every text that users see.
#[test]
fn no_text_is_empty_or_repeats_a_key() {
    for malformed in crate::fuzzing::malformed::hand_written() {
        for diagnostic in parse(&malformed.text, Dialect::Taupe).diagnostics {
            assert!(!diagnostic.kind.to_string().is_empty());
            assert!(!diagnostic.kind.fix().is_empty());
            let text = diagnostic.to_string();
            for secret in [OWN, PEER, OTHER, "CAgICAgI", "hunter2", "AQEBAQEB"] {
                assert!(!text.contains(secret), "{text}");
            }
        }
    }
}
