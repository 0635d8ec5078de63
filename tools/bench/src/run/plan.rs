//! Plans the measurements and their order.

mod many_cores;
mod published;

use super::{Bench, Section};
use crate::contestant::Contestant;
use crate::measure::cost::{Meter, SystemCalls};
use crate::measure::iperf::{self, Direction, Flow};
use crate::measure::metrics::{self, LoadSubject, State};
use crate::measure::packets::{self, SendMode};
use crate::measure::qperf::{self, Test};
use crate::measure::{commands, connections, flood, latency, load, memory, peers, stages};
use crate::pair::Link;
use crate::tables::gigabit;
use std::rc::Rc;
use std::time::Duration;
use taupe_lab::error::{Error, Result};
use taupe_lab::peers::Implementation;
use taupe_lab::process;

/// Round trips of one idle measurement.
const ROUND_TRIPS: usize = 3_000;

/// Packet sizes in bytes.
const SIZES: [u16; 3] = [64, 512, 1420];

/// Runs of each command, at least.
const COMMAND_ROUNDS: u32 = 20;

type Work = Box<dyn FnOnce(&mut Bench) -> Result<()>>;

/// A measurement, or a preparation for others.
pub(super) struct Step {
    /// Description for the progress display.
    pub(super) label: String,
    /// The missing figures if the step fails: the key of a metric, or a prefix of several.
    pub(super) what: String,
    /// The contestant; empty if the step belongs to none.
    pub(super) contestant: String,
    /// Place of its group in [`Plan::groups`].
    pub(super) group: usize,
    /// Expected duration.
    pub(super) estimate: Duration,
    pub(super) work: Work,
}

/// Successive steps that are measured in the same part of a run, such as one step of each
/// contestant.
pub(super) struct StepGroup {
    /// The group's name in the files of the parts.
    pub(super) label: String,
    /// True for preparations, which every part repeats.
    pub(super) is_repeated: bool,
}

/// All steps of a run.
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) groups: Vec<StepGroup>,
    rounds: u32,
    seconds: u32,
    full: bool,
    contestants: Vec<Rc<dyn Contestant>>,
}

impl Plan {
    /// Plans the steps for the options, with the contestants that can run here.
    pub(super) fn new(bench: &Bench) -> Self {
        let options = &bench.options;
        let mut plan = Self {
            steps: Vec::new(),
            groups: Vec::new(),
            rounds: options.rounds,
            seconds: options.seconds,
            full: options.full(),
            contestants: bench.contestants.clone(),
        };
        if options.has(Section::Startup) {
            plan.startup();
        }
        if options.has(Section::Throughput) {
            plan.throughput(&options.streams);
        }
        if options.has(Section::Latency) {
            plan.latency();
        }
        if options.has(Section::Beside) {
            plan.beside(&options.link);
        }
        if options.has(Section::Packets) {
            plan.packets();
        }
        if options.has(Section::Stages) {
            plan.stages();
        }
        if options.has(Section::Flood) {
            plan.flood();
        }
        if options.has(Section::MemorySlope) {
            plan.memory_slope();
        }
        if options.has(Section::Peers) {
            plan.peers(&options.peers);
        }
        plan.stop_all(&options.link);
        if options.has(Section::Commands) {
            plan.commands();
        }
        if options.has(Section::Gateway) {
            plan.gateway(&options.clients);
        }
        if options.has(Section::Cores) {
            plan.cores(&options.workers);
        }
        if options.has(Section::Gigabit2018) {
            plan.gigabit();
        }
        if options.has(Section::UserspaceVsKernel2021) {
            plan.kernel();
        }
        plan.stop_all(&gigabit::LINK);
        if options.has(Section::Freebsd2022) {
            plan.freebsd();
        }
        if options.has(Section::HandshakePq) {
            plan.handshake();
        }
        if options.has(Section::Mobile) {
            plan.mobile();
        }
        plan
    }

    /// Begins a group of steps.
    fn begin_group(&mut self, label: &str, is_repeated: bool) {
        self.groups.push(StepGroup {
            label: label.to_owned(),
            is_repeated,
        });
    }

