//! Tests with a fault at every call.

use taupe_config::file::File;

use super::model::{Fault, Listener, Model, World};
use crate::fixtures::file;
use crate::{Compatibility, UpError};

const HOOKS: &str = "PreUp = a\nPostUp = b\nPreDown = c\nPostDown = d";

/// More calls than any of these tunnels needs.
const MANY: usize = 200;

/// One tunnel of each kind.
fn files() -> Vec<File> {
    let addresses = "Address = 10.9.0.2/24, fd09::2/64";
    let dns = "DNS = 10.9.0.1, example.org";
    let hooked = |lines: &str| format!("{HOOKS}\n{addresses}\n{lines}");
    vec![
        file(addresses, "AllowedIPs = 10.0.0.0/8, 172.20.0.0/16"),
        file(&hooked(dns), "AllowedIPs = 0.0.0.0/0, ::/0, 172.20.0.0/16"),
        file(&hooked(""), "AllowedIPs = 0.0.0.0/0"),
        file(&hooked("FwMark = 9"), "AllowedIPs = 0.0.0.0/1, 128.0.0.0/1"),
        file(&hooked(dns), "AllowedIPs = 203.0.113.0/24, 192.168.1.0/24"),
        file(&hooked("Table = 7"), "AllowedIPs = 0.0.0.0/0, ::/0"),
    ]
}

fn every_tunnel(mut test: impl FnMut(&File, Compatibility)) {
    for compatibility in [Compatibility::Taupe, Compatibility::WgQuick] {
        for file in files() {
            test(&file, compatibility);
        }
    }
}

/// Returns true if the world is as before; `wg-quick` does not restore the sysctl.
fn untouched(world: &World, compatibility: Compatibility) -> bool {
    let mut world = world.clone();
    if compatibility == Compatibility::WgQuick {
        world.valid_mark = false;
    }
    world == World::default()
}

fn up(model: &mut Model, file: &File, compatibility: Compatibility) {
    let mut report = Listener::default();
    let up = model.up(file, compatibility, &mut report).expect("alive");
    up.unwrap_or_else(|error| panic!("{error}"));
}

/// Brings the tunnel down with nothing but the journal.
fn down(model: &mut Model, compatibility: Compatibility) {
    let down = model.down(&mut Listener::default()).expect("alive");
    down.unwrap_or_else(|error| panic!("{error}"));
    assert!(untouched(&model.world, compatibility), "{:?}", model.world);
    assert!(!model.has_journal());
}

/// Runs `test` with a fault at the first, second… call, until `test` returns false because the
/// fault did not occur.
fn at_every_call(mut test: impl FnMut(usize) -> bool) -> usize {
    let calls = (0..MANY).find(|number| !test(*number)).expect("an end");
    assert!(calls > 0, "there was nothing to strike");
    calls
}

#[test]
fn an_up_that_fails_anywhere_leaves_nothing() {
    every_tunnel(|file, compatibility| {
        let calls = at_every_call(|number| {
            let mut model = Model::new();
            model.strike(number, Fault::Fail);
            let outcome = model.up(file, compatibility, &mut Listener::default());
            if !model.struck {
                return false;
            }
            match outcome.expect("alive") {
                Err(UpError::Failed { leftovers, .. }) => assert!(leftovers.is_empty()),
                other => panic!("{other:?}"),
            }
            assert!(
                untouched(&model.world, compatibility),
                "{number}: {:?}",
                model.world
            );
            assert!(!model.has_journal());
            true
        });
        assert!(calls >= 6, "{calls}");
    });
}

#[test]
fn an_up_that_is_killed_anywhere_can_be_taken_down() {
    every_tunnel(|file, compatibility| {
        for fault in [Fault::DieBefore, Fault::DieAfter] {
            at_every_call(|number| {
                let mut model = Model::new();
                model.strike(number, fault);
                let outcome = model.up(file, compatibility, &mut Listener::default());
                model.calm();
                if !model.struck {
                    return false;
                }
                assert!(outcome.is_none(), "it died");
                down(&mut model, compatibility);
                true
            });
        }
    });
}

#[test]
fn an_up_that_is_killed_anywhere_can_be_done_again() {
    every_tunnel(|file, compatibility| {
        let mut model = Model::new();
        up(&mut model, file, compatibility);
        let mut whole = model.world.clone();
        for fault in [Fault::DieBefore, Fault::DieAfter] {
            at_every_call(|number| {
                let mut model = Model::new();
                model.strike(number, fault);
                let outcome = model.up(file, compatibility, &mut Listener::default());
                model.calm();
                if !model.struck {
                    return false;
                }
                assert!(outcome.is_none(), "it died");
                up(&mut model, file, compatibility);
                whole.link = model.world.link;
                assert_eq!(model.world, whole);
                down(&mut model, compatibility);
                true
            });
        }
    });
}

