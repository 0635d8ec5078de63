//! A server of HTTP/1.1 for a few short answers. Each connection has one request, a limited size and a
//! limited time.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of a request line with its headers, at most.
const MAX_REQUEST: usize = 8192;

/// Headers of a request, at most.
const MAX_HEADERS: usize = 64;

/// Time in which a request must have arrived.
const REQUEST_TIME: Duration = Duration::from_secs(5);

/// Time in which each write of an answer must succeed.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Connections at once. Others are closed.
const MAX_CONNECTIONS: usize = 16;

/// Names by which clients may call this server in the header `Host`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Hosts {
    /// Only `localhost` and addresses.
    Local,
    Any,
}

/// An answer.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) media_type: &'static str,
    pub(super) body: String,
}

impl Answer {
    pub(super) fn plain(status: u16, body: impl Into<String>) -> Self {
        Self {
            status,
            media_type: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }
}

/// A connection of either kind.
pub(super) trait Connection: Read + Write + Send + 'static {
    fn set_times(&self, read: Duration, write: Duration) -> io::Result<()>;
}

impl Connection for TcpStream {
    fn set_times(&self, read: Duration, write: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(read))?;
        self.set_write_timeout(Some(write))
    }
}

impl Connection for UnixStream {
    fn set_times(&self, read: Duration, write: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(read))?;
        self.set_write_timeout(Some(write))
    }
}

/// Serves connections until no more can be accepted.
pub(super) fn serve<C: Connection>(
    mut accept: impl FnMut() -> io::Result<C>,
    hosts: Hosts,
    answer: fn(&str) -> Answer,
) -> io::Error {
    let places = Arc::new(());
    loop {
        let mut connection = match accept() {
            Ok(connection) => connection,
            Err(error) if is_temporary(&error) => {
                // Until a descriptor is free again.
                thread::sleep(Duration::from_millis(100));
                continue;
            }
            Err(error) => return error,
        };
        if Arc::strong_count(&places) > MAX_CONNECTIONS {
            continue;
        }
        let place = Arc::clone(&places);
        let handle = move || {
            // The client is gone, or too slow.
            let _ = handle(&mut connection, hosts, answer);
            drop(place);
        };
        // Without a thread the connection is closed.
        let _ = thread::Builder::new().name("metrics".into()).spawn(handle);
    }
}

fn is_temporary(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    matches!(
        errno,
        Some(
            Errno::MFILE
                | Errno::NFILE
                | Errno::NOBUFS
                | Errno::NOMEM
                | Errno::CONNABORTED
                | Errno::INTR
        )
    )
}

fn handle(
    connection: &mut impl Connection,
    hosts: Hosts,
    answer: fn(&str) -> Answer,
) -> io::Result<()> {
    let (reply, has_body) = match read_request(connection)? {
        Request::Get {
            path,
            host,
            is_head,
        } => match is_allowed(hosts, host.as_deref()) {
            true => (answer(&path), !is_head),
            false => (
                Answer::plain(421, "this server has no such name; use its address\n"),
                !is_head,
            ),
        },
        Request::OtherMethod => (Answer::plain(405, "only GET and HEAD\n"), true),
        Request::Invalid => (Answer::plain(400, "no valid request\n"), true),
        Request::TooLong => (Answer::plain(431, "the request is too long\n"), true),
    };
    let head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nX-Content-Type-Options: nosniff\r\n\
         Connection: close\r\n\r\n",
        reply.status,
        reason(reply.status),
        reply.media_type,
        reply.body.len()
    );
    connection.write_all(head.as_bytes())?;
    if has_body {
        connection.write_all(reply.body.as_bytes())?;
    }
    connection.flush()
}

const fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    }
}

#[derive(PartialEq, Eq, Debug)]
enum Request {
    Get {
        /// Without the query.
        path: String,
        host: Option<String>,
        is_head: bool,
    },
    OtherMethod,
    Invalid,
    TooLong,
}

/// Reads a request without a body.
fn read_request(connection: &mut impl Connection) -> io::Result<Request> {
    let end = Instant::now() + REQUEST_TIME;
    let mut buffer = vec![0; MAX_REQUEST];
    let mut length = 0;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        connection.set_times(left, ANSWER_TIME)?;
        let free = buffer.get_mut(length..).unwrap_or_default();
        if free.is_empty() {
            return Ok(Request::TooLong);
        }
        match connection.read(free)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => length += count,
        }
        if let Some(request) = parse(buffer.get(..length).unwrap_or_default()) {
            return Ok(request);
        }
    }
}

