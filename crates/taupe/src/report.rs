//! `taupe report`: collects the facts that a bug report needs in one text without secrets.

use crate::arguments::ReportOrder;
use crate::console::{NotPrinted, print, say};
use crate::paint::Paint;
use crate::progress_line::LongCommand;
use crate::{doctor, flows, root};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use taupe_adapter::Compatibility;
use taupe_inspect::check;
use taupe_inspect::conf::{self, Conf};
use taupe_inspect::report::redact::{self, Redactor};
use taupe_inspect::report::{log, network};

/// Reason why there is no report.
#[derive(Debug, thiserror::Error)]
enum ReportError {
    #[error(transparent)]
    NotRoot(#[from] root::RootError),
    #[error(transparent)]
    Conf(#[from] conf::ConfError),
    #[error("{}", crate::status::with_advice(.0))]
    Status(#[from] taupe_inspect::status::StatusError),
    #[error(transparent)]
    Doctor(#[from] taupe_inspect::doctor::DoctorError),
    #[error("cannot write {}: {source}{}", .path.display(), advice(.source))]
    NotWritten { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Output(#[from] NotPrinted),
}

fn advice(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::AlreadyExists => "; give the name of a file that does not exist yet",
        _ => "",
    }
}

pub(crate) fn main(order: &ReportOrder, arguments: &[OsString]) -> ExitCode {
    match run(order, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(ReportError::Output(error)) if error.is_broken_pipe() => crate::FAILED.into(),
        Err(failure) => crate::complain(&failure, crate::FAILED),
    }
}

fn run(order: &ReportOrder, arguments: &[OsString]) -> Result<(), ReportError> {
    root::require(Compatibility::Taupe, arguments)?;
    // The file is created first, because collecting takes some time.
    let mut output = match &order.output {
        Some(path) => Some((path, create(path)?)),
        None => None,
    };
    let long = LongCommand::begin("examining this system");
    let text = collect(order)?;
    drop(long);
    match &mut output {
        None => print(text.as_bytes())?,
        Some((path, file)) => {
            file.write_all(text.as_bytes())
                .map_err(|source| ReportError::NotWritten {
                    path: path.to_path_buf(),
                    source,
                })?;
            say(&format_args!(
                "{} is written; read it before you pass it on: it contains addresses and names of \
                 programs",
                path.display()
            ));
        }
    }
    Ok(())
}

fn create(path: &Path) -> Result<std::fs::File, ReportError> {
    let mut options = OpenOptions::new();
    let opened = options.write(true).create_new(true).mode(0o600).open(path);
    opened.map_err(|source| ReportError::NotWritten {
        path: path.to_owned(),
        source,
    })
}

/// Returns the report. A part that fails does not keep the others from being included.
fn collect(order: &ReportOrder) -> Result<String, ReportError> {
    let word = order.file.as_deref();
    let status = match taupe_inspect::status::look(word) {
        Ok(status) => Some(status),
        // A tunnel that is not up may still have a file.
        Err(error) if word.is_none() => return Err(error.into()),
        Err(_) => None,
    };
    let mut files: Vec<PathBuf> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    if let Some(word) = word {
        let conf = Conf::find(word, Compatibility::Taupe);
        if let Ok(conf) = conf {
            names.push(conf.interface.to_string());
            files.push(conf.path);
        }
    }
    for tunnel in status.iter().flat_map(|status| &status.tunnels) {
        names.push(tunnel.interface.clone());
        files.extend(tunnel.file.clone());
    }
    names.sort();
    names.dedup();
    files.sort();
    files.dedup();

    let mut redactor = Redactor::new(order.hide_endpoints);
    names.iter().for_each(|name| redactor.learn_device(name));
    let mut text = format!(
        "# Report of Taupe {}\n\nEach key is replaced by a number.\n",
        crate::command_line::VERSION
    );
    // The file is not checked here, because its errors would quote it.
    section(
        &mut text,
        "doctor",
        &match taupe_inspect::doctor::examine(None, true) {
            Ok(found) => doctor::text(&found, Paint::none()),
            Err(error) => format!("{error}\n"),
        },
    );
    section(
        &mut text,
        "status",
        &match &status {
            Some(status) => status.json(),
            None => "no such tunnel\n".into(),
        },
    );
    section(
        &mut text,
        "flows",
        &match flows::look(None) {
            Ok(flows) => crate::flows::text(&flows),
            Err(error) => format!("{}\n", flows::with_advice(&error)),
        },
    );
    section(
        &mut text,
        "network",
        &network().unwrap_or_else(|error| format!("{error}\n")),
    );
    for path in &files {
        let shown = match check::read(path) {
            Ok(file) => {
                redactor.learn_file(path, &file);
                redact::file(&String::from_utf8_lossy(&file))
            }
            Err(error) => format!("cannot be read: {error}\n"),
        };
        section(&mut text, &path.display().to_string(), &shown);
    }
    for name in &names {
        for template in ["taupe", "taupe-hooks", "taupe-lock"] {
            let unit = format!("{template}@{name}");
            let log_text = match log(&unit) {
                Ok(log_text) => redactor.log(name, &log_text),
                Err(why) => why,
            };
            section(&mut text, &format!("log of {unit}"), &log_text);
        }
    }
    Ok(redactor.redact(&text))
}

fn section(text: &mut String, title: &str, content: &str) {
    let _ = write!(text, "\n## {title}\n\n```text\n{content}```\n");
}
