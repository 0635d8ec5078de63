//! Endpoint names: when the address of a silent peer is asked for again, and what
//! becomes of the answer.
//!
//! A name is looked up only while initiations go out and nothing comes back, at
//! the moment of an initiation, so that no timer is needed and an idle peer
//! costs nothing. The look-up itself is the caller's.
//!
//! Nothing says which addresses work here until a handshake has completed by one of them, and
//! again after the network has changed: a name may have an IPv6 address although the network leads
//! nowhere by IPv6. So the second initiation has the name looked up, and each further one goes to
//! the next address, of the other family first (as RFC 8305 §4 orders them). Once an address has
//! worked, a peer that falls silent has probably moved or is down. Then the name is looked up
//! more rarely, and the endpoint moves if the answer is another.

use core::net::SocketAddr;
use core::time::Duration;

use crate::limits::{
    MAX_NAME_ADDRESSES, MAX_RESOLVE_INTERVAL, REKEY_TIMEOUT, RESOLVE_AFTER, ROUNDS_PER_ADDRESS,
};
use crate::time::Instant;
use crate::update::EndpointName;

/// A peer's name, and how far asking for it has come.
pub(crate) struct Named {
    pub(crate) name: EndpointName,
    /// The silence that the look-up under way is about, by its beginning. Its
    /// answer is dropped when there is another, or none.
    pub(crate) asked: Option<Instant>,
    /// Since when the peer has been silent when it was last asked for.
    silent: Option<Instant>,
    /// When to ask next, while that silence lasts, and how much later again.
    next: Instant,
    interval: Duration,
    /// Look-ups in a row that gave the address that does not answer.
    rounds: u32,
    /// A handshake has completed since the name was set or the network changed.
    pub(crate) has_worked: bool,
    /// The next initiation but the first has the name looked up, whenever that was done last.
    is_urgent: bool,
    /// The destination of the last initiation.
    tried: Option<SocketAddr>,
    /// The time of the last look-up of the name.
    asked_at: Option<Instant>,
    /// The addresses to take turns with, while none has worked.
    addresses: Vec<SocketAddr>,
}

impl Named {
    pub(super) fn new(name: EndpointName) -> Self {
        Self {
            name,
            asked: None,
            silent: None,
            next: Instant::FAR_FUTURE,
            interval: RESOLVE_AFTER,
            rounds: 0,
            has_worked: false,
            is_urgent: true,
            tried: None,
            asked_at: None,
            addresses: Vec::new(),
        }
    }

    /// Takes note that a handshake has completed.
    pub(crate) fn has_worked(&mut self) {
        self.has_worked = true;
        self.is_urgent = false;
        self.addresses = Vec::new();
    }

    /// Forgets the addresses and the look-ups of the network before this one.
    pub(crate) fn begin_anew(&mut self) {
        self.interval = RESOLVE_AFTER;
        self.has_worked = false;
        self.is_urgent = true;
        self.addresses = Vec::new();
    }

    /// Takes note of another initiation to `remote`, for a peer that has been silent `since`.
    /// Returns the name if it is to be looked up now.
    pub(crate) fn ask(
        &mut self,
        now: Instant,
        since: Instant,
        remote: SocketAddr,
    ) -> Option<EndpointName> {
        self.tried = Some(remote);
        if self.silent.replace(since) != Some(since) {
            self.next = since + RESOLVE_AFTER;
            self.interval = RESOLVE_AFTER;
            self.rounds = 0;
        }
        if self.asked.is_some() {
            return None;
        }
        let rested = self
            .asked_at
            .is_none_or(|at| now.since(at) >= REKEY_TIMEOUT);
        if self.is_urgent && now > since && rested {
            self.is_urgent = false;
            self.next = now + RESOLVE_AFTER;
        } else if now >= self.next {
            self.next = now + self.interval;
            self.interval = (self.interval * 2).min(MAX_RESOLVE_INTERVAL);
        } else {
            return None;
        }
        self.asked = Some(since);
        self.asked_at = Some(now);
        Some(self.name.clone())
    }

    /// Returns the address whose turn it is after `remote`, if none is known to work and
    /// `remote` has been tried.
    pub(crate) fn after(&self, remote: SocketAddr) -> Option<SocketAddr> {
        if self.has_worked || self.tried != Some(remote) {
            return None;
        }
        let at = self.addresses.iter().position(|it| is_same(it, &remote))?;
        let next = self.addresses.iter().cycle().nth(at + 1)?;
        (!is_same(next, &remote)).then_some(*next)
    }

    /// The address to try instead of `remote`, if there is a reason to.
    pub(crate) fn choose(
        &mut self,
        remote: SocketAddr,
        addresses: &[SocketAddr],
    ) -> Option<SocketAddr> {
        let same = |other: &SocketAddr| is_same(other, &remote);
        if !self.has_worked {
            self.addresses = by_turns(remote, addresses);
            let listed = addresses.iter().any(same);
            return if listed {
                self.after(remote)
            } else {
                addresses.first().copied()
            };
        }
        let next = match addresses.iter().position(same) {
            None => addresses.first(),
            Some(at) => {
                self.rounds += 1;
                let (before, after) = addresses.split_at(at);
                let mut others = after.iter().chain(before);
                others
                    .find(|other| !same(other))
                    .filter(|_| self.rounds >= ROUNDS_PER_ADDRESS)
            }
        }?;
        self.rounds = 0;
        Some(*next)
    }
}

/// Returns addresses of the two families by turns, the family of `first` first. Each family keeps
/// its order.
fn by_turns(first: SocketAddr, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let of = |family: bool| {
        addresses
            .iter()
            .filter(move |it| it.is_ipv4() == family)
            .copied()
    };
    let (mut these, mut others) = (of(first.is_ipv4()), of(!first.is_ipv4()));
    let pairs = core::iter::from_fn(|| match (these.next(), others.next()) {
        (None, None) => None,
        pair => Some([pair.0, pair.1]),
    });
    pairs.flatten().flatten().take(MAX_NAME_ADDRESSES).collect()
}

/// Checks whether both have the same address and port. Scopes and flow labels of IPv6 may differ.
fn is_same(a: &SocketAddr, b: &SocketAddr) -> bool {
    (a.ip(), a.port()) == (b.ip(), b.port())
}
