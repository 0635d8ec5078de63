//! File systems with little room, or none to write.

use rustix::fs::statvfs;
use rustix::mount::{MountFlags, mount, mount_remount};
use std::ffi::CString;
use std::path::Path;
use taupe_lab::process::LOGS;
use taupe_lab::sandbox::SCRATCH;
use taupe_lab::{Error, Result};

/// Room that is left on a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Room {
    /// As much as the machine has memory.
    Enough,
    /// This many blocks for the contents of files, and enough names.
    Blocks(u64),
    /// This many new files and folders, and enough blocks.
    Files(u64),
    /// None, because the file system is read-only.
    ReadOnly,
}

impl Room {
    /// Returns the system's words for the lack of room.
    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::ReadOnly => "Read-only file system",
            _ => "No space left on device",
        }
    }
}

/// Leaves this room on the tmpfs that is mounted on a folder.
pub(crate) fn leave(folder: &str, room: Room) -> Result<()> {
    let found = statvfs(folder).map_err(Error::io(folder))?;
    let (blocks, files) = (
        found.f_blocks - found.f_bfree,
        found.f_files - found.f_ffree,
    );
    // Above any need of a test, and far below the machine's memory.
    let (mut blocks, mut files) = (blocks + 16_384, files + 16_384);
    let mut flags = MountFlags::empty();
    match room {
        Room::Enough => {}
        Room::Blocks(count) => blocks = found.f_blocks - found.f_bfree + count,
        Room::Files(count) => files = found.f_files - found.f_ffree + count,
        Room::ReadOnly => flags = MountFlags::RDONLY,
    }
    let size = blocks * found.f_frsize;
    let options = CString::new(format!("size={size},nr_inodes={files}"));
    let options = options.map_err(|_| Error::unmet("options of a tmpfs"))?;
    mount_remount(folder, flags, options.as_c_str()).map_err(Error::io(folder))
}

/// Gives the harness's own files below `/run` a file system of their own, so that tests can fill
/// the other one.
pub(crate) fn separate_run() -> Result<()> {
    let own = Path::new(LOGS).parent().unwrap_or(Path::new(LOGS));
    mount("lab", own, "tmpfs", MountFlags::NOSUID, None).map_err(Error::io(LOGS))?;
    for folder in [SCRATCH, LOGS] {
        std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    }
    // A size of 0 would mean that there is no limit.
    for folder in ["/run", "/var/lib"] {
        let first = Path::new(folder).join("first");
        std::fs::write(&first, "1").map_err(Error::io(folder))?;
    }
    Ok(())
}
