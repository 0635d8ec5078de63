//! Tests of the file in every possible state, with a kill or a failure at every system call.

use super::super::tests::World;
use super::disk::Call;
use super::*;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, symlink};

/// State of the name before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Before {
    File,
    Link,
    DanglingLink,
    Nothing,
}

/// Kind of file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ordinary,
    /// Without links, like vfat.
    Linkless,
    /// The file is a mount point.
    Mounted,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Apply(&'static str, &'static str),
    Undo(&'static str),
}

const CASES: [(Before, Kind); 9] = [
    (Before::File, Kind::Ordinary),
    (Before::Link, Kind::Ordinary),
    (Before::DanglingLink, Kind::Ordinary),
    (Before::Nothing, Kind::Ordinary),
    (Before::File, Kind::Linkless),
    (Before::Link, Kind::Linkless),
    (Before::DanglingLink, Kind::Linkless),
    (Before::Nothing, Kind::Linkless),
    (Before::File, Kind::Mounted),
];

/// Two tunnels, which go down in either order.
const LIVES: [&[Step]; 2] = [
    &[
        Step::Apply("wg0", "192.0.2.1"),
        Step::Apply("wg1", "2001:db8::1"),
        Step::Undo("wg1"),
        Step::Undo("wg0"),
    ],
    &[
        Step::Apply("wg0", "192.0.2.1"),
        Step::Apply("wg1", "2001:db8::1"),
        Step::Undo("wg0"),
        Step::Undo("wg1"),
    ],
];

const TEXT: &str = "# mine\nnameserver 198.51.100.1\nnameserver 198.51.100.2\n\
    search home.example\noptions ndots:2 trust-ad\noptions edns0\n";

#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    File { inode: u64, mode: u32, text: String },
    Link(PathBuf),
}

fn world(before: Before) -> World {
    let world = World::new();
    let file = world.paths.resolv_conf();
    match before {
        Before::File => fs::write(&file, TEXT).unwrap(),
        Before::Link => {
            fs::write(world.folder.join("run/elsewhere"), TEXT).unwrap();
            symlink("../run/elsewhere", &file).unwrap();
        }
        Before::DanglingLink => symlink("../run/nowhere", &file).unwrap(),
        Before::Nothing => {}
    }
    world
}

/// Returns everything in `/etc`.
fn look(world: &World) -> BTreeMap<String, Entry> {
    let mut entries = BTreeMap::new();
    for entry in fs::read_dir(world.folder.join("etc")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let meta = entry.path().symlink_metadata().unwrap();
        let seen = if meta.is_symlink() {
            Entry::Link(entry.path().read_link().unwrap())
        } else {
            Entry::File {
                inode: meta.ino(),
                mode: meta.mode(),
                text: fs::read_to_string(entry.path()).unwrap(),
            }
        };
        entries.insert(name, seen);
    }
    entries
}

fn settings(server: &str) -> Settings {
    Settings {
        servers: vec![server.parse::<IpAddr>().unwrap()],
        search: vec!["example.com".to_owned()],
    }
}

/// Returns the error of a call on such a file system.
fn refuses(kind: Kind, file: &Path, call: Call, path: &Path) -> Option<Errno> {
    match (kind, call) {
        (Kind::Linkless, Call::Link) => Some(Errno::PERM),
        (Kind::Mounted, Call::Link) => Some(Errno::XDEV),
        (Kind::Mounted, Call::Rename | Call::Remove) if path == file => Some(Errno::BUSY),
        _ => None,
    }
}

/// Fault to inject into the calls of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Never,
    /// The process is killed before call number n.
    KilledAt(usize),
    /// Call number n fails; the following ones are executed.
    FailsAt(usize),
}

/// Executes a step. Returns its result and the number of calls.
fn run(world: &World, kind: Kind, step: Step, trouble: Trouble) -> (Result<(), DnsError>, usize) {
    let file = world.paths.resolv_conf();
    let mut calls = 0;
    let mut before = |call: Call, path: &Path| {
        let number = calls;
        calls += 1;
        match trouble {
            Trouble::KilledAt(n) if number >= n => return Err(Errno::INTR.into()),
            Trouble::FailsAt(n) if number == n => return Err(Errno::IO.into()),
            _ => {}
        }
        match refuses(kind, &file, call, path) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    };
    let mut place = Place::new(&world.paths, &mut before);
    let result = match step {
        Step::Apply(interface, server) => place.apply(interface, &settings(server)),
        Step::Undo(interface) => place.undo(interface).map(drop),
    };
    (result, calls)
}

fn done(world: &World, kind: Kind, step: Step) {
    run(world, kind, step, Trouble::Never).0.unwrap();
}

