//! Received frames: from the tunnel's peers, from the network, and from clients.

use std::net::SocketAddr;

use taupe_config::{application::Decision, file::Forwarded};
use taupe_nat::translate::Received;
use taupe_protocol::time::{Instant, Now};

use super::{CachedVerdict, FrameDropReason, Pipeline, UDP_HEADER, Verdict, outbound::is_on_link};
use crate::{
    Medium, Towards, checksums,
    datagram::HEADROOM,
    link::{Content, Header},
    owners::{Owner, Process},
    packet::{DNS, Flow, Kind, View, is_group},
    paths::ReturnPath,
    rules::PacketVerdict,
    tunnel::{Datagram, PACKET},
};

impl Pipeline {
    /// Judges a frame that an adapter has received.
    pub(super) fn handle_received(&mut self, now: Now, place: usize, frame: &[u8]) -> Verdict {
        let adapter = &self.adapters[place];
        let (header, bytes) = match Header::split(adapter.medium, frame) {
            Content::Ip(header, bytes) => (header, bytes),
            Content::Unreadable if adapter.medium == Medium::Unknown => {
                return self.drop(FrameDropReason::Malformed);
            }
            // The system decides about frames that cannot be read here.
            Content::Other | Content::Unreadable => return Verdict::Pass,
        };
        // The system decides about malformed packets.
        let Some(view) = View::parse(bytes) else {
            return Verdict::Pass;
        };
        if let Kind::Udp { from, to } = view.kind
            && to == self.settings.port
            && self.is_local(place, view.destination())
        {
            return self.receive_datagram(&view, from);
        }
        if view.is_link_traffic(Towards::System, |address| is_on_link(adapter, address)) {
            return Verdict::Pass;
        }
        if self.is_forwarded(place, header, &view) {
            return self.forward(now, place, header, &view);
        }
        if self.is_in_tunnel(&view) {
            return self.drop(FrameDropReason::Clear);
        }
        Verdict::Pass
    }

    fn receive_datagram(&mut self, view: &View<'_>, from: u16) -> Verdict {
        if self.is_down {
            return self.drop(FrameDropReason::Refused);
        }
        if !checksums::are_plausible(view) {
            return self.drop(FrameDropReason::Checksum);
        }
        // The system reassembles it for the UDP socket.
        if view.is_fragment() {
            return Verdict::Pass;
        }
        let packet = view.packet.bytes();
        let Some(message) = packet.get(view.transport_at() + UDP_HEADER..) else {
            return self.drop(FrameDropReason::Malformed);
        };
        self.handle_datagram((view.source(), from).into(), view.packet.tos(), message);
        Verdict::Taken
    }

    /// Takes a message that the tunnel's UDP socket has received because it was fragmented. Then
    /// call [`Self::run_pending`].
    pub fn handle_datagram(&mut self, from: SocketAddr, tos: u8, message: &[u8]) {
        let mut buffer = Vec::with_capacity(HEADROOM + message.len());
        buffer.resize(HEADROOM, 0);
        buffer.extend_from_slice(message);
        self.tunnel.receive(Datagram { from, tos, buffer });
    }

    /// Returns true if a client has sent the packet to be forwarded, or as a DNS query.
    fn is_forwarded(&self, place: usize, header: Header, view: &View<'_>) -> bool {
        let adapter = &self.adapters[place];
        let destination = view.destination();
        let asks = || match view.kind {
            Kind::Udp { to, .. } | Kind::Tcp { to, .. } => {
                to == DNS && !self.settings.dns.is_empty()
            }
            _ => false,
        };
        self.settings.forwarded == Forwarded::Tunnel
            && !adapter.leads_out
            && header.is_for(adapter.mac)
            && is_on_link(adapter, view.source())
            && !self.is_own(view.source())
            && !is_group(destination)
            && (!self.is_own(destination) || asks())
    }

