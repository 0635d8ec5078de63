//! One client's connection, from accept to close.

use crate::address::{Host, Target};
use crate::association::Association;
use crate::auth::Credentials;
use crate::client_socket::{ClientSocket, MAX_DISCARDED, discard};
use crate::http::{self, HttpError, HttpRequest};
use crate::limits::{REFUSED_TIMEOUT, REQUEST_TIMEOUT};
use crate::net::{ClientId, Net, Waiter};
use crate::relay::Relay;
use crate::socks::{self, Method, Reply, SocksError, SocksRequest};
use core::time::Duration;
use mio::net::TcpStream;
use mio::{Registry, Token};
use socket2::SockRef;
use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Shutdown, SocketAddr};
use taupe_protocol::time::Instant;
use taupe_stack::closing::Closing;
use taupe_stack::failure::ConnectFailure;
use taupe_stack::limits::{ADDRESS_TIMEOUT, CONNECT_TIMEOUT};
use taupe_stack::packet::IcmpError;
use taupe_stack::stream::Stream;
use taupe_stack::tcp::State;
use tracing::debug;

/// Protocol that a client speaks.
#[derive(Clone, Debug)]
pub(crate) enum Service {
    /// SOCKS 5, at this step.
    Socks(SocksStep),
    Http,
    /// None: all bytes go to this host.
    Forward(Target),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SocksStep {
    Greeting,
    Login,
    Request,
}

/// References that a client needs while it is served.
pub(crate) struct ClientContext<'a> {
    pub(crate) net: &'a mut Net,
    /// Number of clients.
    pub(crate) clients: usize,
    pub(crate) credentials: Option<&'a Credentials>,
    pub(crate) registry: &'a Registry,
    /// Token of the client's association socket.
    pub(crate) token: Token,
}

/// Result of serving a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ServeResult {
    Continue,
    Close,
}

impl ServeResult {
    fn continue_if(is_open: bool) -> Self {
        if is_open { Self::Continue } else { Self::Close }
    }
}

/// A client's connection.
pub(crate) struct Client {
    pub(crate) id: ClientId,
    socket: ClientSocket,
    service: Service,
    phase: Phase,
    /// Bytes received and not yet processed.
    input: Vec<u8>,
    /// Bytes to write before anything else.
    output: Vec<u8>,
    /// HTTP response to send once the connection to the host is established.
    connect_response: &'static [u8],
    /// Bytes of the request's content that remain to be sent to the host. `None` sends everything
    /// the client sends.
    upload: Option<u64>,
    /// End of the phase.
    deadline: Instant,
    /// Deadline that the event loop has scheduled.
    pub(crate) timer: Option<Instant>,
    pub(crate) is_due: bool,
}

enum Phase {
    /// The client sends its request.
    Request,
    /// A DNS look-up of the host is pending.
    Resolving { port: u16, until: Instant },
    /// A TCP connection to the host is pending.
    Connecting(Connecting),
    /// Bytes are relayed in both directions.
    Relaying(Box<Relay>),
    /// Datagrams are relayed.
    Associated(Box<Association>),
    /// The client was refused; the refusal is sent.
    Refused,
    /// The client's side is closed; the connection to the host finishes its close.
    Lingering(Box<Stream>, Closing),
    /// Placeholder during a transition.
    Done,
}

struct Connecting {
    stream: Box<Stream>,
    problem: Option<ConnectFailure>,
    remaining: VecDeque<SocketAddr>,
    /// Limit for all addresses together.
    until: Instant,
}

impl Client {
    pub(crate) fn new(id: ClientId, stream: TcpStream, service: Service, now: Instant) -> Self {
        let socket = ClientSocket {
            stream,
            is_readable: true,
            is_writable: true,
        };
        Self {
            id,
            socket,
            service,
            phase: Phase::Request,
            input: Vec::new(),
            output: Vec::new(),
            connect_response: b"",
            upload: None,
            deadline: now + REQUEST_TIMEOUT,
            timer: None,
            is_due: false,
        }
    }

