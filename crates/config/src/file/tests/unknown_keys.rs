//! Keys of other programs, and mistyped keys.

use super::*;
use crate::fuzzing::same_file;

fn file(interface: &str, peer: &str) -> String {
    format!(
        "[Interface]\nPrivateKey = {OWN}\nAddress = 10.0.0.2/24\n{interface}\n\
         [Peer]\nPublicKey = {PEER}\nAllowedIPs = 0.0.0.0/0\n{peer}\n"
    )
}

fn diagnostics(parsed: &Parsed) -> Vec<(usize, usize, Severity, String)> {
    let diagnostics = parsed.diagnostics.iter();
    diagnostics
        .map(|one| (one.line, one.column, one.severity, name(one)))
        .collect()
}

#[test]
fn comments_of_wiresock_that_taupe_does_not_know_are_warnings() {
    let plain = clean(&file("", ""));
    for (line, kind) in [
        ("#@ws:NewSetting = 5", "Ignored"),
        ("#@ws:AllowedApp = firefox", "Ignored"),
        ("#@ws:Nothing", "Ignored"),
        ("#@ws:; note", "Ignored"),
        ("#@ws:Cl\u{e9} = 5", "Ignored"),
        ("#@ws:New\u{a0}Setting = 5", "Ignored"),
        ("#@ws:Socks5Proxy = 127.0.0.1:1080", "Foreign"),
        ("#@ws:Jc = 4", "Foreign"),
        ("#@ws:VirtualAdapterMode = true", "Foreign"),
    ] {
        for text in [
            file(line, ""),
            file("", line),
            format!("{line}\n{}", file("", "")),
        ] {
            let parsed = quick(&text);
            let kinds: Vec<_> = parsed.diagnostics.iter().map(name).collect();
            assert_eq!(kinds, [kind], "{text}");
            let file = parsed.file.expect(line);
            assert!(same_file(&file, &plain), "{text}");
        }
    }
    let mistyped = quick(&file("#@ws:AllowedApp = firefox", ""));
    let fix = mistyped.diagnostics[0].kind.fix();
    assert_eq!(fix, "write AllowedApps (in [Interface]) if that is meant");
    // Keys that Taupe reads in such lines must not be lost by a mistake.
    for line in [
        "#@ws:AllowedApps\u{a0}= firefox",
        "#@ws:KillSwitch = nonsense",
        "#@ws:AllowedApps firefox",
        "#@taupe:NewSetting = 5",
    ] {
        let parsed = quick(&file(line, ""));
        assert_eq!(parsed.diagnostics.len(), 1, "{line}");
        assert!(parsed.file.is_none(), "{line}");
    }
}

#[test]
fn comments_change_nothing_in_the_dialect_of_wg_quick() {
    let parse_quick = |text: &str| parse(text.as_bytes(), Dialect::WgQuick);
    let plain = parse_quick(&file("", "")).file.expect("a file");
    for mark in ["#@ws:", "#@taupe:"] {
        for (in_peer, line, warned) in [
            (true, "DisallowedIPs = 10.0.0.0/8", true),
            (true, "AllowedIPs = 10.0.0.0/8", false),
            (true, "Endpoint = 192.0.2.1:1", false),
            (true, "PqPublicKey = nonsense", true),
            (false, "Table = off", false),
            (false, "MTU = nonsense", false),
            (false, "PostUp = reboot", false),
            (false, "AllowedApps = firefox", true),
            (false, "NewSetting = 5", false),
            (false, "Nothing", false),
        ] {
            let line = format!("{mark}{line}");
            let (interface, peer) = if in_peer { ("", &*line) } else { (&*line, "") };
            let parsed = parse_quick(&file(interface, peer));
            let kinds: Vec<_> = parsed.diagnostics.iter().map(name).collect();
            let expected: &[&str] = if warned { &["NotForWgQuick"] } else { &[] };
            assert_eq!(kinds, expected, "{line}");
            assert!(same_file(&parsed.file.expect("a file"), &plain), "{line}");
        }
    }
}

/// One message each: the key is neither unknown nor missing.
#[test]
fn an_invisible_character_gives_one_diagnostic() {
    let text = file("DNS = 10.0.0.1", "Endpoint = 192.0.2.1:5");
    for hidden in [
        '\u{a0}', '\u{200b}', '\u{feff}', '\u{180e}', '\u{3164}', '\u{2063}', '\u{8}',
    ] {
        for (line, key) in [
            (2, "PrivateKey"),
            (3, "Address"),
            (4, "DNS"),
            (6, "PublicKey"),
            (7, "AllowedIPs"),
            (8, "Endpoint"),
        ] {
            let (first, rest) = key.split_at(1);
            for (broken, column) in [
                (format!("{hidden}{key} ="), 1),
                (format!("{first}{hidden}{rest} ="), 2),
                (format!("{key}{hidden}="), key.len() + 1),
                (format!("{key} {hidden} ="), key.len() + 2),
                (format!("{key} ={hidden}"), key.len() + 3),
            ] {
                let text = text.replacen(&format!("\n{key} ="), &format!("\n{broken}"), 1);
                let parsed = quick(&text);
                let expected = [(line, column, Severity::Error, "LookAlike".to_owned())];
                assert_eq!(diagnostics(&parsed), expected, "{text:?}");
            }
        }
        for (line, header, broken, column) in [
            (1, "[Interface]", format!("[{hidden}Interface]"), 2),
            (5, "[Peer]", format!("{hidden}[Peer]"), 1),
            (5, "[Peer]", format!("[Peer]{hidden}"), 7),
        ] {
            let broken = text.replacen(header, &broken, 1);
            let expected = [(line, column, Severity::Error, "LookAlike".to_owned())];
            assert_eq!(diagnostics(&quick(&broken)), expected, "{broken:?}");
        }
    }
    for (broken, column) in [
        // A full-width equals sign, and a Cyrillic letter.
        ("\nPrivateKey \u{ff1d} ", 12),
        ("\nPriv\u{430}teKey = ", 5),
    ] {
        let text = text.replacen("\nPrivateKey = ", broken, 1);
        let expected = [(2, column, Severity::Error, "LookAlike".to_owned())];
        assert_eq!(diagnostics(&quick(&text)), expected, "{text:?}");
    }
}

#[test]
fn keys_of_another_program_give_one_diagnostic() {
    let keys = [
        "Jc", "Jmin", "Jmax", "S1", "S2", "S3", "S4", "H1", "H2", "H3", "H4", "I1", "I2", "I3",
        "I4", "I5",
    ];
    let lines: Vec<_> = keys.iter().map(|key| format!("{key} = 5")).collect();
    let parsed = quick(&file(&lines.join("\n"), ""));
    let [one] = parsed.diagnostics.as_slice() else {
        panic!("{:?}", parsed.diagnostics);
    };
    assert_eq!((one.line, one.severity), (4, Severity::Error));
    let text = one.to_string();
    assert!(text.contains(&keys.join(", ")), "{text}");
    assert!(text.contains("delete these lines"), "{text}");
    // Keys of another purpose have another reason.
    let parsed = quick(&file("Jc = 4\nSocks5Proxy = a:1\nS1 = 5\nJc = 4", ""));
    let kinds: Vec<_> = parsed.diagnostics.iter().map(|one| one.line).collect();
    assert_eq!(kinds, [4, 5]);
}
