//! Pinned post-quantum peers: a record on disk of the peers that have completed a hybrid handshake.
//! For these peers `PostQuantum = prefer` is as strict as `require`, also after a restart, so that
//! an attacker cannot downgrade them to classic handshakes.
//!
//! There is a folder for each private key, named after its public key in hex. In it each pinned
//! peer has an empty file, named after the peer's public key in hex. Creating or removing an empty
//! file is atomic, so several processes may do it at the same time, and no content can be damaged.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use taupe_protocol::crypto::default_provider;
use taupe_protocol::key::PublicKey;
use taupe_protocol::update::{DeviceUpdate, PeerUpdate, PostQuantum, PrivateKeyUpdate};
use tracing::warn;

use crate::files::{self, Room, hex};

/// Records of all keys together, at most: one for each of the largest number of peers.
const MAX_RECORDS: usize = 1 << 20;

/// The pinned peers of all private keys that this machine has used.
pub struct PinnedPeers {
    dir: PathBuf,
    room: Room,
    warned: bool,
}

/// Error from reading the pinned peers. The device must not assume then that a peer is unpinned.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot read {}: {source}; it lists the peers that have completed post-quantum handshakes, \
     without which PostQuantum = prefer could be downgraded to ordinary ones; let this user read \
     it, write PostQuantum = require for these peers, or delete it to forget the list",
    .path.display()
)]
pub struct PinnedPeersError {
    path: PathBuf,
    source: io::Error,
}

impl PinnedPeersError {
    /// Returns the error of reading the folder `path`.
    #[must_use]
    pub fn new(path: PathBuf, source: io::Error) -> Self {
        Self { path, source }
    }

    /// Returns the folder and the system's error.
    #[must_use]
    pub fn into_parts(self) -> (PathBuf, io::Error) {
        (self.path, self.source)
    }
}

impl PinnedPeers {
    /// Returns the records in a folder. `None` is `/var/lib/taupe`.
    #[must_use]
    pub fn new(dir: Option<&Path>) -> Self {
        Self {
            dir: files::state_dir(dir).join("post-quantum"),
            room: Room::new(None),
            warned: false,
        }
    }

    /// Limits the number of records.
    pub(crate) fn limit(&mut self) {
        self.room = Room::new(Some(MAX_RECORDS));
    }

    /// Returns the pinned peers of a key.
    ///
    /// # Errors
    ///
    /// [`PinnedPeersError`], also if a file's name is no key, because it may have been a pinned peer.
    pub fn load(&self, key: &PublicKey) -> Result<BTreeSet<PublicKey>, PinnedPeersError> {
        let path = self.folder(key);
        let names = || -> io::Result<BTreeSet<PublicKey>> {
            let entries = match fs::read_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Ok(BTreeSet::new());
                }
                entries => entries?,
            };
            entries.map(|entry| peer_of(&entry?)).collect()
        };
        names().map_err(|source| PinnedPeersError { path, source })
    }

    /// Pins or unpins a peer of a key durably. If this fails, logs a warning once; the device
    /// continues.
    pub fn store(&mut self, key: &PublicKey, peer: PublicKey, pinned: bool) {
        let folder = self.folder(key);
        let path = folder.join(hex(&peer.0));
        let done = match pinned {
            true => self
                .room
                .check(&path, || count(&self.dir))
                .and_then(|()| files::create(&folder, &path)),
            false => files::remove(&folder, &path).map(|existed| {
                if existed {
                    self.room.removed();
                }
            }),
        };
        if let Err(error) = done {
            self.warn(&error, pinned);
        }
    }

    fn folder(&self, key: &PublicKey) -> PathBuf {
        self.dir.join(hex(&key.0))
    }

    fn warn(&mut self, error: &io::Error, pinned: bool) {
        if self.warned {
            return;
        }
        self.warned = true;
        let dir = self.dir.display();
        match pinned {
            true => warn!(
                %dir, %error,
                "cannot save that a peer has completed a post-quantum handshake: after a restart, \
                 peers with PostQuantum = prefer can be downgraded to ordinary handshakes, those \
                 with PostQuantum = require cannot"
            ),
            false => warn!(
                %dir, %error,
                "cannot forget that a peer has completed a post-quantum handshake: with \
                 PostQuantum = prefer, ordinary handshakes with it remain refused"
            ),
        }
    }
}

