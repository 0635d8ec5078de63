//! Contestants: the programs and configurations that can be compared.

use crate::gateway::GatewayMachines;
use crate::pair::Pair;
use crate::side::Side;
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{Host, Transport};
use taupe_lab::peers::{Implementation, StartOptions};
use taupe_lab::process::{Process, wait_until};

/// A program or configuration that connects two machines. One type describes how it is installed,
/// started and configured; dropping its [`End`]s stops the programs.
///
/// Installing happens outside the sandbox, everything else inside. To add a contestant, implement
/// this trait and add it to [`all`].
pub trait Contestant: Send + Sync {
    /// Returns the id for files and the command line: `wireguard-go`.
    fn id(&self) -> &str;

    /// Returns the title for tables: `OpenVPN, static key, BF-CBC`.
    fn title(&self) -> &str;

    /// Builds or installs the programs, if the contestant needs more than packages.
    ///
    /// # Errors
    ///
    /// The reason why the contestant cannot run here; the report shows it in place of figures.
    fn install(&self) -> Result<()> {
        Ok(())
    }

    /// Returns the version of the program, or `None` if the contestant has no program. Called
    /// inside the sandbox.
    ///
    /// # Errors
    ///
    /// The reason why the contestant cannot run here, in one line; the report shows it in place of
    /// figures.
    fn version(&self) -> Result<Option<String>>;

    /// Prepares what both sides need and no measurement includes: keys, files in [`Pair::folder`].
    ///
    /// # Errors
    ///
    /// Any error of a program or file.
    fn prepare(&self, pair: &Pair) -> Result<()>;

    /// Starts and configures one side. The server is started first, and listens when this returns.
    /// The client is fully configured when this returns, but packets may not pass yet: the caller
    /// must check.
    ///
    /// # Errors
    ///
    /// Any error of a program or file.
    fn start(&self, pair: &Pair, side: Side) -> Result<End>;

    /// Adds `count` more WireGuard peers to the server's side. The peers do not exist as machines,
    /// and have no endpoint. `None` if the contestant does not support this.
    ///
    /// # Errors
    ///
    /// Any error of a program or file.
    fn add_peers(&self, _pair: &Pair, _server: &End, _count: usize) -> Option<Result<()>> {
        None
    }

    /// Returns the socket to which WireGuard handshakes are sent, or `None` if the contestant
    /// accepts none.
    ///
    /// # Errors
    ///
    /// Any error of a program or file.
    fn handshakes(&self, _pair: &Pair, _server: &End) -> Option<Result<HandshakeTarget>> {
        None
    }

    /// Removes the peers that [`add_peers`](Self::add_peers) added; the client's session goes on.
    /// `None` if the contestant does not support this.
    ///
    /// # Errors
    ///
    /// Any error of a program or file.
    fn remove_peers(&self, _pair: &Pair, _server: &End) -> Option<Result<()>> {
        None
    }

    /// Starts a gateway with a peer for each client, and the clients. When this returns, packets
    /// may not pass yet. Returns `None` if the contestant does not support this.
    ///
    /// # Errors
    ///
    /// Any error of a program or file.
    fn start_gateway(&self, _machines: &GatewayMachines) -> Option<Result<GatewayEnds>> {
        None
    }

    /// Returns this contestant with `count` threads that carry packets at each end, or `None` if it
    /// has no such setting. The run calls this inside the sandbox.
    ///
    /// # Errors
    ///
    /// Any error of the program that is asked for its options.
    fn with_workers(&self, _count: usize) -> Result<Option<Box<dyn Contestant>>> {
        Ok(None)
    }

    /// Returns the installed programs that a pack needs for this contestant.
    ///
    /// # Errors
    ///
    /// The reason why a pack cannot contain the contestant, or an error of
    /// [`install`](Self::install).
    fn packed(&self) -> Result<Vec<PackedProgram>> {
        Ok(Vec::new())
    }

    /// Returns the largest number of peers that a benchmark gives the server. Some programs need a
    /// gigabyte for ten thousand.
    fn max_peers(&self) -> usize {
        10_000
    }
}

/// Id of the contestant without a tunnel.
pub const REFERENCE: &str = "direct";

