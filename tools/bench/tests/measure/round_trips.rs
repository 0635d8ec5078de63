//! Latency and packet rates, on links with known losses or limits.

use crate::direct;
use std::time::{Duration, Instant};
use taupe_bench::emulator::Profile;
use taupe_bench::measure::latency;
use taupe_bench::measure::packets::{self, SendMode};
use taupe_bench::measure::servers::Servers;
use taupe_bench::pair::Link;
use taupe_bench::side::PORT;
use taupe_lab::sandbox::{SystemTest, figure, step};
use taupe_lab::{Result, ensure};

pub(crate) fn tests() -> Vec<SystemTest> {
    vec![
        SystemTest::new("latency_of_a_cable", latency_of_a_cable),
        SystemTest::new("latency_of_a_long_link", latency_of_a_long_link),
        SystemTest::new("latency_under_load", latency_under_load),
        SystemTest::new("lost_round_trips_are_counted", lost_round_trips),
        SystemTest::new("latency_without_answers_is_an_error", nothing_answers),
        SystemTest::new("packets_agree_with_the_interface", packets_agree),
        SystemTest::new("packets_have_no_rate_where_they_are_lost", packets_lost),
        SystemTest::new("packets_find_the_rate_of_a_link", packets_limited),
    ]
}

fn latency_of_a_cable() -> Result<()> {
    let session = direct(&Link::Cable)?;
    let found = latency::idle(&session, 2000)?;
    ensure!(
        found.answered.len() == 2000 && found.lost == 0,
        "{} answered, {} lost",
        found.answered.len(),
        found.lost
    );
    let (median, longest) = (found.quantile(0.5), found.quantile(1.0));
    ensure!(
        median.is_some_and(|median| (1e-6..0.05).contains(&median)),
        "the median is {median:?} s"
    );
    ensure!(
        median <= longest && found.quantile(0.0) <= median,
        "{longest:?}"
    );
    figure("idle p50", median);

    step("at a pace");
    let pace = Duration::from_millis(1);
    let begin = Instant::now();
    let (found, took) = latency::during(&session, pace, || {
        std::thread::sleep(Duration::from_millis(500));
        begin.elapsed().as_millis() as u64
    })?;
    let (answered, lost) = (found.answered.len() as u64, found.lost);
    // At most one per interval; fewer if the machine is busy. Other tests can delay a thread for
    // longer than the timeout of an answer.
    ensure!(
        (100..=took + 1).contains(&(answered + lost)) && lost * 4 < answered,
        "{answered} answered, {lost} lost in {took} ms"
    );
    Ok(())
}

/// Ten milliseconds in each direction, by the lab's own emulator.
fn latency_of_a_long_link() -> Result<()> {
    let session = direct(&Link::Emulated(Profile {
        delay: Duration::from_millis(10),
        ..Profile::PERFECT
    }))?;
    let found = latency::idle(&session, 30)?;
    let (least, median) = (found.quantile(0.0), found.quantile(0.5));
    ensure!(
        least >= Some(0.02),
        "{least:?} s is less than the line takes"
    );
    ensure!(median < Some(0.2), "the median is {median:?} s");
    Ok(())
}

fn latency_under_load() -> Result<()> {
    // The queue holds up to 40 ms, and one stream keeps it filled.
    let session = direct(&Link::Limited { rate: 100_000_000 })?;
    let idle = latency::idle(&session, 100)?.quantile(0.5);
    let mut servers = Servers::new(&session);
    let found = latency::loaded(&session, &mut servers, 1, 1)?;
    let loaded = found.round_trips.quantile(0.5);
    figure("idle and loaded p50", (idle, loaded));
    let all = found.round_trips.answered.len() as u64 + found.round_trips.lost;
    ensure!((400..=2100).contains(&all), "{all} requests in a second");
    ensure!(
        loaded > idle.map(|idle| idle + 0.002),
        "with a full queue p50 is {loaded:?} s, without {idle:?} s"
    );
    ensure!(
        found.load.rate() > 50e6 && found.load.rate() < 110e6,
        "the load was {} bit/s",
        found.load.rate()
    );
    Ok(())
}

