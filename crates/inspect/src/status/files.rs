//! The parsed files of tunnels.

use crate::check;
use std::collections::HashMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use taupe_adapter::journal::Header;
use taupe_config::file::File;

/// Files of tunnels, without their keys. A file is parsed again when it has changed: a gateway's file
/// with 10,000 peers takes 25 ms.
#[derive(Default)]
pub struct Files(HashMap<PathBuf, CachedFile>);

struct CachedFile {
    stamp: Stamp,
    file: Option<Arc<File>>,
}

/// Minimum age of a file's change time: any later change then has another time. It is more than the
/// resolution of the times of any file system.
const SETTLED: Duration = Duration::from_secs(3);

/// Identity and time of a file's content. A program cannot set the time of the last change of the inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl Stamp {
    /// Returns `None` if the file changed so recently that another change could have the same time.
    fn of(data: &Metadata, now: SystemTime) -> Option<Self> {
        let changed = u64::try_from(data.ctime()).ok()?;
        let age = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let age = age.checked_sub(Duration::from_secs(changed))?;
        (age > SETTLED).then(|| Self {
            device: data.dev(),
            inode: data.ino(),
            size: data.size(),
            changed: (data.ctime(), data.ctime_nsec()),
        })
    }
}

impl Files {
    /// Returns the current content of a tunnel's file. `None` if it cannot be read or has errors.
    pub(super) fn current(&mut self, header: &Header) -> Option<Arc<File>> {
        self.at(&header.config, SystemTime::now())
    }

    fn at(&mut self, path: &Path, now: SystemTime) -> Option<Arc<File>> {
        // Before the file is read: a later change has another time.
        let stamp = fs::metadata(path).ok();
        let stamp = stamp.and_then(|data| Stamp::of(&data, now));
        if let (Some(stamp), Some(cached)) = (stamp, self.0.get(path))
            && cached.stamp == stamp
        {
            return cached.file.clone();
        }
        self.0.remove(path);
        // A file that could not be read now, for example because this process has too many open, may be
        // readable the next time.
        let text = check::read(path).ok()?;
        let file = parsed(path, &text).map(Arc::new);
        if let Some(stamp) = stamp {
            let file = file.clone();
            self.0.insert(path.to_owned(), CachedFile { stamp, file });
        }
        file
    }

    /// Forgets the files of tunnels that are not among these.
    pub(super) fn retain<'a>(&mut self, headers: impl Iterator<Item = &'a Header>) {
        let paths: Vec<&Path> = headers.map(|header| &*header.config).collect();
        self.0.retain(|path, _| paths.contains(&&**path));
    }
}

/// Parses a file. Its keys are erased: a process may have it for long.
fn parsed(path: &Path, text: &[u8]) -> Option<File> {
    let mut file = check::parse_with_available_keys(path, text).file?;
    file.interface.private_key = None;
    file.interface.pq_private_key = None;
    for peer in &mut file.peers {
        peer.preshared_key = None;
    }
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::{Files, SETTLED, Stamp};
    use std::fs::{self, FileTimes};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::{Duration, SystemTime};

    /// A file that is removed with its folder.
    struct Scratch {
        folder: PathBuf,
        path: PathBuf,
    }

    impl Scratch {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("taupe-{name}-{}", std::process::id()));
            fs::create_dir_all(&folder).expect("a folder");
            let path = folder.join("home.conf");
            Self { folder, path }
        }

        /// Replaces the content, with the same size and time of modification.
        fn write(&self, mtu: u16) {
            let before = fs::metadata(&self.path).ok();
            loop {
                fs::write(&self.path, format!("[Interface]\n{KEY}MTU = {mtu}\n")).expect("written");
                let file = fs::File::options().append(true).open(&self.path);
                let times = FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
                file.expect("a file").set_times(times).expect("set");
                // A file that was changed twice in one tick of the clock is not settled.
                let now = SystemTime::now() + 2 * SETTLED;
                let stamp = |data| Stamp::of(&data, now);
                let after = fs::metadata(&self.path).map(stamp).expect("a file");
                if before.as_ref().is_none_or(|it| Stamp::of(it, now) != after) {
                    break;
                }
            }
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.folder);
        }
    }

    const KEY: &str = "PrivateKey = AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAGE=\n";

    #[test]
    fn a_file_is_parsed_again_when_it_has_changed() {
        let scratch = Scratch::new("changed-file");
        let mut files = Files::default();
        let mut read = || files.at(&scratch.path, SystemTime::now() + 2 * SETTLED);
        assert!(read().is_none());
        for mtu in [1400, 1300] {
            scratch.write(mtu);
            let parsed = read().expect("a file");
            assert_eq!(parsed.interface.mtu, Some(mtu.into()));
            assert!(parsed.interface.private_key.is_none());
            assert!(Arc::ptr_eq(&parsed, &read().expect("a file")));
        }
        fs::write(&scratch.path, "[Interface\n").expect("written");
        assert!(read().is_none());
        fs::remove_file(&scratch.path).expect("removed");
        assert!(read().is_none());
        assert!(files.0.is_empty());
    }

    #[test]
    fn a_file_that_has_just_changed_is_not_cached() {
        let scratch = Scratch::new("new-file");
        scratch.write(1400);
        let data = fs::metadata(&scratch.path).expect("metadata");
        let now = SystemTime::now();
        assert_eq!(Stamp::of(&data, now), None);
        // The clock was set back.
        assert_eq!(Stamp::of(&data, now - Duration::from_secs(60)), None);
        let mut files = Files::default();
        let first = files.at(&scratch.path, now).expect("a file");
        let second = files.at(&scratch.path, now).expect("a file");
        assert!(!Arc::ptr_eq(&first, &second));
    }
}
