//! The virtual machine does what the tests rely on.

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};
use taupe_lab::bench::results::Report;
use taupe_lab::bench::tables::{fill, freebsd};
use taupe_lab::guest::{self, Guest};
use taupe_lab::host::{Host, add_address};
use taupe_lab::peers::{Implementation, Place};
use taupe_lab::sandbox::{Suite, SystemTest, figure};
use taupe_lab::{Error, Result, ensure, traffic};

fn main() {
    let limit = guest::BOOT + Duration::from_secs(60);
    Suite::new(vec![
        SystemTest::new("a_guest_reaches_its_host", guest_reaches_host).limit(limit),
        SystemTest::new("a_guest_does_what_it_is_told", guest_obeys).limit(limit),
        SystemTest::new("a_guest_that_ends_says_so", guest_ends).limit(limit),
        SystemTest::new("tunnels_are_measured_inside_a_guest", tunnels_are_measured).limit(limit),
    ])
    .prepare(|| guest::install().map(drop))
    .prepare(|| Implementation::WireguardGo.install().map(drop))
    .main()
}

fn guest_reaches_host() -> Result<()> {
    let host = Host::new("a")?;
    let start = Instant::now();
    let guest = Guest::boot(&host, "tap0", &["192.0.2.2/24", "fd00::2/64"])?;
    figure("boot", start.elapsed());
    add_address(&host, "tap0", "192.0.2.1/24")?;
    add_address(&host, "tap0", "fd00::1/64")?;
    for address in ["192.0.2.2", "fd00::2"] {
        let address: IpAddr = address.parse().map_err(|_| Error::unmet(address))?;
        traffic::ping(&host, address, 5)?;
        let server = (address, 7).into();
        guest.serve_echo(server)?;
        traffic::tcp_echo(&host, server, 1_000_001)?;
    }
    // Two in one machine are two.
    Guest::boot(&host, "tap1", &[])?.run("ip link add wg0 type wireguard")?;
    let result = guest.run("ip link show wg0");
    ensure!(matches!(result, Err(Error::Command { .. })), "{result:?}");
    Ok(())
}

fn guest_obeys() -> Result<()> {
    let guest = Guest::boot(&Host::new("a")?, "tap0", &[])?;
    let output = guest.run("echo out; echo err >&2")?;
    ensure!(
        output.stdout == "out\n" && output.stderr == "err\n",
        "{output:?}"
    );
    match guest.run("echo out; echo err >&2; exit 7") {
        Err(Error::Command { status, output, .. })
            if status == "exit status 7" && output == "err\nout\n" => {}
        other => return Err(Error::unmet(format!("{other:?}"))),
    }

    // Longer than any line of a terminal or argument of a program.
    let text = "it's".repeat(100_000);
    let output = Place::run_with_input(&guest, &["cat"], &text)?;
    ensure!(output.stdout == text, "{} bytes", output.stdout.len());
    let words = ["echo", "a b", "'", "$HOME;", "*"];
    let output = Place::run(&guest, &words)?;
    ensure!(output.text() == "a b ' $HOME; *", "{output:?}");

    let second = Duration::from_secs(1);
    for script in ["sleep 20", "trap '' TERM; sleep 20; sleep 20"] {
        let result = guest.run_within(second, script);
        let in_time = matches!(result, Err(Error::Timeout { .. }));
        ensure!(in_time, "{result:?}");
    }
    // What stays behind holds up nobody, and a later answer is not mixed up.
    guest.run("(sleep 1; echo late) & echo early")?;
    let output = guest.run("sleep 2; echo on time")?;
    ensure!(output.stdout == "on time\n", "{output:?}");

    // Seconds later it still has the time of day, so its timers are right.
    let before = now();
    let time = guest.run("date +%s")?;
    let time: u64 = time.text().parse().map_err(|_| Error::unmet("a time"))?;
    let possible = before - 2..=now() + 2;
    ensure!(possible.contains(&time), "{time} is not in {possible:?}");
    Ok(())
}

fn guest_ends() -> Result<()> {
    let guest = Guest::boot(&Host::new("a")?, "tap0", &[])?;
    for script in ["poweroff -f", "true"] {
        let result = guest.run(script);
        ensure!(matches!(result, Err(Error::Io { .. })), "{result:?}");
    }
    Ok(())
}

fn tunnels_are_measured() -> Result<()> {
    let mut report = Report::default();
    // One round, so that what is a median is also that round's figure.
    if let Some(mut laboratory) = freebsd::Laboratory::start(&mut report) {
        laboratory.round(1, &mut report);
    }
    ensure!(report.failures.is_empty(), "{:?}", report.failures);
    let table = fill(&freebsd::description(), &report);
    let measured = table.rows.iter().filter(|row| row.contestant.is_some());
    let mut rows = 0;
    for row in measured {
        rows += 1;
        let cells = row.cells.iter().map(|cell| cell.measured);
        let figures: Option<Vec<f64>> = cells.collect();
        figure(&row.label, &figures);
        let Some([share, _, calls, switches, user, system, idle]) = figures.as_deref() else {
            return Err(Error::unmet(format!("{row:?} has holes")));
        };
        ensure!(*share > 0.0 && *calls > 0.0 && *switches > 0.0, "{row:?}");
        let time = user + system + idle;
        ensure!(
            (time - 1.0).abs() < 0.001,
            "the shares of {row:?} are {time}"
        );
    }
    ensure!(rows == 4, "{rows} were measured");
    Ok(())
}

/// Seconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::UNIX_EPOCH
        .elapsed()
        .map_or(0, |time| time.as_secs())
}
