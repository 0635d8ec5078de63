//! A server of HTTP/1.1 for a few short answers. Each connection has one request, a limited size and a
//! limited time.

use crate::console::say;
use rustix::io::Errno;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use taupe_web_link::host::is_local;

/// Bytes of a request line with its headers, at most.
const MAX_REQUEST: usize = 8192;

/// Headers of a request, at most.
const MAX_HEADERS: usize = 64;

/// Time in which a request must have arrived.
const REQUEST_TIME: Duration = Duration::from_secs(3);

/// Time in which the client must have read the answer.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Time and bytes for which the rest of a refused request is read, so that the client gets the answer.
const DRAIN_TIME: Duration = Duration::from_secs(1);
const MAX_DRAINED: usize = 1 << 16;

/// Number of connections at once. Others are closed.
const MAX_CONNECTIONS: usize = 64;

/// Interval between two reports that there are too many.
const REPORT_EVERY: Duration = Duration::from_secs(60);

/// An answer.
pub(super) struct Answer {
    pub(super) status: u16,
    pub(super) media_type: &'static str,
    pub(super) body: Arc<str>,
}

impl Answer {
    pub(super) fn plain(status: u16, body: &str) -> Self {
        Self {
            status,
            media_type: "text/plain; charset=utf-8",
            body: body.into(),
        }
    }
}

/// A connection of either kind.
pub(super) trait Connection: Read + Write + Send + 'static {
    /// Sets the time after which a read or a write fails. It must not be zero.
    fn set_time(&self, time: Duration) -> io::Result<()>;

    /// Ends the direction to the client.
    fn end_writing(&self) -> io::Result<()>;

    /// Returns true if the client has connected to a loopback address.
    fn is_loopback(&self) -> bool;
}

impl Connection for TcpStream {
    fn set_time(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }

    fn end_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    fn is_loopback(&self) -> bool {
        self.local_addr()
            .is_ok_and(|it| it.ip().to_canonical().is_loopback())
    }
}

impl Connection for UnixStream {
    fn set_time(&self, time: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(time))?;
        self.set_write_timeout(Some(time))
    }

    fn end_writing(&self) -> io::Result<()> {
        self.shutdown(Shutdown::Write)
    }

    // Browsers do not use such sockets.
    fn is_loopback(&self) -> bool {
        false
    }
}

/// Serves connections until no more can be accepted.
pub(super) fn serve<C: Connection>(
    mut accept: impl FnMut() -> io::Result<C>,
    answer: impl Fn(&str) -> Answer + Send + Sync + 'static,
) -> io::Error {
    let (places, answer) = (Arc::new(()), Arc::new(answer));
    let mut reported: Option<Instant> = None;
    loop {
        let mut connection = match accept() {
            Ok(connection) => connection,
            Err(error) if is_final(&error) => return error,
            Err(_) => {
                // Descriptors may be short for a while.
                thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        if Arc::strong_count(&places) > MAX_CONNECTIONS {
            if reported.is_none_or(|at| at.elapsed() > REPORT_EVERY) {
                reported = Some(Instant::now());
                say(&format_args!(
                    "[!] more than {MAX_CONNECTIONS} connections at once to the metrics: others are \
                     closed"
                ));
            }
            continue;
        }
        let (place, answer) = (Arc::clone(&places), Arc::clone(&answer));
        let handle = move || {
            // The client is gone, or too slow.
            let _ = handle(&mut connection, &*answer);
            drop(place);
        };
        // Without a thread the connection is closed.
        let _ = thread::Builder::new().name("http".into()).spawn(handle);
    }
}

/// Returns true if the socket itself is unusable. Other errors concern one connection, or end.
fn is_final(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK))
}

fn handle(connection: &mut impl Connection, answer: &dyn Fn(&str) -> Answer) -> io::Result<()> {
    let request = read_request(connection)?;
    let is_head = matches!(request, Request::Get { is_head: true, .. });
    let is_read = matches!(request, Request::Get { .. });
    let reply = match request {
        Request::Get { host, .. }
            if connection.is_loopback() && host.as_deref().is_some_and(|host| !is_local(host)) =>
        {
            Answer::plain(421, "this server has no such name; use its address\n")
        }
        Request::Get { path, .. } => answer(&path),
        Request::OtherMethod => Answer::plain(405, "only GET and HEAD\n"),
        Request::Invalid => Answer::plain(400, "no valid request\n"),
        Request::TooLong => Answer::plain(431, "the request is too long\n"),
    };
    let head = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nAllow: GET, HEAD\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        reply.status,
        reason(reply.status),
        reply.media_type,
        reply.body.len()
    );
    let end = Instant::now() + ANSWER_TIME;
    write_until(connection, head.as_bytes(), end)?;
    if !is_head {
        write_until(connection, reply.body.as_bytes(), end)?;
    }
    if is_read {
        return Ok(());
    }
    // Closing with unread input would reset the connection, and the client might lose the answer.
    connection.end_writing()?;
    drain(connection)
}

