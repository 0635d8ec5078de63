//! Files as sealed memory.
//!
//! A caller's descriptor can lead to a pipe, a device, a file that somebody writes to, or a file system
//! that is a program of the caller (FUSE). Reading these can block for ever, or return something else the
//! second time. A caller therefore copies a file into memory (`memfd_create(2)`) that nobody can change
//! (`F_ADD_SEALS`), and passes this. Reading it neither blocks nor changes.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{
    FileType, MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fcntl_getfl, fstat,
    memfd_create,
};
use rustix::io::pread;
use thiserror::Error;
use zeroize::Zeroizing;

/// The seals of unchangeable memory.
const SEALS: SealFlags = SealFlags::WRITE
    .union(SealFlags::GROW)
    .union(SealFlags::SHRINK)
    .union(SealFlags::SEAL);

/// Reason why the content of a descriptor is not read.
#[derive(Debug, Error)]
pub enum SealError {
    /// It is a pipe, a folder, a device, a socket or only a name (`O_PATH`).
    #[error("is not a file that can be read")]
    NotAFile,
    /// Somebody could still change it.
    #[error("is not sealed memory")]
    NotSealed,
    /// It is too long.
    #[error("is longer than {0} bytes")]
    TooLong(usize),
    /// A system call failed.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
}

/// Copies a text into sealed memory.
///
/// # Errors
/// The system's error.
pub fn seal(text: &[u8]) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = memfd_create("taupe", flags)?;
    let mut file = File::from(memory);
    file.write_all(text)?;
    let memory = OwnedFd::from(file);
    fcntl_add_seals(&memory, SEALS)?;
    Ok(memory)
}

/// Reads sealed memory of at most `most` bytes.
///
/// # Errors
/// See [`SealError`]. Descriptors of any other kind are not read at all.
pub fn read_sealed(memory: impl AsFd, most: usize) -> Result<Zeroizing<Vec<u8>>, SealError> {
    let flags = fcntl_getfl(&memory).map_err(io::Error::from)?;
    if flags.contains(OFlags::PATH) || flags.contains(OFlags::WRONLY) {
        return Err(SealError::NotAFile);
    }
    let stat = fstat(&memory).map_err(io::Error::from)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(SealError::NotAFile);
    }
    // Only sealable memory has seals: other files return `EINVAL`.
    let seals = fcntl_get_seals(&memory).map_err(|_| SealError::NotSealed)?;
    if !seals.contains(SEALS) {
        return Err(SealError::NotSealed);
    }
    let length = usize::try_from(stat.st_size).unwrap_or(usize::MAX);
    if length > most {
        return Err(SealError::TooLong(most));
    }
    let mut text = Zeroizing::new(vec![0; length]);
    let mut done = 0;
    while let Some(rest) = text.get_mut(done..).filter(|rest| !rest.is_empty()) {
        // The descriptor's own position belongs to the caller too.
        match pread(&memory, rest, done as u64).map_err(io::Error::from)? {
            0 => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            read => done += read,
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::{SealError, read_sealed as read, seal};
    use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, memfd_create, openat};
    use std::fs::File;
    use std::io::{Seek as _, Write as _, pipe};
    use std::os::fd::AsFd as _;

    #[test]
    fn sealed_text_is_read_wherever_its_position_is() {
        let memory = seal(b"text").expect("memory");
        let mut file = File::from(memory.try_clone().expect("copy"));
        file.seek(std::io::SeekFrom::End(0)).expect("position");
        assert_eq!(**read(&memory, 4).expect("text"), *b"text");
        assert!(matches!(read(&memory, 3), Err(SealError::TooLong(3))));
        assert!(file.write_all(b"more").is_err(), "it can be changed");
        assert!(file.set_len(1).is_err(), "it can be cut");
    }

    #[test]
    fn other_descriptors_are_refused_without_reading() {
        let (reader, _writer) = pipe().expect("a pipe");
        let is_no_file =
            |fd: std::os::fd::BorrowedFd<'_>| matches!(read(fd, 100), Err(SealError::NotAFile));
        assert!(is_no_file(reader.as_fd()), "a pipe");
        let open = |path: &str, flags| openat(CWD, path, flags, Mode::empty()).expect("open");
        for (path, flags) in [
            ("/dev/zero", OFlags::RDONLY),
            ("/proc", OFlags::RDONLY | OFlags::DIRECTORY),
            ("/proc/version", OFlags::PATH),
        ] {
            assert!(is_no_file(open(path, flags).as_fd()), "{path}");
        }
        let file = open("/proc/version", OFlags::RDONLY);
        assert!(matches!(read(&file, 100), Err(SealError::NotSealed)));
        let unsealed = memfd_create("x", MemfdFlags::ALLOW_SEALING).expect("memory");
        assert!(matches!(read(&unsealed, 100), Err(SealError::NotSealed)));
    }
}
