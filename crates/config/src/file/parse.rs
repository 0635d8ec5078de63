//! The parser: one pass over the lines, then checks of the whole file.

mod whole;

use core::mem;
use std::collections::HashMap;

use ipnet::IpNet;
use taupe_protocol::key::{KEY_LEN, PublicKey};

use super::diagnostic::{DiagnosticKind, Severity};
use super::draft::{InterfaceDraft, PeerDraft};
use super::foreign::ForeignKeys;
use super::key_file::{KeyFileProblem, KeyFiles, KeyPaths};
use super::line::{Piece, is_blank, lines, quotable, utf8, without_mark};
use super::look_alike::{intended, is_look_alike};
use super::report::Report;
use super::transparent::TransparentDraft;
use super::word::{self, Key, Section, Word};
use super::{Dialect, File, MAX_FILE, MAX_LINE, Parsed, Peer};
use crate::application::ApplicationError;

/// Prefix of lines that are comments to all programs but Taupe and `WireSock`.
const WIRESOCK: &str = "#@ws:";

/// Prefixes of lines that are comments to other programs but not to Taupe.
pub(super) const MARKS: [&str; 2] = [WIRESOCK, taupe_uapi::show::MARK];

/// Parses a file and reports all its errors.
///
/// Takes time and memory in proportion to the text. The text may contain secrets: its owner must
/// zeroise it.
///
/// Key files count as unreadable: see [`parse_with`].
#[must_use]
pub fn parse(text: &[u8], dialect: Dialect) -> Parsed {
    parse_with(text, dialect, &|_| Err(KeyFileProblem::NotHere))
}

/// Parses a file as [`parse()`] does, and reads key files with `key_files`.
#[must_use]
pub fn parse_with(text: &[u8], dialect: Dialect, key_files: KeyFiles<'_>) -> Parsed {
    parse_by(text, dialect, KeyPaths::Read(key_files))
}

/// Parses a file as [`parse()`] does, for callers that need no keys: keys in files are left out,
/// and the files are not read.
#[must_use]
pub fn parse_without_key_files(text: &[u8], dialect: Dialect) -> Parsed {
    parse_by(text, dialect, KeyPaths::Omit)
}

fn parse_by(text: &[u8], dialect: Dialect, key_paths: KeyPaths<'_>) -> Parsed {
    let mut parser = Parser::new(dialect, key_paths);
    let utf16 = matches!(
        text,
        // With a byte-order mark, or without: every other byte of ASCII text is NUL.
        [0xff, 0xfe, ..]
            | [0xfe, 0xff, ..]
            | [1..=255, 0, 1..=255, 0, ..]
            | [0, 1..=255, 0, 1..=255, ..]
    );
    if utf16 {
        parser.report.add(Piece::new("", 1), DiagnosticKind::Utf16);
    } else if text.len() > MAX_FILE {
        parser
            .report
            .add(Piece::new("", 1), DiagnosticKind::FileTooLong);
    } else {
        for (number, line) in lines(without_mark(text)) {
            parser.line(number, line);
        }
        parser.finish_peer();
        parser.finish_file();
    }
    let Parser {
        report,
        interface,
        transparent,
        peers,
        ..
    } = parser;
    let private_key_at = interface
        .private_key_at
        .map(|piece| (piece.number, piece.column()));
    Parsed {
        file: (!report.refuses()).then(|| File {
            interface: interface.finish(),
            peers,
            transparent: transparent.finish(),
        }),
        diagnostics: report.finish(),
        private_key_at,
    }
}

