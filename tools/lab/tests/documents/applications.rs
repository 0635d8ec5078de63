//! Selected applications.

use crate::checks::{enabled, own_words, printed, without_check};
use crate::world::{BEYOND, ETC, TUNNEL, UPLINK, World};
use std::fs;
use std::time::Duration;
use taupe_lab::documents::Block;
use taupe_lab::peers::Implementation;
use taupe_lab::process::wait_until;
use taupe_lab::{Error, Result, ensure};

/// The commands about a file `home.conf` of a provider, in which `editor` selects applications as
/// the comment of its command says.
pub(crate) fn selected(block: &Block) -> Result<()> {
    let world = World::new()?;
    world.write("provider.conf", &world.conf(""))?;
    let is_installed = block
        .commands
        .iter()
        .any(|it| it.text.contains("provider.conf"));
    if !is_installed {
        world.write_etc("home.conf", &world.conf(""))?;
    }
    // A program that is selected, and one that asks the same server and is not.
    let firefox = world.copy_program("curl", "firefox-esr")?;
    let torrent = world.copy_program("bash", "qbittorrent")?;
    let mut curl = UPLINK;
    let mut connection = None;
    let mut shell = world.shell()?;
    for command in &block.commands {
        let words = own_words(command);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        if let ["editor", _] = *words {
            let (place, lines) = command.comment.split_once(": ").unwrap_or_default();
            let is_described = matches!(place, "add" | "below [Interface]");
            ensure!(is_described, "no edit in {:?}", command.comment);
            world.set_edit(lines)?;
        }
        let output = shell.run(block, command)?;
        match &*words {
            ["editor", file] => {
                let edited = fs::read_to_string(file).map_err(Error::io((*file).to_owned()))?;
                let added = command.comment.split_once(": ").unwrap_or_default().1;
                let is_there = edited.lines().any(|line| line == added);
                ensure!(is_there, "no line `{added}` in {edited}");
            }
            ["install", ..] => {
                let mode = world
                    .near
                    .run(&["stat", "-c", "%a", &format!("{ETC}/home.conf")])?;
                ensure!(mode.text() == "600", "{mode:?}");
            }
            ["taupe", "up", ..] => {
                let open = format!("exec 3<>/dev/tcp/{BEYOND}/5432; exec sleep infinity");
                connection = Some(world.near.spawn(&[&torrent, "-c", &open])?);
            }
            // The path of curl's traffic, which is checked below.
            ["taupe", "app", "allow", _, "curl"] => curl = TUNNEL,
            ["taupe", "status", ..] => printed(command, &output, "home: up")?,
            ["taupe", "flows", ..] => {
                let flows = "flows of the application";
                wait_until(flows, Duration::from_secs(20), || {
                    let again = world.near.run(&["sh", "-c", &sudoless(&command.text)])?;
                    let mut lines = again.stdout.lines();
                    Ok(lines.any(|line| line.contains("qbittorrent") && line.contains("tunnel")))
                })?;
            }
            ["taupe", "explain", ..] => printed(command, &output, "=>")?,
            ["taupe", "doctor", ..] => printed(command, &output, "transparent-mode")?,
            ["systemctl", ..] => enabled(command)?,
            _ => return Err(without_check(command)),
        }
        if connection.is_some() {
            world.must_be(&firefox, Some(TUNNEL), &command.text)?;
            world.must_be("curl", Some(curl), &command.text)?;
        }
    }
    Ok(())
}

/// The commands about a selected application that has left nothing in clear.
pub(crate) fn proved(block: &Block) -> Result<()> {
    let world = World::new()?;
    world.write_etc("home.conf", &world.conf("AllowedApps = firefox-esr"))?;
    let firefox = world.copy_program("curl", "firefox-esr")?;
    let mut shell = world.shell()?;
    let taupe = Implementation::Taupe.program()?.display().to_string();
    world.near.run(&[&taupe, "up", "home"])?;
    world.must_be(&firefox, Some(TUNNEL), "up")?;
    for command in &block.commands {
        let output = shell.run(block, command)?;
        let expected = match command.text.contains("--json") {
            true => "\"result\": \"nothing-found\"",
            false => "NO LEAK FOUND: no packet attributed to",
        };
        printed(command, &output, expected)?;
    }
    Ok(())
}

/// Returns the command with the path of the program in place of `sudo`.
fn sudoless(text: &str) -> String {
    text.replace("sudo ", "/run/lab/scratch/programs/")
}
