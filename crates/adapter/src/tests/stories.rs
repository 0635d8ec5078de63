//! Tests of actions of users and other programs.

use super::model::{Listener, Model};
use crate::fixtures::file;
use crate::{Compatibility, DownError, Phase, ReloadError, UpError};

const HOOKED: &str = "PreUp = a\nPostUp = b\nPreDown = c\nPostDown = d\nAddress = 10.9.0.2/24";
const FULL: &str = "AllowedIPs = 0.0.0.0/0";

fn hooked() -> taupe_config::file::File {
    file(HOOKED, FULL)
}

fn up(model: &mut Model) {
    let up = model.up(&hooked(), Compatibility::Taupe, &mut Listener::default());
    up.expect("alive").expect("up");
}

fn down(model: &mut Model) -> Result<(), DownError> {
    model.down(&mut Listener::default()).expect("alive")
}

#[test]
fn commands_run_in_their_phases() {
    let mut model = Model::new();
    up(&mut model);
    assert_eq!(model.ran, [Phase::PreUp, Phase::PostUp]);
    down(&mut model).expect("down");
    assert_eq!(model.ran[2..], [Phase::PreDown, Phase::PostDown]);
}

#[test]
fn a_rollback_runs_the_commands_that_belong_to_those_that_ran() {
    use Phase::{PostDown, PostUp, PreDown, PreUp};
    let ran = |failing, compatibility| {
        let mut model = Model::new();
        model.failing = Some(failing);
        let up = model.up(&hooked(), compatibility, &mut Listener::default());
        let error = up.expect("alive").expect_err("a command failed");
        assert!(
            error.to_string().contains("everything is as it was"),
            "{error}"
        );
        model.ran.clone()
    };
    assert_eq!(ran(PreUp, Compatibility::Taupe), [PreUp, PostDown]);
    assert_eq!(
        ran(PostUp, Compatibility::Taupe),
        [PreUp, PostUp, PreDown, PostDown]
    );
    assert_eq!(ran(PostUp, Compatibility::WgQuick), [PreUp, PostUp]);
}

#[test]
fn commands_that_fail_in_a_rollback_are_told_and_keep_nothing() {
    let mut model = Model::new();
    model.failing = Some(Phase::PostDown);
    let mut report = Listener {
        patience: Some(4),
        ..Listener::default()
    };
    let up = model.up(&hooked(), Compatibility::Taupe, &mut report);
    assert!(up.expect("alive").is_err());
    assert_eq!(model.world.link, None);
    assert!(!model.has_journal());
    assert!(
        report.notes.iter().any(|note| note.starts_with("d: ")),
        "{:?}",
        report.notes
    );
}

#[test]
fn a_tunnel_that_is_up_stays_up() {
    let mut model = Model::new();
    up(&mut model);
    let before = model.world.clone();
    for (compatibility, words) in [
        (Compatibility::Taupe, "wg0 is up already, begun "),
        (Compatibility::WgQuick, "`wg0' already exists"),
    ] {
        let again = model.up(&hooked(), compatibility, &mut Listener::default());
        let error = again.expect("alive").expect_err("up already");
        assert!(matches!(error, UpError::AlreadyUp { .. }));
        assert!(error.to_string().starts_with(words), "{error}");
        let names_file = error
            .to_string()
            .ends_with(" ago from /etc/wireguard/wg0.conf");
        assert_eq!(names_file, compatibility == Compatibility::Taupe, "{error}");
        assert_eq!(model.world, before);
        assert!(model.has_journal());
    }
}

#[test]
fn an_interface_of_somebody_else_is_left_alone() {
    let mut model = Model::new();
    model.intrude();
    let before = model.world.clone();
    let outcome = model.up(&hooked(), Compatibility::WgQuick, &mut Listener::default());
    let error = outcome.expect("alive").expect_err("taken");
    assert_eq!(error.to_string(), "`wg0' already exists");
    assert!(matches!(
        down(&mut model),
        Err(DownError::NotWireGuard { .. })
    ));
    assert_eq!(model.world, before);
    assert_eq!(model.ran, []);
}

