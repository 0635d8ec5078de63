//! Programs whose files are renamed while they run, programs that start others, and links.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use taupe_lab::capture::Capture;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{Application, BEYOND, PORT, TUNNEL, UPLINK, World, expect, succeeded};

/// Time limit for three questions of a program.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program that repeatedly asks a server beyond for its client address, by new sockets, and logs
/// the answers.
struct RepeatedQuery {
    process: Process,
    answers: PathBuf,
}

impl RepeatedQuery {
    fn start(world: &World, application: &Application) -> Result<Self> {
        let answers = scratch("answers");
        let answer = answers.display();
        let script = format!(
            "while :; do exec 3<>/dev/tcp/{}/{PORT} && read -r -u 3 line && echo $line >> {answer}; \
             exec 3>&-; read -r -t 0.1 <> <(:); done 2>/dev/null",
            BEYOND[0]
        );
        let process = world.near.spawn(&[&application.0, "-c", &script])?;
        Ok(Self { process, answers })
    }

    fn answers(&self) -> Vec<String> {
        let text = fs::read_to_string(&self.answers).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Checks that the next three answers, to questions from now on, equal `who`.
    fn expect(&self, who: &str) -> Result<()> {
        // One answer may be under way.
        let old = self.answers().len() + 1;
        wait_until("three answers", PATIENCE, || {
            Ok(self.answers().len() >= old + 3)
        })?;
        let answers = self.answers();
        let new = answers.get(old..).unwrap_or_default();
        ensure!(
            new.iter().all(|answer| answer == who),
            "process {}: {new:?}, not {who}",
            self.process.id()
        );
        Ok(())
    }
}

fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
    fs::rename(from, to).map_err(Error::io("rename"))
}

/// An upgrade renames a running executable, or its folder.
pub(crate) fn executable_renamed_while_it_runs() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let folder = scratch("applications").display().to_string();
    let old = format!("{}.old", mole.0);
    for rule in ["mole", &mole.0, &format!("{folder}/")] {
        step(rule);
        let file = world.file(&format!("AllowedApps = {rule}"))?;
        world.up(&file)?;
        let asking = RepeatedQuery::start(&world, &mole)?;
        asking.expect(TUNNEL[0])?;
        let clear = Capture::start(&world.far, "eth0", &format!("tcp port {PORT}"))?;
        match rule.ends_with('/') {
            true => rename(&folder, format!("{folder}.old"))?,
            false => rename(&mole.0, &old)?,
        }
        asking.expect(TUNNEL[0])?;
        step("explain");
        let id = asking.process.id().to_string();
        let explained = world.taupe(&["explain", &id, "198.51.100.1:8080"])?;
        succeeded("explain", &explained)?;
        let why = format!("AllowedApps = {rule}), which named its executable");
        ensure!(explained.stdout.contains(&why), "{}", explained.stdout);
        step("other rules, and this one still");
        succeeded("app", &world.taupe(&["app", "allow", &file, "cat"])?)?;
        asking.expect(TUNNEL[0])?;
        let packets = clear.stop()?;
        ensure!(packets.is_empty(), "{} packets in clear", packets.len());
        world.down(&file)?;
        match rule.ends_with('/') {
            true => rename(format!("{folder}.old"), &folder)?,
            false => rename(&old, &mole.0)?,
        }
    }
    Ok(())
}

/// Returns the output of a program started by `mole`, directly or by another program.
fn started(world: &World, mole: &Application, by: &str, bird: &Application) -> Result<String> {
    let ask = format!(
        "exec 3<>/dev/tcp/{}/{PORT} && read -r -u 3 line && echo $line",
        BEYOND[0]
    );
    let script = format!("{by} {} -c '{ask}'; true", bird.0);
    let output = world.near.run(&["timeout", "20", &mole.0, "-c", &script])?;
    Ok(output.text().to_owned())
}

/// Methods of starting another program; the last one runs from a mount point like an AppImage's.
const WAYS: [&str; 5] = [
    "",
    "exec",
    "env A=1",
    "setsid -w",
    "nice -n 1 bash -c '\"$0\" \"$@\"'",
];

