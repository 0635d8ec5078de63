//! A running contestant, on its own machines.

mod gateway;

pub use gateway::GatewaySession;

use crate::contestant::{Contestant, End};
use crate::pair::{Link, Pair};
use crate::side::Side;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use taupe_lab::ensure;
use taupe_lab::error::Result;
use taupe_lab::process::Process;
use taupe_lab::traffic::{PATIENCE, Pinger};

/// Time limit from the start to the first answered ping.
const START: Duration = Duration::from_secs(30);

/// A tunnel between the machines of a pair, through which packets pass.
#[derive(Debug)]
pub struct Session {
    // Fields drop in order: the programs before the machines they run on.
    /// The side that initiates.
    pub client: End,
    /// The side that responds.
    pub server: End,
    /// The machines.
    pub pair: Pair,
    /// Time from the start of the client's program to the first answered ping. It includes the
    /// tools that configure the tunnel: WireGuard needs `wg` and `ip`, OpenVPN configures itself.
    pub startup: Duration,
}

impl Session {
    /// Starts a contestant on a new pair of machines and waits for the first answer. It sends a
    /// ping every 2 ms once the client is configured.
    ///
    /// # Errors
    ///
    /// Any error of the contestant; [`Error::Unmet`](taupe_lab::Error::Unmet) with the programs'
    /// output if one of them ends, or if no ping is answered within 30 seconds.
    pub fn start(contestant: &dyn Contestant, name: &str, link: &Link) -> Result<Self> {
        let pair = Pair::new(name, link)?;
        contestant.prepare(&pair)?;
        let mut server = contestant.start(&pair, Side::Server)?;
        let mut pinger = Pinger::new(&pair.client, server.address)?;
        let begin = Instant::now();
        let mut client = contestant.start(&pair, Side::Client)?;
        while !pinger.ping(PATIENCE)? {
            client.check()?;
            server.check()?;
            let result = || {
                let processes = client.processes.iter().chain(&server.processes);
                processes.map(Process::output).collect::<String>()
            };
            ensure!(
                begin.elapsed() <= START,
                "{pinger} within {START:?}\n{}",
                result()
            );
        }
        Ok(Self {
            startup: begin.elapsed(),
            client,
            server,
            pair,
        })
    }

    /// Checks that the programs on both sides still run.
    ///
    /// # Errors
    ///
    /// As [`End::check`].
    pub fn check(&mut self) -> Result<()> {
        self.client.check()?;
        self.server.check()
    }

    /// Returns the server's address inside the tunnel.
    pub const fn target(&self) -> IpAddr {
        self.server.address
    }

    /// Returns the process ids of the programs that run the tunnel, on both sides.
    pub fn processes(&self) -> Vec<u32> {
        let ends = [&self.client, &self.server];
        let processes = ends.iter().flat_map(|end| &end.processes);
        processes.flat_map(Process::all_ids).collect()
    }
}
