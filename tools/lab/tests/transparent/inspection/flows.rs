//! `flows`: the path of each connection, and the reason.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;
use taupe_lab::peers::Implementation;
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::step;
use taupe_lab::{Error, Result, ensure};

use super::json;
use crate::world::{Application, BEYOND, INTERFACE, UPLINK, World, succeeded};

/// Port of the server that reports the bytes it received.
pub(super) const TRANSFER: u16 = 9000;

/// Port of the server that answers datagrams.
const ECHO: u16 = 9001;

/// Bytes that an application sends to the first server, and receives.
pub(super) const SENT: usize = 100_000;
const RECEIVED: usize = 5000;

/// Bytes of a datagram to the second server, and of the answer.
const ASKED: usize = 1000;
const ANSWERED: usize = 300;

/// The path of each application's connections, and their bytes.
pub(crate) fn connections() -> Result<()> {
    let world = World::new()?;
    serve(&world)?;
    let (mole, bird) = (Application::new("mole")?, Application::new("bird")?);
    let file = world.file("AllowedApps = mole")?;
    world.up(&file)?;
    let selected = talk(&world, &mole)?;
    let other = talk(&world, &bird)?;
    let all = json(&world.taupe(&["flows", "--json"])?)?;
    ensure!(all["truncated"] == false, "{all}");
    let line = format!("{file}:{}", lines(&file)?);
    for (process, application, verdict, why) in [
        (
            &selected,
            &mole,
            "tunnel",
            format!("{line}: AllowedApps = mole"),
        ),
        (&other, &bird, "direct", "none of the 1 AllowedApps".into()),
    ] {
        step(verdict);
        let tcp = flow(&all, process, "tcp", TRANSFER)?;
        for (member, value) in [
            ("application", Value::from(&*application.0)),
            ("verdict", verdict.into()),
            ("sent_bytes", SENT.into()),
            ("received_bytes", RECEIVED.into()),
            ("uid", 0.into()),
        ] {
            ensure!(tcp[member] == value, "{member} of {tcp}");
        }
        let result = tcp["why"].as_str().unwrap_or_default();
        ensure!(result.contains(&*why), "{why}: {tcp}");
        let local = tcp["local"].as_str().unwrap_or_default();
        ensure!(local.starts_with(UPLINK[0]), "{tcp}");
        let udp = flow(&all, process, "udp", ECHO)?;
        ensure!(udp["verdict"] == verdict, "{udp}");
        let (sent, received) = match verdict {
            "tunnel" => (Value::from(3 * ASKED), Value::from(3 * ANSWERED)),
            _ => (Value::Null, Value::Null),
        };
        ensure!(udp["sent_bytes"] == sent, "{udp}");
        ensure!(udp["received_bytes"] == received, "{udp}");
    }
    step("of one tunnel");
    let own = world.taupe(&["flows", INTERFACE])?;
    succeeded("flows", &own)?;
    ensure!(own.stdout.contains("tunnel home: "), "{}", own.stdout);
    ensure!(!own.stdout.contains(&bird.0), "{}", own.stdout);
    let nothing = world.taupe(&["flows", "no-such"])?;
    ensure!(nothing.status == Some(1), "{nothing:?}");
    step("as they change");
    let program = Implementation::Taupe.program()?.display().to_string();
    let follow = world
        .near
        .spawn(&[&program, "flows", "--follow", "--json"])?;
    let events = |event: &str, process: &Process| {
        let lines = follow.output();
        let events = lines
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut own = events.filter(|one| one["event"] == event && one["pid"] == process.id());
        own.next()
    };
    wait_until("what there is", Duration::from_secs(30), || {
        Ok(events("begun", &selected).is_some())
    })?;
    let mut third = talk(&world, &mole)?;
    wait_until("another one", Duration::from_secs(30), || {
        Ok(events("begun", &third).is_some())
    })?;
    third.signal(Signal::KILL)?;
    third.wait(Duration::from_secs(10))?;
    wait_until("its end", Duration::from_secs(30), || {
        Ok(events("ended", &third).is_some())
    })?;
    step("blocked");
    let before = json(&world.taupe(&["flows", "--json"])?)?;
    world.kill_device()?;
    let all = json(&world.taupe(&["flows", "--json"])?)?;
    for (process, verdict) in [(&selected, "refused"), (&other, "direct")] {
        for (protocol, port) in [("tcp", TRANSFER), ("udp", ECHO)] {
            let was = flow(&before, process, protocol, port)?;
            let is = flow(&all, process, protocol, port)?;
            ensure!(is["verdict"] == verdict, "{is}");
            // Without the process the kernel has the same figures, and the rules decide the same. Bytes
            // of datagrams are counted in a tunnel only.
            let same = |member: &&str| was[*member] == is[*member];
            let members: &[&str] = match protocol {
                "tcp" => &[
                    "local",
                    "application",
                    "uid",
                    "sent_bytes",
                    "received_bytes",
                ],
                _ => &["local", "application", "uid"],
            };
            ensure!(members.iter().all(same), "{was}, then {is}");
            ensure!(
                process.id() == selected.id() || was == is,
                "{was}, then {is}"
            );
        }
    }
    wait_until("the change", Duration::from_secs(30), || {
        Ok(events("changed", &selected).is_some())
    })?;
    drop(follow);
    world.down(&file)
}

