//! One client's connection, from accept to close.

use crate::address::{Host, Target};
use crate::association::Association;
use crate::auth::Credentials;
use crate::failure::Failure;
use crate::http;
use crate::limits::{
    ASKING, CONNECTING, HALF_IDLE, IDLE, LINGERING, MANY_CLIENTS, ONE_ADDRESS, PARTING,
};
use crate::net::{ClientId, Net, Owner, Waiter};
use crate::packet::Problem;
use crate::relay::Relay;
use crate::socks::{self, Method, Refusal, Reply};
use crate::stream::Stream;
use core::time::Duration;
use mio::net::TcpStream;
use mio::{Registry, Token};
use smoltcp::socket::tcp::State;
use socket2::SockRef;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr};
use taupe_protocol::time::Instant;
use tracing::debug;

/// Protocol that a client speaks.
#[derive(Clone, Debug)]
pub(crate) enum Service {
    /// SOCKS 5, at this step.
    Socks(Step),
    Http,
    /// None: all bytes go to this host.
    Forward(Target),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Greeting,
    Login,
    Request,
}

/// References that a client needs while it is served.
pub(crate) struct Clerk<'a> {
    pub(crate) net: &'a mut Net,
    pub(crate) credentials: Option<&'a Credentials>,
    pub(crate) registry: &'a Registry,
    /// Token of the client's association socket.
    pub(crate) token: Token,
}

/// Result of serving a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Stays,
    Goes,
}

/// A client's connection.
pub(crate) struct Client {
    pub(crate) id: ClientId,
    socket: Socket,
    service: Service,
    phase: Phase,
    /// Bytes received and not yet processed.
    input: Vec<u8>,
    /// Bytes to write before anything else.
    output: Vec<u8>,
    /// HTTP response to send once the connection to the host is established.
    welcome: &'static [u8],
    /// Bytes of the request's content that remain to be sent to the host. `None` sends everything
    /// the client sends.
    upload: Option<u64>,
    /// End of the phase.
    deadline: Instant,
    /// Deadline that the event loop has scheduled.
    pub(crate) timer: Option<Instant>,
    pub(crate) is_due: bool,
}

/// A client's socket with its readiness. The system reports only changes of readiness.
pub(crate) struct Socket {
    pub(crate) stream: TcpStream,
    pub(crate) is_readable: bool,
    pub(crate) is_writable: bool,
}

enum Phase {
    /// The client sends its request.
    Asking,
    /// A DNS look-up of the host is pending.
    Resolving { port: u16, until: Instant },
    /// A TCP connection to the host is pending.
    Connecting(Connecting),
    /// Bytes are relayed in both directions.
    Relaying(Box<Relay>),
    /// Datagrams are relayed.
    Associated(Box<Association>),
    /// The client was refused; the refusal is sent.
    Parting,
    /// The client's side is closed; the connection to the host finishes its close.
    Lingering(Box<Stream>),
    /// Placeholder during a transition.
    Over,
}

struct Connecting {
    stream: Box<Stream>,
    problem: Option<Problem>,
    rest: VecDeque<SocketAddr>,
    /// Limit for all addresses together.
    until: Instant,
}

impl Client {
    pub(crate) fn new(id: ClientId, stream: TcpStream, service: Service, now: Instant) -> Self {
        let socket = Socket {
            stream,
            is_readable: true,
            is_writable: true,
        };
        Self {
            id,
            socket,
            service,
            phase: Phase::Asking,
            input: Vec::new(),
            output: Vec::new(),
            welcome: b"",
            upload: None,
            deadline: now + ASKING,
            timer: None,
            is_due: false,
        }
    }

