//! The flood filter, which drops a flood of handshake messages in the kernel.
//!
//! Receiving a message costs more than finding out that it is unwanted. So during a flood, the
//! handshake sockets have an eBPF socket filter (`bpf/flood_filter.c`). It keeps answers to messages
//! of this device. It also keeps messages of senders that have sent one some 5 s before, because a
//! genuine peer retries after that time. It keeps few messages of new senders.
//!
//! The filter takes Linux 5.8 and `CAP_BPF`; before Linux 5.11 also `CAP_SYS_RESOURCE` or a limit
//! of locked memory (`RLIMIT_MEMLOCK`) above 20 MiB. If the system refuses it, the device receives
//! all messages, and only `taupe_protocol` limits them.

use aya::maps::{HashMap, MapData, MapError, PerCpuArray};
use aya::programs::socket_filter::SocketFilterError;
use aya::programs::{ProgramError, SocketFilter};
use aya::{Ebpf, EbpfError, EbpfLoader, include_bytes_aligned};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use taupe_os_linux::memory::without_memlock_limit;
use taupe_protocol::message::{sent_index, shapes};
use thiserror::Error;
use tracing::{debug, info, warn};

use crate::system::{LoadedFilter, System};

/// The object that `scripts/bpf` compiles from `bpf/flood_filter.c`.
static OBJECT: &[u8] = include_bytes_aligned!("bpf/flood_filter.o");

/// The filter of a device's handshake sockets.
pub(crate) struct FloodFilter {
    state: ProgramState,
    /// Set while the filter is attached to the sockets.
    is_on: bool,
    /// The drop counter when it was last read.
    dropped: u64,
    /// The drop counter when the flood began.
    dropped_before: u64,
}

/// State of the program. It is loaded when the first flood begins (messages wait in the sockets
/// meanwhile) and stays loaded, because it remembers senders.
enum ProgramState {
    Unloaded,
    /// The options forbid it.
    Forbidden,
    Loaded(Box<dyn LoadedFilter>),
}

/// The program in the kernel.
pub(crate) struct Program {
    object: Ebpf,
    awaited: HashMap<MapData, u32, u32>,
    dropped: PerCpuArray<MapData, u64>,
}

