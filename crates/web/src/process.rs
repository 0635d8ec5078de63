//! Start, confinement and end of the process.

use crate::connections;
use crate::live::Live;
use crate::parent::{Parent, Received};
use crate::sessions::Sessions;
use crate::site::{Site, routes};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fmt;
use std::fs::File;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::task::Context;
use std::time::Instant;
use taupe_confine::{
    LayerState, LayerStatus, OnViolation, Rights, enter_empty_root, enter_unused_user, lists,
    restrict_calls, restrict_thread,
};
use taupe_web_link::{Extent, Layer, Secret, Start, ToParent, ToServer, receive};
use tokio::sync::mpsc::{Receiver, Sender, channel};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Reason why no pages are served.
#[derive(Debug, thiserror::Error)]
enum WebError {
    #[error("standard input is not the socket of `taupe web`, which starts this program")]
    NotStarted,
    #[error(
        "this is version {VERSION} of taupe-web, and {taupe} of taupe; install both from one package"
    )]
    OtherVersion { taupe: String },
    #[error("the socket of `taupe web`: {0}")]
    Socket(#[source] io::Error),
    #[error("cannot start the event loop: {0}")]
    Loop(#[source] io::Error),
    #[error("cannot accept connections: {0}")]
    Accept(#[source] io::Error),
    #[error(
        "this process cannot give up its capabilities, or the kernel permits neither an empty root directory \
         nor Landlock nor seccomp: requests would be parsed with the rights of root; `taupe status` shows the \
         state without a page"
    )]
    NotConfined,
}

pub(crate) fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("taupe-web: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a line to standard error, which may be closed.
fn say(line: &str) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// Serves pages until the parent ends.
fn run() -> Result<(), WebError> {
    let socket = take_standard_input().map_err(WebError::Socket)?;
    let first = receive::<ToServer>(socket.as_fd());
    let Ok(Some((ToServer::Start(start), listeners))) = first else {
        return Err(WebError::NotStarted);
    };
    if start.version != VERSION {
        return Err(WebError::OtherVersion {
            taupe: start.version,
        });
    }
    let before = confine_thread();
    let event_loop = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(WebError::Loop)?;
    event_loop.block_on(async {
        let server = Server::open(start, listeners, socket).map_err(WebError::Socket)?;
        let calls = restrict_calls(&lists::WEB, OnViolation::from_environment());
        let layers: Vec<_> = before.into_iter().chain([layer(&calls)]).collect();
        if !is_confined(&layers) {
            return Err(WebError::NotConfined);
        }
        server.run(layers).await
    })
}

/// Takes rights from the only thread. Returns the layers.
fn confine_thread() -> Vec<Layer> {
    // These take capabilities that a service may not have.
    let root = enter_empty_root();
    let user = enter_unused_user();
    // The list of calls refuses to change this. A change of the user would end it.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    let thread = restrict_thread(&Rights::none());
    let first = [step(EMPTY_ROOT, root), step("user of its own", user)];
    first.into_iter().chain(thread.iter().map(layer)).collect()
}

fn step<E: fmt::Display>(name: &str, done: Result<(), E>) -> Layer {
    match done {
        Ok(()) => Layer {
            text: name.to_owned(),
            extent: Extent::Full,
        },
        Err(error) => Layer {
            text: format!("no {name} ({error})"),
            extent: Extent::None,
        },
    }
}

const EMPTY_ROOT: &str = "empty root directory";

fn layer(status: &LayerStatus) -> Layer {
    Layer {
        text: status.to_string(),
        extent: match status.state {
            LayerState::Holds => Extent::Full,
            LayerState::Partly(_) => Extent::Partial,
            LayerState::Missing(_) => Extent::None,
        },
    }
}

/// Returns true if the process has no capabilities, and a layer that by itself keeps an attacker from opening
/// files.
fn is_confined(layers: &[Layer]) -> bool {
    let holds = |name: &str| {
        let mut layers = layers.iter().filter(|layer| layer.extent != Extent::None);
        layers.any(|layer| layer.text.starts_with(name))
    };
    let barriers = [
        EMPTY_ROOT,
        taupe_confine::Layer::Paths.name(),
        taupe_confine::Layer::Calls.name(),
    ];
    holds(taupe_confine::Layer::Capabilities.name()) && barriers.into_iter().any(holds)
}

fn take_standard_input() -> io::Result<OwnedFd> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    if let Ok(null) = File::open("/dev/null") {
        rustix::stdio::dup2_stdin(null)?;
    }
    Ok(socket)
}

