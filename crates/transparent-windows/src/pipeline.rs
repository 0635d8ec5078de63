//! The pipeline: frames in, frames out.

mod inbound;
mod outbound;

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use taupe_config::file::{Forwarded, KillSwitch};
use taupe_nat::flows::CAPACITY;
use taupe_nat::fragmentation::{Identifications, Unfragmented};
use taupe_nat::translate::{self, Incoming, Outgoing, Translator};
use taupe_packet::icmp;
use taupe_protocol::{
    Device, TokenBucket,
    message::DATA_OVERHEAD,
    time::{Instant, Now},
};

use super::{
    Adapter, Frame, Injection, Towards, Verdict,
    cache::Cache,
    datagram::{self, HEADROOM},
    owners::{OwnerCache, Owners},
    packet::Flow,
    paths::{Paths, ReturnPath},
    rules::{PacketVerdict, Rules},
    tunnel::{PACKET, Tunnel},
    waiting::{Queue, Waiting},
};

/// Settings of a pipeline.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The tunnel's IPv4 address, if it has one.
    pub v4: Option<Ipv4Addr>,
    /// The tunnel's IPv6 address, if it has one.
    pub v6: Option<Ipv6Addr>,
    /// The tunnel's name servers.
    pub dns: Vec<IpAddr>,
    /// The tunnel's MTU in bytes. Default: derived from the card's MTU.
    pub mtu: Option<u16>,
    /// The UDP port of the tunnel's datagrams. A socket of this process is bound to it, so no other
    /// process can use it.
    pub port: u16,
    /// Rules for applications and destinations.
    pub rules: Rules,
    /// Handling of packets from clients for which this machine is a router.
    pub forwarded: Forwarded,
    /// Kill switch.
    pub kill_switch: KillSwitch,
}

/// An action for the caller. Actions must be done in their order.
pub enum Output {
    /// Send a frame.
    Inject(Injection),
    /// Send a datagram by the UDP socket that is bound to the port.
    Datagram {
        /// The destination.
        to: SocketAddr,
        /// The traffic class.
        tos: u8,
        /// The message.
        message: Vec<u8>,
    },
    /// Any other output of the device; never [`taupe_protocol::Output::Transmit`].
    Device(taupe_protocol::Output),
    /// List the adapters again and call [`Pipeline::set_adapters`]: a packet came from an address
    /// that no known adapter has.
    Adapters,
}

/// The reason why a frame was neither passed nor carried. The translator and the protocol have
/// counters of their own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameDropReason {
    /// Not an IP packet, although its link header says so.
    Malformed,
    /// The adapter is not in the list.
    Adapter,
    /// The owner cannot be determined, or too many other packets wait for theirs.
    Owner,
    /// The rules drop it.
    Rules,
    /// No route for it; its sender got an ICMP error, within the limit on these.
    Refused,
    /// From outside the tunnel, for a flow in the tunnel.
    Clear,
    /// The checksum is wrong.
    Checksum,
    /// The hop limit has been reached.
    HopLimit,
    /// The datagram that would carry it exceeds the card's MTU.
    TooLong,
    /// No adapter leads to its destination.
    NoReturnPath,
}

impl FrameDropReason {
    const COUNT: usize = Self::NoReturnPath as usize + 1;

    /// All reasons, in the order of their counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Malformed,
        Self::Adapter,
        Self::Owner,
        Self::Rules,
        Self::Refused,
        Self::Clear,
        Self::Checksum,
        Self::HopLimit,
        Self::TooLong,
        Self::NoReturnPath,
    ];
}

/// Counters of dropped frames, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FrameDrops([u64; FrameDropReason::COUNT]);

impl FrameDrops {
    /// Returns the counter of a reason.
    #[must_use]
    pub fn count(&self, reason: FrameDropReason) -> u64 {
        self.0[reason as usize]
    }
}

/// Number of flows whose verdicts are cached.
const FLOWS: usize = CAPACITY;

