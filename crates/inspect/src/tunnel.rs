//! The maps of a tunnel's eBPF programs, and the argument by which users name it.

use crate::conf::{self, Conf, ConfError};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use taupe_adapter::journal::Header;
use taupe_adapter::{Compatibility, Journals, State};
use taupe_transparent::capture::in_effect;
use taupe_transparent::error::TransparentError;
use taupe_transparent::programs::{Programs, TunnelMaps};
use taupe_transparent::state::Lock;

/// Opens the maps of a tunnel's eBPF programs. If the user may not open them, returns `None` for a
/// tunnel that has none by its journal header because it selects no applications.
///
/// # Errors
/// Returns an error if the maps cannot be read, for example because another version of Taupe
/// created them.
pub fn open_maps(
    interface: &str,
    header: Option<&Header>,
) -> Result<Option<TunnelMaps>, TransparentError> {
    open(header, || TunnelMaps::open(interface))
}

/// Opens the eBPF programs of a tunnel to list sockets; otherwise as [`open_maps`].
///
/// # Errors
/// As [`open_maps`], and if the kernel refuses the programs.
pub(crate) fn open_programs(
    interface: &str,
    header: Option<&Header>,
) -> Result<Option<Programs>, TransparentError> {
    open(header, || Programs::open(interface))
}

fn open<T>(
    header: Option<&Header>,
    open: impl FnOnce() -> Result<Option<T>, TransparentError>,
) -> Result<Option<T>, TransparentError> {
    match open() {
        Err(TransparentError::InitRootInaccessible { .. })
            if header.is_some_and(selects_no_applications) =>
        {
            Ok(None)
        }
        opened => opened,
    }
}

/// Checks whether the tunnel selects no applications, neither by translation nor by a mark.
fn selects_no_applications(header: &Header) -> bool {
    header.transparent.is_empty() && header.options.chosen.is_none()
}

/// Returns the effect on applications while the tunnel is down, and the command that ends it.
#[must_use]
pub fn effect_while_down(lock: Lock, interface: &str) -> String {
    let argument = file_argument(interface, file_of(interface).as_deref());
    effect_until(lock, interface, &argument)
}

/// Returns [`effect_while_down`] for a tunnel whose file `taupe up` finds by `argument`.
#[must_use]
pub fn effect_until(lock: Lock, interface: &str, argument: &str) -> String {
    match lock {
        Lock::Off => format!("{lock} until `taupe up {argument}`"),
        _ => format!("{lock} until `taupe up {argument}` or `taupe down {interface}`"),
    }
}

/// Returns the argument by which `taupe up` finds the tunnel's file: the name of the tunnel if the
/// file is in the usual folder, otherwise the path of its file.
#[must_use]
pub fn file_argument(interface: &str, file: Option<&Path>) -> String {
    let usual = conf::folder().join(format!("{interface}.conf"));
    let unusual = file.filter(|file| *file != usual);
    unusual.map_or_else(|| interface.to_owned(), |file| file.display().to_string())
}

/// Returns the file from which a tunnel of this network namespace was brought up.
#[must_use]
pub fn file_of(interface: &str) -> Option<PathBuf> {
    let journals = State::default().read();
    Some(journals.header(interface)?.config.clone())
}

/// Finds the file that a word of the command line means. A name without a file in the folder of files may
/// be that of a tunnel that is up: this is the file from which it was brought up.
///
/// # Errors
/// See [`ConfError`].
pub fn find_file(word: &OsStr) -> Result<Conf, ConfError> {
    let missing = match Conf::find(word, Compatibility::Taupe) {
        Err(missing @ ConfError::Missing { .. }) => missing,
        found => return found,
    };
    let header = State::default().here().into_iter();
    let header = header.filter(|header| word == header.interface.as_str());
    let found = header.filter_map(|header| {
        Some(Conf {
            interface: header.interface.parse().ok()?,
            path: header.config.canonicalize().ok()?,
            shown: header.config,
        })
    });
    found.into_iter().next().ok_or(missing)
}

/// Returns the names of all tunnels that were not brought down, in any network namespace, and of the
/// locks of this one.
///
/// # Errors
/// The eBPF file system cannot be read.
pub fn names() -> Result<BTreeSet<String>, TransparentError> {
    let mut names: BTreeSet<_> = in_effect()?.into_iter().collect();
    names.extend(State::default().names());
    Ok(names)
}

pub(crate) fn names_among(journals: &Journals) -> Result<BTreeSet<String>, TransparentError> {
    let made = journals.headers().map(|header| header.interface.clone());
    // A tunnel whose kill switch is active may have lost its journal.
    Ok(made.chain(in_effect()?).collect())
}
