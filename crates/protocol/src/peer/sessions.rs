//! The sessions of a peer, and the order in which they replace each other.

use std::sync::Arc;

use crate::lanes::{LaneCounters, Lanes};
use crate::peer::Session;
use crate::peer::send_order::SendOrder;
use crate::time::Instant;

/// The sessions of a peer (whitepaper §6.3). Only the current one sends.
#[derive(Default)]
pub(crate) struct Sessions {
    /// Receives packets that were in transit when the current session replaced it.
    pub(crate) previous: Option<Arc<Session>>,
    pub(crate) current: Option<Current>,
    /// Made by a response of this side. It becomes current when the first packet from the
    /// initiator confirms it.
    pub(crate) next: Option<Arc<Session>>,
    /// Made by hybrid responses of this side to initiators that have not proven their ML-KEM key.
    /// One becomes current when the first packet confirms it, and has no effect before.
    pub(crate) provisional: Vec<Arc<Session>>,
    /// Replaced sessions, which the control loop removes from the session table.
    pub(crate) retired: Vec<Arc<Session>>,
    /// Set once the age of the current session has led to a handshake on receive.
    pub(crate) renewed_on_receive: bool,
}

/// The session that sends, with its next counters. They exist only here, so that no nonce is used
/// twice.
pub(crate) struct Current {
    pub(crate) session: Arc<Session>,
    pub(crate) counters: LaneCounters,
    /// Cleared when the device's private key changes: the session then only receives.
    pub(crate) may_send: bool,
}

impl Current {
    fn new(session: Arc<Session>) -> Self {
        let lanes = session.lanes();
        let sending = if lanes.is_striped() {
            lanes.own
        } else {
            Lanes::One
        };
        Self {
            session,
            counters: LaneCounters::new(sending),
            may_send: true,
        }
    }
}

impl Sessions {
    pub(super) fn sending(&self, now: Instant) -> Option<&Current> {
        let current = self.current.as_ref()?;
        let usable =
            current.may_send && current.session.may_send(now) && !current.counters.is_exhausted();
        usable.then_some(current)
    }

    /// Returns the order in which the lanes send in the current session, if it has one.
    pub(super) fn send_order(&self) -> Option<&Arc<SendOrder>> {
        self.current.as_ref()?.session.send_order()
    }

    /// Installs a session that this side initiated. It may send at once.
    pub(crate) fn install_initiated(&mut self, session: Arc<Session>) {
        let current = self.current.take().map(|current| current.session);
        // A session that waits for confirmation is newer than the current one.
        let (newer, older) = match self.next.take() {
            Some(next) => (Some(next), current),
            None => (current, None),
        };
        self.retired.extend(older);
        self.retired.extend(self.previous.take());
        self.previous = newer;
        self.current = Some(Current::new(session));
    }

    /// Installs a session that the other side initiated, unconfirmed.
    pub(crate) fn install_responded(&mut self, session: Arc<Session>) {
        self.retired.extend(self.previous.take());
        self.retired.extend(self.next.replace(session));
    }

    /// Records that a packet of `session` has been received. Returns `true` if that confirmed the
    /// session.
    pub(super) fn confirm(&mut self, session: &Arc<Session>) -> bool {
        let provisional = &mut self.provisional;
        if let Some(found) = provisional.iter().position(|it| Arc::ptr_eq(it, session)) {
            let session = provisional.swap_remove(found);
            // Sessions of earlier handshakes can no longer be confirmed.
            let older = provisional.extract_if(.., |it| it.born() < session.born());
            self.retired.extend(older);
            self.retired.extend(self.next.replace(session));
        }
        match self.next.take() {
            Some(next) if Arc::ptr_eq(&next, session) => {
                self.retired.extend(self.previous.take());
                self.previous = self.current.take().map(|current| current.session);
                self.current = Some(Current::new(next));
                true
            }
            other => {
                self.next = other;
                false
            }
        }
    }

    /// Retires every session for which `gone` holds.
    pub(crate) fn retire_if(&mut self, gone: impl Fn(&Session) -> bool) {
        self.retired.extend(self.previous.take_if(|s| gone(s)));
        self.retired.extend(self.next.take_if(|s| gone(s)));
        let provisional = self.provisional.extract_if(.., |s| gone(s));
        self.retired.extend(provisional);
        let current = self.current.take_if(|c| gone(&c.session));
        self.retired.extend(current.map(|c| c.session));
    }

    /// Retires the provisional session with local index `index`.
    pub(crate) fn retire_provisional(&mut self, index: u32) {
        let provisional = &mut self.provisional;
        let gone = provisional.extract_if(.., |session| session.local_index() == index);
        self.retired.extend(gone);
    }

    /// Returns the time at which the oldest session was made.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let current = self.current.as_ref().map(|c| &c.session);
        [self.previous.as_ref(), current, self.next.as_ref()]
            .into_iter()
            .flatten()
            .chain(&self.provisional)
            .map(|session| session.born())
            .min()
    }
}
