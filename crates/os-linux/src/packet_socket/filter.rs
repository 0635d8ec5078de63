//! Classic BPF programs that select packets (`Documentation/networking/filter.rst` of Linux).
//!
//! A load beyond the end of a packet ends the program, and the packet is not captured. So every load
//! that a short packet could make fail comes after a test of the length.

use std::net::{IpAddr, SocketAddr};

/// Captured bytes of a packet.
pub const SNAP_LENGTH: usize = 512;

/// Most flows per family in a filter. More would make jumps too long for an instruction.
pub const MAX_FLOWS: usize = 8;

const TCP: u32 = 6;
const UDP: u32 = 17;

/// First byte of an IPv4 header of 20 bytes.
const V4_WITHOUT_OPTIONS: u32 = 0x45;

/// `PACKET_HOST` and `PACKET_OUTGOING` (`linux/if_packet.h`).
const HOST: u32 = 0;
const OUTGOING: u32 = 4;

/// `ARPHRD_LOOPBACK`.
const LOOPBACK: u32 = 772;

/// A UDP flow between a port of this machine and a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UdpFlow {
    /// The port of this machine.
    pub local_port: u16,
    /// The peer.
    pub remote: SocketAddr,
}

/// Direction of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From this machine.
    Sent,
    /// To this machine.
    Received,
}

/// Packets that a socket gets.
#[derive(Clone, Copy, Debug)]
pub enum PacketFilter<'a> {
    /// Packets that leave this machine.
    Sent {
        /// Flows that are left out, at most [`MAX_FLOWS`] of each family.
        except: &'a [UdpFlow],
        /// Index of an interface at which only the first packet of a TCP connection is captured.
        only_syn_on: Option<u32>,
    },
    /// Packets of flows, at most [`MAX_FLOWS`] of each family.
    Flows {
        /// The flows.
        flows: &'a [UdpFlow],
        /// Direction of the packets.
        direction: Direction,
    },
}

/// Target of a jump.
#[derive(Clone, Copy)]
enum Label {
    /// The following instruction.
    Next,
    /// This many instructions are skipped.
    Skip(u8),
    /// The packet belongs to a flow.
    Flow,
    /// It does not.
    Other,
    /// The packet is not captured.
    Reject,
}

/// An instruction whose jumps have labels.
struct Instruction {
    code: u32,
    then: Label,
    otherwise: Label,
    value: u32,
}

#[derive(Default)]
struct Assembler(Vec<Instruction>);

impl Assembler {
    fn add(&mut self, code: u32, value: u32) {
        self.jump(code, value, Label::Next, Label::Next);
    }

    fn jump(&mut self, code: u32, value: u32, then: Label, otherwise: Label) {
        self.0.push(Instruction {
            code,
            then,
            otherwise,
            value,
        });
    }

    /// Loads bytes at a fixed offset.
    fn load(&mut self, size: u32, offset: u32) {
        self.add(libc::BPF_LD | size | libc::BPF_ABS, offset);
    }

    /// Loads a property of the packet that is not in its bytes (`SKF_AD_*`).
    fn load_property(&mut self, property: i32) {
        self.load(libc::BPF_W, (libc::SKF_AD_OFF + property).cast_unsigned());
    }

    fn if_equal(&mut self, value: u32, then: Label, otherwise: Label) {
        let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        self.jump(code, value, then, otherwise);
    }

    fn if_any_bit(&mut self, bits: u32, then: Label, otherwise: Label) {
        let code = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
        self.jump(code, bits, then, otherwise);
    }

    /// Sets the value of the last instruction.
    fn set_last(&mut self, value: u32) {
        if let Some(last) = self.0.last_mut() {
            last.value = value;
        }
    }

    /// Continues only with packets of at least this length.
    fn if_long_enough(&mut self, length: u32, otherwise: Label) {
        self.add(libc::BPF_LD | libc::BPF_W | libc::BPF_LEN, 0);
        let code = libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K;
        self.jump(code, length, Label::Next, otherwise);
    }

