//! Locations of a system's DNS settings.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// Locations of the files, programs and message bus for a system's DNS settings.
#[derive(Debug, Clone)]
pub struct Paths {
    root: PathBuf,
    programs: Vec<PathBuf>,
    bus: String,
}

impl Paths {
    /// Returns the locations of this system: programs in `PATH`, then in `/usr/sbin` and `/sbin`,
    /// which the `PATH` of a service or of `su` may lack; the message bus at
    /// `DBUS_SYSTEM_BUS_ADDRESS`, or by default `/run/dbus/system_bus_socket`.
    pub fn system() -> Self {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let bus = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok();
        Self::new("/".into(), &path, bus.as_deref())
    }

    /// Returns the locations below the folder `root`, with `path` in the format of `PATH`, and with
    /// the bus at a D-Bus address (default: the usual socket below `root`).
    pub fn new(root: PathBuf, path: &OsStr, bus: Option<&str>) -> Self {
        let system = ["usr/sbin", "sbin"].map(|folder| root.join(folder));
        let named = std::env::split_paths(path).filter(|folder| folder.is_absolute());
        let bus = bus.map_or_else(
            || {
                let socket = root.join("run/dbus/system_bus_socket");
                format!("unix:path={}", socket.display())
            },
            str::to_owned,
        );
        Self {
            programs: named.chain(system).collect(),
            root,
            bus,
        }
    }

    pub(super) fn resolv_conf(&self) -> PathBuf {
        self.root.join("etc/resolv.conf")
    }

    /// Returns the path of another file in the folder of `resolv.conf`.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.resolv_conf().with_file_name(name)
    }

    /// The path of a file that is renamed to one of the others next.
    pub(super) fn draft(&self) -> PathBuf {
        self.beside("resolv.conf.taupe-draft")
    }

    /// The path of the lock. It must not end in `.lock` or `.journal`, because tunnels have files
    /// of these names in the same folder.
    pub(super) fn lock(&self) -> PathBuf {
        self.root.join("run/taupe/name-servers")
    }

    /// Returns an absolute path below `root`.
    pub(super) fn at(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        self.root
            .join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    pub(super) fn bus(&self) -> &str {
        &self.bus
    }

    /// Returns the first program of this name.
    pub(super) fn program(&self, name: &str) -> Option<PathBuf> {
        use std::os::unix::fs::PermissionsExt;
        self.programs
            .iter()
            .map(|folder| folder.join(name))
            .find(|path| {
                path.metadata()
                    .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
            })
    }
}
