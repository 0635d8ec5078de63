//! `ioctl` requests about interfaces, on a datagram socket of the address's family.
//!
//! Sources: `sys/net/if.h`, `sys/netinet6/in6_var.h` and `sbin/ifconfig` of FreeBSD; `bsd/net/if.h`,
//! `bsd/netinet/in.c` and `bsd/netinet6/in6_var.h` of Apple's xnu.

use std::{fmt, net::IpAddr};

use ipnet::IpNet;

use crate::{
    System,
    bytes::{put, text, u16_at, u32_at},
    layout::{
        self, IFF_UP, IFNAMSIZ, IN6_IFF_NODAD, IN6_NDIREQ, ND6_IFF_AUTO_LINKLOCAL, ND6_IFF_NO_DAD,
        ND6_INFINITE_LIFETIME, SIOCDIFADDR, SIOCDIFADDR_IN6, SIOCGIFFLAGS, SIOCGIFINFO_IN6,
        SIOCGIFMTU, SIOCIFCREATE2, SIOCIFDESTROY, SIOCSIFFLAGS, SIOCSIFINFO_IN6, SIOCSIFMTU,
        SIOCSIFNAME,
    },
    socket_address::encode_plain,
};

/// An `ioctl` request and its argument.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct IoctlRequest {
    number: u64,
    argument: Vec<u8>,
}

/// Bits of a request's number with the length of its argument (`IOCPARM_MASK` in `sys/ioccom.h`), above
/// the 16 bits of the command.
const LENGTH: u32 = 0x1fff;

impl IoctlRequest {
    pub(crate) fn new(number: u32, mut argument: Vec<u8>) -> Self {
        // The kernel reads and writes as many bytes as the number says.
        argument.resize((number >> 16 & LENGTH) as usize, 0);
        Self {
            number: number.into(),
            argument,
        }
    }

    /// Returns the request's number, an `unsigned long`.
    #[must_use]
    pub const fn number(&self) -> u64 {
        self.number
    }

    /// Returns the argument, which has exactly as many bytes as the number says.
    #[must_use]
    pub fn argument(&self) -> &[u8] {
        &self.argument
    }

    /// Returns the argument, into which the kernel may write.
    pub fn argument_mut(&mut self) -> &mut [u8] {
        &mut self.argument
    }

    /// Returns the interface's name at the beginning of an argument.
    #[must_use]
    pub fn interface_name(&self) -> String {
        let name = self.argument.get(..IFNAMSIZ as usize);
        text(name.unwrap_or(&self.argument))
    }
}

/// The name of an interface that exists or may exist: 1 to 15 bytes without a NUL.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterfaceName(String);

