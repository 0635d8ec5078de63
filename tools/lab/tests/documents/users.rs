//! Tunnels of an ordinary user: `taupe exec` and `taupe proxy`.

use crate::checks::printed;
use crate::world::{BEYOND, SOON, TUNNEL, World};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use taupe_lab::documents::{Block, Command};
use taupe_lab::host::Transport;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::step;
use taupe_lab::traffic::tcp_echo;
use taupe_lab::{Error, Result, ensure};

fn world() -> Result<World> {
    let world = World::of_a_user()?;
    world.write("home.conf", &world.conf(""))?;
    world.must_be("curl", None, "outside the tunnel")?;
    Ok(world)
}

/// Commands in a tunnel of their own. The shell of the second one stays open for the third.
pub(crate) fn one_command(block: &Block) -> Result<()> {
    let world = world()?;
    let mut shell = world.shell()?;
    let mut inside = None;
    for command in &block.commands {
        match &*command.words() {
            [.., last] if last == "bash" => {
                step(&format!("{}: {}", block.place(command), command.text));
                let mut bash = world.start_interactive(&command.text)?;
                let mut input = bash.stdin.take();
                let ask = format!("curl -sS --max-time 20 http://{BEYOND}/ >answer\n");
                if let Some(input) = &mut input {
                    input.write_all(ask.as_bytes()).map_err(Error::io("bash"))?;
                }
                wait_until("an answer inside the shell", SOON, || {
                    let answer = fs::read_to_string(world.folder.join("answer"));
                    Ok(answer.is_ok_and(|it| it.trim() == TUNNEL))
                })?;
                inside = Some((bash, input));
            }
            [.., last] if last == "firefox" => {
                let output = shell.run(block, command)?;
                printed(command, &output, TUNNEL)?;
            }
            _ => {
                let output = shell.run(block, command)?;
                printed(command, &output, "s_server")?;
            }
        }
    }
    let (mut bash, input) = inside.ok_or_else(|| Error::unmet("no shell"))?;
    drop(input);
    let status = bash.wait().map_err(Error::io("bash"))?;
    ensure!(status.success(), "bash in the tunnel: {status}");
    Ok(())
}

/// A proxy in the background, and curl as its client.
pub(crate) fn socks(block: &Block) -> Result<()> {
    let world = world()?;
    let mut shell = world.shell()?;
    for command in &block.commands {
        let output = shell.run(block, command)?;
        match &*command.words() {
            [.., last] if last == "&" => world.wait_for_port(1080)?,
            [first, ..] if first == "kill" => wait_until("the proxy's end", SOON, || {
                Ok(!world.near.listens(Transport::Tcp, 1080)?)
            })?,
            _ => printed(command, &output, "s_server")?,
        }
    }
    Ok(())
}

/// A proxy in the foreground, for HTTP and a forwarded port.
pub(crate) fn http_and_forward(block: &Block) -> Result<()> {
    let world = world()?;
    for command in &block.commands {
        let process = start(&world, block, command)?;
        for port in [8118, 5432] {
            world.wait_for_port(port)?;
        }
        #[rustfmt::skip]
        let answer = world.near.run(&[
            "curl", "-sS", "--max-time", "20", "--proxy", "http://127.0.0.1:8118", "http://example.org/",
        ])?;
        ensure!(answer.text() == TUNNEL, "by HTTP: {answer:?}");
        tcp_echo(
            &world.near,
            SocketAddr::from(([127, 0, 0, 1], 5432)),
            10_000,
        )?;
        end(process)?;
    }
    Ok(())
}

pub(crate) fn start(world: &World, block: &Block, command: &Command) -> Result<Process> {
    step(&format!("{}: {}", block.place(command), command.text));
    world.start(&command.text)
}

/// Ends a program as Ctrl-C does.
fn end(mut process: Process) -> Result<()> {
    process.signal(Signal::INT)?;
    let status = process.wait(SOON)?;
    ensure!(status.success(), "{status}: {}", process.output());
    Ok(())
}
