//! What becomes of an application's packets, or of what is forwarded, and why: the order
//! of decisions, with the one that applies.

mod application;
mod destinations;
mod known;
mod questions;
mod steps;

use crate::arguments::{Destination, ExplainOrder};
use crate::capture::meanwhile;
use crate::check;
use crate::conf::{self, Conf};
use crate::console::print;
use crate::executables::interpreter;
use crate::processes::{NoSubject, Subject};
use crate::root;
pub(crate) use known::{Known, addresses, is_neighbour};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::ExitCode;
use taupe_adapter::{Personality, State};
use taupe_config::application::Doubt;
use taupe_os_linux::netlink::SystemError;
use taupe_transparent::capture::in_effect;
use taupe_transparent::fault::Fault;
use taupe_transparent::programs::Programs;

/// Why nothing was explained.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Conf(#[from] conf::Error),
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
    #[error("{0} has errors (`taupe check` says which)")]
    Wrong(String),
    #[error(transparent)]
    NoSubject(#[from] NoSubject),
    #[error("cannot ask for the addresses of this host: {0}")]
    System(#[from] SystemError),
    #[error(
        "no tunnel that chooses applications is there, so all goes where this system's routes lead; \
         --conf CONF explains what a file would do"
    )]
    NoTunnel,
    #[error(
        "{0} is locked, and which file it is locked by is written nowhere; --conf CONF says which"
    )]
    Locked(String),
    #[error("which tunnels choose applications only root can see: {0}; --conf CONF names a file")]
    NotRoot(#[from] root::Error),
    #[error(transparent)]
    Fault(#[from] Fault),
}

/// Explains it on standard output.
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
        Some(word) => vec![Conf::find(word, Personality::Taupe)?],
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

/// The files of all tunnels here that choose applications, whether they are up or held
/// back.
fn of_tunnels() -> Result<Vec<Conf>, Failure> {
    root::require(Personality::Taupe, &[])?;
    let names = in_effect()?;
    let headers = State::default().here();
    let file = |name: &String| {
        let written_down = headers.iter().find(|header| header.interface == *name);
        let Some(header) = written_down else {
            // Locked without a tunnel: by its name, most likely.
            return Conf::find(OsStr::new(name), Personality::Taupe).ok();
        };
        Some(Conf {
            interface: header.interface.parse().ok()?,
            path: header.config.clone(),
            shown: header.config.clone(),
        })
    };
    let files: Vec<_> = names.iter().filter_map(file).collect();
    match (files.is_empty(), names.first()) {
        (false, _) => Ok(files),
        (true, Some(name)) => Err(Failure::Locked(name.clone())),
        (true, None) => Err(Failure::NoTunnel),
    }
}

/// What holds now whatever the file says: its tunnel is not up, and locked. Who may not
/// look is not told.
fn closed(interface: &str) -> Option<String> {
    let programs = Programs::open(interface).ok()??;
    (!programs.is_up()).then(|| {
        let meanwhile = meanwhile(programs.lock(), interface);
        format!("{interface} is down: {meanwhile}")
    })
}

/// Who is asked about.
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

/// A script does not run itself.
fn doubt(subject: &Subject) -> Option<Doubt> {
    let path = Path::new(OsStr::from_bytes(&subject.path));
    let interpreter = subject.id.is_none().then(|| interpreter(path))??;
    Some(Doubt::NameOfScript {
        path: subject.shown_path(),
        interpreter,
    })
}

#[cfg(test)]
mod tests;
