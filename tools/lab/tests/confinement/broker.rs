//! Messages that a packet process sends to its broker by itself.

use crate::descriptors::{self, Descriptor, Kind};
use crate::intruder::{Intruder, Outcome};
use crate::message;
use serde_json::{Value, json};
use std::time::Duration;
use taupe_lab::process::wait_until;
use taupe_lab::{Error, Result, ensure};

/// Bytes of an answer's text, at most.
const TEXT: usize = 32 << 10;

/// Bytes for the descriptors of an answer.
const CONTROL: usize = 256;

/// Number of the first request. The process itself counts from 0.
const FIRST: u64 = 1 << 40;

const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the next message of the broker, which answers a request with this number, and the numbers
/// of the descriptors that come along.
fn receive(intruder: &mut Intruder, socket: u64, id: u64) -> Result<(Value, Vec<u64>)> {
    let mut found = None;
    wait_until("an answer of the broker", PATIENCE, || {
        let text = intruder.place(&[0; TEXT])?;
        let control = intruder.place(&[0; CONTROL])?;
        let message = message::head(
            intruder,
            [0, 0],
            [text, TEXT as u64],
            [control, CONTROL as u64],
        )?;
        let flags = u64::from((libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC).cast_unsigned());
        let received = intruder.call(libc::SYS_recvmsg, [socket, message, flags, 0, 0, 0])?;
        if let Outcome::Returned(length) = received {
            let text = intruder.read(text, usize::try_from(length).unwrap_or(0))?;
            let answer: Value = serde_json::from_slice(&text)
                .map_err(|_| Error::unmet(String::from_utf8_lossy(&text)))?;
            let control = intruder.read(control, CONTROL)?;
            if answer["Answer"]["id"] == id {
                found = Some((answer["Answer"]["answer"].clone(), numbers_in(&control)));
            }
        }
        intruder.clear();
        Ok(found.is_some())
    })?;
    found.ok_or_else(|| Error::unmet("no answer"))
}

/// Returns the numbers in the first control message.
fn numbers_in(control: &[u8]) -> Vec<u64> {
    let length = control
        .first_chunk()
        .map_or(0, |it| u64::from_ne_bytes(*it));
    let length = usize::try_from(length).unwrap_or(0);
    let numbers = control.get(16..length).unwrap_or_default();
    let numbers = numbers.chunks_exact(4);
    let numbers = numbers.filter_map(|it| Some(u32::from_ne_bytes(it.try_into().ok()?)));
    numbers.map(u64::from).collect()
}

/// Sends requests that the process does not need, and checks the answers.
pub(crate) fn request_all(intruder: &mut Intruder, all: &[Descriptor]) -> Result<()> {
    let mut id = FIRST;
    let socket = broker_of(all)?;
    let mut ask = |intruder: &mut Intruder, request: Value, descriptors: &[u64]| {
        id += 1;
        let text = json!({"Request": {"id": id, "request": request}}).to_string();
        let rights = message::rights(descriptors);
        let sent = message::send(intruder, socket, text.as_bytes(), rights)?;
        let is_sent = matches!(sent, Outcome::Returned(_));
        ensure!(is_sent, "{request}: {sent:?}");
        receive(intruder, socket, id)
    };
    // Sockets for any port and mark come back, and no other descriptors. More lanes than there are
    // give no more sockets.
    for (port, mark, lanes) in [(22, 0, 1), (53, 0x1234, 0), (0, u32::MAX, u64::MAX)] {
        let request = json!({"Bind": {
            "port": port, "mark": mark, "gso": true, "gro": true,
            "lanes": lanes, "multiplier": u16::MAX
        }});
        let (answer, sockets) = ask(intruder, request, &[])?;
        ensure!(answer.get("Bound").is_some(), "port {port}: {answer}");
        ensure!((2..=34).contains(&sockets.len()), "{sockets:?}");
        for socket in sockets {
            let kind = descriptors::of_socket(intruder, socket)?;
            ensure!(kind == Kind::Udp, "port {port}: {kind:?}");
            let found = descriptors::socket_option(intruder, socket, libc::SO_MARK)?;
            ensure!(found == mark, "port {port}: mark {found:#x}");
            intruder.succeed(libc::SYS_close, [socket, 0, 0, 0, 0, 0])?;
        }
    }
    let (answer, _) = ask(intruder, json!("LoadFilter"), &[])?;
    ensure!(answer == "Done", "the filter: {answer}");
    // Other descriptors do not become more powerful by a mark, a filter.
    let numbers = |kind: Kind| -> Vec<u64> {
        let found = all.iter().filter(|it| it.kind == kind);
        found.map(|it| it.number).collect()
    };
    for kind in [Kind::Tun, Kind::Harmless] {
        let Some(number) = numbers(kind).pop() else {
            continue;
        };
        let (answer, _) = ask(intruder, json!({"SetMark": {"mark": 7}}), &[number])?;
        ensure!(
            answer.get("Refused").is_some(),
            "mark of {kind:?}: {answer}"
        );
        let (answer, _) = ask(intruder, json!({"AttachFilter": {"on": true}}), &[number])?;
        ensure!(
            answer.get("Refused").is_some(),
            "filter of {kind:?}: {answer}"
        );
    }
    // A name is a host's, never a file's.
    for host in ["/etc/shadow", "", "a b", "../taupe", "-x"] {
        let request = json!({"LookUp": {"host": host, "port": 1, "mark": 0}});
        let (answer, sockets) = ask(intruder, request, &[])?;
        let is_refused = answer.get("Refused").is_some() && sockets.is_empty();
        ensure!(is_refused, "name {host:?}: {answer}");
    }
    Ok(())
}

/// Messages that are invalid.
pub(crate) fn invalid() -> Vec<(&'static str, Vec<u8>)> {
    let request = |request: Value| {
        let message = json!({"Request": {"id": 1, "request": request}});
        message.to_string().into_bytes()
    };
    let bind = json!({"port": 22, "mark": 0, "gso": true, "gro": true, "lanes": 1});
    vec![
        ("bytes", vec![0xff; 64]),
        ("an open text", b"{\"Request\":{\"id\":1,".to_vec()),
        ("another version", b"{\"version\":2}".to_vec()),
        ("a path", request(json!({"Open": {"path": "/etc/shadow"}}))),
        ("a program", request(json!({"Run": ["/bin/true"]}))),
        ("a request without a field", request(json!({"Bind": bind}))),
        (
            "a port that is none",
            request(json!({"LookUp": {"host": "a", "port": 65_536, "mark": 0}})),
        ),
        (
            "a key that is too short",
            request(json!({"Timestamp": {"key": [1, 2]}})),
        ),
        ("a second start", b"\"Started\"".to_vec()),
        ("a text that is too long", vec![b' '; (64 << 10) + 1]),
    ]
}

/// Returns the number of the socket to the broker.
pub(crate) fn broker_of(descriptors: &[Descriptor]) -> Result<u64> {
    let found = descriptors.iter().find(|it| it.kind == Kind::Broker);
    let found = found.ok_or_else(|| Error::unmet("no socket to a broker"))?;
    Ok(found.number)
}
