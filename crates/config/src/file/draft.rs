//! Sections under construction: values read so far, with their positions.

use std::collections::HashMap;

use ipnet::IpNet;
use taupe_protocol::key::{KEY_LEN, PresharedKey, PublicKey};
use taupe_protocol::update::PostQuantum;

use super::diagnostic::DiagnosticKind;
use super::key_file::{self, KeyPaths, SourcedKey};
use super::keys::Key;
use super::line::Span;
use super::peer_name::{self, PeerName};
use super::present_keys::PresentKeys;
use super::report::Report;
use super::value::{self, Value};
use super::{
    Dialect, Endpoint, Hooks, Interface, MIN_IPV6_MTU, Peer, PeerPqKey, Table, carry_ipv6,
};
use taupe_uapi::key::Encoding;
use taupe_uapi::networks::Addresses;

#[derive(Default)]
pub(super) struct InterfaceDraft<'a> {
    /// Header of the first `[Interface]`.
    pub(super) header: Option<Span<'a>>,
    pub(super) present: PresentKeys,
    pub(super) values: Interface,
    pub(super) private_key_at: Option<Span<'a>>,
    pub(super) pq_private_key_at: Option<Span<'a>>,
    /// Lines of the addresses.
    pub(super) address_lines: HashMap<IpNet, usize>,
    pub(super) mtu: Option<(u32, Span<'a>)>,
    pub(super) table: Option<Table>,
    pub(super) save_config: Option<bool>,
    /// True if `DNS` has a server, even an invalid one.
    pub(super) dns_server: bool,
    /// The first search domain.
    pub(super) dns_search_at: Option<Span<'a>>,
}

impl InterfaceDraft<'_> {
    pub(super) fn finish(self) -> Interface {
        Interface {
            mtu: self.mtu.map(|(mtu, _)| mtu),
            table: self.table.unwrap_or_default(),
            save_config: self.save_config.unwrap_or_default(),
            ..self.values
        }
    }
}

