//! The process that serves the figures. It parses requests from the network, so it has no rights; its
//! parent reads the figures for it.

use super::http::{self, Answer};
use super::reading::{Readiness, Reading};
use crate::confinement::Confinement;
use crate::packet_process::take_standard_input;
use crate::{FAILED, complain, logging};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::set_name;
use serde::{Deserialize, Serialize};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use taupe_inspect::metrics::Format;
use taupe_os_linux::message_socket;

/// The argument after the program's name.
pub(crate) const ARGUMENT: &str = "metrics-server";

/// Time for which requests get the same reading.
const FRESH: Duration = Duration::from_secs(1);

/// The parent's first message. Its descriptors are the listening sockets, in this order.
#[derive(Serialize, Deserialize)]
pub(super) struct Start {
    pub(super) is_prometheus: bool,
    pub(super) has_tcp: bool,
    pub(super) has_unix: bool,
    /// Value of `LOG_LEVEL`.
    pub(super) log_level: Option<String>,
}

/// A message to the parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// Requests are served.
    Serving,
    /// A [`Reading`] is wanted.
    Wanted,
}

/// Reason why requests are not served.
#[derive(Debug, thiserror::Error)]
enum ServerError {
    #[error("standard input is not the socket of `taupe metrics`: {0}")]
    Socket(#[source] io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error("cannot accept connections: {0}")]
    Accept(#[source] io::Error),
}

/// Serves requests, until the parent ends.
pub(crate) fn main() -> ExitCode {
    // Otherwise it would be called `exe`, after `/proc/self/exe`.
    let _ = set_name(c"taupe-metrics");
    match run() {
        Ok(never) => match never {},
        Err(error) => complain(&error, FAILED),
    }
}

fn run() -> Result<std::convert::Infallible, ServerError> {
    let socket = take_standard_input().map_err(ServerError::Socket)?;
    let message = message_socket::receive(socket.as_fd()).map_err(ServerError::Socket)?;
    let message =
        message.ok_or_else(|| ServerError::Socket(io::ErrorKind::UnexpectedEof.into()))?;
    let start: Start =
        serde_json::from_slice(&message.text).map_err(|error| ServerError::Socket(error.into()))?;
    logging::begin(logging::level(start.log_level.as_deref()));
    let mut listeners = message.descriptors.into_iter();
    let tcp = listeners.by_ref().take(start.has_tcp.into()).next();
    let unix = listeners.by_ref().take(start.has_unix.into()).next();
    let confinement = Confinement::of_metrics();
    // The list of calls refuses to change this.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let served = Arc::new(Served {
        format: match start.is_prometheus {
            true => Format::Prometheus,
            false => Format::OpenMetrics,
        },
        parent: socket,
        latest: Mutex::new(None),
    });
    let (sender, failures) = mpsc::channel();
    if let Some(tcp) = tcp.map(TcpListener::from) {
        let accept = move || tcp.accept().map(|(stream, _)| stream);
        serve(accept, &served, &sender)?;
    }
    if let Some(unix) = unix.map(UnixListener::from) {
        let accept = move || unix.accept().map(|(stream, _)| stream);
        serve(accept, &served, &sender)?;
    }
    confinement.finish();
    served.send(Event::Serving).map_err(ServerError::Socket)?;
    // This function has a sender too, so there is always one.
    let error = failures.recv().unwrap_or(io::ErrorKind::Other.into());
    Err(ServerError::Accept(error))
}

/// Serves connections in a thread, which sends the error that ends it.
fn serve<C: http::Connection>(
    accept: impl FnMut() -> io::Result<C> + Send + 'static,
    served: &Arc<Served>,
    failures: &mpsc::Sender<io::Error>,
) -> Result<(), ServerError> {
    let (served, failures) = (Arc::clone(served), failures.clone());
    let run = move || {
        let error = http::serve(accept, move |path: &str| served.answer(path));
        // The receiver is gone if the process is about to end.
        let _ = failures.send(error);
    };
    let thread = thread::Builder::new().name("metrics".into()).spawn(run);
    thread.map(drop).map_err(ServerError::Thread)
}

/// The figures, which all requests within a time share.
struct Served {
    format: Format,
    parent: OwnedFd,
    latest: Mutex<Option<(Instant, Reading)>>,
}

impl Served {
    /// Returns the answer to a request for a path.
    fn answer(&self, path: &str) -> Answer {
        let is_ready_path = match path {
            "/metrics" => false,
            "/readyz" => true,
            _ => return Answer::plain(404, "there are /metrics and /readyz\n"),
        };
        let mut latest = self.latest.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, reading) = match latest.take().filter(|(at, _)| at.elapsed() < FRESH) {
            Some(fresh) => latest.insert(fresh),
            None => {
                let reading = self.read();
                latest.insert((Instant::now(), reading))
            }
        };
        match (is_ready_path, reading.readiness, &reading.text) {
            (true, Readiness::Ready, _) => Answer::plain(200, "ready\n"),
            (true, Readiness::NothingThere, _) => {
                Answer::plain(503, "there is no tunnel and no device\n")
            }
            (true, Readiness::NotCarried, _) => Answer::plain(
                503,
                "a tunnel does not carry packets; `taupe status` says why\n",
            ),
            (false, _, Some(text)) => Answer {
                status: 200,
                media_type: self.format.media_type(),
                body: Arc::clone(text),
            },
            (true, Readiness::Unknown, _) | (false, _, None) => {
                Answer::plain(503, "the state cannot be read; the server's log says why\n")
            }
        }
    }

    /// Has the parent read the figures.
    fn read(&self) -> Reading {
        let wanted = self.send(Event::Wanted);
        let reading = wanted.and_then(|()| Reading::receive(self.parent.as_fd()));
        // Without its parent this process is about to end.
        reading.unwrap_or_else(|_| Reading::unknown())
    }

    fn send(&self, event: Event) -> io::Result<()> {
        message_socket::send(self.parent.as_fd(), &serde_json::to_vec(&event)?, &[])
    }
}
