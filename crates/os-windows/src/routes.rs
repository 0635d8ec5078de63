//! Configuration of an adapter (addresses, routes, MTU and name servers), and the adapter of the
//! default route (IP Helper).
//!
//! The functions that change settings have not been tested on Windows yet; they need a virtual
//! adapter, which Wine cannot create.

use super::library::{Place, load};
use super::wide::wide;
use ipnet::IpNet;
use std::fmt;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::windows::io::AsRawSocket as _;
use std::ptr;
use std::slice;
use taupe_packet::ip::Family;
use windows_sys::Win32::Foundation::{
    ERROR_FILE_NOT_FOUND, ERROR_NOT_FOUND, ERROR_OBJECT_ALREADY_EXISTS, NO_ERROR,
};
use windows_sys::Win32::NetworkManagement::IpHelper::{
    ConvertInterfaceLuidToAlias, ConvertInterfaceLuidToGuid, CreateIpForwardEntry2,
    CreateUnicastIpAddressEntry, DNS_INTERFACE_SETTINGS, DNS_INTERFACE_SETTINGS_VERSION1,
    DNS_SETTING_IPV6, DNS_SETTING_NAMESERVER, DNS_SETTING_SEARCHLIST, FreeMibTable,
    GetIpForwardTable2, GetIpInterfaceEntry, GetUnicastIpAddressTable, IF_TYPE_PROP_VIRTUAL,
    IF_TYPE_TUNNEL, InitializeIpForwardEntry, InitializeUnicastIpAddressEntry, MIB_IPFORWARD_ROW2,
    MIB_IPFORWARD_TABLE2, MIB_IPINTERFACE_ROW, MIB_UNICASTIPADDRESS_ROW,
    MIB_UNICASTIPADDRESS_TABLE, SetIpInterfaceEntry,
};
use windows_sys::Win32::NetworkManagement::Ndis::NET_LUID_LH;
use windows_sys::Win32::Networking::WinSock::{
    ADDRESS_FAMILY, AF_INET, AF_INET6, IP_UNICAST_IF, IPPROTO_IP, IPPROTO_IPV6, IPV6_UNICAST_IF,
    IpDadStatePreferred, RouterDiscoveryDisabled, SOCKADDR_IN, SOCKADDR_IN6, SOCKADDR_INET,
    setsockopt,
};
use windows_sys::core::GUID;

/// The minimum MTU of IPv6 (RFC 8200, section 5); the system refuses less.
const LEAST_MTU_OF_V6: u32 = 1280;

/// Maximum length of an adapter's name, including the final zero.
const LONGEST_ALIAS: usize = 257;

/// Returns the system's number of a family.
fn raw_family(family: Family) -> ADDRESS_FAMILY {
    match family {
        Family::V4 => AF_INET,
        Family::V6 => AF_INET6,
    }
}

/// Settings of an adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AdapterSettings {
    /// Addresses with their prefix lengths.
    pub addresses: Vec<IpNet>,
    /// Networks that are reached through it without a gateway.
    pub routes: Vec<IpNet>,
    /// The MTU in bytes; IPv6 uses at least 1280.
    pub mtu: u32,
}

/// Returns true if an adapter supports a family. For a new adapter this becomes true after some
/// tenths of a second, and never if the family is disabled.
///
/// # Errors
///
/// Other errors of the system.
pub fn has_family(luid: u64, family: Family) -> io::Result<bool> {
    match interface(luid, family) {
        Ok(_) => Ok(true),
        Err(error) if is_missing(&error) => Ok(false),
        Err(error) => Err(with_context(&error, &family)),
    }
}

/// Sets the addresses, routes and MTU of an adapter. The families must be [available](has_family).
/// The routes have precedence over routes of other adapters with the same prefix length. The system
/// removes all settings together with the adapter.
///
/// # Errors
///
/// The system's, with the setting that failed; if another adapter has one of the addresses, its
/// name.
pub fn set_up(luid: u64, settings: &AdapterSettings) -> io::Result<()> {
    let AdapterSettings {
        addresses,
        routes,
        mtu,
    } = settings;
    for family in Family::ALL {
        let of_family = |network: &&IpNet| Family::of(network.addr()) == family;
        if addresses.iter().chain(routes).any(|one| of_family(&one)) {
            set_interface(luid, family, *mtu).map_err(|error| with_context(&error, &family))?;
        }
        for one in addresses.iter().filter(of_family) {
            add_address(luid, *one).map_err(|error| with_context(&error, one))?;
        }
        for one in routes.iter().filter(of_family) {
            add_route(luid, *one)
                .map_err(|error| with_context(&error, &format_args!("route {one}")))?;
        }
    }
    Ok(())
}

