//! A contestant that runs, both sides, on machines of its own.

use crate::contestant::{Contestant, End};
use crate::pair::{Link, Pair};
use crate::side::Side;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use taupe_lab::ensure;
use taupe_lab::error::Result;
use taupe_lab::process::Process;
use taupe_lab::traffic::{PATIENCE, Pinger};

/// How long a contestant may take until the first ping is answered.
const START: Duration = Duration::from_secs(30);

/// A tunnel between the machines of a pair, through which packets pass.
#[derive(Debug)]
pub struct Session {
    // Dropped in this order: the programs before the machines they run on.
    /// The side that begins.
    pub client: End,
    /// The other.
    pub server: End,
    /// The machines.
    pub pair: Pair,
    /// From the start of the client's program to the first ping answered, with whatever
    /// else has to be run: for WireGuard `wg` and `ip`, which OpenVPN does itself.
    pub startup: Duration,
}

impl Session {
    /// Starts a contestant on a new pair of machines, and waits for the first answer: a
    /// ping every 2 ms from the moment that the client's side has been told everything.
    ///
    /// # Errors
    ///
    /// Whatever fails; [`Error::Unmet`](taupe_lab::Error::Unmet) with what the programs said when one of them
    /// ends, or nothing passes within 30 seconds.
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
            let said = || {
                let processes = client.processes.iter().chain(&server.processes);
                processes.map(Process::output).collect::<String>()
            };
            ensure!(
                begin.elapsed() <= START,
                "{pinger} within {START:?}\n{}",
                said()
            );
        }
        Ok(Self {
            startup: begin.elapsed(),
            client,
            server,
            pair,
        })
    }

    /// Whether the programs on both sides still run.
    ///
    /// # Errors
    ///
    /// As [`End::check`].
    pub fn check(&mut self) -> Result<()> {
        self.client.check()?;
        self.server.check()
    }

    /// Where the client reaches the server.
    pub const fn target(&self) -> IpAddr {
        self.server.address
    }

    /// The ids of the programs that make the tunnel, on both sides.
    pub fn processes(&self) -> Vec<u32> {
        let ends = [&self.client, &self.server];
        let processes = ends.iter().flat_map(|end| &end.processes);
        processes.map(Process::id).collect()
    }
}
