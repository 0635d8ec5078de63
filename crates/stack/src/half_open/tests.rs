use super::*;
use crate::packet::bare_segment;
use smoltcp::socket::tcp::State;
use smoltcp::wire::{TcpControl, TcpPacket};
use std::net::SocketAddr;

const MTU: usize = 1420;
const US: &str = "10.0.0.1:80";

/// A listener's table, with its buffers and queue.
struct Listener {
    now: Instant,
    table: HalfOpenTable,
    buffers: BufferBudget,
    outgoing: Outgoing,
    seed: u64,
}

/// A client of the listener.
#[derive(Clone, Copy)]
struct Client {
    four_tuple: FourTuple,
    /// The sequence number of its SYN.
    initial: TcpSeqNumber,
}

impl Client {
    fn new(address: &str) -> Self {
        Self {
            four_tuple: FourTuple {
                local: US.parse().unwrap(),
                remote: address.parse().unwrap(),
            },
            initial: TcpSeqNumber(-1),
        }
    }

    fn segment(self, segment: &TcpRepr<'_>) -> Vec<u8> {
        let FourTuple { local, remote } = self.four_tuple;
        let segment = TcpRepr {
            src_port: remote.port(),
            dst_port: local.port(),
            ..*segment
        };
        tcp_packet(remote.ip().into(), local.ip().into(), &segment)
    }

    fn syn(self) -> Vec<u8> {
        self.segment(&TcpRepr {
            control: TcpControl::Syn,
            seq_number: self.initial,
            window_len: 1000,
            window_scale: Some(7),
            max_seg_size: Some(1300),
            sack_permitted: true,
            ..bare_segment(0, 0)
        })
    }

    /// Returns a segment that both begins and ends a connection.
    fn syn_and_fin(self) -> Vec<u8> {
        const TCP: usize = 20;
        let mut packet = self.syn();
        packet[TCP + 13] |= 1;
        let FourTuple { local, remote } = self.four_tuple;
        TcpPacket::new_unchecked(&mut packet[TCP..])
            .fill_checksum(&remote.ip().into(), &local.ip().into());
        packet
    }

    /// Returns a segment after the SYN that acknowledges `number`.
    fn data(self, number: TcpSeqNumber, payload: &[u8]) -> Vec<u8> {
        self.segment(&TcpRepr {
            seq_number: self.initial + 1,
            ack_number: Some(number),
            window_len: 1000,
            payload,
            ..bare_segment(0, 0)
        })
    }
}

/// The fields of a SYN-ACK.
#[derive(PartialEq, Eq, Debug)]
struct SynAck {
    to: SocketAddr,
    sequence: TcpSeqNumber,
    acknowledged: TcpSeqNumber,
    window: u16,
    scale: Option<u8>,
    mss: Option<u16>,
}

impl Listener {
    fn new() -> Self {
        Self {
            now: Instant(5_000_000_000),
            table: HalfOpenTable::new(MTU),
            buffers: BufferBudget::new(),
            outgoing: Outgoing::new(MTU),
            seed: 0,
        }
    }

    fn answer_syn(&mut self, client: Client) -> Option<SynAck> {
        self.seed += 1;
        let syn = client.syn();
        let (buffers, outgoing) = (&mut self.buffers, &mut self.outgoing);
        let syn = (client.four_tuple, &*syn);
        self.table
            .answer_syn(self.now, syn, self.seed, buffers, outgoing);
        self.sent()
    }

    fn handle(&mut self, client: Client, packet: &[u8]) -> HandshakeStep {
        let (buffers, outgoing) = (&mut self.buffers, &mut self.outgoing);
        self.table
            .handle_segment(self.now, client.four_tuple, packet, buffers, outgoing)
    }

    fn handle_deadline(&mut self) {
        let (buffers, outgoing) = (&mut self.buffers, &mut self.outgoing);
        self.table.handle_deadline(self.now, buffers, outgoing);
    }

    /// Takes the only packet of the queue: a SYN-ACK.
    fn sent(&mut self) -> Option<SynAck> {
        assert!(self.outgoing.slots().len() <= 1);
        let slot = self.outgoing.slots().first().copied()?;
        let (source, destination, tcp) = tcp(self.outgoing.packet(slot)).unwrap();
        let checksums = ChecksumCapabilities::default();
        let answer = TcpRepr::parse(&tcp, &source, &destination, &checksums).unwrap();
        assert_eq!(answer.control, TcpControl::Syn);
        assert_eq!(format!("{source}:{}", answer.src_port), US);
        let found = SynAck {
            to: SocketAddr::new(destination.into(), answer.dst_port),
            sequence: answer.seq_number,
            acknowledged: answer.ack_number.unwrap(),
            window: answer.window_len,
            scale: answer.window_scale,
            mss: answer.max_seg_size,
        };
        self.outgoing.remove(1);
        Some(found)
    }

