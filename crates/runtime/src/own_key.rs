//! The ML-KEM key of a device, without which some of its peers can do nothing.

use taupe_protocol::Device;
use taupe_protocol::update::{DeviceUpdate, PeerUpdate};
use taupe_uapi::key::Encoding;
use taupe_uapi::show::lacks_own_key;
use tracing::warn;

/// Whether the device has an ML-KEM key of its own. Its peers' keys may come before it, so that
/// an update without it cannot be refused; the log says what it leads to.
#[derive(Default)]
pub struct OwnKey {
    is_there: bool,
}

impl OwnKey {
    /// Whether an update may lead to peers that it takes the key for and is not there; to be
    /// asked of each.
    pub fn concerns(&mut self, update: &DeviceUpdate) -> bool {
        let set = update.pq_private_key.as_ref().map(Option::is_some);
        self.is_there = set.unwrap_or(self.is_there);
        let wants_it =
            |peer: &PeerUpdate| peer.pq_public_key.is_some() || peer.post_quantum.is_some();
        !self.is_there && (set.is_some() || update.peers.iter().any(wants_it))
    }

    /// Warns of peers with which nothing is possible without it.
    pub fn look(&self, device: &Device) {
        let status = device.status();
        for peer in &status.peers {
            if lacks_own_key(&status, peer) {
                warn!(
                    peer = Encoding::Base64.encode(&peer.public_key.0).as_str(),
                    "no PqPrivateKey: no hybrid handshake with this peer is possible, and no \
                     other is begun; make a key with `taupe genkey --pq`, and set it with `taupe \
                     set INTERFACE pq-private-key FILE`"
                );
            }
        }
    }
}
