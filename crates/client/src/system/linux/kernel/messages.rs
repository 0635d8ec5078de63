//! Splits a request into netlink messages that the kernel accepts.

use taupe_protocol::update::{AllowedIpChange, PeerUpdate};

/// The longest message, in bytes: below one page, so that the kernel needs no contiguous pages.
pub(crate) const SIZE: usize = 4000;

/// Upper bound of the headers and device attributes, in bytes.
const DEVICE: usize = 128;

/// Upper bound of a peer without allowed IPs, in bytes.
const PEER: usize = 144;

/// Upper bound of one allowed IP, in bytes.
const NETWORK: usize = 48;

/// Part of a peer that one message contains.
#[derive(Clone, Copy)]
pub(crate) struct PeerPart<'a> {
    pub(crate) peer: &'a PeerUpdate,
    /// True if this part contains all attributes, not only allowed IPs.
    pub(crate) first: bool,
    pub(crate) allowed_ips: &'a [AllowedIpChange],
}

/// Splits a request into one or more messages. If a peer is split, the next message repeats its key
/// with the rest of its allowed IPs.
pub(crate) fn split(peers: &[PeerUpdate]) -> Vec<Vec<PeerPart<'_>>> {
    let mut messages = Vec::new();
    let mut parts = Vec::new();
    let mut room = SIZE - DEVICE;
    for peer in peers {
        let mut networks = peer.allowed_ips.as_slice();
        let mut first = true;
        while first || !networks.is_empty() {
            let least = PEER + NETWORK * networks.len().min(1);
            if room < least {
                messages.push(std::mem::take(&mut parts));
                room = SIZE - DEVICE;
            }
            let count = networks.len().min((room - PEER) / NETWORK);
            let (now, later) = networks.split_at(count);
            parts.push(PeerPart {
                peer,
                first,
                allowed_ips: now,
            });
            room -= PEER + NETWORK * count;
            networks = later;
            first = false;
        }
    }
    messages.push(parts);
    messages
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr};
    use taupe_protocol::key::PublicKey;

    fn peer(byte: u8, networks: u32) -> PeerUpdate {
        let network = |index| AllowedIpChange::Add(IpAddr::V4(Ipv4Addr::from(index)).into());
        PeerUpdate {
            allowed_ips: (0..networks).map(network).collect(),
            ..PeerUpdate::new(PublicKey([byte; 32]))
        }
    }

    #[test]
    fn nothing_is_lost_and_nothing_said_twice() {
        for counts in [
            &[][..],
            &[0],
            &[0; 100],
            &[1; 100],
            &[77],
            &[78],
            &[79],
            &[1000],
            &[75, 0, 500, 0, 0, 3],
        ] {
            let peers: Vec<_> = (0..).zip(counts).map(|(i, n)| peer(i, *n)).collect();
            let messages = split(&peers);
            assert!(!messages.is_empty());
            for message in &messages {
                let size: usize = message
                    .iter()
                    .map(|part| PEER + NETWORK * part.allowed_ips.len())
                    .sum();
                assert!(DEVICE + size <= SIZE, "{counts:?}: {size}");
            }
            let parts: Vec<_> = messages.iter().flatten().collect();
            for peer in &peers {
                let of_peer: Vec<_> = parts
                    .iter()
                    .filter(|part| part.peer.public_key == peer.public_key)
                    .collect();
                let firsts: Vec<_> = of_peer.iter().map(|part| part.first).collect();
                assert!(firsts[0] && !firsts[1..].contains(&true), "{counts:?}");
                let networks: Vec<_> = of_peer.iter().flat_map(|part| part.allowed_ips).collect();
                assert_eq!(networks, peer.allowed_ips.iter().collect::<Vec<_>>());
            }
        }
    }
}
