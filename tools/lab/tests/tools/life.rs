//! Life and end of a device.

use crate::{FAR_ADDRESS, Pair, ensure_within, missing, neighbours};
use rustix::process::Signal;
use std::fs;
use std::time::{Duration, Instant};
use taupe_lab::host::Host;
use taupe_lab::peers::{Implementation, Tunnel};
use taupe_lab::process::Process;
use taupe_lab::traffic::{first_answer, ping, tcp_echo};
use taupe_lab::uapi::socket;
use taupe_lab::{Error, Result, ensure};

pub(crate) fn killed_and_started_again() -> Result<()> {
    let (near, far) = neighbours()?;
    let mut couple = Pair::new(&near, &far)?;
    ping(&near, FAR_ADDRESS, 5)?;
    program(&mut couple.near)?.signal(Signal::KILL)?;
    program(&mut couple.near)?.wait(Duration::from_secs(5))?;
    ensure!(socket("wgnear").exists(), "kill -9 has tidied up");

    let start = Instant::now();
    couple.near = Implementation::Taupe.start(&near, "wgnear")?;
    couple.configure_near()?;
    first_answer(&near, FAR_ADDRESS, Duration::from_secs(10))?;
    let limit = Duration::from_secs(3);
    ensure_within("traffic after kill -9 and a start", start.elapsed(), limit)
}

pub(crate) fn ends_with_its_interface() -> Result<()> {
    let host = Host::new("a")?;
    let mut tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let start = Instant::now();
    host.ip(&["link", "delete", "wg0"])?;
    ended(&mut tunnel, start, "end after its interface")?;
    // The name is free at once.
    Implementation::Taupe.start(&host, "wg0").map(drop)
}

pub(crate) fn ends_with_its_socket() -> Result<()> {
    let host = Host::new("a")?;
    let mut tunnel = Implementation::Taupe.start(&host, "wg0")?;
    let start = Instant::now();
    fs::remove_file(socket("wg0")).map_err(Error::io("removing the socket"))?;
    ended(&mut tunnel, start, "end after its socket")?;
    ensure!(
        host.ip(&["link", "show", "dev", "wg0"]).is_err(),
        "the interface remains"
    );
    Ok(())
}

fn ended(tunnel: &mut Tunnel, since: Instant, what: &str) -> Result<()> {
    program(tunnel)?.wait(Duration::from_secs(10))?;
    let took = since.elapsed();
    let socket = socket(tunnel.interface());
    ensure!(!socket.exists(), "{} remains", socket.display());
    ensure_within(what, took, Duration::from_secs(3))
}

pub(crate) fn works_without_ipv6() -> Result<()> {
    let (near, far) = (Host::new("near")?, Host::new("far")?);
    for host in [&near, &far] {
        for which in ["all", "default"] {
            host.sysctl(&format!("net/ipv6/conf/{which}/disable_ipv6"), "1")?;
        }
    }
    taupe_lab::host::link(
        near.port("eth0", &["192.0.2.1/24"]),
        far.port("eth0", &["192.0.2.2/24"]),
        1500,
    )?;
    let couple = Pair::new(&near, &far)?;
    ping(&near, FAR_ADDRESS, 5)?;
    let echo = (FAR_ADDRESS, 7).into();
    couple.far.place().serve_echo(echo)?;
    tcp_echo(&near, echo, 1_000_001).map(drop)
}

/// A tunnel without traffic lets the processor sleep: no thread of the program runs for three
/// seconds, so none makes a system call.
pub(crate) fn idle_tunnel_sleeps() -> Result<()> {
    let (near, far) = (Host::new("near")?, Host::new("far")?);
    for host in [&near, &far] {
        // Otherwise the kernel sends router solicitations into the tunnel.
        host.sysctl("net/ipv6/conf/default/disable_ipv6", "1")?;
    }
    taupe_lab::host::link(
        near.port("eth0", &["192.0.2.1/24"]),
        far.port("eth0", &["192.0.2.2/24"]),
        1500,
    )?;
    let mut couple = Pair::new(&near, &far)?;
    ping(&near, FAR_ADDRESS, 5)?;
    // Keepalive-Timeout (whitepaper section 6.5) is 10 s, and traffic must have ended on both
    // sides.
    std::thread::sleep(Duration::from_secs(22));
    let programs = [
        program(&mut couple.near)?.all_ids(),
        program(&mut couple.far)?.all_ids(),
    ]
    .concat();
    let before = wake_ups(&programs)?;
    std::thread::sleep(Duration::from_secs(3));
    let after = wake_ups(&programs)?;
    ensure!(before == after, "threads ran:\n{before:#?}\n{after:#?}");
    Ok(())
}

/// Returns the number of context switches of each thread, voluntary or not (`proc_pid_status(5)`).
fn wake_ups(processes: &[u32]) -> Result<Vec<(String, String)>> {
    let mut threads = Vec::new();
    for process in processes {
        let tasks = format!("/proc/{process}/task");
        for task in fs::read_dir(&tasks).map_err(Error::io(&*tasks))?.flatten() {
            let path = task.path();
            let read = |file: &str| {
                fs::read_to_string(path.join(file)).map_err(Error::io(path.display().to_string()))
            };
            let switches: String = read("status")?
                .lines()
                .filter(|line| line.contains("ctxt_switches"))
                .collect();
            threads.push((format!("{process} {}", read("comm")?.trim()), switches));
        }
    }
    threads.sort();
    Ok(threads)
}

fn program(tunnel: &mut Tunnel) -> Result<&mut Process> {
    tunnel.process().ok_or_else(|| missing("the program"))
}
