//! The eBPF program that chooses the queue of each packet that the system sends to a TUN.
//!
//! The program has type `BPF_PROG_TYPE_SOCKET_FILTER` and no maps. For a TUN, the packet that it
//! reads begins with the IP header. The kernel takes the lower 16 bits of its result modulo the
//! number of queues (`tun_ebpf_select_queue`, `drivers/net/tun.c`). The program uses the loads of
//! classic BPF (`BPF_ABS`, `BPF_IND`), which check the length of the packet: for a packet that is
//! too short, a load ends the program with the result 0.
//!
//! | packet | hashed |
//! |---|---|
//! | TCP, UDP, SCTP, UDP-Lite | addresses, protocol, ports |
//! | fragment of IPv4 | addresses, protocol |
//! | IPv6 with an extension header, fragments included | addresses, number of the first extension header |
//! | other IPv4 or IPv6 | addresses, protocol |
//! | not IP | nothing: queue 0 |
//!
//! The hash is the same for both directions of a flow: it adds a hash of the source (address and
//! port) and a hash of the destination. It mixes a secret in, so that no sender can find flows that
//! all get the same queue.

use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd},
};

use rustix::rand::{GetRandomFlags, getrandom};

use crate::{ioctl, memory::without_memlock_limit};

/// A steering program, loaded into the kernel.
#[derive(Debug)]
pub(super) struct SteeringProgram(OwnedFd);

impl SteeringProgram {
    /// Loads the program with a new secret.
    ///
    /// # Errors
    ///
    /// `EPERM` without `CAP_BPF` (before Linux 5.8: `CAP_SYS_ADMIN`) if unprivileged programs are
    /// disabled, `ENOSYS` without `bpf(2)`.
    pub(super) fn load() -> io::Result<Self> {
        let mut secret = [0; 16];
        getrandom(&mut secret, GetRandomFlags::empty())?;
        let (start, multiplier) = secret.split_at(8);
        let number = |half: &[u8]| half.iter().fold(0, |all, byte| all << 8 | u64::from(*byte));
        let program = program(number(start), number(multiplier) | 1);
        without_memlock_limit(|| load(&program)).map(Self)
    }

    /// Lets the program choose the queue of each packet from now on, until the interface is deleted.
    /// The kernel then no longer learns from written packets which queue a flow has.
    ///
    /// # Errors
    ///
    /// `EINVAL` before Linux 4.16.
    pub(super) fn attach(&self, tun: BorrowedFd<'_>) -> io::Result<()> {
        ioctl::set_steering(tun, self.0.as_fd())
    }
}

// Registers. A load from the packet needs its context in register 6, writes register 0 and makes
// registers 1 to 5 invalid.
const R0: u8 = 0;
const R1: u8 = 1;
const PACKET: u8 = 6;
const HASH: u8 = 7;
const PROTOCOL: u8 = 8;
/// Source port in bits 16 to 31, destination port in bits 0 to 15; 0 if ports are not hashed.
const PORTS: u8 = 9;
const FRAME: u8 = 10;

/// Returns the program.
fn program(start: u64, multiplier: u64) -> Vec<Instruction> {
    let hash = Hash { start, multiplier };
    let v4 = v4(hash);
    let v6 = v6(hash);
    let mut code = vec![
        copy(PACKET, R1),
        alu(MOV, PORTS, 0),
        // The IP version.
        load_byte(0),
        alu(RIGHT_SHIFT, R0, 4),
    ];
    code.push(skip_unless(R0, 4, v4.len()));
    code.extend(v4);
    code.push(skip_unless(R0, 6, v6.len()));
    code.extend(v6);
    code.extend([alu(MOV, R0, 0), EXIT_PROGRAM]);
    code
}

fn v4(hash: Hash) -> Vec<Instruction> {
    let ports = ports(&[
        // The header's length in units of 4 bytes.
        load_byte(0),
        alu(AND, R0, 15),
        alu(LEFT_SHIFT, R0, 2),
        load_word_at(R0),
    ]);
    let mut code = vec![
        load_byte(9),
        copy(PROTOCOL, R0),
        // "More fragments" and the offset.
        load_half(6),
        alu(AND, R0, 0x3fff),
    ];
    code.push(skip_unless(R0, 0, ports.len()));
    code.extend(ports);
    code.extend(hash.flow(12, 4));
    code
}

