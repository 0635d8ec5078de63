//! Outgoing frames: from applications, from the system, and from clients for which this machine is
//! a router.

use std::net::{IpAddr, SocketAddr};

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
    Dropped, FRAGMENTS_FOR, Output, Pipeline, Remembered, STRANGE_FOR, Turn, UDP_HEADER, Verdict,
    beginning, behind_headroom, version,
};
use crate::{
    Adapter, Medium, Towards, checksums,
    link::{Content, Header},
    owners::{Occasion, Owner, Process, RECENT},
    packet::{DNS, Flow, Kind, View, is_group},
    questions,
    rules::Choice,
    tunnel::PACKET,
    ways::{Home, Way},
};

/// The verdict on a packet, or that it must wait.
enum Judged {
    Choice(Choice),
    Wait,
}

impl Pipeline {
    /// Judges a frame that the system sends by an adapter.
    pub(super) fn handle_sent(
        &mut self,
        now: Now,
        place: usize,
        frame: &[u8],
        turn: Turn,
    ) -> Verdict {
        let adapter = &self.adapters[place];
        let (header, bytes) = match Header::split(adapter.medium, frame) {
            Content::Ip(header, bytes) => (header, bytes),
            Content::Other => return Verdict::Pass,
            Content::Unreadable if self.is_down && self.settings.lock == KillSwitch::Off => {
                return Verdict::Pass;
            }
            Content::Unreadable => return self.drop(Dropped::Malformed),
        };
        let Some(view) = View::parse(bytes) else {
            return self.drop(Dropped::Malformed);
        };
        if self.is_ours(&view) {
            self.learn_way(now.boot, place, header, &view);
            return Verdict::Pass;
        }
        if self.is_for_endpoint(&view) {
            return Verdict::Pass;
        }
        let adapter = &self.adapters[place];
        if view.is_of_link(Towards::Card, |address| is_on_link(adapter, address)) {
            return Verdict::Pass;
        }
        if self.is_down {
            match self.settings.lock {
                KillSwitch::Off => return Verdict::Pass,
                KillSwitch::All => return self.refuse_at(now, place, header, &view),
                KillSwitch::App => {}
            }
        }
        let choice = match self.judge(now.boot, place, &view, turn) {
            Judged::Choice(choice) => choice,
            Judged::Wait => return self.wait(now.boot, place, frame, view.flow(Towards::Card)),
        };
        let home = Home {
            adapter: self.adapters[place].index,
            towards: Towards::System,
            header: header.reversed(),
        };
        self.follow(now, choice, home, &view)
    }

