//! What of a file is for `wg`.

use std::collections::HashMap;
use std::path::Path;

use zeroize::Zeroizing;

use super::Dialect;
use super::key_file::{KEY_FILE, KeyFiles, decoded};
use super::line::{Piece, is_blank, lines, without_mark};
use super::parse::MARKS;
use super::print::list;
use super::value;
use super::word::{Key, Section};
use taupe_uapi::networks::subtract;
use taupe_uapi::prefix::Prefix;

/// What `wg-quick strip` prints of a file: everything that is for `wg`, comments
/// included, which may be no UTF-8. A mark at the beginning of the file, which
/// `wg` would stumble on, is left out, and so are the keys that only Taupe knows;
/// those stay in [`Dialect::Quick`], where `wg` shall tell that they are an error.
/// In [`Dialect::Taupe`] those of hybrid handshakes become what is a comment to `wg`, and
/// is read by [`Dialect::Setconf`]: a tunnel may not become weaker on the way through
/// `syncconf`. Their relative paths of key files are made absolute: they begin at `folder`, the
/// absolute path of the file's folder. The path of any other key file is replaced by the key,
/// which `key_files` reads: `wg` takes nothing else. A path that cannot be read stays.
///
/// `wg` knows no `DisallowedIPs`, so a peer that has them gets what they leave
/// of its `AllowedIPs`, in place of the first line of those; nothing when
/// nothing is left. Where that cannot be found out, because a network of either
/// list is wrong, an empty `AllowedIPs =` stands there: `wg` refuses it, and a
/// reader that takes it gives the peer no network. The tunnel is never wider
/// than the file says.
///
/// Looks at nothing else: see [`super::parse()`] for whether the file is right.
#[must_use]
pub fn strip(
    text: &[u8],
    dialect: Dialect,
    folder: &Path,
    key_files: KeyFiles<'_>,
) -> Zeroizing<Vec<u8>> {
    // Bash's `read`, with which `wg-quick` reads, skips every NUL.
    let mut readable = Zeroizing::new(Vec::with_capacity(text.len()));
    readable.extend(without_mark(text).iter().filter(|byte| **byte != 0));
    let mut narrowed = narrowed_peers(&readable, dialect);
    let folder = folder.as_os_str().as_encoded_bytes();
    let keys = lines(&readable).filter(|(_, line)| of_handshake(line).is_some());
    let added_for_keys = keys.count() * (TAUPE.len() + folder.len() + 1);
    let secrets = lines(&readable).filter(|(_, line)| secret_path(line).is_some());
    let added = narrowed.values().map(String::len).sum::<usize>()
        + added_for_keys
        + secrets.count() * KEY_LINE;
    // Never grows, so that no part of it stays behind in freed memory: a line
    // grows by its end at most, and one more follows.
    let mut stripped = Zeroizing::new(Vec::with_capacity(text.len() + added + 2));
    let mut section = None;
    let mut place = Place::default();
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
        if place.header(line) {
            narrow = narrowed.contains_key(&place.number);
        }
        let taken_out = Key::ALL.into_iter().any(|key| {
            let here = match dialect {
                Dialect::Quick if key.is_of_taupe() => false,
                _ if key == Key::DisallowedIps && place.peer => true,
                _ => section.is_some_and(|section| key.fits(section)),
            };
            !key.known_to_wg() && here && name.eq_ignore_ascii_case(key.name().as_bytes())
        });
        if narrow && matches!(entry(line, dialect), Some((Key::AllowedIps, _))) {
            // What is left stands where the first line did.
            let left = narrowed.get_mut(&place.number).map(core::mem::take);
            stripped.extend_from_slice(left.unwrap_or_default().as_bytes());
        } else if dialect == Dialect::Taupe
            && let Some((key, body)) = of_handshake(line)
        {
            let (before, path) = relative_path(key, body);
            stripped.extend_from_slice(TAUPE.as_bytes());
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
            // Nothing that is too long to be a key.
            let text = decoded(&file.text);
            stripped.extend_from_slice(key.name().as_bytes());
            stripped.extend_from_slice(b" = ");
            stripped.extend_from_slice(text.get(..KEY_TEXT).unwrap_or(text).as_bytes());
            stripped.push(b'\n');
        } else if !taken_out {
            stripped.extend_from_slice(line);
            stripped.push(b'\n');
        }
    }
    stripped.push(b'\n');
    stripped
}

/// What is a comment to all but Taupe.
const TAUPE: &str = MARKS[1];

/// A key of hybrid handshakes, and the line without its mark.
fn of_handshake(line: &[u8]) -> Option<(Key, &[u8])> {
    let line = trim(line, is_space);
    let mut marks = MARKS.into_iter();
    let unmarked = marks.find_map(|mark| line.strip_prefix(mark.as_bytes()));
    let body = trim(unmarked.unwrap_or(line), is_space);
    let name = trim(before(before(body, b'#'), b'='), is_space);
    Key::ALL
        .into_iter()
        .filter(|key| key.is_of_handshake())
        .find(|key| name.eq_ignore_ascii_case(key.name().as_bytes()))
        .map(|key| (key, body))
}

