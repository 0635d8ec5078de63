//! The system's tables of sockets, and the program of a process, to find the owner of a socket.

use std::ffi::OsString;
use std::io;
use std::mem::offset_of;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::windows::ffi::OsStringExt as _;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::path::PathBuf;
use std::ptr;
use windows_sys::Win32::Foundation::{ERROR_INSUFFICIENT_BUFFER, FILETIME, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GetExtendedTcpTable, GetExtendedUdpTable, MIB_TCP6ROW_OWNER_MODULE, MIB_TCP6TABLE_OWNER_MODULE,
    MIB_TCPROW_OWNER_MODULE, MIB_TCPTABLE_OWNER_MODULE, MIB_UDP6ROW_OWNER_MODULE,
    MIB_UDP6TABLE_OWNER_MODULE, MIB_UDPROW_OWNER_MODULE, MIB_UDPTABLE_OWNER_MODULE,
    TCP_TABLE_OWNER_MODULE_ALL, UDP_TABLE_OWNER_MODULE,
};
use windows_sys::Win32::Networking::WinSock::{AF_INET, AF_INET6};
use windows_sys::Win32::System::Threading::{
    GetProcessTimes, OpenProcess, PROCESS_NAME_WIN32, PROCESS_QUERY_LIMITED_INFORMATION,
    QueryFullProcessImageNameW,
};

/// Initial size of a table in bytes: about 400 sockets.
const FIRST_ROOM: usize = 64 << 10;

/// Maximum size of a table in bytes: more than 300,000 sockets.
const MOST_ROOM: usize = 64 << 20;

/// Maximum length of a program's path in UTF-16 units, which is the system's limit.
const LONGEST_PATH: u32 = 32_768;

/// A socket and its process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Socket {
    /// The transport protocol.
    pub protocol: Protocol,
    /// The local end. An unspecified address stands for all addresses of this machine.
    pub local: SocketAddr,
    /// The remote end of a TCP connection; `None` for listeners, and for UDP, whose remote ends the
    /// system does not report.
    pub remote: Option<SocketAddr>,
    /// The process that created it; 0 for a connection that no process has any more, 4 for the
    /// system.
    pub pid: u32,
    /// Time of creation in 100 ns since 1601; 0 if the system does not report it.
    pub created: u64,
}

/// The transport protocol of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// The program's file.
    pub path: PathBuf,
    /// Start time in 100 ns since 1601. It distinguishes processes that had the same id one after
    /// the other.
    pub created: u64,
}

/// Returns the present TCP sockets of both families (`GetExtendedTcpTable`). An IPv4 connection of
/// an IPv6 socket is listed with IPv6, with addresses such as `::ffff:192.0.2.1`.
///
/// # Errors
///
/// The system's.
pub fn tcp() -> io::Result<Vec<Socket>> {
    let read = |family| {
        read(|table, size| {
            // SAFETY: `table` has `*size` bytes with the alignment of its rows, and both pointers
            // are used only during the call.
            unsafe {
                GetExtendedTcpTable(table.cast(), size, 0, family, TCP_TABLE_OWNER_MODULE_ALL, 0)
            }
        })
    };
    let first = offset_of!(MIB_TCPTABLE_OWNER_MODULE, table);
    let v4 = read(AF_INET.into())?;
    let mut sockets: Vec<_> = rows::<MIB_TCPROW_OWNER_MODULE>(&v4, first)
        .filter_map(tcp4)
        .collect();
    let first = offset_of!(MIB_TCP6TABLE_OWNER_MODULE, table);
    let v6 = read(AF_INET6.into())?;
    sockets.extend(rows::<MIB_TCP6ROW_OWNER_MODULE>(&v6, first).filter_map(tcp6));
    Ok(sockets)
}

/// Returns the present UDP sockets of both families (`GetExtendedUdpTable`).
///
/// # Errors
///
/// The system's.
pub fn udp() -> io::Result<Vec<Socket>> {
    let read = |family| {
        read(|table, size| {
            // SAFETY: as for the TCP table.
            unsafe { GetExtendedUdpTable(table.cast(), size, 0, family, UDP_TABLE_OWNER_MODULE, 0) }
        })
    };
    let first = offset_of!(MIB_UDPTABLE_OWNER_MODULE, table);
    let v4 = read(AF_INET.into())?;
    let mut sockets: Vec<_> = rows::<MIB_UDPROW_OWNER_MODULE>(&v4, first)
        .filter_map(udp4)
        .collect();
    let first = offset_of!(MIB_UDP6TABLE_OWNER_MODULE, table);
    let v6 = read(AF_INET6.into())?;
    sockets.extend(rows::<MIB_UDP6ROW_OWNER_MODULE>(&v6, first).filter_map(udp6));
    Ok(sockets)
}

/// Returns the program of a process.
///
/// # Errors
///
/// The system's, if there is no such process, or if this process may not query it, as for the
/// system's own (0 and 4).
pub fn process(pid: u32) -> io::Result<Process> {
    // SAFETY: the arguments are plain values.
    let handle = unsafe { OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, 0, pid) };
    if handle.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above created the handle, and nothing else owns it.
    let handle = unsafe { OwnedHandle::from_raw_handle(handle) };
    let mut path = vec![0; LONGEST_PATH as usize];
    let mut length = LONGEST_PATH;
    let format = PROCESS_NAME_WIN32;
    // SAFETY: `path` has `length` units, and the handle is open with the right to query.
    let named = unsafe {
        QueryFullProcessImageNameW(
            handle.as_raw_handle(),
            format,
            path.as_mut_ptr(),
            &raw mut length,
        )
    };
    if named == 0 {
        return Err(io::Error::last_os_error());
    }
    path.truncate(length as usize);
    let none = FILETIME {
        dwLowDateTime: 0,
        dwHighDateTime: 0,
    };
    let (mut created, mut unused) = (none, [none; 3]);
    let [exited, kernel, user] = &mut unused;
    // SAFETY: all four variables are valid for writing.
    let timed = unsafe {
        GetProcessTimes(
            handle.as_raw_handle(),
            &raw mut created,
            exited,
            kernel,
            user,
        )
    };
    if timed == 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Process {
        path: PathBuf::from(OsString::from_wide(&path)),
        created: u64::from(created.dwHighDateTime) << 32 | u64::from(created.dwLowDateTime),
    })
}

