//! The pipeline for frames at the network card, end to end. The fuzzer controls applications, the
//! network, a peer and the system's table of sockets.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use taupe_config::application::{AppRules, Application, Rule};
use taupe_config::destinations;
use taupe_config::file::{Forwarded, KillSwitch};
use taupe_packet::ip::Packet;
use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::{PrivateKey, PublicKey};
use taupe_protocol::time::{Instant, Now};
use taupe_protocol::update::{AllowedIpChange, DeviceUpdate, PeerUpdate, PrivateKeyUpdate};
use taupe_protocol::{Device, Endpoint, Output as Wanted, ReceivedBatch};
use taupe_transparent_windows::{
    Adapter, Frame, Holder, Medium, Output, Owners, Pipeline, Process, Protocol, Rules, Settings,
    Socket, Towards, Verdict,
};
use taupe_uapi::prefix;

use crate::input::Input;

/// Content of all packets of the selected application, repeated so that every fragment has it.
const SECRET: &[u8; 8] = b"\xfe secret";
const MOST_STEPS: usize = 96;
/// Upper bound of outputs in one step: more than everything that waits, and a full queue of a peer.
const MOST_OUTPUTS: usize = 2048;

/// Time for which fragments follow the first fragment of their packet.
const FRAGMENTS_FOR: Duration = Duration::from_secs(1);

const CARD: [u8; 6] = [2, 0, 0, 0, 1, 10];
const GATEWAY: [u8; 6] = [2, 0, 0, 0, 1, 1];
const PORT: u16 = 51_820;
const MOLE: u32 = 10;
const BIRD: u32 = 20;

#[derive(Default)]
struct Listed {
    sockets: Vec<(Protocol, Socket)>,
    fails: bool,
}

#[derive(Clone, Default)]
struct System(Arc<Mutex<Listed>>);

impl System {
    fn socket(&self, protocol: Protocol, pid: u32, local: &str, remote: Option<SocketAddr>) {
        let socket = Socket {
            local: local.parse().expect("an address"),
            remote,
            pid,
            created: 100,
        };
        let mut listed = self.0.lock().expect("nobody panics with it");
        listed.sockets.push((protocol, socket));
    }
}

impl Owners for System {
    fn sockets(&mut self, protocol: Protocol) -> io::Result<Vec<Socket>> {
        let listed = self.0.lock().expect("nobody panics with it");
        if listed.fails {
            return Err(io::Error::other("no list"));
        }
        let sockets = listed.sockets.iter().filter(|(it, _)| *it == protocol);
        Ok(sockets.map(|(_, socket)| *socket).collect())
    }

    fn holder(&mut self, pid: u32) -> Holder {
        let name = match pid {
            4 => return Holder::System,
            MOLE => "mole.exe",
            BIRD => "bird.exe",
            _ => return Holder::Unknown,
        };
        Holder::Process(Process {
            path: format!(r"C:\{name}"),
            name: name.into(),
            started: 1,
        })
    }
}

struct World {
    pipeline: Pipeline,
    peer: Device,
    peer_at: SocketAddr,
    system: System,
    adapters: Vec<Adapter>,
    now: Now,
    /// Datagrams that the peer has sent.
    to_come: VecDeque<Vec<u8>>,
}

