//! Taupe's reports: states of tunnels, the path of each connection, and the reasons.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use serde_json::Value;
use taupe_lab::peers::{Implementation, Keys};
use taupe_lab::process::{Attempt, Process, wait_until};
use taupe_lab::sandbox::{scratch, scratch_file, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{Application, BEYOND, INTERFACE, TUNNEL, UPLINK, World, expect, succeeded};

/// Port of the server that reports the bytes it received.
const TRANSFER: u16 = 9000;

/// Port of the server that answers datagrams.
const ECHO: u16 = 9001;

/// Bytes that an application sends to the first server, and receives.
const SENT: usize = 100_000;
const RECEIVED: usize = 5000;

/// Bytes of a datagram to the second server, and of the answer.
const ASKED: usize = 1000;
const ANSWERED: usize = 300;

/// Parses a command's JSON.
fn json(said: &Attempt) -> Result<Value> {
    let value = serde_json::from_str(&said.stdout);
    value.map_err(|error| Error::unmet(format!("{error}: {}{}", said.stdout, said.stderr)))
}

/// Returns the exit status and the JSON of `status`.
fn status(world: &World, arguments: &[&str]) -> Result<(Option<i32>, Value)> {
    let said = world.taupe(&[&["status", "--json"], arguments].concat())?;
    Ok((said.status, json(&said)?))
}

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
        let said = world.taupe(&[&["status"], wrong].concat())?;
        ensure!(said.status == Some(3), "{wrong:?}: {said:?}");
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
        text.contains("held back") && text.contains("taupe down home"),
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
        let (code, said) = status(&world, &[])?;
        let finding = &said["tunnels"][0]["findings"][0]["code"];
        Ok(code == Some(2) && finding == "no-handshake")
    })?;
    let said = world.taupe(&["status"])?;
    ensure!(said.stdout.contains("wrong PublicKey"), "{}", said.stdout);
    // No colours if the output is no terminal.
    ensure!(!said.stdout.contains('\x1b'), "{:?}", said.stdout);
    world.down(&file)
}

/// Runs the servers for [`talk`] on `far`.
pub(crate) fn serve(world: &World) -> Result<()> {
    let at = |port| SocketAddr::new(BEYOND[0], port);
    let listener = world
        .far
        .enter(|| TcpListener::bind(at(TRANSFER)).map_err(Error::io("listener")))?;
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut bytes = vec![0; SENT];
                let exchanged = stream
                    .read_exact(&mut bytes)
                    .and_then(|()| stream.write_all(&bytes[..RECEIVED]))
                    // Until the client closes.
                    .and_then(|()| stream.read(&mut [0]));
                drop(exchanged);
            });
        }
    });
    let socket = world
        .far
        .enter(|| UdpSocket::bind(at(ECHO)).map_err(Error::io("socket")))?;
    thread::spawn(move || {
        let mut bytes = [0; 2000];
        while let Ok((_, peer)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..ANSWERED], peer);
        }
    });
    Ok(())
}

/// Lets an application exchange data by TCP, and three datagrams by UDP, and keep both sockets
/// open.
pub(crate) fn talk(world: &World, application: &Application) -> Result<Process> {
    let server = BEYOND[0];
    let script = format!(
        "exec 3<>/dev/tcp/{server}/{TRANSFER} 4<>/dev/udp/{server}/{ECHO}; \
         head -c {SENT} /dev/zero >&3; head -c {RECEIVED} <&3 | wc -c; \
         for i in 1 2 3; do printf '%0{ASKED}d' 0 >&4; head -c 1 <&4; done; \
         echo ready; sleep 300 3>&- 4>&-; :"
    );
    let process = world.near.spawn(&[&application.0, "-c", &script])?;
    wait_until("the transfer", Duration::from_secs(30), || {
        Ok(process.output().contains("ready"))
    })?;
    Ok(process)
}

/// Returns the flow of a process to a port of the server.
fn flow(all: &Value, process: &Process, protocol: &str, port: u16) -> Result<Value> {
    let remote = SocketAddr::new(BEYOND[0], port).to_string();
    let flows = all["flows"].as_array().map_or(&[][..], Vec::as_slice);
    let is_it = |flow: &&Value| {
        flow["pid"] == process.id() && flow["protocol"] == protocol && flow["remote"] == remote
    };
    let found = flows.iter().find(is_it).cloned();
    found.ok_or_else(|| Error::unmet(format!("no {protocol} to {remote}: {all}")))
}