fn servers(world: &World) -> Vec<String> {
    let text = fs::read_to_string(world.paths.resolv_conf()).unwrap();
    let lines = text.lines();
    lines
        .filter_map(|line| line.strip_prefix("nameserver "))
        .map(str::to_owned)
        .collect()
}

/// Returns true if the original, or the fact that there was none, can be found.
fn is_safe(now: &BTreeMap<String, Entry>, was: Option<&Entry>) -> bool {
    let originals = || now.iter().filter(|(name, _)| name.starts_with(ORIGINAL));
    let is_original = |entry: &Entry| match (entry, was) {
        (Entry::File { text: now, .. }, Some(Entry::File { text: was, .. })) => {
            now.trim_end() == was.trim_end()
        }
        (entry, was) => was == Some(entry),
    };
    let mut found = originals().chain(now.get_key_value("resolv.conf"));
    match was {
        Some(_) => found.any(|(_, entry)| is_original(entry)),
        None => originals().next().is_none(),
    }
}

/// Returns true if the file is intact: the original, or Taupe's with servers.
fn is_whole(now: &BTreeMap<String, Entry>, was: Option<&Entry>) -> bool {
    match (now.get("resolv.conf"), was) {
        (Some(Entry::File { text, .. }), _) if text::parse(text).is_some() => {
            text.contains("\nnameserver ")
        }
        (Some(Entry::File { text: now, .. }), Some(Entry::File { text: was, .. })) => {
            now.trim_end() == was.trim_end()
        }
        (now, was) => now == was,
    }
}

#[test]
fn identical_afterwards() {
    for (before, kind) in CASES {
        for life in LIVES {
            let world = world(before);
            let was = look(&world);
            for step in life {
                done(&world, kind, *step);
            }
            assert_eq!(look(&world), was, "{before:?} {kind:?} {life:?}");
        }
    }
}

#[test]
fn newest_is_in_force() {
    for kind in [Kind::Ordinary, Kind::Linkless, Kind::Mounted] {
        let world = world(Before::File);
        let (first, second) = (["192.0.2.1"], ["2001:db8::1"]);
        done(&world, kind, Step::Apply("wg0", first[0]));
        assert_eq!(servers(&world), first);
        done(&world, kind, Step::Apply("wg1", second[0]));
        assert_eq!(servers(&world), second);
        done(&world, kind, Step::Undo("wg1"));
        assert_eq!(servers(&world), first);
        done(&world, kind, Step::Apply("wg1", second[0]));
        done(&world, kind, Step::Undo("wg0"));
        assert_eq!(servers(&world), second);
        // A second undo has no effect.
        done(&world, kind, Step::Undo("wg0"));
        assert_eq!(servers(&world), second);
        done(&world, kind, Step::Undo("wg1"));
        done(&world, kind, Step::Undo("wg1"));
        assert_eq!(servers(&world), ["198.51.100.1", "198.51.100.2"]);
    }
}

#[test]
fn set_twice_is_set_once() {
    let world = world(Before::File);
    let was = look(&world);
    done(&world, Kind::Ordinary, Step::Apply("wg0", "192.0.2.1"));
    done(&world, Kind::Ordinary, Step::Apply("wg0", "192.0.2.9"));
    assert_eq!(servers(&world), ["192.0.2.9"]);
    assert_eq!(
        current(&world.paths, "wg0").unwrap(),
        Some(settings("192.0.2.9"))
    );
    assert_eq!(current(&world.paths, "wg1").unwrap(), None);
    done(&world, Kind::Ordinary, Step::Undo("wg0"));
    assert_eq!(look(&world), was);
}

/// Kills the process before each call of each step, then runs `down` in another process.
#[test]
fn killed_at_every_call() {
    let mut kills = 0;
    for (before, kind) in CASES {
        for life in LIVES {
            for (position, step) in life.iter().enumerate() {
                for call in 0.. {
                    let world = world(before);
                    let was = look(&world);
                    let original = was.get("resolv.conf");
                    for step in &life[..position] {
                        done(&world, kind, *step);
                    }
                    let (_, calls) = run(&world, kind, *step, Trouble::KilledAt(call));
                    let now = look(&world);
                    let case =
                        format!("{before:?} {kind:?} {life:?}: {step:?} at {call}: {now:#?}");
                    assert!(is_safe(&now, original), "{case}");
                    let gap = kind == Kind::Linkless && !now.contains_key("resolv.conf");
                    assert!(gap || is_whole(&now, original), "{case}");
                    for interface in ["wg1", "wg0"] {
                        done(&world, kind, Step::Undo(interface));
                    }
                    assert_eq!(look(&world), was, "{case}");
                    if calls <= call {
                        break;
                    }
                    kills += 1;
                }
            }
        }
    }
    assert!(kills > 100, "{kills}");
}

