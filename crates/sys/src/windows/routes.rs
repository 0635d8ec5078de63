//! What the system knows of an adapter: addresses, routes, MTU and name servers; and which
//! adapter leads to everywhere else (IP Helper).
//!
//! What sets something has not yet run: it takes an adapter of one's own, which Wine has not,
//! and no Windows machine was at hand.

use super::library::{Place, load};
use super::wide::wide;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::windows::io::AsRawSocket as _;
use std::ptr;
use std::slice;
use std::thread;
use std::time::{Duration, Instant};
use windows_sys::Win32::Foundation::{ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS, NO_ERROR};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    CreateIpForwardEntry2, CreateUnicastIpAddressEntry, DNS_INTERFACE_SETTINGS,
    DNS_INTERFACE_SETTINGS_VERSION1, DNS_SETTING_IPV6, DNS_SETTING_NAMESERVER,
    DNS_SETTING_SEARCHLIST, FreeMibTable, GetIpForwardTable2, GetIpInterfaceEntry,
    InitializeIpForwardEntry, InitializeUnicastIpAddressEntry, MIB_IPFORWARD_ROW2,
    MIB_IPFORWARD_TABLE2, MIB_IPINTERFACE_ROW, MIB_UNICASTIPADDRESS_ROW, SetIpInterfaceEntry,
};
use windows_sys::Win32::NetworkManagement::Ndis::NET_LUID_LH;
use windows_sys::Win32::Networking::WinSock::{
    ADDRESS_FAMILY, AF_INET, AF_INET6, IP_UNICAST_IF, IPPROTO_IP, IPPROTO_IPV6, IPV6_UNICAST_IF,
    IpDadStatePreferred, RouterDiscoveryDisabled, SOCKADDR_IN, SOCKADDR_IN6, SOCKADDR_INET,
    setsockopt,
};
use windows_sys::core::GUID;

/// How long the system may take until a new adapter is one of IP's.
const PATIENCE: Duration = Duration::from_secs(10);

/// From one look at that to the next.
const PAUSE: Duration = Duration::from_millis(50);

/// An address or a network: its first address, and how many bits are the network's.
pub type Network = (IpAddr, u8);

/// IPv4 or IPv6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// An address's.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    fn raw(self) -> ADDRESS_FAMILY {
        match self {
            Self::V4 => AF_INET,
            Self::V6 => AF_INET6,
        }
    }
}

/// What an adapter gets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Addressing {
    /// Its addresses, each with its network's length.
    pub addresses: Vec<Network>,
    /// What is reached by it, without a gateway.
    pub routes: Vec<Network>,
    /// In bytes.
    pub mtu: u32,
}

/// Gives an adapter its addresses, routes and MTU, once the system is ready for it, which takes
/// some tenths of a second for a new one. Its routes come before equally long ones of other
/// adapters. The system takes all of it back when the adapter is removed.
///
/// # Errors
///
/// What the system says, with what it was about: that a family is turned off, for one.
pub fn set_up(luid: u64, addressing: &Addressing) -> io::Result<()> {
    let Addressing {
        addresses,
        routes,
        mtu,
    } = addressing;
    for family in [Family::V4, Family::V6] {
        let of_family = |(address, _): &&Network| Family::of(*address) == family;
        if addresses.iter().chain(routes).any(|one| of_family(&one)) {
            set_interface(luid, family, *mtu)
                .map_err(|error| about(&error, &format_args!("{family:?}")))?;
        }
        for one in addresses.iter().filter(of_family) {
            add_address(luid, *one)
                .map_err(|error| about(&error, &format_args!("{}/{}", one.0, one.1)))?;
        }
        for one in routes.iter().filter(of_family) {
            add_route(luid, *one)
                .map_err(|error| about(&error, &format_args!("route {}/{}", one.0, one.1)))?;
        }
    }
    Ok(())
}

