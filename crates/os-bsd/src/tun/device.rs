//! A TUN device.

use std::{
    io::{self, IoSlice, IoSliceMut},
    os::fd::{AsFd as _, OwnedFd},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    net::if_::if_nametoindex,
    sys::uio::{readv, writev},
};
use taupe_packet::ip::Family;

use super::{HEADER, OpenError, family_of, header};
use crate::{
    System,
    device_name::DeviceName,
    interface::{self, InterfaceName},
    ioctl,
    wait::End,
};

#[cfg(target_os = "freebsd")]
mod freebsd;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "freebsd")]
use freebsd as here;
#[cfg(target_os = "macos")]
use macos as here;

/// Pause before the next read of a device whose interface is not initialised.
const PAUSE: Duration = Duration::from_millis(50);

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> OpenError {
    move |error| {
        let source = error.into();
        OpenError::Io { what, source }
    }
}

/// A TUN device, which threads can share.
#[derive(Debug)]
pub struct Tun {
    /// `None` only while it is dropped.
    fd: Option<OwnedFd>,
    name: String,
    /// False if the descriptor was passed in.
    is_created: bool,
    end: End,
}

impl Tun {
    /// Creates a device. Its interface is down on FreeBSD and up on macOS (`utun_ctl_connect` in xnu's
    /// `bsd/net/if_utun.c`), and ends with the device.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub fn create(name: &DeviceName) -> Result<Self, OpenError> {
        let end = End::new().map_err(failed("pipe"))?;
        let (fd, name) = here::create(name)?;
        Ok(Self {
            fd: Some(fd),
            name,
            is_created: true,
            end,
        })
    }

    /// Takes over a device whose descriptor was passed in. Its interface is not deleted at the end,
    /// because others use it too: FreeBSD would wait for them to close it.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotTun`], [`OpenError::Io`].
    pub fn from_fd(fd: OwnedFd) -> Result<Self, OpenError> {
        let end = End::new().map_err(failed("pipe"))?;
        let name = here::take_over(fd.as_fd())?;
        Ok(Self {
            fd: Some(fd),
            name,
            is_created: false,
            end,
        })
    }

    /// Returns the interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the interface's index.
    ///
    /// # Errors
    ///
    /// `ENXIO` if the interface was destroyed.
    pub fn index(&self) -> io::Result<u32> {
        Ok(if_nametoindex(&*self.name)?)
    }

    /// Sets the interface's MTU in bytes. Both systems begin with 1500.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn set_mtu(&self, mtu: u32) -> io::Result<()> {
        let name = InterfaceName::new(&self.name).ok_or(io::ErrorKind::InvalidInput)?;
        ioctl::request(
            Family::V4,
            &mut interface::set_mtu(System::HERE, &name, mtu),
        )
    }

    /// Waits for a packet that the system sends. Returns its length, or `None` after
    /// [`Tun::close`]. Packets that are neither IPv4 nor IPv6 are skipped.
    ///
    /// # Errors
    ///
    /// The interface was destroyed.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let fd = self.fd()?;
        loop {
            if self.end.has_come() {
                return Ok(None);
            }
            let mut start = [0; HEADER];
            let mut parts = [IoSliceMut::new(&mut start), IoSliceMut::new(buffer)];
            match readv(fd, &mut parts) {
                // Every packet has a header. A socket of macOS reads so after the kernel has
                // disconnected it, and is readable for ever.
                Ok(0) => return Err(Errno::ENXIO.into()),
                Ok(length) => {
                    let is_ip = Family::ALL
                        .into_iter()
                        .any(|family| header(System::HERE, family) == start);
                    if let Some(length) = length.checked_sub(HEADER).filter(|_| is_ip) {
                        return Ok(Some(length));
                    }
                }
                Err(Errno::EAGAIN) => self.end.or_readable(fd.as_fd())?,
                Err(Errno::EINTR) => {}
                // FreeBSD: the interface is not initialised (`tunread` in `sys/net/if_tuntap.c`).
                // Nothing is queued until it is.
                Err(Errno::EHOSTDOWN) => {
                    thread::sleep(PAUSE);
                    self.end.or_readable(fd.as_fd())?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Passes a packet to the system as received. The packet is lost if it is shorter than its header, the
    /// interface is down or the system has no room for it.
    ///
    /// # Errors
    ///
    /// The interface was destroyed.
    pub fn write(&self, packet: &[u8]) -> io::Result<()> {
        let Some(family) = family_of(packet) else {
            return Ok(());
        };
        let start = header(System::HERE, family);
        let parts = [IoSlice::new(&start), IoSlice::new(packet)];
        loop {
            // A device takes the complete packet or nothing.
            match writev(self.fd()?, &parts) {
                Err(Errno::EINTR) => {}
                Err(error @ (Errno::ENXIO | Errno::ENODEV | Errno::EBADF)) => {
                    return Err(error.into());
                }
                _ => return Ok(()),
            }
        }
    }

    /// Ends waiting and later reads.
    pub fn close(&self) {
        self.end.come();
    }

    fn fd(&self) -> io::Result<&OwnedFd> {
        self.fd.as_ref().ok_or_else(|| Errno::EBADF.into())
    }
}

impl Drop for Tun {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take()
            && self.is_created
        {
            here::remove(fd);
        }
    }
}
