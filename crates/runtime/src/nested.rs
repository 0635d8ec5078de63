//! Packets that carry transport data of a tunnel on this machine. A device detects routing loops by
//! them.

use std::net::{IpAddr, SocketAddr};

use taupe_packet::ip::{self, Family, Packet};
use taupe_protocol::Peer;
use taupe_protocol::message::{Kind, classify, data_header};

const UDP_HEADER_LEN: usize = 8;

/// A packet that may carry transport data of a tunnel on this machine.
pub struct NestedPacket {
    /// The source address.
    pub source: IpAddr,
    /// The hop limit.
    pub hop_limit: u8,
    /// Source port, destination and receiver index. `None` for later fragments.
    data: Option<(u16, SocketAddr, u32)>,
}

impl NestedPacket {
    /// Parses the content of a packet. Returns `None` if it cannot carry transport data. A later
    /// fragment of any UDP datagram may carry some.
    #[must_use]
    pub fn parse(packet: &Packet<'_>) -> Option<Self> {
        let transport = packet.transport()?;
        if transport.protocol != ip::UDP {
            return None;
        }
        let bytes = packet.bytes();
        let hop_limit = match packet.family() {
            Family::V4 => bytes.get(8),
            Family::V6 => bytes.get(7),
        };
        let data = if transport.fragment_offset == 0 {
            let datagram = bytes.get(transport.offset..)?;
            let [a, b, c, d] = *datagram.first_chunk()?;
            let payload = datagram.get(UDP_HEADER_LEN..)?;
            if !matches!(classify(payload), Ok(Kind::Data)) {
                return None;
            }
            let to = SocketAddr::new(packet.destination(), u16::from_be_bytes([c, d]));
            let (index, _) = data_header(payload)?;
            Some((u16::from_be_bytes([a, b]), to, index))
        } else {
            None
        };
        Some(Self {
            source: packet.source(),
            hop_limit: *hop_limit?,
            data,
        })
    }

    /// Checks whether this device has sealed the datagram for the peer to which it is now routed.
    /// Such a datagram would come back endlessly, larger each time. A datagram to the endpoint of
    /// *another* peer is no loop: that peer is behind this one.
    ///
    /// `own_port` is the port of the device's sockets, `endpoint` is the peer's.
    #[must_use]
    pub fn is_sealed_for(&self, own_port: u16, peer: &Peer, endpoint: SocketAddr) -> bool {
        self.data.is_some_and(|(from, to, index)| {
            from == own_port && to == endpoint && peer.has_remote_index(index)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An IPv4 packet from 192.0.2.1 with a UDP datagram.
    fn packet(fragment: u16, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; 28];
        packet[0] = 0x45;
        packet[2..4].copy_from_slice(&(28 + payload.len() as u16).to_be_bytes());
        packet[6..8].copy_from_slice(&fragment.to_be_bytes());
        packet[8] = 64;
        packet[9] = ip::UDP;
        packet[12..20].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
        packet[24..26].copy_from_slice(&(8 + payload.len() as u16).to_be_bytes());
        packet.extend(payload);
        packet
    }

    fn data() -> [u8; 32] {
        let mut data = [0; 32];
        data[0] = 4;
        data
    }

    #[test]
    fn transport_data_and_later_fragments_count() {
        let is_nested = |packet: &[u8]| {
            let packet = Packet::parse(packet).expect("a packet");
            NestedPacket::parse(&packet).is_some()
        };
        assert!(is_nested(&packet(0, &data())));
        assert!(is_nested(&packet(100, b"anything")));
        assert!(!is_nested(&packet(0, b"a datagram of somebody else's")));
        assert!(!is_nested(&packet(0, &[1; 148])));
        let mut tcp = packet(0, &data());
        tcp[9] = ip::TCP;
        assert!(!is_nested(&tcp));
    }
}
