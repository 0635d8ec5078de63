//! A lane: a part of a device that carries packets by itself.
//!
//! A lane has a queue of the TUN, a data socket of each address family, and a class of counters
//! ([`taupe_protocol::LaneId`]). Its packet paths, one for the queue and one for each socket, use
//! only this queue and these sockets. The control loop makes the lanes and starts their threads
//! (`control/lanes.rs`).
//!
//! Lanes share the state in [`Shared`], which includes the peers and the drop counters
//! ([`taupe_protocol::DataPath`]). A lane takes a peer's lock once per batch, or twice if
//! there are several lanes and the peer has none.

use std::sync::Arc;

use arc_swap::ArcSwap;
use taupe_os_linux::tun::Tun;
use taupe_os_linux::udp::Header;
use taupe_protocol::{Endpoint, LaneId};
use tracing::debug;

use crate::schedule::LaneLoad;
use crate::shared::Shared;
use crate::sockets::LaneSockets;

pub(crate) struct Lane {
    pub(crate) id: LaneId,
    /// State of the whole device.
    pub(crate) shared: Arc<Shared>,
    /// A queue of the TUN.
    pub(crate) tun: Tun,
    /// Replaced as a whole, so that a send takes the current ones without a lock.
    pub(crate) sockets: ArcSwap<LaneSockets>,
    pub(crate) load: Arc<LaneLoad>,
}

impl Lane {
    /// Returns a lane without sockets.
    pub(crate) fn new(id: LaneId, shared: Arc<Shared>, tun: Tun) -> Self {
        Self {
            id,
            shared,
            tun,
            sockets: ArcSwap::default(),
            load: Arc::default(),
        }
    }

    /// Sends a batch. Returns true if the endpoint's local address can no longer be used.
    pub(crate) fn transmit(
        &self,
        endpoint: &Endpoint,
        header: Header,
        buffer: &[u8],
        segment: usize,
    ) -> bool {
        let underlay = &self.shared.underlay;
        let sockets = self.sockets.load();
        let sent = sockets.send(underlay, endpoint, header, buffer, segment);
        if let Err(error) = &sent.result {
            debug!(remote = %endpoint.remote, %error, "sending failed");
        }
        sent.local_address_dropped
    }
}
