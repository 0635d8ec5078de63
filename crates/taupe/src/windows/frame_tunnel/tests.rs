use super::{FrameTunnel, Resources, TunnelEvent};
use crate::windows::arguments::WindowsMode;
use crate::windows::lock::{Grant, LockExemption};
use crate::windows::requests::services;
use crate::windows::sockets::Sockets;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use taupe_config::file::{Dialect, Endpoint, File, Peer, parse};
use taupe_transparent_windows::{
    Adapter, Adapters, Event, Frame, Injection, Medium, PacketTap, Rules, Settings, TapError,
    Towards, Verdict,
};
use taupe_uapi::Request;

const PATIENCE: Duration = Duration::from_secs(20);

/// Events of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Captured,
    NotCaptured,
    ReadFails,
    Exempted,
    Blocked,
    Released,
}

use Step::{Blocked, Captured, Exempted, NotCaptured, ReadFails, Released};

/// Behaviour of a packet filter, and the events so far.
#[derive(Clone, Default)]
struct World(Arc<Mutex<Inner>>);

#[derive(Default)]
struct Inner {
    events: Vec<Step>,
    /// Results of the next look-ups of adapters, and of the next reads. All later ones succeed.
    looks: VecDeque<bool>,
    reads: VecDeque<bool>,
    adapters: Vec<Adapter>,
    missed: Vec<String>,
    looked: usize,
    /// Frames that adapter 1 sends, and frames that it was given to send.
    frames: VecDeque<Vec<u8>>,
    injected: Vec<Vec<u8>>,
}

impl World {
    fn with<T>(&self, of: impl FnOnce(&mut Inner) -> T) -> T {
        of(&mut self.0.lock().expect("not poisoned"))
    }

    fn record(&self, what: Step) {
        self.with(|it| it.events.push(what));
    }

    fn events(&self) -> Vec<Step> {
        self.with(|it| it.events.clone())
    }

