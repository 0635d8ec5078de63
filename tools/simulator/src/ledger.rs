//! Records the packets that applications send, and checks that each delivered packet was sent, to
//! this host, unchanged, and is delivered once.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::violation::{Invariant, Violation};

const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const ID: usize = 8;
/// The shortest packet that can carry an id in either IP version.
pub const MIN_PACKET: usize = IPV6_HEADER + ID;

/// Returns the inner addresses of a host.
#[must_use]
pub fn inner_addresses(host: usize) -> (Ipv4Addr, Ipv6Addr) {
    let n = host as u16 + 1;
    (
        Ipv4Addr::new(10, 0, 0, n as u8),
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n),
    )
}

/// Returns the destination address of a packet.
#[must_use]
pub fn destination(id: u64, to: usize) -> IpAddr {
    let (v4, v6) = inner_addresses(to);
    if is_v6(id) { v6.into() } else { v4.into() }
}

fn is_v6(id: u64) -> bool {
    id.is_multiple_of(3)
}

#[derive(Clone, Copy)]
struct Record {
    from: u8,
    to: u8,
    via: u8,
    reply: bool,
    delivered: bool,
    len: u16,
}

/// A delivered packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivered {
    /// The sender.
    pub from: usize,
    /// True if the sender waits for an answer.
    pub reply: bool,
}

/// All packets of an episode.
#[derive(Default)]
pub struct Ledger {
    records: Vec<Record>,
    delivered: u64,
}

impl Ledger {
    /// Records a packet to the address of `to` that is about to be sent to the host `via`, and
    /// returns its id. The two hosts differ only while allowed IPs are moved.
    pub fn enter(&mut self, from: usize, to: usize, via: usize, len: usize, reply: bool) -> u64 {
        self.records.push(Record {
            from: from as u8,
            to: to as u8,
            via: via as u8,
            reply,
            delivered: false,
            len: len.max(MIN_PACKET) as u16,
        });
        self.records.len() as u64 - 1
    }

    /// Returns the number of sent packets.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.records.len() as u64
    }

    /// Returns true if a packet has been delivered.
    #[must_use]
    pub fn is_delivered(&self, id: u64) -> bool {
        self.records
            .get(id as usize)
            .is_some_and(|record| record.delivered)
    }

    /// Returns the number of delivered packets.
    #[must_use]
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Writes the bytes of a packet.
    pub fn write(&self, id: u64, packet: &mut Vec<u8>) {
        packet.clear();
        let Some(record) = self.records.get(id as usize) else {
            return;
        };
        let len = usize::from(record.len);
        packet.resize(len, 0);
        let (from4, from6) = inner_addresses(record.from.into());
        let (to4, to6) = inner_addresses(record.to.into());
        let header = if is_v6(id) {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&((len - IPV6_HEADER) as u16).to_be_bytes());
            packet[8..24].copy_from_slice(&from6.octets());
            packet[24..40].copy_from_slice(&to6.octets());
            IPV6_HEADER
        } else {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&record.len.to_be_bytes());
            packet[12..16].copy_from_slice(&from4.octets());
            packet[16..20].copy_from_slice(&to4.octets());
            IPV4_HEADER
        };
        packet[header..header + ID].copy_from_slice(&id.to_be_bytes());
        let filler = id.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        for chunk in packet[header + ID..].chunks_mut(8) {
            chunk.copy_from_slice(&filler[..chunk.len()]);
        }
    }

    /// Checks a packet delivered to `host`.
    ///
    /// # Errors
    /// If nobody sent it to `host`, it was changed, or it was delivered before.
    pub fn deliver(
        &mut self,
        host: usize,
        packet: &[u8],
        scratch: &mut Vec<u8>,
    ) -> Result<Delivered, Violation> {
        let fail = |why: String| Err(Violation::new(Invariant::Delivery, why));
        let header = match packet.first().map(|byte| byte >> 4) {
            Some(4) => IPV4_HEADER,
            Some(6) => IPV6_HEADER,
            _ => return fail(format!("host {host} received bytes that are not a packet")),
        };
        let Some(id) = packet.get(header..).and_then(|rest| rest.first_chunk()) else {
            return fail(format!("host {host} received a packet that no host sent"));
        };
        let id = u64::from_be_bytes(*id);
        self.write(id, scratch);
        let Some(record) = self.records.get_mut(id as usize) else {
            return fail(format!(
                "host {host} received packet {id}, which no host sent"
            ));
        };
        if *scratch != packet {
            return fail(format!(
                "host {host} received packet {id} with other bytes than were sent"
            ));
        }
        if usize::from(record.via) != host {
            return fail(format!(
                "host {host} received packet {id}, which is for host {}",
                record.via
            ));
        }
        if record.delivered {
            return fail(format!("host {host} received packet {id} twice"));
        }
        record.delivered = true;
        self.delivered += 1;
        Ok(Delivered {
            from: record.from.into(),
            reply: record.reply,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger() -> (Ledger, Vec<u8>) {
        let mut ledger = Ledger::default();
        for len in [0, 60, 100, 1000] {
            ledger.enter(0, 1, 1, len, false);
        }
        let mut packet = Vec::new();
        ledger.write(2, &mut packet);
        (ledger, packet)
    }

    #[test]
    fn sent_packets_are_delivered() {
        let (mut ledger, _) = ledger();
        let (mut packet, mut scratch) = (Vec::new(), Vec::new());
        for id in 0..4 {
            ledger.write(id, &mut packet);
            let view = taupe_protocol::inner::parse(&packet).unwrap();
            assert_eq!(view.length, packet.len());
            assert_eq!(view.destination, destination(id, 1));
            let delivered = ledger.deliver(1, &packet, &mut scratch).unwrap();
            assert_eq!(delivered.from, 0);
        }
        assert_eq!(ledger.delivered(), 4);
    }

    #[test]
    fn fires_on_twice_elsewhere_changed_and_unsent() {
        let (mut ledger, packet) = ledger();
        let mut scratch = Vec::new();
        assert!(
            ledger.deliver(2, &packet, &mut scratch).is_err(),
            "elsewhere"
        );
        for at in 0..packet.len() {
            let mut changed = packet.clone();
            changed[at] ^= 1;
            assert!(
                ledger.deliver(1, &changed, &mut scratch).is_err(),
                "byte {at}"
            );
        }
        assert!(
            ledger
                .deliver(1, &packet[..packet.len() - 1], &mut scratch)
                .is_err()
        );
        assert!(ledger.deliver(1, &[], &mut scratch).is_err());
        assert!(ledger.deliver(1, &packet, &mut scratch).is_ok());
        assert!(ledger.deliver(1, &packet, &mut scratch).is_err(), "twice");
    }
}