fn with_context(error: &io::Error, what: &dyn fmt::Display) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn set_interface(luid: u64, family: Family, mtu: u32) -> io::Result<()> {
    let mut row = interface(luid, family)?;
    row.NlMtu = mtu_of(family, mtu);
    // The route with the lowest sum of route and interface metric has precedence.
    row.UseAutomaticMetric = false;
    row.Metric = 0;
    // There is no router or DHCP server on this network.
    row.RouterDiscoveryBehavior = RouterDiscoveryDisabled;
    row.ManagedAddressConfigurationSupported = false;
    row.OtherStatefulConfigurationSupported = false;
    row.DadTransmits = 0;
    // The value that was read must not be written back.
    row.SitePrefixLength = 0;
    // SAFETY: the row was filled by the system, with some numbers changed.
    check(unsafe { SetIpInterfaceEntry(&raw mut row) })
}

fn mtu_of(family: Family, mtu: u32) -> u32 {
    match family {
        Family::V4 => mtu,
        Family::V6 => mtu.max(LEAST_MTU_OF_V6),
    }
}

fn interface(luid: u64, family: Family) -> io::Result<MIB_IPINTERFACE_ROW> {
    let mut row = MIB_IPINTERFACE_ROW {
        Family: raw_family(family),
        InterfaceLuid: NET_LUID_LH { Value: luid },
        ..MIB_IPINTERFACE_ROW::default()
    };
    // SAFETY: the row selects the interface, and is valid for writing.
    check(unsafe { GetIpInterfaceEntry(&raw mut row) })?;
    Ok(row)
}

fn add_address(luid: u64, own: IpNet) -> io::Result<()> {
    let mut row = MIB_UNICASTIPADDRESS_ROW::default();
    // SAFETY: the call initialises the complete row.
    unsafe { InitializeUnicastIpAddressEntry(&raw mut row) };
    row.InterfaceLuid = NET_LUID_LH { Value: luid };
    row.Address = raw(own.addr());
    row.OnLinkPrefixLength = own.prefix_len();
    // Skip duplicate address detection, since nobody in the tunnel answers, and nobody has to wait
    // for it.
    row.DadState = IpDadStatePreferred;
    // SAFETY: the row is only read.
    match unsafe { CreateUnicastIpAddressEntry(&raw const row) } {
        ERROR_OBJECT_ALREADY_EXISTS => match other_adapter_with(luid, own.addr())? {
            // The address was added twice.
            None => Ok(()),
            Some(other) => Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                format!("the adapter {} has this address", alias(other)),
            )),
        },
        error => check(error),
    }
}

/// Returns an adapter other than `luid` that has an address.
fn other_adapter_with(luid: u64, address: IpAddr) -> io::Result<Option<u64>> {
    let family = Family::of(address);
    let mut table: *mut MIB_UNICASTIPADDRESS_TABLE = ptr::null_mut();
    // SAFETY: `table` is valid for writing.
    check(unsafe { GetUnicastIpAddressTable(raw_family(family), &raw mut table) })?;
    // SAFETY: the call allocated a table, which this function owns until it frees it, with as many
    // rows as the table says.
    let rows = unsafe {
        slice::from_raw_parts(
            (&raw const (*table).Table).cast::<MIB_UNICASTIPADDRESS_ROW>(),
            (*table).NumEntries as usize,
        )
    };
    let holder = rows.iter().find_map(|row| {
        // SAFETY: the union is valid for all bytes; its value is a number.
        let of_row = unsafe { row.InterfaceLuid.Value };
        (of_row != luid && address_of(&row.Address) == Some(address)).then_some(of_row)
    });
    // SAFETY: the system allocated the table, and nothing refers to it any more.
    unsafe { FreeMibTable(table.cast()) };
    Ok(holder)
}

/// Returns the name of an adapter in the user interface.
fn alias(luid: u64) -> String {
    let luid = NET_LUID_LH { Value: luid };
    let mut name = [0_u16; LONGEST_ALIAS];
    // SAFETY: the number is only read, and `name` has the length that is passed.
    let error =
        unsafe { ConvertInterfaceLuidToAlias(&raw const luid, name.as_mut_ptr(), name.len()) };
    match error {
        NO_ERROR => String::from_utf16_lossy(name.split(|one| *one == 0).next().unwrap_or(&[])),
        _ => "(without a name)".to_owned(),
    }
}

