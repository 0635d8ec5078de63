//! `taupe metrics`: figures of tunnels and devices, printed once or served to a monitoring system.
//!
//! Two processes serve them: this one, which has the rights to read the figures, and its child
//! ([`server`]), which parses requests and has no rights.

mod http;
mod reading;
pub(crate) mod server;

use crate::arguments::MetricsOrder;
use crate::command_line::VERSION;
use crate::console::{NotPrinted, print, say};
use crate::listening::{ListenUnixError, ListeningSocket, bind_unix};
use crate::request_server::{RequestServer, descriptors};
use crate::root;
use crate::status::with_advice;
use reading::Reading;
use server::{Event, Start};
use std::env;
use std::ffi::OsString;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::{ExitCode, ExitStatus};
use taupe_adapter::Compatibility;
use taupe_inspect::metrics::{Format, Metrics};
use taupe_inspect::status::{Files, StatusError};
use taupe_os_linux::message_socket;
use taupe_os_linux::own_program::run_again;
use taupe_os_linux::packet_process::PROGRAM;

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
    #[error(transparent)]
    ListenUnix(#[from] ListenUnixError),
    #[error("cannot run the process that serves the metrics: {0}")]
    Server(#[source] io::Error),
    #[error("the process that serves the metrics has ended ({0})")]
    ServerEnded(ExitStatus),
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
        let text = Metrics::read(VERSION, &mut Files::default())?.text(format);
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
    let server = start(order.prometheus, tcp.as_ref(), unix.as_ref());
    // The child has the listening sockets. The file of the Unix socket is removed at the end.
    let _file = unix.map(|it| it.file);
    drop(tcp);
    serve(server.map_err(MetricsError::Server)?, format)
}

/// Starts the process that serves requests, with these listening sockets.
fn start(
    is_prometheus: bool,
    tcp: Option<&TcpListener>,
    unix: Option<&ListeningSocket>,
) -> io::Result<RequestServer> {
    let start = Start {
        is_prometheus,
        has_tcp: tcp.is_some(),
        has_unix: unix.is_some(),
        log_level: env::var("LOG_LEVEL").ok(),
    };
    let run =
        |socket: &_, output: &_| run_again(PROGRAM, &[server::ARGUMENT], socket, Some(output));
    let server = RequestServer::start(run)?;
    let text = serde_json::to_vec(&start)?;
    message_socket::send(server.socket(), &text, &descriptors(tcp, unix))?;
    Ok(server)
}

/// Reads the figures whenever the process wants them, until it ends.
fn serve(mut server: RequestServer, format: Format) -> Result<(), MetricsError> {
    let mut files = Files::default();
    loop {
        let received = message_socket::receive(server.socket());
        let Some(message) = received.map_err(MetricsError::Server)? else {
            let ended = server.wait().map_err(MetricsError::Server)?;
            return Err(MetricsError::ServerEnded(ended));
        };
        match serde_json::from_slice(&message.text) {
            Ok(Event::Serving) => crate::system::notify_ready(),
            Ok(Event::Wanted) => {
                let sent = Reading::take(VERSION, format, &mut files).send(server.socket());
                // If the process has ended, the next turn says so.
                if let Err(error) = sent
                    && error.kind() != io::ErrorKind::BrokenPipe
                {
                    say(&format_args!("[!] cannot pass on the figures: {error}"));
                    Reading::unknown()
                        .send(server.socket())
                        .map_err(MetricsError::Server)?;
                }
            }
            Err(error) => return Err(MetricsError::Server(error.into())),
        }
    }
}
