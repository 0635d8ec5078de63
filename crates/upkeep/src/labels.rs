//! Handshake labels on disk: for each private key the greatest TAI64N label
//! that may have been sent with it, so that a clock that went back over a
//! restart does not lock a device out of its peers.
//!
//! One small file per key, named after the public key in hex, holding the label
//! in hex. Replaced by rename, so that there is always a whole one.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use taupe_protocol::key::PublicKey;
use taupe_protocol::time::Tai64N;
use tracing::warn;

/// Where it is when nothing else is said.
const DEFAULT_DIR: &str = "/var/lib/taupe";

/// The labels of all keys that have been used on this machine.
pub struct Labels {
    dir: PathBuf,
    warned: bool,
}

impl Labels {
    /// Those in a folder; `None` is `/var/lib/taupe`.
    #[must_use]
    pub fn new(dir: Option<&Path>) -> Self {
        Self {
            dir: dir.unwrap_or(Path::new(DEFAULT_DIR)).join("labels"),
            warned: false,
        }
    }

    /// The greatest label that may have been sent with a key; zero if nothing
    /// is known.
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

    /// Remembers a label durably. Where that fails the device goes on: it is as
    /// safe as any other implementation, which all start from the clock.
    pub fn store(&mut self, key: &PublicKey, label: Tai64N) {
        if let Err(error) = self.write(key, label) {
            self.warn(&error);
        }
    }

    fn read(&self, key: &PublicKey) -> io::Result<Tai64N> {
        let text = fs::read_to_string(self.path(key))?;
        parse(text.trim()).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "{} does not hold a label of 24 hex digits; delete it",
                    self.path(key).display()
                ),
            )
        })
    }

    fn write(&self, key: &PublicKey, label: Tai64N) -> io::Result<()> {
        owners_folder().create(&self.dir)?;
        let path = self.path(key);
        let new = path.with_extension("new");
        let mut file = owners_file().open(&new)?;
        writeln!(file, "{}", hex(&label.0))?;
        file.sync_data()?;
        fs::rename(new, path)?;
        self.sync()
    }

    /// The new name must survive a power cut as well. Only Unix opens folders.
    fn sync(&self) -> io::Result<()> {
        if cfg!(unix) {
            fs::File::open(&self.dir)?.sync_all()?;
        }
        Ok(())
    }

    fn path(&self, key: &PublicKey) -> PathBuf {
        self.dir.join(hex(&key.0))
    }

    fn warn(&mut self, error: &io::Error) {
        if !self.warned {
            self.warned = true;
            warn!(
                dir = %self.dir.display(), %error,
                "handshake labels cannot be remembered: if this machine's clock goes back \
                 over a restart, peers will refuse its handshakes until the clock has caught up"
            );
        }
    }
}

/// A folder for nobody but its owner.
fn owners_folder() -> fs::DirBuilder {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

/// A file to be written anew, for nobody but its owner.
fn owners_file() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse(text: &str) -> Option<Tai64N> {
    let mut label = [0; 12];
    if text.len() != 2 * label.len() || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in label.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(Tai64N(label))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_label_is_there_after_a_restart_and_a_broken_file_is_none() {
        let dir = std::env::temp_dir().join(format!("taupe-labels-{}", std::process::id()));
        let key = PublicKey([7; 32]);
        let label = Tai64N::from_wall(Duration::from_secs(1_700_000_000));
        let mut labels = Labels::new(Some(&dir));
        assert_eq!(labels.load(&key), Tai64N::ZERO);
        labels.store(&key, label);
        labels.store(&key, label.successor());
        assert_eq!(Labels::new(Some(&dir)).load(&key), label.successor());
        assert_eq!(labels.load(&PublicKey([8; 32])), Tai64N::ZERO);
        for broken in [
            "",
            "40",
            "zz00000065000000000000zz",
            "4000000065000000000000000é",
        ] {
            fs::write(labels.path(&key), broken).unwrap();
            assert_eq!(labels.load(&key), Tai64N::ZERO, "{broken:?}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
