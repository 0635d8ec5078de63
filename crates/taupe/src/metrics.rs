//! `taupe metrics`: figures of tunnels and devices, printed once or served to a monitoring system.

mod http;

use crate::arguments::MetricsOrder;
use crate::command_line::VERSION;
use crate::console::{NotPrinted, print, say};
use crate::root;
use crate::status::with_advice;
use http::Answer;
use rustix::fs::Mode;
use rustix::process::umask;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use taupe_adapter::Compatibility;
use taupe_inspect::metrics::{Format, Metrics};
use taupe_inspect::status::StatusError;

/// Time for which requests get the same reading.
const FRESH: Duration = Duration::from_secs(1);

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
    #[error("cannot listen at {} (--unix): {source}; choose another path", path.display())]
    ListenUnix { path: PathBuf, source: io::Error },
    #[error("cannot listen at {} (--unix): another program serves it; choose another path", .0.display())]
    Taken(PathBuf),
    #[error("cannot listen at {} (--unix): the file is no socket; choose another path", .0.display())]
    NotASocket(PathBuf),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
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
    let format = match order.prometheus {
        true => Format::Prometheus,
        false => Format::OpenMetrics,
    };
    if order.listen.is_none() && order.unix.is_none() {
        let text = Metrics::read(VERSION)?.text(format);
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
    let served = Arc::new(Served {
        format,
        latest: Mutex::new(None),
    });
    let (sender, failures) = mpsc::channel();
    if let Some(tcp) = tcp {
        let accept = move || tcp.accept().map(|(stream, _)| stream);
        serve(accept, &served, &sender)?;
    }
    if let Some(unix) = unix {
        let accept = move || unix.accept().map(|(stream, _)| stream);
        serve(accept, &served, &sender)?;
    }
    crate::system::notify_ready();
    match failures.recv() {
        Ok(error) => Err(MetricsError::Accept(error)),
        Err(_) => Ok(()),
    }
}

/// Serves connections in a thread, which sends the error that ends it.
fn serve<C: http::Connection>(
    accept: impl FnMut() -> io::Result<C> + Send + 'static,
    served: &Arc<Served>,
    failures: &mpsc::Sender<io::Error>,
) -> Result<(), MetricsError> {
    let (served, failures) = (Arc::clone(served), failures.clone());
    let run = move || {
        let error = http::serve(accept, move |path: &str| served.answer(path));
        // The receiver is gone if the process is about to end.
        let _ = failures.send(error);
    };
    let thread = thread::Builder::new().name("metrics".into()).spawn(run);
    thread.map(drop).map_err(MetricsError::Thread)
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
        Ok(_) => match taupe_client::connect_to(path) {
            Ok(_) => return Err(MetricsError::Taken(path.to_owned())),
            // Only this error says that no process has the socket.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                fs::remove_file(path).map_err(failed)?;
            }
            Err(error) => return Err(failed(error)),
        },
        Err(_) => {}
    }
    // There is one thread only.
    let before = umask(Mode::from_raw_mode(0o117));
    let bound = UnixListener::bind(path);
    umask(before);
    bound.map_err(failed)
}

/// The figures, which all requests within a time share.
struct Served {
    format: Format,
    latest: Mutex<Option<Reading>>,
}

struct Reading {
    at: Instant,
    /// `None` if they cannot be read.
    text: Option<Arc<str>>,
    /// The reason why this machine is not ready.
    obstacle: Option<&'static str>,
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
        let reading = match latest.take().filter(|it| it.at.elapsed() < FRESH) {
            Some(fresh) => latest.insert(fresh),
            None => latest.insert(self.read()),
        };
        match (is_ready_path, reading.obstacle, &reading.text) {
            (true, Some(obstacle), _) => Answer::plain(503, obstacle),
            (true, None, _) => Answer::plain(200, "ready\n"),
            (false, _, Some(text)) => Answer {
                status: 200,
                media_type: self.format.media_type(),
                body: Arc::clone(text),
            },
            (false, _, None) => Answer::plain(503, UNREADABLE),
        }
    }

    fn read(&self) -> Reading {
        match Metrics::read(VERSION) {
            Ok(metrics) => Reading {
                at: Instant::now(),
                obstacle: match (metrics.is_empty(), metrics.carries_all()) {
                    (true, _) => Some("there is no tunnel and no device\n"),
                    (false, false) => {
                        Some("a tunnel does not carry packets; `taupe status` says why\n")
                    }
                    (false, true) => None,
                },
                text: Some(metrics.text(self.format).into()),
            },
            Err(error) => {
                say(&format_args!("[!] {}", with_advice(&error)));
                Reading {
                    at: Instant::now(),
                    obstacle: Some(UNREADABLE),
                    text: None,
                }
            }
        }
    }
}

const UNREADABLE: &str = "the state cannot be read; the server's log says why\n";
