//! The control loop: the one owner of the protocol's slow state (handshakes, timers,
//! configuration).
//!
//! The loop has two halves. [`Control::wait`] sleeps in one `poll` until another thread wakes it, a
//! deadline is reached, a handshake message arrives, or the link, the routes or the configuration
//! socket change. [`Control::round`] then handles handshakes, commands and deadlines, and sends the
//! datagrams that the protocol produces.
//!
//! No packet waits for this loop, with one exception: if the kernel has merged data
//! packets with a handshake message, these packets arrive on the handshake socket too, and the loop
//! delivers them.

use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::sync::{Arc, mpsc};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno as SystemError;
use rustix::time::Timespec;
use taupe_os_linux::watch::{LinkWatch, RouteWatch};
use taupe_packet::queue::QueueStats;
use taupe_protocol::crypto::{Provider, default_provider, provider_without_avx512};
use taupe_protocol::time::Instant;
use taupe_protocol::{DropReason, Lanes, Notice, Wake};
use tracing::{debug, info};

use crate::flood::{self, Flood};
use crate::flood_filter::FloodFilter;
use crate::inbound::InboundPath;
use crate::lane::Lane;
use crate::lifecycle::{Exit, StartError, spawn, system_error};
use crate::opened::OpenedDevice;
use crate::options::Offloads;
use crate::schedule::PacketPath;
use crate::shared::{Command, Shared, UnderlayState, Waker};
use crate::sockets::Sockets;
use crate::system::{Environment, System};
use crate::timer::{Timer, timespec};
use crate::watched_socket::WatchedSocket;
use taupe_runtime::clock;
use taupe_runtime::configuration_socket;
use taupe_runtime::driver::{Driver, handshake_kind};
use taupe_runtime::own_pq_key::OwnPqKey;
use taupe_runtime::services::{Event, Services};

mod handshakes;
mod lanes;
mod listening;
mod network;
mod requests;
mod resume_watch;

use lanes::RunningLanes;
use resume_watch::ResumeWatch;

/// Commands that one round handles, at most.
const COMMANDS_PER_ROUND: usize = 64;

/// A descriptor that the control loop waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Token {
    Waker,
    Timer,
    Link,
    Routes,
    ResumeWatch,
    /// The inotify watch on the configuration socket's file.
    ConfigurationSocket,
    Handshakes,
}

pub(crate) struct Control {
    driver: Driver,
    shared: Arc<Shared>,
    commands: mpsc::Receiver<Command>,
    own_pq_key: OwnPqKey,
    link: LinkWatch,
    system: Box<dyn System>,
    routes: RouteWatch,
    timer: Timer,
    resume_watch: ResumeWatch,
    socket: Option<WatchedSocket>,
    listener: Arc<UnixListener>,
    offloads: Offloads,
    lanes: RunningLanes,
    /// The lane that sends this loop's own datagrams.
    own_lane: Arc<Lane>,
    sockets: Sockets,
    /// The inbound paths of the handshake sockets.
    handshakes: Vec<InboundPath>,
    /// Datagrams that the handshake sockets delivered in this round, of any kind.
    received: usize,
    /// The time at which to try again to bind the port.
    rebind_at: Option<Instant>,
    /// The time at which sockets were last replaced after a failure.
    last_rebind: Option<Instant>,
    drops: LoggedDrops,
    /// Counts of the fair queue as last logged.
    queue: QueueStats,
    flood: Flood,
    flood_filter: FloodFilter,
    /// The port that was requested or last bound; 0 while any port will do.
    port: u16,
    mark: u32,
    notices: Option<Box<dyn Fn(Notice) + Send>>,
}

