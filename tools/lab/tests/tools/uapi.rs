//! The configuration protocol itself (the cross-platform userspace interface).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};
use taupe_lab::host::Host;
use taupe_lab::peers::Implementation;
use taupe_lab::uapi::socket;
use taupe_lab::{Error, Result, ensure};

/// Time limit of an answer on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn bad_line_changes_nothing() -> Result<()> {
    let host = Host::new("a")?;
    let _tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let private_key = "e8".repeat(32);
    let peer = "b8".repeat(32);
    let set = format!(
        "set=1\nprivate_key={private_key}\nlisten_port=1111\nreplace_peers=true\n\
         public_key={peer}\nallowed_ip=10.0.0.0/24\nallowed_ip=fd00::/64\n\n"
    );
    let answer = ask("wg0", &set)?;
    ensure!(answer == "errno=0\n\n", "{answer}");
    let before = ask("wg0", "get=1\n\n")?;
    ensure!(before.contains("listen_port=1111\n"), "{before}");
    ensure!(before.contains("allowed_ip=10.0.0.0/24\n"), "{before}");
    ensure!(before.ends_with("errno=0\n\n"), "{before}");

    let other = "c8".repeat(32);
    let good = format!(
        "listen_port=2222\nfwmark=7\nreplace_peers=true\npublic_key={other}\nallowed_ip=10.0.0.0/24\n"
    );
    for bad in [
        "colour=taupe",
        "allowed_ip=10.0.0.0/33",
        "allowed_ip=10.0.0.0",
        "endpoint=example.org:1",
        "endpoint=192.0.2.1:65536",
        "persistent_keepalive_interval=65536",
        "public_key=b8",
        "preshared_key=zz",
        "protocol_version=2",
        "replace_allowed_ips=false",
        "no equals sign",
    ] {
        let answer = ask("wg0", &format!("set=1\n{good}{bad}\n\n"))?;
        // wg reads the first line only; the second is for people.
        let (number, reason) = answer.split_once('\n').unwrap_or_default();
        let number = number.strip_prefix("errno=").map(str::parse::<i32>);
        ensure!(matches!(number, Some(Ok(..0))), "{bad}: answer {answer:?}");
        let key = bad.split_once('=').map_or("", |(key, _)| key);
        ensure!(
            reason.starts_with("error=line 7") && reason.contains(key),
            "{bad}: answer {answer:?}"
        );
        let after = ask("wg0", "get=1\n\n")?;
        ensure!(after == before, "{bad} has changed\n{before}to\n{after}");
    }
    Ok(())
}

/// Many simultaneous clients are all served.
pub(crate) fn hundred_clients() -> Result<()> {
    const COUNT: usize = 100;
    let host = Host::new("a")?;
    let _tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let clients = (0..COUNT).map(|_| connect("wg0"));
    let mut clients = clients.collect::<Result<Vec<_>>>()?;
    for client in &mut clients {
        let written = client.write_all(b"get=1\n\n");
        written.map_err(Error::io("configuration socket"))?;
    }
    for client in clients {
        let answer = answer(client)?;
        ensure!(answer.ends_with("errno=0\n\n"), "{answer:?}");
    }
    Ok(())
}

/// Silent clients do not block others for long.
pub(crate) fn silent_clients() -> Result<()> {
    /// Three times the timeout of a silent client while others wait.
    const LIMIT: Duration = Duration::from_secs(9);
    let host = Host::new("a")?;
    let _tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let mut single = connect("wg0")?;
    let silent = (0..40)
        .map(|_| connect("wg0"))
        .collect::<Result<Vec<_>>>()?;
    // One of them has sent half a request.
    (&silent[0])
        .write_all(b"set=1\n")
        .map_err(Error::io("socket"))?;
    let began = Instant::now();
    let answer = ask("wg0", "get=1\n\n")?;
    ensure!(answer.ends_with("errno=0\n\n"), "{answer:?}");
    super::ensure_within("an answer beside silent clients", began.elapsed(), LIMIT)?;
    drop(silent);
    // The first client was disconnected, like all that were silent while others waited.
    let limit = Some(Duration::from_secs(5));
    single
        .set_read_timeout(limit)
        .map_err(Error::io("socket"))?;
    let end = single.read(&mut [0]);
    ensure!(matches!(end, Ok(0)), "{end:?}");
    // With no other client waiting, a client may pause for longer.
    let mut slow = connect("wg0")?;
    thread::sleep(Duration::from_secs(4));
    slow.write_all(b"get=1\n\n").map_err(Error::io("socket"))?;
    let read = slow.read(&mut [0; 4096]).map_err(Error::io("socket"))?;
    ensure!(read > 0, "no answer after some seconds");
    Ok(())
}

/// Sends one request on a connection of its own.
fn ask(interface: &str, request: &str) -> Result<String> {
    let mut stream = connect(interface)?;
    let written = stream.write_all(request.as_bytes());
    written.map_err(Error::io("configuration socket"))?;
    answer(stream)
}

fn connect(interface: &str) -> Result<UnixStream> {
    let what = || Error::io("configuration socket");
    let stream = UnixStream::connect(socket(interface)).map_err(what())?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(what())?;
    Ok(stream)
}

/// Reads an answer, which ends with a blank line.
fn answer(mut stream: UnixStream) -> Result<String> {
    let mut answer = Vec::new();
    let mut block = [0; 4096];
    while !answer.ends_with(b"\n\n") {
        let read = stream.read(&mut block);
        let size = read.map_err(Error::io("configuration socket"))?;
        if size == 0 {
            break;
        }
        answer.extend(block.iter().take(size));
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
