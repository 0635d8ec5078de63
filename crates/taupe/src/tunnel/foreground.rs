//! A tunnel whose device runs in this process (`taupe up --foreground`).

use super::error::TunnelError;
use super::plan::TunnelPlan;
use super::transparent::{is_transparent, release_applications};
use super::{advice, hooks, readable, reload};
use crate::arguments::Up;
use crate::console::say;
use crate::daemon;
use crate::device::Device;
use crate::plan::DevicePlan;
use crate::progress::{Console, Signal};
use sd_notify::NotifyState;
use std::marker::PhantomData;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use taupe_adapter::{self as adapter, Devices, Down, DownError, Report as _, Request, UpError};
use taupe_engine::Exit;
use taupe_inspect::conf::Conf;
use taupe_os_linux::descriptor::grow_table;
use taupe_transparent::error::TransparentError;

/// Time that a device has to end after its interface was deleted.
const ENDING: Duration = Duration::from_secs(10);

enum Event {
    Signal(Signal),
    Ended(Exit),
}

/// Brings a tunnel up, waits until it ends, and takes it down.
pub(super) fn run<D: Device>(
    conf: &Conf,
    tunnel: &TunnelPlan<'_>,
    device: DevicePlan,
    how: &Up,
    verbose: bool,
) -> Result<(), TunnelError> {
    // Before the first thread.
    grow_table();
    how.device.logging.begin();
    let request = &tunnel.request();
    let (sender, events) = channel();
    let signals = sender.clone();
    let console = Console::catching(verbose, move |signal| {
        // The receiver is gone if this process is about to end.
        let _ = signals.send(Event::Signal(signal));
    });
    let mut console = console.map_err(TunnelError::Signals)?;
    let mut devices = ForegroundDevices::<D> {
        tunnel,
        device: Some(device),
        events: sender,
        stopper: None,
        has_device_failed: false,
        kind: PhantomData,
    };
    let up = adapter::up(request, &mut devices, &mut console);
    console.print_routes();
    let has_start_failed = devices.has_device_failed;
    let mut running = Running {
        conf,
        request,
        console,
        events,
        stopper: devices.stopper,
        keep_closed: how.keep_closed,
    };
    // The device removes its socket before it ends.
    let device_failure = up.as_ref().err().and_then(|_| running.await_end());
    let has_device_failed = has_start_failed || device_failure.is_some();
    tunnel.finish(&up, has_device_failed);
    match up {
        Ok(()) => running.stay(),
        Err(error) => {
            if running.console.is_interrupted() && leaves_nothing(&error) {
                // The signal asked for this, so it is no failure.
                say(&format_args!("taupe: {error}"));
                return Ok(());
            }
            let error = TunnelError::from(error);
            Err(match device_failure {
                Some(reason) => {
                    TunnelError::DeviceFailed(format!("{error}; then its device failed: {reason}"))
                }
                None if has_start_failed => TunnelError::DeviceFailed(error.to_string()),
                None => error,
            })
        }
    }
}

fn leaves_nothing(error: &UpError) -> bool {
    matches!(
        error,
        UpError::Failed { leftovers, is_blocked: false, .. } if leftovers.is_empty()
    )
}

struct ForegroundDevices<'a, D> {
    tunnel: &'a TunnelPlan<'a>,
    /// Plan of the device. `None` after the device has started.
    device: Option<DevicePlan>,
    events: Sender<Event>,
    stopper: Option<Stopper>,
    /// True if the device has not started because one of its processes has ended.
    has_device_failed: bool,
    kind: PhantomData<D>,
}

type Stopper = Box<dyn FnOnce() + Send>;

impl<D: Device> Devices for ForegroundDevices<'_, D> {
    fn start(&mut self, interface: &str) -> Result<(), String> {
        let plan = self.device.take();
        let plan = plan.ok_or_else(|| format!("{interface} has been started already"))?;
        let device = daemon::start_here::<D>(plan).map_err(|error| {
            self.has_device_failed = error.is_device_failure();
            error.to_string()
        })?;
        self.tunnel.device_started();
        self.stopper = Some(Box::new(device.stopper()));
        let events = self.events.clone();
        let run = move || {
            let _ = events.send(Event::Ended(device.run()));
        };
        let thread = thread::Builder::new().name("device".into()).spawn(run);
        thread
            .map(drop)
            .map_err(|error| format!("cannot start a thread: {error}"))
    }
}

struct Running<'a> {
    conf: &'a Conf,
    request: &'a Request<'a>,
    console: Console,
    events: Receiver<Event>,
    /// Stops the device. `None` after the device has ended.
    stopper: Option<Stopper>,
    /// True if selected applications stay blocked after a signal.
    keep_closed: bool,
}

