//! The structures of C whose members the crate reads or writes.

use super::Fact;

/// Defines a type that holds a C structure's size and its members' offsets, in bytes.
macro_rules! structures {
    ($($(#[$attribute:meta])* $name:ident = $c:literal { $($field:ident = $member:literal),* $(,)? })*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name {
            pub(crate) size: usize,
            $(pub(crate) $field: usize,)*
        }

        impl $name {
            pub(super) fn facts(&self) -> Vec<Fact> {
                vec![Fact::Size($c, self.size), $(Fact::Offset($c, $member, self.$field),)*]
            }
        }
    )*};
}

structures! {
    /// Header of messages about routes (`net/route.h`).
    RouteHeader = "struct rt_msghdr" {
        length = "rtm_msglen",
        version = "rtm_version",
        kind = "rtm_type",
        index = "rtm_index",
        flags = "rtm_flags",
        addresses = "rtm_addrs",
        process = "rtm_pid",
        sequence = "rtm_seq",
        error = "rtm_errno",
        mtu = "rtm_rmx.rmx_mtu",
    }

    /// Header of messages about interfaces (`net/if.h`).
    InterfaceHeader = "struct if_msghdr" {
        length = "ifm_msglen",
        version = "ifm_version",
        kind = "ifm_type",
        addresses = "ifm_addrs",
        flags = "ifm_flags",
        index = "ifm_index",
        medium = "ifm_data.ifi_type",
        mtu = "ifm_data.ifi_mtu",
    }

    /// Header of messages about addresses of interfaces (`net/if.h`).
    AddressHeader = "struct ifa_msghdr" {
        length = "ifam_msglen",
        version = "ifam_version",
        kind = "ifam_type",
        addresses = "ifam_addrs",
        index = "ifam_index",
    }

    /// An IPv4 address (`netinet/in.h`).
    SockaddrIn = "struct sockaddr_in" {
        length = "sin_len",
        family = "sin_family",
        port = "sin_port",
        address = "sin_addr",
    }

    /// An IPv6 address (`netinet6/in6.h`).
    SockaddrIn6 = "struct sockaddr_in6" {
        length = "sin6_len",
        family = "sin6_family",
        port = "sin6_port",
        address = "sin6_addr",
        scope = "sin6_scope_id",
    }

    /// An interface (`net/if_dl.h`).
    SockaddrDl = "struct sockaddr_dl" {
        length = "sdl_len",
        family = "sdl_family",
        index = "sdl_index",
        medium = "sdl_type",
        name_length = "sdl_nlen",
        address_length = "sdl_alen",
        data = "sdl_data",
    }

    /// Header of control messages (`sys/socket.h`).
    ControlHeader = "struct cmsghdr" {
        length = "cmsg_len",
        level = "cmsg_level",
        kind = "cmsg_type",
    }

    /// Address and interface of an IPv6 datagram (`netinet6/in6.h`).
    In6Pktinfo = "struct in6_pktinfo" {
        address = "ipi6_addr",
        interface = "ipi6_ifindex",
    }

    /// Interface and addresses of an IPv4 datagram (`netinet/in.h` of macOS).
    InPktinfo = "struct in_pktinfo" {
        interface = "ipi_ifindex",
        source = "ipi_spec_dst",
        destination = "ipi_addr",
    }

    /// Argument of most requests about interfaces (`net/if.h`).
    Ifreq = "struct ifreq" {
        name = "ifr_name",
        value = "ifr_ifru",
    }

    /// Argument of `SIOCDIFADDR_IN6` (`netinet6/in6_var.h`).
    In6Ifreq = "struct in6_ifreq" {
        name = "ifr_name",
        value = "ifr_ifru",
    }

    /// Argument of `SIOCAIFADDR` (`net/if.h`).
    Ifaliasreq = "struct ifaliasreq" {
        name = "ifra_name",
        address = "ifra_addr",
        peer = "ifra_broadaddr",
        mask = "ifra_mask",
    }

    /// Argument of `SIOCAIFADDR_IN6` (`netinet6/in6_var.h`).
    In6Aliasreq = "struct in6_aliasreq" {
        name = "ifra_name",
        address = "ifra_addr",
        peer = "ifra_dstaddr",
        mask = "ifra_prefixmask",
        flags = "ifra_flags",
        valid_lifetime = "ifra_lifetime.ia6t_vltime",
        preferred_lifetime = "ifra_lifetime.ia6t_pltime",
    }

    /// Argument of `SIOCGIFINFO_IN6` and `SIOCSIFINFO_IN6` (`netinet6/nd6.h` of FreeBSD).
    In6Ndireq = "struct in6_ndireq" {
        name = "ifname",
        flags = "ndi.flags",
    }

    /// An arrival or departure of an interface (`net/if.h` of FreeBSD).
    AnnouncementHeader = "struct if_announcemsghdr" {
        length = "ifan_msglen",
        version = "ifan_version",
        kind = "ifan_type",
        index = "ifan_index",
        name = "ifan_name",
        event = "ifan_what",
    }

    /// Name and number of a kernel control (`sys/kern_control.h` of macOS).
    ControlInfo = "struct ctl_info" {
        id = "ctl_id",
        name = "ctl_name",
    }

    /// Address of a kernel control's unit (`sys/kern_control.h` of macOS).
    SockaddrCtl = "struct sockaddr_ctl" {
        length = "sc_len",
        family = "sc_family",
        kind = "ss_sysaddr",
        id = "sc_id",
        unit = "sc_unit",
    }
}

