//! Services that are hidden from the sandbox.
//!
//! A process can connect to a Unix socket with a path from every network namespace. So a service at
//! such a socket that uses the network for its clients bypasses the tunnel: the resolvers that the
//! C library uses, and the D-Bus buses. Sockets with abstract names belong to a network namespace,
//! so the sandbox does not have those of the machine.
//!
//! A service may start or restart while a command runs, and when a folder is removed, the kernel
//! detaches mounts on it in other mount namespaces (`mount_namespaces(7)`). So the services'
//! folders are not covered one by one. Instead the sandbox gets its own `/run` with all present
//! entries except these folders. Entries that the machine adds later do not appear in it.

use std::env;
use std::ffi::{CString, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive};

use crate::config::SandboxConfig;
use crate::setup_error::{FailedStep, failed};

/// Hidden folders below [`RUN_FOLDERS`]: systemd-resolved, the name service cache, the system bus
/// (through which resolved, NetworkManager and systemd take commands), and Avahi, which queries the
/// local network.
const SERVICES: [&str; 4] = ["systemd/resolve", "nscd", "dbus", "avahi-daemon"];

/// Folders of services' sockets. Usually one is a link to the other.
const RUN_FOLDERS: [&str; 2] = ["/run", "/var/run"];

/// Environment variables with the addresses of the buses.
const SYSTEM_BUS: &str = "DBUS_SYSTEM_BUS_ADDRESS";
const SESSION_BUS: &str = "DBUS_SESSION_BUS_ADDRESS";

/// Paths at which the sandbox differs from the machine.
pub(crate) struct CoveredPaths {
    /// Folders that the sandbox has of its own, with most entries of the machine's.
    pub(crate) own: Vec<PathBuf>,
    /// Paths that are empty in the sandbox.
    pub(crate) empty: Vec<PathBuf>,
}

impl CoveredPaths {
    /// Returns true if a path is one of these, or below one.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let mut all = self.own.iter().chain(&self.empty);
        all.any(|covered| path.starts_with(covered))
    }
}

/// Hides services that bypass the tunnel, and mounts an empty file system over the sandbox's
/// folder.
pub(crate) fn hide(
    config: &SandboxConfig,
    remarks: &mut Vec<String>,
) -> Result<CoveredPaths, FailedStep> {
    let mut roots: Vec<PathBuf> = RUN_FOLDERS
        .iter()
        .filter_map(|path| fs::canonicalize(path).ok())
        .collect();
    roots.dedup();
    let named = bus_sockets(config).into_iter();
    let mut hidden: Vec<PathBuf> = named
        .map(|path| fs::canonicalize(&path).unwrap_or(path))
        .collect();
    let services = roots
        .iter()
        .flat_map(|root| SERVICES.map(|name| root.join(name)));
    hidden.extend(services);
    for root in &roots {
        let what = || format!("make the sandbox's own {}", root.display());
        mount_filtered(root, &hidden, remarks).map_err(|error| failed(what(), error))?;
    }
    cover_empty(&config.folder, 0o700)?;
    let nothing = config.folder.join("hidden");
    File::create(&nothing).map_err(|error| failed("make a file of the sandbox", error))?;
    let is_outside = |path: &&PathBuf| !roots.iter().any(|root| path.starts_with(root));
    for path in hidden.iter().filter(is_outside) {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => cover_empty(path, 0o755)?,
            Ok(_) => {
                let what = || format!("hide {}", path.display());
                mount_bind(&nothing, path).map_err(|error| failed(what(), error.into()))?;
            }
            // A path that does not exist needs no cover.
            Err(_) => {}
        }
    }
    hidden.push(config.folder.clone());
    Ok(CoveredPaths {
        own: roots,
        empty: hidden,
    })
}

