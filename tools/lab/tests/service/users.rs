//! Requests that are executed.

use crate::world::{BEYOND, INSIDE, OUTSIDE, SOON, World, as_user, write};
use std::fs;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch, scratch_file};
use taupe_lab::{Error, Result, ensure};

const OWN: &str = "AllowedApps = uid:alice";

fn is_seen(world: &World, user: &str, address: &str) -> Result<()> {
    let seen = world.seen(user)?;
    ensure!(seen == address, "{user} is seen as {seen}");
    Ok(())
}

/// A member of the group brings a tunnel up for her own processes, and takes it down.
pub(crate) fn own_processes() -> Result<()> {
    let world = World::new()?;
    let before = world.state()?;
    let file = world.file("alice", "u-home", OWN)?;
    is_seen(&world, "alice", OUTSIDE)?;
    world.succeed("alice", &["up", &file])?;
    is_seen(&world, "alice", INSIDE)?;
    for other in ["bob", "carol", "taupe-dbus"] {
        is_seen(&world, other, OUTSIDE)?;
    }
    let status = world.succeed("alice", &["status"])?;
    ensure!(status.stdout.starts_with("u-home: up"), "{status:?}");
    let json = world.succeed("alice", &["status", "--json", "u-home"])?;
    ensure!(
        json.stdout.contains("\"interface\": \"u-home\"") || json.stdout.contains("\"u-home\""),
        "{json:?}"
    );
    world.refuse("alice", &["up", &file], "u-home is up already")?;
    world.succeed("alice", &["down", "u-home"])?;
    is_seen(&world, "alice", OUTSIDE)?;
    let after = world.state()?;
    ensure!(after == before, "{after}instead of\n{before}");
    Ok(())
}

/// A user's file names programs. The user's processes of them use the tunnel, and nobody else's.
pub(crate) fn own_applications() -> Result<()> {
    let world = World::new()?;
    let before = world.state()?;
    let other = scratch("alice").join("other").display().to_string();
    fs::copy("/usr/bin/curl", &other).map_err(Error::io(&*other))?;
    let is_seen_by = |program: &str, address: &str| {
        let seen = world.seen_by("alice", program)?;
        ensure!(seen == address, "{program} of alice is seen as {seen}");
        Ok(())
    };
    for (lines, is_other_inside) in [
        ("AllowedApps = curl", false),
        ("#@taupe:AllowedApps = /usr/bin/curl", false),
        ("DisallowedApps = other", false),
        ("AllowedApps = /\nAppsOfUser = alice", true),
    ] {
        let file = world.file("alice", "u-home", lines)?;
        world.succeed("alice", &["up", &file])?;
        is_seen_by("curl", INSIDE)?;
        is_seen_by(&other, if is_other_inside { INSIDE } else { OUTSIDE })?;
        for user in ["bob", "carol", "taupe-dbus", "root"] {
            is_seen(&world, user, OUTSIDE)?;
        }
        let status = world.succeed("alice", &["status"])?;
        ensure!(
            status.stdout.contains("only applications of user 5001"),
            "{status:?}"
        );
        world.succeed("alice", &["down", "u-home"])?;
        is_seen_by("curl", OUTSIDE)?;
    }
    // The user changes the selection. Another user selects the same program for another tunnel.
    let file = world.file("alice", "u-home", "AllowedApps = curl")?;
    world.succeed("alice", &["up", &file])?;
    world.succeed("alice", &["app", "allow", "u-home", &other])?;
    world.succeed("alice", &["app", "remove", "u-home", "curl"])?;
    is_seen_by(&other, INSIDE)?;
    for user in ["alice", "bob", "carol"] {
        is_seen(&world, user, OUTSIDE)?;
    }
    let file = world.file("carol", "u-carol", "AllowedApps = other, curl")?;
    world.succeed("carol", &["up", &file])?;
    world.succeed("carol", &["down", "u-carol"])?;
    // Processes of another user would be another file.
    let file = world.file("alice", "u-home", "AllowedApps = curl\nAppsOfUser = bob")?;
    let words = "an administrator must authorise this: AppsOfUser = 5002 is not you";
    world.refuse("alice", &["reload", &file], words)?;
    is_seen(&world, "bob", OUTSIDE)?;
    world.succeed("alice", &["down", "u-home"])?;
    let after = world.state()?;
    ensure!(after == before, "{after}instead of\n{before}");
    Ok(())
}

