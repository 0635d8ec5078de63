//! Counts system calls with perf.
//!
//! `perf stat` counts a tracepoint in the kernel's system call path. This slows every system call
//! of the machine, so it runs separately from measurements of speed; strace would even stop the
//! program at each call.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::Signal;
use std::fs::File;
use std::io::{Read, Write};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use taupe_lab::error::{Error, Result};
use taupe_lab::process::Process;
use taupe_lab::sandbox;

const EVENT: &str = "raw_syscalls:sys_enter";

/// Time limit for a command to perf.
const PATIENCE: Duration = Duration::from_secs(10);

/// A perf process that counts.
#[derive(Debug)]
pub(super) struct Counter {
    perf: Process,
    control: File,
    acknowledgement: File,
}

impl Counter {
    /// Prepares to count the calls of the whole machine.
    pub(super) fn of_machine() -> Result<Self> {
        Self::open(&["--all-cpus"])
    }

    /// Prepares to count the calls of processes and the threads that they start.
    pub(super) fn of_processes(processes: &[u32]) -> Result<Self> {
        let ids: Vec<_> = processes.iter().map(u32::to_string).collect();
        Self::open(&["--pid", &ids.join(",")])
    }

    /// Prepares to count the calls of threads.
    pub(super) fn of_threads(threads: &[u32]) -> Result<Self> {
        let ids: Vec<_> = threads.iter().map(u32::to_string).collect();
        Self::open(&["--tid", &ids.join(",")])
    }

    /// Starts counting.
    pub(super) fn enable(&mut self) -> Result<()> {
        self.tell("enable")
    }

    /// Stops counting.
    pub(super) fn disable(&mut self) -> Result<()> {
        self.tell("disable")
    }

    /// Returns the count.
    pub(super) fn read(mut self) -> Result<u64> {
        self.perf.signal(Signal::INT)?;
        self.perf.wait(PATIENCE)?;
        parse(&self.perf.output())
    }

    fn open(whose: &[&str]) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let [control, acknowledgement] = ["control", "acknowledgement"]
            .map(|end| sandbox::scratch(&format!("perf-{number}-{end}")));
        let pipe = format!("fifo:{},{}", control.display(), acknowledgement.display());
        let open = |path: &std::path::Path| {
            let what = path.display().to_string();
            mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
                .map_err(Error::io(&*what))?;
            // Opened for both directions, so that neither end blocks until the other one opens it.
            let mut options = File::options();
            let file = options.read(true).write(true).open(path);
            file.map_err(Error::io(what))
        };
        let (control, acknowledgement) = (open(&control)?, open(&acknowledgement)?);
        let mut command = Command::new("perf");
        command
            .args(["stat", "--field-separator", ",", "--event", EVENT])
            .args(["--delay", "-1", "--control", &pipe])
            .args(whose)
            .env("LC_ALL", "C");
        let mut counter = Self {
            perf: Process::start("lab", command)?,
            control,
            acknowledgement,
        };
        // An answer means that perf is running and has opened its counters.
        counter.tell("ping")?;
        Ok(counter)
    }

    /// Sends perf a command, and waits for its acknowledgement.
    fn tell(&mut self, what: &str) -> Result<()> {
        let failed = || Error::io("perf's control");
        self.control
            .write_all(format!("{what}\n").as_bytes())
            .map_err(failed())?;
        let begin = Instant::now();
        let moment = Timespec {
            tv_sec: 0,
            tv_nsec: 20_000_000,
        };
        loop {
            let mut events = [PollFd::new(&self.acknowledgement, PollFlags::IN)];
            if poll(&mut events, Some(&moment)).map_err(Error::io("perf's control"))? > 0 {
                let mut result = [0; 16];
                let length = self.acknowledgement.read(&mut result).map_err(failed())?;
                if result
                    .get(..length)
                    .is_some_and(|result| result.starts_with(b"ack"))
                {
                    return Ok(());
                }
            }
            if !self.perf.runs()? {
                return Err(Error::unmet(format!(
                    "perf cannot count system calls here: {}",
                    self.perf
                        .output()
                        .split_whitespace()
                        .collect::<Vec<_>>()
                        .join(" ")
                )));
            }
            if begin.elapsed() > PATIENCE {
                return Err(Error::Timeout {
                    what: format!("perf to {what}"),
                    limit: PATIENCE,
                });
            }
        }
    }
}

/// Parses the output of `perf stat -x,`.
fn parse(output: &str) -> Result<u64> {
    let malformed = |why: String| Error::Malformed {
        what: "the count of perf".to_owned(),
        why,
    };
    // The fields: count, unit, event, counting time in ns, and share of the time in which it
    // counted.
    let counts = output.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        match fields[..] {
            [count, _, EVENT, time, share, ..] => Some((count, time, share)),
            _ => None,
        }
    });
    let counts: Vec<_> = counts.collect();
    let [(count, _, share)] = counts[..] else {
        return Err(malformed(format!("it has no line of {EVENT}: {output}")));
    };
    if share != "100.00" {
        return Err(malformed(format!("it counted {share} % of the time only")));
    }
    match count {
        // perf's output for programs that did not run meanwhile.
        "<not counted>" => Ok(0),
        count => count.parse().map_err(|_| malformed(format!("`{count}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const WHOLE: &str = "Events disabled\nEvents enabled\nEvents disabled\n\
        241433,,raw_syscalls:sys_enter,2024738707,100.00,,\n";

    #[test]
    fn recorded_counts() -> Result<()> {
        assert_eq!(parse(WHOLE)?, 241_433);
        let idle = "<not counted>,,raw_syscalls:sys_enter,0,100.00,,\n";
        assert_eq!(parse(idle)?, 0);
        assert!(parse(&WHOLE.replace("100.00", "50.00")).is_err());
        assert!(parse(&WHOLE.repeat(2)).is_err());
        assert!(parse("event syntax error: 'raw_syscalls:sys_enter'").is_err());
        Ok(())
    }

    #[test]
    fn truncated_counts_are_refused() {
        for end in 0..WHOLE.len() {
            assert!(
                matches!(parse(&WHOLE[..end]), Err(_) | Ok(241_433)),
                "cut at {end}"
            );
        }
    }

    proptest! {
        #[test]
        fn malformed_counts_are_refused(text in "\\PC*", count in "[-0-9<>a-z ]{0,12}") {
            prop_assert!(parse(&text).is_err());
            if let Ok(found) = parse(&format!("{count},,{EVENT},1,100.00,,")) {
                prop_assert_eq!(found.to_string().parse::<u64>().ok(), count.parse().ok());
            }
        }
    }
}
