//! Loading libraries that may be missing.

use super::wide::wide;
use libloading::os::windows::Library;
use std::io;
use std::ptr;
use windows_sys::Win32::System::LibraryLoader::{
    LOAD_LIBRARY_SEARCH_APPLICATION_DIR, LOAD_LIBRARY_SEARCH_SYSTEM32, LoadLibraryExW,
};

/// The folders in which a library is looked up. The current folder and `PATH` are never searched,
/// because other users may have placed a library of the same name there.
#[derive(Clone, Copy)]
pub(super) enum Place {
    /// The system's folder.
    System,
    /// The folder of this program, then the system's.
    ProgramOrSystem,
}

/// Loads a library by its file name.
///
/// # Errors
///
/// The system's: [`io::ErrorKind::NotFound`] or error 126 if it does not exist, 193 if it is for
/// another kind of processor.
pub(super) fn load(name: &str, place: Place) -> io::Result<Library> {
    let name = wide(name)?;
    let flags = match place {
        Place::System => LOAD_LIBRARY_SEARCH_SYSTEM32,
        Place::ProgramOrSystem => {
            LOAD_LIBRARY_SEARCH_APPLICATION_DIR | LOAD_LIBRARY_SEARCH_SYSTEM32
        }
    };
    // SAFETY: `name` ends with a zero and outlives the call; the file argument must be null.
    // Loading runs the library's code. Only accounts that may write to the searched folders can
    // choose that code, and they could replace this program as well.
    let module = unsafe { LoadLibraryExW(name.as_ptr(), ptr::null_mut(), flags) };
    if module.is_null() {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the handle belongs to the module that was loaded above, and nothing else frees it.
    Ok(unsafe { Library::from_raw(module as _) })
}
