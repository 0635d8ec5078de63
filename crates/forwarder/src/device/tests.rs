use std::io;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use taupe_runtime::resolver::SystemResolver;
use taupe_runtime::services::Services;
use taupe_uapi::RequestReader;

use super::{Device, Event, Events, Exit, LinkState, Network, events};
use crate::{Interface, UdpSockets};

const PATIENCE: Duration = Duration::from_secs(20);

/// Private keys, and the public keys that belong to them.
const KEYS: [(&str, &str); 2] = [
    (
        "0101010101010101010101010101010101010101010101010101010101010141",
        "a4e09292b651c278b9772c569f5fa9bb13d906b46ab68c9df9dc2b4409f8a209",
    ),
    (
        "0202020202020202020202020202020202020202020202020202020202020242",
        "ce8d3ad1ccb633ec7b70c17814a5c76ecd029685050d344745ba05870e587d59",
    ),
];

/// An interface in memory.
struct Memory {
    sent: Mutex<Receiver<Option<Vec<u8>>>>,
    close: Sender<Option<Vec<u8>>>,
    given: Sender<Vec<u8>>,
}

impl Interface for Memory {
    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Ok(Some(packet)) = self.sent.lock().unwrap().recv() else {
            return Ok(None);
        };
        buffer[..packet.len()].copy_from_slice(&packet);
        Ok(Some(packet.len()))
    }

    fn write(&self, packet: &[u8]) -> io::Result<()> {
        let _ = self.given.send(packet.to_vec());
        Ok(())
    }

    fn close(&self) {
        let _ = self.close.send(None);
    }
}

/// The loopback network, without marks.
struct Loopback;

impl Network for Loopback {
    type Socket = UdpSocket;

    fn bind(&mut self, port: u16, _: u32) -> io::Result<UdpSockets<UdpSocket>> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, port))?;
        let port = socket.local_addr()?.port();
        Ok(UdpSockets::new(Some(socket), None, port))
    }

    fn set_mark(&mut self, _: &UdpSockets<UdpSocket>, _: u32) -> io::Result<()> {
        Err(io::Error::other("there are no marks here"))
    }
}

struct Running {
    events: Events,
    send: Sender<Option<Vec<u8>>>,
    given: Receiver<Vec<u8>>,
    thread: Option<JoinHandle<Exit>>,
    state: PathBuf,
}

impl Running {
    fn start(name: &str) -> Self {
        let (send, sent) = channel();
        let (give, given) = channel();
        let interface = Memory {
            sent: Mutex::new(sent),
            close: send.clone(),
            given: give,
        };
        let state = format!("taupe-device-{name}-{}", std::process::id());
        let state = std::env::temp_dir().join(state);
        let (sender, receiver) = events();
        let resolver = Arc::new(SystemResolver::default());
        let services = Services::new(Some(&state), resolver, Arc::new(|| {}));
        let device = Device::new(interface, Loopback, services, &sender, |_| {});
        Self {
            events: sender,
            send,
            given,
            thread: Some(thread::spawn(move || device.run(&receiver))),
            state,
        }
    }

    /// Sends the text of one request and returns the answer.
    fn ask(&self, text: &str) -> String {
        let mut reader = RequestReader::new();
        let mut input = text.as_bytes();
        let request = reader.push(&mut input).expect("whole").expect("valid");
        self.events.answer(request).expect("answered").to_string()
    }

    fn set(&self, lines: &str) -> String {
        self.ask(&format!("set=1\n{lines}\n\n"))
    }

    fn link(&self, up: bool) {
        let state = LinkState { up, mtu: 1420 };
        self.events.send(Event::Link(state));
    }

    fn port(&self) -> u16 {
        let text = self.ask("get=1\n\n");
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("listen_port="));
        line.map_or(0, |port| port.parse().expect("a port"))
    }

    fn stop(mut self) -> Exit {
        self.events.send(Event::End(Exit::Stopped));
        self.thread
            .take()
            .expect("running")
            .join()
            .expect("no panic")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.events.send(Event::End(Exit::Stopped));
        let _ = std::fs::remove_dir_all(&self.state);
    }
}

