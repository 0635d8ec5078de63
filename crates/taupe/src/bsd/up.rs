//! `taupe up` and `taupe down`: a file's tunnel with addresses, routes and name servers.
//!
//! The process that runs the device also brings the tunnel up and follows the network, in a second
//! thread. In the background, that process is this program, which runs itself again with
//! `--foreground` ([`super::up_process`]).

use super::device;
use super::up_process::{self, StartError, UpCaller};
use crate::console::say;
use crate::plan_note::with_remedy;
use crate::progress_line::LongCommand;
use crate::remarks::with_command;
use crate::{FAILED, complain};
use rustix::process::{Signal, getpid, kill_process};
use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};
use taupe_adapter_bsd::journal::Store;
use taupe_adapter_bsd::{
    self as adapter, Bsd, Down, DownError, Options, PlanNote, Report, Request, SaveError, UpError,
};
use taupe_config::file::{Compatibility, File};
use taupe_inspect::check::{self, Checked, check, check_without_apps};
use taupe_inspect::conf::{self, Conf, ConfError};
use taupe_os_bsd::System;
use tracing::{info, warn};

/// Time that a device may take to answer.
const START: Duration = Duration::from_secs(20);

/// Interval between two looks whether it answers.
const PAUSE: Duration = Duration::from_millis(20);

/// A tunnel to bring up.
pub(super) struct UpOrder {
    pub(super) file: OsString,
    pub(super) foreground: bool,
    pub(super) override_routes: bool,
    pub(super) compatibility: Compatibility,
}

/// Reason why a tunnel is not brought up or down.
#[derive(Debug, thiserror::Error)]
enum TunnelCommandError {
    #[error("this takes root; run it with sudo")]
    NotRoot,
    #[error(transparent)]
    Conf(#[from] ConfError),
    #[error(transparent)]
    Unreadable(#[from] check::Unreadable),
    #[error("{file} has {errors}; nothing was done")]
    Wrong { file: String, errors: String },
    #[error(
        "{file}, line {line}: there are no selected applications on this system; remove the keys of \
         applications, or use the file on Linux or Windows"
    )]
    Applications { file: String, line: usize },
    #[error("{0}")]
    Up(String),
    #[error("{0}")]
    Down(String),
    #[error(transparent)]
    Save(#[from] SaveError),
    #[error("cannot {what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },
    #[error(transparent)]
    Process(#[from] StartError),
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> TunnelCommandError {
    move |source| TunnelCommandError::System { what, source }
}

/// Prints every step and note.
#[derive(Default)]
struct Console<'a> {
    /// The process that waits for a report.
    caller: Option<&'a UpCaller>,
}

impl Report for Console<'_> {
    fn step(&mut self, command: &dyn Display) {
        say(&format_args!("[#] {command}"));
    }

    fn note(&mut self, note: &PlanNote) {
        say(&format_args!("[!] {}", with_remedy(note)));
    }

    /// An interrupt ends the process that waits.
    fn is_interrupted(&self) -> bool {
        self.caller.is_some_and(UpCaller::has_gone)
    }
}

/// Logs every step and note.
struct Log;

impl Report for Log {
    fn step(&mut self, command: &dyn Display) {
        info!("{command}");
    }

    fn note(&mut self, note: &PlanNote) {
        warn!("{}", with_remedy(note));
    }
}

/// Brings a tunnel up.
pub(super) fn up(order: &UpOrder) -> ExitCode {
    match bring_up(order) {
        Ok(status) => status,
        Err(error) => end(&error, order.compatibility),
    }
}

/// Takes a tunnel down.
pub(super) fn down(file: &OsStr, save: bool, compatibility: Compatibility) -> ExitCode {
    match take_down(file, save, compatibility) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => end(&error, compatibility),
    }
}

/// Writes the state of a tunnel into its file.
pub(super) fn save(file: &OsStr, compatibility: Compatibility) -> ExitCode {
    match save_file(file, compatibility) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => end(&error, compatibility),
    }
}

fn end(error: &TunnelCommandError, compatibility: Compatibility) -> ExitCode {
    match (error, compatibility) {
        // The background process has printed the reason.
        (TunnelCommandError::Process(StartError::Failed), _) => FAILED.into(),
        (error, Compatibility::Taupe) => complain(error, FAILED),
        (error, Compatibility::WgQuick) => {
            say(&format_args!("wg-quick: {error}"));
            FAILED.into()
        }
    }
}