/// Writes all bytes, or fails at a time.
fn write_until(connection: &mut impl Connection, mut bytes: &[u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        connection.set_time(left_until(end)?)?;
        let written = connection.write(bytes)?;
        bytes = bytes.get(written..).unwrap_or_default();
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

fn drain(connection: &mut impl Connection) -> io::Result<()> {
    let end = Instant::now() + DRAIN_TIME;
    let mut left = MAX_DRAINED;
    let mut buffer = [0; 4096];
    while left > 0 {
        connection.set_time(left_until(end)?)?;
        match connection.read(&mut buffer)? {
            0 => break,
            count => left = left.saturating_sub(count),
        }
    }
    Ok(())
}

fn left_until(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
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
        /// The path of the target, without its query.
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
        connection.set_time(left_until(end)?)?;
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
    let headers = request.headers.iter();
    let mut hosts = headers.filter(|header| header.name.eq_ignore_ascii_case("host"));
    let host = hosts.next();
    // RFC 9112, section 3.2.
    if hosts.next().is_some() || (host.is_none() && request.version == Some(1)) {
        return Some(Request::Invalid);
    }
    let host = host.map(|header| String::from_utf8_lossy(header.value).into_owned());
    let path = request.path.unwrap_or_default();
    let path = path.split('?').next().unwrap_or_default();
    Some(Request::Get {
        path: path.to_owned(),
        host,
        is_head,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

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

    /// Returns the answer to these bytes, or an error.
    fn exchange(bytes: &[u8]) -> io::Result<String> {
        let (mut client, mut server) = UnixStream::pair()?;
        client.write_all(bytes)?;
        client.shutdown(Shutdown::Write)?;
        handle(&mut server, &|path| Answer::plain(200, path))?;
        drop(server);
        let mut text = String::new();
        client.read_to_string(&mut text)?;
        Ok(text)
    }

    #[test]
    fn answers() {
        for (request, first, last) in [
            (
                "GET /a HTTP/1.1\r\nHost: b\r\n\r\n",
                "HTTP/1.1 200 OK\r\n",
                "\r\n\r\n/a",
            ),
            (
                "GET /a HTTP/1.0\r\n\r\n",
                "HTTP/1.1 200 OK\r\n",
                "\r\n\r\n/a",
            ),
            (
                "HEAD /a HTTP/1.0\r\n\r\n",
                "HTTP/1.1 200 OK\r\n",
                "Connection: close\r\n\r\n",
            ),
            (
                "GET /a HTTP/1.1\r\n\r\n",
                "HTTP/1.1 400 Bad Request\r\n",
                "\n",
            ),
            (
                "GET /a HTTP/1.1\r\nHost: b\r\nHost: c\r\n\r\n",
                "HTTP/1.1 400 Bad Request\r\n",
                "\n",
            ),
            ("\u{1}\r\n\r\n", "HTTP/1.1 400 Bad Request\r\n", "\n"),
            (
                "PUT /a HTTP/1.1\r\n\r\nbody",
                "HTTP/1.1 405 Method Not Allowed\r\n",
                "HEAD\n",
            ),
        ] {
            let answer = exchange(request.as_bytes()).expect("an answer");
            assert!(
                answer.starts_with(first) && answer.ends_with(last),
                "{request:?}: {answer:?}"
            );
        }
        let long = format!("GET /{} HTTP/1.1\r\n", "a".repeat(MAX_REQUEST));
        let answer = exchange(long.as_bytes()).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 431 "), "{answer:?}");
        let cut = exchange(b"GET /a HTTP/1.1\r\n").expect_err("no answer");
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn loopback_includes_its_form_in_ipv6() {
        let listener = std::net::TcpListener::bind("[::]:0").expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let _client = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        let (server, _) = listener.accept().expect("a connection");
        assert!(server.is_loopback());
    }

    #[test]
    fn too_many_connections_are_closed_and_places_become_free() {
        let (sender, accepted) = mpsc::channel();
        let accept = move || accepted.recv().map_err(|_| Errno::BADF.into());
        let served = thread::spawn(move || serve(accept, |path: &str| Answer::plain(200, path)));
        let connect = || {
            let (client, server) = UnixStream::pair().expect("sockets");
            sender.send(server).expect("it serves");
            client
        };
        let read = |mut client: UnixStream| {
            let mut text = String::new();
            client.read_to_string(&mut text).map(|_| text)
        };
        let idle: Vec<_> = (0..MAX_CONNECTIONS).map(|_| connect()).collect();
        assert_eq!(read(connect()).expect("closed"), "");
        drop(idle);
        // Until a thread has seen that its client is gone.
        let answer = loop {
            let mut client = connect();
            let sent = client.write_all(b"GET /a HTTP/1.0\r\n\r\n");
            match sent.and_then(|()| read(client)) {
                Ok(text) if !text.is_empty() => break text,
                _ => thread::yield_now(),
            }
        };
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        drop(sender);
        let error = served.join().expect("it ends");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::BADF));
    }

    #[test]
    fn a_client_that_does_not_read_is_given_up() {
        let (_client, mut server) = UnixStream::pair().expect("sockets");
        let end = Instant::now() + Duration::from_millis(50);
        let much = vec![0; 1 << 24];
        let error = write_until(&mut server, &much, end).expect_err("too slow");
        let kinds = [io::ErrorKind::WouldBlock, io::ErrorKind::TimedOut];
        assert!(kinds.contains(&error.kind()), "{error}");
    }
}
