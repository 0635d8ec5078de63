//! The ML-KEM key of a device. Without it the device cannot shake hands with post-quantum peers.

use taupe_protocol::update::{DeviceUpdate, PeerUpdate};
use taupe_protocol::{Device, UpdateError};
use taupe_uapi::key::Encoding;
use taupe_uapi::show::lacks_own_key;
use tracing::warn;

use crate::services::PreparedUpdate;

/// Record of whether the device has its ML-KEM key. Clients may set the keys of peers first, so an
/// update without the device's key is not refused. Instead the log names the peers.
#[derive(Default)]
pub struct OwnPqKey {
    is_set: bool,
}

impl OwnPqKey {
    /// Applies an update, and logs the peers with which no handshake is possible afterwards.
    ///
    /// # Errors
    ///
    /// [`UpdateError`] of [`PreparedUpdate::apply`].
    pub fn apply(
        &mut self,
        device: &mut Device,
        update: PreparedUpdate,
    ) -> Result<(), UpdateError> {
        let is_affected = self.is_affected(&update.0);
        update.apply(device)?;
        if is_affected {
            warn_of_peers(device);
        }
        Ok(())
    }

    /// Checks whether an update may result in peers that need the key while it is missing.
    fn is_affected(&mut self, update: &DeviceUpdate) -> bool {
        let set = update.pq_private_key.as_ref().map(Option::is_some);
        self.is_set = set.unwrap_or(self.is_set);
        let wants_it =
            |peer: &PeerUpdate| peer.pq_public_key.is_some() || peer.post_quantum.is_some();
        !self.is_set && (set.is_some() || update.peers.iter().any(wants_it))
    }
}

fn warn_of_peers(device: &Device) {
    let status = device.status();
    for peer in &status.peers {
        if lacks_own_key(&status, peer) {
            warn!(
                peer = Encoding::Base64.encode(&peer.public_key.0).as_str(),
                "no PqPrivateKey: this peer needs a hybrid handshake, so no handshake can begin; \
                 set a private ML-KEM key"
            );
        }
    }
}
