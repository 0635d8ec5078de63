//! Cost of a measurement to the machine: processor time, context switches, system calls.

use super::proc::{self, MachineCounters, ProcessCounters};
use super::system_calls::Counter;
use crate::session::Session;
use std::time::Instant;
use taupe_lab::error::Result;
use taupe_lab::process::Process;

/// Counting of system calls. It slows every system call down, so use it in a separate transfer
/// whose speed and processor time are not reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SystemCalls {
    /// Counted by perf, which needs a tracepoint of the kernel.
    Count,
    /// Not counted.
    Ignore,
}

/// Measures the cost between [`start`](Self::start) and [`stop`](Self::stop).
///
/// The machine's figures include all of its work: the tunnel, iperf3 on both sides, the kernel's
/// networking, and all other programs. The programs' figures are those of the tunnel only, on both
/// sides together; the kernel's work for them in interrupts is part of the machine's figures.
#[derive(Debug)]
pub struct Meter {
    processes: Vec<u32>,
    counters: Option<Counters>,
    begin: Instant,
    machine: MachineCounters,
    programs: Vec<ProcessCounters>,
}

#[derive(Debug)]
struct Counters {
    machine: Counter,
    programs: Option<Counter>,
    upwards: Option<Counter>,
}

impl Meter {
    /// Starts measuring.
    ///
    /// # Errors
    ///
    /// [`Error::Io`](taupe_lab::Error::Io) if a program of the tunnel has ended; an error if system
    /// calls shall be counted and cannot.
    pub fn start(session: &Session, system_calls: SystemCalls) -> Result<Self> {
        let counters = match system_calls {
            SystemCalls::Count => Some(Counters::start(session)?),
            SystemCalls::Ignore => None,
        };
        Self::begin(session.processes(), counters)
    }

    /// Starts measuring. `processes` are the programs of the tunnel.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn of_programs(processes: Vec<u32>) -> Result<Self> {
        Self::begin(processes, None)
    }

    fn begin(processes: Vec<u32>, counters: Option<Counters>) -> Result<Self> {
        let programs = processes
            .iter()
            .map(|&process| ProcessCounters::read(process));
        Ok(Self {
            programs: programs.collect::<Result<_>>()?,
            machine: MachineCounters::read()?,
            begin: Instant::now(),
            processes,
            counters,
        })
    }

    /// Stops measuring.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn stop(self) -> Result<Usage> {
        let machine = MachineCounters::read()?;
        let seconds = self.begin.elapsed().as_secs_f64();
        let mut programs = Programs::default();
        for (&process, before) in self.processes.iter().zip(&self.programs) {
            let after = ProcessCounters::read(process)?;
            programs.user += in_seconds(before.user, after.user);
            programs.system += in_seconds(before.system, after.system);
            programs.switches += after.switches_since(before);
        }
        let system_calls = self.counters.map(Counters::stop).transpose()?;
        let before = self.machine;
        Ok(Usage {
            seconds,
            user: in_seconds(before.user, machine.user),
            system: in_seconds(before.system, machine.system),
            idle: in_seconds(before.idle, machine.idle),
            switches: machine.switches.saturating_sub(before.switches),
            programs: (!self.processes.is_empty()).then_some(programs),
            system_calls,
        })
    }
}

impl Counters {
    fn start(session: &Session) -> Result<Self> {
        let mut machine = Counter::of_machine()?;
        let some = |ids: Vec<u32>| Some(ids).filter(|ids| !ids.is_empty());
        let programs = some(session.processes());
        let mut programs = programs
            .map(|ids| Counter::of_processes(&ids))
            .transpose()?;
        let upwards = some(outbound_threads(session)?);
        let mut upwards = upwards.map(|ids| Counter::of_threads(&ids)).transpose()?;
        // The machine's counter runs longest, so that it includes all of the programs' calls.
        machine.enable()?;
        programs.as_mut().map_or(Ok(()), Counter::enable)?;
        upwards.as_mut().map_or(Ok(()), Counter::enable)?;
        Ok(Self {
            machine,
            programs,
            upwards,
        })
    }

    fn stop(self) -> Result<Calls> {
        let Self {
            mut machine,
            mut programs,
            mut upwards,
        } = self;
        upwards.as_mut().map_or(Ok(()), Counter::disable)?;
        programs.as_mut().map_or(Ok(()), Counter::disable)?;
        machine.disable()?;
        Ok(Calls {
            machine: machine.read()?,
            programs: programs.map(Counter::read).transpose()?,
            upwards: upwards.map(Counter::read).transpose()?,
        })
    }
}

/// Returns the threads that process upstream traffic, found by Taupe's thread names: `out` at the
/// client, `in4` and `in6` at the server.
fn outbound_threads(session: &Session) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for (end, prefix) in [(&session.client, "out"), (&session.server, "in")] {
        for process in end.processes.iter().flat_map(Process::all_ids) {
            let threads = proc::threads(process)?.into_iter();
            let named = threads.filter(|(_, name)| name.starts_with(prefix));
            found.extend(named.map(|(id, _)| id));
        }
    }
    Ok(found)
}

/// Cost of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Usage {
    /// Duration of the measurement in seconds.
    pub seconds: f64,
    /// Seconds of processor time in programs, of the whole machine.
    pub user: f64,
    /// Seconds in the kernel, including interrupts.
    pub system: f64,
    /// Idle seconds.
    pub idle: f64,
    /// Context switches of the whole machine.
    pub switches: u64,
    /// Cost of the tunnel's programs; `None` without any.
    pub programs: Option<Programs>,
    /// System calls, if they were counted.
    pub system_calls: Option<Calls>,
}

/// Cost of a tunnel's programs, both sides together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Programs {
    /// Seconds of processor time in the programs.
    pub user: f64,
    /// Seconds in the kernel on their behalf.
    pub system: f64,
    /// Context switches of their threads.
    pub switches: u64,
}

/// Numbers of system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calls {
    /// Calls of the whole machine.
    pub machine: u64,
    /// Calls of the tunnel's programs; `None` without any.
    pub programs: Option<u64>,
    /// Calls of the threads that process upstream traffic; `None` if these are unknown.
    pub upwards: Option<u64>,
}

impl Usage {
    /// Returns the number of cores of the whole machine that were busy on average; `None` for a
    /// measurement without a duration.
    pub fn busy_cores(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| (self.user + self.system) / self.seconds)
    }

    /// Returns the shares of user, system and idle time, as vmstat shows them; `None` for less than
    /// a tick.
    pub fn shares(&self) -> Option<[f64; 3]> {
        let all = self.user + self.system + self.idle;
        (all > 0.0).then(|| [self.user, self.system, self.idle].map(|part| part / all))
    }
}

/// Returns a difference of ticks in seconds.
fn in_seconds(before: u64, after: u64) -> f64 {
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    after.saturating_sub(before) as f64 / per_second as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_processor_time() {
        let mut usage = Usage {
            seconds: 2.0,
            user: 1.0,
            system: 2.0,
            idle: 1.0,
            switches: 0,
            programs: None,
            system_calls: None,
        };
        assert_eq!(usage.shares(), Some([0.25, 0.5, 0.25]));
        assert_eq!(usage.busy_cores(), Some(1.5));
        (usage.user, usage.system, usage.idle) = (0.0, 0.0, 0.0);
        assert_eq!(usage.shares(), None);
        usage.seconds = 0.0;
        assert_eq!(usage.busy_cores(), None);
    }
}
