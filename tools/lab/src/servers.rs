//! Servers for tests and the demo: a web server that reports the client's address, and a name server.

use crate::error::{Error, Result};
use crate::host::Host;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Path at which the web server sends data for [`BULK_TIME`]. Any other path returns the client's
/// address.
pub const BULK: &str = "/bulk";

/// Duration of such a transfer.
pub const BULK_TIME: Duration = Duration::from_secs(2);

/// Time limit for a silent client.
const SILENCE: Duration = Duration::from_secs(10);

/// Serves web pages at port 80 of an address until the sandbox ends.
///
/// # Errors
///
/// [`Error::Io`] if it cannot listen.
pub fn serve_web(host: &Host, at: IpAddr) -> Result<()> {
    let at = SocketAddr::new(at, 80);
    let listener = host.enter(|| TcpListener::bind(at).map_err(Error::io(at.to_string())))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that disconnects reports the error itself.
            thread::spawn(move || drop(answer_request(stream)));
        }
    });
    Ok(())
}

/// HTTP 1.0: the end of the connection ends the page (RFC 1945).
fn answer_request(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    let client = stream.peer_addr()?.ip();
    let mut request = Vec::new();
    let mut block = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") && request.len() < 8192 {
        match stream.read(&mut block)? {
            0 => return Ok(()),
            length => request.extend(block.iter().take(length)),
        }
    }
    stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n")?;
    if !request.starts_with(format!("GET {BULK} ").as_bytes()) {
        return writeln!(stream, "{client}");
    }
    let end = Instant::now() + BULK_TIME;
    let zeros = vec![0; 1 << 18];
    while Instant::now() < end {
        stream.write_all(&zeros)?;
    }
    Ok(())
}

/// Number of questions to a name server.
#[derive(Debug, Clone, Default)]
pub struct QueryCount(Arc<AtomicUsize>);

impl QueryCount {
    /// Returns the number.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Answers every question with these addresses, for any name, until the sandbox ends.
///
/// # Errors
///
/// [`Error::Io`] if it cannot listen.
pub fn serve_names(host: &Host, at: IpAddr, addresses: [IpAddr; 2]) -> Result<QueryCount> {
    let at = SocketAddr::new(at, 53);
    let socket = host.enter(|| UdpSocket::bind(at).map_err(Error::io(at.to_string())))?;
    let queries = QueryCount::default();
    let count = queries.clone();
    thread::spawn(move || {
        let mut query = [0; 512];
        loop {
            // The error belongs to an earlier answer, whose receiver is gone.
            let Ok((length, from)) = socket.recv_from(&mut query) else {
                continue;
            };
            let query = query.get(..length).unwrap_or_default();
            if let Some(answer) = answer_question(query, addresses) {
                count.0.fetch_add(1, Ordering::Relaxed);
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    Ok(queries)
}

/// Answers a query with one question, uncompressed (RFC 1035 §4, RFC 3596 §2).
fn answer_question(query: &[u8], addresses: [IpAddr; 2]) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    let mut length = HEADER;
    while let label @ 1.. = usize::from(*query.get(length)?) {
        length += 1 + label;
    }
    // The root label, the type, the class.
    length += 1 + 4;
    let question = query.get(HEADER..length)?;
    let (_, [high, low, class @ ..]) = question.split_last_chunk::<4>()?;
    let data = addresses.iter().find_map(|address| match address {
        IpAddr::V4(address) => ([*high, *low] == [0, 1]).then(|| address.octets().to_vec()),
        IpAddr::V6(address) => ([*high, *low] == [0, 28]).then(|| address.octets().to_vec()),
    });
    let mut answer = query.get(..2)?.to_vec();
    // A response; recursion was desired and is available.
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(data.is_some()), 0, 0, 0, 0]);
    answer.extend(question);
    if let Some(data) = data {
        // The name above, for a minute.
        answer.extend([0xc0, HEADER as u8, *high, *low]);
        answer.extend(class);
        answer.extend([0, 0, 0, 60, 0, u8::try_from(data.len()).ok()?]);
        answer.extend(data);
    }
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a query for `a.b` with a type.
    fn query(kind: u8) -> Vec<u8> {
        let mut query = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        query.extend([1, b'a', 1, b'b', 0, 0, kind, 0, 1]);
        query
    }

    #[test]
    fn names_have_an_address_of_each_version() {
        let addresses = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().unwrap());
        for (kind, octets) in [(1, 4), (28, 16), (16, 0)] {
            let answer = answer_question(&query(kind), addresses).unwrap();
            assert_eq!(answer[..2], [7, 9]);
            assert_eq!(usize::from(answer[7]), usize::from(octets > 0));
            let record = if octets > 0 { 12 + octets } else { 0 };
            assert_eq!(answer.len(), query(kind).len() + record, "type {kind}");
        }
        let query = query(1);
        for length in 0..query.len() {
            assert_eq!(answer_question(&query[..length], addresses), None);
        }
    }
}