impl Running<'_> {
    fn stay(&mut self) -> Result<(), TunnelError> {
        let interface = self.request.interface;
        notify(&[
            NotifyState::Ready,
            NotifyState::Status(&format!("{interface} is up")),
        ]);
        loop {
            match self.events.recv() {
                Ok(Event::Signal(Signal::Reload)) => {
                    if let Err(failure) = reload(self.conf, &mut self.console) {
                        say(&format_args!("taupe: {failure}; {interface} stays up"));
                    }
                }
                Ok(Event::Signal(Signal::End)) | Err(_) => {
                    notify(&[NotifyState::Stopping]);
                    self.console.clear_interrupt();
                    return self.end();
                }
                Ok(Event::Ended(exit)) => {
                    notify(&[NotifyState::Stopping]);
                    self.stopper = None;
                    return self.ended(exit);
                }
            }
        }
    }

    /// Ends the tunnel after a signal.
    fn end(&mut self) -> Result<(), TunnelError> {
        let outcome = match self.take_down(true) {
            Ok(()) => Ok(()),
            // Another process has taken it down at the same time, and has decided about the kill
            // switch.
            Err(DownError::NotUp { .. }) => {
                self.await_end();
                return Ok(());
            }
            Err(error @ DownError::Leftovers { .. }) => Err(error),
            // A hook or a first step of `down` has failed. The device ends with this process, so
            // the rest is undone anyway.
            Err(error) => {
                self.console.note(&advice::down(&error));
                if let Some(stop) = self.stopper.take() {
                    stop();
                    self.await_ended();
                }
                self.take_down(false).and(Err(error))
            }
        };
        self.await_end();
        // Applications stay blocked while parts of the tunnel remain.
        let released =
            release_applications(self.request.interface, self.keep_closed || outcome.is_err());
        both(outcome, released)
    }

    /// Cleans up after the device has ended by itself. After a failure the tunnel stays closed, as if
    /// this process had been killed.
    fn ended(&mut self, exit: Exit) -> Result<(), TunnelError> {
        let interface = self.request.interface;
        if let Exit::Failed(reason) = exit {
            return Err(TunnelError::DeviceFailed(format!(
                "{interface} has ended: its device failed: {reason}; the changes of `up` stay: \
                 run `taupe up` to start again, or `taupe down` to undo them"
            )));
        }
        let is_undone = match self.take_down(false) {
            Err(DownError::NotUp { .. }) => {
                say(&format_args!("{interface} has been taken down"));
                return Ok(());
            }
            Ok(()) => true,
            Err(error) => {
                say(&format_args!("taupe: {}", advice::down(&error)));
                false
            }
        };
        // Only a requested end releases the applications.
        let is_blocked = release_applications(interface, true)?;
        let why = match exit {
            Exit::InterfaceDeleted => "another program has deleted the interface",
            Exit::SocketRemoved => "another program has removed its configuration socket",
            Exit::Stopped | Exit::Failed(_) => "its device was stopped",
        };
        let undone = match is_undone && !is_blocked {
            true => "; what `up` had done has been undone",
            false => "",
        };
        Err(TunnelError::Ended(format!(
            "{interface} has ended: {why}{undone}"
        )))
    }

    /// Takes the tunnel down according to the current file or, if that has errors, the journal of
    /// `up`.
    fn take_down(&mut self, save: bool) -> Result<(), DownError> {
        let file = readable(self.conf);
        if let Ok(file) = &file {
            hooks::warn(self.request.interface, file);
        }
        let request = Down {
            interface: self.request.interface,
            file: file.as_ref().ok().map(|file| (&*self.conf.path, file)),
            problem: file.as_ref().err().map(String::as_str),
            compatibility: self.request.compatibility,
            save: save && !is_transparent(self.request.interface),
        };
        let down = adapter::down(&request, &mut self.console);
        self.console.print_routes();
        down
    }

    /// Waits for a device that was started and whose interface has been deleted. Returns the reason if
    /// it has failed.
    fn await_end(&mut self) -> Option<String> {
        self.stopper.take().and_then(|_| self.await_ended())
    }

    fn await_ended(&self) -> Option<String> {
        let began = Instant::now();
        while let Some(left) = ENDING.checked_sub(began.elapsed()) {
            match self.events.recv_timeout(left) {
                Ok(Event::Signal(_)) => {}
                Ok(Event::Ended(Exit::Failed(reason))) => return Some(reason),
                Ok(Event::Ended(_)) | Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        Some(format!(
            "it has not ended {ENDING:?} after its interface was deleted"
        ))
    }
}

/// Combines the results of two steps. If both failed, the second error is printed.
fn both(
    first: Result<(), DownError>,
    second: Result<bool, TransparentError>,
) -> Result<(), TunnelError> {
    match (first, second) {
        (Err(error), second) => {
            if let Err(fault) = second {
                say(&format_args!(
                    "taupe: {}",
                    taupe_inspect::advice::error(&fault)
                ));
            }
            Err(error.into())
        }
        (Ok(()), second) => Ok(second.map(drop)?),
    }
}

/// Notifies the service manager, if there is one.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("cannot notify the service manager: {error}");
    }
}