#[derive(Debug, Error)]
enum FilterError {
    #[error(transparent)]
    Object(#[from] EbpfError),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("the object lacks {0}")]
    Missing(&'static str),
}

impl FloodFilter {
    pub(crate) fn new(is_wanted: bool) -> Self {
        Self {
            state: if is_wanted {
                ProgramState::Unloaded
            } else {
                ProgramState::Forbidden
            },
            is_on: false,
            dropped: 0,
            dropped_before: 0,
        }
    }

    /// Call this after the sockets have been replaced: the new ones have no filter.
    pub(crate) fn forget_sockets(&mut self) {
        self.is_on = false;
    }

    /// Returns true if the filter should be attached to the sockets, as last set.
    pub(crate) fn is_active(&self) -> bool {
        self.is_on
    }

    /// Attaches the filter to the sockets (when a flood begins), or detaches it (when it ends). Does
    /// nothing without sockets. Loads the program if necessary.
    pub(crate) fn set_active(
        &mut self,
        is_active: bool,
        sockets: &[BorrowedFd<'_>],
        system: &mut dyn System,
    ) {
        if sockets.is_empty() {
            return;
        }
        if is_active && let ProgramState::Unloaded = self.state {
            self.state = match system.load_flood_filter() {
                Ok(program) => ProgramState::Loaded(program),
                Err(error) => {
                    info!(
                        %error,
                        "a flood of handshakes cannot be shed in the kernel, which takes \
                         CAP_BPF: all of it is received"
                    );
                    ProgramState::Unloaded
                }
            };
        }
        // Set this even if attaching fails, or each round would try again.
        self.is_on = is_active;
        let ProgramState::Loaded(program) = &mut self.state else {
            return;
        };
        self.dropped = program.dropped().unwrap_or(self.dropped);
        let refused = program.attach(sockets, is_active).err();
        let shed = self.dropped.saturating_sub(self.dropped_before);
        match (is_active, refused) {
            (true, None) => {
                self.dropped_before = self.dropped;
                info!("a flood of handshakes: shed in the kernel");
            }
            (true, Some(error)) => {
                self.dropped_before = self.dropped;
                info!(%error, "a flood of handshakes: a socket cannot shed it, and receives all");
            }
            (false, None) => {
                info!(shed, "the flood of handshakes is over");
            }
            (false, Some(error)) => {
                warn!(%error, shed, "the flood of handshakes is over: a socket sheds on, and delays others");
            }
        }
    }

    /// Makes the filter keep answers to `message`, if it is of a kind that is answered.
    pub(crate) fn expect_answer(&mut self, message: &[u8]) {
        let ProgramState::Loaded(program) = &mut self.state else {
            return;
        };
        if let Some(index) = sent_index(message) {
            program.expect_answer(index);
        }
    }

    /// Returns the number of datagrams that the filter has dropped since the last call.
    pub(crate) fn newly_dropped(&mut self) -> u64 {
        if !self.is_on {
            return 0;
        }
        let ProgramState::Loaded(program) = &mut self.state else {
            return 0;
        };
        let Some(dropped) = program.dropped() else {
            return 0;
        };
        dropped.saturating_sub(std::mem::replace(&mut self.dropped, dropped))
    }
}

impl Program {
    /// Loads the program.
    pub(crate) fn load() -> Result<Box<dyn LoadedFilter>, String> {
        match without_memlock_limit(Self::load_object) {
            Ok(program) => Ok(Box::new(program)),
            Err(error) => Err(error.to_string()),
        }
    }

    fn load_object() -> Result<Self, FilterError> {
        // Nobody on the network must be able to predict which bits stand for a sender.
        let mut secret = [0; 16];
        taupe_runtime::random::fill(&mut secret);
        let mut object = EbpfLoader::new()
            .override_global("secret", &secret, true)
            // The program needs no kernel types (BTF), which take 20 ms to read.
            .btf(None)
            .load(OBJECT)?;
        let filter: &mut SocketFilter = object
            .program_mut("flood_filter")
            .ok_or(FilterError::Missing("the program"))?
            .try_into()?;
        filter.load()?;
        let known = object
            .map_mut("shapes")
            .ok_or(FilterError::Missing("the shapes"))?;
        let mut known = HashMap::<_, [u32; 2], u32>::try_from(known)?;
        for shape in shapes() {
            let key = [u32::from_ne_bytes(shape.header), shape.length as u32];
            known.insert(key, shape.receiver_at.unwrap_or(0) as u32, 0)?;
        }
        let awaited = object.take_map("awaited");
        let awaited = awaited
            .ok_or(FilterError::Missing("the answers"))?
            .try_into()?;
        let dropped = object.take_map("dropped");
        let dropped = dropped
            .ok_or(FilterError::Missing("the counter"))?
            .try_into()?;
        let program = Self {
            object,
            awaited,
            dropped,
        };
        // The counter must be readable: without it, a filtered flood would look like its end.
        program.count()?;
        Ok(program)
    }

    fn filter(&self, socket: BorrowedFd<'_>, on: bool) -> Result<(), FilterError> {
        if !on {
            return match SocketFilter::detach(socket) {
                // The socket has no filter: attaching failed, which has been logged.
                Err(ProgramError::SocketFilterError(SocketFilterError::SetsockoptError {
                    io_error,
                    ..
                })) if io_error.raw_os_error() == Some(Errno::NOENT.raw_os_error()) => Ok(()),
                detached => Ok(detached?),
            };
        }
        let filter = self.object.program("flood_filter");
        let filter = filter.ok_or(FilterError::Missing("the program"))?;
        Ok(<&SocketFilter>::try_from(filter)?.attach(socket)?)
    }

    /// Returns the number of datagrams dropped so far, summed over all processors.
    fn count(&self) -> Result<u64, MapError> {
        let counts = self.dropped.get(&0, 0)?;
        Ok(counts.iter().sum())
    }
}

impl LoadedFilter for Program {
    fn attach(&mut self, sockets: &[BorrowedFd<'_>], on: bool) -> Result<(), String> {
        let mut refused = Ok(());
        for socket in sockets {
            refused = refused.and(self.filter(*socket, on));
        }
        refused.map_err(|error| error.to_string())
    }

    fn expect_answer(&mut self, index: u32) {
        if let Err(error) = self.awaited.insert(index.to_le(), 0, 0) {
            debug!(%error, "having an answer kept in a flood");
        }
    }

    fn dropped(&mut self) -> Option<u64> {
        self.count().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
    use std::os::fd::AsFd as _;
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use taupe_protocol::message::Shape;
    use taupe_runtime::resolver::SystemResolver;

    use crate::options::Underlay;
    use crate::system::Environment;

    use rustix::thread::{CapabilitySet, capabilities};
    use taupe_os_linux::udp::{Options, RECEIVE_BUFFER_LEN, Receive, Socket};
    use taupe_packet::ip::Family;

    /// A socket with the filter. Other sockets send to it over loopback.
    struct Scene {
        filter: FloodFilter,
        socket: UdpSocket,
    }

    impl Scene {
        fn new(address: impl Into<IpAddr>) -> Option<Self> {
            let socket = UdpSocket::bind((address.into(), 0)).expect("a socket");
            socket.set_nonblocking(true).expect("an option");
            let filter = filter(socket.as_fd())?;
            Some(Self { filter, socket })
        }

        fn stranger(&self) -> UdpSocket {
            let to = self.socket.local_addr().expect("an address");
            let socket = UdpSocket::bind((to.ip(), 0)).expect("a socket");
            socket.connect(to).expect("a destination");
            socket
        }

        /// Sends `count` messages. Returns how many of them the filter has kept and dropped.
        /// Loopback delivers at once.
        fn send(&mut self, from: &UdpSocket, message: &[u8], count: usize) -> (usize, u64) {
            for _ in 0..count {
                from.send(message).expect("sending");
            }
            let mut kept = 0;
            let mut buffer = [0; 2048];
            while let Ok((length, sender)) = self.socket.recv_from(&mut buffer) {
                assert_eq!(&buffer[..length], message);
                let expected: SocketAddr = from.local_addr().expect("an address");
                assert_eq!(sender, expected);
                kept += 1;
            }
            (kept, self.filter.newly_dropped())
        }
    }

    fn message(kind: [u8; 4], length: usize) -> Vec<u8> {
        let mut message = vec![0xa5; length];
        message[..4].copy_from_slice(&kind);
        message
    }

    fn environment() -> Environment {
        let resolver = Arc::new(SystemResolver::default());
        Environment::of_this_process(Underlay::Here, None, resolver, None)
    }

    /// Attaches a filter to the socket. Returns `None` without the right to load programs, which
    /// every CI job has.
    fn filter(socket: BorrowedFd<'_>) -> Option<FloodFilter> {
        let mut filter = FloodFilter::new(true);
        filter.set_active(true, &[socket], &mut *environment().system);
        if let ProgramState::Loaded(_) = filter.state {
            return Some(filter);
        }
        let rights = capabilities(None).expect("capabilities").effective;
        let may = CapabilitySet::BPF | CapabilitySet::SYS_ADMIN;
        // Capabilities of another user namespace do not allow loading programs.
        let map = std::fs::read_to_string("/proc/self/uid_map").expect("procfs");
        let is_first = map.split_whitespace().eq(["0", "0", "4294967295"]);
        assert!(
            !(is_first && rights.intersects(may)),
            "who may load it has it loaded"
        );
        eprintln!("skipped: loading programs into the kernel takes CAP_BPF");
        None
    }

    /// Returns the number in `#define NAME number` of the filter's source.
    fn constant(name: &str) -> usize {
        let lines = include_str!("bpf/flood_filter.c").lines();
        let mut values = lines.filter_map(|line| {
            let value = line.strip_prefix("#define ")?.strip_prefix(name)?;
            value.trim().parse().ok()
        });
        values.next().unwrap_or_else(|| panic!("{name} is missing"))
    }

    /// Returns the number of messages of one known sender that the filter keeps in a generation, or
    /// a few fewer if their bits coincide. Twice as many if a new generation begins meanwhile.
    fn kept_of_one() -> std::ops::RangeInclusive<usize> {
        let most = constant("KEPT_OF_ONE");
        most - 3..=2 * most
    }

    /// Returns the largest number of messages that are kept besides in this time, both for new
    /// senders and for repeated messages.
    fn early(took: Duration) -> usize {
        let turns = (took.as_nanos() >> constant("TURN_BITS")) as usize + 2;
        constant("EARLY") * turns
    }

    #[test]
    fn a_sender_that_retries_after_five_seconds_passes_the_filter() {
        let addresses: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        let initiation = message([1, 0, 0, 0], 148);
        let scenes = addresses.map(|address| {
            let mut scene = Scene::new(address)?;
            let first = scene.stranger();
            let start = Instant::now();
            let (kept, shed) = scene.send(&first, &initiation, 64);
            assert_eq!(kept as u64 + shed, 64, "{address}");
            let most = early(start.elapsed());
            assert!((1..=most).contains(&kept), "{address}: {kept} of newcomers");
            Some((scene, first, start))
        });
        for (mut scene, first, mut last) in scenes.into_iter().flatten() {
            // On a busy machine the test may sleep so long that the filter forgets the sender.
            let again = (0..3).any(|_| {
                let due = last + Duration::from_millis(5_100);
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                last = Instant::now();
                let (kept, shed) = scene.send(&first, &initiation, 64);
                assert_eq!(kept as u64 + shed, 64);
                let most = kept_of_one().end() + early(last.elapsed());
                (*kept_of_one().start()..=most).contains(&kept)
            });
            assert!(again, "never kept");
            // Some repeated messages are always kept, and they do not use up the share of new
            // senders.
            let limit = Instant::now() + Duration::from_secs(2);
            let mut kept = 0;
            while kept <= *kept_of_one().end() {
                assert!(Instant::now() < limit, "{kept} of what is repeated");
                std::thread::sleep(Duration::from_millis(10));
                kept += scene.send(&first, &initiation, 64).0;
                let newcomer = scene.stranger();
                assert_eq!(
                    scene.send(&newcomer, &initiation, 1),
                    (1, 0),
                    "after {kept}"
                );
            }
            // Even a slow machine sends more than four messages per 8 ms.
            let late = scene.stranger();
            let limit = Instant::now() + Duration::from_secs(10);
            while scene.send(&late, &initiation, 64).1 == 0 {
                assert!(Instant::now() < limit, "all of a newcomer's are kept");
            }
            let sockets = [scene.socket.as_fd()];
            scene
                .filter
                .set_active(false, &sockets, &mut *environment().system);
            let ProgramState::Loaded(program) = &mut scene.filter.state else {
                panic!("it stays loaded");
            };
            let again = program.attach(&sockets, false);
            assert!(again.is_ok(), "where there is none: {again:?}");
            assert_eq!(scene.send(&late, &initiation, 64), (64, 0), "afterwards");
        }
    }

    #[test]
    fn awaited_answers_pass_the_filter() {
        let Some(mut scene) = Scene::new(Ipv4Addr::LOCALHOST) else {
            return;
        };
        let stranger = scene.stranger();
        let mut initiation = message([1, 0, 0, 0], 148);
        initiation[4..8].copy_from_slice(&[1, 2, 3, 4]);
        for shape in shapes() {
            let Some(at) = shape.receiver_at else {
                continue;
            };
            scene.filter.expect_answer(&initiation);
            let mut answer = message(shape.header, shape.length);
            answer[at..at + 4].copy_from_slice(&[1, 2, 3, 4]);
            let answers = constant("ANSWERS");
            let kept = scene.send(&stranger, &answer, answers);
            assert_eq!(kept, (answers, 0), "{shape:?}");
            // Neither more answers than expected, nor answers to another message.
            for last in [4, 5] {
                answer[at + 3] = last;
                let start = Instant::now();
                // No more at a time than the socket's buffer holds.
                let kept: usize = (0..4)
                    .map(|_| {
                        let (kept, shed) = scene.send(&stranger, &answer, 64);
                        assert_eq!(kept as u64 + shed, 64);
                        kept
                    })
                    .sum();
                // A very slow machine sends no more than are kept; then this proves nothing.
                let most = kept_of_one().end() + early(start.elapsed());
                assert!(kept <= most, "{kept} of {shape:?}");
            }
        }
    }

    #[test]
    fn only_handshake_messages_pass_the_filter() {
        let Some(mut scene) = Scene::new(Ipv4Addr::LOCALHOST) else {
            return;
        };
        let stranger = scene.stranger();
        for Shape {
            header: kind,
            length,
            ..
        } in shapes()
        {
            // Some messages of a new sender are kept.
            let all = message(kind, length);
            let limit = Instant::now() + Duration::from_secs(3);
            while scene.send(&stranger, &all, 1).0 == 0 {
                assert!(
                    Instant::now() < limit,
                    "{kind:?} of {length} B is never kept"
                );
                std::thread::sleep(Duration::from_millis(1));
            }
            for (kind, length) in [
                (kind, length - 1),
                (kind, length + 1),
                ([kind[0], kind[1], kind[2], 1], length),
                ([kind[0] ^ 0x80, kind[1], kind[2], kind[3]], length),
            ] {
                std::thread::sleep(Duration::from_millis(1));
                let shed = scene.send(&stranger, &message(kind, length), 16);
                assert_eq!(shed, (0, 16), "{kind:?} of {length} B");
            }
        }
        // Data messages belong to another socket.
        assert_eq!(
            scene.send(&stranger, &message([4, 0, 0, 0], 148), 1),
            (0, 1)
        );
        assert_eq!(scene.send(&stranger, &[1, 0, 0], 1), (0, 1));
    }

    #[test]
    fn merged_messages_are_filtered_by_segment_length() {
        let socket = || Socket::bind(Family::V4, 0, Options::default()).expect("a socket");
        let receiver = socket();
        assert!(receiver.gro(), "this kernel merges");
        let Some(mut filter) = filter(receiver.as_fd()) else {
            return;
        };
        let to = (Ipv4Addr::LOCALHOST, receiver.local_port()).into();
        // Returns the batches kept of a super-packet (bytes and segment size), and the drops. Each is
        // from a new sender: a sender of the last generation would be a known one.
        let mut send = |length, count| {
            let sender = socket();
            assert!(sender.gso(), "this kernel merges");
            let messages = message([1, 0, 0, 0], length).repeat(count);
            let sent = sender.send(to, None, 0, &messages, length);
            sent.result.expect("sending");
            let mut buffer = vec![0; RECEIVE_BUFFER_LEN];
            let received = receiver.receive_ready(&mut buffer).expect("receiving");
            let kept = match received {
                Some(Receive::Datagrams(all)) => {
                    all.iter().map(|one| (one.len, one.segment)).collect()
                }
                _ => Vec::new(),
            };
            (kept, filter.newly_dropped())
        };
        assert_eq!(send(74, 2), (vec![], 2), "together as long as one");
        assert_eq!(send(148, 4), (vec![(4 * 148, 148)], 0));
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(send(148, 5), (vec![], 5), "more than of newcomers at once");
    }
}
