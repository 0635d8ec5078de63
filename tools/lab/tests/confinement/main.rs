//! Escape tests of the program's packet processes: calls from inside them, as an attacker makes them.

mod broker;
mod calls;
mod descriptors;
mod guests;
mod intruder;
mod message;
mod netlink;
mod processor;
#[path = "../transparent/world.rs"]
#[expect(dead_code, reason = "the tests of transparent mode use the rest")]
mod world;

use calls::Targets;
use descriptors::{Descriptor, Kind};
use intruder::{Intruder, Outcome};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::time::Duration;
use taupe_lab::host::{Host, neighbours};
use taupe_lab::peers::{Implementation, Keys, Settings, StartOptions, Tunnel};
use taupe_lab::process::{Process, is_emulated, wait_until};
use taupe_lab::sandbox::{Suite, SystemTest, figure, step};
use taupe_lab::{Error, Result, ensure};
use world::{Application, BEYOND, TUNNEL, UPLINK, World, expect};

/// Variable for the reaction to calls that are not on the list.
const REACTION: &str = "TAUPE_CONFINE";

/// Exit status of `taupe up --foreground` if its device failed.
const DEVICE_FAILED: i32 = 75;

/// The interface of a device.
const DEVICE: &str = "wgnear";

/// The name of a test that guests run too.
const VIOLATION: &str = "violation_ends_both_processes";

const PATIENCE: Duration = Duration::from_secs(20);

fn main() {
    let mut tests = vec![
        SystemTest::new("transparent_mode", transparent_mode),
        SystemTest::new("marked_mode", marked_mode),
        SystemTest::new("adapter_mode", adapter_mode),
        SystemTest::new("device", device),
        SystemTest::new(VIOLATION, violation_ends_both_processes),
        SystemTest::new("invalid_messages_end_both_processes", invalid_messages),
    ];
    // Long tests, of which one needs another kernel.
    let is_whole = std::env::var("ESCAPES").is_ok_and(|extent| extent == "whole");
    if is_whole {
        tests.extend(guests::tests());
    }
    Suite::new(tests)
        .prepare(|| Implementation::Taupe.install().map(drop))
        .prepare(move || match is_whole {
            true => guests::prepare(),
            false => Ok(()),
        })
        .main()
}

/// All attempts from inside the packet process of a device.
fn device() -> Result<()> {
    let (near, _far) = neighbours()?;
    let mut tunnel = start(&near, "")?;
    let before = network(&near)?;
    let process = process_of(&mut tunnel)?;
    attack(process, "/etc/wireguard/wgnear.conf", "/sys/fs/bpf/taupe")?;
    step("everything is as before");
    let after = network(&near)?;
    ensure!(before == after, "before: {before}\nafter: {after}");
    ensure!(process.runs()?, "{}", process.output());
    // Its threads go on.
    tunnel.set(&["listen-port", "51830"])?;
    let port = tunnel.show(Some("listen-port"))?.text().to_owned();
    ensure!(port == "51830", "port {port}");
    Ok(())
}

/// The same for a tunnel with a selected application, whose traffic no map may let out.
fn transparent_mode() -> Result<()> {
    with_application(&[])
}

/// The same if its sockets get a mark.
fn marked_mode() -> Result<()> {
    with_application(&["--adapter"])
}

fn with_application(options: &[&str]) -> Result<()> {
    let world = World::new()?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    let mut process = up(&world, &[options, &[&file]].concat())?;
    wait_until("the tunnel", PATIENCE, || {
        ensure!(process.runs()?, "it ended: {}", process.output());
        Ok(process.output().contains("home is up"))
    })?;
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    let before = network(&world.near)?;
    attack(&process, &file, "/sys/fs/bpf/taupe")?;
    step("everything is as before");
    let after = network(&world.near)?;
    ensure!(before == after, "before: {before}\nafter: {after}");
    ensure!(process.runs()?, "{}", process.output());
    expect(&world, &mole, 0, Some(TUNNEL[0]))?;
    expect(&world, &bird, 0, Some(UPLINK[0]))?;
    step("killed, the selected application is blocked");
    kill_packet_process(&process)?;
    let status = process.wait(PATIENCE)?;
    ensure!(status.code() == Some(DEVICE_FAILED), "{status}");
    expect(&world, &mole, 0, None)?;
    expect(&world, &bird, 0, Some(UPLINK[0]))?;
    world.down(&file)
}

