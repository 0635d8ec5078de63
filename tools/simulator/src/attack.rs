//! Hostile datagrams made from captured ones, and checks that none of them changes anything.

use core::net::SocketAddr;

use taupe_crypto::Provider;
use taupe_protocol::Output;
use taupe_protocol::key::PublicKey;
use taupe_protocol::limits::REJECT_AFTER_MESSAGES;
use taupe_protocol::message::{DATA_HEADER_LEN, Kind, classify, data_header};
use taupe_protocol::testing::write_data_header;

use crate::host::{Host, endpoint};
use crate::network::flip;
use crate::plan::Hostile;
use crate::random::Random;
use crate::violation::{Invariant, Violation};
use crate::world::{World, describe};

/// Number of sent messages that the attacker keeps.
const SENT: usize = 256;
/// Number of messages that it keeps of those each host has accepted.
const TAKEN: usize = 64;

/// Captured datagrams.
pub(crate) struct Captures {
    sent: Vec<Sent>,
    taken: Vec<Vec<Taken>>,
    /// The last initiation of each host, for forging a response.
    initiations: Vec<Option<(usize, Vec<u8>)>>,
    kept: Vec<Kept>,
}

struct Sent {
    from: usize,
    to: usize,
    bytes: Vec<u8>,
}

/// A datagram that a host has accepted and must not accept again.
struct Taken {
    bytes: Vec<u8>,
    sender: usize,
    source: SocketAddr,
    incarnation: u64,
    generation: u64,
}

/// A packet to be replayed at the edge of the replay window.
struct Kept {
    to: usize,
    source: SocketAddr,
    id: u64,
    bytes: Vec<u8>,
}

