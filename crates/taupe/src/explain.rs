//! `taupe explain`: prints step by step how an application's packets are routed.

use crate::arguments::ExplainOrder;
use crate::console::print;
use std::fmt::Write as _;
use std::process::ExitCode;
use taupe_adapter::Compatibility;
use taupe_inspect::conf::Conf;
use taupe_inspect::destination::Destination;
use taupe_inspect::explain::{Failure, Known, addresses, closed, doubt, of_tunnels};
use taupe_inspect::processes::Subject;

/// Prints the explanation to standard output.
pub(crate) fn main(order: &ExplainOrder) -> ExitCode {
    match run(order) {
        Ok(text) => crate::exit(print(text.as_bytes()), ExitCode::SUCCESS),
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

fn run(order: &ExplainOrder) -> Result<String, Failure> {
    let subject = order.application.as_deref().map(Subject::find);
    let subject = subject.transpose()?;
    let mut text = format!("{}\n", introduce(subject.as_ref(), order.destination));
    if let Some(doubt) = subject.as_ref().and_then(doubt) {
        let _ = writeln!(
            text,
            "[!] {doubt}; what follows is for a program at this path"
        );
    }
    let files = match &order.file {
        Some(word) => vec![Conf::find(word, Compatibility::Taupe)?],
        None => of_tunnels()?,
    };
    let (addresses, is_one_of_several) = (addresses()?, order.file.is_none());
    for conf in &files {
        let known = Known::read(conf)?;
        if is_one_of_several {
            let _ = writeln!(text, "{} ({}):", conf.interface, conf.shown.display());
        }
        if let Some(sentence) = closed(conf.interface.as_str()) {
            let _ = writeln!(text, "[!] {sentence}");
        }
        let steps = known.steps(subject.as_ref(), order.destination, &addresses);
        for (number, step) in (1..).zip(&steps) {
            let _ = writeln!(text, "{number}  {step}");
            if step.decides && number < steps.len() {
                let _ = writeln!(
                    text,
                    "      decided; without that, what follows would count:"
                );
            }
        }
    }
    Ok(text)
}

/// Names the sender and the destination of the explained packets.
fn introduce(subject: Option<&Subject>, to: Option<Destination>) -> String {
    let to = to.map_or_else(String::new, |to| format!(" to {to}"));
    let Some(subject) = subject else {
        return format!("what this machine forwards for others{to}:");
    };
    let who = match subject.id {
        Some(id) => format!("process {id}, {},", subject.shown_path()),
        None => format!("{}, started from here", subject.shown_path()),
    };
    format!(
        "{who} as user {} in the control group {}{to}:",
        subject.uid,
        subject.shown_cgroup()
    )
}
