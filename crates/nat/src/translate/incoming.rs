//! Packets from the tunnel to the TUN.

use std::sync::{Arc, MutexGuard};

use taupe_packet::ip::Family;
use taupe_protocol::time::Instant;

use super::{
    Reason, Shared, State,
    memory::Memory,
    rewrite::{QUOTE, Rewrite, apply_to_error},
    tcp,
    view::{Content, View},
};
use crate::flows::{Flow, Life, Opener, Tuple, Way};
use crate::reassembly::{Inconsistent, Reassembly};

/// Maximum bytes of incomplete packets, as on Linux (`ipfrag_high_thresh`).
const REASSEMBLY_BYTES: usize = 4 << 20;

/// The half that translates packets from the tunnel.
#[derive(Debug)]
pub struct Incoming {
    shared: Arc<Shared>,
    memory: Memory,
    reassembly: Reassembly,
}

impl Incoming {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            memory: Memory::default(),
            reassembly: Reassembly::new(REASSEMBLY_BYTES),
        }
    }

    /// Begins a batch of packets that have arrived together. The batch takes the table's lock if it
    /// needs it, and holds it until it is dropped. Drop it before any slow operation.
    pub fn batch(&mut self, now: Instant) -> Batch<'_> {
        Batch {
            shared: &self.shared,
            memory: &mut self.memory,
            reassembly: &mut self.reassembly,
            state: None,
            now,
        }
    }
}

/// The result of translating a packet from the tunnel.
#[derive(Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The packet has been changed in place.
    InPlace,
    /// The packet is a fragment; a copy waits for the other fragments.
    Kept,
    /// The packet was the last missing fragment of this packet, which has been translated.
    Together(Vec<u8>),
}

/// Packets that have arrived together.
#[derive(Debug)]
pub struct Batch<'a> {
    shared: &'a Shared,
    memory: &'a mut Memory,
    reassembly: &'a mut Reassembly,
    /// The lock, held since the first packet that needed it.
    state: Option<MutexGuard<'a, State>>,
    now: Instant,
}

