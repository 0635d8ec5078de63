//! SOCKS 5 messages (RFC 1928), with user names and passwords (RFC 1929).
//!
//! Parsers get all bytes that a client has sent so far, from the start of the message. They return
//! `Ok(None)` if the message is incomplete. No message is longer than [`MAX_MESSAGE_LEN`].

use crate::address::{Host, Target};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use taupe_stack::failure::ConnectFailure;

/// The longest message before data flows, in bytes: a name and a password of 255 bytes each, with
/// their lengths and a version.
pub(crate) const MAX_MESSAGE_LEN: usize = 513;

const VERSION: u8 = 5;
const AUTH_VERSION: u8 = 1;

/// Authentication method.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    None,
    Password,
}

/// Reason to close a connection, with the reply to send before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SocksError {
    /// The client speaks another protocol: no reply.
    NotSocks,
    /// The client offers no acceptable method.
    NoAcceptableMethod,
    /// The name or the password is wrong.
    AuthFailed,
    /// The request fails with this reply code.
    Reply(Reply),
}

/// Reply code of a request (RFC 1928 §6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Succeeded = 0,
    GeneralFailure = 1,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    ConnectionRefused = 5,
    TtlExpired = 6,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

impl From<ConnectFailure> for Reply {
    fn from(failure: ConnectFailure) -> Self {
        match failure {
            ConnectFailure::Network | ConnectFailure::Tunnel => Self::NetworkUnreachable,
            ConnectFailure::NoSuchName
            | ConnectFailure::NoAddress
            | ConnectFailure::NameServers
            | ConnectFailure::NoNameServers
            | ConnectFailure::Host
            | ConnectFailure::Silence => Self::HostUnreachable,
            ConnectFailure::Refused => Self::ConnectionRefused,
            ConnectFailure::HopLimit => Self::TtlExpired,
            ConnectFailure::Busy => Self::GeneralFailure,
        }
    }
}

/// A client's request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum SocksRequest {
    Connect(Target),
    /// The address and port from which the client will send, if it named them.
    Associate(Option<IpAddr>, Option<u16>),
}

/// A parsed message with its length in bytes.
type Parsed<T> = Result<Option<(T, usize)>, SocksError>;

/// Parses the greeting and selects the method.
pub(crate) fn parse_greeting(bytes: &[u8], accepted: Method) -> Parsed<Method> {
    let &[version, ref rest @ ..] = bytes else {
        return Ok(None);
    };
    if version != VERSION {
        return Err(SocksError::NotSocks);
    }
    let &[count, ref methods @ ..] = rest else {
        return Ok(None);
    };
    let Some(methods) = methods.get(..usize::from(count)) else {
        return Ok(None);
    };
    if methods.contains(&method_code(accepted)) {
        Ok(Some((accepted, 2 + methods.len())))
    } else {
        Err(SocksError::NoAcceptableMethod)
    }
}

/// A name and a password.
pub(crate) type Login<'a> = (&'a [u8], &'a [u8]);

/// Parses a name and a password.
pub(crate) fn parse_login(bytes: &[u8]) -> Parsed<Login<'_>> {
    let &[version, ref rest @ ..] = bytes else {
        return Ok(None);
    };
    if version != AUTH_VERSION {
        return Err(SocksError::AuthFailed);
    }
    let Some((name, rest)) = split_counted(rest) else {
        return Ok(None);
    };
    let Some((password, _)) = split_counted(rest) else {
        return Ok(None);
    };
    Ok(Some(((name, password), 3 + name.len() + password.len())))
}

/// Parses a request.
pub(crate) fn parse_request(bytes: &[u8]) -> Parsed<SocksRequest> {
    const HEADER: usize = 3;
    let Some(&[version, command, _reserved]) = bytes.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    if version != VERSION {
        return Err(SocksError::Reply(Reply::GeneralFailure));
    }
    let Some((address, port, length)) = parse_address(&bytes[HEADER..])? else {
        return Ok(None);
    };
    let wrong = SocksError::Reply(Reply::AddressTypeNotSupported);
    let request = match command {
        1 => {
            let host = host(address).ok_or(wrong)?;
            // No host listens on port 0.
            let port = Some(port).filter(|port| *port != 0);
            let port = port.ok_or(SocksError::Reply(Reply::ConnectionRefused))?;
            SocksRequest::Connect(Target { host, port })
        }
        3 => {
            let from = match address {
                Address::Ip(address) => Some(address).filter(|address| !address.is_unspecified()),
                Address::Name(_) => return Err(wrong),
            };
            SocksRequest::Associate(from, Some(port).filter(|port| *port != 0))
        }
        _ => return Err(SocksError::Reply(Reply::CommandNotSupported)),
    };
    Ok(Some((request, HEADER + length)))
}

