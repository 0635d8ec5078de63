//! Selected servers, reached only through the tunnel.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use taupe_lab::capture::Capture;
use taupe_lab::host::Transport;
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{scratch, step};
use taupe_lab::{Error, Result, ensure};

use crate::world::{TUNNEL, UPLINK, World};

/// Time limit of a server for a whole file.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time to wait for a server that does not answer.
const SILENCE: Duration = Duration::from_secs(2);

/// Size of the served file in bytes.
const SIZE: usize = 10_000_000;

/// Unencrypted packets of a server on one of these ports.
const CLEAR: &str = "(src host 192.168.1.1 or src host 2001:db8:1::1) and \
                     (port 8000 or port 5201)";

/// A web server sends 10 MB to the other side of the tunnel, with either side closing first.
pub(crate) fn web() -> Result<()> {
    let world = World::new()?;
    let folder = scratch("served");
    fs::create_dir_all(&folder).map_err(Error::io("what is served"))?;
    let content: Vec<u8> = (0..SIZE).map(|number| (number % 251) as u8).collect();
    fs::write(folder.join("file"), &content).map_err(Error::io("what is served"))?;
    let folder = folder.display().to_string();
    // One server closes first, with HTTP 1.0; the other waits.
    let server = |port: &'static str, protocol| {
        world.near.spawn(&[
            "/usr/bin/python3",
            "-m",
            "http.server",
            port,
            "--bind",
            "::",
            "--directory",
            &folder,
            "--protocol",
            protocol,
        ])
    };
    let file = world.file("AllowedApps = python3*\nPersistentKeepalive = 25")?;
    for (protocol, closes) in [("HTTP/1.0", "first"), ("HTTP/1.1", "last")] {
        step(&format!("the server closes {closes}"));
        world.up(&file)?;
        world.meet()?;
        let capture = Capture::start(&world.far, "eth0", CLEAR)?;
        let running = server("8000", protocol)?;
        wait_until("the web server", PATIENCE, || {
            world.near.listens(Transport::Tcp, 8000)
        })?;
        for address in TUNNEL {
            let got = get(&world, at(address, 8000)?, protocol == "HTTP/1.0")?;
            ensure!(got == content, "{} bytes at {address}", got.len());
        }
        step("nobody answers in the local network");
        for address in UPLINK {
            is_silent(&world, at(address, 8000)?)?;
        }
        let packets = capture.stop()?;
        ensure!(packets.is_empty(), "{} packets in clear", packets.len());
        step("killed, and down");
        world.kill_device()?;
        for address in UPLINK {
            is_silent(&world, at(address, 8000)?)?;
        }
        world.down(&file)?;
        drop(running);
    }
    step("no tunnel selects it");
    let _running = server("8000", "HTTP/1.0")?;
    wait_until("the web server", PATIENCE, || {
        world.near.listens(Transport::Tcp, 8000)
    })?;
    world.up(&world.file("AllowedApps = mole\nPersistentKeepalive = 25")?)?;
    world.meet()?;
    for (address, tunnel) in UPLINK.into_iter().zip(TUNNEL) {
        let got = get(&world, at(address, 8000)?, true)?;
        ensure!(got == content, "{} bytes at {address}", got.len());
        let through = world
            .far
            .enter(|| Ok(TcpStream::connect_timeout(&at(tunnel, 8000)?, SILENCE)))?;
        ensure!(
            through.is_err(),
            "{tunnel} reaches a server that is not selected"
        );
    }
    Ok(())
}

/// iperf3 in both directions, and with datagrams.
pub(crate) fn iperf3() -> Result<()> {
    let world = World::new()?;
    let file = world.file("AllowedApps = iperf3\nPersistentKeepalive = 25")?;
    world.up(&file)?;
    world.meet()?;
    let capture = Capture::start(&world.far, "eth0", CLEAR)?;
    for (address, options) in [
        (TUNNEL[0], &["-n", "10M"][..]),
        (TUNNEL[1], &["-n", "10M", "-R"]),
        (TUNNEL[0], &["-n", "10M", "-R", "-P", "4"]),
        (TUNNEL[1], &["-u", "-b", "20M", "-n", "1M"]),
    ] {
        step(&format!("{address} {options:?}"));
        // A server for each test: between two clients a server closes its socket, and would reject
        // a new one.
        let _server = world.near.spawn(&["iperf3", "-s", "-1"])?;
        wait_until("iperf3", PATIENCE, || {
            world.near.listens(Transport::Tcp, 5201)
        })?;
        let client = [&["timeout", "30", "iperf3", "-c", address], options].concat();
        world.far.run(&client)?;
    }
    let _server = world.near.spawn(&["iperf3", "-s"])?;
    wait_until("iperf3", PATIENCE, || {
        world.near.listens(Transport::Tcp, 5201)
    })?;
    for address in UPLINK {
        is_silent(&world, at(address, 5201)?)?;
    }
    let packets = capture.stop()?;
    ensure!(packets.is_empty(), "{} packets in clear", packets.len());
    world.down(&file)
}

/// Checks that no answer arrives, not even a rejection.
pub(crate) fn is_silent(world: &World, server: SocketAddr) -> Result<()> {
    let answer = world
        .far
        .enter(|| Ok(TcpStream::connect_timeout(&server, SILENCE)))?;
    match answer {
        Err(error) if error.kind() == ErrorKind::TimedOut => Ok(()),
        Err(error) => Err(Error::unmet(format!("{server} answers: {error}"))),
        Ok(_) => Err(Error::unmet(format!("{server} can be reached"))),
    }
}

/// Fetches the file from `far`.
fn get(world: &World, server: SocketAddr, server_closes: bool) -> Result<Vec<u8>> {
    let what = || Error::io(format!("the file from {server}"));
    world.far.enter(|| {
        let mut stream = TcpStream::connect_timeout(&server, PATIENCE).map_err(what())?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(what())?;
        stream
            .write_all(b"GET /file HTTP/1.1\r\nHost: near\r\n\r\n")
            .map_err(what())?;
        let mut answer = Vec::new();
        let mut head = None;
        loop {
            let mut part = vec![0; 65536];
            let length = stream.read(&mut part).map_err(what())?;
            answer.extend(&part[..length]);
            head = head.or_else(|| answer.windows(4).position(|end| end == b"\r\n\r\n"));
            let is_complete = head.is_some_and(|head| answer.len() >= head + 4 + SIZE);
            if length == 0 || (is_complete && !server_closes) {
                let head = head.ok_or_else(|| Error::unmet("no answer"))?;
                return Ok(answer.split_off(head + 4));
            }
        }
    })
}

pub(crate) fn at(address: &str, port: u16) -> Result<SocketAddr> {
    let address = address
        .parse()
        .map_err(|error| Error::unmet(format!("{address}: {error}")))?;
    Ok(SocketAddr::new(address, port))
}
