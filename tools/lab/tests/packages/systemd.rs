//! systemd as the first process of a machine, and the package on such a machine.
//!
//! The machine has namespaces of its own for processes, mounts and its name, and a control group of
//! its own. Its `/dev` is private, and of `/proc/sys` and `/sys` it can change only what belongs to
//! its network and its control groups: everything else belongs to the test machine too.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use taupe_lab::capture::Capture;
use taupe_lab::cgroup::Group;
use taupe_lab::host::Host;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

use crate::machine::{BEYOND, DOWNLOAD, Machine, TUNNEL, UPLINK};
use crate::systems::System;

/// Units that would change the test machine, use its network, or wait for devices.
const MASKED: [&str; 9] = [
    "dev-hugepages.mount",
    "getty.target",
    "proc-sys-fs-binfmt_misc.automount",
    "systemd-logind.service",
    "systemd-sysctl.service",
    "systemd-tmpfiles-setup-dev-early.service",
    "systemd-tmpfiles-setup-dev.service",
    "systemd-udevd.service",
    "timers.target",
];

const SOON: Duration = Duration::from_secs(60);

pub(crate) struct Systemd {
    /// The parent of systemd, which ends with it.
    parent: Process,
    console: PathBuf,
    _group: Group,
}

impl Systemd {
    /// Starts the systemd of a root directory, in the network namespace of a host.
    pub(crate) fn start(host: &Host, root: &Path) -> Result<Self> {
        let units = root.join("etc/systemd/system");
        for unit in MASKED {
            std::os::unix::fs::symlink("/dev/null", units.join(unit)).map_err(Error::io(unit))?;
        }
        let console = scratch("console");
        fs::write(&console, "").map_err(Error::io("console"))?;
        let group = Group::new()?;
        let script = format!(
            "echo 0 >{group}/cgroup.procs && exec unshare --cgroup --pid --fork --kill-child --uts \
             --mount --propagation private sh -ec '
                cd {root}
                mount -t proc proc proc
                mount --bind proc/sys proc/sys
                mount -o remount,bind,ro proc/sys
                mount --bind proc/sys/net proc/sys/net
                mount -o remount,bind,rw proc/sys/net
                mount -t sysfs -o ro sys sys
                mount -t cgroup2 cgroup2 sys/fs/cgroup
                mount -t bpf -o mode=700 bpf sys/fs/bpf
                mount -t tmpfs -o mode=755 run run
                mount -t tmpfs -o mode=1777 tmp tmp
                mount -t tmpfs -o mode=755 dev dev
                mkdir dev/net dev/pts dev/shm
                mount -t devpts -o newinstance,ptmxmode=666 pts dev/pts
                ln -s pts/ptmx dev/ptmx
                mknod -m 666 dev/null c 1 3
                mknod -m 666 dev/zero c 1 5
                mknod -m 666 dev/full c 1 7
                mknod -m 666 dev/random c 1 8
                mknod -m 666 dev/urandom c 1 9
                mknod -m 666 dev/tty c 5 0
                mknod -m 666 dev/net/tun c 10 200
                touch dev/console
                mount --bind {console} dev/console
                pivot_root . mnt
                cd /
                umount -l mnt
                exec env -i container=lab /lib/systemd/systemd --system --unit=multi-user.target \
                    --log-target=console'",
            group = group.path().display(),
            root = root.display(),
            console = console.display(),
        );
        Ok(Self {
            parent: host.spawn(&["sh", "-c", &script])?,
            console,
            _group: group,
        })
    }

    /// Returns the words before a command that runs it on the machine. Waits until the machine has a
    /// first process.
    pub(crate) fn enter(&self) -> Result<Vec<String>> {
        let parent = self.parent.id();
        let children = format!("/proc/{parent}/task/{parent}/children");
        let mut first = String::new();
        wait_until("the first process", SOON, || {
            first = fs::read_to_string(&children).unwrap_or_default();
            Ok(!first.trim().is_empty())
        })?;
        let words = [
            "nsenter",
            "--target",
            first.trim(),
            "--mount",
            "--pid",
            "--uts",
        ];
        Ok(words.map(str::to_owned).to_vec())
    }

    /// Returns the messages of systemd.
    pub(crate) fn console(&self) -> String {
        let console = fs::read(&self.console).unwrap_or_default();
        String::from_utf8_lossy(&console).into_owned()
    }
}

impl Machine {
    fn systemctl(&self, arguments: &[&str]) -> Result<String> {
        let attempt = self.attempt(&[&["systemctl"], arguments].concat())?;
        ensure!(
            attempt.status == Some(0),
            "{arguments:?}: {attempt:?}: {}{}",
            self.attempt(&["journalctl", "--no-pager", "-o", "cat", "-u", "taupe*"])?
                .stdout,
            self.console()
        );
        Ok(attempt.stdout.trim().to_owned())
    }

    /// Returns a property of a unit.
    fn property(&self, unit: &str, name: &str) -> Result<String> {
        self.systemctl(&["show", "--value", "--property", name, unit])
    }

    /// Returns the PID of the service and the path of its program, which has another one's end if the
    /// file was replaced.
    fn serving(&self) -> Result<(String, String)> {
        let id = self.property("taupe@home", "MainPID")?;
        let program = self.attempt(&["readlink", &format!("/proc/{id}/exe")])?;
        Ok((id, program.stdout.trim().to_owned()))
    }

    /// Fails unless the unit is active.
    fn is_active(&self, unit: &str, when: &str) -> Result<()> {
        let state = self.property(unit, "ActiveState")?;
        ensure!(state == "active", "{when}: {unit} is {state}");
        Ok(())
    }

