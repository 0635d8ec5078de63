//! Outgoing frames: from applications, from the system, and from clients for which this machine is
//! a router.

use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use taupe_config::file::{Forwarded, KillSwitch};
use taupe_nat::translate::Outcome;
use taupe_packet::{
    ip::{self, Family},
    virtio::VirtioHeader,
};
use taupe_protocol::{
    message::classify,
    time::{Instant, Now},
};

use super::{
    Attempt, CachedVerdict, FOREIGN_FOR, FRAGMENTS_FOR, FrameDropReason, Output, Pipeline,
    UDP_HEADER, Verdict, behind_headroom, message_id,
};
use crate::{
    Adapter, Medium, Towards, checksums, dns_query,
    link::{Content, Header},
    owners::{FlowPosition, Owner, Process, RECENT},
    packet::{DNS, Flow, Kind, View, is_group},
    paths::{EndpointPath, ReturnPath},
    rules::PacketVerdict,
    tunnel::PACKET,
};

/// The verdict on a packet, or that it must wait.
enum Judged {
    Verdict(PacketVerdict),
    Wait,
}

impl Pipeline {
    /// Judges a frame that the system sends by an adapter.
    pub(super) fn handle_sent(
        &mut self,
        now: Now,
        place: usize,
        frame: &[u8],
        attempt: Attempt,
    ) -> Verdict {
        let adapter = &self.adapters[place];
        let (header, bytes) = match Header::split(adapter.medium, frame) {
            Content::Ip(header, bytes) => (header, bytes),
            Content::Other => return Verdict::Pass,
            Content::Unreadable if self.is_down && self.settings.kill_switch == KillSwitch::Off => {
                return Verdict::Pass;
            }
            Content::Unreadable => return self.drop(FrameDropReason::Malformed),
        };
        let Some(view) = View::parse(bytes) else {
            return self.drop(FrameDropReason::Malformed);
        };
        if self.is_ours(&view) {
            self.learn_path(now.boot, place, header, &view);
            return Verdict::Pass;
        }
        if self.is_for_endpoint(&view) {
            return Verdict::Pass;
        }
        let adapter = &self.adapters[place];
        if view.is_link_traffic(Towards::Card, |address| is_on_link(adapter, address)) {
            return Verdict::Pass;
        }
        if self.is_down {
            match self.settings.kill_switch {
                KillSwitch::Off => return Verdict::Pass,
                KillSwitch::All => return self.refuse_at(now, place, header, &view),
                KillSwitch::App => {}
            }
        }
        let verdict = match self.judge(now.boot, place, &view, attempt) {
            Judged::Verdict(verdict) => verdict,
            Judged::Wait => return self.wait(now.boot, place, frame, view.flow(Towards::Card)),
        };
        let return_path = ReturnPath {
            adapter: self.adapters[place].index,
            towards: Towards::System,
            header: header.reversed(),
        };
        self.apply(now, verdict, return_path, &view)
    }

    /// Applies a verdict to a packet. Replies to the packet go to `return_path`.
    pub(super) fn apply(
        &mut self,
        now: Now,
        verdict: PacketVerdict,
        return_path: ReturnPath,
        view: &View<'_>,
    ) -> Verdict {
        match verdict {
            PacketVerdict::Direct => return Verdict::Pass,
            PacketVerdict::Drop => return self.drop(FrameDropReason::Rules),
            PacketVerdict::Tunnel | PacketVerdict::Refuse => {}
        }
        let source = view.source();
        let is_new = self.paths.set_return_path(source, return_path);
        if verdict == PacketVerdict::Refuse || self.is_down {
            return self.refuse(now.boot, view.packet.bytes());
        }
        if is_new && return_path.towards == Towards::System {
            self.set_main_uplink();
        }
        let mut buffer = behind_headroom(view.packet.bytes());
        if let Some(packet) = buffer.get_mut(PACKET..) {
            if return_path.towards == Towards::Card && !decrement_hop_limit(packet) {
                return self.drop(FrameDropReason::HopLimit);
            }
            checksums::complete(packet);
        }
        if !self.carry(now.boot, buffer) {
            return self.refuse(now.boot, view.packet.bytes());
        }
        Verdict::Taken
    }

