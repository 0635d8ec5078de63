//! Tests that unacknowledged data always has a deadline and finally arrives. The receiver is a
//! model whose window opens and closes at random, over links that lose, delay and reorder.

use super::{ACK, FIN, FLOW, MTU, SYN, Segment, THEIRS};
use crate::outgoing::Outgoing;
use crate::stream::{Stream, Windows};
use core::time::Duration;
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::socket::tcp::State;
use smoltcp::wire::{Ipv4Packet, TcpPacket, TcpSeqNumber};
use std::collections::BTreeMap;
use taupe_protocol::time::Instant;

/// Event at one moment.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The program sends this many bytes, as far as there is room.
    Write(usize),
    /// The receiver has room for this many bytes, perhaps fewer than it advertised.
    Window(u16),
    /// Time passes, in ms.
    Pass(u64),
    /// A router reports a shorter MTU.
    ShorterMtu,
    /// The program closes its direction.
    Close,
    /// The receiver closes its direction.
    TheyClose,
}

/// A link: loses `loss` of 100 packets, and delays the others by up to `delay` ms.
#[derive(Clone, Copy, Debug)]
struct Link {
    loss: u32,
    delay: u64,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let window = prop_oneof![3 => Just(0), 1 => 1..3000u16, 2 => 3000..=u16::MAX];
    let event = prop_oneof![
        4 => (1..20_000usize).prop_map(Event::Write),
        4 => window.prop_map(Event::Window),
        6 => (0..400u64).prop_map(Event::Pass),
        1 => (400..5000u64).prop_map(Event::Pass),
        1 => Just(Event::ShorterMtu),
        1 => Just(Event::Close),
        1 => Just(Event::TheyClose),
    ];
    vec(event, 1..80)
}

fn links() -> impl Strategy<Value = [Link; 2]> {
    let link = (prop_oneof![Just(0), 1..40u32], 0..300u64);
    let link = link.prop_map(|(loss, delay)| Link { loss, delay });
    [link.clone(), link]
}

/// The other side. Offsets are relative to the first byte after a SYN.
#[derive(Default)]
struct Receiver {
    received: Vec<u8>,
    /// Data behind a hole, by offset.
    early: BTreeMap<usize, Vec<u8>>,
    window: u16,
    /// The end of the sender's data, once its FIN has come.
    end: Option<usize>,
    has_end: bool,
    closed: bool,
}

impl Receiver {
    /// Handles a segment. Returns true if it must be acknowledged.
    fn take(&mut self, at: i32, flags: u8, payload: &[u8]) -> bool {
        let next = self.received.len();
        let edge = next + usize::from(self.window);
        if flags & FIN != 0 && usize::try_from(at).is_ok_and(|at| at + payload.len() <= edge) {
            self.end = Some(at as usize + payload.len());
        }
        if let Ok(at) = usize::try_from(at)
            && !payload.is_empty()
            && at < edge
        {
            let fits = payload.len().min(edge - at);
            self.early.insert(at, payload[..fits].to_vec());
        }
        while let Some((at, piece)) = self.early.pop_first() {
            let next = self.received.len();
            if at > next {
                self.early.insert(at, piece);
                break;
            }
            self.received
                .extend(piece.get(next - at..).unwrap_or_default());
        }
        self.has_end |= self.end == Some(self.received.len());
        !payload.is_empty() || flags & (SYN | FIN) != 0
    }

    fn segment(&self) -> Segment {
        let mut options = Vec::new();
        if let Some((at, piece)) = self.early.first_key_value() {
            options = vec![5, 10];
            // Relative offsets. [`World::transmit_back`] replaces them by sequence numbers.
            options.extend((*at as u32).to_be_bytes());
            options.extend(((at + piece.len()) as u32).to_be_bytes());
        }
        Segment {
            sequence: i32::from(self.closed),
            acknowledged: self.received.len() as i32 + i32::from(self.has_end),
            flags: ACK,
            window: self.window,
            options,
            payload: Vec::new(),
        }
    }
}

