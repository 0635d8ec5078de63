//! Look-up of endpoint names in transparent mode. A DNS query of `taupe up` may be blocked: if all
//! applications are selected, the kill switch that a killed process left active applies to `taupe
//! up` as well.
//!
//! So names are looked up before the kill switch is active, or by the device's process, whose
//! traffic is never selected.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use taupe_client::{EndpointName, PeerUpdate, PublicKey, SetRequest};
use taupe_config::file::File;
use taupe_engine::{Resolver, SystemResolver};
use taupe_inspect::endpoint_names::{NamedEndpoint, has_endpoint, named_endpoints};
use taupe_os_linux::watch::RouteWatch;
use taupe_protocol::limits::REKEY_TIMEOUT;

/// Interval at which the device is read while it is being configured. The device's process doubles
/// it up to [`MAX_POLL_INTERVAL`], because a reload may add names at any time.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(10);

/// Time that `up` waits for an address from the device's process.
const ADDRESS_TIMEOUT: Duration = Duration::from_secs(10);

/// Delay between look-ups of a name without an address. It doubles up to [`MAX_RETRY`], and
/// restarts at [`MIN_RETRY`] after a change of routes or addresses.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const MAX_RETRY: Duration = Duration::from_secs(60);

/// Shortest pause between look-ups that changes of routes or addresses trigger, because such
/// changes may never stop.
const MIN_RETRY: Duration = REKEY_TIMEOUT;

/// Delay of a look-up after a change of routes or addresses, because a new network makes several
/// changes.
const SETTLE_DELAY: Duration = Duration::from_millis(500);

/// Names without an address that are looked up in one round, at most. The list comes from the packet
/// process, which an attacker may control.
const MAX_NAMES: usize = 4096;

/// Selection of names that the device's process looks up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NamesToTake {
    /// All names, because this process cannot or must not look them up.
    All,
    /// Names that have no address now.
    WithoutAddress,
}

/// Takes out of the file the endpoint names that the device's process is to look up.
pub(crate) fn take_names(file: &mut File, which: NamesToTake) -> Vec<NamedEndpoint> {
    let mut left = Vec::new();
    for mut named in named_endpoints(file) {
        if which == NamesToTake::WithoutAddress {
            match resolve(&SystemResolver::default(), &named.name) {
                Ok(_) => continue,
                Err(reason) => named.reason = Some(reason),
            }
        }
        let mut peers = file.peers.iter_mut();
        if let Some(peer) = peers.find(|peer| peer.public_key == named.peer) {
            peer.endpoint = None;
        }
        left.push(named);
    }
    left
}

/// Waits until the device has found the addresses of names. Returns a sentence for each endpoint
/// that still has none.
pub(crate) fn await_addresses(interface: &str, left: &[NamedEndpoint]) -> Vec<String> {
    let end = Instant::now() + ADDRESS_TIMEOUT;
    let mut missing = left.to_vec();
    while let Ok(device) = taupe_client::read(interface) {
        missing.retain(|named| !has_endpoint(&device, named));
        let is_being_asked = missing.iter().any(|named| named.reason.is_none());
        if !is_being_asked || Instant::now() >= end {
            break;
        }
        thread::sleep(POLL_INTERVAL);
    }
    missing.iter().map(NamedEndpoint::warning).collect()
}

/// Tells a running device the endpoint names that it was configured without, so that [`serve`]
/// finds their addresses.
///
/// # Errors
/// Returns the reason why the device refuses them.
pub(crate) fn hand_over(
    interface: &str,
    left: &[NamedEndpoint],
) -> Result<(), taupe_client::Error> {
    if left.is_empty() {
        return Ok(());
    }
    let mut request = SetRequest::default();
    let peers = left.iter().map(|named| PeerUpdate {
        update_only: true,
        endpoint_name: Some(Some(named.name.clone())),
        ..PeerUpdate::new(named.peer)
    });
    request.device.peers.extend(peers);
    taupe_client::apply(interface, request)
}

/// Looks up the addresses of peers that have an endpoint name and no address, in a thread that ends
/// with the device. Must be called in the device's process.
pub(crate) fn serve(interface: &str, resolver: Arc<dyn Resolver>) {
    let name = interface.to_owned();
    let serve = move || find_all(&name, &*resolver);
    let started = thread::Builder::new().name("endpoints".into()).spawn(serve);
    if let Err(error) = started {
        tracing::warn!(%error, "endpoints without an address are not looked up");
    }
}

