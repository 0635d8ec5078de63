//! Services that a device needs from its host besides sending datagrams: saved state on disk,
//! look-ups of endpoint names, and updates that include the saved state.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, mpsc};

use taupe_protocol::crypto::{HANDSHAKE_STACK, default_provider, erase_dead_stack};
use taupe_protocol::key::PublicKey;
use taupe_protocol::update::{DeviceUpdate, PeerUpdate, PostQuantum};
use taupe_protocol::{Device, Endpoint, Notice, Output, UpdateError, Wake};
use tracing::{debug, info, warn};

use crate::clock::now;
use crate::names::{Answer, Lookups, Question};
use crate::pinned_pq::{PinnedPeersError, mark_pinned};
use crate::resolver::Resolver;
use crate::saved_state::{SavedState, StateFiles};
use crate::unresolved::UnresolvedEndpoints;

/// The services of one device.
pub struct Services {
    saved: Box<dyn SavedState>,
    lookups: Lookups,
    answers: mpsc::Receiver<Answer>,
    unresolved: UnresolvedEndpoints,
    /// The end of the warning about an endpoint without an address.
    meanwhile: &'static str,
    /// The mark of the device's datagrams and of DNS queries (Linux).
    mark: u32,
}

/// Output of a device that the driver's user handles.
pub enum Event {
    /// Send a datagram.
    Transmit {
        /// The destination, and the local address to send from.
        endpoint: Endpoint,
        /// The traffic class of the outer header.
        tos: u8,
        /// The message.
        datagram: Vec<u8>,
    },
    /// Report this to the device's user.
    Notice(Notice),
}

/// An update that includes the saved state of its keys. Only such updates can be applied. Without
/// its timestamp, a private key could lock the device out of its peers. Without its record, a pinned
/// post-quantum peer could be downgraded to classic handshakes.
pub struct PreparedUpdate(pub(crate) DeviceUpdate);

