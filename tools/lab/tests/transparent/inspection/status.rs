//! `status`: states of tunnels.

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Pid;
use serde_json::Value;
use taupe_lab::capture::Capture;
use taupe_lab::peers::{Implementation, Keys};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch_file, step};
use taupe_lab::{Error, Result, ensure};

use super::flows::{SENT, TRANSFER, flow, serve, talk};
use super::{json, pinned, status};
use crate::world::{
    Application, BEYOND, INTERFACE, PORT, TUNNEL, UPLINK, World, expect, succeeded,
};

/// Up, degraded and down, by exit status and output.
pub(crate) fn states() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    step("none");
    let (code, none) = status(&world, &[])?;
    ensure!(
        code == Some(1) && none["state"].is_null(),
        "{code:?}: {none}"
    );
    ensure!(none["tunnels"] == serde_json::json!([]), "{none}");
    for wrong in [&["--bogus"][..], &["no-such-tunnel"]] {
        let result = world.taupe(&[&["status"], wrong].concat())?;
        ensure!(result.status == Some(3), "{wrong:?}: {result:?}");
    }
    step("up");
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    let (code, idle) = status(&world, &[INTERFACE])?;
    ensure!(code == Some(0), "{idle}");
    ensure!(
        idle["tunnels"][0]["notes"][0].is_string(),
        "no handshake: {idle}"
    );
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    let (code, up) = status(&world, &[])?;
    let tunnel = &up["tunnels"][0];
    ensure!(code == Some(0) && up["state"] == "up", "{up}");
    for (member, value) in [
        ("interface", INTERFACE),
        ("state", "up"),
        ("mode", "transparent"),
        ("kill_switch", "app"),
        ("file", &file),
    ] {
        ensure!(tunnel[member] == value, "{member}: {up}");
    }
    ensure!(tunnel["rules"][0]["application"] == "mole", "{up}");
    ensure!(tunnel["findings"] == serde_json::json!([]), "{up}");
    let eth0 = serde_json::json!({"name": "eth0", "guarded": true});
    let uplinks = tunnel["uplinks"].as_array();
    ensure!(uplinks.is_some_and(|all| all.contains(&eth0)), "{up}");
    let peer = &tunnel["peers"][0];
    ensure!(peer["public_key"] == world.server_key(), "{up}");
    ensure!(
        peer["latest_handshake"].as_u64() > Some(1_600_000_000),
        "{up}"
    );
    ensure!(peer["received_bytes"].as_u64() > Some(100), "{up}");
    let sent = tunnel["counters"].as_array();
    let sent = sent.and_then(|all| all.iter().find(|one| one["name"] == "out-tunnel"));
    ensure!(
        sent.is_some_and(|one| one["count"].as_u64() > Some(3)),
        "{up}"
    );
    step("killed");
    world.kill_device()?;
    let (code, killed) = status(&world, &[])?;
    ensure!(
        code == Some(2) && killed["state"] == "degraded",
        "{code:?}: {killed}"
    );
    let finding = &killed["tunnels"][0]["findings"][0];
    ensure!(finding["code"] == "process-ended", "{killed}");
    let text = finding["text"].as_str().unwrap_or_default();
    ensure!(
        text.contains("is blocked") && text.contains("taupe down home"),
        "{text}"
    );
    step("kept closed");
    world.up(&file)?;
    succeeded("down", &world.taupe(&["down", "--keep-closed", &file])?)?;
    let (code, closed) = status(&world, &[])?;
    ensure!(
        code == Some(1) && closed["state"] == "down",
        "{code:?}: {closed}"
    );
    step("down");
    world.down(&file)?;
    let (code, down) = status(&world, &[&file])?;
    ensure!(code == Some(1), "{code:?}: {down}");
    ensure!(down["tunnels"][0]["state"] == "down", "{down}");
    step("a peer that does not answer");
    let keys = Keys::new(&world.near)?;
    let wrong = fs::read_to_string(&file).map_err(Error::io(&*file))?;
    let wrong = wrong.replace(world.server_key(), &keys.public);
    let file = scratch_file("home.conf", &format!("{wrong}PersistentKeepalive = 1\n"))?;
    world.up(&file)?;
    wait_until("the finding", Duration::from_secs(60), || {
        let (code, result) = status(&world, &[])?;
        let finding = &result["tunnels"][0]["findings"][0]["code"];
        Ok(code == Some(2) && finding == "no-handshake")
    })?;
    let result = world.taupe(&["status"])?;
    ensure!(
        result.stdout.contains("wrong PublicKey"),
        "{}",
        result.stdout
    );
    // No colours if the output is no terminal.
    ensure!(!result.stdout.contains('\x1b'), "{:?}", result.stdout);
    world.down(&file)
}

