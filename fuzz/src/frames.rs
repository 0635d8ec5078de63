//! The pipeline for frames at the network card, end to end. The fuzzer controls applications, the
//! network, a peer and the system's table of sockets.

mod build;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
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
use taupe_protocol::{Device, Endpoint, Output as DeviceOutput, ReceivedBatch};
use taupe_transparent_windows::{
    Adapter, Frame, Holder, Medium, Output, Owners, Pipeline, Process, Protocol, Rules, Settings,
    Socket, Towards, Verdict,
};
use taupe_uapi::prefix;

use crate::input::Input;
use build::{CARD, GATEWAY, OTHERS, OTHERS6, OWN, OWN6, end, ethernet, frames_of, udp};

/// Content of all packets of the selected application, repeated so that every fragment has it.
const SECRET: &[u8; 8] = b"\xfe secret";
const MAX_STEPS: usize = 96;
/// Upper bound of outputs in one step: more than everything that waits, and a full queue of a peer.
const MAX_OUTPUTS: usize = 2048;

/// Time for which fragments follow the first fragment of their packet.
const FRAGMENT_LIFETIME: Duration = Duration::from_secs(1);

const PORT: u16 = 51_820;
const MOLE: u32 = 10;
const BIRD: u32 = 20;

#[derive(Default)]
struct SocketTable {
    sockets: Vec<(Protocol, Socket)>,
    fails: bool,
}

#[derive(Clone, Default)]
struct System(Arc<Mutex<SocketTable>>);

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
    arriving: VecDeque<Vec<u8>>,
}

/// Reads `data` as a list of events on a machine: rules, packets of applications, arriving frames,
/// changes of sockets and adapters.
///
/// No packet of the selected application ever leaves by a card in the clear, and the work of each
/// step is bounded.
pub fn frames(data: &[u8]) {
    let mut input = Input(data);
    let mut world = World::new(&mut input);
    for _ in 0..MAX_STEPS {
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
        add_peer(&mut own, now, peer_key, Some(peer_at));
        add_peer(&mut peer, now, key, None);
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
            arriving: VecDeque::new(),
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
                let frames = frames_of(input, 50_000, SECRET);
                let is_cut = frames.len() > 1;
                // No stack reuses an identification within this time.
                self.pass_if(is_cut, FRAGMENT_LIFETIME);
                for frame in frames {
                    self.send(adapter(input), &frame);
                }
                self.pass_if(is_cut, FRAGMENT_LIFETIME);
            }
            4 => {
                for mut frame in frames_of(input, 50_001, b"anything") {
                    input.mutate(&mut frame);
                    self.send(adapter(input), &frame);
                }
            }
            5 => {
                let (adapter, len) = (adapter(input), usize::from(input.byte()));
                let bytes = input.take(len);
                // Bytes of the fuzzer belong to no application, so they must not have the secret.
                if !contains_secret(bytes) {
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
        assert!(
            verdict == Verdict::Taken || !contains_secret(bytes),
            "{bytes:02x?}"
        );
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
            assert!(count < MAX_OUTPUTS, "it never ends");
            for output in outputs {
                match output {
                    Output::Inject(injection) => {
                        let bytes = injection.bytes();
                        let leaves = injection.towards == Towards::Card;
                        assert!(!leaves || !contains_secret(bytes), "{bytes:02x?}");
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
            let Some(message) = self.arriving.pop_front() else {
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
        let mut received = ReceivedBatch::default();
        let path = Arc::clone(self.peer.data_path());
        path.receive(self.now.boot, endpoint, &mut message, length, &mut received);
        for place in &received.handshakes {
            let message = &message[place.clone()];
            let _ = self.peer.handle_message(self.now, endpoint, message, 0);
        }
        self.peer.handle_pending_work(self.now);
        while let Some(output) = self.peer.poll_output() {
            if let DeviceOutput::Transmit { datagram, .. } = output {
                self.arriving.push_back(datagram.to_vec());
            }
        }
    }
}

fn contains_secret(bytes: &[u8]) -> bool {
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
    let adapter = |index, leads_out, addresses: &[&str]| {
        let parse = |text: &&str| text.parse().expect("an address");
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
    let own = [format!("{OWN}/24"), format!("{OWN6}/64")];
    vec![
        adapter(7, true, &own.each_ref().map(String::as_str)),
        // The second adapter's addresses may be unknown.
        adapter(8, false, if is_known { &["192.168.137.1/24"] } else { &[] }),
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

fn add_peer(to: &mut Device, now: Now, key: PublicKey, endpoint: Option<SocketAddr>) {
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
