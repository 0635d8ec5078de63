//! The systemd units during the start of a machine: the lock before there is a network, the tunnel
//! once there is one, and both later.
//!
//! systemd is the first process of namespaces of its own, in a control group of its own. It has
//! Debian's targets, Taupe's units, and one that creates the network.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::mount::{MountFlags, mount};
use rustix::process::{Signal, kill_process};
use taupe_lab::capture::Capture;
use taupe_lab::cgroup::Group;
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Attempt, Process, wait_until};
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{Application, BEYOND, TUNNEL, UPLINK, World, expect, private_key, serve};

/// Debian's paths of systemd and its units.
const SYSTEMD: &str = "/lib/systemd/systemd";
const DEBIANS: &str = "/lib/systemd/system";

/// Units that a machine needs which starts nothing but a tunnel.
const TARGETS: [&str; 15] = [
    "basic.target",
    "local-fs-pre.target",
    "local-fs.target",
    "multi-user.target",
    "network-online.target",
    "network-pre.target",
    "network.target",
    "nss-lookup.target",
    "paths.target",
    "shutdown.target",
    "slices.target",
    "sockets.target",
    "swap.target",
    "sysinit.target",
    "timers.target",
];

/// The server's port for the application that is not selected; it distinguishes the captured
/// traffic of the two.
const OTHER_PORT: u16 = 8081;

/// Unit that creates the network: it connects the uplink, and reports the machine as online after
/// an application that is not selected has reached the server beyond.
const NETWORK: &str = "[Unit]\nDefaultDependencies=no\nWants=network.target\n\
                       After=network-pre.target\nBefore=network.target\n\
                       [Service]\nType=oneshot\nRemainAfterExit=yes\n\
                       [Install]\nWantedBy=basic.target\n[Service]\nExecStart=/bin/sh ";
const ONLINE: &str = "[Unit]\nDefaultDependencies=no\nAfter=network.target\n\
                      Before=network-online.target\n\
                      [Service]\nType=oneshot\nRemainAfterExit=yes\n\
                      [Install]\nWantedBy=network-online.target\n[Service]\nExecStart=/bin/sh ";

/// From the start of the machine until `down`, no traffic of the selected application leaves
/// unencrypted, whatever happens to the service.
pub(crate) fn from_the_first_unit_on() -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    serve(&world.far, (BEYOND[0], OTHER_PORT).into())?;
    let (file, key) = install(&world, "AllowedApps = mole")?;
    world.near.ip(&["link", "set", "eth0", "down"])?;
    let group = Group::new()?;
    let clear = Capture::start(&world.far, "eth0", "tcp port 8080")?;
    let (selected, other) = (
        asks_on(&world, &mole, crate::world::PORT, "mole")?,
        asks_on(&world, &bird, OTHER_PORT, "bird")?,
    );
    step("start");
    let machine = Machine::start(&world, &group, &key, &["taupe@", "taupe-lock@"])?;
    machine.wait_for("multi-user.target", "active")?;
    for unit in ["taupe-lock@home", "taupe@home"] {
        let state = machine.state(unit)?;
        ensure!(
            state == "active",
            "{unit} is {state}: {}",
            machine.diagnostics()?
        );
    }
    wait_until("the tunnel", Duration::from_secs(20), || {
        Ok(!answers(&selected.1)?.is_empty())
    })?;
    drop((selected.0, other.0));
    let (selected, other) = (answers(&selected.1)?, answers(&other.1)?);
    ensure!(
        selected.iter().all(|who| who == TUNNEL[0]),
        "the selected application is {selected:?}"
    );
    ensure!(
        !other.is_empty() && other.iter().all(|who| who == UPLINK[0]),
        "the other is {other:?}"
    );
    for family in [0, 1] {
        expect(&world, &mole, family, Some(TUNNEL[family]))?;
    }
    let status = world.taupe(&["status", "home"])?;
    ensure!(!status.stdout.contains("adapter"), "{}", status.stdout);
    for killed in [World::daemon, World::device] {
        step("killed, and started again");
        let device = world.device()?;
        kill_process(killed(&world)?, Signal::KILL).map_err(Error::io("kill"))?;
        wait_until("another process", Duration::from_secs(30), || {
            Ok(world.device().is_ok_and(|now| now != device))
        })?;
        machine.wait_for("taupe@home", "active")?;
        expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    }
    step("stopped");
    machine.systemctl(&["stop", "taupe@home"])?;
    expect(&world, &mole, 0, None)?;
    let status = world.taupe(&["status", "home"])?;
    ensure!(status.stdout.starts_with("home: down"), "{}", status.stdout);
    step("started");
    machine.systemctl(&["start", "taupe@home"])?;
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    // The restarted lock finds the tunnel up.
    machine.systemctl(&["restart", "taupe-lock@home"])?;
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    step("reloaded");
    let text = fs::read_to_string(&file).map_err(Error::io(&*file))?;
    fs::write(&file, text.replace("= mole", "= bird")).map_err(Error::io(&*file))?;
    machine.systemctl(&["reload", "taupe@home"])?;
    expect(&world, &bird, 0, Some(TUNNEL[0]))?;
    expect(&world, &mole, 0, Some(UPLINK[0]))?;
    step("a file that is wrong stays wrong");
    machine.systemctl(&["stop", "taupe@home"])?;
    fs::write(&file, text.replace("AllowedIPs", "AllowedIP")).map_err(Error::io(&*file))?;
    let refused = machine.attempt(&["start", "taupe@home"])?;
    ensure!(refused.status == Some(1), "started: {refused:?}");
    let state = machine.state("taupe@home")?;
    ensure!(state == "failed", "{state}");
    expect(&world, &bird, 0, None)?;
    step("down");
    drop(machine);
    world.down("home")?;
    expect(&world, &bird, 0, Some(UPLINK[0]))
}

