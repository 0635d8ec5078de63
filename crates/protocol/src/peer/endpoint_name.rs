//! Endpoint names: when to look up the name of a silent peer, and which of its addresses to use.
//!
//! A name is looked up only while initiations stay unanswered, at the time of an initiation. So
//! no timer is needed, and an idle peer costs nothing. The caller does the look-up.
//!
//! Until a handshake has completed with one of the addresses, and again after the network has
//! changed, it is unknown which addresses work: a name may have an IPv6 address although the
//! network has no IPv6 route. So the second initiation causes a look-up, and each further one
//! goes to the next address, of the other family first (as RFC 8305 §4 orders them). Once an
//! address has worked, a peer that falls silent has probably moved or is down. Then the name is
//! looked up less often, and the endpoint moves only if the answer has changed.

use core::net::SocketAddr;
use core::time::Duration;

use crate::limits::{
    LOOKUPS_PER_ADDRESS, MAX_NAME_ADDRESSES, MAX_RESOLVE_INTERVAL, REKEY_TIMEOUT, RESOLVE_AFTER,
};
use crate::time::Instant;
use crate::update::EndpointName;

/// A peer's endpoint name, and the state of its look-ups.
pub(crate) struct NamedEndpoint {
    pub(crate) name: EndpointName,
    /// Set while a look-up is in progress: the beginning of the silence that caused it. The
    /// answer is dropped if the silence has ended or another has begun.
    pub(crate) lookup_since: Option<Instant>,
    /// Beginning of the peer's silence at the last call of [`Self::request_lookup`].
    silent: Option<Instant>,
    /// Time of the next look-up while this silence lasts; `interval` is the delay of the one
    /// after it.
    next: Instant,
    interval: Duration,
    /// Look-ups in a row that returned the silent address again.
    same_answers: u32,
    /// Set once a handshake has completed since the name was set or the network changed.
    pub(crate) has_worked: bool,
    /// The second or a later initiation causes a look-up, even before `next`.
    is_urgent: bool,
    /// Destination of the last initiation.
    last_destination: Option<SocketAddr>,
    /// Time of the last look-up.
    last_lookup: Option<Instant>,
    /// Addresses to try in turn while none has worked.
    addresses: Vec<SocketAddr>,
}

impl NamedEndpoint {
    pub(super) fn new(name: EndpointName) -> Self {
        Self {
            name,
            lookup_since: None,
            silent: None,
            next: Instant::FAR_FUTURE,
            interval: RESOLVE_AFTER,
            same_answers: 0,
            has_worked: false,
            is_urgent: true,
            last_destination: None,
            last_lookup: None,
            addresses: Vec::new(),
        }
    }

    /// Records that a handshake has completed.
    pub(crate) fn note_handshake(&mut self) {
        self.has_worked = true;
        self.is_urgent = false;
        self.addresses = Vec::new();
    }

    /// Discards addresses and look-ups from before a change of network.
    pub(crate) fn restart(&mut self) {
        self.interval = RESOLVE_AFTER;
        self.has_worked = false;
        self.is_urgent = true;
        self.addresses = Vec::new();
    }

    /// Records another initiation to `remote`, for a peer silent since `since`. Returns the name
    /// if it must be looked up now.
    pub(crate) fn request_lookup(
        &mut self,
        now: Instant,
        since: Instant,
        remote: SocketAddr,
    ) -> Option<EndpointName> {
        self.last_destination = Some(remote);
        if self.silent.replace(since) != Some(since) {
            self.next = since + RESOLVE_AFTER;
            self.interval = RESOLVE_AFTER;
            self.same_answers = 0;
        }
        if self.lookup_since.is_some() {
            return None;
        }
        let has_waited = self
            .last_lookup
            .is_none_or(|at| now.since(at) >= REKEY_TIMEOUT);
        if self.is_urgent && now > since && has_waited {
            self.is_urgent = false;
            self.next = now + RESOLVE_AFTER;
        } else if now >= self.next {
            self.next = now + self.interval;
            self.interval = (self.interval * 2).min(MAX_RESOLVE_INTERVAL);
        } else {
            return None;
        }
        self.lookup_since = Some(since);
        self.last_lookup = Some(now);
        Some(self.name.clone())
    }

    /// Returns the address to try after `remote`, if none is known to work and `remote` has been
    /// tried.
    pub(crate) fn next_address(&self, remote: SocketAddr) -> Option<SocketAddr> {
        if self.has_worked || self.last_destination != Some(remote) {
            return None;
        }
        let at = self
            .addresses
            .iter()
            .position(|it| is_same_address(it, &remote))?;
        let next = self.addresses.iter().cycle().nth(at + 1)?;
        (!is_same_address(next, &remote)).then_some(*next)
    }

    /// Processes the addresses of a look-up. Returns the one to use instead of `remote`, if any.
    pub(crate) fn select_address(
        &mut self,
        remote: SocketAddr,
        addresses: &[SocketAddr],
    ) -> Option<SocketAddr> {
        let same = |other: &SocketAddr| is_same_address(other, &remote);
        if !self.has_worked {
            self.addresses = alternate_families(remote, addresses);
            let listed = addresses.iter().any(same);
            return if listed {
                self.next_address(remote)
            } else {
                addresses.first().copied()
            };
        }
        let next = match addresses.iter().position(same) {
            None => addresses.first(),
            Some(at) => {
                self.same_answers += 1;
                let (before, after) = addresses.split_at(at);
                let mut others = after.iter().chain(before);
                others
                    .find(|other| !same(other))
                    .filter(|_| self.same_answers >= LOOKUPS_PER_ADDRESS)
            }
        }?;
        self.same_answers = 0;
        Some(*next)
    }
}

/// Returns the addresses with families alternating, the family of `first` first. Each family
/// keeps its order.
fn alternate_families(first: SocketAddr, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
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

/// Compares address and port. Scopes and flow labels of IPv6 may differ.
fn is_same_address(a: &SocketAddr, b: &SocketAddr) -> bool {
    (a.ip(), a.port()) == (b.ip(), b.port())
}
