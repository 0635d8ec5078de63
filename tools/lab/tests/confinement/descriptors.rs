//! Descriptors of a packet process.

use crate::intruder::{Intruder, Outcome};
use std::fs;
use taupe_lab::{Error, Result};

/// A descriptor of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    pub(crate) number: u64,
    pub(crate) kind: Kind,
}

/// Kind of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A UDP socket.
    Udp,
    /// A netlink socket of this protocol.
    Netlink(u32),
    /// A stream socket of the configuration.
    LocalStream,
    /// The socket to the broker.
    Broker,
    /// A TUN queue.
    Tun,
    /// A timer or an event counter, a pipe, `/dev/null`; the watch of the device's socket file, and the
    /// place of this file (`O_PATH`).
    Harmless,
    /// A network namespace.
    Namespace,
    /// Something else.
    Other,
}

/// Returns the descriptors of a process.
pub(crate) fn of(process: u32, intruder: &mut Intruder) -> Result<Vec<Descriptor>> {
    let folder = format!("/proc/{process}/fd");
    let entries = fs::read_dir(&folder).map_err(Error::io(&*folder))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.map_err(Error::io(&*folder))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let number = name.parse().map_err(|_| Error::unmet(&*name))?;
        let link = fs::read_link(&path).map_err(Error::io(&*name))?;
        let link = link.display().to_string();
        let kind = match &*link {
            "/dev/net/tun" => Kind::Tun,
            "/dev/null" | "anon_inode:inotify" => Kind::Harmless,
            "anon_inode:[timerfd]" | "anon_inode:[eventfd]" => Kind::Harmless,
            _ if link.starts_with("pipe:") => Kind::Harmless,
            _ if link.starts_with("net:") => Kind::Namespace,
            _ if link.starts_with("socket:") => of_socket(intruder, number)?,
            _ if link.ends_with(".sock") && is_place(process, number) => Kind::Harmless,
            _ => Kind::Other,
        };
        eprintln!("descriptor {number}: {link}, {kind:?}");
        found.push(Descriptor { number, kind });
    }
    Ok(found)
}

/// Returns true if a descriptor is only a place in the file system, by which nothing is read or written.
fn is_place(process: u32, number: u64) -> bool {
    let text = fs::read_to_string(format!("/proc/{process}/fdinfo/{number}")).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & libc::O_PATH != 0)
}

/// Returns the kind of a socket, by the process's own call.
pub(crate) fn of_socket(intruder: &mut Intruder, number: u64) -> Result<Kind> {
    let options = [libc::SO_DOMAIN, libc::SO_TYPE, libc::SO_PROTOCOL];
    let mut values = [0; 3];
    for (value, option) in values.iter_mut().zip(options) {
        *value = socket_option(intruder, number, option)?;
    }
    let [domain, kind, protocol] = values.map(u32::cast_signed);
    Ok(match (domain, kind, protocol) {
        (libc::AF_INET | libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP) => Kind::Udp,
        (libc::AF_NETLINK, _, _) => Kind::Netlink(protocol.cast_unsigned()),
        (libc::AF_UNIX, libc::SOCK_STREAM, _) => Kind::LocalStream,
        (libc::AF_UNIX, libc::SOCK_SEQPACKET, _) => Kind::Broker,
        _ => Kind::Other,
    })
}

/// Returns a socket option, an integer.
pub(crate) fn socket_option(intruder: &mut Intruder, number: u64, option: i32) -> Result<u32> {
    let value = intruder.place(&[0; 4])?;
    let length = intruder.place(&4_u32.to_ne_bytes())?;
    let [level, option] = [libc::SOL_SOCKET, option].map(|it| u64::from(it.cast_unsigned()));
    let arguments = [number, level, option, value, length, 0];
    let outcome = intruder.call(libc::SYS_getsockopt, arguments)?;
    let bytes = intruder.read(value, 4)?;
    intruder.clear();
    match (outcome, bytes.try_into()) {
        (Outcome::Returned(_), Ok(bytes)) => Ok(u32::from_ne_bytes(bytes)),
        _ => Err(Error::unmet(format!(
            "option {option} of {number}: {outcome:?}"
        ))),
    }
}
