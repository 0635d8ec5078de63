//! Packets from the TUN into the tunnel.

use std::sync::Arc;

use taupe_packet::{
    icmp,
    ip::Family,
    split::Split,
    virtio::{self, VirtioHeader},
};
use taupe_protocol::time::Instant;

use super::{
    DropReason, Outcome, Shared, State,
    fragments::FragmentRewrites,
    refusal::{RefusalLimit, refusal},
    rewrite::{QUOTE, Rewrite, apply_to_error, checksum_offset},
    rewrite_cache::RewriteCache,
    view::{Content, View},
};
use crate::flows::{Direction, Flow, Index, Opener, Tuple};
use crate::fragmentation::PacketBuffer;
use crate::tcp;

/// The half that translates packets from applications.
#[derive(Debug)]
pub struct Outgoing {
    shared: Arc<Shared>,
    cache: RewriteCache,
    fragments: FragmentRewrites,
    buffer: PacketBuffer,
    refusals: RefusalLimit,
}

/// The result of translating a packet: [`Outcome`] without the packets.
enum Done {
    Forward,
    /// The packets to carry are in the buffer.
    Replace,
    Reply(Vec<u8>, DropReason),
}

/// The flow of a packet.
enum Match {
    /// An outgoing flow.
    Flow(Rewrite),
    /// A packet that came from the tunnel and was sent back by transparent mode.
    SentBack(Rewrite),
}

