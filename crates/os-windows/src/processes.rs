//! Whose a socket is: the system's tables of sockets, and the program of a process.

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

/// Room for a table at first, in bytes: some 400 sockets.
const FIRST_ROOM: usize = 64 << 10;

/// A table is not made room for beyond this, in bytes: more than 300,000 sockets.
const MOST_ROOM: usize = 64 << 20;

/// The longest path of a program, in UTF-16 units: the longest that the system has.
const LONGEST_PATH: u32 = 32_768;

/// A socket and whose it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Socket {
    /// Of TCP or of UDP.
    pub protocol: Protocol,
    /// This end. An unspecified address is each of this machine's.
    pub local: SocketAddr,
    /// The other end: of TCP, unless it listens. Of UDP the system does not tell.
    pub remote: Option<SocketAddr>,
    /// The process that made it; 0 for a connection that has none any more, 4 for the system.
    pub pid: u32,
    /// When it was made, in 100 ns since 1601; 0 where the system does not tell.
    pub created: u64,
}

/// What a socket speaks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// A process, as long as there is one of this number.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Process {
    /// Its program's file.
    pub path: PathBuf,
    /// When it began, in 100 ns since 1601. Numbers of processes are given again: two of one
    /// number differ in this.
    pub created: u64,
}

/// The TCP sockets of both families that there are now (`GetExtendedTcpTable`). An IPv4
/// connection of an IPv6 socket is among IPv6's, with addresses such as `::ffff:192.0.2.1`.
///
/// # Errors
///
/// What the system says.
pub fn tcp() -> io::Result<Vec<Socket>> {
    let read = |family| {
        read(|table, size| {
            // SAFETY: `table` has room for `*size` bytes, aligned as its rows are, and both
            // pointers are used no longer than the call.
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

/// The UDP sockets of both families that there are now (`GetExtendedUdpTable`).
///
/// # Errors
///
/// What the system says.
pub fn udp() -> io::Result<Vec<Socket>> {
    let read = |family| {
        read(|table, size| {
            // SAFETY: as for TCP's.
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

/// The program of a process.
///
/// # Errors
///
/// What the system says: there is none of this number, or this process may not look at it, as
/// at the system's own (0 and 4).
pub fn process(pid: u32) -> io::Result<Process> {
    // SAFETY: all three are plain values.
    let handle = unsafe { OpenProcess(PROCESS_QUERY_LIMITED_INFORMATION, 0, pid) };
    if handle.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle was made just now and is nobody else's.
    let handle = unsafe { OwnedHandle::from_raw_handle(handle) };
    let mut path = vec![0; LONGEST_PATH as usize];
    let mut length = LONGEST_PATH;
    let asked = PROCESS_NAME_WIN32;
    // SAFETY: `path` has room for `length` units, and the handle is open with the right to ask.
    let named = unsafe {
        QueryFullProcessImageNameW(
            handle.as_raw_handle(),
            asked,
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
    // SAFETY: four places for times, which are written before the call returns.
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

/// A table of the system, in words as large as its rows are aligned. It may grow between one
/// call and the next.
fn read(ask: impl Fn(*mut u64, *mut u32) -> u32) -> io::Result<Vec<u8>> {
    let mut room = FIRST_ROOM;
    loop {
        let mut table = vec![0_u64; room / 8];
        let mut size = u32::try_from(room).unwrap_or(u32::MAX);
        let error = ask(table.as_mut_ptr(), ptr::from_mut(&mut size));
        match error {
            NO_ERROR => return Ok(table.iter().flat_map(|word| word.to_ne_bytes()).collect()),
            // With room for those that come meanwhile.
            ERROR_INSUFFICIENT_BUFFER if room < MOST_ROOM => {
                room = (size as usize).max(room).saturating_mul(2).min(MOST_ROOM) & !7;
            }
            error => return Err(io::Error::from_raw_os_error(error.cast_signed())),
        }
    }
}

/// The rows of a table, whose first word is their number.
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

/// Addresses are in network byte order.
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

/// Ports too, in the first half of a number; the other may have anything.
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
