//! Findings and notes about a tunnel's peers.

use super::{endpoint_path, findings, now};
use serde::Serialize;
use std::collections::HashMap;
use taupe_client::{Device, DeviceStatus, PeerStatus, PublicKey, Suite};
use taupe_config::file::{File, Peer as FilePeer, PeerName};
use taupe_runtime::clock::boot;
use taupe_uapi::key::Encoding;
use taupe_uapi::show::{self, HandshakeState};

/// A peer, without secrets.
#[derive(Serialize)]
pub struct Peer {
    /// Key in base64.
    pub public_key: String,
    /// Name in the file.
    pub name: Option<String>,
    /// Address and port.
    pub endpoint: Option<String>,
    /// Time of the latest handshake, in seconds since 1970.
    pub latest_handshake: Option<u64>,
    /// Initiations since the last packet of the peer.
    pub unanswered_handshakes: u32,
    /// Bytes of encrypted packets from the peer.
    pub received_bytes: u64,
    /// Bytes of encrypted packets to the peer.
    pub sent_bytes: u64,
    /// `None` if post-quantum handshakes are not configured.
    pub post_quantum: Option<PostQuantumStatus>,
    /// `None` without a session, or if the device has one lane.
    pub lanes: Option<PeerLanes>,
}

/// Lanes of the session with a peer.
#[derive(Serialize)]
pub struct PeerLanes {
    /// Number of lanes on which this device receives the session.
    pub receiving: usize,
    /// Number of lanes of the peer's device; 1 if the device has not stated a number.
    pub remote: usize,
    /// True if the network interleaves the peer's packets, so that they are received on one lane.
    pub interleaved: bool,
}

impl Peer {
    pub(super) fn of(device: &Device, peer: &PeerStatus, file: &FilePeers<'_>) -> Self {
        Self {
            public_key: encoded(peer),
            name: file.name(&peer.public_key).map(ToString::to_string),
            endpoint: peer.endpoint.map(|endpoint| endpoint.to_string()),
            latest_handshake: peer.latest_handshake.map(|at| at.as_secs()),
            unanswered_handshakes: peer.unanswered.map_or(0, |silence| silence.initiations),
            received_bytes: peer.rx_bytes,
            sent_bytes: peer.tx_bytes,
            post_quantum: PostQuantumStatus::of(&device.status, peer),
            lanes: PeerLanes::of(peer),
        }
    }
}

impl PeerLanes {
    fn of(peer: &PeerStatus) -> Option<Self> {
        let lanes = peer.lanes?;
        Some(Self {
            receiving: lanes.receiving.count(),
            remote: lanes.remote.count(),
            interleaved: lanes.interleaved,
        })
    }
}

/// Post-quantum state of the handshakes with a peer.
#[derive(Serialize)]
pub struct PostQuantumStatus {
    /// Setting: `require`, `prefer` or `off`.
    pub wanted: &'static str,
    /// True if the setting is `prefer` and the peer has made a post-quantum handshake, which is
    /// required from then on.
    pub latched: bool,
    /// Post-quantum suite of the session. `None` for an ordinary session, or without a session.
    pub suite: Option<&'static str>,
    /// `ordinary` or the suite of the session. `None` without a session.
    pub session: Option<&'static str>,
    /// Setting and session in words, to be printed after `post-quantum:`.
    pub text: String,
}

impl PostQuantumStatus {
    fn of(device: &DeviceStatus, peer: &PeerStatus) -> Option<Self> {
        let wanted = show::handshake_mode(peer)?;
        let now = boot();
        let session = peer.session.filter(|session| session.is_alive(now));
        Some(Self {
            wanted: wanted.name(),
            latched: peer.pq_pinned,
            suite: session.and_then(|session| session.suite.map(Suite::name)),
            session: session.map(|session| session.name()),
            text: show::handshake_state(device, peer, now)?.to_string(),
        })
    }
}

/// The peers of a tunnel's file by their keys, if it can be read.
#[derive(Default)]
pub(super) struct FilePeers<'a>(Option<HashMap<PublicKey, &'a FilePeer>>);