fn require_root() -> Result<(), TunnelCommandError> {
    match rustix::process::geteuid().is_root() {
        true => Ok(()),
        false => Err(TunnelCommandError::NotRoot),
    }
}

fn bring_up(order: &UpOrder) -> Result<ExitCode, TunnelCommandError> {
    require_root()?;
    let caller = UpCaller::of_this_process().map_err(system("leave the terminal"))?;
    let compatibility = match &caller {
        Some(caller) => caller.compatibility(),
        None => order.compatibility,
    };
    let conf = Conf::find(&order.file, compatibility)?;
    let file = read(&conf, compatibility, caller.is_none())?;
    if !order.foreground {
        let _long = LongCommand::begin("bringing the tunnel up");
        up_process::start(&conf, order.override_routes, compatibility)?;
        return Ok(ExitCode::SUCCESS);
    }
    up_process::name_interface(conf.interface.as_str()).map_err(system("start again"))?;
    let options = Options {
        override_routes: order.override_routes,
    };
    Ok(run(conf, file, compatibility, options, caller))
}

/// Reads a file without errors. Prints its warnings if `is_first`.
fn read(
    conf: &Conf,
    compatibility: Compatibility,
    is_first: bool,
) -> Result<File, TunnelCommandError> {
    let Checked { file, remarks, .. } = check(conf, compatibility)?;
    if is_first {
        for remark in &remarks {
            say(&with_command(remark));
        }
    }
    let shown = conf.shown.display().to_string();
    let Some(file) = file else {
        let errors = check::count(&remarks);
        return Err(TunnelCommandError::Wrong {
            file: shown,
            errors: errors.to_string(),
        });
    };
    match file.transparent.first {
        Some((_, line)) => Err(TunnelCommandError::Applications { file: shown, line }),
        None => Ok(file),
    }
}

/// Runs the device in this thread, and the rest in another one. Returns when the device has ended.
fn run(
    conf: Conf,
    file: File,
    compatibility: Compatibility,
    options: Options,
    caller: Option<UpCaller>,
) -> ExitCode {
    let interface = conf.interface.to_string();
    let (start, starts) = mpsc::channel();
    let (finish, finished) = mpsc::channel();
    let has_ended = Arc::new(AtomicBool::new(false));
    let tunnel = TunnelThread {
        conf,
        file,
        compatibility,
        options,
        caller,
        start,
        has_ended: Arc::clone(&has_ended),
        finish,
    };
    let thread = thread::Builder::new().name("adapter".into());
    if let Err(source) = thread.spawn(move || tunnel.run()) {
        let what = "start a thread";
        return end(&TunnelCommandError::System { what, source }, compatibility);
    }
    // It ends without a start if the tunnel cannot be brought up.
    let mut status = ExitCode::from(FAILED);
    if starts.recv().is_ok() {
        let device = match System::HERE {
            System::FreeBsd => &*interface,
            System::MacOs => "utun",
        };
        status = device::main(device, true);
        has_ended.store(true, Ordering::Release);
    }
    match finished.recv() {
        Ok(true) => clean_up(&interface, status),
        Ok(false) | Err(_) => FAILED.into(),
    }
}

/// Undoes what outlives the device, after the device has ended.
fn clean_up(interface: &str, status: ExitCode) -> ExitCode {
    let mut refuse = || Err(format!("{interface} is being taken down"));
    let mut machine = Bsd::new(interface, &mut refuse);
    let store = Store::of(System::HERE);
    match adapter::clean_up(&mut machine, &store, interface, &mut Log) {
        Ok(()) => status,
        Err(error) => {
            warn!("{error}");
            FAILED.into()
        }
    }
}

/// The thread that brings the tunnel up and follows the network.
struct TunnelThread {
    conf: Conf,
    file: File,
    compatibility: Compatibility,
    options: Options,
    caller: Option<UpCaller>,
    /// Has the main thread start the device.
    start: Sender<()>,
    /// True when the device has ended.
    has_ended: Arc<AtomicBool>,
    /// Gets true if the tunnel is up, and false if it is not.
    finish: Sender<bool>,
}

