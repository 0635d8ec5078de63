//! `taupe app`: edits the lists of applications in a file. A tunnel that is up follows the change.

mod lists;

use crate::arguments::{AppAction, AppOrder, AppPlace};
use crate::capture::{Selection, UnsupportedSetting};
use crate::console::{NotPrinted, print, say};
use crate::progress_line::LongCommand;
use crate::remarks::with_command;
use crate::{app_conflicts, root, tunnel};
use lists::{ListError, edit};
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::fmt::{self, Display, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use taupe_adapter::journal::{Journal, JournalError, Lock};
use taupe_adapter::{Access, Compatibility, Namespace, SaveError, State, replace as replace_file};
use taupe_config::application::{AppWarning, Application};
use taupe_config::file::{DiagnosticKind, File, Key};
use taupe_inspect::advice::remedy;
use taupe_inspect::app_matcher::AppMatcher;
use taupe_inspect::check::{self, Checked, Remark, check, check_text};
use taupe_inspect::conf::{self, Conf};
use taupe_inspect::executables::in_path;
use taupe_inspect::json;
use taupe_inspect::processes::{Subject, sockets};
use taupe_inspect::rules::resolved;
use taupe_inspect::tunnel::find_file;
use taupe_transparent::capture::{is_in_effect, replace};
use taupe_transparent::error::TransparentError;
use taupe_transparent::marks::mark_of;

/// Time to wait for another command that works on the same tunnel.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reason why nothing was changed or printed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AppError {
    #[error(transparent)]
    NotRoot(#[from] root::RootError),
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
    /// The errors have been printed.
    #[error("{file} has {errors}; nothing was changed")]
    Wrong { file: String, errors: String },
    #[error("after this edit, {file} would have {errors}; nothing was changed")]
    WouldBeWrong { file: String, errors: String },
    #[error("{0}; nothing was changed")]
    ProcessId(ProcessId),
    #[error("{file}: {why}; nothing was changed")]
    Refused { file: String, why: ListError },
    #[error(
        "{interface} was brought up from {}, not from {file}; give that file, or `taupe reload \
         {file}` first; nothing was changed", .running.display()
    )]
    OtherFile {
        interface: String,
        file: String,
        running: PathBuf,
    },
    #[error(
        "{file} has been edited since {interface} was brought up or reloaded; `taupe reload \
         {file}` first; nothing was changed"
    )]
    Edited { interface: String, file: String },
    #[error("{file}: {problem}; nothing was changed")]
    Unsupported {
        file: String,
        problem: UnsupportedSetting,
    },
    #[error("{0}; nothing was changed")]
    Conflict(#[from] app_conflicts::AppConflict),
    #[error("{}", tunnel::advice::journal(.0))]
    Journal(#[from] JournalError),
    #[error("{}", taupe_inspect::advice::error(.0))]
    Fault(#[from] TransparentError),
    #[error(transparent)]
    NotWritten(#[from] SaveError),
    #[error(
        "cannot apply the edit to {interface}: {fault}; {file} and the tunnel are unchanged{}",
        after_restoring(.fault)
    )]
    NotReplaced {
        interface: String,
        file: String,
        fault: Box<TransparentError>,
    },
    #[error("cannot apply {file} to {interface}: {fault}; {}", to_apply(.file, .fault))]
    NotFollowed {
        interface: String,
        file: String,
        fault: Box<TransparentError>,
    },
    #[error(
        "cannot apply the edit to {interface}: {fault}; and cannot restore {left}; {}",
        to_apply(.file, .fault)
    )]
    HalfDone {
        interface: String,
        file: String,
        fault: Box<TransparentError>,
        left: String,
    },
    #[error(transparent)]
    Output(#[from] NotPrinted),
}

/// Returns advice, after a semicolon, for a tunnel that keeps its old rules and file.
fn after_restoring(fault: &TransparentError) -> String {
    remedy(fault).map_or_else(String::new, |remedy| format!("; {remedy}"))
}

/// Returns advice for a tunnel whose rules differ from its file.
fn to_apply(file: &str, fault: &TransparentError) -> String {
    let reload = format!("to try again, `taupe reload {file}`");
    remedy(fault).map_or(reload.clone(), |remedy| format!("{remedy}; {reload}"))
}

