mod closing;
mod icmp;
mod keepalive;
mod liveness;

use super::{Stream, Windows};
use crate::outgoing::Outgoing;
use crate::packet::{FourTuple, Incoming, parse, tcp};
use core::time::Duration;
use proptest::collection::vec;
use proptest::prelude::*;
use smoltcp::socket::tcp::State;
use smoltcp::wire::{IpProtocol, Ipv4Packet, TcpPacket, TcpSeqNumber};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use taupe_protocol::time::Instant;

const US: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 1000);
const THEM: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 1), 80);
const FLOW: FourTuple = FourTuple {
    local: SocketAddr::V4(US),
    remote: SocketAddr::V4(THEM),
};
const MTU: usize = 1420;
const FIN: u8 = 0x01;
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// A segment from the other side. Checksums are correct.
#[derive(Clone, Debug)]
struct Segment {
    /// Relative to the first byte after the other side's SYN. `acknowledged` is relative to ours.
    sequence: i32,
    acknowledged: i32,
    flags: u8,
    window: u16,
    options: Vec<u8>,
    payload: Vec<u8>,
}

impl Segment {
    /// Returns a segment without options and data.
    fn new(sequence: i32, acknowledged: i32, flags: u8) -> Self {
        Self {
            sequence,
            acknowledged,
            flags,
            window: 1 << 15,
            options: Vec::new(),
            payload: Vec::new(),
        }
    }

    fn packet(&self, theirs: TcpSeqNumber, ours: TcpSeqNumber) -> Vec<u8> {
        let header = 20 + self.options.len().next_multiple_of(4);
        let mut packet = vec![0; 20 + header + self.payload.len()];
        let length = packet.len() as u16;
        let mut ip = Ipv4Packet::new_unchecked(&mut packet);
        ip.set_version(4);
        ip.set_header_len(20);
        ip.set_total_len(length);
        ip.set_hop_limit(64);
        ip.set_next_header(IpProtocol::Tcp);
        ip.set_src_addr(*THEM.ip());
        ip.set_dst_addr(*US.ip());
        ip.fill_checksum();
        let bytes = ip.payload_mut();
        bytes[20..20 + self.options.len()].copy_from_slice(&self.options);
        bytes[header..].copy_from_slice(&self.payload);
        let mut tcp = TcpPacket::new_unchecked(bytes);
        tcp.set_src_port(THEM.port());
        tcp.set_dst_port(US.port());
        tcp.set_seq_number(TcpSeqNumber(theirs.0.wrapping_add(self.sequence)));
        tcp.set_ack_number(TcpSeqNumber(ours.0.wrapping_add(self.acknowledged)));
        tcp.set_header_len(header as u8);
        tcp.set_window_len(self.window);
        tcp.into_inner()[13] = self.flags;
        TcpPacket::new_unchecked(ip.payload_mut())
            .fill_checksum(&(*THEM.ip()).into(), &(*US.ip()).into());
        packet
    }
}

fn segments() -> impl Strategy<Value = Segment> {
    let near = || prop_oneof![-2..3, -70_000..70_000, any::<i32>()];
    // Selective acknowledgements, and random options.
    let holes = vec(near(), 1..4).prop_map(|ends: Vec<i32>| {
        let mut option = vec![5, 2 + 8 * ends.len() as u8];
        for end in ends {
            option.extend(end.to_be_bytes());
            option.extend(end.wrapping_add(1000).to_be_bytes());
        }
        option
    });
    let options = prop_oneof![Just(Vec::new()), holes, vec(any::<u8>(), 0..40)];
    let flags = prop_oneof![Just(ACK), any::<u8>()];
    let payload = prop_oneof![Just(Vec::new()), vec(any::<u8>(), 0..1360)];
    (near(), near(), flags, any::<u16>(), options, payload).prop_map(
        |(sequence, acknowledged, flags, window, options, payload)| Segment {
            sequence,
            acknowledged,
            flags,
            window,
            options,
            payload,
        },
    )
}

/// A connection to a host that a test plays.
struct World {
    now: Instant,
    stream: Stream,
    outgoing: Outgoing,
    /// The sequence number of this side's first byte.
    ours: TcpSeqNumber,
}

/// The sequence number of the host's first byte.
const THEIRS: TcpSeqNumber = TcpSeqNumber(-3);