    fn forward(&mut self, now: Now, place: usize, header: Header, view: &View<'_>) -> Verdict {
        let has_servers = !self.settings.dns.is_empty();
        let verdict = if view.kind == Kind::LaterFragment {
            let known = self.verdict_of_first(now.boot, view);
            known.unwrap_or(PacketVerdict::Drop)
        } else {
            self.judge_forwarded(&view.flow(Towards::Card), has_servers)
        };
        if view.is_fragment() && view.kind != Kind::LaterFragment {
            self.fragments
                .insert(view.fragment_key(), (Some(verdict), now.boot));
        }
        if verdict == PacketVerdict::Tunnel {
            if !checksums::are_plausible(view) {
                return self.drop(FrameDropReason::Checksum);
            }
            let cached = CachedVerdict {
                verdict,
                at: now.boot,
                is_system: false,
            };
            self.verdicts.insert(view.flow(Towards::Card), cached);
        }
        let return_path = ReturnPath {
            adapter: self.adapters[place].index,
            towards: Towards::Card,
            header: header.reversed(),
        };
        self.apply(now, verdict, return_path, view)
    }

    /// Returns true if a packet from outside the tunnel belongs to a flow in the tunnel, or quotes
    /// one. Its source is forged then.
    fn is_in_tunnel(&mut self, view: &View<'_>) -> bool {
        if view.kind == Kind::LaterFragment {
            // Useless without its first fragment.
            return false;
        }
        let flow = match view.kind {
            Kind::Error { .. } => view.quoted_flow(Towards::System),
            _ => Some(view.flow(Towards::System)),
        };
        let cached = flow.and_then(|flow| self.verdicts.get(&flow));
        cached.is_some_and(|it| it.verdict == PacketVerdict::Tunnel)
    }

    /// Opens the received datagrams, and delivers their packets.
    pub(super) fn open(&mut self, now: Now) {
        let mut packets = Vec::new();
        self.tunnel.open(now, |buffer| packets.push(buffer));
        for buffer in packets {
            self.deliver(now.boot, buffer);
        }
    }

    /// Translates and delivers the packet after [`PACKET`] bytes.
    fn deliver(&mut self, now: Instant, mut buffer: Vec<u8>) {
        let Some(packet) = buffer.get_mut(PACKET..) else {
            return;
        };
        let translated = self.incoming.batch(now).translate(packet);
        let buffer = match translated {
            Ok(Received::InPlace) => buffer,
            Ok(Received::Reassembled(packet)) => super::behind_headroom(&packet),
            Ok(Received::Incomplete) | Err(_) => return,
        };
        let packet = buffer.get(PACKET..).unwrap_or_default();
        let Some(view) = View::parse(packet) else {
            return;
        };
        if self.is_awaited(now, &view) {
            self.send_back(buffer);
        } else {
            // The translator refuses it inside the tunnel.
            let _ = self.carry(now, buffer);
        }
    }

    /// Returns true if a selected application waits for a packet from the tunnel.
    fn is_awaited(&mut self, now: Instant, view: &View<'_>) -> bool {
        // For all other protocols the translator has checked the flow.
        if !matches!(view.kind, Kind::Tcp { .. } | Kind::Udp { .. }) {
            return true;
        }
        let flow = view.flow(Towards::System);
        let cached = self.verdicts.get(&flow);
        if cached.is_some_and(|it| it.verdict == PacketVerdict::Tunnel) {
            return true;
        }
        self.is_listening(now, &flow)
    }

    /// Returns true if a selected application accepts unsolicited packets of this flow.
    fn is_listening(&mut self, now: Instant, flow: &Flow) -> bool {
        let rules = &self.settings.rules;
        let is_selected = |process: &Process| rules.selects(process);
        let is_listening = match self.owners.receiver(now, flow, is_selected) {
            Some(Owner::System) | None => false,
            Some(owner) => rules.decide(&owner) == Some(Decision::Tunnel),
        };
        if is_listening {
            let cached = CachedVerdict {
                verdict: PacketVerdict::Tunnel,
                at: self.owners.listed_at(flow).unwrap_or(now),
                is_system: false,
            };
            self.verdicts.insert(*flow, cached);
        }
        is_listening
    }
}
