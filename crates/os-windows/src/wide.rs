//! Strings for Windows: UTF-16 that ends with a zero.

use std::ffi::OsStr;
use std::io;
use std::os::windows::ffi::OsStrExt as _;

/// Returns the text with a final zero.
///
/// # Errors
///
/// [`io::ErrorKind::InvalidInput`] for text that contains a zero, at which Windows would cut it
/// off.
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