/// Returns the number of the last line, into which [`World::file`] writes its argument.
fn lines(file: &str) -> Result<usize> {
    let text = fs::read_to_string(file).map_err(Error::io(file))?;
    Ok(text.trim_end().lines().count())
}

/// Runs the servers for [`talk`] on `far`.
pub(crate) fn serve(world: &World) -> Result<()> {
    let at = |port| SocketAddr::new(BEYOND[0], port);
    let listener = world
        .far
        .enter(|| TcpListener::bind(at(TRANSFER)).map_err(Error::io("listener")))?;
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            thread::spawn(move || {
                let mut bytes = vec![0; SENT];
                let exchanged = stream
                    .read_exact(&mut bytes)
                    .and_then(|()| stream.write_all(&bytes[..RECEIVED]))
                    // Until the client closes.
                    .and_then(|()| stream.read(&mut [0]));
                drop(exchanged);
            });
        }
    });
    let socket = world
        .far
        .enter(|| UdpSocket::bind(at(ECHO)).map_err(Error::io("socket")))?;
    thread::spawn(move || {
        let mut bytes = [0; 2000];
        while let Ok((_, peer)) = socket.recv_from(&mut bytes) {
            let _ = socket.send_to(&bytes[..ANSWERED], peer);
        }
    });
    Ok(())
}

/// Lets an application exchange data by TCP, and three datagrams by UDP, and keep both sockets
/// open.
pub(crate) fn talk(world: &World, application: &Application) -> Result<Process> {
    let server = BEYOND[0];
    let script = format!(
        "exec 3<>/dev/tcp/{server}/{TRANSFER} 4<>/dev/udp/{server}/{ECHO}; \
         head -c {SENT} /dev/zero >&3; head -c {RECEIVED} <&3 | wc -c; \
         for i in 1 2 3; do printf '%0{ASKED}d' 0 >&4; head -c 1 <&4; done; \
         echo ready; sleep 300 3>&- 4>&-; :"
    );
    let process = world.near.spawn(&[&application.0, "-c", &script])?;
    wait_until("the transfer", Duration::from_secs(30), || {
        Ok(process.output().contains("ready"))
    })?;
    Ok(process)
}

/// Returns the flow of a process to a port of the server.
pub(super) fn flow(all: &Value, process: &Process, protocol: &str, port: u16) -> Result<Value> {
    let remote = SocketAddr::new(BEYOND[0], port).to_string();
    let flows = all["flows"].as_array().map_or(&[][..], Vec::as_slice);
    let is_it = |flow: &&Value| {
        flow["pid"] == process.id() && flow["protocol"] == protocol && flow["remote"] == remote
    };
    let found = flows.iter().find(is_it).cloned();
    found.ok_or_else(|| Error::unmet(format!("no {protocol} to {remote}: {all}")))
}
