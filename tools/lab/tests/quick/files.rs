//! Files with errors: `taupe up` names the position, and does nothing.

use crate::state::State;
use crate::{INTERFACE, NEIGHBOUR, World, called};
use std::os::unix::fs::PermissionsExt as _;
use taupe_config::fuzzing::malformed;
use taupe_lab::sandbox::{figure, scratch, scratch_file};
use taupe_lab::{Error, Result, ensure};

/// Number of files made by damaging a valid one.
const GENERATED: u64 = 120;

pub(crate) fn malformed() -> Result<()> {
    let world = World::new()?;
    let before = State::of(&world.near)?;
    let path = scratch(&format!("{INTERFACE}.conf"));
    let shown = path.display().to_string();
    let generated = (0..GENERATED).map(malformed::generated);
    let mut count = 0;
    for file in malformed::hand_written().into_iter().chain(generated) {
        let name = &file.name;
        std::fs::write(&path, &file.text).map_err(Error::io(&*shown))?;
        let up = world.taupe(&["up", "--adapter", &shown])?;
        ensure!(up.status == Some(1), "{name}: {up:?}");
        let start = format!("{shown}:{}:", file.line);
        let located = up.stderr.lines().any(|line| {
            let rest = line.strip_prefix(&start).unwrap_or_default();
            let (column, rest) = rest.split_once(": ").unwrap_or_default();
            column.parse::<usize>().is_ok() && rest.starts_with("error")
        });
        ensure!(
            located,
            "{name}: line {} is not named: {}",
            file.line,
            up.stderr
        );
        count += 1;
        // Comparing the whole state takes longer than the rejection.
        if count % 20 == 0 {
            let left = before.difference(&State::of(&world.near)?);
            ensure!(
                left.is_empty(),
                "{name}, or one of 20 before it, changed:\n{left}"
            );
        }
    }
    let left = before.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "changed:\n{left}");
    ensure!(count >= 200, "only {count} files");
    figure("malformed files", count);
    Ok(())
}

/// Private keys in files beside the configuration, with any working directory.
pub(crate) fn secrets() -> Result<()> {
    let world = World::new()?;
    let private = &world.server.client.private;
    let file = world.file("PqPrivateKey = file:keys/pq", "AllowedIPs = 10.77.0.0/24")?;
    let folder = scratch("keys");
    std::fs::create_dir_all(&folder).map_err(Error::io("keys"))?;
    let text = crate::read(&file)?;
    let in_files = text.replace(private, "file:keys/own");
    scratch_file(&format!("{INTERFACE}.conf"), &in_files)?;
    let seed = world.taupe(&["genkey", "--pq"])?.stdout;
    for (name, key) in [("own", private), ("pq", &seed)] {
        let path = folder.join(name);
        std::fs::write(&path, format!("{}\n", key.trim())).map_err(Error::io(name))?;
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, mode).map_err(Error::io(name))?;
    }

    let check = world.taupe(&["check", &file])?;
    ensure!(
        check.status == Some(0) && check.stdout.contains("is fine"),
        "{check:?}"
    );
    world.up(&file)?;
    ensure!(world.tunnelled([10, 77, 0, 2].into())?, "nothing answers");
    let device = world.taupe(&["showconf", INTERFACE])?.stdout;
    for line in [
        format!("PrivateKey = {private}"),
        format!("#@taupe:PqPrivateKey = {}", seed.trim()),
    ] {
        ensure!(device.lines().any(|one| one == line), "no {line}");
    }
    // The input for `wg` contains the key itself.
    let stripped = world.taupe(&["strip", &file])?.stdout;
    let line = format!("PrivateKey = {private}");
    ensure!(
        stripped.lines().any(|one| one == line),
        "no key in what is stripped"
    );
    world.down(&file)?;

    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(folder.join("own"), open).map_err(Error::io("own"))?;
    let check = world.taupe(&["check", &file])?;
    ensure!(
        check.status == Some(0)
            && check
                .stdout
                .contains("every user of this system can read the key file of PrivateKey"),
        "{check:?}"
    );
    let json = world.taupe(&["check", "--json", &file])?;
    let checked: serde_json::Value = serde_json::from_str(&json.stdout)
        .map_err(|error| Error::unmet(format!("{error}: {json:?}")))?;
    let remark = &checked["remarks"][0];
    let line = remark["line"].as_u64().unwrap_or_default();
    let is_right = checked["usable"] == true
        && checked["file"] == file
        && remark["severity"] == "warning"
        && check.stdout.starts_with(&format!("{file}:{line}:"));
    ensure!(
        is_right && json.status == Some(0),
        "{json:?}, not {check:?}"
    );
    std::fs::remove_file(folder.join("own")).map_err(Error::io("own"))?;
    let up = world.taupe(&["up", "--adapter", &file])?;
    ensure!(
        up.status == Some(1)
            && up
                .stderr
                .contains("the key file of PrivateKey cannot be read"),
        "{up:?}"
    );
    // `wg-quick` does not support this.
    let quick = called("wg-quick")?;
    let up = world.near.attempt(&[&quick, "up", &file])?;
    ensure!(up.status != Some(0), "{up:?}");
    ensure!(world.answers(NEIGHBOUR[0])?, "the network is gone");
    Ok(())
}