/// Tunnels in adapter mode: for all applications, and by marks.
pub(crate) fn adapters() -> Result<()> {
    let world = World::new()?;
    serve(&world)?;
    let mole = Application::new("mole")?;
    for (lines, mode, why) in [
        ("", "adapter", "routes lead it into home"),
        ("AllowedApps = mole", "marks", "AllowedApps = mole"),
    ] {
        step(mode);
        let file = world.file(lines)?;
        succeeded("up", &world.taupe(&["up", "--adapter", &file])?)?;
        let talking = talk(&world, &mole)?;
        let (code, output) = status(&world, &[])?;
        ensure!(code == Some(0), "{output}");
        ensure!(output["tunnels"][0]["mode"] == mode, "{output}");
        let all = json(&world.taupe(&["flows", "--json"])?)?;
        let tcp = flow(&all, &talking, "tcp", TRANSFER)?;
        ensure!(
            tcp["verdict"] == "tunnel" && tcp["tunnel"] == INTERFACE,
            "{tcp}"
        );
        ensure!(tcp["sent_bytes"] == SENT, "{tcp}");
        let output = tcp["why"].as_str().unwrap_or_default();
        ensure!(output.contains(why), "{why}: {tcp}");
        drop(talking);
        world.kill_device()?;
        let (code, output) = status(&world, &[])?;
        ensure!(code == Some(2), "{output}");
        world.down(&file)?;
    }
    Ok(())
}

/// Number of times that a tunnel comes and goes during the queries.
const TRANSITIONS: u32 = 5;

