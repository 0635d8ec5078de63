//! The command on systems other than Linux.

use crate::arguments::{self, Order};
use crate::{FAILED, MISUSED, allowed_ips, complain, console, exit, no_order, proxy, wg};
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use taupe_config::file::Compatibility;
use taupe_inspect::check::{self, check};
use taupe_inspect::conf::Conf;

/// Executes the order in the process's arguments and environment, on Windows with a packet filter
/// of the given kind.
#[must_use]
pub fn main<#[cfg(windows)] D: crate::Driver>() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let order = match arguments::parse(&arguments, &|name| std::env::var_os(name)) {
        Ok(order) => order,
        Err(error) => return no_order(&error, MISUSED),
    };
    match order {
        Order::Check { file } => crate::check::main(&file),
        Order::Strip { file } => strip(&file),
        Order::Proxy(order) => proxy::main(&order),
        #[cfg(windows)]
        Order::Run(order) => crate::windows::run::main::<D>(&order),
        #[cfg(windows)]
        Order::Service(order) => crate::windows::service::main::<D>(&order),
        Order::AllowedIps { networks, except } => allowed_ips(&networks, &except),
        Order::Wg {
            personality,
            arguments,
        } => wg::main(personality, &arguments),
    }
}

/// Prints a file in the form that devices take. Fails if the file has errors.
fn strip(word: &OsStr) -> ExitCode {
    let conf = match Conf::find(word, Compatibility::Taupe) {
        Ok(conf) => conf,
        Err(error) => return complain(&error, FAILED),
    };
    let checked = match check(&conf, Compatibility::Taupe) {
        Ok(checked) => checked,
        Err(error) => return complain(&error, FAILED),
    };
    if checked.file.is_none() {
        for remark in &checked.remarks {
            console::say(remark);
        }
        let (file, errors) = (conf.shown.display(), check::count(&checked.remarks));
        return complain(
            &format_args!("{file} has {errors}; nothing was done"),
            FAILED,
        );
    }
    let stripped = check::strip(&conf, &checked.text, Compatibility::Taupe.dialect());
    exit(console::print(&stripped), ExitCode::SUCCESS)
}
