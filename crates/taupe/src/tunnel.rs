//! `taupe up`, `down`, `reload` and `strip`. This module finds and reads the file and starts the
//! device's process ([`plan`]). The crate `taupe-adapter` sets up the interface.

pub(crate) mod advice;
mod error;
mod foreground;
mod hooks;
mod plan;
mod transparent;
mod wait;

use crate::arguments::{Action, DownAll, TunnelOrder, Up};
use crate::background::{self, BackgroundFiles};
use crate::capture::Selection;
use crate::console::{print, say};
use crate::device::Device;
use crate::device_log::Destination;
use crate::ending::Ending;
use crate::endpoint_names::{self, NamesToTake};
use crate::other_version::OtherProgram;
use crate::plan::DevicePlan;
use crate::progress::Console;
use crate::progress_line::LongCommand;
use crate::remarks::with_command;
use crate::{root, via};
use error::{TunnelError, wrong};
use plan::{TunnelPlan, UpPlan};
use std::ffi::{OsStr, OsString};
use std::process::ExitCode;
use std::time::Duration;
use taupe_adapter::{
    self as adapter, Compatibility, Devices, Down, DownError, FileStamp, Options, Request, State,
};
use taupe_config::file;
use taupe_inspect::check::{self, Checked, check, check_without_apps};
use taupe_inspect::conf::{self, Conf};
use taupe_inspect::endpoint_names::NamedEndpoint;
use taupe_inspect::tunnel::{file_argument, file_of, find_file, names};
use taupe_transparent::capture::{Replaced, is_in_effect, replace};
use transparent::{is_transparent, release_applications};

/// Exit status of `taupe up --foreground` if its device failed: `EX_TEMPFAIL` of sysexits.h. The units of
/// systemd then start the tunnel again.
const DEVICE_FAILED: u8 = 75;

pub(crate) fn main<D: Device>(order: &TunnelOrder, arguments: &[OsString]) -> ExitCode {
    match run::<D>(order, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(TunnelError::Output(error)) if error.is_broken_pipe() => crate::FAILED.into(),
        Err(failure) => {
            let name = match order.compatibility {
                Compatibility::Taupe => "taupe",
                Compatibility::WgQuick => "wg-quick",
            };
            say(&format_args!("{name}: {failure}"));
            match failure {
                TunnelError::DeviceFailed(_) => DEVICE_FAILED.into(),
                _ => crate::FAILED.into(),
            }
        }
    }
}

fn run<D: Device>(order: &TunnelOrder, arguments: &[OsString]) -> Result<(), TunnelError> {
    let TunnelOrder {
        compatibility,
        file,
        verbose,
        ..
    } = order;
    // `wg-quick` requires root for every action.
    if order.action != Action::Strip || *compatibility == Compatibility::WgQuick {
        root::require(*compatibility, arguments)?;
    }
    match &order.action {
        Action::Up(up) => {
            let conf = find(file, *compatibility)?;
            bring_up::<D>(&conf, up, *compatibility, *verbose)
        }
        Action::Down {
            no_save,
            keep_closed,
        } => {
            let console = Console::new(*verbose);
            take_down(file, !no_save, *keep_closed, *compatibility, console)
        }
        Action::Lock => transparent::lock(&find(file, *compatibility)?),
        Action::Reload => reload(
            &find_running(file, *compatibility)?,
            &mut Console::new(*verbose),
        ),
        Action::Save => save(&find_running(file, *compatibility)?, *compatibility),
        Action::Strip => strip(&find(file, *compatibility)?, *compatibility),
    }
}

/// Finds the file, which may be that of a tunnel that is up.
fn find_running(word: &OsStr, compatibility: Compatibility) -> Result<Conf, TunnelError> {
    match compatibility {
        Compatibility::Taupe => Ok(find_file(word)?),
        Compatibility::WgQuick => find(word, compatibility),
    }
}