/// A program that queries continuously disturbs nothing, and leaves nothing behind.
pub(crate) fn continuous_queries() -> Result<()> {
    let world = World::new()?;
    let file = world.file("AllowedApps = mole")?;
    let (near, is_over) = (&world.near, AtomicBool::new(false));
    let program = Implementation::Taupe.program()?.display().to_string();
    let look = || -> Result<u32> {
        let mut times = 0;
        while !is_over.load(Ordering::Relaxed) {
            for command in ["status", "flows"] {
                json(&near.attempt(&[&program, command, "--json"])?)?;
                times += 1;
            }
        }
        Ok(times)
    };
    let looked = thread::scope(|scope| {
        let lookers = [scope.spawn(look), scope.spawn(look)];
        let done = (0..TRANSITIONS).try_for_each(|_| {
            world.up(&file)?;
            world.down(&file)
        });
        is_over.store(true, Ordering::Relaxed);
        let looked = lookers.map(|looker| looker.join().expect("a thread"));
        done.and_then(|()| looked.into_iter().sum::<Result<u32>>())
    })?;
    ensure!(looked > TRANSITIONS, "{looked} looks");
    let left = pinned()?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

/// The state of another version of Taupe names its remedy, and does not hide the other tunnels. `up`
/// puts its own programs in the place of that version's, and blocks traffic until then.
pub(crate) fn state_of_another_version() -> Result<()> {
    let world = World::new()?;
    let office = world.with_another("office", 9)?;
    let (home, file) = (
        world.file("AllowedApps = mole")?,
        office.file("AllowedApps = bird")?,
    );
    world.up(&home)?;
    world.up(&file)?;
    let bird = Application::new("bird")?;
    set_layout(office.daemon()?, 4711)?;
    let advice = "run `taupe down office`";
    let of = |output: &Value, name: &str| {
        let tunnels = output["tunnels"].as_array().into_iter().flatten();
        let mut tunnels = tunnels.filter(|tunnel| tunnel["interface"] == name);
        tunnels.next().cloned().unwrap_or_default()
    };
    let (code, output) = status(&world, &[])?;
    ensure!(code == Some(0), "{output}");
    ensure!(of(&output, INTERFACE)["state"] == "up", "{output}");
    let note = &of(&output, "office")["notes"][0];
    let note = note.as_str().unwrap_or_default();
    ensure!(note.contains("`taupe status office`"), "{output}");
    let flows = world.taupe(&["flows", "--json"])?;
    succeeded("flows", &flows)?;
    ensure!(flows.stderr.contains(advice), "{}", flows.stderr);
    step("stopped as a service is");
    let clear = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    let ask = format!(
        "while :; do (exec 3<>/dev/tcp/{}/{PORT}); done 2>/dev/null",
        BEYOND[0]
    );
    let asks = world.near.spawn(&[&bird.0, "-c", &ask])?;
    let stopped = world.taupe(&["down", "--keep-closed", &file])?;
    succeeded("down --keep-closed", &stopped)?;
    expect(&world, &bird, 0, None)?;
    let (_, output) = status(&world, &[])?;
    ensure!(of(&output, INTERFACE)["state"] == "up", "{output}");
    let finding = &of(&output, "office")["findings"][0];
    ensure!(finding["code"] == "unknown-layout", "{output}");
    let text = finding["text"].as_str().unwrap_or_default();
    ensure!(text.contains(advice), "{text}");
    step("locked by this version");
    succeeded("lock", &world.taupe(&["lock", &file])?)?;
    let (_, output) = status(&world, &[])?;
    ensure!(
        of(&output, "office")["findings"][0]["code"] != "unknown-layout",
        "{output}"
    );
    expect(&world, &bird, 0, None)?;
    for is_interrupted in [false, true] {
        step("started as a service is");
        world.up(&file)?;
        expect(&world, &bird, 0, Some(&office.tunnel()[0]))?;
        set_layout(office.daemon()?, 4711)?;
        let stopped = world.taupe(&["down", "--keep-closed", &file])?;
        succeeded("down --keep-closed", &stopped)?;
        if is_interrupted {
            set_aside("office")?;
        }
        expect(&world, &bird, 0, None)?;
    }
    world.up(&file)?;
    expect(&world, &bird, 0, Some(&office.tunnel()[0]))?;
    let pins = pinned()?;
    ensure!(pins.len() == 2, "{pins:?}");
    drop(asks);
    let packets = clear.stop()?;
    let packets: Vec<_> = packets.iter().map(|packet| &packet.ip).collect();
    ensure!(packets.is_empty(), "in clear: {packets:02x?}");
    step("released");
    set_layout(office.daemon()?, 4711)?;
    let stopped = world.taupe(&["down", "--keep-closed", &file])?;
    succeeded("down --keep-closed", &stopped)?;
    set_aside("office")?;
    expect(&world, &bird, 0, None)?;
    world.down(&file)?;
    expect(&world, &bird, 0, Some(UPLINK[0]))?;
    world.down(&home)?;
    let pins = pinned()?;
    ensure!(pins.is_empty(), "{pins:?}");
    Ok(())
}

/// Renames the pins of a tunnel, as a process does that is killed before it has attached programs in
/// the place of another version's.
fn set_aside(interface: &str) -> Result<()> {
    let mut pins = pinned()?;
    pins.retain(|name| name.starts_with(interface));
    let name = pins.pop().unwrap_or_default();
    ensure!(!name.contains(':') && pins.is_empty(), "{name}, {pins:?}");
    let path = |name: &str| format!("/run/taupe/bpf/taupe/{name}");
    fs::rename(path(&name), path(&format!("{name}:0"))).map_err(Error::io("pins"))
}

/// Writes a layout number into the state that a tunnel's process shares with the kernel.
fn set_layout(process: Pid, layout: u32) -> Result<()> {
    let folder = format!("/proc/{}", process.as_raw_nonzero());
    let maps = fs::read_to_string(format!("{folder}/maps")).map_err(Error::io("maps"))?;
    let mut shared = maps.lines().filter(|line| line.ends_with("bpf-map"));
    let line = shared.next().unwrap_or_default();
    ensure!(shared.next().is_none(), "which is it? {maps}");
    let begin = line.split_once('-').map_or("", |(begin, _)| begin);
    let begin = u64::from_str_radix(begin, 16).map_err(|error| Error::unmet(error.to_string()))?;
    let memory = fs::OpenOptions::new()
        .write(true)
        .open(format!("{folder}/mem"));
    let memory = memory.map_err(Error::io("memory"))?;
    let written = memory.write_all_at(&layout.to_ne_bytes(), begin);
    written.map_err(Error::io("memory"))
}