    /// Translates the packet after [`PACKET`] bytes and queues it to be sealed. Returns false if no
    /// peer has its destination in its allowed IPs.
    pub(super) fn carry(&mut self, now: Instant, mut buffer: Vec<u8>) -> bool {
        let mtu = usize::from(self.mtu);
        let Some(packet) = buffer.get_mut(PACKET..) else {
            return true;
        };
        match self
            .outgoing
            .translate(now, VirtioHeader::default(), packet)
        {
            Outcome::Forward(_) => self.tunnel.send(buffer, mtu).is_ok(),
            Outcome::Replace(mut packets) => {
                packets.all(|packet| self.tunnel.send(behind_headroom(packet), mtu).is_ok())
            }
            Outcome::Reply(answer, _) => {
                self.send_back(behind_headroom(&answer));
                true
            }
            Outcome::Drop(_) => true,
        }
    }

    /// Returns true if the packet is a datagram of this tunnel that was given to the system, and
    /// not one of another program that uses the port.
    fn is_ours(&mut self, view: &View<'_>) -> bool {
        let Kind::Udp { from, to } = view.kind else {
            return false;
        };
        if from != self.settings.port || view.is_fragment() {
            return false;
        }
        let message = view.packet.bytes().get(view.transport_at() + UDP_HEADER..);
        let to = SocketAddr::new(view.destination(), to);
        let datagram = (to, message_id(message.unwrap_or_default()));
        let Some(place) = self.unsent.iter().position(|it| *it == datagram) else {
            return false;
        };
        self.unsent.remove(place);
        true
    }

    /// Returns true if the packet is a DNS query for an endpoint that is being looked up.
    fn is_for_endpoint(&self, view: &View<'_>) -> bool {
        let Kind::Udp { to: DNS, .. } = view.kind else {
            return false;
        };
        let message = view.packet.bytes().get(view.transport_at() + UDP_HEADER..);
        let message = message.unwrap_or_default();
        !view.is_fragment() && dns_query::is_query_for(message, &self.hosts_being_resolved)
    }

    fn learn_path(&mut self, now: Instant, place: usize, header: Header, view: &View<'_>) {
        let Kind::Udp { to, .. } = view.kind else {
            return;
        };
        let bytes = view.packet.bytes();
        let hop_limit = match view.packet.family() {
            Family::V4 => bytes.get(8),
            Family::V6 => bytes.get(7),
        };
        let path = EndpointPath {
            adapter: self.adapters[place].index,
            header,
            source: view.source(),
            hop_limit: hop_limit.copied().unwrap_or(64),
            seen: now,
        };
        self.paths
            .learn(SocketAddr::new(view.destination(), to), path);
        self.update_mtu();
    }

    /// Judges a packet that the system sends.
    fn judge(&mut self, now: Instant, place: usize, view: &View<'_>, attempt: Attempt) -> Judged {
        if view.kind == Kind::LaterFragment {
            // A later fragment shows no owner. Its first fragment may be among the waiting frames.
            return match self.verdict_of_first(now, view) {
                Some(verdict) => Judged::Verdict(verdict),
                None if attempt != Attempt::OnArrival || self.waiting.is_empty() => {
                    Judged::Verdict(PacketVerdict::Drop)
                }
                None => Judged::Wait,
            };
        }
        let judged = self.judge_unfragmented(now, place, view, attempt);
        if view.is_fragment() {
            // Identifications are reused, so this replaces an earlier verdict.
            let verdict = match judged {
                Judged::Verdict(verdict) => Some(verdict),
                Judged::Wait => None,
            };
            self.fragments.insert(view.fragment_key(), (verdict, now));
        }
        judged
    }

    /// Returns the verdict on the first fragment of this fragment's packet.
    pub(super) fn verdict_of_first(
        &mut self,
        now: Instant,
        view: &View<'_>,
    ) -> Option<PacketVerdict> {
        let (verdict, at) = self.fragments.get(&view.fragment_key())?;
        verdict.filter(|_| now.since(at) < FRAGMENTS_FOR)
    }

