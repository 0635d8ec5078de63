//! The proxy side of HTTP/1.1 (RFC 9110, RFC 9112): `CONNECT`, and requests in absolute form.
//!
//! Each client connection carries one request. A forwarded request gets `Connection: close`, so
//! that later bytes cannot be taken for a request to another host. A request whose length does not
//! follow from its head is refused. No `Via` is added, although RFC 9110 §7.6.3 asks for it,
//! because it would reveal the proxy to servers.

use crate::address::Target;
use crate::auth::Credentials;
use base64ct::{Base64, Encoding as _};
use httparse::{Error, Header, Status};
use taupe_stack::failure::ConnectFailure;
use zeroize::Zeroizing;

/// The longest head of a request, in bytes.
pub(crate) const MAX_HEAD_LEN: usize = 16 * 1024;

/// The most header lines of a request.
const MAX_HEADERS: usize = 128;

/// Default port of `http` URLs (RFC 9110 §4.2.1).
const PORT: u16 = 80;

/// A client's request.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum HttpRequest {
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
pub(crate) enum HttpError {
    /// 400 with a reason.
    BadRequest(&'static str),
    /// 407.
    AuthRequired,
    /// 411.
    LengthRequired,
    /// 431.
    HeadTooLarge,
    /// 505.
    UnsupportedVersion,
    /// 502, 503 or 504.
    ConnectFailed(ConnectFailure),
}

/// Response to `CONNECT` once the connection is established.
pub(crate) const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Parses a request. Returns it with the length of its head, or `None` if it is incomplete.
pub(crate) fn parse_request(
    bytes: &[u8],
    credentials: Option<&Credentials>,
) -> Result<Option<(HttpRequest, usize)>, HttpError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(Status::Complete(length)) if length <= MAX_HEAD_LEN => length,
        Ok(Status::Partial) if bytes.len() < MAX_HEAD_LEN => return Ok(None),
        Ok(_) | Err(Error::TooManyHeaders) => return Err(HttpError::HeadTooLarge),
        Err(Error::Version) => return Err(HttpError::UnsupportedVersion),
        Err(_) => return Err(HttpError::BadRequest("not an HTTP request")),
    };
    // Servers disagree about lines that end in LF alone, which allows request smuggling.
    let head = &bytes[..length];
    let lone = |(at, byte): (usize, &u8)| *byte == b'\n' && (at == 0 || head[at - 1] != b'\r');
    if head.iter().enumerate().any(lone) {
        return Err(HttpError::BadRequest("a line does not end in CR LF"));
    }
    let (Some(method), Some(path), Some(version)) = (request.method, request.path, request.version)
    else {
        return Err(HttpError::BadRequest("not an HTTP request"));
    };
    let headers = &*request.headers;
    if let Some(credentials) = credentials
        && !is_admitted(headers, credentials)
    {
        return Err(HttpError::AuthRequired);
    }
    let hosts = header_values(headers, "host").count();
    if hosts > 1 || (hosts == 0 && version == 1) {
        return Err(HttpError::BadRequest("expected exactly one Host"));
    }
    let request = if method == "CONNECT" {
        if header_values(headers, "content-length")
            .chain(header_values(headers, "transfer-encoding"))
            .count()
            > 0
        {
            return Err(HttpError::BadRequest("CONNECT cannot have content"));
        }
        let target = Target::new(path, None);
        HttpRequest::Tunnel(target.ok_or(HttpError::BadRequest("CONNECT needs HOST:PORT"))?)
    } else {
        rewrite(method, path, version, headers)?
    };
    Ok(Some((request, length)))
}

