//! The translator as a tap in the path of packets.

use std::ops::Range;

use taupe_packet::tap::{Tap, TapIn, TapOut};
use taupe_packet::virtio::VirtioHeader;
use taupe_protocol::time::Instant;
use tracing::trace;

use crate::translate::{Incoming, Outcome, Outgoing, Received, Translator};

impl Tap for Translator {
    fn outgoing(&self) -> Box<dyn TapOut> {
        Box::new(self.outgoing())
    }

    fn incoming(&self) -> Box<dyn TapIn> {
        Box::new(self.incoming())
    }

    fn set_mtu(&self, mtu: usize) {
        self.set_mtu(u16::try_from(mtu).unwrap_or(u16::MAX));
    }
}

impl TapOut for Outgoing {
    fn handle(
        &mut self,
        now: u64,
        header: VirtioHeader,
        packet: &mut [u8],
        forward: &mut dyn FnMut(VirtioHeader, &[u8]),
    ) -> Option<Vec<u8>> {
        match self.translate(Instant(now), header, packet) {
            Outcome::Forward(header) => forward(header, packet),
            Outcome::Replace(packets) => {
                for packet in packets {
                    forward(VirtioHeader::default(), packet);
                }
            }
            Outcome::Reply(answer, reason) => {
                trace!(%reason, "a packet from an application is refused");
                return Some(answer);
            }
            Outcome::Drop(reason) => trace!(%reason, "a packet from an application is dropped"),
        }
        None
    }
}

impl TapIn for Incoming {
    fn handle(
        &mut self,
        now: u64,
        buffer: &mut [u8],
        packets: &mut Vec<Range<usize>>,
        reassembled: &mut dyn FnMut(&[u8]),
    ) {
        let mut complete = Vec::new();
        let mut batch = self.batch(Instant(now));
        packets.retain(|place| {
            let Some(packet) = buffer.get_mut(place.clone()) else {
                return false;
            };
            match batch.translate(packet) {
                Ok(Received::InPlace) => return true,
                Ok(Received::Incomplete) => {}
                Ok(Received::Reassembled(packet)) => complete.push(packet),
                Err(reason) => trace!(%reason, "a packet from the tunnel is dropped"),
            }
            false
        });
        // The batch may hold the lock.
        drop(batch);
        for packet in complete {
            reassembled(&packet);
        }
    }
}
