//! A device that follows its interface and that clients configure.
//!
//! As on Linux, the device is up while its interface is up, and has UDP sockets only then.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::Duration;

use taupe_protocol::Notice;
use taupe_protocol::time::Instant;
use taupe_runtime::clock::now;
use taupe_runtime::configuration::{Refusal, refuse};
use taupe_runtime::own_pq_key::OwnPqKey;
use taupe_runtime::services::Services;
use taupe_uapi::{Errno, Request, SetRequest, Status, answer_get};
use tracing::{debug, info, warn};
use zeroize::Zeroizing;

use crate::forwarder::Forwarder;
use crate::socket::{DatagramSocket, Interface, UdpSockets};

/// The pause between attempts to bind a port that is in use.
const REBIND_PAUSE: Duration = Duration::from_secs(1);

/// The longest wait for an event. A clock may jump while the machine sleeps.
const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// The network that carries the device's datagrams.
pub trait Network: Send + 'static {
    /// The sockets.
    type Socket: DatagramSocket;

    /// Binds sockets of both address families to `port`, or to a free port if it is 0, with a mark.
    ///
    /// # Errors
    ///
    /// The system's. A family that the system lacks is not an error.
    fn bind(&mut self, port: u16, mark: u32) -> io::Result<UdpSockets<Self::Socket>>;

    /// Changes the mark of sockets.
    ///
    /// # Errors
    ///
    /// The system's, or that it has no marks. The sockets keep theirs.
    fn set_mark(&mut self, sockets: &UdpSockets<Self::Socket>, mark: u32) -> io::Result<()>;
}

/// State of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkState {
    /// Administratively up.
    pub up: bool,
    /// Maximum transmission unit in bytes.
    pub mtu: u32,
}

/// An event for the device.
pub enum Event {
    /// A client's request, with the channel for the answer.
    Request(Request, SyncSender<Zeroizing<String>>),
    /// The interface changed.
    Link(LinkState),
    /// Addresses or routes of the machine changed.
    NetworkChanged,
    /// A thread has work for the device.
    WorkDue,
    /// The device ends, for this reason.
    End(Exit),
}

/// Reason for which a device ended.
#[derive(Debug)]
pub enum Exit {
    /// Its interface was deleted.
    InterfaceDeleted,
    /// Its configuration socket was removed.
    SocketRemoved,
    /// Its owner stopped it.
    Stopped,
    /// It could not continue.
    Failed(io::Error),
}

/// The sender of events to a device.
#[derive(Clone)]
pub struct Events(Sender<Event>);

impl Events {
    /// Sends an event. Does nothing if the device has ended.
    pub fn send(&self, event: Event) {
        let _ = self.0.send(event);
    }

    /// Sends a client's request and waits for the answer; `None` if the device has ended.
    #[must_use]
    pub fn answer(&self, request: Request) -> Option<Zeroizing<String>> {
        let (sender, answer) = sync_channel(1);
        self.send(Event::Request(request, sender));
        answer.recv().ok()
    }
}

/// Returns the two ends of a device's channel of events.
#[must_use]
pub fn events() -> (Events, Receiver<Event>) {
    let (sender, receiver) = channel();
    (Events(sender), receiver)
}

/// A device between an interface and a network.
pub struct Device<I, N: Network> {
    forwarder: Forwarder<I, N::Socket>,
    network: N,
    own_pq_key: OwnPqKey,
    /// The port that clients have set or that was bound; 0 is any.
    port: u16,
    mark: u32,
    /// Time of the next attempt to bind the port.
    bind_at: Option<Instant>,
    notify_of: fn(&Notice),
}

impl<I: Interface, N: Network> Device<I, N> {
    /// Creates a device without a key, whose interface is down. `events` is the sender of the channel
    /// that [`Device::run`] gets. `notify_of` gets what the user should know.
    pub fn new(
        interface: I,
        network: N,
        services: Services,
        events: &Events,
        notify_of: fn(&Notice),
    ) -> Self {
        let events = events.clone();
        let notify = Arc::new(move || events.send(Event::WorkDue));
        let none = UdpSockets::new(None, None, 0);
        Self {
            forwarder: Forwarder::new(interface, none, 0, services, notify),
            network,
            own_pq_key: OwnPqKey::default(),
            port: 0,
            mark: 0,
            bind_at: None,
            notify_of,
        }
    }

    /// Runs the device until it ends, and erases its keys.
    pub fn run(mut self, events: &Receiver<Event>) -> Exit {
        let exit = match self.forwarder.start() {
            Ok(()) => self.handle(events),
            Err(error) => Exit::Failed(error),
        };
        self.forwarder.end();
        exit
    }

