//! Making [`IoctlRequest`]s.

#![allow(unsafe_code)]

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
};

use nix::errno::Errno;
use nix::net::if_::if_indextoname;
use taupe_packet::ip::Family;

use crate::{
    System,
    bytes::u32_at,
    descriptor::new_socket,
    interface::{InterfaceName, IoctlRequest, flags, get_flags, get_mtu, mtu},
    layout::FIONREAD,
    socket_address::address_family,
};

/// Makes a request on a descriptor.
pub(crate) fn perform(fd: BorrowedFd<'_>, request: &mut IoctlRequest) -> io::Result<()> {
    let number = request.number();
    let argument = request.argument_mut().as_mut_ptr();
    // SAFETY: the kernel copies as many bytes from and to the argument as the number says
    // (`sys_ioctl` in FreeBSD's `sys/kern/sys_generic.c`, `fo_ioctl`'s caller in xnu's
    // `bsd/kern/sys_generic.c`), and `IoctlRequest::new` gives it exactly that many, which are
    // exclusively borrowed. An address inside the argument (`interface::rename`) is only read by the
    // kernel, which answers `EFAULT` if nothing is there. The descriptor is open while borrowed.
    let done = unsafe { libc::ioctl(fd.as_raw_fd(), number, argument) };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Returns the number of bytes that wait to be read (`FIONREAD`).
pub(crate) fn queued(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut asked = IoctlRequest::new(FIONREAD, Vec::new());
    perform(fd, &mut asked)?;
    Ok(u32_at(asked.argument(), 0).unwrap_or(0))
}

/// Makes a request about an interface. `family` is that of the address that it contains, and of no
/// importance for the others.
///
/// # Errors
///
/// The kernel's.
pub fn request(family: Family, request: &mut IoctlRequest) -> io::Result<()> {
    let domain = address_family(System::HERE, family).into();
    let socket = new_socket(domain, libc::SOCK_DGRAM, 0)?;
    perform(socket.as_fd(), request)
}

/// Times that the name of an interface is looked up, if the interface is renamed meanwhile.
const ATTEMPTS: usize = 4;

/// Returns the flags (`IFF_*`) and the MTU in bytes of the interface with this index, or `None` if there
/// is no such interface.
///
/// # Errors
///
/// The kernel's, such as a lack of descriptors.
pub fn interface_state(index: u32) -> io::Result<Option<(u32, u32)>> {
    for _ in 0..ATTEMPTS {
        let name = match if_indextoname(index) {
            Err(Errno::ENXIO) => return Ok(None),
            name => name?,
        };
        let name = name.to_str().ok().and_then(InterfaceName::new);
        let name = name.ok_or(io::ErrorKind::InvalidData)?;
        let ask = |mut asked: IoctlRequest| request(Family::V4, &mut asked).map(|()| asked);
        let asked = ask(get_flags(System::HERE, &name))
            .and_then(|flags| Ok((flags, ask(get_mtu(System::HERE, &name))?)));
        let answers = match asked {
            // The interface was deleted, or has another name now.
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => continue,
            asked => asked?,
        };
        let found = flags(System::HERE, &answers.0).zip(mtu(System::HERE, &answers.1));
        return found
            .map(Some)
            .ok_or_else(|| io::ErrorKind::InvalidData.into());
    }
    Ok(None)
}