/// Reason for which an update must not be applied.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The device would refuse it.
    #[error(transparent)]
    Update(#[from] UpdateError),
    /// The record of pinned post-quantum peers cannot be read.
    #[error(transparent)]
    PinnedPeers(#[from] PinnedPeersError),
}

impl Services {
    /// Returns services that save their state in a folder. `None` is `/var/lib/taupe`. Any thread
    /// may call `wake`, when [`Self::handle_answers`] has something to do.
    pub fn new(state_dir: Option<&Path>, resolver: Arc<dyn Resolver>, wake: Wake) -> Self {
        Self::with_state(Box::new(StateFiles::new(state_dir)), resolver, wake)
    }

    /// Returns services like [`Self::new`] that save their state elsewhere.
    pub fn with_state(saved: Box<dyn SavedState>, resolver: Arc<dyn Resolver>, wake: Wake) -> Self {
        let (send, answers) = mpsc::channel();
        let report = move |answer| {
            if send.send(answer).is_ok() {
                wake();
            }
        };
        Self {
            saved,
            lookups: Lookups::new(resolver, report),
            answers,
            unresolved: UnresolvedEndpoints::default(),
            meanwhile: "",
            mark: 0,
        }
    }

    /// Also looks up endpoints that have no address yet, repeatedly until each has one. `meanwhile`
    /// ends the warning about such an endpoint; it describes what happens to the peer's traffic
    /// until then.
    #[must_use]
    pub fn with_unresolved(mut self, all: UnresolvedEndpoints, meanwhile: &'static str) -> Self {
        self.unresolved = all;
        self.meanwhile = meanwhile;
        self
    }

    /// Sets the mark of DNS queries (Linux).
    pub fn set_mark(&mut self, mark: u32) {
        self.mark = mark;
    }

    /// Adds the saved state of its keys to an update: the timestamp floor of the private key, and
    /// the pinned post-quantum peers.
    ///
    /// # Errors
    ///
    /// [`PrepareError`]. The device is unchanged.
    pub fn prepare(
        &mut self,
        device: &Device,
        mut update: DeviceUpdate,
    ) -> Result<PreparedUpdate, PrepareError> {
        device.check(&update)?;
        let prefers = || {
            let mut peers = device.status().peers.into_iter();
            peers.any(|peer| peer.post_quantum == Some(PostQuantum::Prefer))
        };
        let load = |key: &PublicKey| self.saved.pinned_peers(key);
        mark_pinned(load, device.public_key(), prefers, &mut update)?;
        if let Some(private) = &mut update.private_key {
            let dh = default_provider().dh;
            let public = private
                .key
                .as_ref()
                .map(|key| PublicKey(dh.public(key.expose())));
            private.timestamp_floor = public
                .map(|key| self.saved.timestamp(&key))
                .unwrap_or_default();
            erase_dead_stack::<HANDSHAKE_STACK>();
        }
        Ok(PreparedUpdate(update))
    }

    /// Handles an output of the device, or returns it if the user must handle it. Call this for each
    /// output before taking the next from the device: a timestamp must be saved before the message
    /// that uses it is sent.
    pub fn handle_output(&mut self, device: &mut Device, output: Output) -> Option<Event> {
        match output {
            Output::Transmit {
                endpoint,
                tos,
                datagram,
            } => {
                return Some(Event::Transmit {
                    endpoint,
                    tos,
                    datagram,
                });
            }
            Output::Notice(notice) => return Some(Event::Notice(notice)),
            Output::ReserveTimestamps { public_key, up_to } => {
                self.saved.save_timestamp(&public_key, up_to)
            }
            Output::PinPostQuantum {
                public_key,
                peer,
                pinned,
            } => self.saved.save_pin(&public_key, peer, pinned),
            Output::Resolve { public_key, name } => {
                debug!(%name, "a peer is unresponsive: looking up its name");
                self.ask(device, Question { public_key, name });
            }
        }
        None
    }

    /// Passes the results of look-ups to the device, and starts the look-ups that are due.
    pub fn handle_answers(&mut self, device: &mut Device) {
        while let Ok(Answer {
            question,
            addresses,
        }) = self.answers.try_recv()
        {
            self.handle_answer(device, &question, addresses);
            self.lookups.proceed(self.mark);
        }
        if self.unresolved.is_empty() {
            return;
        }
        while let Some(question) = self.unresolved.due(now().boot) {
            self.ask(device, question);
        }
    }

    /// Returns true if every endpoint with a name has an address.
    #[must_use]
    pub fn has_endpoints(&self) -> bool {
        self.unresolved.is_empty()
    }

    /// Makes all look-ups of endpoints without an address due now. Call this after the network has
    /// changed.
    pub fn retry_now(&mut self) {
        self.unresolved.retry_now();
    }

    /// Returns the hosts whose addresses are being looked up.
    pub fn hosts_being_resolved(&self) -> impl Iterator<Item = &str> {
        self.lookups.questions().map(|it| it.name.host())
    }

    fn ask(&mut self, device: &mut Device, question: Question) {
        if let Err(question) = self.lookups.ask(question, self.mark) {
            let error = io::Error::other("too many name lookups at once");
            self.handle_answer(device, &question, Err(error));
        }
    }

    fn handle_answer(
        &mut self,
        device: &mut Device,
        question: &Question,
        found: io::Result<Vec<SocketAddr>>,
    ) {
        match self.unresolved.contains(question) {
            true => self.set_first_endpoint(device, question, found),
            false => move_endpoint(device, question, found),
        }
    }

    /// Sets an endpoint to the first address found, unless the peer's own datagrams or a client have
    /// set it meanwhile.
    fn set_first_endpoint(
        &mut self,
        device: &mut Device,
        question: &Question,
        found: io::Result<Vec<SocketAddr>>,
    ) {
        let Question { public_key, name } = question;
        let peers = device.status().peers;
        let peer = peers.iter().find(|peer| peer.public_key == *public_key);
        if peer.is_none_or(|peer| peer.endpoint.is_some()) {
            self.unresolved.remove(question);
            return;
        }
        let first = found.and_then(|all| {
            let none = "none of its addresses is usable";
            all.into_iter().next().ok_or_else(|| io::Error::other(none))
        });
        let endpoint = match first {
            Ok(endpoint) => endpoint,
            Err(error) => {
                match self.unresolved.fail(now().boot, question) {
                    Some(line) => warn!(
                        line, %name, %error,
                        "the name of an endpoint has no address: {}; the lookup is repeated",
                        self.meanwhile
                    ),
                    None => debug!(%name, %error, "the name of an endpoint still has no address"),
                }
                return;
            }
        };
        info!(%name, %endpoint, "the name of an endpoint has an address");
        self.unresolved.remove(question);
        let peer = PeerUpdate {
            update_only: true,
            endpoint: Some(endpoint),
            endpoint_name: Some(Some(name.clone())),
            ..PeerUpdate::new(*public_key)
        };
        let update = DeviceUpdate {
            peers: vec![peer],
            ..DeviceUpdate::default()
        };
        let applied = self.prepare(device, update).and_then(|update| {
            update.apply(device)?;
            Ok(())
        });
        if let Err(error) = applied {
            warn!(%error, "configuration refused");
        }
    }
}

impl PreparedUpdate {
    /// Applies the update.
    ///
    /// # Errors
    ///
    /// [`UpdateError`], if another update has been applied to the device meanwhile.
    pub fn apply(self, device: &mut Device) -> Result<(), UpdateError> {
        let updated = device.update(now(), self.0);
        erase_dead_stack::<HANDSHAKE_STACK>();
        updated
    }
}

fn move_endpoint(device: &mut Device, question: &Question, found: io::Result<Vec<SocketAddr>>) {
    let Question { public_key, name } = question;
    let addresses = found.unwrap_or_else(|error| {
        info!(%name, %error, "the name of an unresponsive peer cannot be looked up; its endpoint is unchanged");
        Vec::new()
    });
    debug!(%name, ?addresses, "looked up");
    let moved = device.handle_addresses(now(), public_key, name, &addresses);
    if let Some(endpoint) = moved {
        info!(%name, %endpoint, "the endpoint of an unresponsive peer has changed");
    }
}

#[cfg(test)]
mod tests;
