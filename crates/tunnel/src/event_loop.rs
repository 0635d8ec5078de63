//! The tunnel's thread: it waits for the UDP sockets, timers and commands, and handles them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use mio::{Events, Poll, Token, Waker};
use slab::Slab;
use taupe_protocol::time::Instant;
use taupe_runtime::clock::now;
use taupe_stack::failure::ConnectFailure;
use taupe_stack::limits::MAX_CONNECTIONS;
use taupe_stack::net::{self, Arrival, Net};
use taupe_stack::packet::FourTuple;
use taupe_stack::settings::Addresses;
use tokio::sync::oneshot;
use tracing::warn;

use crate::config::Config;
use crate::connection::TcpStream;
use crate::error::TunnelError;
use crate::listener::{Backlog, TcpListener};
use crate::remote_control::{Command, Inbox, RemoteControl, Reply};
use crate::signals::{Signal, Signals};
use crate::status::TunnelState;
use crate::udp::{Queues, UdpSocket};

mod connections;

use connections::{Next, Served};

/// Connections of a listener that wait for a task.
const BACKLOG: usize = 128;

/// Number of connections of a tunnel above which listeners drop SYNs. The rest is reserved for
/// connections that the program opens.
const MAX_WITH_ACCEPTED: usize = MAX_CONNECTIONS / 4 * 3;

/// Listeners of a tunnel; also its UDP sockets.
const MAX_SOCKETS: usize = 1024;

const WAKER: Token = Token(0);
const TUNNEL: [Token; 2] = [Token(1), Token(2)];

/// A tunnel whose connections and UDP ports have numbers. A task waits for each look-up.
type TunnelNet = Net<usize, Reply<Result<Vec<IpAddr>, ConnectFailure>>>;

/// A tunnel whose thread has started.
pub(crate) struct Started {
    pub(crate) control: RemoteControl,
    pub(crate) addresses: Addresses,
    pub(crate) listen_port: Option<u16>,
    pub(crate) name_servers: Vec<IpAddr>,
}

/// Starts the thread of a tunnel, and waits until the tunnel is open.
pub(crate) async fn start(config: Config) -> Result<Started, TunnelError> {
    let poll = Poll::new().map_err(TunnelError::Thread)?;
    let waker = Waker::new(poll.registry(), WAKER).map_err(TunnelError::Thread)?;
    let waker = Arc::new(waker);
    let (signals, received) = Signals::new(Arc::clone(&waker));
    let (control, inbox) = RemoteControl::new(signals.clone(), received);
    let (report, started) = oneshot::channel();
    let spawned = thread::Builder::new()
        .name("taupe-tunnel".to_owned())
        .spawn(move || run(config, poll, waker, signals, inbox, (control, report)));
    spawned.map_err(TunnelError::Thread)?;
    let ended = || TunnelError::Thread(io::Error::other("it has ended"));
    started.await.map_err(|_| ended())?
}

fn run(
    config: Config,
    poll: Poll,
    waker: Arc<Waker>,
    signals: Signals,
    inbox: Inbox,
    (control, report): (RemoteControl, Reply<Result<Started, TunnelError>>),
) {
    let settings = config.settings(Arc::new(move || {
        let _ = waker.wake();
    }));
    let net = match TunnelNet::open(settings, poll.registry(), TUNNEL) {
        Ok(net) => net,
        Err(error) => {
            let _ = report.send(Err(error.into()));
            return;
        }
    };
    let started = Started {
        control,
        addresses: net.sources().addresses(),
        listen_port: net.listen_port(),
        name_servers: net.name_servers().to_vec(),
    };
    if report.send(Ok(started)).is_err() {
        return;
    }
    let mut event_loop = EventLoop {
        net,
        signals,
        connections: Slab::new(),
        due: Vec::new(),
        timers: BTreeSet::new(),
        listeners: HashMap::new(),
        udp_sockets: Slab::new(),
        udp_waiting: Vec::new(),
        closing: None,
    };
    event_loop.run(poll, &inbox);
    let closing = event_loop.closing.take();
    // Closes everything. Commands in the queue fail when it is dropped.
    drop(event_loop);
    drop(inbox);
    if let Some(Some(reply)) = closing {
        let _ = reply.send(());
    }
}

/// State of the thread.
struct EventLoop {
    net: TunnelNet,
    signals: Signals,
    connections: Slab<Served>,
    /// Connections to serve in this turn.
    due: Vec<usize>,
    timers: BTreeSet<(Instant, usize)>,
    /// By port.
    listeners: HashMap<u16, Arc<Backlog>>,
    udp_sockets: Slab<(u16, Arc<Queues>)>,
    /// UDP sockets with datagrams for which there was no room.
    udp_waiting: Vec<usize>,
    /// Set by the command to close.
    closing: Option<Option<Reply<()>>>,
}

