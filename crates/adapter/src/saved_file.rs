//! Replacing a tunnel's file with a description of the running tunnel.

use std::fs::{self, File as Handle, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown};
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use taupe_client::Device;
use taupe_config::file::{self, Compatibility, Current, File};
use taupe_uapi::network_set::LINK_LOCAL;

use crate::dns::Settings;
use crate::machine::SaveError;

/// Returns the command that `wg-quick` prints when it saves.
pub(crate) fn command(interface: &str) -> String {
    format!("wg showconf {interface}")
}

/// The state of a running tunnel.
pub(crate) struct Running<'a> {
    pub(crate) device: &'a Device,
    /// The interface's addresses.
    pub(crate) addresses: &'a [IpNet],
    /// The interface's MTU in bytes.
    pub(crate) mtu: u32,
    /// The name servers that are set for it; `None` if they are unknown, so that those of the file
    /// are used.
    pub(crate) dns: Option<Settings>,
}

/// Overwrites `config` with a description of a running tunnel, completely or not at all.
pub(crate) fn write(
    old: &File,
    config: &Path,
    running: Running<'_>,
    compatibility: Compatibility,
) -> Result<(), SaveError> {
    let device = running.device;
    let dns = running.dns.unwrap_or_else(|| Settings {
        servers: old.interface.dns.clone(),
        search: old.interface.dns_search.clone(),
    });
    // A mark that Taupe selected is not saved, because another tunnel may have it next time.
    let is_chosen = old.interface.fwmark.is_none() && compatibility == Compatibility::Taupe;
    let text = file::save(
        old,
        &Current {
            status: &device.status,
            listen_port: device.listen_port,
            fwmark: if is_chosen { 0 } else { device.fwmark },
            addresses: &lasting(running.addresses, old),
            dns: &dns.servers,
            dns_search: &dns.search,
            mtu: running.mtu,
        },
    );
    replace(config, text.as_bytes(), Access::Closed)
}

/// Access rights of a file that replaces another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Those of the old file.
    Kept,
    /// Those of the old file; but only the owner's, if everybody had access.
    Closed,
}

/// Returns the addresses to save, without the link-local ones that the kernel gives to every TUN.
///
/// An address of the file keeps the prefix length of the file: if another interface is in the same
/// network, `up` adds the address with the maximum prefix length (`Routing::own_addresses`).
fn lasting(addresses: &[IpNet], old: &File) -> Vec<IpNet> {
    let named = |address: IpAddr| {
        let mut named = old.interface.addresses.iter();
        named.find(|named| named.addr() == address)
    };
    let lasting = addresses
        .iter()
        .filter(|net| !LINK_LOCAL.contains(&net.addr()) || named(net.addr()).is_some());
    lasting
        .map(|net| {
            let is_host = net.prefix_len() == net.max_prefix_len();
            *named(net.addr()).filter(|_| is_host).unwrap_or(net)
        })
        .collect()
}

/// Replaces the contents of a file, or of the target of a link. After an error the file is
/// unchanged.
///
/// # Errors
/// [`SaveError::Io`].
pub fn replace(path: &Path, content: &[u8], access: Access) -> Result<(), SaveError> {
    let path = fs::canonicalize(path).map_err(failed("find", path))?;
    let old = fs::metadata(&path).map_err(failed("look at", &path))?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".taupe-{}", std::process::id()));
    let draft = path.with_file_name(name);
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let written = options
        .open(&draft)
        .map_err(failed("make", &draft))
        .and_then(|file| fill(file, content, &old, access).map_err(failed("write", &draft)))
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

fn fill(mut file: Handle, content: &[u8], old: &Metadata, access: Access) -> io::Result<()> {
    file.write_all(content)?;
    if access == Access::Kept || old.mode() & 0o007 == 0 {
        // If the owner cannot be changed, the file belongs to this process's user.
        let _ = fchown(&file, Some(old.uid()), Some(old.gid()))
            .and_then(|()| file.set_permissions(Permissions::from_mode(old.mode() & 0o777)));
    }
    file.sync_all()
}

fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SaveError {
    let path: PathBuf = path.to_owned();
    move |source| SaveError::Io { what, path, source }
}

#[cfg(test)]
mod tests;
