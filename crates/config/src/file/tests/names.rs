//! Names of peers: as a key, and in comments.

use super::*;

fn name_of(lines: &str) -> Option<String> {
    let text = format!(
        "[Interface]\nPrivateKey = {OWN}\n# Name = interface\n[Peer]\nPublicKey = {PEER}\n{lines}\n\
         AllowedIPs = 10.0.0.2/32\n"
    );
    let name = clean(&text).peers.remove(0).name;
    name.map(|name| name.as_str().to_owned())
}

#[test]
fn sources_of_a_name() {
    for line in [
        "# Name = alice's laptop",
        "#Name=alice's laptop",
        "  # friendly_name = alice's laptop",
        "#@taupe:Name = alice's laptop",
        "Name = alice's laptop # or so",
        "#@ws:Name = alice's laptop",
        // The key precedes comments, and the first comment precedes others.
        "# Name = bob\nName = alice's laptop\n# Name = carol",
        "# Name = alice's laptop\n# friendly_name = bob",
        // A comment without a usable name is a comment.
        "# Name = \u{202e}\n# Name = alice's laptop",
    ] {
        assert_eq!(name_of(line).as_deref(), Some("alice's laptop"), "{line}");
    }
    for line in ["", "# alice", "PersistentKeepalive = 25 # Name = alice"] {
        assert_eq!(name_of(line), None, "{line}");
    }
}

/// Some people write the name above the header. It must not become that of the peer before.
#[test]
fn a_comment_above_a_header_names_no_peer() {
    let peer = |key: &str, network| {
        format!("[Peer]\n# Name = {network}\nPublicKey = {key}\nAllowedIPs = 10.0.0.{network}/32\n")
    };
    let text = format!(
        "[Interface]\nPrivateKey = {OWN}\n# Name = a\n{}# Name = b\n{}# Name = c\n",
        peer(PEER, 2).replace("# Name = 2\n", ""),
        peer(OTHER, 3),
    );
    let names: Vec<_> = clean(&text).peers.into_iter().map(|it| it.name).collect();
    let names: Vec<_> = names
        .iter()
        .map(|it| it.as_ref().map(PeerName::as_str))
        .collect();
    assert_eq!(names, [None, Some("3")]);
}

#[test]
fn names_that_are_refused() {
    let text = |line: &str| {
        format!(
            "[Interface]\nPrivateKey = {OWN}\n[Peer]\nPublicKey = {PEER}\nAllowedIPs = ::/0\n{line}"
        )
    };
    let long = format!("Name = {}", "x".repeat(MAX_PEER_NAME + 1));
    for (line, kind) in [
        (long.as_str(), "Name"),
        ("Name = a\u{7}", "Name"),
        ("Name = a\nName = b", "Repeated"),
        ("Name =", "NoValue"),
    ] {
        let parsed = quick(&text(line));
        let kinds: Vec<_> = parsed.diagnostics.iter().map(name).collect();
        assert_eq!(kinds, [kind], "{line}");
        assert!(parsed.file.is_none(), "{line}");
    }
    // `wg-quick` would refuse the key.
    let parsed = parse(text("Name = a").as_bytes(), Dialect::WgQuick);
    assert_eq!(name(&parsed.diagnostics[0]), "NotForWgQuick");
}

#[test]
fn names_are_written_as_comments() {
    let text = format!(
        "[Interface]\nPrivateKey = {OWN}\n\n[Peer]\n# Name = Zoë\nPublicKey = {PEER}\n\
         AllowedIPs = 10.0.0.2/32\n"
    );
    assert_eq!(*print(&clean(&text)), text);
    // `wg` reads what is left.
    let stripped = strip(
        text.replace("# Name", "Name").as_bytes(),
        Dialect::Taupe,
        Path::new("/folder"),
        &no_files,
    );
    assert!(!stripped.windows(4).any(|four| four == b"Name"));
}
