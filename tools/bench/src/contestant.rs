//! What can be compared: ways to join two machines.

use crate::pair::Pair;
use crate::side::Side;
use std::net::IpAddr;
use std::time::Duration;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{Host, Transport};
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Process, wait_until};

/// A way to join two machines, described in one place: how it is installed, started,
/// configured; dropping what was started stops it.
///
/// Installing happens outside the sandbox, everything else inside. To add one, write a
/// description and name it in [`all`].
pub trait Contestant: Send + Sync {
    /// What it is called in files and on the command line: `wireguard-go`.
    fn id(&self) -> &str;

    /// What it is called in tables: `OpenVPN, static key, BF-CBC`.
    fn title(&self) -> &str;

    /// Makes it runnable on this machine, where that takes more than packages.
    ///
    /// # Errors
    ///
    /// Why it cannot run here; shown in place of its figures.
    fn install(&self) -> Result<()> {
        Ok(())
    }

    /// The version that runs; `None` where there is nothing that could have one.
    ///
    /// # Errors
    ///
    /// Why it cannot run here, in one line a reader understands; shown in place of its
    /// figures. Asked inside the sandbox.
    fn version(&self) -> Result<Option<String>>;

    /// Does what is not measured and both sides need: keys, files in
    /// [`Pair::folder`].
    ///
    /// # Errors
    ///
    /// Whatever fails.
    fn prepare(&self, pair: &Pair) -> Result<()>;

    /// Starts one side and configures it. The server is started first, and listens when
    /// this returns. The client has been told everything; whether packets pass yet is
    /// for the caller to find out.
    ///
    /// # Errors
    ///
    /// Whatever fails.
    fn start(&self, pair: &Pair, side: Side) -> Result<End>;

    /// Adds that many WireGuard peers to the server's side, to those that it has. None
    /// of them exists, and none has an endpoint. `None` for what has no such thing.
    ///
    /// # Errors
    ///
    /// Whatever fails.
    fn add_peers(&self, _pair: &Pair, _server: &End, _count: usize) -> Option<Result<()>> {
        None
    }

    /// Where the server takes WireGuard's handshakes. `None` for what takes none.
    ///
    /// # Errors
    ///
    /// Whatever fails.
    fn handshakes(&self, _pair: &Pair, _server: &End) -> Option<Result<HandshakeTarget>> {
        None
    }

    /// Takes those peers away again; the client's session goes on. `None` for what has no
    /// such thing.
    ///
    /// # Errors
    ///
    /// Whatever fails.
    fn remove_peers(&self, _pair: &Pair, _server: &End) -> Option<Result<()>> {
        None
    }

    /// How many peers a benchmark gives the server at most. Some programs take a
    /// gigabyte for ten thousand.
    fn most_peers(&self) -> usize {
        10_000
    }
}

/// How long a server may take until it listens.
const LISTEN: Duration = Duration::from_secs(10);

/// The socket to which a server's handshakes are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakeTarget {
    /// The UDP port.
    pub port: u16,
    /// The server's public key, which everybody may know.
    pub public_key: [u8; 32],
}

/// One side of a running contestant; dropping it stops the programs.
#[derive(Debug)]
pub struct End {
    /// Where programs reach this side through the tunnel.
    pub address: IpAddr,
    /// The tunnel's interface, if there is one.
    pub interface: Option<String>,
    /// The programs that make the tunnel.
    pub processes: Vec<Process>,
}

impl End {
    /// Whether the programs still run.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] with what it said last when one of the programs has ended.
    pub fn check(&mut self) -> Result<()> {
        for process in &mut self.processes {
            if !process.runs()? {
                let said = process.output();
                return Err(Error::unmet(format!(
                    "{} has ended: {said}",
                    process.command()
                )));
            }
        }
        Ok(())
    }

    /// Waits until the side listens at a UDP port.
    fn await_port(&mut self, host: &Host, port: u16) -> Result<()> {
        wait_until("a port at which it listens", LISTEN, || {
            self.check()?;
            host.listens(Transport::Udp, port)
        })
    }
}

/// Every contestant there is, in the order of tables: no tunnel first.
pub fn all() -> Vec<Box<dyn Contestant>> {
    vec![
        Box::new(direct::Direct),
        Box::new(transparent::NOT_CHOSEN),
        Box::new(wireguard::program(Implementation::Taupe, "Taupe")),
        Box::new(transparent::CHOSEN),
        Box::new(wireguard::program(
            Implementation::WireguardGo,
            "wireguard-go",
        )),
        Box::new(wireguard::program(Implementation::Boringtun, "BoringTun")),
        Box::new(wireguard::program(Implementation::Gotatun, "GotaTun")),
        Box::new(wireguard::KERNEL),
        Box::new(openvpn::STATIC_BF),
        Box::new(openvpn::STATIC_AES),
        Box::new(openvpn::TLS_AES),
        Box::new(openvpn::TLS_CHACHA),
    ]
}

/// The contestant of that [`id`](Contestant::id), if there is one.
pub fn find(id: &str) -> Option<Box<dyn Contestant>> {
    all().into_iter().find(|contestant| contestant.id() == id)
}

mod direct;
mod openvpn;
mod transparent;
mod wireguard;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_is_found_by_a_name_of_its_own() {
        let ids: Vec<String> = all().iter().map(|one| one.id().to_owned()).collect();
        let distinct: BTreeSet<&String> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len(), "{ids:?}");
        assert_eq!(ids.first().map(String::as_str), Some("direct"));
        for id in &ids {
            assert_eq!(find(id).map(|one| one.id().to_owned()).as_ref(), Some(id));
        }
        assert!(find("").is_none());
    }
}
