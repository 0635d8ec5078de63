//! The configuration protocol as such (the cross-platform userspace interface).

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;
use taupe_lab::host::Host;
use taupe_lab::peers::{Implementation, socket};
use taupe_lab::{Error, Result, ensure};

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
        // The first line is all that wg reads; the second is for people.
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

/// One request on a connection of its own; the answer ends with a blank line.
fn ask(interface: &str, request: &str) -> Result<String> {
    let what = "configuration socket";
    let mut stream = UnixStream::connect(socket(interface)).map_err(Error::io(what))?;
    stream
        .set_read_timeout(Some(Duration::from_secs(5)))
        .map_err(Error::io(what))?;
    stream
        .write_all(request.as_bytes())
        .map_err(Error::io(what))?;
    let mut answer = Vec::new();
    let mut block = [0; 4096];
    while !answer.ends_with(b"\n\n") {
        let size = stream.read(&mut block).map_err(Error::io(what))?;
        if size == 0 {
            break;
        }
        answer.extend(block.iter().take(size));
    }
    Ok(String::from_utf8_lossy(&answer).into_owned())
}
