//! Servers of the measuring programs.

use crate::session::Session;
use std::time::Duration;
use taupe_lab::error::{Error, Result};
use taupe_lab::host::{Host, Transport};
use taupe_lab::process::{Process, wait_until};

/// The usual port of iperf3.
pub(super) const IPERF: u16 = 5201;

/// Time limit for a server to start listening.
const START: Duration = Duration::from_secs(10);

/// The iperf3 and qperf servers on the server's machine. Each starts at its first use and keeps
/// running, so that its start is not measured; dropping this stops both.
///
/// Both serve one client at a time.
#[derive(Debug)]
pub struct Servers {
    iperf: Server,
    qperf: Server,
}

impl Servers {
    /// Returns the servers of one session, not yet started.
    pub fn new(session: &Session) -> Self {
        let host = &session.pair.server;
        Self {
            iperf: Server::iperf(host, IPERF),
            qperf: Server::new(host, &["qperf"], 19765),
        }
    }

    pub(super) const fn iperf(&mut self) -> &mut Server {
        &mut self.iperf
    }

    pub(super) const fn qperf(&mut self) -> &mut Server {
        &mut self.qperf
    }
}

/// A server that starts at its first use.
#[derive(Debug)]
pub(super) struct Server {
    host: Host,
    command: Vec<String>,
    port: u16,
    process: Option<Process>,
}

impl Server {
    /// Returns an iperf3 server at a port, not yet started.
    pub(super) fn iperf(host: &Host, port: u16) -> Self {
        Self::new(host, &["iperf3", "-s", "-p", &port.to_string()], port)
    }

    fn new(host: &Host, command: &[&str], port: u16) -> Self {
        Self {
            host: host.clone(),
            command: command.iter().map(|&word| word.to_owned()).collect(),
            port,
            process: None,
        }
    }

    /// Returns the port.
    pub(super) const fn port(&self) -> u16 {
        self.port
    }

    /// Runs a client against the server. If the client fails, the server is stopped, because it may
    /// wait for the lost client for minutes. If such a waiting server was the cause of the failure,
    /// the client runs once more.
    ///
    /// # Errors
    ///
    /// Those of the client; an error if the server does not run.
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

    /// Starts the server unless it runs.
    ///
    /// # Errors
    ///
    /// An error with the server's output if the server ends.
    pub(super) fn start(&mut self) -> Result<()> {
        if let Some(process) = &mut self.process
            && process.runs()?
        {
            return Ok(());
        }
        let command: Vec<&str> = self.command.iter().map(String::as_str).collect();
        let process = self.process.insert(self.host.spawn(&command)?);
        let what = format!("{} listening", command.join(" "));
        wait_until(&what, START, || {
            if !process.runs()? {
                return Err(Error::unmet(format!(
                    "{} ended: {}",
                    command.join(" "),
                    process.output().trim()
                )));
            }
            self.host.listens(Transport::Tcp, self.port)
        })
    }
}
