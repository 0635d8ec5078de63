//! A lane: a part of a device that carries packets by itself.
//!
//! A lane has a queue of the TUN, a data socket of each address family, and the handle of the
//! thread that carries all its packets while traffic is light ([`crate::schedule`]). Its packet
//! paths, one for the queue and one for each socket, read and send here and nowhere else. The
//! control loop starts and ends the threads of a lane (`control/lanes.rs`).
//!
//! A device has one lane. Several need a TUN with as many queues (`IFF_MULTI_QUEUE`) and groups of
//! data sockets (`SO_REUSEPORT`). They would share the state in [`Shared`], which includes the
//! peers with their send counters and the drop counters
//! ([`taupe_protocol::DataPath`]): a lane takes a peer's lock once per batch.

use std::sync::Arc;

use arc_swap::ArcSwap;
use taupe_os_linux::tun::Tun;
use taupe_os_linux::udp::Header;
use taupe_protocol::Endpoint;
use tracing::debug;

use crate::schedule::SharedThread;
use crate::shared::Shared;
use crate::sockets::LaneSockets;

pub(crate) struct Lane {
    /// State of the whole device.
    pub(crate) shared: Arc<Shared>,
    pub(crate) tun: Tun,
    /// Replaced as a whole, so that a send takes the current ones without a lock.
    pub(crate) sockets: ArcSwap<LaneSockets>,
    pub(crate) shared_thread: SharedThread,
}

impl Lane {
    /// Returns a lane without sockets.
    pub(crate) fn new(shared: Arc<Shared>, tun: Tun, shared_thread: SharedThread) -> Self {
        Self {
            shared,
            tun,
            sockets: ArcSwap::default(),
            shared_thread,
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
