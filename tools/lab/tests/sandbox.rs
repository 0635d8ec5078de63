//! Guarantees of the sandbox: nothing outlives it, nothing leaks into it, and failures are
//! reported.

use rustix::process::Signal;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::time::Duration;
use taupe_lab::capture::Capture;
use taupe_lab::host::{Host, link};
use taupe_lab::process::wait_until;
use taupe_lab::sandbox::{Suite, SystemTest, run_sandboxed, scratch_file, step};
use taupe_lab::{Error, Result, ensure, traffic};

/// Duration of the fixtures' sleep, which identifies their command lines.
const NAP: &str = "86399";

fn main() {
    let second = Duration::from_secs(1);
    Suite::new(vec![
        SystemTest::new("hosts_are_linked", hosts_are_linked),
        SystemTest::new("a_capture_outlasts_a_pause", capture_pauses),
        SystemTest::new("a_failed_command_reports_its_output", failed_command),
        SystemTest::new("a_process_ends_with_its_handle", process_ends),
        SystemTest::new("a_sandbox_is_isolated", sandbox_is_isolated),
        SystemTest::new("a_failure_shows_its_output", failure_shows_output),
        SystemTest::new("a_panic_is_a_failure", || {
            let verdict = run_sandboxed("fixture_panic", Duration::from_secs(20));
            ensure!(!verdict.passed, "passed");
            ensure!(verdict.output.contains("fixture says"), "{verdict:?}");
            Ok(())
        }),
        SystemTest::new("a_stuck_test_is_ended", stuck_test_is_ended),
        SystemTest::new("nothing_outlives_a_killed_runner", killed_runner),
        SystemTest::new("fixture_fail", fixture_fail).fixture(),
        SystemTest::new("fixture_panic", || panic!("the fixture says so")).fixture(),
        SystemTest::new("fixture_stuck", fixture_stuck)
            .limit(300 * second)
            .fixture(),
    ])
    .main()
}

fn hosts_are_linked() -> Result<()> {
    let (a, b) = (Host::new("a")?, Host::new("b")?);
    link(
        a.port("eth0", &["192.0.2.1/24", "fd00::1/64"]),
        b.port("eth0", &["192.0.2.2/24", "fd00::2/64"]),
        1400,
    )?;
    let capture = Capture::start(&b, "eth0", "udp")?;
    for address in ["192.0.2.2", "fd00::2"] {
        let address: IpAddr = address.parse().map_err(|_| Error::unmet("address"))?;
        traffic::ping(&a, address, 1)?;
        let server = SocketAddr::new(address, 7);
        traffic::serve_echo(&b, server)?;
        traffic::tcp_echo(&a, server, 3_000_001)?;
        let socket = a.enter(|| {
            let any: IpAddr = if address.is_ipv4() {
                [0; 4].into()
            } else {
                [0; 16].into()
            };
            std::net::UdpSocket::bind((any, 1111)).map_err(Error::io("bind"))
        })?;
        let sent = socket.send_to(b"mole", (address, 2222));
        sent.map_err(Error::io("send"))?;
    }
    b.run(&["ip", "link", "show", "dev", "eth0"])?;
    let mtu = b.run(&["cat", "/sys/class/net/eth0/mtu"])?;
    ensure!(mtu.text() == "1400", "MTU {}", mtu.text());
    std::thread::sleep(Duration::from_millis(100));
    let packets = capture.stop()?;
    let sent: Vec<_> = packets
        .iter()
        .filter_map(|packet| packet.datagram())
        .filter(|datagram| datagram.payload.starts_with(b"mole"))
        .map(|datagram| (datagram.source.to_string(), datagram.destination.port()))
        .collect();
    let expected = [
        ("192.0.2.1:1111".to_owned(), 2222),
        ("[fd00::1]:1111".to_owned(), 2222),
    ];
    ensure!(sent == expected, "captured {sent:?}");
    a.move_interface("eth0", &b.clone()).err().map_or_else(
        || Err(Error::unmet("two interfaces of one name in one machine")),
        |_| Ok(()),
    )
}

/// A machine under load may delay `tcpdump` for longer than a transfer takes.
fn capture_pauses() -> Result<()> {
    const COUNT: usize = 800;
    let (a, b) = (Host::new("a")?, Host::new("b")?);
    link(
        a.port("eth0", &["192.0.2.1/24"]),
        b.port("eth0", &["192.0.2.2/24"]),
        1500,
    )?;
    let capture = Capture::start(&a, "eth0", "udp")?;
    capture.process().signal(Signal::STOP)?;
    let socket = a.enter(|| std::net::UdpSocket::bind("192.0.2.1:0").map_err(Error::io("bind")))?;
    for _ in 0..COUNT {
        let sent = socket.send_to(&[0; 1400], "192.0.2.2:2222");
        sent.map_err(Error::io("send"))?;
    }
    capture.process().signal(Signal::CONT)?;
    let packets = capture.stop_once("every datagram", |packets| packets.len() >= COUNT)?;
    ensure!(packets.len() == COUNT, "{} datagrams", packets.len());
    Ok(())
}