/// Finds the file. Called as `wg-quick`, it prints the warning of that program.
fn find(word: &OsStr, compatibility: Compatibility) -> Result<Conf, TunnelError> {
    let conf = Conf::find(word, compatibility)?;
    if compatibility == Compatibility::WgQuick && conf.quick_warns() {
        let path = conf.path.display();
        say(&format_args!("Warning: `{path}' is world accessible"));
    }
    Ok(conf)
}

fn bring_up<D: Device>(
    conf: &Conf,
    up: &Up,
    compatibility: Compatibility,
    verbose: bool,
) -> Result<(), TunnelError> {
    let long = LongCommand::begin("bringing the tunnel up");
    let UpPlan {
        notices,
        mut tunnel,
        device,
    } = UpPlan::new(conf, up, compatibility)?;
    notices.iter().for_each(|notice| say(notice));
    tunnel.look_up_names();
    if up.foreground {
        drop(long);
        return foreground::run::<D>(conf, &tunnel, device, up, verbose);
    }
    let mut console = Console::catching(verbose, |_| {}).map_err(TunnelError::Signals)?;
    let mut devices = Background {
        tunnel: &tunnel,
        device: &device,
        log: &up.device.logging.background,
    };
    let brought_up = adapter::up(&tunnel.request(), &mut devices, &mut console);
    tunnel.finish(&brought_up, false);
    brought_up?;
    drop(long);
    match up.wait {
        Some(time) => wait::for_answers(conf.interface.as_str(), time),
        None => Ok(()),
    }
}

/// Fails if the tunnel is up already. The check comes first, so that this error precedes other
/// messages. `adapter::up` checks again, because another process may bring the tunnel up meanwhile.
fn already_up(conf: &Conf, compatibility: Compatibility) -> Result<(), TunnelError> {
    let interface = conf.interface.as_str();
    match State::default().of_running(interface) {
        Some(header) if taupe_client::is_alive(interface, PATIENCE) => {
            Err(TunnelError::Up(adapter::UpError::AlreadyUp {
                interface: interface.to_owned(),
                since: header.since(),
                config: header.config,
                outer: header.outer.map(|outer| outer.name),
                compatibility,
            }))
        }
        _ => Ok(()),
    }
}

/// Time that a running device has to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Fails if the file selects applications. Used where a tunnel carries all applications:
/// when the program runs as wg-quick, and when a tunnel that was brought up for all applications is
/// reloaded.
fn without_applications(conf: &Conf, file: &file::File) -> Result<(), TunnelError> {
    match file.transparent.first {
        None => Ok(()),
        Some((key, line)) => Err(TunnelError::Applications {
            file: conf.shown.display().to_string(),
            line,
            key,
        }),
    }
}

/// Devices in background processes, which run this program as `taupe device`.
struct Background<'a> {
    tunnel: &'a TunnelPlan<'a>,
    device: &'a DevicePlan,
    log: &'a Destination,
}

impl Devices for Background<'_> {
    fn start(&mut self, interface: &str) -> Result<(), String> {
        let files = BackgroundFiles {
            log: self.log,
            pid: None,
        };
        // The process does not read these arguments. Lists of processes show them (`ps`).
        let arguments = ["taupe", "device", "--", interface].map(OsString::from);
        background::start(self.device, &files, &arguments).map_err(|error| error.to_string())?;
        self.tunnel.device_started();
        Ok(())
    }
}

/// Passes endpoint names to the device's process, and prints which ones have no address yet.
fn hand_over(interface: &str, names: &[NamedEndpoint]) {
    if let Err(error) = endpoint_names::hand_over(interface, names) {
        say(&format_args!(
            "[!] the device of {interface} does not accept endpoint names to look up: {error}; `taupe reload {}` \
             tries again",
            file_argument(interface, file_of(interface).as_deref())
        ));
    }
    for sentence in endpoint_names::await_addresses(interface, names) {
        say(&format_args!("[!] {sentence}"));
    }
}