/// Parses the bytes so far. Returns `None` if the end of the headers is missing.
fn parse(bytes: &[u8]) -> Option<Request> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => return None,
        Err(httparse::Error::TooManyHeaders) => return Some(Request::TooLong),
        Err(_) => return Some(Request::Invalid),
        Ok(httparse::Status::Complete(_)) => {}
    }
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Some(Request::OtherMethod),
    };
    let mut named = request.headers.iter();
    let host = named.find(|header| header.name.eq_ignore_ascii_case("host"));
    let host = host.map(|header| String::from_utf8_lossy(header.value).into_owned());
    let path = request.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    Some(Request::Get {
        path: path.to_owned(),
        host,
        is_head,
    })
}

/// Checks the header `Host`, with which a browser sends the name that it has resolved: another name than
/// `localhost` means that a page of that name asks (DNS rebinding).
fn is_allowed(hosts: Hosts, host: Option<&str>) -> bool {
    let Some(host) = host.filter(|_| hosts == Hosts::Local) else {
        return true;
    };
    let is_address = host.parse::<SocketAddr>().is_ok()
        || host.parse::<IpAddr>().is_ok()
        || host
            .strip_prefix('[')
            .and_then(|it| it.strip_suffix(']'))
            .is_some_and(|it| it.parse::<IpAddr>().is_ok());
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    is_address || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, host: Option<&str>) -> Request {
        Request::Get {
            path: path.to_owned(),
            host: host.map(str::to_owned),
            is_head: false,
        }
    }

    #[test]
    fn requests() {
        for (text, request) in [
            (
                "GET /metrics HTTP/1.1\r\nhost: a:1\r\n\r\n",
                get("/metrics", Some("a:1")),
            ),
            ("GET /readyz?x=1 HTTP/1.0\r\n\r\n", get("/readyz", None)),
            ("POST / HTTP/1.1\r\n\r\n", Request::OtherMethod),
            ("GET /\u{0} HTTP/1.1\r\n\r\n", Request::Invalid),
            ("hello\r\n\r\n", Request::Invalid),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(request), "{text:?}");
            for end in 0..text.len() - 1 {
                // Nothing of a request is enough, unless it is invalid.
                let part = parse(text.as_bytes().get(..end).expect("a part"));
                assert!(
                    matches!(part, None | Some(Request::Invalid)),
                    "{text:?} {end}"
                );
            }
        }
        let many = "a: b\r\n".repeat(MAX_HEADERS + 1);
        let many = format!("GET / HTTP/1.1\r\n{many}\r\n");
        assert_eq!(parse(many.as_bytes()), Some(Request::TooLong));
    }

    #[test]
    fn names_of_other_sites_are_refused_locally() {
        for (host, is_local) in [
            ("localhost", true),
            ("LOCALHOST:9586", true),
            ("127.0.0.1:9586", true),
            ("127.0.0.1", true),
            ("[::1]:9586", true),
            ("[::1]", true),
            ("evil.example", false),
            ("evil.example:9586", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            assert_eq!(is_allowed(Hosts::Local, Some(host)), is_local, "{host}");
            assert!(is_allowed(Hosts::Any, Some(host)), "{host}");
        }
        assert!(is_allowed(Hosts::Local, None));
    }

    /// Returns the whole answer to these bytes, or an error.
    fn exchange(bytes: &[u8]) -> io::Result<String> {
        let (mut client, mut server) = UnixStream::pair()?;
        client.write_all(bytes)?;
        client.shutdown(std::net::Shutdown::Write)?;
        handle(&mut server, Hosts::Local, |path| Answer::plain(200, path))?;
        drop(server);
        let mut text = String::new();
        client.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn answers() {
        for (request, first, last) in [
            (
                "GET /a HTTP/1.1\r\n\r\n",
                "HTTP/1.1 200 OK\r\n",
                "\r\n\r\n/a",
            ),
            (
                "HEAD /a HTTP/1.1\r\n\r\n",
                "HTTP/1.1 200 OK\r\n",
                "Connection: close\r\n\r\n",
            ),
            (
                "PUT /a HTTP/1.1\r\n\r\n",
                "HTTP/1.1 405 Method Not Allowed\r\n",
                "HEAD\n",
            ),
            (
                "GET / HTTP/1.1\r\nHost: b\r\n\r\n",
                "HTTP/1.1 421 Misdirected Request\r\n",
                "\n",
            ),
            ("\u{1}\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "\n"),
        ] {
            let answer = exchange(request.as_bytes()).expect("an answer");
            assert!(
                answer.starts_with(first) && answer.ends_with(last),
                "{answer:?}"
            );
        }
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(MAX_REQUEST));
        let (mut client, mut server) = UnixStream::pair().expect("sockets");
        client.write_all(long.as_bytes()).expect("written");
        assert_eq!(read_request(&mut server).expect("read"), Request::TooLong);
        let cut = exchange(b"GET /a HTTP/1.1\r\n").expect_err("no answer");
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }
}