/// Time limit for a server to start listening.
const LISTEN: Duration = Duration::from_secs(10);

/// A program in a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackedProgram {
    /// The installed file.
    pub file: PathBuf,
    /// Its place in the pack.
    pub place: PackPlace,
}

/// Place of a program in a pack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PackPlace {
    /// Taupe's program, which `TAUPE_BIN` names.
    Taupe,
    /// A path in the lab's cache of other projects' programs.
    Cache(PathBuf),
}

/// The socket to which handshakes for a server are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandshakeTarget {
    /// The UDP port.
    pub port: u16,
    /// The server's public key, which is not a secret.
    pub public_key: [u8; 32],
}

/// One side of a running contestant; dropping it stops the programs.
#[derive(Debug)]
pub struct End {
    /// The address of this side inside the tunnel.
    pub address: IpAddr,
    /// The tunnel's interface, if there is one.
    pub interface: Option<String>,
    /// The programs that run the tunnel.
    pub processes: Vec<Process>,
}

impl End {
    /// Checks that the programs still run.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] with the last output of a program that has ended.
    pub fn check(&mut self) -> Result<()> {
        for process in &mut self.processes {
            if !process.runs()? {
                let result = process.output();
                return Err(Error::unmet(format!(
                    "{} has ended: {result}",
                    process.command()
                )));
            }
        }
        Ok(())
    }

    /// Waits until the side listens on a UDP port.
    fn await_port(&mut self, host: &Host, port: u16) -> Result<()> {
        wait_until("a port at which it listens", LISTEN, || {
            self.check()?;
            host.listens(Transport::Udp, port)
        })
    }
}

/// The ends of the tunnels of a gateway; dropping them stops the programs.
#[derive(Debug)]
pub struct GatewayEnds {
    /// The gateway's side.
    pub server: End,
    /// The side of each client.
    pub clients: Vec<End>,
    /// The address by which each client reaches the gateway.
    pub targets: Vec<IpAddr>,
}

/// Returns all contestants in the order of tables, starting with the link without a tunnel.
pub fn all() -> Vec<Box<dyn Contestant>> {
    vec![
        Box::new(direct::Direct),
        Box::new(transparent::NOT_SELECTED),
        Box::new(wireguard::program(Implementation::Taupe, "Taupe")),
        Box::new(transparent::SELECTED),
        Box::new(wireguard::program(
            Implementation::WireguardGo,
            "wireguard-go",
        )),
        Box::new(wireguard::program(
            Implementation::WireguardGoTailscale,
            "wireguard-go of Tailscale",
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

/// Returns variants of Taupe, to measure the effect of a mechanism. Each variant lacks one
/// mechanism. These contestants take part in a run only if they are requested.
pub fn variants() -> Vec<Box<dyn Contestant>> {
    let without = |offload: &str| StartOptions {
        arguments: ["--no-offload", offload].map(str::to_owned).into(),
        ..StartOptions::default()
    };
    vec![
        Box::new(wireguard::variant(
            "taupe-no-busy-poll",
            "Taupe without busy polling",
            without("busy-poll"),
        )),
        Box::new(wireguard::variant(
            "taupe-no-flood-filter",
            "Taupe without flood filter",
            without("flood-filter"),
        )),
        Box::new(wireguard::variant(
            "taupe-no-fair-queue",
            "Taupe without fair queue",
            without("fair-queue"),
        )),
    ]
}

/// Returns the contestant or variant with this [`id`](Contestant::id), if there is one.
pub fn find(id: &str) -> Option<Box<dyn Contestant>> {
    let mut known = all().into_iter().chain(variants());
    known.find(|contestant| contestant.id() == id)
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
    fn every_contestant_has_a_unique_id() {
        let known = all().into_iter().chain(variants());
        let ids: Vec<String> = known.map(|one| one.id().to_owned()).collect();
        let distinct: BTreeSet<&String> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len(), "{ids:?}");
        assert_eq!(ids.first().map(String::as_str), Some(REFERENCE));
        for id in &ids {
            assert_eq!(find(id).map(|one| one.id().to_owned()).as_ref(), Some(id));
        }
        assert!(find("").is_none());
    }
}
