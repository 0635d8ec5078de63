//! `doctor`: checks of the system.

use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::{scratch, scratch_file, step};
use taupe_lab::{Result, ensure};

use super::{json, pinned};
use crate::world::{World, succeeded};

/// `doctor` only reads, and leaves nothing behind.
pub(crate) fn doctor() -> Result<()> {
    let world = World::new()?;
    let before = (world.configuration()?, pinned()?);
    let output = world.taupe(&["doctor", "--json"])?;
    let found = json(&output)?;
    ensure!(output.status == Some(0), "{found}");
    let checks = found["checks"].as_array().cloned().unwrap_or_default();
    for name in ["type-information", "transparent-mode", "marks", "tun"] {
        let check = checks.iter().find(|check| check["name"] == name);
        ensure!(
            check.is_some_and(|check| check["result"] != "fail"),
            "{name}: {found}"
        );
    }
    for check in &checks {
        let has_fix = check["fix"].is_string();
        ensure!(has_fix == (check["result"] != "ok"), "{check}");
    }
    world.is_as_before(&before.0, "something was changed")?;
    ensure!(pinned()? == before.1, "pinned: {:?}", pinned()?);
    step("once more");
    let mode = |options: &[&str]| -> Result<String> {
        let found = json(&world.taupe(&[&["doctor", "--json"], options].concat())?)?;
        let mut checks = found["checks"].as_array().into_iter().flatten();
        let check = checks.find(|check| check["name"] == "transparent-mode");
        Ok(check.map(ToString::to_string).unwrap_or_default())
    };
    let (again, fresh) = (mode(&[])?, mode(&["--fresh"])?);
    ensure!(again.contains("--fresh tests again"), "{again}");
    ensure!(
        !fresh.contains("--fresh") && !fresh.contains("\"fail\""),
        "{fresh}"
    );
    let program = Implementation::Taupe.program()?.display().to_string();
    step("as an ordinary user");
    let own = scratch("taupe").display().to_string();
    world.near.run(&["install", "-m", "755", &program, &own])?;
    let user = [
        "setpriv",
        "--reuid",
        "65534",
        "--clear-groups",
        &own,
        "doctor",
    ];
    let output = world.near.attempt(&user)?;
    ensure!(output.status == Some(0), "{output:?}");
    for line in [
        "ok    kernel ",
        "?     transparent-mode ",
        "?     tunnel ",
        "sudo taupe doctor",
    ] {
        ensure!(output.stdout.contains(line), "{line}: {}", output.stdout);
    }
    step("without a TUN, and with a file that is wrong");
    let hide = "mount -t tmpfs none /dev/net && exec \"$0\" doctor \"$1\"";
    let file = scratch_file("wrong.conf", "[Interface]\nPrivateKey = x\n")?;
    let output = world
        .near
        .attempt(&["unshare", "--mount", "sh", "-c", hide, &program, &file])?;
    ensure!(output.status == Some(1), "{output:?}");
    for line in ["FAIL  tun ", "FAIL  file ", "fix: "] {
        ensure!(output.stdout.contains(line), "{line}: {}", output.stdout);
    }
    step("with a tunnel that is locked");
    let file = world.file_with_sections(
        "Address = 10.77.0.1/32",
        "Endpoint = 192.168.1.2:51821\nAllowedIPs = 0.0.0.0/0\nAllowedApps = mole",
    )?;
    succeeded("lock", &world.taupe(&["lock", &file])?)?;
    let found = json(&world.taupe(&["doctor", "--json"])?)?;
    let checks = found["checks"].as_array().cloned().unwrap_or_default();
    let mut warned = 0;
    for check in checks.iter().filter(|check| check["name"] == "tunnel") {
        let has_fix = check["fix"].is_string();
        ensure!(has_fix == (check["result"] != "ok"), "{check}");
        warned += usize::from(check["result"] == "warn");
    }
    ensure!(warned == 1, "{found}");
    succeeded("down", &world.taupe(&["down", &file])?)
}
