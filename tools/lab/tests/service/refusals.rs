//! Requests that are refused, and change nothing.

use crate::world::{SOCKET, SOON, World, as_user, front, taupe};
use rustix::process::Signal;
use std::path::Path;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

/// A user in no group, whose session is not active, needs an administrator, and nobody can be asked.
pub(crate) fn nobody_to_ask() -> Result<()> {
    let world = World::new()?;
    let before = world.state()?;
    let file = world.file("bob", "u-home", "AllowedApps = uid:bob")?;
    let words = "an administrator must authorise this: the session is not active";
    world.refuse("bob", &["up", &file], words)?;
    world.refuse("bob", &["flows"], words)?;
    world.refuse("bob", &["status"], words)?;
    ensure!(world.state()? == before, "something has changed");
    Ok(())
}

/// A member of the group cannot bring up what concerns others.
pub(crate) fn administrators_files() -> Result<()> {
    let world = World::new()?;
    let before = world.state()?;
    let own = "AllowedApps = uid:alice";
    let words = "an administrator must authorise this: ";
    for (name, lines) in [
        ("u-hook", &*format!("{own}\nPostUp = touch /run/hook")),
        ("u-hook", &format!("{own}\nPreDown = touch /run/hook")),
        ("u-table", &format!("{own}\nTable = 100")),
        ("u-save", &format!("{own}\nSaveConfig = true")),
        ("u-forwarded", &format!("{own}\nForwarded = tunnel")),
        ("u-all", &format!("{own}\nKillSwitch = all")),
        ("u-mark", &format!("{own}\nFwMark = 51820")),
        ("u-port", &format!("{own}\nListenPort = 53")),
        ("u-full", ""),
        ("u-apps", "AllowedApps = curl\nAppsOfUser = bob"),
        ("u-apps", "AllowedApps = curl\nKillSwitch = all"),
        ("u-apps", "KillSwitch = app"),
        ("u-bob", "AllowedApps = uid:bob"),
        ("home", own),
    ] {
        let file = world.file("alice", name, lines)?;
        let attempt = world.taupe("alice", &["up", &file])?;
        ensure!(
            attempt.status == Some(1) && attempt.stderr.contains(words),
            "{lines}: {attempt:?}"
        );
    }
    let file = world.file("alice", "u-dns", &format!("{own}\nDNS = 10.77.0.2"))?;
    let attempt = world.taupe("alice", &["up", &file])?;
    ensure!(attempt.stderr.contains("SystemBus = allow"), "{attempt:?}");
    ensure!(!Path::new("/run/hook").exists(), "a command was run");
    ensure!(world.state()? == before, "something has changed");
    Ok(())
}