    /// Adds a group with a step for each contestant, in the order of tables.
    fn each(
        &mut self,
        label: &str,
        what: &str,
        seconds: f64,
        work: impl Fn(&mut Bench, &Rc<dyn Contestant>) -> Result<()> + Clone + 'static,
    ) {
        self.begin_group(label, false);
        self.each_in_group(label, what, seconds, work);
    }

    /// Adds a step for each contestant to the last group.
    fn each_in_group(
        &mut self,
        label: &str,
        what: &str,
        seconds: f64,
        work: impl Fn(&mut Bench, &Rc<dyn Contestant>) -> Result<()> + Clone + 'static,
    ) {
        let group = self.groups.len().saturating_sub(1);
        for contestant in &self.contestants {
            let (work, contestant) = (work.clone(), Rc::clone(contestant));
            self.steps.push(Step {
                label: format!("{label}: {}", contestant.id()),
                what: what.to_owned(),
                contestant: contestant.id().to_owned(),
                group,
                estimate: Duration::from_secs_f64(seconds),
                work: Box::new(move |bench| work(bench, &contestant)),
            });
        }
    }

    /// Returns the number of rounds for everything but TCP throughput: at most two in a short run.
    fn fewer(&self) -> u32 {
        if self.full {
            self.rounds
        } else {
            self.rounds.min(2)
        }
    }

    /// Returns the seconds for a measurement of throughput in named tables.
    fn table_seconds(&self) -> u32 {
        if self.full { self.seconds } else { 1 }
    }

    /// Adds these steps to every round.
    fn rounds(
        &mut self,
        label: &str,
        what: &str,
        seconds: f64,
        work: impl Fn(&mut Bench, &Rc<dyn Contestant>) -> Result<()> + Clone + 'static,
    ) {
        self.times(self.rounds, label, what, seconds, work);
    }

    /// Adds these steps `rounds` times.
    fn times(
        &mut self,
        rounds: u32,
        label: &str,
        what: &str,
        seconds: f64,
        work: impl Fn(&mut Bench, &Rc<dyn Contestant>) -> Result<()> + Clone + 'static,
    ) {
        for round in 1..=rounds {
            let label = format!("round {round}/{rounds}, {label}");
            self.each(&label, what, seconds, work.clone());
        }
    }

    fn startup(&mut self) {
        let metric = metrics::startup();
        let what = metric.key.clone();
        self.rounds("start-up", &what, 1.5, move |bench, contestant| {
            let took = bench.start(contestant, &bench.options.link.clone())?;
            bench.report.record(contestant.id(), &metric, took);
            Ok(())
        });
    }

    fn throughput(&mut self, streams: &[u32]) {
        let directions = match self.full {
            true => &Direction::ALL[..],
            false => &[Direction::Up, Direction::Down],
        };
        let seconds = self.seconds;
        for round in 1..=self.rounds {
            for &streams in streams {
                for &direction in directions {
                    let flow = Flow {
                        direction,
                        streams,
                        seconds,
                    };
                    let what = format!("tcp/{streams}/{}", direction.name());
                    let label = format!("round {round}/{}, {what}", self.rounds);
                    let estimate = f64::from(seconds) + 0.3;
                    self.each(&label, &what, estimate, move |bench, contestant| {
                        let running = bench.running(contestant, &bench.options.link.clone())?;
                        let (session, servers) = (&running.session, &mut running.servers);
                        let (found, load) = load::transfer(session, servers, flow)?;
                        bench.record(contestant, metrics::transfer(flow, &found));
                        // The detailed cost is measured with one stream from client to server.
                        if streams == 1 && direction == Direction::Up {
                            bench.record(contestant, metrics::cost(&load.usage, found.bytes()));
                        }
                        bench.record_load(contestant, &LoadSubject::of_flow(flow), &load);
                        Ok(())
                    });
                }
            }
        }
        // This step belongs to the group of a transfer, because it measures memory after traffic.
        self.each_in_group("memory", "memory", 0.01, |bench, contestant| {
            let running = bench.running(contestant, &bench.options.link.clone())?;
            if let Some(found) = memory::measure(&running.session)? {
                bench.record(contestant, metrics::memory(&found));
            }
            Ok(())
        });
        self.system_calls();
    }