impl Batch<'_> {
    /// Translates a decrypted packet in place, unless it is a fragment.
    ///
    /// # Errors
    ///
    /// The reason to drop the packet, which has been counted. The packet is unchanged then.
    pub fn translate(&mut self, packet: &mut [u8]) -> Result<Arrival, Reason> {
        let translated = self.process(packet);
        if let Err(reason) = translated {
            self.shared.count(reason);
        }
        translated
    }

    fn process(&mut self, packet: &mut [u8]) -> Result<Arrival, Reason> {
        let view = View::parse(packet)?;
        let packet = packet.get_mut(..view.len).ok_or(Reason::Malformed)?;
        self.check(&view)?;
        if view.fragment.is_none() {
            self.rewrite(packet, &view)?;
            return Ok(Arrival::InPlace);
        }
        let taken = self.reassembly.take(self.now, packet);
        let Some(mut whole) = taken.map_err(|Inconsistent| Reason::Malformed)? else {
            return Ok(Arrival::Kept);
        };
        let view = View::parse(&whole)?;
        // After reassembly a second fragment header may appear. No legitimate sender needs that.
        if view.fragment.is_some() || view.len != whole.len() {
            return Err(Reason::Malformed);
        }
        self.rewrite(&mut whole, &view)?;
        Ok(Arrival::Together(whole))
    }

    /// Checks that the packet is for the tunnel's address.
    fn check(&self, view: &View) -> Result<(), Reason> {
        if self.shared.address.of(view.version) != Some(view.destination) {
            return Err(Reason::NotOurs);
        }
        if view.source == view.destination {
            return Err(Reason::OwnSource);
        }
        Ok(())
    }

    /// Translates an unfragmented packet.
    fn rewrite(&mut self, packet: &mut [u8], view: &View) -> Result<(), Reason> {
        // No application here waits for an echo request.
        if let Content::Echo { request: true, .. } = view.content {
            return Err(Reason::NoFlow);
        }
        let tuple = view.incoming();
        if view.is_plain()
            && let Some((rewrite, traffic)) = self.memory.find(self.now, self.shared, &tuple)
        {
            if let Some(traffic) = traffic {
                traffic.received.add(view.datagram_len());
            }
            rewrite.apply(packet, view, false);
            return Ok(());
        }

        if let Content::Error = view.content {
            return self.translate_error(packet, view);
        }
        let rewrite = self.place(view, &tuple)?;
        rewrite.apply(packet, view, false);
        if view.flags() & tcp::SYN != 0
            && let Some(segment) = packet.get_mut(view.at..)
        {
            tcp::clamp_mss(segment, self.shared.mss(view.version), false);
        }
        Ok(())
    }

    fn state(&mut self) -> &mut State {
        self.state.get_or_insert_with(|| self.shared.lock())
    }

    /// Finds or opens the flow of a packet.
    fn place(&mut self, view: &View, tuple: &Tuple) -> Result<Rewrite, Reason> {
        let now = self.now;
        let state = self.state();
        let index = match state.table.find_outer(now, tuple) {
            Some(index) => index,
            None => {
                if !matches!(view.content, Content::Tcp { .. } | Content::Udp { .. }) {
                    return Err(Reason::NoFlow);
                }
                let mut inner = *tuple;
                let uplink = state.uplink.of(view.version);
                inner.local.ip = uplink.ok_or(Reason::NoUplink)?;
                state.table.open(now, inner, *tuple, Opener::Peer)?
            }
        };
        state.table.touch(now, index, Way::In, view.flags());
        let flow = state.table.flow(index);
        let Flow { inner, outer, .. } = *flow;
        let answered = flow.life() != Life::Unanswered;
        let is_question = flow.is_question();
        if is_question {
            match view.flags() & tcp::RST {
                0 => state.servers.hear(outer.version, outer.remote.ip),
                _ => state.servers.pass(outer.version, outer.remote.ip),
            }
        }
        let rewrite = Rewrite::new((outer.remote, outer.local), (inner.remote, inner.local));
        let traffic = flow.traffic().cloned();
        if let Some(traffic) = &traffic {
            traffic.received.add(view.datagram_len());
        }
        // Not before the application has answered: until then the table needs no record of incoming
        // packets.
        if view.is_plain() && answered && !is_question {
            self.memory
                .keep(now, self.shared, *tuple, (rewrite, traffic));
        }
        Ok(rewrite)
    }

    /// Rewrites an ICMP error about a packet sent into the tunnel.
    fn translate_error(&mut self, packet: &mut [u8], view: &View) -> Result<(), Reason> {
        let quoted = packet.get(view.at + QUOTE..).ok_or(Reason::Malformed)?;
        let quoted = View::parse_quoted(quoted)?;
        let is_unreachable = match (view.version, packet.get(view.at..)) {
            // Except code 4, "fragmentation needed" (RFC 1191).
            (Family::V4, Some([kind, code, ..])) => *kind == 3 && *code != 4,
            (Family::V6, Some([kind, ..])) => *kind == 1,
            _ => false,
        };
        let now = self.now;
        let state = self.state();
        let index = state.table.find_outer(now, &quoted.outgoing());
        let flow = state.table.flow(index.ok_or(Reason::NoFlow)?);
        let Flow { inner, outer, .. } = *flow;
        if flow.is_question() && is_unreachable {
            state.servers.pass(outer.version, outer.remote.ip);
        }
        let from = (outer.local, outer.remote);
        let rewrite = Rewrite::new(from, (inner.local, inner.remote));
        // A reply of a name server appears to come from the server that was queried.
        let source = if view.source == outer.remote.ip {
            inner.remote.ip
        } else {
            view.source
        };
        let ends = (source, inner.local.ip);
        apply_to_error(packet, view, ends, (&quoted, &rewrite));
        Ok(())
    }
}
