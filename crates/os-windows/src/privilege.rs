//! Privileges of this process.

use std::io;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::ptr;
use windows_sys::Win32::Foundation::{ERROR_NOT_ALL_ASSIGNED, GetLastError, LUID};
use windows_sys::Win32::Security::{
    AdjustTokenPrivileges, LUID_AND_ATTRIBUTES, LookupPrivilegeValueW, SE_PRIVILEGE_ENABLED,
    SE_RESTORE_NAME, TOKEN_ADJUST_PRIVILEGES, TOKEN_PRIVILEGES, TOKEN_QUERY,
};
use windows_sys::Win32::System::Threading::{GetCurrentProcess, OpenProcessToken};

/// Enables `SeRestorePrivilege`, with which this process can create objects owned by others, for
/// example by the system. An elevated administrator has this privilege, but it is disabled by
/// default.
///
/// # Errors
///
/// [`io::ErrorKind::PermissionDenied`] if the process does not have the privilege.
pub fn enable_restore() -> io::Result<()> {
    let mut token = ptr::null_mut();
    let access = TOKEN_ADJUST_PRIVILEGES | TOKEN_QUERY;
    // SAFETY: the current process's handle needs no closing, and `token` is valid for writing.
    if unsafe { OpenProcessToken(GetCurrentProcess(), access, &raw mut token) } == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above created the handle, and nothing else owns it.
    let token = unsafe { OwnedHandle::from_raw_handle(token) };
    let mut number = LUID {
        LowPart: 0,
        HighPart: 0,
    };
    // SAFETY: null means this machine, the name is the system's own constant, and `number` is valid
    // for writing.
    if unsafe { LookupPrivilegeValueW(ptr::null(), SE_RESTORE_NAME, &raw mut number) } == 0 {
        return Err(io::Error::last_os_error());
    }
    let wanted = TOKEN_PRIVILEGES {
        PrivilegeCount: 1,
        Privileges: [LUID_AND_ATTRIBUTES {
            Luid: number,
            Attributes: SE_PRIVILEGE_ENABLED,
        }],
    };
    // SAFETY: there is one privilege, as announced; the output pointers for the previous state are
    // optional and null.
    let (done, error) = unsafe {
        let done = AdjustTokenPrivileges(
            token.as_raw_handle(),
            0,
            &raw const wanted,
            0,
            ptr::null_mut(),
            ptr::null_mut(),
        );
        (done, GetLastError())
    };
    match (done, error) {
        (0, _) => Err(io::Error::from_raw_os_error(error.cast_signed())),
        // The function succeeds even if the process lacks the privilege.
        (_, ERROR_NOT_ALL_ASSIGNED) => Err(io::ErrorKind::PermissionDenied.into()),
        _ => Ok(()),
    }
}
