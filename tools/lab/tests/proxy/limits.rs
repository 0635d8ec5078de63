//! Limits of resources: long datagrams, memory, descriptors.

use crate::socks::{at, connected, reply};
use crate::world::{BEYOND, ECHO, PATIENCE, SOCKS, World, end, listen};
use rustix::process::{Resource, getrlimit, setrlimit};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::{figure, step};
use taupe_lab::traffic::serve_echo;
use taupe_lab::{Error, Result, ensure};

/// UDP answers that exceed the MTU.
pub(crate) fn long_answers() -> Result<()> {
    const SERVER: u16 = 9001;
    const TRIES: usize = 10;
    let world = World::new()?;
    for address in BEYOND {
        let bind = || UdpSocket::bind((address, SERVER)).map_err(Error::io("server"));
        let socket = world.far.enter(bind)?;
        thread::spawn(move || {
            let mut question = [0; 2];
            while let Ok((_, from)) = socket.recv_from(&mut question) {
                let _ = socket.send_to(&answer(u16::from_be_bytes(question)), from);
            }
        });
    }
    let proxy = world.proxy(&world.full()?, &[])?;
    let io = || Error::io("SOCKS");
    let mut control = world.connect(SOCKS)?;
    control.write_all(&[5, 1, 0]).map_err(io())?;
    control.read_exact(&mut [0; 2]).map_err(io())?;
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let request = [&[5, 3, 0], &at(any)[..]].concat();
    control.write_all(&request).map_err(io())?;
    let (code, relay) = reply(&mut control)?;
    ensure!(code == 0, "reply {code}");
    let bind = || UdpSocket::bind("127.0.0.1:0").map_err(Error::io("client"));
    let client = world.near.enter(bind)?;
    let limit = Some(Duration::from_secs(3));
    client.set_read_timeout(limit).map_err(io())?;
    for address in BEYOND {
        for length in [1000, 1400, 2000, 10_000, 60_000_u16] {
            step(&format!("{length} bytes from {address}"));
            let head = [&[0, 0, 0], &at(SocketAddr::new(address, SERVER))[..]].concat();
            let expected = [&head[..], &answer(length)].concat();
            let mut buffer = vec![0; 1 << 16];
            let mut ask = || {
                let question = [&head[..], &length.to_be_bytes()].concat();
                client.send_to(&question, relay).map_err(io())?;
                match client.recv(&mut buffer) {
                    Ok(received) => Ok(buffer[..received] == expected),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
                    Err(error) => Err(io()(error)),
                }
            };
            let mut is_answered = false;
            for _ in 0..TRIES {
                is_answered = ask()?;
                if is_answered {
                    break;
                }
            }
            ensure!(is_answered, "no answer of {length} bytes from {address}");
        }
    }
    end(proxy)
}

fn answer(length: u16) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8).collect()
}

/// The proxy frees the memory of many connections when they have ended.
pub(crate) fn burst() -> Result<()> {
    const CONNECTIONS: usize = 1000;
    /// Bytes for each client, which reads none of them.
    const EACH: usize = 96 << 10;
    /// In the first round the proxy takes 84 MB: later connections get smaller buffers.
    const LARGE: usize = 64 << 20;
    const IDLE: usize = 40 << 20;
    allow_many_descriptors()?;
    let world = World::new()?;
    let address = SocketAddr::new(BEYOND[0], 9000);
    let listener = listen(&world.far, address)?;
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            thread::spawn(move || {
                let _ = stream.write_all(&vec![7; EACH]);
                stream.read(&mut [0])
            });
        }
    });
    let proxy = world.proxy(&world.full()?, &[])?;
    for round in 0..2 {
        step(&format!("burst {round}"));
        let mut streams = Vec::new();
        for _ in 0..CONNECTIONS {
            streams.push(connected(&world, address)?);
        }
        wait_until("much memory in use", PATIENCE, || {
            Ok(resident(&proxy)? > LARGE)
        })?;
        figure("bytes in use", resident(&proxy)?);
    }
    wait_until("an idle proxy that is small", 2 * PATIENCE, || {
        Ok(resident(&proxy)? < IDLE)
    })?;
    figure("bytes in use when idle", resident(&proxy)?);
    end(proxy)
}

/// Returns the resident memory of a process, in bytes.
fn resident(process: &Process) -> Result<usize> {
    let path = format!("/proc/{}/status", process.id());
    let text = fs::read_to_string(&path).map_err(Error::io(&*path))?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<usize>().ok());
    Ok(number.ok_or_else(|| Error::unmet("VmRSS"))? << 10)
}

/// Raises this process's limit of descriptors, because it holds clients and servers of all
/// connections.
fn allow_many_descriptors() -> Result<()> {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).map_err(Error::io("limit of descriptors"))
}

/// Out of descriptors, the proxy prints one message, and continues when clients have left.
pub(crate) fn descriptors() -> Result<()> {
    const LIMIT: u64 = 40;
    const CLIENTS: u64 = 2 * LIMIT;
    let world = World::new()?;
    let echo = SocketAddr::new(BEYOND[0], ECHO);
    serve_echo(&world.far, echo)?;
    let limit = format!("--nofile={LIMIT}:{LIMIT}");
    let proxy = world.proxy_by(&["prlimit", &limit], &world.full()?, &[])?;
    let clients = (0..CLIENTS).map(|_| world.connect(SOCKS));
    let clients = clients.collect::<Result<Vec<_>>>()?;
    let warnings = || {
        let output = proxy.output();
        output
            .lines()
            .filter(|line| line.contains("accept"))
            .count()
    };
    wait_until("a warning", PATIENCE, || Ok(warnings() > 0))?;
    // It retries five times a second.
    thread::sleep(Duration::from_secs(2));
    ensure!(warnings() == 1, "{}", proxy.output());
    drop(clients);
    let mut stream = None;
    wait_until("a connection", PATIENCE, || {
        stream = connected(&world, echo).ok();
        Ok(stream.is_some())
    })?;
    drop(stream);
    end(proxy)
}
