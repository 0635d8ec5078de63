//! Tests with a fault at every call.

use taupe_config::file::File;

use super::model::{Fault, Listener, Model};
use super::world::World;
use crate::fixtures::{file, machines};
use crate::plan::Options;
use crate::snapshot::Snapshot;
use crate::{DownError, UpError};

/// More calls than any of these tunnels needs.
const MANY: usize = 300;

const HOOKS: &str = "PreUp = a\nPostUp = b\nPreDown = c\nPostDown = d";

/// One tunnel of each kind.
fn files() -> Vec<File> {
    let addresses = "Address = 10.9.0.2/24, fd09::2/64";
    let dns = "DNS = 10.9.0.1, example.org";
    let hooked = |lines: &str| format!("{HOOKS}\n{addresses}\n{lines}");
    vec![
        file(addresses, "AllowedIPs = 10.0.0.0/8, 192.168.1.0/24"),
        file(&hooked(dns), "AllowedIPs = 0.0.0.0/0, ::/0, 172.20.0.0/16"),
        file(&hooked(""), "AllowedIPs = 0.0.0.0/0"),
        file(&hooked(dns), "AllowedIPs = 198.51.100.0/24, 192.168.1.0/24"),
    ]
}

fn every_tunnel(mut test: impl FnMut(&Snapshot, &File, Options)) {
    for snapshot in machines() {
        for file in files() {
            for override_routes in [false, true] {
                test(&snapshot, &file, Options { override_routes });
            }
        }
    }
}

/// Sorts the routes: their order has no meaning.
fn sorted(world: &World) -> World {
    let mut world = world.clone();
    let key = |it: &taupe_os_bsd::routing::RouteEntry| format!("{it:?}");
    world.snapshot.routes.sort_by_key(key);
    world
}

fn assert_untouched(model: &Model, snapshot: &Snapshot) {
    let before = World::new(snapshot.clone());
    assert_eq!(sorted(&model.world), sorted(&before));
    assert!(!model.has_journal());
    assert!(!model.looped, "datagrams to an endpoint entered the tunnel");
}

/// Brings the tunnel down with nothing but the journal.
fn down(model: &mut Model, snapshot: &Snapshot) {
    match model.down(None, &mut Listener::default()).expect("alive") {
        // The process died before the journal.
        Ok(()) | Err(DownError::NotUp(_)) => {}
        Err(error) => panic!("{error}"),
    }
    assert_untouched(model, snapshot);
}

/// Runs `test` with a fault at the first, second… call, until `test` returns false because the
/// fault did not occur.
fn at_every_call(mut test: impl FnMut(usize) -> bool) -> usize {
    let calls = (0..MANY).find(|number| !test(*number)).expect("an end");
    assert!(calls > 0, "there was nothing to strike");
    calls
}

#[test]
fn up_and_down_leave_nothing() {
    every_tunnel(|snapshot, file, options| {
        let mut model = Model::new(snapshot.clone());
        let mut report = Listener::default();
        let up = model.up(file, options, &mut report).expect("alive");
        up.unwrap_or_else(|error| panic!("{error}"));
        assert!(model.has_journal());
        let again = model.up(file, options, &mut report).expect("alive");
        assert!(matches!(again, Err(UpError::AlreadyUp { .. })));
        down(&mut model, snapshot);
        let again = model.down(Some(file), &mut report).expect("alive");
        assert!(matches!(again, Err(DownError::NotUp(_))));
    });
}

#[test]
fn an_up_that_fails_anywhere_leaves_nothing() {
    every_tunnel(|snapshot, file, options| {
        let calls = at_every_call(|number| {
            let mut model = Model::new(snapshot.clone());
            model.strike(number, Fault::Fail);
            let outcome = model.up(file, options, &mut Listener::default());
            if !model.struck {
                return false;
            }
            match outcome.expect("alive") {
                Err(UpError::Look(_)) => {}
                Err(UpError::Failed { leftovers, .. }) => assert!(leftovers.is_empty()),
                other => panic!("{other:?}"),
            }
            assert_untouched(&model, snapshot);
            true
        });
        assert!(calls >= 8, "{calls}");
    });
}

#[test]
fn an_up_that_is_killed_anywhere_can_be_taken_down_or_brought_up_again() {
    every_tunnel(|snapshot, file, options| {
        for fault in [Fault::DieBefore, Fault::DieAfter] {
            at_every_call(|number| {
                let mut model = Model::new(snapshot.clone());
                model.strike(number, fault);
                let outcome = model.up(file, options, &mut Listener::default());
                model.calm();
                if !model.struck {
                    return false;
                }
                assert!(outcome.is_none(), "it died");
                if number % 2 == 0 {
                    let again = model.up(file, options, &mut Listener::default());
                    let again = again.expect("alive");
                    again.unwrap_or_else(|error| panic!("{number}: {error}"));
                }
                down(&mut model, snapshot);
                true
            });
        }
    });
}

#[test]
fn a_down_that_fails_or_is_killed_anywhere_can_be_repeated() {
    every_tunnel(|snapshot, file, options| {
        for fault in [Fault::Fail, Fault::DieBefore, Fault::DieAfter] {
            at_every_call(|number| {
                let mut model = Model::new(snapshot.clone());
                let up = model.up(file, options, &mut Listener::default());
                up.expect("alive").unwrap_or_else(|error| panic!("{error}"));
                model.strike(number, fault);
                let outcome = model.down(None, &mut Listener::default());
                model.calm();
                if !model.struck {
                    return false;
                }
                match (fault, outcome) {
                    (Fault::Fail, Some(Err(_))) | (_, None) => {}
                    other => panic!("{number}: {other:?}"),
                }
                down(&mut model, snapshot);
                true
            });
        }
    });
}

#[test]
fn an_interrupt_anywhere_undoes_everything() {
    let mut interrupted = 0;
    every_tunnel(|snapshot, file, options| {
        for count in 0..30 {
            let mut model = Model::new(snapshot.clone());
            let mut report = Listener {
                interrupts_after: Some(count),
                ..Listener::default()
            };
            let outcome = model.up(file, options, &mut report).expect("alive");
            if outcome.is_ok() {
                return;
            }
            interrupted += 1;
            assert_untouched(&model, snapshot);
        }
    });
    assert!(interrupted > 50, "{interrupted}");
}