impl World {
    /// Begins to connect.
    fn connecting() -> Self {
        let windows = Windows {
            receive: 1 << 16,
            send: 1 << 16,
        };
        let now = Instant(5_000_000_000);
        let stream = Stream::connect(now, FLOW, MTU, windows, 7).unwrap();
        let mut world = Self {
            now,
            stream,
            outgoing: Outgoing::new(MTU),
            ours: TcpSeqNumber(0),
        };
        let [syn] = &*world.sent() else {
            panic!("no SYN");
        };
        let (_, _, syn) = tcp(syn).unwrap();
        world.ours = syn.seq_number() + 1;
        world
    }

    /// Connects.
    fn open() -> Self {
        let mut world = Self::connecting();
        let mut answer = Segment::new(-1, 0, SYN | ACK);
        // The option "maximum segment size".
        answer.options = vec![2, 4];
        answer.options.extend((MTU as u16 - 40).to_be_bytes());
        world.receive(&answer);
        world.sent();
        assert_eq!(world.stream.state(), State::Established);
        world
    }

    fn receive(&mut self, segment: &Segment) {
        let packet = segment.packet(THEIRS, self.ours);
        self.stream
            .handle_packet(self.now, &packet, &mut self.outgoing);
    }

    /// Returns the packets that are sent now.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        assert!(self.stream.send(self.now, &mut self.outgoing));
        let slots = self.outgoing.slots().to_vec();
        let packets = slots
            .iter()
            .map(|slot| self.outgoing.packet(*slot).to_vec());
        let packets = packets.collect();
        self.outgoing.remove(slots.len());
        packets
    }

    /// Returns the lengths of the packets that are sent now, in bytes.
    fn sent_lengths(&mut self) -> Vec<usize> {
        self.sent().iter().map(Vec::len).collect()
    }
}

proptest! {
    /// If the other side sends arbitrary segments, this side sends only segments of the connection
    /// that fit the tunnel, and buffers no more bytes than its window. It acknowledges exactly the
    /// number that it expects in a reset.
    #[test]
    fn arbitrary_segments_do_not_panic(segments in vec(segments(), 1..40), is_open in any::<bool>()) {
        let windows = Windows { receive: 1 << 14, send: 1 << 14 };
        let mut now = Instant(5_000_000_000);
        let stream = Stream::connect(now, FLOW, MTU, windows, 7);
        let (mut stream, mut outgoing) = (stream.unwrap(), Outgoing::new(MTU));
        prop_assert!(stream.send(now, &mut outgoing));
        let first = outgoing.packet(outgoing.slots()[0]);
        let ours = TcpPacket::new_checked(&first[20..]).unwrap().seq_number() + 1;
        let theirs = THEIRS;
        let answer = Segment::new(-1, 0, SYN | ACK);
        if is_open {
            stream.handle_packet(now, &answer.packet(theirs, ours), &mut outgoing);
            prop_assert!(stream.socket().send_slice(&[7; 9000]).is_ok());
        }
        for segment in segments {
            let packet = segment.packet(theirs, ours);
            prop_assert!(matches!(parse(&packet), Some(Incoming::Tcp(_))));
            stream.handle_packet(now, &packet, &mut outgoing);
            stream.send(now, &mut outgoing);
            for slot in outgoing.slots() {
                let sent = outgoing.packet(*slot);
                let four_tuple = FourTuple { local: THEM.into(), remote: US.into() };
                prop_assert!(sent.len() <= MTU);
                let (_, _, tcp) = tcp(sent).unwrap();
                if tcp.ack() && !tcp.rst() && stream.state() != State::Closed {
                    prop_assert_eq!(Some(tcp.ack_number()), stream.receive_space.next());
                }
                prop_assert_eq!(parse(sent), Some(Incoming::Tcp(four_tuple)));
            }
            outgoing.remove(outgoing.slots().len());
            prop_assert!(stream.socket().recv_queue() <= windows.receive);
            now = stream.deadline(now).map_or(now, |at| at.max(now));
        }
    }
}

