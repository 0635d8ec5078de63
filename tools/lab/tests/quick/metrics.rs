//! `taupe metrics`, and the dashboard and rules that use its names.

use crate::closed::kill_device;
use crate::{INTERFACE, World, read};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::Duration;
use taupe_lab::peers::Implementation;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};
use taupe_protocol::{DropReason, HandshakeResult};

const SOON: Duration = Duration::from_secs(30);

/// The figures are printed once, and served at a port and at a socket.
pub(crate) fn served() -> Result<()> {
    let world = World::new()?;
    let narrow = "# Name = the server\nAllowedIPs = 10.77.0.0/24";
    let file = world.file("", narrow)?;
    let up = world.taupe(&["up", "--wait", "--adapter", &file])?;
    ensure!(up.status == Some(0), "{up:?}");
    step("printed");
    let printed = world.taupe(&["metrics"])?;
    ensure!(printed.status == Some(0), "{printed:?}");
    let key = &world.server.keys.public;
    let handshake =
        format!("taupe_handshakes_total{{device=\"{INTERFACE}\",result=\"initiated\"}} 1");
    let peer = format!("device=\"{INTERFACE}\",public_key=\"{key}\",name=\"the server\"");
    let expected = [
        format!("taupe_tunnel_state{{tunnel=\"{INTERFACE}\",state=\"up\"}} 1"),
        handshake.clone(),
        format!("taupe_handshake_duration_seconds_count{{device=\"{INTERFACE}\"}} 1"),
        format!("taupe_peer_unanswered_handshakes{{{peer}}} 0"),
    ];
    for line in &expected {
        let is_there = printed.stdout.lines().any(|it| it == line);
        ensure!(is_there, "no {line}: {}", printed.stdout);
    }
    step("served");
    let program = Implementation::Taupe.program()?.display().to_string();
    let socket = scratch("metrics.sock").display().to_string();
    let (port, path) = (["--listen", "127.0.0.1:9586"], ["--unix", &*socket]);
    let command = [&[&*program, "metrics"], &port[..], &path[..]].concat();
    let mut server = world.near.spawn(&command)?;
    let get = |options: &[&str], path: &str| {
        let url = format!("http://127.0.0.1:9586{path}");
        let first = [
            "curl",
            "--silent",
            "--max-time",
            "20",
            "--write-out",
            "%{http_code}",
        ];
        world.near.attempt(&[&first, options, &[&url]].concat())
    };
    wait_until("the server", SOON, || {
        ensure!(server.runs()?, "{}", server.output());
        Ok(get(&[], "/readyz")?.stdout == "ready\n200")
    })?;
    for options in [&[][..], &["--unix-socket", &socket]] {
        let answer = get(options, "/metrics")?.stdout;
        let is_whole = answer.lines().any(|it| *it == handshake) && answer.ends_with("# EOF\n200");
        ensure!(is_whole, "{options:?}: {answer}");
    }
    let mode = world.near.run(&["stat", "-c", "%a", &socket])?.stdout;
    ensure!(mode == "660\n", "{mode}");
    let rebound = get(&["--header", "Host: evil.example"], "/metrics")?.stdout;
    ensure!(rebound.ends_with("421"), "{rebound}");
    ensure!(get(&[], "/")?.stdout.ends_with("404"), "another path");
    step("the process that parses requests");
    let [parser] = server.children("metrics-server")[..] else {
        return Err(Error::unmet("there is no such process"));
    };
    let status = std::fs::read_to_string(format!("/proc/{parser}/status"));
    let status = status.map_err(Error::io("its state"))?;
    let rights = ["CapPrm:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"];
    for right in rights {
        let is_there = status.lines().any(|line| line == right);
        ensure!(is_there, "no {right}: {status}");
    }
    let root = std::fs::read_dir(format!("/proc/{parser}/root"));
    let files = root.map_err(Error::io("its root directory"))?.count();
    ensure!(files == 0, "{files} files in its root directory");
    step("misuse");
    // The socket of another service, of another kind.
    let datagrams = scratch("datagrams").display().to_string();
    let _service = UnixDatagram::bind(&datagrams).map_err(Error::io("a socket"))?;
    let plain = scratch("plain").display().to_string();
    std::fs::write(&plain, "").map_err(Error::io("a file"))?;
    for (options, reason) in [
        (path, "another program serves it"),
        (["--unix", &*datagrams], "choose another path"),
        (["--unix", &plain], "the file is no socket"),
        (port, "Address already in use"),
    ] {
        let refused = world.taupe(&[&["metrics"], &options[..]].concat())?;
        let is_one_line = refused.stderr.lines().count() == 1;
        let is_right = refused.status == Some(1) && refused.stderr.contains(reason);
        ensure!(is_right && is_one_line, "{options:?}: {refused:?}");
    }
    let usage = world.taupe(&["metrics", "--listen", "9586"])?;
    ensure!(usage.status == Some(2), "{usage:?}");
    step("a killed process");
    kill_device(&world)?;
    wait_until("503", SOON, || {
        Ok(get(&[], "/readyz")?.stdout.ends_with("503"))
    })?;
    step("nothing to serve");
    world.down(&file)?;
    // The server's device has its socket in the same folder.
    let empty = format!(
        "mount -t tmpfs none /run && {program} metrics --listen 127.0.0.1:9587 & \
         until curl -s -o /dev/null http://127.0.0.1:9587/; do sleep 0.05; done; \
         curl -s -w %{{http_code}} http://127.0.0.1:9587/readyz; kill $!"
    );
    let answer = world
        .near
        .run(&["timeout", "20", "unshare", "--mount", "sh", "-c", &empty])?;
    ensure!(answer.stdout.ends_with("503"), "{answer:?}");
    step("a socket that nobody serves");
    server.signal(Signal::KILL)?;
    server.wait(SOON)?;
    wait_until("the end of the process that parses requests", SOON, || {
        Ok(is_gone(parser))
    })?;
    let mut again = world
        .near
        .spawn(&[&[&*program, "metrics"], &path[..]].concat())?;
    wait_until("the socket", SOON, || {
        ensure!(again.runs()?, "{}", again.output());
        Ok(get(&["--unix-socket", &socket], "/metrics")?
            .stdout
            .ends_with("# EOF\n200"))
    })?;
    step("a killed process that parses requests");
    for parser in again.children("metrics-server") {
        let id = i32::try_from(parser).ok().and_then(Pid::from_raw);
        let id = id.ok_or_else(|| Error::unmet(format!("{parser} is no process")))?;
        kill_process(id, Signal::KILL).map_err(Error::io("a signal"))?;
    }
    let ended = again.wait(SOON)?;
    ensure!(ended.code() == Some(1), "{ended}: {}", again.output());
    let says_why = again
        .output()
        .contains("the process that serves the metrics has ended");
    ensure!(says_why, "{}", again.output());
    Ok(())
}