#[test]
fn a_down_that_is_killed_anywhere_can_be_done_again() {
    every_tunnel(|file, compatibility| {
        for fault in [Fault::DieBefore, Fault::DieAfter] {
            at_every_call(|number| {
                let mut model = Model::new();
                up(&mut model, file, compatibility);
                model.strike(number, fault);
                let outcome = model.down(&mut Listener::default());
                model.calm();
                if !model.struck {
                    return false;
                }
                assert!(outcome.is_none(), "it died");
                // The process was killed while it ran PostDown, after all other steps.
                if model.has_journal() {
                    down(&mut model, compatibility);
                }
                assert!(untouched(&model.world, compatibility), "{:?}", model.world);
                true
            });
        }
    });
}

#[test]
fn a_down_that_fails_anywhere_says_what_is_left_and_can_be_done_again() {
    every_tunnel(|file, compatibility| {
        at_every_call(|number| {
            let mut model = Model::new();
            up(&mut model, file, compatibility);
            model.strike(number, Fault::Fail);
            let outcome = model.down(&mut Listener::default());
            model.calm();
            if !model.struck {
                return false;
            }
            let error = outcome.expect("alive").expect_err("a call failed");
            assert!(error.to_string().contains("injected"), "{error}");
            if model.has_journal() {
                down(&mut model, compatibility);
            }
            assert!(untouched(&model.world, compatibility), "{:?}", model.world);
            true
        });
    });
}

#[test]
fn a_rollback_that_fails_too_says_what_is_left_and_down_ends_it() {
    every_tunnel(|file, compatibility| {
        let mut model = Model::new();
        up(&mut model, file, compatibility);
        let steps = model.calls;
        at_every_call(|number| {
            let mut model = Model::new();
            // The user interrupts it before its last step.
            let mut report = Listener {
                patience: Some(steps - 1),
                ..Listener::default()
            };
            model.strike(steps - 1 + number, Fault::Fail);
            let outcome = model.up(file, compatibility, &mut report);
            model.calm();
            let outcome = outcome.expect("alive").expect_err("interrupted");
            assert!(outcome.to_string().starts_with("interrupted"), "{outcome}");
            let UpError::Failed { leftovers, .. } = outcome else {
                panic!("{outcome}");
            };
            if model.has_journal() {
                assert_eq!(leftovers.len(), 1);
                down(&mut model, compatibility);
            } else {
                assert!(leftovers.is_empty());
            }
            assert!(untouched(&model.world, compatibility), "{:?}", model.world);
            model.struck
        });
    });
}

/// Returns the state of a tunnel without the parts that depend on its history.
fn likeness(world: &World) -> World {
    let mut world = world.clone();
    world.link = world.link.map(|_| 0);
    world
}

fn every_change(mut test: impl FnMut(&File, &File)) {
    let files = files();
    for old in &files {
        for new in &files {
            test(old, new);
        }
    }
}

/// Changes each file to the next, and the last to the first.
fn some_changes(mut test: impl FnMut(&File, &File)) {
    let files = files();
    for (old, new) in files.iter().zip(files.iter().cycle().skip(1)) {
        test(old, new);
    }
}

#[test]
fn a_reload_makes_what_a_new_tunnel_would_be() {
    every_change(|old, new| {
        let mut fresh = Model::new();
        up(&mut fresh, new, Compatibility::Taupe);
        let mut model = Model::new();
        up(&mut model, old, Compatibility::Taupe);
        let hooks = model.ran.len();
        let mut report = Listener::default();
        let reloaded = model.reload(new, &mut report).expect("alive");
        reloaded.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(likeness(&model.world), likeness(&fresh.world));
        assert_eq!(model.ran.len(), hooks, "no command is run");
        down(&mut model, Compatibility::Taupe);
    });
}

#[test]
fn a_reload_of_the_same_file_touches_only_the_device() {
    for file in files() {
        let mut model = Model::new();
        up(&mut model, &file, Compatibility::Taupe);
        let mut report = Listener::default();
        let reloaded = model.reload(&file, &mut report).expect("alive");
        reloaded.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(report.steps, ["wg syncconf wg0 /dev/fd/63"]);
    }
}

#[test]
fn a_reload_that_fails_anywhere_puts_back_what_was_there() {
    failed_reloads_change_nothing(Fault::Fail, |_| {});
}

#[test]
fn a_reload_that_fails_with_a_full_disk_can_be_taken_down() {
    failed_reloads_change_nothing(Fault::FailWithFullDisk, Model::move_journal_to_memory);
}

/// Lets a fault strike at every call of a reload. The reload must fail, leave the system as it was,
/// and leave a tunnel that can be taken down.
fn failed_reloads_change_nothing(fault: Fault, prepare: fn(&mut Model)) {
    some_changes(|old, new| {
        at_every_call(|number| {
            let mut model = Model::new();
            up(&mut model, old, Compatibility::Taupe);
            let before = model.world.clone();
            prepare(&mut model);
            model.strike(number, fault);
            let outcome = model.reload(new, &mut Listener::default());
            model.calm();
            if !model.struck {
                return false;
            }
            let error = outcome.expect("alive").expect_err("a call failed");
            assert!(error.to_string().contains("as it was"), "{error}");
            assert_eq!(model.world, before);
            down(&mut model, Compatibility::Taupe);
            true
        });
    });
}

