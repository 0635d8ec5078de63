//! The state of a device after its end, for commands of the file.
//!
//! A common kill switch is `PostUp = iptables -I OUTPUT … $(wg show %i fwmark) …` with the same and
//! `-D` as `PreDown`. If the device's process was killed, `wg show` gets no answer, and the rule
//! would stay. Therefore `up` saves the device's state without its secrets. While commands undo a
//! tunnel whose device is gone, a socket in the device's place answers `get` with this state.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use taupe_client::{Device, PublicKey};
use taupe_uapi::{answer_get, push_peer};

/// Time limit for a client's request, and for the end of a killed process.
const PATIENCE: Duration = Duration::from_secs(2);

/// Interval between two checks of the socket of an ending process.
const PAUSE: Duration = Duration::from_millis(10);

/// Maximum bytes of a request's first line.
const LONGEST_LINE: u64 = 4096;

/// A device without its secrets.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct LastState {
    fwmark: u32,
    listen_port: u16,
    peers: Vec<Peer>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Peer {
    public_key: [u8; 32],
    endpoint: Option<SocketAddr>,
    /// The host name of the endpoint.
    #[serde(default)]
    host: Option<String>,
    allowed_ips: Vec<IpNet>,
}

impl LastState {
    /// Returns the state of a running device.
    #[must_use]
    pub fn of(device: &Device) -> Self {
        let peers = device.status.peers.iter().map(|peer| Peer {
            public_key: peer.public_key.0,
            endpoint: peer.endpoint,
            host: peer
                .endpoint_name
                .as_ref()
                .map(|name| name.host().to_owned()),
            allowed_ips: peer.allowed_ips.clone(),
        });
        Self {
            fwmark: device.fwmark,
            listen_port: device.listen_port,
            peers: peers.collect(),
        }
    }

    /// Returns the address that a peer's endpoint with this host name had.
    pub(crate) fn address(&self, key: &PublicKey, host: &str) -> Option<IpAddr> {
        let peer = self.peers.iter().find(|peer| peer.public_key == key.0);
        let peer = peer.filter(|peer| peer.host.as_deref() == Some(host));
        Some(peer?.endpoint?.ip())
    }

    /// Returns the answer to a `get` request.
    fn answer(&self) -> String {
        let mut device = Device::new("");
        let peers = &mut device.status.peers;
        for peer in &self.peers {
            push_peer(peers, PublicKey(peer.public_key));
            if let Some(status) = peers.last_mut() {
                status.endpoint = peer.endpoint;
                status.allowed_ips.clone_from(&peer.allowed_ips);
            }
        }
        answer_get(&device.status, self.listen_port, self.fwmark).to_string()
    }
}

/// A configuration socket that answers in place of a device that is gone, until it is dropped.
#[derive(Debug)]
pub(crate) struct StandIn {
    path: PathBuf,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl StandIn {
    /// Starts answering at `path`, once the process that answered there is gone.
    ///
    /// # Errors
    /// `EADDRINUSE` if that takes too long; otherwise the system's.
    pub(crate) fn begin(path: &Path, state: &LastState) -> io::Result<Self> {
        let end = Instant::now() + PATIENCE;
        // A killed process still listens for a moment, and leaves its socket behind.
        while is_listened_to(path) {
            if Instant::now() >= end {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            thread::sleep(PAUSE);
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let is_over = Arc::new(AtomicBool::new(false));
        let (ends, answer) = (Arc::clone(&is_over), state.answer());
        let serve = move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::Acquire) {
                    return;
                }
                // The result concerns only the command that made the request.
                let _ = stream.and_then(|stream| converse(stream, &answer));
            }
        };
        let thread = thread::Builder::new()
            .name("stand-in".into())
            .spawn(serve)?;
        Ok(Self {
            path: path.to_owned(),
            is_over,
            thread: Some(thread),
        })
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Wakes the thread.
        let _ = taupe_client::connect_to(&self.path);
        let _ = fs::remove_file(&self.path);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Returns true if a process listens at a socket. The queue of a stopped process may be full.
fn is_listened_to(path: &Path) -> bool {
    let connection = taupe_client::connect_to(path);
    connection.map_or_else(|error| error.kind() == io::ErrorKind::WouldBlock, |_| true)
}

/// Answers one request: with the state, or with `ENODEV` for requests other than `get`.
fn converse(stream: UnixStream, answer: &str) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut first = String::new();
    let mut reader = io::Read::take(BufReader::new(&stream), LONGEST_LINE);
    reader.read_line(&mut first)?;
    let refusal = format!("errno=-{}\n\n", rustix::io::Errno::NODEV.raw_os_error());
    let answer = if first == "get=1\n" { answer } else { &refusal };
    (&stream).write_all(answer.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::{LastState, Peer, PublicKey, StandIn};
    use std::io::{Read as _, Write as _};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_answers_in_the_place_of_the_device() {
        let path = std::env::temp_dir().join(format!("taupe-stand-in-{}", std::process::id()));
        let state = LastState {
            fwmark: 51820,
            listen_port: 4500,
            peers: vec![Peer {
                public_key: [7; 32],
                endpoint: Some("192.0.2.1:51820".parse().expect("endpoint")),
                host: Some("vpn.example".to_owned()),
                allowed_ips: vec!["10.0.0.0/8".parse().expect("network")],
            }],
        };
        let address = |key, host| state.address(&PublicKey([key; 32]), host);
        assert_eq!(address(7, "vpn.example"), "192.0.2.1".parse().ok());
        assert_eq!(address(7, "other.example"), None);
        assert_eq!(address(8, "vpn.example"), None);
        let json = serde_json::to_string(&state).expect("JSON");
        assert_eq!(
            serde_json::from_str::<LastState>(&json).expect("state"),
            state
        );
        let ask = |request: &str| {
            let mut stream = UnixStream::connect(&path).expect("somebody listens");
            stream.write_all(request.as_bytes()).expect("asks");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("an answer");
            answer
        };
        let stand_in = StandIn::begin(&path, &state).expect("begins");
        assert!(StandIn::begin(&path, &state).is_err());
        let answer = ask("get=1\n\n");
        for line in [
            "fwmark=51820",
            "listen_port=4500",
            "allowed_ip=10.0.0.0/8",
            "errno=0",
        ] {
            assert!(
                answer.lines().any(|found| found == line),
                "{line}: {answer}"
            );
        }
        assert_eq!(ask("set=1\nfwmark=1\n\n"), "errno=-19\n\n");
        drop(stand_in);
        assert!(!path.exists());
    }
}
