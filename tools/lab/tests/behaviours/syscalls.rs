//! Number of system calls per packet.

use crate::pair::{FAR, FAR_OUTER, Pair};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::thread::sleep;
use std::time::Duration;
use taupe_lab::host::{Host, link};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{figure, scratch};
use taupe_lab::traffic::{Pinger, ping};
use taupe_lab::{Error, Result, ensure};

const PINGS: usize = 20;

/// Interval of pings: longer than the window in which a thread measures its load.
const PAUSE: Duration = Duration::from_millis(50);

/// Time limit of steps whose duration does not matter.
const PATIENCE: Duration = Duration::from_secs(10);

/// A thread that spent a quarter of 10 ms or more on packets makes one more call to ask for its
/// processor time (`engine/src/load.rs`). While no other program takes the processor, it spends
/// less even under strace.
const LONG: Duration = Duration::from_micros(2500);

/// With little traffic one thread carries both directions, and makes three calls per packet: it
/// waits, reads, and writes. The other threads make none.
pub(crate) fn of_a_ping() -> Result<()> {
    let (near, far) = (Host::new("near")?, Host::new("far")?);
    for host in [&near, &far] {
        // Otherwise the kernel sends router solicitations into the tunnel.
        host.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
    }
    link(
        near.port("eth0", &["192.0.2.1/24"]),
        far.port("eth0", &["192.0.2.2/24"]),
        1500,
    )?;
    let mut pair = without_ipv6(&near, &far)?;
    ping(&near, FAR, 5)?;
    let process = pair.near.id()?;
    let threads = threads(process)?;
    // After a pause the threads that carried these packets have handed over to the shared thread.
    sleep(10 * PAUSE);
    let text = traced(&near, process, &threads)?;
    let calls = count(&text, &threads);
    figure("system calls for 20 pings", &calls);
    let made = |thread: &str| -> BTreeMap<&str, usize> {
        calls
            .iter()
            .filter(|((name, _), _)| *name == thread)
            .map(|((_, call), count)| (*call, *count))
            .collect()
    };
    let mut made_by_both = made("both");
    // The receiving call for a packet directly after another one may be a batch call.
    let read = ["recvmsg", "recvmmsg"].map(|call| made_by_both.remove(call).unwrap_or(0));
    ensure!(read.iter().sum::<usize>() == PINGS, "reads: {calls:?}");
    // The last wait has not returned.
    let both = BTreeMap::from([
        ("ppoll", 2 * PINGS + 1),
        ("preadv2", PINGS),
        ("sendmsg", PINGS),
        ("writev", PINGS),
    ]);
    ensure!(made_by_both == both, "both ways: {calls:?}");
    for thread in ["out", "in4", "in6"] {
        // Each of these threads has been waiting for the shared thread.
        ensure!(
            made(thread).values().sum::<usize>() <= 1,
            "{thread}: {calls:?}"
        );
    }
    // Timers: such as a keepalive that an answer made unnecessary.
    let others: usize = calls
        .iter()
        .filter(|((thread, _), _)| *thread != "both")
        .map(|(_, count)| count)
        .sum();
    ensure!(others <= PINGS, "other threads: {calls:?}");
    Ok(())
}

/// Returns strace's output while pings are answered, one after the other.
fn traced(near: &Host, process: u32, threads: &BTreeMap<u32, String>) -> Result<String> {
    let file = scratch("strace").display().to_string();
    let id = process.to_string();
    let mut strace = near.spawn(&["strace", "-f", "-ttt", "-o", &file, "-p", &id])?;
    // The file lists each waiting thread's call once.
    wait_until("strace", PATIENCE, || {
        ensure!(strace.runs()?, "strace: {}", strace.output());
        let text = fs::read_to_string(&file).unwrap_or_default();
        let seen: BTreeSet<_> = lines(&text).map(|line| line.thread).collect();
        Ok(threads.keys().all(|thread| seen.contains(thread)))
    })?;
    // Pings are sequential: two waiting packets would be carried together.
    let mut pinger = Pinger::new(near, FAR)?;
    for _ in 0..PINGS {
        ensure!(pinger.ping(PATIENCE)?, "{pinger}");
        sleep(PAUSE);
    }
    wait_until("the wait after the last answer", PATIENCE, || {
        let text = fs::read_to_string(&file).map_err(Error::io(&*file))?;
        let mut carried = lines(&text)
            .filter(|line| threads.get(&line.thread).is_some_and(|name| name == "both"));
        Ok(carried.next_back().and_then(|line| line.begins()) == Some("ppoll"))
    })?;
    strace.signal(rustix::process::Signal::INT)?;
    strace.wait(PATIENCE)?;
    fs::read_to_string(&file).map_err(Error::io(file))
}

