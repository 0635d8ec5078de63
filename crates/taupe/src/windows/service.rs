//! `taupe service`: a tunnel that starts with the machine.

use super::Driver;
use super::adapter::library_path;
use super::arguments::{Level, ServiceAction, ServiceOrder, WindowsMode};
use super::event_log as log;
use super::frame_tunnel::TunnelEvent;
use super::lock;
use super::tunnel::{PreparedTunnel, WindowsTunnelError};
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
        ServiceOrder::Unlock => lock::clear().map_err(WindowsTunnelError::from),
        ServiceOrder::Tunnel { action, file } => match action {
            ServiceAction::Install(mode, level) => install(file, *mode, *level),
            ServiceAction::Start => {
                interface_of(file).and_then(|name| Ok(service::start(&service_name(&name))?))
            }
            ServiceAction::Stop => {
                interface_of(file).and_then(|name| Ok(service::stop(&service_name(&name))?))
            }
            ServiceAction::Uninstall => uninstall(file),
            ServiceAction::Status => return status(file),
            ServiceAction::Lock => set_lock(file),
            ServiceAction::Run(mode, level) => run_service::<D>(file.clone(), *mode, *level),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.complain(),
    }
}

/// Returns the name of a tunnel's service, which is also its event source.
fn service_name(name: &InterfaceName) -> String {
    format!("TaupeTunnel${name}")
}

/// Returns the tunnel that a word means. Its file need not exist.
fn interface_of(word: &OsStr) -> Result<InterfaceName, WindowsTunnelError> {
    match conf::interface(word) {
        Some(name) => Ok(name),
        // The search for the file reports what is wrong with the word.
        None => Ok(conf::Conf::find(word, Compatibility::Taupe)?.interface),
    }
}

fn install(word: &OsStr, mode: WindowsMode, level: Level) -> Result<(), WindowsTunnelError> {
    // A tunnel that could not run is not installed.
    let conf = PreparedTunnel::read(word, mode, &|line| say(line))?.conf;
    let (name, service) = (&conf.interface, service_name(&conf.interface));
    let program = std::env::current_exe().map_err(WindowsTunnelError::Program)?;
    let path = absolute(&conf.shown).unwrap_or_else(|_| conf.path.clone());
    let mut arguments: Vec<OsString> = vec![
        "service".into(),
        "run".into(),
        "--config".into(),
        path.clone().into(),
        "--log-level".into(),
        level.word().into(),
    ];
    if mode == WindowsMode::Adapter {
        arguments.push("--adapter".into());
    }
    // An installed service keeps its event source.
    if service::state(&service)?.is_some() {
        return Err(service::ServiceError::Exists(service).into());
    }
    event_log::register(&service).map_err(|source| WindowsTunnelError::EventSource {
        source_name: service.clone(),
        source,
    })?;
    let installed = service::install(&Definition {
        name: service.clone(),
        display_name: format!("Taupe: {name}"),
        description: match mode {
            WindowsMode::Frames => {
                format!("The WireGuard tunnel {name}, for the applications of its file.")
            }
            WindowsMode::Adapter => format!("The WireGuard tunnel {name}, on an adapter."),
        },
        program: program.clone(),
        arguments,
    });
    let lacking = installed.inspect_err(|_| {
        let _ = event_log::unregister(&service);
    })?;
    warn_of_exposed(&program, &path, mode);
    for lacking in lacking {
        say(&match lacking {
            MissingFeature::DelayedStart => {
                "[!] this system has no delayed start, so the service starts without delay"
            }
            MissingFeature::Recovery => {
                "[!] this system does not restart services: if it fails, start it by hand"
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
fn warn_of_exposed(program: &Path, file: &Path, mode: WindowsMode) {
    let library = library_path(program).filter(|_| mode == WindowsMode::Adapter);
    let looked = [
        (program, access::exposed_program(program)),
        (file, access::exposed(file)),
    ];
    let library = library.iter().map(|path| (&**path, access::exposed(path)));
    for (path, exposed) in looked.into_iter().chain(library) {
        match exposed {
            Ok(None) => {}
            Ok(Some(exposed)) => say(&format_args!(
                "[!] {exposed}: they could replace {}; move it to a folder that only \
                 administrators can change, such as C:\\Program Files\\Taupe or {}",
                path.file_name().unwrap_or_default().display(),
                conf::folder().display()
            )),
            Err(error) => say(&format_args!(
                "[!] cannot find out who may change {}: {error}; check that only administrators can",
                path.display()
            )),
        }
    }
}

fn uninstall(word: &OsStr) -> Result<(), WindowsTunnelError> {
    let service = service_name(&interface_of(word)?);
    service::uninstall(&service)?;
    event_log::unregister(&service).map_err(|source| WindowsTunnelError::EventSource {
        source_name: service,
        source,
    })
}

fn set_lock(word: &OsStr) -> Result<(), WindowsTunnelError> {
    let PreparedTunnel { conf, file, .. } =
        PreparedTunnel::read(word, WindowsMode::Frames, &|line| say(line))?;
    let found = lock::set(&conf.shown.display().to_string(), &file)?;
    for program in &found.programs {
        say(&format_args!("[#] locked: {}", program.display()));
    }
    for line in &found.missing {
        say(&format_args!("[!] {line}"));
    }
    Ok(())
}

fn status(word: &OsStr) -> ExitCode {
    let state = interface_of(word).and_then(|name| Ok(service::state(&service_name(&name))?));
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
fn run_service<D: Driver>(
    word: OsString,
    mode: WindowsMode,
    level: Level,
) -> Result<(), WindowsTunnelError> {
    let name = service_name(&interface_of(&word)?);
    let source = name.clone();
    let body = move |running: &dyn Fn(), controls: Receiver<Control>| {
        // Without a log, the exit code is the only way to report a failure.
        let carried = log::begin(&source, level.filter())
            .map_err(WindowsTunnelError::EventLog)
            .and_then(|()| run_tunnel::<D>(&word, mode, running, controls));
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

fn run_tunnel<D: Driver>(
    word: &OsStr,
    mode: WindowsMode,
    running: &dyn Fn(),
    controls: Receiver<Control>,
) -> Result<(), WindowsTunnelError> {
    let tunnel = PreparedTunnel::read(word, mode, &|line| warn!("{line}"))?;
    let (sender, event) = channel();
    let send = sender.clone();
    let pass_on = move || {
        for control in controls {
            let event = match control {
                Control::End => TunnelEvent::End,
                Control::Awoke => TunnelEvent::Resumed,
            };
            if send.send(event).is_err() {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("controls".into());
    thread.spawn(pass_on).map_err(WindowsTunnelError::Thread)?;
    let tunnel = tunnel.open::<D>((sender, event))?;
    running();
    tunnel.run()
}