/// Marks the pinned peers in an update.
///
/// `load` reads the record of a private key, by its public key. The record is that of the private
/// key that the update sets, or else that of `current`, the device's own key. If the update sets a
/// key, this also marks peers that the device already has. `prefers` returns true if any of those
/// is [`PostQuantum::Prefer`].
///
/// # Errors
///
/// [`PinnedPeersError`], if that affects a peer with [`PostQuantum::Prefer`]. The update must not be
/// applied then.
pub(crate) fn mark_pinned(
    load: impl FnOnce(&PublicKey) -> Result<BTreeSet<PublicKey>, PinnedPeersError>,
    current: Option<PublicKey>,
    prefers: impl FnOnce() -> bool,
    update: &mut DeviceUpdate,
) -> Result<(), PinnedPeersError> {
    let asks = |peer: &PeerUpdate| peer.post_quantum == Some(Some(PostQuantum::Prefer));
    let asked = update.peers.iter().any(asks);
    if update.private_key.is_none() && !asked {
        return Ok(());
    }
    let set = |private: &PrivateKeyUpdate| {
        let key = private.key.as_ref()?;
        Some(PublicKey(default_provider().dh.public(key.expose())))
    };
    let key = update.private_key.as_ref().map_or(current, set);
    let Some(key) = key else {
        return Ok(());
    };
    let known = match load(&key) {
        Ok(known) => known,
        Err(error) if asked || (!update.replace_peers && prefers()) => return Err(error),
        Err(_) => return Ok(()),
    };
    for peer in update.peers.iter_mut().filter(|peer| asks(peer)) {
        peer.pq_pinned |= known.contains(&peer.public_key);
    }
    if update.private_key.is_some() {
        update
            .peers
            .extend(known.into_iter().map(|peer| PeerUpdate {
                update_only: true,
                pq_pinned: true,
                ..PeerUpdate::new(peer)
            }));
    }
    Ok(())
}

/// Counts the records of all keys.
fn count(dir: &Path) -> io::Result<usize> {
    let folders = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        folders => folders?,
    };
    let mut all = 0;
    for folder in folders {
        let folder = folder?;
        if folder.file_type()?.is_dir() {
            all += files::count_entries(&folder.path())?;
        }
    }
    Ok(all)
}

