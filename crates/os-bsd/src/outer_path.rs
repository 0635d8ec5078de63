//! Restrictions of a socket that keep a tunnel's own datagrams off the routes into the tunnel.
//!
//! A tunnel with a default route would otherwise get its own encrypted datagrams. FreeBSD has routing
//! tables besides the one with that route (FIBs), macOS binds a socket to an interface.

use std::{io, num::NonZeroU32};

use taupe_packet::ip::Family;

use crate::{
    System,
    layout::{EINVAL, ENXIO},
    socket_option::{BOUND_INTERFACE_V4, BOUND_INTERFACE_V6, SET_FIB, SocketOption},
};

/// The part of the network that a socket's datagrams use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OuterPath {
    /// The routing table of the process, and every interface.
    #[default]
    Any,
    /// The routing table with this number (FreeBSD's FIB).
    Table(u32),
    /// The interface with this index (macOS). The socket also receives from this interface only.
    Interface(NonZeroU32),
}

/// Error of restricting a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OuterPathError {
    /// macOS has one routing table.
    #[error("macOS has no routing table {0}: bind to an interface instead")]
    NoTables(u32),
    /// FreeBSD binds no socket to an interface.
    #[error("FreeBSD cannot bind a UDP socket to an interface: use a routing table instead")]
    NoInterfaces,
    /// FreeBSD has fewer routing tables.
    #[error("there is no routing table {0}: the number of tables is net.fibs (loader.conf)")]
    NoSuchTable(u32),
    /// The interface does not exist.
    #[error("there is no interface with index {0}")]
    NoSuchInterface(u32),
}

/// Returns the meaning of the kernel's refusal of an option, as an error with a kind.
#[must_use]
pub fn refusal(path: OuterPath, error: io::Error) -> io::Error {
    let number = error.raw_os_error().map(i32::cast_unsigned);
    let reason = match (path, number) {
        // `sosetopt` in FreeBSD's `sys/kern/uipc_socket.c`.
        (OuterPath::Table(table), Some(EINVAL)) => OuterPathError::NoSuchTable(table),
        // `inp_bindif` in xnu's `bsd/netinet/in_pcb.c`.
        (OuterPath::Interface(index), Some(ENXIO)) => OuterPathError::NoSuchInterface(index.get()),
        _ => return error,
    };
    io::Error::new(io::ErrorKind::NotFound, reason)
}

/// Returns the socket option for a path with its value, or `None` if a new socket needs none.
///
/// # Errors
///
/// [`OuterPathError`] if the system does not have such paths.
pub const fn option(
    system: System,
    family: Family,
    path: OuterPath,
) -> Result<Option<(SocketOption, u32)>, OuterPathError> {
    let bound_interface = match family {
        Family::V4 => BOUND_INTERFACE_V4,
        Family::V6 => BOUND_INTERFACE_V6,
    };
    match (system, path) {
        (System::FreeBsd, OuterPath::Any) => Ok(None),
        (System::FreeBsd, OuterPath::Table(number)) => Ok(Some((SET_FIB, number))),
        (System::FreeBsd, OuterPath::Interface(_)) => Err(OuterPathError::NoInterfaces),
        // 0 ends an earlier binding (`inp_bindif_common` in xnu's `bsd/netinet/in_pcb.c`).
        (System::MacOs, OuterPath::Any) => Ok(Some((bound_interface, 0))),
        (System::MacOs, OuterPath::Table(number)) => Err(OuterPathError::NoTables(number)),
        (System::MacOs, OuterPath::Interface(index)) => Ok(Some((bound_interface, index.get()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(system: System, family: Family, path: OuterPath) -> Option<(i32, i32, u32)> {
        let option = option(system, family, path).unwrap();
        option.map(|(option, value)| (option.level, option.name, value))
    }

    /// `sys/socket.h` of FreeBSD; `netinet/in.h` and `netinet6/in6.h` of macOS.
    #[test]
    fn each_system_has_its_own_option() {
        let table = OuterPath::Table(3);
        let interface = OuterPath::Interface(NonZeroU32::new(5).unwrap());
        for family in Family::ALL {
            let freebsd = |path| numbers(System::FreeBsd, family, path);
            assert_eq!(freebsd(OuterPath::Any), None);
            assert_eq!(freebsd(table), Some((0xffff, 0x1014, 3)));
        }
        let macos = |family, path| numbers(System::MacOs, family, path);
        assert_eq!(macos(Family::V4, interface), Some((0, 25, 5)));
        assert_eq!(macos(Family::V6, interface), Some((41, 125, 5)));
        assert_eq!(macos(Family::V4, OuterPath::Any), Some((0, 25, 0)));
    }

    #[test]
    fn refusals_name_the_table_or_the_interface() {
        let text = |path, number| {
            let error = refusal(path, io::Error::from_raw_os_error(number));
            (error.kind(), error.to_string())
        };
        let interface = OuterPath::Interface(NonZeroU32::new(5).unwrap());
        assert_eq!(
            text(OuterPath::Table(3), 22).1,
            "there is no routing table 3: the number of tables is net.fibs (loader.conf)"
        );
        assert_eq!(
            text(interface, 6),
            (
                io::ErrorKind::NotFound,
                "there is no interface with index 5".to_owned()
            )
        );
        for (path, number) in [
            (OuterPath::Any, 22),
            (interface, 22),
            (OuterPath::Table(3), 6),
        ] {
            let error = refusal(path, io::Error::from_raw_os_error(number));
            assert_eq!(error.raw_os_error(), Some(number));
        }
    }

    #[test]
    fn paths_of_the_other_system_are_refused() {
        let interface = OuterPath::Interface(NonZeroU32::MIN);
        assert_eq!(
            option(System::FreeBsd, Family::V4, interface),
            Err(OuterPathError::NoInterfaces)
        );
        assert_eq!(
            option(System::MacOs, Family::V6, OuterPath::Table(3)),
            Err(OuterPathError::NoTables(3))
        );
    }
}
