//! Security descriptors: the owner and the access list of an object.

use super::wide::wide;
use std::io;
use std::ptr;
use windows_sys::Win32::Foundation::LocalFree;
use windows_sys::Win32::Security::Authorization::{
    ConvertSecurityDescriptorToStringSecurityDescriptorW,
    ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1,
};
use windows_sys::Win32::Security::{OBJECT_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR};

/// A security descriptor that the system allocated.
pub(crate) struct Descriptor(PSECURITY_DESCRIPTOR);

impl Descriptor {
    /// Parses a descriptor from text (Security Descriptor Definition Language).
    pub(crate) fn parse(text: &str) -> io::Result<Self> {
        let text = wide(text)?;
        let mut descriptor = ptr::null_mut();
        // SAFETY: the text ends with a zero, and `descriptor` is valid for writing the result.
        let made = unsafe {
            ConvertStringSecurityDescriptorToSecurityDescriptorW(
                text.as_ptr(),
                SDDL_REVISION_1,
                &raw mut descriptor,
                ptr::null_mut(),
            )
        };
        match made {
            0 => Err(io::Error::last_os_error()),
            _ => Ok(Self(descriptor)),
        }
    }

    /// Takes over a descriptor that a system function returned.
    ///
    /// # Safety
    ///
    /// `descriptor` is null or must be freed with `LocalFree`, and nothing else owns it.
    pub(crate) unsafe fn from_raw(descriptor: PSECURITY_DESCRIPTOR) -> Self {
        Self(descriptor)
    }

    /// Returns the given parts as text.
    pub(crate) fn text(&self, parts: OBJECT_SECURITY_INFORMATION) -> io::Result<String> {
        let (mut text, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the descriptor lives as long as `self`; both output variables are valid for
        // writing.
        let made = unsafe {
            ConvertSecurityDescriptorToStringSecurityDescriptorW(
                self.0,
                SDDL_REVISION_1,
                parts,
                &raw mut text,
                &raw mut length,
            )
        };
        if made == 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the system allocated this number of units, including the final zero, and they are
        // freed only below.
        let units = unsafe { std::slice::from_raw_parts(text, length as usize) };
        let units = units.split(|unit| *unit == 0).next().unwrap_or_default();
        let read = String::from_utf16_lossy(units);
        // SAFETY: the text must be freed with `LocalFree`, and is not used afterwards.
        unsafe { LocalFree(text.cast()) };
        Ok(read)
    }

    pub(crate) fn raw(&self) -> PSECURITY_DESCRIPTOR {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor must be freed with `LocalFree`, and is not used afterwards.
        unsafe { LocalFree(self.0) };
    }
}
