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

use crate::files::{self, hex};

/// The timestamps of all private keys that this machine has used.
pub struct Timestamps {
    dir: PathBuf,
    warned: bool,
}

impl Timestamps {
    /// Returns the timestamps in a folder; `None` is `/var/lib/taupe`.
    #[must_use]
    pub fn new(dir: Option<&Path>) -> Self {
        Self {
            dir: files::state_dir(dir).join("labels"),
            warned: false,
        }
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

    fn write(&self, key: &PublicKey, label: Tai64N) -> io::Result<()> {
        files::replace(&self.dir, &self.path(key), |file| {
            writeln!(file, "{}", hex(&label.0))
        })
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