/// After a kill, the next `up` succeeds without a `down`.
#[test]
fn up_after_a_kill() {
    for (before, kind) in CASES {
        for call in 0..12 {
            let world = world(before);
            let was = look(&world);
            let step = Step::Apply("wg0", "192.0.2.1");
            let _ = run(&world, kind, step, Trouble::KilledAt(call));
            done(&world, kind, Step::Apply("wg1", "192.0.2.2"));
            assert_eq!(servers(&world), ["192.0.2.2"]);
            for interface in ["wg0", "wg1"] {
                done(&world, kind, Step::Undo(interface));
            }
            assert_eq!(look(&world), was, "{before:?} {kind:?} {call}");
        }
    }
}

/// A failed call leaves the file as before the step; a failed undo can be repeated.
#[test]
fn failure_at_every_call() {
    let mut failures = 0;
    for (before, kind) in CASES {
        for life in LIVES {
            for (position, step) in life.iter().enumerate() {
                for call in 0.. {
                    let world = world(before);
                    let was = look(&world);
                    for step in &life[..position] {
                        done(&world, kind, *step);
                    }
                    let text = |world: &World| fs::read(world.paths.resolv_conf()).ok();
                    let (names, content) = (look(&world).len(), text(&world));
                    let (result, calls) = run(&world, kind, *step, Trouble::FailsAt(call));
                    if calls <= call {
                        result.unwrap();
                        break;
                    }
                    failures += 1;
                    let case = format!("{before:?} {kind:?} {life:?}: {step:?} at {call}");
                    match step {
                        Step::Apply(..) => {
                            result.expect_err(&case);
                            assert_eq!(look(&world).len(), names, "{case}");
                            assert_eq!(text(&world), content, "{case}");
                        }
                        Step::Undo(_) => {
                            result.expect_err(&case);
                            done(&world, kind, *step);
                        }
                    }
                    for step in &life[position.max(2)..] {
                        done(&world, kind, *step);
                    }
                    for interface in ["wg0", "wg1"] {
                        done(&world, kind, Step::Undo(interface));
                    }
                    assert_eq!(look(&world), was, "{case}");
                }
            }
        }
    }
    assert!(failures > 100, "{failures}");
}

#[test]
fn replaced_by_another_program() {
    for kind in [Kind::Ordinary, Kind::Mounted] {
        let world = world(Before::File);
        let file = world.paths.resolv_conf();
        done(&world, kind, Step::Apply("wg0", "192.0.2.1"));
        fs::write(&file, "nameserver 203.0.113.7\n").unwrap();

        let mut before = |call: Call, path: &Path| {
            refuses(kind, &file, call, path).map_or(Ok(()), |error| Err(error.into()))
        };
        let note = Place::new(&world.paths, &mut before).undo("wg0").unwrap();
        let original = match kind {
            Kind::Mounted => {
                let inode = file.metadata().unwrap().ino();
                world.paths.beside(&format!("{ORIGINAL}.{inode}"))
            }
            _ => world.paths.beside(ORIGINAL),
        };
        assert_eq!(fs::read_to_string(&original).unwrap(), TEXT);
        let path = file.clone();
        assert_eq!(note, Some(Note::Replaced { path, original }));
        assert_eq!(servers(&world), ["203.0.113.7"]);

        // The next tunnel saves and restores the other program's file.
        done(&world, kind, Step::Apply("wg1", "192.0.2.2"));
        done(&world, kind, Step::Undo("wg1"));
        assert_eq!(servers(&world), ["203.0.113.7"]);
        assert_eq!(look(&world).len(), 1);
    }
}

#[test]
fn restart_while_up() {
    for (before, kind) in CASES {
        let world = world(before);
        let was = look(&world);
        done(&world, kind, Step::Apply("wg0", "192.0.2.1"));
        assert_eq!(owner(&world.paths).unwrap(), Owner::Taupe);
        world.restart();
        assert_eq!(owner(&world.paths).unwrap(), Owner::Other);
        let file = world.paths.resolv_conf();
        let mut refuse = |call: Call, path: &Path| {
            refuses(kind, &file, call, path).map_or(Ok(()), |error| Err(error.into()))
        };
        let note = Place::new(&world.paths, &mut refuse).recover().unwrap();
        assert_eq!(note, Some(Note::Restarted { path: file.clone() }));
        assert_eq!(look(&world), was, "{before:?} {kind:?}");
        assert_eq!(recover(&world.paths).unwrap(), None);

        // Without a call of [`recover`], the next step makes the repair.
        done(&world, kind, Step::Apply("wg0", "192.0.2.1"));
        world.restart();
        done(&world, kind, Step::Apply("wg1", "192.0.2.2"));
        world.restart();
        done(&world, kind, Step::Undo("wg0"));
        assert_eq!(look(&world), was, "{before:?} {kind:?}");
    }
}

