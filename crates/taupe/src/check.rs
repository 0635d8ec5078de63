//! `taupe check`: prints errors and warnings about a file.

use crate::console::print;
use crate::remarks::{command, with_command};
use serde::Serialize;
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;
use taupe_config::file::Compatibility;
use taupe_inspect::check::{Checked, Remark, check, count};
use taupe_inspect::conf::Conf;
use taupe_inspect::json;

/// Prints everything that is wrong with the file that a word means. The findings are the requested
/// output, so they go to standard output.
pub(crate) fn main(word: &OsStr, json: bool) -> ExitCode {
    let checked = Conf::find(word, Compatibility::Taupe)
        .map_err(|error| error.to_string())
        .and_then(|conf| {
            let checked = check(&conf, Compatibility::Taupe).map_err(|error| error.to_string())?;
            Ok((conf.shown, checked))
        });
    let (shown, checked) = match checked {
        Ok(checked) => checked,
        Err(error) => return crate::complain(&error, crate::FAILED),
    };
    let text = match json {
        true => json::text(&CheckedFile::of(&shown, &checked)),
        false => text(&shown, &checked),
    };
    let status = match checked.file {
        Some(_) => ExitCode::SUCCESS,
        None => crate::FAILED.into(),
    };
    crate::exit(print(text.as_bytes()), status)
}

fn text(shown: &Path, checked: &Checked) -> String {
    let mut lines: Vec<_> = checked.remarks.iter().map(with_command).collect();
    let file = shown.display();
    lines.push(match (&checked.file, checked.remarks.as_slice()) {
        (Some(_), []) => format!("{file} is fine"),
        (Some(_), remarks) => format!("{file} can be used, with {}", count(remarks)),
        (None, remarks) => format!("{file} cannot be used: {}", count(remarks)),
    });
    format!("{}\n", lines.join("\n"))
}

/// Content of `taupe check --json`.
#[derive(Serialize)]
struct CheckedFile {
    schema: u32,
    file: String,
    usable: bool,
    remarks: Vec<RemarkLine>,
}

#[derive(Serialize)]
struct RemarkLine {
    severity: String,
    line: usize,
    column: usize,
    reason: String,
    fix: String,
    command: Option<String>,
}

impl CheckedFile {
    fn of(shown: &Path, checked: &Checked) -> Self {
        Self {
            schema: 1,
            file: shown.display().to_string(),
            usable: checked.file.is_some(),
            remarks: checked.remarks.iter().map(RemarkLine::of).collect(),
        }
    }
}

impl RemarkLine {
    fn of(remark: &Remark) -> Self {
        let diagnostic = &remark.diagnostic;
        Self {
            severity: diagnostic.severity.to_string(),
            line: diagnostic.line,
            column: diagnostic.column,
            reason: diagnostic.kind.to_string(),
            fix: diagnostic.kind.fix().to_string(),
            command: command(&diagnostic.kind, remark.compatibility),
        }
    }
}
