//! SOCKS 5 as it is on the wire (RFC 1928), and names with passwords (RFC 1929).
//!
//! What a client has sent so far is read from its beginning: a message that is not whole
//! yet is `Ok(None)`, and nothing is longer than [`LONGEST`].

use crate::address::{Host, Target};
use crate::failure::Failure;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest message of a client before data flows: a name and a password of 255
/// bytes each, with their lengths and a version.
pub(crate) const LONGEST: usize = 513;

const VERSION: u8 = 5;
const AUTH_VERSION: u8 = 1;

/// How a client shows who it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Method {
    None,
    Password,
}

/// What a client is told before its connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// It speaks another protocol: there is nothing that it would understand.
    NotSocks,
    /// It offers no method that is accepted.
    NoMethod,
    /// The name or the password is wrong.
    Denied,
    /// Its request is answered with a reply.
    Reply(Reply),
}

/// The answer to a request (RFC 1928 §6).
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

impl From<Failure> for Reply {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Network | Failure::Tunnel => Self::NetworkUnreachable,
            Failure::NoSuchName
            | Failure::NoAddress
            | Failure::NameServers
            | Failure::NoNameServers
            | Failure::Host
            | Failure::Silence => Self::HostUnreachable,
            Failure::Refused => Self::ConnectionRefused,
            Failure::HopLimit => Self::TtlExpired,
            Failure::Busy => Self::GeneralFailure,
        }
    }
}

/// What a client wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    Connect(Target),
    /// From where it will send, as far as it knows.
    Associate(Option<IpAddr>, Option<u16>),
}

/// A message and how many bytes it has.
type Parsed<T> = Result<Option<(T, usize)>, Refusal>;

/// Reads the greeting, and chooses the method.
pub(crate) fn greeting(bytes: &[u8], accepted: Method) -> Parsed<Method> {
    let &[version, ref rest @ ..] = bytes else {
        return Ok(None);
    };
    if version != VERSION {
        return Err(Refusal::NotSocks);
    }
    let &[count, ref methods @ ..] = rest else {
        return Ok(None);
    };
    let Some(methods) = methods.get(..usize::from(count)) else {
        return Ok(None);
    };
    if methods.contains(&code(accepted)) {
        Ok(Some((accepted, 2 + methods.len())))
    } else {
        Err(Refusal::NoMethod)
    }
}

/// A name and a password.
pub(crate) type Login<'a> = (&'a [u8], &'a [u8]);

/// Reads who a client is.
pub(crate) fn login(bytes: &[u8]) -> Parsed<Login<'_>> {
    let &[version, ref rest @ ..] = bytes else {
        return Ok(None);
    };
    if version != AUTH_VERSION {
        return Err(Refusal::Denied);
    }
    let Some((name, rest)) = counted(rest) else {
        return Ok(None);
    };
    let Some((password, _)) = counted(rest) else {
        return Ok(None);
    };
    Ok(Some(((name, password), 3 + name.len() + password.len())))
}

/// Reads what a client wants.
pub(crate) fn request(bytes: &[u8]) -> Parsed<Request> {
    const HEADER: usize = 3;
    let Some(&[version, command, _reserved]) = bytes.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    if version != VERSION {
        return Err(Refusal::Reply(Reply::GeneralFailure));
    }
    let Some((address, port, length)) = address(&bytes[HEADER..])? else {
        return Ok(None);
    };
    let wrong = Refusal::Reply(Reply::AddressTypeNotSupported);
    let request = match command {
        1 => {
            let host = host(address).ok_or(wrong)?;
            // No host listens there.
            let port = Some(port).filter(|port| *port != 0);
            let port = port.ok_or(Refusal::Reply(Reply::ConnectionRefused))?;
            Request::Connect(Target { host, port })
        }
        3 => {
            let from = match address {
                Address::Ip(address) => Some(address).filter(|address| !address.is_unspecified()),
                Address::Name(_) => return Err(wrong),
            };
            Request::Associate(from, Some(port).filter(|port| *port != 0))
        }
        _ => return Err(Refusal::Reply(Reply::CommandNotSupported)),
    };
    Ok(Some((request, HEADER + length)))
}

/// Reads the header of a datagram of a client (RFC 1928 §7): where it goes, and what it
/// says. `None` for what is dropped: fragments among others, which §7 leaves to who
/// implements it.
pub(crate) fn datagram(bytes: &[u8]) -> Option<(Target, &[u8])> {
    let &[_, _, fragment, ref rest @ ..] = bytes else {
        return None;
    };
    let (address, port, length) = address(rest).ok()??;
    let host = host(address)?;
    let is_whole = fragment == 0 && port != 0;
    is_whole.then(|| (Target { host, port }, &rest[length..]))
}

/// The method that a client is to use, or that there is none for it.
pub(crate) fn method(method: Option<Method>) -> [u8; 2] {
    [VERSION, method.map_or(0xff, code)]
}

/// Whether a client is who it says.
pub(crate) fn verdict(admitted: bool) -> [u8; 2] {
    [AUTH_VERSION, u8::from(!admitted)]
}

/// The answer to a request, with the address that there is now for it.
pub(crate) fn reply(reply: Reply, bound: Option<SocketAddr>) -> Vec<u8> {
    let mut message = vec![VERSION, reply as u8, 0];
    put(
        &mut message,
        bound.unwrap_or((Ipv4Addr::UNSPECIFIED, 0).into()),
    );
    message
}

/// A datagram for a client.
pub(crate) fn wrap(from: SocketAddr, payload: &[u8], message: &mut Vec<u8>) {
    message.clear();
    message.extend([0, 0, 0]);
    put(message, from);
    message.extend_from_slice(payload);
}

fn code(method: Method) -> u8 {
    match method {
        Method::None => 0,
        Method::Password => 2,
    }
}

enum Address<'a> {
    Ip(IpAddr),
    Name(&'a [u8]),
}

/// An address with its port, and how long they are.
fn address(bytes: &[u8]) -> Result<Option<(Address<'_>, u16, usize)>, Refusal> {
    let &[kind, ref rest @ ..] = bytes else {
        return Ok(None);
    };
    let split = match kind {
        1 => rest
            .split_first_chunk::<4>()
            .map(|(bytes, rest)| (Address::Ip(Ipv4Addr::from(*bytes).into()), rest)),
        3 => counted(rest).map(|(name, rest)| (Address::Name(name), rest)),
        4 => rest
            .split_first_chunk::<16>()
            .map(|(bytes, rest)| (Address::Ip(Ipv6Addr::from(*bytes).to_canonical()), rest)),
        _ => return Err(Refusal::Reply(Reply::AddressTypeNotSupported)),
    };
    let whole = split.and_then(|(address, rest)| {
        let (port, rest) = rest.split_first_chunk::<2>()?;
        Some((address, u16::from_be_bytes(*port), bytes.len() - rest.len()))
    });
    Ok(whole)
}

fn host(address: Address<'_>) -> Option<Host> {
    match address {
        Address::Ip(address) => Some(Host::Address(address)),
        Address::Name(name) => Host::new(str::from_utf8(name).ok()?),
    }
}

/// Bytes with their number before them, and what follows.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (count, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*count))
}

fn put(message: &mut Vec<u8>, address: SocketAddr) {
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
