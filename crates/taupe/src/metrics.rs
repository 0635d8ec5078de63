//! `taupe metrics`: figures of tunnels and devices, printed once or served to a monitoring system.

mod http;

use crate::arguments::MetricsOrder;
use crate::command_line::VERSION;
use crate::console::{NotPrinted, print, say};
use crate::root;
use crate::status::with_advice;
use http::{Answer, Hosts};
use rustix::fs::Mode;
use rustix::process::umask;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread;
use taupe_adapter::Compatibility;
use taupe_inspect::metrics::{MEDIA_TYPE, Metrics};
use taupe_inspect::status::{State, StatusError};

/// Reason why there are no figures.
#[derive(Debug, thiserror::Error)]
enum MetricsError {
    #[error(transparent)]
    NotRoot(#[from] root::RootError),
    #[error("{}", with_advice(.0))]
    Status(#[from] StatusError),
    #[error(transparent)]
    Output(#[from] NotPrinted),
    #[error("cannot listen at {0} (--listen): {1}; choose another address or port")]
    Listen(SocketAddr, #[source] io::Error),
    #[error("cannot listen at {} (--unix): {source}", path.display())]
    ListenUnix { path: PathBuf, source: io::Error },
    #[error("cannot listen at {} (--unix): another program serves it; choose another path", .0.display())]
    Taken(PathBuf),
    #[error("cannot listen at {} (--unix): the file is no socket; choose another path", .0.display())]
    NotASocket(PathBuf),
    #[error("cannot accept connections: {0}")]
    Accept(#[source] io::Error),
}

pub(crate) fn main(order: &MetricsOrder, arguments: &[OsString]) -> ExitCode {
    match run(order, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(MetricsError::Output(error)) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

fn run(order: &MetricsOrder, arguments: &[OsString]) -> Result<(), MetricsError> {
    root::require(Compatibility::Taupe, arguments)?;
    if order.listen.is_none() && order.unix.is_none() {
        let text = Metrics::read(VERSION)?.text();
        return Ok(print(text.as_bytes())?);
    }
    let tcp = order.listen.map(|address| {
        TcpListener::bind(address).map_err(|error| MetricsError::Listen(address, error))
    });
    let (tcp, unix) = (tcp.transpose()?, order.unix.as_deref().map(bind_unix));
    let unix = unix.transpose()?;
    for address in tcp.iter().filter_map(|it| it.local_addr().ok()) {
        say(&format_args!("metrics at http://{address}/metrics"));
    }
    crate::system::notify_ready();
    thread::scope(|scope| {
        let unix = unix.map(|unix| {
            scope.spawn(move || {
                let accept = || unix.accept().map(|(stream, _)| stream);
                http::serve(accept, Hosts::Any, answer)
            })
        });
        let tcp = tcp.map(|tcp| {
            // A web page can have a name that leads to this machine, and read what it serves.
            let is_local = tcp.local_addr().is_ok_and(|it| it.ip().is_loopback());
            let hosts = if is_local { Hosts::Local } else { Hosts::Any };
            let accept = move || tcp.accept().map(|(stream, _)| stream);
            http::serve(accept, hosts, answer)
        });
        let unix = unix.and_then(|thread| thread.join().ok());
        tcp.or(unix)
            .map_or(Ok(()), |error| Err(MetricsError::Accept(error)))
    })
}

/// Binds a socket that root and its group can use. Replaces one that nobody serves any more.
fn bind_unix(path: &Path) -> Result<UnixListener, MetricsError> {
    let failed = |source| MetricsError::ListenUnix {
        path: path.to_owned(),
        source,
    };
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(MetricsError::NotASocket(path.to_owned()));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(MetricsError::Taken(path.to_owned()));
        }
        Ok(_) => fs::remove_file(path).map_err(failed)?,
        Err(_) => {}
    }
    // There is one thread only.
    let before = umask(Mode::from_raw_mode(0o117));
    let bound = UnixListener::bind(path);
    umask(before);
    bound.map_err(failed)
}

/// Returns the answer to a request for a path.
fn answer(path: &str) -> Answer {
    // Requests at the same time would read the same.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let is_ready_path = match path {
        "/metrics" => false,
        "/readyz" => true,
        _ => return Answer::plain(404, "there are /metrics and /readyz\n"),
    };
    let guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let metrics = Metrics::read(VERSION);
    drop(guard);
    match (metrics, is_ready_path) {
        (Ok(metrics), false) => Answer {
            status: 200,
            media_type: MEDIA_TYPE,
            body: metrics.text(),
        },
        (Ok(metrics), true) if metrics.is_empty() => {
            Answer::plain(503, "there is no tunnel and no device\n")
        }
        (Ok(metrics), true) if metrics.state() == Some(State::Down) => {
            Answer::plain(503, "a tunnel is down; `taupe status` says why\n")
        }
        (Ok(_), true) => Answer::plain(200, "ready\n"),
        (Err(error), _) => Answer::plain(503, format!("{}\n", with_advice(&error))),
    }
}
