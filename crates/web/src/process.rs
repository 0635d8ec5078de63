//! Start, confinement and end of the process.

use crate::connections;
use crate::live::Live;
use crate::parent::{Messages, Parent};
use crate::sessions::Sessions;
use crate::site::{Site, routes};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::process::{Signal, set_parent_process_death_signal};
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
    LayerState, OnViolation, Rights, enter_empty_root, lists, restrict_calls, restrict_thread,
};
use taupe_web_link::{Start, ToParent, ToServer, receive};
use tokio::sync::mpsc::channel;

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
    // The list of calls refuses to change this.
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // This takes CAP_SYS_ADMIN, which a service may not have. The list of calls refuses paths too.
    let _ = enter_empty_root();
    let layers = restrict_thread(&Rights::none());
    let event_loop = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(WebError::Loop)?;
    event_loop.block_on(async {
        let server = Server::open(start, listeners, socket).map_err(WebError::Socket)?;
        let calls = restrict_calls(&lists::WEB, OnViolation::from_environment());
        for status in layers.iter().chain([&calls]) {
            if let LayerState::Missing(_) = status.state {
                say(&format!(
                    "[!] {} is less confined: {status}",
                    lists::WEB.process
                ));
            }
        }
        server.run().await
    })
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
    messages: Messages,
    site: Arc<Site>,
}

impl Server {
    fn open(start: Start, listeners: Vec<OwnedFd>, socket: OwnedFd) -> io::Result<Self> {
        let mut listeners = listeners.into_iter();
        let tcp = listeners.by_ref().take(start.port.iter().len()).next();
        let unix = listeners.by_ref().take(start.has_unix.into()).next();
        for file in tcp.iter().chain(&unix) {
            fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK)?;
        }
        let tcp = tcp.map(|it| tokio::net::TcpListener::from_std(TcpListener::from(it)));
        let unix = unix.map(|it| tokio::net::UnixListener::from_std(UnixListener::from(it)));
        let (parent, messages) = Parent::begin(socket)?;
        let mut sessions = Sessions::default();
        sessions.offer(start.token, Instant::now());
        Ok(Self {
            tcp: tcp.transpose()?,
            unix: unix.transpose()?,
            parent,
            messages,
            site: Arc::new(Site::new(Live::new(sessions), start.port)),
        })
    }

    /// Serves until the parent ends, or a socket fails.
    async fn run(self) -> Result<(), WebError> {
        let Self {
            tcp,
            unix,
            parent,
            messages,
            site,
        } = self;
        let (failed, mut failures) = channel(1);
        let places = connections::places();
        let router = routes(Arc::clone(&site));
        if let Some(tcp) = tcp {
            let (router, places, failed) = (router.clone(), Arc::clone(&places), failed.clone());
            tokio::spawn(async move {
                let accept = |context: &mut Context<'_>| {
                    tcp.poll_accept(context).map_ok(|(stream, _)| stream)
                };
                let error = connections::serve(accept, router, places).await;
                let _ = failed.send(WebError::Accept(error)).await;
            });
        }
        if let Some(unix) = unix {
            let failed = failed.clone();
            tokio::spawn(async move {
                let accept = |context: &mut Context<'_>| {
                    unix.poll_accept(context).map_ok(|(stream, _)| stream)
                };
                let error = connections::serve(accept, router, places).await;
                let _ = failed.send(WebError::Accept(error)).await;
            });
        }
        parent.send(ToParent::Serving).map_err(WebError::Socket)?;
        let parent = Arc::new(parent);
        let (asking, asking_site, asking_failed) =
            (Arc::clone(&parent), Arc::clone(&site), failed.clone());
        tokio::spawn(async move {
            if let Err(error) = asking.ask(&asking_site.live).await {
                let _ = asking_failed.send(WebError::Socket(error)).await;
            }
        });
        tokio::spawn(async move {
            let listened = parent.listen(messages, &site.live).await;
            let error = listened
                .err()
                .unwrap_or(io::ErrorKind::UnexpectedEof.into());
            let _ = failed.send(WebError::Socket(error)).await;
        });
        match failures.recv().await {
            Some(WebError::Socket(error)) if is_end(&error) => Ok(()),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

/// Returns true if the parent has ended, with which this process ends too.
fn is_end(error: &io::Error) -> bool {
    let ends = [io::ErrorKind::UnexpectedEof, io::ErrorKind::BrokenPipe];
    ends.contains(&error.kind())
}
