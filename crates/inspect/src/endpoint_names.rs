//! Peers whose endpoints are host names, and the addresses that a running device has for them.

use taupe_client::{EndpointName, PublicKey};
use taupe_config::file::File;

/// A peer whose endpoint is a host name.
#[derive(Clone, Debug)]
pub struct NamedEndpoint {
    /// Its public key.
    pub peer: PublicKey,
    /// Its endpoint.
    pub name: EndpointName,
    /// Line of its `[Peer]`.
    pub line: usize,
    /// Reason why the latest look-up gave no address, if known.
    pub reason: Option<String>,
}

/// Returns the peers of a file whose endpoints are host names.
#[must_use]
pub fn named_endpoints(file: &File) -> Vec<NamedEndpoint> {
    let peers = file.peers.iter();
    let named = peers.filter_map(|peer| {
        Some(NamedEndpoint {
            peer: peer.public_key,
            name: peer.endpoint_name()?,
            line: peer.line,
            reason: None,
        })
    });
    named.collect()
}

/// Returns a sentence for each endpoint of a running device that has no address.
pub(crate) fn without_address(device: &taupe_client::Device, file: &File) -> Vec<String> {
    let mut missing = named_endpoints(file);
    missing.retain(|named| !has_endpoint(device, named));
    missing.iter().map(NamedEndpoint::warning).collect()
}

impl NamedEndpoint {
    /// Returns a sentence for the user.
    #[must_use]
    pub fn warning(&self) -> String {
        let Self { name, line, .. } = self;
        // The reason is only known to the process that made the look-up.
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

/// Checks whether a running device has an address for this peer. True as well if the device does
/// not have the peer.
#[must_use]
pub fn has_endpoint(device: &taupe_client::Device, named: &NamedEndpoint) -> bool {
    let mut peers = device.status.peers.iter();
    let peer = peers.find(|peer| peer.public_key == named.peer);
    peer.is_none_or(|peer| peer.endpoint.is_some())
}