    /// Fails unless reloading applies another selection.
    fn reloads(&self, when: &str) -> Result<()> {
        step(&format!("reload {when}"));
        self.edit("AllowedApps", "AllowedApps = mole, bird")?;
        self.systemctl(&["reload", "taupe@home"])?;
        self.must_be("bird", Some(TUNNEL), when)?;
        self.edit("AllowedApps", "AllowedApps = mole")?;
        self.systemctl(&["reload", "taupe@home"])?;
        self.must_be("bird", Some(UPLINK), when)?;
        self.must_be_tunnelled(when)
    }
}

/// An upgrade to a version with other eBPF maps keeps the services as they are. A restart changes to
/// the new version, and nothing leaves in clear meanwhile. Removing the package stops the services, and
/// a purge disables them.
pub(crate) fn upgrade_and_removal(system: System) -> Result<()> {
    let machine = Machine::booted(system)?;
    let before = machine.network()?;
    let units = ["taupe-lock@home", "taupe@home"];
    machine.install("old.deb")?;
    machine.systemctl(&["enable", "--now", units[0], units[1]])?;
    machine.must_be_tunnelled("started")?;
    machine.reloads("before the upgrade")?;
    let clear = Capture::start(&machine.far, "eth0", &format!("port {DOWNLOAD}"))?;
    let mut download = machine.download()?;
    download.goes_on("before the upgrade")?;
    let (main, _) = machine.serving()?;
    step("upgraded");
    machine.install("new.deb")?;
    download.goes_on("after the upgrade")?;
    for unit in units {
        machine.is_active(unit, "upgraded")?;
        let outdated = machine.property(unit, "NeedDaemonReload")?;
        ensure!(outdated == "no", "systemd has the old {unit}");
    }
    let upgraded = machine.serving()?;
    let expected = (main.clone(), "/usr/bin/taupe (deleted)".to_owned());
    ensure!(upgraded == expected, "{upgraded:?}, not {expected:?}");
    machine.systemctl(&["restart", units[0]])?;
    machine.reloads("after the upgrade")?;
    download.goes_on("after the reload")?;
    download.end()?;
    restart(&machine, &main)?;
    machine.reloads("after the restart")?;
    step("stopped and started");
    machine.systemctl(&["stop", "taupe@home"])?;
    machine.must_be("mole", None, "stopped")?;
    machine.systemctl(&["restart", "taupe-lock@home"])?;
    machine.must_be("mole", None, "locked")?;
    machine.systemctl(&["start", "taupe@home"])?;
    machine.must_be_tunnelled("started again")?;
    let packets = clear.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    removal(&machine, &before)
}

/// Restarts the tunnel while an application sends datagrams without pause.
fn restart(machine: &Machine, main: &str) -> Result<()> {
    step("restarted");
    let send = format!(
        "while :; do (echo datagram >/dev/udp/{BEYOND}/{DOWNLOAD}) 2>/dev/null && echo sent || \
         echo refused; sleep 0.01; done"
    );
    let sends = machine.spawn(&["mole", "-c", &send])?;
    let count = |word: &str| sends.output().lines().filter(|line| *line == word).count();
    wait_until(
        "datagrams in the old tunnel",
        SOON,
        || Ok(count("sent") > 2),
    )?;
    ensure!(count("refused") == 0, "refused while the tunnel is up");
    machine.systemctl(&["restart", "taupe@home"])?;
    // The words come through a pipe, later than the command ends.
    wait_until("a blocked datagram", SOON, || Ok(count("refused") > 0))?;
    let sent = count("sent");
    wait_until("datagrams in the new tunnel", SOON, || {
        Ok(count("sent") > sent + 2)
    })?;
    let (id, program) = machine.serving()?;
    ensure!(id != main, "it is the same process");
    ensure!(program == "/usr/bin/taupe", "it runs {program}");
    for unit in ["taupe-lock@home", "taupe@home"] {
        machine.is_active(unit, "restarted")?;
    }
    machine.must_be_tunnelled("restarted")
}

fn removal(machine: &Machine, before: &str) -> Result<()> {
    const WANTS: &str = "/etc/systemd/system/*.wants/taupe*";
    step("removed");
    machine.succeeds(&["dpkg", "--remove", "taupe"])?;
    machine.must_be("mole", Some(UPLINK), "removed")?;
    let after = machine.network()?;
    ensure!(before == after, "before: {before}\nafter: {after}");
    let no_units = || -> Result<()> {
        let left = machine.systemctl(&["list-units", "--plain", "--no-legend", "taupe*"])?;
        ensure!(left.is_empty(), "units are left: {left}");
        Ok(())
    };
    no_units()?;
    let links = || machine.attempt(&["sh", "-c", &format!("ls {WANTS}")]);
    let enabled = links()?.stdout.lines().count();
    ensure!(enabled == 2, "{enabled} units are enabled");
    step("installed again");
    machine.install("new.deb")?;
    machine.systemctl(&["start", "taupe@home"])?;
    machine.must_be_tunnelled("installed again")?;
    step("purged");
    machine.succeeds(&["dpkg", "--purge", "taupe"])?;
    machine.must_be("mole", Some(UPLINK), "purged")?;
    let enabled = links()?.stdout;
    ensure!(enabled.is_empty(), "still enabled: {enabled}");
    for target in ["multi-user.target", "sysinit.target"] {
        let wants = machine.property(target, "Wants")?;
        ensure!(!wants.contains("taupe"), "{target} wants {wants}");
    }
    no_units()
}