#[test]
fn a_killed_device_leaves_what_the_next_up_or_down_undoes() {
    let mut model = Model::new();
    up(&mut model);
    let whole = model.world.clone();
    for noticed in [true, false] {
        if noticed {
            model.kill_device();
        } else {
            model.is_about_to_kill_device();
        }
        assert!(!model.world.of_host.is_empty());
        let mut report = Listener::default();
        let again = model.up(&hooked(), Compatibility::Taupe, &mut report);
        again.expect("alive").expect("up");
        assert_eq!(
            report.notes[0],
            "the last wg0 was killed: undoing what it has left; traffic leaves outside the tunnel until \
             it is up again"
        );
        assert_eq!(model.world.of_host, whole.of_host);
        assert_eq!(model.world.of_device, whole.of_device);
    }

    // Before and after undoing the leftovers, each time.
    assert_eq!(model.stood_in, 4);
    model.kill_device();
    down(&mut model).expect("down");
    assert_eq!(model.world, super::model::World::default());
    assert_eq!(model.stood_in, 6);
}

#[test]
fn an_interface_that_took_a_killed_ones_name_survives() {
    let mut model = Model::new();
    up(&mut model);
    model.kill_device();
    model.intrude();
    let before = model.world.clone();
    let again = model.up(&hooked(), Compatibility::Taupe, &mut Listener::default());
    let Some(Err(error @ UpError::Exists { .. })) = again else {
        panic!("{again:?}");
    };
    // It may be an interface of the machine's network.
    assert!(!error.to_string().contains("delete"), "{error}");
    assert_eq!(
        model.world, before,
        "what is left may be the other's by now"
    );
    down(&mut model).expect("down");
    assert_eq!(model.world.link, before.link);
    assert!(
        model.world.of_host.is_empty(),
        "what the killed one left has gone"
    );
    assert!(!model.has_journal());
}

#[test]
fn a_tunnel_whose_interface_was_moved_is_up_and_goes_down() {
    for taken in [false, true] {
        let mut model = Model::new();
        up(&mut model);
        model.move_device();
        if taken {
            model.intrude();
        }
        let before = model.world.clone();
        let again = model.up(&hooked(), Compatibility::Taupe, &mut Listener::default());
        let again = again.expect("alive");
        assert!(matches!(again, Err(UpError::AlreadyUp { .. })), "{again:?}");
        if !taken {
            let reload = model.reload(&hooked(), &mut Listener::default());
            let reload = reload.expect("alive");
            assert!(matches!(reload, Err(ReloadError::Moved(_))), "{reload:?}");
        }
        assert_eq!(model.world, before);
        down(&mut model).expect("down");
        assert_eq!(model.world.link, before.link);
        assert!(model.world.of_host.is_empty(), "{:?}", model.world);
        assert!(!model.has_journal());
        assert_eq!(model.ran[2..], [Phase::PreDown, Phase::PostDown]);
    }
}

#[test]
fn a_tunnel_of_wg_quick_that_took_the_name_is_taken_down() {
    let mut model = Model::new();
    up(&mut model);
    model.kill_device();
    model.intrude();
    model.is_wireguard = true;
    let ran = model.ran.len();
    let down = |model: &mut Model, file| {
        let down = model.down_with(file, Compatibility::Taupe, &mut Listener::default());
        down.expect("alive")
    };
    assert!(matches!(
        down(&mut model, None),
        Err(DownError::NoFile { .. })
    ));
    down(&mut model, Some(&hooked())).expect("down");
    assert_eq!(model.world, super::model::World::default());
    assert_eq!(model.ran[ran..], [Phase::PreDown, Phase::PostDown]);
}

#[test]
fn what_is_not_up_is_not_taken_down() {
    let mut model = Model::new();
    let error = down(&mut model).expect_err("not up");
    assert!(matches!(error, DownError::NotUp { .. }));
    assert_eq!(error.to_string(), "wg0 is not up");
    let outcome = model.down_with(None, Compatibility::WgQuick, &mut Listener::default());
    let error = outcome.expect("alive").expect_err("not up");
    assert_eq!(error.to_string(), "`wg0' is not a WireGuard interface");
}

#[test]
fn a_name_that_cannot_be_resolved_touches_nothing() {
    let mut model = Model::new();
    model.resolvable = false;
    let plain = file("Address = 10.9.0.2/24", FULL);
    let up = model.up(&plain, Compatibility::Taupe, &mut Listener::default());
    assert!(matches!(up, Some(Err(UpError::Failed { .. }))));
    assert_eq!(model.calls, 0);
    assert!(!model.has_journal());
}