/// Parses a client's datagram (RFC 1928 §7) into its destination and payload. Returns `None` if it
/// is malformed or a fragment, which §7 allows implementations to drop.
pub(crate) fn parse_datagram(bytes: &[u8]) -> Option<(Target, &[u8])> {
    let &[_, _, fragment, ref rest @ ..] = bytes else {
        return None;
    };
    let (address, port, length) = parse_address(rest).ok()??;
    let host = host(address)?;
    let is_valid = fragment == 0 && port != 0;
    is_valid.then(|| (Target { host, port }, &rest[length..]))
}

/// Formats the reply to a greeting; `None` if no method is acceptable.
pub(crate) fn method_reply(method: Option<Method>) -> [u8; 2] {
    [VERSION, method.map_or(0xff, method_code)]
}

/// Formats the reply to a name and password.
pub(crate) fn auth_reply(admitted: bool) -> [u8; 2] {
    [AUTH_VERSION, u8::from(!admitted)]
}

/// Formats the reply to a request, with the address bound for it.
pub(crate) fn request_reply(reply: Reply, bound: Option<SocketAddr>) -> Vec<u8> {
    let mut message = vec![VERSION, reply as u8, 0];
    write_address(
        &mut message,
        bound.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into()),
    );
    message
}

/// Formats the reply to an invalid message, which may be none.
pub(crate) fn error_reply(error: SocksError) -> Vec<u8> {
    match error {
        // The client speaks another protocol and would not understand a reply.
        SocksError::NotSocks => Vec::new(),
        SocksError::NoAcceptableMethod => method_reply(None).into(),
        SocksError::AuthFailed => auth_reply(false).into(),
        SocksError::Reply(reply) => request_reply(reply, None),
    }
}

/// Formats a datagram for a client.
pub(crate) fn write_datagram(from: SocketAddr, payload: &[u8], message: &mut Vec<u8>) {
    message.clear();
    message.extend([0, 0, 0]);
    write_address(message, from);
    message.extend_from_slice(payload);
}

fn method_code(method: Method) -> u8 {
    match method {
        Method::None => 0,
        Method::Password => 2,
    }
}

enum Address<'a> {
    Ip(IpAddr),
    Name(&'a [u8]),
}

/// Parses an address with its port. Also returns their length in bytes.
fn parse_address(bytes: &[u8]) -> Result<Option<(Address<'_>, u16, usize)>, SocksError> {
    let &[kind, ref rest @ ..] = bytes else {
        return Ok(None);
    };
    let split = match kind {
        1 => rest
            .split_first_chunk::<4>()
            .map(|(bytes, rest)| (Address::Ip(Ipv4Addr::from(*bytes).into()), rest)),
        3 => split_counted(rest).map(|(name, rest)| (Address::Name(name), rest)),
        4 => rest
            .split_first_chunk::<16>()
            .map(|(bytes, rest)| (Address::Ip(Ipv6Addr::from(*bytes).to_canonical()), rest)),
        _ => return Err(SocksError::Reply(Reply::AddressTypeNotSupported)),
    };
    let parsed = split.and_then(|(address, rest)| {
        let (port, rest) = rest.split_first_chunk::<2>()?;
        Some((address, u16::from_be_bytes(*port), bytes.len() - rest.len()))
    });
    Ok(parsed)
}

fn host(address: Address<'_>) -> Option<Host> {
    match address {
        Address::Ip(address) => Some(Host::Address(address)),
        Address::Name(name) => Host::new(str::from_utf8(name).ok()?),
    }
}

/// Splits off bytes that follow their count.
fn split_counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*count))
}

fn write_address(message: &mut Vec<u8>, address: SocketAddr) {
    match address.ip() {
        IpAddr::V4(a) => {
            message.push(1);
            message.extend(a.octets());
        }
        IpAddr::V6(a) => {
            message.push(4);
            message.extend(a.octets());
        }
    }
    message.extend(address.port().to_be_bytes());
}

#[cfg(test)]
mod tests;