    fn handle(&mut self, events: &Receiver<Event>) -> Exit {
        loop {
            if let Err(error) = self.settle() {
                return Exit::Failed(error);
            }
            match events.recv_timeout(self.wait()) {
                Ok(Event::Request(request, answer)) => {
                    let text = self.handle_request(request);
                    // The effects of the request take place before the client gets its answer.
                    if let Err(error) = self.settle() {
                        return Exit::Failed(error);
                    }
                    // The client may be gone.
                    let _ = answer.try_send(text);
                }
                Ok(Event::Link(state)) => self.handle_link(state),
                Ok(Event::NetworkChanged) => self.forwarder.driver.handle_network_change(),
                Ok(Event::WorkDue) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Event::End(exit)) => return exit,
                Err(RecvTimeoutError::Disconnected) => return Exit::Stopped,
            }
        }
    }

    /// Returns the time until something is due.
    fn wait(&self) -> Duration {
        let due = [self.forwarder.next_deadline(), self.bind_at];
        let now = now().boot;
        let due = due.into_iter().flatten().map(|at| at.since(now)).min();
        due.unwrap_or(LONGEST_WAIT).min(LONGEST_WAIT)
    }

    /// Does what is due. Fails if the interface is gone.
    fn settle(&mut self) -> io::Result<()> {
        if self.bind_at.is_some_and(|at| at <= now().boot) {
            self.listen();
        }
        self.forwarder.settle()?;
        while let Some(notice) = self.forwarder.poll_notice() {
            (self.notify_of)(&notice);
        }
        Ok(())
    }

    fn handle_link(&mut self, LinkState { up, mtu }: LinkState) {
        self.forwarder.set_mtu(mtu as usize);
        let device = self.forwarder.driver.device_mut();
        if up == device.is_up() {
            return;
        }
        if up {
            device.set_up(now());
            self.listen();
            info!("up");
        } else {
            device.set_down();
            self.bind_at = None;
            self.replace_sockets(UdpSockets::new(None, None, 0));
            info!("down");
        }
    }

    /// Binds the sockets of a device that is up. If the port is in use, tries again every
    /// [`REBIND_PAUSE`] until it is free or another port is set.
    fn listen(&mut self) {
        let was_waiting = self.bind_at.take().is_some();
        if let Err(error) = self.bind(self.port) {
            let port = self.port;
            match was_waiting {
                true => debug!(%error, port, "still cannot listen"),
                false => warn!(%error, port, "cannot listen yet; set another port, or free it"),
            }
            self.bind_at = Some(now().boot + REBIND_PAUSE);
        }
    }

    fn bind(&mut self, port: u16) -> io::Result<()> {
        if port != 0 && self.forwarder.sockets().port() == port {
            return Ok(());
        }
        let sockets = self.network.bind(port, self.mark)?;
        self.port = sockets.port();
        self.bind_at = None;
        self.replace_sockets(sockets);
        Ok(())
    }

    fn replace_sockets(&mut self, sockets: UdpSockets<N::Socket>) {
        if let Err(error) = self.forwarder.replace_sockets(sockets) {
            warn!(%error, "no thread is left to receive datagrams");
        }
    }

    fn handle_request(&mut self, request: Request) -> Zeroizing<String> {
        match request {
            Request::Get => answer_get(
                &self.forwarder.driver.device().status(),
                self.port,
                self.mark,
            ),
            Request::Set(set) => Zeroizing::new(match self.apply(set) {
                Ok(()) => Status::SUCCESS.to_string(),
                Err(refusal) => refusal.answer(),
            }),
        }
    }

    /// Applies the whole request, or nothing of it.
    fn apply(&mut self, request: SetRequest) -> Result<(), Refusal> {
        let SetRequest {
            listen_port,
            fwmark,
            device,
        } = request;
        let update = self.forwarder.driver.prepare(device).map_err(refuse)?;
        let previous_mark = self.mark;
        if let Some(mark) = fwmark {
            self.set_mark(mark)?;
        }
        if let Some(port) = listen_port
            && let Err(error) = self.set_port(port)
        {
            warn!(%error, port, "configuration refused");
            let _ = self.set_mark(previous_mark);
            return Err(Refusal::with_reason(Errno::AddressInUse, &error));
        }
        let device = self.forwarder.driver.device_mut();
        self.own_pq_key.apply(device, update).map_err(refuse)
    }

    fn set_port(&mut self, port: u16) -> io::Result<()> {
        if self.forwarder.driver.device().is_up() {
            return self.bind(port);
        }
        // The device binds the port when the interface comes up. Check it now, so that a port in
        // use is an error of this request and not a tunnel that does not work later.
        if port != 0 {
            self.network.bind(port, self.mark)?;
        }
        self.port = port;
        Ok(())
    }

    fn set_mark(&mut self, mark: u32) -> Result<(), Refusal> {
        if mark == self.mark {
            return Ok(());
        }
        let set = self.network.set_mark(&self.forwarder.sockets(), mark);
        set.map_err(|error| {
            warn!(%error, mark, "configuration refused: the mark cannot be set");
            Refusal::with_reason(Errno::Invalid, &error)
        })?;
        self.mark = mark;
        self.forwarder.driver.services().set_mark(mark);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
