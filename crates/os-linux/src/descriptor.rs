//! Descriptors that this process inherited from its parent.

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_getfd, fcntl_setfd};
use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};

/// The first number after the standard streams.
const FIRST: RawFd = 3;

/// Returns a duplicate of a descriptor that the parent process passed on by number, as with
/// `WG_TUN_FD`.
///
/// The caller owns the duplicate. The original stays open until the process ends, because another
/// part of the program may own that number by now.
///
/// # Errors
///
/// `EBADF` if the number is negative or not an open descriptor, `EMFILE` if there are too many
/// descriptors.
pub fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    let copy = fcntl_dupfd_cloexec(borrow(number)?, FIRST)?;
    Ok(copy)
}

/// Marks every descriptor close-on-exec, except the standard streams and those in `keep`, so that
/// programs that this process starts do not inherit them.
///
/// A process inherits all descriptors that its parent left open. If a program in the background
/// inherits the write end of a pipe, the pipe's reader waits for ever.
///
/// # Errors
///
/// If `/proc` is not available.
pub fn close_on_exec_except(keep: &[RawFd]) -> io::Result<()> {
    // The list includes the descriptor that reads the directory, which is closed afterwards.
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

/// Checks that this process can open `count` more descriptors: opens them, and closes them again.
///
/// # Errors
///
/// `EMFILE` or `ENFILE` if there are too many.
pub fn check_room(count: usize) -> io::Result<()> {
    // It needs no file, such as `/dev/null`, which a root directory may lack.
    let first = eventfd(0, EventfdFlags::CLOEXEC)?;
    let others = (1..count).map(|_| first.try_clone());
    others.collect::<io::Result<Vec<_>>>().map(drop)
}

/// Makes the kernel's table of this process's descriptors large enough for most devices. In a process
/// with several threads, growing the table waits for all processors (RCU), 10 ms and more. A process that
/// may not have so many descriptors keeps its table.
pub fn grow_table() {
    /// Descriptors of a daemon, generously.
    const COUNT: RawFd = 200;
    let grown = eventfd(0, EventfdFlags::CLOEXEC)
        .and_then(|descriptor| fcntl_dupfd_cloexec(descriptor, COUNT));
    drop(grown);
}

fn borrow<'a>(number: RawFd) -> io::Result<BorrowedFd<'a>> {
    if number < 0 {
        return Err(rustix::io::Errno::BADF.into());
    }
    // SAFETY: `borrow_raw` requires a number that is not -1 and a descriptor that stays open while
    // the borrow is used. The number is not negative. The callers above only pass the borrow to
    // fcntl(2), which reads no memory and is defined for numbers that are not open (EBADF). Its
    // commands F_DUPFD_CLOEXEC, F_GETFD and F_SETFD neither close, read nor move the open file,
    // whoever owns the descriptor.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

#[cfg(test)]
mod tests {
    use super::{close_on_exec_except, inherited};
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
        close_on_exec_except(&[kept.as_raw_fd()]).expect("proc");
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
