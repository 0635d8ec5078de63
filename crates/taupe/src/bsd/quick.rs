//! The grammar of `wg-quick`: an action and a file, and nothing else.

use super::up::{UpOrder, down, save, up};
use crate::FAILED;
use crate::console::say;
use crate::portable::strip;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use taupe_config::file::Compatibility;

const USAGE: &str = "\
Usage: wg-quick [ up | down | save | strip ] [ CONFIG_FILE | INTERFACE ]

CONFIG_FILE is the path of a file NAME.conf, and NAME the tunnel's name. INTERFACE
is the name of a tunnel whose file is in one of the usual folders. This is
Taupe's wg-quick; `taupe help up` describes it.";

/// Returns true if the program is called as `wg-quick`.
pub(super) fn is_quick(arguments: &[OsString]) -> bool {
    let path = arguments.first().map_or(Path::new("taupe"), Path::new);
    path.file_name().is_some_and(|name| name == "wg-quick")
}

/// Executes a command line of `wg-quick`.
pub(super) fn main(arguments: &[OsString]) -> ExitCode {
    let words: Vec<_> = arguments.iter().skip(1).collect();
    let (action, file) = match words.as_slice() {
        [word] if ["--help", "-h", "help"].iter().any(|help| word == help) => {
            say(&USAGE);
            return ExitCode::SUCCESS;
        }
        [action, file] => (action.to_str(), *file),
        _ => (None, &OsString::new()),
    };
    match action {
        Some("up") => up(&UpOrder {
            file: file.clone(),
            foreground: false,
            override_routes: false,
            compatibility: Compatibility::WgQuick,
        }),
        Some("down") => down(file, true, Compatibility::WgQuick),
        Some("strip") => strip(file, Compatibility::WgQuick),
        Some("save") => save(file, Compatibility::WgQuick),
        _ => {
            say(&USAGE);
            FAILED.into()
        }
    }
}
