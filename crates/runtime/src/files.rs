//! Small files that are there whole or not at all, for nobody but their owner.

use std::fs;
use std::io;
use std::path::Path;

/// Where they are when nothing else is said.
const DEFAULT_DIR: &str = "/var/lib/taupe";

/// The folder that was asked for, or the usual one.
pub(crate) fn state_dir(dir: Option<&Path>) -> &Path {
    dir.unwrap_or(Path::new(DEFAULT_DIR))
}

/// Writes a file in `dir` anew: by rename, so that there is always a whole one.
pub(crate) fn replace(
    dir: &Path,
    path: &Path,
    write: impl FnOnce(&mut fs::File) -> io::Result<()>,
) -> io::Result<()> {
    owners_folder().create(dir)?;
    let new = path.with_extension("new");
    let mut file = owners_file().open(&new)?;
    write(&mut file)?;
    file.sync_data()?;
    fs::rename(new, path)?;
    sync(dir)
}

/// Makes an empty file in `dir` unless it is there.
pub(crate) fn create(dir: &Path, path: &Path) -> io::Result<()> {
    owners_folder().create(dir)?;
    owners_file().open(path)?;
    // The folder's own name may be new as well.
    sync(dir)?;
    dir.parent().map_or(Ok(()), sync)
}

/// Removes a file in `dir` if it is there.
pub(crate) fn remove(dir: &Path, path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.and_then(|()| sync(dir)),
    }
}

/// The new name must survive a power cut as well. Only Unix opens folders.
fn sync(dir: &Path) -> io::Result<()> {
    if cfg!(unix) {
        fs::File::open(dir)?.sync_all()?;
    }
    Ok(())
}

fn owners_folder() -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

fn owners_file() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `N` bytes in hex; `None` for anything else.
pub(crate) fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    if text.len() != 2 * N || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(bytes)
}