#[test]
fn a_file_that_cannot_be_saved_keeps_the_tunnel_up() {
    let saving = file(&format!("{HOOKED}\nSaveConfig = true"), FULL);
    let mut model = Model::new();
    let up = model.up(&saving, Compatibility::Taupe, &mut Listener::default());
    up.expect("alive").expect("up");
    let before = model.world.clone();
    model.savable = false;
    let down = |model: &mut Model| {
        let down = model.down_with(
            Some(&saving),
            Compatibility::Taupe,
            &mut Listener::default(),
        );
        down.expect("alive")
    };
    let error = down(&mut model).expect_err("not saved");
    assert!(matches!(error, DownError::NotSaved { .. }), "{error}");
    assert!(error.to_string().ends_with("; wg0 is up still"), "{error}");
    assert_eq!(model.world, before);
    assert!(model.has_journal());

    model.savable = true;
    down(&mut model).expect("down");
    assert_eq!(model.saved, 1);
    assert_eq!(model.world.link, None);
}

/// A tunnel whose file exists on disk.
struct Saved {
    model: Model,
    folder: std::path::PathBuf,
}

impl Saved {
    fn new(name: &str) -> Self {
        let name = format!("taupe-stories-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(folder.join("other")).expect("a folder");
        let mut saved = Self {
            model: Model::new(),
            folder,
        };
        saved.write("wg0.conf", "as it was");
        saved.model.config = saved.folder.join("wg0.conf");
        up(&mut saved.model);
        saved
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.folder.join(file), text).expect("written");
    }

    /// Brings it down with a file. Returns how often the file was saved, and the notes.
    fn end(&mut self, file: &str, compatibility: Compatibility) -> (usize, Vec<String>) {
        let mut report = Listener::default();
        self.model.config = self.folder.join(file);
        let saving = crate::fixtures::file("SaveConfig = true", FULL);
        let down = self
            .model
            .down_with(Some(&saving), compatibility, &mut report);
        down.expect("alive").expect("down");
        (self.model.saved, report.notes)
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_file_that_nobody_has_touched_is_saved() {
    let mut tunnel = Saved::new("untouched");
    assert_eq!(tunnel.end("wg0.conf", Compatibility::Taupe), (1, vec![]));
}

#[test]
fn a_file_that_has_been_edited_is_not_saved_over() {
    let mut tunnel = Saved::new("edited");
    tunnel.write("wg0.conf", "as somebody wants it");
    let (saved, notes) = tunnel.end("wg0.conf", Compatibility::Taupe);
    assert_eq!(saved, 0);
    assert!(notes[0].contains("has been edited"), "{notes:?}");

    let mut tunnel = Saved::new("edited-quick");
    tunnel.write("wg0.conf", "as somebody wants it");
    assert_eq!(tunnel.end("wg0.conf", Compatibility::WgQuick), (1, vec![]));
}

#[test]
fn a_file_of_the_same_name_elsewhere_is_not_saved_over() {
    let mut tunnel = Saved::new("elsewhere");
    tunnel.write("other/wg0.conf", "precious");
    let (saved, notes) = tunnel.end("other/wg0.conf", Compatibility::Taupe);
    assert_eq!(saved, 0);
    assert!(notes[0].contains("was made from"), "{notes:?}");
    assert_eq!(tunnel.model.ran.last(), Some(&Phase::PostDown), "its own");

    let mut tunnel = Saved::new("moved");
    let (old, new) = ("wg0.conf", "other/wg0.conf");
    std::fs::rename(tunnel.folder.join(old), tunnel.folder.join(new)).expect("moved");
    assert_eq!(tunnel.end(new, Compatibility::Taupe), (1, vec![]));
}

#[test]
fn a_file_that_is_gone_is_told_to_be_unsaved() {
    let mut model = Model::new();
    let saving = file("SaveConfig = true", FULL);
    let up = model.up(&saving, Compatibility::Taupe, &mut Listener::default());
    up.expect("alive").expect("up");
    let mut report = Listener::default();
    let down = model.down(&mut report);
    down.expect("alive").expect("down");
    assert_eq!(report.notes, ["/etc/wireguard/wg0.conf is not saved"]);
}

#[test]
fn a_predown_command_that_fails_keeps_a_living_tunnel_up() {
    let mut model = Model::new();
    up(&mut model);
    let before = model.world.clone();
    model.failing = Some(Phase::PreDown);
    let error = down(&mut model).expect_err("a command failed");
    assert!(error.to_string().ends_with("wg0 is up still"), "{error}");
    assert_eq!(model.world, before);
    // After the device's death, nothing can be kept.
    model.kill_device();
    let error = down(&mut model).expect_err("a command failed");
    assert!(matches!(error, DownError::Leftovers { .. }));
    assert_eq!(model.world, super::model::World::default());
    assert!(!model.has_journal());
}

#[test]
fn the_commands_of_the_file_as_it_is_now_are_run() {
    let mut model = Model::new();
    up(&mut model);
    let mended = file("PostDown = mended %i", FULL);
    let mut report = Listener::default();
    let down = model.down_with(Some(&mended), Compatibility::Taupe, &mut report);
    down.expect("alive").expect("down");
    assert_eq!(report.steps.last().map(String::as_str), Some("mended wg0"));
    assert!(!model.ran.contains(&Phase::PreDown));
}

#[test]
fn a_second_process_is_told_so() {
    let mut model = Model::new();
    let lock = model
        .state()
        .lock("wg0", std::time::Duration::ZERO)
        .expect("free");
    let second = model.up(&hooked(), Compatibility::Taupe, &mut Listener::default());
    let error = second.expect("alive").expect_err("busy");
    let expected = format!("by another process ({})", std::process::id());
    assert!(error.to_string().contains(&expected), "{error}");
    assert_eq!(model.calls, 0);
    drop(lock);
    up(&mut model);
}

/// Returns the commands still in effect after all steps that route packets of one family (`-4` or
/// `-6`).
fn in_effect<'a>(steps: &'a [String], family: &str) -> Vec<&'a str> {
    let mut effective = Vec::new();
    for step in steps {
        let Some(step) = step.strip_prefix(&format!("ip {family} ")) else {
            continue;
        };
        match step.split_once(" delete ") {
            Some((kind, what)) => {
                let made = format!("{kind} add {what}");
                effective.retain(|step| *step != made);
            }
            None => effective.push(step),
        }
    }
    effective
}

