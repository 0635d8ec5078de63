//! Hostile requests. Each is refused in one line and changes nothing.

mod applications;
mod others;
mod quota;

use super::world::{ALICE, BOB, Reply, World, name, refused, seals, up};
use crate::message::{Answer, Class, FromFront, Request, Source};
use crate::passed::tests::{KEY, text};
use crate::sealed::seal;
use crate::server::MAX_PER_CALLER;
use rustix::fs::{CWD, FileType, MemfdFlags, Mode, OFlags, memfd_create, mknodat, openat};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::PathBuf;

const OWN: &str = "AllowedApps = uid:1000";

/// Checks that a request of Alice was refused with these words, and that nothing was executed or written.
fn is_refused(world: &World, reply: &Reply, words: &str) {
    let reason = refused(reply);
    assert!(reason.contains(words), "{reason:?} instead of {words:?}");
    assert_eq!(world.calls(), Vec::<String>::new());
    assert_eq!(world.files(), BTreeSet::new());
}

/// Passes a descriptor in place of a file, with whatever class a front might report.
fn refuses_descriptor(descriptor: OwnedFd, words: &str) {
    let world = World::new();
    let reply = world.call_with(ALICE, up("u-home"), vec![descriptor], Class::Admin);
    is_refused(&world, &reply, words);
}

/// Needs an administrator, and is refused if the front reports class `user`.
fn needs_administrator(lines: &str) {
    let world = World::new();
    let (class, _) = world.needs_up(ALICE, "u-home", &format!("{OWN}\n{lines}"));
    assert_eq!(class, Class::Admin);
    let reply = world.up(ALICE, "u-home", &format!("{OWN}\n{lines}"), Class::User);
    is_refused(&world, &reply, "an administrator must authorise this:");
}

fn open(path: &str, flags: OFlags) -> OwnedFd {
    openat(CWD, path, flags, Mode::empty()).expect("open")
}

/// A folder that is removed when it is dropped.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("taupe-hostile-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("folder");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_path_instead_of_a_descriptor() {
    let world = World::new();
    let message = br#"{"version":1,"message":{"Prepare":{"caller":1000,"request":{"Up":{"tunnel":"u-home","source":{"Path":"/etc/shadow"}}}}}}"#;
    is_refused(
        &world,
        &Reply::new(world.raw(message)),
        "a message is invalid",
    );
    let reply = world.call_with(ALICE, up("u-home"), Vec::new(), Class::Admin);
    is_refused(
        &world,
        &reply,
        "0 descriptors came for one file and 0 key files",
    );
}

#[test]
fn a_symbolic_link_as_the_file() {
    let folder = Folder::new("link");
    let link = folder.0.join("u-home.conf");
    symlink("/etc/shadow", &link).expect("link");
    let flags = OFlags::PATH | OFlags::NOFOLLOW;
    refuses_descriptor(
        open(link.to_str().expect("text"), flags),
        "is not a file that can be read",
    );
}

#[test]
fn a_fifo_as_the_file() {
    let folder = Folder::new("fifo");
    let fifo = folder.0.join("fifo");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("fifo");
    // Nobody writes to it: a reader would wait for ever.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    refuses_descriptor(
        open(fifo.to_str().expect("text"), flags),
        "is not a file that can be read",
    );
}

#[test]
fn an_endless_device_as_the_file() {
    refuses_descriptor(
        open("/dev/zero", OFlags::RDONLY),
        "is not a file that can be read",
    );
}

#[test]
fn a_directory_as_the_file() {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    refuses_descriptor(open("/etc", flags), "is not a file that can be read");
}

#[test]
fn a_socket_as_the_file() {
    let (socket, _other) = taupe_os_linux::message_socket::pair().expect("sockets");
    refuses_descriptor(socket, "is not a file that can be read");
}

#[test]
fn a_descriptor_without_access_as_the_file() {
    refuses_descriptor(
        open("/etc/passwd", OFlags::PATH),
        "is not a file that can be read",
    );
}

#[test]
fn a_file_of_root_as_the_file() {
    // A caller who tricks another program into passing it must not have it read either.
    refuses_descriptor(open("/etc/passwd", OFlags::RDONLY), "is not sealed memory");
}

