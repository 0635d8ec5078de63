//! The part of a run that is measured now.

use super::plan::StepGroup;
use super::{Bench, RunEnd, replace, write_report};
use crate::options::Options;
use crate::parts::{self, CountedRoundTrips, NamedPart, Part};
use crate::results::Report;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;
use taupe_lab::console;
use taupe_lab::ensure;
use taupe_lab::error::Result;

/// Time for the start of a contestant. The estimates of steps do not include it.
const START: Duration = Duration::from_secs(2);

/// Factor by which a step may take longer than estimated.
const SLACK: f64 = 1.25;

/// The part that is measured now, and those before it.
pub(super) struct CurrentPart {
    limit: Duration,
    folder: PathBuf,
    path: PathBuf,
    earlier: Vec<NamedPart>,
    /// Groups of the earlier parts.
    done: BTreeSet<usize>,
    /// Name of each group of the run, and true if every part repeats it.
    groups: Vec<(String, bool)>,
    part: Part,
}

impl CurrentPart {
    /// Continues the parts in the folder of the options. Returns `None` for a run
    /// without parts.
    pub(super) fn open(
        options: &Options,
        groups: &[StepGroup],
        report: &Report,
    ) -> Result<Option<Self>> {
        let Some(seconds) = options.part else {
            return Ok(None);
        };
        let earlier = parts::read_folder(&options.out)?;
        parts::check_options(&earlier, options)?;
        let groups: Vec<(String, bool)> = groups
            .iter()
            .map(|group| (group.label.clone(), group.is_repeated))
            .collect();
        let measured = groups.iter().filter(|(_, is_repeated)| !is_repeated);
        let part = Part::new(options, measured.count(), report.clone());
        let current = Self {
            limit: Duration::from_secs(seconds.into()),
            folder: options.out.clone(),
            path: parts::next_path(&options.out)?,
            done: parts::done(&earlier),
            earlier,
            groups,
            part,
        };
        if !current.earlier.is_empty() {
            // The merge fails if the machine or the programs differ.
            parts::merge(&current.all())?;
            console::print(format_args!(
                "{} of {} groups of measurements are in earlier parts\n",
                current.done.len(),
                current.part.groups
            ));
        }
        Ok(Some(current))
    }

    /// Returns true if an earlier part has a group.
    pub(super) fn has(&self, group: usize) -> bool {
        self.number(group)
            .is_some_and(|group| self.done.contains(&group))
    }

    /// Returns true if the rest of the part is long enough for a group.
    ///
    /// # Errors
    ///
    /// [`Error::Unmet`](taupe_lab::Error::Unmet) if a part is too short for it.
    pub(super) fn has_time_for(
        &self,
        group: usize,
        elapsed: Duration,
        estimates: impl Iterator<Item = Duration>,
    ) -> Result<bool> {
        let Some((label, false)) = self.groups.get(group) else {
            return Ok(true);
        };
        let needed = estimates.map(|estimate| estimate.mul_f64(SLACK) + START);
        let needed: Duration = needed.sum();
        let fits = elapsed + needed <= self.limit;
        ensure!(
            fits || !self.part.done.is_empty(),
            "“{label}” takes up to {} s, but a part only {} s: name fewer --contestants, or more \
             --minutes",
            needed.as_secs(),
            self.limit.as_secs()
        );
        Ok(fits)
    }

    /// Returns the end of the run when the time of the part is over.
    pub(super) fn over(&self) -> RunEnd {
        RunEnd::PartOver {
            done: self.done.len() + self.part.done.len(),
            groups: self.part.groups,
        }
    }

    /// Writes the part with a group that was measured, and the report of all parts.
    pub(super) fn save(&mut self, group: usize, bench: &Bench) -> Result<()> {
        let (Some(number), Some((label, _))) = (self.number(group), self.groups.get(group)) else {
            return Ok(());
        };
        self.part.done.insert(number, label.clone());
        self.write(bench)
    }