impl Control {
    /// Starts the threads of a device other than the control loop.
    pub(crate) fn new(
        opened: OpenedDevice,
        environment: Environment,
    ) -> Result<(Self, Arc<Shared>), StartError> {
        let OpenedDevice {
            tap,
            offloads,
            notices,
            own_interface,
            is_other_namespace,
            listener,
            socket,
            queues,
            link,
            link_state,
            routes,
            network,
        } = opened;
        let Environment {
            system,
            resolver,
            saved,
        } = environment;
        let waker = Arc::new(Waker::new().map_err(system_error("cannot make an eventfd"))?);
        let wake: Wake = {
            let waker = Arc::clone(&waker);
            Arc::new(move || waker.wake())
        };
        let services = Services::with_state(saved, Arc::clone(&resolver), Arc::clone(&wake));
        let lanes = Lanes::at_most(1 + queues.others.len());
        let driver = Driver::new(provider(offloads), services, wake, lanes);
        let (shared, commands) = Shared::new(
            tap,
            Arc::clone(driver.data_path()),
            waker,
            resolver,
            UnderlayState::new(is_other_namespace, own_interface, network),
        );
        let shared = Arc::new(shared);
        let lanes = RunningLanes::new(&shared, queues, offloads)?;
        let mut control = Self {
            driver,
            commands,
            own_pq_key: OwnPqKey::default(),
            link,
            system,
            routes,
            timer: Timer::new().map_err(system_error("cannot make a timer"))?,
            resume_watch: ResumeWatch::new().map_err(system_error("cannot make a timer"))?,
            socket,
            listener: Arc::new(listener),
            offloads,
            own_lane: Arc::clone(lanes.first()),
            lanes,
            sockets: Sockets::default(),
            handshakes: Vec::new(),
            received: 0,
            rebind_at: None,
            last_rebind: None,
            drops: LoggedDrops::default(),
            queue: QueueStats::default(),
            flood: Flood::default(),
            flood_filter: FloodFilter::new(offloads.flood_filter),
            port: 0,
            mark: 0,
            notices,
            shared: Arc::clone(&shared),
        };
        // The interface may be up already, and the MTU must be known before the first packet.
        control.apply_link(link_state);
        control.lanes.start_outbound()?;
        let answer = Arc::clone(&shared);
        let listener = Arc::clone(&control.listener);
        spawn("uapi", move || {
            configuration_socket::serve(&listener, &answer);
        })?;
        Ok((control, shared))
    }

    /// Runs until the device ends, and erases its keys.
    pub(crate) fn run(mut self) -> Exit {
        let exit = loop {
            if let Err(error) = self.wait() {
                break Exit::Failed(format!("waiting for events: {error}"));
            }
            if let Some(exit) = self.round() {
                break exit;
            }
        };
        info!(?exit, "device ended");
        self.driver.close();
        self.transmit();
        // The port is free before clients of the configuration socket are refused, so that a new
        // device can follow at once.
        self.replace_sockets(Sockets::default());
        exit
    }