/// The path of each application's connections, and their bytes.
pub(crate) fn connections() -> Result<()> {
    let world = World::new()?;
    serve(&world)?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    let chosen = talk(&world, &mole)?;
    let other = talk(&world, &bird)?;
    let all = json(&world.taupe(&["flows", "--json"])?)?;
    ensure!(all["truncated"] == false, "{all}");
    let line = format!("{file}:{}", lines(&file)?);
    for (process, application, verdict, why) in [
        (
            &chosen,
            &mole,
            "tunnel",
            format!("{line}: AllowedApps = mole"),
        ),
        (&other, &bird, "direct", "none of the 1 AllowedApps".into()),
    ] {
        step(verdict);
        let tcp = flow(&all, process, "tcp", TRANSFER)?;
        for (member, value) in [
            ("application", Value::from(&*application.0)),
            ("verdict", verdict.into()),
            ("sent_bytes", SENT.into()),
            ("received_bytes", RECEIVED.into()),
            ("uid", 0.into()),
        ] {
            ensure!(tcp[member] == value, "{member} of {tcp}");
        }
        let said = tcp["why"].as_str().unwrap_or_default();
        ensure!(said.contains(&*why), "{why}: {tcp}");
        let local = tcp["local"].as_str().unwrap_or_default();
        ensure!(local.starts_with(UPLINK[0]), "{tcp}");
        let udp = flow(&all, process, "udp", ECHO)?;
        ensure!(udp["verdict"] == verdict, "{udp}");
        let (sent, received) = match verdict {
            "tunnel" => (Value::from(3 * ASKED), Value::from(3 * ANSWERED)),
            _ => (Value::Null, Value::Null),
        };
        ensure!(udp["sent_bytes"] == sent, "{udp}");
        ensure!(udp["received_bytes"] == received, "{udp}");
    }
    step("of one tunnel");
    let own = world.taupe(&["flows", INTERFACE])?;
    succeeded("flows", &own)?;
    ensure!(own.stdout.contains("tunnel home: "), "{}", own.stdout);
    ensure!(!own.stdout.contains(&bird.0), "{}", own.stdout);
    let nothing = world.taupe(&["flows", "no-such"])?;
    ensure!(nothing.status == Some(1), "{nothing:?}");
    step("as they change");
    let program = Implementation::Taupe.program()?.display().to_string();
    let follow = world
        .near
        .spawn(&[&program, "flows", "--follow", "--json"])?;
    let events = |event: &str, process: &Process| {
        let lines = follow.output();
        let events = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut own = events.filter(|one| one["event"] == event && one["pid"] == process.id());
        own.next()
    };
    wait_until("what there is", Duration::from_secs(30), || {
        Ok(events("begun", &chosen).is_some())
    })?;
    let mut third = talk(&world, &mole)?;
    wait_until("another one", Duration::from_secs(30), || {
        Ok(events("begun", &third).is_some())
    })?;
    third.signal(Signal::KILL)?;
    third.wait(Duration::from_secs(10))?;
    wait_until("its end", Duration::from_secs(30), || {
        Ok(events("ended", &third).is_some())
    })?;
    step("held back");
    world.kill_device()?;
    let all = json(&world.taupe(&["flows", "--json"])?)?;
    let held = flow(&all, &chosen, "tcp", TRANSFER)?;
    ensure!(held["verdict"] == "refused", "{held}");
    wait_until("the change", Duration::from_secs(30), || {
        Ok(events("changed", &chosen).is_some())
    })?;
    drop(follow);
    world.down(&file)
}

/// Returns the number of the last line, into which [`World::file`] writes its argument.
fn lines(file: &str) -> Result<usize> {
    let text = fs::read_to_string(file).map_err(Error::io(file))?;
    Ok(text.trim_end().lines().count())
}

