//! Reads the kernel's counters from `/proc`.
//!
//! The machine's processor time is counted in ticks: a whole tick is attributed to the code that
//! runs at its end. The sum of a process's time is exact; only its division into user and system
//! time follows the ticks.

use std::collections::BTreeMap;
use std::fs;
use taupe_lab::error::{Error, Result};

/// Counters of the machine since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MachineCounters {
    /// Ticks in programs, including nice ones and guests.
    pub(super) user: u64,
    /// Ticks in the kernel: for programs, and for hard and soft interrupts.
    pub(super) system: u64,
    /// Ticks without work, or waiting for a disk. Time that a hypervisor gave to others (steal) is
    /// not included anywhere.
    pub(super) idle: u64,
    /// Context switches.
    pub(super) switches: u64,
}

impl MachineCounters {
    pub(super) fn read() -> Result<Self> {
        let path = "/proc/stat";
        machine(&fs::read_to_string(path).map_err(Error::io(path))?)
    }
}

/// Parses `/proc/stat`.
fn machine(text: &str) -> Result<MachineCounters> {
    let line = |name: &str| {
        let mut lines = text.lines();
        let values = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        values.ok_or_else(|| malformed("/proc/stat", &format!("it has no line `{name}`")))
    };
    let ticks = numbers("/proc/stat", line("cpu")?)?;
    let [user, nice, system, idle, iowait, irq, softirq, ..] = ticks[..] else {
        return Err(malformed("/proc/stat", "too few times"));
    };
    let [switches] = numbers("/proc/stat", line("ctxt")?)?[..] else {
        return Err(malformed("/proc/stat", "more than one number of switches"));
    };
    Ok(MachineCounters {
        user: user.saturating_add(nice),
        system: system.saturating_add(irq).saturating_add(softirq),
        idle: idle.saturating_add(iowait),
        switches,
    })
}

/// Counters of a process since its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProcessCounters {
    /// Ticks in the program, over all threads, including ended ones.
    pub(super) user: u64,
    /// Ticks in the kernel, likewise.
    pub(super) system: u64,
    /// Context switches by thread.
    pub(super) switches: BTreeMap<u32, u64>,
}

impl ProcessCounters {
    pub(super) fn read(process: u32) -> Result<Self> {
        let path = format!("/proc/{process}/stat");
        let text = fs::read_to_string(&path).map_err(Error::io(&*path))?;
        let (user, system) = ticks(&path, &text)?;
        let path = format!("/proc/{process}/task");
        let mut switches = BTreeMap::new();
        for entry in fs::read_dir(&path).map_err(Error::io(&*path))? {
            let entry = entry.map_err(Error::io(&*path))?;
            let thread = entry.file_name().to_string_lossy().parse();
            let status = entry.path().join("status");
            // A thread may end meanwhile.
            if let (Ok(thread), Ok(text)) = (thread, fs::read_to_string(&status)) {
                let status = status.display().to_string();
                let own = value(&status, &text, "voluntary_ctxt_switches", "")?;
                let forced = value(&status, &text, "nonvoluntary_ctxt_switches", "")?;
                switches.insert(thread, own.saturating_add(forced));
            }
        }
        Ok(Self {
            user,
            system,
            switches,
        })
    }

    /// Returns the number of switches since `earlier`. Switches of threads that have ended
    /// meanwhile are not included.
    pub(super) fn switches_since(&self, earlier: &Self) -> u64 {
        let each = self.switches.iter().map(|(thread, now)| {
            now.saturating_sub(earlier.switches.get(thread).copied().unwrap_or(0))
        });
        each.sum()
    }
}

/// Returns the ids and names of a process's threads.
pub(super) fn threads(process: u32) -> Result<Vec<(u32, String)>> {
    let path = format!("/proc/{process}/task");
    let mut found = Vec::new();
    for entry in fs::read_dir(&path).map_err(Error::io(&*path))? {
        let entry = entry.map_err(Error::io(&*path))?;
        let thread = entry.file_name().to_string_lossy().parse();
        // A thread may end meanwhile.
        if let (Ok(thread), Ok(name)) = (thread, fs::read_to_string(entry.path().join("comm"))) {
            found.push((thread, name.trim_end().to_owned()));
        }
    }
    Ok(found)
}

/// Returns the user and system ticks of one thread.
pub(super) fn thread_ticks(process: u32, thread: u32) -> Result<(u64, u64)> {
    let path = format!("/proc/{process}/task/{thread}/stat");
    ticks(
        &path,
        &fs::read_to_string(&path).map_err(Error::io(&*path))?,
    )
}

