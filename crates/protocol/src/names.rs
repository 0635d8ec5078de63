//! Endpoint names: when the address of a silent peer is asked for again, and what
//! becomes of the answer.
//!
//! A name is looked up only while initiations go out and nothing comes back, at
//! the moment of an initiation, so that no timer is needed and an idle peer
//! costs nothing. The look-up itself is the caller's.

use core::net::SocketAddr;
use core::time::Duration;

use crate::configure::set_endpoint;
use crate::device::Device;
use crate::key::PublicKey;
use crate::limits::{MAX_RESOLVE_INTERVAL, RESOLVE_AFTER, ROUNDS_PER_ADDRESS};
use crate::lock;
use crate::slots::Slot;
use crate::time::{Instant, Now};
use crate::update::EndpointName;

impl Device {
    /// Takes the addresses that a name has now, those that can be sent to, in
    /// the order of preference; none when they are not known. Returns where the
    /// peer's endpoint has moved to, if it has.
    ///
    /// An endpoint that is not among the addresses moves to the first. One that
    /// is stays there for a second look-up, and then gives way to the next. If
    /// the peer has been heard, configured or removed since it was asked for,
    /// the answer is dropped.
    pub fn handle_addresses(
        &mut self,
        now: Now,
        public_key: &PublicKey,
        name: &EndpointName,
        addresses: &[SocketAddr],
    ) -> Option<SocketAddr> {
        let id = self.peers.find(public_key)?;
        let slot = self.peers.slot(id)?;
        let named = slot.named.as_mut().filter(|named| named.name == *name)?;
        let since = named.asked.take();
        let mut link = lock(&slot.peer.link);
        // Every new endpoint begins a silence of its own.
        if since.is_none() || link.unanswered != since {
            return None;
        }
        let remote = link.endpoint?.remote;
        set_endpoint(&mut link, named.choose(remote, addresses)?);
        // The new address is as silent as the old one until it is heard.
        link.unanswered = since;
        link.want_handshake(now.boot);
        let moved = link.endpoint?.remote;
        drop(link);
        self.settle(now, id);
        Some(moved)
    }
}

impl Slot {
    /// Sets or forgets the endpoint's name. The same name again changes nothing.
    pub(crate) fn set_name(&mut self, name: Option<EndpointName>) {
        if self.named.as_ref().map(|named| &named.name) != name.as_ref() {
            self.named = name.map(|name| Box::new(Named::new(name)));
        }
    }
}

/// A peer's name, and how far asking for it has come.
pub(crate) struct Named {
    pub(crate) name: EndpointName,
    /// The silence that the look-up under way is about, by its beginning. Its
    /// answer is dropped when there is another, or none.
    asked: Option<Instant>,
    /// Since when the peer has been silent when it was last asked for.
    silent: Option<Instant>,
    /// When to ask next, while that silence lasts, and how much later again.
    next: Instant,
    interval: Duration,
    /// Look-ups in a row that gave the address that does not answer.
    rounds: u32,
}

impl Named {
    fn new(name: EndpointName) -> Self {
        Self {
            name,
            asked: None,
            silent: None,
            next: Instant::FAR_FUTURE,
            interval: RESOLVE_AFTER,
            rounds: 0,
        }
    }

    /// Whether to look the name up now that another initiation has gone to a
    /// peer that has been silent `since`; the name if so.
    pub(crate) fn ask(&mut self, now: Instant, since: Instant) -> Option<EndpointName> {
        if self.silent.replace(since) != Some(since) {
            self.next = since + RESOLVE_AFTER;
            self.interval = RESOLVE_AFTER;
            self.rounds = 0;
        }
        if now < self.next || self.asked.is_some() {
            return None;
        }
        self.next = now + self.interval;
        self.interval = (self.interval * 2).min(MAX_RESOLVE_INTERVAL);
        self.asked = Some(since);
        Some(self.name.clone())
    }

    /// The address to try instead of `remote`, if there is a reason to.
    fn choose(&mut self, remote: SocketAddr, addresses: &[SocketAddr]) -> Option<SocketAddr> {
        let same = |other: &SocketAddr| (other.ip(), other.port()) == (remote.ip(), remote.port());
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
