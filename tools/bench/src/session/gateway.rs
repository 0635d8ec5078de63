//! A running gateway with its clients.

use super::START;
use crate::contestant::{Contestant, GatewayEnds};
use crate::gateway::GatewayMachines;
use crate::tcp::TcpSettings;
use std::time::Instant;
use taupe_lab::ensure;
use taupe_lab::error::Result;
use taupe_lab::process::Process;
use taupe_lab::traffic::{PATIENCE, Pinger};

/// A gateway through which the packets of all clients pass.
#[derive(Debug)]
pub struct GatewaySession {
    // Fields drop in order: the programs before their machines.
    /// The programs.
    pub ends: GatewayEnds,
    /// The machines.
    pub machines: GatewayMachines,
}

impl GatewaySession {
    /// Starts a contestant on new machines, and waits until each client gets an answer. Returns
    /// `None` if the contestant cannot be a gateway.
    ///
    /// # Errors
    ///
    /// Any error of the contestant; [`Error::Unmet`](taupe_lab::Error::Unmet) if a client gets no
    /// answer within 30 seconds.
    pub fn start(
        contestant: &dyn Contestant,
        name: &str,
        clients: usize,
        tcp: TcpSettings,
    ) -> Option<Result<Self>> {
        let machines = match GatewayMachines::new(name, clients, tcp) {
            Ok(machines) => machines,
            Err(error) => return Some(Err(error)),
        };
        let ends = contestant.start_gateway(&machines)?;
        Some(ends.and_then(|ends| {
            let mut session = Self { ends, machines };
            session.await_answers()?;
            Ok(session)
        }))
    }

    /// Returns the process ids of the programs that run the tunnels, on all machines.
    pub fn processes(&self) -> Vec<u32> {
        let ends = self.ends.clients.iter().chain([&self.ends.server]);
        let processes = ends.flat_map(|end| &end.processes);
        processes.flat_map(Process::all_ids).collect()
    }

    fn await_answers(&mut self) -> Result<()> {
        let begin = Instant::now();
        let ends = &mut self.ends;
        let clients = self.machines.clients.iter().zip(&mut ends.clients);
        for ((host, client), target) in clients.zip(&ends.targets) {
            let mut pinger = Pinger::new(host, *target)?;
            while !pinger.ping(PATIENCE)? {
                client.check()?;
                ends.server.check()?;
                ensure!(begin.elapsed() <= START, "{pinger} within {START:?}");
            }
        }
        Ok(())
    }
}
