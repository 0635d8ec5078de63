//! Whose a socket is: the system's tables of sockets, and the program of a process.

use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::windows::ffi::OsStringExt as _;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::path::PathBuf;
use std::ptr;
use windows_sys::Win32::Foundation::{ERROR_INSUFFICIENT_BUFFER, FILETIME, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GetExtendedTcpTable, GetExtendedUdpTable, TCP_TABLE_OWNER_PID_ALL, UDP_TABLE_OWNER_PID,
};
use windows_sys::Win32::Networking::WinSock::{AF_INET, AF_INET6};
use windows_sys::Win32::System::Threading::{
    GetProcessTimes, OpenProcess, PROCESS_NAME_WIN32, PROCESS_QUERY_LIMITED_INFORMATION,
    QueryFullProcessImageNameW,
};

/// Room for a table at first, in bytes: some 1,300 sockets.
const FIRST_ROOM: usize = 32 << 10;

/// A table is not made room for beyond this, in bytes: more than a million sockets.
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
    let mut sockets = Vec::new();
    for (family, words, parse) in [
        (AF_INET, 6, tcp4 as fn(&[u32]) -> Option<Socket>),
        (AF_INET6, 14, tcp6),
    ] {
        let table = read(|table, size| {
            // SAFETY: `table` has room for `*size` bytes, aligned as the rows' numbers are, and
            // both pointers are used no longer than the call.
            unsafe {
                GetExtendedTcpTable(
                    table.cast(),
                    size,
                    0,
                    family.into(),
                    TCP_TABLE_OWNER_PID_ALL,
                    0,
                )
            }
        })?;
        sockets.extend(rows(&table, words).filter_map(parse));
    }
    Ok(sockets)
}

/// The UDP sockets of both families that there are now (`GetExtendedUdpTable`).
///
/// # Errors
///
/// What the system says.
pub fn udp() -> io::Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    for (family, words, parse) in [
        (AF_INET, 3, udp4 as fn(&[u32]) -> Option<Socket>),
        (AF_INET6, 7, udp6),
    ] {
        let table = read(|table, size| {
            // SAFETY: as for TCP's.
            unsafe {
                GetExtendedUdpTable(table.cast(), size, 0, family.into(), UDP_TABLE_OWNER_PID, 0)
            }
        })?;
        sockets.extend(rows(&table, words).filter_map(parse));
    }
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

/// A table of the system, as 32-bit words. It may grow between one call and the next.
fn read(ask: impl Fn(*mut u32, *mut u32) -> u32) -> io::Result<Vec<u32>> {
    let mut room = FIRST_ROOM;
    loop {
        let mut table = vec![0_u32; room / 4];
        let mut size = u32::try_from(room).unwrap_or(u32::MAX);
        let error = ask(table.as_mut_ptr(), ptr::from_mut(&mut size));
        match error {
            NO_ERROR => return Ok(table),
            // With room for those that come meanwhile.
            ERROR_INSUFFICIENT_BUFFER if room < MOST_ROOM => {
                room = (size as usize).max(room).saturating_mul(2).min(MOST_ROOM) & !3;
            }
            error => return Err(io::Error::from_raw_os_error(error.cast_signed())),
        }
    }
}

/// The rows of a table, whose first word is their number.
fn rows(table: &[u32], words: usize) -> impl Iterator<Item = &[u32]> {
    let (count, rest) = table.split_first().unwrap_or((&0, &[]));
    rest.chunks_exact(words).take(*count as usize)
}

/// `MIB_TCPROW_OWNER_PID`.
fn tcp4(row: &[u32]) -> Option<Socket> {
    let &[state, local, local_port, remote, remote_port, pid] = row else {
        return None;
    };
    let remote = SocketAddr::new(v4(remote), port(remote_port));
    Some(Socket {
        protocol: Protocol::Tcp,
        local: SocketAddr::new(v4(local), port(local_port)),
        remote: (state != LISTENING).then_some(remote),
        pid,
    })
}

/// `MIB_TCP6ROW_OWNER_PID`.
fn tcp6(row: &[u32]) -> Option<Socket> {
    let (local, rest) = row.split_first_chunk()?;
    let (&[_scope, local_port], rest) = rest.split_first_chunk()?;
    let (remote, rest) = rest.split_first_chunk()?;
    let &[_scope, remote_port, state, pid] = rest else {
        return None;
    };
    let remote = SocketAddr::new(v6(remote), port(remote_port));
    Some(Socket {
        protocol: Protocol::Tcp,
        local: SocketAddr::new(v6(local), port(local_port)),
        remote: (state != LISTENING).then_some(remote),
        pid,
    })
}

/// `MIB_UDPROW_OWNER_PID`.
fn udp4(row: &[u32]) -> Option<Socket> {
    let &[local, local_port, pid] = row else {
        return None;
    };
    Some(Socket {
        protocol: Protocol::Udp,
        local: SocketAddr::new(v4(local), port(local_port)),
        remote: None,
        pid,
    })
}

/// `MIB_UDP6ROW_OWNER_PID`.
fn udp6(row: &[u32]) -> Option<Socket> {
    let (local, rest) = row.split_first_chunk()?;
    let &[_scope, local_port, pid] = rest else {
        return None;
    };
    Some(Socket {
        protocol: Protocol::Udp,
        local: SocketAddr::new(v6(local), port(local_port)),
        remote: None,
        pid,
    })
}

/// `MIB_TCP_STATE_LISTEN`.
const LISTENING: u32 = 2;

/// Addresses are in network byte order.
fn v4(address: u32) -> IpAddr {
    Ipv4Addr::from(address.to_ne_bytes()).into()
}

fn v6(words: &[u32; 4]) -> IpAddr {
    let mut bytes = [0; 16];
    for (part, word) in bytes.chunks_exact_mut(4).zip(words) {
        part.copy_from_slice(&word.to_ne_bytes());
    }
    Ipv6Addr::from(bytes).into()
}

/// Ports too, in the lower half; the upper half may have anything.
fn port(word: u32) -> u16 {
    let [high, low, ..] = word.to_ne_bytes();
    u16::from_be_bytes([high, low])
}
