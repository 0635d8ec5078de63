//! From `up` to `down`, and the ways in which a tunnel may end in between.

use crate::closed::{kill_device, strike_device};
use crate::state::State;
use crate::{BEYOND, INTERFACE, World, device_process, read};
use rustix::process::Signal;
use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use taupe_lab::peers::Implementation;
use taupe_lab::process::{self, Process, wait_until};
use taupe_lab::sandbox::{scratch, scratch_file, step};
use taupe_lab::{Error, Result, ensure};

const FULL: &str = "AllowedIPs = 0.0.0.0/0, ::/0";
const SOON: Duration = Duration::from_secs(10);

fn unchanged(world: &World, before: &State, what: &str) -> Result<()> {
    let left = before.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "{what} left behind:\n{left}");
    Ok(())
}

pub(crate) fn second_up() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", FULL)?;
    let first = world.up(&file)?;
    let line = first.stdout.lines().chain(first.stderr.lines()).next();
    ensure!(
        line.is_some_and(|line| line.contains("adapter mode") && line.contains("--adapter")),
        "the first line does not say the mode and why: {first:?}"
    );
    let shown = world.taupe(&["show", INTERFACE])?.stdout;
    for line in ["  mode: adapter", &format!("  file: {file}")] {
        ensure!(
            shown.lines().any(|shown| shown == line),
            "no {line:?}: {shown}"
        );
    }
    let up = State::of(&world.near)?;
    let second = world.taupe(&["up", "--adapter", &file])?;
    ensure!(second.status == Some(1), "{second:?}");
    ensure!(second.stderr.contains("is up"), "{second:?}");
    unchanged(&world, &up, "a second up")?;
    ensure!(world.tunnelled(BEYOND[0])?, "the tunnel no longer works");
    world.down(&file)?;
    let again = world.taupe(&["down", &file])?;
    ensure!(again.status == Some(1), "{again:?}");
    ensure!(again.stderr.contains("is not up"), "{again:?}");
    Ok(())
}

/// If two start at the same moment, one wins and the other does not disturb it.
pub(crate) fn two_at_once() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", FULL)?;
    let before = State::of(&world.near)?;
    let program = Implementation::Taupe.program()?.display().to_string();
    for _ in 0..5 {
        let start = || world.near.spawn(&[&program, "up", "--adapter", &file]);
        let mut both = [start()?, start()?];
        let mut statuses = Vec::new();
        for one in &mut both {
            statuses.push(one.wait(SOON)?.code());
        }
        statuses.sort_unstable();
        ensure!(
            statuses == [Some(0), Some(1)],
            "they ended with {statuses:?}"
        );
        ensure!(world.tunnelled(BEYOND[0])?, "the tunnel does not work");
        world.down(&file)?;
        unchanged(&world, &before, "two at once")?;
    }
    Ok(())
}

/// Two tunnels of different names look for a free table and free priorities of rules at the same
/// moment.
pub(crate) fn neighbours_at_once() -> Result<()> {
    let world = World::new()?;
    let before = State::of(&world.near)?;
    let one = world.file("", FULL)?;
    let text = read(&one)?.replace("10.77.0.1/24, fd77::1/64", "10.78.0.1/24, fd78::1/64");
    let other = scratch_file("wgother.conf", &text)?;
    let program = Implementation::Taupe.program()?.display().to_string();
    for _ in 0..10 {
        let start = |file: &str| world.near.spawn(&[&program, "up", "--adapter", file]);
        for process in &mut [start(&one)?, start(&other)?] {
            let status = process.wait(SOON)?;
            ensure!(status.success(), "{}", process.output());
        }
        let marks = world.near.run(&["wg", "show", "all", "fwmark"])?;
        let distinct: std::collections::BTreeSet<_> = marks
            .stdout
            .lines()
            .filter_map(|line| line.split_whitespace().nth(1))
            .collect();
        // The third mark is the server's: off.
        ensure!(distinct.len() == 3, "{}", marks.stdout);
        world.down(&one)?;
        world.down(&other)?;
        unchanged(&world, &before, "two tunnels")?;
    }
    Ok(())
}

