//! What `up` and `status` say comes from what decides, not from a guess.

use crate::world::{SERVER, World, succeeded};
use taupe_lab::peers::Implementation;
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

/// Questions for names go through the tunnel behind `BypassLanTraffic`.
pub(crate) fn name_servers_in_a_local_network() -> Result<()> {
    let world = World::new()?;
    let file = world.whole_file(
        &format!("Address = 10.77.0.1/32\nDNS = {}", SERVER[0]),
        "Endpoint = 192.168.1.2:51821\nAllowedIPs = 0.0.0.0/0\nAllowedApps = mole\n\
         BypassLanTraffic = true",
    )?;
    let up = world.taupe(&["up", &file])?;
    succeeded("up", &up)?;
    ensure!(!up.stderr.contains("not in the tunnel"), "{}", up.stderr);
    let status = world.taupe(&["status"])?;
    ensure!(status.status == Some(0), "{}", status.stdout);
    world.down(&file)
}

/// One line, and not the advice to use adapter mode, which has no IPv6 either.
pub(crate) fn without_ipv6() -> Result<()> {
    let world = World::new()?;
    for which in ["all", "default"] {
        let setting = format!("net/ipv6/conf/{which}/disable_ipv6");
        world.near.sysctl(&setting, "1")?;
    }
    let file = world.file("AllowedApps = mole")?;
    let up = world.taupe(&["up", &file])?;
    succeeded("up", &up)?;
    let lines = up.stderr.lines().filter(|line| line.contains("IPv6"));
    let lines: Vec<_> = lines.collect();
    ensure!(
        matches!(lines.as_slice(), [one] if one.contains("switched off")),
        "{lines:#?}"
    );
    let status = world.taupe(&["status"])?;
    ensure!(
        status.stdout.contains("IPv6 is switched off")
            && !status.stdout.contains("no route to IPv6"),
        "{}",
        status.stdout
    );
    world.down(&file)
}

/// A process without descriptors is not told to use another kernel.
pub(crate) fn without_descriptors() -> Result<()> {
    let world = World::new()?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let file = world.file("AllowedApps = mole")?;
    // For the maps, and for the programs.
    for limit in [24, 40] {
        step(&format!("{limit} descriptors"));
        let command = format!("ulimit -n {limit}; exec {program} up {file}");
        let up = world.near.attempt(&["sh", "-c", &command])?;
        ensure!(up.status == Some(1), "{up:?}");
        ensure!(up.stderr.contains("Too many open files"), "{}", up.stderr);
        ensure!(!up.stderr.contains("newer kernel"), "{}", up.stderr);
        ensure!(!up.stderr.contains("CONFIG_"), "{}", up.stderr);
    }
    Ok(())
}

/// Promises that this kernel does not let Taupe keep are told by `up`, once, by `status`, and in
/// its JSON.
pub(crate) fn gaps_are_told() -> Result<()> {
    let world = World::new()?;
    let file = world.file("AllowedApps = mole")?;
    let up = world.taupe(&["up", &file])?;
    succeeded("up", &up)?;
    let json = |arguments: &[&str]| -> Result<serde_json::Value> {
        let said = world.taupe(arguments)?.stdout;
        serde_json::from_str(&said).map_err(|error| Error::unmet(format!("{error}: {said}")))
    };
    let status = json(&["status", "--json"])?;
    let gaps = status["tunnels"][0]["gaps"].as_array();
    let gaps = gaps.ok_or_else(|| Error::unmet(format!("no gaps: {status}")))?;
    let text = world.taupe(&["status"])?.stdout;
    for gap in gaps {
        let gap = gap["text"].as_str().unwrap_or_default();
        ensure!(!gap.is_empty(), "{status}");
        ensure!(up.stderr.matches(gap).count() == 1, "{gap}: {}", up.stderr);
        ensure!(text.contains(gap), "{gap}: {text}");
    }
    // Whether there are any the kernel says to `doctor` too.
    let doctor = json(&["doctor", "--json"])?;
    let checks = doctor["checks"].as_array();
    let mut checks = checks.into_iter().flatten();
    let programs = checks.find(|check| check["name"] == "transparent-mode");
    let is_refused = programs.is_some_and(|check| check["result"] == "warn");
    let is_told = gaps
        .iter()
        .any(|gap| gap["code"] == "handover" || gap["code"] == "families");
    ensure!(!is_refused || is_told, "{doctor}\n{status}");
    world.down(&file)
}