fn lost_round_trips() -> Result<()> {
    let session = direct(&Link::Lossy { loss: 1000 })?;
    let pace = Duration::from_micros(500);
    let (found, ()) = latency::during(&session, pace, || {
        std::thread::sleep(Duration::from_millis(1500));
    })?;
    let all = found.answered.len() as u64 + found.lost;
    // 1 − 0.9², as both directions lose packets; six standard deviations.
    let deviation = (0.19 * 0.81 / all as f64).sqrt();
    ensure!(
        all > 300 && (found.loss() - 0.19).abs() < 6.0 * deviation,
        "{} of {all} were lost",
        found.lost
    );
    ensure!(
        found.answered.iter().all(|&took| took < 1.0),
        "an answer after its time was taken"
    );
    Ok(())
}

fn nothing_answers() -> Result<()> {
    let session = direct(&Link::Cable)?;
    session.pair.server.run_with_input(
        &["nft", "-f", "-"],
        "table inet lab { chain silence { type filter hook input priority 0; policy drop; }; }",
    )?;
    let found = latency::idle(&session, 1000);
    let reason = found.map_or_else(|error| error.to_string(), |found| format!("{found:?}"));
    ensure!(reason.contains("no answer"), "{reason}");
    Ok(())
}

fn packets_agree() -> Result<()> {
    let session = direct(&Link::Cable)?;
    let count = |what: &str| {
        let path = format!("/sys/class/net/{PORT}/statistics/{what}");
        let text = session.pair.server.run(&["cat", &path])?;
        let number = text.text().parse::<u64>();
        number.map_err(|_| taupe_lab::Error::unmet(text.text()))
    };
    let (packets, bytes) = (count("rx_packets")?, count("rx_bytes")?);
    let found = packets::measure(&session, 512, SendMode::Each)?;
    let (packets, bytes) = (count("rx_packets")? - packets, count("rx_bytes")? - bytes);
    let sent: u64 = found.trials.iter().map(|trial| trial.sent).sum();
    let received: u64 = found.trials.iter().map(|trial| trial.received).sum();
    figure("best", found.best);
    ensure!(
        received <= packets && packets <= sent + 10,
        "sent {sent}, the interface had {packets}, received {received}"
    );
    // 512 bytes of IP packet, 14 of Ethernet; with a few ARP frames.
    let length = bytes as f64 / packets as f64;
    ensure!((525.5..526.5).contains(&length), "frames of {length} bytes");
    for trial in &found.trials {
        ensure!(trial.received <= trial.sent, "{trial:?}");
        ensure!(trial.rate <= trial.offered, "{trial:?}");
    }
    if let Some(best) = &found.best {
        ensure!(best.loss() <= packets::LOSS, "{best:?}");
    }
    Ok(())
}

fn packets_lost() -> Result<()> {
    let session = direct(&Link::Lossy { loss: 200 })?;
    let found = packets::measure(&session, 64, SendMode::Each)?;
    ensure!(found.best.is_none(), "with 2 % lost: {found:?}");
    ensure!(
        (0.01..0.03).contains(&found.least_loss()),
        "{} were lost of all, not 2 %: {found:?}",
        found.least_loss()
    );
    Ok(())
}

fn packets_limited() -> Result<()> {
    // Frames of 1,434 bytes: 1,743 a second at 20 Mbit/s.
    let session = direct(&Link::Limited { rate: 20_000_000 })?;
    for way in SendMode::ALL {
        let found = packets::measure(&session, 1420, way)?;
        let best = found.best.map(|best| best.rate);
        figure("of 1,743", best);
        // Within half a second, the burst of 128 kB adds up to 180 a second.
        ensure!(
            best.is_some_and(|rate| (1400.0..2000.0).contains(&rate)),
            "{way:?}: {found:?}"
        );
        ensure!(!found.limited_by_receiver(), "{way:?}: {found:?}");
    }
    Ok(())
}
