use super::*;
use rustix::net::{RecvFlags, recv};
use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use taupe_protocol::Lanes;
use taupe_protocol::time::Instant;

const SOON: Duration = Duration::from_secs(10);
const MILLISECOND: u64 = 1_000_000;

/// A packet of a test: its number, and the time and bytes of the turn that carries it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packet {
    number: u64,
    /// Milliseconds of the boot clock.
    at: u64,
    bytes: u64,
}

/// The number of a packet that waits in the path until the next turn.
const WAITING: u64 = u64::MAX;

/// A packet path that reports each packet to the test, with the name of the thread.
struct Fake {
    source: UnixDatagram,
    backlog: Option<Packet>,
    carried: mpsc::Sender<(Packet, String)>,
}

impl PacketPath for Fake {
    fn source(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }

    fn backlog(&self) -> Option<Duration> {
        self.backlog.map(|_| Duration::from_millis(1))
    }

    fn turn(&mut self, waits: bool) -> ControlFlow<(), Turn> {
        if let Some(packet) = self.backlog.take() {
            assert!(!waits, "the packet would wait for the next one");
            return ControlFlow::Continue(self.carry(packet));
        }
        let flags = if waits {
            RecvFlags::empty()
        } else {
            RecvFlags::DONTWAIT
        };
        let mut words = [0; 24];
        let (_, length) = recv(&self.source, &mut words[..], flags).expect("a packet");
        let mut words = words[..length].chunks(8).map(|word| {
            let word = word.try_into().expect("whole words");
            u64::from_ne_bytes(word)
        });
        let [Some(number), Some(at), Some(bytes)] = [words.next(), words.next(), words.next()]
        else {
            return ControlFlow::Break(());
        };
        let packet = Packet { number, at, bytes };
        if number == WAITING {
            self.backlog = Some(packet);
            return ControlFlow::Continue(turn_at(at, 0));
        }
        ControlFlow::Continue(self.carry(packet))
    }
}

impl Fake {
    fn carry(&self, packet: Packet) -> Turn {
        let name = thread::current().name().expect("a name").to_owned();
        self.carried.send((packet, name)).expect("a test");
        turn_at(packet.at, packet.bytes)
    }
}

fn turn_at(at: u64, bytes: u64) -> Turn {
    let now = Instant(at * MILLISECOND);
    Turn {
        read_at: now,
        ended: now,
        bytes: bytes as usize,
    }
}

/// The test's end of a path's source.
struct End {
    source: UnixDatagram,
    carried: mpsc::Receiver<(Packet, String)>,
    thread: JoinHandle<()>,
}

fn send(source: &UnixDatagram, packet: Packet) {
    let Packet { number, at, bytes } = packet;
    let words = [number, at, bytes].map(u64::to_ne_bytes);
    source.send(words.as_flattened()).expect("room");
}

impl End {
    /// Sends a packet and returns the name of the thread that carried it.
    fn carries(&self, at: u64, bytes: u64) -> String {
        self.carries_packet(0, at, bytes)
    }

    fn carries_packet(&self, number: u64, at: u64, bytes: u64) -> String {
        let packet = Packet { number, at, bytes };
        send(&self.source, packet);
        let (carried, by) = self.carried.recv_timeout(SOON).expect("carried");
        assert_eq!(carried, packet);
        by
    }

    /// Ends the source: an empty datagram is shorter than a packet.
    fn close(&self) {
        self.source.send(&[]).expect("room");
    }