fn take_down(
    word: &OsStr,
    save: bool,
    keep_closed: bool,
    compatibility: Compatibility,
    mut console: Console,
) -> Result<(), TunnelError> {
    let _long = LongCommand::begin("taking the tunnel down");
    let (interface, missing, file) = match find(word, compatibility) {
        Ok(conf) => {
            let file = readable(&conf).map(|file| (conf.path, file));
            (conf.interface, None, file.map(Some))
        }
        // The journal of `up` is sufficient without a file.
        Err(TunnelError::Conf(error @ conf::ConfError::Missing { .. })) => {
            match conf::interface(word) {
                Some(interface) => (interface, Some(error), Ok(None)),
                None => return Err(error.into()),
            }
        }
        Err(failure) => return Err(failure),
    };
    let (file, problem) = match &file {
        Ok(file) => (file.as_ref(), None),
        Err(problem) => (None, Some(problem.as_str())),
    };
    if let Some((_, file)) = file {
        hooks::warn(interface.as_str(), file);
    }
    let request = Down {
        interface: interface.as_str(),
        file: file.map(|(path, file)| (&**path, file)),
        problem,
        compatibility,
        save: save && !is_transparent(interface.as_str()),
    };
    let ending = Ending::of(interface.as_str());
    let down = adapter::down(&request, &mut console);
    if let Ok(()) = &down
        && let Some(ending) = ending
    {
        ending.wait();
    }
    if let Ok(()) | Err(DownError::NotUp { .. }) = &down
        && release_applications(interface.as_str(), keep_closed)?
        && down.is_err()
    {
        // Releasing the applications counts as success.
        return Ok(());
    }
    match (down, missing) {
        (Err(DownError::NotUp { .. }), Some(missing)) => Err(missing.into()),
        (outcome, _) => Ok(outcome?),
    }
}

/// Takes all tunnels, and the locks of this network namespace, down. One that stays does not keep the
/// others. Those of other namespaces stay, which is an error.
pub(crate) fn take_all_down(order: DownAll, arguments: &[OsString]) -> ExitCode {
    let allowed = root::require(Compatibility::Taupe, arguments).map_err(TunnelError::from);
    let names = match allowed.and_then(|()| Ok(names()?)) {
        Ok(names) => names,
        Err(failure) => return crate::complain(&failure, crate::FAILED),
    };
    if names.is_empty() {
        say(&"no tunnel is up");
    }
    let mut status = ExitCode::SUCCESS;
    for name in &names {
        match take_one_down(name, order) {
            // It has gone with the tunnel that it carried.
            Ok(()) | Err(TunnelError::Down(DownError::NotUp { .. })) => {}
            Err(failure) => status = crate::complain(&failure, crate::FAILED),
        }
    }
    status
}

fn take_one_down(name: &str, order: DownAll) -> Result<(), TunnelError> {
    let DownAll {
        no_save,
        keep_closed,
        verbose,
    } = order;
    let word = OsStr::new(name);
    let Some(program) = OtherProgram::of(name) else {
        let console = Console::new(verbose);
        return take_down(word, !no_save, keep_closed, Compatibility::Taupe, console);
    };
    let options = [(no_save, "--no-save"), (keep_closed, "--keep-closed")];
    let given = options.iter().filter(|(is_given, _)| *is_given);
    let options = given.map(|(_, option)| OsStr::new(option));
    let words: Vec<_> = [OsStr::new("down")]
        .into_iter()
        .chain(options)
        .chain([word])
        .collect();
    let outcome = match program.run(&words) {
        Ok(ended) if ended.success() => return Ok(()),
        Ok(ended) => ended.to_string(),
        Err(error) => error.to_string(),
    };
    let name = name.to_owned();
    Err(TunnelError::OtherVersion { name, outcome })
}

/// Reads a file if it has no errors, or returns what is wrong. A tunnel can be taken down without
/// its file.
fn readable(conf: &Conf) -> Result<file::File, String> {
    let checked = check_without_apps(conf, Compatibility::Taupe);
    let checked = checked.map_err(|unreadable| unreadable.to_string())?;
    checked.file.ok_or_else(|| {
        let file = conf.shown.display();
        let errors = check::count(&checked.remarks);
        format!("{file} has {errors} (`taupe check` says which)")
    })
}

