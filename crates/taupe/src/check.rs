//! `taupe check`: prints errors and warnings about a file.

use crate::console::print;
use crate::remarks::with_command;
use std::ffi::OsStr;
use std::process::ExitCode;
use taupe_config::file::Compatibility;
use taupe_inspect::check::{check, count};
use taupe_inspect::conf::Conf;

/// Prints everything that is wrong with the file that a word means. The findings are the requested
/// output, so they go to standard output.
pub(crate) fn main(word: &OsStr) -> ExitCode {
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
    let mut lines: Vec<_> = checked.remarks.iter().map(with_command).collect();
    let file = shown.display();
    lines.push(match (&checked.file, checked.remarks.as_slice()) {
        (Some(_), []) => format!("{file} is fine"),
        (Some(_), remarks) => format!("{file} can be used, with {}", count(remarks)),
        (None, remarks) => format!("{file} cannot be used: {}", count(remarks)),
    });
    let status = match checked.file {
        Some(_) => ExitCode::SUCCESS,
        None => crate::FAILED.into(),
    };
    let printed = print(format!("{}\n", lines.join("\n")).as_bytes());
    crate::exit(printed, status)
}