/// Formats an error response.
pub(crate) fn error_response(error: HttpError) -> Vec<u8> {
    let (status, reason) = match error {
        HttpError::BadRequest(reason) => ("400 Bad Request", reason),
        HttpError::AuthRequired => (
            "407 Proxy Authentication Required",
            "a user and a password are needed",
        ),
        HttpError::LengthRequired => (
            "411 Length Required",
            "a request with content needs Content-Length; or use CONNECT",
        ),
        HttpError::HeadTooLarge => (
            "431 Request Header Fields Too Large",
            "a head has at most 16 KiB and 128 lines",
        ),
        HttpError::UnsupportedVersion => ("505 HTTP Version Not Supported", "expected HTTP/1.1"),
        HttpError::ConnectFailed(failure) => (status(failure), failure.reason()),
    };
    let challenge = match error {
        HttpError::AuthRequired => "Proxy-Authenticate: Basic realm=\"taupe\"\r\n",
        _ => "",
    };
    let length = reason.len() + "taupe: \n".len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n\
         {challenge}Connection: close\r\n\r\ntaupe: {reason}\n"
    )
    .into_bytes()
}

fn status(failure: ConnectFailure) -> &'static str {
    match failure {
        ConnectFailure::Network
        | ConnectFailure::NoSuchName
        | ConnectFailure::NoAddress
        | ConnectFailure::NoNameServers
        | ConnectFailure::Host
        | ConnectFailure::Refused
        | ConnectFailure::HopLimit => "502 Bad Gateway",
        ConnectFailure::Busy => "503 Service Unavailable",
        ConnectFailure::NameServers | ConnectFailure::Silence | ConnectFailure::Tunnel => {
            "504 Gateway Timeout"
        }
    }
}

/// Rewrites a request for its server (RFC 9112 §3.2.1, RFC 9110 §7.6.1).
fn rewrite(
    method: &str,
    path: &str,
    version: u8,
    headers: &[Header<'_>],
) -> Result<HttpRequest, HttpError> {
    let (scheme, rest) = path.split_once("://").ok_or(HttpError::BadRequest(
        "this is a proxy: it takes CONNECT, and URLs that begin with http://",
    ))?;
    if !scheme.eq_ignore_ascii_case("http") {
        return Err(HttpError::BadRequest(
            "for anything but http:// use CONNECT",
        ));
    }
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let target = Target::new(authority, Some(PORT));
    let target = target.ok_or(HttpError::BadRequest("the URL names no host"))?;
    if path.contains('#') {
        return Err(HttpError::BadRequest("a URL in a request has no fragment"));
    }
    let path = match (path, method) {
        ("", "OPTIONS") => "*".to_owned(),
        (path, _) if path.starts_with('/') => path.to_owned(),
        (path, _) => format!("/{path}"),
    };
    let body = content_length(headers)?;

    let mut listed = Vec::new();
    for value in header_values(headers, "connection") {
        let value =
            str::from_utf8(value).map_err(|_| HttpError::BadRequest("Connection is not a list"))?;
        listed.extend(
            value
                .split(',')
                .map(|name| name.trim().to_ascii_lowercase()),
        );
    }
    if listed.iter().any(|name| name == "content-length") {
        return Err(HttpError::BadRequest(
            "Connection cannot name Content-Length",
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
    Ok(HttpRequest::Forward { target, head, body })
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
fn content_length(headers: &[Header<'_>]) -> Result<u64, HttpError> {
    let mut lengths = header_values(headers, "content-length");
    let length = lengths.next();
    if lengths.next().is_some() {
        return Err(HttpError::BadRequest(
            "there is more than one Content-Length",
        ));
    }
    if header_values(headers, "transfer-encoding").next().is_some() {
        return Err(match length {
            Some(_) => HttpError::BadRequest("there are both Content-Length and Transfer-Encoding"),
            None => HttpError::LengthRequired,
        });
    }
    let Some(length) = length else { return Ok(0) };
    let digits = str::from_utf8(length).ok();
    let digits = digits.filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let length = digits.and_then(|digits| digits.parse().ok());
    length.ok_or(HttpError::BadRequest("Content-Length is not a number"))
}

/// Checks a client's credentials (RFC 7617 §2).
fn is_admitted(headers: &[Header<'_>], credentials: &Credentials) -> bool {
    let mut values = header_values(headers, "proxy-authorization");
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

fn header_values<'a>(headers: &'a [Header<'a>], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    let named = move |header: &&Header<'_>| header.name.eq_ignore_ascii_case(name);
    headers.iter().filter(named).map(|header| header.value)
}

#[cfg(test)]
mod tests;
