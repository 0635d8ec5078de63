//! Names of peers, which `status`, `show` and `events` print.

use core::fmt;

use super::look_alike::is_invisible;

/// The longest name of a peer, in characters.
pub const MAX_PEER_NAME: usize = 64;

/// Name of a peer: 1 to [`MAX_PEER_NAME`] characters on one line. Invisible characters and other blanks than
/// the space are refused: they could make two names look alike, or change a terminal. Not unique, and no part of the protocol.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PeerName(String);

impl PeerName {
    /// Returns the name without blanks at its ends, or `None` if it is invalid.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.trim();
        let is_short = (1..=MAX_PEER_NAME).contains(&text.chars().take(MAX_PEER_NAME + 1).count());
        // `#` starts a comment, so a name cannot contain it.
        let is_allowed = |c: char| !is_invisible(c) && (c == ' ' || !c.is_whitespace()) && c != '#';
        (is_short && text.chars().all(is_allowed)).then(|| Self(text.to_owned()))
    }

    /// Returns the text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PeerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Returns the name in a comment of a `[Peer]`, after its `#`: `Name = …`, or `friendly_name = …` as
/// `prometheus_wireguard_exporter` reads it. Returns `None` for other comments.
pub(super) fn in_comment(comment: &str) -> Option<PeerName> {
    let (key, name) = comment.split_once('=')?;
    let key = key.trim();
    let is_name = ["Name", "friendly_name"]
        .iter()
        .any(|known| key.eq_ignore_ascii_case(known));
    is_name.then(|| PeerName::new(name)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (text, name) in [
            (" alice's laptop ", "alice's laptop"),
            ("Zoë – Büro", "Zoë – Büro"),
            ("日本", "日本"),
            ("=", "="),
        ] {
            assert_eq!(PeerName::new(text).expect("a name").as_str(), name);
        }
        let longest = "é".repeat(MAX_PEER_NAME);
        assert!(PeerName::new(&longest).is_some());
        for text in [
            "",
            "  ",
            "a\tb",
            "a\nb",
            "a\u{1b}[31m",
            "a\u{202e}b",
            "a\u{200b}",
            "a\u{a0}b",
            "a\u{3000}b",
            "a # b",
            &format!("{longest}x"),
        ] {
            assert_eq!(PeerName::new(text), None, "{text:?}");
        }
    }

    #[test]
    fn names_in_comments() {
        for (comment, name) in [
            (" Name = alice", Some("alice")),
            ("name=alice", Some("alice")),
            (" friendly_name = Bob's phone", Some("Bob's phone")),
            (" Name: alice", None),
            (" The name = alice", None),
            (" Name =", None),
            ("", None),
        ] {
            let found = in_comment(comment);
            assert_eq!(found.as_ref().map(PeerName::as_str), name, "{comment}");
        }
    }
}
