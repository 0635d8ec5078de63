//! Endpoint names of the inner tunnel, asked through the outer one.
//!
//! A question to the system's name servers would tell them, in clear, which server the
//! inner tunnel is about to use. So no name of the inner file is looked up before the outer
//! tunnel runs, and then only from within its network.

use std::io;
use std::net::{IpAddr, SocketAddr};
use taupe_client::EndpointName;
use taupe_config::file::File;
use taupe_engine::{Resolver, ask_servers, system_servers};
use taupe_sys::namespace::Network;

use crate::reach;
use ipnet::IpNet;

/// Name servers in an outer tunnel.
pub(crate) struct Inside {
    network: Network,
    addresses: Vec<IpNet>,
    routes: Vec<IpNet>,
    servers: Vec<IpAddr>,
}

impl Inside {
    /// Takes the name servers of the outer tunnel's file or, if it has none, those of the
    /// system, as far as the tunnel leads to them.
    pub(super) fn new(file: &File, network: Network) -> Self {
        let mut inside = Self {
            network,
            addresses: reach::addresses(file),
            routes: reach::networks(file),
            servers: Vec::new(),
        };
        let mut servers = match file.interface.dns.as_slice() {
            [] => system_servers(),
            servers => servers.to_vec(),
        };
        servers.retain(|server| inside.leads_to(*server));
        inside.servers = servers;
        inside
    }

    fn leads_to(&self, address: IpAddr) -> bool {
        let is_of_family = |own: &IpNet| own.addr().is_ipv4() == address.is_ipv4();
        self.addresses.iter().any(is_of_family)
            && self.routes.iter().any(|network| network.contains(&address))
    }
}

impl Resolver for Inside {
    fn resolve(&self, name: &EndpointName, _: u32) -> io::Result<Vec<SocketAddr>> {
        if self.servers.is_empty() {
            return Err(io::Error::other(
                "the outer tunnel leads to no name server; write DNS in its file",
            ));
        }
        // Marks are for routes of the machine; here the tunnel is the only way.
        let found = self
            .network
            .within(|| ask_servers(&self.servers, 0, name))??;
        let mut usable = found;
        usable.retain(|address| self.leads_to(address.ip()));
        match usable.is_empty() {
            false => Ok(usable),
            true => Err(io::Error::other(
                "the outer tunnel's AllowedIPs contain none of its addresses",
            )),
        }
    }

    fn can_send_to(&self, address: SocketAddr, _: u32) -> bool {
        self.leads_to(address.ip())
    }
}
