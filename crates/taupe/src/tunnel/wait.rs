//! `taupe up --wait`: waits until the peers of a new tunnel have answered.

use super::error::TunnelError;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::thread;
use std::time::{Duration, Instant};
use taupe_client::{PeerUpdate, PublicKey, SetRequest};
use taupe_inspect::status::{USUAL_CAUSES, look, silent_peers};

/// Interval at which the tunnel is looked at.
const INTERVAL: Duration = Duration::from_millis(50);

/// Waits until every peer that this side calls has answered. A peer without an `Endpoint` calls
/// itself, whenever it likes.
pub(super) fn for_answers(interface: &str, time: Duration) -> Result<(), TunnelError> {
    let end = Instant::now() + time;
    let mut called = HashSet::new();
    loop {
        let silent = silent_peers(interface);
        if let Ok(silent) = &silent {
            if silent.is_empty() {
                return Ok(());
            }
            // A handshake needs a packet, and applications may not have sent one yet. A name may get its
            // address later.
            let reachable = silent.iter().filter(|peer| peer.has_endpoint);
            let keys = reachable.map(|peer| peer.public_key);
            let new: Vec<_> = keys.filter(|key| called.insert(*key)).collect();
            call(interface, new);
        }
        if Instant::now() >= end {
            return Err(TunnelError::NoAnswer {
                interface: interface.to_owned(),
                seconds: time.as_secs(),
                reasons: match silent {
                    Ok(_) => findings(interface),
                    Err(error) => error.to_string(),
                },
            });
        }
        thread::sleep(INTERVAL);
    }
}

/// Has the device send a packet to peers. If it refuses, they stay silent.
fn call(interface: &str, peers: Vec<PublicKey>) {
    if peers.is_empty() {
        return;
    }
    let mut request = SetRequest::default();
    request.device.peers = peers
        .into_iter()
        .map(|key| PeerUpdate {
            update_only: true,
            keepalive_now: true,
            ..PeerUpdate::new(key)
        })
        .collect();
    let _ = taupe_client::apply(interface, request);
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
        true => format!("no handshake was answered; {USUAL_CAUSES}"),
        false => texts.join("; "),
    }
}