impl InterfaceName {
    /// Returns `None` if no interface can have the name.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        let is_possible =
            !name.is_empty() && name.len() < IFNAMSIZ as usize && !name.contains('\0');
        is_possible.then(|| Self(name.to_owned()))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the request for an interface's flags (`SIOCGIFFLAGS`). [`flags`] reads the answer.
pub fn get_flags(system: System, name: &InterfaceName) -> IoctlRequest {
    IoctlRequest::new(SIOCGIFFLAGS, ifreq(system, name, &[]))
}

/// Returns the request that sets an interface's flags (`IFF_*`, `SIOCSIFFLAGS`). It replaces all of
/// them, so change those that [`flags`] returned. macOS has 16 flags, FreeBSD 32.
pub fn set_flags(system: System, name: &InterfaceName, flags: u32) -> IoctlRequest {
    let value = flags.to_le_bytes();
    let value = match system {
        System::FreeBsd => &value[..],
        System::MacOs => &value[..2],
    };
    IoctlRequest::new(SIOCSIFFLAGS, ifreq(system, name, value))
}

/// Returns the flags in the answer to [`get_flags`].
#[must_use]
pub fn flags(system: System, answer: &IoctlRequest) -> Option<u32> {
    let offset = layout::of(system).ifreq.value;
    match system {
        // `ifr_flags` and `ifr_flagshigh`, the lower half first.
        System::FreeBsd => u32_at(&answer.argument, offset),
        System::MacOs => u16_at(&answer.argument, offset).map(u32::from),
    }
}

/// Returns the request for an interface's MTU (`SIOCGIFMTU`). [`mtu`] reads the answer.
pub fn get_mtu(system: System, name: &InterfaceName) -> IoctlRequest {
    IoctlRequest::new(SIOCGIFMTU, ifreq(system, name, &[]))
}

/// Returns the request that sets an interface's MTU in bytes (`SIOCSIFMTU`).
pub fn set_mtu(system: System, name: &InterfaceName, mtu: u32) -> IoctlRequest {
    IoctlRequest::new(SIOCSIFMTU, ifreq(system, name, &mtu.to_le_bytes()))
}

/// Returns the MTU in the answer to [`get_mtu`], in bytes.
#[must_use]
pub fn mtu(system: System, answer: &IoctlRequest) -> Option<u32> {
    u32_at(&answer.argument, layout::of(system).ifreq.value)
}

/// Returns FreeBSD's request for the properties of neighbour discovery (`SIOCGIFINFO_IN6`).
/// [`without_link_local`] takes the answer.
pub fn get_neighbour_discovery(name: &InterfaceName) -> IoctlRequest {
    let mut argument = vec![0; IN6_NDIREQ.size];
    put(&mut argument, IN6_NDIREQ.name, name.as_str().as_bytes());
    IoctlRequest::new(SIOCGIFINFO_IN6, argument)
}

/// Returns FreeBSD's request to give an interface no link-local address, and not to search for
/// duplicates of its addresses (`SIOCSIFINFO_IN6`). The other properties are those of the answer.
pub fn without_link_local(answer: IoctlRequest) -> IoctlRequest {
    let mut argument = answer.argument;
    let flags = u32_at(&argument, IN6_NDIREQ.flags).unwrap_or(0);
    let flags = flags & !ND6_IFF_AUTO_LINKLOCAL | ND6_IFF_NO_DAD;
    put(&mut argument, IN6_NDIREQ.flags, &flags.to_le_bytes());
    IoctlRequest::new(SIOCSIFINFO_IN6, argument)
}

/// Returns FreeBSD's request that creates an interface (`SIOCIFCREATE2`). For a kind without a
/// number, such as `tun`, the kernel chooses one, and [`IoctlRequest::interface_name`] returns the
/// name from the answer.
pub fn create(kind: &InterfaceName) -> IoctlRequest {
    IoctlRequest::new(SIOCIFCREATE2, ifreq(System::FreeBsd, kind, &[]))
}

/// Returns the request that deletes a virtual interface (`SIOCIFDESTROY`). A utun device of macOS is
/// not deleted by it; it ends with its descriptor.
pub fn destroy(system: System, name: &InterfaceName) -> IoctlRequest {
    IoctlRequest::new(SIOCIFDESTROY, ifreq(system, name, &[]))
}

/// Returns FreeBSD's request that renames an interface (`SIOCSIFNAME`). `new_name` is the address of
/// 16 bytes in the caller's memory: the new name, and NUL bytes.
pub fn rename(name: &InterfaceName, new_name: u64) -> IoctlRequest {
    let argument = ifreq(System::FreeBsd, name, &new_name.to_le_bytes());
    IoctlRequest::new(SIOCSIFNAME, argument)
}

/// Returns the request that adds an address to an interface (`SIOCAIFADDR`, `SIOCAIFADDR_IN6`). IPv6
/// addresses get no search for duplicates and are valid without limit.
///
/// On a point-to-point interface, `peer` is the address of the other end. FreeBSD refuses an IPv4
/// address without it (`EDESTADDRREQ`, `in_aifaddr_ioctl` in `sys/netinet/in.c`), and accepts the peer
/// of an IPv6 address only if the prefix has 128 bits. On macOS, wg-quick uses the own IPv4 address as
/// the peer. On a broadcast interface, `peer` is the IPv4 broadcast address. A peer of the other family
/// is ignored.
pub fn add_address(
    system: System,
    name: &InterfaceName,
    network: IpNet,
    peer: Option<IpAddr>,
) -> IoctlRequest {
    let layout = layout::of(system);
    let (v4, v6) = (&layout.ifaliasreq, &layout.in6_aliasreq);
    let (number, size, [name_at, address_at, mask_at, peer_at]) = match network {
        IpNet::V4(_) => (
            layout.numbers.add_address,
            v4.size,
            [v4.name, v4.address, v4.mask, v4.peer],
        ),
        IpNet::V6(_) => (
            layout.numbers.add_address_in6,
            v6.size,
            [v6.name, v6.address, v6.mask, v6.peer],
        ),
    };
    let mut argument = vec![0; size];
    put(&mut argument, name_at, name.0.as_bytes());
    let own = network.addr();
    let peer = peer.filter(|peer| peer.is_ipv4() == own.is_ipv4());
    let addresses = [
        (address_at, Some(own)),
        (mask_at, Some(network.netmask())),
        (peer_at, peer),
    ];
    for (offset, ip) in addresses {
        let encoded = ip.map(|ip| encode_plain(system, ip));
        put(&mut argument, offset, &encoded.unwrap_or_default());
    }
    if own.is_ipv6() {
        let infinite = ND6_INFINITE_LIFETIME.to_le_bytes();
        put(&mut argument, v6.flags, &IN6_IFF_NODAD.to_le_bytes());
        put(&mut argument, v6.valid_lifetime, &infinite);
        put(&mut argument, v6.preferred_lifetime, &infinite);
    }
    IoctlRequest::new(number, argument)
}

/// Returns the request that removes an address from an interface (`SIOCDIFADDR`,
/// `SIOCDIFADDR_IN6`).
pub fn remove_address(system: System, name: &InterfaceName, address: IpAddr) -> IoctlRequest {
    let value = encode_plain(system, address);
    match address {
        IpAddr::V4(_) => IoctlRequest::new(SIOCDIFADDR, ifreq(system, name, &value)),
        IpAddr::V6(_) => {
            let fields = &layout::of(system).in6_ifreq;
            let mut argument = vec![0; fields.size];
            put(&mut argument, fields.name, name.0.as_bytes());
            put(&mut argument, fields.value, &value);
            IoctlRequest::new(SIOCDIFADDR_IN6, argument)
        }
    }
}

/// Returns a `struct ifreq`.
fn ifreq(system: System, name: &InterfaceName, value: &[u8]) -> Vec<u8> {
    let fields = &layout::of(system).ifreq;
    let mut bytes = vec![0; fields.size];
    put(&mut bytes, fields.name, name.0.as_bytes());
    put(&mut bytes, fields.value, value);
    bytes
}

/// Returns true if the flags are those of an interface that is administratively up.
#[must_use]
pub const fn is_up(flags: u32) -> bool {
    flags & IFF_UP != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> InterfaceName {
        InterfaceName::new(name).unwrap()
    }

    /// Numbers as wireguard-go has them (`tun/tun_freebsd.go`).
    #[test]
    fn link_local_addresses_are_turned_off() {
        let mut request = get_neighbour_discovery(&InterfaceName::new("tun0").unwrap());
        assert_eq!(
            (request.number(), request.argument().len()),
            (0xc048_696c, 72)
        );
        assert_eq!(request.interface_name(), "tun0");
        // The kernel's answer: PERFORMNUD and AUTO_LINKLOCAL, and an MTU.
        request.argument_mut()[36] = 0x21;
        request.argument_mut()[16..18].copy_from_slice(&[0xdc, 5]);
        let set = without_link_local(request);
        assert_eq!(set.number(), 0xc048_696d);
        assert_eq!(set.interface_name(), "tun0");
        assert_eq!(set.argument()[36..40], [0x01, 0x01, 0, 0]);
        assert_eq!(set.argument()[16..18], [0xdc, 5]);
    }

    /// Every number contains the length of its argument (`sys/ioccom.h`).
    #[test]
    fn arguments_are_as_long_as_their_numbers_say() {
        let v4: IpNet = "192.0.2.1/24".parse().unwrap();
        let v6: IpNet = "2001:db8::1/64".parse().unwrap();
        for system in System::ALL {
            let tun = name("tun0");
            for request in [
                get_flags(system, &tun),
                set_flags(system, &tun, 1),
                get_mtu(system, &tun),
                set_mtu(system, &tun, 1420),
                destroy(system, &tun),
                create(&name("tun")),
                rename(&tun, 0x1234),
                add_address(system, &tun, v4, None),
                add_address(system, &tun, v6, None),
                remove_address(system, &tun, v4.addr()),
                remove_address(system, &tun, v6.addr()),
            ] {
                let length = (request.number >> 16 & 0x1fff) as usize;
                assert_eq!(request.argument.len(), length, "{request:x?}");
                assert!(request.interface_name().starts_with("tun"));
            }
        }
    }

    /// The numbers as a debugger shows them. zig's headers lack macOS's `SIOCAIFADDR_IN6`: this
    /// number is also in slackhq/nebula (`overlay/tun_darwin.go`).
    #[test]
    fn numbers_are_composed_as_in_c() {
        let v4: IpNet = "192.0.2.1/24".parse().unwrap();
        let v6: IpNet = "2001:db8::1/64".parse().unwrap();
        let tun = name("utun0");
        let numbers = |system| {
            [
                get_flags(system, &tun),
                set_flags(system, &tun, 1),
                set_mtu(system, &tun, 1420),
                destroy(system, &tun),
                add_address(system, &tun, v4, None),
                add_address(system, &tun, v6, None),
                remove_address(system, &tun, v4.addr()),
            ]
            .map(|request| request.number)
        };
        assert_eq!(
            numbers(System::FreeBsd),
            [
                0xc020_6911,
                0x8020_6910,
                0x8020_6934,
                0x8020_6979,
                0x8044_692b,
                0x8088_691b,
                0x8020_6919
            ]
        );
        assert_eq!(
            numbers(System::MacOs),
            [
                0xc020_6911,
                0x8020_6910,
                0x8020_6934,
                0x8020_6979,
                0x8040_691a,
                0x8080_691a,
                0x8020_6919
            ]
        );
    }

    #[test]
    fn flags_have_32_bits_on_freebsd_and_16_on_macos() {
        for (system, expected) in [
            (System::FreeBsd, 0x0010_8841_u32),
            (System::MacOs, 0x0000_8841),
        ] {
            let request = set_flags(system, &name("en0"), 0x0010_8841);
            assert_eq!(flags(system, &request), Some(expected));
            assert_eq!(request.argument[16..20], expected.to_le_bytes());
            let request = set_mtu(system, &name("en0"), 1280);
            assert_eq!(mtu(system, &request), Some(1280));
        }
    }

    #[test]
    fn an_ipv6_address_is_permanent_and_not_searched_for_duplicates() {
        let network = "2001:db8::1/64".parse().unwrap();
        let peer = "2001:db8::2".parse().ok();
        let request = add_address(System::MacOs, &name("utun3"), network, peer);
        let bytes = &request.argument;
        assert_eq!(bytes[..16], *b"utun3\0\0\0\0\0\0\0\0\0\0\0");
        assert_eq!(bytes[16..24], [28, 30, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            bytes[24..40],
            [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
        );
        assert_eq!(bytes[44 + 23], 2);
        assert_eq!(bytes[72 + 8..72 + 24], [[0xff; 8], [0; 8]].concat());
        assert_eq!(bytes[100..104], [0x20, 0, 0, 0]);
        assert_eq!(bytes[120..128], [0xff; 8]);
    }

    #[test]
    fn names_have_1_to_15_bytes() {
        assert!(InterfaceName::new("").is_none());
        assert!(InterfaceName::new("a\0b").is_none());
        assert!(InterfaceName::new("0123456789abcdef").is_none());
        assert_eq!(name("0123456789abcde").as_str().len(), 15);
    }
}