impl Outgoing {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            cache: RewriteCache::default(),
            fragments: FragmentRewrites::default(),
            buffer: PacketBuffer::default(),
            refusals: RefusalLimit::default(),
        }
    }

    /// Translates in place a packet that was read from the TUN with `header`.
    pub fn translate(
        &mut self,
        now: Instant,
        header: VirtioHeader,
        packet: &mut [u8],
    ) -> Outcome<'_> {
        let mut header = header;
        match self.process(now, &mut header, packet) {
            Ok(Done::Forward) => Outcome::Forward(header),
            Ok(Done::Replace) => Outcome::Replace(self.buffer.packets()),
            Ok(Done::Reply(answer, reason)) => {
                self.shared.count(reason);
                Outcome::Reply(answer, reason)
            }
            Err(reason) => {
                self.shared.count(reason);
                Outcome::Drop(reason)
            }
        }
    }

    fn process(
        &mut self,
        now: Instant,
        header: &mut VirtioHeader,
        packet: &mut [u8],
    ) -> Result<Done, DropReason> {
        let view = View::parse(packet)?;
        let packet = packet.get_mut(..view.len).ok_or(DropReason::Malformed)?;
        let partial = is_partial(*header, &view)?;
        let mtu = self.shared.mtu();
        let tuple = view.outgoing();
        // No host in the tunnel can have sent an echo request to here.
        if let Content::Echo { request: false, .. } = view.content {
            return Err(DropReason::NoFlow);
        }
        let fits = segment_len(*header, &view, packet) <= mtu;
        if view.is_plain()
            && fits
            && let Some((rewrite, traffic)) = self.cache.find(now, &self.shared, &tuple)
        {
            if let Some(traffic) = traffic {
                traffic.sent.add(view.datagram_len());
            }
            rewrite.apply(packet, &view, partial);
            return Ok(Done::Forward);
        }

        let Some(address) = self.shared.address.of(view.family) else {
            let answer = answer(icmp::Error::NoRoute, *header, packet, mtu);
            let answer = answer.ok_or(DropReason::NoAddress)?;
            return Ok(Done::Reply(answer, DropReason::NoAddress));
        };
        if let Content::Error = view.content {
            self.translate_error(now, packet, &view, address)?;
            return self.fit_to_mtu(header, packet, &view);
        }
        let rewrite = if view.fragment.is_some_and(|fragment| !fragment.is_first()) {
            let known = self.fragments.find(now, &view);
            known.ok_or(DropReason::UnknownFragment)?
        } else {
            let placed = self.find_or_open(now, &view, &tuple, address);
            if let Err(DropReason::NoServer) = placed {
                let answer = answer(icmp::Error::NoRoute, *header, packet, mtu);
                let answer = answer.ok_or(DropReason::NoServer)?;
                return Ok(Done::Reply(answer, DropReason::NoServer));
            }
            match placed? {
                Match::Flow(rewrite) => rewrite,
                Match::SentBack(rewrite) => {
                    rewrite.apply(packet, &view, partial);
                    return self.refuse(now, *header, packet);
                }
            }
        };
        if !fits && must_not_fragment(&view, packet) {
            let error = icmp::Error::TooBig(mtu as u16);
            let answer = answer(error, *header, packet, mtu).ok_or(DropReason::TooBig)?;
            return Ok(Done::Reply(answer, DropReason::TooBig));
        }
        self.fragments.learn(now, &view, &rewrite);
        rewrite.apply(packet, &view, partial);
        if view.flags() & tcp::SYN != 0
            && let Some(segment) = packet.get_mut(view.at..)
        {
            tcp::clamp_mss(segment, self.shared.mss(view.family), partial);
        }
        self.fit_to_mtu(header, packet, &view)
    }

    /// Finds or opens the flow of a packet.
    fn find_or_open(
        &mut self,
        now: Instant,
        view: &View,
        tuple: &Tuple,
        address: u128,
    ) -> Result<Match, DropReason> {
        let mut state = self.shared.lock();
        let known = match state.table.find_inner(now, tuple) {
            Some(index) if state.needs_other_server(now, view, index) => {
                state.table.remove(index);
                None
            }
            known => known,
        };
        let index = match known {
            Some(index) => index,
            None => match find_sent_back(&mut state, now, view)? {
                Some(place) => return Ok(place),
                None if tuple.is_dns() && self.shared.lacks_server(view.family) => {
                    return Err(DropReason::NoServer);
                }
                None => {
                    let outer = state.outer_tuple(now, tuple, address);
                    state.table.open(now, *tuple, outer, Opener::Application)?
                }
            },
        };
        state.table.touch(now, index, Direction::Out, view.flags());
        let flow = state.table.flow(index);
        let Flow { inner, outer, .. } = *flow;
        let rewrite = Rewrite::new((inner.local, inner.remote), (outer.local, outer.remote));
        let traffic = flow.traffic().cloned();
        if let Some(traffic) = &traffic {
            traffic.sent.add(view.datagram_len());
        }
        // DNS queries are not cached, since the next one may go to another server.
        if view.is_plain() && !tuple.is_dns() {
            self.cache
                .insert(now, &self.shared, *tuple, (rewrite, traffic));
        }
        Ok(Match::Flow(rewrite))
    }

    /// Rewrites an ICMP error about a packet that came from the tunnel.
    fn translate_error(
        &self,
        now: Instant,
        packet: &mut [u8],
        view: &View,
        address: u128,
    ) -> Result<(), DropReason> {
        let quoted = packet.get(view.at + QUOTE..).ok_or(DropReason::Malformed)?;
        let quoted = View::parse_quoted(quoted)?;
        let mut state = self.shared.lock();
        let index = state.table.find_inner(now, &quoted.incoming());
        let Flow { inner, outer, .. } = *state.table.flow(index.ok_or(DropReason::NoFlow)?);
        drop(state);
        let from = (inner.remote, inner.local);
        let rewrite = Rewrite::new(from, (outer.remote, outer.local));
        let destination = if view.destination == inner.remote.ip {
            outer.remote.ip
        } else {
            view.destination
        };
        apply_to_error(packet, view, (address, destination), (&quoted, &rewrite));
        Ok(())
    }

    /// Refuses a packet from the tunnel for which no application waits. The packet has been
    /// restored to its original form.
    fn refuse(
        &mut self,
        now: Instant,
        header: VirtioHeader,
        packet: &[u8],
    ) -> Result<Done, DropReason> {
        let view = View::parse(packet)?;
        let packet = match view.content {
            Content::Udp { .. } => &first_segment(header, packet)?,
            _ => packet,
        };
        let answer = refusal(packet, &view, self.shared.mtu()).ok_or(DropReason::NobodyListens)?;
        if !self.refusals.take(now) {
            return Err(DropReason::NobodyListens);
        }
        self.shared.count(DropReason::NobodyListens);
        self.buffer.clear();
        self.buffer.push(&answer);
        Ok(Done::Replace)
    }

    /// Makes a translated packet fit the tunnel's MTU.
    fn fit_to_mtu(
        &mut self,
        header: &mut VirtioHeader,
        packet: &[u8],
        view: &View,
    ) -> Result<Done, DropReason> {
        let mtu = self.shared.mtu();
        let longest = segment_len(*header, view, packet);
        if longest <= mtu {
            return Ok(Done::Forward);
        }
        if must_not_fragment(view, packet) {
            return Err(DropReason::TooBig);
        }
        if let Content::Tcp { .. } = view.content
            && header.gso_type != virtio::GSO_NONE
        {
            // A TCP stream may be split anywhere.
            let headers = view.at + transport_header_len(view, packet);
            let size = mtu.checked_sub(headers).filter(|&size| size > 0);
            header.gso_size = size.ok_or(DropReason::TooBig)? as u16;
            return Ok(Done::Forward);
        }
        let split = Split::new(*header, packet).map_err(|_| DropReason::Malformed)?;
        self.buffer.clear();
        let mut segment = vec![0; split.segment_len()];
        for i in 0..split.count() {
            let length = split.write(i, &mut segment);
            if !self.buffer.push_fragments(&segment[..length], mtu) {
                return Err(DropReason::TooBig);
            }
        }
        Ok(Done::Replace)
    }
}

