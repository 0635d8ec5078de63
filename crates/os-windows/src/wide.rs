//! Text as Windows takes it: UTF-16 that ends with a zero.

use std::ffi::OsStr;
use std::io;
use std::os::windows::ffi::OsStrExt as _;

/// The text with its zero.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidInput`] for text that has a zero in it, of which Windows would see
/// the beginning only.
pub(crate) fn wide(text: impl AsRef<OsStr>) -> io::Result<Vec<u16>> {
    let mut units: Vec<u16> = text.as_ref().encode_wide().collect();
    if units.contains(&0) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "there is a zero character in it",
        ));
    }
    units.push(0);
    Ok(units)
}