pub(super) struct PeerDraft<'a> {
    pub(super) header: Span<'a>,
    pub(super) present: PresentKeys,
    pub(super) public_key: Option<(PublicKey, Span<'a>)>,
    pub(super) preshared_key: Option<PresharedKey>,
    pub(super) preshared_key_file: Option<String>,
    pub(super) preshared_key_at: Option<Span<'a>>,
    pub(super) pq_public_key: Option<PeerPqKey>,
    pub(super) pq_public_key_at: Option<Span<'a>>,
    pub(super) post_quantum: Option<PostQuantum>,
    post_quantum_at: Option<Span<'a>>,
    key_paths: KeyPaths<'a>,
    pub(super) endpoint: Option<Endpoint>,
    pub(super) allowed_ips: Vec<IpNet>,
    pub(super) disallowed_ips: Vec<(IpNet, Span<'a>)>,
    pub(super) persistent_keepalive: Option<u16>,
    pub(super) name: Option<PeerName>,
    /// Name from a comment. [`Self::name`] takes precedence.
    pub(super) comment_name: Option<PeerName>,
    /// Name from a comment after the latest key. It may be above the header of the next peer, so it counts
    /// only if another key follows.
    last_comment_name: Option<PeerName>,
}

impl<'a> InterfaceDraft<'a> {
    pub(super) fn value(
        &mut self,
        key: Key,
        value: Span<'a>,
        key_paths: KeyPaths<'_>,
        report: &mut Report,
    ) {
        let first = self.present.record(key, value.number);
        let values = &mut self.values;
        match key {
            Key::PrivateKey => {
                let read = key_file::key(key, value, key_paths, Encoding::private_key);
                if let Some((read, file)) = secret_key(key, value, read, report) {
                    if read.is_none() && !report.dialect().is_device_only() {
                        report.add(value, DiagnosticKind::ZeroKey { key });
                    }
                    report_repeated(key, value, first, values.private_key == read, report);
                    values.private_key = read;
                    values.private_key_file = file;
                    self.private_key_at = Some(value);
                }
            }
            Key::PqPrivateKey => {
                let read = key_file::key(key, value, key_paths, Encoding::pq_private_key);
                if let Some((read, file)) = secret_key(key, value, read, report) {
                    if read.is_none() {
                        report.add(value, DiagnosticKind::ZeroKey { key });
                    }
                    report_repeated(key, value, first, values.pq_private_key == read, report);
                    values.pq_private_key = read;
                    values.pq_private_key_file = file;
                    self.pq_private_key_at = Some(value);
                }
            }
            Key::ListenPort => {
                set_once(
                    &mut values.listen_port,
                    key,
                    value,
                    first,
                    value::listen_port(value),
                    report,
                );
            }
            Key::FwMark => set_once(
                &mut values.fwmark,
                key,
                value,
                first,
                value::fwmark(value),
                report,
            ),
            Key::Table => set_once(
                &mut self.table,
                key,
                value,
                first,
                value::table(value),
                report,
            ),
            Key::SaveConfig => {
                let read = value::boolean(key, value);
                set_once(&mut self.save_config, key, value, first, read, report);
            }
            Key::Lanes => {
                let read = value::lanes(value);
                set_once(&mut values.lanes, key, value, first, read, report);
            }
            Key::Mtu => {
                if let Some((mtu, problem)) = value_or_report(value::mtu(value), report) {
                    if let Some(problem) = problem {
                        report.add(value, problem);
                    }
                    let same = self.mtu.is_some_and(|(before, _)| before == mtu);
                    report_repeated(key, value, first, same, report);
                    self.mtu = Some((mtu, value));
                }
            }
            Key::Address => {
                for part in list_entries(value) {
                    let read = value_or_report(value::interface_address(part), report);
                    let Some(address) = read else { continue };
                    if let Some(what) = value::unusable_interface_address(address) {
                        report.add(part, DiagnosticKind::Unusable { key, what });
                    }
                    match self.address_lines.get(&address) {
                        Some(&first) => {
                            report.add(part, DiagnosticKind::RepeatedAddress { first });
                        }
                        None => {
                            self.address_lines.insert(address, part.number);
                            values.addresses.push(address);
                        }
                    }
                }
            }
            Key::Dns => {
                for part in list_entries(value) {
                    match value_or_report(value::dns(part), report) {
                        Some(value::Dns::Server(server)) => {
                            self.dns_server = true;
                            if let Some(what) = value::unusable_server_address(server) {
                                report.add(part, DiagnosticKind::Unusable { key, what });
                            }
                            values.dns.push(server);
                        }
                        Some(value::Dns::Search(domain)) => {
                            self.dns_search_at.get_or_insert(part);
                            values.dns_search.push(domain);
                        }
                        None => self.dns_server = true,
                    }
                }
            }
            // Hooks are handled elsewhere, and the other keys belong to peers.
            _ => {}
        }
    }

    pub(super) fn check(&self, dialect: Dialect, report: &mut Report) {
        if dialect.is_device_only() {
            return;
        }
        let Some(header) = self.header else {
            return report.add(Span::new("", 1), DiagnosticKind::NoInterface);
        };
        if self.present.is_missing(Key::PrivateKey) && !is_set_by(&self.values.hooks, "private-key")
        {
            report.add(header, DiagnosticKind::NoPrivateKey);
        }
        if let (Some(at), false) = (self.dns_search_at, self.dns_server) {
            report.add(at, DiagnosticKind::NoDnsServer);
        }
    }

    /// Reports an MTU that would disable IPv6 on the interface.
    pub(super) fn check_mtu(&self, peers: &[Peer], report: &mut Report) {
        let min = MIN_IPV6_MTU;
        if let Some((mtu, at)) = self.mtu
            && mtu < min
            && carry_ipv6(&self.values.addresses, peers)
        {
            let ipv6 = true;
            report.add(at, DiagnosticKind::MtuTooSmall { mtu, min, ipv6 });
        }
    }
}

impl InterfaceDraft<'_> {
    /// Returns true if hybrid handshakes would fail because the interface has no ML-KEM key.
    pub(super) fn lacks_pq_private_key(&self, dialect: Dialect) -> bool {
        // A device may already have one.
        !dialect.is_device_only()
            && self.present.is_missing(Key::PqPrivateKey)
            && !is_set_by(&self.values.hooks, "pq-private-key")
    }
}