/// Reads `data` as a list of events on a machine: rules, packets of applications, arriving frames,
/// changes of sockets and adapters.
///
/// No packet of the selected application ever leaves by a card in the clear, and the work of each
/// step is bounded.
pub fn frames(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(&mut input);
    for _ in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
    }
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let choices = input.byte();
        let list = |names: &[&str]| -> Vec<Rule> {
            let rule =
                |name: &&str| Rule::new(Application::parse_windows(name).expect("a name"), 1);
            names.iter().map(rule).collect()
        };
        // Each of these rules selects the mole.
        let (allowed, disallowed): (&[&str], &[&str]) = match choices & 3 {
            0 => (&["mole"], &[]),
            1 => (&[], &["bird"]),
            2 => (&["mole"], &["system", "bird"]),
            _ => (&[], &[]),
        };
        let apps = AppRules {
            allowed: list(allowed),
            disallowed: list(disallowed),
            ..AppRules::default()
        };
        let everything = ["0.0.0.0/0", "::/0"].map(|text| prefix::parse(text).expect("a network"));
        let rules = Rules::new(apps, destinations::table(&everything, &[], false));
        let now = Now {
            boot: Instant(1_000_000_000_000),
            wall: Duration::from_secs(1_800_000_000),
        };
        let (mut own, key) = device(1, now);
        let (mut peer, peer_key) = device(2, now);
        let peer_at = at("203.0.113.5:443");
        introduce(&mut own, now, peer_key, Some(peer_at));
        introduce(&mut peer, now, key, None);
        peer.set_up(now);
        let settings = Settings {
            v4: Some([10, 66, 0, 2].into()),
            v6: (choices & 4 == 0).then(|| "fd66::2".parse().expect("an address")),
            dns: match choices & 8 {
                0 => vec![],
                _ => vec![[10, 66, 0, 1].into()],
            },
            mtu: (choices & 0x10 != 0).then_some(1280),
            port: PORT,
            rules: rules.expect("rules of Windows"),
            forwarded: match choices & 0x20 {
                0 => Forwarded::Direct,
                _ => Forwarded::Tunnel,
            },
            kill_switch: match choices & 0x40 {
                0 => KillSwitch::App,
                _ => KillSwitch::All,
            },
        };
        let system = System::default();
        for local in ["0.0.0.0:50000", "[::]:50000"] {
            system.socket(Protocol::Udp, MOLE, local, None);
            system.socket(Protocol::Tcp, MOLE, local, None);
        }
        let mut world = Self {
            pipeline: Pipeline::new(own, settings, Box::new(system.clone())),
            peer,
            peer_at,
            system,
            adapters: adapters(choices & 0x80 != 0),
            now,
            to_come: VecDeque::new(),
        };
        for (own, others) in [(OWN, OTHERS), (OWN6, OTHERS6)] {
            let local = end(own, 50_000).to_string();
            for other in others {
                for port in [443, 53] {
                    let remote = Some(end(other, port));
                    world.system.socket(Protocol::Tcp, MOLE, &local, remote);
                }
            }
        }
        world.pipeline.set_adapters(now, world.adapters.clone());
        world.pipeline.set_up(now);
        world
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 10 {
            0..=3 => {
                let frames = said(input, 50_000, SECRET);
                let is_cut = frames.len() > 1;
                // No stack reuses an identification within this time.
                self.pass_if(is_cut, FRAGMENTS_FOR);
                for frame in frames {
                    self.send(adapter(input), &frame);
                }
                self.pass_if(is_cut, FRAGMENTS_FOR);
            }
            4 => {
                for mut frame in said(input, 50_001, b"anything") {
                    input.mutate(&mut frame);
                    self.send(adapter(input), &frame);
                }
            }
            5 => {
                let (adapter, len) = (adapter(input), usize::from(input.byte()));
                let bytes = input.take(len);
                // Bytes of the fuzzer belong to no application, so they must not have the secret.
                if !tells(bytes) {
                    self.send(adapter, bytes);
                    self.receive(adapter, bytes);
                }
            }
            6 => {
                let from = end(OTHERS[usize::from(input.byte()) % OTHERS.len()], 443);
                let to = end(OWN, if input.byte() & 1 == 0 { 50_000 } else { PORT });
                let payload = input.take(64);
                let mut frame = ethernet(CARD, GATEWAY, &udp(from, to, payload), 0);
                input.mutate(&mut frame);
                self.receive(adapter(input), &frame);
            }
            7 => {
                let milliseconds = u64::from(input.number());
                self.pass_if(true, Duration::from_millis(milliseconds));
            }
            8 => {
                let control = input.byte();
                {
                    let mut listed = self.system.0.lock().expect("nobody panics with it");
                    listed.fails = control & 1 != 0;
                    listed.sockets.retain(|(_, socket)| socket.pid == MOLE);
                }
                // Others bind the mole's port too, with a more specific address.
                for (bit, pid) in [(2, BIRD), (4, 4), (8, 99)] {
                    if control & bit != 0 {
                        let local = format!("{OWN}:50000");
                        self.system.socket(Protocol::Udp, pid, &local, None);
                        self.system
                            .socket(Protocol::Udp, pid, "0.0.0.0:50001", None);
                        self.system
                            .socket(Protocol::Tcp, pid, "0.0.0.0:50001", None);
                    }
                }
            }
            _ => match input.byte() % 4 {
                0 => {
                    self.pipeline.close(self.now);
                    self.pipeline.set_up(self.now);
                }
                1 => self.adapters[0].mtu = input.number(),
                2 => {
                    let mediums = [Medium::Ethernet, Medium::Ip, Medium::Unknown];
                    self.adapters[1].medium = mediums[usize::from(input.byte()) % 3];
                }
                _ => self.adapters[1].leads_out ^= true,
            },
        }
        self.pipeline.set_adapters(self.now, self.adapters.clone());
        self.run();
    }

    /// Advances the clock, with the deadlines in between, up to a bound.
    fn pass_if(&mut self, is_wanted: bool, time: Duration) {
        if !is_wanted {
            return;
        }
        let end = self.now.boot + time;
        for turn in 0..=32 {
            let due = self.pipeline.next_deadline();
            let due = due.filter(|at| *at < end && turn < 32);
            let at = due.unwrap_or(end).max(self.now.boot);
            self.now.wall += at.since(self.now.boot);
            self.now.boot = at;
            self.run();
            if due.is_none() {
                return;
            }
        }
    }

    fn send(&mut self, adapter: u32, bytes: &[u8]) {
        let frame = Frame {
            adapter,
            towards: Towards::Card,
            bytes,
        };
        let verdict = self.pipeline.handle_frame(self.now, frame);
        assert!(verdict == Verdict::Taken || !tells(bytes), "{bytes:02x?}");
        self.run();
    }

    fn receive(&mut self, adapter: u32, bytes: &[u8]) {
        let frame = Frame {
            adapter,
            towards: Towards::System,
            bytes,
        };
        let _ = self.pipeline.handle_frame(self.now, frame);
        self.run();
    }

    /// Runs until the pipeline has no more output at this time.
    fn run(&mut self) {
        let mut count = 0;
        loop {
            self.pipeline.run_pending(self.now);
            let mut outputs = Vec::new();
            while let Some(output) = self.pipeline.poll_output() {
                outputs.push(output);
            }
            count += outputs.len();
            assert!(count < MOST_OUTPUTS, "it never ends");
            for output in outputs {
                match output {
                    Output::Inject(injection) => {
                        let bytes = injection.bytes();
                        let leaves = injection.towards == Towards::Card;
                        assert!(!leaves || !tells(bytes), "{bytes:02x?}");
                        self.carry(bytes.get(14..).unwrap_or_default());
                    }
                    Output::Datagram { to, message, .. } => {
                        let packet = udp(end(OWN, PORT), to, &message);
                        let bytes = &ethernet(GATEWAY, CARD, &packet, 0);
                        let (adapter, towards) = (7, Towards::Card);
                        let frame = Frame {
                            adapter,
                            towards,
                            bytes,
                        };
                        if self.pipeline.handle_frame(self.now, frame) == Verdict::Pass {
                            self.carry(&packet);
                        }
                    }
                    _ => {}
                }
            }
            let Some(message) = self.to_come.pop_front() else {
                return;
            };
            let packet = udp(self.peer_at, end(OWN, PORT), &message);
            let bytes = &ethernet(CARD, GATEWAY, &packet, 0);
            let (adapter, towards) = (7, Towards::System);
            let frame = Frame {
                adapter,
                towards,
                bytes,
            };
            let _ = self.pipeline.handle_frame(self.now, frame);
        }
    }

    /// Delivers a packet to the peer if it is addressed to it. The peer answers handshakes.
    fn carry(&mut self, packet: &[u8]) {
        let is_its = Packet::parse(packet).is_ok_and(|it| it.destination() == self.peer_at.ip());
        let Some(message) = packet.get(28..).filter(|_| is_its) else {
            return;
        };
        let mut message = message.to_vec();
        let (length, endpoint) = (message.len(), Endpoint::from(end(OWN, PORT)));
        let mut sorted = ReceivedBatch::default();
        let path = Arc::clone(self.peer.data_path());
        path.receive(self.now.boot, endpoint, &mut message, length, &mut sorted);
        for place in &sorted.handshakes {
            let message = &message[place.clone()];
            let _ = self.peer.handle_message(self.now, endpoint, message, 0);
        }
        self.peer.handle_pending_work(self.now);
        while let Some(output) = self.peer.poll_output() {
            if let Wanted::Transmit { datagram, .. } = output {
                self.to_come.push_back(datagram.to_vec());
            }
        }
    }
}