    fn wait_for(&self, what: &str, is_so: impl Fn(&Inner) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !self.with(|it| is_so(it)) {
            let events = self.events();
            assert!(Instant::now() < until, "{what}: {events:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

struct Tap(World);

impl PacketTap for Tap {
    fn adapters(&mut self) -> Result<Adapters, TapError> {
        let works = self.0.with(|it| {
            it.looked += 1;
            it.looks.pop_front().unwrap_or(true)
        });
        self.0.record(if works { Captured } else { NotCaptured });
        match works {
            true => Ok(self.0.with(|it| Adapters {
                taken: it.adapters.clone(),
                missed: it.missed.clone(),
            })),
            false => Err(TapError("no adapters".to_owned())),
        }
    }

    fn read(
        &mut self,
        wait: Duration,
        handle: &mut dyn FnMut(Frame<'_>) -> Verdict,
    ) -> Result<Event, TapError> {
        if !self.0.with(|it| it.reads.pop_front().unwrap_or(true)) {
            self.0.record(ReadFails);
            return Err(TapError("no frames".to_owned()));
        }
        if let Some(frame) = self.0.with(|it| it.frames.pop_front()) {
            let verdict = handle(Frame {
                adapter: 1,
                towards: Towards::Card,
                bytes: &frame,
            });
            assert_eq!(verdict, Verdict::Taken, "it is to wait");
            return Ok(Event::Read);
        }
        thread::sleep(wait);
        Ok(Event::Read)
    }

    fn inject(&mut self, frames: &[Injection]) -> Result<(), TapError> {
        let frames = frames.iter().map(|frame| frame.bytes().to_vec());
        self.0.with(|it| it.injected.extend(frames));
        Ok(())
    }

    fn set_mtu_decrement(&mut self, _: u16) -> Result<(), TapError> {
        Err(TapError("there is no registry".to_owned()))
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        self.0.record(Released);
    }
}

/// Lets programs pass until dropped.
struct Pass(World);

impl Drop for Pass {
    fn drop(&mut self) {
        self.0.record(Blocked);
    }
}

fn address(peer: &Peer) -> Option<SocketAddr> {
    match peer.endpoint {
        Some(Endpoint::Address(address)) => Some(address),
        _ => None,
    }
}

fn file(peer: &str) -> File {
    let text = format!(
        "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
         Address = 10.7.0.2/32\n[Peer]\n\
         PublicKey = B6N8vBQgk8i3VdwbEOhstCY3StFqqFPtC9/AsrhtHHw=\nAllowedIPs = 0.0.0.0/0\n{peer}\n"
    );
    parse(text.as_bytes(), Dialect::Taupe).file.expect("a file")
}

/// A running tunnel, which ends when dropped.
struct RunningTunnel {
    ask: Sender<TunnelEvent>,
    port: u16,
    thread: Option<JoinHandle<Result<(), TapError>>>,
    state: PathBuf,
}

impl RunningTunnel {
    fn begin(world: &World, test: &str, peer: &str) -> Self {
        let state = std::env::temp_dir().join(format!("taupe-{test}-{}", std::process::id()));
        let (ask, events) = channel();
        let sockets = Sockets::bind(0).expect("a port");
        let port = sockets.port;
        let (world, folder, file) = (world.clone(), state.clone(), file(peer));
        let thread = thread::spawn(move || {
            let opens = world.clone();
            let exemption = LockExemption::new(move || {
                opens.record(Exempted);
                Ok(Some(Box::new(Pass(opens.clone())) as Grant))
            });
            let settings = Settings {
                v4: Some(Ipv4Addr::new(10, 7, 0, 2)),
                v6: None,
                dns: Vec::new(),
                mtu: None,
                port,
                rules: Rules::default(),
                forwarded: Default::default(),
                kill_switch: Default::default(),
            };
            let resources = Resources {
                tap: Tap(world),
                exemption,
                sockets,
            };
            let addresses: Vec<_> = file.peers.iter().map(address).collect();
            let request = taupe_client::setconf_request(&file, &addresses);
            let services = services(&folder, &file, WindowsMode::Frames, Arc::new(|| {}));
            let tunnel = FrameTunnel::new(resources, services, settings, request, events);
            tunnel.expect("a device").run()
        });
        Self {
            ask,
            port,
            thread: Some(thread),
            state,
        }
    }

    /// Ends the tunnel unless it has ended by itself. Returns its result.
    fn end(&mut self) -> Result<(), TapError> {
        let _ = self.ask.send(TunnelEvent::End);
        let thread = self.thread.take().expect("it is ended once");
        thread.join().expect("no panic")
    }

    /// Returns the value of a line in the answer to `wg show`.
    fn line(&self, key: &str) -> Option<String> {
        let (answer, answered) = sync_channel(1);
        let event = TunnelEvent::Configuration(Request::Get, answer);
        self.ask.send(event).expect("it runs");
        let text = answered.recv_timeout(PATIENCE).expect("an answer");
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        let (_, value) = lines.find(|(found, _)| *found == key)?;
        Some(value.to_owned())
    }
}

impl Drop for RunningTunnel {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.end();
        }
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

#[test]
fn locked_programs_pass_only_while_adapters_are_captured() {
    let world = World::default();
    let mut tunnel = RunningTunnel::begin(&world, "gate", "");
    world.wait_for("it is open", |it| it.events.contains(&Exempted));
    tunnel.end().expect("it ends well");
    assert_eq!(world.events(), [Captured, Exempted, Blocked, Released]);
}

#[test]
fn a_failed_packet_filter_is_retried_while_locked_programs_are_blocked() {
    let world = World::default();
    world.with(|it| {
        it.looks = [true, false, false].into();
        it.reads = [true, false, false].into();
    });
    let mut tunnel = RunningTunnel::begin(&world, "fails", "");
    world.wait_for("it is open again", |it| {
        it.events.iter().filter(|what| **what == Exempted).count() == 2
    });
    tunnel.end().expect("it ends well");
    assert_eq!(
        world.events(),
        [
            Captured,
            Exempted,
            ReadFails,
            Blocked,
            NotCaptured,
            NotCaptured,
            // Capturing adapters alone does not open the gate.
            Captured,
            ReadFails,
            Captured,
            Exempted,
            Blocked,
            Released
        ]
    );
}

#[test]
fn a_packet_filter_that_never_works_is_an_error_and_locked_programs_stay_blocked() {
    let world = World::default();
    world.with(|it| it.looks = [false].into());
    let mut tunnel = RunningTunnel::begin(&world, "never", "");
    let error = tunnel.end().expect_err("it fails");
    assert_eq!(error.to_string(), "no adapters");
    assert_eq!(world.events(), [NotCaptured, Released]);
}

#[test]
fn locked_programs_are_blocked_while_a_connection_bypasses_the_packet_filter() {
    let world = World::default();
    world.with(|it| {
        // An adapter without addresses is looked up again soon.
        it.adapters = vec![ethernet()];
        it.missed = vec!["Wi-Fi".to_owned()];
    });
    let mut tunnel = RunningTunnel::begin(&world, "missed", "");
    world.wait_for("it is looked at again", |it| it.looked >= 2);
    assert!(!world.events().contains(&Exempted));
    world.with(|it| it.missed.clear());
    world.wait_for("it is open", |it| it.events.contains(&Exempted));
    world.with(|it| it.missed = vec!["Wi-Fi".to_owned()]);
    world.wait_for("it is shut again", |it| it.events.contains(&Blocked));
    tunnel.end().expect("it ends well");
}

fn ethernet() -> Adapter {
    Adapter {
        index: 1,
        name: "Ethernet".to_owned(),
        medium: Medium::Ethernet,
        mac: [2, 0, 0, 0, 0, 1],
        mtu: 1500,
        addresses: Vec::new(),
        leads_out: false,
    }
}

/// A datagram from an address that the adapter does not have.
const STRANGE: [u8; 43] = [
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, // Ethernet
    0x45, 0, 0, 29, 0, 0, 0, 0, 64, 17, 0x8e, 0x38, 192, 0, 2, 99, 198, 51, 100, 1, // IPv4
    0xc3, 0x50, 0x13, 0x88, 0, 9, 0, 0, 1, // UDP
];

#[test]
fn a_packet_with_an_unknown_source_leaves_only_if_adapters_can_be_looked_up() {
    for works in [true, false] {
        let world = World::default();
        let mut adapter = ethernet();
        adapter.addresses = vec!["192.0.2.1/24".parse().expect("an address")];
        world.with(|it| {
            it.adapters = vec![adapter];
            it.looks = [true, works].into();
            it.frames = [STRANGE.to_vec()].into();
        });
        let mut tunnel = RunningTunnel::begin(&world, &format!("strange-{works}"), "");
        if works {
            world.wait_for("it is sent", |it| !it.injected.is_empty());
        } else {
            world.wait_for("it is open again", |it| {
                it.events.iter().filter(|what| **what == Exempted).count() == 2
            });
        }
        tunnel.end().expect("it ends well");
        let sent = world.with(|it| it.injected.clone());
        assert_eq!(sent, vec![STRANGE.to_vec(); usize::from(works)]);
    }
}

#[test]
fn an_adapter_without_addresses_is_looked_up_again() {
    let world = World::default();
    world.with(|it| it.adapters = vec![ethernet()]);
    let mut tunnel = RunningTunnel::begin(&world, "address", "");
    world.wait_for("it is looked at again", |it| it.looked >= 2);
    tunnel.end().expect("it ends well");
}

#[test]
fn a_datagram_that_the_system_delivers_reaches_the_tunnel() {
    // The peer is on this machine, and the packet filter does not see loopback.
    let world = World::default();
    let peer = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a socket");
    let at = peer.local_addr().expect("an address");
    let tunnel = RunningTunnel::begin(&world, "loopback", &format!("Endpoint = {at}"));
    let mut other = responder::Responder::new(peer);
    other.initiate_to((Ipv4Addr::LOCALHOST, tunnel.port).into());
    let until = Instant::now() + PATIENCE;
    while tunnel
        .line("last_handshake_time_sec")
        .is_none_or(|at| at == "0")
    {
        assert!(Instant::now() < until, "no handshake");
        other.turn();
    }
}

#[test]
fn a_tunnel_runs_before_its_endpoint_name_has_an_address() {
    let world = World::default();
    // "localhost" has an address without a name server, "taupe.invalid" has none (RFC 6761).
    let mut tunnel = RunningTunnel::begin(&world, "unknown", "Endpoint = taupe.invalid:51820");
    world.wait_for("it is open", |it| it.events.contains(&Exempted));
    assert_eq!(tunnel.line("endpoint"), None);
    tunnel.end().expect("it ends well");

    let tunnel = RunningTunnel::begin(&world, "known", "Endpoint = localhost:51820");
    let until = Instant::now() + PATIENCE;
    while tunnel.line("endpoint").is_none() {
        assert!(Instant::now() < until, "no address");
        thread::sleep(Duration::from_millis(20));
    }
    let endpoint = tunnel.line("endpoint").expect("one");
    assert!(endpoint.ends_with(":51820"), "{endpoint}");
}

mod responder {
    //! The tunnel's peer, on a socket of this machine.

    use std::io;
    use std::net::{SocketAddr, UdpSocket};
    use std::sync::Arc;
    use std::time::Duration;
    use taupe_config::file::{Dialect, parse};
    use taupe_protocol::crypto::default_provider;
    use taupe_protocol::{Device, Endpoint, Output};
    use taupe_runtime::clock::now;
    use taupe_runtime::random::SystemRandom;

    pub(super) struct Responder {
        device: Device,
        socket: UdpSocket,
    }

    impl Responder {
        pub(super) fn new(socket: UdpSocket) -> Self {
            let wait = Some(Duration::from_millis(20));
            socket.set_read_timeout(wait).expect("set");
            let device = Device::new(default_provider(), Box::new(SystemRandom), Arc::new(|| {}));
            Self { device, socket }
        }

        /// Sets the tunnel as peer and starts a handshake with it.
        pub(super) fn initiate_to(&mut self, tunnel: SocketAddr) {
            let text = format!(
                "[Interface]\nPrivateKey = AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=\n[Peer]\n\
                 PublicKey = HIgo9xNzJMWLKASShiTqIybxZ0U3wGLiUeJ1PKf8ykw=\n\
                 AllowedIPs = 10.7.0.2/32\nEndpoint = {tunnel}\nPersistentKeepalive = 25\n"
            );
            let file = parse(text.as_bytes(), Dialect::Taupe).file.expect("a file");
            let request = taupe_client::setconf_request(&file, &[Some(tunnel)]);
            self.device.update(now(), request.device).expect("taken");
            self.device.set_up(now());
            self.turn();
        }

        pub(super) fn turn(&mut self) {
            let mut buffer = [0; 2048];
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    let from = Endpoint::from(from);
                    let _ = self
                        .device
                        .handle_message(now(), from, &buffer[..length], 0);
                }
                Err(error) => assert!(
                    matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::ConnectionReset
                    ),
                    "{error}"
                ),
            }
            self.device.handle_pending_work(now());
            self.device.handle_deadline(now());
            while let Some(output) = self.device.poll_output() {
                if let Output::Transmit {
                    endpoint, datagram, ..
                } = output
                {
                    let _ = self.socket.send_to(&datagram, endpoint.remote);
                }
            }
        }
    }
}
