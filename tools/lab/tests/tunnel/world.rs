//! A machine with a tunnel in this process, and servers behind it.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;
use taupe_lab::host::{Host, add_address, neighbours};
use taupe_lab::peers::Implementation;
use taupe_lab::process::wait_until;
use taupe_lab::server::Server;
use taupe_lab::{Error, Result, ensure};
use taupe_tunnel::Tunnel;

/// A host that is reachable only through the tunnel.
pub(crate) const BEYOND: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 1));

/// This side's address in the tunnel.
pub(crate) const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));

/// Time limit for short operations on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Everything behind the tunnel, with a name server.
const INTERFACE: &str = "DNS = 198.51.100.1";
const PEER: &str = "AllowedIPs = 10.77.0.0/24, 198.51.100.0/24, fd77::/64";

pub(crate) struct World {
    pub(crate) near: Host,
    pub(crate) far: Host,
    pub(crate) server: Server,
}

impl World {
    /// Creates a machine whose neighbour runs this implementation.
    pub(crate) fn new(implementation: Implementation) -> Result<Self> {
        let (near, far) = neighbours()?;
        add_address(&far, "lo", &BEYOND.to_string())?;
        let server = Server::of(implementation, &near, &far)?;
        Ok(Self { near, far, server })
    }

    /// Runs `work` on the machine with the tunnel, on one thread.
    pub(crate) fn run<T: Send>(&self, work: impl AsyncFnOnce() -> Result<T> + Send) -> Result<T> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder
            .enable_time()
            .build()
            .map_err(Error::io("runtime"))?;
        self.near.enter(|| runtime.block_on(work()))
    }

    /// Opens the tunnel.
    pub(crate) async fn tunnel(&self) -> Result<Tunnel> {
        self.tunnel_with(INTERFACE, PEER).await
    }

    /// Opens a tunnel with more lines in each section.
    pub(crate) async fn tunnel_with(&self, interface: &str, peer: &str) -> Result<Tunnel> {
        let file = self.server.file(interface, peer);
        let tunnel = Tunnel::connect(&*file).await;
        tunnel.map_err(|error| Error::unmet(error.to_string()))
    }

    /// As [`Self::tunnel_with`], for the same destinations and name server as [`Self::tunnel`].
    pub(crate) async fn tunnel_and(&self, interface: &str, peer: &str) -> Result<Tunnel> {
        let interface = format!("{INTERFACE}\n{interface}");
        self.tunnel_with(&interface, &format!("{PEER}\n{peer}"))
            .await
    }

    /// Listens on the far machine.
    pub(crate) fn listen(&self, port: u16) -> Result<TcpListener> {
        let at = beyond(port);
        let listen = || TcpListener::bind(at).map_err(Error::io(at.to_string()));
        self.far.enter(listen)
    }
}

pub(crate) fn beyond(port: u16) -> SocketAddr {
    SocketAddr::new(BEYOND, port)
}

/// Adds the name of an operation to its error.
pub(crate) fn io<T>(what: &str, result: io::Result<T>) -> Result<T> {
    result.map_err(Error::io(what))
}

/// Requires that an operation fails in this way.
pub(crate) fn fails<T>(what: &str, result: io::Result<T>, kind: ErrorKind) -> Result<()> {
    match result {
        Ok(_) => Err(Error::unmet(format!("{what}: succeeded"))),
        Err(error) => {
            let found = error.kind();
            ensure!(found == kind, "{what}: {found:?} ({error}), not {kind:?}");
            Ok(())
        }
    }
}

/// Waits until this process has no thread of a tunnel.
pub(crate) fn wait_for_end() -> Result<()> {
    wait_until("the end of the tunnel's thread", PATIENCE, || {
        let tasks = fs::read_dir("/proc/self/task").map_err(Error::io("tasks"))?;
        let names = tasks
            .flatten()
            .map(|task| fs::read(task.path().join("comm")));
        Ok(!names
            .flatten()
            .any(|name| name.starts_with(b"taupe-tunnel")))
    })
}

/// Runs a name server (RFC 1035) for which every name has the IPv4 address [`BEYOND`], except names
/// that begin with `nobody`.
pub(crate) fn serve_names(host: &Host) -> Result<()> {
    const HEADER: usize = 12;
    let at = beyond(53);
    let socket = host.enter(|| UdpSocket::bind(at).map_err(Error::io("name server")))?;
    thread::spawn(move || {
        let mut query = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut query) {
            let Some((_, question)) = query[..length].split_at_checked(HEADER) else {
                continue;
            };
            let is_address = question.ends_with(&[0, 1, 0, 1]);
            let is_known = !question.starts_with(b"\x06nobody");
            let count = u8::from(is_address && is_known);
            let code = if is_known { 0x80 } else { 0x83 };
            let mut answer = query[..2].to_vec();
            answer.extend([0x81, code, 0, 1, 0, count, 0, 0, 0, 0]);
            answer.extend(question);
            if let (1, IpAddr::V4(address)) = (count, BEYOND) {
                answer.extend([0xc0, HEADER as u8, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
                answer.extend(address.octets());
            }
            let _ = socket.send_to(&answer, from);
        }
    });
    Ok(())
}
