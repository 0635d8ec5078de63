//! The MACs that end handshake messages, and cookies (whitepaper §5.3, §5.4.4,
//! §5.4.7).
//!
//! [`Checker`] is the receiving side, one per device; [`Stamper`] the sending
//! side, one per peer.

use core::net::{IpAddr, SocketAddr};

use subtle::ConstantTimeEq;
use taupe_crypto::{Provider, Secret};
use zerocopy::byteorder::little_endian::U32;

use crate::Random;
use crate::key::PublicKey;
use crate::limits::{COOKIE_LIFETIME, COOKIE_SECRET_LIFETIME};
use crate::message::{CookieReply, Kind};
use crate::time::Instant;

const LABEL_MAC1: &[u8] = b"mac1----";
const LABEL_COOKIE: &[u8] = b"cookie--";
const MAC_LEN: usize = 16;

/// What the MACs of a handshake message say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// The sender does not know our public key: drop without an answer.
    Invalid,
    /// The sender knows our public key.
    KnowsKey,
    /// The sender also receives at the address it sends from.
    OwnsAddress,
}

/// Verifies the MACs of received handshake messages and hands out cookies.
pub(crate) struct Checker {
    mac1_key: [u8; 32],
    cookie_key: Secret<32>,
    secret: Option<(Secret<32>, Instant)>,
}

impl Checker {
    /// For messages to `local`.
    pub(crate) fn new(crypto: &Provider, local: &PublicKey) -> Self {
        Self {
            mac1_key: crypto.hash.hash(&[LABEL_MAC1, &local.0]),
            cookie_key: Secret::new(crypto.hash.hash(&[LABEL_COOKIE, &local.0])),
            secret: None,
        }
    }

    /// Checks mac1, and mac2 if there is one.
    pub(crate) fn check(
        &self,
        crypto: &Provider,
        now: Instant,
        from: SocketAddr,
        message: &[u8],
    ) -> Verdict {
        let Some((body, mac1, mac2)) = split_macs(message) else {
            return Verdict::Invalid;
        };
        let expected = crypto.hash.mac(&self.mac1_key, &[body]);
        if !bool::from(expected.ct_eq(mac1)) {
            return Verdict::Invalid;
        }
        let Some(cookie) = self.cookie(crypto, now, from) else {
            return Verdict::KnowsKey;
        };
        let expected = crypto.hash.mac(cookie.expose(), &[body, mac1]);
        if bool::from(expected.ct_eq(mac2)) {
            Verdict::OwnsAddress
        } else {
            Verdict::KnowsKey
        }
    }

    /// Answers `message` with a cookie that only its address receives. Makes a
    /// new secret every 120 s. `None` if `message` has no MACs.
    pub(crate) fn reply(
        &mut self,
        crypto: &Provider,
        now: Instant,
        random: &mut dyn Random,
        from: SocketAddr,
        message: &[u8],
        receiver: u32,
    ) -> Option<CookieReply> {
        let (_, mac1, _) = split_macs(message)?;
        if self.live_secret(now).is_none() {
            self.secret = Some((random.secret(), now));
        }
        let cookie = self.cookie(crypto, now, from)?;
        let mut reply = CookieReply {
            kind: U32::new(Kind::CookieReply as u32),
            receiver: U32::new(receiver),
            nonce: [0; 24],
            cookie: [0; 32],
        };
        random.fill(&mut reply.nonce);
        reply.cookie[..MAC_LEN].copy_from_slice(cookie.expose());
        crypto
            .aead
            .xseal_with(&self.cookie_key, &reply.nonce, mac1, &mut reply.cookie);
        Some(reply)
    }

    /// The cookie of an address: MAC(secret, address ‖ port), as §5.4.7 has it
    /// (§5.3 speaks of the address alone; the kernel takes both).
    fn cookie(&self, crypto: &Provider, now: Instant, from: SocketAddr) -> Option<Secret<16>> {
        let secret = self.live_secret(now)?;
        let port = from.port().to_be_bytes();
        let mac = match from.ip() {
            IpAddr::V4(a) => crypto.hash.mac(secret.expose(), &[&a.octets(), &port]),
            IpAddr::V6(a) => crypto.hash.mac(secret.expose(), &[&a.octets(), &port]),
        };
        Some(Secret::new(mac))
    }

    fn live_secret(&self, now: Instant) -> Option<&Secret<32>> {
        let (secret, made) = self.secret.as_ref()?;
        (now.since(*made) < COOKIE_SECRET_LIFETIME).then_some(secret)
    }
}

/// Writes the MACs of handshake messages to one peer, with the cookie that the
/// peer has sent if it is fresh.
pub(crate) struct Stamper {
    mac1_key: [u8; 32],
    cookie_key: Secret<32>,
    /// mac1 of the last message sent, until a cookie has answered it: what a
    /// cookie reply must be bound to.
    awaited: Option<[u8; MAC_LEN]>,
    cookie: Option<(Secret<16>, Instant)>,
}

impl Stamper {
    /// For messages to `remote`.
    pub(crate) fn new(crypto: &Provider, remote: &PublicKey) -> Self {
        Self {
            mac1_key: crypto.hash.hash(&[LABEL_MAC1, &remote.0]),
            cookie_key: Secret::new(crypto.hash.hash(&[LABEL_COOKIE, &remote.0])),
            awaited: None,
            cookie: None,
        }
    }

    /// Fills in the last 32 bytes of `message`.
    pub(crate) fn stamp(&mut self, crypto: &Provider, now: Instant, message: &mut [u8]) {
        let Some(body_len) = message.len().checked_sub(2 * MAC_LEN) else {
            return;
        };
        let (body, macs) = message.split_at_mut(body_len);
        let mac1 = crypto.hash.mac(&self.mac1_key, &[body]);
        let mac2 = match &self.cookie {
            Some((cookie, received)) if now.since(*received) < COOKIE_LIFETIME => {
                crypto.hash.mac(cookie.expose(), &[body, &mac1])
            }
            _ => [0; MAC_LEN],
        };
        macs[..MAC_LEN].copy_from_slice(&mac1);
        macs[MAC_LEN..].copy_from_slice(&mac2);
        self.awaited = Some(mac1);
    }

    /// Takes the cookie out of a reply to the last message. Whether it did: a
    /// reply that answers nothing, was answered before or does not verify
    /// changes nothing.
    pub(crate) fn receive(&mut self, crypto: &Provider, now: Instant, reply: &CookieReply) -> bool {
        let Some(mac1) = self.awaited else {
            return false;
        };
        let mut sealed = reply.cookie;
        if crypto
            .aead
            .xopen_with(&self.cookie_key, &reply.nonce, &mac1, &mut sealed)
            .is_err()
        {
            return false;
        }
        let mut cookie = Secret::zeroed();
        cookie.expose_mut().copy_from_slice(&sealed[..MAC_LEN]);
        self.cookie = Some((cookie, now));
        self.awaited = None;
        true
    }
}

fn split_macs(message: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (rest, mac2) = message.split_at_checked(message.len().checked_sub(MAC_LEN)?)?;
    let (body, mac1) = rest.split_at_checked(rest.len().checked_sub(MAC_LEN)?)?;
    Some((body, mac1, mac2))
}
