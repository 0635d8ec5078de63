//! The part of a file that is for `wg`.

use std::collections::HashMap;
use std::path::Path;

use zeroize::Zeroizing;

use super::Dialect;
use super::key_file::{KEY_FILE, KeyFiles, decoded};
use super::keys::{Key, Section};
use super::line::{Span, is_blank, lines, without_byte_order_mark};
use super::parse::COMMENT_PREFIXES;
use super::print::write_networks;
use super::value;
use ipnet::IpNet;
use taupe_uapi::networks::subtract;

/// Returns the output of `wg-quick strip`: every line that is for `wg`, with comments, which need
/// not be UTF-8. Removes a byte-order mark, which `wg` would reject.
///
/// Keys that only Taupe knows are removed. In [`Dialect::WgQuick`] they stay, so that `wg` reports
/// them as errors. In [`Dialect::Taupe`] the post-quantum keys become comments that
/// [`Dialect::Setconf`] reads, so that a tunnel does not become weaker on its way through
/// `syncconf`. A relative path of a post-quantum key file becomes absolute, based on `folder`, the
/// absolute path of the file's folder. A path of another key file is replaced by the key, which
/// `key_files` reads, because `wg` accepts nothing else. A path that cannot be read stays.
///
/// `wg` has no `DisallowedIPs`. So a peer with them gets the remaining networks in place of the
/// first line with `AllowedIPs`, or no line if none remain. If a network of either list is invalid,
/// the line is an empty `AllowedIPs =`: `wg` refuses it, and a more lenient reader gives the peer
/// no network. The result never routes more than the file does.
///
/// This function checks nothing else: see [`super::parse()`] for errors in the file.
#[must_use]
pub fn strip(
    text: &[u8],
    dialect: Dialect,
    folder: &Path,
    key_files: KeyFiles<'_>,
) -> Zeroizing<Vec<u8>> {
    // `wg-quick` reads with Bash's `read`, which skips NUL bytes.
    let mut readable = Zeroizing::new(Vec::with_capacity(text.len()));
    readable.extend(
        without_byte_order_mark(text)
            .iter()
            .filter(|byte| **byte != 0),
    );
    let mut narrowed = narrowed_peers(&readable, dialect);
    let folder = folder.as_os_str().as_encoded_bytes();
    let keys = lines(&readable).filter(|(_, line)| post_quantum_line(line).is_some());
    let added_for_keys = keys.count() * (TAUPE_PREFIX.len() + folder.len() + 1);
    let secrets = lines(&readable).filter(|(_, line)| secret_path(line).is_some());
    let added = narrowed.values().map(String::len).sum::<usize>()
        + added_for_keys
        + secrets.count() * MAX_KEY_LINE;
    // Large enough to never grow, because reallocation would leave copies of keys in freed memory.
    // A line grows by its end at most, and one more follows.
    let mut stripped = Zeroizing::new(Vec::with_capacity(text.len() + added + 2));
    let mut section = None;
    let mut tracker = SectionTracker::default();
    let mut narrow = false;
    for (_, line) in lines(&readable) {
        let line = trim(line, |byte| matches!(byte, b' ' | b'\t'));
        let uncommented = before(line, b'#');
        let name = trim(before(uncommented, b'='), is_space);
        if name.starts_with(b"[") {
            section = [
                (Section::Interface, "[Interface]"),
                (Section::Peer, "[Peer]"),
            ]
            .into_iter()
            .find(|(_, header)| name.eq_ignore_ascii_case(header.as_bytes()))
            .map(|(section, _)| section);
        }
        if tracker.header(line) {
            narrow = narrowed.contains_key(&tracker.number);
        }
        let is_removed = Key::ALL.into_iter().any(|key| {
            let here = match dialect {
                Dialect::WgQuick if key.is_taupe_only() => false,
                _ if key == Key::DisallowedIps && tracker.peer => true,
                _ => section.is_some_and(|section| key.fits(section)),
            };
            !key.is_known_to_wg() && here && name.eq_ignore_ascii_case(key.name().as_bytes())
        });
        if narrow && matches!(entry(line, dialect), Some((Key::AllowedIps, _))) {
            // The remaining networks take the place of the first line.
            let left = narrowed.get_mut(&tracker.number).map(core::mem::take);
            stripped.extend_from_slice(left.unwrap_or_default().as_bytes());
        } else if dialect == Dialect::Taupe
            && let Some((key, body)) = post_quantum_line(line)
        {
            let (before, path) = relative_path(key, body);
            stripped.extend_from_slice(TAUPE_PREFIX.as_bytes());
            stripped.extend_from_slice(before);
            if !path.is_empty() {
                stripped.extend_from_slice(folder);
                stripped.push(b'/');
                stripped.extend_from_slice(path);
            }
            stripped.push(b'\n');
        } else if dialect == Dialect::Taupe
            && let Some((key, path)) = secret_path(line)
            && let Ok(file) = key_files(path)
        {
            // At most the length of a key, even if the file is longer.
            let text = decoded(&file.text);
            stripped.extend_from_slice(key.name().as_bytes());
            stripped.extend_from_slice(b" = ");
            stripped.extend_from_slice(text.get(..KEY_TEXT_LEN).unwrap_or(text).as_bytes());
            stripped.push(b'\n');
        } else if !is_removed {
            stripped.extend_from_slice(line);
            stripped.push(b'\n');
        }
    }
    stripped.push(b'\n');
    stripped
}