struct World {
    now: Instant,
    random: u64,
    stream: Stream,
    outgoing: Outgoing,
    receiver: Receiver,
    /// The sequence number of the sender's first byte.
    ours: TcpSeqNumber,
    links: [Link; 2],
    /// Packets in flight, by arrival time and order, with `true` for those to the receiver.
    on_the_way: BTreeMap<(Instant, u64), (bool, Vec<u8>)>,
    serial: u64,
    written: Vec<u8>,
    is_closed: bool,
    /// Time at which the receiver retransmits its FIN.
    fin_again: Option<Instant>,
}

impl World {
    fn new(links: [Link; 2], window: u16, seed: u64) -> Self {
        let now = Instant(5_000_000_000);
        let windows = Windows {
            receive: 1 << 14,
            send: 1 << 16,
        };
        let stream = Stream::connect(now, FLOW, MTU, windows, seed);
        let mut world = Self {
            now,
            random: seed | 1,
            stream: stream.unwrap(),
            outgoing: Outgoing::new(MTU),
            receiver: Receiver {
                window,
                ..Receiver::default()
            },
            ours: TcpSeqNumber(0),
            links,
            on_the_way: BTreeMap::new(),
            serial: 0,
            written: Vec::new(),
            is_closed: false,
            fin_again: None,
        };
        world.stream.send(now, &mut world.outgoing);
        let first = world.outgoing.packet(world.outgoing.slots()[0]);
        world.ours = TcpPacket::new_checked(&first[20..]).unwrap().seq_number() + 1;
        world.outgoing.remove(1);
        let answer = Segment {
            sequence: -1,
            flags: SYN | ACK,
            // The option "SACK permitted".
            options: vec![4, 2],
            ..world.receiver.segment()
        };
        let answer = answer.packet(THEIRS, world.ours);
        world
            .stream
            .handle_packet(now, &answer, &mut world.outgoing);
        world
    }

