//! Kernels that refuse a path although it seemed available.
//!
//! `strace` injects the errors of an old kernel or a poor driver into single calls, which it counts for
//! each thread. So the device is an engine in a process that the tests know: this test program itself.

use crate::scene::{Family, Scene};
use crate::{ROADS, counted, over, transfer};
use std::fs;
use std::os::unix::net::UnixStream;
use std::time::Duration;
use taupe_engine::{Engine, Offloads, Options, TunSource, UapiSource, Underlay};
use taupe_lab::host::Host;
use taupe_lab::peers::{Implementation, Tunnel};
use taupe_lab::process::{Process, wait_until};
use taupe_lab::sandbox::scratch;
use taupe_lab::uapi::socket;
use taupe_lab::{Error, Result, ensure};

/// The path MTU is smaller than the tunnel's messages, which must leave in fragments: the kernel
/// segments no batch of such datagrams.
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

/// A batch gets `EIO` if the output device cannot complete checksums (before Linux 6.11), or
/// transforms packets.
pub(crate) fn batches() -> Result<()> {
    // strace counts per thread: this spares the handshake's calls, and the first calls for data,
    // which are no batches.
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

/// A TUN without any offload, as in Linux before 2.6.27 and in other systems.
pub(crate) fn tun_offloads() -> Result<()> {
    let refusal = Refusal::of("ioctl", "TUNSETOFFLOAD", "EINVAL", Threads::First)?;
    let scene = refusal.scene("near")?;
    refusal.ensure_refused("TUNSETOFFLOAD")?;
    transfer::serve(&scene)?;
    let counts = counted(&scene, || transfer::stream(&scene, Family::V4))?;
    ensure!(counts.read >= counts.passed, "super-packets: {counts:?}");
    everything(&scene)
}

/// Uses the link without faults, the one with losses, and the one with all faults.
fn everything(scene: &Scene) -> Result<()> {
    for road in [&ROADS[0], &ROADS[1], &ROADS[6]] {
        for inner in Family::BOTH {
            over(scene, inner, road)?;
        }
    }
    Ok(())
}

/// strace's output file.
const LOG: &str = "strace";

/// Injected failures of a Taupe's system calls.
struct Refusal {
    call: &'static str,
    error: &'static str,
    /// The affected calls of a thread, in strace's syntax.
    when: String,
    threads: Threads,
}

/// The affected threads; each counts its own calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Threads {
    First,
    All,
}

impl Refusal {
    /// Refuses the one or two calls with the given argument. A trial run determines their numbers.
    fn of(
        call: &'static str,
        argument: &str,
        error: &'static str,
        threads: Threads,
    ) -> Result<Self> {
        const TRIAL: &str = "trial";
        let host = Host::new(TRIAL)?;
        let program = start(&host, TRIAL, TRIAL, threads, &[&format!("trace={call}")])?;
        // strace slows the program down.
        wait_until("the device", Duration::from_secs(10), || {
            Ok(host.ip(&["link", "set", TRIAL, "up"]).is_ok())
        })?;
        wait_until(argument, Duration::from_secs(10), || {
            Ok(read(TRIAL)?.contains(argument))
        })?;
        // The second call directly follows the first.
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

    /// Returns a tunnel with these failures at one of its ends.
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

    /// Checks that at least one call failed, and that each failed call has the given argument.
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

/// Variable with the interface of a process that runs an engine.
const DEVICE: &str = "TAUPE_LAB_DEVICE";

/// Returns the interface of the engine that this process is to run.
pub(crate) fn device_of_this_process() -> Option<String> {
    std::env::var(DEVICE).ok()
}

/// Runs an engine until it ends.
pub(crate) fn run_device(interface: String) {
    let options = Options {
        interface,
        tun: TunSource::Create { lanes: None },
        underlay: Underlay::Here,
        outer_mark: None,
        tap: None,
        uapi: UapiSource::Bind,
        offloads: Offloads::default(),
        state_dir: Some(scratch("state")),
        notices: None,
    };
    match Engine::start(options) {
        Ok(engine) => drop(engine.run()),
        Err(error) => eprintln!("{error}"),
    }
}

/// Starts an engine under strace, and waits until it can be configured.
fn start(
    host: &Host,
    interface: &str,
    log: &str,
    threads: Threads,
    expressions: &[&str],
) -> Result<Process> {
    let program = std::env::current_exe().map_err(Error::io("this program"))?;
    let program = program.display().to_string();
    let log = scratch(log).display().to_string();
    let mut words = vec!["strace", "-qq", "-o", &log];
    if threads == Threads::All {
        words.push("-f");
    }
    for expression in expressions {
        words.extend(["-e", expression]);
    }
    let variable = format!("{DEVICE}={interface}");
    words.extend(["env", &variable, &program]);
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