impl<'a> FilePeers<'a> {
    pub(super) fn of(file: Option<&'a File>) -> Self {
        Self(file.map(|file| {
            let peers = file.peers.iter();
            peers.map(|peer| (peer.public_key, peer)).collect()
        }))
    }

    fn get(&self, key: &PublicKey) -> Option<&'a FilePeer> {
        self.0.as_ref()?.get(key).copied()
    }

    pub(super) fn name(&self, key: &PublicKey) -> Option<&'a PeerName> {
        self.get(key)?.name.as_ref()
    }

    /// Returns true if only the peer starts handshakes: it has no `Endpoint` in the file. A peer that is
    /// not in the file counts as such if it has neither an endpoint name nor a keepalive. Without a file,
    /// returns false.
    pub(super) fn is_initiator(&self, peer: &PeerStatus) -> bool {
        match self.get(&peer.public_key) {
            Some(one) => one.endpoint.is_none(),
            None => {
                self.0.is_some() && peer.endpoint_name.is_none() && peer.persistent_keepalive == 0
            }
        }
    }
}

/// Compares a peer's state with what it should be. `None` if all is well. `mark` is the fwmark of
/// datagrams to it, if they leave from this network namespace.
pub(super) fn assess(
    device: &Device,
    peer: &PeerStatus,
    file: &FilePeers<'_>,
    mark: Option<u32>,
) -> Option<findings::PeerAssessment> {
    let shown = shown(peer, device, file);
    let is_initiator = file.is_initiator(peer);
    if show::lacks_own_key(&device.status, peer) {
        return Some(findings::PeerAssessment::Finding(findings::no_own_key(
            &shown,
        )));
    }
    let status = findings::PeerObservation {
        is_initiator,
        age: peer.latest_handshake.map(|at| now().saturating_sub(at)),
        unanswered: peer
            .unanswered
            .map(|silence| (silence.initiations, boot().since(silence.since))),
        has_sent: peer.tx_bytes > 0,
        path: match (peer.unanswered, peer.endpoint, mark) {
            (silence, Some(endpoint), Some(mark)) if !is_initiator => {
                endpoint_path::look_up(endpoint.ip(), mark, silence.is_some())
            }
            _ => findings::EndpointPath::Unknown,
        },
    };
    let assessment = findings::assess_peer(&shown, peer.endpoint, &status)?;
    let state = show::handshake_state(&device.status, peer, boot());
    Some(match (assessment, state) {
        (findings::PeerAssessment::Finding(finding), Some(HandshakeState::HybridRequired)) => {
            findings::PeerAssessment::Finding(findings::with_hybrid_causes(finding))
        }
        (assessment, _) => assessment,
    })
}

/// Returns the reasons why no datagrams leave for peers of a device.
pub(super) fn unreachable<'a>(
    device: &'a Device,
    file: &'a FilePeers<'a>,
) -> impl Iterator<Item = findings::Finding> + 'a {
    let peers = device.status.peers.iter();
    peers.filter_map(move |peer| {
        let endpoint = peer.endpoint.filter(|_| !file.is_initiator(peer))?;
        let path = endpoint_path::look_up(endpoint.ip(), device.fwmark, false);
        findings::unreachable(&shown(peer, device, file), endpoint, &path, None)
    })
}

/// Returns a sentence about `outer` for the status of a tunnel that goes through it.
pub(super) fn of_outer(outer: &str, text: &str) -> String {
    format!("{outer}, which it goes through: {text}")
}

/// Names a peer in a sentence.
pub(super) fn shown(peer: &PeerStatus, device: &Device, file: &FilePeers<'_>) -> String {
    match (device.status.peers.len(), file.name(&peer.public_key)) {
        (1, _) => "its peer".to_owned(),
        (_, Some(name)) => format!("the peer {name}"),
        (_, None) => format!("the peer {}", encoded(peer)),
    }
}

pub(crate) fn encoded(peer: &PeerStatus) -> String {
    let key = Encoding::Base64.encode(&peer.public_key.0);
    key.as_str().to_owned()
}