fn peer_of(entry: &fs::DirEntry) -> io::Result<PublicKey> {
    let name = entry.file_name();
    let key = name.to_str().and_then(files::parse_hex).map(PublicKey);
    key.ok_or_else(|| {
        let reason = format!(
            "its entry {} is not a public key of 64 hexadecimal digits",
            name.display()
        );
        io::Error::new(io::ErrorKind::InvalidData, reason)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use taupe_protocol::key::PrivateKey;
    use taupe_protocol::time::Tai64N;

    /// The folder of a test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let name = format!("taupe-latches-{name}-{}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }

        fn pinned_pq(&self) -> PinnedPeers {
            PinnedPeers::new(Some(&self.0))
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn known(pinned_pq: &PinnedPeers, key: &PublicKey) -> Vec<PublicKey> {
        pinned_pq.load(key).expect("readable").into_iter().collect()
    }

    /// Returns an update that sets a private key, and the public key.
    fn private() -> (PrivateKeyUpdate, PublicKey) {
        let key = PrivateKey::new([9; 32]).expect("a key");
        let public = PublicKey(default_provider().dh.public(key.expose()));
        let update = PrivateKeyUpdate {
            key: Some(key),
            timestamp_floor: Tai64N::ZERO,
        };
        (update, public)
    }

    fn preferring(peers: &[PublicKey]) -> DeviceUpdate {
        let peers = peers.iter().map(|key| PeerUpdate {
            post_quantum: Some(Some(PostQuantum::Prefer)),
            ..PeerUpdate::new(*key)
        });
        DeviceUpdate {
            peers: peers.collect(),
            ..DeviceUpdate::default()
        }
    }

    #[test]
    fn pinned_peers_survive_a_restart_until_they_are_removed() {
        let scratch = Scratch::new("kept");
        let [key, other, one, two] = [1, 2, 3, 4].map(|byte| PublicKey([byte; 32]));
        let mut pinned_pq = scratch.pinned_pq();
        assert_eq!(known(&pinned_pq, &key), []);
        pinned_pq.store(&key, one, true);
        pinned_pq.store(&key, two, true);
        pinned_pq.store(&key, two, true);
        assert_eq!(known(&scratch.pinned_pq(), &key), [one, two]);
        assert_eq!(known(&pinned_pq, &other), []);
        for _ in 0..2 {
            pinned_pq.store(&key, one, false);
            assert_eq!(known(&pinned_pq, &key), [two]);
        }
        pinned_pq.store(&other, one, false);
        assert!(!pinned_pq.warned);
    }

    #[test]
    fn a_record_is_an_empty_file_named_after_both_keys() {
        let scratch = Scratch::new("named");
        let [own, peer] = [0xab, 0x0c].map(|byte| PublicKey([byte; 32]));
        scratch.pinned_pq().store(&own, peer, true);
        let folder = scratch.0.join("post-quantum").join("ab".repeat(32));
        let file = fs::metadata(folder.join("0c".repeat(32))).expect("a file");
        assert!(file.is_file() && file.len() == 0);
    }

    #[test]
    fn records_are_limited_in_number_over_restarts() {
        let scratch = Scratch::new("limited");
        let [key, other, one, two, three] = [1, 2, 3, 4, 5].map(|byte| PublicKey([byte; 32]));
        let limited = || PinnedPeers {
            room: Room::new(Some(2)),
            ..scratch.pinned_pq()
        };
        let mut pinned_pq = limited();
        pinned_pq.store(&key, one, true);
        pinned_pq.store(&key, one, true);
        let mut pinned_pq = limited();
        pinned_pq.store(&other, two, true);
        assert!(!pinned_pq.warned);
        pinned_pq.store(&key, three, true);
        assert!(pinned_pq.warned);
        assert_eq!(known(&pinned_pq, &key), [one]);
        for _ in 0..2 {
            pinned_pq.store(&key, one, false);
        }
        pinned_pq.store(&key, three, true);
        pinned_pq.store(&key, one, true);
        assert_eq!(known(&pinned_pq, &key), [three]);
    }

    #[test]
    fn an_update_includes_pinned_peers() {
        let scratch = Scratch::new("told");
        let [one, two] = [3, 4].map(|byte| PublicKey([byte; 32]));
        let (private, own) = private();
        let mut pinned_pq = scratch.pinned_pq();
        pinned_pq.store(&own, one, true);
        // With a private key, the update also marks peers that the device already has.
        let mut update = DeviceUpdate {
            private_key: Some(private),
            ..DeviceUpdate::default()
        };
        let load = |key: &PublicKey| pinned_pq.load(key);
        mark_pinned(load, None, || false, &mut update).expect("known");
        let [said] = &update.peers[..] else {
            panic!("one peer is known");
        };
        assert!(said.public_key == one && said.update_only && said.pq_pinned);
        let mut update = preferring(&[one, two]);
        mark_pinned(load, Some(own), || false, &mut update).expect("known");
        let pinned: Vec<bool> = update.peers.iter().map(|peer| peer.pq_pinned).collect();
        assert_eq!(pinned, [true, false]);
    }

    /// Each thread has its own record, as separate processes do.
    #[test]
    fn concurrent_writers_lose_no_record() {
        const EACH: u8 = 40;
        let scratch = Scratch::new("at-once");
        let key = PublicKey([1; 32]);
        let peer = |writer: u8, number: u8| {
            let mut bytes = [writer; 32];
            bytes[0] = number;
            PublicKey(bytes)
        };
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let mut pinned_pq = scratch.pinned_pq();
                scope.spawn(move || {
                    for number in 0..EACH {
                        pinned_pq.store(&key, peer(writer, number), true);
                        if number % 2 == 1 {
                            pinned_pq.store(&key, peer(writer, number), false);
                        }
                    }
                });
            }
        });
        let there = known(&scratch.pinned_pq(), &key);
        assert_eq!(there.len(), 4 * usize::from(EACH) / 2);
        assert!(there.iter().all(|peer| peer.0[0] % 2 == 0));
    }

    #[test]
    fn an_unreadable_record_is_refused_if_a_peer_prefers_hybrid() {
        let scratch = Scratch::new("damaged");
        let one = PublicKey([3; 32]);
        let (_, own) = private();
        let mut pinned_pq = scratch.pinned_pq();
        pinned_pq.store(&own, one, true);
        let folder = pinned_pq.folder(&own);
        let stray = folder.join("03");
        let aside = scratch.0.join("aside");
        type Step<'a> = &'a dyn Fn() -> io::Result<()>;
        let cases: [(Step<'_>, Step<'_>); 2] = [
            (&|| fs::write(&stray, ""), &|| fs::remove_file(&stray)),
            (
                &|| fs::rename(&folder, &aside).and_then(|()| fs::write(&folder, "")),
                &|| fs::remove_file(&folder).and_then(|()| fs::rename(&aside, &folder)),
            ),
        ];
        for (damage, mend) in cases {
            damage().expect("damaged");
            let with_key = |mut update: DeviceUpdate| {
                update.private_key = Some(private().0);
                update
            };
            let refused = |mut update: DeviceUpdate, current, prefers: bool| {
                let load = |key: &PublicKey| pinned_pq.load(key);
                let recalled = mark_pinned(load, current, || prefers, &mut update);
                recalled.err().map(|error| error.to_string())
            };
            let text = refused(preferring(&[one]), Some(own), false).expect("refused");
            assert!(text.contains(&folder.display().to_string()), "{text}");
            assert!(text.contains("PostQuantum = require"), "{text}");
            assert!(refused(with_key(preferring(&[one])), None, false).is_some());
            assert!(refused(with_key(preferring(&[])), None, true).is_some());
            // No peer could be downgraded here.
            assert!(refused(with_key(preferring(&[])), None, false).is_none());
            let mut anew = with_key(preferring(&[]));
            anew.replace_peers = true;
            assert!(refused(anew, None, true).is_none());
            mend().expect("mended");
            assert_eq!(known(&pinned_pq, &own), [one]);
        }
    }

    #[test]
    fn a_failed_write_is_logged() {
        let scratch = Scratch::new("unwritable");
        fs::write(&scratch.0, "").expect("a file in the folder's place");
        let mut pinned_pq = scratch.pinned_pq();
        pinned_pq.store(&PublicKey([1; 32]), PublicKey([2; 32]), true);
        assert!(pinned_pq.warned);
        fs::remove_file(&scratch.0).expect("removed");
    }
}