/// File of the tunnel's key, which a unit after the lock creates.
const KEY: &str = "/run/home.key";

/// Writes the tunnel's file at the path that units use, without its key. Returns its path and the
/// key.
pub(crate) fn install(world: &World, line: &str) -> Result<(String, String)> {
    const FOLDER: &str = "/etc/wireguard";
    mount("lab", FOLDER, "tmpfs", MountFlags::empty(), None).map_err(Error::io(FOLDER))?;
    let (file, path) = (world.file(line)?, format!("{FOLDER}/home.conf"));
    let text = fs::read_to_string(&file).map_err(Error::io(&*file))?;
    let (line, key) = private_key(&text)?;
    let text = text.replace(line, &format!("PrivateKey = file:{KEY}"));
    fs::write(&path, text).map_err(Error::io(&*path))?;
    Ok((path, key.to_owned()))
}

/// Lets an application ask the server beyond repeatedly for its client address, and log the
/// answers.
fn asks_on(
    world: &World,
    application: &Application,
    port: u16,
    name: &str,
) -> Result<(Process, PathBuf)> {
    let path = scratch(&format!("{name}.answers"));
    let script = format!(
        "while :; do (exec 3<>/dev/tcp/{}/{port} && read -t 10 -r -u 3 line && echo $line) >>{}; \
         sleep 0.1; done",
        BEYOND[0],
        path.display()
    );
    let process = world.near.spawn(&[&application.0, "-c", &script])?;
    Ok((process, path))
}

