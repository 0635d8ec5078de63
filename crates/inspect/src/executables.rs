//! Executable files: where a shell finds them, and which program interprets a script.

use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// How much of a script is looked at for its interpreter, as the kernel does.
const FIRST_LINE: usize = 256;

/// Finds the executable that a shell would run.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&path).map(|folder| folder.join(name));
    found.find(|path| is_executable(path))
}

/// What runs a script (`execve(2)`), as it can be shown; `None` for what is none.
pub fn interpreter(path: &Path) -> Option<String> {
    let first = first_bytes(path)?;
    let rest = first.strip_prefix(b"#!")?;
    let line = rest.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace);
    words.find(|word| !word.is_empty()).map(escaped)
}

/// Checks whether a file can be executed by somebody.
pub fn is_executable(path: &Path) -> bool {
    let data = fs::metadata(path);
    data.is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Reads the beginning of a file.
pub fn first_bytes(path: &Path) -> Option<Vec<u8>> {
    // Anybody can have put a pipe or a device there, which nobody is to wait for.
    if !fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty()).ok()?);
    let mut first = Vec::with_capacity(FIRST_LINE);
    file.take(FIRST_LINE as u64).read_to_end(&mut first).ok()?;
    Some(first)
}

/// What anybody can have named, for a terminal that would obey it.
pub fn escaped(name: &[u8]) -> String {
    String::from_utf8_lossy(name).escape_debug().to_string()
}
