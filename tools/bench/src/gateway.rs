//! The machines of a gateway with several clients.

use crate::side::{PORT, Side};
use crate::tcp::TcpSettings;
use std::fs;
use std::net::Ipv4Addr;
use taupe_lab::ensure;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{self, Host};
use taupe_lab::sandbox;

/// Largest number of clients. The third byte of an address is the client's number.
pub const MAX_CLIENTS: usize = 200;

/// Prefix length of the addresses inside the tunnels.
pub const INNER_PREFIX: u8 = 16;

/// The machine of the gateway, and a machine for each client. Each client has a cable of its own to
/// the gateway.
#[derive(Debug)]
pub struct GatewayMachines {
    /// The gateway.
    pub server: Host,
    /// The clients.
    pub clients: Vec<Host>,
    name: String,
    tcp: TcpSettings,
}

impl GatewayMachines {
    /// The gateway's address inside the tunnels.
    pub const INNER_SERVER: Ipv4Addr = Ipv4Addr::new(10, 67, 255, 1);

    /// Makes the machines, called `NAME-server` and `NAME-client-NUMBER`, and the cables.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`] for too many clients; [`Error::Command`] if such machines already exist.
    pub fn new(name: &str, count: usize, tcp: TcpSettings) -> Result<Self> {
        ensure!(
            count <= MAX_CLIENTS,
            "{count} clients: a gateway of the lab has at most {MAX_CLIENTS}"
        );
        let server = Host::new(&format!("{name}-server"))?;
        let mut machines = Self {
            server,
            clients: Vec::new(),
            name: name.to_owned(),
            tcp,
        };
        set_up(&machines.server, tcp)?;
        let folder = sandbox::scratch(name);
        fs::create_dir_all(&folder).map_err(Error::io(folder.display().to_string()))?;
        for client in 0..count {
            let host = Host::new(&format!("{name}-client-{client}"))?;
            machines.clients.push(host.clone());
            set_up(&host, tcp)?;
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

    /// Returns the settings of TCP.
    pub const fn tcp(&self) -> TcpSettings {
        self.tcp
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

fn set_up(host: &Host, tcp: TcpSettings) -> Result<()> {
    host.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
    tcp.apply(host)
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
