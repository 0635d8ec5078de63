//! The system's users.

use std::ffi::CString;
use std::mem::MaybeUninit;
use std::ptr;

/// Returns a user's id by name, from `/etc/passwd` or another source of the system
/// (`nsswitch.conf(5)`). Returns `None` if there is no such user or the sources cannot be read.
#[must_use]
pub fn user_id(name: &str) -> Option<u32> {
    /// Buffer sizes for the strings of the entry, of which this uses none.
    const SIZES: [usize; 4] = [1 << 10, 1 << 14, 1 << 18, 1 << 20];
    let name = CString::new(name).ok()?;
    for size in SIZES {
        let mut strings: Vec<libc::c_char> = vec![0; size];
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: `name` is a C string. The function writes one `passwd` to `entry`, at most
        // `size` bytes to `strings`, and a pointer to `found`. All of them live until it returns,
        // and nothing else refers to them.
        let error = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                strings.as_mut_ptr(),
                strings.len(),
                &raw mut found,
            )
        };
        match error {
            0 if found.is_null() => return None,
            // SAFETY: if `found` is not null, it points to `entry`, which the function has
            // initialised.
            0 => return Some(unsafe { entry.assume_init_ref() }.pw_uid),
            libc::EINTR | libc::ERANGE => {}
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::user_id;

    #[test]
    fn users_are_found_by_name() {
        assert_eq!(user_id("root"), Some(0));
        assert_eq!(user_id("no-such-user"), None);
        assert_eq!(user_id(""), None);
        assert_eq!(user_id("root\0"), None);
    }
}
