//! tun(4) of FreeBSD.

use std::{
    fs::OpenOptions,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
};

use taupe_packet::ip::Family;

use super::{OpenError, failed};
use crate::{
    System,
    device_name::DeviceName,
    interface::{self, InterfaceName},
    ioctl,
    tun::{TunMode, become_owner, delete_on_close, get_name, set_mode, use_header},
    wait,
};

/// Opening it creates a device (`net.link.tun.devfs_cloning`, by default 1).
const CLONE: &str = "/dev/tun";

pub(super) fn create(name: &DeviceName) -> Result<(OwnedFd, String), OpenError> {
    let DeviceName::Renamed(wanted) = name else {
        return Err(OpenError::Name(format!("{name:?}")));
    };
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(CLONE);
    let fd: OwnedFd = match device {
        Ok(device) => device.into(),
        Err(error) => {
            return Err(match error.kind() {
                io::ErrorKind::PermissionDenied => OpenError::Permission,
                // Without the right to create interfaces there is no file of that name, either
                // (`tunclone` in `sys/net/if_tuntap.c`).
                io::ErrorKind::NotFound if !nix::unistd::geteuid().is_root() => {
                    OpenError::Permission
                }
                io::ErrorKind::NotFound => OpenError::NoDriver,
                _ => failed("opening /dev/tun")(error),
            });
        }
    };
    wait::set_up(fd.as_fd()).map_err(failed("preparing /dev/tun"))?;
    let mut asked = get_name();
    ioctl::perform(fd.as_fd(), &mut asked).map_err(failed("TUNGIFNAME"))?;
    let given = asked.interface_name();
    let done = set_up(&fd, &given, wanted);
    if let Err(error) = done {
        drop(fd);
        remove(&given);
        return Err(error);
    }
    Ok((fd, wanted.as_str().to_owned()))
}

fn set_up(fd: &OwnedFd, given: &str, wanted: &InterfaceName) -> Result<(), OpenError> {
    let fd = fd.as_fd();
    let mode = &mut set_mode(TunMode::Broadcast);
    ioctl::perform(fd, mode).map_err(failed("TUNSIFMODE"))?;
    ioctl::perform(fd, &mut use_header()).map_err(failed("TUNSIFHEAD"))?;
    ioctl::perform(fd, &mut become_owner()).map_err(failed("TUNSIFPID"))?;
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
    // `ifr_data`: the kernel reads the new name at this address (`ifhwioctl` in `sys/net/if.c`).
    let mut rename = interface::rename(&given, text.as_ptr().addr() as u64);
    let renamed = ioctl::request(Family::V4, &mut rename);
    renamed.map_err(|error| match error.raw_os_error() {
        Some(libc::EEXIST) => OpenError::Exists(wanted.as_str().to_owned()),
        Some(libc::EPERM) => OpenError::Permission,
        _ => failed("SIOCSIFNAME")(error),
    })
}

/// Destroys an interface. An interface that is gone is none.
pub(super) fn remove(name: &str) {
    if let Some(name) = InterfaceName::new(name) {
        let mut destroy = interface::destroy(System::FreeBsd, &name);
        let _ = ioctl::request(Family::V4, &mut destroy);
    }
}