pub(crate) fn main(order: &AppOrder, arguments: &[OsString]) -> ExitCode {
    let outcome = match &order.action {
        AppAction::List { json } => list(order, *json),
        AppAction::Edit(place, applications) => {
            let _long = LongCommand::begin("changing the selected applications");
            root::require(Compatibility::Taupe, arguments)
                .map_err(AppError::from)
                .and_then(|()| edit_file(&order.file, *place, applications, &mut say))
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(AppError::Output(error)) if error.is_broken_pipe() => crate::FAILED.into(),
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

/// Reads a file, and fails if it has errors.
fn read(conf: &Conf, tell: Tell<'_>) -> Result<(Checked, File), AppError> {
    let mut checked = check(conf, Compatibility::Taupe)?;
    match checked.file.take() {
        Some(file) => Ok((checked, file)),
        None => {
            checked
                .remarks
                .iter()
                .for_each(|remark| tell(&with_command(remark)));
            Err(AppError::Wrong {
                file: conf.shown.display().to_string(),
                errors: check::count(&checked.remarks),
            })
        }
    }
}

/// Receives sentences about a change while it is made.
type Tell<'a> = &'a mut dyn FnMut(&dyn Display);

/// Puts applications into one list of a file, or into none. A tunnel that is up follows the change.
pub(crate) fn edit_file(
    file: &OsStr,
    place: AppPlace,
    applications: &[Application],
    tell: Tell<'_>,
) -> Result<(), AppError> {
    let conf = find_file(file)?;
    let interface = conf.interface.as_str();
    let shown = || conf.shown.display().to_string();
    let refused = |why| AppError::Refused { file: shown(), why };
    if place != AppPlace::Nowhere
        && let Some(number) = applications.iter().find_map(process_id)
    {
        return Err(AppError::ProcessId(number));
    }
    // The lock keeps two commands from overwriting each other's edit.
    let lock = State::default().lock(interface, PATIENCE)?;
    let is_up = is_in_effect(interface)?;
    let mut journal = if is_up {
        open_journal(&lock, &conf)?
    } else {
        None
    };
    let (before, mut file) = read(&conf, tell)?;
    let edited = edit(&before.text, place, applications).map_err(refused)?;
    let is_other = *edited != *before.text;
    let chose = file.transparent.first.is_some();
    if let ([first, ..], AppPlace::Allowed, false, false) = (applications, place, is_other, chose) {
        return Err(refused(ListError::AllAllowed(first.clone())));
    }
    let mut after = check_text(&conf, Compatibility::Taupe, edited);
    let news = new_remarks(&before.remarks, &after.remarks);
    news.iter().for_each(|remark| tell(&with_command(remark)));
    let Some(mut wanted) = after.file.take() else {
        let errors = check::count(&after.remarks);
        let file = shown();
        return Err(AppError::WouldBeWrong { file, errors });
    };
    if chose && wanted.transparent.first.is_none() {
        return Err(refused(ListError::NoneSelected));
    }
    let selection = Selection::take(&mut wanted, &conf.path, mark_of(interface)?);
    let selection = selection.map_err(|problem| {
        let file = shown();
        AppError::Unsupported { file, problem }
    })?;
    let plan = selection.plan;
    if is_up {
        app_conflicts::check(interface, &conf.shown, &plan.choice.rules)?;
    }
    if is_other {
        write(&conf, &after.text, &mut journal)?;
        let names: Vec<_> = applications.iter().map(ToString::to_string).collect();
        let what = match (place, news.iter().any(|remark| is_without_effect(remark))) {
            (AppPlace::Allowed, false) => "may use the tunnel",
            (AppPlace::Allowed, true) => "is in AllowedApps; see the warning",
            (AppPlace::Disallowed, false) => "bypasses the tunnel",
            (AppPlace::Disallowed, true) => "is in DisallowedApps; see the warning",
            (AppPlace::Nowhere, _) => "is removed from both lists",
        };
        tell(&format_args!("{}: {} {what}", shown(), names.join(", ")));
    } else {
        tell(&format_args!("{} needs no change", shown()));
    }
    if is_up && let Err(fault) = replace(interface, &plan.choice) {
        return Err(match is_other {
            true => restore(&conf, &before.text, &mut file, &mut journal, fault),
            false => AppError::NotFollowed {
                interface: interface.to_owned(),
                file: shown(),
                fault: Box::new(fault),
            },
        });
    }
    if is_up {
        tell(&format_args!(
            "{interface} applies it, also to open sockets; TCP connections that were open outside the \
             tunnel are blocked"
        ));
    } else {
        tell(&format_args!(
            "{interface} is not up: the next `taupe up {}` applies it",
            conf.word()
        ));
    }
    warn_of_adapter_mode(&conf, is_up, tell);
    if is_up && plan.mark().is_some() {
        tell(&"[!] in adapter mode, the change applies only to new sockets");
    }
    Ok(())
}

/// Compares two remarks for equality in some respect.
type IsSame = dyn Fn(&Remark, &Remark) -> bool;

/// Returns the remarks about an edited file that did not exist before the edit. The edit may have
/// moved lines.
fn new_remarks<'a>(before: &[Remark], after: &'a [Remark]) -> Vec<&'a Remark> {
    // Reasons contain line numbers.
    fn without_numbers(remark: &Remark) -> String {
        let text = remark.diagnostic.kind.to_string();
        text.chars().filter(|c| !c.is_ascii_digit()).collect()
    }
    let mut old: Vec<_> = before.iter().collect();
    let mut news: Vec<_> = after.iter().collect();
    // Identical remarks are matched first, so that a similar one does not take their place.
    let same: [&IsSame; 2] = [
        &|one, other| one.diagnostic.kind == other.diagnostic.kind,
        &|one, other| without_numbers(one) == without_numbers(other),
    ];
    for is_same in same {
        news.retain(|new| match old.iter().position(|old| is_same(old, new)) {
            Some(at) => {
                old.swap_remove(at);
                false
            }
            None => true,
        });
    }
    news
}

/// Checks whether a remark warns that a rule names an existing file or program which no process
/// matches.
fn is_without_effect(remark: &Remark) -> bool {
    match &remark.diagnostic.kind {
        DiagnosticKind::AppWarning(doubt) => !matches!(
            doubt,
            AppWarning::UnknownName { .. } | AppWarning::NoSuchPath { .. }
        ),
        _ => false,
    }
}

/// Recognises a process id where the name of an application is expected, unless an executable has
/// that name.
fn process_id(application: &Application) -> Option<ProcessId> {
    let text = application.to_string();
    let id = text.parse().ok().filter(|_| in_path(&text).is_none())?;
    let path = Subject::of(id).map(|subject| subject.shown_path());
    Some(ProcessId { id, path })
}

/// A number, with the executable of the process that has it as its id.
#[derive(Debug)]
pub(crate) struct ProcessId {
    id: u32,
    path: Option<String>,
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, path } = self;
        match path {
            Some(path) => write!(
                f,
                "{id} is a number, but rules name executables: write {path}, the executable of \
                 process {id}, or its name"
            ),
            None => write!(
                f,
                "{id} is a number, and no program or process has it; write the name of an \
                 executable, or uid:{id} for a user"
            ),
        }
    }
}

