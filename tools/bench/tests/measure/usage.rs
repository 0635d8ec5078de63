//! Costs of a tunnel's programs, checked with a program of known cost.

use crate::direct;
use std::time::Duration;
use taupe_bench::measure::cost::{Meter, SystemCalls};
use taupe_bench::measure::{memory, metrics};
use taupe_bench::pair::Link;
use taupe_bench::session::Session;
use taupe_lab::process::Process;
use taupe_lab::sandbox::{SystemTest, figure};
use taupe_lab::{Result, ensure};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("no_programs_cost_nothing", no_programs),
        SystemTest::new("processor_time_is_attributed_to_programs", time_in_programs),
        SystemTest::new("system_calls_are_counted", system_calls),
        SystemTest::new(
            "system_calls_are_counted_by_direction",
            system_calls_upwards,
        ),
        SystemTest::new("memory_is_of_each_side", memory_of_each_side),
    ]
}

/// Returns a session with a Python program in place of a tunnel's. It prints `ready` once the
/// interpreter has started.
fn with_program(program: &str) -> Result<Session> {
    let mut session = direct(&Link::Cable)?;
    let program = format!("print('ready', flush=True)\n{program}");
    let process = session.pair.client.spawn(&["python3", "-c", &program])?;
    ready(&process)?;
    session.client.processes.push(process);
    Ok(session)
}

fn ready(process: &Process) -> Result<()> {
    taupe_lab::process::wait_until("python3", Duration::from_secs(20), || {
        Ok(process.output().contains("ready"))
    })
}

fn no_programs() -> Result<()> {
    let session = direct(&Link::Cable)?;
    let meter = Meter::start(&session, SystemCalls::Ignore)?;
    std::thread::sleep(Duration::from_millis(300));
    let usage = meter.stop()?;
    ensure!(
        usage.programs.is_none() && usage.system_calls.is_none(),
        "{usage:?}"
    );
    ensure!(usage.seconds >= 0.3 && usage.switches > 0, "{usage:?}");
    let sum: f64 = usage.shares().iter().flatten().sum();
    ensure!((sum - 1.0).abs() < 1e-9, "shares of {usage:?}");
    ensure!(memory::measure(&session)?.is_none(), "there is no program");
    // At most the time of all processors, plus a tick each.
    let cores = std::thread::available_parallelism().map_or(1.0, |count| count.get() as f64);
    let all = usage.user + usage.system + usage.idle;
    ensure!(all <= (usage.seconds + 0.02) * cores * 1.1, "{usage:?}");
    Ok(())
}

fn time_in_programs() -> Result<()> {
    let session = with_program("while True: pass")?;
    let meter = Meter::start(&session, SystemCalls::Ignore)?;
    std::thread::sleep(Duration::from_secs(1));
    let usage = meter.stop()?;
    figure("busy", usage);
    let Some(programs) = usage.programs else {
        return Err(taupe_lab::Error::unmet("no figures of a program"));
    };
    // Less if it has to share the processor.
    ensure!(
        programs.user > 0.02 && programs.user <= usage.seconds + 0.02,
        "a busy program: {usage:?}"
    );
    ensure!(programs.system < programs.user, "{usage:?}");
    ensure!(usage.user + 0.1 >= programs.user, "{usage:?}");
    let of = |key: &str| {
        let samples = metrics::cost(&usage, 500_000_000);
        let found = samples.into_iter().find(|(metric, _)| metric.key == key);
        found.map(|(_, value)| value)
    };
    // The measurement covers half a gigabyte, so a gigabyte costs twice as much.
    ensure!(
        of("cost/programs/user") == Some(programs.user * 2.0),
        "{:?}",
        of("cost/programs/user")
    );
    Ok(())
}

fn system_calls() -> Result<()> {
    let session = with_program("import os\nwhile True: os.getppid()")?;
    let meter = Meter::start(&session, SystemCalls::Count)?;
    std::thread::sleep(Duration::from_millis(500));
    let usage = meter.stop()?;
    figure("system calls", usage.system_calls);
    let Some(calls) = usage.system_calls else {
        return Err(taupe_lab::Error::unmet("none were counted"));
    };
    ensure!(
        calls.programs.is_some_and(|of_it| of_it > 1000) && calls.upwards.is_none(),
        "a program that makes many: {calls:?}"
    );
    ensure!(Some(calls.machine) > calls.programs, "{calls:?}");
    ensure!(
        metrics::cost(&usage, 1).is_empty() && metrics::system_calls(&usage, 1).len() == 2,
        "figures that counting distorts"
    );
    Ok(())
}

/// The threads have the names of Taupe's threads for upstream traffic.
fn system_calls_upwards() -> Result<()> {
    let named = "import os\nopen('/proc/self/comm', 'w').write('out')\nprint('named', flush=True)\n\
        while True: os.getppid()";
    let session = with_program(named)?;
    if let [program] = &session.client.processes[..] {
        taupe_lab::process::wait_until("its name", Duration::from_secs(20), || {
            Ok(program.output().contains("named"))
        })?;
    }
    let meter = Meter::start(&session, SystemCalls::Count)?;
    std::thread::sleep(Duration::from_millis(500));
    let usage = meter.stop()?;
    let calls = usage.system_calls;
    figure("system calls", calls);
    ensure!(
        calls.is_some_and(|calls| calls.upwards > Some(1000) && calls.upwards <= calls.programs),
        "{calls:?}"
    );
    let keys: Vec<_> = metrics::system_calls(&usage, 1)
        .into_iter()
        .map(|(metric, _)| metric.key)
        .collect();
    ensure!(
        keys.iter().any(|key| key == "cost/programs/syscalls/up"),
        "{keys:?}"
    );
    Ok(())
}

fn memory_of_each_side() -> Result<()> {
    const SIZE: u64 = 64 << 20;
    let mut session = with_program(
        "held = bytearray(b'x') * (64 << 20)\nprint('held', flush=True)\nimport time\ntime.sleep(60)",
    )?;
    let small = session.pair.server.spawn(&[
        "python3",
        "-c",
        "print('ready', flush=True)\nimport time\ntime.sleep(60)",
    ])?;
    ready(&small)?;
    session.server.processes.push(small);
    let Some(program) = session.client.processes.first() else {
        return Err(taupe_lab::Error::unmet("no program"));
    };
    taupe_lab::process::wait_until("memory", Duration::from_secs(20), || {
        Ok(program.output().contains("held"))
    })?;
    let found = memory::measure(&session)?;
    let Some(found) = found else {
        return Err(taupe_lab::Error::unmet("no memory of programs"));
    };
    ensure!(
        found.client.now > SIZE && found.client.now < SIZE * 2,
        "{found:?}"
    );
    ensure!(found.client.peak >= found.client.now, "{found:?}");
    ensure!(found.server.now > 0 && found.server.now < SIZE, "{found:?}");
    Ok(())
}
