//! Full disks and read-only folders.

use crate::room::{Room, leave};
use crate::world::{INTERFACE, Kind, SOON, World};
use std::fs;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{figure, step};
use taupe_lab::{Error, Result, ensure};

/// Without room for its saved state, a tunnel works, and warns once of the consequence.
pub(crate) fn state_without_room(kind: Kind) -> Result<()> {
    let world = World::new(kind)?;
    let before = world.state()?;
    for room in [Room::ReadOnly, Room::Blocks(0), Room::Files(0)] {
        step(&format!("{room:?}"));
        leave("/var/lib", room)?;
        let process = world.stay_up()?;
        let log = process.output();
        let warnings: Vec<_> = log
            .lines()
            .filter(|line| line.contains("handshake timestamps"))
            .collect();
        let [warning] = &warnings[..] else {
            return Err(Error::unmet(format!("{room:?}: {log}")));
        };
        for part in [room.words(), "/var/lib/taupe", "peers refuse handshakes"] {
            ensure!(warning.contains(part), "{room:?}: no {part}: {log}");
        }
        world.down()?;
        world.is_as_before(&before, &format!("{room:?}"))?;
        leave("/var/lib", Room::Enough)?;
        fs::remove_dir_all("/var/lib/taupe").or_else(|error| match error.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(Error::io("/var/lib/taupe")(error)),
        })?;
    }
    Ok(())
}

/// Without room below `/run`, a tunnel does not come up, and nothing is left of the attempt. The
/// room that suffices is found by trying, so that it ends at each step.
pub(crate) fn run_without_room(kind: Kind) -> Result<()> {
    let world = World::new(kind)?;
    let before = world.state()?;
    let refused = |room: Room| -> Result<bool> {
        step(&format!("{room:?}"));
        leave("/run", room)?;
        let attempt = world.start(&[])?;
        let is_refused = attempt.status != Some(0);
        if is_refused {
            ensure!(attempt.status == Some(1), "{room:?}: {attempt:?}");
            let text = &attempt.stderr;
            ensure!(text.contains(room.words()), "{room:?}: {text}");
            ensure!(
                ["/run/taupe", "/run/wireguard"]
                    .iter()
                    .any(|path| text.contains(path)),
                "{room:?}: it names no path: {text}"
            );
            for wrong in ["takes root", "newer"] {
                ensure!(!text.contains(wrong), "{room:?}: {text}");
            }
            world.await_end()?;
        } else {
            world.must_carry(&format!("{room:?}"))?;
            world.down()?;
        }
        world.is_as_before(&before, &format!("{room:?}"))?;
        leave("/run", Room::Enough)?;
        Ok(is_refused)
    };
    ensure!(refused(Room::ReadOnly)?, "it comes up on a read-only /run");
    for what in [Room::Files, Room::Blocks] {
        let mut count = 0;
        while refused(what(count))? {
            count += 1;
            ensure!(count < 64, "{:?} do not suffice", what(count));
        }
        figure("room", what(count));
    }
    Ok(())
}

/// A tunnel that is up when `/run` fills: `reload` changes nothing and `status` answers. `down` works
/// as long as it can create its lock; otherwise it changes nothing.
pub(crate) fn changes_without_room() -> Result<()> {
    let world = World::new(Kind::Adapter)?;
    let before = world.state()?;
    for room in [Room::Blocks(0), Room::Files(0)] {
        step(&format!("{room:?}"));
        world.file_with("", "")?;
        world.up()?;
        let up = world.state()?;
        leave("/run", room)?;
        // A longer journal than the last one.
        let more: String = (0..200)
            .map(|number| format!("AllowedIPs = 10.88.{number}.0/24\n"))
            .collect();
        world.file_with("", &more)?;
        let reload = world.taupe(&["reload", &world.file])?;
        ensure!(reload.status == Some(1), "{room:?}: {reload:?}");
        for part in [room.words(), "/run/taupe"] {
            ensure!(reload.stderr.contains(part), "{room:?}: {reload:?}");
        }
        world.is_as_before(&up, "a reload without room")?;
        world.must_carry("after a reload without room")?;
        let status = world.taupe(&["status", INTERFACE])?;
        ensure!(status.stdout.starts_with(INTERFACE), "{status:?}");
        if room == Room::Files(0) {
            // The file by which processes exclude each other cannot be made.
            let down = world.taupe(&["down", &world.file])?;
            ensure!(down.status == Some(1), "{room:?}: {down:?}");
            for part in [room.words(), "/run/taupe"] {
                ensure!(down.stderr.contains(part), "{room:?}: {down:?}");
            }
            world.is_as_before(&up, "a down without room")?;
            world.must_carry("after a down without room")?;
            leave("/run", Room::Enough)?;
        }
        let down = world.down()?;
        ensure!(down.status == Some(0), "{room:?}: {down:?}");
        world.is_as_before(&before, "down without room")?;
        leave("/run", Room::Enough)?;
    }
    Ok(())
}

