//! The proxy side of HTTP/1.1 (RFC 9110, RFC 9112): `CONNECT`, and requests in absolute form.
//!
//! Each client connection carries one request. A forwarded request gets `Connection: close`, so
//! that later bytes cannot be taken for a request to another host. A request whose length does not
//! follow from its head is refused. No `Via` is added, although RFC 9110 §7.6.3 asks for it,
//! because it would reveal the proxy to servers.

use crate::address::Target;
use crate::auth::Credentials;
use crate::failure::Failure;
use base64ct::{Base64, Encoding as _};
use httparse::{Error, Header, Status};
use zeroize::Zeroizing;

/// The longest head of a request, in bytes.
pub(crate) const LONGEST: usize = 16 * 1024;

/// The most header lines of a request.
const MAX_HEADERS: usize = 128;

/// Default port of `http` URLs (RFC 9110 §4.2.1).
const PORT: u16 = 80;

/// A client's request.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// `CONNECT`: relay bytes in both directions.
    Tunnel(Target),
    /// A request to forward: the rewritten head, and the length of the content in bytes.
    Forward {
        target: Target,
        head: Vec<u8>,
        body: u64,
    },
}

/// Error response, after which the connection is closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// 400 with a reason.
    Bad(&'static str),
    /// 407.
    Denied,
    /// 411.
    NoLength,
    /// 431.
    TooLong,
    /// 505.
    Version,
    /// 502, 503 or 504.
    Failed(Failure),
}

/// Response to `CONNECT` once the connection is established.
pub(crate) const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Parses a request. Returns it with the length of its head, or `None` if it is incomplete.
pub(crate) fn request(
    bytes: &[u8],
    credentials: Option<&Credentials>,
) -> Result<Option<(Request, usize)>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(Status::Complete(length)) if length <= LONGEST => length,
        Ok(Status::Partial) if bytes.len() < LONGEST => return Ok(None),
        Ok(_) | Err(Error::TooManyHeaders) => return Err(Refusal::TooLong),
        Err(Error::Version) => return Err(Refusal::Version),
        Err(_) => return Err(Refusal::Bad("this is no HTTP request")),
    };
    // Servers disagree about lines that end in LF alone, which allows request smuggling.
    let head = &bytes[..length];
    let lone = |(at, byte): (usize, &u8)| *byte == b'\n' && (at == 0 || head[at - 1] != b'\r');
    if head.iter().enumerate().any(lone) {
        return Err(Refusal::Bad("a line does not end in CR LF"));
    }
    let (Some(method), Some(path), Some(version)) = (request.method, request.path, request.version)
    else {
        return Err(Refusal::Bad("this is no HTTP request"));
    };
    let headers = &*request.headers;
    if let Some(credentials) = credentials
        && !is_admitted(headers, credentials)
    {
        return Err(Refusal::Denied);
    }
    let hosts = named(headers, "host").count();
    if hosts > 1 || (hosts == 0 && version == 1) {
        return Err(Refusal::Bad("there must be one Host"));
    }
    let request = if method == "CONNECT" {
        if named(headers, "content-length")
            .chain(named(headers, "transfer-encoding"))
            .count()
            > 0
        {
            return Err(Refusal::Bad("CONNECT has no content"));
        }
        let target = Target::new(path, None);
        Request::Tunnel(target.ok_or(Refusal::Bad("CONNECT takes HOST:PORT"))?)
    } else {
        forward(method, path, version, headers)?
    };
    Ok(Some((request, length)))
}

/// Formats an error response.
pub(crate) fn response(refusal: Refusal) -> Vec<u8> {
    let (status, reason) = match refusal {
        Refusal::Bad(reason) => ("400 Bad Request", reason),
        Refusal::Denied => (
            "407 Proxy Authentication Required",
            "a user and a password are needed",
        ),
        Refusal::NoLength => (
            "411 Length Required",
            "a request with content needs Content-Length; or use CONNECT",
        ),
        Refusal::TooLong => (
            "431 Request Header Fields Too Large",
            "a head has at most 16 KiB and 128 lines",
        ),
        Refusal::Version => ("505 HTTP Version Not Supported", "this is for HTTP/1.1"),
        Refusal::Failed(failure) => (status(failure), failure.reason()),
    };
    let challenge = match refusal {
        Refusal::Denied => "Proxy-Authenticate: Basic realm=\"taupe\"\r\n",
        _ => "",
    };
    let length = reason.len() + "taupe: \n".len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
         {challenge}Connection: close\r\n\r\ntaupe: {reason}\n"
    )
    .into_bytes()
}