/// The characters of a key in base64.
const KEY_TEXT: usize = 44;

/// The longest line with such a key.
const KEY_LINE: usize = "PresharedKey = ".len() + KEY_TEXT + 1;

/// A secret key that `wg` takes, and the path of the file that holds it.
fn secret_path(line: &[u8]) -> Option<(Key, &str)> {
    let body = before(line, b'#');
    let name = before(body, b'=');
    let value = trim(body.get(name.len() + 1..)?, is_space);
    let path = core::str::from_utf8(value.strip_prefix(KEY_FILE.as_bytes())?).ok()?;
    [Key::PrivateKey, Key::PresharedKey]
        .into_iter()
        .find(|key| is_word(name, key.name()))
        .map(|key| (key, path.trim_matches(is_blank)))
}

/// The line up to the relative path of a key's file, and from there on; all of it and
/// nothing where there is none.
fn relative_path(key: Key, line: &[u8]) -> (&[u8], &[u8]) {
    let value = line.iter().position(|byte| *byte == b'=').map(|at| at + 1);
    let value = value.and_then(|at| line.get(at..)).unwrap_or_default();
    let path = trim(value, is_space).strip_prefix(KEY_FILE.as_bytes());
    let path = path.map(|path| trim(path, is_space)).unwrap_or_default();
    if key == Key::PostQuantum || path.is_empty() || path.starts_with(b"/") {
        return (line, &[]);
    }
    // Nothing follows a path but blanks, which are no part of a line any more.
    line.split_at(line.len() - path.len())
}

/// The section where a line stands, as `wg` sees it.
#[derive(Default)]
struct Place {
    /// How many sections have begun.
    number: usize,
    peer: bool,
}

impl Place {
    /// Whether a section begins with the line.
    fn header(&mut self, line: &[u8]) -> bool {
        let body = before(line, b'#');
        let begins = trim(body, is_space).starts_with(b"[");
        if begins {
            self.number += 1;
            self.peer = is_word(body, "[Peer]");
        }
        begins
    }
}

/// The networks of a peer, until the next section.
#[derive(Default)]
struct Networks {
    allowed: Vec<Prefix>,
    disallowed: Vec<Prefix>,
    narrow: bool,
    wrong: bool,
}

impl Networks {
    fn add(&mut self, key: Key, text: &[u8]) {
        let text = trim(text, is_space);
        if text.is_empty() {
            // Nothing is taken away; but nothing is no network.
            self.wrong |= key == Key::AllowedIps;
            return;
        }
        self.narrow |= key == Key::DisallowedIps;
        let Ok(text) = core::str::from_utf8(text) else {
            self.wrong = true;
            return;
        };
        let networks = match key {
            Key::AllowedIps => &mut self.allowed,
            _ => &mut self.disallowed,
        };
        for part in Piece::new(text, 0).split(|c| c == ',') {
            match value::network(key, part) {
                Ok((network, _)) => networks.push(network),
                Err(_) => self.wrong = true,
            }
        }
    }

    /// The lines for `wg`, if they are others than those of the file.
    fn lines(&self) -> Option<String> {
        let mut text = String::new();
        if !self.narrow {
            return None;
        }
        if self.wrong {
            text.push_str("AllowedIPs =\n");
        } else {
            let left = subtract(&self.allowed, &self.disallowed);
            // A `String` takes everything.
            let _ = list(&mut text, Key::AllowedIps, &left);
        }
        Some(text)
    }
}

/// The peers with `DisallowedIPs`, by the number of their section, and what
/// stands there instead of `AllowedIPs`.
fn narrowed_peers(text: &[u8], dialect: Dialect) -> HashMap<usize, String> {
    let mut narrowed = HashMap::new();
    let mut place = Place::default();
    let mut networks = Networks::default();
    for (_, line) in lines(text) {
        let number = place.number;
        if place.header(line) {
            let text = core::mem::take(&mut networks).lines();
            narrowed.extend(text.map(|text| (number, text)));
        } else if place.peer
            && let Some((key, value)) = entry(line, dialect)
        {
            networks.add(key, value);
        }
    }
    narrowed.extend(networks.lines().map(|text| (place.number, text)));
    narrowed
}

/// `AllowedIPs` or `DisallowedIPs`, except for `wg-quick` also in the form that is a
/// comment to others, with the value.
fn entry(line: &[u8], dialect: Dialect) -> Option<(Key, &[u8])> {
    let line = trim(line, is_space);
    let mut marks = MARKS.into_iter().filter(|_| dialect != Dialect::Quick);
    let unmarked = marks.find_map(|mark| line.strip_prefix(mark.as_bytes()));
    let line = unmarked.unwrap_or(line);
    let body = before(line, b'#');
    let name = before(body, b'=');
    let value = body.get(name.len() + 1..)?;
    [Key::AllowedIps, Key::DisallowedIps]
        .into_iter()
        .find(|key| is_word(name, key.name()))
        .map(|key| (key, value))
}

/// Whether a text is a word, as `wg` reads it: without blanks and without
/// regard to case.
fn is_word(text: &[u8], word: &str) -> bool {
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