fn v6(hash: Hash) -> Vec<Instruction> {
    let mut code = vec![load_byte(6), copy(PROTOCOL, R0)];
    // In a fragment, this is the number of the fragment header, so no ports are hashed.
    code.extend(ports(&[load_word(40)]));
    code.extend(hash.flow(8, 16));
    code
}

/// Runs `load` and stores its result as [`PORTS`] if the protocol has ports.
fn ports(load: &[Instruction]) -> Vec<Instruction> {
    let mut code = vec![
        skip_if(PROTOCOL, libc::IPPROTO_TCP, 3),
        skip_if(PROTOCOL, libc::IPPROTO_UDP, 2),
        skip_if(PROTOCOL, libc::IPPROTO_SCTP, 1),
        skip_unless(PROTOCOL, libc::IPPROTO_UDPLITE, load.len() + 1),
    ];
    code.extend(load);
    code.push(copy(PORTS, R0));
    code
}

/// Parameters of the hash, both secret.
#[derive(Clone, Copy)]
struct Hash {
    start: u64,
    /// Odd.
    multiplier: u64,
}

impl Hash {
    /// Ends the program with the hash of a flow. The source address begins at `offset` in the
    /// packet, and the destination address, of the same `length` in bytes, follows it.
    fn flow(self, offset: i32, length: i32) -> Vec<Instruction> {
        let mut code = self.endpoint(offset, length, alu(RIGHT_SHIFT, R0, 16));
        code.push(store(HASH, -8));
        code.extend(self.endpoint(offset + length, length, alu(AND, R0, 0xffff)));
        code.extend([load_stored(R1, -8), add(HASH, R1), copy(R0, PROTOCOL)]);
        code.extend(self.mix());
        // The upper bits depend on all bits of the input.
        code.extend([copy(R0, HASH), alu(RIGHT_SHIFT, R0, 48), EXIT_PROGRAM]);
        code
    }

    /// Sets [`HASH`] to the hash of an address and a port. `cut` extracts this port from [`PORTS`].
    fn endpoint(self, offset: i32, length: i32, cut: Instruction) -> Vec<Instruction> {
        let mut code = constant(HASH, self.start).to_vec();
        for word in (0..length).step_by(4) {
            code.push(load_word(offset + word));
            code.extend(self.mix());
        }
        code.extend([copy(R0, PORTS), cut]);
        code.extend(self.mix());
        code
    }

    /// Mixes register 0 into [`HASH`].
    fn mix(self) -> Vec<Instruction> {
        let mut code = vec![add(HASH, R0)];
        code.extend(constant(R1, self.multiplier));
        code.extend([
            multiply(HASH, R1),
            copy(R1, HASH),
            alu(RIGHT_SHIFT, R1, 32),
            xor(HASH, R1),
        ]);
        code
    }
}

/// `struct bpf_insn`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Instruction {
    code: u8,
    registers: u8,
    offset: i16,
    immediate: i32,
}

// Classes, sizes, modes and operations of `linux/bpf_common.h` and `linux/bpf.h`.
const LD: u8 = 0x00;
const LDX: u8 = 0x01;
const STX: u8 = 0x03;
const JUMP: u8 = 0x05;
const ALU64: u8 = 0x07;
const WORD: u8 = 0x00;
const HALF: u8 = 0x08;
const BYTE: u8 = 0x10;
const DOUBLE: u8 = 0x18;
const ABSOLUTE: u8 = 0x20;
const INDIRECT: u8 = 0x40;
const MEMORY: u8 = 0x60;
const REGISTER: u8 = 0x08;
const ADD: u8 = 0x00;
const MULTIPLY: u8 = 0x20;
const AND: u8 = 0x50;
const LEFT_SHIFT: u8 = 0x60;
const RIGHT_SHIFT: u8 = 0x70;
const XOR: u8 = 0xa0;
const MOV: u8 = 0xb0;
const IF_EQUAL: u8 = 0x10;
const IF_NOT_EQUAL: u8 = 0x50;
const EXIT: u8 = 0x90;

