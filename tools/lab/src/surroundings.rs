//! Parts of an ordinary machine that a sandbox does not have by itself.

use crate::error::{Error, Result};
use crate::process;
use crate::sandbox::scratch;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::mount::{MountFlags, mount, mount_bind};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Mounts a copy of `/etc`, in which files can be written. Its `resolv.conf` is a regular file with
/// this text.
///
/// # Errors
///
/// [`Error`] if it cannot be copied or mounted.
pub fn own_etc(resolv_conf: &str) -> Result<()> {
    let folder = scratch("etc").display().to_string();
    let mut copy = Command::new("cp");
    copy.args(["-a", "/etc", &folder]);
    process::run("the sandbox", copy, None)?;
    mount_bind(&*folder, "/etc").map_err(Error::io("mount on /etc"))?;
    // The machine's file may be a mount or a symbolic link.
    let _ = fs::remove_file(RESOLV_CONF);
    fs::write(RESOLV_CONF, resolv_conf).map_err(Error::io(RESOLV_CONF))
}

/// Creates `/dev/net/tun` so that everybody can open it, as on ordinary machines.
///
/// # Errors
///
/// [`Error::Io`].
pub fn open_tun() -> Result<()> {
    const TUN: &str = "/dev/net/tun";
    mount("lab", "/dev/net", "tmpfs", MountFlags::NOSUID, None).map_err(Error::io("/dev/net"))?;
    let mode = Mode::from_raw_mode(0o666);
    mknodat(CWD, TUN, FileType::CharacterDevice, mode, makedev(10, 200)).map_err(Error::io(TUN))?;
    // Independent of the umask.
    let everybody = fs::Permissions::from_mode(0o666);
    fs::set_permissions(TUN, everybody).map_err(Error::io(TUN))
}
