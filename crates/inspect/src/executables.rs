//! Executable files: the search in `PATH`, and the interpreters of scripts.

use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Length of the beginning of a file in which the kernel looks for an interpreter, in bytes.
const MAX_FIRST_LINE: usize = 256;

/// Finds the executable that a shell would run.
#[must_use]
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|folder| folder.join(name));
    found.find(|path| is_executable(path))
}

/// Returns the interpreter of a script (`execve(2)`), escaped for display. `None` for other files.
pub(crate) fn interpreter(path: &Path) -> Option<String> {
    let first = first_bytes(path)?;
    let rest = first.strip_prefix(b"#!")?;
    let line = rest.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace);
    words.find(|word| !word.is_empty()).map(escaped)
}

/// Checks whether any user can execute a file.
pub(crate) fn is_executable(path: &Path) -> bool {
    let data = fs::metadata(path);
    data.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Reads the beginning of a file.
pub(crate) fn first_bytes(path: &Path) -> Option<Vec<u8>> {
    // Opening a pipe or a device, which anyone could put there, might block.
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let mut first = Vec::with_capacity(MAX_FIRST_LINE);
    file.take(MAX_FIRST_LINE as u64)
        .read_to_end(&mut first)
        .ok()?;
    Some(first)
}

/// Escapes a name that any user can choose, because it might contain control sequences for the
/// terminal.
pub(crate) fn escaped(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().to_string()
}