/// Another member of the group neither sees the tunnel and its connections nor can change it.
pub(crate) fn others() -> Result<()> {
    let world = World::new()?;
    let file = world.file("alice", "u-home", OWN)?;
    world.succeed("alice", &["up", &file])?;
    let connect = format!("exec 3<>/dev/tcp/{BEYOND}/80; read -r line <&3");
    let _connection = world
        .near
        .spawn(&as_user("alice", &["bash", "-c", &connect]))?;
    wait_until("alice's connection", SOON, || {
        let flows = world.succeed("alice", &["flows"])?;
        Ok(flows.stdout.contains("tunnel u-home: ") && flows.stdout.contains(BEYOND))
    })?;
    let flows = world.succeed("carol", &["flows"])?;
    ensure!(!flows.stdout.contains(BEYOND), "{flows:?}");
    let status = world.taupe("carol", &["status"])?;
    ensure!(!status.stdout.contains("u-home"), "{status:?}");
    let refused = "an administrator must authorise this";
    world.refuse("carol", &["flows", "u-home"], refused)?;
    world.refuse("carol", &["status", "u-home"], refused)?;
    world.refuse("carol", &["down", "u-home"], refused)?;
    world.refuse("carol", &["app", "allow", "u-home", "uid:carol"], refused)?;
    let file = world.file("carol", "u-home", "AllowedApps = uid:carol")?;
    world.refuse("carol", &["up", &file], "u-home is up already")?;
    world.refuse("carol", &["reload", &file], refused)?;
    is_seen(&world, "alice", INSIDE)?;
    // Whoever is an administrator can take it down.
    world.succeed("dora", &["down", "u-home"])?;
    is_seen(&world, "alice", OUTSIDE)
}

/// The file names a key file that only the user can read, by a relative path and a symbolic link.
pub(crate) fn key_files() -> Result<()> {
    let world = World::new()?;
    let file = world.file("alice", "u-home", OWN)?;
    let text = fs::read_to_string(&file).map_err(Error::io(&*file))?;
    let key = format!("PrivateKey = {}", world.server.client.private);
    write("alice", "real.key", &world.server.client.private)?;
    let folder = taupe_lab::sandbox::scratch("alice");
    std::os::unix::fs::symlink("real.key", folder.join("my.key")).map_err(Error::io("link"))?;
    let file = write(
        "alice",
        "u-home.conf",
        &text.replace(&key, "PrivateKey = file:my.key"),
    )?;
    world.succeed("alice", &["up", &file])?;
    is_seen(&world, "alice", INSIDE)?;
    // A link to a file that the user cannot read is no better than its target.
    let stolen = text
        .replace(&key, "PrivateKey = file:/etc/shadow")
        .replace("u-home", "u-x");
    let file = write("alice", "u-x.conf", &stolen)?;
    let attempt = world.taupe("alice", &["up", &file])?;
    ensure!(attempt.status == Some(1), "{attempt:?}");
    ensure!(attempt.stderr.contains("Permission denied"), "{attempt:?}");
    Ok(())
}

/// The user edits the file; a setting of an administrator is refused, and the tunnel stays.
pub(crate) fn reload() -> Result<()> {
    let world = World::new()?;
    let file = world.file("alice", "u-home", OWN)?;
    world.succeed("alice", &["up", &file])?;
    let file = world.file("alice", "u-home", &format!("{OWN}\nMTU = 1300"))?;
    world.succeed("alice", &["reload", &file])?;
    let file = world.file("alice", "u-home", &format!("{OWN}\nKillSwitch = all"))?;
    world.refuse(
        "alice",
        &["reload", &file],
        "an administrator must authorise this",
    )?;
    is_seen(&world, "alice", INSIDE)?;
    let copy = "/run/taupe-service/tunnels/u-home.conf";
    let text = fs::read_to_string(copy).map_err(Error::io(copy))?;
    ensure!(
        text.contains("MTU = 1300") && !text.contains("KillSwitch"),
        "{text}"
    );
    Ok(())
}

