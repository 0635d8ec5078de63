//! The lanes of a device with their threads.

use std::iter;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use taupe_os_linux::tun::Queues;
use taupe_os_linux::udp::Socket;
use taupe_packet::ip::Family;
use taupe_protocol::{LaneId, Lanes};
use taupe_runtime::clock;
use tracing::debug;

use crate::inbound::InboundPath;
use crate::lane::Lane;
use crate::lifecycle::{StartError, spawn, system_error};
use crate::options::Offloads;
use crate::outbound::OutboundPath;
use crate::schedule::{Direction, PacketPath, PathId, SharedThread, run_dedicated, run_shared};
use crate::shared::{Command, Shared};
use crate::sockets::LaneSockets;

/// The lanes of a device. Their threads end when this is dropped.
pub(super) struct RunningLanes {
    first: Arc<Lane>,
    /// All lanes, the first included.
    lanes: Vec<RunningLane>,
    shared_thread: Arc<SharedThread>,
}

/// A lane with the threads that receive from its data sockets.
struct RunningLane {
    lane: Arc<Lane>,
    receivers: Vec<JoinHandle<()>>,
}

impl RunningLanes {
    /// Makes a lane of each TUN queue, without sockets, and starts the shared thread.
    pub(super) fn new(
        shared: &Arc<Shared>,
        queues: Queues,
        offloads: Offloads,
    ) -> Result<Self, StartError> {
        let (shared_thread, arrivals) =
            SharedThread::new(offloads).map_err(system_error("cannot make an eventfd"))?;
        let lane = |id, tun| Arc::new(Lane::new(id, Arc::clone(shared), tun));
        let first = lane(LaneId::FIRST, queues.first);
        let ids = Lanes::Sixteen.ids().skip(1);
        let others = ids.zip(queues.others).map(|(id, tun)| lane(id, tun));
        let lanes = iter::once(Arc::clone(&first)).chain(others);
        let lanes = lanes.map(|lane| RunningLane {
            lane,
            receivers: Vec::new(),
        });
        let running = Self {
            first,
            lanes: lanes.collect(),
            shared_thread: Arc::new(shared_thread),
        };
        let shared_thread = Arc::clone(&running.shared_thread);
        spawn("both", move || run_shared(&shared_thread, &arrivals))?;
        Ok(running)
    }

    /// Returns the first lane.
    pub(super) fn first(&self) -> &Arc<Lane> {
        &self.first
    }

    /// Returns the number of lanes.
    pub(super) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Starts the threads that carry packets from the TUN queues.
    pub(super) fn start_outbound(&self) -> Result<(), StartError> {
        for RunningLane { lane, .. } in &self.lanes {
            let path = OutboundPath::new(Arc::clone(lane), self.shared_thread.offloads);
            start(&self.shared_thread, lane, Direction::Outbound, path)?;
        }
        Ok(())
    }

    /// Replaces the sockets of all lanes and the threads that receive from them. When this returns,
    /// no lane uses the old sockets, unless a send takes longer than a second. Lanes beyond the end
    /// of `sockets` get no sockets.
    pub(super) fn replace_sockets(&mut self, sockets: &[LaneSockets]) {
        let mut sockets = sockets.iter().cloned();
        let replaced = self.lanes.iter().map(|it| {
            let sockets = Arc::new(sockets.next().unwrap_or_default());
            it.lane.sockets.swap(sockets)
        });
        let replaced: Vec<Arc<LaneSockets>> = replaced.collect();
        for before in &replaced {
            before.shutdown();
        }
        for receiver in self.lanes.iter_mut().flat_map(|it| it.receivers.drain(..)) {
            let _ = receiver.join();
        }
        // A send may still hold the old sockets, for as long as one system call takes.
        let patience = clock::boot() + Duration::from_secs(1);
        while replaced.iter().any(|it| Arc::strong_count(it) > 1) && clock::boot() < patience {
            std::thread::yield_now();
        }
        drop(replaced);
        let mut received = Vec::new();
        for running in &mut self.lanes {
            running.start_inbound(&self.shared_thread, &mut received);
        }
    }
}

impl RunningLane {
    /// Starts the threads that carry packets from the data sockets. Leaves out those from which
    /// another lane receives, which are in `received`, and adds the others to it.
    fn start_inbound(
        &mut self,
        shared_thread: &Arc<SharedThread>,
        received: &mut Vec<Arc<Socket>>,
    ) {
        let Self { lane, receivers } = self;
        let sockets = lane.sockets.load_full();
        let families = [(&sockets.v4, Family::V4), (&sockets.v6, Family::V6)];
        for (socket, family) in families {
            let Some(socket) = socket else { continue };
            if received.iter().any(|it| Arc::ptr_eq(it, socket)) {
                continue;
            }
            received.push(Arc::clone(socket));
            let path = InboundPath::new(Arc::clone(lane), Arc::clone(socket));
            match start(shared_thread, lane, Direction::Inbound(family), path) {
                Ok(receiver) => receivers.push(receiver),
                Err(error) => lane.shared.send(Command::Failed(error.to_string())),
            }
        }
    }
}

/// Starts the dedicated thread of a path. Its name is the direction, followed by the number of the
/// lane from the second lane on.
fn start(
    shared_thread: &Arc<SharedThread>,
    lane: &Arc<Lane>,
    direction: Direction,
    path: impl PacketPath + 'static,
) -> Result<JoinHandle<()>, StartError> {
    let mut name = match direction {
        Direction::Outbound => "out",
        Direction::Inbound(Family::V4) => "in4",
        Direction::Inbound(Family::V6) => "in6",
    }
    .to_owned();
    if lane.id != LaneId::FIRST {
        name += &format!("-{}", lane.id.number());
    }
    let (shared_thread, load) = (Arc::clone(shared_thread), Arc::clone(&lane.load));
    let lane = lane.id;
    let id = PathId { lane, direction };
    spawn(name, move || {
        run_dedicated(&shared_thread, &load, id, Box::new(path));
    })
}

impl Drop for RunningLanes {
    fn drop(&mut self) {
        self.replace_sockets(&[]);
        self.shared_thread.end();
        for RunningLane { lane, .. } in &self.lanes {
            if let Err(error) = lane.tun.shutdown() {
                debug!(%error, "cannot shut down the TUN");
            }
        }
    }
}