    fn has_ended(self) {
        // The path is dropped when its thread ends.
        assert!(self.carried.recv_timeout(SOON).is_err());
        self.thread.join().expect("no panic");
        assert!(self.source.send(&[]).is_err(), "the source is open");
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    let thread = thread::Builder::new().name(name.to_owned());
    thread.spawn(work).expect("a thread")
}

/// The threads of a device with three lanes.
struct Device {
    shared_thread: Arc<SharedThread>,
    loads: [Arc<LaneLoad>; 3],
}

/// Starts the shared thread.
fn start() -> (Device, JoinHandle<()>) {
    let (shared_thread, arrivals) = SharedThread::new(Offloads::default()).expect("an eventfd");
    let shared_thread = Arc::new(shared_thread);
    let own = Arc::clone(&shared_thread);
    let both = spawn("both", move || run_shared(&own, &arrivals));
    let device = Device {
        shared_thread,
        loads: Default::default(),
    };
    (device, both)
}

impl Device {
    /// Starts the dedicated thread of a path.
    fn dedicated(&self, lane: LaneId, direction: Direction, name: &str) -> End {
        let (near, source) = UnixDatagram::pair().expect("a pair");
        near.set_write_timeout(Some(SOON)).expect("a limit");
        let (report, carried) = mpsc::channel();
        let fake = Fake {
            source,
            backlog: None,
            carried: report,
        };
        let shared_thread = Arc::clone(&self.shared_thread);
        let load = Arc::clone(&self.loads[lane.number()]);
        let id = PathId { lane, direction };
        let thread = spawn(name, move || {
            run_dedicated(&shared_thread, &load, id, Box::new(fake));
        });
        End {
            source: near,
            carried,
            thread,
        }
    }

    fn outbound(&self) -> End {
        self.dedicated(LaneId::FIRST, Direction::Outbound, "out")
    }