const OWN: &str = "192.168.1.10";
const OWN6: &str = "2001:db8:1::10";
/// Another host, a name server, groups, a neighbour.
const OTHERS: [&str; 6] = [
    "198.51.100.7",
    "8.8.8.8",
    "224.0.0.251",
    "192.168.1.255",
    "255.255.255.255",
    "192.168.1.1",
];
const OTHERS6: [&str; 6] = [
    "2001:db8:7::7",
    "2001:4860:4860::8888",
    "ff02::fb",
    "ff05::2",
    "2001:db8:1::1",
    "fd00::1",
];

/// Returns the frames of one packet of an application, in one of the forms in which a stack or a
/// driver may send it.
fn said(input: &mut Input<'_>, port: u16, words: &[u8; 8]) -> Vec<Vec<u8>> {
    let (how, shape, place) = (input.byte(), input.byte(), usize::from(input.byte()));
    let (own, others) = match how & 1 {
        0 => (OWN, OTHERS),
        _ => (OWN6, OTHERS6),
    };
    let to_port = match how & 2 {
        0 => 443,
        _ => 53,
    };
    let (from, to) = (end(own, port), end(others[place % others.len()], to_port));
    let payload = words.repeat(1 + usize::from(input.byte()));
    let segment = match how & 4 {
        0 => datagram(from, to, &payload),
        _ => tcp_segment(from, to, input.byte(), &payload),
    };
    let protocol = if how & 4 == 0 { 17 } else { 6 };
    let packets = match how & 8 {
        0 => vec![ip(from.ip(), to.ip(), protocol, &segment, None)],
        // Fragmented at any offset, in either order.
        _ => {
            let at = (8 * (1 + usize::from(input.byte()))).min(segment.len()) & !7;
            let (first, rest) = segment.split_at(at);
            let number = input.byte();
            let mut pieces = vec![
                ip(from.ip(), to.ip(), protocol, first, Some((0, true, number))),
                ip(
                    from.ip(),
                    to.ip(),
                    protocol,
                    rest,
                    Some((at as u16, false, number)),
                ),
            ];
            if how & 0x10 != 0 {
                pieces.reverse();
            }
            pieces
        }
    };
    let station = match how & 0x20 {
        0 => GATEWAY,
        _ => [0xff; 6],
    };
    let mut frames: Vec<_> = packets
        .iter()
        .map(|packet| ethernet(station, CARD, packet, shape & 3))
        .collect();
    for frame in &mut frames {
        match shape >> 4 {
            1 => frame.truncate(frame.len() - usize::from(shape & 0xf)),
            2 => frame.extend_from_slice(&[0; 32]),
            _ => {}
        }
    }
    frames
}