/// `explain` for each tunnel that is up, and for a file, up or not.
pub(crate) fn explained() -> Result<()> {
    let world = World::new()?;
    let office = world.with_another("office", 9)?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let to = "198.51.100.1:443";
    let none = world.taupe(&["explain", &mole.0, to])?;
    ensure!(none.status == Some(1), "{none:?}");
    ensure!(none.stderr.contains("--conf CONF"), "{}", none.stderr);
    let home = world.file("AllowedApps = mole")?;
    let what_if = world.taupe(&["explain", "--conf", &home, &mole.0, to])?;
    succeeded("explain", &what_if)?;
    ensure!(what_if.stdout.contains("6  =>"), "{}", what_if.stdout);
    world.up(&home)?;
    let file = office.file("AllowedApps = bird")?;
    world.up(&file)?;
    let both = world.taupe(&["explain", &bird.0, to])?;
    succeeded("explain", &both)?;
    let (of_home, of_office) = both
        .stdout
        .split_once("office (")
        .ok_or_else(|| Error::unmet(format!("not of both: {}", both.stdout)))?;
    ensure!(of_home.contains("5  =>"), "{of_home}");
    ensure!(of_office.contains("6  =>"), "{of_office}");
    ensure!(of_office.contains(": AllowedApps = bird"), "{of_office}");
    in_another_network(&world, &mole, to)?;
    let (code, said) = status(&world, &[])?;
    ensure!(code == Some(0), "{said}");
    ensure!(
        said["tunnels"].as_array().map(Vec::len) == Some(2),
        "{said}"
    );
    step("the worst of several");
    office.kill_device()?;
    let (code, said) = status(&world, &[])?;
    ensure!(code == Some(2) && said["state"] == "degraded", "{said}");
    world.down(&file)?;
    world.down(&home)
}

/// A program that queries continuously disturbs nothing, and leaves nothing behind.
pub(crate) fn looked_at_all_the_time() -> Result<()> {
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

/// Number of times that a tunnel comes and goes during the queries.
const TRANSITIONS: u32 = 5;

/// The state of another version of Taupe names its remedy, and does not hide the other tunnels.
pub(crate) fn another_layout() -> Result<()> {
    let world = World::new()?;
    let office = world.with_another("office", 9)?;
    let (home, file) = (
        world.file("AllowedApps = mole")?,
        office.file("AllowedApps = bird")?,
    );
    world.up(&home)?;
    world.up(&file)?;
    let bird = Application::new("bird")?;
    set_layout(office.device()?, 4711)?;
    let advice = "`taupe down office` removes it";
    let (code, said) = status(&world, &[])?;
    ensure!(code == Some(2), "{said}");
    let of = |name: &str| {
        let tunnels = said["tunnels"].as_array().into_iter().flatten();
        let mut tunnels = tunnels.filter(|tunnel| tunnel["interface"] == name);
        tunnels.next().cloned().unwrap_or_default()
    };
    ensure!(of(INTERFACE)["state"] == "up", "{said}");
    let finding = &of("office")["findings"][0];
    ensure!(finding["code"] == "unknown-layout", "{said}");
    let text = finding["text"].as_str().unwrap_or_default();
    ensure!(text.contains(advice), "{text}");
    let flows = world.taupe(&["flows", "--json"])?;
    succeeded("flows", &flows)?;
    ensure!(flows.stderr.contains(advice), "{}", flows.stderr);
    step("stopped and started as a service is");
    let stopped = world.taupe(&["down", "--keep-closed", &file])?;
    succeeded("down --keep-closed", &stopped)?;
    expect(&world, &bird, 0, None)?;
    let refused = world.taupe(&["up", &file])?;
    ensure!(
        refused.status == Some(1) && refused.stderr.contains(advice),
        "{refused:?}"
    );
    expect(&world, &bird, 0, None)?;
    world.down(&file)?;
    world.up(&file)?;
    world.down(&file)?;
    world.down(&home)
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

/// No rule selects a process in a network namespace of its own, whatever its name.
fn in_another_network(world: &World, mole: &Application, to: &str) -> Result<()> {
    let Application(path) = mole;
    let wait = [path, "-c", "sleep 300; :"];
    let here = world.near.spawn(&wait)?;
    let there = world
        .near
        .spawn(&[&["unshare", "-n"], &wait[..]].concat())?;
    let runs = |process: &Process| {
        let link = fs::read_link(format!("/proc/{}/exe", process.id()));
        link.is_ok_and(|link| link.as_os_str() == path.as_str())
    };
    wait_until("both processes", Duration::from_secs(15), || {
        Ok(runs(&here) && runs(&there))
    })?;
    for (process, step) in [(&here, "6  =>"), (&there, "1  => network")] {
        let said = world.taupe(&["explain", &process.id().to_string(), to])?;
        succeeded("explain", &said)?;
        let (of_home, _) = said.stdout.split_once("office (").unwrap_or_default();
        ensure!(of_home.contains(step), "{step}: {}", said.stdout);
    }
    Ok(())
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
        let (code, said) = status(&world, &[])?;
        ensure!(code == Some(0), "{said}");
        ensure!(said["tunnels"][0]["mode"] == mode, "{said}");
        let all = json(&world.taupe(&["flows", "--json"])?)?;
        let tcp = flow(&all, &talking, "tcp", TRANSFER)?;
        ensure!(
            tcp["verdict"] == "tunnel" && tcp["tunnel"] == INTERFACE,
            "{tcp}"
        );
        ensure!(tcp["sent_bytes"] == SENT, "{tcp}");
        let said = tcp["why"].as_str().unwrap_or_default();
        ensure!(said.contains(why), "{why}: {tcp}");
        drop(talking);
        world.kill_device()?;
        let (code, said) = status(&world, &[])?;
        ensure!(code == Some(2), "{said}");
        world.down(&file)?;
    }
    Ok(())
}

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
        let said = world.taupe(command)?;
        ensure!(said.status == Some(status), "{command:?}: {said:?}");
        for word in words {
            ensure!(said.stderr.contains(word), "{word}: {}", said.stderr);
        }
        Ok(said.stderr)
    };
    let file = world.file("AllowedApps = mole, moles")?;
    let check = world.taupe(&["check", &file])?;
    succeeded("check", &check)?;
    for word in ["is called moles", "fix: write mole, if"] {
        ensure!(check.stdout.contains(word), "{word}: {}", check.stdout);
    }
    ensure!(!check.stdout.contains("called mole:"), "{}", check.stdout);
    let who = "home is up; through the tunnel: mole (1 running), moles;";
    says(&["up", &file], 0, &[who])?;
    let again = says(&["up", &file], 1, &["home is up already"])?;
    ensure!(again.lines().count() == 1, "{again}");
    step("applications");
    let allowed = ["bird may use the tunnel", "home follows"];
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

