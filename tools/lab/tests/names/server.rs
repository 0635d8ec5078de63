//! A name server with one name.

use crate::NAME_SERVER;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use taupe_lab::host::Host;
use taupe_lab::{Error, Result};

/// Number of questions for the name.
#[derive(Clone, Default)]
pub(crate) struct QueryCount(Arc<AtomicUsize>);

impl QueryCount {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// Answers until the sandbox ends (RFC 1035 §4).
pub(crate) fn start(host: &Host, name: &str, address: Ipv4Addr) -> Result<QueryCount> {
    let socket = host.enter(|| UdpSocket::bind(NAME_SERVER).map_err(Error::io("name server")))?;
    let queries = QueryCount::default();
    let (count, name) = (queries.clone(), name.to_owned());
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if let Some(answer) = answer(&buffer[..length], &name, address) {
                count.0.fetch_add(1, Ordering::Relaxed);
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    Ok(queries)
}

/// Returns the answer to a question for the name: its address for type A, an empty answer for other
/// types.
fn answer(query: &[u8], name: &str, address: Ipv4Addr) -> Option<Vec<u8>> {
    const HEADER: usize = 12;
    const ADDRESS: [u8; 4] = [0, 1, 0, 1];
    let mut encoded = Vec::new();
    for label in name.split('.') {
        encoded.push(u8::try_from(label.len()).ok()?);
        encoded.extend(label.bytes());
    }
    encoded.push(0);
    let kind = query.get(HEADER..)?.strip_prefix(&*encoded)?.get(..4)?;
    let has_one = u8::from(kind == ADDRESS);
    // The identifier; a response with recursion desired and available.
    let mut answer = query.get(..2)?.to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, has_one, 0, 0, 0, 0]);
    answer.extend(encoded.iter().chain(kind));
    if has_one == 1 {
        let name_above = [0xc0, HEADER as u8];
        answer.extend(name_above.iter().chain(&ADDRESS));
        answer.extend([0, 0, 0, 60, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}
