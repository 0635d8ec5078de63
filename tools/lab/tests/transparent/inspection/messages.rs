//! Messages of commands about what they have done.

use std::time::Duration;

use taupe_lab::process::wait_until;
use taupe_lab::sandbox::step;
use taupe_lab::{Result, ensure};

use crate::world::{Application, INTERFACE, World, succeeded};

/// Messages of commands about their effects, and suggestions after errors.
pub(crate) fn words() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let wait = world
        .near
        .spawn(&[&mole.0, "-c", "echo ready; sleep 300; :"])?;
    wait_until("the application", Duration::from_secs(10), || {
        Ok(wait.output().contains("ready"))
    })?;
    let says = |command: &[&str], status: i32, words: &[&str]| {
        let result = world.taupe(command)?;
        ensure!(result.status == Some(status), "{command:?}: {result:?}");
        for word in words {
            ensure!(result.stderr.contains(word), "{word}: {}", result.stderr);
        }
        Ok(result.stderr)
    };
    let file = world.file("AllowedApps = mole, moles")?;
    let check = world.taupe(&["check", &file])?;
    succeeded("check", &check)?;
    for word in ["is called moles", "fix: write mole if"] {
        ensure!(check.stdout.contains(word), "{word}: {}", check.stdout);
    }
    ensure!(!check.stdout.contains("called mole:"), "{}", check.stdout);
    let who = "home is up; through the tunnel: mole (1 running), moles;";
    says(&["up", &file], 0, &[who])?;
    let again = says(&["up", &file], 1, &["home is up already"])?;
    ensure!(again.lines().count() == 1, "{again}");
    step("applications");
    let allowed = ["bird may use the tunnel", "home applies it"];
    says(&["app", "allow", &file, "bird"], 0, &allowed)?;
    let id = wait.id().to_string();
    says(&["app", "allow", &file, &id], 1, &["is a number", &mole.0])?;
    says(
        &["app", "deny", &file, "4194999"],
        1,
        &["no program or process"],
    )?;
    step("killed");
    world.kill_device()?;
    let up = format!("taupe up {file}");
    let shown = says(&["show", INTERFACE], 1, &["was killed", &up])?;
    ensure!(shown.lines().count() == 1, "{shown}");
    let status = world.taupe(&["status"])?;
    ensure!(status.stdout.contains(&up), "{}", status.stdout);
    world.down(&file)
}