/// Reads a table of the system into words with the alignment of its rows. Repeats the call if the
/// table has grown.
fn read(ask: impl Fn(*mut u64, *mut u32) -> u32) -> io::Result<Vec<u8>> {
    let mut room = FIRST_ROOM;
    loop {
        let mut table = vec![0_u64; room / 8];
        let mut size = u32::try_from(room).unwrap_or(u32::MAX);
        let error = ask(table.as_mut_ptr(), ptr::from_mut(&mut size));
        match error {
            NO_ERROR => return Ok(table.iter().flat_map(|word| word.to_ne_bytes()).collect()),
            // Leave room for sockets that are opened meanwhile.
            ERROR_INSUFFICIENT_BUFFER if room < MOST_ROOM => {
                room = (size as usize).max(room).saturating_mul(2).min(MOST_ROOM) & !7;
            }
            error => return Err(io::Error::from_raw_os_error(error.cast_signed())),
        }
    }
}

/// Returns the rows of a table, whose first word is their number.
fn rows<Row>(table: &[u8], first: usize) -> impl Iterator<Item = &[u8]> {
    let count = number(table, 0).unwrap_or(0);
    let rows = table.get(first..).unwrap_or_default();
    rows.chunks_exact(size_of::<Row>()).take(count as usize)
}

fn tcp4(row: &[u8]) -> Option<Socket> {
    type Row = MIB_TCPROW_OWNER_MODULE;
    let local = v4(
        row,
        offset_of!(Row, dwLocalAddr),
        offset_of!(Row, dwLocalPort),
    )?;
    let remote = v4(
        row,
        offset_of!(Row, dwRemoteAddr),
        offset_of!(Row, dwRemotePort),
    )?;
    let listens = number(row, offset_of!(Row, dwState))? == LISTENING;
    Some(Socket {
        protocol: Protocol::Tcp,
        local,
        remote: (!listens).then_some(remote),
        pid: number(row, offset_of!(Row, dwOwningPid))?,
        created: time(row, offset_of!(Row, liCreateTimestamp))?,
    })
}

fn tcp6(row: &[u8]) -> Option<Socket> {
    type Row = MIB_TCP6ROW_OWNER_MODULE;
    let local = v6(
        row,
        offset_of!(Row, ucLocalAddr),
        offset_of!(Row, dwLocalPort),
    )?;
    let remote = v6(
        row,
        offset_of!(Row, ucRemoteAddr),
        offset_of!(Row, dwRemotePort),
    )?;
    let listens = number(row, offset_of!(Row, dwState))? == LISTENING;
    Some(Socket {
        protocol: Protocol::Tcp,
        local,
        remote: (!listens).then_some(remote),
        pid: number(row, offset_of!(Row, dwOwningPid))?,
        created: time(row, offset_of!(Row, liCreateTimestamp))?,
    })
}

fn udp4(row: &[u8]) -> Option<Socket> {
    type Row = MIB_UDPROW_OWNER_MODULE;
    Some(Socket {
        protocol: Protocol::Udp,
        local: v4(
            row,
            offset_of!(Row, dwLocalAddr),
            offset_of!(Row, dwLocalPort),
        )?,
        remote: None,
        pid: number(row, offset_of!(Row, dwOwningPid))?,
        created: time(row, offset_of!(Row, liCreateTimestamp))?,
    })
}

fn udp6(row: &[u8]) -> Option<Socket> {
    type Row = MIB_UDP6ROW_OWNER_MODULE;
    Some(Socket {
        protocol: Protocol::Udp,
        local: v6(
            row,
            offset_of!(Row, ucLocalAddr),
            offset_of!(Row, dwLocalPort),
        )?,
        remote: None,
        pid: number(row, offset_of!(Row, dwOwningPid))?,
        created: time(row, offset_of!(Row, liCreateTimestamp))?,
    })
}

/// `MIB_TCP_STATE_LISTEN`.
const LISTENING: u32 = 2;

/// Parses an address and a port. Addresses are in network byte order.
fn v4(row: &[u8], address: usize, at: usize) -> Option<SocketAddr> {
    let address: [u8; 4] = bytes(row, address)?;
    Some(SocketAddr::new(
        Ipv4Addr::from(address).into(),
        port(row, at)?,
    ))
}

fn v6(row: &[u8], address: usize, at: usize) -> Option<SocketAddr> {
    let address: [u8; 16] = bytes(row, address)?;
    Some(SocketAddr::new(
        Ipv6Addr::from(address).into(),
        port(row, at)?,
    ))
}

/// Parses a port: the first half of a 32-bit field, in network byte order. The other half is
/// undefined.
fn port(row: &[u8], at: usize) -> Option<u16> {
    bytes(row, at).map(u16::from_be_bytes)
}

fn number(row: &[u8], at: usize) -> Option<u32> {
    bytes(row, at).map(u32::from_ne_bytes)
}

fn time(row: &[u8], at: usize) -> Option<u64> {
    bytes(row, at).map(u64::from_ne_bytes)
}

fn bytes<const N: usize>(row: &[u8], at: usize) -> Option<[u8; N]> {
    row.get(at..)?.first_chunk().copied()
}