fn reload(conf: &Conf, console: &mut Console) -> Result<(), TunnelError> {
    let _long = LongCommand::begin("applying the file");
    let stamp = FileStamp::of(&conf.path);
    let Checked { file, remarks, .. } = check(conf, Compatibility::Taupe)?;
    let Some(mut file) = file else {
        return Err(wrong(conf, &remarks));
    };
    hooks::check(conf, &file)?;
    let interface = conf.interface.as_str();
    let outer = via::present(interface);
    let routed = outer
        .as_ref()
        .map(|outer| via::route_through(outer, conf, &mut file));
    let routed = routed.transpose()?;
    let selection = if is_in_effect(interface)? {
        transparent::selection_again(conf, &mut file)?
    } else if taupe_os_linux::interface::index(interface).is_none() {
        // The reload itself reports that the tunnel is not up.
        None
    } else {
        without_applications(conf, &file)?;
        None
    };
    for remark in &remarks {
        say(&with_command(remark));
    }
    let notices = routed.iter().flat_map(|routed| &routed.notices);
    notices.for_each(|notice| say(notice));
    // As in `up`, the reload does not fail if a name has no address at the moment.
    let names = match (routed, &selection) {
        (Some(routed), _) => routed.names,
        (None, Some(_)) => endpoint_names::take_names(&mut file, NamesToTake::WithoutAddress),
        (None, None) => Vec::new(),
    };
    let settings = selection.as_ref().map(Selection::transparent_settings);
    let request = Request {
        stamp,
        outer: outer.as_ref(),
        transparent: settings.as_ref(),
        ..request(conf, &file, Compatibility::Taupe)
    };
    let mut replaced = None;
    // Rules come before peers: newly selected applications are blocked until the peers are set.
    let mut choose = || {
        if let Some(selection) = &selection {
            replaced =
                replace(interface, &selection.plan.choice).map_err(|fault| fault.to_string())?;
        }
        Ok(())
    };
    let reloaded = adapter::reload(&request, &mut choose, console);
    console.print_routes();
    if let Err(error) = reloaded {
        let taken_back = replaced.map_or(Ok(()), Replaced::restore);
        return Err(match taken_back {
            Ok(()) => error.into(),
            Err(fault) => TunnelError::NotTakenBack {
                error: Box::new(error),
                interface: interface.to_owned(),
                fault: Box::new(fault),
            },
        });
    }
    hand_over(interface, &names);
    for notice in selection.iter().flat_map(transparent::consequences) {
        say(&notice);
    }
    Ok(())
}

fn save(conf: &Conf, compatibility: Compatibility) -> Result<(), TunnelError> {
    let Checked { file, remarks, .. } = check(conf, compatibility)?;
    let Some(file) = file else {
        return Err(wrong(conf, &remarks));
    };
    if is_transparent(conf.interface.as_str()) {
        return Err(TunnelError::WouldLose {
            interface: conf.interface.to_string(),
            file: conf.shown.display().to_string(),
        });
    }
    let request = request(conf, &file, compatibility);
    Ok(adapter::save(&request, &mut Console::new(true))?)
}

fn request<'a>(conf: &'a Conf, file: &'a file::File, compatibility: Compatibility) -> Request<'a> {
    Request {
        interface: conf.interface.as_str(),
        config: &conf.path,
        file,
        compatibility,
        stamp: None,
        options: Options::default(),
        transparent: None,
        outer: None,
        outer_stamp: None,
    }
}

/// Prints the file for `wg setconf`. Fails if the file has errors, except as `wg-quick`, which does
/// not check it.
fn strip(conf: &Conf, compatibility: Compatibility) -> Result<(), TunnelError> {
    let checked = check(conf, compatibility)?;
    if compatibility == Compatibility::Taupe && checked.file.is_none() {
        return Err(wrong(conf, &checked.remarks));
    }
    let stripped = check::strip(conf, &checked.text, compatibility.dialect());
    Ok(print(&stripped)?)
}