/// A launcher, a shell, or a program with several executables: programs that it starts get its
/// rule.
pub(crate) fn child_processes() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let mounted = Application::copy_of(Path::new("/bin/bash"), "../.mount_x/AppRun");
    let mounted = mounted.or_else(|_| {
        fs::create_dir_all(scratch(".mount_x")).map_err(Error::io("folder"))?;
        Application::copy_of(Path::new("/bin/bash"), "../.mount_x/AppRun")
    })?;
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    for way in WAYS {
        for program in [&bird, &mounted] {
            step(&format!("{way} {}", program.0));
            let output = started(&world, &mole, way, program)?;
            ensure!(output == TUNNEL[0], "{output}");
        }
    }
    expect(&world, &bird, 0, Some(UPLINK[0]))?;
    step("a program that has a rule");
    let file = world.file("AllowedApps = mole\nDisallowedApps = bird")?;
    succeeded("reload", &world.taupe(&["reload", &file])?)?;
    let output = started(&world, &mole, "", &bird)?;
    ensure!(output == UPLINK[0], "{output}");
    step("blocked when the tunnel's process is killed");
    let file = world.file("AllowedApps = mole")?;
    succeeded("reload", &world.taupe(&["reload", &file])?)?;
    let device = world.device()?;
    rustix::process::kill_process(device, rustix::process::Signal::KILL)
        .map_err(Error::io("kill"))?;
    let clear = Capture::start(&world.far, "eth0", &format!("tcp port {PORT}"))?;
    let output = started(&world, &mole, "", &bird)?;
    ensure!(output.is_empty(), "{output}");
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.up(&file)?;
    step("each for itself");
    let file = world.file("AllowedApps = mole\nChildren = own")?;
    succeeded("reload", &world.taupe(&["reload", &file])?)?;
    let output = started(&world, &mole, "", &bird)?;
    ensure!(output == UPLINK[0], "{output}");
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    world.down(&file)?;
    step("everything but one, and what it starts");
    let file = world.file("DisallowedApps = mole")?;
    world.up(&file)?;
    let output = started(&world, &mole, "", &bird)?;
    ensure!(output == UPLINK[0], "{output}");
    expect(&world, &bird, 0, Some(TUNNEL[0]))?;
    world.down(&file)
}

/// A rule for a symbolic link applies to its target, and `check` and `explain` report it.
pub(crate) fn links() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let link = format!("{}-link", mole.0);
    symlink("mole", &link).map_err(Error::io("link"))?;
    let folder = scratch("way").display().to_string();
    symlink("applications", &folder).map_err(Error::io("link"))?;
    for rule in [link.clone(), format!("{folder}/")] {
        step(&rule);
        let file = world.file(&format!("AllowedApps = {rule}"))?;
        let checked = world.taupe(&["check", &file])?;
        ensure!(checked.status == Some(0), "{}", checked.stderr);
        ensure!(!checked.stdout.contains("symbolic"), "{}", checked.stdout);
        world.up(&file)?;
        for program in [mole.0.clone(), link.clone()] {
            expect(&world, &Application(program), 0, Some(TUNNEL[0]))?;
        }
        let explained = world.taupe(&["explain", &mole.0, "198.51.100.1:8080"])?;
        let why = format!("uses the tunnel ({file}:");
        ensure!(explained.stdout.contains(&why), "{}", explained.stdout);
        world.down(&file)?;
    }
    step("a child, explained");
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    let script = format!("{} -c 'echo $$; read -r <> <(:)'; true", bird.0);
    let launcher = world.near.spawn(&[&mole.0, "-c", &script])?;
    let children = format!("/proc/{0}/task/{0}/children", launcher.id());
    let child = || fs::read_to_string(&children).unwrap_or_default();
    let is_bird = || {
        let exe = fs::read_link(format!("/proc/{}/exe", child().trim()));
        Ok(exe.is_ok_and(|exe| exe == Path::new(&bird.0)))
    };
    wait_until("the child", PATIENCE, is_bird)?;
    let explained = world.taupe(&["explain", child().trim(), "198.51.100.1:8080"])?;
    ensure!(
        explained.stdout.contains("as the program that started it"),
        "{}",
        explained.stdout
    );
    let list = world.taupe(&["app", "list", &file])?;
    let process = format!("process {}, {}", child().trim(), bird.0);
    ensure!(list.stdout.contains(&process), "{}", list.stdout);
    step("without inheritance");
    let file = world.file("AllowedApps = mole, /bin/sh\nChildren = own")?;
    succeeded("reload", &world.taupe(&["reload", &file])?)?;
    let explained = world.taupe(&["explain", child().trim(), "198.51.100.1:8080"])?;
    ensure!(
        explained.stdout.contains("bypasses the tunnel"),
        "{}",
        explained.stdout
    );
    let checked = world.taupe(&["check", &file])?;
    ensure!(
        checked.stdout.contains("Children = own"),
        "{}",
        checked.stdout
    );
    world.down(&file)
}