/// Returns a packet, or a fragment. `fragment` is its offset, a flag for more fragments, and its
/// identification.
fn ip(
    from: IpAddr,
    to: IpAddr,
    protocol: u8,
    payload: &[u8],
    fragment: Option<(u16, bool, u8)>,
) -> Vec<u8> {
    let mut packet;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let (offset, more, number) = fragment.unwrap_or_default();
            let word = offset / 8 | u16::from(more) << 13;
            packet = vec![0x45, 0];
            packet.extend(((20 + payload.len()) as u16).to_be_bytes());
            packet.extend([0, number]);
            packet.extend(word.to_be_bytes());
            // The card computes the checksum.
            packet.extend([64, protocol, 0, 0]);
            packet.extend(from.octets());
            packet.extend(to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            // Empty destination options, before all other headers.
            let options = [
                if fragment.is_some() { 44 } else { protocol },
                0,
                1,
                4,
                0,
                0,
                0,
                0,
            ];
            let length = 8 + 8 * usize::from(fragment.is_some()) + payload.len();
            packet = vec![0x60, 0, 0, 0];
            packet.extend((length as u16).to_be_bytes());
            packet.extend([60, 64]);
            packet.extend(from.octets());
            packet.extend(to.octets());
            packet.extend(options);
            if let Some((offset, more, number)) = fragment {
                packet.extend([protocol, 0]);
                packet.extend((offset | u16::from(more)).to_be_bytes());
                packet.extend([0, 0, 0, number]);
            }
        }
        _ => unreachable!("both are of one family"),
    }
    packet.extend(payload);
    packet
}