/// A restarted container finds the journal of the previous one, whose network namespace is gone. A
/// namespace without processes still exists.
pub(crate) fn journal_of_a_deleted_namespace() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", FULL)?;
    let elsewhere = taupe_lab::host::Host::new("elsewhere")?;
    let program = Implementation::Taupe.program()?.display().to_string();
    elsewhere.run(&[&program, "up", "--adapter", &file])?;
    let number = device_process(&elsewhere)?;
    let before = State::of_the_network(&world.near)?;
    let refused = |verb: &str| -> Result<()> {
        let attempt = world.taupe(&[verb, &file])?;
        ensure!(attempt.status == Some(1), "{attempt:?}");
        let says_where = attempt.stderr.contains("another network namespace (net:[");
        ensure!(says_where, "{attempt:?}");
        Ok(())
    };
    refused("up")?;
    process::run(
        "this sandbox",
        {
            let mut kill = std::process::Command::new("kill");
            kill.args(["-9", &number.to_string()]);
            kill
        },
        None,
    )?;
    wait_until("end of the interface", SOON, || {
        let shown = elsewhere.attempt(&["ip", "link", "show", INTERFACE])?;
        Ok(shown.status != Some(0))
    })?;
    refused("up")?;
    refused("down")?;
    elsewhere.delete()?;
    world.up(&file)?;
    ensure!(world.tunnelled(BEYOND[0])?, "the tunnel does not work");
    world.down(&file)?;
    let left = before.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "left behind:\n{left}");
    Ok(())
}

/// A port that another program uses prevents the tunnel: with `up`, and with Debian's `wg-quick`
/// and Taupe's device.
pub(crate) fn taken_port() -> Result<()> {
    let world = World::new()?;
    let file = world.file("ListenPort = 51999", FULL)?;
    let before = State::of(&world.near)?;
    let taker = world
        .near
        .enter(|| std::net::UdpSocket::bind("0.0.0.0:51999").map_err(Error::io("bind")))?;
    let up = world.taupe(&["up", "--adapter", &file])?;
    ensure!(up.status == Some(1), "{up:?}");
    ensure!(up.stderr.contains("51999 is taken"), "{up:?}");
    unchanged(&world, &before, "up")?;
    let mut command = world.near.command(&["wg-quick", "up", &file]);
    command.env(
        "WG_QUICK_USERSPACE_IMPLEMENTATION",
        Implementation::Taupe.daemon()?,
    );
    let up = process::attempt(world.near.name(), command, None)?;
    ensure!(up.status != Some(0), "{up:?}");
    unchanged(&world, &before, "wg-quick up")?;
    drop(taker);
    world.up(&file)?;
    ensure!(world.tunnelled(BEYOND[0])?, "the tunnel does not work");
    Ok(())
}

/// Nothing below `/proc/sys` is writable, as in containers.
pub(crate) fn read_only_variables() -> Result<()> {
    use rustix::mount::{MountFlags, mount_bind, mount_remount};
    let world = World::new()?;
    let variable = "net/ipv4/conf/all/src_valid_mark";
    let file = world.file("", FULL)?;
    let seal = || -> Result<()> {
        mount_bind("/proc/sys", "/proc/sys").map_err(Error::io("/proc/sys"))?;
        let flags = MountFlags::BIND | MountFlags::RDONLY;
        mount_remount("/proc/sys", flags, "").map_err(Error::io("/proc/sys"))
    };
    for (value, possible) in [("0", false), ("1", true)] {
        world.near.sysctl(variable, value)?;
        seal()?;
        let before = State::of(&world.near)?;
        let up = world.taupe(&["up", "--adapter", &file])?;
        ensure!((up.status == Some(0)) == possible, "{value}: {up:?}");
        if possible {
            ensure!(world.tunnelled(BEYOND[0])?, "the tunnel does not work");
            world.down(&file)?;
        } else {
            ensure!(
                up.stderr.contains("--sysctl"),
                "it does not say what to do: {up:?}"
            );
        }
        unchanged(&world, &before, value)?;
        rustix::mount::unmount("/proc/sys", rustix::mount::UnmountFlags::DETACH)
            .map_err(Error::io("/proc/sys"))?;
    }
    Ok(())
}

pub(crate) fn killed_device() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", FULL)?;
    let before = State::of(&world.near)?;
    world.up(&file)?;
    kill_device(&world)?;
    for words in [&["show"][..], &["show", INTERFACE]] {
        let shown = world.taupe(words)?;
        ensure!(shown.stderr.contains("was killed"), "{shown:?}");
    }
    let reload = world.taupe(&["reload", &file])?;
    ensure!(reload.status == Some(1), "{reload:?}");
    ensure!(reload.stderr.contains("was killed"), "{reload:?}");
    let closed = State::of(&world.near)?;
    ensure!(
        !before.difference(&closed).is_empty(),
        "nothing was left to do"
    );
    world.down(&file)?;
    unchanged(&world, &before, "down after a kill")?;
    ensure!(
        !std::path::Path::new(&format!("/var/run/wireguard/{INTERFACE}.sock")).exists(),
        "the socket is still there"
    );
    Ok(())
}

/// The tunnel is no longer up: `up` removes its remains, and starts it.
pub(crate) fn killed_then_up() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", FULL)?;
    let before = State::of(&world.near)?;
    world.up(&file)?;
    let first = State::of(&world.near)?;
    kill_device(&world)?;
    world.up(&file)?;
    unchanged(&world, &first, "the second up")?;
    ensure!(world.tunnelled(BEYOND[0])?, "the tunnel does not work");
    world.down(&file)?;
    unchanged(&world, &before, "down")
}