/// In adapter mode, by the mark of sockets.
pub(crate) fn by_mark() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    succeeded("up", &world.taupe(&["up", "--adapter", &file])?)?;
    for way in WAYS {
        let output = started(&world, &mole, way, &bird)?;
        ensure!(output == TUNNEL[0], "{way}: {output}");
    }
    expect(&world, &bird, 0, Some(UPLINK[0]))?;
    step("renamed");
    let asking = RepeatedQuery::start(&world, &mole)?;
    asking.expect(TUNNEL[0])?;
    rename(&mole.0, format!("{}.old", mole.0))?;
    asking.expect(TUNNEL[0])?;
    world.down(&file)
}

/// A file restricts its entries to a user. The user changes by `reload`, and stays after a crash.
pub(crate) fn of_one_user() -> Result<()> {
    let world = World::new()?;
    let mole = Application::new("mole")?;
    let is_seen = |user: &str, expected: Option<&str>| {
        let ask = format!(
            "exec 3<>/dev/tcp/{}/{PORT} && read -r -u 3 line && echo $line",
            BEYOND[0]
        );
        let user = format!("--reuid={user}");
        let command = [
            "setpriv",
            &user,
            "--clear-groups",
            "timeout",
            "5",
            &mole.0,
            "-c",
            &ask,
        ];
        let attempt = world.near.attempt(&command)?;
        let seen = (attempt.status == Some(0)).then(|| attempt.stdout.trim().to_owned());
        ensure!(
            seen.as_deref() == expected,
            "{user}: {attempt:?}, not {expected:?}"
        );
        Ok(())
    };
    let file = |user: &str| world.file(&format!("AllowedApps = mole\nAppsOfUser = {user}"));
    let path = file("4711")?;
    world.up(&path)?;
    is_seen("4711", Some(TUNNEL[0]))?;
    for other in ["4712", "0"] {
        is_seen(other, Some(UPLINK[0]))?;
    }
    step("explain, app list and status");
    let wait = "while :; do read -r -t 1 <> <(:); done";
    let other = world.near.spawn(&[&mole.0, "-c", wait])?;
    let explained = world.taupe(&["explain", &other.id().to_string(), "198.51.100.1:8080"])?;
    let why = "belongs to user 0, and the tunnel is for applications of one user";
    ensure!(
        explained.stdout.contains(why) && explained.stdout.contains("AppsOfUser = 4711"),
        "{explained:?}"
    );
    let list = world.taupe(&["app", "list", &path])?;
    let others =
        "all other applications of user 4711 bypass the tunnel; those of other users bypass it";
    ensure!(
        list.stdout.contains(others) && !list.stdout.contains("process "),
        "{list:?}"
    );
    for command in [
        &["app", "list", &*path, "--json"][..],
        &["status", "--json"],
    ] {
        let shown = world.taupe(command)?;
        ensure!(
            shown.stdout.contains("\"apps_of_user\": \"4711\""),
            "{shown:?}"
        );
    }
    let refused = world.taupe(&["prove", "--duration", "1", &mole.0])?;
    ensure!(refused.stderr.contains("no tunnel selects"), "{refused:?}");
    drop(other);
    step("reload");
    let path = file("4712")?;
    succeeded("reload", &world.taupe(&["reload", &path])?)?;
    is_seen("4712", Some(TUNNEL[0]))?;
    for other in ["4711", "0"] {
        is_seen(other, Some(UPLINK[0]))?;
    }
    step("killed");
    world.kill_device()?;
    is_seen("4712", None)?;
    for other in ["4711", "0"] {
        is_seen(other, Some(UPLINK[0]))?;
    }
    world.up(&path)?;
    is_seen("4712", Some(TUNNEL[0]))?;
    is_seen("4711", Some(UPLINK[0]))?;
    step("misuse");
    for (lines, words) in [
        (
            "AppsOfUser = 4711",
            "restricts AllowedApps and DisallowedApps to one user",
        ),
        (
            "AllowedApps = mole\nAppsOfUser = 4711\nKillSwitch = all",
            "KillSwitch = all concerns more than that user",
        ),
        (
            "AllowedApps = mole\nAppsOfUser = no-such",
            "there is no user no-such",
        ),
    ] {
        let path = world.file(lines)?;
        let refused = world.taupe(&["reload", &path])?;
        ensure!(
            refused.status == Some(1) && refused.stderr.contains(words),
            "{refused:?}"
        );
        is_seen("4712", Some(TUNNEL[0]))?;
    }
    world.down(&file("4712")?)?;
    is_seen("4712", Some(UPLINK[0]))
}