fn write(conf: &Conf, text: &[u8], journal: &mut Option<Journal>) -> Result<(), SaveError> {
    replace_file(&conf.path, text, Access::Kept)?;
    // If the journal cannot be written, the next edit asks for a reload first.
    let _ = journal.as_mut().map(|journal| journal.saved(&conf.path));
    Ok(())
}

/// Restores file and tunnel after a change that the tunnel cannot follow.
fn restore(
    conf: &Conf,
    text: &[u8],
    file: &mut File,
    journal: &mut Option<Journal>,
    fault: TransparentError,
) -> AppError {
    let (interface, fault) = (conf.interface.to_string(), Box::new(fault));
    let mut left = Vec::new();
    // The change may already apply to existing sockets.
    let selection = mark_of(&interface)
        .map_err(|fault| fault.to_string())
        .and_then(|mark| {
            let selection = Selection::take(file, &conf.path, mark);
            selection.map_err(|problem| problem.to_string())
        });
    let back = selection.and_then(|selection| {
        let back = replace(&interface, &selection.plan.choice);
        back.map_err(|fault| fault.to_string())
    });
    if let Err(reason) = back {
        left.push(format!("{interface} ({reason})"));
    }
    let file = conf.shown.display().to_string();
    if let Err(error) = write(conf, text, journal) {
        left.push(format!("{file} ({error})"));
    }
    match left.is_empty() {
        true => AppError::NotReplaced {
            interface,
            file,
            fault,
        },
        false => AppError::HalfDone {
            left: left.join(" and "),
            interface,
            file,
            fault,
        },
    }
}

/// Returns the journal of the running tunnel of this file. Fails if settings other than
/// applications have changed in the file since they took effect.
fn open_journal(lock: &Lock, conf: &Conf) -> Result<Option<Journal>, AppError> {
    let here = Namespace::current();
    let journal = lock.journal()?;
    let Some(journal) = journal.filter(|journal| journal.header().namespace == here) else {
        return Ok(None);
    };
    let (interface, file) = (conf.interface.to_string(), conf.shown.display().to_string());
    let header = journal.header();
    if header.config != conf.path {
        return Err(AppError::OtherFile {
            interface,
            file,
            running: header.config.clone(),
        });
    }
    if header.is_edited() {
        return Err(AppError::Edited { interface, file });
    }
    Ok(Some(journal))
}

/// Warns of a tunnel that is up in adapter mode for all applications, which an edit does not affect.
fn warn_of_adapter_mode(conf: &Conf, is_up: bool, tell: Tell<'_>) {
    let interface = &conf.interface;
    if !is_up && State::default().of_running(interface.as_str()).is_some() {
        tell(&format_args!(
            "[!] {interface} is up in adapter mode, for all applications; to apply the edit, `taupe \
             down {interface}` and `taupe up {}`",
            conf.word()
        ));
    }
}