/// `up` directly after the kill: the dying device still exists for a moment.
pub(crate) fn killed_and_up_at_once() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", FULL)?;
    let before = State::of(&world.near)?;
    world.up(&file)?;
    let first = State::of(&world.near)?;
    for _ in 0..20 {
        strike_device(&world)?;
        world.up(&file)?;
    }
    unchanged(&world, &first, "the last up")?;
    ensure!(world.tunnelled(BEYOND[0])?, "the tunnel does not work");
    world.down(&file)?;
    unchanged(&world, &before, "down")
}

pub(crate) fn deleted_interface() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", FULL)?;
    let before = State::of(&world.near)?;
    world.up(&file)?;
    world.near.ip(&["link", "delete", INTERFACE])?;
    world.down(&file)?;
    unchanged(&world, &before, "down without an interface")
}

/// An interface of the same name that belongs to another program is not touched.
pub(crate) fn foreign_interface() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", FULL)?;
    world.near.ip(&[
        "link", "add", INTERFACE, "type", "veth", "peer", "name", "other",
    ])?;
    let before = State::of(&world.near)?;
    for verb in ["up", "down", "save", "reload"] {
        let attempt = world.taupe(&[verb, &file])?;
        ensure!(attempt.status == Some(1), "{verb}: {attempt:?}");
        ensure!(attempt.stderr.contains(INTERFACE), "{verb}: {attempt:?}");
        unchanged(&world, &before, verb)?;
        // The interface may be the machine's network.
        let advised = attempt.stderr.contains("delete");
        ensure!(!advised, "{verb}: {attempt:?}");
    }
    Ok(())
}

/// With `--foreground`: the tunnel reports that it is ready, and goes down on a signal or with its
/// interface.
pub(crate) fn foreground() -> Result<()> {
    let world = World::new()?;
    let done = scratch("post-down");
    let file = world.file(&format!("PostDown = echo %i >> {}", done.display()), FULL)?;
    let before = State::of(&world.near)?;
    let path = scratch("notify");
    let notify = UnixDatagram::bind(&path).map_err(Error::io("notify"))?;
    notify
        .set_read_timeout(Some(SOON))
        .map_err(Error::io("notify"))?;
    let program = Implementation::Taupe.program()?.display().to_string();
    for end in ["TERM", "INT", "interface"] {
        step(end);
        let mut command = world
            .near
            .command(&[&program, "up", "--adapter", "--foreground", &file]);
        command.env("NOTIFY_SOCKET", &path);
        let mut process = Process::start(world.near.name(), command)?;
        await_notice(&notify, "READY=1")?;
        ensure!(
            world.tunnelled(BEYOND[0])?,
            "ready, and the tunnel does not work"
        );
        match end {
            "TERM" => process.signal(Signal::TERM)?,
            "INT" => process.signal(Signal::INT)?,
            _ => drop(world.near.ip(&["link", "delete", INTERFACE])?),
        }
        let status = process.wait(SOON)?;
        let expected = if end == "interface" { Some(1) } else { Some(0) };
        ensure!(
            status.code() == expected,
            "{end}: {status}: {}",
            process.output()
        );
        unchanged(&world, &before, end)?;
        await_notice(&notify, "STOPPING=1")?;
    }
    ensure!(
        read(&done)?.lines().count() == 3,
        "PostDown ran {}",
        read(&done)?
    );
    Ok(())
}

fn await_notice(socket: &UnixDatagram, wanted: &str) -> Result<()> {
    let mut buffer = [0; 1024];
    loop {
        let length = socket
            .recv(&mut buffer)
            .map_err(Error::io(format!("waiting for {wanted}")))?;
        let text = String::from_utf8_lossy(&buffer[..length]);
        if text.lines().any(|line| line == wanted) {
            return Ok(());
        }
    }
}