impl State {
    /// Returns the outer tuple for a flow, before its port is checked.
    fn outer_tuple(&mut self, now: Instant, inner: &Tuple, address: u128) -> Tuple {
        let mut outer = *inner;
        outer.local.ip = address;
        if inner.is_dns() {
            outer.remote.ip = self.servers.server_for(now, inner.family, inner.remote.ip);
        }
        outer
    }

    /// Returns true if a packet begins a query or connection that now goes to another server than
    /// the flow's.
    fn needs_other_server(&mut self, now: Instant, view: &View, index: Index) -> bool {
        let flow = self.table.flow(index);
        let Flow { inner, outer, .. } = *flow;
        let begins = match view.content {
            Content::Udp { .. } => true,
            _ => view.flags() & (tcp::SYN | tcp::ACK) == tcp::SYN,
        };
        begins
            && flow.is_dns()
            && self.servers.server_for(now, inner.family, inner.remote.ip) != outer.remote.ip
    }
}

/// Recognises a packet from the tunnel that transparent mode has sent back, because no socket
/// waits for it. Ends its flow.
fn find_sent_back(
    state: &mut State,
    now: Instant,
    view: &View,
) -> Result<Option<Match>, DropReason> {
    if let Some(index) = state.table.find_inner(now, &view.incoming()) {
        let Flow { inner, outer, .. } = *state.table.flow(index);
        state.table.remove(index);
        let as_it_came = Rewrite::new((inner.remote, inner.local), (outer.remote, outer.local));
        return Ok(Some(Match::SentBack(as_it_came)));
    }
    if state.uplink.of(view.family) == Some(view.destination) {
        return Err(DropReason::NobodyListens);
    }
    Ok(None)
}

/// Returns true if the kernel left the transport checksum to be completed. The checksum of a packet
/// inside this one does not concern the translation.
fn is_partial(header: VirtioHeader, view: &View) -> Result<bool, DropReason> {
    if header.flags & virtio::NEEDS_CSUM == 0 {
        return Ok(false);
    }
    let start = usize::from(header.csum_start);
    if start < view.at {
        return Err(DropReason::Malformed);
    }
    let offset = usize::from(header.csum_offset);
    Ok(start == view.at && checksum_offset(view.protocol) == Some(offset))
}

/// Returns the length of the longest segment of a super-packet, or the length of a single packet.
fn segment_len(header: VirtioHeader, view: &View, packet: &[u8]) -> usize {
    match header.gso_type {
        virtio::GSO_NONE => view.len,
        _ => {
            let headers = view.at + transport_header_len(view, packet);
            (headers + usize::from(header.gso_size)).min(view.len)
        }
    }
}

fn transport_header_len(view: &View, packet: &[u8]) -> usize {
    const UDP_HEADER: usize = 8;
    match (view.content, packet.get(view.at + 12)) {
        (Content::Tcp { .. }, Some(&offset)) => usize::from(offset >> 4) * 4,
        _ => UDP_HEADER,
    }
}

fn must_not_fragment(view: &View, packet: &[u8]) -> bool {
    const DONT_FRAGMENT: u8 = 0x40;
    match view.family {
        Family::V4 => packet.get(6).is_some_and(|byte| byte & DONT_FRAGMENT != 0),
        Family::V6 => true,
    }
}

/// Builds an ICMP error about a packet, or about the first segment of a super-packet.
fn answer(error: icmp::Error, header: VirtioHeader, packet: &[u8], mtu: usize) -> Option<Vec<u8>> {
    icmp::error(error, &first_segment(header, packet).ok()?, mtu, None)
}

/// Returns the first segment with its checksum completed.
fn first_segment(header: VirtioHeader, packet: &[u8]) -> Result<Vec<u8>, DropReason> {
    let split = Split::new(header, packet).map_err(|_| DropReason::Malformed)?;
    let mut segment = vec![0; split.segment_len()];
    let length = split.write(0, &mut segment);
    segment.truncate(length);
    Ok(segment)
}
