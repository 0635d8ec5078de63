//! The event loop: one thread that waits for all sockets and timers, and handles them.

use crate::burst::Burst;
use crate::client::{Client, ClientContext, ServeResult};
use crate::limits::KEEPALIVE_IDLE;
use crate::listeners::Listeners;
use crate::net::{ClientId, Net, Waiter};
use crate::{Credentials, Options, RunError, StartError};
use core::time::Duration;
use mio::event::Event;
use mio::{Events, Interest, Poll, Token, Waker};
use slab::Slab;
use socket2::{SockRef, TcpKeepalive};
use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use taupe_protocol::time::Instant;
use taupe_runtime::clock::now;
use taupe_runtime::resolver::SystemResolver;
use taupe_runtime::services::Services;
use taupe_stack::OpenError;
use taupe_stack::failure::ConnectFailure;
use taupe_stack::keepalive::Keepalive;
use taupe_stack::limits::MAX_CONNECTIONS;
use taupe_stack::net::{self, Arrival};
use taupe_stack::settings::{Addresses, Settings};
use taupe_stack::warning::Warning;
use tracing::{debug, warn};

/// Tokens `2 n` and `2 n + 1` belong to client n: its connection and its UDP association. The
/// highest tokens belong to the waker, the tunnel's sockets and the listeners.
const MAX_TOKEN: usize = usize::MAX;
const WAKER: Token = Token(MAX_TOKEN);
const TUNNEL: [Token; 2] = [Token(MAX_TOKEN - 1), Token(MAX_TOKEN - 2)];
const LISTENERS: usize = MAX_TOKEN - 3;

/// A proxy that listens.
pub struct Proxy {
    poll: Poll,
    stopper: Stopper,
    net: Net,
    listeners: Listeners,
    burst: Burst,
    register_warning: Warning,
    credentials: Option<Credentials>,
    clients: Slab<Client>,
    serial: u64,
    /// Clients to serve in this turn.
    due: Vec<usize>,
    /// Clients whose associations may have datagrams.
    datagrams: Vec<usize>,
    timers: BTreeSet<(Instant, usize)>,
}

/// Handle that stops a proxy from another thread.
#[derive(Clone)]
pub struct Stopper {
    is_stopping: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stopper {
    /// Asks the proxy to stop; [`Proxy::run`] returns soon after.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        // Waking fails only if the process has run out of descriptors or memory.
        let _ = self.waker.wake();
    }
}

