//! The table `mobile`: bounds of its figures on machines of any speed.

use taupe_bench::contestant::{self, Contestant};
use taupe_bench::results::Report;
use taupe_bench::tables::mobile::{self, Preset};
use taupe_lab::sandbox::figure;
use taupe_lab::{Result, ensure};

pub(crate) fn table() -> Result<()> {
    let all = contestant::all();
    let part: Vec<&dyn Contestant> = all
        .iter()
        .map(AsRef::as_ref)
        .filter(|contestant| ["direct", "taupe"].contains(&contestant.id()))
        .collect();
    let mut report = Report::default();
    mobile::measure(Preset::Wifi, &part, 1, 1, &mut report);
    let failed = report
        .failures
        .iter()
        .filter(|failure| !failure.what.ends_with("/load"));
    let failed: Vec<_> = failed.collect();
    ensure!(failed.is_empty(), "{failed:?}");
    // Limits of the link, which no tunnel exceeds.
    let (rate, round_trip) = (5e6, 0.002);
    for id in ["direct", "taupe"] {
        let only = |key: &str| match report.samples(id, key) {
            [sample] => Ok(*sample),
            samples => Err(taupe_lab::Error::unmet(format!("{id} {key}: {samples:?}"))),
        };
        for metric in [Preset::down, Preset::up] {
            let found = only(&metric(Preset::Wifi).key)?;
            figure(id, found);
            ensure!(found > 0.0 && found <= rate, "{id}: {found} bit/s");
        }
        let mut times = vec![only(&Preset::Wifi.latency().key)?];
        let recovery = Preset::Wifi.recovery().key;
        if id == "direct" {
            ensure!(report.samples(id, &recovery).is_empty(), "{report:?}");
        } else {
            times.push(only(&recovery)?);
        }
        figure(id, &times);
        ensure!(
            times.iter().all(|time| *time >= round_trip),
            "{id}: a round trip in less than {round_trip} s: {times:?}"
        );
    }
    Ok(())
}
