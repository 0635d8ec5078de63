//! Replacing a tunnel's file with a description of the running tunnel.

use std::ffi::OsStr;
use std::fs::{self, File as Handle, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use taupe_config::file::{self, Current, File};
use taupe_uapi::Device;
use taupe_uapi::network_set::LINK_LOCAL;
use zeroize::Zeroizing;

use crate::device::DeviceInterface;
use crate::machine::{Machine, SnapshotRequest, StepError};
use crate::snapshot::Snapshot;

/// Error of saving a tunnel. Its file is unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// There is no tunnel of this name.
    #[error("{0} is not up")]
    NotUp(String),
    /// The tunnel cannot be examined.
    #[error(transparent)]
    Look(#[from] StepError),
    /// The file cannot be written.
    #[error("cannot {what} {}: {source}; the file is as it was", .path.display())]
    Io {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// Overwrites `config`, whose contents are `old`, with a description of the running tunnel,
/// completely or not at all. As with wg-quick, only its owner can read it then.
///
/// # Errors
/// See [`SaveError`].
pub fn save(
    machine: &mut dyn Machine,
    interface: &str,
    config: &Path,
    old: &File,
) -> Result<(), SaveError> {
    let device = machine.device();
    let device = device.ok_or_else(|| SaveError::NotUp(interface.to_owned()))?;
    save_device(machine, &device, config, old)
}

/// [`save()`] for a device that is known.
pub(crate) fn save_device(
    machine: &mut dyn Machine,
    device: &DeviceInterface,
    config: &Path,
    old: &File,
) -> Result<(), SaveError> {
    let state = machine.device_state(device)?;
    let snapshot = machine.snapshot(SnapshotRequest {
        own: Some(device.index),
        ..SnapshotRequest::default()
    })?;
    replace(config, text(old, &state, device, &snapshot).as_bytes())
}

fn text(
    old: &File,
    state: &Device,
    device: &DeviceInterface,
    snapshot: &Snapshot,
) -> Zeroizing<String> {
    let mtu = snapshot.interface(device.index).map_or(0, |it| it.mtu);
    file::save(
        old,
        &Current {
            status: &state.status,
            listen_port: state.listen_port,
            fwmark: state.fwmark,
            addresses: &lasting(old, device, snapshot),
            dns: &old.interface.dns,
            dns_search: &old.interface.dns_search,
            mtu,
        },
    )
}

/// Returns the addresses to save, without the link-local ones that the kernel gives to every
/// interface. An address of the file keeps the prefix length of the file: if another interface is in
/// the same network, `up` adds the address with the maximum prefix length.
fn lasting(old: &File, device: &DeviceInterface, snapshot: &Snapshot) -> Vec<IpNet> {
    let present = snapshot.addresses.iter();
    let present = present.filter(|it| it.interface == device.index);
    let lasting = present.filter_map(|address| {
        let network = address.network;
        let mut named = old.interface.addresses.iter();
        let named = named.find(|named| named.addr() == network.addr());
        let is_host = network.prefix_len() == network.max_prefix_len();
        match named {
            Some(named) if is_host => Some(*named),
            None if LINK_LOCAL.contains(&network.addr()) => None,
            _ => Some(network),
        }
    });
    lasting.collect()
}

/// Replaces the contents of a file, or of the target of a link.
fn replace(path: &Path, content: &[u8]) -> Result<(), SaveError> {
    let path = fs::canonicalize(path).map_err(failed("find", path))?;
    let mut name = path.file_name().unwrap_or(OsStr::new("taupe")).to_owned();
    name.push(format!(".taupe-{}", std::process::id()));
    let draft = path.with_file_name(name);
    let mut options = OpenOptions::new();
    let written = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&draft)
        .and_then(|mut file| {
            file.write_all(content)?;
            file.sync_all()
        })
        .map_err(failed("write", &draft))
        .and_then(|()| fs::rename(&draft, &path).map_err(failed("replace", &path)));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
        return written;
    }
    // The new file is complete. Whether its name survives a power failure depends on the file
    // system: not every one can sync a folder.
    if let Some(folder) = path.parent().and_then(|folder| Handle::open(folder).ok()) {
        let _ = folder.sync_all();
    }
    Ok(())
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SaveError {
    let path: PathBuf = path.to_owned();
    move |source| SaveError::Io { what, path, source }
}