    fn open(&mut self, client: Client, packet: &[u8]) -> Stream {
        let four_tuple = client.four_tuple;
        let half_open = self.table.take(&four_tuple, &mut self.buffers).unwrap();
        let mut stream = half_open.open(four_tuple, MTU).unwrap();
        stream.handle_packet(self.now, packet, &mut self.outgoing);
        stream
    }
}

/// Returns a client of a flood.
fn forged(number: u32) -> Client {
    let [a, b, c, d] = number.to_be_bytes();
    Client::new(&format!("172.{}.{c}.{d}:{}", 16 + a, 1024 + u16::from(b)))
}

#[test]
fn a_connection_opens_with_the_state_of_its_syn_ack() {
    let (mut listener, client) = (Listener::new(), Client::new("192.0.2.1:1000"));
    let answer = listener.answer_syn(client).unwrap();
    assert_eq!(
        answer,
        SynAck {
            to: client.four_tuple.remote,
            acknowledged: TcpSeqNumber(0),
            window: u16::MAX,
            scale: Some(5),
            mss: Some(1380),
            ..answer
        }
    );
    listener.now += Duration::from_millis(200);
    let last = client.data(answer.sequence + 1, b"hello");
    assert_eq!(listener.handle(client, &last), HandshakeStep::Complete);
    let mut stream = listener.open(client, &last);
    assert_eq!(stream.state(), State::Established);
    let mut received = [0; 9];
    assert_eq!(stream.socket().recv_slice(&mut received), Ok(5));
    assert_eq!(&received[..5], b"hello");
    // The client's window is 1000, scaled by 7 bits, and its segments have 1300 bytes.
    assert_eq!(stream.socket().send_slice(&[7; 2000]), Ok(2000));
    stream.send(listener.now, &mut listener.outgoing);
    let slots = listener.outgoing.slots().to_vec();
    let sent: Vec<_> = slots
        .iter()
        .map(|slot| {
            let (_, _, tcp) = tcp(listener.outgoing.packet(*slot)).unwrap();
            assert_eq!(tcp.ack_number(), client.initial + 1 + 5);
            (tcp.seq_number(), tcp.payload().len())
        })
        .collect();
    let next = answer.sequence + 1;
    assert_eq!(sent, [(next, 1300), (next + 1300, 700)]);
    assert_eq!(listener.table.next_deadline(), None);
    assert_eq!(listener.table.all.len(), 0);
}

#[test]
fn a_client_connects_during_a_flood() {
    const PER_MILLISECOND: u32 = 10;
    let (mut listener, client) = (Listener::new(), Client::new("192.0.2.1:1000"));
    let (mut number, mut answer) = (0, None);
    for millisecond in 0..3000 {
        listener.now += Duration::from_millis(1);
        listener.handle_deadline();
        for _ in 0..PER_MILLISECOND {
            number += 1;
            assert!(listener.answer_syn(forged(number)).is_some());
        }
        match millisecond {
            2000 => answer = listener.answer_syn(client),
            // Its round-trip time is half a second.
            2500 => {
                let last = client.data(answer.take().unwrap().sequence + 1, b"");
                assert_eq!(listener.handle(client, &last), HandshakeStep::Complete);
                let stream = listener.open(client, &last);
                assert_eq!(stream.state(), State::Established);
            }
            _ => {}
        }
        assert!(listener.table.all.len() <= MAX);
        assert_eq!(listener.table.all.len(), listener.table.order.len());
    }
    assert_eq!(listener.table.all.len(), MAX);
    let others = listener.buffers.allot();
    assert_eq!(
        others,
        BufferBudget::new().allot(),
        "buffers of other connections"
    );
    listener.now += TIMEOUT;
    listener.handle_deadline();
    assert_eq!(listener.table.next_deadline(), None);
    assert!(listener.sent().is_none());
}

#[test]
fn a_syn_ack_is_repeated_a_few_times() {
    let (mut listener, client) = (Listener::new(), Client::new("192.0.2.1:1000"));
    let began = listener.now;
    let answer = listener.answer_syn(client);
    for (seconds, is_sent) in [(1, true), (2, false), (3, true), (6, false)] {
        listener.now = began + Duration::from_secs(seconds);
        listener.handle_deadline();
        let again = listener.sent();
        assert_eq!(again.is_some(), is_sent, "{seconds} s");
        assert!(again.is_none() || again == answer);
    }
    assert_eq!(listener.table.next_deadline(), Some(began + TIMEOUT));
    // The client repeats its SYN.
    assert_eq!(
        listener.handle(client, &client.syn()),
        HandshakeStep::Handled
    );
    assert_eq!(listener.sent(), answer);
    listener.now = began + TIMEOUT;
    listener.handle_deadline();
    let last = client.data(answer.unwrap().sequence + 1, b"");
    assert_eq!(listener.handle(client, &last), HandshakeStep::Other);

    // The sources of a flood do not exist.
    let began = listener.now;
    for number in 0..=MAX_REPEATED as u32 {
        listener.answer_syn(forged(number));
    }
    assert_eq!(listener.table.next_deadline(), Some(began + TIMEOUT));
    listener.now = began + REPEATS[0];
    listener.handle_deadline();
    assert!(listener.sent().is_none());
}

