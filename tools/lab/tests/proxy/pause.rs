//! A proxy that is stopped for a while.

use crate::socks::connected;
use crate::world::{BEYOND, ECHO, World, end};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::time::Duration;
use taupe_lab::capture::{Capture, Message, messages};
use taupe_lab::process::{Process, wait_until};
use taupe_lab::traffic::serve_echo;
use taupe_lab::{Error, Result};

/// While the proxy was stopped, the server has tried several times. The server accepts an answer
/// only to its last initiation, so the proxy must answer this one.
pub(crate) fn newest_initiation_first() -> Result<()> {
    let world = World::new()?;
    let address = SocketAddr::new(BEYOND[0], ECHO);
    serve_echo(&world.far, address)?;
    let proxy = world.proxy(&world.full()?, &[])?;
    connected(&world, address)?;
    // On a busy machine the server may send the next initiation before the proxy answers.
    for _ in 0..3 {
        if initiations_until_an_answer(&world, &proxy)? == 0 {
            return end(proxy);
        }
    }
    Err(Error::unmet("more initiations until one was answered"))
}

/// Stops the proxy during three handshakes of the server, and counts the server's further
/// initiations until one is answered.
fn initiations_until_an_answer(world: &World, proxy: &Process) -> Result<usize> {
    world.far.ip(&["link", "set", "wgfar", "down"])?;
    proxy.signal(Signal::STOP)?;
    let client = &*world.server.client.public;
    #[rustfmt::skip]
    world.far.run(&["wg", "set", "wgfar", "peer", client, "persistent-keepalive", "1"])?;
    let [_, before] = transfer(world)?;
    world.far.ip(&["link", "set", "wgfar", "up"])?;
    // An initiation has 148 bytes, and the next one follows after 5 s.
    wait_until("three initiations", Duration::from_secs(60), || {
        Ok(transfer(world)?[1] >= before + 3 * 148)
    })?;

    let [before, _] = transfer(world)?;
    let capture = Capture::start(&world.far, "eth0", "udp src port 51821")?;
    proxy.signal(Signal::CONT)?;
    wait_until("an answer", Duration::from_secs(20), || {
        Ok(transfer(world)?[0] > before)
    })?;
    let packets = capture.stop()?;
    Ok(messages(&packets, Message::Initiation).count())
}

/// Returns the bytes that the server has received and sent.
fn transfer(world: &World) -> Result<[u64; 2]> {
    let shown = world.far.run(&["wg", "show", "wgfar", "transfer"])?.stdout;
    let numbers = shown
        .split_whitespace()
        .filter_map(|word| word.parse().ok());
    let numbers: Vec<_> = numbers.collect();
    let numbers = numbers.try_into();
    numbers.map_err(|_| Error::unmet(format!("transfer is {shown:?}")))
}
