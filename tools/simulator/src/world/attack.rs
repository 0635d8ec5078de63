//! Hostile datagrams made from captured ones, and checks that none of them changes anything.

use core::net::SocketAddr;

use taupe_crypto::Provider;
use taupe_protocol::Output;
use taupe_protocol::key::PublicKey;
use taupe_protocol::limits::REJECT_AFTER_MESSAGES;
use taupe_protocol::message::{DATA_HEADER_LEN, Kind, classify, data_header};
use taupe_protocol::testing::write_data_header;

use super::captures::{EdgePacket, Sent};
use super::{World, describe};
use crate::host::endpoint;
use crate::network::flip;
use crate::plan::Hostile;
use crate::random::Random;
use crate::violation::{Invariant, Violation};

impl World<'_> {
    /// Makes one or more hostile datagrams of equal size, and injects them into a host.
    pub(crate) fn attack(&mut self, host: usize, kind: Hostile) -> Result<(), Violation> {
        if !self.hosts[host].runs() {
            return Ok(());
        }
        match kind {
            Hostile::ReplayPart => return self.replay_part(host),
            Hostile::Impersonation => return self.impersonate_any(host),
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
    pub(crate) fn replay_edge_packets(
        &mut self,
        host: usize,
        incarnation: u64,
    ) -> Result<(), Violation> {
        let packets = core::mem::take(&mut self.captures.edge_packets);
        for EdgePacket {
            to,
            source,
            id,
            bytes,
        } in packets
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
        let mut received = core::mem::take(&mut node.received);
        node.path
            .receive(clocks.boot, from, &mut bytes, stride, &mut received);
        for message in &received.handshakes {
            node.device
                .handle_message(clocks, from, &bytes[message.clone()], backlog);
        }
        let delivered = received.inner.len();
        node.received = received;
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
                let list = &captures.accepted[host];
                let accepted = (!list.is_empty()).then(|| &list[random.index(list.len())])?;
                let h = &self.hosts[host];
                let conf = h.peers[accepted.sender].filter(|conf| conf.present)?;
                let same =
                    accepted.incarnation == h.incarnation && accepted.generation == conf.generation;
                if random.once_in(2) {
                    *source = accepted.source;
                }
                same.then(|| accepted.bytes.clone())
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
            Hostile::ReplayPart
            | Hostile::MixParts
            | Hostile::ForgedPart
            | Hostile::Impersonation => None,
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