fn about(error: &io::Error, what: &dyn std::fmt::Display) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn set_interface(luid: u64, family: Family, mtu: u32) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut row = loop {
        match interface(luid, family) {
            Err(error) if is_missing(&error) && Instant::now() < until => thread::sleep(PAUSE),
            found => break found?,
        }
    };
    row.NlMtu = mtu;
    // Routes of all adapters with the lowest sum of metrics win.
    row.UseAutomaticMetric = false;
    row.Metric = 0;
    // Nobody on the other side has anything to say of addresses.
    row.RouterDiscoveryBehavior = RouterDiscoveryDisabled;
    row.ManagedAddressConfigurationSupported = false;
    row.OtherStatefulConfigurationSupported = false;
    row.DadTransmits = 0;
    // What is read here must not be written.
    row.SitePrefixLength = 0;
    // SAFETY: the row is the system's own with some of its numbers changed.
    check(unsafe { SetIpInterfaceEntry(&raw mut row) })
}

fn interface(luid: u64, family: Family) -> io::Result<MIB_IPINTERFACE_ROW> {
    let mut row = MIB_IPINTERFACE_ROW {
        Family: family.raw(),
        InterfaceLuid: NET_LUID_LH { Value: luid },
        ..MIB_IPINTERFACE_ROW::default()
    };
    // SAFETY: the row says which one is meant, and is written before the call returns.
    check(unsafe { GetIpInterfaceEntry(&raw mut row) })?;
    Ok(row)
}

fn add_address(luid: u64, (address, length): Network) -> io::Result<()> {
    let mut row = MIB_UNICASTIPADDRESS_ROW::default();
    // SAFETY: the row is written whole before the call returns.
    unsafe { InitializeUnicastIpAddressEntry(&raw mut row) };
    row.InterfaceLuid = NET_LUID_LH { Value: luid };
    row.Address = raw(address);
    row.OnLinkPrefixLength = length;
    // Nobody else can have it, and nobody has to wait until that is known.
    row.DadState = IpDadStatePreferred;
    // SAFETY: the row is read only.
    check_added(unsafe { CreateUnicastIpAddressEntry(&raw const row) })
}

fn add_route(luid: u64, (address, length): Network) -> io::Result<()> {
    let mut row = MIB_IPFORWARD_ROW2::default();
    // SAFETY: the row is written whole before the call returns.
    unsafe { InitializeIpForwardEntry(&raw mut row) };
    row.InterfaceLuid = NET_LUID_LH { Value: luid };
    row.DestinationPrefix.Prefix = raw(address);
    row.DestinationPrefix.PrefixLength = length;
    row.NextHop = raw(match Family::of(address) {
        Family::V4 => IpAddr::from([0; 4]),
        Family::V6 => IpAddr::from([0; 16]),
    });
    row.Metric = 0;
    // SAFETY: the row is read only.
    check_added(unsafe { CreateIpForwardEntry2(&raw const row) })
}

/// The adapter by which a family's packets for anywhere leave, other than `except`: of those that
/// are connected the one with the lowest metric, by its index. `None` where there is none.
///
/// # Errors
///
/// What the system says. A family that is turned off is none.
pub fn default_interface(family: Family, except: u64) -> io::Result<Option<u32>> {
    let mut table: *mut MIB_IPFORWARD_TABLE2 = ptr::null_mut();
    // SAFETY: a place for a pointer, which is written before the call returns.
    match unsafe { GetIpForwardTable2(family.raw(), &raw mut table) } {
        ERROR_NOT_FOUND => return Ok(None),
        error => check(error)?,
    }
    // SAFETY: the call has made a table that is ours until it is freed, with as many rows behind
    // its number as that says.
    let rows = unsafe {
        slice::from_raw_parts(
            (&raw const (*table).Table).cast(),
            (*table).NumEntries as usize,
        )
    };
    let candidate = |row: &MIB_IPFORWARD_ROW2| {
        // SAFETY: every value of the union's bytes is a number.
        let luid = unsafe { row.InterfaceLuid.Value };
        if row.DestinationPrefix.PrefixLength != 0 || luid == except {
            return None;
        }
        let interface = interface(luid, family).ok().filter(|one| one.Connected)?;
        let metric = row.Metric.saturating_add(interface.Metric);
        Some((metric, row.InterfaceIndex))
    };
    let best = rows.iter().filter_map(candidate).min();
    // SAFETY: it was made by the system, and nothing refers to it any more.
    unsafe { FreeMibTable(table.cast()) };
    Ok(best.map(|(_, index)| index))
}