#[test]
fn a_file_that_grows_while_it_is_read() {
    let folder = Folder::new("grows");
    let path = folder.0.join("u-home.conf");
    let mut file = File::create_new(&path).expect("file");
    file.write_all(text(&format!("PrivateKey = {KEY}\n{OWN}")).as_bytes())
        .expect("text");
    refuses_descriptor(
        open(path.to_str().expect("text"), OFlags::RDONLY),
        "is not sealed memory",
    );
    // Memory that can still grow is refused as well.
    let memory = memfd_create("grows", MemfdFlags::ALLOW_SEALING).expect("memory");
    refuses_descriptor(memory, "is not sealed memory");
}

#[test]
fn a_file_of_a_megabyte_and_more() {
    let long = "#".repeat((1 << 20) + 1);
    refuses_descriptor(
        seal(long.as_bytes()).expect("memory"),
        "is longer than 1048576 bytes",
    );
}

#[test]
fn a_string_of_a_megabyte() {
    let world = World::new();
    // The kernel refuses to send a megabyte in one message; the service refuses what it sends.
    let long = "x".repeat(100_000);
    let reason = match world.raw(format!(r#"{{"version":1,"message":"{long}"}}"#).as_bytes()) {
        Answer::Refused { reason } => reason,
        other => panic!("{other:?}"),
    };
    assert!(reason.contains("longer than 65536 bytes"), "{reason}");
    let request = Request::AppAllow {
        tunnel: name("u-home"),
        application: "x".repeat(60_000),
    };
    let reply = world.call(ALICE, request, Class::Admin);
    is_refused(&world, &reply, "too many characters");
}

#[test]
fn nul_and_control_characters() {
    let world = World::new();
    for application in ["a\0b", "a\nb", "\u{1b}[2J", "uid:1000\nPostUp = reboot"] {
        let application = application.to_owned();
        let request = Request::AppAllow {
            tunnel: name("u-home"),
            application,
        };
        let reply = world.call(ALICE, request, Class::Admin);
        is_refused(&world, &reply, "it is not an application");
    }
    let source = Source::Passed {
        key_files: vec!["key\0".to_owned()],
    };
    let request = Request::Up {
        tunnel: name("u-home"),
        source,
    };
    let reply = world.call_with(ALICE, request, seals(&[OWN, OWN]), Class::Admin);
    is_refused(&world, &reply, "control characters");
}

#[test]
fn the_name_of_an_interface_that_is_a_path() {
    let world = World::new();
    for name in ["../x", "a/b", "..", "/etc/x", "-rf", "\\u0000", ""] {
        let message = format!(
            r#"{{"version":1,"message":{{"Prepare":{{"caller":1000,"request":{{"Down":{{"tunnel":"{name}"}}}}}}}}}}"#
        );
        is_refused(
            &world,
            &Reply::new(world.raw(message.as_bytes())),
            "a message is invalid",
        );
    }
}

#[test]
fn the_name_of_an_interface_of_16_characters() {
    let world = World::new();
    let message = br#"{"version":1,"message":{"Prepare":{"caller":1000,"request":{"Down":{"tunnel":"u-sixteen-letter"}}}}}"#;
    is_refused(
        &world,
        &Reply::new(world.raw(message)),
        "a message is invalid",
    );
}

#[test]
fn the_name_of_another_users_tunnel() {
    let world = World::new();
    world.up(BOB, "u-work", "AllowedApps = uid:1001", Class::User);
    let (calls, files) = (world.calls().len(), world.files());
    let reply = world.up(ALICE, "u-work", OWN, Class::Admin);
    assert!(
        refused(&reply).contains("u-work is up already"),
        "{reply:?}"
    );
    assert_eq!((world.calls().len(), world.files()), (calls - 1, files));
    world.run_by_root("u-root", false);
    let reply = world.up(ALICE, "u-root", OWN, Class::Admin);
    assert!(
        refused(&reply).contains("u-root is up already"),
        "{reply:?}"
    );
}

#[test]
fn the_name_of_a_listed_tunnel() {
    let world = World::new();
    world.list("u-office", "");
    let reply = world.up(ALICE, "u-office", OWN, Class::Admin);
    is_refused(&world, &reply, "is the name of a tunnel that root lists");
}

#[test]
fn commands_in_the_file() {
    for hook in ["PreUp", "PostUp", "PreDown", "PostDown"] {
        needs_administrator(&format!("{hook} = id"));
    }
}

#[test]
fn a_routing_table_in_the_file() {
    needs_administrator("Table = 100");
}

#[test]
fn save_config_in_the_file() {
    needs_administrator("SaveConfig = true");
}

#[test]
fn forwarded_traffic_in_the_file() {
    needs_administrator("Forwarded = tunnel");
}

#[test]
fn a_kill_switch_for_everybody_in_the_file() {
    needs_administrator("KillSwitch = all");
}

#[test]
fn a_mark_in_the_file() {
    needs_administrator("FwMark = 51820");
}

#[test]
fn a_file_that_names_another_file_by_its_path() {
    let world = World::new();
    let file = seal(text(&format!("PrivateKey = file:/etc/shadow\n{OWN}")).as_bytes());
    let reply = world.call_with(
        ALICE,
        up("u-home"),
        vec![file.expect("memory")],
        Class::Admin,
    );
    is_refused(&world, &reply, "it was not passed");
}

#[test]
fn more_descriptors_than_the_file_names() {
    let world = World::new();
    let reply = world.call_with(ALICE, up("u-home"), seals(&[OWN, OWN]), Class::Admin);
    is_refused(
        &world,
        &reply,
        "2 descriptors came for one file and 0 key files",
    );
    let reply = world.call_with(ALICE, Request::List, seals(&[OWN]), Class::Admin);
    is_refused(&world, &reply, "takes no descriptors");
    let source = Source::Passed {
        key_files: vec!["k".to_owned(); 30],
    };
    let request = Request::Up {
        tunnel: name("u-home"),
        source,
    };
    let reply = world.call_with(ALICE, request, seals(&[OWN; 31]), Class::Admin);
    is_refused(&world, &reply, "31 descriptors");
}

#[test]
fn too_many_requests_at_once() {
    let world = World::new();
    let waiting: Vec<_> = (0..MAX_PER_CALLER)
        .map(|_| world.prepare(ALICE, Request::List, &[]))
        .collect();
    let reply = world.call(ALICE, Request::List, Class::User);
    is_refused(&world, &reply, "you have 4 requests already");
    assert_eq!(
        world.call(BOB, Request::List, Class::User).status(),
        0,
        "it is not Bob's limit"
    );
    for (link, thread, answer) in waiting {
        assert!(matches!(answer, Answer::Needs { .. }));
        drop(link);
        thread.join().expect("served");
    }
    assert_eq!(
        world.call(ALICE, Request::List, Class::User).status(),
        0,
        "the places are free"
    );
}

#[test]
fn too_many_tunnels() {
    let world = World::new();
    for number in 0..4 {
        assert_eq!(
            world
                .up(ALICE, &format!("u-{number}"), OWN, Class::User)
                .status(),
            0
        );
    }
    world.calls();
    let reply = world.up(ALICE, "u-home", OWN, Class::Admin);
    assert!(
        refused(&reply).contains("you have 4 tunnels already"),
        "{reply:?}"
    );
    assert_eq!(world.calls(), Vec::<String>::new());
}

#[test]
fn a_request_that_is_executed_twice() {
    let world = World::new();
    let (link, _thread, _) = world.prepare(ALICE, up("u-home"), &seals(&[OWN]));
    let execute = FromFront::Execute {
        caller: ALICE,
        granted: Class::User,
    };
    link.send(&execute, &[]).expect("sent");
    let (answer, _) = link.receive::<Answer>().expect("an answer");
    assert!(
        matches!(answer, Answer::Done { status: 0, .. }),
        "{answer:?}"
    );
    assert_eq!(world.calls().len(), 1);
    link.send(&execute, &[]).expect("sent");
    let (answer, _) = link.receive::<Answer>().expect("an answer");
    let reply = Reply::new(answer);
    assert!(
        refused(&reply).contains("was executed already"),
        "{reply:?}"
    );
    assert_eq!(world.calls(), Vec::<String>::new());
}

#[test]
fn a_file_that_is_changed_after_it_was_classified() {
    // The service has its own copy: another request on the connection is refused.
    let world = World::new();
    let (link, _thread, _) = world.prepare(ALICE, up("u-home"), &seals(&[OWN]));
    let other = seals(&["PostUp = id"]);
    let request = FromFront::Prepare {
        caller: ALICE,
        request: up("u-home"),
    };
    link.send(&request, &[other[0].as_fd()]).expect("sent");
    let (answer, _) = link.receive::<Answer>().expect("an answer");
    is_refused(
        &world,
        &Reply::new(answer),
        "this connection has a request already",
    );
}

#[test]
fn another_caller_executes_the_request() {
    let world = World::new();
    let (link, _thread, _) = world.prepare(ALICE, up("u-home"), &seals(&[OWN]));
    link.send(
        &FromFront::Execute {
            caller: 0,
            granted: Class::Admin,
        },
        &[],
    )
    .expect("sent");
    let (answer, _) = link.receive::<Answer>().expect("an answer");
    is_refused(
        &world,
        &Reply::new(answer),
        "it is not the request that was prepared",
    );
}

#[test]
fn a_caller_that_executes_nothing() {
    let world = World::new();
    let (link, _thread) = world.connect();
    link.send(
        &FromFront::Execute {
            caller: ALICE,
            granted: Class::Admin,
        },
        &[],
    )
    .expect("sent");
    let (answer, _) = link.receive::<Answer>().expect("an answer");
    is_refused(&world, &Reply::new(answer), "no request is prepared");
}

#[test]
fn a_caller_that_connects_to_the_socket_itself() {
    let front = rustix::process::geteuid().as_raw() + 1;
    let world = World::with_front(front);
    let (link, _thread) = world.connect();
    // The service does not wait for a message.
    let (answer, _) = link.receive::<Answer>().expect("an answer");
    is_refused(&world, &Reply::new(answer), "may not use this socket");
}

#[test]
fn another_version_of_the_messages() {
    let world = World::new();
    for text in [
        r#"{"version":0,"message":1}"#,
        r#"{"version":2,"message":{"Prepare":1}}"#,
    ] {
        is_refused(
            &world,
            &Reply::new(world.raw(text.as_bytes())),
            "and this program has 1",
        );
    }
}

#[test]
fn a_message_that_is_cut() {
    let world = World::new();
    let text = r#"{"version":1,"message":{"Prepare":{"caller":1000,"request":"List"}}}"#;
    for length in 1..text.len() {
        is_refused(
            &world,
            &Reply::new(world.raw(&text.as_bytes()[..length])),
            "a message is invalid",
        );
    }
    assert!(matches!(world.raw(text.as_bytes()), Answer::Needs { .. }));
}

#[test]
fn fields_that_no_message_has() {
    let world = World::new();
    let text = br#"{"version":1,"message":{"Prepare":{"caller":1000,"request":"List","granted":"Admin"}}}"#;
    is_refused(&world, &Reply::new(world.raw(text)), "a message is invalid");
}

#[test]
fn two_requests_change_a_tunnel_at_once() {
    let world = World::new();
    world.up(ALICE, "u-home", OWN, Class::User);
    let (first, first_thread, _) = world.prepare(
        ALICE,
        Request::Down {
            tunnel: name("u-home"),
        },
        &[],
    );
    let (second, second_thread, _) = world.prepare(
        ALICE,
        Request::Down {
            tunnel: name("u-home"),
        },
        &[],
    );
    for link in [&first, &second] {
        link.send(
            &FromFront::Execute {
                caller: ALICE,
                granted: Class::User,
            },
            &[],
        )
        .expect("sent");
    }
    let answers = [&first, &second].map(|link| link.receive::<Answer>().expect("an answer").0);
    let done = answers
        .iter()
        .filter(|answer| matches!(answer, Answer::Done { .. }));
    assert_eq!(done.count(), 1, "{answers:?}");
    drop((first, second));
    first_thread.join().expect("served");
    second_thread.join().expect("served");
}
