//! Two tunnels in a virtual machine.

use std::time::Duration;
use taupe_bench::results::Report;
use taupe_bench::tables::{fill, freebsd};
use taupe_lab::sandbox::{SystemTest, figure};
use taupe_lab::{Error, Result, ensure, guest};

pub(crate) fn tests() -> Vec<SystemTest> {
    let limit = guest::BOOT + Duration::from_secs(300);
    vec![SystemTest::new("tunnels_are_measured_inside_a_guest", tunnels_are_measured).limit(limit)]
}

fn tunnels_are_measured() -> Result<()> {
    let mut report = Report::default();
    // With one round the median is the figure of that round.
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