#[test]
fn a_reload_with_a_full_disk_succeeds_or_changes_nothing() {
    some_changes(|old, new| {
        let mut fresh = Model::new();
        up(&mut fresh, new, Compatibility::Taupe);
        at_every_call(|number| {
            let mut model = Model::new();
            up(&mut model, old, Compatibility::Taupe);
            let before = model.world.clone();
            model.move_journal_to_memory();
            model.strike(number, Fault::FullDisk);
            let outcome = model.reload(new, &mut Listener::default());
            model.calm();
            if !model.struck {
                return false;
            }
            match outcome.expect("alive") {
                Ok(()) => assert_eq!(likeness(&model.world), likeness(&fresh.world)),
                Err(error) => {
                    assert!(error.to_string().contains("as it was"), "{error}");
                    assert_eq!(model.world, before);
                }
            }
            assert!(model.is_as_recorded());
            down(&mut model, Compatibility::Taupe);
            true
        });
    });
}

#[test]
fn a_full_disk_does_not_let_a_reload_claim_what_somebody_else_has_made() {
    some_changes(|old, new| {
        let mut other = Model::new();
        up(&mut other, new, Compatibility::Taupe);
        for theirs in &other.world.of_host {
            at_every_call(|number| {
                let mut model = Model::new();
                up(&mut model, old, Compatibility::Taupe);
                if !model.world.of_host.insert(theirs.clone()) {
                    return number == 0;
                }
                let before = model.world.clone();
                model.move_journal_to_memory();
                model.strike(number, Fault::FullDisk);
                let outcome = model.reload(new, &mut Listener::default());
                model.calm();
                if !model.struck {
                    return false;
                }
                outcome.expect("alive").expect_err("it exists");
                assert_eq!(model.world, before);
                let down = model.down(&mut Listener::default()).expect("alive");
                down.unwrap_or_else(|error| panic!("{error}"));
                let left: Vec<_> = model.world.of_host.iter().collect();
                assert_eq!(left, [theirs]);
                true
            });
        }
    });
}

#[test]
fn a_reload_whose_caller_refuses_changes_nothing() {
    every_change(|old, new| {
        let mut model = Model::new();
        up(&mut model, old, Compatibility::Taupe);
        let (before, calls) = (model.world.clone(), model.calls);
        model.refuses = Some("no");
        let outcome = model.reload(new, &mut Listener::default());
        let error = outcome.expect("alive").expect_err("refused");
        assert_eq!(error.to_string(), "no; the tunnel is as it was");
        assert_eq!((&model.world, model.calls), (&before, calls));
        down(&mut model, Compatibility::Taupe);
    });
}

#[test]
fn a_reload_that_is_killed_anywhere_can_be_taken_down() {
    some_changes(|old, new| {
        for fault in [Fault::DieBefore, Fault::DieAfter] {
            at_every_call(|number| {
                let mut model = Model::new();
                up(&mut model, old, Compatibility::Taupe);
                model.strike(number, fault);
                let outcome = model.reload(new, &mut Listener::default());
                model.calm();
                if !model.struck {
                    return false;
                }
                assert!(outcome.is_none(), "it died");
                down(&mut model, Compatibility::Taupe);
                true
            });
        }
    });
}

#[test]
fn what_somebody_else_has_made_is_not_undone() {
    every_tunnel(|file, compatibility| {
        let mut other = Model::new();
        up(&mut other, file, compatibility);
        for theirs in &other.world.of_host {
            let mut model = Model::new();
            model.world.of_host.insert(theirs.clone());
            let before = model.world.clone();
            let outcome = model.up(file, compatibility, &mut Listener::default());
            let error = outcome.expect("alive").expect_err("it exists");
            assert!(error.to_string().contains("os error 17"), "{error}");
            let mut left = model.world.clone();
            left.valid_mark = false;
            assert_eq!(left, before);
        }
    });
}

#[test]
fn what_somebody_else_has_made_is_not_undone_by_a_reload() {
    some_changes(|old, new| {
        let mut other = Model::new();
        up(&mut other, new, Compatibility::Taupe);
        for theirs in &other.world.of_host {
            let mut model = Model::new();
            up(&mut model, old, Compatibility::Taupe);
            if !model.world.of_host.insert(theirs.clone()) {
                continue;
            }
            let before = model.world.clone();
            let outcome = model.reload(new, &mut Listener::default());
            let error = outcome.expect("alive").expect_err("it exists");
            assert!(error.to_string().contains("os error 17"), "{error}");
            assert_eq!(model.world, before);
        }
    });
}

#[test]
fn a_reload_that_is_interrupted_anywhere_puts_back_what_was_there() {
    some_changes(|old, new| {
        at_every_call(|number| {
            let mut model = Model::new();
            up(&mut model, old, Compatibility::Taupe);
            let before = model.world.clone();
            let mut report = Listener {
                patience: Some(number),
                ..Listener::default()
            };
            let outcome = model.reload(new, &mut report).expect("alive");
            if outcome.is_ok() {
                return number == 0;
            }
            assert_eq!(model.world, before);
            down(&mut model, Compatibility::Taupe);
            true
        });
    });
}
