//! Link headers: where in a frame its packet is, and what stands before it.

use taupe_net::ip::Version;

use super::Medium;

const MAC: usize = 6;
const ETHERTYPE: usize = 2 * MAC;
const TAG: usize = 4;
/// With an EtherType and as many VLAN tags as are understood.
pub(super) const LONGEST: usize = ETHERTYPE + 2 + TAGS * TAG;
const TAGS: usize = 2;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;

/// What stands before a packet: nothing where there is no Ethernet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Header {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Header {
    /// Cuts a frame. `None` when there is no IP packet in it, as far as its link
    /// header says.
    pub(super) fn split(medium: Medium, frame: &[u8]) -> Option<(Self, &[u8])> {
        if medium == Medium::Ip {
            let is_ip = frame.first().is_some_and(|byte| matches!(byte >> 4, 4 | 6));
            return is_ip.then_some((Self::default(), frame));
        }
        let mut at = ETHERTYPE;
        for _ in 0..=TAGS {
            let kind = frame.get(at..)?.first_chunk()?;
            match u16::from_be_bytes(*kind) {
                VLAN | SERVICE_VLAN => at += TAG,
                IPV4 | IPV6 => {
                    let (header, packet) = frame.split_at_checked(at + 2)?;
                    let mut bytes = [0; LONGEST];
                    bytes.get_mut(..header.len())?.copy_from_slice(header);
                    let len = header.len();
                    return Some((Self { bytes, len }, packet));
                }
                _ => return None,
            }
        }
        None
    }

    /// Of a frame without VLAN tags.
    pub(super) fn new(medium: Medium, from: [u8; MAC], to: [u8; MAC]) -> Self {
        let mut header = Self::default();
        if medium == Medium::Ethernet {
            header.bytes[..MAC].copy_from_slice(&to);
            header.bytes[MAC..ETHERTYPE].copy_from_slice(&from);
            header.len = ETHERTYPE + 2;
        }
        header
    }

    /// Of an answer.
    pub(super) fn reversed(mut self) -> Self {
        if self.len > 0 {
            let (to, rest) = self.bytes.split_at_mut(MAC);
            to.swap_with_slice(&mut rest[..MAC]);
        }
        self
    }

    /// For a packet of this version.
    pub(super) fn of(mut self, version: Version) -> Self {
        let kind = match version {
            Version::V4 => IPV4,
            Version::V6 => IPV6,
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