#[test]
fn only_the_sender_of_the_syn_can_end_the_handshake() {
    let (mut listener, client) = (Listener::new(), Client::new("192.0.2.1:1000"));
    let answer = listener.answer_syn(client).unwrap();
    let next = answer.sequence + 1;
    let reset = |at: TcpSeqNumber| {
        client.segment(&TcpRepr {
            control: TcpControl::Rst,
            seq_number: at,
            ..bare_segment(0, 0)
        })
    };
    let mut damaged = client.data(next, b"x");
    *damaged.last_mut().unwrap() ^= 1;
    let far = Client {
        initial: client.initial + 70_000,
        ..client
    };
    for (packet, expected) in [
        (client.data(next + 1, b""), HandshakeStep::Refuse),
        (client.data(answer.sequence, b""), HandshakeStep::Refuse),
        (damaged, HandshakeStep::Handled),
        (far.data(next, b""), HandshakeStep::Handled),
        (reset(client.initial), HandshakeStep::Handled),
        (reset(client.initial + 2), HandshakeStep::Handled),
        (client.data(next, b""), HandshakeStep::Complete),
        (client.syn_and_fin(), HandshakeStep::Handled),
        (far.syn_and_fin(), HandshakeStep::Handled),
    ] {
        assert_eq!(listener.handle(client, &packet), expected);
        assert!(listener.sent().is_none());
        assert!(listener.table.all.contains_key(&client.four_tuple));
    }
    // The SYN of another number is answered as the first one was, once per second.
    for (wait, is_answered) in [(0, true), (999, false), (1, true)] {
        listener.now += Duration::from_millis(wait);
        assert_eq!(listener.handle(far, &far.syn()), HandshakeStep::Handled);
        let sent = listener.sent();
        assert_eq!(sent.as_ref(), is_answered.then_some(&answer));
    }
    let last = client.data(next, b"");
    assert_eq!(listener.handle(client, &last), HandshakeStep::Complete);
    let reset = reset(client.initial + 1);
    assert_eq!(listener.handle(client, &reset), HandshakeStep::Handled);
    assert!(listener.table.all.is_empty());
    assert_eq!(listener.buffers.allot(), BufferBudget::new().allot());
}

#[test]
fn a_client_that_has_restarted_connects_from_the_same_port() {
    let (mut listener, client) = (Listener::new(), Client::new("192.0.2.1:1000"));
    let answer = listener.answer_syn(client).unwrap();
    let again = Client {
        initial: TcpSeqNumber(500),
        ..client
    };
    assert_eq!(listener.handle(again, &again.syn()), HandshakeStep::Handled);
    let challenge = listener.sent().unwrap();
    assert_eq!(challenge, answer);
    // RFC 9293 §3.10.7.3: a client that has sent another SYN resets by the acknowledged number.
    let reset = again.segment(&TcpRepr {
        control: TcpControl::Rst,
        seq_number: challenge.acknowledged,
        ..bare_segment(0, 0)
    });
    assert_eq!(listener.handle(again, &reset), HandshakeStep::Handled);
    listener.now += Duration::from_secs(1);
    assert_eq!(listener.handle(again, &again.syn()), HandshakeStep::Other);
    let answer = listener.answer_syn(again).unwrap();
    assert_eq!(answer.acknowledged, again.initial + 1);
    assert_ne!(answer.sequence, challenge.sequence);
    let last = again.data(answer.sequence + 1, b"");
    assert_eq!(listener.handle(again, &last), HandshakeStep::Complete);
    assert_eq!(listener.open(again, &last).state(), State::Established);
}

#[test]
fn syns_over_ipv6_are_answered() {
    let mut listener = Listener::new();
    let four_tuple = FourTuple {
        local: "[fd00::1]:80".parse().unwrap(),
        remote: "[2001:db8::1]:1000".parse().unwrap(),
    };
    let client = Client {
        four_tuple,
        ..Client::new("192.0.2.1:1000")
    };
    let (buffers, outgoing) = (&mut listener.buffers, &mut listener.outgoing);
    let syn = (four_tuple, &*client.syn());
    listener
        .table
        .answer_syn(listener.now, syn, 7, buffers, outgoing);
    let (source, _, answer) = tcp(outgoing.packet(outgoing.slots()[0])).unwrap();
    assert_eq!(source.to_string(), "fd00::1");
    assert_eq!(answer.ack_number(), client.initial + 1);
}
