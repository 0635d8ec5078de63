//! `taupe up --wait`: waits until the peers of a new tunnel have answered.

use super::error::TunnelError;
use crate::console::say;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::thread;
use std::time::{Duration, Instant};
use taupe_client::{Error, PeerUpdate, PublicKey, SetRequest};
use taupe_inspect::status::{USUAL_CAUSES, look, peers_with_endpoint};

/// Intervals between two reads of the device: the first, and the longest.
const INTERVALS: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// Waits until each peer with an `Endpoint` has answered a handshake. Ignores peers without one: they
/// start handshakes themselves.
pub(super) fn for_answers(interface: &str, time: Duration) -> Result<(), TunnelError> {
    let end = Instant::now() + time;
    let [mut interval, longest] = INTERVALS;
    let mut awaited = None;
    let mut started = HashSet::new();
    loop {
        let silent = silent(interface, &mut awaited, &mut started);
        if awaited.as_ref().is_some_and(HashSet::is_empty) {
            say(&format_args!(
                "{interface}: no peer has an Endpoint, so none is waited for"
            ));
            return Ok(());
        }
        let is_over = Instant::now() >= end;
        match silent {
            Ok(0) => {
                say(&format_args!(
                    "{interface}: every peer with an Endpoint has answered"
                ));
                return Ok(());
            }
            Ok(_) if is_over => return Err(no_answer(interface, time, findings(interface))),
            Err(Error::NoDevice | Error::NoKernelSupport) => {
                return Err(TunnelError::GoneMeanwhile(interface.to_owned()));
            }
            Err(error) if is_over => return Err(no_answer(interface, time, error.to_string())),
            Ok(_) | Err(_) => {}
        }
        thread::sleep(interval);
        interval = (interval * 3 / 2).min(longest);
    }
}

fn no_answer(interface: &str, time: Duration, reasons: String) -> TunnelError {
    TunnelError::NoAnswer {
        interface: interface.to_owned(),
        seconds: time.as_secs(),
        reasons,
    }
}

/// Returns the number of awaited peers that have not answered or are no longer there. Starts a handshake
/// with each peer for which none was `started`. `awaited` is read once.
fn silent(
    interface: &str,
    awaited: &mut Option<HashSet<PublicKey>>,
    started: &mut HashSet<PublicKey>,
) -> Result<usize, Error> {
    let awaited = match awaited {
        Some(awaited) => awaited,
        None => awaited.insert(peers_with_endpoint(interface)?),
    };
    let peers = taupe_client::read(interface)?.status.peers;
    let peers = peers
        .into_iter()
        .filter(|peer| awaited.contains(&peer.public_key));
    let (silent, answered): (Vec<_>, Vec<_>) =
        peers.partition(|peer| peer.latest_handshake.is_none());
    // A handshake needs a packet, and applications may not have sent one yet. A name may get its address
    // later.
    let reachable = silent.iter().filter(|peer| peer.endpoint.is_some());
    let keys = reachable.map(|peer| peer.public_key);
    let new: Vec<_> = keys.filter(|key| !started.contains(key)).collect();
    if !new.is_empty() {
        start_handshakes(interface, &new)?;
        started.extend(new);
    }
    Ok(awaited.len().saturating_sub(answered.len()))
}

/// Requests an empty packet to each peer, which starts a handshake.
fn start_handshakes(interface: &str, peers: &[PublicKey]) -> Result<(), Error> {
    let mut request = SetRequest::default();
    request.device.peers = peers
        .iter()
        .map(|key| PeerUpdate {
            update_only: true,
            keepalive_now: true,
            ..PeerUpdate::new(*key)
        })
        .collect();
    taupe_client::apply(interface, request).map(drop)
}

/// Returns the reasons why a tunnel is not fully up, as `taupe status` shows them.
fn findings(interface: &str) -> String {
    let tunnels = look(Some(OsStr::new(interface))).map(|status| status.tunnels);
    let findings = tunnels
        .into_iter()
        .flatten()
        .flat_map(|tunnel| tunnel.findings);
    let texts: Vec<_> = findings.map(|finding| finding.text).collect();
    match texts.is_empty() {
        true => format!("a peer has not answered a handshake; {USUAL_CAUSES}"),
        false => texts.join("; "),
    }
}
