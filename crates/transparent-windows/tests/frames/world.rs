//! A machine with the pipeline between its stack and its cards, and a peer of its tunnel.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use ipnet::IpNet;
use taupe_config::{
    application::{AppRules, Application, Rule},
    destinations,
    file::{Forwarded, KillSwitch},
};
use taupe_protocol::{
    Device, Endpoint, LaneId, Outbound, Output as Wanted, ReceivedBatch, Staged,
    crypto::{TAG_LEN, default_provider},
    key::{PresharedKey, PrivateKey, PublicKey},
    message::DATA_HEADER_LEN,
    padded_len,
    time::{Instant, Now},
    update::{AllowedIpChange, DeviceUpdate, PeerUpdate, PrivateKeyUpdate},
};
use taupe_transparent_windows::{
    Adapter, Event, Medium, Output, PacketTap, Pipeline, Protocol, Rules, Settings, Towards,
};
use taupe_uapi::prefix;

use crate::packets::{self, CARD, GATEWAY, HOTSPOT, at, checked, datagram, ethernet, udp};
use crate::replay::{Arrived, Replay};
use crate::system::System;

pub(crate) const UPLINK: u32 = 7;
pub(crate) const CLIENTS: u32 = 8;
pub(crate) const OUTER: u32 = 9;

pub(crate) const OWN: &str = "192.168.1.10";
pub(crate) const OWN6: &str = "2001:db8:1::10";
pub(crate) const TUNNEL: &str = "10.66.0.2";
pub(crate) const TUNNEL6: &str = "fd66::2";
pub(crate) const NAMES: &str = "10.66.0.1";
pub(crate) const SERVER: &str = "198.51.100.7";
pub(crate) const SERVER6: &str = "2001:db8:7::7";
pub(crate) const ENDPOINT: &str = "203.0.113.5";
pub(crate) const PORT: u16 = 51_820;
const PEER_PORT: u16 = 443;

/// The remote end of the tunnel.
pub(crate) struct Peer {
    pub(crate) device: Device,
    pub(crate) address: SocketAddr,
    /// Inner packets that it received.
    pub(crate) got: Vec<Vec<u8>>,
    /// Source addresses of the messages that it received.
    pub(crate) heard: Vec<SocketAddr>,
    pub(crate) is_silent: bool,
    /// The adapter of the machine that leads to it.
    pub(crate) by: u32,
}

pub(crate) struct World {
    pub(crate) pipeline: Pipeline,
    pub(crate) tap: Replay,
    pub(crate) system: System,
    pub(crate) peer: Peer,
    pub(crate) now: Now,
    pub(crate) kept: usize,
    /// Number of times that adapters were listed.
    pub(crate) looks: usize,
    /// Index of the adapter by which the system sends datagrams.
    pub(crate) route: u32,
}

pub(crate) struct Setup {
    pub(crate) allowed: Vec<&'static str>,
    pub(crate) disallowed: Vec<&'static str>,
    pub(crate) allowed_ips: Vec<&'static str>,
    pub(crate) disallowed_ips: Vec<&'static str>,
    pub(crate) bypass_lan: bool,
    pub(crate) dns: Vec<&'static str>,
    pub(crate) mtu: Option<u16>,
    pub(crate) endpoint: &'static str,
    pub(crate) forwarded: Forwarded,
    pub(crate) kill_switch: KillSwitch,
    pub(crate) route: u32,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            allowed: vec!["mole"],
            disallowed: vec![],
            allowed_ips: vec!["0.0.0.0/0", "::/0"],
            disallowed_ips: vec![],
            bypass_lan: false,
            dns: vec![],
            mtu: None,
            endpoint: ENDPOINT,
            forwarded: Forwarded::Direct,
            kill_switch: KillSwitch::App,
            route: UPLINK,
        }
    }
}

pub(crate) fn rules(allowed: &[&str], disallowed: &[&str]) -> AppRules {
    let list = |texts: &[&str]| {
        let rule = |text: &&str| Rule::new(Application::parse_windows(text).unwrap(), 1);
        texts.iter().map(rule).collect()
    };
    AppRules {
        allowed: list(allowed),
        disallowed: list(disallowed),
        ..AppRules::default()
    }
}