    /// Applies a verdict to a packet. Replies to the packet go to `home`.
    pub(super) fn follow(
        &mut self,
        now: Now,
        choice: Choice,
        home: Home,
        view: &View<'_>,
    ) -> Verdict {
        match choice {
            Choice::Direct => return Verdict::Pass,
            Choice::Drop => return self.drop(Dropped::Rules),
            Choice::Tunnel | Choice::Refuse => {}
        }
        let source = view.source();
        let is_news = self.ways.settle(source, home);
        if choice == Choice::Refuse || self.is_down {
            return self.refuse(now.boot, view.packet.bytes());
        }
        if is_news && home.towards == Towards::System {
            self.set_main();
        }
        let mut buffer = behind_headroom(view.packet.bytes());
        if let Some(packet) = buffer.get_mut(PACKET..) {
            if home.towards == Towards::Card && !hop(packet) {
                return self.drop(Dropped::HopLimit);
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
            Outcome::Carry(_) => self.tunnel.send(buffer, mtu).is_ok(),
            Outcome::Instead(mut packets) => {
                packets.all(|packet| self.tunnel.send(behind_headroom(packet), mtu).is_ok())
            }
            Outcome::Answer(answer, _) => {
                self.send_home(behind_headroom(&answer));
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
        let given = (to, beginning(message.unwrap_or_default()));
        let Some(place) = self.given.iter().position(|it| *it == given) else {
            return false;
        };
        self.given.remove(place);
        true
    }

    /// Returns true if the packet is a DNS query for an endpoint that is being looked up.
    fn is_for_endpoint(&self, view: &View<'_>) -> bool {
        let Kind::Udp { to: DNS, .. } = view.kind else {
            return false;
        };
        let message = view.packet.bytes().get(view.transport_at() + UDP_HEADER..);
        let message = message.unwrap_or_default();
        !view.is_fragment() && questions::asks_for(message, &self.hosts_sought)
    }

    fn learn_way(&mut self, now: Instant, place: usize, header: Header, view: &View<'_>) {
        let Kind::Udp { to, .. } = view.kind else {
            return;
        };
        let bytes = view.packet.bytes();
        let hop_limit = match view.packet.version() {
            Family::V4 => bytes.get(8),
            Family::V6 => bytes.get(7),
        };
        let way = Way {
            adapter: self.adapters[place].index,
            header,
            source: view.source(),
            hop_limit: hop_limit.copied().unwrap_or(64),
            seen: now,
        };
        self.ways
            .learn(SocketAddr::new(view.destination(), to), way);
        self.fit();
    }

    /// Judges a packet that the system sends.
    fn judge(&mut self, now: Instant, place: usize, view: &View<'_>, turn: Turn) -> Judged {
        if view.kind == Kind::LaterFragment {
            // A later fragment shows no owner. Its first fragment may be among the waiting frames.
            return match self.choice_of_first(now, view) {
                Some(choice) => Judged::Choice(choice),
                None if turn != Turn::First || self.waiting.is_empty() => {
                    Judged::Choice(Choice::Drop)
                }
                None => Judged::Wait,
            };
        }
        let judged = self.judge_whole(now, place, view, turn);
        if view.is_fragment() {
            // Identifications are reused, so this replaces an earlier verdict.
            let choice = match judged {
                Judged::Choice(choice) => Some(choice),
                Judged::Wait => None,
            };
            self.fragments.keep(view.fragment_key(), (choice, now));
        }
        judged
    }

    /// Returns the verdict on the first fragment of this fragment's packet.
    pub(super) fn choice_of_first(&mut self, now: Instant, view: &View<'_>) -> Option<Choice> {
        let (choice, at) = self.fragments.get(&view.fragment_key())?;
        choice.filter(|_| now.since(at) < FRAGMENTS_FOR)
    }

    fn judge_whole(&mut self, now: Instant, place: usize, view: &View<'_>, turn: Turn) -> Judged {
        let has_servers = !self.settings.dns.is_empty();
        let flow = match view.kind {
            // An ICMP error is judged by the packet that it quotes.
            Kind::Error { .. } => match view.quoted_flow(Towards::Card) {
                Some(flow) => flow,
                None => return Judged::Choice(Choice::Drop),
            },
            _ => view.flow(Towards::Card),
        };
        if !self.is_local(place, flow.local.ip()) {
            match turn {
                Turn::First if !self.is_stranger(now, flow.local.ip()) => return Judged::Wait,
                Turn::First => {}
                // The address may be this machine's: the adapters have not been listed since.
                Turn::Last { is_listed: false } => {
                    let _ = self.drop(Dropped::Owner);
                    return Judged::Choice(Choice::Drop);
                }
                Turn::Last { is_listed: true } => self.strangers.keep(flow.local.ip(), now),
            }
            return Judged::Choice(self.judge_forwarded(&flow, has_servers));
        }
        if !matches!(view.kind, Kind::Wrapped { .. }) {
            return self.judge_flow(now, place, view, flow, turn);
        }
        // A tunnel of the system's own: judged by the inner packet, and never sent into this
        // tunnel.
        let Some(inner) = view.wrapped() else {
            return Judged::Choice(Choice::Drop);
        };
        let flow = inner.flow(Towards::Card);
        match self.judge_flow(now, place, &inner, flow, turn) {
            Judged::Choice(Choice::Direct) => Judged::Choice(Choice::Direct),
            Judged::Choice(_) => Judged::Choice(Choice::Drop),
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
        turn: Turn,
    ) -> Judged {
        let has_servers = !self.settings.dns.is_empty();
        let is_last = turn != Turn::First;
        let before = self.choices.get(&flow);
        let opens = view.opens();
        let occasion = match opens {
            true => Occasion::Opens {
                again: before.is_some(),
            },
            false => Occasion::Goes,
        };
        let remembered = before.filter(|_| !opens);
        // A socket may appear for a flow that was the system's so far, so that is looked up each
        // time.
        if let Some(it) = remembered
            && (flow.protocol != ip::UDP || !it.is_systems && now.since(it.at) < RECENT)
        {
            return Judged::Choice(it.choice);
        }
        let is_for_group = is_for_group(&self.adapters[place], flow.remote.ip());
        let may_be_outer = self.may_be_outer(place, view);
        let rules = &self.settings.rules;
        let owner = if rules.depend_on_owner() || is_for_group || may_be_outer {
            let is_chosen = |process: &Process| rules.choose_process(process);
            (self.known).of(now, &flow, occasion, is_last, is_chosen)
        } else {
            Owner::Anybody
        };
        let is_outer = may_be_outer && self.is_nested();
        let rules = &self.settings.rules;
        let is_systems = owner == Owner::System && remembered.is_none_or(|it| it.is_systems);
        let choice = match (&owner, remembered) {
            (Owner::NotYet, _) if is_last => {
                let _ = self.drop(Dropped::Owner);
                return Judged::Choice(Choice::Drop);
            }
            (Owner::NotYet, _) => return Judged::Wait,
            (Owner::System, _) if is_outer && is_systems => Choice::Direct,
            // Packets of a socket that has been closed keep its verdict.
            (Owner::System, Some(remembered)) => remembered.choice,
            (owner, _) => rules.choose(owner, &flow, has_servers, is_for_group),
        };
        // A connection that came from outside the tunnel is not answered inside it.
        let choice = match choice {
            Choice::Tunnel if view.accepts() => Choice::Drop,
            choice => choice,
        };
        let at = self.known.as_of(&flow).filter(|_| owner != Owner::Anybody);
        let remembered = Remembered {
            choice,
            at: at.unwrap_or(now),
            is_systems,
        };
        self.choices.keep(flow, remembered);
        Judged::Choice(choice)
    }

    /// Returns true if an address that no adapter has is known not to be this machine's. Otherwise
    /// requests a listing of the adapters, since one may have the address by now.
    fn is_stranger(&mut self, now: Instant, address: IpAddr) -> bool {
        let since = self.strangers.get(&address);
        let is_known = since.is_some_and(|since| now.since(since) < STRANGE_FOR);
        if !is_known {
            self.outputs.push_back(Output::Adapters);
        }
        is_known
    }

    /// Judges a forwarded packet, which has no owner here.
    pub(super) fn judge_forwarded(&self, flow: &Flow, has_servers: bool) -> Choice {
        match self.settings.forwarded {
            Forwarded::Direct => Choice::Direct,
            Forwarded::Tunnel if is_group(flow.remote.ip()) => Choice::Direct,
            Forwarded::Tunnel if self.is_near(flow.remote.ip()) && !flow.is_question() => {
                Choice::Direct
            }
            Forwarded::Tunnel => self.settings.rules.choose_destination(flow, has_servers),
        }
    }

    /// Returns true if this machine is in a network with the address, by an adapter that does not
    /// lead out.
    fn is_near(&self, address: IpAddr) -> bool {
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
        self.ways.adapters().any(is_tunnel)
    }

    fn wait(&mut self, now: Instant, place: usize, frame: &[u8], flow: Flow) -> Verdict {
        let adapter = self.adapters[place].index;
        if (self.waiting)
            .push(now, flow, self.listing, adapter, frame)
            .is_err()
        {
            let _ = self.drop(Dropped::Owner);
        }
        Verdict::Taken
    }

    fn refuse_at(&mut self, now: Now, place: usize, header: Header, view: &View<'_>) -> Verdict {
        let home = Home {
            adapter: self.adapters[place].index,
            towards: Towards::System,
            header: header.reversed(),
        };
        self.follow(now, Choice::Refuse, home, view)
    }
}

/// Returns true if a packet to the address on this adapter is for more than one host, including
/// broadcasts of its networks (RFC 919).
fn is_for_group(adapter: &Adapter, address: IpAddr) -> bool {
    let is_broadcast = |(own, length): &(IpAddr, u8)| match (own, address) {
        // With two addresses there is no broadcast (RFC 3021).
        (IpAddr::V4(own), IpAddr::V4(address)) if *length < 31 => {
            address.to_bits() == own.to_bits() | u32::MAX >> length
        }
        _ => false,
    };
    is_group(address) || adapter.addresses.iter().any(is_broadcast)
}

/// Returns true if the address is in a network of the adapter.
pub(super) fn is_on_link(adapter: &Adapter, address: IpAddr) -> bool {
    adapter.addresses.iter().any(|(own, length)| {
        let network = taupe_uapi::prefix::Prefix::new(*own, *length);
        version(*own) == version(address)
            && network.is_some_and(|network| taupe_config::destinations::has(network, address))
    })
}

/// Decrements the hop limit (RFC 1812 section 5.3.1) without updating the checksum. Returns false
/// if it was the last hop.
fn hop(packet: &mut [u8]) -> bool {
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
