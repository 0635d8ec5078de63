//! Attacks with parts of hybrid handshakes, made from captured parts with a valid mac1.
//! [`super::impersonation`] is the attacker who also has keys.

use core::net::SocketAddr;

use taupe_protocol::Output;
use taupe_protocol::hybrid::{Half, Part, Side};
use taupe_protocol::message::{Kind, classify};

use super::attack::stamp;
use super::{World, describe};
use crate::host::{Digest, endpoint, owner};
use crate::parts::{check_handshake_size, part_of};
use crate::plan::Hostile;
use crate::violation::{Invariant, Violation};

/// Bytes of a part's MACs, which are not in the transcript.
const MACS: usize = 32;

/// Returns a part without its MACs: the bytes that are equal whenever it is sent.
fn lasting(part: &[u8]) -> &[u8] {
    &part[..part.len().saturating_sub(MACS)]
}

/// Bytes of the header and the indices after it.
fn prefix(part: Part) -> usize {
    match part.side {
        Side::Initiation => 8,
        Side::Response => 12,
    }
}

impl World<'_> {
    /// Forges a part for a host, with a valid mac1.
    pub(crate) fn forge_part(
        &mut self,
        host: usize,
        kind: Hostile,
        source: &mut SocketAddr,
    ) -> Option<Vec<u8>> {
        let (from, mut bytes) = self.captured_part(host)?;
        let part = part_of(&bytes)?;
        if self.random.once_in(2) {
            *source = self.hosts[from].address;
        }
        if kind == Hostile::MixParts {
            let (_, other) = self.captured_part(host)?;
            if part_of(&other)? != part || lasting(&other) == lasting(&bytes) {
                return None;
            }
            bytes[prefix(part)..].copy_from_slice(&other[prefix(part)..]);
        } else if self.random.once_in(2) {
            let bit = self.random.index((bytes.len() - MACS) * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            // The type has changed: the host drops the part by its length or its mac1.
        } else {
            self.random.fill(&mut bytes[prefix(part)..]);
        }
        let own = self.hosts[host].public;
        stamp(self.crypto, &own, &mut bytes);
        Some(bytes)
    }

    /// Replays a part of an initiation, from its original address or another one. The host may
    /// answer it, and must not change otherwise.
    pub(crate) fn replay_part(&mut self, host: usize) -> Result<(), Violation> {
        let Some((from, bytes)) = self.captured_part(host) else {
            return Ok(());
        };
        if part_of(&bytes).is_none_or(|part| part.side != Side::Initiation) {
            return Ok(());
        }
        let elsewhere = SocketAddr::from(([203, 0, 113, 7], 4500 + self.random.below(4) as u16));
        let source = if self.random.once_in(2) {
            elsewhere
        } else {
            self.hosts[from].address
        };
        self.inject_part(host, from, source, &bytes, "repeated")?;
        Ok(())
    }

    /// Sends second parts to a host that has just received a first one, in the name of the same
    /// sender and before the true one arrives.
    pub(crate) fn ambush_second_part(
        &mut self,
        host: usize,
        source: SocketAddr,
        first: &[u8],
    ) -> Result<(), Violation> {
        let Some(part) = part_of(first).filter(|part| part.suite.has_static_keys()) else {
            return Ok(());
        };
        let second = Part {
            half: Half::B,
            ..part
        };
        let mut bytes = vec![0; second.len()];
        self.random.fill(&mut bytes);
        // Half of these are true second parts of another handshake.
        if let Some((_, other)) = self.captured_part(host)
            && part_of(&other) == Some(second)
            && other[4..prefix(part)] != first[4..prefix(part)]
        {
            bytes = other;
        }
        bytes[..4].copy_from_slice(&second.header());
        bytes[4..prefix(part)].copy_from_slice(&first[4..prefix(part)]);
        self.inject_stamped(host, source, bytes, "a second part of another handshake")
    }

    /// Sends parts of a response to a host that has just begun a handshake, before the true
    /// response.
    pub(crate) fn ambush_initiator(&mut self, host: usize) -> Result<(), Violation> {
        let Some((_, initiation)) = self.captures.initiation(host) else {
            return Ok(());
        };
        let Some(part) = part_of(initiation) else {
            return Ok(());
        };
        let index = initiation[4..8].to_vec();
        let halves: &[Half] = if part.suite.has_static_keys() {
            &[Half::B, Half::A]
        } else {
            &[Half::A]
        };
        for half in halves {
            let response = Part {
                side: Side::Response,
                half: *half,
                ..part
            };
            let mut bytes = vec![0; response.len()];
            self.random.fill(&mut bytes);
            bytes[..4].copy_from_slice(&response.header());
            bytes[8..12].copy_from_slice(&index);
            let source = SocketAddr::from(([203, 0, 113, 8], 4500));
            self.inject_stamped(host, source, bytes, "a made-up part of a response")?;
        }
        Ok(())
    }

    fn inject_stamped(
        &mut self,
        host: usize,
        source: SocketAddr,
        mut bytes: Vec<u8>,
        what: &str,
    ) -> Result<(), Violation> {
        let own = self.hosts[host].public;
        stamp(self.crypto, &own, &mut bytes);
        let stride = bytes.len();
        self.inject(host, source, bytes, stride, what)
    }

    /// Injects a part of an initiation in the name of `victim`. Checks that the host does no more
    /// than answer it. Returns the answers sent to addresses of no host.
    pub(crate) fn inject_part(
        &mut self,
        host: usize,
        victim: usize,
        source: SocketAddr,
        part: &[u8],
        what: &str,
    ) -> Result<Vec<Vec<u8>>, Violation> {
        self.stats.hostile += 1;
        let h = &mut self.hosts[host];
        let clocks = h.clocks(self.now);
        let from = endpoint(source, h.address);
        let backlog = h.backlog(self.now);
        let before = h.provisional_digest(victim);
        let Some(node) = h.node.as_mut() else {
            return Ok(Vec::new());
        };
        node.device.handle_message(clocks, from, part, backlog);
        let mut answers = Vec::new();
        while let Some(output) = node.device.poll_output() {
            match output {
                Output::Transmit {
                    endpoint, datagram, ..
                } if endpoint.remote == source => answers.push(datagram),
                _ => {
                    let what = format!("host {host}: does more than answer a part that is {what}");
                    return Err(Violation::new(Invariant::Provisional, what));
                }
            }
        }
        if answers.iter().any(|answer| part_of(answer).is_some()) {
            let sessions = node.device.sessions();
            self.stats.sessions += node.sessions.observe(victim, &sessions)?;
        }
        let after = h.provisional_digest(victim);
        unchanged(host, victim, before, after)?;
        h.check_memory()?;
        self.drain_output(host)?;
        self.log(|| {
            let count = answers.len();
            format!(
                "{host} ← {source} ({what}): {}, {count} answers",
                describe(part)
            )
        });
        for answer in &answers {
            check_handshake_size(host, answer)?;
            self.stats.cookies += u64::from(classify(answer) == Ok(Kind::CookieReply));
        }
        if owner(source).is_none_or(|owner| owner >= self.hosts.len()) {
            return Ok(answers);
        }
        for answer in answers {
            let stride = answer.len();
            self.send_datagrams(host, source, answer, stride, 0);
        }
        Ok(Vec::new())
    }

    /// Returns a captured part for `host` with its sender.
    fn captured_part(&mut self, host: usize) -> Option<(usize, Vec<u8>)> {
        let parts: Vec<(usize, &[u8])> = self
            .captures
            .sent_to(host)
            .filter(|(_, bytes)| part_of(bytes).is_some())
            .collect();
        let (from, bytes) = *parts.get(self.random.index(parts.len()))?;
        Some((from, bytes.to_vec()))
    }
}

/// Checks that a part of an initiation has changed no relevant state.
pub(crate) fn unchanged(
    host: usize,
    other: usize,
    before: Option<Digest>,
    after: Option<Digest>,
) -> Result<(), Violation> {
    if before == after {
        return Ok(());
    }
    let what = format!("a part of an initiation: state before: {before:?}, after: {after:?}");
    Err(Violation::new(Invariant::Provisional, what).between(host, other))
}