#[test]
fn a_syn_is_sent_and_retransmitted() {
    let windows = Windows {
        receive: 1 << 16,
        send: 1 << 16,
    };
    for (us, them) in [
        ("10.0.0.1:1000", "192.0.2.1:80"),
        ("[fd00::1]:1000", "[2001:db8::1]:80"),
    ] {
        let (local, remote) = (us.parse().unwrap(), them.parse().unwrap());
        let now = Instant(5_000_000_000);
        let flow = FourTuple { local, remote };
        let mut stream = Stream::connect(now, flow, MTU, windows, 7).unwrap();
        let mut outgoing = Outgoing::new(MTU);
        assert!(stream.send(now, &mut outgoing));
        let [slot] = *outgoing.slots() else {
            panic!("{} packets", outgoing.slots().len());
        };
        // Swapped, because `parse` takes the receiver's view.
        let four_tuple = FourTuple {
            local: remote,
            remote: local,
        };
        assert_eq!(
            parse(outgoing.packet(slot)),
            Some(Incoming::Tcp(four_tuple))
        );
        outgoing.remove(1);
        let again = stream.deadline(now).unwrap();
        let wait = again.since(now).as_millis();
        assert!((100..3000).contains(&wait), "{wait} ms");
        assert!(stream.send(now, &mut outgoing) && outgoing.slots().is_empty());
        assert!(stream.send(again, &mut outgoing) && outgoing.slots().len() == 1);
    }
    let nowhere = FourTuple {
        remote: "0.0.0.0:80".parse().unwrap(),
        ..FLOW
    };
    let stream = Stream::connect(Instant(0), nowhere, MTU, windows, 7);
    assert!(stream.is_none());
}

#[test]
fn a_connection_without_room_has_no_deadline() {
    let windows = Windows {
        receive: 1 << 16,
        send: 1 << 16,
    };
    let now = Instant(5_000_000_000);
    let mut stream = Stream::connect(now, FLOW, MTU, windows, 7).unwrap();
    let mut outgoing = Outgoing::new(MTU);
    while outgoing.has_room() {
        outgoing.push(40, |_| {});
    }
    assert!(!stream.send(now, &mut outgoing));
    assert_eq!(stream.deadline(now), None);
    outgoing.remove(outgoing.slots().len());
    assert!(stream.send(now, &mut outgoing));
    assert_eq!(outgoing.slots().len(), 1);
    assert!(stream.deadline(now).is_some_and(|at| at > now));
}

#[test]
fn a_reset_must_have_the_expected_sequence_number() {
    let mut world = World::open();
    for (at, is_answered) in [(1, true), (1000, false), (-1, false), (70_000, false)] {
        world.receive(&Segment::new(at, 0, RST));
        assert_eq!(world.stream.state(), State::Established, "{at}");
        let answers: Vec<_> = world.sent();
        assert_eq!(answers.len(), usize::from(is_answered), "{at}");
        for answer in answers {
            let (_, _, answer) = tcp(&answer).unwrap();
            assert!(answer.ack() && answer.ack_number() == THEIRS);
        }
    }
    world.now += Duration::from_secs(1);
    // The reset comes behind data that is not acknowledged yet.
    let mut data = Segment::new(0, 0, ACK);
    data.payload = vec![7; 100];
    world.receive(&data);
    world.receive(&Segment::new(100, 0, RST));
    assert_eq!(world.stream.state(), State::Closed);

    let mut world = World::connecting();
    world.receive(&Segment::new(-1, 0, RST | ACK));
    assert_eq!(world.stream.state(), State::Closed);
}

#[test]
fn resets_outside_the_window_are_ignored() {
    let mut world = World::open();
    for number in [-1, 1 << 30] {
        world.receive(&Segment::new(number, 0, RST));
        assert!(world.sent().is_empty(), "{number}");
    }
    world.receive(&Segment::new(1, 0, RST));
    assert_eq!(world.sent().len(), 1, "a challenge");
    world.receive(&Segment::new(0, 0, RST));
    assert_eq!(world.stream.state(), State::Closed);
}

#[test]
fn a_reset_behind_delayed_acknowledgements_is_accepted_despite_forged_ones() {
    let mut data = Segment::new(0, 0, ACK);
    data.payload = vec![7; 100];
    let mut end = data.clone();
    end.flags |= FIN;
    for (last, expected) in [(data, 100), (end, 101)] {
        let mut world = World::open();
        // A forged reset uses up the challenge of this second.
        world.receive(&Segment::new(1000, 0, RST));
        assert_eq!(world.sent().len(), 1);
        world.receive(&last);
        world.receive(&Segment::new(0, 0, RST));
        assert!(world.sent().is_empty(), "the acknowledgement is delayed");
        assert_ne!(world.stream.state(), State::Closed, "a stale number");
        let mut received = [0; 40];
        assert_eq!(world.stream.socket().recv_slice(&mut received), Ok(40));
        world.receive(&Segment::new(expected, 0, RST));
        assert_eq!(world.stream.state(), State::Closed);
    }
}
