//! A gateway: one interface with a peer for each client.

use super::{GatewayEnds, PORT, WireGuard};
use crate::gateway::{GatewayMachines, INNER_PREFIX};
use crate::side::Side;
use std::net::SocketAddr;
use taupe_lab::error::Result;
use taupe_lab::peers::{Keys, PeerSettings, Settings};

impl WireGuard {
    /// Starts the gateway, then its clients.
    pub(super) fn gateway(&self, machines: &GatewayMachines) -> Result<GatewayEnds> {
        let keys = |host| Keys::new(host);
        let server = keys(&machines.server)?;
        let clients = machines.clients.iter().map(keys);
        let clients = clients.collect::<Result<Vec<Keys>>>()?;
        let needs_endpoints = self.needs_endpoints();
        let endpoint =
            |client, side| SocketAddr::from((GatewayMachines::outer(client, side), PORT));

        let mut settings = own(&server, Some(PORT));
        for (client, keys) in clients.iter().enumerate() {
            let endpoint = needs_endpoints.then(|| endpoint(client, Side::Client));
            let allowed = format!("{}/32", GatewayMachines::inner(client));
            settings.push_str(&peer(&keys.public, endpoint, &allowed));
        }
        let path = machines.write("server.conf", &settings)?;
        let address = GatewayMachines::INNER_SERVER;
        let mut end = self.start_interface(&machines.server, &path, address, INNER_PREFIX)?;
        end.await_port(&machines.server, PORT)?;

        let mut ends = GatewayEnds {
            targets: vec![address.into(); clients.len()],
            server: end,
            clients: Vec::new(),
        };
        for (client, (keys, host)) in clients.iter().zip(&machines.clients).enumerate() {
            let allowed = format!("{address}/32");
            let to_server = peer(
                &server.public,
                Some(endpoint(client, Side::Server)),
                &allowed,
            );
            let settings = own(keys, needs_endpoints.then_some(PORT)) + &to_server;
            let path = machines.write(&format!("client-{client}.conf"), &settings)?;
            let address = GatewayMachines::inner(client);
            let end = self.start_interface(host, &path, address, INNER_PREFIX)?;
            ends.clients.push(end);
        }
        Ok(ends)
    }
}

fn own(keys: &Keys, listen_port: Option<u16>) -> String {
    Settings {
        private_key: &keys.private,
        listen_port,
        addresses: &[],
        peers: &[],
    }
    .to_string()
}

fn peer(public_key: &str, endpoint: Option<SocketAddr>, allowed_ips: &str) -> String {
    PeerSettings {
        public_key,
        preshared_key: None,
        endpoint,
        allowed_ips,
    }
    .to_string()
}
