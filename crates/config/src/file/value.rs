//! Parsers of single values.

use core::fmt::Display;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use ipnet::IpNet;
use taupe_protocol::Lanes;
use taupe_protocol::update::PostQuantum;
use taupe_uapi::prefix;

use super::diagnostic::{AddressProblem, DiagnosticKind, EndpointProblem, UnusableAddress};
use super::keys::Key;
use super::line::{Span, is_blank, quotable_address};
use super::{Endpoint, MAX_MTU, Table};
use taupe_uapi::text::decimal;

/// A value, or the position and kind of its error.
pub(super) type Value<'a, T> = Result<T, (Span<'a>, DiagnosticKind)>;

/// The smallest MTU that Linux sets on an IPv4 interface (RFC 791).
const MIN_IPV4_MTU: u32 = 68;

/// Every host must accept packets of this length (RFC 791).
const MIN_HOST_MTU: u32 = 576;

/// `PostQuantum`.
pub(super) fn post_quantum(value: Span<'_>) -> Value<'_, PostQuantum> {
    let mut all = PostQuantum::ALL.into_iter();
    all.find(|one| one.name().eq_ignore_ascii_case(value.text))
        .ok_or((value, DiagnosticKind::PostQuantum))
}

/// `ListenPort`.
pub(super) fn listen_port(value: Span<'_>) -> Value<'_, u16> {
    decimal(&value.clean()).ok_or((value, DiagnosticKind::ListenPort))
}

/// `FwMark`.
pub(super) fn fwmark(value: Span<'_>) -> Value<'_, u32> {
    let text = value.clean();
    let mark = match text.strip_prefix("0x") {
        _ if text.eq_ignore_ascii_case("off") => Some(0),
        Some(hex) => hexadecimal(hex),
        None => decimal(&text),
    };
    mark.ok_or((value, DiagnosticKind::FwMark))
}

/// `Lanes`.
pub(super) fn lanes(value: Span<'_>) -> Value<'_, Lanes> {
    let lanes = decimal(&value.clean()).and_then(Lanes::new);
    lanes.ok_or((value, DiagnosticKind::Lanes))
}

/// `PersistentKeepalive`.
pub(super) fn keepalive(value: Span<'_>) -> Value<'_, u16> {
    let text = value.clean();
    if text.eq_ignore_ascii_case("off") {
        return Ok(0);
    }
    decimal(&text).ok_or((value, DiagnosticKind::PersistentKeepalive))
}

/// Parses `true` or `false`.
pub(super) fn boolean(key: Key, value: Span<'_>) -> Value<'_, bool> {
    one_of(value, &[true, false]).ok_or((value, DiagnosticKind::NotBoolean { key }))
}

/// Returns the word of the list that equals a value, ignoring case.
pub(super) fn one_of<T: Copy + Display>(value: Span<'_>, words: &[T]) -> Option<T> {
    let mut words = words.iter().copied();
    words.find(|word| word.to_string().eq_ignore_ascii_case(value.text))
}

/// `Table`.
pub(super) fn table(value: Span<'_>) -> Value<'_, Table> {
    let text = value.text;
    let error = (value, DiagnosticKind::Table);
    if text.eq_ignore_ascii_case("auto") {
        return Ok(Table::Auto);
    }
    if text.eq_ignore_ascii_case("off") {
        return Ok(Table::Off);
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        let number = match text.strip_prefix("0x") {
            Some(hex) => hexadecimal(hex),
            None => decimal(text),
        };
        return number.filter(|id| *id != 0).map(Table::Id).ok_or(error);
    }
    let plausible = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if text.starts_with('-') || !text.chars().all(plausible) {
        return Err(error);
    }
    Ok(Table::Name(text.to_owned()))
}

/// Parses `MTU`. Returns a possible problem with its value too.
pub(super) fn mtu(value: Span<'_>) -> Value<'_, (u32, Option<DiagnosticKind>)> {
    let number: Option<u64> = decimal(value.text);
    let written = number.ok_or((value, DiagnosticKind::Mtu))?;
    let mtu = u32::try_from(written).unwrap_or(u32::MAX);
    let too_small = |min| DiagnosticKind::MtuTooSmall {
        mtu,
        min,
        ipv6: false,
    };
    let problem = match mtu {
        0..MIN_IPV4_MTU => Some(too_small(MIN_IPV4_MTU)),
        MIN_IPV4_MTU..MIN_HOST_MTU => Some(too_small(MIN_HOST_MTU)),
        _ if mtu > MAX_MTU => Some(DiagnosticKind::MtuTooLarge {
            mtu: written,
            max: MAX_MTU,
        }),
        _ => None,
    };
    Ok((mtu, problem))
}

/// Parses a network of `AllowedIPs` or `DisallowedIPs`. Returns true if host bits were set.
pub(super) fn network(key: Key, value: Span<'_>) -> Value<'_, (IpNet, bool)> {
    one_network(key, value).map_err(|error| unseparated(key, value).unwrap_or(error))
}

/// Returns the error for several addresses or networks without commas between them.
fn unseparated(key: Key, value: Span<'_>) -> Option<(Span<'_>, DiagnosticKind)> {
    let begins_with_address = |part: &Span<'_>| {
        let address = part.split_once('/').map_or(*part, |(address, _)| address);
        address.text.parse::<IpAddr>().is_ok()
    };
    let mut parts = value
        .split(|c| c == ';' || is_blank(c))
        .filter(|part| !part.text.is_empty());
    parts.next().filter(begins_with_address)?;
    let at = match parts.next() {
        Some(next) => Some(next).filter(begins_with_address),
        None => value.find(|c| c == ';').map(|(_, at)| at),
    }?;
    Some((at, address_error(key, at, AddressProblem::Separator)))
}

fn one_network(key: Key, value: Span<'_>) -> Value<'_, (IpNet, bool)> {
    let error = |span, problem| (span, address_error(key, value, problem));
    if value.text.is_empty() {
        return Err(error(value, AddressProblem::Empty));
    }
    if value.text.starts_with(['+', '-']) {
        return Err(error(value, AddressProblem::Change));
    }
    let (address, length) = match value.split_once('/') {
        Some((address, length)) => (address.trim(), Some(length.trim())),
        None => (value, None),
    };
    let ip: IpAddr = parse_ip(key, value, address)?;
    let max = if ip.is_ipv4() { 32 } else { 128 };
    let (at, bits) = match length {
        None => (value, Some(max)),
        Some(length) if length.text.contains('.') => {
            return Err(error(length, AddressProblem::Mask));
        }
        Some(length) if length.text.is_empty() => (value, None),
        Some(length) => (length, decimal(&length.clean())),
    };
    let network = bits
        .and_then(|bits| prefix::network(ip, bits))
        .ok_or_else(|| error(at, AddressProblem::Length { max }))?;
    Ok((network, network.addr() != ip))
}

/// Parses one `Address` as `ip address add` does, which also accepts a netmask.
pub(super) fn interface_address(value: Span<'_>) -> Value<'_, IpNet> {
    let key = Key::Address;
    one_interface_address(key, value).map_err(|error| unseparated(key, value).unwrap_or(error))
}

fn one_interface_address(key: Key, value: Span<'_>) -> Value<'_, IpNet> {
    let (text, length) = match value.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (value, None),
    };
    let address = parse_ip(key, value, text)?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    let Some(length) = length else {
        return Ok(address.into());
    };
    decimal(length.text)
        .or_else(|| netmask_length(length.text).filter(|_| address.is_ipv4()))
        .and_then(|bits| IpNet::new(address, bits).ok())
        .ok_or_else(|| {
            let problem = AddressProblem::Length { max };
            let at = if length.text.is_empty() {
                value
            } else {
                length
            };
            (at, address_error(key, value, problem))
        })
}

/// Returns the prefix length of a netmask such as 255.255.255.0.
fn netmask_length(text: &str) -> Option<u8> {
    let mask = u32::from(text.parse::<Ipv4Addr>().ok()?);
    let length = mask.leading_ones();
    let contiguous = mask.count_ones() == length;
    contiguous.then(|| u8::try_from(length).ok()).flatten()
}

/// An entry of `DNS`.
pub(super) enum Dns {
    Server(IpAddr),
    Search(String),
}

/// Parses an entry of `DNS`. A text of only digits and dots, or with a colon, is a server, as in
/// `wg-quick`.
pub(super) fn dns(value: Span<'_>) -> Value<'_, Dns> {
    let text = value.text;
    let numeric = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    let extra = || text.parse::<SocketAddr>().is_ok() || text.contains(['/', '[']);
    if let Ok(server) = text.parse() {
        return Ok(Dns::Server(server));
    }
    if let Some(error) = unseparated(Key::Dns, value) {
        return Err(error);
    }
    let looks_like_address = text
        .split_once('/')
        .is_some_and(|(address, _)| address.parse::<IpAddr>().is_ok());
    if numeric || text.contains(':') || looks_like_address {
        let problem = match text {
            _ if text.contains('%') => AddressProblem::Scope,
            _ if extra() => AddressProblem::Extra,
            _ => AddressProblem::Address,
        };
        return Err((value, address_error(Key::Dns, value, problem)));
    }
    let domain = text.strip_prefix('~').unwrap_or(text);
    if domain == "." || is_host_name(domain) {
        Ok(Dns::Search(text.to_owned()))
    } else {
        Err((value, DiagnosticKind::SearchDomain))
    }
}

/// Parses `Endpoint`. Returns a possible warning too.
pub(super) fn endpoint(value: Span<'_>) -> Value<'_, (Endpoint, Option<DiagnosticKind>)> {
    let error = |problem| (value, DiagnosticKind::Endpoint { problem });
    let text = value.clean();
    if text.contains("://") {
        return Err(error(EndpointProblem::Url));
    }
    let (host, port, bracketed) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest
                .split_once(']')
                .ok_or(error(EndpointProblem::NoBracket))?;
            let port = rest.strip_prefix(':').filter(|port| !port.is_empty());
            (host, port.ok_or(error(EndpointProblem::NoPort))?, true)
        }
        None => {
            let (host, port) = text
                .rsplit_once(':')
                .filter(|(_, port)| !port.is_empty())
                .ok_or(error(EndpointProblem::NoPort))?;
            (host, port, false)
        }
    };
    if host.is_empty() {
        return Err(error(EndpointProblem::NoHost));
    }
    let unbracketed = !bracketed && host.contains(':');
    // `2001:db8::1` is an address without a port, not `2001:db8:` with one.
    if unbracketed && host.parse::<Ipv6Addr>().is_err() {
        return Err(error(EndpointProblem::NoPort));
    }
    let port: u16 = decimal(port).ok_or(error(EndpointProblem::Port))?;
    let endpoint = match host.parse::<IpAddr>() {
        Ok(address) => Endpoint::Address(SocketAddr::new(address, port)),
        Err(_) => scoped_or_name(host, port).ok_or(error(EndpointProblem::Host))?,
    };
    let unusable = match &endpoint {
        Endpoint::Address(address) => unusable_host_address(address.ip()),
        Endpoint::Name { .. } => None,
    };
    let warning = match unusable {
        _ if port == 0 => Some(DiagnosticKind::Endpoint {
            problem: EndpointProblem::PortZero,
        }),
        Some(what) => Some(DiagnosticKind::Unusable {
            key: Key::Endpoint,
            what,
        }),
        None if lacks_scope(&endpoint) => Some(DiagnosticKind::Endpoint {
            problem: EndpointProblem::NoScope,
        }),
        None if unbracketed => Some(DiagnosticKind::Endpoint {
            problem: EndpointProblem::Unbracketed,
        }),
        None => None,
    };
    Ok((endpoint, warning))
}

/// Returns true for a link-local address (RFC 4291 §2.5.6) without an interface.
fn lacks_scope(endpoint: &Endpoint) -> bool {
    matches!(endpoint, Endpoint::Address(SocketAddr::V6(address))
        if address.ip().is_unicast_link_local() && address.scope_id() == 0)
}

/// Parses `fe80::1%eth0` or a host name.
fn scoped_or_name(host: &str, port: u16) -> Option<Endpoint> {
    let name = || Endpoint::Name {
        host: host.to_owned(),
        port,
    };
    let Some((address, scope)) = host.split_once('%') else {
        // A text of only digits and dots that is not an address is a mistyped one.
        let numeric = host.chars().all(|c| c.is_ascii_digit() || c == '.');
        return (!numeric && is_host_name(host)).then(name);
    };
    let address: Ipv6Addr = address.parse().ok()?;
    match decimal(scope) {
        Some(scope) => {
            let address = SocketAddrV6::new(address, port, 0, scope);
            Some(Endpoint::Address(address.into()))
        }
        // The kernel's rule for interface names.
        None => {
            let possible = (1..16).contains(&scope.len())
                && scope
                    .bytes()
                    .all(|b| b.is_ascii_graphic() && b != b'/' && b != b':');
            possible.then(name)
        }
    }
}

/// Returns true if a text can be a name in the DNS or in /etc/hosts: labels of up to 63 characters,
/// together up to 253 (RFC 1035 §2.3.4). It must not begin with a dash (RFC 1123 §2.1), which
/// programs would take for an option.
fn is_host_name(text: &str) -> bool {
    let text = text.strip_suffix('.').unwrap_or(text);
    let plausible = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    text.len() <= 253
        && !text.starts_with('-')
        && text
            .split('.')
            .all(|label| (1..=63).contains(&label.len()) && label.bytes().all(plausible))
}

/// Returns the reason why no host can have an address.
pub(super) fn unusable_host_address(address: IpAddr) -> Option<UnusableAddress> {
    if address.is_unspecified() {
        Some(UnusableAddress::Unspecified)
    } else if address.is_multicast() {
        Some(UnusableAddress::Multicast)
    } else if address == IpAddr::V4(Ipv4Addr::BROADCAST) {
        Some(UnusableAddress::Broadcast)
    } else {
        None
    }
}

/// Returns the reason why no name server can have an address.
pub(super) fn unusable_server_address(address: IpAddr) -> Option<UnusableAddress> {
    match address {
        IpAddr::V6(address) if address.is_unicast_link_local() => Some(UnusableAddress::NoScope),
        _ => unusable_host_address(address),
    }
}

/// Returns the reason why the address of an interface may not work.
pub(super) fn unusable_interface_address(own: IpNet) -> Option<UnusableAddress> {
    let (address, length) = (own.addr(), own.prefix_len());
    if let Some(unusable) = unusable_host_address(address) {
        return Some(unusable);
    }
    if address.is_loopback() {
        return Some(UnusableAddress::Loopback);
    }
    if length == 0 {
        return Some(UnusableAddress::ZeroLength);
    }
    let free = own.max_prefix_len() - length;
    // Both addresses of a /31 (RFC 3021) or /127 (RFC 6164) are hosts.
    if free < 2 {
        return None;
    }
    if own.network() == address {
        return Some(UnusableAddress::Network);
    }
    match address {
        IpAddr::V4(v4) if u32::from(v4).trailing_ones() >= u32::from(free) => {
            Some(UnusableAddress::SubnetBroadcast)
        }
        _ => None,
    }
}

fn parse_ip<'a>(key: Key, value: Span<'a>, address: Span<'a>) -> Value<'a, IpAddr> {
    address.clean().parse().map_err(|_| {
        let problem = if address.text.contains('%') {
            AddressProblem::Scope
        } else {
            AddressProblem::Address
        };
        (value, address_error(key, value, problem))
    })
}

fn address_error(key: Key, value: Span<'_>, problem: AddressProblem) -> DiagnosticKind {
    DiagnosticKind::Address {
        key,
        problem,
        value: quotable_address(value.text),
    }
}

/// Returns true for separators of `Address` and `DNS`.
pub(super) fn is_comma_or_blank(character: char) -> bool {
    character == ',' || is_blank(character)
}

fn hexadecimal(digits: &str) -> Option<u32> {
    let plain = digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain
        .then(|| u32::from_str_radix(digits, 16).ok())
        .flatten()
}
