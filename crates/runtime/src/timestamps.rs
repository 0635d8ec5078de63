//! Handshake timestamps on disk: for each private key the greatest TAI64N timestamp that it may
//! have sent. Peers refuse handshakes with an older timestamp (whitepaper §5.1), so without this
//! record a clock that goes back over a restart would lock the device out of its peers.
//!
//! Each key has a small file, named after the public key in hex, that holds the timestamp in hex.
//! It is replaced atomically, by rename.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use taupe_protocol::key::PublicKey;
use taupe_protocol::time::Tai64N;
use tracing::warn;

use crate::files::{self, Room, hex};

/// Private keys with a timestamp, at most. A machine has a few, and keeps those of replaced keys.
const MAX_KEYS: usize = 1 << 16;

/// The timestamps of all private keys that this machine has used.
pub struct Timestamps {
    dir: PathBuf,
    room: Room,
    warned: bool,
}

impl Timestamps {
    /// Returns the timestamps in a folder; `None` is `/var/lib/taupe`.
    #[must_use]
    pub fn new(dir: Option<&Path>) -> Self {
        Self {
            dir: files::state_dir(dir).join("labels"),
            room: Room::new(None),
            warned: false,
        }
    }

    /// Limits the number of records.
    pub(crate) fn limit(&mut self) {
        self.room = Room::new(Some(MAX_KEYS));
    }

    /// Returns the greatest timestamp that a key may have sent, or zero if none is saved.
    pub fn load(&mut self, key: &PublicKey) -> Tai64N {
        match self.read(key) {
            Ok(label) => label,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Tai64N::ZERO,
            Err(error) => {
                self.warn(&error);
                Tai64N::ZERO
            }
        }
    }

    /// Saves a timestamp durably. If that fails, the device continues: it is as safe as other
    /// implementations, which all rely on the clock.
    pub fn store(&mut self, key: &PublicKey, label: Tai64N) {
        if let Err(error) = self.write(key, label) {
            self.warn(&error);
        }
    }

    fn read(&self, key: &PublicKey) -> io::Result<Tai64N> {
        let text = fs::read_to_string(self.path(key))?;
        files::parse_hex(text.trim()).map(Tai64N).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{} is not a timestamp of 24 hexadecimal digits; delete it",
                    self.path(key).display()
                ),
            )
        })
    }

    fn write(&mut self, key: &PublicKey, label: Tai64N) -> io::Result<()> {
        let path = self.path(key);
        let count = || files::count_entries(&self.dir);
        self.room.check(&path, count)?;
        files::replace(&self.dir, &path, |file| writeln!(file, "{}", hex(&label.0)))
    }

    fn path(&self, key: &PublicKey) -> PathBuf {
        self.dir.join(hex(&key.0))
    }

    fn warn(&mut self, error: &io::Error) {
        if !self.warned {
            self.warned = true;
            warn!(
                dir = %self.dir.display(), %error,
                "cannot save handshake timestamps: if the clock goes back across a restart, peers \
                 refuse handshakes until it has caught up"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn keys_are_limited_in_number() {
        let dir = std::env::temp_dir().join(format!("taupe-many-labels-{}", std::process::id()));
        let label = Tai64N::from_wall(Duration::from_secs(1_700_000_000));
        let limited = || Timestamps {
            room: Room::new(Some(1)),
            ..Timestamps::new(Some(&dir))
        };
        let [key, other] = [7, 8].map(|byte| PublicKey([byte; 32]));
        limited().store(&key, label);
        let mut timestamps = limited();
        timestamps.store(&key, label.successor());
        assert!(!timestamps.warned);
        timestamps.store(&other, label);
        assert!(timestamps.warned);
        assert_eq!(timestamps.load(&key), label.successor());
        assert_eq!(timestamps.load(&other), Tai64N::ZERO);
        fs::remove_dir_all(&dir).unwrap();
    }

    #[test]
    fn a_timestamp_survives_a_restart_and_a_damaged_file_counts_as_none() {
        let dir = std::env::temp_dir().join(format!("taupe-labels-{}", std::process::id()));
        let key = PublicKey([7; 32]);
        let label = Tai64N::from_wall(Duration::from_secs(1_700_000_000));
        let mut timestamps = Timestamps::new(Some(&dir));
        assert_eq!(timestamps.load(&key), Tai64N::ZERO);
        timestamps.store(&key, label);
        timestamps.store(&key, label.successor());
        assert_eq!(Timestamps::new(Some(&dir)).load(&key), label.successor());
        assert_eq!(timestamps.load(&PublicKey([8; 32])), Tai64N::ZERO);
        for broken in [
            "",
            "40",
            "zz00000065000000000000zz",
            "4000000065000000000000000é",
        ] {
            fs::write(timestamps.path(&key), broken).unwrap();
            assert_eq!(timestamps.load(&key), Tai64N::ZERO, "{broken:?}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