fn find_all(interface: &str, resolver: &dyn Resolver) {
    resolver.prepare();
    let mut network = RouteWatch::open();
    if let Err(error) = &network {
        tracing::debug!(%error, "a new network does not hasten look-ups");
    }
    let (mut poll, mut wait) = (POLL_INTERVAL, FIRST_RETRY);
    let mut warned = Warned::default();
    // Reading fails once the device has ended.
    while let Ok(device) = taupe_client::read(interface) {
        let peers = device.status.peers.into_iter();
        let missing = peers.filter(|peer| peer.endpoint.is_none());
        let missing = missing.filter_map(|peer| Some((peer.public_key, peer.endpoint_name?)));
        let missing: Vec<_> = missing.take(MAX_NAMES).collect();
        if missing.is_empty() {
            thread::sleep(poll);
            poll = (poll * 2).min(MAX_POLL_INTERVAL);
            wait = FIRST_RETRY;
            continue;
        }
        warned.keep(&missing);
        if let Ok(network) = &mut network {
            // The following look-ups cover all changes so far. If a notification cannot be read,
            // too many were queued, and it was lost.
            let _ = network.drain();
        }
        for (peer, name) in missing {
            let found = resolve(resolver, &name).and_then(|address| {
                tracing::info!(%name, %address, "an endpoint has an address");
                set(interface, peer, name.clone(), address)
            });
            if let Err(reason) = found
                && warned.is_new(peer, &reason)
            {
                tracing::warn!(%name, reason, "an endpoint has no address");
            }
        }
        let asked = Instant::now();
        let changed = match &network {
            Ok(network) => changes(network, wait),
            Err(_) => {
                thread::sleep(wait);
                false
            }
        };
        wait = if changed {
            thread::sleep(settling(asked.elapsed()));
            MIN_RETRY
        } else {
            (wait * 2).min(MAX_RETRY)
        };
    }
}

/// Returns the delay of a look-up after a change, which came `since` after the previous look-up.
fn settling(since: Duration) -> Duration {
    MIN_RETRY.saturating_sub(since).max(SETTLE_DELAY)
}

/// Reasons why peers have no endpoint, each of which is logged once.
#[derive(Default)]
struct Warned(BTreeSet<(PublicKey, String)>);

impl Warned {
    /// Forgets peers that are not in the list.
    fn keep(&mut self, missing: &[(PublicKey, EndpointName)]) {
        let missing: BTreeSet<PublicKey> = missing.iter().map(|(peer, _)| *peer).collect();
        self.0.retain(|(warned, _)| missing.contains(warned));
    }

    /// Records the reason for a peer. Returns false if it was recorded before.
    fn is_new(&mut self, peer: PublicKey, reason: &str) -> bool {
        self.0.insert((peer, reason.to_owned()))
    }
}

/// Waits until routes or addresses change, at most for `limit`. Returns whether they did.
fn changes(network: &RouteWatch, limit: Duration) -> bool {
    let limit = Timespec::try_from(limit).ok();
    let mut fds = [PollFd::from_borrowed_fd(network.fd(), PollFlags::IN)];
    matches!(poll(&mut fds, limit.as_ref()), Ok(1..))
}

fn set(
    interface: &str,
    peer: PublicKey,
    name: EndpointName,
    address: SocketAddr,
) -> Result<(), String> {
    let mut request = SetRequest::default();
    request.device.peers.push(PeerUpdate {
        update_only: true,
        endpoint: Some(address),
        endpoint_name: Some(Some(name)),
        ..PeerUpdate::new(peer)
    });
    taupe_client::apply(interface, request).map_err(|error| error.to_string())
}

fn resolve(resolver: &dyn Resolver, name: &EndpointName) -> Result<SocketAddr, String> {
    let found = resolver.resolve(name, 0).map_err(|error| {
        let text = error.to_string();
        let text = text.strip_prefix("failed to lookup address information: ");
        text.map_or_else(|| error.to_string(), str::to_owned)
    })?;
    let first = found.into_iter().next();
    first.ok_or_else(|| "there is none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_set_off_a_look_up_soon_and_not_too_often() {
        for (since, delay) in [
            (0, 5000),
            (3000, 2000),
            (4500, 500),
            (4900, 500),
            (60_000, 500),
        ] {
            let found = settling(Duration::from_millis(since));
            assert_eq!(found, Duration::from_millis(delay), "{since}");
        }
    }

    #[test]
    fn a_reason_is_new_once() {
        let name = EndpointName::new("vpn.example.org", 51820).expect("a name");
        let (a, b) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let mut warned = Warned::default();
        assert!(warned.is_new(a, "no answer") && warned.is_new(b, "no answer"));
        assert!(warned.is_new(a, "no such name"));
        for _ in 0..3 {
            warned.keep(&[(a, name.clone()), (b, name.clone())]);
            assert!(!warned.is_new(a, "no answer") && !warned.is_new(a, "no such name"));
        }
        // It had an address in the meantime.
        warned.keep(&[(b, name)]);
        assert!(warned.is_new(a, "no answer") && !warned.is_new(b, "no answer"));
    }
}
