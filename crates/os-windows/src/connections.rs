//! The network connections of this machine: names, indices and addresses. The listing sends no
//! packets.

use ipnet::IpNet;
use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ptr;
use windows_sys::Win32::Foundation::{ERROR_BUFFER_OVERFLOW, ERROR_NO_DATA, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    GAA_FLAG_INCLUDE_ALL_INTERFACES, GAA_FLAG_INCLUDE_GATEWAYS, GAA_FLAG_SKIP_ANYCAST,
    GAA_FLAG_SKIP_DNS_SERVER, GAA_FLAG_SKIP_MULTICAST, GetAdaptersAddresses, IF_TYPE_PPP,
    IF_TYPE_TUNNEL, IP_ADAPTER_ADDRESSES_LH,
};
use windows_sys::Win32::NetworkManagement::Ndis::IfOperStatusUp;
use windows_sys::Win32::Networking::WinSock::{
    AF_INET, AF_INET6, AF_UNSPEC, SOCKADDR_IN, SOCKADDR_IN6, SOCKET_ADDRESS,
};

/// Initial size of the list in bytes, as the system's documentation recommends.
const ROOM: u32 = 15_000;

/// Maximum attempts, if the list grew between two calls.
const TRIES: usize = 4;

/// A network connection that is up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connection {
    /// The GUID in braces, which drivers use.
    pub guid: String,
    /// The name in the user interface.
    pub name: String,
    /// The interface index for IPv4, or that for IPv6 if it has no IPv4.
    pub index: u32,
    /// The addresses with their prefix lengths.
    pub addresses: Vec<IpNet>,
    /// True if the connection has a gateway.
    pub has_gateway: bool,
    /// The kind of connection.
    pub kind: Kind,
}

/// The kinds of connections that packet filters below the TCP/IP stack distinguish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A network card, or a driver that emulates one.
    Card,
    /// A dial-up network or an old VPN (`IF_TYPE_PPP`): all of them share one adapter.
    DialUp,
    /// A tunnel of the system's, whose packets leave through other connections (`IF_TYPE_TUNNEL`).
    Wrapped,
}

/// Returns all connections that are up.
///
/// # Errors
///
/// The system's.
pub fn connections() -> io::Result<Vec<Connection>> {
    let list = list()?;
    let mut connections = Vec::new();
    let mut next: *const IP_ADAPTER_ADDRESSES_LH = list.as_ptr().cast();
    if list.is_empty() {
        return Ok(connections);
    }
    while !next.is_null() {
        // SAFETY: it is the start of the list, or a pointer that the system stored in the list,
        // which lives until the end of this function.
        let adapter = unsafe { &*next };
        if adapter.OperStatus == IfOperStatusUp {
            // SAFETY: as above, for everything that the entry points to.
            connections.push(unsafe { connection(adapter) });
        }
        next = adapter.Next;
    }
    Ok(connections)
}

/// Returns the system's list; empty if there is none. Its entries need the alignment of 64-bit
/// numbers.
fn list() -> io::Result<Vec<u64>> {
    let flags = GAA_FLAG_SKIP_ANYCAST
        | GAA_FLAG_SKIP_MULTICAST
        | GAA_FLAG_SKIP_DNS_SERVER
        | GAA_FLAG_INCLUDE_GATEWAYS
        | GAA_FLAG_INCLUDE_ALL_INTERFACES;
    let mut size = ROOM;
    for _ in 0..TRIES {
        let mut list = vec![0_u64; (size as usize).div_ceil(size_of::<u64>())];
        // SAFETY: the buffer has `size` bytes, and both pointers are used only during the call.
        let error = unsafe {
            GetAdaptersAddresses(
                AF_UNSPEC.into(),
                flags,
                ptr::null(),
                list.as_mut_ptr().cast(),
                &raw mut size,
            )
        };
        match error {
            NO_ERROR => return Ok(list),
            ERROR_NO_DATA => return Ok(Vec::new()),
            ERROR_BUFFER_OVERFLOW => {}
            error => return Err(io::Error::from_raw_os_error(error.cast_signed())),
        }
    }
    Err(io::Error::other("the connections change too fast"))
}

/// # Safety
///
/// All pointers in it are valid, as the system set them.
unsafe fn connection(adapter: &IP_ADAPTER_ADDRESSES_LH) -> Connection {
    // SAFETY: both variants of the union are numbers.
    let index = unsafe { adapter.Anonymous1.Anonymous.IfIndex };
    let mut addresses = Vec::new();
    let mut next = adapter.FirstUnicastAddress;
    while !next.is_null() {
        // SAFETY: the caller guarantees that the pointer is valid.
        let address = unsafe { &*next };
        // SAFETY: as above.
        let ip = unsafe { ip(&address.Address) };
        // The length of an address that is not in a network may exceed the address's.
        addresses.extend(
            ip.map(|ip| IpNet::new(ip, address.OnLinkPrefixLength).unwrap_or_else(|_| ip.into())),
        );
        next = address.Next;
    }
    Connection {
        guid: match adapter.AdapterName.is_null() {
            true => String::new(),
            // SAFETY: the caller guarantees that the text ends with a zero.
            false => unsafe { CStr::from_ptr(adapter.AdapterName.cast()) }
                .to_string_lossy()
                .into_owned(),
        },
        // SAFETY: as above.
        name: unsafe { text(adapter.FriendlyName) },
        index: if index == 0 {
            adapter.Ipv6IfIndex
        } else {
            index
        },
        addresses,
        has_gateway: !adapter.FirstGatewayAddress.is_null(),
        kind: match adapter.IfType {
            IF_TYPE_PPP => Kind::DialUp,
            IF_TYPE_TUNNEL => Kind::Wrapped,
            _ => Kind::Card,
        },
    }
}

/// # Safety
///
/// `text` is null or points to text that ends with a zero.
unsafe fn text(text: *const u16) -> String {
    if text.is_null() {
        return String::new();
    }
    let mut length = 0;
    // SAFETY: the caller guarantees that all units up to the zero are readable.
    while unsafe { *text.add(length) } != 0 {
        length += 1;
    }
    // SAFETY: this number of units was read above.
    String::from_utf16_lossy(unsafe { std::slice::from_raw_parts(text, length) })
}

/// # Safety
///
/// `lpSockaddr` is null or points to a socket address of the given length.
unsafe fn ip(address: &SOCKET_ADDRESS) -> Option<IpAddr> {
    let length = usize::try_from(address.iSockaddrLength).ok()?;
    let at = address.lpSockaddr;
    if at.is_null() || length < size_of::<u16>() {
        return None;
    }
    // SAFETY: the caller guarantees it; the family is in the first two bytes of every socket
    // address.
    match unsafe { (*at).sa_family } {
        AF_INET if length >= size_of::<SOCKADDR_IN>() => {
            // SAFETY: it is an IPv4 address; all variants of the union are the same four bytes.
            let number = unsafe { (*at.cast::<SOCKADDR_IN>()).sin_addr.S_un.S_addr };
            Some(Ipv4Addr::from(number.to_ne_bytes()).into())
        }
        AF_INET6 if length >= size_of::<SOCKADDR_IN6>() => {
            // SAFETY: it is an IPv6 address; all variants of the union are the same sixteen bytes.
            let bytes = unsafe { (*at.cast::<SOCKADDR_IN6>()).sin6_addr.u.Byte };
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}