    /// Compares one flow.
    fn flow(&mut self, flow: &UdpFlow, direction: Direction) {
        let (words, is_v4): (Vec<u32>, bool) = match flow.remote.ip() {
            IpAddr::V4(address) => (vec![address.to_bits()], true),
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                let word = |shift: u32| ((bits >> shift) & u128::from(u32::MAX)) as u32;
                ([96, 64, 32, 0].map(word).to_vec(), false)
            }
        };
        let address = match (is_v4, direction) {
            (true, Direction::Sent) => 16,
            (true, Direction::Received) => 12,
            (false, Direction::Sent) => 24,
            (false, Direction::Received) => 8,
        };
        let ports = match direction {
            Direction::Sent => [flow.local_port, flow.remote.port()],
            Direction::Received => [flow.remote.port(), flow.local_port],
        };
        let start = if is_v4 { 20 } else { 40 };
        let count = words.len() as u8;
        // Two instructions for each word and each port.
        let mut left = 2 * (count + 2);
        for (offset, word) in (address..).step_by(4).zip(words) {
            left -= 2;
            self.load(libc::BPF_W, offset);
            self.if_equal(word, Label::Next, Label::Skip(left));
        }
        self.load(libc::BPF_H, start);
        self.if_equal(ports[0].into(), Label::Next, Label::Skip(2));
        self.load(libc::BPF_H, start + 2);
        self.if_equal(ports[1].into(), Label::Flow, Label::Next);
    }

    /// Appends the three ends, and resolves the labels.
    fn finish(mut self, at_flow: u32, at_other: &[Instruction]) -> Vec<libc::sock_filter> {
        let flow = self.0.len();
        let other = flow + 1;
        let accept = |value| Instruction {
            code: libc::BPF_RET | libc::BPF_K,
            then: Label::Next,
            otherwise: Label::Next,
            value,
        };
        self.0.push(accept(at_flow));
        self.0
            .extend(at_other.iter().map(|one| Instruction { ..*one }));
        let reject = self.0.len();
        self.0.push(accept(0));
        let resolve = |at: usize, label: Label| match label {
            Label::Next => 0,
            Label::Skip(count) => count,
            Label::Flow => (flow - at - 1) as u8,
            Label::Other => (other - at - 1) as u8,
            Label::Reject => (reject - at - 1) as u8,
        };
        let instructions = self.0.iter().enumerate();
        let instructions = instructions.map(|(at, one)| libc::sock_filter {
            code: one.code as u16,
            jt: resolve(at, one.then),
            jf: resolve(at, one.otherwise),
            k: one.value,
        });
        instructions.collect()
    }
}

impl PacketFilter<'_> {
    /// Returns the instructions.
    pub(super) fn program(&self) -> Vec<libc::sock_filter> {
        let (flows, direction, at_flow, at_other) = match *self {
            PacketFilter::Sent {
                except,
                only_syn_on,
            } => (except, Direction::Sent, 0, others(only_syn_on)),
            PacketFilter::Flows { flows, direction } => {
                (flows, direction, SNAP_LENGTH as u32, ends(0))
            }
        };
        let mut program = Assembler::default();
        program.load_property(libc::SKF_AD_PKTTYPE);
        let wanted = match direction {
            Direction::Sent => OUTGOING,
            Direction::Received => HOST,
        };
        program.if_equal(wanted, Label::Next, Label::Reject);
        program.load_property(libc::SKF_AD_HATYPE);
        program.if_equal(LOOPBACK, Label::Reject, Label::Next);
        let of = |is_v4: bool| {
            let own = flows
                .iter()
                .filter(move |flow| flow.remote.is_ipv4() == is_v4);
            own.take(MAX_FLOWS)
        };
        // A shorter packet has no ports.
        program.if_long_enough(28, Label::Other);
        let mut v4 = Assembler::default();
        v4.load(libc::BPF_B, 9);
        v4.if_equal(UDP, Label::Next, Label::Other);
        v4.load(libc::BPF_H, 6);
        // A fragment other than the first has no ports.
        v4.if_any_bit(0x1fff, Label::Other, Label::Next);
        of(true).for_each(|flow| v4.flow(flow, direction));
        v4.add(libc::BPF_JMP | libc::BPF_JA, 0);
        let mut v6 = Assembler::default();
        v6.load(libc::BPF_B, 0);
        v6.add(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 4);
        v6.if_equal(6, Label::Next, Label::Other);
        v6.if_long_enough(48, Label::Other);
        v6.load(libc::BPF_B, 6);
        v6.if_equal(UDP, Label::Next, Label::Other);
        of(false).for_each(|flow| v6.flow(flow, direction));
        v6.add(libc::BPF_JMP | libc::BPF_JA, 0);
        // Each part ends with a jump to the instructions for other packets, over the end for flows.
        v4.set_last(v6.0.len() as u32 + 1);
        v6.set_last(1);

        program.load(libc::BPF_B, 0);
        // The device sends no IP options, which would move the ports.
        program.if_equal(
            V4_WITHOUT_OPTIONS,
            Label::Next,
            Label::Skip(v4.0.len() as u8),
        );
        program.0.append(&mut v4.0);
        program.0.append(&mut v6.0);
        program.finish(at_flow, &at_other)
    }
}

