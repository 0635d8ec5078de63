//! What `up` and `status` say comes from what decides, not from a guess.

use crate::world::{SERVER, World, succeeded};
use std::time::Duration;
use taupe_lab::peers::{Implementation, Keys};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch_file, step};
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

/// Without a link to the endpoint `up` succeeds, since one may come, and warns; `status` is degraded
/// at once, before anything was sent, and up when there is one.
pub(crate) fn without_a_link() -> Result<()> {
    let world = World::new()?;
    let eth0 = |host: &taupe_lab::host::Host, state| host.ip(&["link", "set", "eth0", state]);
    let is_up = || {
        wait_until("up", Duration::from_secs(30), || {
            Ok(world.taupe(&["status"])?.status == Some(0))
        })
    };
    for (options, line) in [
        (["up"].as_slice(), "AllowedApps = mole"),
        (&["up", "--adapter"], ""),
    ] {
        step(&format!("{options:?} without a link"));
        let file = world.file(line)?;
        eth0(&world.near, "down")?;
        let up = world.taupe(&[options, &[&file]].concat())?;
        succeeded("up", &up)?;
        let told = "no route leads to its peer at 192.168.1.2:51821 (eth0 is down";
        let lines = up.stderr.lines().filter(|line| line.contains(told));
        ensure!(lines.count() == 1, "not once {told:?}: {}", up.stderr);
        let status = world.taupe(&["status"])?;
        ensure!(status.status == Some(2), "{}", status.stdout);
        ensure!(status.stdout.contains(told), "{}", status.stdout);
        step("the link comes");
        eth0(&world.near, "up")?;
        is_up()?;
        step("its cable is pulled out, and put in");
        eth0(&world.far, "down")?;
        wait_until("no carrier", Duration::from_secs(30), || {
            let status = world.taupe(&["status"])?;
            let told = "leaves by eth0, which is down or has no carrier";
            Ok(status.status == Some(2) && status.stdout.contains(told))
        })?;
        eth0(&world.far, "up")?;
        is_up()?;
        world.down(&file)?;
    }
    Ok(())
}

/// Two tunnels with one private key have one session at their common peer: the second `up` warns,
/// and `status` says it of both while it holds. With different peers it is no fault.
pub(crate) fn one_key_twice() -> Result<()> {
    let world = World::new()?;
    let home = world.file("AllowedApps = mole")?;
    let told = |other: &str| format!("{other} has the same PrivateKey and shares its peer");
    let another = |peer: &str| {
        let text = std::fs::read_to_string(&home).map_err(Error::io("home.conf"))?;
        let text = text
            .replace(world.server_key(), peer)
            .replace("mole", "shrew");
        scratch_file("work.conf", &text)
    };
    let up = world.taupe(&["up", &home])?;
    succeeded("up", &up)?;
    ensure!(!up.stderr.contains("same PrivateKey"), "{}", up.stderr);

    step("another peer");
    let work = another(&Keys::new(&world.near)?.public)?;
    let up = world.taupe(&["up", &work])?;
    succeeded("up", &up)?;
    ensure!(!up.stderr.contains("same PrivateKey"), "{}", up.stderr);
    let status = world.taupe(&["status"])?;
    ensure!(status.status == Some(0), "{}", status.stdout);
    world.down(&work)?;

    step("the same peer");
    let work = another(world.server_key())?;
    let up = world.taupe(&["up", &work])?;
    succeeded("up", &up)?;
    let lines = up
        .stderr
        .lines()
        .filter(|line| line.contains("same PrivateKey"));
    let lines: Vec<_> = lines.collect();
    ensure!(
        matches!(lines.as_slice(), [line] if line.contains(&told("home"))),
        "{}",
        up.stderr
    );
    for (tunnel, other) in [("home", "work"), ("work", "home")] {
        let status = world.taupe(&["status", tunnel])?;
        ensure!(status.status == Some(2), "{}", status.stdout);
        ensure!(status.stdout.contains(&told(other)), "{}", status.stdout);
    }
    world.down(&work)?;
    let status = world.taupe(&["status"])?;
    ensure!(status.status == Some(0), "{}", status.stdout);
    world.down(&home)
}