    /// Counting system calls slows them down, so a separate transfer counts them.
    fn system_calls(&mut self) {
        if process::find_program("perf").is_none() {
            let what = "cost/syscalls";
            return self.step("system calls", what, 0.0, |_| {
                Err(Error::unmet(
                    "perf is not installed, so system calls cannot be counted",
                ))
            });
        }
        let flow = Flow {
            direction: Direction::Up,
            streams: 1,
            seconds: 1,
        };
        let rounds = if self.full { self.rounds } else { 1 };
        for round in 1..=rounds {
            let label = format!("round {round}/{rounds}, system calls");
            self.each(&label, "cost/syscalls", 1.8, move |bench, contestant| {
                let running = bench.running(contestant, &bench.options.link.clone())?;
                let meter = Meter::start(&running.session, SystemCalls::Count)?;
                let found = iperf::transfer(&running.session, &mut running.servers, flow)?;
                let used = meter.stop()?;
                bench.record(contestant, metrics::system_calls(&used, found.bytes()));
                Ok(())
            });
        }
    }

    fn latency(&mut self) {
        for state in [State::Idle, State::Loaded] {
            let estimate = match state {
                State::Idle => 0.4,
                State::Loaded => 2.4,
            };
            let label = state.key();
            let rounds = match state {
                State::Idle => self.rounds,
                State::Loaded => self.fewer(),
            };
            self.times(rounds, label, label, estimate, move |bench, contestant| {
                let running = bench.running(contestant, &bench.options.link.clone())?;
                let found = match state {
                    State::Idle => latency::idle(&running.session, ROUND_TRIPS)?,
                    State::Loaded => {
                        latency::loaded(&running.session, &mut running.servers, 1, 1)?.round_trips
                    }
                };
                bench.record(contestant, metrics::latency(state, &found));
                bench.record_round_trips(contestant, state.key(), found);
                Ok(())
            });
        }
        self.rounds("connections", "connect", 0.1, |bench, contestant| {
            let running = bench.running(contestant, &bench.options.link.clone())?;
            let found = connections::measure(&running.session)?;
            bench.record(contestant, metrics::connections(&found));
            Ok(())
        });
        let tests = match self.full {
            true => &[Test::TcpLatency, Test::UdpLatency, Test::TcpBandwidth][..],
            false => &[Test::TcpLatency],
        };
        for &test in tests {
            let metric = metrics::qperf(test);
            let (label, what) = (format!("qperf {}", test.name()), metric.key.clone());
            let rounds = self.fewer();
            self.times(rounds, &label, &what, 1.2, move |bench, contestant| {
                let running = bench.running(contestant, &bench.options.link.clone())?;
                let found = qperf::measure(&running.session, &mut running.servers, test, 1)?;
                bench.report.record(contestant.id(), &metric, found);
                Ok(())
            });
        }
    }

    fn packets(&mut self) {
        for (size, mode) in SIZES
            .into_iter()
            .flat_map(|size| SendMode::ALL.map(|mode| (size, mode)))
        {
            let (label, what) = match mode {
                SendMode::Each => (format!("packets of {size} B"), format!("udp/{size}")),
                SendMode::Segmented => (
                    format!("packets of {size} B, cut by the kernel"),
                    format!("udp/{size}/gso"),
                ),
            };
            self.rounds(&label, &what, 4.5, move |bench, contestant| {
                let running = bench.running(contestant, &bench.options.link.clone())?;
                let found = packets::measure(&running.session, size, mode)?;
                bench.record(contestant, metrics::packets(size, mode, &found));
                Ok(())
            });
        }
    }

    fn stages(&mut self) {
        let seconds = self.seconds;
        let estimate = f64::from(seconds) + 1.0;
        self.rounds("stages", "stages", estimate, move |bench, contestant| {
            let running = bench.running(contestant, &bench.options.link.clone())?;
            let found = stages::measure(&running.session, &mut running.servers, seconds)?;
            if let Some(found) = found {
                bench.record(contestant, metrics::stages(&found));
            }
            Ok(())
        });
    }

    fn commands(&mut self) {
        let rounds = self.rounds.max(COMMAND_ROUNDS);
        let estimate = f64::from(rounds) * 3.0;
        self.step("commands", "command", estimate, move |bench| {
            let found = commands::measure(rounds)?;
            for (metric, sample) in metrics::commands(&found) {
                bench.report.record("taupe", &metric, sample);
            }
            Ok(())
        });
    }

