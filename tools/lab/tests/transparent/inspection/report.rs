//! `report`: all details that a bug report needs, without secrets.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use taupe_lab::peers::{Implementation, Keys};
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

use crate::world::{Application, INTERFACE, World, succeeded};

/// All details that a bug report needs, and no key in any encoding.
pub(crate) fn report() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let secret = Keys::new(&world.near)?.private;
    let in_comment = Keys::new(&world.near)?.private;
    let in_hook = Keys::new(&world.near)?.private;
    let file = world.file_with_sections(
        &format!("Address = 10.77.0.1/32\n# the old one was {in_comment}\nPostUp = true {in_hook}"),
        &format!(
            "Endpoint = 192.168.1.2:51821\nAllowedIPs = 0.0.0.0/0\nPresharedKey = {secret}\n\
             AllowedApps = mole"
        ),
    )?;
    let text = fs::read_to_string(&file).map_err(Error::io(&*file))?;
    let own = text
        .lines()
        .find_map(|line| line.strip_prefix("PrivateKey = "))
        .ok_or_else(|| Error::unmet("no key"))?;
    world.up(&file)?;
    // The server does not know its keys; its output is sufficient here.
    let _ = world.near.attempt(&[
        "timeout",
        "1",
        &mole.0,
        "-c",
        "exec 3<>/dev/tcp/198.51.100.1/1",
    ])?;
    let path = scratch("report.md").display().to_string();
    let result = world.taupe(&["report", "-o", &path])?;
    succeeded("report", &result)?;
    let again = world.taupe(&["report", "-o", &path])?;
    ensure!(again.status == Some(1), "{again:?}");
    ensure!(
        again.stderr.contains("does not exist yet"),
        "{}",
        again.stderr
    );
    let mode = std::fs::metadata(&path)
        .map_err(Error::io(&*path))?
        .permissions()
        .mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    let report = fs::read_to_string(&path).map_err(Error::io(&*path))?;
    for part in [
        "## doctor",
        "\"state\": ",
        "## flows",
        "link ",
        "AllowedApps = mole",
        "192.168.1.2:51821",
        env!("CARGO_PKG_VERSION"),
    ] {
        ensure!(report.contains(part), "{part}: {report}");
    }
    let hidden = world.taupe(&["report", "--hide-endpoints", INTERFACE])?;
    succeeded("report", &hidden)?;
    ensure!(
        !hidden.stdout.contains("192.168.1.2:51821"),
        "{}",
        hidden.stdout
    );
    for text in [&report, &hidden.stdout, &hidden.stderr] {
        for key in [own, &secret, &in_comment, &in_hook] {
            for form in forms(&world, key)? {
                let lower = text.to_ascii_lowercase();
                ensure!(!lower.contains(&form), "a key is in it: {text}");
            }
        }
    }
    check_journal_of_hooks(&world)?;
    world.down(&file)
}

/// The journal contains the output of hooks, and commands of an earlier file.
fn check_journal_of_hooks(world: &World) -> Result<()> {
    const JOURNAL: &str = "#!/bin/sh\nfor line in \"[#] ip link add home type wireguard\" \
                           \"[#] curl -u me:pass-word\" \"pass-word printed\" \"[#] of $2\"; do\n\
                           echo \"2026-11-23T20:00:00+0000 near taupe[7]: $line\"; done\n";
    let folder = scratch("journal");
    std::fs::create_dir(&folder).map_err(Error::io("journal"))?;
    let stub = folder.join("journalctl");
    std::fs::write(&stub, JOURNAL).map_err(Error::io("journalctl"))?;
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(&stub, mode).map_err(Error::io("journalctl"))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("PATH={}:{path}", folder.display());
    let program = Implementation::Taupe.program()?.display().to_string();
    let output = world
        .near
        .attempt(&["env", &path, &program, "report", INTERFACE])?;
    succeeded("report", &output)?;
    for part in [
        "[#] ip link add home type wireguard",
        &format!("## log of taupe@{INTERFACE}"),
        &format!("## log of taupe-lock@{INTERFACE}"),
    ] {
        ensure!(output.stdout.contains(part), "{part}: {}", output.stdout);
    }
    let is_there = output.stdout.contains("pass-word");
    ensure!(!is_there, "a password is in it: {}", output.stdout);
    Ok(())
}

/// Returns a key in Base64, with and without its end, and in hexadecimal; in lower case.
fn forms(world: &World, key: &str) -> Result<[String; 3]> {
    let decode = ["sh", "-c", "base64 -d | od -An -v -tx1 | tr -d ' \\n'"];
    let hex = world.near.run_with_input(&decode, key)?.stdout;
    ensure!(hex.len() == 64, "{} digits", hex.len());
    let short = key.trim_end_matches('=');
    Ok([key, short, &hex].map(str::to_ascii_lowercase))
}
