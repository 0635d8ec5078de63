//! What of the file system a cell does not see.
//!
//! A Unix socket with a path can be connected to from every network namespace. So a
//! service at such a socket that asks the network in the name of others is a way around
//! the tunnel: the ones that the C library asks for names, and the buses. Sockets with
//! abstract names belong to a network namespace and are not there anyway.
//!
//! A service may be started, or started again, while a command runs, and a folder that is
//! removed takes with it whatever is mounted on it in other mount namespaces
//! (`mount_namespaces(7)`). So nothing is mounted on these folders: `/run` is another one
//! in the cell, with all that is there now but for them, and what is added to it outside
//! is not.

use std::env;
use std::ffi::{CString, OsString};
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive};

use crate::Plan;
use crate::refusal::{Failed, failed};

/// Below [`RUNTIME`], of the whole system: systemd-resolved, the name service cache, the
/// system bus (by which resolved, NetworkManager and systemd can be told to do things),
/// and Avahi, which asks the local network.
const SERVICES: [&str; 4] = ["systemd/resolve", "nscd", "dbus", "avahi-daemon"];

/// Where services have their sockets; mostly one is a link to the other.
const RUNTIME: [&str; 2] = ["/run", "/var/run"];

/// Where programs look for the buses.
const SYSTEM_BUS: &str = "DBUS_SYSTEM_BUS_ADDRESS";
const SESSION_BUS: &str = "DBUS_SESSION_BUS_ADDRESS";

/// Paths at which the cell differs from the machine.
pub(crate) struct Covered {
    /// Folders that the cell has a copy of, with most entries of the machine's.
    pub(crate) own: Vec<PathBuf>,
    /// Paths that are empty in the cell.
    pub(crate) empty: Vec<PathBuf>,
}

impl Covered {
    /// Checks whether a path is one of these, or below one.
    pub(crate) fn has(&self, path: &Path) -> bool {
        let mut all = self.own.iter().chain(&self.empty);
        all.any(|covered| path.starts_with(covered))
    }
}

/// Hides what is a way out, and puts an empty file system over the folder of the cell.
pub(crate) fn hide(plan: &Plan, remarks: &mut Vec<String>) -> Result<Covered, Failed> {
    let mut roots: Vec<PathBuf> = RUNTIME
        .iter()
        .filter_map(|path| fs::canonicalize(path).ok())
        .collect();
    roots.dedup();
    let named = named(plan).into_iter();
    let mut hidden: Vec<PathBuf> = named
        .map(|path| fs::canonicalize(&path).unwrap_or(path))
        .collect();
    let services = roots
        .iter()
        .flat_map(|root| SERVICES.map(|name| root.join(name)));
    hidden.extend(services);
    for root in &roots {
        let what = || format!("make the cell's own {}", root.display());
        mirror(root, &hidden, remarks).map_err(|error| failed(what(), error))?;
    }
    empty(&plan.folder, 0o700)?;
    let nothing = plan.folder.join("hidden");
    File::create(&nothing).map_err(|error| failed("make a file of the cell", error))?;
    let is_outside = |path: &&PathBuf| !roots.iter().any(|root| path.starts_with(root));
    for path in hidden.iter().filter(is_outside) {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => empty(path, 0o755)?,
            Ok(_) => {
                let what = || format!("hide {}", path.display());
                mount_bind(&nothing, path).map_err(|error| failed(what(), error.into()))?;
            }
            // What is not there cannot be connected to.
            Err(_) => {}
        }
    }
    hidden.push(plan.folder.clone());
    Ok(Covered {
        own: roots,
        empty: hidden,
    })
}

/// The buses, as the environment says where they are.
fn named(plan: &Plan) -> Vec<PathBuf> {
    let mut paths = sockets(env::var_os(SYSTEM_BUS));
    if plan.hide_session {
        paths.extend(sockets(env::var_os(SESSION_BUS)));
        // Where the system has them, whether or not the environment says so: after `su`, or of
        // cron, it does not.
        let uid = rustix::process::geteuid().as_raw();
        let usual = Path::new("/run/user").join(uid.to_string());
        let said = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        for folder in [usual].into_iter().chain(said) {
            // The user's systemd starts programs for whoever asks.
            paths.extend(["bus", "systemd"].map(|name| folder.join(name)));
        }
    }
    paths
}

/// The paths in the address of a bus (D-Bus Specification, "Server Addresses").
fn sockets(address: Option<OsString>) -> Vec<PathBuf> {
    let address = address.map(OsString::into_vec).unwrap_or_default();
    let servers = address.split(|&byte| byte == b';');
    let unix = servers.filter_map(|server| server.strip_prefix(b"unix:"));
    let options = unix.flat_map(|options| options.split(|&byte| byte == b','));
    let paths = options.filter_map(|option| option.strip_prefix(b"path="));
    paths
        .map(|path| PathBuf::from(OsString::from_vec(path.to_vec())))
        .collect()
}

/// An empty file system of this user's.
fn empty(over: &Path, mode: u32) -> Result<(), Failed> {
    let what = || format!("hide {}", over.display());
    mount_empty(over, mode).map_err(|error| failed(what(), error))
}

fn mount_empty(over: &Path, mode: u32) -> io::Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    let options = CString::new(format!("mode={mode:o},size=1m"))?;
    Ok(mount("tmpfs", over, "tmpfs", flags, &*options)?)
}

/// Puts a file system over a folder that has what is in it now, without what is hidden.
fn mirror(root: &Path, hidden: &[PathBuf], remarks: &mut Vec<String>) -> io::Result<()> {
    // By it what is below remains to be seen from here, until the end of this function.
    let below = File::open(root)?;
    mount_empty(root, below.metadata()?.mode() & 0o7777)?;
    let below = PathBuf::from(format!("/proc/self/fd/{}", below.as_raw_fd()));
    fill(&below, root, hidden, remarks)
}

fn fill(from: &Path, to: &Path, hidden: &[PathBuf], remarks: &mut Vec<String>) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, target) = (entry.path(), to.join(entry.file_name()));
        if hidden.contains(&target) {
            continue;
        }
        let has_hidden = hidden.iter().any(|path| path.starts_with(&target));
        let Ok(found) = entry.metadata() else {
            // It has just gone.
            continue;
        };
        let placed = if found.is_symlink() {
            fs::read_link(&source).and_then(|to| symlink(to, &target))
        } else if found.is_dir() {
            let mode = found.mode() & 0o7777;
            let made = DirBuilder::new().mode(mode).create(&target);
            made.and_then(|()| match has_hidden {
                true => fill(&source, &target, hidden, remarks),
                false => Ok(mount_bind_recursive(&source, &target)?),
            })
        } else {
            File::create(&target).and_then(|_| Ok(mount_bind(&source, &target)?))
        };
        match placed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => remarks.push(format!(
                "{} is not there for the command: {error}",
                target.display()
            )),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::sockets;
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
            assert_eq!(sockets(Some(address.into())), expected, "{address}");
        }
        assert!(sockets(None).is_empty());
    }
}
