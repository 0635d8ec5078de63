//! Throughput of a gateway with several clients that transfer at the same time.

use super::cost::Meter;
use super::iperf::{self, Direction, Flow, Transfer};
use super::load::Load;
use super::order::OrderEvents;
use super::servers::{IPERF, Server};
use crate::session::GatewaySession;
use std::thread;
use taupe_lab::error::Result;

/// Parallel streams of each client.
pub const STREAMS: u32 = 4;

/// A gateway with an iperf3 server for each client.
#[derive(Debug)]
pub struct Gateway {
    // Fields drop in order: the servers before the session with their machines.
    servers: Vec<Server>,
    session: GatewaySession,
}

impl Gateway {
    /// Starts the servers of a session.
    ///
    /// # Errors
    ///
    /// An error with the output of a server if it ends.
    pub fn new(session: GatewaySession) -> Result<Self> {
        let ports = (IPERF..).take(session.machines.clients.len());
        let servers = ports.map(|port| {
            let mut server = Server::iperf(&session.machines.server, port);
            server.start().map(|()| server)
        });
        Ok(Self {
            servers: servers.collect::<Result<_>>()?,
            session,
        })
    }

    /// Sends data at full speed with all clients, in [`STREAMS`] streams each.
    ///
    /// # Errors
    ///
    /// The first error of a client.
    pub fn transfer(&mut self, direction: Direction, seconds: u32) -> Result<Load> {
        let flow = Flow {
            direction,
            streams: STREAMS,
            seconds,
        };
        let machines = &self.session.machines;
        let hosts = || machines.clients.iter().chain([&machines.server]);
        let before = OrderEvents::read_hosts(hosts())?;
        let meter = Meter::of_programs(self.session.processes())?;
        let congestion = machines.tcp().congestion;
        let targets = &self.session.ends.targets;
        let clients = thread::scope(|scope| {
            let clients = machines.clients.iter().zip(targets).zip(&mut self.servers);
            let threads = clients.map(|((host, target), server)| {
                scope.spawn(move || iperf::transfer_from(host, *target, server, flow, congestion))
            });
            let threads: Vec<_> = threads.collect();
            let results = threads.into_iter().map(|thread| {
                let joined = thread.join();
                joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            });
            results.collect::<Result<Vec<Transfer>>>()
        })?;
        let usage = meter.stop()?;
        let order = OrderEvents::read_hosts(hosts())?.since(&before);
        Ok(Load::of(&clients, usage, order))
    }
}
