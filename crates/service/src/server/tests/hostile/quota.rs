//! Requests that compete for a user's last place, and files that outlive their tunnels.

use super::{OWN, is_refused};
use crate::message::{Answer, Class, FromFront};
use crate::server::tests::world::{ALICE, World, refused, seals, up};
use std::fs::File;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, SystemTime};

#[test]
fn new_tunnels_at_once_for_one_place() {
    let world = World::new();
    for tunnel in ["u-1", "u-2", "u-3"] {
        assert_eq!(world.up(ALICE, tunnel, OWN, Class::User).status(), 0);
    }
    // Each is prepared while there is a place.
    let prepared: Vec<_> = ["u-4", "u-5", "u-6", "u-7"]
        .into_iter()
        .map(|tunnel| world.prepare(ALICE, up(tunnel), &seals(&[OWN])))
        .collect();
    world.hold(true);
    let ended = AtomicUsize::new(0);
    thread::scope(|scope| {
        for (link, _, answer) in &prepared {
            assert!(matches!(answer, Answer::Needs { .. }), "{answer:?}");
            let (caller, granted) = (ALICE, Class::User);
            let execute = FromFront::Execute { caller, granted };
            link.send(&execute, &[]).expect("sent");
            scope.spawn(|| {
                let _ = link.receive::<Answer>().expect("an answer");
                ended.fetch_add(1, Ordering::SeqCst);
            });
        }
        while world.waiting() + ended.load(Ordering::SeqCst) < prepared.len() {
            thread::yield_now();
        }
        let waiting = world.waiting();
        world.hold(false);
        assert_eq!(waiting, 1, "more tunnels come up than the user has places");
    });
    for (link, thread, _) in prepared {
        drop(link);
        thread.join().expect("served");
    }
    let reply = world.up(ALICE, "u-8", OWN, Class::User);
    assert!(
        refused(&reply).contains("you have 4 tunnels already"),
        "{reply:?}"
    );
}

#[test]
fn files_of_tunnels_that_root_took_down() {
    let mut world = World::new();
    for tunnel in ["u-1", "u-2"] {
        world.up(ALICE, tunnel, OWN, Class::User);
    }
    world.down_by_root("u-1");
    world.up(ALICE, "u-3", OWN, Class::User);
    let files = |names: &[&str]| names.iter().copied().map(String::from).collect();
    let left = ["u-2.conf", "u-2.json", "u-3.conf", "u-3.json"];
    assert_eq!(world.files(), files(&left));

    // A command of the former service could still bring up u-2, so its files stay for some minutes.
    world.down_by_root("u-2");
    world.down_by_root("u-3");
    for (name, seconds) in [
        ("u-2.conf", 10),
        ("u-2.json", 10),
        ("u-3.conf", 3600),
        ("u-3.json", 3600),
    ] {
        let written = SystemTime::now() - Duration::from_secs(seconds);
        let file = File::options()
            .write(true)
            .open(world.registry().join(name));
        file.expect("a file").set_modified(written).expect("a time");
    }
    world.restart();
    assert_eq!(world.files(), files(&["u-2.conf", "u-2.json"]));
}

#[test]
fn a_file_with_many_peers() {
    let world = World::new();
    // One more is in each file of these tests.
    let peers: String = (0..64)
        .map(|number| format!("\n[Peer]\nPublicKey = {number:02}{:A<41}=", ""))
        .collect();
    let lines = format!("{OWN}{peers}");
    let reply = world.up(ALICE, "u-home", &lines, Class::Admin);
    is_refused(&world, &reply, "the file has 65 peers");
}