/// `SaveConfig` on a file system that has become read-only: the file stays, and so does the
/// tunnel, which is the only place of its state.
pub(crate) fn save_on_a_read_only_disk() -> Result<()> {
    let mut world = World::new(Kind::Adapter)?;
    let before = world.state()?;
    let text = fs::read_to_string(world.file_with("SaveConfig = true", "")?);
    let text = text.map_err(Error::io("file"))?;
    // A file system of its own, which the sandbox has mounted.
    let folder = "/var/lib/conf";
    fs::create_dir(folder).map_err(Error::io(folder))?;
    let file = format!("{folder}/{INTERFACE}.conf");
    fs::write(&file, &text).map_err(Error::io(&*file))?;
    world.file = file.clone();
    world.up()?;
    leave("/var/lib", Room::ReadOnly)?;
    for verb in ["save", "down"] {
        let attempt = world.taupe(&[verb, &file])?;
        ensure!(attempt.status == Some(1), "{verb}: {attempt:?}");
        for part in [Room::ReadOnly.words(), folder] {
            ensure!(attempt.stderr.contains(part), "{verb}: {attempt:?}");
        }
        let now = fs::read_to_string(&file).map_err(Error::io(&*file))?;
        ensure!(now == text, "{verb} changed the file");
        world.must_carry(verb)?;
    }
    leave("/var/lib", Room::Enough)?;
    let down = world.down()?;
    ensure!(down.status == Some(0), "{down:?}");
    world.is_as_before(&before, "down")
}

/// A post-quantum handshake that cannot be recorded: the tunnel works, and warns once of the
/// consequence.
pub(crate) fn pins_without_room() -> Result<()> {
    let mut world = World::new(Kind::Adapter)?;
    let hybrid = world.server.begin_hybrid()?;
    world.server.set_post_quantum("prefer")?;
    world.file = world.file_with(&hybrid.interface(), &hybrid.peer("prefer"))?;
    for room in [Room::ReadOnly, Room::Blocks(0), Room::Files(0)] {
        step(&format!("{room:?}"));
        leave("/var/lib", room)?;
        let process = world.stay_up()?;
        const SENTENCE: &str = "cannot save that a peer has completed a post-quantum handshake";
        let is_warned = || Ok(process.output().contains(SENTENCE));
        if room == Room::Blocks(0) {
            // The record is an empty file.
            ensure!(!is_warned()?, "{}", process.output());
        } else {
            wait_until("a warning", SOON, is_warned)?;
            let log = process.output();
            ensure!(log.matches(SENTENCE).count() == 1, "{log}");
            let line = log.lines().find(|line| line.contains(SENTENCE));
            let line = line.unwrap_or_default();
            for part in [room.words(), "/var/lib/taupe", "PostQuantum = prefer"] {
                ensure!(line.contains(part), "{room:?}: no {part}: {log}");
            }
        }
        world.down()?;
        leave("/var/lib", Room::Enough)?;
        let _ = fs::remove_dir_all("/var/lib/taupe");
    }
    Ok(())
}
