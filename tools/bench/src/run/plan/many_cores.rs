//! Steps that saturate the machine: round trips beside streams, gateways, numbers of workers.

use super::Plan;
use crate::contestant::Contestant;
use crate::measure::gateway::Gateway;
use crate::measure::iperf::{Direction, Flow};
use crate::measure::metrics::{self, LoadSubject};
use crate::measure::servers::Servers;
use crate::measure::{latency, load};
use crate::pair::Link;
use crate::run::Bench;
use crate::session::{GatewaySession, Session};
use std::rc::Rc;
use taupe_lab::error::Result;

/// Links on which round trips are measured beside streams.
const LINKS: [Link; 3] = [
    Link::Cable,
    Link::Limited { rate: 100_000_000 },
    Link::Limited {
        rate: 1_000_000_000,
    },
];

/// Numbers of streams beside which round trips are measured.
const BESIDE: [u32; 2] = [1, 4];

/// Duration of round trips beside streams, in seconds: 4,000 round trips, 40 of them beyond p99.
const ROUND_TRIPS: u32 = 2;

/// Streams of a transfer with a number of workers, enough for each worker to get some.
const STREAMS: u32 = 16;

const DIRECTIONS: [Direction; 2] = [Direction::Up, Direction::Down];

impl Plan {
    /// Measures round trips while streams fill the tunnel, on each of [`LINKS`].
    pub(super) fn beside(&mut self, own: &Link) {
        for link in LINKS {
            for round in 1..=self.rounds {
                for streams in BESIDE {
                    let key = metrics::beside_key(&link, streams);
                    let label = format!("round {round}/{}, {key}", self.rounds);
                    let estimate = f64::from(ROUND_TRIPS) + 1.5;
                    let link = link.clone();
                    self.each(&label, &key.clone(), estimate, move |bench, contestant| {
                        bench.beside(contestant, &link, streams)
                    });
                }
            }
            if link != *own {
                self.stop_all(&link);
            }
        }
    }

    /// Measures a gateway with several clients. Each measurement starts and stops the gateway.
    pub(super) fn gateway(&mut self, counts: &[usize]) {
        let seconds = self.seconds;
        for round in 1..=self.rounds {
            for &clients in counts {
                let what = format!("gateway/{clients}");
                let label = format!("round {round}/{}, {what}", self.rounds);
                let estimate = 2.0 * f64::from(seconds) + 2.0 + 0.2 * clients as f64;
                self.each(&label, &what, estimate, move |bench, contestant| {
                    bench.gateway(contestant, clients, seconds)
                });
            }
        }
    }

    /// Measures the throughput with several numbers of workers. A contestant without such a setting
    /// is measured once in each round.
    pub(super) fn cores(&mut self, counts: &[usize]) {
        let seconds = self.seconds;
        for round in 1..=self.rounds {
            for (at, &count) in counts.iter().enumerate() {
                let what = format!("workers/{count}");
                let label = format!("round {round}/{}, {what}", self.rounds);
                let estimate = 2.0 * f64::from(seconds) + 2.0;
                self.each(&label, &what, estimate, move |bench, contestant| {
                    bench.workers(contestant, count, at == 0, seconds)
                });
            }
        }
    }
}

impl Bench {
    fn beside(&mut self, contestant: &Rc<dyn Contestant>, link: &Link, streams: u32) -> Result<()> {
        let running = self.running(contestant, link)?;
        let (session, servers) = (&running.session, &mut running.servers);
        let found = latency::loaded(session, servers, streams, ROUND_TRIPS)?;
        self.record(contestant, metrics::beside(link, streams, &found));
        let key = metrics::beside_key(link, streams);
        self.record_round_trips(contestant, &key, found.round_trips);
        Ok(())
    }

    fn gateway(
        &mut self,
        contestant: &Rc<dyn Contestant>,
        clients: usize,
        seconds: u32,
    ) -> Result<()> {
        let (name, tcp) = (format!("gateway-{}", contestant.id()), self.options.tcp);
        let Some(session) = GatewaySession::start(&**contestant, &name, clients, tcp) else {
            return Ok(());
        };
        let mut gateway = Gateway::new(session?)?;
        for direction in DIRECTIONS {
            let found = gateway.transfer(direction, seconds)?;
            let subject = LoadSubject::of_gateway(clients, direction);
            self.record(contestant, subject.throughput(&found));
            self.record_load(contestant, &subject, &found);
        }
        Ok(())
    }

    fn workers(
        &mut self,
        contestant: &Rc<dyn Contestant>,
        count: usize,
        is_first: bool,
        seconds: u32,
    ) -> Result<()> {
        let with_workers = contestant.with_workers(count)?;
        // The reference is measured each time, because the others are compared with its latest run.
        let is_reference = contestant.id() == crate::contestant::REFERENCE;
        if with_workers.is_none() && !is_first && !is_reference {
            return Ok(());
        }
        let link = self.options.link.clone();
        let name = format!("workers-{}", contestant.id());
        let mut session = Session::start(
            with_workers.as_deref().unwrap_or(&**contestant),
            &name,
            &link,
        )?;
        session.pair.set_tcp(self.options.tcp)?;
        let mut servers = Servers::new(&session);
        for direction in DIRECTIONS {
            let flow = Flow {
                direction,
                streams: STREAMS,
                seconds,
            };
            let (_, found) = load::transfer(&session, &mut servers, flow)?;
            let count = with_workers.as_ref().map(|_| count);
            let subject = LoadSubject::of_workers(count, direction);
            self.record(contestant, subject.throughput(&found));
            self.record_load(contestant, &subject, &found);
        }
        Ok(())
    }
}