fn add_route(luid: u64, destination: IpNet) -> io::Result<()> {
    let mut row = MIB_IPFORWARD_ROW2::default();
    // SAFETY: the call initialises the complete row.
    unsafe { InitializeIpForwardEntry(&raw mut row) };
    row.InterfaceLuid = NET_LUID_LH { Value: luid };
    row.DestinationPrefix.Prefix = raw(destination.addr());
    row.DestinationPrefix.PrefixLength = destination.prefix_len();
    row.NextHop = raw(match Family::of(destination.addr()) {
        Family::V4 => IpAddr::from([0; 4]),
        Family::V6 => IpAddr::from([0; 16]),
    });
    row.Metric = 0;
    // SAFETY: the row is only read.
    check_added(unsafe { CreateIpForwardEntry2(&raw const row) })
}

struct DefaultRoute {
    luid: u64,
    index: u32,
    metric: u32,
}

impl DefaultRoute {
    fn of(row: &MIB_IPFORWARD_ROW2) -> Option<Self> {
        (row.DestinationPrefix.PrefixLength == 0).then_some(Self {
            // SAFETY: the union is valid for all bytes; its value is a number.
            luid: unsafe { row.InterfaceLuid.Value },
            index: row.InterfaceIndex,
            metric: row.Metric,
        })
    }
}

/// Returns true if an adapter is a tunnel: of the kind that Wintun, WireGuard and OpenVPN create
/// (`IF_TYPE_PROP_VIRTUAL`), or one of the system's (`IF_TYPE_TUNNEL`: Teredo, 6to4). If two
/// tunnels carried all traffic, each would send its datagrams through the other in a loop.
fn is_tunnel(luid: u64) -> bool {
    // `NET_LUID_LH`: the interface's type is in the highest 16 bits.
    let kind = (luid >> 48) as u32;
    matches!(kind, IF_TYPE_PROP_VIRTUAL | IF_TYPE_TUNNEL)
}

/// Returns the index of the adapter with the lowest sum of metrics. Skips tunnels, and adapters for
/// which `metric` returns `None`, because they are not connected.
fn lowest_metric(routes: &[DefaultRoute], metric: impl Fn(u64) -> Option<u32>) -> Option<u32> {
    let outward = routes.iter().filter(|route| !is_tunnel(route.luid));
    let candidates = outward.filter_map(|route| {
        let metric = metric(route.luid)?.saturating_add(route.metric);
        Some((metric, route.index))
    });
    candidates.min().map(|(_, index)| index)
}

/// Returns the index of the adapter through which a family's packets bypass all tunnels: of the
/// connected adapters with a default route, the one with the lowest metric. Returns `None` if there
/// is none.
///
/// # Errors
///
/// The system's. A disabled family is not an error.
pub fn default_interface(family: Family) -> io::Result<Option<u32>> {
    let mut table: *mut MIB_IPFORWARD_TABLE2 = ptr::null_mut();
    // SAFETY: `table` is valid for writing.
    match unsafe { GetIpForwardTable2(raw_family(family), &raw mut table) } {
        ERROR_NOT_FOUND => return Ok(None),
        error => check(error)?,
    }
    // SAFETY: the call allocated a table, which this function owns until it frees it, with as many
    // rows as the table says.
    let rows = unsafe {
        slice::from_raw_parts(
            (&raw const (*table).Table).cast(),
            (*table).NumEntries as usize,
        )
    };
    let routes: Vec<_> = rows.iter().filter_map(DefaultRoute::of).collect();
    // SAFETY: the system allocated the table, and nothing refers to it any more.
    unsafe { FreeMibTable(table.cast()) };
    let metric = |luid| {
        let interface = interface(luid, family).ok()?;
        interface.Connected.then_some(interface.Metric)
    };
    Ok(lowest_metric(&routes, metric))
}

/// Makes a socket's datagrams leave through an adapter, regardless of the routes; 0 restores the
/// use of the routes. The socket must be of `family`.
///
/// # Errors
///
/// The system's.
pub fn set_unicast_interface(socket: &UdpSocket, family: Family, index: u32) -> io::Result<()> {
    let (level, name, value) = match family {
        // Only this option takes network byte order.
        Family::V4 => (IPPROTO_IP, IP_UNICAST_IF, index.to_be()),
        Family::V6 => (IPPROTO_IPV6, IPV6_UNICAST_IF, index),
    };
    let bytes = value.to_ne_bytes();
    // SAFETY: the socket is open while it is borrowed. `bytes` has the length that is passed and is
    // only read.
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

/// The identifier under which the system stores an adapter's settings, even after the adapter was
/// removed.
#[derive(Clone, Copy)]
pub struct Guid(GUID);

impl Guid {
    /// Returns the GUID of an adapter, which may differ from the one requested at its creation.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn of(luid: u64) -> io::Result<Self> {
        let luid = NET_LUID_LH { Value: luid };
        let mut guid = GUID::from_u128(0);
        // SAFETY: the number is only read, and `guid` is valid for writing.
        check(unsafe { ConvertInterfaceLuidToGuid(&raw const luid, &raw mut guid) })?;
        Ok(Self(guid))
    }
}

