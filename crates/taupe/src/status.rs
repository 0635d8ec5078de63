//! Tunnels of chosen applications: how they are, and what their kernel's part has done.

use crate::capture::{Plan, meanwhile};
use crate::check;
use crate::conf::{self, Conf};
use crate::console::{NotPrinted, print};
use crate::{endpoints, families, root};
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use taupe_adapter::{Personality, State};
use taupe_config::file::{self, Dialect, Forwarded, Key};
use taupe_transparent::capture::in_effect;
use taupe_transparent::fault::Fault;
use taupe_transparent::programs::{Programs, Way};

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    NotRoot(#[from] root::Error),
    #[error(transparent)]
    Conf(#[from] conf::Error),
    #[error("{0} is not up for chosen applications (`taupe show` shows other tunnels)")]
    NotThere(String),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error(transparent)]
    Output(#[from] NotPrinted),
}

/// Shows one, or all there are.
pub(crate) fn main(file: Option<&OsStr>, arguments: &[OsString]) -> ExitCode {
    match run(file, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.is_unread() => crate::FAILED.into(),
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

fn run(file: Option<&OsStr>, arguments: &[OsString]) -> Result<(), Failure> {
    root::require(Personality::Taupe, arguments)?;
    let names = match file {
        // Whether or not there is a file any more.
        Some(word) => vec![match conf::interface(word) {
            Some(interface) => interface.to_string(),
            None => Conf::find(word, Personality::Taupe)?.interface.to_string(),
        }],
        // With a journal, or kept closed without.
        None => in_effect()?,
    };
    let mut text = String::new();
    for name in &names {
        text += &show(name)?;
    }
    if names.is_empty() {
        text = "no applications are chosen by any tunnel\n".into();
    }
    Ok(print(text.as_bytes())?)
}

fn show(interface: &str) -> Result<String, Failure> {
    let not_there = || Failure::NotThere(interface.to_owned());
    let programs = Programs::open(interface)?.ok_or_else(not_there)?;
    let (up, way) = (programs.is_up(), programs.way());
    let mut text = if up && way == Way::Marks {
        format!(
            "{interface}: up, for chosen applications, in adapter mode by the mark of sockets\n"
        )
    } else if up {
        format!("{interface}: up, for chosen applications\n")
    } else {
        let meanwhile = meanwhile(programs.lock(), interface);
        format!("{interface}: down; {meanwhile}\n")
    };
    let mut here = State::default().here().into_iter();
    if let Some(header) = here.find(|header| header.interface == interface) {
        text += &of_file(interface, &header.config);
    }
    let names = programs
        .guarded()?
        .into_iter()
        .filter_map(taupe_sys::interface::name);
    let names: Vec<_> = names.collect();
    if way == Way::Filters {
        let _ = writeln!(
            text,
            "  guarded links: {}",
            match names.as_slice() {
                [] => "none, so chosen applications reach nothing".to_owned(),
                names => names.join(", "),
            }
        );
    }
    for (reason, count) in programs.counts()? {
        if count > 0 {
            let _ = writeln!(text, "  {count} {}", reason.text());
        }
    }
    Ok(text)
}

/// What a tunnel's file says now.
fn of_file(interface: &str, path: &Path) -> String {
    let shown = path.display();
    let parsed = check::read(path).ok();
    let parsed = parsed.and_then(|text| file::parse(&text, Dialect::Taupe).file);
    let Some(mut file) = parsed else {
        return format!("  {shown} cannot be read or has errors (`taupe check`)\n");
    };
    let rules = &file.transparent.apps;
    let mut text = String::new();
    for (key, list) in [
        (Key::AllowedApps, &rules.allowed),
        (Key::DisallowedApps, &rules.disallowed),
    ] {
        for rule in list {
            let _ = writeln!(
                text,
                "  {shown}:{}: {} = {}",
                rule.line,
                key.name(),
                rule.application
            );
        }
    }
    if rules.is_empty() {
        let _ = writeln!(text, "  {shown} chooses no applications, so all use it");
    }
    if file.transparent.forwarded == Some(Forwarded::Tunnel) {
        let _ = writeln!(text, "  {shown}: what this machine forwards uses it too");
    }
    for sentence in endpoints::without_address(interface, &file) {
        let _ = writeln!(text, "  [!] {sentence}");
    }
    if let Ok(plan) = Plan::take(&mut file, None) {
        for sentence in families::without_route(&plan.choice.destinations) {
            let _ = writeln!(text, "  [!] {sentence}");
        }
    }
    text
}
