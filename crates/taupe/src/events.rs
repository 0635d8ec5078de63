//! `taupe events`: prints changes of tunnels, and runs a command for each.

use crate::arguments::EventsOrder;
use crate::console::{NotPrinted, print, say};
use crate::repeat::repeat;
use crate::root;
use crate::status::{StatusCommandError, with_advice};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write as _};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;
use taupe_adapter::Compatibility;
use taupe_inspect::events::{Change, Event, EventPeer, Snapshot};
use taupe_inspect::json;
use taupe_inspect::status::{self, Finding, now};

/// Interval between two snapshots.
const EVERY: Duration = Duration::from_secs(1);

pub(crate) fn main(order: &EventsOrder, arguments: &[OsString]) -> ExitCode {
    match run(order, arguments) {
        // The reader ended the output, which is the usual end.
        Ok(()) => ExitCode::SUCCESS,
        Err(StatusCommandError::Output(error)) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

fn run(order: &EventsOrder, arguments: &[OsString]) -> Result<(), StatusCommandError> {
    root::require(Compatibility::Taupe, arguments)?;
    let read = || status::look(order.file.as_deref());
    let mut before = Snapshot::none();
    let handle = |status: Result<status::Status, &status::StatusError>| {
        if let Ok(status) = status {
            let snapshot = Snapshot::new(now().as_secs(), status);
            for event in snapshot.since(&before) {
                report(order, &event)?;
            }
            before = snapshot;
        }
        Ok(())
    };
    Ok(repeat(EVERY, read()?, read, with_advice, handle)?)
}

fn report(order: &EventsOrder, event: &Event) -> Result<(), NotPrinted> {
    let text = line(event);
    let printed = match order.json {
        true => json::line(event),
        false => format!("{text}\n"),
    };
    print(printed.as_bytes())?;
    if let Some(command) = &order.command {
        match execute(command, event, &text) {
            Ok(status) if status.success() => {}
            Ok(status) => say(&format_args!("[!] the command of --exec: {status}")),
            Err(error) => say(&format_args!("[!] /bin/sh cannot be run: {error}")),
        }
    }
    Ok(())
}

fn line(event: &Event) -> String {
    let tunnel = &event.tunnel;
    let at = |peer: &EventPeer| {
        let endpoint = peer.endpoint.as_deref();
        endpoint.map_or_else(String::new, |endpoint| format!(" at {endpoint}"))
    };
    match &event.change {
        Change::Up => format!("{tunnel}: up"),
        Change::Down => format!("{tunnel}: down"),
        Change::Degraded { findings } => {
            let texts: Vec<_> = findings.iter().map(|finding| &*finding.text).collect();
            format!("{tunnel}: degraded: {}", texts.join("; "))
        }
        Change::FindingBegun(Finding { text, .. }) => format!("{tunnel}: {text}"),
        Change::FindingEnded { code, .. } => format!("{tunnel}: resolved: {}", code.name()),
        Change::PeerConnected(peer) => {
            format!("{tunnel}: peer {} connected{}", peer.shown(), at(peer))
        }
        Change::PeerGone(peer) => format!("{tunnel}: session with peer {} ended", peer.shown()),
        Change::PeerRoamed { peer, from } => {
            format!(
                "{tunnel}: peer {} roamed from {from}{}",
                peer.shown(),
                at(peer).replace(" at ", " to ")
            )
        }
    }
}

/// Bytes of an event's text in the environment, at most. The kernel limits a variable to 128 KiB (execve(2)).
const MAX_TEXT: usize = 4096;

/// Runs a command to its end.
fn execute(command: &OsStr, event: &Event, text: &str) -> io::Result<ExitStatus> {
    let (peer, endpoint) = match &event.change {
        Change::PeerConnected(peer) | Change::PeerGone(peer) | Change::PeerRoamed { peer, .. } => {
            (peer.shown(), peer.endpoint.as_deref().unwrap_or_default())
        }
        _ => ("", ""),
    };
    let mut child = Command::new("/bin/sh")
        .arg("-c")
        .arg(command)
        .env("TAUPE_EVENT", event.change.name())
        .env("TAUPE_TUNNEL", &event.tunnel)
        .env("TAUPE_PEER", peer)
        .env("TAUPE_ENDPOINT", endpoint)
        .env(
            "TAUPE_TEXT",
            text.get(..text.floor_char_boundary(MAX_TEXT))
                .unwrap_or(text),
        )
        .stdin(Stdio::piped())
        .spawn()?;
    if let Some(mut input) = child.stdin.take() {
        // The command need not read it.
        let _ = input.write_all(json::line(event).as_bytes());
    }
    child.wait()
}