/// Sets an adapter's name servers and search domains; empty lists remove them.
///
/// # Errors
///
/// The system's; [`io::ErrorKind::Unsupported`] before Windows 10 version 2004 and Windows Server
/// 2022.
pub fn set_name_servers(guid: Guid, servers: &[IpAddr], search: &[String]) -> io::Result<()> {
    type Set = unsafe extern "system" fn(GUID, *const DNS_INTERFACE_SETTINGS) -> u32;
    let unsupported = || {
        let reason = "this Windows has no function for it (SetInterfaceDnsSettings)";
        io::Error::new(io::ErrorKind::Unsupported, reason)
    };
    let library = load("iphlpapi.dll", Place::System)?;
    // SAFETY: the function of this name has always had this signature.
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
        check(unsafe { set(guid.0, &raw const settings) })?;
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

fn address_of(raw: &SOCKADDR_INET) -> Option<IpAddr> {
    // SAFETY: the family, with which every variant begins, selects the variant, and addresses are
    // valid for all bytes.
    unsafe {
        match raw.si_family {
            AF_INET => Some(IpAddr::from(raw.Ipv4.sin_addr.S_un.S_addr.to_ne_bytes())),
            AF_INET6 => Some(IpAddr::from(raw.Ipv6.sin6_addr.u.Byte)),
            _ => None,
        }
    }
}

/// Returns true if the adapter does not support the family, for which `GetIpInterfaceEntry` has two
/// errors.
fn is_missing(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(i32::cast_unsigned);
    matches!(code, Some(ERROR_NOT_FOUND | ERROR_FILE_NOT_FOUND))
}

/// Checks the result of adding a route. An existing route, such as the one to an address's own
/// network, is not an error.
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

#[cfg(test)]
mod tests {
    use super::{DefaultRoute, Family, address_of, is_missing, lowest_metric, mtu_of, raw};
    use std::io;

    /// Returns a LUID in the system's format.
    fn luid(kind: u64, index: u64) -> u64 {
        (kind << 48) | (index << 24)
    }

    #[test]
    fn no_tunnel_is_a_way_for_another_tunnel() {
        let (here, there) = (luid(53, 0x8000), luid(53, 0x8001));
        let (teredo, cable, wifi) = (luid(131, 1), luid(6, 0x8000), luid(71, 0x8000));
        let all = [here, there, teredo, wifi, cable].into_iter().zip(1..);
        let routes: Vec<_> = all
            .map(|(luid, index)| DefaultRoute {
                luid,
                index,
                metric: 0,
            })
            .collect();
        let metric = |luid| {
            Some(if luid == wifi {
                35
            } else {
                u32::from(luid == cable) * 25
            })
        };
        assert_eq!(lowest_metric(&routes, metric), Some(5), "the cable");
        let without_cable = |luid| metric(luid).filter(|_| luid != cable);
        assert_eq!(lowest_metric(&routes, without_cable), Some(4), "the Wi-Fi");
        assert_eq!(lowest_metric(&routes[..3], metric), None, "tunnels alone");
    }

    #[test]
    fn an_adapter_that_is_not_there_yet_is_known_by_either_error() {
        for (code, missing) in [(2, true), (1168, true), (5, false), (87, false)] {
            assert_eq!(is_missing(&io::Error::from_raw_os_error(code)), missing);
        }
    }

    #[test]
    fn ipv6_has_no_less_than_it_takes() {
        assert_eq!(mtu_of(Family::V6, 1200), 1280);
        assert_eq!(mtu_of(Family::V6, 1420), 1420);
        assert_eq!(mtu_of(Family::V4, 1200), 1200);
    }

    #[test]
    fn addresses_are_read_as_they_are_written() {
        for address in ["192.0.2.1", "2001:db8::1"] {
            let address = address.parse().expect("an address");
            assert_eq!(address_of(&raw(address)), Some(address));
        }
    }
}
