//! Link headers: splits a frame into header and packet.

use taupe_packet::ip::Family;

use super::Medium;

const MAC: usize = 6;
const ETHERTYPE: usize = 2 * MAC;
const TAG: usize = 4;
/// Length with an EtherType and the maximum number of VLAN tags.
pub(super) const LONGEST: usize = ETHERTYPE + 2 + TAGS * TAG;
const TAGS: usize = 2;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;
/// Service tags from before IEEE 802.1ad.
const OLD_VLANS: [u16; 2] = [0x9100, 0x9200];
/// Smaller numbers are lengths (IEEE 802.3).
const FIRST_KIND: u16 = 0x0600;
/// LLC/SNAP header before an EtherType (RFC 1042).
const SNAP: [u8; 6] = [0xaa, 0xaa, 3, 0, 0, 0];

/// The link header of a packet; empty without Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Header {
    bytes: [u8; LONGEST],
    len: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Content<'a> {
    /// An IP packet, according to the link header.
    Ip(Header, &'a [u8]),
    /// No IP packet.
    Other,
    /// Possibly an IP packet in an encapsulation that is not supported.
    Unreadable,
}

impl Header {
    pub(super) fn split(medium: Medium, frame: &[u8]) -> Content<'_> {
        match medium {
            Medium::Ethernet => split_ethernet(frame),
            Medium::Ip => match frame.first().map(|byte| byte >> 4) {
                Some(4 | 6) => Content::Ip(Self::default(), frame),
                _ => Content::Unreadable,
            },
            Medium::Unknown => Content::Unreadable,
        }
    }

    /// Returns a header without VLAN tags.
    pub(super) fn new(medium: Medium, from: [u8; MAC], to: [u8; MAC]) -> Self {
        let mut header = Self::default();
        if medium == Medium::Ethernet {
            header.bytes[..MAC].copy_from_slice(&to);
            header.bytes[MAC..ETHERTYPE].copy_from_slice(&from);
            header.len = ETHERTYPE + 2;
        }
        header
    }

    /// Returns the header for a reply.
    pub(super) fn reversed(mut self) -> Self {
        if self.len > 0 {
            let (to, rest) = self.bytes.split_at_mut(MAC);
            to.swap_with_slice(&mut rest[..MAC]);
        }
        self
    }

    pub(super) fn with_family(mut self, family: Family) -> Self {
        let kind = match family {
            Family::V4 => IPV4,
            Family::V6 => IPV6,
        };
        if let Some(at) = self.len.checked_sub(2) {
            self.bytes[at..self.len].copy_from_slice(&kind.to_be_bytes());
        }
        self
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn is_for(&self, mac: [u8; MAC]) -> bool {
        self.len == 0 || self.bytes[..MAC] == mac
    }
}

fn split_ethernet(frame: &[u8]) -> Content<'_> {
    let mut at = ETHERTYPE;
    for _ in 0..=TAGS {
        let Some(kind) = kind_at(frame, at) else {
            return Content::Unreadable;
        };
        match kind {
            VLAN | SERVICE_VLAN => at += TAG,
            IPV4 | IPV6 => {
                let Some((header, packet)) = frame.split_at_checked(at + 2) else {
                    return Content::Unreadable;
                };
                let mut bytes = [0; LONGEST];
                let Some(place) = bytes.get_mut(..header.len()) else {
                    return Content::Unreadable;
                };
                place.copy_from_slice(header);
                let len = header.len();
                return Content::Ip(Header { bytes, len }, packet);
            }
            kind if OLD_VLANS.contains(&kind) => return Content::Unreadable,
            length if length < FIRST_KIND => {
                let behind = frame.get(at + 2..).unwrap_or_default();
                let is_ip = behind.starts_with(&SNAP)
                    && matches!(kind_at(behind, SNAP.len()), Some(IPV4 | IPV6 | VLAN) | None);
                return match is_ip {
                    true => Content::Unreadable,
                    false => Content::Other,
                };
            }
            _ => return Content::Other,
        }
    }
    Content::Unreadable
}

fn kind_at(frame: &[u8], at: usize) -> Option<u16> {
    let kind = frame.get(at..)?.first_chunk()?;
    Some(u16::from_be_bytes(*kind))
}
