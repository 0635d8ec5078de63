//! UDP byte counts and silent name servers of a tunnel. Only its packet process knows them. The broker
//! listens at a Unix socket beside the tunnel's journal, and passes each client to the packet process,
//! which writes them. Neither reads anything from clients.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use taupe_adapter::journal::DIRECTORY;
use taupe_nat::flows::CAPACITY;
use taupe_nat::translate::{SilentServers, Translator};
use taupe_runtime::clock::boot;
use taupe_runtime::file_identity::FileIdentity;

/// Timeout of either end.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Families of name servers.
const MAX_SILENT: usize = 2;

/// Maximum length of an answer in bytes, enough for a full flow table.
const MAX_ANSWER: u64 = 16 << 20;

/// Traffic of a UDP socket with one remote address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UdpTraffic {
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Payload bytes, sent and received.
    pub(crate) bytes: [u64; 2],
}

/// Answer of a tunnel's process.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct TrafficReport {
    pub(crate) traffic: Vec<UdpTraffic>,
    /// Name servers that do not answer.
    pub(crate) silent: Vec<SilentServers>,
}

/// First word of a line about silent servers. The seconds of silence and the addresses follow.
const SILENT: &str = "silent";

/// Serves the state of a translation until dropped.
#[derive(Debug)]
pub struct TrafficServer {
    path: PathBuf,
    /// The socket's file.
    file: Option<FileIdentity>,
}

impl TrafficServer {
    /// Starts serving in a thread, which ends with this process. `answer` writes the state to a
    /// client ([`write_report`]).
    ///
    /// # Errors
    /// Returns the system's error if the socket or the thread cannot be created.
    pub fn begin(
        interface: &str,
        answer: impl Fn(UnixStream) -> io::Result<()> + Send + 'static,
    ) -> io::Result<Self> {
        let path = socket_path(interface);
        let mut folder = DirBuilder::new();
        folder.recursive(true).mode(0o700).create(DIRECTORY)?;
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            // Removes the socket of a killed process.
            _ => {}
        }
        let listener = UnixListener::bind(&path)?;
        fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let file = FileIdentity::of(&path).ok();
        let serve = move || {
            for stream in listener.incoming() {
                let written = stream.and_then(&answer);
                if let Err(error) = written {
                    tracing::debug!(%error, "cannot write the flows");
                    // File descriptors may be exhausted for a moment.
                    thread::sleep(TIMEOUT / 20);
                }
            }
        };
        thread::Builder::new().name("flows".into()).spawn(serve)?;
        Ok(Self { path, file })
    }
}