/// Defines a type that holds constants which both systems have, with different values.
macro_rules! numbers {
    ($($(#[$attribute:meta])* $name:ident { $($field:ident = $c:literal),* $(,)? })*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name {
            $(pub(crate) $field: u32,)*
        }

        impl $name {
            pub(super) fn facts(&self) -> Vec<Fact> {
                vec![$(Fact::Value($c, self.$field),)*]
            }
        }
    )*};
}

numbers! {
    /// Constants that differ between the systems.
    Numbers {
        af_inet6 = "AF_INET6",
        add_address = "SIOCAIFADDR",
        add_address_in6 = "SIOCAIFADDR_IN6",
        receive_packet_info_in6 = "IPV6_RECVPKTINFO",
        control_data = "CMSG_LEN(0)",
        control_space_of_one = "CMSG_SPACE(1)",
    }
}

/// A system's table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub(crate) numbers: Numbers,
    pub(crate) route: RouteHeader,
    pub(crate) interface: InterfaceHeader,
    pub(crate) address: AddressHeader,
    /// `None` on macOS, which does not announce interfaces.
    pub(crate) announcement: Option<AnnouncementHeader>,
    pub(crate) sockaddr_in: SockaddrIn,
    pub(crate) sockaddr_in6: SockaddrIn6,
    pub(crate) sockaddr_dl: SockaddrDl,
    pub(crate) control: ControlHeader,
    pub(crate) in6_pktinfo: In6Pktinfo,
    pub(crate) ifreq: Ifreq,
    pub(crate) in6_ifreq: In6Ifreq,
    pub(crate) ifaliasreq: Ifaliasreq,
    pub(crate) in6_aliasreq: In6Aliasreq,
    /// The unit in bytes to which the length of an address in a message is rounded up.
    pub(crate) alignment: usize,
}

impl Layout {
    /// Returns the bytes that a control message with data of this length occupies (`CMSG_SPACE`).
    pub(crate) const fn control_space(&self, length: usize) -> usize {
        let data = self.numbers.control_data;
        let unit = self.numbers.control_space_of_one - data;
        data as usize + length.next_multiple_of(unit as usize)
    }

    pub(super) fn facts(&self) -> Vec<Fact> {
        [
            self.numbers.facts(),
            self.route.facts(),
            self.interface.facts(),
            self.address.facts(),
            self.announcement.map(|it| it.facts()).unwrap_or_default(),
            self.sockaddr_in.facts(),
            self.sockaddr_in6.facts(),
            self.sockaddr_dl.facts(),
            self.control.facts(),
            self.in6_pktinfo.facts(),
            self.ifreq.facts(),
            self.in6_ifreq.facts(),
            self.ifaliasreq.facts(),
            self.in6_aliasreq.facts(),
        ]
        .concat()
    }
}

/// Data moves from the program to the kernel (`IOC_IN` in `sys/ioccom.h`).
pub(crate) const IN: u32 = 0x8000_0000;
/// Data moves from the kernel to the program (`IOC_OUT`).
pub(crate) const OUT: u32 = 0x4000_0000;
/// There is no argument (`IOC_VOID`).
pub(crate) const VOID: u32 = 0x2000_0000;

/// Returns the number of an `ioctl` request whose argument has `size` bytes (`_IOC` in
/// `sys/ioccom.h`).
pub(crate) const fn request(direction: u32, group: u8, number: u8, size: usize) -> u32 {
    direction | (size as u32 & 0x1fff) << 16 | (group as u32) << 8 | number as u32
}