const EXIT_PROGRAM: Instruction = instruction(JUMP | EXIT, 0, 0, 0, 0);

const fn instruction(code: u8, to: u8, from: u8, offset: i16, immediate: i32) -> Instruction {
    // Two bit fields, whose order follows the byte order.
    let registers = if cfg!(target_endian = "little") {
        from << 4 | to
    } else {
        to << 4 | from
    };
    Instruction {
        code,
        registers,
        offset,
        immediate,
    }
}

fn load_byte(offset: i32) -> Instruction {
    instruction(LD | ABSOLUTE | BYTE, 0, 0, 0, offset)
}

fn load_half(offset: i32) -> Instruction {
    instruction(LD | ABSOLUTE | HALF, 0, 0, 0, offset)
}

fn load_word(offset: i32) -> Instruction {
    instruction(LD | ABSOLUTE | WORD, 0, 0, 0, offset)
}

fn load_word_at(offset: u8) -> Instruction {
    instruction(LD | INDIRECT | WORD, 0, offset, 0, 0)
}

/// Sets a register to a 64-bit constant: one instruction in two slots.
fn constant(to: u8, value: u64) -> [Instruction; 2] {
    [
        instruction(LD | DOUBLE, to, 0, 0, value as i32),
        instruction(0, 0, 0, 0, (value >> 32) as i32),
    ]
}

fn store(from: u8, offset: i16) -> Instruction {
    instruction(STX | MEMORY | DOUBLE, FRAME, from, offset, 0)
}

fn load_stored(to: u8, offset: i16) -> Instruction {
    instruction(LDX | MEMORY | DOUBLE, to, FRAME, offset, 0)
}

fn alu(operation: u8, to: u8, immediate: i32) -> Instruction {
    instruction(ALU64 | operation, to, 0, 0, immediate)
}

fn copy(to: u8, from: u8) -> Instruction {
    instruction(ALU64 | REGISTER | MOV, to, from, 0, 0)
}

fn add(to: u8, from: u8) -> Instruction {
    instruction(ALU64 | REGISTER | ADD, to, from, 0, 0)
}

fn multiply(to: u8, from: u8) -> Instruction {
    instruction(ALU64 | REGISTER | MULTIPLY, to, from, 0, 0)
}

fn xor(to: u8, from: u8) -> Instruction {
    instruction(ALU64 | REGISTER | XOR, to, from, 0, 0)
}

/// Skips `count` slots if the register has the value.
fn skip_if(register: u8, value: i32, count: usize) -> Instruction {
    instruction(JUMP | IF_EQUAL, register, 0, count as i16, value)
}

/// Skips `count` slots unless the register has the value.
fn skip_unless(register: u8, value: i32, count: usize) -> Instruction {
    instruction(JUMP | IF_NOT_EQUAL, register, 0, count as i16, value)
}

/// `BPF_PROG_LOAD`.
fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    const PROG_LOAD: c_int = 5;
    const SOCKET_FILTER: u32 = 1;
    /// The fields of `union bpf_attr` for this command in Linux 4.15.
    #[repr(C)]
    struct Attributes {
        kind: u32,
        count: u32,
        instructions: u64,
        license: u64,
        log_level: u32,
        log_size: u32,
        log: u64,
        kernel: u32,
        flags: u32,
        name: [u8; 16],
    }
    let attributes = Attributes {
        kind: SOCKET_FILTER,
        count: program.len() as u32,
        instructions: program.as_ptr().expose_provenance() as u64,
        license: c"MIT".as_ptr().expose_provenance() as u64,
        log_level: 0,
        log_size: 0,
        log: 0,
        kernel: 0,
        flags: 0,
        name: *b"taupe_steering\0\0",
    };
    // SAFETY: the kernel reads `size_of::<Attributes>()` bytes of `attributes`, which has no
    // padding. The kernel reads `count` instructions of `program`, which is borrowed and has the
    // layout of `struct bpf_insn`, and a C string. It writes nothing, because there is no log.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            PROG_LOAD,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    let fd = c_int::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel created this descriptor for this call, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
