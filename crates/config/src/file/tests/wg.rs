//! The dialect of `wg setconf`, compared with the messages of Debian's `wg` (wireguard-tools
//! 1.0.20210914).

use super::*;

/// Returns all messages that `wg` would print about a file.
fn messages(text: &[u8]) -> String {
    let diagnostics = parse(text, Dialect::Wg).diagnostics;
    let (late, early): (Vec<_>, Vec<_>) = diagnostics
        .into_iter()
        .partition(|diagnostic| diagnostic.kind == DiagnosticKind::NoPublicKey);
    let mut messages = String::new();
    for diagnostic in early.iter().chain(late.first()) {
        let message = wg_message(text, diagnostic);
        let Some(message) = message else { continue };
        messages.push_str(&String::from_utf8_lossy(&message));
        messages.push('\n');
        if diagnostic.severity == Severity::Error {
            messages.push_str(match diagnostic.kind {
                DiagnosticKind::NoPublicKey => "Invalid configuration\n",
                _ => "Configuration parsing error\n",
            });
            break;
        }
    }
    messages
}

#[test]
fn as_observed() {
    let observed = include_str!("../../../tests/wg-setconf.txt");
    let cases: Vec<_> = observed.split("\n<\n").skip(1).collect();
    assert!(cases.len() > 60, "{}", cases.len());
    for case in cases {
        let case = format!("\n{case}\n");
        let (text, expected) = case.split_once("\n>\n").unwrap();
        let text = text.trim_start_matches('\n');
        let messages = messages(text.as_bytes());
        assert_eq!(messages.trim_end(), expected.trim_end(), "{text}");
        let refused = parse(text.as_bytes(), Dialect::Wg).file.is_none();
        let expected = expected.contains("onfiguration");
        assert_eq!(refused, expected, "{text}");
    }
}

#[test]
fn files_that_wg_accepts_are_accepted() {
    for text in [
        "",
        "[Interface]\n",
        "[Peer]\nPublicKey = {peer}\n",
        "[Interface]\nPrivateKey = {own}\nPrivateKey = {peer}\n",
        "[Interface]\nPrivateKey = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
        "[Peer]\nPublicKey = {peer}\n[Peer]\nPublicKey = {peer}\n",
        "[Peer]\nPublicKey = {peer}\nEndpoint = 0.0.0.0:0\n",
        "[Peer]\n#@ws:AllowedApps = firefox\nPublicKey = {peer}\n",
        "[Peer]\nPublicKey = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=\n",
        "[Interface]\nPrivateKey = {own}\n[Peer]\nPublicKey = {own}\n",
    ] {
        let text = text.replace("{own}", OWN).replace("{peer}", PEER);
        let parsed = parse(text.as_bytes(), Dialect::Wg);
        let found = parsed.diagnostics.iter().map(|one| one.to_string());
        let found: Vec<_> = found.collect();
        assert!(parsed.file.is_some(), "{text}\n{}", found.join("\n"));
    }
    // The last value counts.
    let text = "[Interface]\nListenPort = 1\nListenPort = 2\nFwMark = off";
    let file = parse(text.as_bytes(), Dialect::Wg).file.unwrap();
    assert_eq!(file.interface.listen_port, Some(2));
    assert_eq!(file.interface.fwmark, Some(0));
}

#[test]
fn keys_of_wg_quick_are_not_for_wg() {
    let text = "[Interface]\nMTU = 1420\n[Peer]\nDisallowedIPs = ::/0\n";
    let parsed = parse(text.as_bytes(), Dialect::Wg);
    let kinds: Vec<_> = parsed
        .diagnostics
        .iter()
        .map(|d| (d.line, name(d)))
        .collect();
    assert_eq!(
        kinds,
        [
            (2, "NotForWg".to_owned()),
            (3, "NoPublicKey".to_owned()),
            (3, "NoAllowedIps".to_owned()),
            (4, "NotForWg".to_owned()),
        ]
    );
}