/// Returns true if a hook may set a key, for example from a file or a password store.
fn is_set_by(hooks: &Hooks, word: &str) -> bool {
    let words = [word, "setconf", "addconf", "syncconf"];
    let mut hooks = hooks.pre_up.iter().chain(&hooks.post_up);
    hooks.any(|hook| words.iter().any(|word| hook.contains(word)))
}

impl<'a> PeerDraft<'a> {
    pub(super) fn new(header: Span<'a>, key_paths: KeyPaths<'a>) -> Self {
        Self {
            header,
            present: PresentKeys::default(),
            public_key: None,
            preshared_key: None,
            preshared_key_file: None,
            preshared_key_at: None,
            pq_public_key: None,
            pq_public_key_at: None,
            post_quantum: None,
            post_quantum_at: None,
            key_paths,
            endpoint: None,
            allowed_ips: Vec::new(),
            disallowed_ips: Vec::new(),
            persistent_keepalive: None,
            name: None,
            comment_name: None,
            last_comment_name: None,
        }
    }

    /// Reads a comment: the text after `#`.
    pub(super) fn comment(&mut self, comment: Span<'a>) {
        if self.last_comment_name.is_none() {
            self.last_comment_name = peer_name::in_comment(comment.text);
        }
    }

    /// Takes the name of the comments before a key of this peer.
    pub(super) fn take_comment_name(&mut self) {
        let name = self.last_comment_name.take();
        self.comment_name = self.comment_name.take().or(name);
    }

