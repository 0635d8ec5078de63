//! MACs at the end of handshake messages, and cookies (whitepaper §5.3, §5.4.4, §5.4.7).
//!
//! [`MacChecker`] is the receiving side, one per device. [`MacWriter`] is the sending side, one per
//! peer.

use core::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
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

/// Verifies the MACs of received handshake messages and makes cookies.
pub(crate) struct MacChecker {
    mac1_key: [u8; 32],
    cookie_key: Secret<32>,
    secret: Option<(Secret<32>, Instant)>,
}

impl MacChecker {
    /// Returns a checker of messages to `local`.
    pub(crate) fn new(crypto: &Provider, local: &PublicKey) -> Self {
        Self {
            mac1_key: crypto.hash.hash(&[LABEL_MAC1, &local.0]),
            cookie_key: Secret::new(crypto.hash.hash(&[LABEL_COOKIE, &local.0])),
            secret: None,
        }
    }

    /// Checks mac1, which shows that the sender knows our public key.
    pub(crate) fn verify_mac1(&self, crypto: &Provider, message: &[u8]) -> bool {
        split_macs(message).is_some_and(|(body, mac1, _)| {
            let expected = crypto.hash.mac(&self.mac1_key, &[body]);
            expected.ct_eq(mac1).into()
        })
    }

    /// Returns the cookie of an address: MAC(secret, address ‖ port), as in §5.4.7 (§5.3 mentions
    /// only the address; the kernel uses both). Makes a new secret when the last one is 120 s
    /// old.
    pub(crate) fn cookie(
        &mut self,
        crypto: &Provider,
        now: Instant,
        random: &mut dyn Random,
        from: SocketAddr,
    ) -> Cookie {
        let is_fresh = |(_, made): &(_, Instant)| now.since(*made) < COOKIE_SECRET_LIFETIME;
        let live = self.secret.take().filter(is_fresh);
        let (secret, _) = self
            .secret
            .insert(live.unwrap_or_else(|| (random.secret(), now)));
        // τ := MAC(R_m, A_m'), with the secret R_m and the sender's address A_m'
        let port = from.port().to_be_bytes();
        let mac = match from.ip() {
            IpAddr::V4(a) => crypto.hash.mac(secret.expose(), &[&a.octets(), &port]),
            IpAddr::V6(a) => crypto.hash.mac(secret.expose(), &[&a.octets(), &port]),
        };
        Cookie(Secret::new(mac))
    }

    /// Makes the cookie reply to `message`. `None` if `message` is too short to have MACs.
    pub(crate) fn reply(
        &self,
        crypto: &Provider,
        random: &mut dyn Random,
        Cookie(cookie): &Cookie,
        message: &[u8],
        receiver: u32,
    ) -> Option<CookieReply> {
        let (_, mac1, _) = split_macs(message)?;
        let mut reply = CookieReply {
            kind: U32::new(Kind::CookieReply as u32),
            receiver: U32::new(receiver),
            nonce: [0; 24],
            cookie: [0; 32],
        };
        random.fill(&mut reply.nonce);
        // msg.cookie := XAEAD(HASH(LABEL_COOKIE ‖ S_m^pub), msg.nonce, τ, M), where S_m^pub is this
        // side's static key, τ the cookie and M the mac1 of the message
        reply.cookie[..MAC_LEN].copy_from_slice(cookie.expose());
        crypto
            .aead
            .xseal_with(&self.cookie_key, &reply.nonce, mac1, &mut reply.cookie);
        Some(reply)
    }
}

/// A cookie (whitepaper §5.4.7). Only a receiver at the address it was made for knows it.
pub(crate) struct Cookie(Secret<MAC_LEN>);

impl Cookie {
    /// Checks mac2, which shows that the sender receives at its source address.
    pub(crate) fn verify_mac2(&self, crypto: &Provider, message: &[u8]) -> bool {
        split_macs(message).is_some_and(|(body, mac1, mac2)| {
            let expected = crypto.hash.mac(self.0.expose(), &[body, mac1]);
            expected.ct_eq(mac2).into()
        })
    }
}

