//! Links made by the kernel, checked with the kernel's own counters.

use crate::stream;
use std::net::SocketAddr;
use std::time::Duration;
use taupe_bench::pair::{Link, Pair};
use taupe_lab::sandbox::figure;
use taupe_lab::{Error, Result, ensure, traffic};

pub(crate) fn limited() -> Result<()> {
    const RATE: u64 = 50_000_000;
    const LENGTH: usize = 8_000_000;
    // Bytes that the filter passes at once.
    const BURST: u64 = 128 * 1024;
    let pair = Pair::new("a", &Link::Limited { rate: RATE })?;
    let server = SocketAddr::new(pair.outer(), 4000);
    traffic::serve_echo(&pair.server, server)?;
    let took = traffic::tcp_echo(&pair.client, server, LENGTH)?;
    let beyond_burst = LENGTH as u64 - BURST;
    let rate = beyond_burst as f64 * 8.0 / took.as_secs_f64();
    figure("bit/s", rate);
    ensure!(rate <= RATE as f64, "{LENGTH} bytes passed within {took:?}");
    Ok(())
}

pub(crate) fn lossy() -> Result<()> {
    const COUNT: u32 = 5000;
    const LOSS: u16 = 300;
    let pair = Pair::new("a", &Link::Lossy { loss: LOSS })?;
    // The first packet waits for ARP, whose request may be lost.
    traffic::first_answer(&pair.client, pair.outer(), Duration::from_secs(20))?;
    let before = lost(&pair)?;
    let arrived = stream::send(&pair, COUNT)?.len() as u64;
    let lost = lost(&pair)? - before;
    figure("lost", lost);
    let share = f64::from(LOSS) / 10_000.0;
    let expected = f64::from(COUNT) * share;
    let deviation = (expected * (1.0 - share)).sqrt();
    ensure!(
        (lost as f64 - expected).abs() < 6.0 * deviation,
        "{lost} of {COUNT} were lost"
    );
    // A few more packets may be ARP requests.
    ensure!(
        (u64::from(COUNT)..=u64::from(COUNT) + 3).contains(&(arrived + lost)),
        "{arrived} arrived, {lost} were lost"
    );
    Ok(())
}

/// Returns the number of packets that the server's machine has dropped.
fn lost(pair: &Pair) -> Result<u64> {
    let rules = pair
        .server
        .run(&["nft", "list", "table", "netdev", "lab"])?;
    let count = rules
        .stdout
        .split_once("counter packets ")
        .and_then(|(_, rest)| rest.split(' ').next()?.parse().ok());
    count.ok_or_else(|| Error::unmet(format!("no counter in {}", rules.stdout)))
}