    /// Adds a value. `owners` maps networks to peers and lines; `number` is this peer's.
    pub(super) fn value(
        &mut self,
        key: Key,
        value: Span<'a>,
        report: &mut Report,
        owners: &mut HashMap<IpNet, (usize, usize)>,
        number: usize,
    ) {
        let first = self.present.record(key, value.number);
        match key {
            Key::PublicKey => {
                let read = key_file::key(key, value, KeyPaths::Refuse, Encoding::public_key);
                if let Some(SourcedKey { key: read, .. }) = value_or_report(read, report) {
                    if read.0 == [0; KEY_LEN] {
                        report.add(value, DiagnosticKind::ZeroKey { key });
                    }
                    let same = self.public_key.is_some_and(|(before, _)| before == read);
                    report_repeated(key, value, first, same, report);
                    self.public_key = Some((read, value));
                }
            }
            Key::PresharedKey => {
                let read = key_file::key(key, value, self.key_paths, Encoding::preshared_key);
                if let Some((read, file)) = secret_key(key, value, read, report) {
                    if !read.is_set() {
                        report.add(value, DiagnosticKind::ZeroKey { key });
                    }
                    set_once(&mut self.preshared_key, key, value, first, Ok(read), report);
                    self.preshared_key_file = file;
                }
                self.preshared_key_at = Some(value);
            }
            Key::PqPublicKey => {
                let read = key_file::key(key, value, self.key_paths, Encoding::pq_public_key);
                if let Some(SourcedKey {
                    key: read, file, ..
                }) = value_or_report(read, report)
                {
                    let before = self.pq_public_key.as_ref();
                    let same = before.is_some_and(|before| before.key == read);
                    report_repeated(key, value, first, same, report);
                    self.pq_public_key = Some(PeerPqKey { key: read, file });
                    self.pq_public_key_at = Some(value);
                }
            }
            Key::PostQuantum => {
                let read = value::post_quantum(value);
                set_once(&mut self.post_quantum, key, value, first, read, report);
                self.post_quantum_at = Some(value);
            }
            Key::Endpoint => {
                if let Some((endpoint, warning)) = value_or_report(value::endpoint(value), report) {
                    if let Some(warning) = warning {
                        report.add(value, warning);
                    }
                    set_once(&mut self.endpoint, key, value, first, Ok(endpoint), report);
                }
            }
            Key::PersistentKeepalive => {
                let read = value::keepalive(value);
                set_once(
                    &mut self.persistent_keepalive,
                    key,
                    value,
                    first,
                    read,
                    report,
                );
            }
            Key::Name => {
                let name = PeerName::new(value.text).ok_or((value, DiagnosticKind::Name));
                set_once(&mut self.name, key, value, first, name, report);
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

    pub(super) fn check(&self, report: &mut Report) {
        if self.present.is_missing(Key::PublicKey) {
            report.add(self.header, DiagnosticKind::NoPublicKey);
        }
        if self.present.is_missing(Key::AllowedIps) {
            report.add(self.header, DiagnosticKind::NoAllowedIps);
        }
        if let (Some(PostQuantum::Prefer | PostQuantum::Require), Some(at)) =
            (self.post_quantum, self.post_quantum_at)
            && self.present.is_missing(Key::PqPublicKey)
        {
            report.add(at, DiagnosticKind::LightHandshakes);
        }
        if self.disallowed_ips.is_empty() {
            return;
        }
        let allowed = Addresses::from_networks(&self.allowed_ips);
        for (network, at) in &self.disallowed_ips {
            if !allowed.intersects(*network) {
                let network = *network;
                report.add(*at, DiagnosticKind::DisallowedOutsideAllowed { network });
            }
        }
        let disallowed: Vec<IpNet> = self.disallowed_ips.iter().map(|(ip, _)| *ip).collect();
        let disallowed = Addresses::from_networks(&disallowed);
        let mut allowed = self.allowed_ips.iter();
        if !self.allowed_ips.is_empty() && allowed.all(|network| disallowed.contains(*network)) {
            report.add(self.header, DiagnosticKind::AllDisallowed);
        }
    }
}

/// Parses a network of `AllowedIPs` or `DisallowedIPs`, and reports doubtful forms.
fn network(key: Key, part: Span<'_>, report: &mut Report) -> Option<IpNet> {
    let (network, host_bits) = value_or_report(value::network(key, part), report)?;
    if host_bits {
        report.add(part, DiagnosticKind::HostBits { key, network });
    } else if network.addr().is_unspecified() && !part.text.contains('/') {
        report.add(part, DiagnosticKind::SingleUnspecified { network });
    }
    Some(network)
}

/// Splits a list at commas and blanks.
fn list_entries(value: Span<'_>) -> impl Iterator<Item = Span<'_>> {
    value
        .split(value::is_comma_or_blank)
        .filter(|part| !part.text.is_empty())
}

/// Returns a secret key and the path of its file, or reports its problem. Reports a file that every
/// user can access.
fn secret_key<T>(
    key: Key,
    at: Span<'_>,
    read: Value<'_, SourcedKey<T>>,
    report: &mut Report,
) -> Option<(T, Option<String>)> {
    let read = value_or_report(read, report)?;
    if read.others != 0 {
        let mode = read.others;
        report.add(at, DiagnosticKind::KeyFileAccessible { key, mode });
    }
    Some((read.key, read.file))
}

/// Returns a value, or reports its problem.
pub(super) fn value_or_report<T>(read: Value<'_, T>, report: &mut Report) -> Option<T> {
    read.map_err(|(at, kind)| report.add(at, kind)).ok()
}

/// Sets a key that can have only one value.
pub(super) fn set_once<T: PartialEq>(
    slot: &mut Option<T>,
    key: Key,
    at: Span<'_>,
    first: Option<usize>,
    read: Value<'_, T>,
    report: &mut Report,
) {
    if let Some(value) = value_or_report(read, report) {
        report_repeated(key, at, first, slot.as_ref() == Some(&value), report);
        *slot = Some(value);
    }
}

/// Reports a key that line `first` already has.
fn report_repeated(key: Key, at: Span<'_>, first: Option<usize>, same: bool, report: &mut Report) {
    if let Some(first) = first {
        report.add(at, DiagnosticKind::Repeated { key, first, same });
    }
}
