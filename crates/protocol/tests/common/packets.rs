//! Inner packets.

use std::net::IpAddr;

/// Returns an IPv4 packet with a header of 20 bytes, protocol 253 (RFC 3692).
pub fn ipv4(source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V4(source), IpAddr::V4(destination)) = (source, destination) else {
        panic!("not IPv4");
    };
    let length = 20 + payload.len() as u16;
    let mut packet = vec![0; 20];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&length.to_be_bytes());
    packet[8] = 64;
    packet[9] = 253;
    packet[12..16].copy_from_slice(&source.octets());
    packet[16..20].copy_from_slice(&destination.octets());
    packet.extend_from_slice(payload);
    packet
}

/// Returns an IPv6 packet, next header 253 (RFC 3692).
pub fn ipv6(source: IpAddr, destination: IpAddr, payload: &[u8]) -> Vec<u8> {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (source, destination) else {
        panic!("not IPv6");
    };
    let mut packet = vec![0; 40];
    packet[0] = 0x60;
    packet[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    packet[6] = 253;
    packet[7] = 64;
    packet[8..24].copy_from_slice(&source.octets());
    packet[24..40].copy_from_slice(&destination.octets());
    packet.extend_from_slice(payload);
    packet
}

/// Returns an IPv4 packet with a total of `length` bytes, whose payload bytes are `mark`.
pub fn sized(source: IpAddr, destination: IpAddr, length: usize, mark: u8) -> Vec<u8> {
    ipv4(source, destination, &vec![mark; length - 20])
}
