//! Running devices of this machine, and the faults that only several of them show.

use super::findings::{self, Finding};
use super::peers::FilePeers;
use super::{current_file, peers};
use std::collections::HashSet;
use taupe_adapter::State;
use taupe_client::{Device, DeviceStatus, PeerStatus, PublicKey};

/// Running devices, by the names of their interfaces.
pub(super) struct Devices(Vec<(String, Device)>);

impl Devices {
    /// Reads every device once. One that does not answer is left out.
    pub(super) fn read() -> Self {
        let names = taupe_client::interfaces().unwrap_or_default().into_iter();
        let read = |name: String| taupe_client::read(&name).ok().map(|device| (name, device));
        Self(names.filter_map(read).collect())
    }

    /// Returns all devices with their names.
    pub(super) fn into_all(self) -> Vec<(String, Device)> {
        self.0
    }

    pub(super) fn get(&self, interface: &str) -> Option<&Device> {
        let mut all = self.0.iter();
        let (_, device) = all.find(|(name, _)| name == interface)?;
        Some(device)
    }

    /// Returns a finding for each other device that has a private key and a peer of this one.
    pub(super) fn sharing_key(&self, interface: &str, file: &FilePeers<'_>) -> Vec<Finding> {
        let Some(device) = self.get(interface) else {
            return Vec::new();
        };
        let others = self.0.iter().filter(|(name, _)| name != interface);
        let findings = others.filter_map(|(name, other)| {
            let mut shared = shared_peers(&device.status, &other.status);
            // A peer that starts handshakes itself selects one of the two devices by its port.
            let peer = shared.find(|peer| !file.is_initiator(peer))?;
            Some(findings::shared_key(
                name,
                &peers::shown(peer, device, file),
            ))
        });
        findings.collect()
    }
}

/// Returns the peers that both devices have, if they have the same private key. Private keys are
/// compared in constant time.
fn shared_peers<'a>(
    one: &'a DeviceStatus,
    other: &'a DeviceStatus,
) -> impl Iterator<Item = &'a PeerStatus> {
    let is_same = match (&one.private_key, &other.private_key) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    };
    let is_common = |peer: &&PeerStatus| {
        let mut others = other.peers.iter();
        others.any(|other| other.public_key == peer.public_key)
    };
    let peers = if is_same { one.peers.as_slice() } else { &[] };
    peers.iter().filter(is_common)
}

/// Returns the warnings that `up` prints about a tunnel that it has just brought up. They are not
/// errors, because a network may appear or another tunnel end later.
#[must_use]
pub fn warnings(interface: &str) -> Vec<String> {
    let Some(header) = State::default().of_running(interface) else {
        return Vec::new();
    };
    let (devices, file) = (Devices::read(), current_file(&header));
    let outer = header.outer.map(|outer| outer.name);
    let file = &FilePeers::of(file.as_ref());
    let mut sentences = Vec::new();
    // Datagrams of a tunnel through another one leave by that one.
    match (&outer, devices.get(outer.as_deref().unwrap_or(interface))) {
        (_, None) => {}
        (None, Some(device)) => {
            sentences.extend(peers::unreachable(device, file).map(|finding| finding.text));
        }
        (Some(outer), Some(device)) => {
            let unknown = FilePeers::default();
            let findings = peers::unreachable(device, &unknown);
            sentences.extend(findings.map(|finding| peers::of_outer(outer, &finding.text)));
        }
    }
    let shared = devices.sharing_key(interface, file);
    sentences.extend(shared.into_iter().map(|finding| finding.text));
    sentences
}

/// Returns the peers of a running tunnel with an `Endpoint`: this side starts handshakes with them.
///
/// # Errors
/// The device cannot be read.
pub fn peers_with_endpoint(interface: &str) -> Result<HashSet<PublicKey>, taupe_client::Error> {
    let device = taupe_client::read(interface)?;
    let file = State::default().of_running(interface);
    let file = file.as_ref().and_then(current_file);
    let file = FilePeers::of(file.as_ref());
    let peers = device.status.peers.iter();
    let wanted = peers.filter(|peer| !file.is_initiator(peer));
    Ok(wanted.map(|peer| peer.public_key).collect())
}

#[cfg(test)]
mod tests;
