use super::*;
use crate::measure::latency::RoundTrips;
use crate::options::{RunKind, Section};
use crate::results::{Better, Failure, Metric, Unit};

fn options() -> Options {
    let mut options = Options::new(RunKind::Bench, "/somewhere".into());
    options.sections = vec![Section::Throughput];
    options.part = Some(480);
    options
}

fn metric() -> Metric {
    Metric::new("tcp/1/up", "TCP up", Unit::BitsPerSecond, Better::Higher)
}

fn entry(id: &str, version: Option<&str>, unavailable: Option<&str>) -> Entry {
    Entry {
        id: id.to_owned(),
        title: id.to_owned(),
        version: version.map(str::to_owned),
        unavailable: unavailable.map(str::to_owned),
    }
}

/// A part with the groups `from` to `to` of five, and a sample for each of them.
fn part(name: &str, from: usize, to: usize) -> NamedPart {
    let mut report = Report {
        started: format!("2020-01-0{}T00:00:00Z", from + 1),
        seconds: 100.0,
        contestants: vec![entry("direct", None, None), entry("taupe", Some("1"), None)],
        ..Report::default()
    };
    report.machine.cores = 16;
    for group in from..=to {
        report.record("taupe", &metric(), group as f64);
    }
    let mut part = Part::new(&options(), 5, report);
    part.done = (from..=to)
        .map(|group| (group, format!("round {group}")))
        .collect();
    let round_trips = RoundTrips {
        answered: vec![1e-3; 100],
        lost: 1,
    };
    let counted = CountedRoundTrips::new("latency/idle", "taupe", &round_trips);
    part.round_trips.push(counted);
    NamedPart {
        name: name.to_owned(),
        part,
    }
}

fn refusal(parts: &[NamedPart]) -> String {
    merge(parts).map_or_else(|error| error.to_string(), |report| format!("{report:?}"))
}

