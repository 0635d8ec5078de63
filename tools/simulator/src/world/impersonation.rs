//! An attacker with all X25519 secrets and preshared keys, as from a quantum computer, but without
//! ML-KEM keys: it begins handshakes in the name of others.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::BTreeMap;

use taupe_crypto::Secret;
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{PqPrivateKey, PresharedKey, PublicKey};
use taupe_protocol::message::{Kind, classify};
use taupe_protocol::testing::hybrid_noise::{HybridInitiator, Local, PartAOutcome};
use taupe_protocol::testing::noise::{Precomputed, StaticKeys};
use taupe_protocol::testing::{LocalKeys, RemoteKeys};
use taupe_protocol::time::Tai64N;
use taupe_protocol::update::PostQuantum;

use super::World;
use super::attack::stamp;
use crate::plan::{HOUR, SECOND};
use crate::violation::{Invariant, Violation};

/// Number of its own addresses, at which it receives.
const ADDRESSES: u64 = 6;

/// State of the attacker.
#[derive(Default)]
pub(crate) struct Impersonator {
    /// Cookies that hosts have given to its addresses.
    cookies: BTreeMap<(usize, SocketAddr), [u8; 16]>,
}

/// Keys for impersonating a peer.
struct StolenIdentity {
    keys: StaticKeys,
    hybrid: LocalKeys,
    remote: RemoteKeys,
    preshared: PresharedKey,
}

impl StolenIdentity {
    fn local(&self) -> Local<'_> {
        Local {
            keys: &self.keys,
            hybrid: &self.hybrid,
        }
    }
}

/// A handshake that the attacker has begun.
struct Attempt {
    initiator: HybridInitiator,
    parts: Vec<Vec<u8>>,
}

