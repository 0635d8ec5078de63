//! The network connections of this machine: their names, numbers and addresses. Nothing is sent to
//! find them out.

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

/// Bytes of room at first, as the system's documentation recommends.
const ROOM: u32 = 15_000;

/// How often it is asked again, when there has become more than there was room for.
const TRIES: usize = 4;

/// A connection that works now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connection {
    /// Its GUID in braces, by which drivers know it.
    pub guid: String,
    /// What people call it.
    pub name: String,
    /// Its number for IPv4, or for IPv6 where it has no IPv4.
    pub index: u32,
    /// Its addresses, each with the length of its network's prefix.
    pub addresses: Vec<(IpAddr, u8)>,
    /// Whether a default route leads to it.
    pub has_gateway: bool,
    /// What it is.
    pub kind: Kind,
}

/// What a connection is, as far as packet filters beneath the TCP/IP stack tell them apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A card's, or that of a driver that stands for one.
    Card,
    /// A dial-up network's, or an old VPN's (`IF_TYPE_PPP`): all share one adapter.
    DialUp,
    /// Packets in packets that the system itself sends by others (`IF_TYPE_TUNNEL`).
    Wrapped,
}

/// All there are.
///
/// # Errors
///
/// What the system says.
pub fn connections() -> io::Result<Vec<Connection>> {
    let list = list()?;
    let mut connections = Vec::new();
    let mut next: *const IP_ADAPTER_ADDRESSES_LH = list.as_ptr().cast();
    if list.is_empty() {
        return Ok(connections);
    }
    while !next.is_null() {
        // SAFETY: it is the beginning of the list, or a pointer of the system's into it, which is
        // there until the end of this function.
        let adapter = unsafe { &*next };
        if adapter.OperStatus == IfOperStatusUp {
            // SAFETY: as above, of all that it points to.
            connections.push(unsafe { connection(adapter) });
        }
        next = adapter.Next;
    }
    Ok(connections)
}

/// The system's list; empty where there is none. Its parts need to be aligned as numbers of 64 bits.
fn list() -> io::Result<Vec<u64>> {
    let flags = GAA_FLAG_SKIP_ANYCAST
        | GAA_FLAG_SKIP_MULTICAST
        | GAA_FLAG_SKIP_DNS_SERVER
        | GAA_FLAG_INCLUDE_GATEWAYS
        | GAA_FLAG_INCLUDE_ALL_INTERFACES;
    let mut size = ROOM;
    for _ in 0..TRIES {
        let mut list = vec![0_u64; (size as usize).div_ceil(size_of::<u64>())];
        // SAFETY: there is room for `size` bytes, and both pointers are used no longer than the
        // call.
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
/// What it points to is there, as the system has made it.
unsafe fn connection(adapter: &IP_ADAPTER_ADDRESSES_LH) -> Connection {
    // SAFETY: both parts of the union are numbers.
    let index = unsafe { adapter.Anonymous1.Anonymous.IfIndex };
    let mut addresses = Vec::new();
    let mut next = adapter.FirstUnicastAddress;
    while !next.is_null() {
        // SAFETY: by the caller's word.
        let address = unsafe { &*next };
        // SAFETY: as above.
        let ip = unsafe { ip(&address.Address) };
        addresses.extend(ip.map(|ip| (ip, address.OnLinkPrefixLength)));
        next = address.Next;
    }
    Connection {
        guid: match adapter.AdapterName.is_null() {
            true => String::new(),
            // SAFETY: text that ends with a zero, by the caller's word.
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
/// It is null, or text that ends with a zero.
unsafe fn text(text: *const u16) -> String {
    if text.is_null() {
        return String::new();
    }
    let mut length = 0;
    // SAFETY: by the caller's word, there is a unit up to the zero.
    while unsafe { *text.add(length) } != 0 {
        length += 1;
    }
    // SAFETY: so many units have been read.
    String::from_utf16_lossy(unsafe { std::slice::from_raw_parts(text, length) })
}

/// # Safety
///
/// What it points to is there, of the length that it says.
unsafe fn ip(address: &SOCKET_ADDRESS) -> Option<IpAddr> {
    let length = usize::try_from(address.iSockaddrLength).ok()?;
    let at = address.lpSockaddr;
    if at.is_null() || length < size_of::<u16>() {
        return None;
    }
    // SAFETY: by the caller's word; the family is in the first two bytes of each kind.
    match unsafe { (*at).sa_family } {
        AF_INET if length >= size_of::<SOCKADDR_IN>() => {
            // SAFETY: so it is one of IPv4; the parts of the union are the same four bytes.
            let number = unsafe { (*at.cast::<SOCKADDR_IN>()).sin_addr.S_un.S_addr };
            Some(Ipv4Addr::from(number.to_ne_bytes()).into())
        }
        AF_INET6 if length >= size_of::<SOCKADDR_IN6>() => {
            // SAFETY: so it is one of IPv6; the parts of the union are the same sixteen bytes.
            let bytes = unsafe { (*at.cast::<SOCKADDR_IN6>()).sin6_addr.u.Byte };
            Some(Ipv6Addr::from(bytes).into())
        }
        _ => None,
    }
}
