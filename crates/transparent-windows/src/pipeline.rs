//! The pipeline: frames in, frames out.

mod inward;
mod outward;

use std::{
    collections::VecDeque,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use taupe_config::file::{Forwarded, KillSwitch};
use taupe_nat::flows::CAPACITY;
use taupe_nat::translate::{self, Incoming, Outgoing, Translator};
use taupe_packet::{icmp, ip::Family};
use taupe_protocol::{
    Device,
    message::DATA_OVERHEAD,
    time::{Instant, Now},
};

use super::{
    Adapter, Frame, Injection, Towards, Verdict,
    datagram::{self, HEADROOM},
    fragments::{Identifications, Whole},
    owners::{Known, Owners},
    packet::Flow,
    recent::Recent,
    rules::{Choice, Rules},
    tunnel::{PACKET, Tunnel},
    waiting::{Queue, Waiting},
    ways::{Home, Ways},
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
    pub lock: KillSwitch,
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
pub enum Dropped {
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
    /// A fragment of a packet whose first fragment has not been seen.
    Fragment,
    /// The hop limit has been reached.
    HopLimit,
    /// The datagram that would carry it exceeds the card's MTU.
    TooLong,
    /// No adapter leads to its destination.
    NoHome,
}

impl Dropped {
    const COUNT: usize = Self::NoHome as usize + 1;

    /// All reasons, in the order of their counters.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Malformed,
        Self::Adapter,
        Self::Owner,
        Self::Rules,
        Self::Refused,
        Self::Clear,
        Self::Checksum,
        Self::Fragment,
        Self::HopLimit,
        Self::TooLong,
        Self::NoHome,
    ];
}

/// Counters of dropped frames, by reason.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Causes([u64; Dropped::COUNT]);

impl Causes {
    /// Returns the counter of a reason.
    #[must_use]
    pub fn count(&self, cause: Dropped) -> u64 {
        self.0[cause as usize]
    }
}

/// Number of flows whose verdicts are cached.
const FLOWS: usize = CAPACITY;

/// Maximum number of datagrams given to the system that have not been seen to leave.
const MOST_GIVEN: usize = 512;

const UDP_HEADER: usize = 8;

/// The first bytes of a message, which identify it: an index and a counter, or a random key.
type Beginning = [u8; 16];

/// The time for which an address that no adapter has counts as foreign.
const STRANGE_FOR: Duration = Duration::from_secs(60);

/// Maximum number of such addresses that are cached.
const STRANGERS: usize = 4096;

/// Maximum time between the first fragment of a packet and the others.
const FRAGMENTS_FOR: Duration = Duration::from_secs(1);

/// Maximum number of refusals within [`REFUSAL_WINDOW`].
const REFUSALS: u32 = 100;
const REFUSAL_WINDOW: Duration = Duration::from_secs(1);

/// The default difference between the card's MTU and the tunnel's, as in `wg-quick`: an IPv6
/// header, the UDP header, the message header and the 16-byte tag.
const HEADERS: u16 = 80;

/// Minimum MTU of a tunnel (RFC 791).
const LEAST_MTU: u16 = 68;

/// The occasion on which an outgoing frame is judged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Turn {
    /// The time of its arrival.
    First,
    /// After it has waited. `is_listed`: the adapters have been listed meanwhile.
    Last { is_listed: bool },
}

/// The pipeline; see [the module](super).
pub struct Pipeline {
    settings: Settings,
    adapters: Vec<Adapter>,
    /// Number of times that the adapters have been listed.
    listing: u64,
    known: Known,
    choices: Recent<Flow, Remembered>,
    /// Verdicts on first fragments, if there is one yet, with their arrival times.
    fragments: Recent<(IpAddr, IpAddr, u32), (Option<Choice>, Instant)>,
    waiting: Queue,
    strangers: Recent<IpAddr, Instant>,
    /// Datagrams given to the system that have not been seen to leave.
    given: VecDeque<(SocketAddr, Beginning)>,
    translator: Translator,
    outgoing: Outgoing,
    incoming: Incoming,
    tunnel: Tunnel,
    ways: Ways,
    mtu: u16,
    is_down: bool,
    identifications: Identifications,
    refusals: (Instant, u32),
    hosts_sought: Vec<Box<str>>,
    causes: Causes,
    outputs: VecDeque<Output>,
}