fn device(mut seed: u8, now: Now) -> (Device, PublicKey) {
    let key = PrivateKey::new([seed; 32]).unwrap();
    let random = move |bytes: &mut [u8]| {
        bytes.fill_with(|| {
            seed = seed.wrapping_mul(5).wrapping_add(1);
            seed
        });
    };
    let mut device = Device::new(default_provider(), Box::new(random), Arc::new(|| ()));
    let private_key = Some(PrivateKeyUpdate::new(key));
    let update = DeviceUpdate {
        private_key,
        ..DeviceUpdate::default()
    };
    device.update(now, update).unwrap();
    let key = device.public_key().unwrap();
    (device, key)
}

fn introduce(
    to: &mut Device,
    now: Now,
    key: PublicKey,
    endpoint: Option<SocketAddr>,
    networks: &[IpNet],
) {
    let mut peer = PeerUpdate::new(key);
    peer.endpoint = endpoint;
    peer.preshared_key = Some(PresharedKey::new([9; 32]));
    peer.allowed_ips = networks.iter().copied().map(AllowedIpChange::Add).collect();
    let update = DeviceUpdate {
        peers: vec![peer],
        ..DeviceUpdate::default()
    };
    to.update(now, update).unwrap();
}

pub(crate) fn adapters() -> Vec<Adapter> {
    let adapter = |index, name: &str, medium, mac, leads_out, addresses: &[&str]| Adapter {
        index,
        name: name.into(),
        medium,
        mac,
        mtu: 1500,
        addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
        leads_out,
    };
    vec![
        adapter(
            UPLINK,
            "Ethernet",
            Medium::Ethernet,
            CARD,
            true,
            &[&format!("{OWN}/24"), &format!("{OWN6}/64"), "fe80::10/64"],
        ),
        adapter(
            CLIENTS,
            "Hotspot",
            Medium::Ethernet,
            HOTSPOT,
            false,
            &["192.168.137.1/24"],
        ),
    ]
}

impl World {
    pub(crate) fn new(setup: &Setup) -> Self {
        let now = Now {
            boot: Instant(1_000_000_000_000),
            wall: Duration::from_secs(1_800_000_000),
        };
        let prefixes = |texts: &[&str]| -> Vec<IpNet> {
            texts
                .iter()
                .map(|text| prefix::parse(text).unwrap())
                .collect()
        };
        let (mut own, key) = device(1, now);
        let (mut other, other_key) = device(2, now);
        let address = at(setup.endpoint, PEER_PORT);
        let allowed = prefixes(&setup.allowed_ips);
        let disallowed = prefixes(&setup.disallowed_ips);
        introduce(&mut own, now, other_key, Some(address), &allowed);
        let tunnel = prefixes(&[TUNNEL, TUNNEL6]);
        introduce(&mut other, now, key, None, &tunnel);
        other.set_up(now);
        let table = destinations::table(&allowed, &disallowed, setup.bypass_lan);
        let system = System::default();
        let settings = Settings {
            v4: Some(TUNNEL.parse().unwrap()),
            v6: Some(TUNNEL6.parse().unwrap()),
            dns: setup.dns.iter().map(|text| text.parse().unwrap()).collect(),
            mtu: setup.mtu,
            port: PORT,
            rules: Rules::new(rules(&setup.allowed, &setup.disallowed), table).unwrap(),
            forwarded: setup.forwarded,
            kill_switch: setup.kill_switch,
        };
        let mut world = Self {
            pipeline: Pipeline::new(own, settings, Box::new(system.clone())),
            tap: Replay {
                adapters: adapters(),
                ..Replay::default()
            },
            system,
            peer: Peer {
                device: other,
                address,
                got: Vec::new(),
                heard: Vec::new(),
                is_silent: false,
                by: setup.route,
            },
            now,
            kept: 0,
            looks: 0,
            route: setup.route,
        };
        world.look();
        world.pipeline.set_up(now);
        world.system.process(10, r"C:\Burrow\Mole.exe", 1);
        world.system.process(20, r"C:\Nest\bird.exe", 1);
        world
    }

