//! Kernels that refuse a path which they, or the tunnel, thought they had.
//!
//! What an old kernel or a poor driver answers is put into the mouth of this
//! one by `strace`, at those calls alone.

use crate::scene::{Family, Scene};
use crate::{ROADS, counted, over, transfer};
use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use taupe_lab::host::Host;
use taupe_lab::peers::{Implementation, Tunnel, socket};
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::scratch;
use taupe_lab::{Error, Result, ensure};

/// The path's MTU is less than what the tunnel sends, which must leave in
/// fragments: the kernel segments no batch of such datagrams.
pub(crate) fn batches_too_long(outer: Family) -> Result<()> {
    let scene = Scene::new(outer, 1400, |host, interface| {
        Implementation::Taupe.start(host, interface)
    })?;
    transfer::serve(&scene)?;
    let counts = counted(&scene, || transfer::stream(&scene, Family::V4))?;
    ensure!(
        counts.largest_batch == 1 && counts.read < counts.passed,
        "batches: {counts:?}"
    );
    everything(&scene)
}

/// `EIO` is what a batch gets where the way out cannot complete checksums
/// (before Linux 6.11), or transforms packets.
pub(crate) fn batches() -> Result<()> {
    // Each thread counts: those of the handshake are spared, and so are the first
    // of the way out, which are no batches.
    let refusal = Refusal {
        call: "sendmsg",
        error: "EIO",
        when: "12..100+4".to_owned(),
        threads: Threads::All,
    };
    let scene = refusal.scene("near")?;
    transfer::serve(&scene)?;
    transfer::stream(&scene, Family::V4)?;
    let log = read(LOG)?;
    ensure!(
        log.lines()
            .any(|line| line.contains("cmsg_level=SOL_UDP") && line.contains("EIO")),
        "no batch was refused"
    );
    let counts = counted(&scene, || transfer::stream(&scene, Family::V6))?;
    ensure!(counts.largest_batch == 1, "batches: {counts:?}");
    everything(&scene)
}

/// A TUN without any offload is what Linux before 2.6.27 has, and what other
/// makers' TUNs are.
pub(crate) fn tun_offloads() -> Result<()> {
    let refusal = Refusal::of("ioctl", "TUNSETOFFLOAD", "EINVAL", Threads::First)?;
    let scene = refusal.scene("near")?;
    refusal.ensure_refused("TUNSETOFFLOAD")?;
    transfer::serve(&scene)?;
    let counts = counted(&scene, || transfer::stream(&scene, Family::V4))?;
    ensure!(counts.read >= counts.passed, "super-packets: {counts:?}");
    everything(&scene)
}

/// The roads that are good, that lose, and that do everything.
fn everything(scene: &Scene) -> Result<()> {
    for road in [&ROADS[0], &ROADS[1], &ROADS[6]] {
        for inner in Family::BOTH {
            over(scene, inner, road)?;
        }
    }
    Ok(())
}

/// What `strace` writes.
const LOG: &str = "strace";

/// System calls of a Taupe that fail.
struct Refusal {
    call: &'static str,
    error: &'static str,
    /// Which of a thread's calls of that name, as `strace` wants it.
    when: String,
    threads: Threads,
}

/// Whose calls fail: each thread counts its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Threads {
    First,
    All,
}

impl Refusal {
    /// Refuses the one or two calls that have the given argument. Which those
    /// are is found out by letting them pass.
    fn of(
        call: &'static str,
        argument: &str,
        error: &'static str,
        threads: Threads,
    ) -> Result<Self> {
        const TRIAL: &str = "trial";
        let host = Host::new(TRIAL)?;
        let program = start(&host, TRIAL, TRIAL, threads, &[&format!("trace={call}")])?;
        host.ip(&["link", "set", TRIAL, "up"])?;
        wait_until(argument, Duration::from_secs(10), || {
            Ok(read(TRIAL)?.contains(argument))
        })?;
        // The second comes right behind the first.
        std::thread::sleep(Duration::from_millis(300));
        drop(program);
        let log = read(TRIAL)?;
        let thread = |line: &str| match threads {
            Threads::First => String::new(),
            Threads::All => line.split(' ').next().unwrap_or_default().to_owned(),
        };
        let own = log.lines().find(|line| line.contains(argument)).map(thread);
        let calls = log
            .lines()
            .filter(|line| line.contains(&format!("{call}(")) && Some(thread(line)) == own);
        let places: Vec<usize> = (1..)
            .zip(calls)
            .filter(|(_, line)| line.contains(argument))
            .map(|(place, _)| place)
            .collect();
        let when = match places[..] {
            [only] => only.to_string(),
            [first, second] => format!("{first}..{second}+{}", second - first),
            _ => {
                let found = format!("{argument} at {places:?} of the calls: {log}");
                return Err(Error::unmet(found));
            }
        };
        Ok(Self {
            call,
            error,
            when,
            threads,
        })
    }

    /// A tunnel with that at one of its ends.
    fn scene(&self, end: &str) -> Result<Scene> {
        let Self {
            call, error, when, ..
        } = self;
        let expressions = [
            &*format!("trace={call}"),
            &*format!("inject={call}:error={error}:when={when}"),
        ];
        Scene::new(Family::V4, 1500, |host, interface| {
            if host.name() != end {
                return Implementation::Taupe.start(host, interface);
            }
            // The sandbox ends it.
            std::mem::forget(start(host, interface, LOG, self.threads, &expressions)?);
            let quirks = Implementation::Taupe.quirks();
            Ok(Tunnel::at("taupe", host.clone(), interface, quirks))
        })
    }

    /// Whether each call that failed has the given argument, and there is one.
    fn ensure_refused(&self, argument: &str) -> Result<()> {
        let log = read(LOG)?;
        let mut refused = log.lines().filter(|line| line.contains("(INJECTED)"));
        let first = refused.next();
        ensure!(
            first.is_some_and(|line| line.contains(argument))
                && refused.all(|line| line.contains(argument)),
            "not refused: {argument} in {log}"
        );
        Ok(())
    }
}

/// A Taupe whose system calls are looked at, once it can be configured.
fn start(
    host: &Host,
    interface: &str,
    log: &str,
    threads: Threads,
    expressions: &[&str],
) -> Result<Process> {
    let program = Implementation::Taupe.program()?.display().to_string();
    let log = scratch(log).display().to_string();
    let mut words = vec!["strace", "-qq", "-o", &log];
    if threads == Threads::All {
        words.push("-f");
    }
    for expression in expressions {
        words.extend(["-e", expression]);
    }
    let command = Implementation::Taupe.command(&program, interface);
    words.extend(command.iter().map(String::as_str));
    let mut strace = host.spawn(&words)?;
    wait_until("configuration socket", Duration::from_secs(20), || {
        ensure!(strace.runs()?, "strace: {}", strace.output());
        Ok(UnixStream::connect(socket(interface)).is_ok())
    })?;
    Ok(strace)
}

fn read(log: &str) -> Result<String> {
    let path = scratch(log);
    fs::read_to_string(&path).map_err(Error::io(path.display().to_string()))
}