/// Returns true if rules send packets without a mark to a table that routes or rejects all of them.
fn is_closed(steps: &[String], family: &str, everything: [&[&str]; 2]) -> bool {
    let effective = in_effect(steps, family);
    let tables = effective.iter().filter_map(|step| {
        let rule = step.strip_prefix("rule add not fwmark ")?;
        Some(rule.split_once(' ')?.1)
    });
    tables.into_iter().any(|table| {
        let takes = |network: &&str| {
            let begins = [
                format!("route add {network} "),
                format!("route add unreachable {network} "),
            ];
            let leads = |step: &&str| begins.iter().any(|begin| step.starts_with(begin));
            effective
                .iter()
                .any(|step| leads(step) && step.ends_with(table))
        };
        everything.iter().any(|networks| networks.iter().all(takes))
    })
}

#[test]
fn a_reload_from_full_to_full_lets_nothing_out() {
    let address = "Address = 10.9.0.2/24, fd09::2/64";
    let full = [
        file(address, "AllowedIPs = 0.0.0.0/0, ::/0"),
        file(&format!("{address}\nFwMark = 9"), "AllowedIPs = 0.0.0.0/0"),
        file(
            &format!("{address}\nFwMark = 10"),
            "AllowedIPs = 0.0.0.0/1, 128.0.0.0/1, ::/1, 8000::/1",
        ),
        file(
            "Address = 10.9.1.2/24, 10.9.0.2/24",
            "AllowedIPs = 0.0.0.0/1, 128.0.0.0/1",
        ),
        file("Address = fd09::3/64", "AllowedIPs = 0.0.0.0/0, ::/0"),
    ];
    for old in &full {
        for new in &full {
            let mut model = Model::new();
            let mut report = Listener::default();
            let up = model.up(old, Compatibility::Taupe, &mut report);
            up.expect("alive").expect("up");
            let made = report.steps.len();
            let reloaded = model.reload(new, &mut report);
            reloaded.expect("alive").expect("reloaded");
            for end in made..=report.steps.len() {
                let steps = &report.steps[..end];
                let v4: [&[&str]; 2] = [&["0.0.0.0/0"], &["0.0.0.0/1", "128.0.0.0/1"]];
                let v6: [&[&str]; 2] = [&["::/0"], &["::/1", "8000::/1"]];
                assert!(is_closed(steps, "-4", v4), "{:#?}", &steps[made..]);
                assert!(is_closed(steps, "-6", v6), "{:#?}", &steps[made..]);
            }
        }
    }
}