/// Root lists a full tunnel for the group.
pub(crate) fn listed() -> Result<()> {
    let world = World::new()?;
    let folder = "/etc/taupe/allowed";
    fs::create_dir_all(folder).map_err(Error::io(folder))?;
    let text = world.server.file("", "AllowedIPs = 198.51.100.0/24");
    let path = format!("{folder}/office.conf");
    fs::write(&path, text).map_err(Error::io(&*path))?;
    world.refuse(
        "bob",
        &["up", "office"],
        "no tunnel office is listed for you",
    )?;
    world.succeed("alice", &["up", "office"])?;
    for user in ["alice", "bob"] {
        is_seen(&world, user, INSIDE)?;
    }
    // Another member of the group may take it down, and see it.
    let status = world.succeed("carol", &["status"])?;
    ensure!(status.stdout.starts_with("office: up"), "{status:?}");
    world.refuse(
        "bob",
        &["down", "office"],
        "an administrator must authorise this",
    )?;
    world.succeed("carol", &["down", "office"])?;
    is_seen(&world, "bob", OUTSIDE)?;
    // A file that others can change is not root's word.
    std::os::unix::fs::chown(&path, Some(5001), None).map_err(Error::io(&*path))?;
    world.refuse(
        "alice",
        &["up", "office"],
        "no tunnel office is listed for you",
    )
}

/// With an administrator's consent, a user's file changes the machine.
pub(crate) fn administrator() -> Result<()> {
    let world = World::new()?;
    let mark = "/run/hook";
    let file = world.file("dora", "full", &format!("PostUp = touch {mark}"))?;
    world.succeed("dora", &["up", &file])?;
    ensure!(fs::exists(mark).unwrap_or(false), "the command was not run");
    for user in ["dora", "bob"] {
        is_seen(&world, user, INSIDE)?;
    }
    world.succeed("dora", &["down", "full"])?;
    is_seen(&world, "bob", OUTSIDE)
}

/// The service is killed and started again: the tunnel stays, and so does its owner.
pub(crate) fn restart() -> Result<()> {
    let world = World::new()?;
    let file = world.file("alice", "u-home", OWN)?;
    world.succeed("alice", &["up", &file])?;
    let world = world.restart()?;
    is_seen(&world, "alice", INSIDE)?;
    world.refuse(
        "carol",
        &["down", "u-home"],
        "an administrator must authorise this",
    )?;
    world.succeed("alice", &["down", "u-home"])?;
    is_seen(&world, "alice", OUTSIDE)
}

/// Without the service on the bus, and without a bus, commands fail as they always did.
pub(crate) fn without_service() -> Result<()> {
    let world = World::with(false)?;
    let file = world.file("alice", "u-home", OWN)?;
    let as_before = |attempt: taupe_lab::process::Attempt, status| {
        let text = "taupe: this takes root; run it with sudo\n";
        ensure!(
            attempt.stderr == text && attempt.status == Some(status) && attempt.stdout.is_empty(),
            "{attempt:?}"
        );
        Ok(())
    };
    let commands: [(&[&str], i32); 5] = [
        (&["up", &file], 1),
        (&["down", "u-home"], 1),
        (&["status"], 3),
        (&["flows"], 1),
        (&["app", "allow", &file, "curl"], 1),
    ];
    for (command, status) in commands {
        as_before(world.taupe("alice", command)?, status)?;
    }
    let (near, _server, _service) = world.without_bus()?;
    let program = crate::world::taupe()?;
    for (command, status) in commands {
        let command = [&[&*program], command].concat();
        as_before(near.attempt(&as_user("alice", &command))?, status)?;
    }
    Ok(())
}

/// polkit asks for an administrator's password in the user's terminal.
pub(crate) fn password() -> Result<()> {
    let world = World::new()?;
    let file = world.file("alice", "full", "")?;
    let before = world.state()?;
    let program = crate::world::taupe()?;
    // The answer of PAM takes the place of a password.
    let answer = |module: &str| {
        let path = "/etc/pam.d/polkit-1";
        let text = format!("auth required {module}\naccount required {module}\n");
        fs::write(path, text).map_err(Error::io(path))
    };
    let up = format!("{program} up {file}");
    let in_terminal = || world.run_as("alice", &["script", "-qec", &up, "/dev/null"]);
    answer("pam_deny.so")?;
    let attempt = in_terminal()?;
    ensure!(attempt.status == Some(1), "{attempt:?}");
    ensure!(
        attempt
            .stdout
            .contains("AUTHENTICATING FOR org.taupe.administer"),
        "{attempt:?}"
    );
    // The dialogue says whose request it is, and what it changes.
    let shown = attempt
        .stdout
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    for words in [
        "for alice (user ID 5001) to bring up full",
        "the file selects no applications",
    ] {
        ensure!(shown.contains(words), "{words}: {attempt:?}");
    }
    ensure!(
        attempt
            .stdout
            .contains("polkit refused the request (org.taupe.administer)"),
        "{attempt:?}"
    );
    ensure!(world.state()? == before, "something has changed");
    answer("pam_permit.so")?;
    let attempt = in_terminal()?;
    ensure!(attempt.status == Some(0), "{attempt:?}");
    ensure!(
        attempt.stdout.contains("to bring up full. It concerns"),
        "{attempt:?}"
    );
    is_seen(&world, "bob", INSIDE)?;
    // The consent was for that command only.
    let other = world.file("alice", "other", "")?;
    world.refuse(
        "alice",
        &["up", &other],
        "an administrator must authorise this",
    )?;
    // The tunnel is hers.
    world.succeed("alice", &["down", "full"])?;
    is_seen(&world, "bob", OUTSIDE)
}

