//! Tests of tunnels that are brought up behind the barrier of a killed one.

use taupe_config::file::File;

use super::model::{Fault, Listener, Model, World};
use crate::fixtures::file;
use crate::{Compatibility, UpError};

/// More calls than any of these tunnels needs.
const MANY: usize = 200;

const ADDRESSES: &str = "Address = 10.9.0.2/24, fd09::2/64";

/// Full tunnels of files without commands.
fn full_tunnels() -> Vec<File> {
    let dns = format!("{ADDRESSES}\nDNS = 10.9.0.1");
    let mark = format!("{ADDRESSES}\nFwMark = 9");
    vec![
        file(ADDRESSES, "AllowedIPs = 0.0.0.0/0"),
        file(&dns, "AllowedIPs = 0.0.0.0/0, ::/0, 172.20.0.0/16"),
        file(&mark, "AllowedIPs = 0.0.0.0/1, 128.0.0.0/1, ::/0"),
    ]
}

fn up(model: &mut Model, file: &File) {
    let up = model.up(file, Compatibility::Taupe, &mut Listener::default());
    up.expect("alive").unwrap_or_else(|error| panic!("{error}"));
}

/// Returns a model whose tunnel was killed.
fn killed(file: &File) -> Model {
    let mut model = Model::new();
    up(&mut model, file);
    model.kill_device();
    model
}

/// Returns what blocks traffic.
fn barrier(world: &World) -> Vec<String> {
    let of_barrier = |what: &&String| {
        let kinds = ["Unreachable", "Special", "Rule"];
        kinds.iter().any(|kind| what.starts_with(kind))
    };
    world.of_host.iter().filter(of_barrier).cloned().collect()
}

fn blocks(world: &World, barrier: &[String]) -> bool {
    barrier.iter().all(|what| world.of_host.contains(what))
}

fn takes_down(model: &mut Model) {
    let down = model.down(&mut Listener::default()).expect("alive");
    down.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(model.world, World::default());
    assert!(!model.has_journal());
}

#[test]
fn a_killed_full_tunnel_blocks_until_it_is_up_again() {
    for file in full_tunnels() {
        let before = barrier(&killed(&file).world);
        assert!(before.iter().any(|what| what.starts_with("Unreachable")));
        let mut whole = Model::new();
        up(&mut whole, &file);
        for fault in [Fault::Fail, Fault::DieBefore, Fault::DieAfter] {
            let struck = |number: &usize| {
                let mut model = killed(&file);
                model.strike(*number, fault);
                let again = model.up(&file, Compatibility::Taupe, &mut Listener::default());
                model.calm();
                assert!(blocks(&model.world, &before), "{number}: {:?}", model.world);
                if !model.struck {
                    return false;
                }
                if let Some(again) = again {
                    let error = again.expect_err("a call failed");
                    match error {
                        UpError::Failed { leftovers, .. } => {
                            assert!(leftovers.is_empty());
                            assert_eq!(barrier(&model.world).len(), model.world.of_host.len());
                            assert_eq!(model.world.link, None);
                        }
                        UpError::Leftovers { .. } => {}
                        other => panic!("{other}"),
                    }
                }
                model.kill_device();
                up(&mut model, &file);
                assert!(blocks(&model.world, &before), "{:?}", model.world);
                assert_eq!(model.world.of_host, whole.world.of_host, "{number}");
                assert_eq!(model.world.of_device, whole.world.of_device);
                assert!(model.is_as_recorded());
                takes_down(&mut model);
                true
            };
            let calls = (0..MANY).find(|number| !struck(number)).expect("an end");
            assert!(calls > 6, "{calls}");
        }
    }
}

#[test]
fn a_barrier_that_the_next_tunnel_does_not_have_goes_last() {
    let split = file(ADDRESSES, "AllowedIPs = 10.0.0.0/8");
    let files = full_tunnels();
    for old in &files {
        for new in files.iter().chain([&split]) {
            let mut whole = Model::new();
            up(&mut whole, new);
            let mut model = killed(old);
            up(&mut model, new);
            assert_eq!(model.world.of_host, whole.world.of_host);
            assert_eq!(model.world.of_device, whole.world.of_device);
            assert!(model.is_as_recorded());
            takes_down(&mut model);
            let before = barrier(&killed(old).world);
            let struck = |number: &usize| {
                let mut model = killed(old);
                model.strike(*number, Fault::Fail);
                let again = model.up(new, Compatibility::Taupe, &mut Listener::default());
                model.calm();
                if matches!(again, Some(Err(_))) {
                    assert!(blocks(&model.world, &before), "{number}: {:?}", model.world);
                }
                takes_down(&mut model);
                model.struck
            };
            (0..MANY).find(|number| !struck(number)).expect("an end");
        }
    }
}

#[test]
fn a_tunnel_with_commands_is_brought_up_without_a_barrier() {
    let plain = || file(ADDRESSES, "AllowedIPs = 0.0.0.0/0");
    for (line, is_of_old) in [
        ("PreUp", false),
        ("PostUp", false),
        ("PreDown", true),
        ("PostDown", true),
    ] {
        let hooked = || {
            file(
                &format!("{line} = a\n{ADDRESSES}"),
                "AllowedIPs = 0.0.0.0/0",
            )
        };
        for (old, new, has_barrier) in [
            (plain(), plain(), true),
            (plain(), hooked(), false),
            // Only commands of `down` are run for the killed tunnel.
            (hooked(), plain(), !is_of_old),
        ] {
            let mut model = killed(&old);
            let mut report = Listener::default();
            let again = model.up(&new, Compatibility::Taupe, &mut report);
            again
                .expect("alive")
                .unwrap_or_else(|error| panic!("{error}"));
            let note = report.notes.first().expect("a note");
            assert_eq!(
                note.contains("stays blocked"),
                has_barrier,
                "{line}: {note}"
            );
            takes_down(&mut model);
        }
    }
}