    /// Returns a random number below `end` (xorshift).
    fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end.max(1)
    }

    fn transmit(&mut self, to_receiver: bool, packet: Vec<u8>) {
        let Link { loss, delay } = self.links[usize::from(to_receiver)];
        if self.below(100) < u64::from(loss) {
            return;
        }
        let delay = Duration::from_micros(self.below(1000 * delay + 1));
        self.serial += 1;
        let arrival = (self.now + delay, self.serial);
        self.on_the_way.insert(arrival, (to_receiver, packet));
    }

    /// Makes the receiver acknowledge its data.
    fn acknowledge(&mut self, flags: u8) {
        let mut segment = self.receiver.segment();
        segment.flags |= flags;
        if flags & FIN != 0 {
            segment.sequence = 0;
        }
        for end in segment
            .options
            .get_mut(2..)
            .unwrap_or_default()
            .chunks_mut(4)
        {
            let at = u32::from_be_bytes(*end.first_chunk().unwrap());
            end.copy_from_slice(&(self.ours.0 as u32).wrapping_add(at).to_be_bytes());
        }
        let packet = segment.packet(THEIRS, self.ours);
        self.transmit(false, packet);
    }

    fn they_close(&mut self) {
        self.receiver.closed = true;
        self.fin_again = Some(self.now + Duration::from_secs(1));
        self.acknowledge(FIN);
    }

    /// Sends the sender's data, and checks that unacknowledged data has a deadline.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        while !self.stream.send(self.now, &mut self.outgoing) {
            self.flush();
        }
        self.flush();
        let state = self.stream.state();
        let closing = matches!(state, State::FinWait1 | State::Closing | State::LastAck);
        if self.stream.has_unacknowledged() || closing {
            let deadline = self.stream.deadline(self.now);
            prop_assert!(
                deadline.is_some_and(|at| at > self.now),
                "{state}, {} bytes unacknowledged, deadline {deadline:?} at {:?}",
                self.stream.socket().send_queue(),
                self.now
            );
        }
        Ok(())
    }

    fn flush(&mut self) {
        for at in 0..self.outgoing.slots().len() {
            let packet = self.outgoing.packet(self.outgoing.slots()[at]).to_vec();
            self.transmit(true, packet);
        }
        self.outgoing.remove(self.outgoing.slots().len());
    }

    fn arrive(&mut self, to_receiver: bool, packet: &[u8]) {
        if !to_receiver {
            self.stream
                .handle_packet(self.now, packet, &mut self.outgoing);
            return;
        }
        let ip = Ipv4Packet::new_checked(packet).unwrap();
        let tcp = TcpPacket::new_checked(ip.payload()).unwrap();
        let at = tcp.seq_number().0.wrapping_sub(self.ours.0);
        let flags = if tcp.fin() { FIN } else { 0 };
        if tcp.ack_number() == THEIRS + 1 {
            self.fin_again = None;
        }
        if self.receiver.take(at, flags, tcp.payload()) {
            self.acknowledge(0);
        }
    }

    /// Advances time, with all events in it.
    fn pass(&mut self, until: Instant) -> Result<(), TestCaseError> {
        loop {
            self.settle()?;
            let arrival = self.on_the_way.first_key_value();
            let arrival = arrival.map(|((at, _), _)| *at);
            let deadline = self.stream.deadline(self.now);
            let next = [arrival, deadline, self.fin_again]
                .into_iter()
                .flatten()
                .min();
            let Some(next) = next.filter(|next| *next <= until) else {
                self.now = until;
                return Ok(());
            };
            self.now = self.now.max(next);
            if arrival == Some(next)
                && let Some((_, (to_receiver, packet))) = self.on_the_way.pop_first()
            {
                self.arrive(to_receiver, &packet);
            } else if self.fin_again == Some(next) {
                self.they_close();
            }
        }
    }

    fn happen(&mut self, event: Event) -> Result<(), TestCaseError> {
        match event {
            Event::Write(length) if !self.is_closed => {
                let from = self.written.len();
                let bytes: Vec<_> = (from..from + length).map(|at| (at % 251) as u8).collect();
                let sent = self.stream.socket().send_slice(&bytes).unwrap_or(0);
                self.written.extend(&bytes[..sent]);
            }
            Event::Window(window) => {
                let was_closed = self.receiver.window == 0;
                self.receiver.window = window;
                if was_closed && window > 0 {
                    self.acknowledge(0);
                }
            }
            Event::ShorterMtu => self.stream.lower_mtu(self.now, 1300),
            Event::Close if !self.is_closed => {
                self.is_closed = true;
                self.stream.socket().close();
            }
            Event::TheyClose if !self.receiver.closed => self.they_close(),
            Event::Pass(time) => return self.pass(self.now + Duration::from_millis(time)),
            Event::Write(_) | Event::Close | Event::TheyClose => {}
        }
        self.settle()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn unacknowledged_data_is_retransmitted_until_it_arrives(
        events in events(),
        links in links(),
        window in any::<u16>(),
        seed in any::<u64>(),
    ) {
        let mut world = World::new(links, window, seed);
        for event in events {
            world.happen(event)?;
        }
        // From here on nothing is lost, and the receiver accepts everything.
        world.links = [Link { loss: 0, delay: 50 }; 2];
        world.happen(Event::Window(u16::MAX))?;
        world.happen(Event::Close)?;
        // Probes and retransmissions are at most one minute apart.
        world.pass(world.now + Duration::from_secs(150))?;
        prop_assert_eq!(world.receiver.received.len(), world.written.len());
        prop_assert!(world.receiver.received == world.written, "other bytes");
        prop_assert!(world.receiver.has_end, "the end has not come");
        prop_assert!(!world.stream.has_unacknowledged());
    }
}