fn datagram(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let mut segment = from.port().to_be_bytes().to_vec();
    segment.extend(to.port().to_be_bytes());
    segment.extend(((8 + payload.len()) as u16).to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(payload);
    segment
}

fn tcp_segment(from: SocketAddr, to: SocketAddr, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = from.port().to_be_bytes().to_vec();
    segment.extend(to.port().to_be_bytes());
    segment.extend([0, 0, 0, 9, 0, 0, 0, 7, 0x50, flags, 2, 0, 0, 0, 0, 0]);
    segment.extend(payload);
    segment
}

/// Returns a UDP datagram in IPv4.
fn udp(from: SocketAddr, to: SocketAddr, payload: &[u8]) -> Vec<u8> {
    ip(from.ip(), to.ip(), 17, &datagram(from, to, payload), None)
}

/// Returns a frame with `tags` VLAN tags.
fn ethernet(to: [u8; 6], from: [u8; 6], packet: &[u8], tags: u8) -> Vec<u8> {
    let mut frame = [to, from].concat();
    for tag in 0..tags {
        frame.extend([0x81, 0, 0, tag]);
    }
    frame.extend(match packet.first().map(|byte| byte >> 4) {
        Some(6) => [0x86, 0xdd],
        _ => [8, 0],
    });
    frame.extend(packet);
    frame
}

fn tells(bytes: &[u8]) -> bool {
    bytes.windows(SECRET.len()).any(|part| part == SECRET)
}

fn adapter(input: &mut Input<'_>) -> u32 {
    match input.byte() {
        0 => 99,
        byte if byte < 32 => 8,
        _ => 7,
    }
}

fn adapters(is_known: bool) -> Vec<Adapter> {
    let adapter = |index, leads_out, addresses: &[(&str, u8)]| {
        let parse = |(text, length): &(&str, u8)| (text.parse().expect("an address"), *length);
        Adapter {
            index,
            name: "card".into(),
            medium: Medium::Ethernet,
            mac: CARD,
            mtu: 1500,
            addresses: addresses.iter().map(parse).collect(),
            leads_out,
        }
    };
    let own = [(OWN, 24), (OWN6, 64)];
    vec![
        adapter(7, true, &own),
        // The second adapter's addresses may be unknown.
        adapter(
            8,
            false,
            if is_known {
                &[("192.168.137.1", 24)]
            } else {
                &[]
            },
        ),
    ]
}

fn device(mut seed: u8, now: Now) -> (Device, PublicKey) {
    let key = PrivateKey::new([seed; 32]).expect("a key");
    let random = move |bytes: &mut [u8]| {
        bytes.fill_with(|| {
            seed = seed.wrapping_mul(5).wrapping_add(1);
            seed
        });
    };
    let mut device = Device::new(default_provider(), Box::new(random), Arc::new(|| ()));
    let update = DeviceUpdate {
        private_key: Some(PrivateKeyUpdate::new(key)),
        ..DeviceUpdate::default()
    };
    device.update(now, update).expect("a change");
    let key = device.public_key().expect("it has a key");
    (device, key)
}

fn introduce(to: &mut Device, now: Now, key: PublicKey, endpoint: Option<SocketAddr>) {
    let mut peer = PeerUpdate::new(key);
    peer.endpoint = endpoint;
    let networks = ["0.0.0.0/0", "::/0"].map(|text| prefix::parse(text).expect("a network"));
    peer.allowed_ips = networks.into_iter().map(AllowedIpChange::Add).collect();
    let update = DeviceUpdate {
        peers: vec![peer],
        ..DeviceUpdate::default()
    };
    to.update(now, update).expect("a change");
}

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address and a port")
}

fn end(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().expect("an address"), port)
}

/// Returns seeds: for each set of rules, every form of packet twice, with a session established in
/// between.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = vec![vec![], vec![0], vec![3, 9, 0]];
    for choices in [0, 1, 2, 3, 0x28, 0x7b, 0x94] {
        for how in 0..8 {
            let mut seed = vec![choices];
            for (shape, place) in [(0, 0), (1, 1), (0, 2), (3, 0), (0x12, 0), (0x20, 5), (0, 3)] {
                // Unfragmented and fragmented packets of the mole, and one of another application.
                for (step, cut) in [(0, 0), (0, 8), (0, 0x18), (4, 0)] {
                    seed.extend([step, how | cut, shape, place, 20]);
                    let flags = [2].iter().take(usize::from(how & 4 != 0));
                    let pieces = [3, place];
                    let pieces = pieces.iter().take(usize::from(cut != 0) * 2);
                    seed.extend(flags.chain(pieces));
                    // No mutation, and every frame at the first card.
                    let changed = [0].iter().take(usize::from(step == 4));
                    let cards = [200, 200].iter().take(1 + usize::from(cut != 0));
                    seed.extend(changed.chain(cards));
                }
                seed.extend([7, 30, 0, 8, 2 << (place % 3), 6, place, 0]);
            }
            seeds.push(seed);
        }
    }
    seeds
}
