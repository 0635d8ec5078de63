//! Packet sockets that capture (`packet(7)`). A classic BPF program in the kernel selects the packets.
//!
//! A socket gets packets from their IP header on, of all interfaces except loopback. The kernel shows
//! a packet that leaves after the egress filters of the interface have passed it. A packet that such a
//! filter redirects is shown only at the interface to which it goes.

mod filter;

use std::ffi::c_int;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::net::sockopt::set_socket_recv_buffer_size_force;

pub use filter::{Direction, MAX_FLOWS, PacketFilter, SNAP_LENGTH, UdpFlow};

/// Bytes that the kernel may keep for a capturing socket. It counts a packet with all of its memory, up
/// to 64 KiB with offloads, although only its beginning is captured.
const CAPTURE_BUFFER: usize = 64 << 20;

/// A captured packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured {
    /// Index of the interface.
    pub interface: u32,
    /// EtherType (`ETH_P_*`).
    pub protocol: u16,
    /// Captured bytes; a packet may be longer.
    pub length: usize,
}

/// Counts of a socket since the last time they were read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketCounts {
    /// Packets that the filter has passed.
    pub passed: u32,
    /// Packets among these for which the socket had no room.
    pub lost: u32,
}

/// A packet socket of the network namespace in which it was opened. It ends with its descriptor.
#[derive(Debug)]
pub struct PacketSocket(OwnedFd);

impl PacketSocket {
    /// Starts to capture packets. Nothing has been captured before the filter was in effect. Needs
    /// `CAP_NET_RAW`, and `CAP_NET_ADMIN` for the size of its buffer.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn capture(filter: &PacketFilter<'_>) -> io::Result<Self> {
        let socket = Self::closed()?;
        set_socket_recv_buffer_size_force(&socket.0, CAPTURE_BUFFER)?;
        socket.begin(filter)?;
        Ok(socket)
    }

    /// Starts to count packets without copying them: the socket has next to no buffer, and the kernel
    /// counts the packets for which it has no room.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn count(filter: &PacketFilter<'_>) -> io::Result<Self> {
        let socket = Self::closed()?;
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket.0, 1)?;
        socket.begin(filter)?;
        Ok(socket)
    }

    /// Opens a socket that only sends.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn sender() -> io::Result<Self> {
        Self::closed()
    }

    /// Creates a socket that gets no packets (protocol 0).
    fn closed() -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: `socket` accepts any numbers and touches no memory.
        let number = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if number < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just created this descriptor, so nothing else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(number) }))
    }

    /// Attaches the filter and begins to get packets.
    fn begin(&self, filter: &PacketFilter<'_>) -> io::Result<()> {
        let mut program = filter.program();
        let program = libc::sock_fprog {
            len: program.len() as libc::c_ushort,
            filter: program.as_mut_ptr(),
        };
        // SAFETY: the kernel reads `size_of::<sock_fprog>` bytes at `program`, which is live, and as
        // many instructions as it counts from the vector that it points to, which lives until the end
        // of the function. The kernel checks the instructions and keeps a copy.
        let attached = unsafe {
            libc::setsockopt(
                self.0.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                size_of::<libc::sock_fprog>() as libc::socklen_t,
            )
        };
        check(attached)?;
        let address = link_address(0, libc::ETH_P_ALL as u16, &[]);
        // SAFETY: the kernel reads `size_of::<sockaddr_ll>` bytes at `address`, which is live.
        let bound = unsafe {
            libc::bind(
                self.0.as_raw_fd(),
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        check(bound)
    }

    /// Takes the next packet. `None` if there is none.
    ///
    /// # Errors
    ///
    /// The kernel's. `ENETDOWN` if an interface has just gone down: the socket continues.
    pub fn receive(&self, bytes: &mut [u8]) -> io::Result<Option<Captured>> {
        let mut address = link_address(0, 0, &[]);
        let mut size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `bytes.len()` bytes to `bytes` and `size` bytes to
        // `address`, both of which are live, exclusively borrowed and valid for any bytes, and the
        // size of the address to `size`.
        let received = unsafe {
            libc::recvfrom(
                self.0.as_raw_fd(),
                bytes.as_mut_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT,
                (&raw mut address).cast(),
                &raw mut size,
            )
        };
        match usize::try_from(received) {
            Ok(length) => Ok(Some(Captured {
                interface: address.sll_ifindex.cast_unsigned(),
                protocol: u16::from_be(address.sll_protocol),
                length: length.min(bytes.len()),
            })),
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
                error => Err(error),
            },
        }
    }

    /// Reads the counts, and sets them to 0.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn take_counts(&self) -> io::Result<PacketCounts> {
        let mut counts = libc::tpacket_stats {
            tp_packets: 0,
            tp_drops: 0,
        };
        let mut size = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `size` bytes to `counts`, which is live, exclusively
        // borrowed and valid for any bytes, and the number of bytes to `size`.
        let read = unsafe {
            libc::getsockopt(
                self.0.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut counts).cast(),
                &raw mut size,
            )
        };
        check(read)?;
        Ok(PacketCounts {
            passed: counts.tp_packets,
            lost: counts.tp_drops,
        })
    }

    /// Sends an IP packet by an interface to a hardware address (empty for a link without any).
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn send(
        &self,
        interface: u32,
        protocol: u16,
        hardware: &[u8],
        packet: &[u8],
    ) -> io::Result<()> {
        let address = link_address(interface, protocol, hardware);
        // SAFETY: the kernel reads `packet.len()` bytes at `packet` and `size_of::<sockaddr_ll>` bytes
        // at `address`, both of which are live.
        let sent = unsafe {
            libc::sendto(
                self.0.as_raw_fd(),
                packet.as_ptr().cast(),
                packet.len(),
                0,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        match sent {
            ..0 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn link_address(interface: u32, protocol: u16, hardware: &[u8]) -> libc::sockaddr_ll {
    // SAFETY: `sockaddr_ll` consists of integers, for which zeros are valid.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as libc::c_ushort;
    address.sll_protocol = protocol.to_be();
    address.sll_ifindex = interface.cast_signed();
    let length = hardware.len().min(address.sll_addr.len());
    address.sll_halen = length as u8;
    address.sll_addr[..length].copy_from_slice(&hardware[..length]);
    address
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
