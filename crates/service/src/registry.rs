//! Owners of tunnels, and the copies of their files.
//!
//! A folder that only root can enter has for each tunnel `NAME.conf`, the text that was executed, and
//! `NAME.json`, its owner. It is in `/run`, as the journals of tunnels are: a restart of the service keeps
//! it, a restart of the machine does not.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::process::geteuid;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::message::Class;
use crate::name::TunnelName;
use crate::passed::MAX_FILE;

/// Bytes of a record, at most.
const MAX_RECORD: u64 = 4096;

/// Time for a command of an earlier service, which outlives a restart. Its tunnel may not exist yet.
const COMMAND: Duration = Duration::from_secs(660);

/// Owner of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    /// User ID of the caller that brought it up.
    pub(crate) owner: u32,
    /// The class that its file needed.
    pub(crate) class: Class,
    /// True if its file is listed by root, so that there is no copy.
    pub(crate) is_listed: bool,
}

/// The folder of copies and owners.
#[derive(Debug)]
pub struct Registry {
    folder: PathBuf,
    opened: SystemTime,
}

impl Registry {
    /// Opens the folder, and creates it if it is missing.
    ///
    /// # Errors
    /// The system's error, or the folder belongs to another user or can be entered by others.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let mut builder = DirBuilder::new();
        builder.recursive(true).mode(0o700).create(folder)?;
        let data = fs::symlink_metadata(folder)?;
        if !data.is_dir() || data.uid() != geteuid().as_raw() || data.mode() & 0o077 != 0 {
            return Err(io::Error::other(
                "it belongs to others, or others can enter it",
            ));
        }
        Ok(Self {
            folder: folder.canonicalize()?,
            // Times of files may lag behind by a tick of the clock.
            opened: SystemTime::now() - Duration::from_millis(100),
        })
    }

    /// Returns the path of the copy.
    pub(crate) fn copy(&self, tunnel: &TunnelName) -> PathBuf {
        self.folder.join(format!("{tunnel}.conf"))
    }

    fn record_path(&self, tunnel: &TunnelName) -> PathBuf {
        self.folder.join(format!("{tunnel}.json"))
    }

    /// Returns the owner of a tunnel, if it has been brought up by a request.
    pub(crate) fn record(&self, tunnel: &TunnelName) -> Option<Record> {
        let file = File::open(self.record_path(tunnel)).ok()?;
        let mut text = Vec::new();
        file.take(MAX_RECORD).read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Returns all tunnels with their owners.
    pub(crate) fn records(&self) -> Vec<(TunnelName, Record)> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_suffix(".json")?.parse::<TunnelName>().ok()
        });
        let with_record = |name: TunnelName| Some((name.clone(), self.record(&name)?));
        let mut records: Vec<_> = names.filter_map(with_record).collect();
        records.sort_by(|(a, _), (b, _)| a.cmp(b));
        records
    }

    /// Writes the owner and, unless the file is listed, the copy.
    pub(crate) fn write(
        &self,
        tunnel: &TunnelName,
        record: Record,
        text: Option<&[u8]>,
    ) -> io::Result<()> {
        if let Some(text) = text {
            self.replace(&self.copy(tunnel), text)?;
        }
        let record = serde_json::to_vec(&record)?;
        self.replace(&self.record_path(tunnel), &record)
    }

    /// Returns the text of a copy.
    pub(crate) fn text(&self, tunnel: &TunnelName) -> Option<Zeroizing<Vec<u8>>> {
        let file = File::open(self.copy(tunnel)).ok()?;
        // If the buffer had to grow, it would leave copies of keys behind.
        let mut text = Zeroizing::new(Vec::with_capacity(MAX_FILE * 2));
        file.take(MAX_FILE as u64 * 2).read_to_end(&mut text).ok()?;
        Some(text)
    }

    /// Removes a tunnel's copy and owner.
    pub(crate) fn remove(&self, tunnel: &TunnelName) {
        for path in [self.copy(tunnel), self.record_path(tunnel)] {
            // A listed tunnel has no copy.
            let _ = fs::remove_file(path);
        }
    }

    /// Removes the files of all tunnels but those that stay, and of those that a command of an earlier service
    /// may be bringing up.
    pub(crate) fn tidy(&self, stays: impl Fn(&TunnelName) -> bool) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let name = path.file_stem().and_then(|name| name.to_str());
            let name = name.and_then(|name| name.parse::<TunnelName>().ok());
            if name.is_some_and(|name| !stays(&name)) && self.is_settled(&path) {
                // Another request may have removed it.
                let _ = fs::remove_file(path);
            }
        }
    }

    /// Returns true if this service has written a file, or no command of an earlier one can still use it.
    fn is_settled(&self, path: &Path) -> bool {
        let written = fs::symlink_metadata(path).and_then(|data| data.modified());
        written.is_ok_and(|written| {
            let age = SystemTime::now().duration_since(written);
            written >= self.opened || age.is_ok_and(|age| age > COMMAND)
        })
    }

    /// Replaces a file completely or not at all. Nobody else writes to the folder.
    fn replace(&self, path: &Path, text: &[u8]) -> io::Result<()> {
        let draft = path.with_extension("draft");
        let _ = fs::remove_file(&draft);
        let mut options = OpenOptions::new();
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(text)?;
        fs::rename(&draft, path)
    }
}

#[cfg(test)]
mod tests {
    use super::{Record, Registry};
    use crate::message::Class;
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn owners_outlive_the_service_and_files_are_private() {
        let folder = std::env::temp_dir().join(format!("taupe-registry-{}", std::process::id()));
        let registry = Registry::open(&folder).expect("a folder");
        let name = "u-home".parse().expect("a name");
        let record = Record {
            owner: 1000,
            class: Class::User,
            is_listed: false,
        };
        registry
            .write(&name, record, Some(b"text"))
            .expect("written");
        let registry = Registry::open(&folder).expect("a folder");
        assert_eq!(registry.records(), [(name.clone(), record)]);
        assert_eq!(registry.text(&name).expect("a copy").as_slice(), b"text");
        for entry in fs::read_dir(&folder).expect("entries") {
            let mode = entry
                .expect("entry")
                .metadata()
                .expect("mode")
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        registry.remove(&name);
        assert!(registry.record(&name).is_none());
        assert_eq!(fs::read_dir(&folder).expect("entries").count(), 0);
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("mode");
        assert!(Registry::open(&folder).is_err(), "others can enter it");
        fs::remove_dir_all(&folder).expect("removed");
    }
}