    fn judge_unfragmented(
        &mut self,
        now: Instant,
        place: usize,
        view: &View<'_>,
        attempt: Attempt,
    ) -> Judged {
        let has_servers = !self.settings.dns.is_empty();
        let flow = match view.kind {
            // An ICMP error is judged by the packet that it quotes.
            Kind::Error { .. } => match view.quoted_flow(Towards::Card) {
                Some(flow) => flow,
                None => return Judged::Verdict(PacketVerdict::Drop),
            },
            _ => view.flow(Towards::Card),
        };
        if !self.is_local(place, flow.local.ip()) {
            match attempt {
                Attempt::OnArrival if !self.is_foreign(now, flow.local.ip()) => {
                    return Judged::Wait;
                }
                Attempt::OnArrival => {}
                // The address may be this machine's: the adapters have not been listed since.
                Attempt::AfterWaiting {
                    adapters_listed: false,
                } => {
                    let _ = self.drop(FrameDropReason::Owner);
                    return Judged::Verdict(PacketVerdict::Drop);
                }
                Attempt::AfterWaiting {
                    adapters_listed: true,
                } => self.foreign_addresses.insert(flow.local.ip(), now),
            }
            return Judged::Verdict(self.judge_forwarded(&flow, has_servers));
        }
        if !matches!(view.kind, Kind::Encapsulated { .. }) {
            return self.judge_flow(now, place, view, flow, attempt);
        }
        // A tunnel of the system's own: judged by the inner packet, and never sent into this
        // tunnel.
        let Some(inner) = view.encapsulated() else {
            return Judged::Verdict(PacketVerdict::Drop);
        };
        let flow = inner.flow(Towards::Card);
        match self.judge_flow(now, place, &inner, flow, attempt) {
            Judged::Verdict(PacketVerdict::Direct) => Judged::Verdict(PacketVerdict::Direct),
            Judged::Verdict(_) => Judged::Verdict(PacketVerdict::Drop),
            Judged::Wait => Judged::Wait,
        }
    }

    /// Judges a packet in a flow of this machine.
    fn judge_flow(
        &mut self,
        now: Instant,
        place: usize,
        view: &View<'_>,
        flow: Flow,
        attempt: Attempt,
    ) -> Judged {
        let has_servers = !self.settings.dns.is_empty();
        let is_last = attempt != Attempt::OnArrival;
        let before = self.verdicts.get(&flow);
        let opens = view.is_syn();
        let position = match opens {
            true => FlowPosition::Opens {
                again: before.is_some(),
            },
            false => FlowPosition::Continues,
        };
        let cached = before.filter(|_| !opens);
        // A socket may appear for a flow that was the system's so far, so that is looked up each
        // time.
        if let Some(it) = cached
            && (flow.protocol != ip::UDP || !it.is_system && now.since(it.at) < RECENT)
        {
            return Judged::Verdict(it.verdict);
        }
        let is_for_group = is_for_group(&self.adapters[place], flow.remote.ip());
        let may_be_outer = self.may_be_outer(place, view);
        let rules = &self.settings.rules;
        let owner = if rules.depend_on_owner() || is_for_group || may_be_outer {
            let is_selected = |process: &Process| rules.selects(process);
            (self.owners).of(now, &flow, position, is_last, is_selected)
        } else {
            Owner::NotNeeded
        };
        let is_outer = may_be_outer && self.is_nested();
        let rules = &self.settings.rules;
        let is_system = owner == Owner::System && cached.is_none_or(|it| it.is_system);
        let verdict = match (&owner, cached) {
            (Owner::Pending, _) if is_last => {
                let _ = self.drop(FrameDropReason::Owner);
                return Judged::Verdict(PacketVerdict::Drop);
            }
            (Owner::Pending, _) => return Judged::Wait,
            (Owner::System, _) if is_outer && is_system => PacketVerdict::Direct,
            // Packets of a socket that has been closed keep its verdict.
            (Owner::System, Some(cached)) => cached.verdict,
            (owner, _) => rules.verdict(owner, &flow, has_servers, is_for_group),
        };
        // A connection that came from outside the tunnel is not answered inside it.
        let verdict = match verdict {
            PacketVerdict::Tunnel if view.is_syn_ack() => PacketVerdict::Drop,
            verdict => verdict,
        };
        let at = self
            .owners
            .listed_at(&flow)
            .filter(|_| owner != Owner::NotNeeded);
        let cached = CachedVerdict {
            verdict,
            at: at.unwrap_or(now),
            is_system,
        };
        self.verdicts.insert(flow, cached);
        Judged::Verdict(verdict)
    }

