//! Descriptors that this process was started with.

use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// The first number after the standard streams.
const FIRST: RawFd = 3;

/// A descriptor that the program that started this one passed on by number, as
/// `WG_TUN_FD` does.
///
/// What is returned is a second descriptor for the same open file, and it is
/// this process's own. The first stays open too, because nobody can tell that
/// the number does not belong to another part of the program by now: what it
/// stands for ends when the process does.
///
/// # Errors
///
/// `EBADF` when the number is not an open descriptor or is negative,
/// `EMFILE` when there are too many.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    let copy = fcntl_dupfd_cloexec(borrow(number)?, FIRST)?;
    Ok(copy)
}

/// Keeps every descriptor but the standard streams and those in `keep` from the
/// programs that this process starts from now on.
///
/// A process is born with whatever its parent left open, and a program that
/// goes to the background with the write end of somebody's pipe keeps its
/// reader waiting for ever.
///
/// # Errors
///
/// When `/proc` is not mounted.
pub fn keep_from_children(keep: &[RawFd]) -> io::Result<()> {
    // The list contains the descriptor by which it is read, closed afterwards.
    let open: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    for number in open {
        if number < FIRST || keep.contains(&number) {
            continue;
        }
        let Ok(descriptor) = borrow(number) else {
            continue;
        };
        let Ok(flags) = fcntl_getfd(descriptor) else {
            continue;
        };
        fcntl_setfd(descriptor, flags | FdFlags::CLOEXEC)?;
    }
    Ok(())
}

fn borrow<'a>(number: RawFd) -> io::Result<BorrowedFd<'a>> {
    if number < 0 {
        return Err(rustix::io::Errno::BADF.into());
    }
    // SAFETY: `borrow_raw` wants a number that is not -1 and an open descriptor
    // for as long as the borrow is used. The number is not negative. The callers
    // above only pass the borrow to fcntl(2), which reads no memory, is defined
    // for numbers that are not open (EBADF), and which, with F_DUPFD_CLOEXEC,
    // F_GETFD and F_SETFD, does not close, read or move what the number stands
    // for, whoever owns it.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

#[cfg(test)]
mod tests {
    use super::{inherited, keep_from_children};
    use rustix::io::{FdFlags, fcntl_getfd, fcntl_setfd};
    use std::fs::File;
    use std::io::{Read as _, Write as _, pipe};
    use std::os::fd::AsRawFd as _;

    #[test]
    fn a_descriptor_is_taken_by_its_number() {
        let (mut reader, writer) = pipe().expect("pipe");
        let mut copy = File::from(inherited(writer.as_raw_fd()).expect("open"));
        assert!(
            fcntl_getfd(&copy)
                .expect("flags")
                .contains(FdFlags::CLOEXEC)
        );
        drop(writer);
        copy.write_all(b"through the copy").expect("write");
        drop(copy);
        let mut read = String::new();
        reader.read_to_string(&mut read).expect("read");
        assert_eq!(read, "through the copy");
    }

    #[test]
    fn numbers_that_are_not_open_are_errors() {
        for number in [-1, i32::MIN, i32::MAX] {
            let error = inherited(number).expect_err("not open");
            assert_eq!(
                error.raw_os_error(),
                Some(rustix::io::Errno::BADF.raw_os_error())
            );
        }
    }

    #[test]
    fn only_those_to_keep_reach_a_child() {
        let open = || {
            let file = File::open("/dev/null").expect("null device");
            fcntl_setfd(&file, FdFlags::empty()).expect("inheritable");
            file
        };
        let (kept, closed) = (open(), open());
        keep_from_children(&[kept.as_raw_fd()]).expect("proc");
        let children_get = |file: &File| {
            let number = format!("/proc/self/fd/{}", file.as_raw_fd());
            let status = std::process::Command::new("/bin/test")
                .args(["-e", &number])
                .status();
            status.expect("test(1)").success()
        };
        assert!(children_get(&kept));
        assert!(!children_get(&closed));
    }
}