/// Prefix of lines that are comments to all programs but Taupe.
const TAUPE_PREFIX: &str = COMMENT_PREFIXES[1];

/// Returns the post-quantum key of a line, and the line without its comment prefix.
fn post_quantum_line(line: &[u8]) -> Option<(Key, &[u8])> {
    let line = trim(line, is_space);
    let mut prefixes = COMMENT_PREFIXES.into_iter();
    let uncommented = prefixes.find_map(|prefix| line.strip_prefix(prefix.as_bytes()));
    let body = trim(uncommented.unwrap_or(line), is_space);
    let name = trim(before(before(body, b'#'), b'='), is_space);
    Key::ALL
        .into_iter()
        .filter(|key| key.is_post_quantum())
        .find(|key| name.eq_ignore_ascii_case(key.name().as_bytes()))
        .map(|key| (key, body))
}

/// Length of a key in base64.
const KEY_TEXT_LEN: usize = 44;

/// Length of the longest line with such a key.
const MAX_KEY_LINE: usize = "PresharedKey = ".len() + KEY_TEXT_LEN + 1;

/// Returns the secret key of a line, if `wg` accepts it, and the path of its file.
fn secret_path(line: &[u8]) -> Option<(Key, &str)> {
    let body = before(line, b'#');
    let name = before(body, b'=');
    let value = trim(body.get(name.len() + 1..)?, is_space);
    let path = core::str::from_utf8(value.strip_prefix(KEY_FILE.as_bytes())?).ok()?;
    [Key::PrivateKey, Key::PresharedKey]
        .into_iter()
        .find(|key| equals_ignoring_blanks(name, key.name()))
        .map(|key| (key, path.trim_matches(is_blank)))
}

/// Splits a line before the relative path of a key file. Returns the whole line and nothing if it
/// has none.
fn relative_path(key: Key, line: &[u8]) -> (&[u8], &[u8]) {
    let value = line.iter().position(|byte| *byte == b'=').map(|at| at + 1);
    let value = value.and_then(|at| line.get(at..)).unwrap_or_default();
    let path = trim(value, is_space).strip_prefix(KEY_FILE.as_bytes());
    let path = path.map(|path| trim(path, is_space)).unwrap_or_default();
    if key == Key::PostQuantum || path.is_empty() || path.starts_with(b"/") {
        return (line, &[]);
    }
    // The path ends the line, which is already trimmed.
    line.split_at(line.len() - path.len())
}

/// Section of a line, as `wg` sees it.
#[derive(Default)]
struct SectionTracker {
    /// Number of sections so far.
    number: usize,
    peer: bool,
}

impl SectionTracker {
    /// Handles a line. Returns true if it begins a section.
    fn header(&mut self, line: &[u8]) -> bool {
        let body = before(line, b'#');
        let begins = trim(body, is_space).starts_with(b"[");
        if begins {
            self.number += 1;
            self.peer = equals_ignoring_blanks(body, "[Peer]");
        }
        begins
    }
}