    /// Marks the groups without steps as measured, at the end of the run. No contestant takes part
    /// in these groups.
    pub(super) fn finish(&mut self, bench: &Bench) -> Result<()> {
        let measured = self.groups.iter().filter(|(_, is_repeated)| !is_repeated);
        let missing: Vec<(usize, String)> = measured
            .enumerate()
            .filter(|(number, _)| {
                !self.done.contains(number) && !self.part.done.contains_key(number)
            })
            .map(|(number, (label, _))| (number, label.clone()))
            .collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.part.done.extend(missing);
        self.write(bench)
    }

    fn write(&mut self, bench: &Bench) -> Result<()> {
        self.part.report = bench.report.clone();
        self.part.report.distributions.clear();
        let round_trips = bench
            .round_trips
            .iter()
            .map(|((contestant, metric), found)| CountedRoundTrips::new(metric, contestant, found));
        self.part.round_trips = round_trips.collect();
        replace(&self.path, &self.part.text()?)?;
        write_report(&self.folder, &self.report()?)
    }

    /// Returns the report of all parts.
    pub(super) fn report(&self) -> Result<Report> {
        if self.part.done.is_empty() && !self.earlier.is_empty() {
            return parts::merge(&self.earlier);
        }
        parts::merge(&self.all())
    }

    fn all(&self) -> Vec<NamedPart> {
        let current = NamedPart {
            name: self.path.display().to_string(),
            part: self.part.clone(),
        };
        let earlier = self.earlier.iter().cloned();
        earlier.chain([current]).collect()
    }

    /// Returns the number of a group among the measured groups, or `None` if every part repeats it.
    fn number(&self, group: usize) -> Option<usize> {
        let (before, rest) = self.groups.split_at_checked(group)?;
        let (_, is_repeated) = rest.first()?;
        let measured = before.iter().filter(|(_, is_repeated)| !is_repeated);
        (!is_repeated).then(|| measured.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{RunKind, Section};

    fn groups() -> Vec<StepGroup> {
        let group = |label: &str, is_repeated| StepGroup {
            label: label.to_owned(),
            is_repeated,
        };
        vec![
            group("one", false),
            group("stop", true),
            group("two", false),
        ]
    }

    fn open() -> Result<CurrentPart> {
        let mut options = Options::new(RunKind::Bench, std::env::temp_dir());
        options.sections = vec![Section::Throughput];
        options.part = Some(60);
        let part = CurrentPart::open(&options, &groups(), &Report::default())?;
        part.ok_or_else(|| taupe_lab::Error::unmet("a part"))
    }

    #[test]
    fn repeated_groups_have_no_number() -> Result<()> {
        let part = open()?;
        assert_eq!(part.part.groups, 2);
        let numbers = [0, 1, 2, 3].map(|group| part.number(group));
        assert_eq!(numbers, [Some(0), None, Some(1), None]);
        Ok(())
    }

    #[test]
    fn a_part_ends_before_a_group_that_would_exceed_it() -> Result<()> {
        let mut part = open()?;
        let seconds = Duration::from_secs;
        // 1.25 × 20 s + 2 s each.
        let estimates = || [seconds(20); 2].into_iter();
        assert!(part.has_time_for(0, seconds(6), estimates())?);
        let error = part.has_time_for(0, seconds(7), estimates());
        let error = error.expect_err("nothing is done yet").to_string();
        assert!(
            error.starts_with("“one” takes up to 54 s, but a part only 60 s"),
            "{error}"
        );
        part.part.done.insert(0, "one".to_owned());
        assert!(!part.has_time_for(2, seconds(7), estimates())?);
        // Preparations take no time.
        assert!(part.has_time_for(1, seconds(59), estimates())?);
        assert_eq!(part.over(), RunEnd::PartOver { done: 1, groups: 2 });
        Ok(())
    }

    #[test]
    fn groups_of_earlier_parts_are_left_out() -> Result<()> {
        let mut part = open()?;
        part.done.insert(1);
        let has = [0, 1, 2].map(|group| part.has(group));
        assert_eq!(has, [false, false, true]);
        Ok(())
    }
}