fn is_free(port: u16) -> bool {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn until(mut look: impl FnMut() -> bool) {
    let give_up = Instant::now() + PATIENCE;
    while !look() {
        assert!(Instant::now() < give_up, "it has not happened");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn devices_exchange_packets_as_clients_configure_them() {
    let devices = [Running::start("first"), Running::start("second")];
    for (device, (private, _)) in devices.iter().zip(KEYS) {
        device.link(true);
        assert_eq!(device.set(&format!("private_key={private}")), "errno=0\n\n");
    }
    let ports = [devices[0].port(), devices[1].port()];
    assert!(ports.iter().all(|port| *port != 0), "{ports:?}");
    for (own, other) in [(0, 1), (1, 0)] {
        let endpoint = SocketAddr::from((Ipv4Addr::LOCALHOST, ports[other]));
        let answer = devices[own].set(&format!(
            "public_key={}\nendpoint={endpoint}\nallowed_ip=10.0.0.{other}/32",
            KEYS[other].1
        ));
        assert_eq!(answer, "errno=0\n\n");
    }
    let mut packet = vec![0; 28];
    packet[0] = 0x45;
    packet[3] = 28;
    packet[9] = 17;
    packet[12..16].copy_from_slice(&[10, 0, 0, 0]);
    packet[16..20].copy_from_slice(&[10, 0, 0, 1]);
    devices[0].send.send(Some(packet.clone())).unwrap();
    assert_eq!(devices[1].given.recv_timeout(PATIENCE).unwrap(), packet);

    // A packet back to the new port: the peer has learned it by a packet from there.
    let before = devices[0].port();
    assert_eq!(devices[0].set("listen_port=0"), "errno=0\n\n");
    until(|| devices[0].port() != before);
    assert!(is_free(before));
    devices[0].send.send(Some(packet.clone())).unwrap();
    assert_eq!(devices[1].given.recv_timeout(PATIENCE).unwrap(), packet);
    let mut back = packet.clone();
    back[15] = 1;
    back[19] = 0;
    devices[1].send.send(Some(back.clone())).unwrap();
    assert_eq!(devices[0].given.recv_timeout(PATIENCE).unwrap(), back);
    for device in devices {
        assert!(matches!(device.stop(), Exit::Stopped));
    }
}

#[test]
fn the_port_is_bound_while_the_interface_is_up() {
    let device = Running::start("link");
    let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let refused = device.set(&format!("listen_port={port}"));
    assert!(refused.starts_with("errno=-"), "{refused}");
    assert_eq!(device.port(), 0, "nothing of a refused request is applied");
    drop(taken);
    assert_eq!(device.set(&format!("listen_port={port}")), "errno=0\n\n");
    assert!(is_free(port), "the interface is down");
    // Another program takes the port before the interface comes up. The device waits for it.
    let taken = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    device.link(true);
    assert_eq!(device.port(), port);
    drop(taken);
    until(|| !is_free(port));
    device.link(false);
    until(|| is_free(port));
    device.stop();
}

#[test]
fn a_mark_that_the_network_refuses_leaves_everything_as_it_was() {
    let device = Running::start("mark");
    device.link(true);
    let port = device.port();
    let refused = device.set("fwmark=1\nlisten_port=0");
    assert!(refused.contains("there are no marks here"), "{refused}");
    assert_eq!(device.port(), port);
    assert_eq!(device.set("fwmark=0"), "errno=0\n\n");
    device.stop();
}

#[test]
fn a_closed_interface_ends_nothing_and_an_event_ends_the_device() {
    let device = Running::start("end");
    device.events.send(Event::End(Exit::InterfaceDeleted));
    let events = device.events.clone();
    let mut device = device;
    let exit = device.thread.take().unwrap().join().unwrap();
    assert!(matches!(exit, Exit::InterfaceDeleted));
    let mut reader = RequestReader::new();
    let mut input = &b"get=1\n\n"[..];
    let request = reader.push(&mut input).unwrap().unwrap();
    assert!(events.answer(request).is_none(), "the device has ended");
}
