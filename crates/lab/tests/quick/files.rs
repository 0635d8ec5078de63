//! Files with mistakes: `taupe up` says where, and does nothing.

use crate::state::State;
use crate::{INTERFACE, World};
use taupe_config::fuzzing::malformed;
use taupe_lab::sandbox::{figure, scratch};
use taupe_lab::{Error, Result, ensure};

/// How many files of each run are made by breaking a valid one.
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
        // Looking at everything takes longer than the refusal.
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
