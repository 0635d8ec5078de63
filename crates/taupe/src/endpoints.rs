//! Names of endpoints in transparent mode, where the system's own question for a name
//! may be what is held back: with every application chosen, that of `taupe up` too,
//! when a process that was killed has left the lock.
//!
//! So a name is looked up before there is a lock, or by the device's process, which is
//! never chosen.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};
use taupe_client::{EndpointName, PeerUpdate, PublicKey, SetRequest};
use taupe_config::file::{Endpoint, File};
use taupe_engine::{Resolver as _, SystemResolver};

/// From one look at the device to the next, while it is being configured.
const LOOK: Duration = Duration::from_millis(50);

/// How long `up` waits for an address that the device's process looks up.
const PATIENCE: Duration = Duration::from_secs(10);

/// From one look-up of a name without an address to the next: twice as long each
/// time.
const FIRST_WAIT: Duration = Duration::from_secs(2);
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// A peer whose endpoint is a name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    peer: PublicKey,
    name: EndpointName,
    /// Of its `[Peer]`.
    line: usize,
    /// Why it has no address yet, if it has been asked for.
    reason: Option<String>,
}

/// The peers of a file whose endpoints are names.
pub(crate) fn named(file: &File) -> Vec<Named> {
    let peers = file.peers.iter();
    peers
        .filter_map(|peer| match peer.endpoint.as_ref()? {
            Endpoint::Address(_) => None,
            Endpoint::Name { host, port } => Some(Named {
                peer: peer.public_key,
                name: EndpointName::new(host, *port)?,
                line: peer.line,
                reason: None,
            }),
        })
        .collect()
}

/// Leaves to the device's process the names that have no address now: takes their
/// endpoints out of the file. With the lock closed already, all names.
pub(crate) fn leave(file: &mut File, is_closed: bool) -> Vec<Named> {
    let mut left = Vec::new();
    for mut named in named(file) {
        if !is_closed {
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

/// Waits until the device has found the addresses of names that nobody has asked for
/// yet. Says in a sentence each which it has not.
pub(crate) fn await_addresses(interface: &str, left: &[Named]) -> Vec<String> {
    let end = Instant::now() + PATIENCE;
    let mut missing = left.to_vec();
    while missing.iter().any(|named| named.reason.is_none()) && Instant::now() < end {
        match taupe_client::read(interface) {
            Ok(device) => missing.retain(|named| !has_endpoint(&device, named)),
            Err(_) => break,
        }
        thread::sleep(LOOK);
    }
    missing.iter().map(Named::complaint).collect()
}

/// Says in a sentence each which endpoints of a running device have no address.
pub(crate) fn without_address(interface: &str, file: &File) -> Vec<String> {
    let Ok(device) = taupe_client::read(interface) else {
        return Vec::new();
    };
    let mut missing = named(file);
    missing.retain(|named| !has_endpoint(&device, named));
    missing.iter().map(Named::complaint).collect()
}

impl Named {
    fn complaint(&self) -> String {
        let Self { name, line, .. } = self;
        let reason = self.reason.as_deref().unwrap_or("no name server answers");
        format!(
            "the endpoint {name} of the [Peer] in line {line} has no address now ({reason}): what \
             the chosen applications send is held back until it has one; it is looked up again"
        )
    }
}

/// Finds the addresses of endpoints that the device was configured without, in a
/// thread that ends when all have one. To be called in the device's process.
pub(crate) fn serve(interface: &str, named: Vec<Named>) {
    if named.is_empty() {
        return;
    }
    let name = interface.to_owned();
    let serve = move || find_all(&name, named);
    let started = thread::Builder::new().name("endpoints".into()).spawn(serve);
    if let Err(error) = started {
        tracing::warn!(%error, "endpoints without an address are not looked up");
    }
}

fn find_all(interface: &str, named: Vec<Named>) {
    let resolver = SystemResolver::default();
    resolver.prepare();
    let mut wait = FIRST_WAIT;
    // Until the device has gone.
    while let Ok(device) = taupe_client::read(interface) {
        // Its peers come all at once.
        if device.status.peers.is_empty() {
            thread::sleep(LOOK);
            continue;
        }
        let mut missing = named.clone();
        missing.retain(|named| !has_endpoint(&device, named));
        if missing.is_empty() {
            return;
        }
        for Named { peer, name, .. } in missing {
            let found = resolve(&resolver, &name).and_then(|address| {
                tracing::info!(%name, %address, "an endpoint has an address");
                set(interface, peer, name.clone(), address)
            });
            if let Err(reason) = found {
                tracing::warn!(%name, reason, "an endpoint has no address");
            }
        }
        thread::sleep(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

/// Whether the device knows where the peer is, or does not have it any more.
fn has_endpoint(device: &taupe_client::Device, named: &Named) -> bool {
    let peers = &device.status.peers;
    let peer = peers.iter().find(|peer| peer.public_key == named.peer);
    match peer {
        Some(peer) => peer.endpoint.is_some(),
        None => !peers.is_empty(),
    }
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

fn resolve(resolver: &SystemResolver, name: &EndpointName) -> Result<SocketAddr, String> {
    let found = resolver.resolve(name, 0).map_err(|error| {
        let text = error.to_string();
        let text = text.strip_prefix("failed to lookup address information: ");
        text.map_or_else(|| error.to_string(), str::to_owned)
    })?;
    let first = found.into_iter().next();
    first.ok_or_else(|| "there is none".to_owned())
}
