//! Peers whose endpoints are names, and whether a running device has found their addresses.

use taupe_client::{EndpointName, PublicKey};
use taupe_config::file::{Endpoint, File};

/// A peer whose endpoint is a name.
#[derive(Clone, Debug)]
pub struct Named {
    pub peer: PublicKey,
    pub name: EndpointName,
    /// Of its `[Peer]`.
    pub line: usize,
    /// Why it has no address yet, if it has been asked for.
    pub reason: Option<String>,
}

/// The peers of a file whose endpoints are names.
pub fn named(file: &File) -> Vec<Named> {
    let peers = file.peers.iter();
    peers
        .filter_map(|peer| match peer.endpoint.as_ref()? {
            Endpoint::Address(_) => None,
            Endpoint::Name { host, port } => Some(Named {
                peer: peer.public_key,
                name: EndpointName::new(host, *port)?,
                line: peer.line,
                reason: None,
            }),
        })
        .collect()
}

/// Says in a sentence each which endpoints of a running device have no address.
pub fn without_address(interface: &str, file: &File) -> Vec<String> {
    let Ok(device) = taupe_client::read(interface) else {
        return Vec::new();
    };
    let mut missing = named(file);
    missing.retain(|named| !has_endpoint(&device, named));
    missing.iter().map(Named::complaint).collect()
}

impl Named {
    pub fn complaint(&self) -> String {
        let Self { name, line, .. } = self;
        // Whoever only looks at the device does not know it.
        let reason = match &self.reason {
            Some(reason) => format!(" ({reason})"),
            None => String::new(),
        };
        format!(
            "the endpoint {name} of the [Peer] in line {line} has no address now{reason}: traffic \
             for this peer is blocked until a later look-up finds one; Taupe repeats the look-up"
        )
    }
}

/// Whether the device knows where the peer is, or does not have it any more.
/// Checks whether a running device has an address for this peer.
pub fn has_endpoint(device: &taupe_client::Device, named: &Named) -> bool {
    let mut peers = device.status.peers.iter();
    let peer = peers.find(|peer| peer.public_key == named.peer);
    peer.is_none_or(|peer| peer.endpoint.is_some())
}