/// Returns the sockets of the buses.
fn bus_sockets(config: &SandboxConfig) -> Vec<PathBuf> {
    let mut paths = parse_bus_address(env::var_os(SYSTEM_BUS));
    if config.hide_session {
        paths.extend(parse_bus_address(env::var_os(SESSION_BUS)));
        // Their usual place, even if the environment does not name it: after `su`, or from cron, it
        // does not.
        let uid = rustix::process::geteuid().as_raw();
        let usual = Path::new("/run/user").join(uid.to_string());
        let configured = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        for folder in [usual].into_iter().chain(configured) {
            // The user's systemd starts programs for any client.
            paths.extend(["bus", "systemd"].map(|name| folder.join(name)));
        }
    }
    paths
}

/// Returns the paths in a bus address (D-Bus Specification, "Server Addresses").
fn parse_bus_address(address: Option<OsString>) -> Vec<PathBuf> {
    let address = address.map(OsString::into_vec).unwrap_or_default();
    let servers = address.split(|&byte| byte == b';');
    let unix = servers.filter_map(|server| server.strip_prefix(b"unix:"));
    let options = unix.flat_map(|options| options.split(|&byte| byte == b','));
    let paths = options.filter_map(|option| option.strip_prefix(b"path="));
    paths
        .map(|path| PathBuf::from(OsString::from_vec(path.to_vec())))
        .collect()
}

/// Mounts an empty file system that belongs to this user.
fn cover_empty(over: &Path, mode: u32) -> Result<(), FailedStep> {
    let what = || format!("hide {}", over.display());
    mount_tmpfs(over, mode).map_err(|error| failed(what(), error))
}

fn mount_tmpfs(over: &Path, mode: u32) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = CString::new(format!("mode={mode:o},size=1m"))?;
    Ok(mount("tmpfs", over, "tmpfs", flags, &*options)?)
}

/// Mounts a new file system over a folder, with the folder's present entries except hidden ones.
fn mount_filtered(root: &Path, hidden: &[PathBuf], remarks: &mut Vec<String>) -> io::Result<()> {
    // Through this descriptor the covered folder remains visible to this function.
    let below = File::open(root)?;
    mount_tmpfs(root, below.metadata()?.mode() & 0o7777)?;
    let below = PathBuf::from(format!("/proc/self/fd/{}", below.as_raw_fd()));
    copy_entries(&below, root, hidden, remarks)
}

fn copy_entries(
    from: &Path,
    to: &Path,
    hidden: &[PathBuf],
    remarks: &mut Vec<String>,
) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if hidden.contains(&target) {
            continue;
        }
        let has_hidden = hidden.iter().any(|path| path.starts_with(&target));
        let Ok(found) = entry.metadata() else {
            // The entry has just been removed.
            continue;
        };
        let placed = if found.is_symlink() {
            fs::read_link(&source).and_then(|to| symlink(to, &target))
        } else if found.is_dir() {
            let mode = found.mode() & 0o7777;
            let made = DirBuilder::new().mode(mode).create(&target);
            made.and_then(|()| match has_hidden {
                true => copy_entries(&source, &target, hidden, remarks),
                false => Ok(mount_bind_recursive(&source, &target)?),
            })
        } else {
            File::create(&target).and_then(|_| Ok(mount_bind(&source, &target)?))
        };
        match placed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => remarks.push(format!(
                "{} is missing in the sandbox: {error}",
                target.display()
            )),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parse_bus_address;
    use std::path::PathBuf;

    #[test]
    fn the_address_of_a_bus_may_have_several_paths() {
        for (address, paths) in [
            ("unix:path=/run/user/1/bus,guid=5", &["/run/user/1/bus"][..]),
            ("unix:guid=5,path=/a;tcp:host=x;unix:path=/b", &["/a", "/b"]),
            ("unix:abstract=/tmp/x", &[]),
            ("", &[]),
        ] {
            let expected: Vec<_> = paths.iter().map(PathBuf::from).collect();
            assert_eq!(
                parse_bus_address(Some(address.into())),
                expected,
                "{address}"
            );
        }
        assert!(parse_bus_address(None).is_empty());
    }
}