/// Has a socket's datagrams leave by an adapter, whatever routes say; by the one that routes
/// lead to for 0. The socket is of `family`.
///
/// # Errors
///
/// What the system says.
pub fn leave_by(socket: &UdpSocket, family: Family, index: u32) -> io::Result<()> {
    let (level, name, value) = match family {
        // In network byte order, for this one alone.
        Family::V4 => (IPPROTO_IP, IP_UNICAST_IF, index.to_be()),
        Family::V6 => (IPPROTO_IPV6, IPV6_UNICAST_IF, index),
    };
    let bytes = value.to_ne_bytes();
    // SAFETY: the socket is open while it is borrowed, and `bytes` are of the length that is
    // said and only read.
    let set = unsafe {
        setsockopt(
            socket.as_raw_socket() as _,
            level,
            name,
            bytes.as_ptr(),
            bytes.len() as i32,
        )
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives an adapter name servers and search domains; none takes them away. They are kept for
/// the adapter's `guid`, also when it is gone.
///
/// # Errors
///
/// What the system says; [`io::ErrorKind::Unsupported`] before Windows 10 of 2004 and Windows
/// Server 2022.
pub fn set_name_servers(guid: u128, servers: &[IpAddr], search: &[String]) -> io::Result<()> {
    type Set = unsafe extern "system" fn(GUID, *const DNS_INTERFACE_SETTINGS) -> u32;
    let unsupported = || {
        let reason = "this Windows has no function for it (SetInterfaceDnsSettings)";
        io::Error::new(io::ErrorKind::Unsupported, reason)
    };
    let library = load("iphlpapi.dll", Place::System)?;
    // SAFETY: the function of this name has had this signature since there is one.
    let set = unsafe { library.get::<Set>(b"SetInterfaceDnsSettings\0") };
    let set = set.map_err(|_| unsupported())?;
    let mut search = wide(search.join(","))?;
    for (family, flag) in [(Family::V4, 0), (Family::V6, DNS_SETTING_IPV6)] {
        let of_family = servers.iter().filter(|one| Family::of(**one) == family);
        let of_family: Vec<_> = of_family.map(IpAddr::to_string).collect();
        let mut of_family = wide(of_family.join(","))?;
        let settings = DNS_INTERFACE_SETTINGS {
            Version: DNS_INTERFACE_SETTINGS_VERSION1,
            Flags: u64::from(DNS_SETTING_NAMESERVER | DNS_SETTING_SEARCHLIST | flag),
            NameServer: of_family.as_mut_ptr(),
            SearchList: search.as_mut_ptr(),
            ..DNS_INTERFACE_SETTINGS::default()
        };
        // SAFETY: the settings and both texts, which end with zeros, outlive the call.
        check(unsafe { set(GUID::from_u128(guid), &raw const settings) })?;
    }
    Ok(())
}

fn raw(address: IpAddr) -> SOCKADDR_INET {
    match address {
        IpAddr::V4(address) => {
            let mut v4 = SOCKADDR_IN {
                sin_family: AF_INET,
                ..SOCKADDR_IN::default()
            };
            v4.sin_addr.S_un.S_addr = u32::from_ne_bytes(address.octets());
            SOCKADDR_INET { Ipv4: v4 }
        }
        IpAddr::V6(address) => {
            let mut v6 = SOCKADDR_IN6 {
                sin6_family: AF_INET6,
                ..SOCKADDR_IN6::default()
            };
            v6.sin6_addr.u.Byte = address.octets();
            SOCKADDR_INET { Ipv6: v6 }
        }
    }
}

fn is_missing(error: &io::Error) -> bool {
    error.raw_os_error().map(i32::cast_unsigned) == Some(ERROR_NOT_FOUND)
}

/// What is there already need not be added: the route to an address's own network, for one.
fn check_added(error: u32) -> io::Result<()> {
    match error {
        ERROR_OBJECT_ALREADY_EXISTS => Ok(()),
        error => check(error),
    }
}

fn check(error: u32) -> io::Result<()> {
    match error {
        NO_ERROR => Ok(()),
        error => Err(io::Error::from_raw_os_error(error.cast_signed())),
    }
}