    fn inbound(&self) -> End {
        self.dedicated(LaneId::FIRST, Direction::Inbound(Family::V4), "in")
    }
}

#[test]
fn one_thread_carries_both_directions_while_traffic_is_light() {
    let (device, _both) = start();
    let (out, inbound) = (device.outbound(), device.inbound());
    assert_eq!(out.carries(1000, 100), "out", "it waits for the first");
    assert_eq!(inbound.carries(1001, 100), "in");
    for at in [1010, 2000, 2010, 2020] {
        assert_eq!(out.carries(at, 100), "both");
        assert_eq!(inbound.carries(at + 1, 100), "both");
    }
    // This packet ends the window, and its bytes exceed the bound for 10 ms.
    assert_eq!(inbound.carries(2035, HEAVY_BYTES * 2), "both");
    for at in (2036..2090).step_by(2) {
        assert_eq!(out.carries(at, LIGHT_BYTES / 5), "out");
        assert_eq!(inbound.carries(at + 1, 100), "in", "though it has little");
    }
    assert_eq!(inbound.carries(2139, 100), "in");
    assert_eq!(inbound.carries(2160, 100), "both");
    assert_eq!(out.carries(2160, 100), "out", "it waits there");
    assert_eq!(out.carries(2180, 100), "both");
}

#[test]
fn only_busy_lanes_have_dedicated_threads() {
    let (device, _both) = start();
    let second = LaneId::new(1).expect("a lane");
    let (out, inbound) = (device.outbound(), device.inbound());
    let other = device.dedicated(second, Direction::Outbound, "out 1");
    assert_eq!(out.carries(1000, 100), "out");
    assert_eq!(inbound.carries(1001, 100), "in");
    assert_eq!(other.carries(1002, 100), "out 1");
    assert_eq!(other.carries(1003, 100), "both");
    // The first lane is heavy in a window in which the second has no packets.
    assert_eq!(out.carries(2000, 100), "both");
    assert_eq!(out.carries(2011, HEAVY_BYTES * 2), "both");
    assert_eq!(out.carries(2012, 100), "out");
    assert_eq!(
        inbound.carries(2013, 100),
        "in",
        "the paths of a lane move together"
    );
    assert_eq!(other.carries(2014, 100), "both", "the other lane is light");
    // The second lane becomes heavy too, while the first one still is.
    assert_eq!(other.carries(2030, HEAVY_BYTES * 2), "both");
    assert_eq!(other.carries(2031, 100), "out 1");
    // The first lane comes back, whatever the second one does.
    assert_eq!(out.carries(2080, 100), "out");
    assert_eq!(out.carries(2081, 100), "both");
}

#[test]
fn light_lanes_return_only_while_the_shared_thread_can_carry_them() {
    const BYTES: u64 = LIGHT_BYTES / 4 * 3;
    let (device, _both) = start();
    let names = ["a", "b", "c"];
    let lanes = names.iter().zip(Lanes::Four.ids());
    let lanes = lanes.map(|(name, lane)| device.dedicated(lane, Direction::Outbound, name));
    let lanes: Vec<End> = lanes.collect();
    for (lane, name) in lanes.iter().zip(names) {
        assert_eq!(lane.carries(1000, 100), name);
        assert_eq!(lane.carries(1001, 100), "both");
    }
    assert_eq!(lanes[0].carries(2000, 100), "both");
    // Each is light, but not all of them in one window.
    for (lane, at) in lanes.iter().zip([2003, 2006, 2011]) {
        assert_eq!(lane.carries(at, BYTES), "both");
    }
    for at in (2022..2060).step_by(11) {
        for (lane, name) in lanes.iter().zip(names) {
            assert_eq!(lane.carries(at, BYTES), name);
        }
    }
    assert_eq!(lanes[0].carries(2066, BYTES), "a");
    assert_eq!(lanes[0].carries(2067, 100), "both", "there is room");
    for at in (2068..2200).step_by(11) {
        for (lane, name) in lanes.iter().zip(["both", "b", "c"]) {
            assert_eq!(lane.carries(at, BYTES), name, "{at}");
        }
    }
}

#[test]
fn traffic_is_heavy_from_1_6_and_light_below_0_8_gbit_a_second() {
    // The load of 10 ms, for a rate in tenths of a Gbit/s.
    let load = |tenths: u64| Load {
        bytes: tenths * 100_000_000 / 8 / 100,
        ..Load::default()
    };
    assert!(is_heavy(load(16)));
    assert!(!is_heavy(load(15)));
    assert!(!is_light(load(8)));
    assert!(is_light(load(7)));
}

#[test]
fn a_backlog_is_carried_without_another_packet() {
    let (device, _both) = start();
    let out = device.outbound();
    // Traffic is light, but the path does not migrate with packets.
    assert_eq!(out.carries_packet(WAITING, 1000, 100), "out");
    assert_eq!(out.carries(1010, 100), "out");
    assert_eq!(out.carries(1020, 100), "both");
    assert_eq!(out.carries_packet(WAITING, 1030, 100), "both");
    assert_eq!(out.carries(1040, 100), "both");
}

#[test]
fn packets_stay_in_order_when_their_path_migrates() {
    const COUNT: u64 = 20_000;
    let (device, _both) = start();
    let out = device.outbound();
    let packets = (0..COUNT).map(|number| Packet {
        number,
        at: 1000 + 10 * number,
        bytes: if number / 7 % 2 == 0 { HEAVY_BYTES } else { 0 },
    });
    let (mut changes, mut last) = (0, String::new());
    thread::scope(|scope| {
        let (source, all) = (&out.source, packets.clone());
        scope.spawn(|| all.for_each(|packet| send(source, packet)));
        for packet in packets.clone() {
            let (carried, by) = out.carried.recv_timeout(SOON).expect("carried");
            assert_eq!(carried, packet);
            changes += u64::from(by != last);
            last = by;
        }
    });
    assert!(changes > COUNT / 20, "{changes}");
}

#[test]
fn a_thread_ends_with_its_source() {
    let (device, _both) = start();
    let (out, inbound) = (device.outbound(), device.inbound());
    inbound.close();
    inbound.has_ended();
    let inbound = device.inbound();
    assert_eq!(out.carries(1000, 100), "out");
    assert_eq!(inbound.carries(1000, 100), "in");
    assert_eq!(inbound.carries(1001, 100), "both");
    inbound.close();
    inbound.has_ended();
    assert_eq!(out.carries(1002, 100), "both");
}

#[test]
fn the_shared_thread_drops_its_paths_when_it_ends() {
    let (device, both) = start();
    let (out, inbound) = (device.outbound(), device.inbound());
    assert_eq!(out.carries(1000, 100), "out");
    assert_eq!(out.carries(1001, 100), "both");
    device.shared_thread.end();
    both.join().expect("no panic");
    out.has_ended();
    // The dedicated thread waits for its source, and then finds the shared thread gone.
    assert_eq!(inbound.carries(1002, 100), "in");
    inbound.has_ended();
}
