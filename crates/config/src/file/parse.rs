//! The parser: one pass over the lines, then what concerns the whole.

use core::mem;
use std::collections::HashMap;

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::{KEY_LEN, PresharedKey, PrivateKey, PublicKey};

use super::diagnostic::{DiagnosticKind, Severity};
use super::fix::is_look_alike;
use super::line::{Piece, is_blank, lines, quotable, utf8, without_mark};
use super::report::Report;
use super::seen::Seen;
use super::value::{self, Value};
use super::word::{self, Key, Section, Word};
use super::{
    Dialect, Endpoint, File, Interface, InterfaceAddress, MAX_FILE, MAX_LINE, Parsed, Peer, Table,
};
use crate::key::Encoding;
use crate::networks::Addresses;
use crate::prefix::Prefix;

/// What a line of this form says, which to others is a comment, Taupe
/// understands as WireSock does.
pub(super) const EXTENSION: &str = "#@ws:";

/// Reads a file, and finds everything that is wrong with it.
///
/// Takes time and memory in proportion to the text, which may hold secrets:
/// zeroising it is up to its owner.
#[must_use]
pub fn parse(text: &[u8], dialect: Dialect) -> Parsed {
    let mut parser = Parser::new(dialect);
    let utf16 = matches!(
        text,
        // With a mark, and without one: every other byte of ASCII is NUL.
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
        }),
        diagnostics: report.finish(),
        private_key_at,
    }
}

struct Parser<'a> {
    dialect: Dialect,
    report: Report,
    section: At<'a>,
    interface: InterfaceDraft<'a>,
    peers: Vec<Peer>,
    /// The peers' public keys, each with its line.
    public_keys: HashMap<[u8; KEY_LEN], usize>,
    /// Where the public keys stand, to tell which of them is impossible.
    public_pieces: Vec<(PublicKey, Piece<'a>)>,
    /// Where each preshared key stands, by the number of its peer.
    preshared_pieces: Vec<(usize, Piece<'a>)>,
    /// Each allowed network, with the peer that has it and its line.
    allowed: HashMap<Prefix, (usize, usize)>,
}

/// Where a line stands.
enum At<'a> {
    /// Above the first section.
    Nowhere,
    /// In a section that there is not, which has been told.
    Unknown,
    Interface,
    Peer(Box<PeerDraft<'a>>),
}

#[derive(Default)]
struct InterfaceDraft<'a> {
    /// The first `[Interface]`.
    header: Option<Piece<'a>>,
    seen: Seen,
    plain: Interface,
    private_key_at: Option<Piece<'a>>,
    /// The lines of the addresses.
    address_lines: HashMap<InterfaceAddress, usize>,
    mtu: Option<(u32, Piece<'a>)>,
    table: Option<Table>,
    save_config: Option<bool>,
    ipv6: bool,
    /// Whether `DNS` has a server, perhaps a wrong one.
    dns_server: bool,
    /// The first search domain.
    dns_search_at: Option<Piece<'a>>,
}

impl InterfaceDraft<'_> {
    fn finish(self) -> Interface {
        Interface {
            mtu: self.mtu.map(|(mtu, _)| mtu),
            table: self.table.unwrap_or_default(),
            save_config: self.save_config.unwrap_or_default(),
            ..self.plain
        }
    }
}

