//! The difference between what a device is and what it should be.

use std::collections::{HashMap, HashSet};

use taupe_config::uapi::{Device, SetRequest};
use taupe_protocol::key::PresharedKey;
use taupe_protocol::update::PeerUpdate;

/// What has to be asked of `device` so that it becomes what `wanted` says.
///
/// Without peers that is a plain replacement. Otherwise the peers that are not
/// wanted are removed first, so that their networks are free.
#[must_use]
pub fn difference(device: &Device, mut wanted: SetRequest) -> SetRequest {
    if wanted.device.peers.is_empty() {
        wanted.device.replace_peers = true;
        return wanted;
    }
    let present: HashMap<_, _> = device
        .status
        .peers
        .iter()
        .map(|peer| (peer.public_key, peer))
        .collect();
    for peer in &mut wanted.device.peers {
        let Some(before) = present.get(&peer.public_key) else {
            continue;
        };
        if before.preshared_key.is_set() {
            peer.preshared_key.get_or_insert(PresharedKey::NONE);
        }
        if before.persistent_keepalive != 0 {
            peer.persistent_keepalive.get_or_insert(0);
        }
        if before.endpoint_name.is_some() {
            peer.endpoint_name.get_or_insert(None);
        }
    }
    let kept: HashSet<_> = wanted
        .device
        .peers
        .iter()
        .map(|peer| peer.public_key)
        .collect();
    let removed = device
        .status
        .peers
        .iter()
        .filter(|peer| !kept.contains(&peer.public_key));
    // `wg` has them from last to first.
    let mut peers: Vec<_> = removed
        .rev()
        .map(|peer| PeerUpdate {
            remove: true,
            ..PeerUpdate::new(peer.public_key)
        })
        .collect();
    peers.reserve_exact(wanted.device.peers.len());
    peers.append(&mut wanted.device.peers);
    wanted.device.peers = peers;
    wanted.device.replace_peers = false;
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_config::uapi::push_peer;
    use taupe_protocol::key::PublicKey;

    fn key(byte: u8) -> PublicKey {
        PublicKey([byte; 32])
    }

    fn device(keys: &[u8]) -> Device {
        let mut device = Device::new("wg0");
        for byte in keys {
            push_peer(&mut device.status.peers, key(*byte));
        }
        device
    }

    fn wanted(keys: &[u8]) -> SetRequest {
        let mut request = SetRequest::default();
        request.device.replace_peers = true;
        request.device.peers = keys
            .iter()
            .map(|byte| PeerUpdate {
                replace_allowed_ips: true,
                ..PeerUpdate::new(key(*byte))
            })
            .collect();
        request
    }

    #[test]
    fn peers_that_stay_are_not_replaced() {
        let difference = difference(&device(&[1, 2, 3, 4]), wanted(&[2, 5, 4]));
        assert!(!difference.device.replace_peers);
        let peers: Vec<_> = difference
            .device
            .peers
            .iter()
            .map(|peer| (peer.public_key.0[0], peer.remove))
            .collect();
        assert_eq!(
            peers,
            [(3, true), (1, true), (2, false), (5, false), (4, false)]
        );
    }

    #[test]
    fn what_is_no_longer_there_is_taken_away_and_nothing_else() {
        let mut device = device(&[1, 2]);
        for peer in &mut device.status.peers {
            peer.preshared_key = PresharedKey::new([7; 32]);
            peer.persistent_keepalive = 25;
        }
        let mut request = wanted(&[1, 2, 3]);
        request.device.peers[1].preshared_key = Some(PresharedKey::new([8; 32]));
        request.device.peers[1].persistent_keepalive = Some(9);
        let peers = difference(&device, request).device.peers;
        assert!(peers[0].preshared_key == Some(PresharedKey::NONE));
        assert_eq!(peers[0].persistent_keepalive, Some(0));
        assert!(peers[1].preshared_key == Some(PresharedKey::new([8; 32])));
        assert_eq!(peers[1].persistent_keepalive, Some(9));
        assert!(peers[2].preshared_key.is_none());
        assert_eq!(peers[2].persistent_keepalive, None);
    }

    #[test]
    fn without_peers_all_are_removed() {
        let difference = difference(&device(&[1, 2]), wanted(&[]));
        assert!(difference.device.replace_peers);
        assert!(difference.device.peers.is_empty());
    }
}
