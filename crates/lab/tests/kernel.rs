//! Linux's own WireGuard as the other side, in a virtual machine.

use std::time::Duration;
use taupe_lab::guest::{self, Guest};
use taupe_lab::host::{Host, add_address};
use taupe_lab::peers::Place;
use taupe_lab::sandbox::{Suite, SystemTest};
use taupe_lab::{Error, Result, ensure, traffic};

fn main() {
    Suite::new(vec![
        SystemTest::new("a_guest_does_what_it_is_told", guest_obeys)
            .limit(Duration::from_secs(120)),
    ])
    .prepare(|| guest::install().map(drop))
    .main()
}

fn guest_obeys() -> Result<()> {
    let host = Host::new("a")?;
    let guest = Guest::boot(&host, "tap0", &["192.0.2.2/24", "fd00::2/64"])?;
    add_address(&host, "tap0", "192.0.2.1/24")?;
    add_address(&host, "tap0", "fd00::1/64")?;
    for address in ["192.0.2.2", "fd00::2"] {
        let address = address.parse().map_err(|_| Error::unmet("address"))?;
        traffic::ping(&host, address, 5)?;
        let server = (address, 7).into();
        guest.serve_echo(server)?;
        traffic::tcp_echo(&host, server, 1_000_001)?;
    }

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

    let result = guest.run("poweroff -f");
    ensure!(matches!(result, Err(Error::Io { .. })), "{result:?}");
    Ok(())
}
