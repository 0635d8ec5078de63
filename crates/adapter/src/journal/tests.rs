use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Header, JournalError, State};
use crate::change::Change;
use crate::fixtures::file;
use crate::namespace::Namespace;
use crate::{Compatibility, FileStamp, Options, Outer, Request};

/// A folder that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let name = format!("taupe-journal-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn state(&self) -> State {
        State::at(&self.0)
    }

    fn journal(&self) -> PathBuf {
        self.0.join("wg0.journal")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn with_request<T>(config: &str, hook: &str, then: impl FnOnce(&Request<'_>) -> T) -> T {
    let file = file(&format!("PostDown = {hook}"), "");
    then(&Request {
        transparent: None,
        outer: None,
        outer_stamp: None,
        interface: "wg0",
        config: Path::new(config),
        stamp: FileStamp::of(Path::new(config)),
        file: &file,
        compatibility: Compatibility::WgQuick,
        options: Options {
            override_routes: true,
            firewall: false,
            chosen: None,
        },
    })
}

fn header() -> Header {
    with_request("/etc/wireguard/wg0.conf", "old", |request| {
        Header::new(request, Namespace::numbered(7))
    })
}

fn mark(mark: u32) -> Change {
    Change::Mark(mark)
}

fn lock(state: &State) -> super::Lock {
    state.lock("wg0", Duration::ZERO).expect("the lock")
}

/// A journal of three steps, of which the second was undone.
fn three(state: &State) -> Header {
    let lock = lock(state);
    let header = header();
    let mut journal = lock.begin(header.clone()).expect("a journal");
    for number in 1..=3 {
        journal.record(&mark(number)).expect("a record");
    }
    journal.undone(1).expect("a record");
    journal.record_interface(9).expect("a record");
    header
}

fn append(path: &Path, text: &str) {
    let mut file = OpenOptions::new().append(true).open(path).expect("journal");
    file.write_all(text.as_bytes()).expect("written");
}

#[test]
fn what_was_said_is_heard() {
    let scratch = Scratch::new("said");
    let state = scratch.state();
    let header = three(&state);
    let lock = lock(&state);
    let mut journal = lock.journal().expect("in order").expect("there");
    assert_eq!(*journal.header(), header);
    assert_eq!(journal.interface(), Some(9));
    assert!(!journal.is_complete());
    let changes: Vec<_> = journal.changes().collect();
    assert_eq!(changes, [(0, &mark(1)), (2, &mark(3))]);
    journal.completed().expect("a record");
    let journal = lock.journal().expect("in order").expect("there");
    assert!(journal.is_complete());
    journal.remove().expect("removed");
    assert!(lock.journal().expect("in order").is_none());
}

#[test]
fn a_line_that_was_cut_off_was_not_begun() {
    let scratch = Scratch::new("torn");
    let state = scratch.state();
    three(&state);
    let whole = fs::read(scratch.journal()).expect("journal");
    let lines = whole.iter().filter(|byte| **byte == b'\n').count();
    let lock = lock(&state);
    for length in 0..whole.len() {
        fs::write(scratch.journal(), &whole[..length]).expect("written");
        let left = whole[..length]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        let journal = lock.journal().expect("in order");
        // Without a complete header no step was executed.
        assert_eq!(journal.is_some(), left > 0, "at {length}");
        assert_eq!(scratch.journal().exists(), left > 0);
        let Some(mut journal) = journal else { continue };
        let steps = journal.changes().count();
        assert_eq!(steps, [0, 1, 2, 3, 2][left.min(lines - 1) - 1]);
        // The next record is a separate line.
        journal.record(&mark(4)).expect("a record");
        let journal = lock.journal().expect("in order").expect("there");
        assert_eq!(journal.changes().count(), steps + 1);
        assert_eq!(
            journal.changes().next_back().map(|(_, c)| c),
            Some(&mark(4))
        );
    }
}

#[test]
fn what_is_no_record_is_told_by_its_line() {
    let scratch = Scratch::new("malformed");
    let state = scratch.state();
    three(&state);
    let whole = fs::read_to_string(scratch.journal()).expect("journal");
    let lock = lock(&state);
    for wrong in [
        "nonsense\n",
        "{\"do\":[7,{\"Mark\":1}]}\n",
        "{\"do\":[3,{\"Dance\":1}]}\n",
        "{\"undone\":3}\n",
        "{\"forgotten\":1}\n",
    ] {
        fs::write(scratch.journal(), &whole).expect("written");
        append(&scratch.journal(), wrong);
        match lock.journal() {
            Err(JournalError::Malformed { line, .. }) => assert_eq!(line, 7, "{wrong}"),
            other => panic!("{wrong}: {other:?}"),
        }
        let now = fs::read_to_string(scratch.journal()).expect("journal");
        assert_eq!(now, format!("{whole}{wrong}"));
    }
}

#[test]
fn another_versions_journal_is_left_alone() {
    let scratch = Scratch::new("version");
    let state = scratch.state();
    let lock = lock(&state);
    fs::write(
        scratch.journal(),
        "{\"taupe_journal\":2,\"all\":\"else\"}\nhello\n",
    )
    .expect("written");
    match lock.journal() {
        Err(error @ JournalError::Version { found: 2, .. }) => {
            assert!(error.to_string().contains("another version"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert!(scratch.journal().exists());
}

#[test]
fn one_process_at_a_time() {
    let scratch = Scratch::new("lock");
    let state = scratch.state();
    let first = lock(&state);
    let second = state.lock("wg0", Duration::from_millis(30));
    let own = std::process::id();
    match second {
        Err(JournalError::Busy { interface, process }) => {
            assert_eq!((interface.as_str(), process), ("wg0", Some(own)));
        }
        other => panic!("{other:?}"),
    }
    assert!(
        state.lock("wg1", Duration::ZERO).is_ok(),
        "another interface"
    );
    std::thread::scope(|scope| {
        let patient = scope.spawn(|| state.lock("wg0", Duration::from_secs(60)).map(drop));
        drop(first);
        patient.join().expect("no panic").expect("the lock");
    });
    let left = fs::read_dir(&scratch.0).expect("folder").count();
    assert_eq!(left, 0, "locks leave nothing");
}

#[test]
fn other_journals_of_the_same_namespace_are_asked() {
    let scratch = Scratch::new("others");
    let state = scratch.state();
    three(&state);
    assert_eq!(
        state.others("wg1", &Namespace::numbered(7)),
        [mark(1), mark(3)]
    );
    assert_eq!(state.others("wg0", &Namespace::numbered(7)), []);
    assert_eq!(state.others("wg1", &Namespace::numbered(8)), []);
    // A journal that is being written is not changed.
    append(&scratch.journal(), "{\"do\":[3,");
    let before = fs::read(scratch.journal()).expect("journal");
    assert_eq!(
        state.others("wg1", &Namespace::numbered(7)),
        [mark(1), mark(3)]
    );
    assert_eq!(fs::read(scratch.journal()).expect("journal"), before);
}

#[test]
fn a_rewritten_journal_says_the_same() {
    let scratch = Scratch::new("rewritten");
    let state = scratch.state();
    let header = three(&state);
    let lock = lock(&state);
    let mut journal = lock.journal().expect("in order").expect("there");
    let rewritten = with_request("/new", "new", |request| {
        journal.draft(request, &[])?.replace(&mut journal)
    });
    rewritten.expect("written");
    journal.record(&mark(4)).expect("a record");
    let journal = lock.journal().expect("in order").expect("there");
    assert_eq!(journal.header().config, Path::new("/new"));
    assert_eq!(journal.header().post_down, ["new"]);
    assert_eq!(journal.header().since(), header.since());
    assert_eq!(journal.interface(), Some(9));
    assert!(journal.is_complete());
    let changes: Vec<_> = journal
        .changes()
        .map(|(_, change)| change.clone())
        .collect();
    assert_eq!(changes, [mark(1), mark(3), mark(4)]);
}

#[test]
fn a_draft_of_a_killed_process_goes_with_its_journal() {
    let scratch = Scratch::new("killed-draft");
    let state = scratch.state();
    three(&state);
    let lock = lock(&state);
    let draft = scratch.journal().with_extension("journal-draft");
    fs::write(&draft, "{").expect("a file");
    let journal = lock.journal().expect("in order").expect("there");
    journal.remove().expect("removed");
    assert!(!draft.exists() && !scratch.journal().exists());
}

#[test]
fn what_a_command_has_altered_is_noted_and_stays_noted() {
    let scratch = Scratch::new("altered");
    let state = scratch.state();
    three(&state);
    let lock = lock(&state);
    let mut journal = lock.journal().expect("in order").expect("there");
    let (number, _) = journal.changes().next().expect("a change");
    journal.altered(number).expect("written");
    let applied = |journal: &super::Journal| -> Vec<Change> {
        let applied = journal.applied().into_iter();
        applied.map(|(_, change)| change).collect()
    };
    assert_eq!(applied(&journal), [mark(3)]);
    let rewritten = with_request("/new", "new", |request| {
        journal.draft(request, &[])?.replace(&mut journal)
    });
    rewritten.expect("written");
    let journal = lock.journal().expect("in order").expect("there");
    assert_eq!(applied(&journal), [mark(3)]);
    assert_eq!(journal.changes().count(), 2);
}

#[test]
fn a_tunnel_changes_while_its_lock_is_held() {
    let scratch = Scratch::new("changing");
    let state = scratch.state();
    assert!(!state.is_changing("wg0"));
    let held = lock(&state);
    assert!(state.is_changing("wg0"));
    assert!(!state.is_changing("wg1"));
    drop(held);
    assert!(!state.is_changing("wg0"));
    // The lock file of a killed process.
    fs::write(scratch.0.join("wg0.lock"), "1\n").expect("a file");
    assert!(!state.is_changing("wg0"));
}

#[test]
fn a_file_that_was_written_since_is_edited_unless_it_was_saved() {
    let scratch = Scratch::new("edited");
    let state = scratch.state();
    let lock = lock(&state);
    let config = scratch.0.join("wg0.conf");
    fs::write(&config, "one").expect("written");
    let header = with_request(config.to_str().expect("a path"), "", |request| {
        Header::new(request, Namespace::numbered(7))
    });
    let mut journal = lock.begin(header).expect("a journal");
    assert!(!journal.header().is_edited());
    fs::write(&config, "another").expect("written");
    assert!(journal.header().is_edited());
    journal.saved(Path::new("/nowhere/wg0.conf")).expect("ok");
    assert!(journal.header().is_edited());
    journal.saved(&config).expect("ok");
    assert!(!journal.header().is_edited());
    drop(journal);
    let again = lock.journal().expect("readable").expect("there");
    assert!(!again.header().is_edited());
    fs::remove_file(&config).expect("removed");
    assert!(!again.header().is_edited());
    assert!(again.header().is_of(Path::new("/nowhere/wg0.conf")));
}

#[test]
fn an_edit_between_reading_the_file_and_beginning_the_journal_is_detected() {
    let scratch = Scratch::new("edited-early");
    let lock = lock(&scratch.state());
    let outer = Outer {
        name: "wg1".to_owned(),
        config: scratch.0.join("wg1.conf"),
        addresses: Vec::new(),
        networks: Vec::new(),
        mtu: 1420,
        mark: None,
        endpoints: Vec::new(),
    };
    let config = scratch.0.join("wg0.conf");
    for file in [&config, &outer.config] {
        fs::write(file, "one").expect("written");
    }
    let header = with_request(config.to_str().expect("a path"), "", |request| {
        let request = Request {
            outer: Some(&outer),
            outer_stamp: FileStamp::of(&outer.config),
            ..*request
        };
        for file in [&config, &outer.config] {
            fs::write(file, "another").expect("written");
        }
        Header::new(&request, Namespace::numbered(7))
    });
    let journal = lock.begin(header).expect("a journal");
    assert!(journal.header().is_edited());
    assert!(journal.header().is_outer_edited());
}

#[test]
fn one_at_a_time_has_its_turn_and_nothing_is_left_of_it() {
    let scratch = Scratch::new("turn");
    let state = scratch.state();
    let lock = lock(&state);
    let turn = state.turn(&|| false).expect("free");
    let second = state.turn(&|| true).expect_err("taken");
    assert!(matches!(second, JournalError::Crowded(_)), "{second}");
    drop(turn);
    drop(state.turn(&|| true).expect("free again"));
    drop(lock);
    assert_eq!(fs::read_dir(&scratch.0).expect("the folder").count(), 0);
}
