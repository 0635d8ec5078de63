//! Choosing applications: the file is edited, and a tunnel that is up follows it.

use crate::arguments::{AppAction, AppOrder, AppPlace};
use crate::capture::{Plan, Unsupported, user_id};
use crate::check::{self, Checked, check, check_text};
use crate::conf::{self, Conf};
use crate::console::{NotPrinted, print, say};
use crate::processes::{Subject, sockets};
use crate::{doubts, rivals, root};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;
use taupe_adapter::journal;
use taupe_adapter::{Access, Personality, SaveError, State, replace as replace_file};
use taupe_config::application::{AppRules, Application, Decision};
use taupe_config::file::edit::{with_application, without_application};
use taupe_config::file::{File, Key};
use taupe_transparent::capture::{is_in_effect, replace};
use taupe_transparent::fault::Fault;
use zeroize::Zeroizing;

/// How long another command may take that is at the same tunnel.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why nothing was changed, or not printed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    NotRoot(#[from] root::Error),
    #[error(transparent)]
    Conf(#[from] conf::Error),
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
    /// What they are has been said.
    #[error("{file} has {errors}; nothing was changed")]
    Wrong { file: String, errors: String },
    #[error("{file} would have {errors} then; nothing was changed")]
    WouldBeWrong { file: String, errors: String },
    #[error(
        "{file} has no entry {application}; `taupe app list` prints those that it has; nothing was \
         changed"
    )]
    NotThere {
        file: String,
        application: Application,
    },
    #[error("{file}: {problem}; nothing was changed")]
    Unsupported { file: String, problem: Unsupported },
    #[error(transparent)]
    Clash(#[from] rivals::Clash),
    #[error(transparent)]
    Journal(#[from] journal::Error),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error(transparent)]
    NotWritten(#[from] SaveError),
    #[error("{interface} cannot follow: {fault}; {file} and the tunnel are as they were")]
    NotReplaced {
        interface: String,
        file: String,
        fault: Box<Fault>,
    },
    #[error("{interface} cannot follow: {fault}; and {file} says so already: {error}")]
    HalfDone {
        interface: String,
        file: String,
        fault: Box<Fault>,
        error: Box<SaveError>,
    },
    #[error(transparent)]
    Output(#[from] NotPrinted),
}

/// Does it.
pub(crate) fn main(order: &AppOrder, arguments: &[OsString]) -> ExitCode {
    let outcome = match &order.action {
        AppAction::List => list(order),
        AppAction::Choose(place, applications) => root::require(Personality::Taupe, arguments)
            .map_err(Failure::from)
            .and_then(|()| choose(order, *place, applications)),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Output(error)) if error.is_unread() => crate::FAILED.into(),
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

/// Reads a file that is in order.
fn read(order: &AppOrder) -> Result<(Conf, Checked, File), Failure> {
    let conf = Conf::find(&order.file, Personality::Taupe)?;
    let mut checked = check(&conf, Personality::Taupe)?;
    match checked.file.take() {
        Some(file) => Ok((conf, checked, file)),
        None => {
            checked.remarks.iter().for_each(|remark| say(remark));
            Err(Failure::Wrong {
                file: conf.shown.display().to_string(),
                errors: check::count(&checked.remarks),
            })
        }
    }
}

fn choose(order: &AppOrder, place: AppPlace, applications: &[Application]) -> Result<(), Failure> {
    let conf = Conf::find(&order.file, Personality::Taupe)?;
    let interface = conf.interface.as_str();
    // Two at once would each write the other's away.
    let _lock = State::default().lock(interface, PATIENCE)?;
    let (conf, before, file) = read(order)?;
    let shown = || conf.shown.display().to_string();
    let edited = edit(&before.text, place, applications).map_err(|application| {
        let (file, application) = (shown(), application.clone());
        Failure::NotThere { file, application }
    })?;
    if *edited == *before.text {
        say(&format_args!("{} says so already", shown()));
        return Ok(());
    }
    let mut after = check_text(&conf, Personality::Taupe, edited);
    let new = |remark: &&check::Remark| !before.remarks.contains(remark);
    after
        .remarks
        .iter()
        .filter(new)
        .for_each(|remark| say(remark));
    let Some(mut wanted) = after.file.take() else {
        let errors = check::count(&after.remarks);
        let file = shown();
        return Err(Failure::WouldBeWrong { file, errors });
    };
    let rules = wanted.transparent.apps.clone();
    let plan = Plan::take(&mut wanted).map_err(|problem| {
        let file = shown();
        Failure::Unsupported { file, problem }
    })?;
    let is_up = is_in_effect(interface)?;
    if is_up && let Some(clash) = rivals::clash(interface, &conf.shown, &plan.choice.rules) {
        return Err(clash.into());
    }
    replace_file(&conf.path, &after.text, Access::Kept)?;
    if is_up && let Err(fault) = replace(interface, &plan.choice) {
        let (interface, file, fault) = (interface.to_owned(), shown(), Box::new(fault));
        return Err(match replace_file(&conf.path, &before.text, Access::Kept) {
            Ok(()) => Failure::NotReplaced {
                interface,
                file,
                fault,
            },
            Err(error) => Failure::HalfDone {
                interface,
                file,
                fault,
                error: Box::new(error),
            },
        });
    }
    tell(&conf, &file.transparent.apps, &rules, is_up);
    Ok(())
}

/// Puts applications into one list and takes them out of the other, or out of both.
/// The `Err` is the first that is in none.
fn edit<'a>(
    text: &[u8],
    place: AppPlace,
    applications: &'a [Application],
) -> Result<Zeroizing<Vec<u8>>, &'a Application> {
    let (into, out_of) = match place {
        AppPlace::Allowed => (Some(Key::AllowedApps), &[Key::DisallowedApps][..]),
        AppPlace::Disallowed => (Some(Key::DisallowedApps), &[Key::AllowedApps][..]),
        AppPlace::Nowhere => (None, &[Key::AllowedApps, Key::DisallowedApps][..]),
    };
    let mut text = Zeroizing::new(text.to_vec());
    for application in applications {
        let mut found = false;
        // In first: where it is the only one, its line is still there to be followed.
        if let Some(key) = into
            && without_application(&text, key, application).is_none()
        {
            text = with_application(&text, key, application);
        }
        for key in out_of {
            if let Some(rest) = without_application(&text, *key, application) {
                found = true;
                text = rest;
            }
        }
        if into.is_none() && !found {
            return Err(application);
        }
    }
    Ok(text)
}

/// Says what has come of it that one may not think of.
fn tell(conf: &Conf, before: &AppRules, after: &AppRules, is_up: bool) {
    let unnamed = |rules: &AppRules| match rules.allowed.is_empty() {
        true => Decision::Tunnel,
        false => Decision::Bypass,
    };
    match (unnamed(before), unnamed(after)) {
        (Decision::Tunnel, Decision::Bypass) => {
            say(&"[!] there are AllowedApps now: all other applications go past the tunnel");
        }
        (Decision::Bypass, Decision::Tunnel) => {
            say(
                &"[!] there are no AllowedApps any more: all applications that are not disallowed \
                  use the tunnel",
            );
        }
        _ => {}
    }
    let unknown = doubts::unknown_names(after);
    let is_new = |application: &&&Application| {
        let mut old = before.allowed.iter().chain(&before.disallowed);
        old.all(|rule| rule.application != ***application)
    };
    for application in unknown.iter().filter(is_new) {
        say(&format_args!(
            "[!] no program in PATH, /usr/lib or /opt is called {application}; what is so called \
             elsewhere is chosen all the same"
        ));
    }
    let interface = &conf.interface;
    if !is_up && State::default().of_running(interface.as_str()).is_some() {
        say(&format_args!(
            "[!] {interface} is up in adapter mode, for all applications: `taupe down` and `taupe up` \
             it"
        ));
    }
}

/// Prints the rules, and which processes each is about.
fn list(order: &AppOrder) -> Result<(), Failure> {
    let (conf, _, mut file) = read(order)?;
    let rules = &mut file.transparent.apps;
    // A user whom nobody knows runs nothing.
    let _ = rules.resolve_users(user_id);
    let (running, sockets) = (Subject::all(), sockets());
    let mut text = String::new();
    let lists = [
        (Key::AllowedApps, &rules.allowed),
        (Key::DisallowedApps, &rules.disallowed),
    ];
    for (key, list) in lists {
        for rule in list {
            let _ = writeln!(
                text,
                "{}:{}: {} = {}",
                conf.shown.display(),
                rule.line,
                key.name(),
                rule.application
            );
            // Of several rules the first one decides.
            let own = running.iter().filter(|subject| {
                let decided = rules.decide(&subject.process()).1;
                decided.is_some_and(|by| std::ptr::eq(by, rule))
            });
            for subject in own {
                let _ = writeln!(
                    text,
                    "    process {}, {}, {} sockets",
                    subject.id.unwrap_or_default(),
                    subject.shown_path(),
                    subject.count(&sockets)
                );
            }
        }
    }
    let _ = writeln!(
        text,
        "all others {}",
        match rules.allowed.is_empty() {
            true => "use the tunnel",
            false => "go past the tunnel",
        }
    );
    Ok(print(text.as_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edited(text: &str, place: AppPlace, applications: &[&str]) -> Option<String> {
        let applications = applications.iter().map(|text| text.parse());
        let applications: Result<Vec<_>, _> = applications.collect();
        let applications = applications.expect("applications");
        let text = edit(text.as_bytes(), place, &applications).ok()?;
        Some(String::from_utf8(text.to_vec()).expect("UTF-8"))
    }

    #[test]
    fn an_application_stands_in_one_list_at_most() {
        use AppPlace::{Allowed, Disallowed, Nowhere};
        let start = "[Interface]\n#@ws:AllowedApps = curl, wget\nMTU = 1420\n";
        for (place, applications, after) in [
            (Allowed, &["curl"][..], Some(start.to_owned())),
            (
                Disallowed,
                &["curl"],
                Some(
                    "[Interface]\n#@ws:AllowedApps = wget\n#@ws:DisallowedApps = curl\nMTU = 1420\n"
                        .into(),
                ),
            ),
            (
                Disallowed,
                &["curl", "wget"],
                Some("[Interface]\n#@ws:DisallowedApps = curl, wget\nMTU = 1420\n".into()),
            ),
            (
                Nowhere,
                &["wget", "curl"],
                Some("[Interface]\nMTU = 1420\n".into()),
            ),
            // One that is not there, and nothing is changed.
            (Nowhere, &["wget", "lynx"], None),
        ] {
            assert_eq!(edited(start, place, applications), after, "{applications:?}");
        }
    }
}
