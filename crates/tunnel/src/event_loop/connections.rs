//! A connection as the thread serves it.

use std::io::ErrorKind;
use std::sync::Arc;

use taupe_protocol::time::Instant;
use taupe_stack::closing::Closing;
use taupe_stack::failure::ConnectFailure;
use taupe_stack::packet::IcmpError;
use taupe_stack::stream::Stream;
use taupe_stack::tcp::State;

use super::TunnelNet;
use crate::connection::{Connection, ConnectionState, TcpStream};
use crate::remote_control::Reply;

/// A connection with its phase.
pub(super) struct Served {
    pub(super) shared: Arc<Connection>,
    phase: Phase,
    /// Deadline that the event loop has scheduled.
    pub(super) timer: Option<Instant>,
    pub(super) is_due: bool,
}

enum Phase {
    /// A task waits for the connection.
    Connecting {
        until: Instant,
        reply: Reply<Result<TcpStream, ConnectFailure>>,
        problem: Option<ConnectFailure>,
    },
    /// A task or a backlog has the connection.
    Open,
    /// The task has dropped the connection.
    Closing(Closing),
}

/// Result of serving a connection.
pub(super) enum Next {
    Continue,
    /// Give the connection to the task that waits for it.
    Connected(Reply<Result<TcpStream, ConnectFailure>>),
    /// Close the connection and forget it.
    Remove,
}

impl Served {
    pub(super) fn connecting(
        number: usize,
        stream: Stream,
        until: Instant,
        reply: Reply<Result<TcpStream, ConnectFailure>>,
    ) -> Self {
        let problem = None;
        Self::new(
            number,
            stream,
            Phase::Connecting {
                until,
                reply,
                problem,
            },
        )
    }

    /// Returns a connection that the other side has opened.
    pub(super) fn accepted(number: usize, stream: Stream) -> Self {
        Self::new(number, stream, Phase::Open)
    }

    fn new(number: usize, stream: Stream, phase: Phase) -> Self {
        Self {
            shared: Arc::new(Connection::new(number, stream)),
            phase,
            timer: None,
            is_due: false,
        }
    }

    pub(super) fn handle_icmp_error(&mut self, error: IcmpError, now: Instant) {
        let mut state = self.shared.lock();
        let stream = state.stream.as_mut();
        let found = stream.and_then(|stream| stream.handle_icmp_error(now, error));
        if let Phase::Connecting { problem, .. } = &mut self.phase {
            *problem = problem.or(found);
        }
    }

    /// Returns the time at which [`Served::serve`] must run if no event occurs before.
    pub(super) fn next_deadline(&self, now: Instant) -> Option<Instant> {
        let phase = match self.phase {
            Phase::Connecting { until, .. } => Some(until),
            Phase::Closing(ref closing) => Some(closing.deadline()),
            Phase::Open => None,
        };
        let mut state = self.shared.lock();
        let stream = state.stream.as_mut();
        let [next, dead] =
            stream.map_or([None; 2], |stream| [stream.deadline(now), stream.dead_at()]);
        [phase, next, dead].into_iter().flatten().min()
    }

    /// Does all work that is possible now, and wakes the tasks that can go on.
    pub(super) fn serve(&mut self, number: usize, net: &mut TunnelNet) -> Next {
        self.shared.begin_service();
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if let Some(stream) = &mut state.stream {
            net.pump(stream, number);
        }
        let next = self.advance(&mut state, net);
        let ready = state.ready();
        drop(state);
        ready.into_iter().flatten().for_each(std::task::Waker::wake);
        next
    }

    fn advance(&mut self, state: &mut ConnectionState, net: &TunnelNet) -> Next {
        let now = net.now;
        let Some(stream) = &mut state.stream else {
            return Next::Remove;
        };
        match &mut self.phase {
            Phase::Connecting {
                until,
                reply,
                problem,
            } => {
                let failure = match (*problem, stream.state()) {
                    (Some(problem), _) => Some(problem),
                    (None, State::Closed) => Some(ConnectFailure::Refused),
                    (None, _) if !stream.is_connecting() => None,
                    (None, _) if now >= *until => Some(net.failure_for(self.shared.remote().ip())),
                    (None, _) if reply.is_closed() => return Next::Remove,
                    (None, _) => return Next::Continue,
                };
                let Phase::Connecting { reply, .. } =
                    std::mem::replace(&mut self.phase, Phase::Open)
                else {
                    return Next::Remove;
                };
                match failure {
                    None => Next::Connected(reply),
                    Some(failure) => {
                        let _ = reply.send(Err(failure));
                        Next::Remove
                    }
                }
            }
            Phase::Open if state.is_dropped => {
                // Data that nobody will read is lost, and a reset tells the other side so (RFC
                // 2525 §2.17).
                if stream.socket().can_recv() {
                    return Next::Remove;
                }
                self.phase = Phase::Closing(Closing::begin(now, stream));
                Next::Continue
            }
            Phase::Open => match stream.dead_at() {
                Some(at) if now >= at => {
                    state.failure = Some(ErrorKind::TimedOut);
                    Next::Remove
                }
                _ => Next::Continue,
            },
            Phase::Closing(closing) => match closing.is_over(now, stream, net.connections()) {
                true => Next::Remove,
                false => Next::Continue,
            },
        }
    }

    /// Closes the connection, with a reset unless it is closed, and wakes its tasks.
    pub(super) fn close(self, net: &mut TunnelNet) {
        let mut state = self.shared.lock();
        if let Some(stream) = state.stream.take() {
            net.end(stream);
        }
        state.failure.get_or_insert(ErrorKind::ConnectionAborted);
        let ready = state.ready();
        drop(state);
        ready.into_iter().flatten().for_each(std::task::Waker::wake);
    }
}