/// The same for a full tunnel of `taupe up`.
fn adapter_mode() -> Result<()> {
    let world = World::new()?;
    let file = world.file("")?;
    // The guests have no nf_tables.
    let firewall: &[&str] = match is_emulated() {
        true => &["--no-firewall"],
        false => &[],
    };
    let mut process = up(&world, &[&["--adapter"], firewall, &[&file]].concat())?;
    let beyond = BEYOND[0].to_string();
    let route = || world.near.ip(&["route", "get", &beyond]);
    wait_until("the tunnel", PATIENCE, || {
        ensure!(process.runs()?, "it ended: {}", process.output());
        Ok(route()?.text().contains("dev home"))
    })?;
    let before = network(&world.near)?;
    attack(&process, &file, "/sys/fs/bpf/taupe")?;
    step("everything is as before");
    let after = network(&world.near)?;
    ensure!(before == after, "before: {before}\nafter: {after}");
    ensure!(process.runs()?, "{}", process.output());
    step("a false report does not unblock traffic");
    claim_deletion(process.packet_process_id())?;
    let status = process.wait(PATIENCE)?;
    ensure!(status.code() == Some(DEVICE_FAILED), "{status}");
    let closed = world.near.attempt(&["ip", "route", "get", &beyond])?;
    ensure!(closed.status != Some(0), "{}", closed.stdout);
    world.down(&file)?;
    let open = route()?;
    ensure!(!open.text().contains("home"), "{}", open.text());
    Ok(())
}

/// Closes the TUN in a packet process, and reports that somebody has deleted the interface.
fn claim_deletion(process: u32) -> Result<()> {
    let mut intruder = Intruder::enter(process)?;
    let descriptors = descriptors::of(process, &mut intruder)?;
    for queue in descriptors.iter().filter(|it| it.kind == Kind::Tun) {
        intruder.succeed(libc::SYS_close, [queue.number, 0, 0, 0, 0, 0])?;
    }
    let socket = broker::broker_of(&descriptors)?;
    let claim = br#"{"Ended":{"exit":"InterfaceDeleted"}}"#;
    message::send(&mut intruder, socket, claim, None).map(drop)
}

/// Starts `taupe up --foreground` without fatal violations.
fn up(world: &World, arguments: &[&str]) -> Result<Process> {
    let program = Implementation::Taupe.program()?.display().to_string();
    let variable = format!("{REACTION}=refuse");
    let command = ["env", &variable, &program, "up", "--foreground"];
    world.near.spawn(&[&command, arguments].concat())
}

fn kill_packet_process(process: &Process) -> Result<()> {
    let id = i32::try_from(process.packet_process_id()).ok();
    let id = id.and_then(Pid::from_raw);
    let id = id.ok_or_else(|| Error::unmet("no packet process"))?;
    kill_process(id, Signal::KILL).map_err(Error::io("kill"))
}

/// With fatal violations, a single call ends the process, then its broker, and nothing stays.
fn violation_ends_both_processes() -> Result<()> {
    let (near, _far) = neighbours()?;
    let mut tunnel = start(&near, "kill")?;
    let process = process_of(&mut tunnel)?;
    let id = process.packet_process_id();
    let mut intruder = Intruder::enter(id)?;
    let path = intruder.place(b"/etc/os-release\0")?;
    let here = i64::from(libc::AT_FDCWD).cast_unsigned();
    let outcome = intruder.call(libc::SYS_openat, [here, path, 0, 0, 0, 0])?;
    ensure!(outcome == Outcome::Ended(libc::SIGSYS), "{outcome:?}");
    drop(intruder);
    ensure_gone(&near, process, id, "SIGSYS")
}