    /// Returns true if an address that no adapter has is known not to be this machine's. Otherwise
    /// requests a listing of the adapters, since one may have the address by now.
    fn is_foreign(&mut self, now: Instant, address: IpAddr) -> bool {
        let since = self.foreign_addresses.get(&address);
        let is_known = since.is_some_and(|since| now.since(since) < FOREIGN_FOR);
        if !is_known {
            self.outputs.push_back(Output::Adapters);
        }
        is_known
    }

    /// Judges a forwarded packet, which has no owner here.
    pub(super) fn judge_forwarded(&self, flow: &Flow, has_servers: bool) -> PacketVerdict {
        match self.settings.forwarded {
            Forwarded::Direct => PacketVerdict::Direct,
            Forwarded::Tunnel if is_group(flow.remote.ip()) => PacketVerdict::Direct,
            Forwarded::Tunnel
                if self.is_on_local_network(flow.remote.ip()) && !flow.is_dns_query() =>
            {
                PacketVerdict::Direct
            }
            Forwarded::Tunnel => self
                .settings
                .rules
                .verdict_by_destination(flow, has_servers),
        }
    }

    /// Returns true if this machine is in a network with the address, by an adapter that does not
    /// lead out.
    fn is_on_local_network(&self, address: IpAddr) -> bool {
        let mut near = self.adapters.iter().filter(|adapter| !adapter.leads_out);
        near.any(|adapter| is_on_link(adapter, address))
    }

    /// Returns true if a packet may be another tunnel's datagram: a WireGuard message that leaves
    /// by a card.
    fn may_be_outer(&self, place: usize, view: &View<'_>) -> bool {
        let message = view.packet.bytes().get(view.transport_at() + UDP_HEADER..);
        matches!(view.kind, Kind::Udp { .. })
            && self.adapters[place].medium == Medium::Ethernet
            && classify(message.unwrap_or_default()).is_ok()
    }

    /// Returns true if another tunnel carries this one: this tunnel's datagrams leave by an adapter
    /// without Ethernet.
    fn is_nested(&self) -> bool {
        let is_tunnel = |index: u32| {
            let mut adapters = self.adapters.iter();
            adapters.any(|it| it.index == index && it.medium == Medium::Ip)
        };
        self.paths.adapters().any(is_tunnel)
    }

    fn wait(&mut self, now: Instant, place: usize, frame: &[u8], flow: Flow) -> Verdict {
        let adapter = self.adapters[place].index;
        if (self.waiting)
            .push(now, flow, self.listing, adapter, frame)
            .is_err()
        {
            let _ = self.drop(FrameDropReason::Owner);
        }
        Verdict::Taken
    }

    fn refuse_at(&mut self, now: Now, place: usize, header: Header, view: &View<'_>) -> Verdict {
        let return_path = ReturnPath {
            adapter: self.adapters[place].index,
            towards: Towards::System,
            header: header.reversed(),
        };
        self.apply(now, PacketVerdict::Refuse, return_path, view)
    }
}

/// Returns true if a packet to the address on this adapter is for more than one host, including
/// broadcasts of its networks (RFC 919).
fn is_for_group(adapter: &Adapter, address: IpAddr) -> bool {
    let is_broadcast = |own: &IpNet| match own {
        // With two addresses there is no broadcast (RFC 3021).
        IpNet::V4(own) if own.prefix_len() < 31 => address == own.broadcast(),
        _ => false,
    };
    is_group(address) || adapter.addresses.iter().any(is_broadcast)
}

/// Returns true if the address is in a network of the adapter.
pub(super) fn is_on_link(adapter: &Adapter, address: IpAddr) -> bool {
    adapter.addresses.iter().any(|own| own.contains(&address))
}

/// Decrements the hop limit (RFC 1812 section 5.3.1) without updating the checksum. Returns false
/// if it was the last hop.
fn decrement_hop_limit(packet: &mut [u8]) -> bool {
    let at = match packet.first().map(|byte| byte >> 4) {
        Some(4) => 8,
        Some(6) => 7,
        _ => return false,
    };
    let Some(left) = packet.get_mut(at).filter(|left| **left > 1) else {
        return false;
    };
    *left -= 1;
    true
}