#[test]
fn parts_are_joined_in_the_order_of_the_run() -> Result<()> {
    let parts = [part("b", 2, 3), part("a", 0, 1)];
    let report = merge(&parts)?;
    assert_eq!(report.samples("taupe", "tcp/1/up"), [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(report.started, "2020-01-01T00:00:00Z");
    assert!(!report.complete, "a group is missing");
    assert_eq!(report.seconds, 200.0);
    assert_eq!(report.metrics, [metric()]);
    let [distribution] = &report.distributions[..] else {
        panic!("{:?}", report.distributions);
    };
    assert_eq!((distribution.count, distribution.lost), (202, 2));
    let parts = [part("c", 4, 4), parts[0].clone(), parts[1].clone()];
    assert!(merge(&parts)?.complete);
    Ok(())
}

#[test]
fn a_part_without_results_changes_nothing() -> Result<()> {
    let mut empty = part("empty", 0, 0);
    empty.part.done.clear();
    empty.part.report.series.clear();
    empty.part.report.metrics.clear();
    empty.part.round_trips.clear();
    let report = merge(&[empty, part("a", 0, 4)])?;
    assert!(report.complete);
    assert_eq!(report.samples("taupe", "tcp/1/up").len(), 5);
    Ok(())
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    assert_eq!(refusal(&[]), "there are no parts to join");
    let one = part("one.json", 0, 1);
    let overlapping = refusal(&[one.clone(), part("two.json", 1, 2)]);
    assert_eq!(
        overlapping,
        "one.json and two.json both have “round 1”: leave one of them out"
    );
    let mut other = part("two.json", 2, 3);
    other.part.options.seconds += 1;
    assert!(refusal(&[one.clone(), other]).contains("different options"));
    let mut other = part("two.json", 2, 3);
    other.part.report.machine.cores = 2;
    let reason = refusal(&[one.clone(), other]);
    assert!(
        reason.contains("16 cores") && reason.contains("2 cores"),
        "{reason}"
    );
    let mut other = part("two.json", 2, 3);
    other.part.report.contestants[1].version = Some("2".to_owned());
    let reason = refusal(&[one, other]);
    assert!(
        reason.contains("two.json has version 2 of taupe"),
        "{reason}"
    );
}

#[test]
fn a_contestant_that_could_run_once_is_available() -> Result<()> {
    let mut first = part("one", 0, 0);
    first.part.report.contestants[1] = entry("taupe", None, Some("not installed"));
    first.part.report.failures.push(Failure {
        what: "tcp/1/up".to_owned(),
        contestant: "taupe".to_owned(),
        reason: "it ended".to_owned(),
    });
    let mut second = part("two", 1, 1);
    second
        .part
        .report
        .contestants
        .push(entry("kernel", Some("6"), None));
    let report = merge(&[first, second])?;
    let entries: Vec<_> = report
        .contestants
        .iter()
        .map(|entry| (&*entry.id, entry.unavailable.is_none()))
        .collect();
    assert_eq!(
        entries,
        [("direct", true), ("taupe", true), ("kernel", true)]
    );
    assert_eq!(report.failures.len(), 1);
    Ok(())
}

#[test]
fn a_run_goes_on_only_with_its_own_options() {
    let parts = [part("part-01.json", 0, 2), part("part-02.json", 3, 3)];
    assert_eq!(done(&parts), [0, 1, 2, 3].into());
    assert!(check_options(&parts, &options()).is_ok());
    let mut other = options();
    other.out = "/elsewhere".into();
    other.part = Some(60);
    assert!(check_options(&parts, &other).is_ok());
    other.rounds += 1;
    let error = check_options(&parts, &other).expect_err("another run");
    assert!(
        error
            .to_string()
            .starts_with("part-01.json is part of a run with other")
    );
}

#[test]
fn files_are_read_as_they_are_written() -> Result<()> {
    let folder = std::env::temp_dir().join(format!("taupe-parts-{}", std::process::id()));
    fs::create_dir_all(&folder).map_err(Error::io("a folder"))?;
    let result = in_folder(&folder);
    fs::remove_dir_all(&folder).map_err(Error::io("a folder"))?;
    result
}

fn in_folder(folder: &Path) -> Result<()> {
    let write = |path: &Path, text: &str| fs::write(path, text).map_err(Error::io("a file"));
    assert_eq!(read_folder(folder)?, []);
    assert!(read_all(&[folder.to_owned()]).is_err());
    let parts = [part("", 0, 1).part, part("", 2, 4).part];
    for part in &parts {
        write(&next_path(folder)?, &part.text()?)?;
    }
    for other in [
        "part-x.json",
        "part-.json",
        "report.json",
        "part-03.txt",
        "part-+4.json",
    ] {
        write(&folder.join(other), "{}")?;
    }
    let found = read_folder(folder)?;
    let contents: Vec<&Part> = found.iter().map(|named| &named.part).collect();
    assert_eq!(contents, [&parts[0], &parts[1]]);
    assert!(
        found[1].name.ends_with("/part-02.json"),
        "{}",
        found[1].name
    );
    assert_eq!(next_path(folder)?, folder.join("part-03.json"));
    // Numbers count, not letters.
    write(&folder.join("part-100.json"), &parts[0].text()?)?;
    write(&folder.join("part-11.json"), &parts[0].text()?)?;
    let names = file_names(folder)?;
    assert_eq!(names[2..], ["part-11.json", "part-100.json"]);
    let files = [folder.join("part-01.json"), folder.join("part-02.json")];
    assert!(merge(&read_all(&files)?)?.complete);
    Ok(())
}

#[test]
fn malformed_files_are_refused() -> Result<()> {
    let text = part("", 0, 1).part.text()?;
    assert!(Part::parse(&text).is_ok());
    for end in 0..text.len() {
        if text.is_char_boundary(end) {
            assert!(Part::parse(&text[..end]).is_err(), "cut at {end}");
        }
    }
    for (from, to, reason) in [
        (
            "{\"format\":1",
            "{\"format\":2",
            "use the taupe-lab that wrote it",
        ),
        ("\"groups\":5", "\"groups\":1", "more groups than the 1"),
        ("\"groups\":5", "\"groups\":-1", "not a part of a run"),
    ] {
        assert!(text.contains(from), "{from} in {text}");
        let error = Part::parse(&text.replacen(from, to, 1)).expect_err(to);
        assert!(error.contains(reason), "{error}");
    }
    Ok(())
}
