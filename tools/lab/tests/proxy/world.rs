//! A machine with a proxy, and servers behind its tunnel.

use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::{PermissionsExt, chown};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;
use taupe_lab::host::{Host, Transport, add_address, neighbours};
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Attempt, Process, wait_until};
use taupe_lab::sandbox::{scratch, scratch_file};
pub(crate) use taupe_lab::server::PORT;
use taupe_lab::server::Server;
use taupe_lab::{Error, Result, ensure};

/// Addresses reachable only through the tunnel.
pub(crate) const BEYOND: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 5, 0, 0, 0, 0, 1)),
];

/// The tunnel's name server.
pub(crate) const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 53);

/// The proxy's addresses in the tunnel.
pub(crate) const TUNNEL: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)),
    IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)),
];

pub(crate) const SOCKS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1080);
pub(crate) const HTTP: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8118);

/// Port of an echo server.
pub(crate) const ECHO: u16 = 7;
/// Port of a server that reports the client's address.
pub(crate) const WEB: u16 = 80;

/// Time limit for short operations on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// An unprivileged user: Debian's `nobody`.
const USER: u32 = 65534;

pub(crate) struct World {
    pub(crate) near: Host,
    pub(crate) far: Host,
    pub(crate) server: Server,
    program: String,
}

impl World {
    pub(crate) fn new() -> Result<Self> {
        let (near, far) = neighbours()?;
        for address in BEYOND {
            add_address(&far, "lo", &address.to_string())?;
        }
        add_address(&far, "lo", &NAME_SERVER.to_string())?;
        let server = Server::start(&near, &far)?;
        Ok(Self {
            near,
            far,
            server,
            program: for_everybody()?,
        })
    }

    /// Returns a file that the unprivileged user can read.
    pub(crate) fn file(&self, interface: &str, peer: &str) -> Result<String> {
        owned("tunnel.conf", &self.server.file(interface, peer))
    }

    pub(crate) fn file_to(
        &self,
        public_key: &str,
        port: u16,
        interface: &str,
        peer: &str,
    ) -> Result<String> {
        let text = self.server.file_to(public_key, port, interface, peer);
        owned("tunnel.conf", &text)
    }

    /// Returns a file for all destinations, with a name server.
    pub(crate) fn full(&self) -> Result<String> {
        self.file(
            &format!("DNS = {NAME_SERVER}"),
            "AllowedIPs = 0.0.0.0/0, ::/0",
        )
    }

    /// Returns the command line of a proxy for an unprivileged user without capabilities.
    fn command<'a>(&'a self, arguments: &[&'a str]) -> Vec<&'a str> {
        let user = [
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "--no-new-privs",
            "--inh-caps",
            "-all",
            "--bounding-set",
            "-all",
            "env",
            "HOME=/run/lab/home",
        ];
        [&user[..], &[&*self.program, "proxy"], arguments].concat()
    }

    /// Runs a proxy that listens for SOCKS and HTTP.
    pub(crate) fn proxy(&self, file: &str, more: &[&str]) -> Result<Process> {
        self.proxy_by(&[], file, more)
    }

    /// Runs a proxy that listens for SOCKS and HTTP, as an argument of the command `by`.
    pub(crate) fn proxy_by(&self, by: &[&str], file: &str, more: &[&str]) -> Result<Process> {
        let (socks, http) = (SOCKS.to_string(), HTTP.to_string());
        let listen = ["--socks5", &socks, "--http", &http];
        let command = self.command(&[&[file], &listen[..], more].concat());
        let process = self.near.spawn(&[by, &command].concat())?;
        for at in [SOCKS, HTTP] {
            wait_until("the proxy", PATIENCE, || {
                self.near.listens(Transport::Tcp, at.port())
            })?;
        }
        Ok(process)
    }

    /// Runs a proxy that is expected to end by itself.
    pub(crate) fn attempt(&self, arguments: &[&str]) -> Result<Attempt> {
        self.near.attempt(&self.command(arguments))
    }

    /// Runs `curl` on the machine with the proxy, and returns its output.
    pub(crate) fn curl(&self, arguments: &[&str]) -> Result<String> {
        let command = [&["curl", "-sS", "--fail", "--max-time", "30"], arguments].concat();
        Ok(self.near.run(&command)?.stdout)
    }

    /// Connects from the machine with the proxy.
    pub(crate) fn connect(&self, to: SocketAddr) -> Result<TcpStream> {
        self.near.enter(|| {
            let stream = TcpStream::connect(to).map_err(Error::io(to.to_string()))?;
            let limit = Some(PATIENCE);
            stream
                .set_read_timeout(limit)
                .map_err(Error::io("socket"))?;
            stream
                .set_write_timeout(limit)
                .map_err(Error::io("socket"))?;
            Ok(stream)
        })
    }
}

/// Ends a proxy as a service manager does, and checks its exit status.
pub(crate) fn end(mut proxy: Process) -> Result<()> {
    proxy.signal(Signal::TERM)?;
    let status = proxy.wait(PATIENCE)?;
    ensure!(status.success(), "{status}: {}", proxy.output());
    Ok(())
}

/// Writes a file that only the unprivileged user can read.
pub(crate) fn owned(name: &str, text: &str) -> Result<String> {
    let path = scratch_file(name, text)?;
    chown(&path, Some(USER), Some(USER)).map_err(Error::io(&*path))?;
    Ok(path)
}

/// Provides a copy of the program that everybody can execute, and a home for the unprivileged user.
fn for_everybody() -> Result<String> {
    let io = |path: &str| Error::io(path.to_owned());
    let home = "/run/lab/home";
    fs::create_dir_all(home).map_err(io(home))?;
    chown(home, Some(USER), Some(USER)).map_err(io(home))?;
    let path = scratch("taupe").display().to_string();
    if !fs::exists(&path).unwrap_or(false) {
        fs::copy(Implementation::Taupe.program()?, &path).map_err(io(&path))?;
    }
    let everybody = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&path, everybody).map_err(io(&path))?;
    Ok(path)
}