/// `doctor` only reads, and leaves nothing behind.
pub(crate) fn doctor() -> Result<()> {
    let world = World::new()?;
    let before = (world.configuration()?, pinned()?);
    let said = world.taupe(&["doctor", "--json"])?;
    let found = json(&said)?;
    ensure!(said.status == Some(0), "{found}");
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
    let said = world.near.attempt(&user)?;
    ensure!(said.status == Some(0), "{said:?}");
    for line in [
        "ok    kernel ",
        "?     transparent-mode ",
        "?     tunnel ",
        "sudo taupe doctor",
    ] {
        ensure!(said.stdout.contains(line), "{line}: {}", said.stdout);
    }
    step("without a TUN, and with a file that is wrong");
    let hide = "mount -t tmpfs none /dev/net && exec \"$0\" doctor \"$1\"";
    let file = scratch_file("wrong.conf", "[Interface]\nPrivateKey = x\n")?;
    let said = world
        .near
        .attempt(&["unshare", "--mount", "sh", "-c", hide, &program, &file])?;
    ensure!(said.status == Some(1), "{said:?}");
    for line in ["FAIL  tun ", "FAIL  file ", "fix: "] {
        ensure!(said.stdout.contains(line), "{line}: {}", said.stdout);
    }
    step("with a tunnel that is locked");
    let file = world.whole_file(
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

/// All details that a bug report needs, and no key in any encoding.
pub(crate) fn report() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let secret = Keys::new(&world.near)?.private;
    let in_comment = Keys::new(&world.near)?.private;
    let in_hook = Keys::new(&world.near)?.private;
    let file = world.whole_file(
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
    let said = world.taupe(&["report", "-o", &path])?;
    succeeded("report", &said)?;
    let again = world.taupe(&["report", "-o", &path])?;
    ensure!(again.status == Some(1), "{again:?}");
    ensure!(again.stderr.contains("not there yet"), "{}", again.stderr);
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
    what_hooks_have_said(&world)?;
    world.down(&file)
}

/// The journal contains the output of hooks, and commands of an earlier file.
fn what_hooks_have_said(world: &World) -> Result<()> {
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
    let said = world
        .near
        .attempt(&["env", &path, &program, "report", INTERFACE])?;
    succeeded("report", &said)?;
    for part in [
        "[#] ip link add home type wireguard",
        &format!("## log of taupe@{INTERFACE}"),
        &format!("## log of taupe-lock@{INTERFACE}"),
    ] {
        ensure!(said.stdout.contains(part), "{part}: {}", said.stdout);
    }
    let is_there = said.stdout.contains("pass-word");
    ensure!(!is_there, "a password is in it: {}", said.stdout);
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
