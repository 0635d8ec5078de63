//! A tunnel whose process exists but does not answer.

use crate::state::State;
use crate::{INTERFACE, World, device_process};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, Signal, kill_process};
use std::time::{Duration, Instant};
use taupe_lab::process::Attempt;
use taupe_lab::sandbox::{figure, step};
use taupe_lab::{Error, Result, ensure};

/// Three times the time limit of a command: for answers to two questions, or for the end of a
/// process.
const LIMIT: Duration = Duration::from_secs(15);

/// The process is stopped (SIGSTOP): commands report it, and `down` works.
pub(crate) fn process() -> Result<()> {
    let world = World::new()?;
    let file = world.file("", "AllowedIPs = 0.0.0.0/0, ::/0")?;
    let before = State::of(&world.near)?;
    world.up(&file)?;
    let stop = |signal| {
        let number = i32::try_from(device_process(&world.near)?).ok();
        let process = number.and_then(Pid::from_raw);
        let process = process.ok_or_else(|| Error::unmet("a process has no number"))?;
        kill_process(process, signal).map_err(Error::io("kill"))
    };
    stop(Signal::STOP)?;
    let output = quickly(&world, &["status", "--json"])?;
    ensure!(output.stdout.contains("\"process-silent\""), "{output:?}");
    ensure!(output.status == Some(2), "{output:?}");
    for command in [
        &["show", INTERFACE][..],
        &["showconf", INTERFACE],
        &["set", INTERFACE, "fwmark", "7"],
    ] {
        let output = quickly(&world, command)?;
        ensure!(output.status == Some(1), "{output:?}");
        ensure!(output.stderr.contains("does not answer"), "{output:?}");
    }
    let output = quickly(&world, &["down", &file])?;
    ensure!(output.status == Some(0), "{output:?}");
    let left = before.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "down left behind:\n{left}");
    step("its queue of connections is full");
    world.up(&file)?;
    stop(Signal::STOP)?;
    fill_queue()?;
    let output = world.taupe(&["down", &file])?;
    ensure!(output.status == Some(0), "{output:?}");
    let left = before.difference(&State::of(&world.near)?);
    ensure!(left.is_empty(), "down left behind:\n{left}");
    step("one that goes on is as it was");
    world.up(&file)?;
    stop(Signal::STOP)?;
    quickly(&world, &["status"])?;
    stop(Signal::CONT)?;
    let output = world.taupe(&["show", INTERFACE])?;
    ensure!(output.status == Some(0), "{output:?}");
    world.down(&file)?;
    Ok(())
}

/// Fills the queue of the device's configuration socket with connections, like programs that query
/// a stopped process repeatedly.
fn fill_queue() -> Result<()> {
    let path = format!("/var/run/wireguard/{INTERFACE}.sock");
    let address = SocketAddrUnix::new(path).map_err(Error::io("address"))?;
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        match connect(socket.map_err(Error::io("socket"))?, &address) {
            Ok(()) => {}
            Err(Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(Error::io("connect")(error)),
        }
    }
}

/// Runs a command, which must not wait for long.
fn quickly(world: &World, arguments: &[&str]) -> Result<Attempt> {
    let began = Instant::now();
    let attempt = world.taupe(arguments)?;
    let time = began.elapsed();
    figure(&arguments.join(" "), time);
    ensure!(time < LIMIT, "{arguments:?} took {time:?}");
    Ok(attempt)
}
