//! Steps of the published comparisons.

use super::Plan;
use crate::contestant::Contestant;
use crate::measure::iperf::{self, Direction, Flow};
use crate::measure::qperf::{self, Test};
use crate::results::Metric;
use crate::tables::mobile::Preset;
use crate::tables::{freebsd, gigabit, handshake, kernel, mobile};
use std::rc::Rc;

impl Plan {
    pub(super) fn gigabit(&mut self) {
        let metric = gigabit::startup();
        let what = metric.key.clone();
        let rounds = if self.full { self.rounds } else { 1 };
        self.times(
            rounds,
            "gigabit-2018, start-up",
            &what,
            1.5,
            move |bench, contestant| {
                let took = bench.start(contestant, &gigabit::LINK)?;
                bench.report.record(contestant.id(), &metric, took);
                Ok(())
            },
        );
        self.gigabit_transfer(gigabit::NAME, Direction::Up, 1, gigabit::iperf());
        for (test, metric) in [
            (Test::TcpBandwidth, gigabit::bandwidth()),
            (Test::TcpLatency, gigabit::latency()),
        ] {
            let (label, what) = (format!("gigabit-2018, {}", test.name()), metric.key.clone());
            let (rounds, seconds) = (self.fewer(), self.table_seconds());
            self.times(
                rounds,
                &label,
                &what,
                f64::from(seconds) + 0.2,
                move |bench, contestant| {
                    let running = bench.running(contestant, &gigabit::LINK)?;
                    let found =
                        qperf::measure(&running.session, &mut running.servers, test, seconds)?;
                    bench.report.record(contestant.id(), &metric, found);
                    Ok(())
                },
            );
        }
    }

    /// Measures TCP on the link of a table with 1 Gbit/s.
    fn gigabit_transfer(
        &mut self,
        table: &str,
        direction: Direction,
        streams: u32,
        metric: Metric,
    ) {
        let flow = Flow {
            direction,
            streams,
            seconds: self.table_seconds(),
        };
        let label = format!("{table}, iperf3 {}", direction.name());
        let what = metric.key.clone();
        let (rounds, estimate) = (self.fewer(), f64::from(flow.seconds) + 0.3);
        self.times(rounds, &label, &what, estimate, move |bench, contestant| {
            let running = bench.running(contestant, &gigabit::LINK)?;
            let found = iperf::transfer(&running.session, &mut running.servers, flow)?;
            bench.report.record(contestant.id(), &metric, found.rate());
            Ok(())
        });
    }

    pub(super) fn kernel(&mut self) {
        let all = std::mem::take(&mut self.contestants);
        let takes_part = |one: &&Rc<dyn Contestant>| kernel::CONTESTANTS.contains(&one.id());
        self.contestants = all.iter().filter(takes_part).cloned().collect();
        for (direction, metric) in [
            (Direction::Up, kernel::up()),
            (Direction::Down, kernel::down()),
        ] {
            self.gigabit_transfer(kernel::NAME, direction, 4, metric);
        }
        self.contestants = all;
    }

    pub(super) fn freebsd(&mut self) {
        let rounds = self.fewer();
        // One second is too short: the emulated processor would do too little to count.
        let seconds = self.table_seconds().max(2);
        let name = freebsd::NAME;
        self.step(&format!("{name}, guest"), name, 15.0, |bench| {
            bench.laboratory = freebsd::Laboratory::start(&mut bench.report);
            Ok(())
        });
        for round in 1..=rounds {
            let label = format!("round {round}/{rounds}, {name}");
            let estimate = 4.0 * f64::from(seconds + 1);
            self.step(&label, name, estimate, move |bench| {
                if let Some(laboratory) = &mut bench.laboratory {
                    laboratory.round(seconds, &mut bench.report);
                }
                if round == rounds {
                    bench.laboratory = None;
                }
                Ok(())
            });
        }
    }

    pub(super) fn handshake(&mut self) {
        for round in 1..=self.rounds {
            let label = format!("round {round}/{}, {}", self.rounds, handshake::NAME);
            self.step(&label, handshake::NAME, handshake::SECONDS, |bench| {
                handshake::measure(&mut bench.report);
                Ok(())
            });
        }
    }

    pub(super) fn mobile(&mut self) {
        let rounds = if self.full { self.rounds } else { 1 };
        for round in 1..=rounds {
            for preset in Preset::ALL {
                let label = format!(
                    "round {round}/{rounds}, {}, {}",
                    mobile::NAME,
                    preset.name()
                );
                self.step(&label, mobile::NAME, 20.0, move |bench| {
                    let contestants: Vec<&dyn Contestant> =
                        bench.contestants.iter().map(|one| &**one).collect();
                    mobile::measure(preset, &contestants, 3, round.into(), &mut bench.report);
                    Ok(())
                });
            }
        }
    }
}
