//! Which peers have shaken hands in a post-quantum way, on disk: `PostQuantum = prefer` is as
//! strict as `require` from then on, also after a restart.
//!
//! One small file per private key, named after the public key in hex, with a line for each
//! peer: its public key in hex. Replaced by rename, so that there is always a whole one.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::PublicKey;
use taupe_protocol::update::{DeviceUpdate, PeerUpdate, PostQuantum, PrivateKeyUpdate};
use tracing::warn;

use crate::files::{self, hex};

/// The records of all keys that have been used on this machine.
pub struct Latches {
    dir: PathBuf,
    warned: bool,
}

impl Latches {
    /// Those in a folder; `None` is `/var/lib/taupe`.
    #[must_use]
    pub fn new(dir: Option<&Path>) -> Self {
        Self {
            dir: files::state_dir(dir).join("post-quantum"),
            warned: false,
        }
    }

    /// Says in an update which peers have shaken hands in a post-quantum way with the key that
    /// it sets, or else with `current`, the device's own: those of the update, and with a key
    /// those that the device has already.
    pub fn recall(&mut self, current: Option<PublicKey>, update: &mut DeviceUpdate) {
        let prefers = |peer: &PeerUpdate| peer.post_quantum == Some(Some(PostQuantum::Prefer));
        if update.private_key.is_none() && !update.peers.iter().any(prefers) {
            return;
        }
        let set = |private: &PrivateKeyUpdate| {
            let key = private.key.as_ref()?;
            Some(PublicKey(default_provider().dh.public(key.expose())))
        };
        let key = update.private_key.as_ref().map_or(current, set);
        let Some(known) = key.map(|key| self.load(&key)) else {
            return;
        };
        for peer in update.peers.iter_mut().filter(|peer| prefers(peer)) {
            peer.pq_latched |= known.contains(&peer.public_key);
        }
        if update.private_key.is_some() {
            update
                .peers
                .extend(known.into_iter().map(|peer| PeerUpdate {
                    update_only: true,
                    pq_latched: true,
                    ..PeerUpdate::new(peer)
                }));
        }
    }

    /// The peers of a key that have shaken hands in a post-quantum way.
    pub fn load(&mut self, key: &PublicKey) -> BTreeSet<PublicKey> {
        match self.read(key) {
            Ok(peers) => peers,
            Err(error) => {
                self.warn(&error);
                BTreeSet::new()
            }
        }
    }

    /// Remembers a peer of a key, or forgets it, durably.
    pub fn store(&mut self, key: &PublicKey, peer: PublicKey, latched: bool) {
        if let Err(error) = self.change(key, peer, latched) {
            self.warn(&error);
        }
    }

    fn change(&self, key: &PublicKey, peer: PublicKey, latched: bool) -> io::Result<()> {
        let mut peers = self.read(key)?;
        let changed = match latched {
            true => peers.insert(peer),
            false => peers.remove(&peer),
        };
        if !changed {
            return Ok(());
        }
        files::replace(&self.dir, &self.path(key), |file| {
            peers
                .iter()
                .try_for_each(|peer| writeln!(file, "{}", hex(&peer.0)))
        })
    }

    /// A line that is no key is an error: what it was must not be forgotten in silence.
    fn read(&self, key: &PublicKey) -> io::Result<BTreeSet<PublicKey>> {
        let path = self.path(key);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeSet::new()),
            Err(error) => return Err(error),
        };
        let parse = |line: &str| {
            files::parse_hex(line.trim()).map(PublicKey).ok_or_else(|| {
                let reason = format!(
                    "{} does not hold public keys of 64 hex digits; delete it",
                    path.display()
                );
                io::Error::new(io::ErrorKind::InvalidData, reason)
            })
        };
        text.lines().map(parse).collect()
    }

    fn path(&self, key: &PublicKey) -> PathBuf {
        self.dir.join(hex(&key.0))
    }

    fn warn(&mut self, error: &io::Error) {
        if !self.warned {
            self.warned = true;
            warn!(
                dir = %self.dir.display(), %error,
                "it cannot be remembered which peers shake hands in a post-quantum way: with \
                 PostQuantum = prefer they may be led back to ordinary handshakes after a \
                 restart; PostQuantum = require cannot"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_protocol::key::PrivateKey;
    use taupe_protocol::time::Tai64N;

    #[test]
    fn peers_are_there_after_a_restart_until_they_are_forgotten() {
        let dir = std::env::temp_dir().join(format!("taupe-latches-{}", std::process::id()));
        let [key, other, one, two] = [1, 2, 3, 4].map(|byte| PublicKey([byte; 32]));
        let mut latches = Latches::new(Some(&dir));
        assert_eq!(latches.load(&key), BTreeSet::new());
        latches.store(&key, one, true);
        latches.store(&key, two, true);
        latches.store(&key, two, true);
        let mut latches = Latches::new(Some(&dir));
        assert_eq!(latches.load(&key), BTreeSet::from([one, two]));
        assert_eq!(latches.load(&other), BTreeSet::new());
        latches.store(&key, one, false);
        assert_eq!(latches.load(&key), BTreeSet::from([two]));
        // With a key, also those that the device has already.
        let private = PrivateKey::new([9; 32]);
        let own = PublicKey(
            default_provider()
                .dh
                .public(private.as_ref().unwrap().expose()),
        );
        latches.store(&own, one, true);
        let mut update = DeviceUpdate {
            private_key: Some(PrivateKeyUpdate {
                key: private,
                timestamp_floor: Tai64N::ZERO,
            }),
            ..DeviceUpdate::default()
        };
        latches.recall(None, &mut update);
        let [said] = &update.peers[..] else {
            panic!("one peer is known");
        };
        assert!(said.public_key == one && said.update_only && said.pq_latched);
        let mut update = DeviceUpdate::default();
        for peer in [one, two] {
            let mut peer = PeerUpdate::new(peer);
            peer.post_quantum = Some(Some(PostQuantum::Prefer));
            update.peers.push(peer);
        }
        latches.recall(Some(own), &mut update);
        assert_eq!(
            update
                .peers
                .iter()
                .map(|peer| peer.pq_latched)
                .collect::<Vec<_>>(),
            [true, false]
        );
        // What is broken is neither believed nor overwritten.
        for broken in ["03", "zz", "é"] {
            fs::write(latches.path(&key), broken).unwrap();
            assert_eq!(latches.load(&key), BTreeSet::new(), "{broken:?}");
            latches.store(&key, one, true);
            assert_eq!(fs::read_to_string(latches.path(&key)).unwrap(), broken);
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
