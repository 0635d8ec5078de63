//! What a packet costs in system calls.

use crate::pair::{FAR, FAR_OUTER, Pair};
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;
use taupe_lab::host::{Host, link};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{figure, scratch};
use taupe_lab::traffic::ping;
use taupe_lab::{Error, Result, ensure};

const PINGS: usize = 20;

/// One thread carries them both ways while there are few, and makes three calls
/// for each: one waits, one reads, one writes. No other makes any.
pub(crate) fn of_a_ping() -> Result<()> {
    let (near, far) = (Host::new("near")?, Host::new("far")?);
    for host in [&near, &far] {
        // Otherwise the kernel itself sends router solicitations into it.
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

    let file = scratch("strace").display().to_string();
    let id = process.to_string();
    let mut strace = near.spawn(&["strace", "-f", "-o", &file, "-p", &id])?;
    wait_until("strace", Duration::from_secs(10), || {
        ensure!(strace.runs()?, "strace: {}", strace.output());
        threads.keys().try_fold(true, |all, thread| {
            let path = format!("/proc/{process}/task/{thread}/status");
            let status = fs::read_to_string(&path).map_err(Error::io(path))?;
            Ok(all && !status.contains("TracerPid:\t0\n"))
        })
    })?;
    // Every call in which a thread waits is in the file once.
    std::thread::sleep(Duration::from_millis(500));
    let count = PINGS.to_string();
    let to = FAR.to_string();
    near.run(&["ping", "-n", "-i", "0.1", "-c", &count, "-W", "5", &to])?;
    // The thread that wrote the last answer goes back to its wait.
    std::thread::sleep(Duration::from_millis(500));
    strace.signal(rustix::process::Signal::INT)?;
    strace.wait(Duration::from_secs(10))?;

    let text = fs::read_to_string(&file).map_err(Error::io(&*file))?;
    let mut calls: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for line in text.lines() {
        let Some((id, rest)) = line.split_once(' ') else {
            continue;
        };
        let rest = rest.trim_start();
        // The end of a call that has been counted at its beginning.
        if rest.starts_with("<... ") || rest.starts_with(['+', '-']) {
            continue;
        }
        let thread = id.parse().ok().and_then(|id: u32| threads.get(&id));
        let thread = thread.map_or("another", String::as_str);
        let call = rest.split('(').next().unwrap_or(rest);
        *calls.entry((thread, call)).or_default() += 1;
    }
    figure("system calls for 20 pings", &calls);
    let made = |thread: &str| -> BTreeMap<&str, usize> {
        calls
            .iter()
            .filter(|((name, _), _)| *name == thread)
            .map(|((_, call), count)| (*call, *count))
            .collect()
    };
    let mut made_by_both = made("both");
    // A packet that comes right after another is looked for with others.
    let read = ["recvmsg", "recvmmsg"].map(|call| made_by_both.remove(call).unwrap_or(0));
    ensure!(read.iter().sum::<usize>() == PINGS, "reads: {calls:?}");
    // One more wait has no end.
    let both = BTreeMap::from([
        ("ppoll", 2 * PINGS + 1),
        ("preadv2", PINGS),
        ("sendmsg", PINGS),
        ("writev", PINGS),
    ]);
    ensure!(made_by_both == both, "both ways: {calls:?}");
    for thread in ["out", "in4", "in6"] {
        // Each has begun a wait for the other thread long ago.
        ensure!(
            made(thread).values().sum::<usize>() <= 1,
            "{thread}: {calls:?}"
        );
    }
    // Timers: a keepalive that an answer made needless, and the like.
    let others: usize = calls
        .iter()
        .filter(|((thread, _), _)| *thread != "both")
        .map(|(_, count)| count)
        .sum();
    ensure!(others <= PINGS, "other threads: {calls:?}");
    Ok(())
}

fn without_ipv6(near: &Host, far: &Host) -> Result<Pair> {
    for host in [near, far] {
        // The inner addresses need it for a moment; nothing is sent yet.
        host.sysctl("net/ipv6/conf/default/disable_ipv6", "0")?;
    }
    let pair = Pair::between(near, far, FAR_OUTER, [&[], &[]])?;
    for (host, interface) in [(near, "wgnear"), (far, "wgfar")] {
        host.sysctl(&format!("net/ipv6/conf/{interface}/disable_ipv6"), "1")?;
    }
    Ok(pair)
}

/// The name of each thread by its id.
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
