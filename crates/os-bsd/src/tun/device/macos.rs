//! utun of macOS.

#![allow(unsafe_code)]

use std::{
    ffi::c_int,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
};

use nix::unistd::geteuid;

use super::{OpenError, failed};
use crate::{
    System,
    descriptor::new_socket,
    device_name::{DeviceName, UtunUnit},
    ioctl,
    kernel_control::{self, DOMAIN, PROTOCOL},
    layout::IFNAMSIZ,
    socket_option::UTUN_NAME,
    tun::{Circumstances, Jail, OpenStep},
    wait,
};

pub(super) fn create(name: &DeviceName) -> Result<(OwnedFd, String), OpenError> {
    let DeviceName::Utun(unit) = name else {
        return Err(OpenError::Name(name.to_string()));
    };
    let fd = new_socket(DOMAIN, libc::SOCK_DGRAM, PROTOCOL).map_err(failed("socket"))?;
    let mut asked = kernel_control::find();
    ioctl::perform(fd.as_fd(), &mut asked).map_err(refused(OpenStep::FindControl, *unit))?;
    let Some(id) = kernel_control::id(&asked) else {
        return Err(failed("CTLIOCGINFO")(io::Error::from(
            io::ErrorKind::InvalidData,
        )));
    };
    let address = kernel_control::address(id, *unit);
    // SAFETY: the kernel reads as many bytes of the address as it has. The descriptor is open.
    let connected = unsafe {
        libc::connect(
            fd.as_raw_fd(),
            address.as_ptr().cast(),
            address.len() as libc::socklen_t,
        )
    };
    if connected != 0 {
        let error = io::Error::last_os_error();
        return Err(refused(OpenStep::Connect, *unit)(error));
    }
    wait::set_up(fd.as_fd()).map_err(failed("preparing the utun device"))?;
    let name = name_of(fd.as_fd()).map_err(failed("UTUN_OPT_IFNAME"))?;
    Ok((fd, name))
}

pub(super) fn take_over(fd: BorrowedFd<'_>) -> Result<String, OpenError> {
    let name = name_of(fd).map_err(OpenError::NotTun)?;
    // Other kernel controls, as that of IPsec, have names of interfaces too.
    if !name.starts_with("utun") {
        let other = io::Error::new(io::ErrorKind::InvalidInput, name);
        return Err(OpenError::NotTun(other));
    }
    wait::set_up(fd).map_err(failed("preparing the utun device"))?;
    Ok(name)
}

fn refused(step: OpenStep, unit: UtunUnit) -> impl FnOnce(io::Error) -> OpenError {
    move |source| {
        let circumstances = Circumstances {
            is_root: geteuid().is_root(),
            jail: Jail::None,
        };
        OpenError::new(
            System::MacOs,
            step,
            source,
            circumstances,
            &unit.to_string(),
        )
    }
}

fn name_of(fd: BorrowedFd<'_>) -> io::Result<String> {
    let mut name = [0_u8; IFNAMSIZ as usize];
    let mut length = name.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes into `name`, and how many into `length`. The
    // descriptor is open.
    let got: c_int = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            UTUN_NAME.level,
            UTUN_NAME.name,
            name.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if got != 0 {
        return Err(io::Error::last_os_error());
    }
    let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Closes the descriptor, with which the interface ends.
pub(super) fn remove(fd: OwnedFd) {
    drop(fd);
}