/// Calls that the client would not make.
pub(crate) fn calls() -> Result<()> {
    let world = World::new()?;
    let before = world.state()?;
    let long = "x".repeat(100_000);
    for (method, arguments, words) in [
        (
            "Down",
            &["s", "../x"][..],
            "the name of a tunnel has 1 to 15",
        ),
        (
            "Down",
            &["s", "sixteen-letters-"],
            "the name of a tunnel has 1 to 15",
        ),
        ("Down", &["s", "-rf"], "the name of a tunnel has 1 to 15"),
        (
            "Down",
            &["s", "a\u{1}b"],
            "the name of a tunnel has 1 to 15",
        ),
        ("Down", &["s", &long], "more than 65536 bytes"),
        (
            "Down",
            &["u", "1"],
            "the arguments are not those of the method",
        ),
        ("Down", &["s", "eth0"], "eth0 is not up"),
        (
            "Up",
            &["ss", "u-x", "/etc/shadow"],
            "the arguments are not those of the method",
        ),
        (
            "UpListed",
            &["s", "shadow"],
            "no tunnel shadow is listed for you",
        ),
        (
            "ReloadListed",
            &["s", "shadow"],
            "no tunnel shadow is listed for you",
        ),
        (
            "AppAllow",
            &["ss", "u-x", "a\nPostUp = id"],
            "it is not an application",
        ),
        ("AppAllow", &["ss", "u-x", "curl"], "u-x is not up"),
        (
            "Status",
            &["sbb", "", "true", "false"],
            "must authorise this: ",
        ),
        (
            "Flows",
            &["sbb", "", "true", "true"],
            "must authorise this: ",
        ),
        ("Run", &["s", "id"], "there is no such method"),
    ] {
        let attempt = world.call("alice", method, arguments)?;
        ensure!(attempt.status != Some(0), "{method}: {attempt:?}");
        ensure!(
            attempt.stderr.contains(words),
            "{method}: {words:?} is not in {attempt:?}"
        );
        ensure!(
            attempt.stderr.trim().lines().count() == 1,
            "{method}: {attempt:?}"
        );
    }
    // The bus itself lets nobody else have the name.
    let own = world.run_as(
        "alice",
        &[
            "dbus-send",
            "--system",
            "--print-reply",
            "--dest=org.freedesktop.DBus",
            "/org/freedesktop/DBus",
            "org.freedesktop.DBus.RequestName",
            "string:org.taupe.Service1",
            "uint32:2",
        ],
    )?;
    ensure!(
        own.status != Some(0) && own.stderr.contains("AccessDenied"),
        "{own:?}"
    );
    ensure!(world.state()? == before, "something has changed");
    let list = world.call("alice", "List", &[])?;
    ensure!(list.status == Some(0), "the front is gone: {list:?}");
    Ok(())
}

/// Nobody but the front can connect to the service, not even root.
pub(crate) fn socket() -> Result<()> {
    let world = World::new()?;
    let connect = "import socket,sys\n\
        s=socket.socket(socket.AF_UNIX,socket.SOCK_SEQPACKET)\n\
        s.connect(sys.argv[1])\n\
        print(s.recv(65536).decode())\n";
    let command = ["/usr/bin/python3", "-c", connect, SOCKET];
    let refused = world.run_as("alice", &command)?;
    ensure!(refused.stderr.contains("PermissionError"), "{refused:?}");
    let refused = world.near.attempt(&command)?;
    ensure!(
        refused.stdout.contains("user 0 may not use this socket"),
        "{refused:?}"
    );
    Ok(())
}

/// The front has no use for rights.
pub(crate) fn front_as_root() -> Result<()> {
    let world = World::new()?;
    let front = front()?.display().to_string();
    let attempt = world.near.attempt(&[&front])?;
    ensure!(
        attempt.status == Some(1) && attempt.stderr.contains("must not run as root"),
        "{attempt:?}"
    );
    // The bus has started it as its own user, without root's groups.
    world.succeed("alice", &["flows"])?;
    let shown = world
        .near
        .run(&["ps", "-o", "user:20=,supgid=", "-C", "taupe-dbus"])?;
    let words: Vec<_> = shown.stdout.split_whitespace().collect();
    ensure!(
        words.first() == Some(&"taupe-dbus") && !words.contains(&"0"),
        "{shown:?}"
    );
    Ok(())
}

/// A user has four calls at one time. The fifth is refused, and another user is not.
pub(crate) fn too_many() -> Result<()> {
    let world = World::new()?;
    world.succeed("alice", &["flows"])?;
    world.service.signal(Signal::STOP)?;
    let program = taupe()?;
    let start = || world.near.spawn(&as_user("alice", &[&program, "flows"]));
    let mut waiting: Vec<Process> = (0..4).map(|_| start()).collect::<Result<_>>()?;
    // The service accepts no connection, so each call has one in its queue.
    wait_until("four calls", SOON, || {
        let shown = world.near.run(&["ss", "-xlH", "src", SOCKET])?;
        Ok(shown.stdout.split_whitespace().nth(2) == Some("4"))
    })?;
    world.refuse("alice", &["flows"], "too many requests at once")?;
    let mut other = world.near.spawn(&as_user("carol", &[&program, "flows"]))?;
    wait_until("carol's call", SOON, || {
        let shown = world.near.run(&["ss", "-xlH", "src", SOCKET])?;
        Ok(shown.stdout.split_whitespace().nth(2) == Some("5"))
    })?;
    world.service.signal(Signal::CONT)?;
    for call in waiting.iter_mut().chain([&mut other]) {
        let status = call.wait(SOON)?;
        ensure!(status.success(), "{status}: {}", call.output());
    }
    world.succeed("alice", &["flows"]).map(drop)
}

