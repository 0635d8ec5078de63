//! `taupe explain`: prints step by step how an application's packets are routed.

use crate::arguments::ExplainOrder;
use crate::console::print;
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;
use taupe_adapter::Compatibility;
use taupe_inspect::advice;
use taupe_inspect::conf::Conf;
use taupe_inspect::destination::Destination;
use taupe_inspect::explain::{
    ExplainError, Explainer, Step, addresses, effect_of_down, files_of_tunnels, script_warning,
};
use taupe_inspect::json;
use taupe_inspect::processes::Subject;

/// Prints the explanation to standard output.
pub(crate) fn main(order: &ExplainOrder) -> ExitCode {
    match run(order) {
        Ok(text) => crate::exit(print(text.as_bytes()), ExitCode::SUCCESS),
        Err(failure) => crate::complain(&with_advice(&failure), crate::FAILED),
    }
}

/// Returns the error of an explanation, with advice.
pub(crate) fn with_advice(error: &ExplainError) -> String {
    match error {
        ExplainError::Wrong(_) => format!("{error}; `taupe check` lists them"),
        ExplainError::NoTunnel => format!("{error}; --conf CONF explains the effect of a file"),
        ExplainError::Locked(_) => format!("{error}; name the file with --conf CONF"),
        ExplainError::NotRoot => {
            format!("{error}; run it with sudo, or name a file with --conf CONF")
        }
        ExplainError::Fault(error) => advice::error(error),
        error => error.to_string(),
    }
}

/// Content of `taupe explain --json`.
#[derive(Serialize)]
struct Explanation {
    schema: u32,
    /// Names the sender and the destination of the packets.
    packets: String,
    warning: Option<String>,
    tunnels: Vec<TunnelExplanation>,
}

#[derive(Serialize)]
struct TunnelExplanation {
    interface: String,
    file: String,
    warning: Option<String>,
    steps: Vec<Step>,
}

fn run(order: &ExplainOrder) -> Result<String, ExplainError> {
    let explanation = explain(order)?;
    Ok(match order.json {
        true => json::text(&explanation),
        false => text(&explanation, order.file.is_none()),
    })
}

fn explain(order: &ExplainOrder) -> Result<Explanation, ExplainError> {
    let subject = order.application.as_deref().map(Subject::find);
    let subject = subject.transpose()?;
    let files = match &order.file {
        Some(word) => vec![Conf::find(word, Compatibility::Taupe)?],
        None => files_of_tunnels()?,
    };
    let addresses = addresses()?;
    let tunnels = files.iter().map(|conf| {
        let explainer = Explainer::read(conf)?;
        Ok(TunnelExplanation {
            interface: conf.interface.to_string(),
            file: conf.shown.display().to_string(),
            warning: effect_of_down(conf.interface.as_str()),
            steps: explainer.steps(subject.as_ref(), order.destination, &addresses),
        })
    });
    Ok(Explanation {
        schema: 1,
        packets: introduce(subject.as_ref(), order.destination),
        warning: subject
            .as_ref()
            .and_then(script_warning)
            .map(|warning| format!("{warning}; the following is for a program at this path")),
        tunnels: tunnels.collect::<Result<_, ExplainError>>()?,
    })
}

fn text(explanation: &Explanation, is_one_of_several: bool) -> String {
    let mut text = format!("{}:\n", explanation.packets);
    if let Some(warning) = &explanation.warning {
        let _ = writeln!(text, "[!] {warning}");
    }
    for tunnel in &explanation.tunnels {
        if is_one_of_several {
            let _ = writeln!(text, "{} ({}):", tunnel.interface, tunnel.file);
        }
        if let Some(warning) = &tunnel.warning {
            let _ = writeln!(text, "[!] {warning}");
        }
        for (number, step) in (1..).zip(&tunnel.steps) {
            let _ = writeln!(text, "{number}  {step}");
            if step.decides && number < tunnel.steps.len() {
                let _ = writeln!(
                    text,
                    "      decided; without this decision, the following steps would apply:"
                );
            }
        }
    }
    text
}

/// Names the sender and the destination of the explained packets.
fn introduce(subject: Option<&Subject>, to: Option<Destination>) -> String {
    let to = to.map_or_else(String::new, |to| format!(" to {to}"));
    let Some(subject) = subject else {
        return format!("packets that this machine forwards{to}");
    };
    let who = match subject.id {
        Some(id) => format!("process {id}, {},", subject.shown_path()),
        None => format!("{}, started from here", subject.shown_path()),
    };
    format!(
        "{who} as user {} in the control group {}{to}",
        subject.uid,
        subject.shown_cgroup()
    )
}
