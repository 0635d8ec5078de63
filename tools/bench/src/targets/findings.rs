//! The results of a report for all goals, and their table.

use crate::report::figure::digits;
use std::fmt;

/// The result of a report for one goal.
#[derive(Debug, Clone, PartialEq)]
pub struct Finding {
    /// Title of the goal.
    pub title: &'static str,
    /// Description of the figure it is compared with; empty if there is none.
    pub beside: String,
    /// The measured figure as text.
    pub measured: String,
    /// The figure it is compared with as text, if there is one.
    pub reference: Option<String>,
    /// The value that is compared with the bound.
    pub value: Option<f64>,
    /// The bound as text.
    pub bound: String,
    /// The verdict.
    pub verdict: Verdict,
}

/// Verdict on a goal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The goal is reached.
    Met,
    /// The goal is missed; with a reason if something other than the tunnel may be the cause.
    Missed(Option<String>),
    /// The report cannot tell; with the reason.
    NotMeasured(String),
}

/// The results of a report for all goals.
#[derive(Debug, Clone, PartialEq)]
pub struct Findings(pub Vec<Finding>);

impl Findings {
    /// Returns true if a goal is missed.
    pub fn any_missed(&self) -> bool {
        let missed = |finding: &Finding| matches!(finding.verdict, Verdict::Missed(_));
        self.0.iter().any(missed)
    }
}

impl fmt::Display for Findings {
    /// Writes a table for a terminal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = ["", "Taupe", "beside", "", "ratio", "target", ""];
        let mut lines = vec![head.map(str::to_owned)];
        lines.extend(self.0.iter().map(Finding::cells));
        let width = |column: usize| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..head.len()).map(width).collect();
        for line in &lines {
            let cells = line.iter().zip(&widths).enumerate();
            let cells = cells.map(|(column, (cell, width))| match column {
                // Words are left-aligned, figures right-aligned.
                0 | 3 | 6 => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            });
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        let count = |what: fn(&Verdict) -> bool| {
            let verdicts = self.0.iter().map(|finding| &finding.verdict);
            verdicts.filter(|verdict| what(verdict)).count()
        };
        writeln!(
            f,
            "{} met, {} missed, {} not measured",
            count(|verdict| *verdict == Verdict::Met),
            count(|verdict| matches!(verdict, Verdict::Missed(_))),
            count(|verdict| matches!(verdict, Verdict::NotMeasured(_))),
        )
    }
}

impl Finding {
    fn cells(&self) -> [String; 7] {
        let verdict = match &self.verdict {
            Verdict::Met => "met".to_owned(),
            Verdict::Missed(None) => "missed".to_owned(),
            Verdict::Missed(Some(why)) => format!("missed ({why})"),
            Verdict::NotMeasured(why) => format!("not measured ({why})"),
        };
        let ratio = self.value.filter(|_| !self.beside.is_empty());
        [
            self.title.to_owned(),
            self.measured.clone(),
            self.reference.clone().unwrap_or_default(),
            self.beside.clone(),
            ratio.map(digits).unwrap_or_default(),
            self.bound.clone(),
            verdict,
        ]
    }
}