impl Drop for TrafficServer {
    fn drop(&mut self) {
        // The next process of the tunnel may have its own file there already.
        if self.file.is_some() && self.file == FileIdentity::of(&self.path).ok() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the socket of a tunnel's process that was killed.
pub fn remove_leftover(interface: &str) {
    let path = socket_path(interface);
    let connection = taupe_client::connect_to(&path);
    if connection.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
        let _ = fs::remove_file(&path);
    }
}

fn socket_path(interface: &str) -> PathBuf {
    Path::new(DIRECTORY).join(format!("{interface}.flows"))
}

/// Writes the UDP flows and the silent name servers of a translation to a client.
///
/// # Errors
/// The system's, for example if the client does not read.
pub fn write_report(mut stream: UnixStream, translator: &Translator) -> io::Result<()> {
    stream.set_write_timeout(Some(TIMEOUT))?;
    let silent = translator.silent_servers(boot());
    let silent = silent.iter().map(|silence| {
        let servers = silence.servers.iter().map(|server| format!(" {server}"));
        let servers: String = servers.collect();
        format!("{SILENT} {}{servers}\n", silence.time.as_secs())
    });
    let flows = translator.datagram_flows().into_iter().map(|flow| {
        let [sent, received] = flow.bytes;
        format!("{} {} {sent} {received}\n", flow.local, flow.remote)
    });
    stream.write_all(silent.chain(flows).collect::<String>().as_bytes())
}

/// Asks a tunnel's process. The answer is empty if no process answers.
pub(crate) fn query(interface: &str) -> TrafficReport {
    let read = || -> io::Result<String> {
        let stream = taupe_client::connect_to(&socket_path(interface))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut text = Vec::new();
        taupe_client::read_blocks(&mut stream.take(MAX_ANSWER), |block| {
            text.extend_from_slice(block);
            Ok::<_, io::Error>(false)
        })?;
        String::from_utf8(text).map_err(io::Error::other)
    };
    let text = read().unwrap_or_default();
    TrafficReport {
        traffic: text
            .lines()
            .filter_map(parse_traffic)
            .take(CAPACITY)
            .collect(),
        silent: text
            .lines()
            .filter_map(parse_silence)
            .take(MAX_SILENT)
            .collect(),
    }
}

fn parse_silence(line: &str) -> Option<SilentServers> {
    let (seconds, servers) = line
        .strip_prefix(SILENT)?
        .strip_prefix(' ')?
        .split_once(' ')?;
    Some(SilentServers {
        time: Duration::from_secs(seconds.parse().ok()?),
        servers: servers
            .split(' ')
            .map(|server| server.parse().ok())
            .collect::<Option<_>>()?,
    })
}

fn parse_traffic(line: &str) -> Option<UdpTraffic> {
    let mut words = line.split(' ');
    let traffic = UdpTraffic {
        local: words.next()?.parse().ok()?,
        remote: words.next()?.parse().ok()?,
        bytes: [words.next()?.parse().ok()?, words.next()?.parse().ok()?],
    };
    words.next().is_none().then_some(traffic)
}

/// Returns the traffic of a socket with these addresses. A socket that is bound to no address has
/// its port on all of them.
pub(crate) fn of_socket(
    all: &[UdpTraffic],
    local: SocketAddr,
    remote: Option<SocketAddr>,
) -> Vec<UdpTraffic> {
    let is_same = |own: IpAddr| local.ip().is_unspecified() || own == local.ip();
    let belongs = |one: &&UdpTraffic| {
        one.local.port() == local.port()
            && is_same(one.local.ip())
            && remote.is_none_or(|remote| remote == one.remote)
    };
    all.iter().filter(belongs).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_about_traffic_is_read_back() {
        let one = UdpTraffic {
            local: "192.0.2.1:5000".parse().unwrap(),
            remote: "[2001:db8::1]:443".parse().unwrap(),
            bytes: [10, u64::MAX],
        };
        let line = "192.0.2.1:5000 [2001:db8::1]:443 10 18446744073709551615";
        assert_eq!(parse_traffic(line), Some(one));
        for wrong in ["", "192.0.2.1:5000", &format!("{line} 1"), "a b 1 2"] {
            assert_eq!(parse_traffic(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_line_about_silent_servers_is_read_back() {
        let line = "silent 12 10.77.0.53 fd77::53";
        let silence = SilentServers {
            time: Duration::from_secs(12),
            servers: ["10.77.0.53", "fd77::53"]
                .map(|text| text.parse().unwrap())
                .to_vec(),
        };
        assert_eq!(parse_silence(line), Some(silence));
        assert_eq!(parse_traffic(line), None);
        for wrong in [
            "silent",
            "silent 12",
            "silent a 10.0.0.1",
            "silent 1 a",
            "silence 1 ::1",
        ] {
            assert_eq!(parse_silence(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn traffic_belongs_to_the_socket_with_its_port() {
        let one = parse_traffic("192.0.2.1:5000 198.51.100.1:443 1 2").unwrap();
        let all = [
            one,
            parse_traffic("192.0.2.1:5001 198.51.100.1:443 3 4").unwrap(),
        ];
        let of = |local: &str, remote: Option<&str>| {
            let remote = remote.map(|text| text.parse().unwrap());
            of_socket(&all, local.parse().unwrap(), remote)
        };
        assert_eq!(of("0.0.0.0:5000", None), [one]);
        assert_eq!(of("192.0.2.1:5000", Some("198.51.100.1:443")), [one]);
        assert_eq!(of("192.0.2.1:5000", Some("198.51.100.2:443")), []);
        assert_eq!(of("192.0.2.2:5000", None), []);
    }
}
