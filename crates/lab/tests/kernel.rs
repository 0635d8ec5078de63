//! Linux's own WireGuard as the other side, in a virtual machine.

use std::net::IpAddr;
use std::time::Duration;
use taupe_lab::guest::{self, Guest};
use taupe_lab::host::{Host, add_address};
use taupe_lab::interop::{Cell, Outer, Pair, table};
use taupe_lab::peers::{Implementation, Place};
use taupe_lab::sandbox::{Suite, SystemTest};
use taupe_lab::{Error, Result, ensure, traffic};

/// Outer addresses, the host's and the guest's.
const NEAR: [&str; 2] = ["192.0.2.1", "2001:db8::1"];
const FAR: [&str; 2] = ["192.0.2.2", "2001:db8::2"];

fn main() {
    let mut tests: Vec<SystemTest> = Cell::all()
        .into_iter()
        .map(|cell| {
            let limit = cell.limit() + guest::BOOT;
            SystemTest::new(cell.name("kernel"), move || interoperates(cell)).limit(limit)
        })
        .collect();
    tests.push(SystemTest::new("a_guest_does_what_it_is_told", guest_obeys).limit(2 * guest::BOOT));
    Suite::new(tests)
        .prepare(|| {
            Implementation::Taupe.install()?;
            guest::install().map(drop)
        })
        .conclude(|verdicts| {
            let version = guest::version().unwrap_or_default();
            println!("{}", table(&[("kernel", &version)], verdicts));
        })
        .main()
}

/// A host and a guest that reach each other over both protocols.
fn connected() -> Result<(Host, Guest)> {
    let host = Host::new("near")?;
    let [v4, v6] = FAR;
    let guest = Guest::boot(&host, "tap0", &[&format!("{v4}/24"), &format!("{v6}/64")])?;
    let [v4, v6] = NEAR;
    add_address(&host, "tap0", &format!("{v4}/24"))?;
    add_address(&host, "tap0", &format!("{v6}/64"))?;
    Ok((host, guest))
}

fn interoperates(cell: Cell) -> Result<()> {
    let (host, guest) = connected()?;
    let version = usize::from(cell.outer == Outer::V6);
    let pair = Pair {
        host: &host,
        uplinks: ["tap0", "eth0"],
        outer: [address(NEAR[version])?, address(FAR[version])?],
        taupe: &Implementation::Taupe.start(&host, "wgnear")?,
        peer: &guest.tunnel("wgfar")?,
    };
    pair.run(&cell)
}

fn guest_obeys() -> Result<()> {
    let (host, guest) = connected()?;
    for inner in FAR {
        let address = address(inner)?;
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

fn address(text: &str) -> Result<IpAddr> {
    text.parse()
        .map_err(|_| Error::unmet(format!("address {text}")))
}