    /// Sleeps until an event occurs, and handles the events. The sleep is short during a flood of
    /// handshakes ([`flood::PAUSE`]), and zero while handshake messages wait in the queue.
    fn wait(&mut self) -> Result<(), SystemError> {
        let deadlines = [
            self.driver.next_deadline(),
            self.rebind_at,
            self.flood.filter_until(),
        ];
        self.timer.set(deadlines.into_iter().flatten().min())?;
        let handshakes = &self.shared.handshakes;
        let timeout = if self.flood.is_ongoing() && handshakes.is_empty() {
            Some(timespec(flood::PAUSE.as_nanos() as u64))
        } else if handshakes.prepare_sleep() {
            None
        } else {
            Some(Timespec::default())
        };
        let mut watched = vec![
            (Token::Waker, self.shared.waker.fd()),
            (Token::Timer, self.timer.fd.as_fd()),
            (Token::Link, self.link.fd()),
            (Token::Routes, self.routes.fd()),
            (Token::ResumeWatch, self.resume_watch.fd()),
        ];
        if let Some(socket) = &self.socket {
            watched.push((Token::ConfigurationSocket, socket.fd()));
        }
        // During a flood, do not wake up for each message.
        if !self.flood.is_ongoing() {
            let sources = self.handshakes.iter().map(PacketPath::source);
            watched.extend(sources.map(|source| (Token::Handshakes, source)));
        }
        let watch = |&(_, fd)| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let mut fds: Vec<PollFd<'_>> = watched.iter().map(watch).collect();
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(SystemError::INTR) => {}
            Err(error) => return Err(error),
        }
        let ready = watched.iter().zip(&fds);
        let ready = ready.filter(|(_, fd)| !fd.revents().is_empty());
        let ready: Vec<Token> = ready.map(|((token, _), _)| *token).collect();
        for token in &ready {
            self.handle_ready(*token);
        }
        if self.flood.is_ongoing() || ready.contains(&Token::Handshakes) {
            self.receive_handshakes();
        }
        Ok(())
    }

    fn handle_ready(&mut self, token: Token) {
        match token {
            Token::Waker => self.shared.waker.reset(),
            Token::Timer => self.timer.expired(),
            Token::Link => self.check_link(),
            Token::Routes => match self.routes.drain() {
                Ok(true) => {
                    self.shared.underlay.changes.note();
                    self.check_local_addresses();
                    self.driver.handle_network_change();
                }
                Ok(false) => {}
                Err(error) => debug!(%error, "watching routes"),
            },
            Token::ResumeWatch => {
                if self.resume_watch.has_slept() {
                    info!("the machine has slept: shaking hands anew");
                    self.driver.handle_resume();
                }
            }
            Token::ConfigurationSocket => {
                if self.socket.as_ref().is_some_and(WatchedSocket::is_gone) {
                    self.shared.send(Command::SocketRemoved);
                }
            }
            // `wait` reads them after all other events, for a bounded time.
            Token::Handshakes => {}
        }
    }

    /// Does all work that is due. Returns a value if the device ends.
    fn round(&mut self) -> Option<Exit> {
        self.handle_handshakes();
        for handled in 0.. {
            if handled == COMMANDS_PER_ROUND {
                // Handle the rest in the next round, which follows at once.
                self.shared.waker.wake();
                break;
            }
            let Ok(command) = self.commands.try_recv() else {
                break;
            };
            match command {
                Command::Uapi(request, answer) => {
                    let text = self.handle_request(request);
                    // Apply the effects of the request before the client gets its answer.
                    self.transmit();
                    let _ = answer.try_send(text);
                }
                Command::SocketFailed(socket) => self.rebind_failed(&socket),
                Command::TunDeleted => return Some(Exit::InterfaceDeleted),
                Command::SocketRemoved => return Some(Exit::SocketRemoved),
                Command::Stop => return Some(Exit::Stopped),
                Command::Failed(what) => return Some(Exit::Failed(what)),
            }
        }
        if self.rebind_at.is_some_and(|at| at <= clock::boot()) {
            self.listen();
        }
        self.driver.run_due();
        self.transmit();
        for (reason, more) in self.drops.since_last_call(&self.shared) {
            debug!(more, "dropped: {reason}");
        }
        let queue = self.shared.queue_counters.stats();
        if std::mem::replace(&mut self.queue, queue) != queue {
            debug!(
                marked = queue.marked,
                dropped_as_signal = queue.dropped_as_signal,
                dropped_over_limit = queue.dropped_over_limit,
                "segments that the fair queue has marked or dropped"
            );
        }
        None
    }

    /// Runs the protocol's pending output: sends its datagrams and passes its notices on.
    fn transmit(&mut self) {
        while let Some(event) = self.driver.poll_event() {
            match event {
                Event::Transmit {
                    endpoint,
                    tos,
                    datagram,
                } => {
                    if let Some(kind) = handshake_kind(&datagram) {
                        debug!(to = %endpoint.remote, "sending a handshake {kind}");
                        self.flood_filter.expect_answer(&datagram);
                    }
                    let length = datagram.len();
                    let lane = &self.own_lane;
                    let local_address_dropped =
                        lane.transmit(&endpoint, tos.into(), &datagram, length);
                    if local_address_dropped {
                        self.driver.device_mut().forget_local_address(&endpoint);
                    }
                }
                Event::Notice(notice) => {
                    if let Some(report) = &self.notices {
                        report(notice);
                    }
                }
            }
        }
    }
}

/// Ends the device's other threads when the control loop ends, for any reason. If a thread could not
/// be started, ends those that were started.
impl Drop for Control {
    fn drop(&mut self) {
        // This ends the thread `uapi`. A socket that was passed in belongs to the caller and
        // continues to listen.
        if self.socket.is_some() {
            let _ = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both);
        }
    }
}

/// Drop counters as last logged.
#[derive(Default)]
struct LoggedDrops([u64; DropReason::ALL.len()]);

impl LoggedDrops {
    /// Returns the drops since the last call, by reason. Empty unless the log level is debug.
    fn since_last_call(&mut self, shared: &Shared) -> Vec<(DropReason, u64)> {
        if !tracing::enabled!(tracing::Level::DEBUG) {
            return Vec::new();
        }
        let logged = DropReason::ALL.into_iter().zip(&mut self.0);
        let new = logged.filter_map(|(reason, logged)| {
            let count = shared.path.counters().count(reason);
            let more = count - std::mem::replace(logged, count);
            (more > 0).then_some((reason, more))
        });
        new.collect()
    }
}

fn provider(offloads: Offloads) -> &'static Provider {
    if offloads.avx512 {
        default_provider()
    } else {
        provider_without_avx512()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn avx512_is_used_unless_it_is_switched_off() {
        let name = |avx512| {
            let offloads = Offloads {
                avx512,
                ..Offloads::default()
            };
            provider(offloads).name
        };
        assert_eq!(provider(Offloads::default()).name, default_provider().name);
        assert_eq!(name(true), default_provider().name);
        assert_eq!(name(false), provider_without_avx512().name);
        assert_ne!(name(true), name(false));
    }
}
