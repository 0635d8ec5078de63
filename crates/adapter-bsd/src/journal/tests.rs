//! Journals on disk.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{BootId, Header, JournalError, LastingChange, Store};
use crate::device::DeviceInterface;
use crate::fixtures::net;
use crate::route::{Hop, TunnelRoute};
use crate::snapshot::NetworkService;

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn folder(name: &str) -> (Folder, Store) {
    let path = std::env::temp_dir().join(format!("taupe-journal-{}-{name}", std::process::id()));
    let _ = fs::remove_dir_all(&path);
    (Folder(path.clone()), Store::at(path))
}

fn header() -> Header {
    Header::new(
        BootId::Started(7),
        2,
        Path::new("/x/wg0.conf"),
        &["true".to_owned()],
    )
}

fn changes() -> [LastingChange; 3] {
    [
        LastingChange::Route(TunnelRoute::new(net("192.0.2.1/32"), Hop::Reject)),
        LastingChange::Resolvconf("wg0".to_owned()),
        LastingChange::Service(NetworkService {
            name: "Wi-Fi".to_owned(),
            servers: vec!["192.0.2.53".to_owned()],
            search: Vec::new(),
        }),
    ]
}

const NOW: Duration = Duration::ZERO;

#[test]
fn what_is_recorded_is_read_back() {
    let (_folder, store) = folder("back");
    let lock = store.lock("wg0", NOW).unwrap();
    assert!(lock.journal().unwrap().is_none());
    let mut journal = lock.begin(header()).unwrap();
    for change in changes() {
        journal.record(change).unwrap();
    }
    journal.undone(1).unwrap();
    let read = |count: usize, complete: bool| {
        let read = lock.journal().unwrap().unwrap();
        assert_eq!(read.header(), &header());
        assert_eq!(
            (read.changes().count(), read.is_complete()),
            (count, complete)
        );
    };
    read(2, false);
    journal.complete().unwrap();
    read(2, true);
    journal.remove().unwrap();
    assert!(lock.journal().unwrap().is_none());
}

#[test]
fn a_journal_of_many_undone_changes_is_written_anew() {
    let (_folder, store) = folder("compact");
    let lock = store.lock("wg0", NOW).unwrap();
    let mut journal = lock.begin(header()).unwrap();
    let device = DeviceInterface {
        name: "wg0".to_owned(),
        index: 3,
    };
    journal.record_device(device.clone()).unwrap();
    let [kept, changed, last] = changes();
    let first = journal.record(kept.clone()).unwrap();
    journal.complete().unwrap();
    let path = store.journal("wg0");
    let mut longest = 0;
    for _ in 0..1000 {
        let number = journal.record(changed.clone()).unwrap();
        journal.undone(number).unwrap();
        longest = longest.max(fs::metadata(&path).unwrap().len());
        journal.compact().unwrap();
    }
    assert!(longest < 32 << 10, "{longest}");
    journal.record(last.clone()).unwrap();
    for _ in 0..2 {
        let read = lock.journal().unwrap().unwrap();
        assert_eq!(read.header(), &header());
        assert_eq!((read.device(), read.is_complete()), (Some(&device), true));
        let present: Vec<_> = read.changes().map(|(_, change)| change).collect();
        assert_eq!(present, [&kept, &last]);
        // Few are left as they are.
        journal.compact().unwrap();
    }
    assert_eq!(first, 0);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
}

#[test]
fn an_incomplete_line_was_not_begun() {
    let (_folder, store) = folder("incomplete");
    let lock = store.lock("wg0", NOW).unwrap();
    let mut journal = lock.begin(header()).unwrap();
    let [first, second, _] = changes();
    journal.record(first).unwrap();
    let path = store.journal("wg0");
    let mut file = fs::OpenOptions::new().append(true).open(&path).unwrap();
    file.write_all(b"{\"do\":[1,{\"resolv").unwrap();
    let mut journal = lock.journal().unwrap().unwrap();
    assert_eq!(journal.changes().count(), 1);
    journal.record(second).unwrap();
    assert_eq!(lock.journal().unwrap().unwrap().changes().count(), 2);
    // Not even a header.
    fs::write(&path, "{\"version\":1").unwrap();
    assert!(lock.journal().unwrap().is_none());
    assert!(!path.exists());
}

#[test]
fn other_versions_and_other_files_are_refused() {
    let (_folder, store) = folder("refused");
    let lock = store.lock("wg0", NOW).unwrap();
    let path = store.journal("wg0");
    fs::write(&path, "{\"version\":2}\n").unwrap();
    assert!(matches!(
        lock.journal(),
        Err(JournalError::Version { found: 2, .. })
    ));
    fs::write(&path, "[Interface]\n").unwrap();
    assert!(matches!(
        lock.journal(),
        Err(JournalError::Malformed { line: 1, .. })
    ));
    drop(lock.begin(header()).unwrap_err());
    fs::remove_file(&path).unwrap();
    drop(lock.begin(header()).unwrap());
    for line in [
        "{\"undone\":0}\n",
        "{\"do\":[5,{\"resolvconf\":\"x\"}]}\n",
        "x\n",
    ] {
        let good = fs::read(&path).unwrap();
        fs::write(&path, [&*good, line.as_bytes()].concat()).unwrap();
        let error = lock.journal().unwrap_err();
        assert!(
            matches!(error, JournalError::Malformed { line: 3, .. }),
            "{error}"
        );
        fs::write(&path, good).unwrap();
    }
}

#[test]
fn one_process_at_a_time_has_the_lock() {
    let (_folder, store) = folder("lock");
    let lock = store.lock("wg0", NOW).unwrap();
    let error = store.lock("wg0", NOW).unwrap_err();
    assert_eq!(
        error.to_string(),
        "wg0 is being brought up or down by another process; wait for it"
    );
    drop(lock);
    drop(store.lock("wg0", NOW).unwrap());
}