impl World<'_> {
    /// Begins a handshake with a host in the name of one of its peers.
    pub(crate) fn impersonate_any(&mut self, host: usize) -> Result<(), Violation> {
        let victims: Vec<usize> = (0..self.hosts.len())
            .filter(|other| self.can_impersonate(host, *other))
            .collect();
        let Some(victim) = victims.get(self.random.index(victims.len())).copied() else {
            return Ok(());
        };
        self.impersonate(host, victim)
    }

    /// Begins a handshake with a host in the name of `victim`.
    pub(crate) fn impersonate(&mut self, host: usize, victim: usize) -> Result<(), Violation> {
        if !self.can_impersonate(host, victim) || !self.hosts[host].runs() {
            return Ok(());
        }
        let Some(identity) = self.identity(host, victim) else {
            return Ok(());
        };
        self.stats.impersonations += 1;
        let source = match self.random.below(4) {
            0 => self.hosts[victim].address,
            _ => {
                let n = self.random.below(ADDRESSES) as u8;
                SocketAddr::from(([198, 51, 100, 1 + n / 2], 1000 + u16::from(n)))
            }
        };
        // Uses the victim's own index if it is known, so that the index does not give the attacker
        // away.
        let known = self.captures.initiation(victim);
        let known = known.and_then(|(_, bytes)| bytes.get(4..)?.first_chunk().copied());
        let index = match known {
            Some(index) if self.random.once_in(2) => u32::from_le_bytes(index),
            _ => self.random.number() as u32,
        };
        let Some(attempt) = self.begin(&identity, host, index) else {
            return Ok(());
        };
        // Sometimes sends the second part of another handshake, which the host must not accept.
        if self.random.once_in(3)
            && let Some(other) = self.begin(&identity, host, index)
        {
            return self.send_mixed(host, victim, source, attempt, other);
        }
        let answers = self.send_parts(host, victim, source, &attempt)?;
        match finish(self.crypto, &identity, &attempt, &answers) {
            true => {
                let what = "an attacker with only X25519 keys gets a session".to_owned();
                Err(Violation::new(Invariant::Impersonation, what).between(host, victim))
            }
            false => Ok(()),
        }
    }

    /// Returns true if the attacker can begin a handshake with a host in the name of `victim`, and
    /// must not get a session.
    fn can_impersonate(&self, host: usize, victim: usize) -> bool {
        let h = &self.hosts[host];
        let Some(conf) = h.peers[victim].filter(|conf| conf.present) else {
            return false;
        };
        let hybrid = conf.hybrid.is_some_and(|it| it.suite.has_static_keys());
        let policy = h.policy(victim);
        hybrid && policy != PostQuantum::Off && conf.key == self.hosts[victim].public
    }

    fn identity(&self, host: usize, victim: usize) -> Option<StolenIdentity> {
        let (crypto, h) = (self.crypto, &self.hosts[host]);
        let conf = h.peers[victim]?;
        let suite: Suite = conf.hybrid?.suite;
        let private = self.hosts[victim].private();
        let keys = StaticKeys::new(crypto, private?);
        let identity = RemoteKeys::new(crypto, conf.key, h.pq_public_of(victim)).identity;
        let own = PqPrivateKey::new(Secret::new([0x5a; 64]))?;
        let target = h.pq_private()?.public(crypto, suite);
        Some(StolenIdentity {
            hybrid: LocalKeys::pretending(crypto, &keys, &own, suite, identity),
            keys,
            remote: RemoteKeys::new(crypto, h.public, Some(target)),
            preshared: h.preshared(victim, conf.preshared),
        })
    }

    /// Makes an initiation with the current timestamp or a future one.
    fn begin(&mut self, identity: &StolenIdentity, host: usize, index: u32) -> Option<Attempt> {
        let crypto = self.crypto;
        let wall = self.hosts[host].clocks(self.now).wall;
        let ahead = match self.random.below(3) {
            0 => 0,
            _ => self.random.spread(SECOND, 400 * 24 * HOUR),
        };
        let timestamp = Tai64N::from_wall(wall + Duration::from_nanos(ahead));
        let remote = &identity.remote.public_key;
        let precomputed = Precomputed::new(crypto, &identity.keys, remote).ok()?;
        let (initiator, parts) = HybridInitiator::start(
            crypto,
            identity.local(),
            &identity.remote,
            &identity.preshared,
            &precomputed,
            &mut self.random,
            timestamp,
            index,
        )
        .ok()?;
        Some(Attempt { initiator, parts })
    }

    /// Sends the parts of an initiation, and again with a cookie if the host asks for one. Returns
    /// the parts of the response to the attacker.
    fn send_parts(
        &mut self,
        host: usize,
        victim: usize,
        source: SocketAddr,
        attempt: &Attempt,
    ) -> Result<Vec<Vec<u8>>, Violation> {
        let mut taken = Vec::new();
        for part in &attempt.parts {
            for _ in 0..2 {
                let part = self.stamp_with_cookie(host, source, part);
                let answers = self.inject_part(host, victim, source, &part, "an impersonator's")?;
                let mut again = false;
                for answer in answers {
                    if classify(&answer) == Ok(Kind::CookieReply) {
                        again |= self.store_cookie(host, source, &part, &answer);
                    } else {
                        taken.push(answer);
                    }
                }
                if !again {
                    break;
                }
            }
        }
        Ok(taken)
    }

    /// Sends the first part of one handshake and the second part of another.
    fn send_mixed(
        &mut self,
        host: usize,
        victim: usize,
        source: SocketAddr,
        mut attempt: Attempt,
        other: Attempt,
    ) -> Result<(), Violation> {
        attempt.parts.truncate(1);
        self.send_parts(host, victim, source, &attempt)?;
        let Some(second) = other.parts.get(1) else {
            return Ok(());
        };
        let second = self.stamp_with_cookie(host, source, second);
        let stride = second.len();
        let what = "the second part of another handshake of an impersonator";
        self.inject(host, source, second, stride, what)
    }

    fn stamp_with_cookie(&self, host: usize, source: SocketAddr, part: &[u8]) -> Vec<u8> {
        let mut part = part.to_vec();
        stamp(self.crypto, &self.hosts[host].public, &mut part);
        if let Some(cookie) = self.impersonator.cookies.get(&(host, source)) {
            let at = part.len() - 16;
            let (body, mac2) = part.split_at_mut(at);
            mac2.copy_from_slice(&self.crypto.hash.mac(cookie, &[body]));
        }
        part
    }

    /// Decrypts the cookie in the reply to `part` (whitepaper §5.4.7). Returns true if it differs
    /// from the last one.
    fn store_cookie(&mut self, host: usize, at: SocketAddr, part: &[u8], reply: &[u8]) -> bool {
        let PublicKey(public) = self.hosts[host].public;
        let key = Secret::new(self.crypto.hash.hash(&[b"cookie--", &public]));
        let (Some(nonce), Some(sealed)) = (
            reply.get(8..).and_then(|rest| rest.first_chunk::<24>()),
            reply.get(32..).and_then(|rest| rest.first_chunk::<32>()),
        ) else {
            return false;
        };
        let mac1 = &part[part.len() - 32..part.len() - 16];
        let mut cookie = *sealed;
        let opened = self.crypto.aead.xopen_with(&key, nonce, mac1, &mut cookie);
        let (Ok(()), Some(cookie)) = (opened, cookie.first_chunk::<16>()) else {
            return false;
        };
        self.impersonator.cookies.insert((host, at), *cookie) != Some(*cookie)
    }
}

/// Returns true if a response gives the attacker a session.
fn finish(
    crypto: &taupe_crypto::Provider,
    identity: &StolenIdentity,
    attempt: &Attempt,
    response: &[Vec<u8>],
) -> bool {
    let psk = &identity.preshared;
    response.iter().any(|first| {
        let after = attempt
            .initiator
            .read_part_a(crypto, identity.local(), psk, first);
        match after {
            Ok(PartAOutcome::Complete(_)) => true,
            Ok(PartAOutcome::NeedsPartB(halfway)) => response.iter().any(|second| {
                let keys = halfway.read_part_b(crypto, identity.local(), psk, second);
                keys.is_ok()
            }),
            Err(_) => false,
        }
    })
}
