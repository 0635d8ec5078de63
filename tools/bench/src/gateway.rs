//! A gateway with several clients: the machines, and a contestant that runs on them.

use crate::contestant::{Contestant, End};
use crate::pair::DEFAULT_CONGESTION;
use crate::side::{PORT, Side};
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{self, Host};
use taupe_lab::process::Process;
use taupe_lab::sandbox;
use taupe_lab::traffic::{PATIENCE, Pinger};

/// Largest number of clients: the third byte of their addresses counts them.
pub const MAX_CLIENTS: usize = 200;

/// Prefix length of the addresses inside the tunnels.
pub const INNER_PREFIX: u8 = 16;

/// Time limit for the first answer to a client.
const START: Duration = Duration::from_secs(30);

/// The machine of the gateway, and a machine for each client, which has a cable of its own to the
/// gateway.
#[derive(Debug)]
pub struct GatewayMachines {
    /// The gateway.
    pub server: Host,
    /// The clients.
    pub clients: Vec<Host>,
    name: String,
}

impl GatewayMachines {
    /// The gateway's address inside the tunnels.
    pub const INNER_SERVER: Ipv4Addr = Ipv4Addr::new(10, 67, 255, 1);

    /// Makes the machines, called `NAME-server` and `NAME-client-NUMBER`, and the cables.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] for too many clients; [`Error::Command`] if such machines exist already.
    pub fn new(name: &str, count: usize) -> Result<Self> {
        ensure!(
            count <= MAX_CLIENTS,
            "{count} clients: a gateway of the lab has at most {MAX_CLIENTS}"
        );
        let server = Host::new(&format!("{name}-server"))?;
        let mut machines = Self {
            server,
            clients: Vec::new(),
            name: name.to_owned(),
        };
        set_up(&machines.server)?;
        let folder = sandbox::scratch(name);
        fs::create_dir_all(&folder).map_err(Error::io(folder.display().to_string()))?;
        for client in 0..count {
            let host = Host::new(&format!("{name}-client-{client}"))?;
            machines.clients.push(host.clone());
            set_up(&host)?;
            let port = format!("eth{client}");
            let [at_client, at_server] = [Side::Client, Side::Server]
                .map(|side| format!("{}/24", Self::outer(client, side)));
            host::link(
                host.port(PORT, &[&at_client]),
                machines.server.port(&port, &[&at_server]),
                1500,
            )?;
        }
        Ok(machines)
    }

    /// Returns an address on the cable of a client. The network is reserved for benchmarks
    /// (RFC 2544).
    pub const fn outer(client: usize, side: Side) -> Ipv4Addr {
        let last = match side {
            Side::Client => 1,
            Side::Server => 2,
        };
        Ipv4Addr::new(198, 18, client as u8, last)
    }

    /// Returns the address of a client inside its tunnel.
    pub const fn inner(client: usize) -> Ipv4Addr {
        Ipv4Addr::new(10, 67, client as u8, 1)
    }

    /// Writes a file for a contestant, readable by root only, and returns its path.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn write(&self, name: &str, content: &str) -> Result<String> {
        sandbox::scratch_file(&format!("{}/{name}", self.name), content)
    }
}

impl Drop for GatewayMachines {
    fn drop(&mut self) {
        for host in self.clients.iter().chain([&self.server]) {
            // The sandbox removes whatever remains.
            let _ = host.clone().delete();
        }
    }
}

fn set_up(host: &Host) -> Result<()> {
    host.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
    host.sysctl("net/ipv4/tcp_congestion_control", DEFAULT_CONGESTION)
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

/// A gateway through which the packets of all clients pass.
#[derive(Debug)]
pub struct GatewaySession {
    // Fields drop in order: the programs before the machines they run on.
    /// The programs.
    pub ends: GatewayEnds,
    /// The machines.
    pub machines: GatewayMachines,
}

impl GatewaySession {
    /// Starts a contestant on new machines and waits for an answer to each client. `None` if the
    /// contestant cannot be a gateway.
    ///
    /// # Errors
    ///
    /// Any error of the contestant; [`Error::Unmet`] if a client gets no answer within 30 seconds.
    pub fn start(contestant: &dyn Contestant, name: &str, clients: usize) -> Option<Result<Self>> {
        let machines = match GatewayMachines::new(name, clients) {
            Ok(machines) => machines,
            Err(error) => return Some(Err(error)),
        };
        let ends = contestant.start_gateway(&machines)?;
        Some(ends.and_then(|ends| {
            let mut session = Self { ends, machines };
            session.await_answers()?;
            Ok(session)
        }))
    }

    /// Returns the process ids of the programs that run the tunnels, on all machines.
    pub fn processes(&self) -> Vec<u32> {
        let ends = self.ends.clients.iter().chain([&self.ends.server]);
        let processes = ends.flat_map(|end| &end.processes);
        processes.map(Process::id).collect()
    }

    fn await_answers(&mut self) -> Result<()> {
        let begin = Instant::now();
        let ends = &mut self.ends;
        let clients = self.machines.clients.iter().zip(&mut ends.clients);
        for ((host, client), target) in clients.zip(&ends.targets) {
            let mut pinger = Pinger::new(host, *target)?;
            while !pinger.ping(PATIENCE)? {
                client.check()?;
                ends.server.check()?;
                ensure!(begin.elapsed() <= START, "{pinger} within {START:?}");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_client_has_addresses_of_its_own() {
        let outer =
            |client| [Side::Client, Side::Server].map(|side| GatewayMachines::outer(client, side));
        let addresses = (0..MAX_CLIENTS).flat_map(|client| {
            let [one, other] = outer(client);
            [one, other, GatewayMachines::inner(client)]
        });
        let mut all: BTreeSet<Ipv4Addr> = addresses.collect();
        assert_eq!(all.len(), 3 * MAX_CLIENTS);
        assert!(all.insert(GatewayMachines::INNER_SERVER));
    }
}
