//! Security descriptors: whose something is, and who may do what with it.

use super::wide::wide;
use std::io;
use std::ptr;
use windows_sys::Win32::Foundation::LocalFree;
use windows_sys::Win32::Security::Authorization::{
    ConvertSecurityDescriptorToStringSecurityDescriptorW,
    ConvertStringSecurityDescriptorToSecurityDescriptorW, SDDL_REVISION_1,
};
use windows_sys::Win32::Security::{OBJECT_SECURITY_INFORMATION, PSECURITY_DESCRIPTOR};

/// A security descriptor that the system made.
pub(crate) struct Descriptor(PSECURITY_DESCRIPTOR);

impl Descriptor {
    /// Of its text (Security Descriptor Definition Language).
    pub(crate) fn parse(text: &str) -> io::Result<Self> {
        let text = wide(text)?;
        let mut descriptor = ptr::null_mut();
        // SAFETY: text that ends with a zero, and a place for what is made of it.
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

    /// One that a function of the system's has returned.
    ///
    /// # Safety
    ///
    /// It is a descriptor that is to be freed by `LocalFree`, or null, and nobody else has it.
    pub(crate) unsafe fn from_raw(descriptor: PSECURITY_DESCRIPTOR) -> Self {
        Self(descriptor)
    }

    /// Parts of it as text.
    pub(crate) fn text(&self, parts: OBJECT_SECURITY_INFORMATION) -> io::Result<String> {
        let (mut text, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the descriptor is there as long as `self`; two places for what is made of it.
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
        // SAFETY: there are so many units, the zero at the end among them, until they are freed.
        let units = unsafe { std::slice::from_raw_parts(text, length as usize) };
        let units = units.split(|unit| *unit == 0).next().unwrap_or_default();
        let read = String::from_utf16_lossy(units);
        // SAFETY: it was allocated for its owner to free in this way, and is used no more.
        unsafe { LocalFree(text.cast()) };
        Ok(read)
    }

    pub(crate) fn raw(&self) -> PSECURITY_DESCRIPTOR {
        self.0
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it was allocated for its owner to free in this way, and is used no more.
        unsafe { LocalFree(self.0) };
    }
}
