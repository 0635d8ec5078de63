//! Commands that report: `status`, `flows`, `explain`, `doctor` and `report`.

pub(crate) mod doctor;
pub(crate) mod explain;
pub(crate) mod flows;
pub(crate) mod follow;
pub(crate) mod messages;
pub(crate) mod report;
pub(crate) mod status;

use std::fs;

use serde_json::Value;
use taupe_lab::process::Attempt;
use taupe_lab::{Error, Result};

use crate::world::World;

/// Parses a command's JSON.
pub(crate) fn json(output: &Attempt) -> Result<Value> {
    let value = serde_json::from_str(&output.stdout);
    value.map_err(|error| Error::unmet(format!("{error}: {}{}", output.stdout, output.stderr)))
}

/// Returns the exit status and the JSON of `status`.
fn status(world: &World, arguments: &[&str]) -> Result<(Option<i32>, Value)> {
    let output = world.taupe(&[&["status", "--json"], arguments].concat())?;
    Ok((output.status, json(&output)?))
}

/// Returns the objects pinned for tunnels.
fn pinned() -> Result<Vec<String>> {
    let Ok(entries) = fs::read_dir("/run/taupe/bpf/taupe") else {
        return Ok(Vec::new());
    };
    let names = entries.flatten().map(|entry| entry.file_name());
    Ok(names
        .map(|name| name.to_string_lossy().into_owned())
        .collect())
}