/// The cached verdict on a flow.
#[derive(Clone, Copy, Debug)]
struct Remembered {
    choice: Choice,
    /// The time of the socket list that the verdict is based on.
    at: Instant,
    /// True if every packet so far was attributed to the system.
    is_systems: bool,
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
            known: Known::new(owners),
            choices: Recent::new(FLOWS),
            fragments: Recent::new(FLOWS / 16),
            waiting: Queue::default(),
            strangers: Recent::new(STRANGERS),
            given: VecDeque::new(),
            outgoing: translator.outgoing(),
            incoming: translator.incoming(),
            translator,
            tunnel: Tunnel::new(device),
            ways: Ways::new(),
            mtu,
            is_down: true,
            identifications: Identifications::default(),
            refusals: (Instant::default(), 0),
            hosts_sought: Vec::new(),
            causes: Causes::default(),
            outputs: VecDeque::new(),
            settings,
        }
    }

    /// Sets the tunnel up.
    pub fn set_up(&mut self, now: Now) {
        self.is_down = false;
        self.tunnel.device.set_up(now);
        self.settle(now);
    }

    /// Sets the tunnel down and erases its keys. From now on the traffic that the kill switch
    /// covers is refused; the rest passes as before.
    pub fn close(&mut self, now: Now) {
        self.is_down = true;
        self.tunnel.device.close();
        self.settle(now);
    }

    /// Returns the protocol's device. After a change call [`Self::settle`].
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
    pub fn dropped(&self) -> Causes {
        self.causes
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
        self.ways.clear();
        self.strangers.clear();
        self.set_main();
        self.fit();
        if !self.is_down {
            self.tunnel.device.handle_network_change(now);
        }
        self.settle(now);
    }

    /// Replaces the rules. Existing flows are judged again.
    pub fn set_rules(&mut self, rules: Rules) {
        self.settings.rules = rules;
        self.choices.clear();
        self.fragments.clear();
    }

    /// Sets the host names that are being looked up for endpoints. DNS queries for them pass,
    /// whichever application sends them, since the tunnel waits for the replies.
    pub fn set_hosts_sought(&mut self, hosts: Vec<Box<str>>) {
        self.hosts_sought = hosts;
    }

    /// Drops the frames that wait. Call it when the tap has failed, since the lists that they wait
    /// for may not come.
    pub fn drop_waiting(&mut self) {
        self.causes.0[Dropped::Owner as usize] += self.waiting.clear() as u64;
    }

    /// Judges a frame. Call [`Self::settle`] after a batch of frames.
    pub fn handle_frame(&mut self, now: Now, frame: Frame<'_>) -> Verdict {
        let known = |adapter: &Adapter| adapter.index == frame.adapter;
        let Some(place) = self.adapters.iter().position(known) else {
            return self.drop(Dropped::Adapter);
        };
        match frame.towards {
            Towards::Card => self.handle_sent(now, place, frame.bytes, Turn::First),
            Towards::System => self.handle_received(now, place, frame.bytes),
        }
    }

    /// Does all pending work. Call it after frames, after a change of the device, and at
    /// [`Self::next_deadline`]. Then take every [`Self::poll_output`].
    pub fn settle(&mut self, now: Now) {
        while let Some(waiting) = self.waiting.pop(now.boot) {
            self.judge_again(now, waiting);
        }
        self.open(now);
        self.tunnel.seal(now.boot);
        self.send_sealed(now);
        while let Some(output) = self.tunnel.poll(now) {
            self.take(now, output);
        }
    }

    /// Returns the time at which [`Self::settle`] has work to do.
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
            let _ = self.drop(Dropped::Adapter);
            return;
        };
        let turn = Turn::Last {
            is_listed: self.listing > waiting.listing,
        };
        if self.handle_sent(now, place, &waiting.frame, turn) == Verdict::Pass {
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

    fn take(&mut self, now: Now, output: taupe_protocol::Output) {
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
        let Some(way) = self.ways.to(now.boot, to) else {
            let message = buffer.split_off(HEADROOM.min(buffer.len()));
            if self.given.len() >= MOST_GIVEN {
                self.given.pop_front();
            }
            self.given.push_back((to, beginning(&message)));
            self.outputs
                .push_back(Output::Datagram { to, tos, message });
            return;
        };
        let length = buffer.len() - HEADROOM + datagram::headers_len(to);
        let adapter = self.adapters.iter().find(|it| it.index == way.adapter);
        let fits = adapter.is_some_and(|adapter| length <= adapter.mtu.into());
        let (port, identification) = (self.settings.port, self.identifications.next() as u16);
        let start = datagram::frame(&mut buffer, &way, to, port, tos, identification);
        let Some(start) = start.filter(|_| fits) else {
            let _ = self.drop(Dropped::TooLong);
            return;
        };
        self.outputs.push_back(Output::Inject(Injection {
            adapter: way.adapter,
            towards: Towards::Card,
            buffer,
            start,
        }));
    }

    /// Sends the packet that begins after [`PACKET`] bytes to the adapter of its destination.
    fn send_home(&mut self, buffer: Vec<u8>) {
        let bytes = buffer.get(PACKET..).unwrap_or_default();
        let packet = taupe_packet::ip::Packet::parse(bytes);
        let home = packet.map(|it| (it, self.ways.home(it.destination(), &self.adapters)));
        let Ok((packet, Some(home))) = home else {
            let _ = self.drop(Dropped::NoHome);
            return;
        };
        let mut adapters = self.adapters.iter();
        let adapter = adapters.find(|adapter| adapter.index == home.adapter);
        let mtu = adapter.map_or(0, |adapter| adapter.mtu);
        if bytes.len() <= usize::from(mtu) {
            return self.inject_home(&home, buffer);
        }
        // It was reassembled from fragments.
        let identification = self.identifications.next();
        let pieces = Whole::new(packet, mtu).and_then(|whole| whole.cut(identification));
        let Some(pieces) = pieces else {
            let _ = self.drop(Dropped::TooLong);
            return;
        };
        for piece in pieces {
            self.inject_home(&home, behind_headroom(&piece));
        }
    }

    fn inject_home(&mut self, home: &Home, mut buffer: Vec<u8>) {
        let header = home.header.bytes();
        let start = PACKET - header.len();
        buffer[start..PACKET].copy_from_slice(header);
        self.outputs.push_back(Output::Inject(Injection {
            adapter: home.adapter,
            towards: home.towards,
            buffer,
            start,
        }));
    }

    /// Refuses a packet: sends an ICMP error to its sender, within the limit.
    fn refuse(&mut self, now: Instant, packet: &[u8]) -> Verdict {
        let (since, count) = &mut self.refusals;
        if now.since(*since) >= REFUSAL_WINDOW {
            (*since, *count) = (now, 0);
        }
        *count += 1;
        if *count <= REFUSALS
            && let Some(answer) = icmp::error(icmp::Error::NoRoute, packet, self.mtu.into(), None)
        {
            self.send_home(behind_headroom(&answer));
        }
        self.drop(Dropped::Refused)
    }

    fn drop(&mut self, cause: Dropped) -> Verdict {
        self.causes.0[cause as usize] += 1;
        Verdict::Taken
    }

    fn is_own(&self, address: IpAddr) -> bool {
        let mut own = self.adapters.iter().flat_map(|it| &it.addresses);
        own.any(|(own, _)| *own == address)
    }

    /// Returns true if a packet with this local address by this adapter is this machine's own. If
    /// the adapter's addresses are unknown, every packet is.
    fn is_local(&self, place: usize, address: IpAddr) -> bool {
        self.adapters[place].addresses.is_empty() || self.is_own(address)
    }

    /// Sets the main uplink, for packets without a flow: the first adapter that leads out.
    fn set_main(&self) {
        let leading = self.adapters.iter().filter(|adapter| adapter.leads_out);
        let addresses = || leading.clone().flat_map(|adapter| &adapter.addresses);
        let v4 = addresses().find_map(|(address, _)| match address {
            IpAddr::V4(v4) if !v4.is_link_local() => Some(*v4),
            _ => None,
        });
        let v6 = addresses().find_map(|(address, _)| match address {
            IpAddr::V6(v6) if !v6.is_unicast_link_local() => Some(*v6),
            _ => None,
        });
        self.translator.set_main_uplink(v4, v6);
    }

    /// Sets the MTU so that the longest packet fits the frames of every card that it may leave by.
    fn fit(&mut self) {
        let ways: Vec<u32> = self.ways.adapters().collect();
        let leaves_by = |it: &&Adapter| match ways.is_empty() {
            true => it.leads_out,
            false => ways.contains(&it.index),
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

fn beginning(message: &[u8]) -> Beginning {
    let mut beginning = [0; 16];
    let known = message.len().min(beginning.len());
    beginning[..known].copy_from_slice(&message[..known]);
    beginning
}

/// Copies a packet into a buffer with room for headers before it.
fn behind_headroom(packet: &[u8]) -> Vec<u8> {
    // Padding and tag follow the packet.
    let mut buffer = Vec::with_capacity(PACKET + packet.len() + 32);
    buffer.resize(PACKET, 0);
    buffer.extend_from_slice(packet);
    buffer
}

fn version(address: IpAddr) -> Family {
    match address {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    }
}