    fn flood(&mut self) {
        for direction in [Direction::Up, Direction::Down] {
            let flow = Flow {
                direction,
                streams: 1,
                seconds: self.seconds,
            };
            let label = format!("flood, TCP {}", direction.name());
            let estimate = 3.0 * (f64::from(self.seconds) + 0.6) + 0.5;
            self.rounds(&label, "flood", estimate, move |bench, contestant| {
                let running = bench.running(contestant, &bench.options.link.clone())?;
                let (session, servers) = (&running.session, &mut running.servers);
                if let Some(found) = flood::measure(&**contestant, session, servers, flow) {
                    bench.record(contestant, metrics::flood(direction, &found?));
                }
                Ok(())
            });
        }
    }

    /// Comes last on these machines, because the peers are not removed.
    fn peers(&mut self, counts: &[usize]) {
        let mut there = 1;
        for &count in counts {
            let more = count.saturating_sub(there);
            there = there.max(count);
            let label = format!("{count} peers");
            self.each(
                &label,
                &format!("peers/{count}"),
                2.0,
                move |bench, contestant| {
                    if count > contestant.max_peers() {
                        return Ok(());
                    }
                    let running = bench.running(contestant, &bench.options.link.clone())?;
                    let found =
                        peers::add(&**contestant, &running.session, &mut running.servers, more);
                    if let Some(found) = found.transpose()? {
                        bench.record(contestant, metrics::peers(count, &found));
                    }
                    Ok(())
                },
            );
        }
        if self.full && there > 1 {
            self.peers_in_turn(there);
        }
    }

    /// Alternates between the configurations, because small differences matter here.
    fn peers_in_turn(&mut self, there: usize) {
        let rounds = self.rounds.min(5);
        let what = format!("peers/{there}/tcp");
        self.times(rounds, &what, &what, 8.0, move |bench, contestant| {
            let count = there.min(contestant.max_peers());
            let running = bench.running(contestant, &bench.options.link.clone())?;
            let (session, servers) = (&running.session, &mut running.servers);
            let found = peers::in_turn(&**contestant, session, servers, count - 1);
            if let Some([with, without]) = found.transpose()? {
                let samples = [(count, &with), (1, &without)];
                let samples = samples.map(|(count, found)| metrics::peers_transfer(count, found));
                bench.record(contestant, samples.into());
            }
            Ok(())
        });
    }

    /// Measures Taupe alone; this is no comparison.
    fn memory_slope(&mut self) {
        let all = std::mem::take(&mut self.contestants);
        let own = |one: &&Rc<dyn Contestant>| one.id() == Implementation::Taupe.name();
        self.contestants = all.iter().filter(own).cloned().collect();
        self.each(
            "memory slope",
            "memory/slope",
            665.0,
            |bench, contestant| {
                let running = bench.running(contestant, &bench.options.link.clone())?;
                let (warm_up, seconds) = (Duration::from_secs(60), 660);
                let found =
                    memory::growth(&running.session, &mut running.servers, warm_up, seconds)?;
                bench.record(contestant, metrics::growth(&found));
                Ok(())
            },
        );
        self.contestants = all;
    }

    /// Adds a step that does not belong to one contestant.
    fn step(
        &mut self,
        label: &str,
        what: &str,
        seconds: f64,
        work: impl FnOnce(&mut Bench) -> Result<()> + 'static,
    ) {
        self.begin_group(label, false);
        self.step_in_group(label, what, seconds, work);
    }

    fn step_in_group(
        &mut self,
        label: &str,
        what: &str,
        seconds: f64,
        work: impl FnOnce(&mut Bench) -> Result<()> + 'static,
    ) {
        self.steps.push(Step {
            label: label.to_owned(),
            what: what.to_owned(),
            contestant: String::new(),
            group: self.groups.len().saturating_sub(1),
            estimate: Duration::from_secs_f64(seconds),
            work: Box::new(work),
        });
    }

    /// Stops all contestants on this kind of link; no later step needs them.
    fn stop_all(&mut self, link: &Link) {
        let (link, label) = (link.clone(), "stopping the contestants");
        self.begin_group(label, true);
        self.step_in_group(label, "stop", 0.5, move |bench| {
            bench.stop_all(&link);
            Ok(())
        });
    }
}