/// Writes the MACs of handshake messages to one peer, with the peer's last cookie while it is
/// fresh.
pub(crate) struct MacWriter {
    mac1_key: [u8; 32],
    cookie_key: Secret<32>,
    /// mac1 of each datagram of the last message, until a cookie reply has answered one. The
    /// reply is authenticated with this mac1.
    awaited: ArrayVec<[u8; MAC_LEN], 2>,
    cookie: Option<(Secret<16>, Instant)>,
}

impl MacWriter {
    /// Returns a writer for messages to `remote`.
    pub(crate) fn new(crypto: &Provider, remote: &PublicKey) -> Self {
        Self {
            mac1_key: crypto.hash.hash(&[LABEL_MAC1, &remote.0]),
            cookie_key: Secret::new(crypto.hash.hash(&[LABEL_COOKIE, &remote.0])),
            awaited: ArrayVec::new(),
            cookie: None,
        }
    }

    /// Writes the MACs into the last 32 bytes of a message that is one datagram.
    pub(crate) fn write_macs(&mut self, crypto: &Provider, now: Instant, message: &mut [u8]) {
        self.awaited.clear();
        self.write(crypto, now, message);
    }

    /// Writes the MACs into the last 32 bytes of each part of a hybrid initiation.
    pub(crate) fn write_part_macs(
        &mut self,
        crypto: &Provider,
        now: Instant,
        parts: &mut [Vec<u8>],
    ) {
        self.awaited.clear();
        for part in parts {
            self.write(crypto, now, part);
        }
    }

    fn write(&mut self, crypto: &Provider, now: Instant, message: &mut [u8]) {
        let Some(body_len) = message.len().checked_sub(2 * MAC_LEN) else {
            return;
        };
        let (body, macs) = message.split_at_mut(body_len);
        // msg.mac1 := MAC(HASH(LABEL_MAC1 ‖ S_m'^pub), msg_α)
        let mac1 = crypto.hash.mac(&self.mac1_key, &[body]);
        // msg.mac2 := MAC(L_m, msg_β); zeros without a fresh cookie L_m
        let mac2 = match &self.cookie {
            Some((cookie, received)) if now.since(*received) < COOKIE_LIFETIME => {
                crypto.hash.mac(cookie.expose(), &[body, &mac1])
            }
            _ => [0; MAC_LEN],
        };
        macs[..MAC_LEN].copy_from_slice(&mac1);
        macs[MAC_LEN..].copy_from_slice(&mac2);
        let _ = self.awaited.try_push(mac1);
    }

    /// Decrypts and stores the cookie of a reply to the last message. Returns `false`, and
    /// changes nothing, if the reply answers no message, if the message was answered before, or
    /// if the reply does not verify.
    pub(crate) fn receive(&mut self, crypto: &Provider, now: Instant, reply: &CookieReply) -> bool {
        let key = &self.cookie_key;
        let open = |mac1: &[u8; MAC_LEN]| {
            let mut sealed = reply.cookie;
            let opened = crypto.aead.xopen_with(key, &reply.nonce, mac1, &mut sealed);
            opened.ok().map(|()| sealed)
        };
        let Some(sealed) = self.awaited.iter().find_map(open) else {
            return false;
        };
        let mut cookie = Secret::zeroed();
        cookie.expose_mut().copy_from_slice(&sealed[..MAC_LEN]);
        self.cookie = Some((cookie, now));
        self.awaited.clear();
        true
    }
}

/// Checks whether mac2 is non-zero: the sender claims to have a cookie. The comparison need not
/// take constant time, because mac2 is sent in clear.
pub(crate) fn has_mac2(message: &[u8]) -> bool {
    split_macs(message).is_some_and(|(_, _, mac2)| mac2 != [0; MAC_LEN])
}

fn split_macs(message: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (rest, mac2) = message.split_at_checked(message.len().checked_sub(MAC_LEN)?)?;
    let (body, mac1) = rest.split_at_checked(rest.len().checked_sub(MAC_LEN)?)?;
    Some((body, mac1, mac2))
}
