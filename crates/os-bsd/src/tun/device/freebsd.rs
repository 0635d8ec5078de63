//! tun(4) of FreeBSD.

#![allow(unsafe_code)]

use std::{
    ffi::{CStr, c_int},
    fs::OpenOptions,
    io,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    ptr,
};

use nix::{net::if_::if_nametoindex, unistd::geteuid};
use taupe_packet::ip::Family;

use super::{OpenError, failed};
use crate::{
    System,
    device_name::DeviceName,
    interface::{self, InterfaceName},
    ioctl,
    tun::{
        Circumstances, Jail, OpenStep, TunMode, become_owner, delete_on_close, get_name, set_mode,
        use_header,
    },
    wait,
};

/// Opening it creates a device (`net.link.tun.devfs_cloning`, by default 1).
const CLONE: &str = "/dev/tun";

pub(super) fn create(name: &DeviceName) -> Result<(OwnedFd, String), OpenError> {
    let DeviceName::Renamed(wanted) = name else {
        return Err(OpenError::Name(name.to_string()));
    };
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(CLONE);
    let fd: OwnedFd = device.map_err(refused(OpenStep::OpenFile, wanted))?.into();
    let mut asked = get_name();
    ioctl::perform(fd.as_fd(), &mut asked).map_err(failed("TUNGIFNAME"))?;
    let given = asked.interface_name();
    let done = set_up(&fd, &given, wanted);
    if let Err(error) = done {
        remove(fd);
        return Err(error);
    }
    Ok((fd, wanted.as_str().to_owned()))
}

pub(super) fn take_over(fd: BorrowedFd<'_>) -> Result<String, OpenError> {
    let mut asked = get_name();
    ioctl::perform(fd, &mut asked).map_err(OpenError::NotTun)?;
    // A tap device answers the first request, and refuses this one.
    ioctl::perform(fd, &mut use_header()).map_err(OpenError::NotTun)?;
    ioctl::perform(fd, &mut become_owner()).map_err(failed("TUNSIFPID"))?;
    wait::set_up(fd).map_err(failed("preparing the TUN device"))?;
    Ok(asked.interface_name())
}

fn set_up(fd: &OwnedFd, given: &str, wanted: &InterfaceName) -> Result<(), OpenError> {
    let fd = fd.as_fd();
    wait::set_up(fd).map_err(failed("preparing /dev/tun"))?;
    let mode = &mut set_mode(TunMode::Broadcast);
    ioctl::perform(fd, mode).map_err(failed("TUNSIFMODE"))?;
    ioctl::perform(fd, &mut use_header()).map_err(failed("TUNSIFHEAD"))?;
    ioctl::perform(fd, &mut become_owner()).map_err(failed("TUNSIFPID"))?;
    // A kernel without IPv6 refuses it.
    let _ = disable_link_local(given);
    // A kernel that lacks it keeps the interface of a process that was killed.
    let _ = ioctl::perform(fd, &mut delete_on_close());
    if given == wanted.as_str() {
        return Ok(());
    }
    let impossible = || OpenError::Name(given.to_owned());
    let given = InterfaceName::new(given).ok_or_else(impossible)?;
    let mut text = [0_u8; 16];
    let name = wanted.as_str().as_bytes();
    text[..name.len()].copy_from_slice(name);
    // `ifr_data`: the kernel reads the new name at this address (`ifhwioctl` in `sys/net/if.c`). Its
    // provenance is exposed, as otherwise the compiler could omit the text, which nothing else reads.
    let mut rename = interface::rename(&given, text.as_ptr().expose_provenance() as u64);
    let renamed = ioctl::request(Family::V4, &mut rename);
    renamed.map_err(refused(OpenStep::Rename, wanted))
}

fn refused(step: OpenStep, wanted: &InterfaceName) -> impl FnOnce(io::Error) -> OpenError {
    move |source| {
        let circumstances = Circumstances {
            is_root: geteuid().is_root(),
            jail: match (
                number(c"security.jail.jailed"),
                number(c"security.jail.vnet"),
            ) {
                (Some(0) | None, _) => Jail::None,
                (Some(_), Some(0)) => Jail::SharedNetwork,
                // A kernel without networks of jails does not have the second one.
                (Some(_), None) => Jail::SharedNetwork,
                (Some(_), Some(_)) => Jail::OwnNetwork,
            },
        };
        OpenError::new(
            System::FreeBsd,
            step,
            source,
            circumstances,
            wanted.as_str(),
        )
    }
}

/// Returns a number of the kernel's, or `None` if it has none of that name.
fn number(name: &CStr) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>();
    // SAFETY: the name ends with a NUL byte, and is only read. The kernel writes at most `length` bytes
    // into `value`, which is an `int`, and the number of written bytes into `length`. It gets no new
    // value to read.
    let read = unsafe {
        libc::sysctlbyname(
            name.as_ptr(),
            (&raw mut value).cast(),
            &raw mut length,
            ptr::null(),
            0,
        )
    };
    (read == 0 && length == size_of::<c_int>()).then_some(value)
}

/// Turns off link-local addresses, which WireGuard does not use. wireguard-go reports races in the kernel
/// between them and the end of an interface.
fn disable_link_local(name: &str) -> io::Result<()> {
    let name = InterfaceName::new(name).ok_or(io::ErrorKind::InvalidInput)?;
    let mut asked = interface::get_neighbour_discovery(&name);
    ioctl::request(Family::V6, &mut asked)?;
    ioctl::request(Family::V6, &mut interface::without_link_local(asked))
}

/// Closes the descriptor and destroys its interface.
pub(super) fn remove(fd: OwnedFd) {
    // Another interface may have the name that the device got at first.
    let mut asked = get_name();
    let named = ioctl::perform(fd.as_fd(), &mut asked);
    let name = asked.interface_name();
    let index = if_nametoindex(&*name);
    // SIOCIFDESTROY waits until it is closed (`tun_destroy` in `sys/net/if_tuntap.c`).
    drop(fd);
    // FreeBSD 15 has already destroyed it, and a program that waited for the name may have it now.
    let is_ours = index.is_ok() && if_nametoindex(&*name) == index;
    if named.is_ok()
        && is_ours
        && let Some(name) = InterfaceName::new(&name)
    {
        let _ = ioctl::request(Family::V4, &mut interface::destroy(System::FreeBsd, &name));
    }
}