    pub(crate) fn set_ready(&mut self, is_readable: bool, is_writable: bool) {
        self.socket.is_readable |= is_readable;
        self.socket.is_writable |= is_writable;
    }

    /// Returns the time at which [`Client::serve`] must run if no event occurs before.
    pub(crate) fn next_deadline(&mut self, now: Instant) -> Instant {
        let stream = self.stream();
        let stream = stream.and_then(|stream| stream.deadline(now));
        stream.map_or(self.deadline, |at| at.min(self.deadline))
    }

    /// Handles a segment of its connection through the tunnel.
    pub(crate) fn handle_packet(&mut self, packet: &[u8], net: &mut Net) {
        if let Some(stream) = self.stream() {
            net.deliver(stream, packet);
        }
    }

    /// Handles an ICMP error about its connection.
    pub(crate) fn handle_icmp_error(&mut self, error: IcmpError, net: &Net) {
        let stream = self.stream();
        let found = stream.and_then(|stream| stream.handle_icmp_error(net.now, error));
        if let Phase::Connecting(connecting) = &mut self.phase {
            connecting.problem = connecting.problem.or(found);
        }
    }

    fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            Phase::Connecting(connecting) => Some(&mut connecting.stream),
            Phase::Relaying(relay) => Some(&mut relay.stream),
            Phase::Lingering(stream, _) => Some(stream),
            _ => None,
        }
    }

    /// Returns the UDP association, if the client has one.
    pub(crate) fn association(&mut self) -> Option<&mut Association> {
        match &mut self.phase {
            Phase::Associated(association) => Some(association),
            _ => None,
        }
    }

    /// Handles the result of the look-up of the host.
    pub(crate) fn handle_resolved(
        &mut self,
        result: Result<Vec<IpAddr>, ConnectFailure>,
        context: &mut ClientContext<'_>,
    ) {
        let Phase::Resolving { port, until } = self.phase else {
            return;
        };
        match result {
            Ok(addresses) => {
                let remaining = addresses
                    .into_iter()
                    .map(|address| SocketAddr::new(address, port));
                self.connect(
                    remaining.collect(),
                    until,
                    ConnectFailure::NoAddress,
                    context,
                );
            }
            Err(failure) => {
                let failure = context.net.refine_failure(failure);
                self.fail(failure, context);
            }
        }
    }

    /// Does all work that is possible now.
    pub(crate) fn serve(&mut self, context: &mut ClientContext<'_>) -> ServeResult {
        match self.advance(context) {
            Ok(result) => result,
            Err(error) => {
                debug!(%error, "a client disconnected");
                ServeResult::Close
            }
        }
    }

    /// Releases everything that the client holds.
    pub(crate) fn close(self, net: &mut Net) {
        match self.phase {
            Phase::Connecting(Connecting { stream, .. }) => net.abort(*stream),
            Phase::Relaying(relay) => {
                // The relayed data is incomplete. A reset tells the client so; a FIN would look
                // like its end.
                let _ = SockRef::from(&self.socket.stream).set_linger(Some(Duration::ZERO));
                net.abort(relay.stream);
            }
            Phase::Lingering(stream, _) => net.end(*stream),
            Phase::Associated(association) => {
                net.free_port(association.local_port());
            }
            Phase::Request | Phase::Resolving { .. } | Phase::Refused | Phase::Done => {}
        }
    }

    fn advance(&mut self, context: &mut ClientContext<'_>) -> io::Result<ServeResult> {
        loop {
            self.flush()?;
            let now = context.net.now;
            let is_late = now >= self.deadline;
            let owner = self.id.number;
            match &mut self.phase {
                Phase::Request if is_late => return Ok(ServeResult::Close),
                Phase::Request => {
                    if !self.read_request(context)? {
                        return Ok(ServeResult::Continue);
                    }
                }
                Phase::Resolving { .. } if is_late => {
                    let failure = context.net.refine_failure(ConnectFailure::NameServers);
                    self.fail(failure, context);
                }
                Phase::Resolving { .. } => return Ok(ServeResult::Continue),
                Phase::Connecting(connecting) => {
                    let Connecting {
                        stream, problem, ..
                    } = connecting;
                    context.net.pump(stream, owner);
                    let failure = match (problem, stream.state()) {
                        (Some(problem), _) => Some(*problem),
                        (None, State::Closed) => Some(ConnectFailure::Refused),
                        (None, _) if !stream.is_connecting() => None,
                        (None, _) if is_late => Some(context.net.failure_for(stream.remote().ip())),
                        (None, _) => return Ok(ServeResult::Continue),
                    };
                    let Phase::Connecting(connecting) = self.take_phase() else {
                        return Ok(ServeResult::Close);
                    };
                    let Connecting {
                        stream,
                        remaining,
                        until,
                        ..
                    } = connecting;
                    match failure {
                        Some(failure) => {
                            context.net.abort(*stream);
                            self.connect(remaining, until, failure, context);
                        }
                        None => self.start_relay(*stream, now),
                    }
                }
                Phase::Relaying(relay) => {
                    if !relay.advance(&mut self.socket, context.net, owner, is_late)? {
                        self.deadline = relay.deadline();
                        return Ok(ServeResult::Continue);
                    }
                    // Both sides have sent their FIN.
                    if let Phase::Relaying(mut relay) = self.take_phase() {
                        let _ = self.socket.stream.shutdown(Shutdown::Both);
                        let closing = Closing::begin(now, &mut relay.stream);
                        self.phase = Phase::Lingering(Box::new(relay.stream), closing);
                    }
                }
                Phase::Associated(_) => {
                    // The association lives as long as this connection, which carries no further
                    // requests.
                    let is_open = discard(&mut self.socket, MAX_DISCARDED)?;
                    return Ok(ServeResult::continue_if(is_open));
                }
                Phase::Refused => {
                    if self.output.is_empty() {
                        let _ = self.socket.stream.shutdown(Shutdown::Write);
                    }
                    let is_open = discard(&mut self.socket, MAX_DISCARDED)?;
                    return Ok(ServeResult::continue_if(is_open && !is_late));
                }
                Phase::Lingering(stream, closing) => {
                    context.net.pump(stream, owner);
                    let is_over = closing.is_over(now, stream, context.clients);
                    self.deadline = closing.deadline();
                    return Ok(ServeResult::continue_if(!is_over));
                }
                Phase::Done => return Ok(ServeResult::Close),
            }
        }
    }

    fn take_phase(&mut self) -> Phase {
        std::mem::replace(&mut self.phase, Phase::Done)
    }

    /// Writes the pending output, as far as the socket accepts it.
    fn flush(&mut self) -> io::Result<()> {
        while !self.output.is_empty() && self.socket.is_writable {
            if let Some(count) = self.socket.write(&self.output)? {
                self.output.drain(..count);
            }
        }
        Ok(())
    }

    /// Reads and handles the client's messages. Returns true when the phase has changed.
    fn read_request(&mut self, context: &mut ClientContext<'_>) -> io::Result<bool> {
        if let Service::Forward(target) = &self.service {
            let target = target.clone();
            self.begin_connect(target, context);
            return Ok(true);
        }
        loop {
            if self.handle_message(context) {
                return Ok(true);
            }
            let longest = match self.service {
                Service::Http => http::MAX_HEAD_LEN,
                _ => socks::MAX_MESSAGE_LEN,
            };
            let before = self.input.len();
            // A single message is never longer than this.
            self.input.resize(longest.max(before), 0);
            let read = self.socket.read(&mut self.input[before..]);
            self.input
                .truncate(before + read.as_ref().map_or(0, |count| count.unwrap_or(0)));
            match read? {
                None => return Ok(false),
                Some(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Some(_) => {}
            }
        }
    }

    /// Handles the next message. Returns false if it is incomplete.
    fn handle_message(&mut self, context: &mut ClientContext<'_>) -> bool {
        match self.service {
            Service::Forward(_) => true,
            Service::Http => self.handle_http_message(context),
            Service::Socks(step) => match self.handle_socks_message(step, context) {
                Ok(is_complete) => is_complete,
                Err(error) => {
                    self.output.extend(socks::error_reply(error));
                    self.refuse(context.net.now);
                    true
                }
            },
        }
    }

    fn handle_socks_message(
        &mut self,
        step: SocksStep,
        context: &mut ClientContext<'_>,
    ) -> Result<bool, SocksError> {
        match step {
            SocksStep::Greeting => {
                let accepted = match context.credentials {
                    None => Method::None,
                    Some(_) => Method::Password,
                };
                let Some((method, length)) = socks::parse_greeting(&self.input, accepted)? else {
                    return Ok(false);
                };
                self.input.drain(..length);
                self.output.extend(socks::method_reply(Some(method)));
                self.service = Service::Socks(match method {
                    Method::None => SocksStep::Request,
                    Method::Password => SocksStep::Login,
                });
            }
            SocksStep::Login => {
                let Some(((name, password), length)) = socks::parse_login(&self.input)? else {
                    return Ok(false);
                };
                let admitted = context
                    .credentials
                    .is_none_or(|all| all.admit(name, password));
                zeroize::Zeroize::zeroize(&mut self.input[..length]);
                self.input.drain(..length);
                if !admitted {
                    return Err(SocksError::AuthFailed);
                }
                self.output.extend(socks::auth_reply(true));
                self.service = Service::Socks(SocksStep::Request);
            }
            SocksStep::Request => {
                let Some((request, length)) = socks::parse_request(&self.input)? else {
                    return Ok(false);
                };
                self.input.drain(..length);
                match request {
                    SocksRequest::Connect(target) => self.begin_connect(target, context),
                    SocksRequest::Associate(from, port) => self.associate(from, port, context)?,
                }
            }
        }
        Ok(true)
    }

    fn handle_http_message(&mut self, context: &mut ClientContext<'_>) -> bool {
        match http::parse_request(&self.input, context.credentials) {
            Ok(None) => false,
            Ok(Some((HttpRequest::Tunnel(target), length))) => {
                self.input.drain(..length);
                self.connect_response = http::CONNECTED;
                self.begin_connect(target, context);
                true
            }
            Ok(Some((HttpRequest::Forward { target, head, body }, length))) => {
                // Bytes after the request's content are discarded.
                let end = usize::try_from(body)
                    .unwrap_or(usize::MAX)
                    .saturating_add(length);
                self.input.truncate(end);
                let here = self.input.len() - length;
                self.upload = Some(body - here as u64);
                self.input.splice(..length, head);
                self.begin_connect(target, context);
                true
            }
            Err(error) => {
                self.output = http::error_response(error);
                self.refuse(context.net.now);
                true
            }
        }
    }

    /// Begins to connect to a host, by a look-up first if it is a name.
    fn begin_connect(&mut self, target: Target, context: &mut ClientContext<'_>) {
        let until = context.net.now + CONNECT_TIMEOUT;
        debug!(%target, "a client requests a connection");
        match target.host {
            Host::Address(address) => {
                let remaining = [SocketAddr::new(address, target.port)].into();
                self.connect(remaining, until, ConnectFailure::Network, context);
            }
            Host::Name(name) => {
                self.phase = Phase::Resolving {
                    port: target.port,
                    until,
                };
                self.deadline = until;
                context.net.resolve(&name, Waiter::Client(self.id));
            }
        }
    }

    /// Begins a connection to the next address to which the tunnel routes.
    fn connect(
        &mut self,
        mut remaining: VecDeque<SocketAddr>,
        until: Instant,
        mut failure: ConnectFailure,
        context: &mut ClientContext<'_>,
    ) {
        let now = context.net.now;
        while let Some(remote) = remaining.pop_front().filter(|_| now < until) {
            match context.net.connect(remote, self.id.number) {
                Ok(stream) => {
                    self.deadline = match remaining.is_empty() {
                        true => until,
                        false => until.min(now + ADDRESS_TIMEOUT),
                    };
                    self.phase = Phase::Connecting(Connecting {
                        stream: Box::new(stream),
                        problem: None,
                        remaining,
                        until,
                    });
                    return;
                }
                // A missing route says less than the failure of an earlier address.
                Err(ConnectFailure::Network) if failure != ConnectFailure::NoAddress => {}
                Err(error) => failure = error,
            }
        }
        self.fail(failure, context);
    }

    /// Starts relaying over an established connection.
    fn start_relay(&mut self, stream: Stream, now: Instant) {
        if let Service::Socks(_) = self.service {
            let bound = Some(stream.local());
            self.output
                .extend(socks::request_reply(Reply::Succeeded, bound));
        }
        self.output.extend(self.connect_response);
        let input = std::mem::take(&mut self.input);
        let output = std::mem::take(&mut self.output);
        let relay = Relay::new(stream, input, output, self.upload, now);
        self.phase = Phase::Relaying(Box::new(relay));
    }

    /// Reports that there will be no connection.
    fn fail(&mut self, failure: ConnectFailure, context: &mut ClientContext<'_>) {
        debug!(reason = failure.reason(), "a client's connection failed");
        if failure == ConnectFailure::Tunnel {
            context.net.warn_no_handshake();
        }
        match self.service {
            Service::Socks(_) => self
                .output
                .extend(socks::request_reply(failure.into(), None)),
            Service::Http => self.output = http::error_response(HttpError::ConnectFailed(failure)),
            Service::Forward(_) => {
                // A forwarded port has no protocol to report a failure in: the connection is reset.
                let _ = SockRef::from(&self.socket.stream).set_linger(Some(Duration::ZERO));
                self.phase = Phase::Done;
                return;
            }
        }
        self.refuse(context.net.now);
    }

    fn refuse(&mut self, now: Instant) {
        self.input.clear();
        self.phase = Phase::Refused;
        self.deadline = now + REFUSED_TIMEOUT;
    }

    fn associate(
        &mut self,
        from: Option<IpAddr>,
        port: Option<u16>,
        context: &mut ClientContext<'_>,
    ) -> Result<(), SocksError> {
        let failed = SocksError::Reply(Reply::GeneralFailure);
        let (here, there) = (
            self.socket.stream.local_addr(),
            self.socket.stream.peer_addr(),
        );
        let (Ok(here), Ok(there)) = (here, there) else {
            return Err(failed);
        };
        let host = there.ip().to_canonical();
        // A client behind NAT does not know its own address. A client that names another host must
        // not receive that host's datagrams. The port counts only if the address is the client's
        // own.
        let port = port.filter(|_| from.is_none_or(|from| from == host));
        let local_port = context.net.reserve_port(0, self.id.number).ok_or(failed)?;
        let (registry, token) = (context.registry, context.token);
        let opened = Association::open(here.ip(), host, port, local_port, registry, token);
        let opened = opened.and_then(|association| Ok((association.address()?, association)));
        let Ok((address, association)) = opened else {
            context.net.free_port(local_port);
            return Err(failed);
        };
        self.output
            .extend(socks::request_reply(Reply::Succeeded, Some(address)));
        self.input.clear();
        self.phase = Phase::Associated(Box::new(association));
        self.deadline = Instant::FAR_FUTURE;
        Ok(())
    }
}
