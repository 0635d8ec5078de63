//! Listening sockets for clients.

use crate::client::{Service, SocksStep};
use crate::limits::ACCEPT_RETRY;
use crate::{Options, StartError};
use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use taupe_protocol::time::Instant;
use taupe_stack::OpenError;
use taupe_stack::limits::BATCH;
use taupe_stack::warning::Warning;
use tracing::warn;

/// A listening socket.
struct Listener {
    socket: TcpListener,
    service: Service,
    is_ready: bool,
}

/// All listening sockets.
pub(crate) struct Listeners {
    all: Vec<Listener>,
    /// Time of the next attempt, after accepting has failed.
    again: Option<Instant>,
    refused: Warning,
}

impl Listeners {
    /// Binds the sockets of all services. `token` returns the token of each listener.
    pub(crate) fn bind(
        options: &Options,
        registry: &Registry,
        token: impl Fn(usize) -> Token,
    ) -> Result<Self, StartError> {
        let socks = options.socks5.iter();
        let socks = socks.map(|at| (*at, Service::Socks(SocksStep::Greeting)));
        let http = options.http.iter().map(|at| (*at, Service::Http));
        let forwards = options.forwards.iter();
        let forwards = forwards.map(|one| (one.listen, Service::Forward(one.target.clone())));
        let mut all = Vec::new();
        for (at, service) in socks.chain(http).chain(forwards) {
            let listen = |source| StartError::Listen { at, source };
            let mut socket = TcpListener::bind(at).map_err(listen)?;
            let registered = registry.register(&mut socket, token(all.len()), Interest::READABLE);
            registered.map_err(OpenError::Events)?;
            all.push(Listener {
                socket,
                service,
                is_ready: false,
            });
        }
        Ok(Self {
            all,
            again: None,
            refused: Warning::default(),
        })
    }

    pub(crate) fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let all = self.all.iter();
        all.map(|listener| listener.socket.local_addr()).collect()
    }

    /// Records that clients may have arrived. Returns false if there is no such listener.
    pub(crate) fn note(&mut self, number: usize) -> bool {
        let listener = self.all.get_mut(number);
        listener.map(|listener| listener.is_ready = true).is_some()
    }

    /// Returns true if [`Listeners::accept`] may find clients now.
    pub(crate) fn is_ready(&self) -> bool {
        self.again.is_none() && self.all.iter().any(|one| one.is_ready)
    }

    /// Returns the time at which [`Listeners::accept`] must run if no event occurs before.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.again
    }

    /// Accepts at most `room` clients.
    pub(crate) fn accept(
        &mut self,
        now: Instant,
        room: usize,
    ) -> Vec<(TcpStream, SocketAddr, Service)> {
        let mut accepted = Vec::new();
        if self.again.is_some_and(|at| at > now) {
            return accepted;
        }
        self.again = None;
        for listener in &mut self.all {
            for _ in 0..BATCH {
                if !listener.is_ready || accepted.len() >= room {
                    break;
                }
                match listener.socket.accept() {
                    Ok((stream, from)) => accepted.push((stream, from, listener.service.clone())),
                    Err(error) => match error.kind() {
                        ErrorKind::WouldBlock => listener.is_ready = false,
                        // The client has gone, or a signal arrived.
                        ErrorKind::ConnectionAborted | ErrorKind::Interrupted => {}
                        _ => {
                            if self.refused.is_due(now) {
                                warn!(
                                    %error,
                                    "cannot accept clients: new ones wait until others \
                                     disconnect; if the limit of open files (ulimit -Hn) is the \
                                     reason, raise it"
                                );
                            }
                            self.again = Some(now + ACCEPT_RETRY);
                            return accepted;
                        }
                    },
                }
            }
        }
        accepted
    }
}