/// systemd makes the socket and passes it at standard input.
pub(crate) fn passed_socket() -> Result<()> {
    let world = World::new()?.restart_with_socket()?;
    let file = world.file("alice", "u-home", OWN)?;
    world.succeed("alice", &["up", &file])?;
    is_seen(&world, "alice", INSIDE)?;
    world.succeed("alice", &["down", "u-home"]).map(drop)
}

/// Runs a script of the package as dpkg does, without the programs that remove users. The installed program
/// is the one that is tested.
fn run_script(world: &World, name: &str, word: &str) -> Result<()> {
    const PACKAGING: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/debian");
    let script = format!("{PACKAGING}/taupe-service.{name}");
    let text = fs::read_to_string(&script).map_err(Error::io(&*script))?;
    let text = text.replace("/usr/bin/taupe", &crate::world::taupe()?);
    let script = scratch_file(name, &text)?;
    let path = "PATH=/usr/bin:/bin";
    world
        .near
        .run(&["env", path, "sh", &script, word])
        .map(drop)
}

/// Removal of the package takes users' tunnels down. Its purge leaves the copies of tunnels that are up.
pub(crate) fn removal() -> Result<()> {
    let world = World::new()?;
    let before = world.state()?;
    let folder = "/run/taupe-service/tunnels";
    let file = world.file("alice", "u-home", OWN)?;
    world.succeed("alice", &["up", &file])?;
    run_script(&world, "postrm", "purge")?;
    let copy = format!("{folder}/u-home.conf");
    ensure!(fs::exists(&copy).unwrap_or(false), "the copy is gone");
    run_script(&world, "prerm", "remove")?;
    is_seen(&world, "alice", OUTSIDE)?;
    ensure!(!fs::exists(&copy).unwrap_or(true), "the copy is left");
    let after = world.state()?;
    ensure!(after == before, "{after}instead of\n{before}");
    // The copy of a tunnel that does not exist is not worth keeping.
    fs::write(&copy, "").map_err(Error::io(&*copy))?;
    run_script(&world, "postrm", "purge")?;
    ensure!(!fs::exists(folder).unwrap_or(true), "{folder} is left");
    Ok(())
}

/// A tunnel of root that selects a user's processes is refused while the user's tunnel is up. Root can take
/// that down by its name. The next request removes its copy.
pub(crate) fn down_by_root() -> Result<()> {
    let world = World::new()?;
    let file = world.file("alice", "u-home", OWN)?;
    world.succeed("alice", &["up", &file])?;
    let program = crate::world::taupe()?;
    let text = world.server.file("", "AllowedIPs = 198.51.100.0/24");
    let text = text.replacen("[Peer]", &format!("{OWN}\n[Peer]"), 1);
    let path = write("alice", "vpn.conf", &text)?;
    let refused = world.near.attempt(&[&program, "up", &path])?;
    ensure!(
        refused.status == Some(1) && refused.stderr.contains("u-home"),
        "{refused:?}"
    );
    is_seen(&world, "alice", INSIDE)?;
    world.near.run(&[&program, "down", "u-home"])?;
    is_seen(&world, "alice", OUTSIDE)?;
    let other = world.file("alice", "u-other", OWN)?;
    world.succeed("alice", &["up", &other])?;
    let copy = "/run/taupe-service/tunnels/u-home.conf";
    ensure!(!fs::exists(copy).unwrap_or(true), "the copy is left");
    world.succeed("alice", &["down", "u-other"]).map(drop)
}