fn status(failure: Failure) -> &'static str {
    match failure {
        Failure::Network
        | Failure::NoSuchName
        | Failure::NoAddress
        | Failure::NoNameServers
        | Failure::Host
        | Failure::Refused
        | Failure::HopLimit => "502 Bad Gateway",
        Failure::Busy => "503 Service Unavailable",
        Failure::NameServers | Failure::Silence | Failure::Tunnel => "504 Gateway Timeout",
    }
}

/// Rewrites a request for its server (RFC 9112 §3.2.1, RFC 9110 §7.6.1).
fn forward(
    method: &str,
    path: &str,
    version: u8,
    headers: &[Header<'_>],
) -> Result<Request, Refusal> {
    let (scheme, rest) = path.split_once("://").ok_or(Refusal::Bad(
        "this is a proxy: it takes CONNECT, and URLs that begin with http://",
    ))?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(Refusal::Bad("for anything but http:// use CONNECT"));
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let target = Target::new(authority, Some(PORT));
    let target = target.ok_or(Refusal::Bad("the URL names no host"))?;
    if path.contains('#') {
        return Err(Refusal::Bad("a URL in a request has no fragment"));
    }
    let path = match (path, method) {
        ("", "OPTIONS") => "*".to_owned(),
        (path, _) if path.starts_with('/') => path.to_owned(),
        (path, _) => format!("/{path}"),
    };
    let body = length_of_body(headers)?;

    let mut listed = Vec::new();
    for value in named(headers, "connection") {
        let value = str::from_utf8(value).map_err(|_| Refusal::Bad("Connection is no list"))?;
        listed.extend(
            value
                .split(',')
                .map(|name| name.trim().to_ascii_lowercase()),
        );
    }
    if listed.iter().any(|name| name == "content-length") {
        return Err(Refusal::Bad(
            "Content-Length is not for this connection alone",
        ));
    }
    let mut head =
        format!("{method} {path} HTTP/1.{version}\r\nHost: {authority}\r\n").into_bytes();
    for header in headers {
        let name = header.name.to_ascii_lowercase();
        if HOP_BY_HOP.contains(&&*name) || listed.contains(&name) {
            continue;
        }
        head.extend_from_slice(header.name.as_bytes());
        head.extend_from_slice(b": ");
        head.extend_from_slice(header.value);
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"Connection: close\r\n\r\n");
    Ok(Request::Forward { target, head, body })
}

/// Headers that are not forwarded: hop-by-hop ones, and `Host`, which is derived from the URL.
const HOP_BY_HOP: [&str; 9] = [
    "connection",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
];

/// Returns the length of the content, in bytes (RFC 9112 §6.3).
fn length_of_body(headers: &[Header<'_>]) -> Result<u64, Refusal> {
    let mut lengths = named(headers, "content-length");
    let length = lengths.next();
    if lengths.next().is_some() {
        return Err(Refusal::Bad("there is more than one Content-Length"));
    }
    if named(headers, "transfer-encoding").next().is_some() {
        return Err(match length {
            Some(_) => Refusal::Bad("there are both Content-Length and Transfer-Encoding"),
            None => Refusal::NoLength,
        });
    }
    let Some(length) = length else { return Ok(0) };
    let digits = str::from_utf8(length).ok();
    let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    length.ok_or(Refusal::Bad("Content-Length is no number"))
}

/// Checks a client's credentials (RFC 7617 §2).
fn is_admitted(headers: &[Header<'_>], credentials: &Credentials) -> bool {
    let mut values = named(headers, "proxy-authorization");
    let (Some(value), None) = (values.next(), values.next()) else {
        return false;
    };
    let Some((scheme, token)) = str::from_utf8(value).ok().and_then(|v| v.split_once(' ')) else {
        return false;
    };
    let joined = Base64::decode_vec(token.trim_start()).map(Zeroizing::new);
    scheme.eq_ignore_ascii_case("basic")
        && joined.is_ok_and(|joined| credentials.admit_joined(&joined))
}

fn named<'a>(headers: &'a [Header<'a>], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let named = move |header: &&Header<'_>| header.name.eq_ignore_ascii_case(name);
    headers.iter().filter(named).map(|header| header.value)
}

#[cfg(test)]
mod tests;