struct PeerDraft<'a> {
    header: Piece<'a>,
    seen: Seen,
    public_key: Option<(PublicKey, Piece<'a>)>,
    preshared_key: Option<PresharedKey>,
    preshared_key_at: Option<Piece<'a>>,
    endpoint: Option<Endpoint>,
    allowed_ips: Vec<Prefix>,
    disallowed_ips: Vec<(Prefix, Piece<'a>)>,
    persistent_keepalive: Option<u16>,
}

impl<'a> Parser<'a> {
    fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            report: Report::new(dialect),
            section: At::Nowhere,
            interface: InterfaceDraft::default(),
            peers: Vec::new(),
            public_keys: HashMap::new(),
            public_pieces: Vec::new(),
            preshared_pieces: Vec::new(),
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
        let extension = match self.dialect {
            Dialect::Quick => line.trim().text.strip_prefix(EXTENSION).is_some(),
            Dialect::Wg => false,
        };
        let rest = if extension {
            line.trim().after(EXTENSION.len())
        } else {
            line
        };
        let comment = rest.split_once('#');
        let body = comment.map_or(rest, |(body, _)| body).trim();
        let not_utf8 = |report: &mut Report| {
            report.add(line.after(line.text.len()), DiagnosticKind::NotUtf8);
        };
        // What a comment holds matters to nobody.
        if !whole && comment.is_none() {
            return not_utf8(&mut self.report);
        }
        if body.text.is_empty() {
            return;
        }
        if body.text.starts_with('[') && !extension {
            return self.header(body);
        }
        for mark in [";", "//"] {
            if body.text.starts_with(mark) {
                return self
                    .report
                    .add(body, DiagnosticKind::ForeignComment { mark });
            }
        }
        let Some((name, text)) = body.split_once('=') else {
            return self.no_equals(body);
        };
        let Some(key) = self.key(name.trim(), body) else {
            return;
        };
        if key.is_hook() {
            // A hook is a command, where # need not begin a comment.
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
        if self.looks_alike(value) || self.is_quoted(key, value) {
            self.note(key, value);
            return;
        }
        match &mut self.section {
            At::Interface => self.interface.value(key, value, &mut self.report),
            At::Peer(peer) => {
                peer.value(
                    key,
                    value,
                    &mut self.report,
                    &mut self.allowed,
                    self.peers.len(),
                );
            }
            At::Nowhere | At::Unknown => {}
        }
    }

    /// A line that begins with `[`.
    fn header(&mut self, body: Piece<'a>) {
        if self.looks_alike(body) {
            self.finish_peer();
            self.section = At::Unknown;
            return;
        }
        let text = body.clean();
        let section = if text.eq_ignore_ascii_case("[Interface]") {
            Some(Section::Interface)
        } else if text.eq_ignore_ascii_case("[Peer]") {
            Some(Section::Peer)
        } else {
            let meant = word::nearest_section(&text);
            let name = quotable(body.text);
            self.report
                .add(body, DiagnosticKind::UnknownSection { name, meant });
            // What follows is most likely what it would be below the right one.
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
            Some(Section::Peer) => At::Peer(Box::new(PeerDraft::new(body))),
            None => At::Unknown,
        };
    }

    /// A line without `=`.
    fn no_equals(&mut self, body: Piece<'a>) {
        if matches!(self.section, At::Unknown) || self.looks_alike(body) {
            return;
        }
        let end = body.text.find(|c| is_blank(c) || c == ':');
        let word = body.text.get(..end.unwrap_or(body.text.len()));
        let word = word.unwrap_or_default();
        let meant = match word::find(word) {
            Some(Word::Known(key)) => Some(key),
            _ => self.meant(word),
        };
        self.note_mistyped(meant);
        let name = quotable(word);
        self.report
            .add(body, DiagnosticKind::NotKeyValue { name, meant });
    }

    /// Which key `name` is, if it may stand here.
    fn key(&mut self, name: Piece<'a>, body: Piece<'a>) -> Option<Key> {
        if matches!(self.section, At::Unknown) || self.looks_alike(name) {
            return None;
        }
        let section = self.section();
        let kind = match word::find(&name.clean()) {
            _ if name.text.is_empty() => DiagnosticKind::NotKeyValue {
                name: None,
                meant: None,
            },
            // `wg` reads over blanks everywhere, `wg-quick` does not.
            Some(Word::Known(key)) if !key.known_to_wg() && name.text.contains(is_blank) => {
                DiagnosticKind::UnknownKey {
                    name: quotable(name.text),
                    meant: Some(key),
                }
            }
            Some(Word::Known(key)) => match section {
                None => DiagnosticKind::BeforeSection {
                    name: Some(key.name().to_owned()),
                    key: Some(key),
                },
                Some(_) if self.dialect == Dialect::Wg && !key.known_to_wg() => {
                    DiagnosticKind::NotForWg { key }
                }
                Some(section) if section != key.section() => DiagnosticKind::Misplaced { key },
                Some(_) => return Some(key),
            },
            Some(Word::Foreign(name, what)) => DiagnosticKind::Foreign { name, what },
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

    fn hook(&mut self, key: Key, command: Piece<'a>) {
        if command.text.is_empty() {
            return self.report.add(command, DiagnosticKind::NoValue { key });
        }
        // They may be meant, in what a command prints.
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

    /// Tells of the first character that is not what it looks like.
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

    /// The key that was probably meant. To find it takes as long as to read many
    /// lines, so it is not looked for when nobody will be told.
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

    /// Notes a key whose value is told to be wrong, so that it is not also told
    /// to be missing.
    fn note(&mut self, key: Key, value: Piece<'a>) {
        match &mut self.section {
            At::Interface => self.interface.seen.note(key, value.number),
            At::Peer(peer) => peer.seen.note(key, value.number),
            At::Nowhere | At::Unknown => None,
        };
    }

    /// Notes the key that was probably meant, likewise.
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
        self.interface.ipv6 |= peer.allowed_ips.iter().any(|ip| ip.address().is_ipv6());
        push(
            &mut self.peers,
            Peer {
                public_key,
                // Moving it would leave it behind where it was.
                preshared_key: peer.preshared_key.clone(),
                endpoint: peer.endpoint,
                allowed_ips: peer.allowed_ips,
                disallowed_ips: peer.disallowed_ips.into_iter().map(|(ip, _)| ip).collect(),
                persistent_keepalive: peer.persistent_keepalive,
                line: peer.header.number,
            },
        );
    }

    fn finish_file(&mut self) {
        let report = &mut self.report;
        self.interface.check(self.dialect, report);
        let private = self.interface.plain.private_key.as_ref();
        let private_line = self.interface.private_key_at.map(|at| at.number);
        if let (Some(private), Some(line)) = (private, private_line) {
            let own = PublicKey(default_provider().dh.public(private.expose()));
            // The same list of peers on every host of a network is common, and
            // the kernel leaves out of it what is the host itself.
            let shared = self.public_pieces.iter().any(|(key, _)| *key != own);
            for (public_key, at) in &self.public_pieces {
                if PrivateKey::new(public_key.0).as_ref() == Some(private) {
                    report.add(*at, DiagnosticKind::PublicKeyIsPrivate { private: line });
                } else if *public_key == own {
                    let kind = DiagnosticKind::OwnPeer { private: line };
                    if shared {
                        report.add_as(Severity::Warning, *at, kind);
                    } else {
                        report.add(*at, kind);
                    }
                }
            }
            for peer in &mut self.peers {
                if peer.public_key == own && report.dialect() == Dialect::Quick {
                    // Taking it out would move others, and leave their keys.
                    peer.allowed_ips.clear();
                    peer.disallowed_ips.clear();
                    peer.endpoint = None;
                }
            }
        }
        let private = private.map(|key| PresharedKey::new(*key.expose()));
        for (number, at) in &self.preshared_pieces {
            let peer = self.peers.get(*number);
            let Some(preshared_key) = peer.and_then(|peer| peer.preshared_key.as_ref()) else {
                continue;
            };
            if let (true, Some(line)) = (private.as_ref() == Some(preshared_key), private_line) {
                report.add(*at, DiagnosticKind::PresharedKeyIsPrivate { private: line });
            } else if let Some(&public) = self.public_keys.get(preshared_key.expose()) {
                report.add(*at, DiagnosticKind::PresharedKeyIsPublic { public });
            }
        }
    }
}

impl<'a> InterfaceDraft<'a> {
    fn value(&mut self, key: Key, value: Piece<'a>, report: &mut Report) {
        let first = self.seen.note(key, value.number);
        let plain = &mut self.plain;
        match key {
            Key::PrivateKey => {
                let read = value::key(key, value, Encoding::private_key);
                if let Some(read) = taken(read, report) {
                    if read.is_none() && report.dialect() == Dialect::Quick {
                        report.add(value, DiagnosticKind::ZeroKey { key });
                    }
                    repeated(key, value, first, plain.private_key == read, report);
                    plain.private_key = read;
                    self.private_key_at = Some(value);
                }
            }
            Key::ListenPort => {
                set(
                    &mut plain.listen_port,
                    key,
                    value,
                    first,
                    value::listen_port(value),
                    report,
                );
            }
            Key::FwMark => set(
                &mut plain.fwmark,
                key,
                value,
                first,
                value::fwmark(value),
                report,
            ),
            Key::Table => set(
                &mut self.table,
                key,
                value,
                first,
                value::table(value),
                report,
            ),
            Key::SaveConfig => {
                let read = value::save_config(value);
                set(&mut self.save_config, key, value, first, read, report);
            }
            Key::Mtu => {
                if let Some((mtu, problem)) = taken(value::mtu(value), report) {
                    if let Some(problem) = problem {
                        report.add(value, problem);
                    }
                    let same = self.mtu.is_some_and(|(before, _)| before == mtu);
                    repeated(key, value, first, same, report);
                    self.mtu = Some((mtu, value));
                }
            }
            Key::Address => {
                for part in elements(value) {
                    let read = taken(value::interface_address(part), report);
                    let Some(address) = read else { continue };
                    if let Some(what) = value::doubt(address) {
                        report.add(part, DiagnosticKind::Unusable { key, what });
                    }
                    self.ipv6 |= address.address.is_ipv6();
                    match self.address_lines.get(&address) {
                        Some(&first) => {
                            report.add(part, DiagnosticKind::RepeatedAddress { first });
                        }
                        None => {
                            self.address_lines.insert(address, part.number);
                            plain.addresses.push(address);
                        }
                    }
                }
            }
            Key::Dns => {
                for part in elements(value) {
                    match taken(value::dns(part), report) {
                        Some(value::Dns::Server(server)) => {
                            self.dns_server = true;
                            if let Some(what) = value::no_host(server) {
                                report.add(part, DiagnosticKind::Unusable { key, what });
                            }
                            plain.dns.push(server);
                        }
                        Some(value::Dns::Search(domain)) => {
                            self.dns_search_at.get_or_insert(part);
                            plain.dns_search.push(domain);
                        }
                        None => self.dns_server = true,
                    }
                }
            }
            // Hooks are not values, and the rest belongs to peers.
            _ => {}
        }
    }

    fn check(&self, dialect: Dialect, report: &mut Report) {
        if dialect == Dialect::Wg {
            return;
        }
        let Some(header) = self.header else {
            return report.add(Piece::new("", 1), DiagnosticKind::NoInterface);
        };
        // A hook may read the key from a file or a password store.
        let hooks = &self.plain.hooks;
        let set_by_hook = hooks.pre_up.iter().chain(&hooks.post_up).any(|hook| {
            ["private-key", "setconf", "addconf", "syncconf"]
                .iter()
                .any(|word| hook.contains(word))
        });
        if self.seen.lacks(Key::PrivateKey) && !set_by_hook {
            report.add(header, DiagnosticKind::NoPrivateKey);
        }
        if let (Some(at), false) = (self.dns_search_at, self.dns_server) {
            report.add(at, DiagnosticKind::NoDnsServer);
        }
        let least = value::LEAST_MTU_IPV6;
        if let Some((mtu, at)) = self.mtu
            && mtu < least
            && self.ipv6
        {
            let ipv6 = true;
            report.add(at, DiagnosticKind::MtuTooSmall { mtu, least, ipv6 });
        }
    }
}

impl<'a> PeerDraft<'a> {
    fn new(header: Piece<'a>) -> Self {
        Self {
            header,
            seen: Seen::default(),
            public_key: None,
            preshared_key: None,
            preshared_key_at: None,
            endpoint: None,
            allowed_ips: Vec::new(),
            disallowed_ips: Vec::new(),
            persistent_keepalive: None,
        }
    }

    /// `owners` are the networks that peers have, this one being `number`.
    fn value(
        &mut self,
        key: Key,
        value: Piece<'a>,
        report: &mut Report,
        owners: &mut HashMap<Prefix, (usize, usize)>,
        number: usize,
    ) {
        let first = self.seen.note(key, value.number);
        match key {
            Key::PublicKey => {
                if let Some(read) = taken(value::key(key, value, Encoding::public_key), report) {
                    if read.0 == [0; KEY_LEN] {
                        report.add(value, DiagnosticKind::ZeroKey { key });
                    }
                    let same = self.public_key.is_some_and(|(before, _)| before == read);
                    repeated(key, value, first, same, report);
                    self.public_key = Some((read, value));
                }
            }
            Key::PresharedKey => {
                let read = value::key(key, value, Encoding::preshared_key);
                if let Ok(read) = &read
                    && !read.is_set()
                {
                    report.add(value, DiagnosticKind::ZeroKey { key });
                }
                set(&mut self.preshared_key, key, value, first, read, report);
                self.preshared_key_at = Some(value);
            }
            Key::Endpoint => {
                if let Some((endpoint, doubt)) = taken(value::endpoint(value), report) {
                    if let Some(doubt) = doubt {
                        report.add(value, doubt);
                    }
                    set(&mut self.endpoint, key, value, first, Ok(endpoint), report);
                }
            }
            Key::PersistentKeepalive => {
                let read = value::keepalive(value);
                set(
                    &mut self.persistent_keepalive,
                    key,
                    value,
                    first,
                    read,
                    report,
                );
            }
            Key::AllowedIps => {
                for part in value.split(|c| c == ',') {
                    let Some(network) = network(key, part, report) else {
                        continue;
                    };
                    self.allowed_ips.push(network);
                    match owners.insert(network, (number, part.number)) {
                        Some((owner, first)) if owner != number => {
                            report.add(part, DiagnosticKind::Overlap { network, first });
                        }
                        _ => {}
                    }
                }
            }
            Key::DisallowedIps => {
                for part in value.split(|c| c == ',') {
                    let network = network(key, part, report);
                    self.disallowed_ips
                        .extend(network.map(|network| (network, part)));
                }
            }
            _ => {}
        }
    }

    fn check(&self, report: &mut Report) {
        if self.seen.lacks(Key::PublicKey) {
            report.add(self.header, DiagnosticKind::NoPublicKey);
        }
        if self.seen.lacks(Key::AllowedIps) {
            report.add(self.header, DiagnosticKind::NoAllowedIps);
        }
        if self.disallowed_ips.is_empty() {
            return;
        }
        let allowed = Addresses::of(&self.allowed_ips);
        for (network, at) in &self.disallowed_ips {
            if !allowed.touch(*network) {
                let network = *network;
                report.add(*at, DiagnosticKind::DisallowedElsewhere { network });
            }
        }
        let disallowed: Vec<Prefix> = self.disallowed_ips.iter().map(|(ip, _)| *ip).collect();
        let disallowed = Addresses::of(&disallowed);
        let mut allowed = self.allowed_ips.iter();
        if !self.allowed_ips.is_empty() && allowed.all(|network| disallowed.contain(*network)) {
            report.add(self.header, DiagnosticKind::AllDisallowed);
        }
    }
}

/// One of `AllowedIPs` or `DisallowedIPs`, with what is doubtful told.
fn network(key: Key, part: Piece<'_>, report: &mut Report) -> Option<Prefix> {
    let (network, host_bits) = taken(value::network(key, part), report)?;
    if host_bits {
        report.add(part, DiagnosticKind::HostBits { key, network });
    } else if network.address().is_unspecified() && !part.text.contains('/') {
        report.add(part, DiagnosticKind::SingleUnspecified { network });
    }
    Some(network)
}

/// The elements of a list that commas and blanks separate.
fn elements(value: Piece<'_>) -> impl Iterator<Item = Piece<'_>> {
    value
        .split(value::is_comma_or_blank)
        .filter(|part| !part.text.is_empty())
}

/// The value, or its problem told.
fn taken<T>(read: Value<'_, T>, report: &mut Report) -> Option<T> {
    read.map_err(|(at, kind)| report.add(at, kind)).ok()
}

/// Sets a key that can have one value.
fn set<T: PartialEq>(
    slot: &mut Option<T>,
    key: Key,
    at: Piece<'_>,
    first: Option<usize>,
    read: Value<'_, T>,
    report: &mut Report,
) {
    if let Some(value) = taken(read, report) {
        repeated(key, at, first, slot.as_ref() == Some(&value), report);
        *slot = Some(value);
    }
}

/// Tells of a key that stands in line `first` already.
fn repeated(key: Key, at: Piece<'_>, first: Option<usize>, same: bool, report: &mut Report) {
    if let Some(first) = first {
        report.add(at, DiagnosticKind::Repeated { key, first, same });
    }
}

/// Adds a peer.
///
/// A plain reallocation would leave preshared keys behind in freed memory, so
/// growing copies them and drops, which zeroises, the old ones in place.
fn push(peers: &mut Vec<Peer>, peer: Peer) {
    if peers.len() == peers.capacity() {
        let mut grown = Vec::with_capacity((peers.len() * 2).max(4));
        grown.extend(peers.iter_mut().map(|peer| Peer {
            public_key: peer.public_key,
            preshared_key: peer.preshared_key.clone(),
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
