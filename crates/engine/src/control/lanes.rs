//! The lanes of a device with their threads.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use taupe_os_linux::tun::Tun;
use taupe_os_linux::udp::Socket;
use taupe_packet::ip::Family;
use taupe_runtime::clock;
use tracing::debug;

use super::system;
use crate::inbound::InboundPath;
use crate::lane::Lane;
use crate::lifecycle::{StartError, spawn};
use crate::options::Offloads;
use crate::outbound::OutboundPath;
use crate::schedule::{PathId, SharedThread, run_dedicated, run_shared};
use crate::shared::{Command, Shared};
use crate::sockets::LaneSockets;

/// A lane whose threads run. They end when this is dropped.
pub(super) struct RunningLane {
    lane: Arc<Lane>,
    /// The threads that receive from the data sockets.
    receivers: Vec<JoinHandle<()>>,
}

impl RunningLane {
    /// Makes a lane of a TUN queue, without sockets, and starts its shared thread.
    pub(super) fn new(
        shared: Arc<Shared>,
        tun: Tun,
        offloads: Offloads,
    ) -> Result<Self, StartError> {
        let (shared_thread, arrivals) =
            SharedThread::new(offloads).map_err(system("cannot make an eventfd"))?;
        let running = Self {
            lane: Arc::new(Lane::new(shared, tun, shared_thread)),
            receivers: Vec::new(),
        };
        let lane = Arc::clone(&running.lane);
        spawn("both", move || run_shared(&lane.shared_thread, &arrivals))?;
        Ok(running)
    }

    pub(super) fn lane(&self) -> &Arc<Lane> {
        &self.lane
    }

    /// Starts the thread that carries packets from the TUN queue.
    pub(super) fn start_outbound(&self) -> Result<(), StartError> {
        let lane = Arc::clone(&self.lane);
        let path = OutboundPath::new(Arc::clone(&lane));
        spawn("out", move || {
            run_dedicated(&lane.shared_thread, PathId::Outbound, Box::new(path));
        })?;
        Ok(())
    }

    /// Replaces the sockets and the threads that receive from them. When this returns, the lane no
    /// longer holds the old sockets.
    pub(super) fn replace_sockets(&mut self, sockets: LaneSockets) {
        let started = [
            (sockets.v4.clone(), Family::V4),
            (sockets.v6.clone(), Family::V6),
        ];
        let before = self.lane.sockets.swap(Arc::new(sockets));
        before.shutdown();
        for receiver in self.receivers.drain(..) {
            let _ = receiver.join();
        }
        // A send may still hold the old sockets, for as long as one system call takes.
        let patience = clock::boot() + Duration::from_secs(1);
        while Arc::strong_count(&before) > 1 && clock::boot() < patience {
            std::thread::yield_now();
        }
        drop(before);
        for (socket, family) in started {
            let Some(socket) = socket else { continue };
            match self.start_inbound(socket, family) {
                Ok(receiver) => self.receivers.push(receiver),
                Err(error) => self.lane.shared.send(Command::Failed(error.to_string())),
            }
        }
    }

    /// Starts the thread that carries packets from a data socket.
    fn start_inbound(
        &self,
        socket: Arc<Socket>,
        family: Family,
    ) -> Result<JoinHandle<()>, StartError> {
        let lane = Arc::clone(&self.lane);
        let path = InboundPath::new(Arc::clone(&lane), socket);
        let name = match family {
            Family::V4 => "in4",
            Family::V6 => "in6",
        };
        spawn(name, move || {
            run_dedicated(&lane.shared_thread, PathId::Inbound(family), Box::new(path));
        })
    }
}

impl Drop for RunningLane {
    fn drop(&mut self) {
        self.replace_sockets(LaneSockets::default());
        self.lane.shared_thread.end();
        if let Err(error) = self.lane.tun.shutdown() {
            debug!(%error, "ending the TUN");
        }
    }
}