fn answers(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).map_err(Error::io(path.display().to_string()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// A machine started by systemd; killed when it is dropped.
pub(crate) struct Machine<'a> {
    world: &'a World,
    console: PathBuf,
    /// Messages of Taupe's units.
    log: PathBuf,
    /// The parent of the first process.
    parent: Process,
}

impl<'a> Machine<'a> {
    /// Starts it. The named templates of Taupe are enabled for the tunnel `home`.
    pub(crate) fn start(
        world: &'a World,
        group: &Group,
        key: &str,
        enabled: &[&str],
    ) -> Result<Self> {
        let (units, console, log) = (scratch("units"), scratch("console"), scratch("log"));
        fs::write(&console, "").map_err(Error::io("console"))?;
        write_units(&units, key, &log, enabled)?;
        // The script changes no file of the machine, and writes nothing to its console. systemd prepares
        // private devices in /tmp.
        let script = format!(
            "echo 0 >{group}/cgroup.procs && exec unshare --cgroup --pid --fork --kill-child --uts \
             --mount --propagation private sh -c '
                mount -t proc proc /proc && mount -t cgroup2 cgroup2 /sys/fs/cgroup &&
                mount -t tmpfs tmp /tmp && mount --bind {console} /dev/console && mount -o remount,bind,ro / &&
                exec env -i container=lab SYSTEMD_UNIT_PATH={units} \
                    {SYSTEMD} --system --unit=multi-user.target --log-target=console'",
            group = group.path().display(),
            console = console.display(),
            units = units.display(),
        );
        let machine = Self {
            world,
            console,
            log,
            parent: world.near.spawn(&["sh", "-c", &script])?,
        };
        wait_until("systemd", Duration::from_secs(30), || {
            Ok(Path::new("/run/systemd/private").exists())
        })?;
        Ok(machine)
    }

    /// Returns the state of the units and the output on the console.
    fn diagnostics(&self) -> Result<String> {
        let units = self.attempt(&["list-units", "--all", "--no-pager"])?;
        let console = fs::read(&self.console).map_err(Error::io("console"))?;
        let output = String::from_utf8_lossy(&console).into_owned();
        Ok(units.stdout + &units.stderr + &output + &self.log()?)
    }

    /// Returns the messages of Taupe's units.
    pub(crate) fn log(&self) -> Result<String> {
        let log = fs::read(&self.log).map_err(Error::io("log"))?;
        Ok(String::from_utf8_lossy(&log).into_owned())
    }

    /// Runs `systemctl` inside, because systemd checks its caller.
    pub(crate) fn attempt(&self, arguments: &[&str]) -> Result<Attempt> {
        let parent = self.parent.id();
        let children = format!("/proc/{parent}/task/{parent}/children");
        let first = fs::read_to_string(&children).map_err(Error::io(&*children))?;
        let command = [
            "timeout",
            "60",
            "nsenter",
            "--target",
            first.trim(),
            "--mount",
            "--pid",
            "systemctl",
        ];
        self.world.near.attempt(&[&command, arguments].concat())
    }

    pub(crate) fn systemctl(&self, arguments: &[&str]) -> Result<()> {
        let output = self.attempt(arguments)?;
        ensure!(
            output.status == Some(0),
            "{arguments:?}: {output:?}: {}",
            self.diagnostics()?
        );
        Ok(())
    }

    /// Returns a unit's state, such as `active`.
    pub(crate) fn state(&self, unit: &str) -> Result<String> {
        Ok(self.attempt(&["is-active", unit])?.stdout.trim().to_owned())
    }

    pub(crate) fn wait_for(&self, unit: &str, state: &str) -> Result<()> {
        let done = wait_until(unit, Duration::from_secs(90), || {
            Ok(self.state(unit)? == state)
        });
        match done {
            Err(error) => Err(Error::unmet(format!("{error}: {}", self.diagnostics()?))),
            done => done,
        }
    }
}

/// Appended to Taupe's units: a system call that a unit does not permit ends the process, except the one
/// that Taupe tries.
fn strict(log: &Path) -> String {
    format!(
        "[Service]\nSystemCallErrorNumber=kill\nSystemCallFilter=~fsopen:EPERM\nStandardError=append:{}\n",
        log.display()
    )
}

/// Writes the units of a machine, and links those that it starts. The network's unit creates the
/// key.
fn write_units(folder: &Path, key: &str, log: &Path, enabled: &[&str]) -> Result<()> {
    let io = |path: &Path| Error::io(path.display().to_string());
    fs::create_dir_all(folder).map_err(io(folder))?;
    fs::write(log, "").map_err(io(log))?;
    for target in TARGETS {
        let from = Path::new(DEBIANS).join(target);
        fs::copy(&from, folder.join(target)).map_err(io(&from))?;
    }
    let program = Implementation::Taupe.program()?;
    let bin = program.parent().unwrap_or(Path::new("/"));
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    let script = |name: &str, text: &str| -> Result<String> {
        let path = scratch(name);
        fs::write(&path, text).map_err(io(&path))?;
        Ok(path.display().to_string())
    };
    let up = format!(
        "umask 077 && echo {key} >{KEY} && ip link set eth0 up && ip -6 address replace {}/64 dev eth0 && \
         ip route replace default via 192.168.1.2 && \
         ip -6 route replace default via 2001:db8:1::2\n",
        UPLINK[1]
    );
    let wait = format!(
        "until grep -q . {}; do sleep 0.1; done; sleep 1\n",
        scratch("bird.answers").display()
    );
    let mut units = vec![
        (
            "network.service".to_owned(),
            NETWORK.to_owned() + &script("network", &up)?,
        ),
        (
            "online.service".to_owned(),
            ONLINE.to_owned() + &script("online", &wait)?,
        ),
    ];
    for template in ["taupe@", "taupe-hooks@", "taupe-lock@"] {
        let path = packaging.join(format!("{template}.service.in"));
        let text = fs::read_to_string(&path).map_err(io(&path))?;
        let text = text.replace("@BINDIR@", &bin.display().to_string());
        units.push((format!("{template}.service"), text));
        let changes = folder.join(format!("{template}.service.d"));
        fs::create_dir(&changes).map_err(io(&changes))?;
        fs::write(changes.join("lab.conf"), strict(log)).map_err(io(&changes))?;
    }
    for (name, text) in units {
        let path = folder.join(&name);
        fs::write(&path, &text).map_err(io(&path))?;
        let template = name
            .strip_suffix(".service")
            .filter(|name| name.ends_with('@'));
        if template.is_some_and(|template| !enabled.contains(&template)) {
            continue;
        }
        // Like `systemctl enable`.
        let wanted_by = text.lines().find_map(|line| line.strip_prefix("WantedBy="));
        let target = wanted_by.ok_or_else(|| Error::unmet(format!("nobody wants {name}")))?;
        let wants = folder.join(format!("{target}.wants"));
        fs::create_dir_all(&wants).map_err(io(&wants))?;
        let link = wants.join(name.replace('@', "@home"));
        symlink(format!("../{name}"), &link).map_err(io(&link))?;
    }
    Ok(())
}