/// Prints the rules and the processes that each applies to.
fn list(order: &AppOrder, json: bool) -> Result<(), AppError> {
    let conf = find_file(&order.file)?;
    let (_, mut file) = read(&conf, &mut say)?;
    let rules = resolved(std::mem::take(&mut file.transparent.apps));
    let matcher = AppMatcher::of(conf.interface.as_str());
    let (running, sockets) = (Subject::all(), sockets());
    let lists = [
        (Key::AllowedApps, &rules.allowed),
        (Key::DisallowedApps, &rules.disallowed),
    ];
    let mut listed = Vec::new();
    for (key, list) in lists {
        for rule in list {
            // If several rules match, the first one decides.
            let own = running.iter().filter(|subject| {
                let decided = matcher.decide(&rules, subject).rule;
                decided.is_some_and(|by| std::ptr::eq(by, rule))
            });
            listed.push(ListedRule {
                line: rule.line,
                key: key.name(),
                application: rule.application.to_string(),
                processes: own
                    .map(|subject| ListedProcess {
                        pid: subject.id.unwrap_or_default(),
                        application: subject.shown_path().to_string(),
                        sockets: subject.count(&sockets),
                    })
                    .collect(),
            });
        }
    }
    let only = rules.of_user.as_ref();
    let list = Lists {
        schema: 1,
        file: conf.shown.display().to_string(),
        apps_of_user: only.map(|only| only.user.to_string()),
        others: match rules.allowed.is_empty() {
            true => Others::Tunnel,
            false => Others::Direct,
        },
        rules: listed,
    };
    let text = match json {
        true => json::text(&list),
        false => list.text(),
    };
    if !taupe_inspect::is_root() {
        say(&"[!] only your own processes are listed; run it with sudo to list all");
    }
    Ok(print(text.as_bytes())?)
}

/// Content of `taupe app list --json`.
#[derive(Serialize)]
struct Lists {
    schema: u32,
    file: String,
    /// The only user whose applications the rules select.
    apps_of_user: Option<String>,
    others: Others,
    rules: Vec<ListedRule>,
}

/// Path of all applications without a rule.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Others {
    Tunnel,
    Direct,
}

#[derive(Serialize)]
struct ListedRule {
    line: usize,
    key: &'static str,
    application: String,
    processes: Vec<ListedProcess>,
}

#[derive(Serialize)]
struct ListedProcess {
    pid: u32,
    application: String,
    sockets: usize,
}

impl Lists {
    fn text(&self) -> String {
        let mut text = String::new();
        for rule in &self.rules {
            let ListedRule {
                line,
                key,
                application,
                ..
            } = rule;
            let _ = writeln!(text, "{}:{line}: {key} = {application}", self.file);
            for process in &rule.processes {
                let ListedProcess {
                    pid,
                    application,
                    sockets,
                } = process;
                let _ = writeln!(text, "    process {pid}, {application}, {sockets} sockets");
            }
        }
        let others = match self.others {
            Others::Tunnel => "use the tunnel",
            Others::Direct => "bypass the tunnel",
        };
        let _ = match &self.apps_of_user {
            None => writeln!(text, "all others {others}"),
            Some(user) => writeln!(
                text,
                "all other applications of user {user} {others}; those of other users bypass it"
            ),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remarks_that_an_edit_only_moved_are_not_repeated() {
        let conf = Conf {
            interface: "home".parse().unwrap(),
            path: "/nowhere/home.conf".into(),
            shown: "/nowhere/home.conf".into(),
        };
        let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let other = "BAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
        let text = |apps: &str| {
            format!(
                "[Interface]\nPrivateKey = {key}\nAddress = 10.0.0.2/32\n\
                 [Peer]\nPublicKey = {other}\n{apps}AllowedIPs = 10.0.0.0/8\n\
                 DisallowedApps = /no/such/one\n"
            )
        };
        let remarks = |apps: &str| {
            let text = text(apps).into_bytes().into();
            check_text(&conf, Compatibility::Taupe, text).remarks
        };
        let before = remarks("");
        assert!(!before.is_empty(), "the file has something to warn of");
        let moved = remarks("# another line\n");
        assert_ne!(before, moved);
        assert_eq!(new_remarks(&before, &moved), Vec::<&Remark>::new());
        let named = remarks("AllowedApps = /no/such/two\n");
        let told: String = new_remarks(&before, &named)
            .iter()
            .map(ToString::to_string)
            .collect();
        assert!(told.contains("/no/such/two"), "{told}");
        assert!(!told.contains("/no/such/one"), "{told}");
    }
}
