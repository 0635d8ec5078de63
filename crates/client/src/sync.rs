//! Difference between a device's state and the wanted configuration.

use std::collections::{HashMap, HashSet};

use taupe_protocol::key::PresharedKey;
use taupe_protocol::update::PeerUpdate;
use taupe_uapi::{Device, SetRequest};

/// Returns the request that changes `device` to match `wanted`.
///
/// Without wanted peers this is a plain replacement. Otherwise the request removes unwanted peers
/// first, so that their allowed IPs are free.
#[must_use]
pub fn syncconf_request(device: &Device, mut wanted: SetRequest) -> SetRequest {
    // An unchanged seed, key or mode is left out: if it were set again, the device would discard
    // its handshake state.
    let seed = wanted.device.pq_private_key.take().flatten();
    wanted.device.pq_private_key = (seed != device.status.pq_private_key).then_some(seed);
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
        let key = peer.pq_public_key.take().flatten();
        peer.pq_public_key = (key != before.pq_public_key).then_some(key);
        let mode = peer.post_quantum.take().flatten();
        peer.post_quantum = (mode != before.post_quantum).then_some(mode);
        if before.endpoint_name.is_some() {
            peer.endpoint_name.get_or_insert(None);
        }
    }
    let wanted_keys: HashSet<_> = wanted
        .device
        .peers
        .iter()
        .map(|peer| peer.public_key)
        .collect();
    let removed = device
        .status
        .peers
        .iter()
        .filter(|peer| !wanted_keys.contains(&peer.public_key));
    // `wg` sends removals from last to first.
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
    use taupe_protocol::crypto::{Secret, default_provider};
    use taupe_protocol::hybrid::Suite;
    use taupe_protocol::key::{PqPrivateKey, PublicKey};
    use taupe_protocol::update::PostQuantum;
    use taupe_uapi::push_peer;

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
        let difference = syncconf_request(&device(&[1, 2, 3, 4]), wanted(&[2, 5, 4]));
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
        let peers = syncconf_request(&device, request).device.peers;
        assert!(peers[0].preshared_key == Some(PresharedKey::NONE));
        assert_eq!(peers[0].persistent_keepalive, Some(0));
        assert!(peers[1].preshared_key == Some(PresharedKey::new([8; 32])));
        assert_eq!(peers[1].persistent_keepalive, Some(9));
        assert!(peers[2].preshared_key.is_none());
        assert_eq!(peers[2].persistent_keepalive, None);
    }

    #[test]
    fn of_hybrid_handshakes_only_what_is_new_is_said() {
        let seed = |byte| PqPrivateKey::new(Secret::new([byte; 64]));
        let public = |byte| {
            let seed = seed(byte).expect("not zero");
            Some(seed.public(default_provider(), Suite::Hybrid512))
        };
        let mut device = device(&[1, 2, 3]);
        device.status.pq_private_key = seed(9);
        for peer in &mut device.status.peers {
            peer.pq_public_key = public(1);
            peer.post_quantum = Some(PostQuantum::Prefer);
        }
        let mut request = wanted(&[1, 2, 3]);
        request.device.pq_private_key = Some(seed(9));
        request.device.peers[0].pq_public_key = Some(public(1));
        request.device.peers[0].post_quantum = Some(Some(PostQuantum::Prefer));
        request.device.peers[1].pq_public_key = Some(public(2));
        request.device.peers[1].post_quantum = Some(Some(PostQuantum::Require));
        let difference = syncconf_request(&device, request).device;
        assert!(difference.pq_private_key.is_none());
        let [same, other, none] = difference.peers.as_slice() else {
            panic!("{} peers", difference.peers.len());
        };
        assert!(same.pq_public_key.is_none() && same.post_quantum.is_none());
        assert_eq!(other.pq_public_key, Some(public(2)));
        assert_eq!(other.post_quantum, Some(Some(PostQuantum::Require)));
        assert_eq!(none.pq_public_key, Some(None));
        assert_eq!(none.post_quantum, Some(None));
        // The device's seed is removed if the file has none.
        let without = super::syncconf_request(&device, wanted(&[])).device;
        assert!(without.pq_private_key == Some(None));
    }

    #[test]
    fn without_peers_all_are_removed() {
        let difference = syncconf_request(&device(&[1, 2]), wanted(&[]));
        assert!(difference.device.replace_peers);
        assert!(difference.device.peers.is_empty());
    }
}