/// Returns true if a process does not exist, or has ended and is not yet removed.
fn is_gone(process: u32) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    state
        .rsplit_once(')')
        .is_none_or(|(_, rest)| rest.starts_with(" Z"))
}

/// The help, the dashboard and the alert rules name metrics that exist.
pub(crate) fn names() -> Result<()> {
    let world = World::new()?;
    let printed = world.taupe(&["metrics"])?.stdout;
    let families = printed.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        let suffix = if kind == "counter" { "_total" } else { "" };
        Some(format!("{name}{suffix}"))
    });
    let families: BTreeSet<_> = families.collect();
    ensure!(!families.is_empty(), "{printed}");
    let help = world.taupe(&["metrics", "--help"])?.stdout;
    let documented = named_in(&help);
    ensure!(documented == families, "{documented:?}, not {families:?}");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/monitoring");
    for file in ["grafana-dashboard.json", "prometheus-rules.yml"] {
        let text = read(folder.join(file))?;
        let used = named_in(&text).into_iter();
        let used: BTreeSet<_> = used.map(|name| of_family(&name)).collect();
        ensure!(!used.is_empty(), "{file} uses no metric");
        let unknown: Vec<_> = used.difference(&families).collect();
        ensure!(unknown.is_empty(), "{file} uses {unknown:?}");
    }
    // Values of labels in rules: an alert for a reason that no longer exists would never fire.
    let rules = read(folder.join("prometheus-rules.yml"))?;
    let codes = DropReason::ALL.map(DropReason::code).into_iter();
    let codes: BTreeSet<_> = codes
        .chain(HandshakeResult::ALL.map(HandshakeResult::code))
        .chain(["up", "degraded", "down"])
        .collect();
    let status = world.taupe(&["status", "--help"])?.stdout;
    let values = rules.lines().filter(|line| line.contains("expr:"));
    let values = values.flat_map(|line| line.split('"').skip(1).step_by(2));
    for value in values.flat_map(|value| value.split('|')) {
        let is_known = codes.contains(value) || status.contains(value);
        ensure!(is_known, "the rules use {value}");
    }
    let dashboard = read(folder.join("grafana-dashboard.json"))?;
    let dashboard: serde_json::Value =
        serde_json::from_str(&dashboard).map_err(|error| Error::unmet(error.to_string()))?;
    let unused: Vec<_> = families
        .iter()
        .filter(|name| !dashboard.to_string().contains(&***name))
        .collect();
    ensure!(unused.is_empty(), "the dashboard does not show {unused:?}");
    Ok(())
}

/// Returns the name of a histogram for the name of its ranges; other names stay.
fn of_family(name: &str) -> String {
    name.strip_suffix("_bucket").unwrap_or(name).to_owned()
}

/// Returns the names of metrics in a text.
fn named_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("taupe_"));
    names.map(str::to_owned).collect()
}
