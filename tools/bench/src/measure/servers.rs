//! The measuring programs' servers.

use crate::session::Session;
use std::time::Duration;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{Host, Transport};
use taupe_lab::process::{Process, wait_until};

/// How long a server may take until it listens.
const START: Duration = Duration::from_secs(10);

/// The iperf3 and qperf servers on the server's machine. Each is started when it is first
/// needed and stays, so that starting it is no part of a measurement; dropping this stops
/// them.
///
/// Both serve one client at a time.
#[derive(Debug)]
pub struct Servers {
    iperf: Server,
    qperf: Server,
}

impl Servers {
    /// The servers of one session; none runs yet.
    pub fn new(session: &Session) -> Self {
        let on = |command, port| Server {
            host: session.pair.server.clone(),
            command,
            port,
            process: None,
        };
        Self {
            iperf: on(&["iperf3", "-s"], 5201),
            qperf: on(&["qperf"], 19765),
        }
    }

    pub(super) const fn iperf(&mut self) -> &mut Server {
        &mut self.iperf
    }

    pub(super) const fn qperf(&mut self) -> &mut Server {
        &mut self.qperf
    }
}

/// A server that runs when it is needed.
#[derive(Debug)]
pub(super) struct Server {
    host: Host,
    command: &'static [&'static str],
    port: u16,
    process: Option<Process>,
}

impl Server {
    /// Runs a client against the server. Where that fails, the server is stopped: it may
    /// wait for a client that is gone, which takes it minutes to notice. When the client
    /// failed because of such a server, it is run once more.
    ///
    /// # Errors
    ///
    /// The client's, or why the server does not run.
    pub(super) fn serve<T>(
        &mut self,
        mut client: impl FnMut() -> Result<T>,
        servers_fault: impl Fn(&Error) -> bool,
    ) -> Result<T> {
        self.start()?;
        let mut result = client();
        if result.as_ref().is_err_and(servers_fault) {
            self.process = None;
            self.start()?;
            result = client();
        }
        if result.is_err() {
            self.process = None;
        }
        result
    }

    fn start(&mut self) -> Result<()> {
        if let Some(process) = &mut self.process
            && process.runs()?
        {
            return Ok(());
        }
        let process = self.process.insert(self.host.spawn(self.command)?);
        let what = format!("{} listening", self.command.join(" "));
        wait_until(&what, START, || {
            if !process.runs()? {
                return Err(Error::unmet(format!(
                    "{} ended: {}",
                    self.command.join(" "),
                    process.output().trim()
                )));
            }
            self.host.listens(Transport::Tcp, self.port)
        })
    }
}