/// Returns an end with this value.
fn ends(value: u32) -> Vec<Instruction> {
    vec![Instruction {
        code: libc::BPF_RET | libc::BPF_K,
        then: Label::Next,
        otherwise: Label::Next,
        value,
    }]
}

/// Returns the instructions for packets that belong to none of the flows.
fn others(only_syn_on: Option<u32>) -> Vec<Instruction> {
    const SYN: u32 = 2;
    let Some(interface) = only_syn_on else {
        return ends(SNAP_LENGTH as u32);
    };
    // Packets that cannot be judged are captured. `accept` follows each test that may lead there.
    let accept = |part: &mut Assembler| part.0.append(&mut ends(SNAP_LENGTH as u32));
    let syn = |part: &mut Assembler, flags: u32| {
        part.if_long_enough(flags + 1, Label::Next);
        if let Some(last) = part.0.last_mut() {
            (last.then, last.otherwise) = (Label::Skip(1), Label::Next);
        }
        accept(part);
        part.load(libc::BPF_B, flags);
        part.if_any_bit(SYN, Label::Next, Label::Skip(1));
        accept(part);
        part.0.append(&mut ends(0));
    };
    let mut v4 = Assembler::default();
    v4.load(libc::BPF_B, 9);
    v4.if_equal(TCP, Label::Skip(1), Label::Next);
    accept(&mut v4);
    v4.load(libc::BPF_H, 6);
    v4.if_any_bit(0x1fff, Label::Next, Label::Skip(1));
    accept(&mut v4);
    syn(&mut v4, 33);
    let mut v6 = Assembler::default();
    v6.add(libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K, 4);
    v6.if_equal(6, Label::Skip(1), Label::Next);
    accept(&mut v6);
    v6.load(libc::BPF_B, 6);
    v6.if_equal(TCP, Label::Skip(1), Label::Next);
    accept(&mut v6);
    syn(&mut v6, 53);

    let mut part = Assembler::default();
    part.load_property(libc::SKF_AD_IFINDEX);
    part.if_equal(interface, Label::Skip(1), Label::Next);
    accept(&mut part);
    part.if_long_enough(20, Label::Next);
    if let Some(last) = part.0.last_mut() {
        (last.then, last.otherwise) = (Label::Skip(1), Label::Next);
    }
    accept(&mut part);
    part.load(libc::BPF_B, 0);
    part.if_equal(
        V4_WITHOUT_OPTIONS,
        Label::Next,
        Label::Skip(v4.0.len() as u8),
    );
    part.0.append(&mut v4.0);
    part.0.append(&mut v6.0);
    part.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: u32 = 5;

    /// Runs a program on a packet that leaves by an interface, as the kernel does.
    fn run(program: &[libc::sock_filter], packet: &[u8], kind: u32, interface: u32) -> u32 {
        let property = |offset: u32| match offset.wrapping_sub(libc::SKF_AD_OFF.cast_unsigned()) {
            4 => Some(kind),
            8 => Some(interface),
            28 => Some(1),
            _ => None,
        };
        let (mut at, mut word) = (0, 0u32);
        loop {
            let one = program[at];
            at += 1;
            let (code, k) = (u32::from(one.code), one.k);
            let jump = |is: bool| usize::from(if is { one.jt } else { one.jf });
            match code & 7 {
                libc::BPF_LD if code & 0xe0 == libc::BPF_LEN => word = packet.len() as u32,
                libc::BPF_LD => {
                    let size = [4, 2, 1][(code >> 3 & 3) as usize];
                    let bytes = packet.get(k as usize..).and_then(|rest| rest.get(..size));
                    let loaded = bytes.map(|bytes| {
                        bytes
                            .iter()
                            .fold(0, |sum, byte| sum << 8 | u32::from(*byte))
                    });
                    match property(k).or(loaded) {
                        Some(loaded) => word = loaded,
                        None => return 0,
                    }
                }
                libc::BPF_ALU => word >>= k,
                libc::BPF_JMP => {
                    at += match code & 0xf0 {
                        libc::BPF_JA => k as usize,
                        libc::BPF_JEQ => jump(word == k),
                        libc::BPF_JGE => jump(word >= k),
                        libc::BPF_JSET => jump(word & k != 0),
                        other => panic!("{other}"),
                    }
                }
                libc::BPF_RET => return k,
                other => panic!("{other}"),
            }
        }
    }

    fn v4(protocol: u8, to: [u8; 4], ports: [u16; 2]) -> Vec<u8> {
        let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1];
        packet.extend(to);
        packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        packet.resize(60, 0);
        packet
    }

    fn v6(protocol: u8, last: u8, ports: [u16; 2]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0, 0, 20, protocol, 64];
        packet.resize(40, 0);
        (packet[24], packet[39]) = (0x20, last);
        packet.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        packet.resize(60, 0);
        packet
    }

    fn flows(count: u8) -> Vec<UdpFlow> {
        let of = |number: u8| {
            let remote = [[198, 51, 100, number].into(), {
                let mut address = [0; 16];
                (address[0], address[15]) = (0x20, number);
                IpAddr::from(address)
            }];
            remote.map(|address| UdpFlow {
                local_port: 1000,
                remote: SocketAddr::new(address, 51820),
            })
        };
        (1..=count).flat_map(of).collect()
    }

    #[test]
    fn only_packets_of_the_flows_are_left_out() {
        for count in [1, 2, 8, 20] {
            let flows = flows(count);
            let filter = PacketFilter::Sent {
                except: &flows,
                only_syn_on: Some(OWN),
            };
            let program = filter.program();
            let length = SNAP_LENGTH as u32;
            let sent = |packet: &[u8]| run(&program, packet, OUTGOING, 2);
            for last in 1..=count.min(MAX_FLOWS as u8) {
                for own in [
                    v4(17, [198, 51, 100, last], [1000, 51820]),
                    v6(17, last, [1000, 51820]),
                ] {
                    assert_eq!(sent(&own), 0, "{last} of {count}");
                }
                for other in [
                    v4(6, [198, 51, 100, last], [1000, 51820]),
                    v4(17, [198, 51, 101, last], [1000, 51820]),
                    v4(17, [198, 51, 100, last], [1001, 51820]),
                    v4(17, [198, 51, 100, last], [1000, 51821]),
                    v6(17, last, [1001, 51820]),
                    v6(17, last, [1000, 51821]),
                    v6(17, 100, [1000, 51820]),
                    v6(6, last, [1000, 51820]),
                ] {
                    assert_eq!(sent(&other), length, "{other:?}");
                }
            }
            // Fragments and options hide ports, and such packets are captured.
            let mut fragment = v4(17, [198, 51, 100, 1], [1000, 51820]);
            fragment[7] = 1;
            let mut options = v4(17, [198, 51, 100, 1], [1000, 51820]);
            options[0] = 0x46;
            for odd in [
                &fragment[..],
                &options,
                &[],
                &[0x45],
                &[0x60; 30],
                &[0; 60],
                b"x",
            ] {
                assert_eq!(sent(odd), length, "{odd:?}");
            }
            assert_eq!(run(&program, &fragment, HOST, 2), 0, "it has arrived");
        }
    }

    #[test]
    fn flows_are_counted_in_one_direction() {
        let flows = flows(3);
        let filter = |direction| PacketFilter::Flows {
            flows: &flows,
            direction,
        };
        let (sent, received) = (filter(Direction::Sent), filter(Direction::Received));
        let own = v6(17, 3, [1000, 51820]);
        assert_ne!(run(&sent.program(), &own, OUTGOING, 2), 0);
        assert_eq!(run(&sent.program(), &own, HOST, 2), 0);
        let mut answer = v4(17, [192, 0, 2, 1], [51820, 1000]);
        answer[12..16].copy_from_slice(&[198, 51, 100, 2]);
        assert_ne!(run(&received.program(), &answer, HOST, 2), 0);
        answer[15] = 4;
        assert_eq!(run(&received.program(), &answer, HOST, 2), 0);
    }

    #[test]
    fn of_tcp_in_the_tunnel_only_beginnings_are_captured() {
        let filter = PacketFilter::Sent {
            except: &[],
            only_syn_on: Some(OWN),
        };
        let program = filter.program();
        for (mut packet, flags) in [(v4(6, [1; 4], [1, 2]), 33), (v6(6, 1, [1, 2]), 53)] {
            assert_eq!(run(&program, &packet, OUTGOING, OWN), 0);
            assert_ne!(run(&program, &packet, OUTGOING, 2), 0, "another interface");
            assert_ne!(run(&program, &packet[..flags], OUTGOING, OWN), 0, "cut off");
            packet[flags] = 2;
            assert_ne!(run(&program, &packet, OUTGOING, OWN), 0);
        }
        for other in [v4(17, [1; 4], [1, 2]), v6(58, 1, [1, 2]), vec![1]] {
            assert_ne!(run(&program, &other, OUTGOING, OWN), 0);
        }
    }
}