#[test]
fn in_resolveds_hands_below_a_file_from_before_a_restart() {
    let world = World::new();
    let link = "../run/systemd/resolve/stub-resolv.conf";
    symlink(link, world.paths.resolv_conf()).unwrap();
    assert_eq!(owner(&world.paths).unwrap(), Owner::SystemdResolved);
    apply(&world.paths, "wg0", &settings("192.0.2.1")).unwrap();
    assert_eq!(owner(&world.paths).unwrap(), Owner::Taupe);
    world.restart();
    assert_eq!(owner(&world.paths).unwrap(), Owner::SystemdResolved);
}

#[test]
fn original_that_has_gone() {
    let world = world(Before::File);
    done(&world, Kind::Ordinary, Step::Apply("wg0", "192.0.2.1"));
    fs::remove_file(world.paths.beside(ORIGINAL)).unwrap();
    let error = undo(&world.paths, "wg0").unwrap_err().to_string();
    assert!(error.contains("before-taupe was there when"), "{error}");
    assert_eq!(servers(&world), ["192.0.2.1"]);
}

#[test]
fn text_of_the_file() {
    let world = world(Before::File);
    done(&world, Kind::Ordinary, Step::Apply("wg0", "192.0.2.1"));
    let text = fs::read_to_string(world.paths.resolv_conf()).unwrap();
    let boot = boot(&world.paths);
    let expected = format!(
        "# Made by taupe for the tunnel wg0. Changes made here are lost when it goes down.\n\
         # What was here is in /etc/resolv.conf.before-taupe, and comes back then.\n\
         #taupe {{\"boot\":\"{boot}\",\"original\":\"resolv.conf.before-taupe\",\"tunnels\":[{{\"interface\":\"wg0\",\
         \"servers\":[\"192.0.2.1\"],\"search\":[\"example.com\"]}}]}}\n\
         nameserver 192.0.2.1\nsearch example.com\noptions ndots:2 edns0\n"
    );
    assert_eq!(text, expected);
    let mode = world.paths.resolv_conf().metadata().unwrap().mode();
    assert_eq!(mode & 0o7777, 0o644);
}

/// No part of a domain can become a separate line.
#[test]
fn domains_stay_words() {
    let mut state = FileState::default();
    let mut odd = settings("192.0.2.1");
    odd.search = [
        "a.example",
        "b\nnameserver 192.0.2.66",
        "",
        "~c.example",
        "d e",
    ]
    .map(str::to_owned)
    .to_vec();
    state.put("wg0", &odd);
    let text = text::print(&state, "");
    assert!(text.contains("\nsearch a.example\n"), "{text}");
    assert!(!text.contains("\nnameserver 192.0.2.66"), "{text}");
    assert_eq!(text::parse(&text), Some(state));
}

#[test]
fn comment_that_was_tampered_with() {
    let world = world(Before::File);
    let was = look(&world);
    done(&world, Kind::Ordinary, Step::Apply("wg0", "192.0.2.1"));
    let text = fs::read_to_string(world.paths.resolv_conf()).unwrap();
    for broken in [
        text.replace("#taupe {", "#taupe ["),
        text.replace("\"resolv.conf.before-taupe\"", "\"../run/elsewhere\""),
        text.replace(
            "\"resolv.conf.before-taupe\"",
            "\"resolv.conf.before-taupe/../passwd\"",
        ),
    ] {
        assert_ne!(broken, text);
        let state = text::parse(&broken).unwrap();
        assert_eq!(state.original.as_deref(), Some(ORIGINAL));
        assert_eq!(state.boot, "");
    }
    let broken = text.replace("#taupe {", "#taupe [");
    fs::write(world.paths.resolv_conf(), broken).unwrap();
    done(&world, Kind::Ordinary, Step::Undo("wg0"));
    assert_eq!(look(&world), was);
}

/// Two processes wait for each other.
#[test]
fn one_at_a_time() {
    let world = world(Before::File);
    let was = look(&world);
    std::thread::scope(|scope| {
        for number in 0..8 {
            let paths = &world.paths;
            scope.spawn(move || {
                let interface = format!("wg{number}");
                for _ in 0..5 {
                    apply(paths, &interface, &settings("192.0.2.1")).unwrap();
                    undo(paths, &interface).unwrap();
                }
            });
        }
    });
    assert_eq!(look(&world), was);
}

#[test]
fn the_lock_is_no_tunnel_s_and_goes() {
    let world = world(Before::File);
    let folder = world.folder.join("run/taupe");
    let tunnel = crate::State::at(&folder);
    // A tunnel's interface may have this name.
    let held = tunnel.lock("resolv.conf", Duration::ZERO).unwrap();
    apply(&world.paths, "resolv.conf", &settings("192.0.2.1")).unwrap();
    undo(&world.paths, "resolv.conf").unwrap();
    drop(held);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}