/// Maximum number of datagrams given to the system that have not been seen to leave.
const MAX_UNSENT: usize = 512;

const UDP_HEADER: usize = 8;

/// The first bytes of a message, which identify it: an index and a counter, or a random key.
type MessageId = [u8; 16];

/// The time for which an address that no adapter has counts as foreign.
const FOREIGN_FOR: Duration = Duration::from_secs(60);

/// Maximum number of such addresses that are cached.
const MAX_FOREIGN: usize = 4096;

/// Maximum time between the first fragment of a packet and the others.
const FRAGMENTS_FOR: Duration = Duration::from_secs(1);

/// Refusals per second, at most, and the largest burst of them.
const REFUSALS_PER_SECOND: u64 = 100;

/// The default difference between the card's MTU and the tunnel's, as in `wg-quick`: an IPv6
/// header, the UDP header, the message header and the 16-byte tag.
const HEADERS: u16 = 80;

/// Minimum MTU of a tunnel (RFC 791).
const LEAST_MTU: u16 = 68;

/// The occasion on which an outgoing frame is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Attempt {
    /// The time of its arrival.
    OnArrival,
    /// After it has waited. `adapters_listed`: the adapters have been listed meanwhile.
    AfterWaiting { adapters_listed: bool },
}

/// The pipeline; see [the module](super).
pub struct Pipeline {
    settings: Settings,
    adapters: Vec<Adapter>,
    /// Number of times that the adapters have been listed.
    listing: u64,
    owners: OwnerCache,
    verdicts: Cache<Flow, CachedVerdict>,
    /// Verdicts on first fragments, if there is one yet, with their arrival times.
    fragments: Cache<(IpAddr, IpAddr, u32), (Option<PacketVerdict>, Instant)>,
    waiting: Queue,
    foreign_addresses: Cache<IpAddr, Instant>,
    /// Datagrams given to the system that have not been seen to leave.
    unsent: VecDeque<(SocketAddr, MessageId)>,
    translator: Translator,
    outgoing: Outgoing,
    incoming: Incoming,
    tunnel: Tunnel,
    paths: Paths,
    mtu: u16,
    is_down: bool,
    identifications: Identifications,
    refusals: TokenBucket<REFUSALS_PER_SECOND, REFUSALS_PER_SECOND>,
    hosts_being_resolved: Vec<Box<str>>,
    drops: FrameDrops,
    outputs: VecDeque<Output>,
}

/// The cached verdict on a flow.
#[derive(Clone, Copy, Debug)]
struct CachedVerdict {
    verdict: PacketVerdict,
    /// The time of the socket list that the verdict is based on.
    at: Instant,
    /// True if every packet so far was attributed to the system.
    is_system: bool,
}

impl Pipeline {
    /// Creates a pipeline without adapters around a device that has its key and peers. The tunnel
    /// is down until [`Self::set_up`].
    pub fn new(device: Device, settings: Settings, owners: Box<dyn Owners + Send>) -> Self {
        let mtu = settings.mtu.unwrap_or(1500 - HEADERS);
        let translator = Translator::new(&translate::Settings {
            v4: settings.v4,
            v6: settings.v6,
            mtu,
            dns: settings.dns.clone(),
            capacity: CAPACITY,
        });
        Self {
            adapters: Vec::new(),
            listing: 0,
            owners: OwnerCache::new(owners),
            verdicts: Cache::new(FLOWS),
            fragments: Cache::new(FLOWS / 16),
            waiting: Queue::default(),
            foreign_addresses: Cache::new(MAX_FOREIGN),
            unsent: VecDeque::new(),
            outgoing: translator.outgoing(),
            incoming: translator.incoming(),
            translator,
            tunnel: Tunnel::new(device),
            paths: Paths::new(),
            mtu,
            is_down: true,
            identifications: Identifications::default(),
            refusals: TokenBucket::default(),
            hosts_being_resolved: Vec::new(),
            drops: FrameDrops::default(),
            outputs: VecDeque::new(),
            settings,
        }
    }