impl Proxy {
    /// Binds all sockets. If peers have a keepalive interval, the tunnel sends keepalives; nothing
    /// else is sent yet.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(options: Options) -> Result<Self, StartError> {
        options.check()?;
        raise_descriptor_limit();
        let poll = Poll::new().map_err(OpenError::Events)?;
        let registry = poll.registry();
        let waker = Waker::new(registry, WAKER).map_err(OpenError::Events)?;
        let waker = Arc::new(waker);
        let listeners = Listeners::bind(&options, registry, |at| Token(LISTENERS - at))?;
        let resolver = Arc::new(SystemResolver::default());
        let wake = {
            let waker = Arc::clone(&waker);
            Arc::new(move || {
                let _ = waker.wake();
            })
        };
        let settings = Settings {
            device: options.device,
            listen_port: options.listen_port,
            addresses: Addresses {
                v4: options.v4,
                v6: options.v6,
            },
            mtu: options.mtu,
            dns: options.dns,
            keepalive: Some(Keepalive::new(KEEPALIVE_IDLE)),
            services: Services::new(options.state_dir.as_deref(), resolver, wake),
            notices: options.notices,
        };
        let net = Net::open(settings, registry, TUNNEL)?;
        let stopper = Stopper {
            is_stopping: Arc::default(),
            waker,
        };
        Ok(Self {
            poll,
            stopper,
            net,
            listeners,
            burst: Burst::default(),
            register_warning: Warning::default(),
            credentials: options.credentials,
            clients: Slab::new(),
            serial: 0,
            due: Vec::new(),
            datagrams: Vec::new(),
            timers: BTreeSet::new(),
        })
    }

    /// Returns the listen addresses: SOCKS, then HTTP, then forwarded ports, each in the order of
    /// the options. Where an option has port 0, the address has the port that the system chose.
    ///
    /// # Errors
    /// Returns the system's error.
    pub fn listening(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.addresses()
    }

    /// Returns the name servers in use: those of the options to which the tunnel routes.
    #[must_use]
    pub fn name_servers(&self) -> &[std::net::IpAddr] {
        self.net.name_servers()
    }

    /// Returns a handle by which another thread can stop the proxy.
    #[must_use]
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves clients until the proxy is stopped. Then resets their connections and erases the
    /// keys.
    ///
    /// # Errors
    /// Returns an error if waiting for events fails.
    pub fn run(mut self) -> Result<(), RunError> {
        let mut events = Events::with_capacity(1024);
        while !self.stopper.is_stopping.load(Ordering::Relaxed) {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() != ErrorKind::Interrupted => {
                    return Err(RunError(error));
                }
                // A signal interrupted the wait. The next poll returns the events.
                Err(_) => continue,
                Ok(()) => {}
            }
            for event in &events {
                self.note(event);
            }
            self.run_turn();
        }
        self.net.now = now().boot;
        for client in self.clients.drain() {
            client.close(&mut self.net);
        }
        self.net.close();
        Ok(())
    }

    /// Returns the time to wait for events. `None` waits without limit.
    fn timeout(&self) -> Option<Duration> {
        let is_more = !self.due.is_empty()
            || !self.datagrams.is_empty()
            || self.net.is_busy()
            || (self.clients.len() < MAX_CONNECTIONS && self.listeners.is_ready());
        if is_more {
            return Some(Duration::ZERO);
        }
        let timer = self.timers.first().map(|(at, _)| *at);
        let soonest = [
            timer,
            self.listeners.next_deadline(),
            self.burst.next_deadline(),
            self.net.next_deadline(),
        ];
        let soonest = soonest.into_iter().flatten().min();
        soonest.map(|at| at.since(now().boot))
    }

    /// Records the readiness that an event reports.
    fn note(&mut self, event: &Event) {
        let token = event.token();
        if token == WAKER || self.net.note(event) {
            return;
        }
        if self.listeners.note(LISTENERS.wrapping_sub(token.0)) {
            return;
        }
        let (number, is_association) = (token.0 / 2, token.0 % 2 == 1);
        if is_association {
            self.datagrams.push(number);
        } else if let Some(client) = self.clients.get_mut(number) {
            // A connection that was closed can be read to its end. A write to a failed one returns
            // its error.
            let is_over = event.is_error() || event.is_read_closed();
            client.set_ready(
                event.is_readable() || is_over,
                event.is_writable() || event.is_error() || event.is_write_closed(),
            );
            self.make_due(number);
        }
    }

    fn make_due(&mut self, number: usize) {
        if let Some(client) = self.clients.get_mut(number)
            && !client.is_due
        {
            client.is_due = true;
            self.due.push(number);
        }
    }

    /// Handles everything that is due.
    fn run_turn(&mut self) {
        for number in self.net.begin_turn() {
            self.make_due(number);
        }
        net::receive(self, |it| &mut it.net, Self::handle_arrival);
        self.accept();
        for number in std::mem::take(&mut self.datagrams) {
            self.relay_datagrams(number);
        }
        while let Some((at, number)) = self.timers.first().copied()
            && at <= self.net.now
        {
            self.timers.pop_first();
            if let Some(client) = self.clients.get_mut(number) {
                client.timer = None;
            }
            self.make_due(number);
        }
        for number in std::mem::take(&mut self.due) {
            self.serve(number);
        }
        while let Some((waiter, result)) = self.net.poll_resolved() {
            self.deliver_result(waiter, result);
        }
        self.net.end_turn();
        if self.burst.is_due(self.net.now, self.clients.len()) {
            taupe_runtime::system::release();
        }
    }

    fn handle_arrival(&mut self, arrival: Arrival<'_, usize>, packet: &[u8]) {
        match arrival {
            Arrival::Segment(number) => {
                if let Some(client) = self.clients.get_mut(number) {
                    client.handle_packet(packet, &mut self.net);
                    self.make_due(number);
                }
            }
            Arrival::Datagram {
                owner,
                from,
                payload,
            } => {
                let client = self.clients.get_mut(owner);
                if let Some(association) = client.and_then(Client::association) {
                    association.deliver(from, payload);
                }
            }
            Arrival::IcmpError(number, error) => {
                if let Some(client) = self.clients.get_mut(number) {
                    client.handle_icmp_error(error, &self.net);
                    self.make_due(number);
                }
            }
            // No host in the tunnel opens connections to the proxy.
            Arrival::Stray { .. } | Arrival::Opened(_) => {}
        }
    }

    fn accept(&mut self) {
        let room = MAX_CONNECTIONS.saturating_sub(self.clients.len());
        for (mut stream, from, service) in self.listeners.accept(self.net.now, room) {
            let entry = self.clients.vacant_entry();
            let number = entry.key();
            self.serial += 1;
            let id = ClientId {
                number,
                serial: self.serial,
            };
            let _ = stream.set_nodelay(true);
            let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE);
            let _ = SockRef::from(&stream).set_tcp_keepalive(&keepalive);
            let interest = Interest::READABLE | Interest::WRITABLE;
            let registry = self.poll.registry();
            if let Err(error) = registry.register(&mut stream, Token(2 * number), interest) {
                if self.register_warning.is_due(self.net.now) {
                    warn!(%error, "cannot wait for data from clients: their connections are closed");
                }
                continue;
            }
            debug!(%from, "a client connected");
            entry.insert(Client::new(id, stream, service, self.net.now));
            self.burst.note(self.net.now, self.clients.len());
            self.make_due(number);
        }
    }

    fn relay_datagrams(&mut self, number: usize) {
        if let Some(client) = self.clients.get_mut(number) {
            let id = client.id;
            if let Some(association) = client.association()
                && association.receive(id, &mut self.net)
            {
                self.datagrams.push(number);
            }
        }
    }

    /// Serves a client and schedules its next deadline.
    fn serve(&mut self, number: usize) {
        self.with_client(number, Client::serve);
    }

    fn with_client(
        &mut self,
        number: usize,
        operation: impl FnOnce(&mut Client, &mut ClientContext<'_>) -> ServeResult,
    ) {
        let clients = self.clients.len();
        let Some(client) = self.clients.get_mut(number) else {
            return;
        };
        client.is_due = false;
        let mut context = ClientContext {
            net: &mut self.net,
            clients,
            credentials: self.credentials.as_ref(),
            registry: self.poll.registry(),
            token: Token(2 * number + 1),
        };
        let result = operation(client, &mut context);
        let timer = (result == ServeResult::Continue).then(|| client.next_deadline(self.net.now));
        if timer != client.timer {
            if let Some(before) = client.timer {
                self.timers.remove(&(before, number));
            }
            client.timer = timer;
            self.timers.extend(timer.map(|at| (at, number)));
        }
        if result == ServeResult::Close {
            self.clients.remove(number).close(&mut self.net);
            self.burst.note(self.net.now, self.clients.len());
        }
    }

    /// Delivers the result of a look-up to the waiting client.
    fn deliver_result(
        &mut self,
        waiter: Waiter,
        result: Result<Vec<std::net::IpAddr>, ConnectFailure>,
    ) {
        let (Waiter::Client(id) | Waiter::Datagram(id, _)) = waiter;
        // The slot may belong to another client by now.
        let client = self.clients.get_mut(id.number);
        let Some(client) = client.filter(|client| client.id == id) else {
            return;
        };
        match waiter {
            Waiter::Client(_) => self.with_client(id.number, |client, context| {
                client.handle_resolved(result, context);
                client.serve(context)
            }),
            Waiter::Datagram(_, number) => {
                if let Some(association) = client.association() {
                    association.handle_resolved(number, result, &mut self.net);
                }
            }
        }
    }
}

/// Raises the soft limit of descriptors to the hard limit: each client needs one, and most systems
/// allow only about a thousand by default.
fn raise_descriptor_limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, getrlimit, setrlimit};
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        if let Err(error) = setrlimit(Resource::Nofile, limit) {
            debug!(%error, "the limit of descriptors is unchanged");
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
