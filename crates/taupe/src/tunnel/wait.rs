//! `taupe up --wait`: waits until the peers of a new tunnel have answered.

use super::error::TunnelError;
use std::collections::HashSet;
use std::ffi::OsStr;
use std::thread;
use std::time::{Duration, Instant};
use taupe_client::{PeerUpdate, PublicKey, SetRequest};
use taupe_inspect::status::{USUAL_CAUSES, look, silent_peers};

/// Interval between two reads of the tunnel's state.
const INTERVAL: Duration = Duration::from_millis(50);

/// Waits until each peer with an `Endpoint` has answered a handshake. Ignores peers without one: they
/// start handshakes themselves.
pub(super) fn for_answers(interface: &str, time: Duration) -> Result<(), TunnelError> {
    let end = Instant::now() + time;
    let mut started = HashSet::new();
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
            let new: Vec<_> = keys.filter(|key| started.insert(*key)).collect();
            start_handshakes(interface, new);
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

/// Requests an empty packet to each peer, which starts a handshake. Ignores errors: the peers then
/// count as silent.
fn start_handshakes(interface: &str, peers: Vec<PublicKey>) {
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
        true => format!("a peer has not answered a handshake; {USUAL_CAUSES}"),
        false => texts.join("; "),
    }
}