    pub(crate) fn note(&mut self, is_readable: bool, is_writable: bool) {
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
    pub(crate) fn take(&mut self, packet: &[u8], net: &mut Net) {
        if let Some(stream) = self.stream() {
            stream.take(net.now, packet, &mut net.outgoing);
        }
    }

    /// Handles an ICMP error about its connection.
    pub(crate) fn take_problem(&mut self, problem: Problem, net: &Net) {
        match (&mut self.phase, problem) {
            (Phase::Connecting(connecting), problem) => connecting.problem = Some(problem),
            (Phase::Relaying(relay), Problem::TooLong(mtu)) => {
                relay.stream.lower_mtu(net.now, mtu);
            }
            // Other ICMP errors do not abort an established connection (RFC 1122 §4.2.3.9).
            _ => {}
        }
    }

    fn stream(&mut self) -> Option<&mut Stream> {
        match &mut self.phase {
            Phase::Connecting(connecting) => Some(&mut connecting.stream),
            Phase::Relaying(relay) => Some(&mut relay.stream),
            Phase::Lingering(stream) => Some(stream),
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
    pub(crate) fn found(&mut self, result: Result<Vec<IpAddr>, Failure>, clerk: &mut Clerk<'_>) {
        let Phase::Resolving { port, until } = self.phase else {
            return;
        };
        match result {
            Ok(addresses) => {
                let rest = addresses
                    .into_iter()
                    .map(|address| SocketAddr::new(address, port));
                self.connect(rest.collect(), until, Failure::NoAddress, clerk);
            }
            Err(failure) => {
                let failure = clerk.net.explain(failure);
                self.fail(failure, clerk);
            }
        }
    }

    /// Does all work that is possible now.
    pub(crate) fn serve(&mut self, clerk: &mut Clerk<'_>) -> Fate {
        match self.advance(clerk) {
            Ok(fate) => fate,
            Err(error) => {
                debug!(%error, "a client has gone");
                Fate::Goes
            }
        }
    }

    /// Releases everything that the client holds.
    pub(crate) fn end(self, net: &mut Net) {
        match self.phase {
            Phase::Connecting(Connecting { stream, .. }) => net.abort(*stream),
            Phase::Relaying(relay) => {
                // The relayed data is incomplete. A reset tells the client so; a FIN would look
                // like its end.
                let _ = SockRef::from(&self.socket.stream).set_linger(Some(Duration::ZERO));
                net.abort(relay.stream);
            }
            Phase::Lingering(stream) => match stream.state() {
                State::Closed | State::TimeWait => net.release(*stream),
                _ => net.abort(*stream),
            },
            Phase::Associated(association) => {
                net.associations.remove(&association.local_port());
            }
            Phase::Asking | Phase::Resolving { .. } | Phase::Parting | Phase::Over => {}
        }
    }

    fn advance(&mut self, clerk: &mut Clerk<'_>) -> io::Result<Fate> {
        loop {
            self.flush()?;
            let now = clerk.net.now;
            let is_late = now >= self.deadline;
            let owner = Owner::Client(self.id.number);
            match &mut self.phase {
                Phase::Asking if is_late => return Ok(Fate::Goes),
                Phase::Asking => {
                    if !self.ask(clerk)? {
                        return Ok(Fate::Stays);
                    }
                }
                Phase::Resolving { .. } if is_late => {
                    let failure = clerk.net.explain(Failure::NameServers);
                    self.fail(failure, clerk);
                }
                Phase::Resolving { .. } => return Ok(Fate::Stays),
                Phase::Connecting(connecting) => {
                    let Connecting {
                        stream, problem, ..
                    } = connecting;
                    clerk.net.pump(stream, owner);
                    let failure = match (problem, stream.state()) {
                        (Some(problem), _) => Some(failure_of(*problem)),
                        (None, State::Closed) => Some(Failure::Refused),
                        (None, _) if !stream.is_connecting() => None,
                        (None, _) if is_late => {
                            Some(clerk.net.tunnel.silence(now, stream.remote.ip()))
                        }
                        (None, _) => return Ok(Fate::Stays),
                    };
                    let Phase::Connecting(connecting) = self.become_over() else {
                        return Ok(Fate::Goes);
                    };
                    let Connecting {
                        stream,
                        rest,
                        until,
                        ..
                    } = connecting;
                    match failure {
                        Some(failure) => {
                            clerk.net.abort(*stream);
                            self.connect(rest, until, failure, clerk);
                        }
                        None => self.begin(*stream, now),
                    }
                }
                Phase::Relaying(relay) => {
                    if !relay.advance(&mut self.socket, clerk.net, owner, is_late)? {
                        self.deadline = relay.deadline();
                        return Ok(Fate::Stays);
                    }
                    // Both sides have sent their FIN.
                    if let Phase::Relaying(relay) = self.become_over() {
                        let _ = self.socket.stream.shutdown(Shutdown::Both);
                        self.phase = Phase::Lingering(Box::new(relay.stream));
                        self.deadline = now + LINGERING;
                    }
                }
                Phase::Associated(_) => {
                    // The association lives as long as this connection, which carries no further
                    // requests.
                    let is_open = discard(&mut self.socket, MOST_DISCARDED)?;
                    return Ok(if is_open { Fate::Stays } else { Fate::Goes });
                }
                Phase::Parting => {
                    if self.output.is_empty() {
                        let _ = self.socket.stream.shutdown(Shutdown::Write);
                    }
                    let is_open = discard(&mut self.socket, MOST_DISCARDED)?;
                    let stays = is_open && !is_late;
                    return Ok(if stays { Fate::Stays } else { Fate::Goes });
                }
                Phase::Lingering(stream) => {
                    clerk.net.pump(stream, owner);
                    let is_over = match stream.state() {
                        State::Closed => true,
                        State::TimeWait => clerk.net.clients > MANY_CLIENTS,
                        _ => false,
                    };
                    let goes = is_over || is_late;
                    return Ok(if goes { Fate::Goes } else { Fate::Stays });
                }
                Phase::Over => return Ok(Fate::Goes),
            }
        }
    }

    fn become_over(&mut self) -> Phase {
        std::mem::replace(&mut self.phase, Phase::Over)
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
    fn ask(&mut self, clerk: &mut Clerk<'_>) -> io::Result<bool> {
        if let Service::Forward(target) = &self.service {
            let target = target.clone();
            self.reach(target, clerk);
            return Ok(true);
        }
        loop {
            if self.understand(clerk) {
                return Ok(true);
            }
            let longest = match self.service {
                Service::Http => http::LONGEST,
                _ => socks::LONGEST,
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
    fn understand(&mut self, clerk: &mut Clerk<'_>) -> bool {
        match self.service {
            Service::Forward(_) => true,
            Service::Http => self.understand_http(clerk),
            Service::Socks(step) => match self.understand_socks(step, clerk) {
                Ok(is_whole) => is_whole,
                Err(refusal) => {
                    match refusal {
                        // The client speaks another protocol and would not understand a reply.
                        Refusal::NotSocks => {}
                        Refusal::NoMethod => self.output.extend(socks::method(None)),
                        Refusal::Denied => self.output.extend(socks::verdict(false)),
                        Refusal::Reply(reply) => self.output.extend(socks::reply(reply, None)),
                    }
                    self.part(clerk.net.now);
                    true
                }
            },
        }
    }

    fn understand_socks(&mut self, step: Step, clerk: &mut Clerk<'_>) -> Result<bool, Refusal> {
        match step {
            Step::Greeting => {
                let accepted = match clerk.credentials {
                    None => Method::None,
                    Some(_) => Method::Password,
                };
                let Some((method, length)) = socks::greeting(&self.input, accepted)? else {
                    return Ok(false);
                };
                self.input.drain(..length);
                self.output.extend(socks::method(Some(method)));
                self.service = Service::Socks(match method {
                    Method::None => Step::Request,
                    Method::Password => Step::Login,
                });
            }
            Step::Login => {
                let Some(((name, password), length)) = socks::login(&self.input)? else {
                    return Ok(false);
                };
                let admitted = clerk
                    .credentials
                    .is_none_or(|all| all.admit(name, password));
                zeroize::Zeroize::zeroize(&mut self.input[..length]);
                self.input.drain(..length);
                if !admitted {
                    return Err(Refusal::Denied);
                }
                self.output.extend(socks::verdict(true));
                self.service = Service::Socks(Step::Request);
            }
            Step::Request => {
                let Some((request, length)) = socks::request(&self.input)? else {
                    return Ok(false);
                };
                self.input.drain(..length);
                match request {
                    socks::Request::Connect(target) => self.reach(target, clerk),
                    socks::Request::Associate(from, port) => self.associate(from, port, clerk)?,
                }
            }
        }
        Ok(true)
    }

    fn understand_http(&mut self, clerk: &mut Clerk<'_>) -> bool {
        match http::request(&self.input, clerk.credentials) {
            Ok(None) => false,
            Ok(Some((http::Request::Tunnel(target), length))) => {
                self.input.drain(..length);
                self.welcome = http::CONNECTED;
                self.reach(target, clerk);
                true
            }
            Ok(Some((http::Request::Forward { target, head, body }, length))) => {
                // Bytes after the request's content are discarded.
                let end = usize::try_from(body)
                    .unwrap_or(usize::MAX)
                    .saturating_add(length);
                self.input.truncate(end);
                let here = self.input.len() - length;
                self.upload = Some(body - here as u64);
                self.input.splice(..length, head);
                self.reach(target, clerk);
                true
            }
            Err(refusal) => {
                self.output = http::response(refusal);
                self.part(clerk.net.now);
                true
            }
        }
    }

    /// Begins to connect to a host, by a look-up first if it is a name.
    fn reach(&mut self, target: Target, clerk: &mut Clerk<'_>) {
        let until = clerk.net.now + CONNECTING;
        debug!(%target, "a client wants a connection");
        match target.host {
            Host::Address(address) => {
                let rest = [SocketAddr::new(address, target.port)].into();
                self.connect(rest, until, Failure::Network, clerk);
            }
            Host::Name(name) => {
                self.phase = Phase::Resolving {
                    port: target.port,
                    until,
                };
                self.deadline = until;
                clerk.net.resolve(&name, Waiter::Client(self.id));
            }
        }
    }

    /// Begins a connection to the next address to which the tunnel routes.
    fn connect(
        &mut self,
        mut rest: VecDeque<SocketAddr>,
        until: Instant,
        mut failure: Failure,
        clerk: &mut Clerk<'_>,
    ) {
        let now = clerk.net.now;
        while let Some(remote) = rest.pop_front().filter(|_| now < until) {
            match clerk.net.connect(remote, Owner::Client(self.id.number)) {
                Ok(stream) => {
                    self.deadline = match rest.is_empty() {
                        true => until,
                        false => until.min(now + ONE_ADDRESS),
                    };
                    self.phase = Phase::Connecting(Connecting {
                        stream: Box::new(stream),
                        problem: None,
                        rest,
                        until,
                    });
                    return;
                }
                // A missing route says less than the failure of an earlier address.
                Err(Failure::Network) if failure != Failure::NoAddress => {}
                Err(error) => failure = error,
            }
        }
        self.fail(failure, clerk);
    }

    /// Starts relaying over an established connection.
    fn begin(&mut self, stream: Stream, now: Instant) {
        if let Service::Socks(_) = self.service {
            let bound = Some(stream.local);
            self.output.extend(socks::reply(Reply::Succeeded, bound));
        }
        self.output.extend(self.welcome);
        let (input, output) = (
            std::mem::take(&mut self.input),
            std::mem::take(&mut self.output),
        );
        self.phase = Phase::Relaying(Box::new(Relay::new(
            stream,
            input,
            output,
            self.upload,
            now,
        )));
    }

    /// Reports that there will be no connection.
    fn fail(&mut self, failure: Failure, clerk: &mut Clerk<'_>) {
        debug!(reason = failure.reason(), "a client's connection failed");
        if failure == Failure::Tunnel {
            clerk.net.complain();
        }
        match self.service {
            Service::Socks(_) => self.output.extend(socks::reply(failure.into(), None)),
            Service::Http => self.output = http::response(http::Refusal::Failed(failure)),
            Service::Forward(_) => {
                // A forwarded port has no protocol to report a failure in: the connection is reset.
                let _ = SockRef::from(&self.socket.stream).set_linger(Some(Duration::ZERO));
                self.phase = Phase::Over;
                return;
            }
        }
        self.part(clerk.net.now);
    }

    fn part(&mut self, now: Instant) {
        self.input.clear();
        self.phase = Phase::Parting;
        self.deadline = now + PARTING;
    }

    fn associate(
        &mut self,
        from: Option<IpAddr>,
        port: Option<u16>,
        clerk: &mut Clerk<'_>,
    ) -> Result<(), Refusal> {
        let failed = Refusal::Reply(Reply::GeneralFailure);
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
        let local_port = clerk.net.take_port(self.id.number).ok_or(failed)?;
        let (registry, token) = (clerk.registry, clerk.token);
        let opened = Association::open(here.ip(), host, port, local_port, registry, token);
        let opened = opened.and_then(|association| Ok((association.address()?, association)));
        let Ok((address, association)) = opened else {
            clerk.net.associations.remove(&local_port);
            return Err(failed);
        };
        self.output
            .extend(socks::reply(Reply::Succeeded, Some(address)));
        self.input.clear();
        self.phase = Phase::Associated(Box::new(association));
        self.deadline = Instant::FAR_FUTURE;
        Ok(())
    }
}

impl Socket {
    /// Reads. Returns `None` if no data is available now.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Self {
            stream,
            is_readable,
            ..
        } = self;
        attempt(is_readable, || stream.read(buffer))
    }

    /// Writes. Returns `None` if there is no room now.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let Self {
            stream,
            is_writable,
            ..
        } = self;
        match attempt(is_writable, || stream.write(bytes))? {
            Some(0) if !bytes.is_empty() => Err(ErrorKind::WriteZero.into()),
            written => Ok(written),
        }
    }
}

fn attempt(
    is_ready: &mut bool,
    mut act: impl FnMut() -> io::Result<usize>,
) -> io::Result<Option<usize>> {
    if !*is_ready {
        return Ok(None);
    }
    loop {
        match act() {
            Ok(count) => return Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            // `NotConnected`: some systems hand over a connection before it is established.
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::NotConnected
                ) =>
            {
                *is_ready = false;
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
    }
}

/// The most bytes that a client may send after its request and that are discarded.
pub(crate) const MOST_DISCARDED: usize = 1 << 20;

/// Reads and discards up to `most` bytes. Returns true if there may be more.
pub(crate) fn discard(socket: &mut Socket, most: usize) -> io::Result<bool> {
    let mut buffer = [0; 4096];
    let mut total = 0;
    while let Some(count) = socket.read(&mut buffer)? {
        total += count;
        if count == 0 || total >= most {
            return Ok(false);
        }
    }
    Ok(true)
}

fn failure_of(problem: Problem) -> Failure {
    match problem {
        Problem::Network => Failure::Network,
        // `TooLong` answers a SYN, which is shorter than any path MTU: the router is mistaken.
        Problem::Host | Problem::TooLong(_) => Failure::Host,
        Problem::Refused => Failure::Refused,
        Problem::HopLimit => Failure::HopLimit,
    }
}

/// Returns the idle timeout of a connection.
pub(crate) fn patience(half_closed: bool) -> Duration {
    if half_closed { HALF_IDLE } else { IDLE }
}