/// Parses user and system ticks from `/proc/PID/stat`.
fn ticks(path: &str, text: &str) -> Result<(u64, u64)> {
    // The program's name, in parentheses, may itself contain spaces and parentheses.
    let rest = text.rsplit_once(')').map(|(_, rest)| rest);
    // The next field is the state, the third of proc(5).
    let mut fields = rest
        .unwrap_or_default()
        .split_ascii_whitespace()
        .skip(14 - 3);
    let mut next = || fields.next()?.parse().ok();
    match (next(), next()) {
        (Some(user), Some(system)) => Ok((user, system)),
        _ => Err(malformed(path, "it has no times")),
    }
}

/// Returns the current and the peak resident set of a process in bytes.
pub(super) fn resident(process: u32) -> Result<(u64, u64)> {
    let path = format!("/proc/{process}/status");
    let text = fs::read_to_string(&path).map_err(Error::io(&*path))?;
    let [now, peak] = ["VmRSS", "VmHWM"].map(|key| value(&path, &text, key, " kB"));
    // The file's "kB" are 1,024 bytes.
    Ok((now?.saturating_mul(1024), peak?.saturating_mul(1024)))
}

/// Parses a number from a file like `/proc/PID/status`.
fn value(path: &str, text: &str, key: &str, unit: &str) -> Result<u64> {
    let found = text.lines().find_map(|line| {
        let value = line.strip_prefix(key)?.strip_prefix(':')?;
        value.strip_suffix(unit)?.trim().parse().ok()
    });
    found.ok_or_else(|| malformed(path, &format!("it has no `{key}`")))
}

fn numbers(path: &str, text: &str) -> Result<Vec<u64>> {
    let numbers = text.split_ascii_whitespace().map(str::parse);
    let numbers: Result<_, _> = numbers.collect();
    numbers.map_err(|error| malformed(path, &format!("{error} in `{text}`")))
}

fn malformed(path: &str, why: &str) -> Error {
    Error::Malformed {
        what: path.to_owned(),
        why: why.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAT: &str = "cpu  1000 20 300 40000 500 6 70 800 900 10\n\
        cpu0 500 10 150 20000 250 3 35 400 450 5\n\
        intr 123 0 9\nctxt 987654321\nbtime 1700000000\nprocesses 4711\n";

    #[test]
    fn times_of_the_machine() -> Result<()> {
        let expected = MachineCounters {
            user: 1020,
            system: 376,
            idle: 40500,
            switches: 987_654_321,
        };
        assert_eq!(machine(STAT)?, expected);
        for wrong in [
            STAT.replace("ctxt", "ctx"),
            STAT.replace("987654321", "9x"),
            STAT.replace("300", "-300"),
            STAT.replace(" 40000 500 6 70 800 900 10", ""),
            String::new(),
        ] {
            assert!(machine(&wrong).is_err(), "{wrong}");
        }
        Ok(())
    }

    #[test]
    fn times_of_a_process_with_an_odd_name() -> Result<()> {
        let text = "42 (a) R (b 1 2) S 1 42 42 0 -1 4194560 300 0 0 0 1234 567 8 9 20 0 7 0 1\n";
        assert_eq!(ticks("stat", text)?, (1234, 567));
        let cut = text.find(" 567").unwrap_or_default();
        assert!(ticks("stat", &text[..cut]).is_err());
        Ok(())
    }

    #[test]
    fn this_process() -> Result<()> {
        let (now, peak) = resident(std::process::id())?;
        assert!(now > 0 && now <= peak, "{now} of at most {peak}");
        let before = ProcessCounters::read(std::process::id())?;
        std::thread::sleep(std::time::Duration::from_millis(1));
        let after = ProcessCounters::read(std::process::id())?;
        assert!(after.switches_since(&before) > 0);
        assert!(MachineCounters::read()?.switches > 0);
        let work = || threads(std::process::id());
        let thread = std::thread::Builder::new().name("of a name".to_owned());
        let found = thread.spawn(work).map_err(Error::io("a thread"))?.join();
        let found = found.map_err(|_| Error::unmet("a panic"))??;
        assert!(
            found.iter().any(|(_, name)| name == "of a name"),
            "{found:?}"
        );
        Ok(())
    }

    proptest! {
        #[test]
        fn malformed_files_are_refused(text in "\\PC*") {
            prop_assert!(machine(&text).is_err());
            prop_assert!(value("status", &text, "VmRSS", " kB").is_err());
        }

        #[test]
        fn no_reading_panics(cut in 0..STAT.len(), text in "[0-9 ()S-]*") {
            let _ = machine(&STAT[..cut]);
            let _ = ticks("stat", &text);
        }
    }
}