impl Captures {
    pub(crate) fn new(hosts: usize) -> Self {
        Self {
            sent: Vec::new(),
            taken: (0..hosts).map(|_| Vec::new()).collect(),
            initiations: vec![None; hosts],
            kept: Vec::new(),
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
    pub(crate) fn taken(
        &mut self,
        random: &mut Random,
        host: &Host,
        sender: usize,
        source: SocketAddr,
        bytes: Vec<u8>,
    ) {
        let generation = host.peers[sender].map_or(0, |conf| conf.generation);
        let taken = Taken {
            bytes,
            sender,
            source,
            incarnation: host.incarnation,
            generation,
        };
        put(&mut self.taken[host.index], TAKEN, random, taken);
    }

    /// Keeps packets to replay them at the edge of the window.
    pub(crate) fn keep(
        &mut self,
        to: usize,
        source: SocketAddr,
        ids: Vec<u64>,
        batch: &[u8],
        stride: usize,
    ) {
        for (id, bytes) in ids.into_iter().zip(batch.chunks(stride)) {
            self.kept.push(Kept {
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

impl World<'_> {
    /// Makes one or more hostile datagrams of equal size, and injects them into a host.
    pub(crate) fn attack(&mut self, host: usize, kind: Hostile) -> Result<(), Violation> {
        if !self.hosts[host].runs() {
            return Ok(());
        }
        match kind {
            Hostile::ReplayPart => return self.replay_part(host),
            Hostile::Thief => return self.steal(host),
            _ => {}
        }
        let mut source = SocketAddr::from(([203, 0, 113, 7], 4500));
        let Some(mut bytes) = self.forge(host, kind, &mut source) else {
            return Ok(());
        };
        let stride = bytes.len().max(1);
        // Several datagrams, like a batch merged by the kernel.
        for _ in 0..self.random.below(3) {
            if self.random.once_in(4)
                && let Some(more) = self.forge(host, kind, &mut source)
                && more.len() <= stride
                && bytes.len() % stride == 0
            {
                bytes.extend(more);
            }
        }
        self.inject(host, source, bytes, stride, "hostile")
    }

    /// Replays packets around the edge of the replay window.
    pub(crate) fn replay_kept(&mut self, host: usize, incarnation: u64) -> Result<(), Violation> {
        let kept = core::mem::take(&mut self.captures.kept);
        for Kept {
            to,
            source,
            id,
            bytes,
        } in kept
        {
            let same = to == host && self.hosts[host].incarnation == incarnation;
            if same && self.hosts[host].runs() && self.ledger.is_delivered(id) {
                let stride = bytes.len();
                self.inject(
                    host,
                    source,
                    bytes,
                    stride,
                    "repeated from the edge of the window",
                )?;
            }
        }
        Ok(())
    }

    /// Injects unauthenticated datagrams into a host, and checks that nothing changes. The only
    /// allowed answer is a cookie.
    pub(crate) fn inject(
        &mut self,
        host: usize,
        source: SocketAddr,
        mut bytes: Vec<u8>,
        stride: usize,
        what: &str,
    ) -> Result<(), Violation> {
        let shown = bytes[..stride.min(bytes.len())].to_vec();
        let count = bytes.len().div_ceil(stride.max(1)).max(1) as u64;
        self.stats.hostile += count;
        let h = &mut self.hosts[host];
        let clocks = h.clocks(self.now);
        let from = endpoint(source, h.address);
        let before = h.digest();
        let backlog = h.backlog(self.now);
        let Some(node) = h.node.as_mut() else {
            return Ok(());
        };
        let mut sorted = core::mem::take(&mut node.sorted);
        node.path
            .receive(clocks.boot, from, &mut bytes, stride, &mut sorted);
        for message in &sorted.handshakes {
            node.device
                .handle_message(clocks, from, &bytes[message.clone()], backlog);
        }
        let delivered = sorted.inner.len();
        node.sorted = sorted;
        let mut answers = 0;
        while let Some(output) = node.device.poll_output() {
            match output {
                Output::Transmit { datagram, .. }
                    if classify(&datagram) == Ok(Kind::CookieReply) =>
                {
                    self.stats.cookies += 1;
                }
                _ => answers += 1,
            }
        }
        let fail = |why: String| {
            let what = format!(
                "host {host}, a datagram that is {what} ({}, from {source}): {why}",
                describe(&shown)
            );
            Err(Violation::new(Invariant::Unauthenticated, what))
        };
        if delivered > 0 {
            return fail(format!("{delivered} packets delivered"));
        }
        if answers > 0 {
            return fail(format!("{answers} answers"));
        }
        let after = h.digest();
        if before != after {
            return fail(format!("state before: {before:?}, after: {after:?}"));
        }
        self.recycle(bytes);
        Ok(())
    }

    fn forge(&mut self, host: usize, kind: Hostile, source: &mut SocketAddr) -> Option<Vec<u8>> {
        if Hostile::HYBRID.contains(&kind) {
            return self.forge_part(host, kind, source);
        }
        let (captures, random) = (&self.captures, &mut self.random);
        let own = self.hosts[host].public;
        let to_host = |random: &mut Random| {
            let all: Vec<&Sent> = captures
                .sent
                .iter()
                .filter(|sent| sent.to == host)
                .collect();
            (!all.is_empty()).then(|| all[random.index(all.len())].bytes.clone())
        };
        match kind {
            Hostile::Noise => {
                let mut bytes = vec![0; random.index(200)];
                random.fill(&mut bytes);
                if random.once_in(2)
                    && let Some(head) = bytes.first_chunk_mut()
                {
                    *head = (random.below(5) as u32).to_le_bytes();
                }
                Some(bytes)
            }
            Hostile::Replay => {
                let list = &captures.taken[host];
                let taken = (!list.is_empty()).then(|| &list[random.index(list.len())])?;
                let h = &self.hosts[host];
                let conf = h.peers[taken.sender].filter(|conf| conf.present)?;
                let same =
                    taken.incarnation == h.incarnation && taken.generation == conf.generation;
                if random.once_in(2) {
                    *source = taken.source;
                }
                same.then(|| taken.bytes.clone())
            }
            Hostile::Misdirect => {
                let all: Vec<&Sent> = captures
                    .sent
                    .iter()
                    .filter(|sent| sent.to != host)
                    .collect();
                (!all.is_empty()).then(|| all[random.index(all.len())].bytes.clone())
            }
            Hostile::BitFlip => {
                let mut bytes = to_host(random)?;
                flip(random, &mut bytes);
                Some(bytes)
            }
            Hostile::Resize => {
                let mut bytes = to_host(random)?;
                if random.once_in(3) {
                    let more = 1 + random.index(64);
                    bytes.resize(bytes.len() + more, 0);
                } else {
                    bytes.truncate(random.index(bytes.len()));
                }
                Some(bytes)
            }
            Hostile::Splice => {
                let (head, body) = (to_host(random)?, to_host(random)?);
                let at = match classify(&head) {
                    Ok(Kind::Data) => DATA_HEADER_LEN,
                    _ => 8 + random.index(100),
                };
                let mut bytes = head.get(..at)?.to_vec();
                bytes.extend(body.get(at..)?);
                // If the bodies are equal, or differ in mac2 only, the result is authentic.
                let checked = |bytes: &[u8]| match classify(bytes) {
                    Ok(Kind::Data | Kind::CookieReply) | Err(_) => bytes.len(),
                    Ok(_) => bytes.len() - 16,
                };
                let same = |other: &[u8]| {
                    let n = checked(&bytes);
                    other.get(..n) == bytes.get(..n)
                };
                (!same(&head) && !same(&body)).then_some(bytes)
            }
            Hostile::Reflect => {
                let all: Vec<&Sent> = captures
                    .sent
                    .iter()
                    .filter(|sent| sent.from == host)
                    .collect();
                (!all.is_empty()).then(|| all[random.index(all.len())].bytes.clone())
            }
            Hostile::ForgedInitiation => {
                let mut bytes = random.bytes::<148>();
                bytes[..4].copy_from_slice(&1_u32.to_le_bytes());
                stamp(self.crypto, &own, &mut bytes);
                Some(bytes.to_vec())
            }
            Hostile::ForgedResponse => {
                let (_, initiation) = captures.initiations[host].as_ref()?;
                let mut bytes = random.bytes::<92>();
                bytes[..4].copy_from_slice(&2_u32.to_le_bytes());
                bytes[8..12].copy_from_slice(&initiation[4..8]);
                stamp(self.crypto, &own, &mut bytes);
                Some(bytes.to_vec())
            }
            Hostile::ForgedCookie => {
                let (_, initiation) = captures.initiations[host].as_ref()?;
                let mut bytes = random.bytes::<64>();
                bytes[..4].copy_from_slice(&3_u32.to_le_bytes());
                bytes[4..8].copy_from_slice(&initiation[4..8]);
                Some(bytes.to_vec())
            }
            Hostile::ForgedData => {
                let real = to_host(random)?;
                let (index, counter) = match classify(&real) {
                    Ok(Kind::Data) => data_header(&real)?,
                    _ => return None,
                };
                let mut bytes = vec![0; 32 + 16 * random.index(8)];
                random.fill(&mut bytes);
                let counter = match random.below(6) {
                    0 => u64::MAX,
                    1 => REJECT_AFTER_MESSAGES - 1,
                    2 => REJECT_AFTER_MESSAGES,
                    3 => counter + random.below(10_000),
                    4 => counter.saturating_sub(random.below(10_000)),
                    _ => counter,
                };
                write_data_header(&mut bytes, index, counter);
                Some(bytes)
            }
            Hostile::ReplayPart | Hostile::MixParts | Hostile::ForgedPart | Hostile::Thief => None,
        }
    }
}

/// Sets a valid mac1 in a handshake message. It takes only the receiver's public key.
pub(crate) fn stamp(crypto: &Provider, receiver: &PublicKey, message: &mut [u8]) {
    let at = message.len() - 32;
    let key = crypto.hash.hash(&[b"mac1----", &receiver.0]);
    let (body, macs) = message.split_at_mut(at);
    macs[..16].copy_from_slice(&crypto.hash.mac(&key, &[body]));
}