/// Networks of a peer, up to the next section.
#[derive(Default)]
struct PeerNetworks {
    allowed: Vec<IpNet>,
    disallowed: Vec<IpNet>,
    narrow: bool,
    is_invalid: bool,
}

impl PeerNetworks {
    fn add(&mut self, key: Key, text: &[u8]) {
        let text = trim(text, is_space);
        if text.is_empty() {
            // An empty `DisallowedIPs` removes nothing; an empty `AllowedIPs` is invalid.
            self.is_invalid |= key == Key::AllowedIps;
            return;
        }
        self.narrow |= key == Key::DisallowedIps;
        let Ok(text) = core::str::from_utf8(text) else {
            self.is_invalid = true;
            return;
        };
        let networks = match key {
            Key::AllowedIps => &mut self.allowed,
            _ => &mut self.disallowed,
        };
        for part in Span::new(text, 0).split(|c| c == ',') {
            match value::network(key, part) {
                Ok((network, _)) => networks.push(network),
                Err(_) => self.is_invalid = true,
            }
        }
    }

    /// Returns the lines for `wg`, if they differ from those of the file.
    fn lines(&self) -> Option<String> {
        let mut text = String::new();
        if !self.narrow {
            return None;
        }
        if self.is_invalid {
            text.push_str("AllowedIPs =\n");
        } else {
            let left = subtract(&self.allowed, &self.disallowed);
            // Writing to a `String` cannot fail.
            let _ = write_networks(&mut text, Key::AllowedIps, &left);
        }
        Some(text)
    }
}

/// Returns the lines that replace `AllowedIPs` for peers with `DisallowedIPs`, by the number of the
/// section.
fn narrowed_peers(text: &[u8], dialect: Dialect) -> HashMap<usize, String> {
    let mut narrowed = HashMap::new();
    let mut tracker = SectionTracker::default();
    let mut networks = PeerNetworks::default();
    for (_, line) in lines(text) {
        let number = tracker.number;
        if tracker.header(line) {
            let text = core::mem::take(&mut networks).lines();
            narrowed.extend(text.map(|text| (number, text)));
        } else if tracker.peer
            && let Some((key, value)) = entry(line, dialect)
        {
            networks.add(key, value);
        }
    }
    narrowed.extend(networks.lines().map(|text| (tracker.number, text)));
    narrowed
}

/// Returns the value of `AllowedIPs` or `DisallowedIPs`. Except for `wg-quick`, includes lines that
/// are comments to other programs.
fn entry(line: &[u8], dialect: Dialect) -> Option<(Key, &[u8])> {
    let line = trim(line, is_space);
    let mut prefixes = COMMENT_PREFIXES
        .into_iter()
        .filter(|_| dialect != Dialect::WgQuick);
    let uncommented = prefixes.find_map(|prefix| line.strip_prefix(prefix.as_bytes()));
    let line = uncommented.unwrap_or(line);
    let body = before(line, b'#');
    let name = before(body, b'=');
    let value = body.get(name.len() + 1..)?;
    [Key::AllowedIps, Key::DisallowedIps]
        .into_iter()
        .find(|key| equals_ignoring_blanks(name, key.name()))
        .map(|key| (key, value))
}

/// Compares a text with a word as `wg` does: without blanks, and ignoring case.
fn equals_ignoring_blanks(text: &[u8], word: &str) -> bool {
    let bytes = text.iter().filter(|byte| !is_space(**byte));
    bytes
        .map(u8::to_ascii_lowercase)
        .eq(word.bytes().map(|byte| byte.to_ascii_lowercase()))
}

fn is_space(byte: u8) -> bool {
    is_blank(char::from(byte))
}

fn before(text: &[u8], end: u8) -> &[u8] {
    text.split(|byte| *byte == end).next().unwrap_or_default()
}

fn trim(mut text: &[u8], blank: fn(u8) -> bool) -> &[u8] {
    while let [first, rest @ ..] = text
        && blank(*first)
    {
        text = rest;
    }
    while let [rest @ .., last] = text
        && blank(*last)
    {
        text = rest;
    }
    text
}
