//! Datagrams that the attacker has captured.

use core::net::SocketAddr;

use taupe_protocol::message::{Kind, classify};

use crate::host::Host;
use crate::random::Random;

/// Number of sent messages that the attacker keeps.
const SENT: usize = 256;

/// Number of messages that it keeps of those each host has accepted.
const ACCEPTED: usize = 64;

/// Captured datagrams.
pub(crate) struct Captures {
    pub(super) sent: Vec<Sent>,
    pub(super) accepted: Vec<Vec<Accepted>>,
    /// The last initiation of each host, for forging a response.
    pub(super) initiations: Vec<Option<(usize, Vec<u8>)>>,
    pub(super) edge_packets: Vec<EdgePacket>,
}

pub(super) struct Sent {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) bytes: Vec<u8>,
}

/// A datagram that a host has accepted and must not accept again.
pub(super) struct Accepted {
    pub(super) bytes: Vec<u8>,
    pub(super) sender: usize,
    pub(super) source: SocketAddr,
    pub(super) incarnation: u64,
    pub(super) generation: u64,
}

/// A packet to be replayed at the edge of the replay window.
pub(super) struct EdgePacket {
    pub(super) to: usize,
    pub(super) source: SocketAddr,
    pub(super) id: u64,
    pub(super) bytes: Vec<u8>,
}

impl Captures {
    pub(crate) fn new(hosts: usize) -> Self {
        Self {
            sent: Vec::new(),
            accepted: (0..hosts).map(|_| Vec::new()).collect(),
            initiations: vec![None; hosts],
            edge_packets: Vec::new(),
        }
    }

    /// Captures a sent datagram.
    pub(crate) fn sent(
        &mut self,
        random: &mut Random,
        from: usize,
        to: usize,
        bytes: &[u8],
        stride: usize,
    ) {
        let first = &bytes[..stride.min(bytes.len())];
        let kind = classify(first);
        if matches!(kind, Ok(Kind::Initiation | Kind::HybridInitiation)) {
            self.initiations[from] = Some((to, first.to_vec()));
        }
        let rare = kind != Ok(Kind::Data);
        if random.once_in(if rare { 2 } else { 16 }) {
            let sent = Sent {
                from,
                to,
                bytes: first.to_vec(),
            };
            put(&mut self.sent, SENT, random, sent);
        }
    }

    /// Returns the last initiation of a host, or a part of it, and its destination.
    pub(crate) fn initiation(&self, host: usize) -> Option<(usize, &[u8])> {
        let (to, bytes) = self.initiations[host].as_ref()?;
        Some((*to, bytes))
    }

    /// Returns captured messages to a host with their senders.
    pub(crate) fn sent_to(&self, host: usize) -> impl Iterator<Item = (usize, &[u8])> {
        let to_host = self.sent.iter().filter(move |sent| sent.to == host);
        to_host.map(|sent| (sent.from, &sent.bytes[..]))
    }

    /// Sometimes copies a datagram before it is accepted, because it is decrypted in place.
    pub(crate) fn copy(&self, random: &mut Random, bytes: &[u8], stride: usize) -> Option<Vec<u8>> {
        let first = &bytes[..stride.min(bytes.len())];
        let rare = classify(first) != Ok(Kind::Data);
        random
            .once_in(if rare { 1 } else { 8 })
            .then(|| first.to_vec())
    }

    /// Captures a datagram that `host` has accepted.
    pub(crate) fn accepted(
        &mut self,
        random: &mut Random,
        host: &Host,
        sender: usize,
        source: SocketAddr,
        bytes: Vec<u8>,
    ) {
        let generation = host.peers[sender].map_or(0, |conf| conf.generation);
        let accepted = Accepted {
            bytes,
            sender,
            source,
            incarnation: host.incarnation,
            generation,
        };
        put(&mut self.accepted[host.index], ACCEPTED, random, accepted);
    }

    /// Keeps packets to replay them at the edge of the window.
    pub(crate) fn replay_later(
        &mut self,
        to: usize,
        source: SocketAddr,
        ids: Vec<u64>,
        batch: &[u8],
        stride: usize,
    ) {
        for (id, bytes) in ids.into_iter().zip(batch.chunks(stride)) {
            self.edge_packets.push(EdgePacket {
                to,
                source,
                id,
                bytes: bytes.to_vec(),
            });
        }
    }
}

fn put<T>(list: &mut Vec<T>, most: usize, random: &mut Random, item: T) {
    if list.len() < most {
        list.push(item);
    } else {
        let place = random.index(most);
        list[place] = item;
    }
}
