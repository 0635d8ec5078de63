//! Events of the system, which threads wait for.

use std::io;
use std::os::windows::io::{AsRawHandle as _, FromRawHandle as _, OwnedHandle};
use std::ptr;
use windows_sys::Win32::Foundation::HANDLE;
use windows_sys::Win32::System::Threading::{CreateEventW, SetEvent};

/// An event that stays set until something resets it.
pub(crate) struct Event(OwnedHandle);

impl Event {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no attributes and no name are both null; the rest are plain values.
        let handle = unsafe { CreateEventW(ptr::null(), 1, 0, ptr::null()) };
        if handle.is_null() {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the handle was made just now and is nobody else's.
        Ok(Self(unsafe { OwnedHandle::from_raw_handle(handle) }))
    }

    pub(crate) fn raw(&self) -> HANDLE {
        self.0.as_raw_handle()
    }

    pub(crate) fn set(&self) {
        // SAFETY: the handle is an event's, and open as long as `self` is there. It cannot
        // fail for such a one.
        unsafe { SetEvent(self.raw()) };
    }
}
