//! Tests of tunnels that are brought up behind the barrier of a killed one.

use taupe_config::file::File;

use super::model::{Fault, Listener, Model, World};
use crate::fixtures::file;
use crate::{Compatibility, Phase, UpError};

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
fn only_commands_before_the_tunnel_need_the_network() {
    let plain = || file(ADDRESSES, "AllowedIPs = 0.0.0.0/0");
    for command in ["PreUp", "PostUp", "PreDown", "PostDown"] {
        let hooked = || {
            let interface = format!("{command} = a\n{ADDRESSES}");
            file(&interface, "AllowedIPs = 0.0.0.0/0")
        };
        for (old, new, has_barrier) in [
            (plain(), plain(), true),
            (plain(), hooked(), command != "PreUp"),
            (hooked(), plain(), true),
        ] {
            let mut model = killed(&old);
            let ran = model.ran.len();
            let mut report = Listener::default();
            let again = model.up(&new, Compatibility::Taupe, &mut report);
            again
                .expect("alive")
                .unwrap_or_else(|error| panic!("{error}"));
            let note = report.notes.first().expect("a note");
            let words = match has_barrier {
                true => "its traffic stays blocked until it is up again",
                false => "traffic leaves outside the tunnel until it is up again",
            };
            assert!(note.contains(words), "{command}: {note}");
            let of_old = (old.interface.hooks.pre_down.len()) + old.interface.hooks.post_down.len();
            let of_new = (new.interface.hooks.pre_up.len()) + new.interface.hooks.post_up.len();
            assert_eq!(model.ran.len() - ran, of_old + of_new, "{command}");
            takes_down(&mut model);
        }
    }
}

/// A service manager does not start the tunnel again then.
#[test]
fn a_command_that_fails_does_not_unblock() {
    let file = file(
        &format!("PostUp = a\nPreDown = b\n{ADDRESSES}"),
        "AllowedIPs = 0.0.0.0/0",
    );
    let mut model = killed(&file);
    let before = barrier(&model.world);
    model.failing = Some(Phase::PostUp);
    let again = model.up(&file, Compatibility::Taupe, &mut Listener::default());
    let error = again.expect("alive").expect_err("a command failed");
    let text = error.to_string();
    assert!(
        text.ends_with("traffic stays blocked, as after the end of the last tunnel"),
        "{text}"
    );
    assert!(blocks(&model.world, &before), "{:?}", model.world);
    assert_eq!(model.world.link, None);
    takes_down(&mut model);
}

/// The barrier is undone before PostUp commands if the file has changed, and comes back.
#[test]
fn a_command_of_a_changed_file_that_fails_does_not_unblock() {
    let old = file(ADDRESSES, "AllowedIPs = 0.0.0.0/0, ::/0");
    let changed = format!("PostUp = a\nFwMark = 9\n{ADDRESSES}");
    let new = file(&changed, "AllowedIPs = 0.0.0.0/0");
    let mut model = killed(&old);
    let before = barrier(&model.world);
    model.failing = Some(Phase::PostUp);
    for _ in 0..2 {
        let again = model.up(&new, Compatibility::Taupe, &mut Listener::default());
        again.expect("alive").expect_err("a command failed");
        assert_eq!(barrier(&model.world), before);
    }
    model.failing = None;
    up(&mut model, &new);
    assert!(model.is_as_recorded());
    takes_down(&mut model);
}

#[test]
fn commands_of_down_run_once_for_a_killed_tunnel() {
    let full = "AllowedIPs = 0.0.0.0/0";
    let file = file(&format!("PreDown = a\nPostDown = b\n{ADDRESSES}"), full);
    let mut model = killed(&file);
    let ran = |model: &Model, phase| model.ran.iter().filter(|it| **it == phase).count();
    // It is interrupted before its first step, twice.
    for _ in 0..2 {
        model.resolvable = false;
        let again = model.up(&file, Compatibility::Taupe, &mut Listener::default());
        again.expect("alive").expect_err("names do not resolve");
        assert_eq!(ran(&model, Phase::PostDown), 1);
    }
    assert_eq!(ran(&model, Phase::PreDown), 1);
    takes_down(&mut model);
    assert_eq!(ran(&model, Phase::PostDown), 1);
}

#[test]
fn an_interface_of_somebody_else_behind_a_barrier_is_left_alone() {
    let file = file(ADDRESSES, "AllowedIPs = 0.0.0.0/0");
    let mut model = killed(&file);
    model.resolvable = false;
    let again = model.up(&file, Compatibility::Taupe, &mut Listener::default());
    again.expect("alive").expect_err("names do not resolve");
    model.resolvable = true;
    model.intrude();
    let before = model.world.clone();
    let again = model.up(&file, Compatibility::Taupe, &mut Listener::default());
    let error = again.expect("alive").expect_err("taken");
    assert!(matches!(error, UpError::Exists { .. }), "{error}");
    assert_eq!(model.world, before);
}

/// Another program has removed a rule that the next tunnel does not have.
#[test]
fn a_barrier_with_a_gap_does_not_prevent_the_next_tunnel() {
    let old = file(ADDRESSES, "AllowedIPs = 0.0.0.0/0");
    let new = file(
        &format!("FwMark = 9\n{ADDRESSES}"),
        "AllowedIPs = 0.0.0.0/0",
    );
    let mut model = killed(&old);
    let rule = barrier(&model.world);
    let rule = rule.iter().find(|what| what.starts_with("Rule"));
    model.world.of_host.remove(rule.expect("a rule"));
    up(&mut model, &new);
    assert!(model.is_as_recorded());
    takes_down(&mut model);
}
