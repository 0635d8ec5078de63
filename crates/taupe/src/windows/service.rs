//! `taupe service`: a tunnel that starts with the machine.

use super::Driver;
use super::adapter::library_beside;
use super::arguments::{Action, Level, Mode, ServiceOrder};
use super::carrier::Asked;
use super::event_log as log;
use super::lock;
use super::tunnel::{Failure, Wanted};
use crate::console::{print, say};
use std::ffi::{OsStr, OsString};
use std::path::{Path, absolute};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use taupe_config::file::Compatibility;
use taupe_inspect::conf;
use taupe_inspect::interface::InterfaceName;
use taupe_os_windows::access;
use taupe_os_windows::event_log;
use taupe_os_windows::service::{self, Control, Definition, MissingFeature, State};
use tracing::{error, warn};

pub(crate) fn main<D: Driver>(order: &ServiceOrder) -> ExitCode {
    let done = match order {
        ServiceOrder::Unlock => lock::clear().map_err(Failure::from),
        ServiceOrder::Tunnel { action, file } => match action {
            Action::Install(mode, level) => install(file, *mode, *level),
            Action::Start => named(file).and_then(|name| Ok(service::start(&service_of(&name))?)),
            Action::Stop => named(file).and_then(|name| Ok(service::stop(&service_of(&name))?)),
            Action::Uninstall => uninstall(file),
            Action::Status => return status(file),
            Action::Lock => set_lock(file),
            Action::Run(mode, level) => be::<D>(file.clone(), *mode, *level),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.complain(),
    }
}

/// Returns the name of a tunnel's service, which is also its event source.
fn service_of(name: &InterfaceName) -> String {
    format!("TaupeTunnel${name}")
}

/// Returns the tunnel that a word means. Its file need not exist.
fn named(word: &OsStr) -> Result<InterfaceName, Failure> {
    match conf::interface(word) {
        Some(name) => Ok(name),
        // The search for the file reports what is wrong with the word.
        None => Ok(conf::Conf::find(word, Compatibility::Taupe)?.interface),
    }
}

fn install(word: &OsStr, mode: Mode, level: Level) -> Result<(), Failure> {
    // A tunnel that could not run is not installed.
    let conf = Wanted::read(word, mode, &|line| say(line))?.conf;
    let (name, service) = (&conf.interface, service_of(&conf.interface));
    let program = std::env::current_exe().map_err(Failure::Program)?;
    let path = absolute(&conf.shown).unwrap_or_else(|_| conf.path.clone());
    let mut arguments: Vec<OsString> = vec![
        "service".into(),
        "run".into(),
        "--config".into(),
        path.clone().into(),
        "--log-level".into(),
        level.word().into(),
    ];
    if mode == Mode::Adapter {
        arguments.push("--adapter".into());
    }
    // An installed service keeps its event source.
    if service::state(&service)?.is_some() {
        return Err(service::ServiceError::Exists(service).into());
    }
    event_log::register(&service).map_err(|source| Failure::EventSource {
        source_name: service.clone(),
        source,
    })?;
    let installed = service::install(&Definition {
        name: service.clone(),
        display_name: format!("Taupe: {name}"),
        description: match mode {
            Mode::Frames => {
                format!("The WireGuard tunnel {name}, for the applications of its file.")
            }
            Mode::Adapter => format!("The WireGuard tunnel {name}, on an adapter."),
        },
        program: program.clone(),
        arguments,
    });
    let lacking = installed.inspect_err(|_| {
        let _ = event_log::unregister(&service);
    })?;
    warn_of_others(&program, &path, mode);
    for lacking in lacking {
        say(&match lacking {
            MissingFeature::DelayedStart => {
                "[!] this system has no delayed start: the service starts at once"
            }
            MissingFeature::Recovery => {
                "[!] this system does not start services again: when it fails, start it by hand"
            }
        });
    }
    say(&format_args!(
        "[#] the service {service} is installed; `taupe service start --config {name}` starts it \
         now"
    ));
    Ok(())
}

/// Prints which users could replace the files that the service runs or loads with the system's
/// rights.
fn warn_of_others(program: &Path, file: &Path, mode: Mode) {
    let library = library_beside(program).filter(|_| mode == Mode::Adapter);
    let looked = [
        (program, access::exposed_program(program)),
        (file, access::exposed(file)),
    ];
    let library = library.iter().map(|path| (&**path, access::exposed(path)));
    for (path, exposed) in looked.into_iter().chain(library) {
        match exposed {
            Ok(None) => {}
            Ok(Some(exposed)) => say(&format_args!(
                "[!] {exposed}, who could so have the system use another {}; move it to a folder \
                 of administrators' own, such as C:\\Program Files\\Taupe or {}",
                path.file_name().unwrap_or_default().display(),
                conf::folder().display()
            )),
            Err(error) => say(&format_args!(
                "[!] cannot tell who may change {}: {error}; see that only administrators may",
                path.display()
            )),
        }
    }
}

fn uninstall(word: &OsStr) -> Result<(), Failure> {
    let service = service_of(&named(word)?);
    service::uninstall(&service)?;
    event_log::unregister(&service).map_err(|source| Failure::EventSource {
        source_name: service,
        source,
    })
}

fn set_lock(word: &OsStr) -> Result<(), Failure> {
    let Wanted { conf, file, .. } = Wanted::read(word, Mode::Frames, &|line| say(line))?;
    let found = lock::set(&conf.shown.display().to_string(), &file)?;
    for program in &found.programs {
        say(&format_args!("[#] locked: {}", program.display()));
    }
    for line in &found.lacking {
        say(&format_args!("[!] {line}"));
    }
    Ok(())
}

fn status(word: &OsStr) -> ExitCode {
    let state = named(word).and_then(|name| Ok(service::state(&service_of(&name))?));
    let word = match state {
        Err(failure) => return failure.complain(),
        Ok(None) => "not installed",
        Ok(Some(State::Stopped)) => "stopped",
        Ok(Some(State::Changing)) => "changing",
        Ok(Some(State::Running)) => "running",
    };
    crate::exit(print(format!("{word}\n").as_bytes()), ExitCode::SUCCESS)
}

/// Runs as the service, called by the service manager.
fn be<D: Driver>(word: OsString, mode: Mode, level: Level) -> Result<(), Failure> {
    let name = service_of(&named(&word)?);
    let source = name.clone();
    let body = move |running: &dyn Fn(), controls: Receiver<Control>| {
        // Without a log, the exit code is the only way to report a failure.
        let carried = log::begin(&source, level.filter())
            .map_err(Failure::EventLog)
            .and_then(|()| carry::<D>(&word, mode, running, controls));
        match carried {
            Ok(()) => 0,
            Err(failure) => {
                error!("{failure}");
                failure.status().into()
            }
        }
    };
    Ok(service::run(&name, body)?)
}

fn carry<D: Driver>(
    word: &OsStr,
    mode: Mode,
    running: &dyn Fn(),
    controls: Receiver<Control>,
) -> Result<(), Failure> {
    let wanted = Wanted::read(word, mode, &|line| warn!("{line}"))?;
    let (ask, asked) = channel();
    let send = ask.clone();
    let pass_on = move || {
        for control in controls {
            let asked = match control {
                Control::End => Asked::End,
                Control::Awoke => Asked::Awoke,
            };
            if send.send(asked).is_err() {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("controls".into());
    thread.spawn(pass_on).map_err(Failure::Thread)?;
    let tunnel = wanted.open::<D>((ask, asked))?;
    running();
    tunnel.run()
}
