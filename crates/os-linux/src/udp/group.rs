//! Several sockets on one UDP port. The kernel chooses one by the content of each datagram.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd},
};

use libc::sock_filter;
use taupe_packet::ip::Family;

use super::{
    BindError, Options,
    socket::{Socket, failed, open},
};
use crate::socket_option::{self, IntOption};

/// Maximum data sockets of a group.
const MAX_LANES: usize = 16;

/// The rule by which the kernel chooses a socket of a [`SocketGroup`] for each datagram. The design
/// of lanes (`docs/design/lanes.md`) defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steering {
    data: u8,
    lanes: usize,
    multiplier: u16,
}

impl Steering {
    /// Returns a rule. Datagrams whose first byte is `data` are data messages.
    ///
    /// `lanes` is the number of data sockets. It is rounded down to a power of two; the smallest is
    /// 1, the largest 16. `multiplier` turns bytes 6 and 7 of a data message, as a big-endian
    /// number, into the class of the session, modulo 2^16. With one data socket it has no effect.
    pub fn new(data: u8, lanes: usize, multiplier: u16) -> Self {
        let lanes = lanes.clamp(1, MAX_LANES);
        Self {
            data,
            lanes: 1 << lanes.ilog2(),
            multiplier,
        }
    }

    /// Prepares a socket, before it is bound, to be the first of a group. While it is the only one,
    /// the kernel delivers all datagrams to it.
    fn attach(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        // The kernel accepts a program only for a socket that has `SO_REUSEPORT`.
        set_reuseport(socket, true)?;
        let attached = socket_option::attach_reuseport_program(socket, &mut self.program());
        set_reuseport(socket, false)?;
        attached
    }

    /// Returns the program, whose result is the index of the socket.
    fn program(&self) -> Vec<sock_filter> {
        let lanes = self.lanes as u32;
        let mut to_lane = vec![ret(0)];
        if lanes > 1 {
            to_lane = vec![
                // The block of the counter, which is little-endian and begins at byte 8. The lower
                // ten bits suffice, because no session has more than 16 lanes.
                load_byte(9),
                alu(libc::BPF_LSH, 2),
                COPY_TO_X,
                load_byte(8),
                alu(libc::BPF_RSH, 6),
                alu_x(libc::BPF_OR),
                store(BLOCK),
                // The class of the session.
                load_half(6),
                alu(libc::BPF_MUL, self.multiplier.into()),
                alu(libc::BPF_AND, 0xffff),
                store(CLASS),
                // The lanes of the session, less 1.
                alu(libc::BPF_RSH, 13),
                COPY_TO_X,
                load_constant(1),
                alu_x(libc::BPF_LSH),
                alu(libc::BPF_SUB, 1),
                // The block modulo that number.
                COPY_TO_X,
                load_stored(BLOCK),
                alu_x(libc::BPF_AND),
                COPY_TO_X,
                // The base lane.
                load_stored(CLASS),
                alu(libc::BPF_RSH, 9),
                alu_x(libc::BPF_ADD),
                alu(libc::BPF_AND, lanes - 1),
                RETURN_A,
            ];
        }
        // A load beyond the end of the datagram ends the program with the result 0.
        let mut program = vec![
            load_byte(0),
            skip_unless_equal(self.data.into(), to_lane.len()),
        ];
        program.extend(to_lane);
        program.push(ret(lanes));
        program
    }
}

/// Sockets of one family on one port: some for data, among which the kernel chooses by [`Steering`],
/// and one for all other datagrams, except empty ones.
///
/// Data messages of fewer than 10 bytes and empty datagrams go to the first data socket. The kernel
/// looks only at the first of several merged datagrams (`UDP_GRO`), and delivers datagrams to a
/// broadcast or multicast address to all sockets.
///
/// Drop the sockets together: if one is dropped, the kernel moves the last one to its place. No
/// socket may be connected, because the kernel then ignores the rule.
#[derive(Debug)]
pub struct SocketGroup {
    /// The data sockets of the rule. There is only one if the kernel cannot distribute datagrams by
    /// their content (before Linux 4.5).
    pub data: Vec<Socket>,
    /// The socket for all other datagrams. If it is missing, they go to any data socket.
    pub others: Result<Socket, BindError>,
}

impl SocketGroup {
    /// Binds the sockets to `port`, or to a free port if it is 0. All have the same options, except
    /// that the socket for other datagrams has buffers of `other_buffers` bytes.
    ///
    /// A port that another program uses is refused. As soon as the group has several sockets,
    /// another program of the same user can bind the port too if it sets `SO_REUSEPORT`.
    ///
    /// # Errors
    ///
    /// See [`BindError`].
    pub fn bind(
        family: Family,
        port: u16,
        options: Options,
        steering: &Steering,
        other_buffers: Option<usize>,
    ) -> Result<Self, BindError> {
        let fd = open(family, options)?;
        let attached = steering.attach(fd.as_fd());
        let first = Socket::bound(fd, family, port, options)?;
        if let Err(error) = attached {
            return Ok(Self {
                data: vec![first],
                others: Err(failed("distributing datagrams by their content")(error)),
            });
        }
        // This comes after the bind, which otherwise succeeds on a port that another program
        // shares.
        set_reuseport(first.as_fd(), true).map_err(failed("SO_REUSEPORT"))?;
        let port = first.local_port();
        let next = |options| {
            let fd = open(family, options)?;
            set_reuseport(fd.as_fd(), true).map_err(failed("SO_REUSEPORT"))?;
            Socket::bound(fd, family, port, options)
        };
        let mut data = vec![first];
        while data.len() < steering.lanes {
            data.push(next(options)?);
        }
        // This socket comes last, because its index is the number of data sockets.
        let others = next(Options {
            buffers: other_buffers,
            ..options
        });
        if let (Err(_), [only]) = (&others, &data[..]) {
            let _ = set_reuseport(only.as_fd(), false);
        }
        Ok(Self { data, others })
    }
}

/// Sets whether other sockets of the same user that also have `SO_REUSEPORT` may bind the port.
fn set_reuseport(socket: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    socket_option::set(socket, IntOption::ReusePort, on.into())
}

// Cells of the program's memory.
const BLOCK: u32 = 0;
const CLASS: u32 = 1;

const COPY_TO_X: sock_filter = instruction(libc::BPF_MISC | libc::BPF_TAX, 0);
const RETURN_A: sock_filter = instruction(libc::BPF_RET | libc::BPF_A, 0);

const fn instruction(code: u32, k: u32) -> sock_filter {
    sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    }
}

fn load_byte(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, offset)
}

fn load_half(offset: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_H | libc::BPF_ABS, offset)
}

fn load_constant(value: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_IMM, value)
}

fn load_stored(cell: u32) -> sock_filter {
    instruction(libc::BPF_LD | libc::BPF_MEM, cell)
}

fn store(cell: u32) -> sock_filter {
    instruction(libc::BPF_ST, cell)
}

fn alu(operation: u32, constant: u32) -> sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_K | operation, constant)
}

fn alu_x(operation: u32) -> sock_filter {
    instruction(libc::BPF_ALU | libc::BPF_X | operation, 0)
}

fn ret(value: u32) -> sock_filter {
    instruction(libc::BPF_RET | libc::BPF_K, value)
}

fn skip_unless_equal(value: u32, count: usize) -> sock_filter {
    sock_filter {
        jf: count as u8,
        ..instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value)
    }
}
