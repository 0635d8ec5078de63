//! `taupe flows`: lists flows as text or as JSON, once or continuously.

mod follow;

use crate::arguments::FlowsOrder;
use crate::console::{NotPrinted, print, say};
use crate::progress_line::LongCommand;
use crate::root;
use std::ffi::OsStr;
use std::ffi::OsString;
use std::process::ExitCode;
use taupe_adapter::Compatibility;
use taupe_inspect::advice;
use taupe_inspect::flows::{self, Flow, Flows, Verdict};
use taupe_inspect::json;
use taupe_transparent::error::TransparentError;

/// Reason why nothing is listed.
#[derive(Debug, thiserror::Error)]
enum FlowsCommandError {
    #[error(transparent)]
    NotRoot(#[from] root::RootError),
    #[error("{}", with_advice(.0))]
    Flows(#[from] flows::FlowsError),
    #[error(transparent)]
    Output(#[from] NotPrinted),
}

/// Sentence for a truncated list.
pub(crate) const INCOMPLETE: &str = "the list is incomplete: there are more flows";

/// Reason for the path of a flow that nothing decides about.
pub(crate) const NO_REASON: &str = "no tunnel applies";

/// Returns the error of reading flows, with advice.
pub(crate) fn with_advice(error: &flows::FlowsError) -> String {
    match error {
        flows::FlowsError::NotUp(_) => {
            format!("{error}; `taupe status` lists the tunnels that are")
        }
        flows::FlowsError::Fault(error) => advice::error(error),
        error => error.to_string(),
    }
}

/// Lists flows, once or until a signal.
pub(crate) fn main(order: &FlowsOrder, arguments: &[OsString]) -> ExitCode {
    match run(order, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(FlowsCommandError::Output(error)) if error.is_broken_pipe() => crate::FAILED.into(),
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

/// Reads all flows, and prints which tunnels cannot be read.
pub(crate) fn look(file: Option<&OsStr>) -> Result<Flows, flows::FlowsError> {
    flows::look(file, &mut |fault: &TransparentError| {
        say(&format_args!("[!] {}", advice::error(fault)))
    })
}

fn run(order: &FlowsOrder, arguments: &[OsString]) -> Result<(), FlowsCommandError> {
    root::require(Compatibility::Taupe, arguments)?;
    let long = LongCommand::begin("listing flows");
    let all = look(order.file.as_deref())?;
    drop(long);
    if order.follow {
        return match follow::follow(order, all) {
            // The reader ended the output, which is the usual end of `--follow`.
            Err(error) if error.is_broken_pipe() => Ok(()),
            followed => Ok(followed?),
        };
    }
    let text = match order.json {
        true => json::text(&all),
        false => text(&all),
    };
    Ok(print(text.as_bytes())?)
}

/// Formats flows as text.
pub(crate) fn text(flows: &Flows) -> String {
    if flows.flows.is_empty() {
        return "no connections\n".into();
    }
    let mut text: String = flows
        .flows
        .iter()
        .map(|flow| format!("{}\n", line(flow)))
        .collect();
    if flows.truncated {
        text += &format!("[!] {INCOMPLETE}\n");
    }
    text
}

/// Formats a flow as one line.
pub(crate) fn line(flow: &Flow) -> String {
    let who = match (&flow.application, flow.pid) {
        (Some(application), Some(pid)) => format!("{application} ({pid})"),
        _ => "no process".into(),
    };
    let verdict = match (flow.verdict, &flow.tunnel) {
        (Verdict::Tunnel, Some(tunnel)) => format!("tunnel {tunnel}"),
        (Verdict::Tunnel, None) => "tunnel".into(),
        (Verdict::Direct, _) => "direct".into(),
        (Verdict::Refused, _) => "refused".into(),
    };
    let to = flow.remote.map_or("anywhere".into(), |to| to.to_string());
    let bytes = match (flow.sent_bytes, flow.received_bytes) {
        (Some(sent), Some(received)) => format!("{sent} B out, {received} B in"),
        _ => "bytes not counted".into(),
    };
    let why = flow.why.as_deref().unwrap_or(NO_REASON);
    format!(
        "{verdict}: {who} {} {} -> {to}, {bytes}: {why}",
        flow.protocol, flow.local
    )
}