    /// Sets the tunnel up.
    pub fn set_up(&mut self, now: Now) {
        self.is_down = false;
        self.tunnel.device.set_up(now);
        self.run_pending(now);
    }

    /// Sets the tunnel down and erases its keys. From now on the traffic that the kill switch
    /// covers is refused; the rest passes as before.
    pub fn close(&mut self, now: Now) {
        self.is_down = true;
        self.tunnel.device.close();
        self.run_pending(now);
    }

    /// Returns the protocol's device. After a change call [`Self::run_pending`].
    pub fn device(&mut self) -> &mut Device {
        &mut self.tunnel.device
    }

    /// Returns the translator.
    #[must_use]
    pub fn translator(&self) -> &Translator {
        &self.translator
    }

    /// Returns the counters of dropped frames.
    #[must_use]
    pub fn dropped(&self) -> FrameDrops {
        self.drops
    }

    /// Returns the tunnel's current MTU in bytes.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.mtu
    }

    /// Returns the bytes by which adapters should lower their MTU.
    #[must_use]
    pub fn mtu_decrement(&self) -> u16 {
        let cards = self.adapters.iter().filter(|adapter| adapter.leads_out);
        let card = cards.map(|adapter| adapter.mtu).min().unwrap_or(1500);
        card.saturating_sub(self.mtu)
    }

    /// Sets the list of adapters. Call it also if nothing has changed: a packet from an address
    /// that no adapter has is not forwarded before a later listing. A change discards all known
    /// paths to endpoints, and repeats handshakes that may not have arrived.
    pub fn set_adapters(&mut self, now: Now, adapters: Vec<Adapter>) {
        self.listing += 1;
        if adapters == self.adapters {
            return;
        }
        self.adapters = adapters;
        self.paths.clear();
        self.foreign_addresses.clear();
        self.set_main_uplink();
        self.update_mtu();
        if !self.is_down {
            self.tunnel.device.handle_network_change(now);
        }
        self.run_pending(now);
    }

    /// Replaces the rules. Existing flows are judged again.
    pub fn set_rules(&mut self, rules: Rules) {
        self.settings.rules = rules;
        self.verdicts.clear();
        self.fragments.clear();
    }

    /// Sets the host names that are being looked up for endpoints. DNS queries for them pass,
    /// whichever application sends them, since the tunnel waits for the replies.
    pub fn set_hosts_being_resolved(&mut self, hosts: Vec<Box<str>>) {
        self.hosts_being_resolved = hosts;
    }

    /// Drops the frames that wait. Call it when the tap has failed, since the lists that they wait
    /// for may not come.
    pub fn drop_waiting(&mut self) {
        self.drops.0[FrameDropReason::Owner as usize] += self.waiting.clear() as u64;
    }

    /// Judges a frame. Call [`Self::run_pending`] after a batch of frames.
    pub fn handle_frame(&mut self, now: Now, frame: Frame<'_>) -> Verdict {
        let known = |adapter: &Adapter| adapter.index == frame.adapter;
        let Some(place) = self.adapters.iter().position(known) else {
            return self.drop(FrameDropReason::Adapter);
        };
        match frame.towards {
            Towards::Card => self.handle_sent(now, place, frame.bytes, Attempt::OnArrival),
            Towards::System => self.handle_received(now, place, frame.bytes),
        }
    }

    /// Does all pending work. Call it after frames, after a change of the device, and at
    /// [`Self::next_deadline`]. Then take every [`Self::poll_output`].
    pub fn run_pending(&mut self, now: Now) {
        while let Some(waiting) = self.waiting.pop(now.boot) {
            self.judge_again(now, waiting);
        }
        self.open(now);
        self.tunnel.seal(now.boot);
        self.send_sealed(now);
        while let Some(output) = self.tunnel.poll(now) {
            self.handle_output(now, output);
        }
    }

    /// Returns the time at which [`Self::run_pending`] has work to do.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.tunnel.next_deadline(), self.waiting.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Returns the next action.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Judges a frame that has waited. If it passes, it is injected unchanged.
    fn judge_again(&mut self, now: Now, waiting: Waiting) {
        let known = |adapter: &Adapter| adapter.index == waiting.adapter;
        let Some(place) = self.adapters.iter().position(known) else {
            let _ = self.drop(FrameDropReason::Adapter);
            return;
        };
        let attempt = Attempt::AfterWaiting {
            adapters_listed: self.listing > waiting.listing,
        };
        if self.handle_sent(now, place, &waiting.frame, attempt) == Verdict::Pass {
            self.outputs.push_back(Output::Inject(Injection {
                adapter: waiting.adapter,
                towards: Towards::Card,
                buffer: waiting.frame,
                start: 0,
            }));
        }
    }

    fn send_sealed(&mut self, now: Now) {
        for (to, tos, buffer) in std::mem::take(&mut self.tunnel.sealed) {
            self.send(now, to, tos, buffer);
        }
    }

    fn handle_output(&mut self, now: Now, output: taupe_protocol::Output) {
        let taupe_protocol::Output::Transmit {
            endpoint,
            tos,
            datagram,
        } = output
        else {
            return self.outputs.push_back(Output::Device(output));
        };
        let mut buffer = vec![0; HEADROOM];
        buffer.extend(datagram);
        self.send(now, endpoint.remote, tos, buffer);
    }

    /// Sends the message that begins after [`HEADROOM`] bytes.
    fn send(&mut self, now: Now, to: SocketAddr, tos: u8, mut buffer: Vec<u8>) {
        let Some(path) = self.paths.to(now.boot, to) else {
            let message = buffer.split_off(HEADROOM.min(buffer.len()));
            if self.unsent.len() >= MAX_UNSENT {
                self.unsent.pop_front();
            }
            self.unsent.push_back((to, message_id(&message)));
            self.outputs
                .push_back(Output::Datagram { to, tos, message });
            return;
        };
        let length = buffer.len() - HEADROOM + datagram::headers_len(to);
        let adapter = self.adapters.iter().find(|it| it.index == path.adapter);
        let fits = adapter.is_some_and(|adapter| length <= adapter.mtu.into());
        let (port, identification) = (self.settings.port, self.identifications.generate() as u16);
        let start = datagram::frame(&mut buffer, &path, to, port, tos, identification);
        let Some(start) = start.filter(|_| fits) else {
            let _ = self.drop(FrameDropReason::TooLong);
            return;
        };
        self.outputs.push_back(Output::Inject(Injection {
            adapter: path.adapter,
            towards: Towards::Card,
            buffer,
            start,
        }));
    }

    /// Sends the packet that begins after [`PACKET`] bytes to the adapter of its destination.
    fn send_back(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.get(PACKET..).unwrap_or_default();
        let packet = taupe_packet::ip::Packet::parse(bytes);
        let return_path =
            packet.map(|it| (it, self.paths.return_path(it.destination(), &self.adapters)));
        let Ok((packet, Some(return_path))) = return_path else {
            let _ = self.drop(FrameDropReason::NoReturnPath);
            return;
        };
        let mut adapters = self.adapters.iter();
        let adapter = adapters.find(|adapter| adapter.index == return_path.adapter);
        let mtu = adapter.map_or(0, |adapter| adapter.mtu);
        if bytes.len() <= usize::from(mtu) {
            return self.inject_back(&return_path, buffer);
        }
        // It was reassembled from fragments.
        let identification = self.identifications.generate();
        let fragments =
            Unfragmented::new(packet, mtu).and_then(|packet| packet.fragments(identification));
        let Some(fragments) = fragments else {
            let _ = self.drop(FrameDropReason::TooLong);
            return;
        };
        for fragment in fragments {
            self.inject_back(&return_path, behind_headroom(&fragment));
        }
    }

    fn inject_back(&mut self, return_path: &ReturnPath, mut buffer: Vec<u8>) {
        let header = return_path.header.bytes();
        let start = PACKET - header.len();
        buffer[start..PACKET].copy_from_slice(header);
        self.outputs.push_back(Output::Inject(Injection {
            adapter: return_path.adapter,
            towards: return_path.towards,
            buffer,
            start,
        }));
    }

    /// Refuses a packet: sends an ICMP error to its sender, within the limit.
    fn refuse(&mut self, now: Instant, packet: &[u8]) -> Verdict {
        if self.refusals.take(now)
            && let Some(answer) = icmp::error(icmp::Error::NoRoute, packet, self.mtu.into(), None)
        {
            self.send_back(behind_headroom(&answer));
        }
        self.drop(FrameDropReason::Refused)
    }

    fn drop(&mut self, reason: FrameDropReason) -> Verdict {
        self.drops.0[reason as usize] += 1;
        Verdict::Taken
    }

    fn is_own(&self, address: IpAddr) -> bool {
        let mut own = self.adapters.iter().flat_map(|it| &it.addresses);
        own.any(|own| own.addr() == address)
    }

    /// Returns true if a packet with this local address by this adapter is this machine's own. If
    /// the adapter's addresses are unknown, every packet is.
    fn is_local(&self, place: usize, address: IpAddr) -> bool {
        self.adapters[place].addresses.is_empty() || self.is_own(address)
    }

    /// Sets the main uplink, for packets without a flow: the first adapter that leads out.
    fn set_main_uplink(&self) {
        let leading = self.adapters.iter().filter(|adapter| adapter.leads_out);
        let addresses = || leading.clone().flat_map(|adapter| &adapter.addresses);
        let v4 = addresses().find_map(|own| match own.addr() {
            IpAddr::V4(v4) if !v4.is_link_local() => Some(v4),
            _ => None,
        });
        let v6 = addresses().find_map(|own| match own.addr() {
            IpAddr::V6(v6) if !v6.is_unicast_link_local() => Some(v6),
            _ => None,
        });
        self.translator.set_main_uplink(v4, v6);
    }

    /// Sets the MTU so that the longest packet fits the frames of every card that it may leave by.
    fn update_mtu(&mut self) {
        let paths: Vec<u32> = self.paths.adapters().collect();
        let leaves_by = |it: &&Adapter| match paths.is_empty() {
            true => it.leads_out,
            false => paths.contains(&it.index),
        };
        let cards = self.adapters.iter().filter(leaves_by);
        let Some(card) = cards.map(|adapter| adapter.mtu).min() else {
            return;
        };
        // The protocol never pads a packet beyond the MTU.
        let least = match self.device_has_v6_endpoint() {
            true => HEADERS,
            false => DATA_OVERHEAD as u16 + 28,
        };
        let (headers, wanted) = match self.settings.mtu {
            Some(mtu) => (least, mtu),
            None => (HEADERS, u16::MAX),
        };
        let mtu = wanted.min(card.saturating_sub(headers)).max(LEAST_MTU);
        if mtu != self.mtu {
            self.mtu = mtu;
            self.translator.set_mtu(mtu);
        }
    }

    fn device_has_v6_endpoint(&self) -> bool {
        let peers = self.tunnel.device.status().peers;
        peers
            .iter()
            .any(|peer| peer.endpoint.is_none_or(|endpoint| endpoint.is_ipv6()))
    }
}

fn message_id(message: &[u8]) -> MessageId {
    let mut message_id = [0; 16];
    let known = message.len().min(message_id.len());
    message_id[..known].copy_from_slice(&message[..known]);
    message_id
}

/// Copies a packet into a buffer with room for headers before it.
fn behind_headroom(packet: &[u8]) -> Vec<u8> {
    // Padding and tag follow the packet.
    let mut buffer = Vec::with_capacity(PACKET + packet.len() + 32);
    buffer.resize(PACKET, 0);
    buffer.extend_from_slice(packet);
    buffer
}