fn failed_command() -> Result<()> {
    let host = Host::new("a")?;
    let failed = host.run(&["sh", "-c", "echo out; echo err >&2; exit 7"]);
    let Err(error) = failed else {
        return Err(Error::unmet("exit status 7 is success"));
    };
    let text = error.to_string();
    for part in ["exit 7", "exit status: 7", "in a", "out", "err"] {
        ensure!(text.contains(part), "{part:?} is not in {text:?}");
    }
    let missing = host.run_with_input(&["cat"], "mole")?;
    ensure!(missing.text() == "mole", "{missing:?}");
    Ok(())
}

fn process_ends() -> Result<()> {
    let host = Host::new("a")?;
    let mut process = host.spawn(&["sh", "-c", "echo begun; sleep 100"])?;
    wait_until("output", Duration::from_secs(5), || {
        Ok(process.output().contains("begun"))
    })?;
    ensure!(process.runs()?, "it has ended");
    let path = format!("/proc/{}", process.id());
    ensure!(fs::exists(&path).is_ok_and(|is| is), "{path} is missing");
    drop(process);
    ensure!(fs::exists(&path).is_ok_and(|is| !is), "{path} remains");
    Ok(())
}

fn sandbox_is_isolated() -> Result<()> {
    ensure!(std::process::id() == 1, "process {}", std::process::id());
    let interfaces: Vec<_> = fs::read_dir("/sys/class/net")
        .map_err(Error::io("/sys/class/net"))?
        .flatten()
        .map(|entry| entry.file_name())
        .collect();
    ensure!(interfaces == ["lo"], "interfaces {interfaces:?}");
    ensure!(!fs::exists("/run/netns").unwrap_or(true), "/run is shared");
    let path = scratch_file("secret", "mole")?;
    ensure!(std::env::temp_dir().join("secret").is_file(), "TMPDIR");
    // /tmp itself is the machine's, and contains nothing of the scratch directory.
    ensure!(path.starts_with("/run/"), "scratch file {path}");
    Ok(())
}

fn fixture_fail() -> Result<()> {
    step("the only one");
    let host = Host::new("a")?;
    let mut process = host.spawn(&["sh", "-c", "echo said in the background"])?;
    process.wait(Duration::from_secs(5))?;
    Err(Error::unmet("the fixture fails"))
}

fn failure_shows_output() -> Result<()> {
    let verdict = run_sandboxed("fixture_fail", Duration::from_secs(20));
    ensure!(!verdict.passed, "passed");
    for part in ["the fixture fails", "said in the background"] {
        ensure!(verdict.output.contains(part), "no {part:?}: {verdict:?}");
    }
    ensure!(
        verdict.last_step() == Some("the only one"),
        "step {:?}",
        verdict.last_step()
    );
    let unknown = run_sandboxed("no such test", Duration::from_secs(20));
    ensure!(!unknown.passed, "an unknown test passed");
    Ok(())
}

fn fixture_stuck() -> Result<()> {
    let host = Host::new("stuck")?;
    let _background = host.spawn(&["sleep", NAP])?;
    // A process that has left its parent and its session.
    host.run(&["sh", "-c", &format!("setsid sleep {NAP} >/dev/null 2>&1 &")])?;
    host.ip(&["link", "add", "v0", "type", "veth", "peer", "name", "v1"])?;
    host.run(&["sleep", NAP]).map(drop)
}

/// Returns the number of the fixtures' sleeping processes, at any depth of PID namespaces.
fn naps() -> Result<usize> {
    let entries = fs::read_dir("/proc").map_err(Error::io("/proc"))?;
    let lines = entries
        .flatten()
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    let nap = format!("sleep\0{NAP}\0");
    Ok(lines.filter(|line| *line == nap.as_bytes()).count())
}

fn stuck_test_is_ended() -> Result<()> {
    let verdict = run_sandboxed("fixture_stuck", Duration::from_secs(2));
    ensure!(!verdict.passed, "passed");
    for part in ["not done within 2s", "sleep 86399"] {
        ensure!(verdict.output.contains(part), "no {part:?}: {verdict:?}");
    }
    ensure!(naps()? == 0, "{} processes remain", naps()?);
    Ok(())
}

fn killed_runner() -> Result<()> {
    let executable = std::env::current_exe().map_err(Error::io("own executable"))?;
    let mut runner = Command::new(executable)
        .args(["--supervise", "fixture_stuck"])
        .stdin(Stdio::null())
        .spawn()
        .map_err(Error::io("runner"))?;
    wait_until("the three naps", Duration::from_secs(10), || {
        Ok(naps()? == 3)
    })?;
    runner.kill().map_err(Error::io("kill"))?;
    runner.wait().map_err(Error::io("wait"))?;
    wait_until("end of the naps", Duration::from_secs(5), || {
        Ok(naps()? == 0)
    })
}