impl TunnelThread {
    fn run(self) {
        let interface = self.conf.interface.to_string();
        let is_refused = Cell::new(false);
        let is_started = Cell::new(false);
        let mut start = || {
            is_started.set(true);
            let started = start_device(&interface, &self.start, &self.has_ended);
            is_refused.set(started.is_err() && self.has_ended.load(Ordering::Acquire));
            started
        };
        let mut machine = Bsd::new(&interface, &mut start);
        let store = Store::of(System::HERE);
        let request = Request {
            interface: &interface,
            config: &self.conf.path,
            file: &self.file,
            compatibility: self.compatibility,
            options: self.options,
        };
        let mut console = Console {
            caller: self.caller.as_ref(),
        };
        let tunnel = match adapter::up(&mut machine, &store, &request, &mut console) {
            Ok(tunnel) => tunnel,
            Err(error) => {
                let is_undone =
                    matches!(&error, UpError::Failed { leftovers, .. } if leftovers.is_empty());
                // The device has printed why it did not start.
                if !(is_refused.get() && is_undone) {
                    let error = TunnelCommandError::Up(with_advice(&error));
                    let _ = end(&error, self.compatibility);
                }
                if let Some(caller) = self.caller {
                    caller.failed();
                }
                // The main thread may be waiting for a start.
                let _ = self.finish.send(false);
                // A device that did not answer in time would run without a tunnel.
                if is_started.get() && !self.has_ended.load(Ordering::Acquire) {
                    let _ = kill_process(getpid(), Signal::TERM);
                }
                return;
            }
        };
        let _ = self.finish.send(true);
        if let Some(caller) = self.caller {
            caller.ready();
        }
        if let Err(error) = machine.follow(&store, tunnel, &mut Log) {
            warn!("routes no longer follow the network: {error}");
        }
    }
}

/// Starts the device in the main thread, and waits until it answers.
fn start_device(
    interface: &str,
    start: &Sender<()>,
    has_ended: &AtomicBool,
) -> Result<String, String> {
    let ended = || "the device did not start; the reason is above".to_owned();
    start.send(()).map_err(|_| ended())?;
    let end = Instant::now() + START;
    while Instant::now() < end && !has_ended.load(Ordering::Acquire) {
        if let Some(name) = adapter::running_device(interface) {
            return Ok(name);
        }
        thread::sleep(PAUSE);
    }
    Err(ended())
}

fn with_advice(error: &UpError) -> String {
    match error {
        UpError::AlreadyUp { interface, .. } => {
            format!("{error}; `taupe down {interface}` ends it")
        }
        UpError::Exists(interface) => format!(
            "{error}; give the file another name, or remove the interface (`wg-quick down \
             {interface}` if wg-quick made it)"
        ),
        error => error.to_string(),
    }
}

fn take_down(
    word: &OsStr,
    save: bool,
    compatibility: Compatibility,
) -> Result<(), TunnelCommandError> {
    require_root()?;
    let (interface, missing, file) = match Conf::find(word, compatibility) {
        Ok(conf) => {
            // A tunnel can be taken down without a valid file.
            let checked = check_without_apps(&conf, Compatibility::Taupe).ok();
            let file = checked.and_then(|checked| checked.file);
            (conf.interface, None, file.map(|file| (conf.path, file)))
        }
        // The journal of `up` is sufficient without a file.
        Err(error) => match conf::interface(word) {
            Some(interface) => (interface, Some(error), None),
            None => return Err(error.into()),
        },
    };
    let interface = interface.as_str();
    let mut refuse = || Err(format!("{interface} is being taken down"));
    let mut machine = Bsd::new(interface, &mut refuse);
    let store = Store::of(System::HERE);
    let request = Down {
        interface,
        file: file.as_ref().map(|(path, file)| (&**path, file)),
        save,
    };
    let down = adapter::down(&mut machine, &store, &request, &mut Console::default());
    match (down, missing) {
        (Ok(()), _) => Ok(()),
        (Err(DownError::NotUp(_)), Some(missing)) => Err(missing.into()),
        (Err(error @ DownError::NotOurs(_)), _) => Err(TunnelCommandError::Down(format!(
            "{error}; `wg-quick down {interface}` if wg-quick made it"
        ))),
        (Err(error @ DownError::NotSaved { .. }), _) => Err(TunnelCommandError::Down(format!(
            "{error}; `taupe down --no-save` gives up what it has learned"
        ))),
        (Err(error), _) => Err(TunnelCommandError::Down(error.to_string())),
    }
}

fn save_file(word: &OsStr, compatibility: Compatibility) -> Result<(), TunnelCommandError> {
    require_root()?;
    let conf = Conf::find(word, compatibility)?;
    let file = read(&conf, compatibility, false)?;
    let interface = conf.interface.as_str();
    let mut refuse = || Err(format!("{interface} is being saved"));
    let mut machine = Bsd::new(interface, &mut refuse);
    Ok(adapter::save(&mut machine, interface, &conf.path, &file)?)
}