/// `up` leaves two processes, the broker and its packet process, in the caller's network namespace, without open pipes of
/// the caller.
pub(crate) fn two_processes() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", FULL)?;
    let processes = || -> Result<Vec<String>> {
        let mut command = std::process::Command::new("pgrep");
        // Excludes ended processes, because their parent, this test, does not wait for them.
        command.args(["--runstates", "D,R,S", "taupe"]);
        let attempt = process::attempt("this sandbox", command, None)?;
        Ok(attempt.stdout.lines().map(str::to_owned).collect())
    };
    let before = processes()?;
    // `attempt` returns when no process holds the pipes any more.
    world.up(&file)?;
    let number = device_process(&world.near)?.to_string();
    let mut expected = before.clone();
    expected.push(number.clone());
    // The listening process is the packet process; its parent is the broker.
    let status = format!("/proc/{number}/status");
    let status = std::fs::read_to_string(&status).map_err(Error::io(status))?;
    let broker = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    expected.extend(broker.map(|id| id.trim().to_owned()));
    expected.sort();
    let mut after = processes()?;
    after.sort();
    ensure!(after == expected, "{after:?} instead of {expected:?}");
    let link = |process: &str, name: &str| {
        std::fs::read_link(format!("/proc/{process}/{name}")).map_err(Error::io("namespace"))
    };
    let caller = world.near.run(&["readlink", "/proc/self/ns/net"])?;
    ensure!(
        link(&number, "ns/net")?.display().to_string() == caller.text(),
        "the device is in another network namespace"
    );
    ensure!(
        link(&number, "exe")? == link(&before[0], "exe")?,
        "the device is another program"
    );
    world.down(&file)?;
    wait_until("end of the process", SOON, || Ok(processes()? == before))
}

/// For a process without core dumps, the files below `/proc` belong to root (`proc(5)`), regardless
/// of its group.
pub(crate) fn no_core_file() -> Result<()> {
    let world = World::new()?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let group = |of: &Process| -> Result<String> {
        let path = format!("/proc/{}/environ", of.id());
        Ok(world
            .near
            .run(&["stat", "-c", "%g", &path])?
            .text()
            .to_owned())
    };
    let daemon = ["setpriv", "--regid=1", "--clear-groups", "--"];
    let other = world
        .near
        .spawn(&[&daemon[..], &["sleep", "60"]].concat())?;
    let device = [&program, "device", "-f", INTERFACE];
    let device = world.near.spawn(&[&daemon[..], &device].concat())?;
    wait_until("the device", SOON, || {
        Ok(world.near.attempt(&["wg", "show", INTERFACE])?.status == Some(0))
    })?;
    ensure!(group(&other)? == "1", "the test cannot tell");
    ensure!(group(&device)? == "0", "a core file can be written");
    Ok(())
}

/// Unchanged parts of the file remain as they are, including sessions.
pub(crate) fn reload() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", "AllowedIPs = 10.88.0.0/16, 198.51.100.0/24")?;
    let before = State::of(&world.near)?;
    world.up(&file)?;
    ensure!(world.tunnelled(BEYOND[0])?, "the tunnel does not work");
    let handshake = || {
        world
            .near
            .run(&["wg", "show", INTERFACE, "latest-handshakes"])
    };
    let first = handshake()?;
    let number = device_process(&world.near)?;

    world.file(
        "MTU = 1300",
        "AllowedIPs = 198.51.100.0/24, 10.99.0.0/16, 2001:db8:5::/48",
    )?;
    let reload = world.taupe(&["reload", &file])?;
    ensure!(reload.status == Some(0), "{reload:?}");
    ensure!(
        device_process(&world.near)? == number,
        "another process runs it"
    );
    ensure!(
        handshake()?.stdout == first.stdout,
        "there was another handshake"
    );
    for address in BEYOND {
        ensure!(world.tunnelled(address)?, "{address} is not in the tunnel");
    }
    let reloaded = State::of(&world.near)?;
    world.down(&file)?;
    unchanged(&world, &before, "down after a reload")?;
    world.up(&file)?;
    unchanged(&world, &reloaded, "a fresh up, compared with a reload,")?;

    // A file with an error changes nothing.
    let text = read(&file)?;
    std::fs::write(&file, format!("{text}Nonsense = 1\n")).map_err(Error::io("file"))?;
    let reload = world.taupe(&["reload", &file])?;
    ensure!(reload.status == Some(1), "{reload:?}");
    unchanged(&world, &reloaded, "a reload of a bad file")?;
    std::fs::write(&file, text).map_err(Error::io("file"))?;
    world.down(&file)?;
    unchanged(&world, &before, "down")
}

/// Nothing is changed if the endpoint's name cannot be resolved.
pub(crate) fn unresolvable() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", FULL)?;
    let text = read(&file)?.replace("192.0.2.2:51821", "nowhere.invalid:51821");
    std::fs::write(&file, text).map_err(Error::io("file"))?;
    let before = State::of(&world.near)?;
    let program = Implementation::Taupe.program()?.display().to_string();
    let mut command = world.near.command(&[&program, "up", "--adapter", &file]);
    command.env("WG_ENDPOINT_RESOLUTION_RETRIES", "0");
    let up = process::attempt(world.near.name(), command, None)?;
    ensure!(up.status == Some(1), "{up:?}");
    for part in ["nowhere.invalid:51821", "`getent ahosts nowhere.invalid`"] {
        ensure!(up.stderr.contains(part), "no {part}: {up:?}");
    }
    unchanged(&world, &before, "up")
}