/// Sockets that the event loop watches.
struct Server {
    tcp: Option<tokio::net::TcpListener>,
    unix: Option<tokio::net::UnixListener>,
    parent: Parent,
    messages: Receiver<Received>,
    site: Arc<Site>,
}

impl Server {
    fn open(start: Start, listeners: Vec<OwnedFd>, socket: OwnedFd) -> io::Result<Self> {
        let mut listeners = listeners.into_iter();
        let tcp = listeners.by_ref().take(start.has_tcp.into()).next();
        let unix = listeners.by_ref().take(start.has_unix.into()).next();
        for file in tcp.iter().chain(&unix) {
            fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?;
        }
        let tcp = tcp.map(|it| tokio::net::TcpListener::from_std(TcpListener::from(it)));
        let unix = unix.map(|it| tokio::net::UnixListener::from_std(UnixListener::from(it)));
        let (parent, messages) = Parent::begin(socket)?;
        let mut sessions = Sessions::default();
        sessions.offer(start.token, Instant::now());
        let live = Live::new(sessions, Secret::random()?, start.has_switches);
        Ok(Self {
            tcp: tcp.transpose()?,
            unix: unix.transpose()?,
            parent,
            messages,
            site: Arc::new(Site::new(live, &start.path)?),
        })
    }

    /// Serves until the parent ends, or a socket fails.
    async fn run(self, layers: Vec<Layer>) -> Result<(), WebError> {
        let (end, mut ends) = channel(1);
        let router = routes(Arc::clone(&self.site));
        if let Some(tcp) = self.tcp {
            let accept = move |context: &mut Context<'_>| {
                tcp.poll_accept(context).map_ok(|(stream, _)| stream)
            };
            let serve = connections::serve(accept, router.clone());
            spawn(&end, async { Err(WebError::Accept(serve.await)) });
        }
        if let Some(unix) = self.unix {
            let accept = move |context: &mut Context<'_>| {
                unix.poll_accept(context).map_ok(|(stream, _)| stream)
            };
            let serve = connections::serve(accept, router);
            spawn(&end, async { Err(WebError::Accept(serve.await)) });
        }
        let parent = Arc::new(self.parent);
        let serving = ToParent::Serving(layers);
        if !parent.send(&serving).map_err(WebError::Socket)? {
            return Ok(());
        }
        let parts = || (Arc::clone(&parent), Arc::clone(&self.site.live));
        let (requesting, live) = parts();
        spawn(&end, async move {
            let ended = requesting.request_states(&live).await;
            ended.map_err(WebError::Socket)
        });
        let (reporting, live) = parts();
        spawn(&end, async move {
            let ended = reporting.report_browsers(&live).await;
            ended.map_err(WebError::Socket)
        });
        let (switching, live) = parts();
        spawn(&end, async move {
            let ended = switching.request_switches(&live).await;
            ended.map_err(WebError::Socket)
        });
        let (listening, live) = parts();
        spawn(&end, async move {
            let ended = listening.listen(self.messages, &live).await;
            ended.map_err(WebError::Socket)
        });
        // This function has a sender too, so there is always one.
        ends.recv().await.unwrap_or(Ok(()))
    }
}

/// Starts a task whose end is that of the process.
fn spawn(
    end: &Sender<Result<(), WebError>>,
    task: impl Future<Output = Result<(), WebError>> + Send + 'static,
) {
    let end = end.clone();
    tokio::spawn(async move {
        let ended = task.await;
        let _ = end.send(ended).await;
    });
}
