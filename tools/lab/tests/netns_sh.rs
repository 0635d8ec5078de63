//! The unmodified system test of wireguard-go with Taupe.

use rustix::mount::mount_bind;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use taupe_lab::peers::{Implementation, netns_script};
use taupe_lab::process::Process;
use taupe_lab::sandbox::{Suite, SystemTest, figure, scratch, scratch_file};
use taupe_lab::{Error, Result, ensure};

const LIMIT: Duration = Duration::from_secs(15 * 60);

fn main() {
    let slack = Duration::from_secs(20);
    Suite::new(vec![
        SystemTest::new("wireguard_go_netns_sh", netns_sh).limit(LIMIT + slack),
    ])
    .prepare(|| Implementation::Taupe.install().map(drop))
    .prepare(|| Implementation::WireguardGo.install().map(drop))
    .main()
}

fn netns_sh() -> Result<()> {
    provide_message_cost()?;
    let start = Instant::now();
    let mut bash = Command::new("bash");
    bash.arg("-x")
        .arg(netns_script()?)
        .arg(Implementation::Taupe.daemon()?)
        // Bash ignores PS4 in root's environment, but reads this file.
        .env(
            "BASH_ENV",
            scratch_file("trace", "PS4='+line ${LINENO}: '\n")?,
        );
    let mut script = Process::start("sandbox", bash)?;
    let status = script.wait(LIMIT)?;
    figure("netns.sh took", start.elapsed());
    let output = script.output();
    ensure!(
        status.success(),
        "netns.sh: {status}, where it ended:\n{}",
        before_cleanup(&output)
    );
    let end = "Objects that were created were also destroyed.";
    ensure!(output.contains(end), "netns.sh did not reach its end");
    Ok(())
}

/// The script saves and restores `net.core.message_cost`, which exists only in a machine's first
/// network namespace (net/core/sysctl_net_core.c). This provides a file in its place.
fn provide_message_cost() -> Result<()> {
    let directory = scratch("core");
    fs::create_dir_all(&directory).map_err(Error::io("scratch directory"))?;
    fs::write(directory.join("message_cost"), "5\n").map_err(Error::io("message_cost"))?;
    mount_bind(&directory, "/proc/sys/net/core").map_err(Error::io("mount below /proc"))
}

/// Returns the last lines of the script's trace before its clean-up.
fn before_cleanup(output: &str) -> String {
    const LINES: usize = 30;
    let lines: Vec<_> = output.lines().collect();
    let end = lines
        .iter()
        .rposition(|line| line.starts_with("+line") && line.ends_with(": cleanup"))
        .unwrap_or(lines.len());
    let start = end.saturating_sub(LINES);
    lines.get(start..end).unwrap_or_default().join("\n")
}
