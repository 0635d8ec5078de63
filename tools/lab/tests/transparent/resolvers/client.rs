//! Applications that ask resolvers: this program, and one that asks the C library.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::Path;
use std::process::exit;
use std::time::Duration;

use taupe_lab::host::Host;
use taupe_lab::packages::NSS_RESOLVE;
use taupe_lab::process::Attempt;
use taupe_lab::{Error, Result};

use crate::world::{Application, World};

/// First argument of this program as a client.
pub(crate) const WORD: &str = "--ask";

/// Programs of one name: one that asks the C library, and this one.
pub(super) struct Client {
    library: Application,
    own: Application,
}

impl Client {
    pub(super) fn new(name: &str) -> Result<Self> {
        let own = std::env::current_exe().map_err(Error::io("own executable"))?;
        Ok(Self {
            library: Application::copy_of(Path::new("/usr/bin/getent"), name)?,
            own: Application::copy_of(&own, &format!("{name}-asks"))?,
        })
    }

    /// Returns the IPv4 addresses of a name, by `getaddrinfo(3)`.
    pub(super) fn resolves(&self, world: &World, name: &str) -> Result<Vec<Ipv4Addr>> {
        let folder = NSS_RESOLVE.folder()?.join("usr/lib/x86_64-linux-gnu");
        let folder = format!("LD_LIBRARY_PATH={}", folder.display());
        let command = [
            "timeout",
            "30",
            "env",
            &folder,
            &self.library.0,
            "ahostsv4",
            name,
        ];
        let Attempt { stdout, .. } = world.near.attempt(&command)?;
        let mut found: Vec<Ipv4Addr> = stdout
            .lines()
            .filter_map(|line| line.split(' ').next()?.parse().ok())
            .collect();
        found.dedup();
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }

    /// Returns the source, content and number of answers to a question.
    pub(super) fn query(
        &self,
        world: &World,
        how: &str,
        server: &str,
        name: &str,
    ) -> Result<String> {
        self.query_from(&world.near, how, server, name)
    }

    pub(super) fn query_from(
        &self,
        host: &Host,
        how: &str,
        server: &str,
        name: &str,
    ) -> Result<String> {
        let command = [&*self.own.0, WORD, how, server, name];
        Ok(host.run(&command)?.text().to_owned())
    }

    /// Sends a question without waiting.
    pub(super) fn send(&self, world: &World, group: &str, name: &str) -> Result<()> {
        let command = [&*self.own.0, WORD, "say", group, name];
        world.near.run(&command).map(drop)
    }

    /// Returns true if it can connect to a service's socket.
    pub(super) fn reaches(&self, world: &World, socket: &str) -> Result<bool> {
        let command = [&*self.own.0, WORD, "unix", socket, ""];
        Ok(world.near.run(&command)?.text() == "connected")
    }
}

/// Runs this program as an application.
pub(crate) fn main(words: &[&str]) -> ! {
    let output = match words {
        ["unix", path, _] => Ok(match std::os::unix::net::UnixStream::connect(path) {
            Ok(_) => "connected".to_owned(),
            Err(error) => error.to_string(),
        }),
        ["say", group, name] => send(group, name).map(|()| String::new()),
        [how, server, name] => ask(how, server, name),
        _ => Err(std::io::Error::other(format!("{words:?}"))),
    };
    println!("{}", output.unwrap_or_else(|error| error.to_string()));
    exit(0)
}

/// Sends a question. A rejection would be immediate; a drop is not visible here.
fn send(group: &str, name: &str) -> std::io::Result<()> {
    use std::net::{SocketAddrV6, ToSocketAddrs as _};
    let (address, port) = group
        .rsplit_once(':')
        .ok_or(std::io::ErrorKind::InvalidInput)?;
    let port = port.parse().map_err(std::io::Error::other)?;
    let query = question(name, false);
    let to = match address.trim_matches(['[', ']']).split_once('%') {
        Some((address, link)) => {
            let index =
                taupe_os_linux::interface::index(link).ok_or(std::io::ErrorKind::NotFound)?;
            let address = address.parse().map_err(std::io::Error::other)?;
            SocketAddr::V6(SocketAddrV6::new(address, port, 0, index))
        }
        None => group
            .to_socket_addrs()?
            .next()
            .ok_or(std::io::ErrorKind::NotFound)?,
    };
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let _ = UdpSocket::bind(any)?.send_to(&query, to);
    Ok(())
}

/// Returns the source, the first address and the number of answers.
fn ask(how: &str, server: &str, name: &str) -> std::io::Result<String> {
    let ip: IpAddr = server.parse().map_err(std::io::Error::other)?;
    let to = SocketAddr::new(ip, 53);
    let query = question(name, how == "edns");
    let patience = Some(Duration::from_secs(20));
    let mut answer = vec![0; 65_535];
    let (length, from) = if how == "tcp" {
        let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(20))?;
        stream.set_read_timeout(patience)?;
        stream.write_all(&(query.len() as u16).to_be_bytes())?;
        stream.write_all(&query)?;
        let mut length = [0; 2];
        stream.read_exact(&mut length)?;
        let length = usize::from(u16::from_be_bytes(length));
        stream.read_exact(&mut answer[..length])?;
        (length, stream.peer_addr()?)
    } else {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any)?;
        socket.set_read_timeout(patience)?;
        // Asks two servers at once, as some clients do: the other server's answer is ignored.
        let other = SocketAddr::new(
            if to.is_ipv4() {
                [127, 0, 0, 77].into()
            } else {
                ip
            },
            53,
        );
        socket.send_to(&query, to)?;
        if other != to {
            socket.send_to(&query, other)?;
        }
        loop {
            let (length, from) = socket.recv_from(&mut answer)?;
            if from == to {
                break (length, from);
            }
            if from != other {
                return Ok(format!("{from} has answered"));
            }
        }
    };
    let answer = &answer[..length];
    let count = u16::from_be_bytes([answer[6], answer[7]]);
    let first = answer.len() - if how == "edns" { 11 } else { 0 };
    let address: [u8; 4] = answer[first - 4..first].try_into().unwrap_or_default();
    Ok(format!("{} {} {count}", from.ip(), Ipv4Addr::from(address)))
}

/// Returns a question for an IPv4 address (RFC 1035), with space for a long answer (RFC 6891).
fn question(name: &str, is_long: bool) -> Vec<u8> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, u8::from(is_long)];
    for label in name.split('.') {
        query.push(label.len() as u8);
        query.extend(label.bytes());
    }
    query.extend([0, 0, 1, 0, 1]);
    if is_long {
        query.extend([0, 0, 41, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    }
    query
}