impl EventLoop {
    fn run(&mut self, mut poll: Poll, inbox: &Inbox) {
        let mut events = Events::with_capacity(64);
        while self.closing.is_none() {
            match poll.poll(&mut events, self.timeout()) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    warn!(%error, "cannot wait for events: the tunnel is closed");
                    return;
                }
                // A signal interrupted the wait. The next poll returns the events.
                Err(_) => continue,
                Ok(()) => {}
            }
            for event in &events {
                self.net.note(event);
            }
            self.run_turn(inbox);
        }
    }

    /// Returns the time to wait for events. `None` waits without limit.
    fn timeout(&self) -> Option<Duration> {
        if self.net.is_busy() || !self.due.is_empty() {
            return Some(Duration::ZERO);
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let soonest = [timer, self.net.next_deadline()]
            .into_iter()
            .flatten()
            .min();
        soonest.map(|at| at.since(now().boot))
    }

    /// Handles everything that is due.
    fn run_turn(&mut self, inbox: &Inbox) {
        for number in self.net.begin_turn() {
            self.make_due(number);
        }
        net::receive(self, |it| &mut it.net, Self::handle_arrival);
        let (signals, commands) = inbox.take();
        for signal in signals {
            self.handle_signal(signal);
        }
        for command in commands {
            self.execute(command);
        }
        for number in std::mem::take(&mut self.udp_waiting) {
            self.send_datagrams(number);
        }
        while let Some((at, number)) = self.timers.first().copied()
            && at <= self.net.now
        {
            self.timers.pop_first();
            if let Some(served) = self.connections.get_mut(number) {
                served.timer = None;
            }
            self.make_due(number);
        }
        for number in std::mem::take(&mut self.due) {
            self.serve(number);
        }
        while let Some((reply, result)) = self.net.poll_resolved() {
            let _ = reply.send(result.map_err(|failure| self.net.refine_failure(failure)));
        }
        self.net.end_turn();
    }

    fn make_due(&mut self, number: usize) {
        if let Some(served) = self.connections.get_mut(number)
            && !served.is_due
        {
            served.is_due = true;
            self.due.push(number);
        }
    }

    fn handle_arrival(&mut self, arrival: Arrival<'_, usize>, packet: &[u8]) {
        match arrival {
            Arrival::Segment(number) => self.deliver(number, packet),
            Arrival::Datagram {
                owner,
                from,
                payload,
            } => {
                if let Some((_, queues)) = self.udp_sockets.get(owner) {
                    queues.deliver(from, payload);
                }
            }
            Arrival::IcmpError(number, error) => {
                if let Some(served) = self.connections.get_mut(number) {
                    served.handle_icmp_error(error, self.net.now);
                    self.make_due(number);
                }
            }
            Arrival::Stray { four_tuple, is_syn } => match self.backlog(four_tuple) {
                Some(backlog) if is_syn => {
                    if self.has_room(&backlog) {
                        self.net.answer_syn(four_tuple, packet);
                    }
                }
                _ => self.net.refuse(four_tuple, packet),
            },
            Arrival::Opened(four_tuple) => match self.backlog(four_tuple) {
                Some(backlog) => self.accept(&backlog, four_tuple, packet),
                None => self.net.refuse(four_tuple, packet),
            },
        }
    }

    fn deliver(&mut self, number: usize, packet: &[u8]) {
        if let Some(served) = self.connections.get(number) {
            if let Some(stream) = &mut served.shared.lock().stream {
                self.net.deliver(stream, packet);
            }
            self.make_due(number);
        }
    }

    /// Returns the backlog of the listener at a segment's destination.
    fn backlog(&self, four_tuple: FourTuple) -> Option<Arc<Backlog>> {
        self.listeners.get(&four_tuple.local.port()).map(Arc::clone)
    }

    fn has_room(&self, backlog: &Backlog) -> bool {
        backlog.len() < BACKLOG && self.connections.len() < MAX_WITH_ACCEPTED
    }

    /// Accepts a connection with the last segment of its handshake, if there is room.
    fn accept(&mut self, backlog: &Backlog, four_tuple: FourTuple, packet: &[u8]) {
        if !self.has_room(backlog) {
            return;
        }
        let entry = self.connections.vacant_entry();
        let number = entry.key();
        if let Some(stream) = self.net.accept(four_tuple, number, packet) {
            let served = entry.insert(Served::accepted(number, stream));
            let shared = Arc::clone(&served.shared);
            backlog.push(TcpStream::new(shared, self.signals.clone()));
            self.make_due(number);
        }
    }

    fn handle_signal(&mut self, signal: Signal) {
        match signal {
            Signal::Serve(number) => self.make_due(number),
            Signal::SendDatagrams(number) => self.send_datagrams(number),
            Signal::CloseListener(port) => {
                if let Some(backlog) = self.listeners.remove(&port) {
                    backlog.close();
                }
            }
            Signal::CloseUdp(number) => {
                self.send_datagrams(number);
                if let Some((port, _)) = self.udp_sockets.try_remove(number) {
                    self.net.free_port(port);
                }
            }
        }
    }

    fn execute(&mut self, command: Command) {
        match command {
            Command::Connect {
                remote,
                within,
                reply,
            } => {
                if self.connections.len() >= MAX_CONNECTIONS {
                    let _ = reply.send(Err(ConnectFailure::Busy));
                    return;
                }
                let entry = self.connections.vacant_entry();
                let number = entry.key();
                match self.net.connect(remote, number) {
                    Ok(stream) => {
                        let until = self.net.now + within;
                        entry.insert(Served::connecting(number, stream, until, reply));
                        self.make_due(number);
                    }
                    Err(failure) => _ = reply.send(Err(failure)),
                }
            }
            Command::LookUp { name, reply } => self.net.resolve(&name, reply),
            Command::Listen { port, reply } => _ = reply.send(self.listen(port)),
            Command::BindUdp { port, reply } => _ = reply.send(self.bind_udp(port)),
            Command::State { reply } => {
                let connections = self.connections.len();
                let _ = reply.send(TunnelState::new(self.net.status(), connections));
            }
            Command::Close { reply } => self.closing = Some(reply),
        }
    }

    fn listen(&mut self, port: u16) -> io::Result<TcpListener> {
        if port == 0 {
            let reason = "a listener needs a port other than 0";
            return Err(io::Error::new(ErrorKind::InvalidInput, reason));
        }
        let count = self.listeners.len();
        match self.listeners.entry(port) {
            Entry::Occupied(_) => Err(ErrorKind::AddrInUse.into()),
            Entry::Vacant(_) if count >= MAX_SOCKETS => Err(ErrorKind::ResourceBusy.into()),
            Entry::Vacant(entry) => {
                let (listener, backlog) = TcpListener::new(port, self.signals.clone());
                entry.insert(backlog);
                Ok(listener)
            }
        }
    }

    fn bind_udp(&mut self, port: u16) -> io::Result<UdpSocket> {
        if self.udp_sockets.len() >= MAX_SOCKETS {
            return Err(ErrorKind::ResourceBusy.into());
        }
        let entry = self.udp_sockets.vacant_entry();
        let number = entry.key();
        let reserved = self.net.reserve_port(port, number);
        let port = reserved.ok_or(match port {
            0 => ErrorKind::ResourceBusy,
            _ => ErrorKind::AddrInUse,
        })?;
        let sources = self.net.sources().clone();
        let (mtu, signals) = (self.net.mtu(), self.signals.clone());
        let (socket, queues) = UdpSocket::new(number, port, mtu, sources, signals);
        entry.insert((port, queues));
        Ok(socket)
    }

    fn send_datagrams(&mut self, number: usize) {
        if let Some((port, queues)) = self.udp_sockets.get(number) {
            let send = |remote, payload: &[u8]| self.net.send_datagram(*port, remote, payload);
            if !queues.drain(send) {
                self.udp_waiting.push(number);
            }
        }
    }

    /// Serves a connection and schedules its next deadline.
    fn serve(&mut self, number: usize) {
        let Some(served) = self.connections.get_mut(number) else {
            return;
        };
        served.is_due = false;
        let next = served.serve(number, &mut self.net);
        let timer = match next {
            Next::Remove => None,
            _ => served.next_deadline(self.net.now),
        };
        if timer != served.timer {
            if let Some(before) = served.timer {
                self.timers.remove(&(before, number));
            }
            served.timer = timer;
            self.timers.extend(timer.map(|at| (at, number)));
        }
        match next {
            Next::Continue => {}
            Next::Connected(reply) => {
                let stream = TcpStream::new(Arc::clone(&served.shared), self.signals.clone());
                // If nobody waits any more, the stream is dropped, which closes it.
                let _ = reply.send(Ok(stream));
            }
            Next::Remove => {
                let served = self.connections.remove(number);
                served.close(&mut self.net);
            }
        }
    }
}

impl Drop for EventLoop {
    fn drop(&mut self) {
        self.net.now = now().boot;
        for served in self.connections.drain() {
            served.close(&mut self.net);
        }
        for (_, backlog) in self.listeners.drain() {
            backlog.close();
        }
        for (_, queues) in self.udp_sockets.drain() {
            queues.close();
        }
        self.net.close();
    }
}