/// Runs an HTTP server that reports the client's address, until the test ends.
pub(crate) fn serve_web(host: &Host, address: SocketAddr) -> Result<()> {
    let listener = listen(host, address)?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let client = stream.peer_addr()?.ip();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte)?;
                    head.extend(byte);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                let length = head
                    .lines()
                    .find_map(|line| line.strip_prefix("Content-Length: "));
                let mut body = vec![0; length.and_then(|text| text.parse().ok()).unwrap_or(0)];
                stream.read_exact(&mut body)?;
                let output = format!("{client}\n{head}{}", String::from_utf8_lossy(&body));
                let length = output.len();
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{output}"
                );
                stream.write_all(answer.as_bytes())
            });
        }
    });
    Ok(())
}

pub(crate) fn listen(host: &Host, address: SocketAddr) -> Result<TcpListener> {
    host.enter(|| TcpListener::bind(address).map_err(Error::io(address.to_string())))
}

/// Names that a name server has been asked for, with the transport of each question.
pub(crate) type QueryCount = Arc<Mutex<Vec<(String, Transport)>>>;

/// Runs a name server (RFC 1035): `*.both.example` has both addresses of [`BEYOND`], `*.v4.example`
/// the first one. Answers for names that begin with `long.` fit TCP only; other names do not exist.
pub(crate) fn serve_names(host: &Host) -> Result<QueryCount> {
    let at = SocketAddr::new(NAME_SERVER.into(), 53);
    let listener = listen(host, at)?;
    let socket = host.enter(|| UdpSocket::bind(at).map_err(Error::io("name server")))?;
    let queries = QueryCount::default();
    let note = |queries: &QueryCount, name: String, transport| {
        let mut queries = queries
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        queries.push((name, transport));
    };
    let over_tcp = Arc::clone(&queries);
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut length = [0; 2];
            let mut serve = || {
                stream.read_exact(&mut length)?;
                let mut query = vec![0; usize::from(u16::from_be_bytes(length))];
                stream.read_exact(&mut query)?;
                if let Some((name, answer)) = answer(&query, false) {
                    note(&over_tcp, name, Transport::Tcp);
                    let length = (answer.len() as u16).to_be_bytes();
                    // In pieces, as TCP may deliver it.
                    stream.write_all(&length[..1])?;
                    stream.write_all(&length[1..])?;
                    stream.write_all(&answer)?;
                }
                Ok::<_, std::io::Error>(())
            };
            let _ = serve();
        }
    });
    let over_udp = Arc::clone(&queries);
    thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if let Some((name, answer)) = answer(&buffer[..length], true) {
                note(&over_udp, name, Transport::Udp);
                let _ = socket.send_to(&answer, from);
            }
        }
    });
    Ok(queries)
}

fn answer(query: &[u8], cuts: bool) -> Option<(String, Vec<u8>)> {
    const HEADER: usize = 12;
    let mut labels = Vec::new();
    let mut at = HEADER;
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(query.get(at..at + length)?).into_owned());
        at += length;
    }
    let kind = u16::from_be_bytes(*query.get(at..)?.first_chunk()?);
    let question = query.get(HEADER..at + 4)?;
    let name = labels.join(".");
    let known = name.ends_with(".both.example") || name.ends_with(".v4.example");
    let address = match (kind, BEYOND) {
        (1, [IpAddr::V4(a), _]) => Some(a.octets().to_vec()),
        (28, [_, IpAddr::V6(a)]) if name.ends_with(".both.example") => Some(a.octets().to_vec()),
        _ => None,
    };
    let address = address.filter(|_| known);
    let is_cut = cuts && name.starts_with("long.");
    let address = address.filter(|_| !is_cut);
    let count = u8::from(address.is_some());
    let flags = 0x81 | if is_cut { 2 } else { 0 };
    let code = if known { 0x80 } else { 0x83 };
    let mut answer = query.get(..2)?.to_vec();
    answer.extend([flags, code, 0, 1, 0, count, 0, 0, 0, 0]);
    answer.extend(question);
    if let Some(address) = address {
        answer.extend([0xc0, HEADER as u8]);
        answer.extend(kind.to_be_bytes());
        answer.extend([0, 1, 0, 0, 0, 60, 0, address.len() as u8]);
        answer.extend(address);
    }
    Some((name, answer))
}
