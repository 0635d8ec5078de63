//! The system's users and groups.

use std::ffi::{CStr, CString};
use std::mem::MaybeUninit;
use std::ptr;

/// Returns a user's id by name, from `/etc/passwd` or another source of the system
/// (`nsswitch.conf(5)`). Returns `None` if there is no such user or the sources cannot be read.
#[must_use]
pub fn user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    find(
        // SAFETY: `name` is a C string; the other arguments are those of the function.
        |entry, strings, size, found| unsafe {
            libc::getpwnam_r(name.as_ptr(), entry, strings, size, found)
        },
        |entry: &libc::passwd| entry.pw_uid,
    )
}

/// Returns true if a user is in the group of this name: by the user's own entry, or by the group's list of
/// members. Returns false if there is no such user or group, or the sources cannot be read.
#[must_use]
pub fn is_member(user: u32, group: &str) -> bool {
    /// Groups of a user, at most (`NGROUPS_MAX` is 65536).
    const MOST: usize = 4096;
    let (Some((name, own)), Some(wanted)) = (user_entry(user), group_id(group)) else {
        return false;
    };
    let mut groups: Vec<libc::gid_t> = vec![0; MOST];
    let mut count = MOST as libc::c_int;
    // SAFETY: `name` is a C string. The function writes at most `count` numbers to `groups`, which has as
    // many, and their number to `count`.
    let found =
        unsafe { libc::getgrouplist(name.as_ptr(), own, groups.as_mut_ptr(), &raw mut count) };
    let count = usize::try_from(count).unwrap_or_default();
    found >= 0 && groups.iter().take(count).any(|group| *group == wanted)
}

/// Sizes of the buffers for the strings of an entry. A group's has the names of all its members.
const STRINGS: [usize; 4] = [1 << 10, 1 << 14, 1 << 18, 1 << 22];

/// Finds an entry by one of the functions whose names end in `_r`, with ever larger buffers for its
/// strings. `take` copies what it needs, while the strings live. `call` passes its arguments to such a
/// function: the entry, the buffer with its size, and the result.
fn find<E, T>(
    call: impl Fn(*mut E, *mut libc::c_char, usize, *mut *mut E) -> libc::c_int,
    take: impl Fn(&E) -> T,
) -> Option<T> {
    for size in STRINGS {
        let mut strings: Vec<libc::c_char> = vec![0; size];
        let mut entry = MaybeUninit::<E>::uninit();
        let mut found = ptr::null_mut();
        // The function writes one `E` to `entry`, at most `size` bytes to `strings`, and a pointer to
        // `found`. All of them live until it returns, and nothing else refers to them.
        let error = call(
            entry.as_mut_ptr(),
            strings.as_mut_ptr(),
            size,
            &raw mut found,
        );
        match error {
            0 if found.is_null() => return None,
            // SAFETY: if `found` is not null, it points to `entry`, which the function has
            // initialised.
            0 => return Some(take(unsafe { entry.assume_init_ref() })),
            libc::EINTR | libc::ERANGE => {}
            _ => return None,
        }
    }
    None
}

/// Returns the name of a user and the group of its entry.
fn user_entry(user: u32) -> Option<(CString, libc::gid_t)> {
    find(
        // SAFETY: the arguments are those of the function.
        |entry, strings, size, found| unsafe {
            libc::getpwuid_r(user, entry, strings, size, found)
        },
        |entry: &libc::passwd| {
            // SAFETY: the name is a C string among the strings, which live until it is copied.
            let name = unsafe { CStr::from_ptr(entry.pw_name) };
            (name.to_owned(), entry.pw_gid)
        },
    )
}

/// Returns a group's id by name.
fn group_id(name: &str) -> Option<libc::gid_t> {
    let name = CString::new(name).ok()?;
    find(
        // SAFETY: `name` is a C string; the other arguments are those of the function.
        |entry, strings, size, found| unsafe {
            libc::getgrnam_r(name.as_ptr(), entry, strings, size, found)
        },
        |entry: &libc::group| entry.gr_gid,
    )
}

#[cfg(test)]
mod tests {
    use super::{is_member, user_id};

    #[test]
    fn members_are_those_of_the_system() {
        assert!(is_member(0, "root"));
        assert!(!is_member(0, "no-such-group"));
        assert!(!is_member(4_294_967_294, "root"), "no such user");
        if let Some(nobody) = user_id("nobody") {
            assert!(!is_member(nobody, "root"));
        }
    }

    #[test]
    fn users_are_found_by_name() {
        assert_eq!(user_id("root"), Some(0));
        assert_eq!(user_id("no-such-user"), None);
        assert_eq!(user_id(""), None);
        assert_eq!(user_id("root\0"), None);
    }
}
