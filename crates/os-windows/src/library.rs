//! Libraries that may be missing, and are therefore looked for when they are wanted.

use super::wide::wide;
use libloading::os::windows::Library;
use std::io;
use std::ptr;
use windows_sys::Win32::System::LibraryLoader::{
    LOAD_LIBRARY_SEARCH_APPLICATION_DIR, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW,
};

/// Where a library is looked for. Never in the current folder nor in those of `PATH`, where
/// others may have put one of its name.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// In the folder of the system.
    System,
    /// In that of this program, then in that of the system.
    ProgramOrSystem,
}

/// Loads a library by its name alone.
///
/// # Errors
///
/// What the system says: [`io::ErrorKind::NotFound`] or error 126 where there is none, 193 for
/// one of another kind of processor.
pub(super) fn load(name: &str, place: Place) -> io::Result<Library> {
    let name = wide(name)?;
    let flags = match place {
        Place::System => LOAD_LIBRARY_SEARCH_SYSTEM32,
        Place::ProgramOrSystem => {
            LOAD_LIBRARY_SEARCH_APPLICATION_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32
        }
    };
    // SAFETY: `name` ends with a zero and outlives the call; the file is null, as it must be.
    // What the library does when it is loaded is up to those who may write where it is looked
    // for, and they could replace this program as well.
    let module = unsafe { LoadLibraryExW(name.as_ptr(), ptr::null_mut(), flags) };
    if module.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle is a module's that was loaded just now, and nobody else frees it.
    Ok(unsafe { Library::from_raw(module as _) })
}
