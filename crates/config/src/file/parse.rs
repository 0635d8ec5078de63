//! The parser: one pass over the lines, then checks of the whole file.

mod checks;

use core::mem;
use std::collections::HashMap;

use ipnet::IpNet;
use taupe_protocol::key::{KEY_LEN, PublicKey};

use super::diagnostic::{DiagnosticKind, Severity};
use super::draft::{InterfaceDraft, PeerDraft};
use super::foreign::ForeignKeys;
use super::key_file::{KeyFileProblem, KeyFiles, KeyPaths};
use super::keys::{self, Key, KeyName, Section};
use super::line::{Span, is_blank, lines, quotable, utf8, without_byte_order_mark};
use super::look_alike::{intended_key, is_look_alike};
use super::report::Report;
use super::transparent::TransparentDraft;
use super::{Dialect, File, MAX_FILE, MAX_LINE, Parsed, Peer};
use crate::application::ApplicationError;

/// Prefix of lines that are comments to all programs but Taupe and `WireSock`.
const WIRESOCK: &str = "#@ws:";

/// Prefixes of lines that are comments to other programs but not to Taupe.
pub(super) const COMMENT_PREFIXES: [&str; 2] = [WIRESOCK, taupe_uapi::show::COMMENT_PREFIX];

/// Parses a file and reports all its errors.
///
/// Takes time and memory in proportion to the text. The text may contain secrets: its owner must
/// zeroise it.
///
/// Key files count as unreadable: see [`parse_with`].
#[must_use]
pub fn parse(text: &[u8], dialect: Dialect) -> Parsed {
    parse_with(text, dialect, &|_| Err(KeyFileProblem::NoFileAccess))
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
        parser.report.add(Span::new("", 1), DiagnosticKind::Utf16);
    } else if text.len() > MAX_FILE {
        parser
            .report
            .add(Span::new("", 1), DiagnosticKind::FileTooLong);
    } else {
        for (number, line) in lines(without_byte_order_mark(text)) {
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
        .map(|span| (span.number, span.column()));
    Parsed {
        file: (!report.has_errors()).then(|| File {
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
    section: CurrentSection<'a>,
    interface: InterfaceDraft<'a>,
    transparent: TransparentDraft<'a>,
    /// Number of `[Peer]` sections, including invalid ones.
    peer_sections: usize,
    peers: Vec<Peer>,
    /// Lines of the peers' public keys.
    public_keys: HashMap<[u8; KEY_LEN], usize>,
    /// Positions of the public keys.
    public_key_spans: Vec<(PublicKey, Span<'a>)>,
    /// Positions of the preshared keys, with the index of the peer.
    preshared_key_spans: Vec<(usize, Span<'a>)>,
    /// Positions of the ML-KEM keys, with the index of the peer.
    pq_key_spans: Vec<(usize, Span<'a>)>,
    /// Index of the peer and line for each allowed network.
    allowed: HashMap<IpNet, (usize, usize)>,
}

/// Section of a line.
enum CurrentSection<'a> {
    /// Before the first section.
    BeforeFirst,
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
            section: CurrentSection::BeforeFirst,
            interface: InterfaceDraft::default(),
            transparent: TransparentDraft::default(),
            peer_sections: 0,
            peers: Vec::new(),
            public_keys: HashMap::new(),
            public_key_spans: Vec::new(),
            preshared_key_spans: Vec::new(),
            pq_key_spans: Vec::new(),
            allowed: HashMap::new(),
        }
    }

    fn line(&mut self, number: usize, bytes: &'a [u8]) {
        let (text, is_utf8) = utf8(bytes);
        let line = Span::new(text, number);
        if bytes.len() > MAX_LINE {
            return self.report.add(line, DiagnosticKind::LineTooLong);
        }
        if let Some((_, nul)) = line.find(|c| c == '\0') {
            return self.report.add(nul, DiagnosticKind::NulByte);
        }
        let prefix = self.comment_prefix(line.trim().text);
        let rest = prefix.map_or(line, |prefix| line.trim().after(prefix.len()));
        if self.dialect == Dialect::WgQuick && prefix.is_some() {
            return self.comment_of_taupe(rest);
        }
        let comment = rest.split_once('#');
        let body = comment.map_or(rest, |(body, _)| body).trim();
        let not_utf8 = |report: &mut Report| {
            report.add(line.after(line.text.len()), DiagnosticKind::NotUtf8);
        };
        // Invalid UTF-8 is allowed in comments.
        if !is_utf8 && comment.is_none() {
            return not_utf8(&mut self.report);
        }
        if body.text.is_empty() {
            if let (CurrentSection::Peer(peer), Some((_, comment))) = (&mut self.section, comment) {
                peer.comment(comment);
            }
            return;
        }
        let seen = body.text.trim_start_matches(is_look_alike);
        if seen.starts_with('[') && prefix.is_none() {
            return self.header(body);
        }
        for begin in [";", "//"] {
            if body.text.starts_with(begin) && prefix != Some(WIRESOCK) {
                let kind = DiagnosticKind::ForeignComment { mark: begin };
                return self.report.add(body, kind);
            }
        }
        let Some((name, text)) = body.split_once('=') else {
            return self.no_equals(body, prefix);
        };
        let Some(key) = self.key(name.trim(), body, prefix) else {
            return;
        };
        if let CurrentSection::Peer(peer) = &mut self.section {
            peer.take_comment_name();
        }
        if key.is_hook() {
            // A hook is a command, in which `#` need not begin a comment.
            let command = rest.split_once('=').map_or(text, |(_, command)| command);
            if !is_utf8 {
                return not_utf8(&mut self.report);
            }
            return self.hook(key, command.trim());
        }
        let value = text.trim();
        if value.text.is_empty() {
            self.record(key, value);
            return self.report.add(body, DiagnosticKind::NoValue { key });
        }
        // Names may have such characters.
        let is_typed_wrong =
            key != Key::Name && (self.looks_alike(value) || self.is_quoted(key, value));
        if is_typed_wrong || self.key_paths.omit(key, value) {
            self.record(key, value);
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
            self.record(key, value);
            return self.report.add(value.after(value.text.len()), kind);
        }
        match &mut self.section {
            CurrentSection::BeforeFirst | CurrentSection::Unknown => {}
            section if key.is_transparent_mode() => {
                let in_peer = matches!(section, CurrentSection::Peer(_));
                let report = &mut self.report;
                self.transparent.value(key, value, prefix, in_peer, report);
            }
            CurrentSection::Interface => {
                let report = &mut self.report;
                self.interface.value(key, value, self.key_paths, report);
            }
            CurrentSection::Peer(peer) => {
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
    fn comment_prefix(&self, line: &str) -> Option<&'static str> {
        let prefix = COMMENT_PREFIXES
            .into_iter()
            .find(|prefix| line.starts_with(prefix))?;
        let is_read = match self.dialect {
            Dialect::Taupe | Dialect::WgQuick => true,
            Dialect::Wg => false,
            Dialect::Setconf => {
                let name = line.get(prefix.len()..)?.split('=').next()?;
                matches!(keys::find(name.trim_matches(is_blank)),
                    Some(KeyName::Known(key)) if key.is_post_quantum())
            }
        };
        is_read.then_some(prefix)
    }

    /// Reports a line that Taupe reads and `wg-quick` ignores.
    fn comment_of_taupe(&mut self, rest: Span<'a>) {
        let name = rest.split_once('=').map_or(rest, |(name, _)| name).trim();
        if let Some(KeyName::Known(key)) = keys::find(name.text)
            && (key.is_taupe_only() || key == Key::DisallowedIps)
        {
            let kind = DiagnosticKind::NotForWgQuick { key, comment: true };
            self.report.add(name, kind);
        }
    }

    /// Handles a line that begins with `[`.
    fn header(&mut self, body: Span<'a>) {
        let text = body.clean();
        let section = if self.looks_alike(body) {
            keys::nearest_section(&text)
        } else if text.eq_ignore_ascii_case("[Interface]") {
            Some(Section::Interface)
        } else if text.eq_ignore_ascii_case("[Peer]") {
            Some(Section::Peer)
        } else {
            let meant = keys::nearest_section(&text);
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
                    Some(Span { number: first, .. }) => self
                        .report
                        .add(body, DiagnosticKind::RepeatedInterface { first }),
                    None => self.interface.header = Some(body),
                }
                CurrentSection::Interface
            }
            Some(Section::Peer) => {
                self.peer_sections += 1;
                CurrentSection::Peer(Box::new(PeerDraft::new(body, self.key_paths)))
            }
            None => CurrentSection::Unknown,
        };
    }

    /// Handles a line without `=`.
    fn no_equals(&mut self, body: Span<'a>, prefix: Option<&str>) {
        if matches!(self.section, CurrentSection::Unknown) {
            return;
        }
        let end = body.text.find(|c| is_blank(c) || c == ':');
        let word = body.text.get(..end.unwrap_or(body.text.len()));
        let word = word.unwrap_or_default();
        let meant = intended_key(body.text).or_else(|| self.meant(word));
        let is_known = matches!(keys::find(word), Some(KeyName::Known(_)));
        if prefix == Some(WIRESOCK) && !is_known {
            return self.ignored(body, word, meant);
        }
        self.record_mistyped(meant);
        if self.looks_alike(body) {
            return;
        }
        let name = quotable(word);
        self.report
            .add(body, DiagnosticKind::NotKeyValue { name, meant });
    }

    /// Reports a comment for `WireSock` with a key that Taupe does not know.
    fn ignored(&mut self, body: Span<'a>, name: &str, meant: Option<Key>) {
        let name = quotable(name);
        self.report
            .add(body, DiagnosticKind::Ignored { name, meant });
    }

    /// Returns the key of this name, if the section allows it. A line with a `prefix` is a comment to
    /// other programs.
    fn key(&mut self, name: Span<'a>, body: Span<'a>, prefix: Option<&str>) -> Option<Key> {
        if matches!(self.section, CurrentSection::Unknown) {
            return None;
        }
        let section = self.section();
        let is_wiresock = prefix == Some(WIRESOCK);
        let kind = match keys::find(&name.clean()) {
            Some(KeyName::Foreign(name, what)) => {
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
            Some(KeyName::Known(key)) if !key.is_known_to_wg() && name.text.contains(is_blank) => {
                DiagnosticKind::UnknownKey {
                    name: quotable(name.text),
                    meant: Some(key),
                }
            }
            Some(KeyName::Known(key))
                if self.dialect == Dialect::WgQuick && key.is_taupe_only() =>
            {
                DiagnosticKind::NotForWgQuick {
                    key,
                    comment: false,
                }
            }
            Some(KeyName::Known(key)) => match section {
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
            self.record_mistyped(*meant);
        }
        self.report.add(body, kind);
        None
    }

    /// Reports a name with a character that no key has. Suppresses the report that the key that was
    /// meant is missing.
    fn unusual(&mut self, name: Span<'a>, body: Span<'a>, is_wiresock: bool) {
        let known = intended_key(name.text);
        let meant = known.or_else(|| self.meant(name.text));
        if is_wiresock && known.is_none() {
            return self.ignored(body, name.text, meant);
        }
        self.record_mistyped(meant);
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

    fn hook(&mut self, key: Key, command: Span<'a>) {
        if command.text.is_empty() {
            return self.report.add(command, DiagnosticKind::NoValue { key });
        }
        // The characters may be intended, for example in the output of a command.
        if let Some((character, at)) = command.find(is_look_alike) {
            let kind = DiagnosticKind::LookAlike { character };
            self.report.add_as(Severity::Warning, at, kind);
        }
        let hooks = &mut self.interface.values.hooks;
        let hooks = match key {
            Key::PreUp => &mut hooks.pre_up,
            Key::PostUp => &mut hooks.post_up,
            Key::PreDown => &mut hooks.pre_down,
            _ => &mut hooks.post_down,
        };
        hooks.push(command.text.to_owned());
    }

    /// Reports the first character that looks like another one. Returns true if there is one.
    fn looks_alike(&mut self, span: Span<'a>) -> bool {
        let found = span.find(is_look_alike);
        if let Some((character, at)) = found {
            self.report.add(at, DiagnosticKind::LookAlike { character });
        }
        found.is_some()
    }

    fn is_quoted(&mut self, key: Key, value: Span<'a>) -> bool {
        let quoted = value.find(|c| matches!(c, '"' | '\'' | '`'));
        if let Some((_, at)) = quoted {
            self.report.add(at, DiagnosticKind::Quoted { key });
        }
        quoted.is_some()
    }

    /// Returns the key that was probably meant. The search takes as long as many lines, so it is
    /// skipped once the report is full.
    fn meant(&self, name: &str) -> Option<Key> {
        let is_searched = !self.report.is_full();
        is_searched
            .then(|| keys::nearest(name, self.section()))
            .flatten()
    }

    fn section(&self) -> Option<Section> {
        match self.section {
            CurrentSection::BeforeFirst | CurrentSection::Unknown => None,
            CurrentSection::Interface => Some(Section::Interface),
            CurrentSection::Peer(_) => Some(Section::Peer),
        }
    }

    /// Records a key whose invalid value is reported, so that it is not reported as missing too.
    fn record(&mut self, key: Key, value: Span<'a>) {
        match &mut self.section {
            _ if key.is_transparent_mode() => self.transparent.present.record(key, value.number),
            CurrentSection::Interface => self.interface.present.record(key, value.number),
            CurrentSection::Peer(peer) => peer.present.record(key, value.number),
            CurrentSection::BeforeFirst | CurrentSection::Unknown => None,
        };
    }

    /// Records the key that was probably meant, for the same reason.
    fn record_mistyped(&mut self, meant: Option<Key>) {
        match (&mut self.section, meant) {
            (CurrentSection::Interface, Some(key)) => self.interface.present.record_mistyped(key),
            (CurrentSection::Peer(peer), Some(key)) => peer.present.record_mistyped(key),
            _ => {}
        }
    }

    fn finish_peer(&mut self) {
        let CurrentSection::Peer(peer) = mem::replace(&mut self.section, CurrentSection::Unknown)
        else {
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
        self.public_key_spans.push((public_key, at));
        let number = self.peers.len();
        self.preshared_key_spans
            .extend(peer.preshared_key_at.map(|at| (number, at)));
        self.pq_key_spans
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
                name: peer.name.or(peer.comment_name),
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
            name: peer.name.take(),
            line: peer.line,
        }));
        *peers = grown;
    }
    peers.push(peer);
}
