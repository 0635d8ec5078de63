//! Resolvers and local name services that record the names they are asked for.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use taupe_lab::host::Host;
use taupe_lab::{Error, Result};

use super::OUTSIDE;

/// Names that a server was asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names(Arc<Mutex<Vec<String>>>);

impl Names {
    fn note(&self, name: String) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.push(name);
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        names.clone()
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names().iter().any(|other| other == name)
    }

    pub(super) fn count(&self) -> usize {
        self.names().len()
    }
}

/// Runs a resolver until the sandbox ends.
pub(crate) fn serve(host: &Host, address: &str, answer: Ipv4Addr, names: &Names) -> Result<()> {
    let at = SocketAddr::new(address.parse().map_err(|_| Error::unmet(address))?, 53);
    let (socket, listener) = host.enter(|| {
        let socket = UdpSocket::bind(at).map_err(Error::io(at.to_string()))?;
        let listener = TcpListener::bind(at).map_err(Error::io(at.to_string()))?;
        Ok((socket, listener))
    })?;
    let by_udp = names.clone();
    thread::spawn(move || {
        let mut query = [0; 2048];
        loop {
            // The error may belong to an earlier answer, whose client is gone.
            let Ok((length, from)) = socket.recv_from(&mut query) else {
                continue;
            };
            if let Some(answer) = answer_to(&query[..length], answer, &by_udp, true) {
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    let by_tcp = names.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), names) = (stream, by_tcp.clone()) else {
                continue;
            };
            thread::spawn(move || -> std::io::Result<()> {
                loop {
                    let mut length = [0; 2];
                    stream.read_exact(&mut length)?;
                    let mut query = vec![0; u16::from_be_bytes(length).into()];
                    stream.read_exact(&mut query)?;
                    let answer = answer_to(&query, answer, &names, false).unwrap_or_default();
                    stream.write_all(&(answer.len() as u16).to_be_bytes())?;
                    stream.write_all(&answer)?;
                }
            });
        }
    });
    Ok(())
}

/// Returns one address for every name, and a hundred for names that begin with `large`; by UDP only
/// if they fit.
fn answer_to(query: &[u8], address: Ipv4Addr, names: &Names, by_udp: bool) -> Option<Vec<u8>> {
    let name_end = 12 + query.get(12..)?.iter().position(|byte| *byte == 0)? + 1;
    let question = query.get(12..name_end + 4)?;
    let mut labels = Vec::new();
    let mut rest = query.get(12..name_end - 1)?;
    while let Some((length, more)) = rest.split_first() {
        let (label, more) = more.split_at_checked((*length).into())?;
        labels.push(String::from_utf8_lossy(label).into_owned());
        rest = more;
    }
    let name = labels.join(".");
    names.note(name.clone());
    let is_long = query.get(11) == Some(&1);
    let count: u8 = match (question.ends_with(&[0, 1, 0, 1]), name.starts_with("large")) {
        (false, _) => 0,
        (true, false) => 1,
        (true, true) => 100,
    };
    let is_cut = by_udp && count > 1 && !is_long;
    let count = if is_cut { 0 } else { count };
    let mut answer = query.get(..2)?.to_vec();
    answer.extend([0x81 | u8::from(is_cut) << 1, 0x80, 0, 1, 0, count, 0, 0]);
    answer.extend([0, u8::from(is_long)]);
    answer.extend(question);
    let [first, second, third, last] = address.octets();
    for number in 0..count {
        // The name of the question, class Internet, for a second. The last one is the address.
        let last = last.wrapping_add(count - 1 - number);
        answer.extend([
            0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, first, second, third, last,
        ]);
    }
    if is_long {
        answer.extend([0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    }
    Some(answer)
}

/// Serves systemd-resolved's socket for nss-resolve: Varlink.
pub(super) fn serve_varlink(names: &Names) -> Result<()> {
    let listener = listener("/run/systemd/resolve/io.systemd.Resolve")?;
    let names = names.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), names) = (stream, names.clone()) else {
                continue;
            };
            thread::spawn(move || -> std::io::Result<()> {
                let mut request = Vec::new();
                let mut byte = [0];
                while stream.read(&mut byte)? == 1 {
                    if byte != [0] {
                        request.extend(byte);
                        continue;
                    }
                    let text = String::from_utf8_lossy(&request).into_owned();
                    let name = text.split("\"name\":\"").nth(1);
                    let name = name
                        .and_then(|rest| rest.split('"').next())
                        .unwrap_or(&text);
                    names.note(name.to_owned());
                    let address = OUTSIDE.octets().map(|byte| byte.to_string()).join(",");
                    write!(
                        stream,
                        "{{\"parameters\":{{\"addresses\":[{{\"family\":2,\"address\":[{address}]}}],\
                         \"name\":\"{name}\",\"flags\":1}}}}\0"
                    )?;
                    request.clear();
                }
                Ok(())
            });
        }
    });
    Ok(())
}

/// Runs a service that records its clients, and sends nothing.
pub(super) fn accept(path: &'static str, names: &Names) -> Result<()> {
    let listener = listener(path)?;
    let names = names.clone();
    thread::spawn(move || {
        for _ in listener.incoming() {
            names.note(path.to_owned());
        }
    });
    Ok(())
}

fn listener(path: &str) -> Result<UnixListener> {
    let folder = Path::new(path).parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(folder).map_err(Error::io(path))?;
    UnixListener::bind(path).map_err(Error::io(path))
}