    /// Lists the adapters, if possible.
    pub(crate) fn look(&mut self) {
        let Ok(adapters) = self.tap.adapters() else {
            return;
        };
        self.pipeline.set_adapters(self.now, adapters.taken);
        self.tap
            .set_mtu_decrement(self.pipeline.mtu_decrement())
            .unwrap();
    }

    pub(crate) fn with(allowed: &[&'static str]) -> Self {
        Self::new(&Setup {
            allowed: allowed.to_vec(),
            ..Setup::default()
        })
    }

    fn adapter(&self, index: u32) -> Adapter {
        let mut adapters = self.tap.adapters.iter();
        adapters.find(|it| it.index == index).unwrap().clone()
    }

    pub(crate) fn mole(&self, protocol: Protocol, local: SocketAddr, remote: SocketAddr) {
        let remote = (protocol == Protocol::Tcp).then_some(remote);
        self.system.socket(protocol, 10, local, remote);
    }

    pub(crate) fn bird(&self, protocol: Protocol, local: SocketAddr, remote: SocketAddr) {
        let remote = (protocol == Protocol::Tcp).then_some(remote);
        self.system.socket(protocol, 20, local, remote);
    }

    /// Sends a packet by the uplink, and runs until nothing more happens.
    pub(crate) fn send(&mut self, packet: &[u8]) {
        self.give(UPLINK, Towards::Card, packets::sent(packet));
    }

    pub(crate) fn receive(&mut self, packet: &[u8]) {
        self.give(UPLINK, Towards::System, packets::received(packet));
    }

    pub(crate) fn give(&mut self, adapter: u32, towards: Towards, frame: Vec<u8>) {
        self.tap.to_come.push_back((adapter, towards, frame));
        self.run();
    }

    /// Runs until nothing more happens at this time.
    pub(crate) fn run(&mut self) {
        let mut seen = self.tap.wire.len();
        for _ in 0..100 {
            let (tap, pipeline, now) = (&mut self.tap, &mut self.pipeline, self.now);
            let event = tap
                .read(Duration::ZERO, &mut |frame| {
                    pipeline.handle_frame(now, frame)
                })
                .unwrap();
            if event == Event::Adapters {
                self.look();
            }
            self.pipeline.run_pending(self.now);
            self.do_outputs();
            for place in seen..self.tap.wire.len() {
                let arrived = self.tap.wire[place].clone();
                self.arrive(&arrived);
            }
            seen = self.tap.wire.len();
            self.hear_peer();
            if self.tap.to_come.is_empty() {
                return;
            }
        }
        panic!("it never ends");
    }

    /// Advances the time, and handles all deadlines on the way.
    pub(crate) fn wait(&mut self, time: Duration) {
        let end = self.now.boot + time;
        loop {
            let ours = self.pipeline.next_deadline();
            let theirs = self.peer.device.next_deadline().map(|(at, _)| at);
            let next = [ours, theirs].into_iter().flatten().min();
            let at = next
                .filter(|at| *at < end)
                .unwrap_or(end)
                .max(self.now.boot);
            self.now.wall += at.since(self.now.boot);
            self.now.boot = at;
            if theirs.is_some_and(|due| due <= at) {
                self.peer.device.handle_deadline(self.now);
            }
            self.run();
            if at >= end {
                return;
            }
        }
    }

    fn do_outputs(&mut self) {
        while let Some(output) = self.pipeline.poll_output() {
            match output {
                // A frame that has waited passes unchanged.
                Output::Inject(injection)
                    if let Some(place) =
                        self.tap.taken.iter().position(|it| it == injection.bytes()) =>
                {
                    let frame = self.tap.taken.remove(place);
                    let adapter = injection.adapter;
                    let made = false;
                    self.tap.wire.push(Arrived {
                        adapter,
                        frame,
                        made,
                    });
                }
                Output::Inject(injection) => {
                    let adapter = self.adapter(injection.adapter);
                    let packet = checked(adapter.medium, injection.bytes());
                    assert!(packet.len() <= adapter.mtu.into(), "{}", packet.len());
                    self.tap.inject(&[injection]).unwrap();
                }
                Output::Datagram { to, tos, message } => {
                    // The system chooses the path.
                    let adapter = self.adapter(self.route);
                    let own = adapter.addresses.iter().map(IpNet::addr);
                    let mut own = own.filter(|own| own.is_ipv4() == to.is_ipv4());
                    let from = SocketAddr::new(own.next().unwrap(), PORT);
                    let mut packet = udp(from, to, &message);
                    if tos != 0 && to.is_ipv4() {
                        let mut header = etherparse::Ipv4Header::from_slice(&packet).unwrap().0;
                        header.dscp = (tos >> 2).try_into().unwrap();
                        header.ecn = (tos & 3).try_into().unwrap();
                        header.header_checksum = header.calc_header_checksum();
                        packet[..20].copy_from_slice(&header.to_bytes());
                    }
                    let frame = match adapter.medium {
                        Medium::Ethernet => packets::sent(&packet),
                        Medium::Ip | Medium::Unknown => packet,
                    };
                    let index = adapter.index;
                    self.tap.to_come.push_back((index, Towards::Card, frame));
                }
                Output::Device(
                    Wanted::ReserveTimestamps { .. } | Wanted::PinPostQuantum { .. },
                ) => {
                    self.kept += 1;
                }
                Output::Adapters => {
                    self.looks += 1;
                    self.look();
                }
                Output::Device(Wanted::Resolve { .. } | Wanted::Notice(_)) => {}
                Output::Device(Wanted::Transmit { .. }) => panic!("it is sent by the pipeline"),
            }
        }
    }

    /// Delivers a frame that has left by a card to the peer, if it is for the peer.
    fn arrive(&mut self, arrived: &Arrived) {
        let medium = self.adapter(arrived.adapter).medium;
        let ethernet = medium == Medium::Ethernet;
        let packet = arrived
            .frame
            .get(if ethernet { 14 } else { 0 }..)
            .unwrap_or_default();
        let Some((from, to, mut message)) = datagram(packet) else {
            return;
        };
        if to != self.peer.address || self.peer.is_silent {
            return;
        }
        let peer = &mut self.peer;
        peer.heard.push(from);
        let mut sorted = ReceivedBatch::default();
        let (length, endpoint) = (message.len(), Endpoint::from(from));
        let path = Arc::clone(peer.device.data_path());
        path.receive(self.now.boot, endpoint, &mut message, length, &mut sorted);
        for place in &sorted.inner {
            let packet = message[place.clone()].to_vec();
            checked(Medium::Ip, &packet);
            peer.got.push(packet);
        }
        for place in &sorted.handshakes {
            let message = &message[place.clone()];
            let refused = peer.device.handle_message(self.now, endpoint, message, 0);
            assert_eq!(refused, None);
        }
    }

    /// Delivers the peer's datagrams to the uplink.
    fn hear_peer(&mut self) {
        self.peer.device.handle_pending_work(self.now);
        let mut datagrams = Vec::new();
        while let Some(output) = self.peer.device.poll_output() {
            if let Wanted::Transmit {
                endpoint, datagram, ..
            } = output
            {
                datagrams.push((endpoint.remote, datagram));
            }
        }
        for (to, message) in datagrams {
            self.hear(to, &message);
        }
    }

    pub(crate) fn hear(&mut self, to: SocketAddr, message: &[u8]) {
        if self.peer.is_silent {
            return;
        }
        let packet = udp(self.peer.address, to, message);
        let frame = match self.adapter(self.peer.by).medium {
            Medium::Ethernet => ethernet(GATEWAY, CARD, &packet),
            Medium::Ip | Medium::Unknown => packet,
        };
        self.tap
            .to_come
            .push_back((self.peer.by, Towards::System, frame));
    }

    /// Sends a packet of the peer into the tunnel.
    pub(crate) fn reply(&mut self, packet: &[u8]) {
        let path = Arc::clone(self.peer.device.data_path());
        let own: IpAddr = if packet[0] >> 4 == 4 { TUNNEL } else { TUNNEL6 }
            .parse()
            .unwrap();
        let peer = path.routes().lookup(own).cloned().unwrap();
        let padded = padded_len(packet.len(), 1500);
        let mut message = vec![0; DATA_HEADER_LEN + padded + TAG_LEN];
        message[DATA_HEADER_LEN..DATA_HEADER_LEN + packet.len()].copy_from_slice(packet);
        let length = message.len();
        match path.reserve(self.now.boot, &peer, 1, length as u64) {
            Outbound::Send(mut reservation) => {
                let to = reservation.endpoint().remote;
                reservation.seal(&mut message, length);
                self.hear(to, &message);
            }
            Outbound::Stage => {
                let packet = message[DATA_HEADER_LEN..DATA_HEADER_LEN + padded].to_vec();
                path.stage(
                    self.now.boot,
                    &peer,
                    [Staged {
                        packet,
                        ecn: 0,
                        lane: LaneId::FIRST,
                    }]
                    .into_iter(),
                );
            }
            Outbound::NoEndpoint => panic!("the peer knows nobody"),
        }
        self.run();
    }

    /// Returns a packet as the peer seals it for the tunnel.
    pub(crate) fn sealed(&self, packet: &[u8]) -> Vec<u8> {
        let path = Arc::clone(self.peer.device.data_path());
        let own: IpAddr = TUNNEL.parse().unwrap();
        let peer = path.routes().lookup(own).cloned().unwrap();
        let mut message = vec![0; DATA_HEADER_LEN + padded_len(packet.len(), 1500) + TAG_LEN];
        message[DATA_HEADER_LEN..DATA_HEADER_LEN + packet.len()].copy_from_slice(packet);
        let length = message.len();
        let Outbound::Send(mut reservation) = path.reserve(self.now.boot, &peer, 1, length as u64)
        else {
            panic!("no session");
        };
        reservation.seal(&mut message, length);
        message
    }

    /// Returns a handshake initiation of the peer.
    pub(crate) fn initiation(&mut self) -> Vec<u8> {
        let key = self.pipeline.device().public_key().unwrap();
        let mut peer = PeerUpdate::new(key);
        peer.endpoint = Some(at(OWN, PORT));
        peer.persistent_keepalive = Some(25);
        let update = DeviceUpdate {
            peers: vec![peer],
            ..DeviceUpdate::default()
        };
        self.peer.device.update(self.now, update).unwrap();
        self.peer.device.handle_pending_work(self.now);
        loop {
            let output = self.peer.device.poll_output();
            if let Wanted::Transmit { datagram, .. } = output.expect("an initiation") {
                return datagram;
            }
        }
    }

    /// Returns another initiation of the peer, 6 seconds later.
    pub(crate) fn next_initiation(&mut self) -> Vec<u8> {
        let later = Duration::from_secs(6);
        self.now.boot += later;
        self.now.wall += later;
        let key = self.pipeline.device().public_key().unwrap();
        self.peer.device.initiate(self.now, &key);
        loop {
            let output = self.peer.device.poll_output();
            if let Wanted::Transmit { datagram, .. } = output.expect("an initiation") {
                return datagram;
            }
        }
    }

    /// Returns the frames that have left unchanged, except the tunnel's own datagrams.
    pub(crate) fn passed(&self) -> Vec<Vec<u8>> {
        let own = |arrived: &&Arrived| {
            let packet = arrived.frame.get(14..).unwrap_or_default();
            datagram(packet).is_none_or(|(from, ..)| from.port() != PORT)
        };
        let passed = self.tap.wire.iter().filter(|it| !it.made).filter(own);
        passed.map(|it| it.frame.clone()).collect()
    }

    /// Returns the packets that reached the system: those made by the pipeline, or those that
    /// passed.
    pub(crate) fn at_system(&self, made: bool) -> Vec<Vec<u8>> {
        let stack = self.tap.stack.iter().filter(|it| it.made == made);
        stack.map(|it| it.frame.clone()).collect()
    }

    /// Takes the packets that the peer has received.
    pub(crate) fn take_got(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.peer.got)
    }
}
