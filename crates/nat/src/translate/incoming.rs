//! Packets from the tunnel to the TUN.

use std::sync::{Arc, MutexGuard};

use taupe_packet::ip::Family;
use taupe_protocol::time::Instant;

use super::{
    DropReason, Shared, State,
    rewrite::{QUOTE, Rewrite, apply_to_error},
    rewrite_cache::RewriteCache,
    view::{Content, View},
};
use crate::flows::{Direction, Flow, FlowState, Opener, Tuple};
use crate::reassembly::{Inconsistent, Reassembly};
use crate::tcp;

/// Maximum bytes of incomplete packets, as on Linux (`ipfrag_high_thresh`).
const REASSEMBLY_BYTES: usize = 4 << 20;

/// The half that translates packets from the tunnel.
#[derive(Debug)]
pub struct Incoming {
    shared: Arc<Shared>,
    cache: RewriteCache,
    reassembly: Reassembly,
}

impl Incoming {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            cache: RewriteCache::default(),
            reassembly: Reassembly::new(REASSEMBLY_BYTES),
        }
    }

    /// Begins a batch of packets that have arrived together. The batch takes the table's lock if it
    /// needs it, and holds it until it is dropped. Drop it before any slow operation.
    pub fn batch(&mut self, now: Instant) -> Batch<'_> {
        Batch {
            shared: &self.shared,
            cache: &mut self.cache,
            reassembly: &mut self.reassembly,
            state: None,
            now,
        }
    }
}

/// The result of translating a packet from the tunnel.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// The packet has been changed in place.
    InPlace,
    /// The packet is a fragment; a copy waits for the other fragments.
    Incomplete,
    /// The packet was the last missing fragment of this packet, which has been translated.
    Reassembled(Vec<u8>),
}

/// Packets that have arrived together.
#[derive(Debug)]
pub struct Batch<'a> {
    shared: &'a Shared,
    cache: &'a mut RewriteCache,
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
    pub fn translate(&mut self, packet: &mut [u8]) -> Result<Received, DropReason> {
        let translated = self.process(packet);
        if let Err(reason) = translated {
            self.shared.count(reason);
        }
        translated
    }

    fn process(&mut self, packet: &mut [u8]) -> Result<Received, DropReason> {
        let view = View::parse(packet)?;
        let packet = packet.get_mut(..view.len).ok_or(DropReason::Malformed)?;
        self.check(&view)?;
        if view.fragment.is_none() {
            self.rewrite(packet, &view)?;
            return Ok(Received::InPlace);
        }
        let taken = self.reassembly.add_fragment(self.now, packet);
        let Some(mut whole) = taken.map_err(|Inconsistent| DropReason::Malformed)? else {
            return Ok(Received::Incomplete);
        };
        let view = View::parse(&whole)?;
        // After reassembly a second fragment header may appear. No legitimate sender needs that.
        if view.fragment.is_some() || view.len != whole.len() {
            return Err(DropReason::Malformed);
        }
        self.rewrite(&mut whole, &view)?;
        Ok(Received::Reassembled(whole))
    }

    /// Checks that the packet is for the tunnel's address.
    fn check(&self, view: &View) -> Result<(), DropReason> {
        if self.shared.address.of(view.family) != Some(view.destination) {
            return Err(DropReason::NotOurs);
        }
        if view.source == view.destination {
            return Err(DropReason::OwnSource);
        }
        Ok(())
    }

    /// Translates an unfragmented packet.
    fn rewrite(&mut self, packet: &mut [u8], view: &View) -> Result<(), DropReason> {
        // No application here waits for an echo request.
        if let Content::Echo { request: true, .. } = view.content {
            return Err(DropReason::NoFlow);
        }
        let tuple = view.incoming();
        if view.is_plain()
            && let Some((rewrite, traffic)) = self.cache.find(self.now, self.shared, &tuple)
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
        let rewrite = self.find_or_open(view, &tuple)?;
        rewrite.apply(packet, view, false);
        if view.flags() & tcp::SYN != 0
            && let Some(segment) = packet.get_mut(view.at..)
        {
            tcp::clamp_mss(segment, self.shared.mss(view.family), false);
        }
        Ok(())
    }

    fn state(&mut self) -> &mut State {
        self.state.get_or_insert_with(|| self.shared.lock())
    }

    /// Finds or opens the flow of a packet.
    fn find_or_open(&mut self, view: &View, tuple: &Tuple) -> Result<Rewrite, DropReason> {
        let now = self.now;
        let state = self.state();
        let index = match state.table.find_outer(now, tuple) {
            Some(index) => index,
            None => {
                if !matches!(view.content, Content::Tcp { .. } | Content::Udp { .. }) {
                    return Err(DropReason::NoFlow);
                }
                let mut inner = *tuple;
                let uplink = state.uplink.of(view.family);
                inner.local.ip = uplink.ok_or(DropReason::NoUplink)?;
                state.table.open(now, inner, *tuple, Opener::Peer)?
            }
        };
        state.table.touch(now, index, Direction::In, view.flags());
        let flow = state.table.flow(index);
        let Flow { inner, outer, .. } = *flow;
        let answered = flow.state() != FlowState::Unanswered;
        let is_dns = flow.is_dns();
        if is_dns {
            match view.flags() & tcp::RST {
                0 => state.servers.note_reply(outer.family, outer.remote.ip),
                _ => state
                    .servers
                    .note_unreachable(outer.family, outer.remote.ip),
            }
        }
        let rewrite = Rewrite::new((outer.remote, outer.local), (inner.remote, inner.local));
        let traffic = flow.traffic().cloned();
        if let Some(traffic) = &traffic {
            traffic.received.add(view.datagram_len());
        }
        // Not before the application has answered: until then the table needs no record of incoming
        // packets.
        if view.is_plain() && answered && !is_dns {
            self.cache
                .insert(now, self.shared, *tuple, (rewrite, traffic));
        }
        Ok(rewrite)
    }

    /// Rewrites an ICMP error about a packet sent into the tunnel.
    fn translate_error(&mut self, packet: &mut [u8], view: &View) -> Result<(), DropReason> {
        let quoted = packet.get(view.at + QUOTE..).ok_or(DropReason::Malformed)?;
        let quoted = View::parse_quoted(quoted)?;
        let is_unreachable = match (view.family, packet.get(view.at..)) {
            // Except code 4, "fragmentation needed" (RFC 1191).
            (Family::V4, Some([kind, code, ..])) => *kind == 3 && *code != 4,
            (Family::V6, Some([kind, ..])) => *kind == 1,
            _ => false,
        };
        let now = self.now;
        let state = self.state();
        let index = state.table.find_outer(now, &quoted.outgoing());
        let flow = state.table.flow(index.ok_or(DropReason::NoFlow)?);
        let Flow { inner, outer, .. } = *flow;
        if flow.is_dns() && is_unreachable {
            state
                .servers
                .note_unreachable(outer.family, outer.remote.ip);
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