/// Counts the calls that each thread has begun.
fn count<'a>(
    text: &'a str,
    threads: &'a BTreeMap<u32, String>,
) -> BTreeMap<(&'a str, &'a str), usize> {
    let mut calls: BTreeMap<_, usize> = BTreeMap::new();
    let (mut read_at, mut last) = (None, Duration::ZERO);
    for line in lines(text) {
        let thread = threads.get(&line.thread).map_or("another", String::as_str);
        let Some(call) = line.begins() else {
            continue;
        };
        // At least the time from reading the packet to writing it.
        let took = read_at.map_or(Duration::ZERO, |read| line.at.saturating_sub(read));
        match (thread, call) {
            ("both", "preadv2" | "recvmsg" | "recvmmsg") => read_at = Some(line.at),
            ("both", "ppoll") => last = took,
            // The measured time covers this packet, or this one and the last.
            ("both", "clock_gettime") if last + took >= LONG => continue,
            _ => {}
        }
        *calls.entry((thread, call)).or_default() += 1;
    }
    calls
}

/// A line of `strace -f -ttt`.
struct Line<'a> {
    thread: u32,
    /// Time of the line, since the epoch.
    at: Duration,
    text: &'a str,
}

/// Returns all lines, including an incomplete last one.
fn lines(text: &str) -> impl DoubleEndedIterator<Item = Line<'_>> {
    text.lines().filter_map(|line| {
        let (thread, rest) = line.split_once(' ')?;
        let (at, text) = rest.trim_start().split_once(' ')?;
        Some(Line {
            thread: thread.parse().ok()?,
            at: Duration::try_from_secs_f64(at.parse().ok()?).ok()?,
            text,
        })
    })
}

impl<'a> Line<'a> {
    /// Returns the call that begins in this line, but not the end of a call already counted, a
    /// signal, or the end of the thread.
    fn begins(&self) -> Option<&'a str> {
        let call = self.text.split_once('(')?.0;
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        call.chars().all(is_name).then_some(call)
    }
}

fn without_ipv6(near: &Host, far: &Host) -> Result<Pair> {
    for host in [near, far] {
        // The inner addresses need IPv6 for a moment; nothing is sent yet.
        host.sysctl("net/ipv6/conf/default/disable_ipv6", "0")?;
    }
    let pair = Pair::between(near, far, FAR_OUTER, [&[], &[]])?;
    for (host, interface) in [(near, "wgnear"), (far, "wgfar")] {
        host.sysctl(&format!("net/ipv6/conf/{interface}/disable_ipv6"), "1")?;
    }
    Ok(pair)
}

/// Returns the name of each thread by its id.
fn threads(process: u32) -> Result<BTreeMap<u32, String>> {
    let path = format!("/proc/{process}/task");
    let mut threads = BTreeMap::new();
    for task in fs::read_dir(&path).map_err(Error::io(&*path))?.flatten() {
        let name = fs::read_to_string(task.path().join("comm")).map_err(Error::io(&*path))?;
        let id = task.file_name().to_string_lossy().parse().ok();
        let id = id.ok_or_else(|| Error::unmet(format!("{path} holds no number")))?;
        threads.insert(id, name.trim().to_owned());
    }
    Ok(threads)
}