/// A message that the broker does not know ends the packet process and the broker.
fn invalid_messages() -> Result<()> {
    let (near, _far) = neighbours()?;
    for (what, message) in broker::invalid() {
        step(what);
        let mut tunnel = start(&near, "")?;
        let process = process_of(&mut tunnel)?;
        let id = process.packet_process_id();
        let mut intruder = Intruder::enter(id)?;
        let descriptors = descriptors::of(id, &mut intruder)?;
        let socket = broker::broker_of(&descriptors)?;
        let sent = message::send(&mut intruder, socket, &message, None)?;
        // The broker may kill the process before the call returns.
        let is_sent = matches!(sent, Outcome::Returned(_) | Outcome::Ended(libc::SIGKILL));
        ensure!(is_sent, "{what}: {sent:?}");
        drop(intruder);
        ensure_gone(&near, process, id, "the packet process was ended")?;
    }
    Ok(())
}

/// Starts a device with a port. A call that is not on the list has the given reaction.
fn start(near: &Host, reaction: &str) -> Result<Tunnel> {
    let options = StartOptions {
        variables: vec![(REACTION.to_owned(), reaction.to_owned())],
        ..StartOptions::default()
    };
    let tunnel = Implementation::Taupe.start_quietly(near, DEVICE, &options)?;
    tunnel.configure(&Settings {
        private_key: &Keys::new(near)?.private,
        listen_port: Some(51820),
        addresses: &["10.77.0.1/24"],
        peers: &[],
    })?;
    Ok(tunnel)
}

fn process_of(tunnel: &mut Tunnel) -> Result<&mut Process> {
    let process = tunnel.process();
    process.ok_or_else(|| Error::unmet("not a program of this machine"))
}

/// Makes all attempts, and reports those that were not refused.
fn attack(process: &Process, key_file: &str, pin: &str) -> Result<()> {
    let (id, broker) = (process.packet_process_id(), process.id());
    ensure!(id != broker, "no packet process: {}", process.output());
    let targets = Targets {
        broker,
        key_file,
        pin,
    };
    let mut intruder = Intruder::enter(id)?;
    let descriptors = descriptors::of(id, &mut intruder)?;
    step("descriptors");
    // A file, a map, a program of eBPF, another process.
    let foreign = descriptors.iter().filter(|it| it.kind == Kind::Other);
    let mut escapes: Vec<_> = foreign.map(|it| format!("{it:?}")).collect();
    for kind in [Kind::Udp, Kind::Tun, Kind::Broker] {
        let has = descriptors.iter().any(|it: &Descriptor| it.kind == kind);
        ensure!(has, "no {kind:?} among {descriptors:?}");
    }
    step("root directory");
    let root = format!("/proc/{id}/root");
    let files = fs::read_dir(&root).map_err(Error::io(&*root))?;
    ensure!(files.count() == 0, "its root directory is not empty");
    step("calls");
    let (found, calls) = calls::attempt_all(&mut intruder, &descriptors, &targets)?;
    escapes.extend(found);
    step("netlink");
    let (found, changes) = netlink::attempt_all(&mut intruder, &descriptors)?;
    escapes.extend(found);
    ensure!(changes > 0, "no netlink socket");
    step("marks");
    escapes.extend(message::mark_all(&mut intruder, &descriptors)?);
    figure("calls and changes", (calls, changes));
    ensure!(escapes.is_empty(), "{escapes:#?}");
    step("requests");
    broker::request_all(&mut intruder, &descriptors)
}

/// Checks that a device has ended with this message, and that nothing of it is left.
fn ensure_gone(near: &Host, process: &mut Process, id: u32, words: &str) -> Result<()> {
    let status = process.wait(PATIENCE)?;
    ensure!(!status.success(), "{status}");
    let output = process.output();
    ensure!(output.contains(words), "{words}: {output}");
    let show = near.attempt(&["ip", "link", "show", "dev", DEVICE])?;
    ensure!(show.status != Some(0), "{}", show.stdout);
    let left = [
        taupe_lab::uapi::socket(DEVICE),
        Path::new("/proc").join(id.to_string()),
    ];
    for path in left {
        ensure!(!path.exists(), "{} is left: {output}", path.display());
    }
    Ok(())
}

/// Returns the configuration of a machine's network, without the link-local addresses that the kernel
/// adds when it notices a carrier.
fn network(host: &Host) -> Result<String> {
    let script = "{ ip -o link; ip -o address; ip rule; ip -6 rule; \
                  ip -4 route show table all; ip -6 route show table all; } | \
                  grep -v -e fe80: -e ff00::/8";
    Ok(host.run(&["sh", "-c", script])?.stdout)
}
