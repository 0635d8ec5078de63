//! Entry point for fuzzers: answers of a kernel that sends any bytes.

use taupe_uapi::Device;

use super::{OpGetDeviceDump, merge_device};
use netlink_bindings::traits::NetlinkRequest as _;

/// Reads `data` as the messages with which the kernel describes a WireGuard device. Two bytes before
/// each give its length.
///
/// # Panics
///
/// If the conversion has a defect.
pub fn kernel_device(mut data: &[u8]) {
    let mut device = Device::new("wg0");
    let all = data.len();
    while let Some((length, rest)) = data.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length));
        let (part, rest) = rest.split_at(length.min(rest.len()));
        data = rest;
        if merge_device(&mut device, &OpGetDeviceDump::decode_reply(part)).is_err() {
            break;
        }
    }
    let peers = &device.status.peers;
    // A peer takes at least the bytes of its key, and an allowed IP those of its address.
    assert!(peers.len() <= all / 32);
    let allowed_ips: usize = peers.iter().map(|peer| peer.allowed_ips.len()).sum();
    assert!(allowed_ips <= all / 4);
    let pairs = peers.iter().zip(peers.iter().skip(1));
    for (peer, next) in pairs {
        assert_ne!(peer.public_key, next.public_key, "a peer is continued");
    }
}

/// Returns descriptions of devices: all attributes, a peer in two messages, and malformed ones.
#[must_use]
pub fn kernel_device_seeds() -> Vec<Vec<u8>> {
    // An IPv4 and an IPv6 network.
    let networks = [
        (2_u16, vec![10, 0, 0, 2], 32),
        (10, [&[0xfd][..], &[0; 15]].concat(), 64),
    ];
    let networks = networks.map(|(family, address, length)| {
        let family = attribute(1, &family.to_ne_bytes());
        let all = [family, attribute(2, &address), attribute(3, &[length])];
        attribute(0, &all.concat())
    });
    let networks = attribute(9, &networks.concat());
    let v4 = [2, 0, 0xca, 0x6c, 192, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let v6 = [&[10, 0, 0xca, 0x6c, 0, 0, 0, 0][..], &[0x20; 16], &[0; 4]].concat();
    let time = [1_700_000_000_u64.to_ne_bytes(), 5_u64.to_ne_bytes()].concat();
    let peer = |key: u8, endpoint: &[u8]| {
        let all = [
            attribute(1, &[key; 32]),
            attribute(2, &[3; 32]),
            attribute(4, endpoint),
            attribute(5, &25_u16.to_ne_bytes()),
            attribute(6, &time),
            attribute(7, &1000_u64.to_ne_bytes()),
            attribute(8, &2000_u64.to_ne_bytes()),
            networks.clone(),
        ];
        attribute(0, &all.concat())
    };
    let continued = attribute(0, &[attribute(1, &[8; 32]), networks.clone()].concat());
    // `struct genlmsghdr`, then the attributes.
    let header = vec![0, 1, 0, 0];
    let device = [
        header.clone(),
        attribute(1, &3_u32.to_ne_bytes()),
        attribute(2, b"wg0\0"),
        attribute(3, &[1; 32]),
        attribute(4, &[2; 32]),
        attribute(6, &51820_u16.to_ne_bytes()),
        attribute(7, &7_u32.to_ne_bytes()),
    ]
    .concat();
    let peers = |list: &[Vec<u8>]| attribute(8, &list.concat());
    let first = [device.clone(), peers(&[peer(7, &v4), peer(8, &v6)])].concat();
    let second = [header, peers(&[continued, peer(9, &v4)])].concat();
    let mut seeds = vec![device, first.clone(), second.clone()];
    for length in [40, first.len() / 2, first.len() - 4] {
        seeds.push(first[..length].to_vec());
    }
    // Without a key, and with one that is too short.
    seeds.push([&second[..4], &peers(&[attribute(0, &[])])].concat());
    seeds.push(
        [
            &second[..4],
            &peers(&[attribute(0, &attribute(1, &[8; 31]))]),
        ]
        .concat(),
    );
    let with_length = |message: &[u8]| [&(message.len() as u16).to_le_bytes(), message].concat();
    let mut seeds: Vec<_> = seeds.iter().map(|it| with_length(it)).collect();
    seeds.push([with_length(&first), with_length(&second)].concat());
    seeds
}

fn attribute(kind: u16, data: &[u8]) -> Vec<u8> {
    let mut bytes = (4 + data.len() as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(data);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_read_from_all_its_messages() {
        for seed in kernel_device_seeds() {
            kernel_device(&seed);
        }
        let all = kernel_device_seeds().pop().expect("seeds");
        let mut device = Device::new("wg0");
        let (length, rest) = all.split_first_chunk().expect("a length");
        let (first, second) = rest.split_at(u16::from_le_bytes(*length).into());
        for part in [first, &second[2..]] {
            let part = OpGetDeviceDump::decode_reply(part);
            merge_device(&mut device, &part).expect("a description");
        }
        let peers = device.status.peers.iter();
        let found: Vec<_> = peers
            .map(|peer| (peer.public_key.0[0], peer.allowed_ips.len()))
            .collect();
        assert_eq!(found, [(7, 2), (8, 4), (9, 2)]);
        assert_eq!((device.listen_port, device.fwmark), (51820, 7));
    }
}