/// A caller ends before polkit is asked: nothing is executed, and its place is free again.
pub(crate) fn caller_goes_away() -> Result<()> {
    let world = World::new()?;
    world.succeed("alice", &["flows"])?;
    let before = world.state()?;
    world.service.signal(Signal::STOP)?;
    let down = [
        "busctl",
        "--system",
        "call",
        "org.taupe.Service1",
        "/org/taupe/Service1",
        "org.taupe.Service1",
        "Flows",
        "sbb",
        "",
        "false",
        "false",
    ];
    let callers: Vec<Process> = (0..4)
        .map(|_| world.near.spawn(&as_user("alice", &down)))
        .collect::<Result<_>>()?;
    wait_until("four calls", SOON, || {
        let shown = world.near.run(&["ss", "-xlH", "src", SOCKET])?;
        Ok(shown.stdout.split_whitespace().nth(2) == Some("4"))
    })?;
    drop(callers);
    world.service.signal(Signal::CONT)?;
    wait_until("a free place", SOON, || {
        Ok(world.taupe("alice", &["flows"])?.status == Some(0))
    })?;
    ensure!(world.state()? == before, "something has changed");
    Ok(())
}

/// If polkit cannot be asked, nobody is authorised.
pub(crate) fn without_polkit() -> Result<()> {
    let world = World::new()?;
    let file = "/usr/share/dbus-1/system-services/org.freedesktop.PolicyKit1.service";
    std::fs::remove_file(file).map_err(Error::io(file))?;
    world.near.run(&[
        "dbus-send",
        "--system",
        "--print-reply",
        "--dest=org.freedesktop.DBus",
        "/org/freedesktop/DBus",
        "org.freedesktop.DBus.ReloadConfig",
    ])?;
    let file = world.file("alice", "u-home", "AllowedApps = uid:alice")?;
    world.refuse("alice", &["up", &file], "polkit cannot be asked")
}

/// Descriptors of every kind, passed over the bus. Only sealed memory is read.
pub(crate) fn descriptors() -> Result<()> {
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/service/descriptors.py");
    let world = World::new()?;
    let before = world.state()?;
    let file = world.file("alice", "u-home", "AllowedApps = uid:alice")?;
    let (front, folder) = (front()?.display().to_string(), scratch("alice"));
    let folder = folder.display().to_string();
    // The sources may be in a folder that the user cannot enter.
    let script = std::fs::read_to_string(SCRIPT).map_err(Error::io(SCRIPT))?;
    let command = ["/usr/bin/python3", "-c", &script, &front, &folder, &file];
    let said = world.run_as("alice", &command)?;
    let lines: Vec<_> = said.stdout.lines().collect();
    let [refused @ .., sealed] = lines.as_slice() else {
        return Err(Error::unmet(format!("{said:?}")));
    };
    ensure!(refused.len() == 8, "{said:?}");
    for line in refused {
        let is_kind = line.starts_with("file ") || line.starts_with("unsealed ");
        let words = match is_kind {
            true => " 1 taupe: the file is not sealed memory",
            false => " 1 taupe: the file is not a file that can be read",
        };
        ensure!(line.ends_with(words), "{line}");
    }
    ensure!(sealed.starts_with("sealed 0 "), "{sealed}");
    world.succeed("alice", &["down", "u-home"])?;
    ensure!(world.state()? == before, "something has changed");
    Ok(())
}