struct Parser<'a> {
    dialect: Dialect,
    key_paths: KeyPaths<'a>,
    report: Report,
    foreign: ForeignKeys<'a>,
    section: At<'a>,
    interface: InterfaceDraft<'a>,
    transparent: TransparentDraft<'a>,
    /// Number of `[Peer]` sections, including invalid ones.
    peer_sections: usize,
    peers: Vec<Peer>,
    /// Lines of the peers' public keys.
    public_keys: HashMap<[u8; KEY_LEN], usize>,
    /// Positions of the public keys.
    public_pieces: Vec<(PublicKey, Piece<'a>)>,
    /// Positions of the preshared keys, with the index of the peer.
    preshared_pieces: Vec<(usize, Piece<'a>)>,
    /// Positions of the ML-KEM keys, with the index of the peer.
    pq_pieces: Vec<(usize, Piece<'a>)>,
    /// Index of the peer and line for each allowed network.
    allowed: HashMap<IpNet, (usize, usize)>,
}

/// Section of a line.
enum At<'a> {
    /// Before the first section.
    Nowhere,
    /// In an unknown section, which has been reported.
    Unknown,
    Interface,
    Peer(Box<PeerDraft<'a>>),
}

impl<'a> Parser<'a> {
    fn new(dialect: Dialect, key_paths: KeyPaths<'a>) -> Self {
        Self {
            dialect,
            key_paths: match dialect.has_key_files() {
                true => key_paths,
                false => KeyPaths::Refuse,
            },
            report: Report::new(dialect),
            foreign: ForeignKeys::default(),
            section: At::Nowhere,
            interface: InterfaceDraft::default(),
            transparent: TransparentDraft::default(),
            peer_sections: 0,
            peers: Vec::new(),
            public_keys: HashMap::new(),
            public_pieces: Vec::new(),
            preshared_pieces: Vec::new(),
            pq_pieces: Vec::new(),
            allowed: HashMap::new(),
        }
    }

    fn line(&mut self, number: usize, bytes: &'a [u8]) {
        let (text, whole) = utf8(bytes);
        let line = Piece::new(text, number);
        if bytes.len() > MAX_LINE {
            return self.report.add(line, DiagnosticKind::LineTooLong);
        }
        if let Some((_, nul)) = line.find(|c| c == '\0') {
            return self.report.add(nul, DiagnosticKind::NulByte);
        }
        let mark = self.mark(line.trim().text);
        let rest = mark.map_or(line, |mark| line.trim().after(mark.len()));
        if self.dialect == Dialect::Quick && mark.is_some() {
            return self.comment_of_taupe(rest);
        }
        let comment = rest.split_once('#');
        let body = comment.map_or(rest, |(body, _)| body).trim();
        let not_utf8 = |report: &mut Report| {
            report.add(line.after(line.text.len()), DiagnosticKind::NotUtf8);
        };
        // Invalid UTF-8 is allowed in comments.
        if !whole && comment.is_none() {
            return not_utf8(&mut self.report);
        }
        if body.text.is_empty() {
            return;
        }
        let seen = body.text.trim_start_matches(is_look_alike);
        if seen.starts_with('[') && mark.is_none() {
            return self.header(body);
        }
        for begin in [";", "//"] {
            if body.text.starts_with(begin) && mark != Some(WIRESOCK) {
                let kind = DiagnosticKind::ForeignComment { mark: begin };
                return self.report.add(body, kind);
            }
        }
        let Some((name, text)) = body.split_once('=') else {
            return self.no_equals(body, mark);
        };
        let Some(key) = self.key(name.trim(), body, mark) else {
            return;
        };
        if key.is_hook() {
            // A hook is a command, in which `#` need not begin a comment.
            let command = rest.split_once('=').map_or(text, |(_, command)| command);
            if !whole {
                return not_utf8(&mut self.report);
            }
            return self.hook(key, command.trim());
        }
        let value = text.trim();
        if value.text.is_empty() {
            self.note(key, value);
            return self.report.add(body, DiagnosticKind::NoValue { key });
        }
        if self.looks_alike(value) || self.is_quoted(key, value) || self.key_paths.omit(key, value)
        {
            self.note(key, value);
            return;
        }
        if matches!(key, Key::AllowedApps | Key::DisallowedApps)
            && comment.is_some_and(|(before, _)| !before.text.ends_with(is_blank))
        {
            // The part before `#` would be another application: `/opt/c#/`.
            let problem = ApplicationError::Character;
            let kind = DiagnosticKind::Application {
                problem,
                value: None,
            };
            self.note(key, value);
            return self.report.add(value.after(value.text.len()), kind);
        }
        match &mut self.section {
            At::Nowhere | At::Unknown => {}
            section if key.is_of_tunnel() => {
                let in_peer = matches!(section, At::Peer(_));
                let report = &mut self.report;
                self.transparent.value(key, value, mark, in_peer, report);
            }
            At::Interface => {
                let key_files = self.key_paths.files();
                self.interface
                    .value(key, value, key_files, &mut self.report);
            }
            At::Peer(peer) => {
                peer.value(
                    key,
                    value,
                    &mut self.report,
                    &mut self.allowed,
                    self.peers.len(),
                );
            }
        }
    }

    /// Returns the prefix of a line that is a comment to other programs, if this dialect reads it.
    fn mark(&self, line: &str) -> Option<&'static str> {
        let mark = MARKS.into_iter().find(|mark| line.starts_with(mark))?;
        let is_taken = match self.dialect {
            Dialect::Taupe | Dialect::Quick => true,
            Dialect::Wg => false,
            Dialect::Setconf => {
                let name = line.get(mark.len()..)?.split('=').next()?;
                matches!(word::find(name.trim_matches(is_blank)),
                    Some(Word::Known(key)) if key.is_of_handshake())
            }
        };
        is_taken.then_some(mark)
    }

    /// Reports a line that Taupe reads and `wg-quick` ignores.
    fn comment_of_taupe(&mut self, rest: Piece<'a>) {
        let name = rest.split_once('=').map_or(rest, |(name, _)| name).trim();
        if let Some(Word::Known(key)) = word::find(name.text)
            && (key.is_of_taupe() || key == Key::DisallowedIps)
        {
            let kind = DiagnosticKind::NotForQuick { key, comment: true };
            self.report.add(name, kind);
        }
    }

    /// Handles a line that begins with `[`.
    fn header(&mut self, body: Piece<'a>) {
        let text = body.clean();
        let section = if self.looks_alike(body) {
            word::nearest_section(&text)
        } else if text.eq_ignore_ascii_case("[Interface]") {
            Some(Section::Interface)
        } else if text.eq_ignore_ascii_case("[Peer]") {
            Some(Section::Peer)
        } else {
            let meant = word::nearest_section(&text);
            let name = quotable(body.text);
            self.report
                .add(body, DiagnosticKind::UnknownSection { name, meant });
            // The next lines most likely belong to the section that was meant.
            meant
        };
        self.finish_peer();
        self.section = match section {
            Some(Section::Interface) => {
                match self.interface.header {
                    Some(Piece { number: first, .. }) => self
                        .report
                        .add(body, DiagnosticKind::RepeatedInterface { first }),
                    None => self.interface.header = Some(body),
                }
                At::Interface
            }
            Some(Section::Peer) => {
                self.peer_sections += 1;
                At::Peer(Box::new(PeerDraft::new(body, self.key_paths.files())))
            }
            None => At::Unknown,
        };
    }

    /// Handles a line without `=`.
    fn no_equals(&mut self, body: Piece<'a>, mark: Option<&str>) {
        if matches!(self.section, At::Unknown) {
            return;
        }
        let end = body.text.find(|c| is_blank(c) || c == ':');
        let word = body.text.get(..end.unwrap_or(body.text.len()));
        let word = word.unwrap_or_default();
        let meant = intended(body.text).or_else(|| self.meant(word));
        let is_known = matches!(word::find(word), Some(Word::Known(_)));
        if mark == Some(WIRESOCK) && !is_known {
            return self.ignored(body, word, meant);
        }
        self.note_mistyped(meant);
        if self.looks_alike(body) {
            return;
        }
        let name = quotable(word);
        self.report
            .add(body, DiagnosticKind::NotKeyValue { name, meant });
    }

    /// Reports a comment for `WireSock` with a key that Taupe does not know.
    fn ignored(&mut self, body: Piece<'a>, word: &str, meant: Option<Key>) {
        let name = quotable(word);
        self.report
            .add(body, DiagnosticKind::Ignored { name, meant });
    }

    /// Returns the key of this name, if the section allows it. A line with a `mark` is a comment to
    /// other programs.
    fn key(&mut self, name: Piece<'a>, body: Piece<'a>, mark: Option<&str>) -> Option<Key> {
        if matches!(self.section, At::Unknown) {
            return None;
        }
        let section = self.section();
        let is_wiresock = mark == Some(WIRESOCK);
        let kind = match word::find(&name.clean()) {
            Some(Word::Foreign(name, what)) => {
                let severity = if is_wiresock {
                    Severity::Warning
                } else {
                    Severity::Error
                };
                self.foreign.add(body, name, what, severity);
                return None;
            }
            None if name.find(|c| !c.is_ascii() || is_look_alike(c)).is_some() => {
                self.unusual(name, body, is_wiresock);
                return None;
            }
            None if is_wiresock => {
                let meant = self.meant(name.text);
                self.ignored(body, name.text, meant);
                return None;
            }
            _ if name.text.is_empty() => DiagnosticKind::NotKeyValue {
                name: None,
                meant: None,
            },
            // `wg` ignores blanks within names, `wg-quick` does not.
            Some(Word::Known(key)) if !key.known_to_wg() && name.text.contains(is_blank) => {
                DiagnosticKind::UnknownKey {
                    name: quotable(name.text),
                    meant: Some(key),
                }
            }
            Some(Word::Known(key)) if self.dialect == Dialect::Quick && key.is_of_taupe() => {
                DiagnosticKind::NotForQuick {
                    key,
                    comment: false,
                }
            }
            Some(Word::Known(key)) => match section {
                None => DiagnosticKind::BeforeSection {
                    name: Some(key.name().to_owned()),
                    key: Some(key),
                },
                Some(_) if !self.dialect.has(key) => DiagnosticKind::NotForWg { key },
                Some(section) if !key.fits(section) => DiagnosticKind::Misplaced { key },
                Some(_) => return Some(key),
            },
            None if section.is_none() => DiagnosticKind::BeforeSection {
                name: quotable(name.text),
                key: None,
            },
            None => DiagnosticKind::UnknownKey {
                name: quotable(name.text),
                meant: self.meant(name.text),
            },
        };
        if let DiagnosticKind::UnknownKey { meant, .. } = &kind {
            self.note_mistyped(*meant);
        }
        self.report.add(body, kind);
        None
    }

    /// Reports a name with a character that no key has. Suppresses the report that the key that was
    /// meant is missing.
    fn unusual(&mut self, name: Piece<'a>, body: Piece<'a>, is_wiresock: bool) {
        let known = intended(name.text);
        let meant = known.or_else(|| self.meant(name.text));
        if is_wiresock && known.is_none() {
            return self.ignored(body, name.text, meant);
        }
        self.note_mistyped(meant);
        if self.looks_alike(name) {
            return;
        }
        match name.find(|c| !c.is_ascii()).filter(|_| meant.is_some()) {
            // A letter of another alphabet, such as the Cyrillic а.
            Some((character, at)) => self.report.add(at, DiagnosticKind::LookAlike { character }),
            None => {
                let name = quotable(name.text);
                self.report
                    .add(body, DiagnosticKind::UnknownKey { name, meant });
            }
        }
    }

    fn hook(&mut self, key: Key, command: Piece<'a>) {
        if command.text.is_empty() {
            return self.report.add(command, DiagnosticKind::NoValue { key });
        }
        // The characters may be intended, for example in the output of a command.
        if let Some((character, at)) = command.find(is_look_alike) {
            let kind = DiagnosticKind::LookAlike { character };
            self.report.add_as(Severity::Warning, at, kind);
        }
        let hooks = &mut self.interface.plain.hooks;
        let hooks = match key {
            Key::PreUp => &mut hooks.pre_up,
            Key::PostUp => &mut hooks.post_up,
            Key::PreDown => &mut hooks.pre_down,
            _ => &mut hooks.post_down,
        };
        hooks.push(command.text.to_owned());
    }

    /// Reports the first character that looks like another one. Returns true if there is one.
    fn looks_alike(&mut self, piece: Piece<'a>) -> bool {
        let found = piece.find(is_look_alike);
        if let Some((character, at)) = found {
            self.report.add(at, DiagnosticKind::LookAlike { character });
        }
        found.is_some()
    }

    fn is_quoted(&mut self, key: Key, value: Piece<'a>) -> bool {
        let quoted = value.find(|c| matches!(c, '"' | '\'' | '`'));
        if let Some((_, at)) = quoted {
            self.report.add(at, DiagnosticKind::Quoted { key });
        }
        quoted.is_some()
    }

    /// Returns the key that was probably meant. The search takes as long as many lines, so it is
    /// skipped once the report is full.
    fn meant(&self, word: &str) -> Option<Key> {
        let told = !self.report.is_full();
        told.then(|| word::nearest(word, self.section())).flatten()
    }

    fn section(&self) -> Option<Section> {
        match self.section {
            At::Nowhere | At::Unknown => None,
            At::Interface => Some(Section::Interface),
            At::Peer(_) => Some(Section::Peer),
        }
    }

    /// Records a key whose invalid value is reported, so that it is not reported as missing too.
    fn note(&mut self, key: Key, value: Piece<'a>) {
        match &mut self.section {
            _ if key.is_of_tunnel() => self.transparent.seen.note(key, value.number),
            At::Interface => self.interface.seen.note(key, value.number),
            At::Peer(peer) => peer.seen.note(key, value.number),
            At::Nowhere | At::Unknown => None,
        };
    }

    /// Records the key that was probably meant, for the same reason.
    fn note_mistyped(&mut self, meant: Option<Key>) {
        match (&mut self.section, meant) {
            (At::Interface, Some(key)) => self.interface.seen.note_mistyped(key),
            (At::Peer(peer), Some(key)) => peer.seen.note_mistyped(key),
            _ => {}
        }
    }

    fn finish_peer(&mut self) {
        let At::Peer(peer) = mem::replace(&mut self.section, At::Unknown) else {
            return;
        };
        let report = &mut self.report;
        peer.check(report);
        let Some((public_key, at)) = peer.public_key else {
            return;
        };
        match self.public_keys.get(&public_key.0) {
            Some(&first) => report.add(at, DiagnosticKind::RepeatedPeer { first }),
            None => {
                self.public_keys.insert(public_key.0, at.number);
            }
        }
        self.public_pieces.push((public_key, at));
        let number = self.peers.len();
        self.preshared_pieces
            .extend(peer.preshared_key_at.map(|at| (number, at)));
        self.pq_pieces
            .extend(peer.pq_public_key_at.map(|at| (number, at)));
        push(
            &mut self.peers,
            Peer {
                public_key,
                // A move would leave a copy of the key in freed memory.
                preshared_key: peer.preshared_key.clone(),
                preshared_key_file: peer.preshared_key_file,
                pq_public_key: peer.pq_public_key,
                post_quantum: peer.post_quantum,
                endpoint: peer.endpoint,
                allowed_ips: peer.allowed_ips,
                disallowed_ips: peer.disallowed_ips.into_iter().map(|(ip, _)| ip).collect(),
                persistent_keepalive: peer.persistent_keepalive,
                line: peer.header.number,
            },
        );
    }
}

/// Adds a peer.
///
/// Reallocation would leave copies of preshared keys in freed memory. So growing clones them, and
/// drops the old ones in place, which zeroises them.
fn push(peers: &mut Vec<Peer>, peer: Peer) {
    if peers.len() == peers.capacity() {
        let mut grown = Vec::with_capacity((peers.len() * 2).max(4));
        grown.extend(peers.iter_mut().map(|peer| Peer {
            public_key: peer.public_key,
            preshared_key: peer.preshared_key.clone(),
            preshared_key_file: peer.preshared_key_file.take(),
            pq_public_key: peer.pq_public_key.take(),
            post_quantum: peer.post_quantum,
            endpoint: peer.endpoint.take(),
            allowed_ips: mem::take(&mut peer.allowed_ips),
            disallowed_ips: mem::take(&mut peer.disallowed_ips),
            persistent_keepalive: peer.persistent_keepalive,
            line: peer.line,
        }));
        *peers = grown;
    }
    peers.push(peer);
}
