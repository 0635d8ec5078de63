//! Devices that run in this process.

use crate::arguments::DeviceOrder;
use crate::background::{Starter, StarterGone};
use crate::capture;
use crate::endpoint_names;
use crate::via::{self, Beginning};
use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use taupe_adapter::Watch;
use taupe_engine::{
    Engine, Exit, Options, Resolver, StartError, SystemResolver, TunSource, UapiSource, Underlay,
};
use taupe_inspect::status::advised;
use taupe_os_linux::descriptor::inherited;
use taupe_os_linux::run_directory::RunDirectoryError;
use taupe_os_linux::signals::Termination;
use taupe_os_linux::tun::OpenError;
use taupe_transparent::capture::is_in_effect;
use taupe_transparent::fault::Fault;

/// Operations that the command needs of a device. [`Engine`] implements them; tests use another
/// implementation.
pub trait Device: Sized + Send + 'static {
    /// Starts the device, which looks up endpoint names by `resolver`. When this returns, its
    /// configuration socket answers.
    ///
    /// # Errors
    ///
    /// See [`StartError`].
    fn start(options: Options, resolver: Arc<dyn Resolver>) -> Result<Self, StartError>;

    /// Returns a function that stops the device from any thread.
    fn stopper(&self) -> impl FnOnce() + Send + 'static;

    /// Waits until the device has ended.
    fn run(self) -> Exit;
}

impl Device for Engine {
    fn start(options: Options, resolver: Arc<dyn Resolver>) -> Result<Self, StartError> {
        Self::start_with(options, resolver)
    }

    fn stopper(&self) -> impl FnOnce() + Send + 'static {
        let stopper = self.stopper();
        move || stopper.stop()
    }

    fn run(self) -> Exit {
        self.run()
    }
}

/// Reason why a device could not be started or run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("{0}{advice}", advice = advice(.0))]
    Start(#[from] StartError),
    #[error("{variable}: descriptor {number} cannot be used: {source}")]
    Descriptor {
        variable: &'static str,
        number: RawFd,
        source: io::Error,
    },
    #[error("cannot catch signals: {0}")]
    Signals(#[source] io::Error),
    #[error("{interface} ended: {reason}")]
    Ended { interface: String, reason: String },
    #[error(transparent)]
    Capture(#[from] capture::Failure),
    #[error(transparent)]
    Background(#[from] crate::background::Error),
    #[error(transparent)]
    Outer(#[from] via::NotStarted),
    #[error(transparent)]
    Fault(#[from] Fault),
    #[error("there can be no further thread: {0}")]
    Thread(#[source] io::Error),
    #[error("the process that started this one has been told why")]
    Reported,
}

/// Returns advice for an error of starting, or nothing.
fn advice(error: &StartError) -> String {
    match error {
        StartError::Tun(OpenError::Device(_)) => {
            "; it takes root, and the kernel's tun module (`modprobe tun`)".to_owned()
        }
        StartError::Tun(OpenError::Permission(_)) => "; run it as root".to_owned(),
        StartError::Tun(OpenError::Busy(interface)) => {
            format!("; choose another name, or remove it (`ip link delete {interface}`)")
        }
        StartError::Folder(RunDirectoryError::Unsafe { path, .. }) => {
            let path = path.display();
            format!(" (`chown root {path}`, `chmod o-w {path}`)")
        }
        _ => String::new(),
    }
}

pub(crate) fn run<D: Device>(order: &DeviceOrder) -> Result<(), Failure> {
    order.logging.begin();
    finish(start::<D>(order)?, order)
}

/// Runs a device in the background, for a process that waits for the report. If that process is
/// gone, nobody knows of the device, so it stops.
pub(crate) fn run_for<D: Device>(order: &DeviceOrder, starter: Starter) -> Result<(), Failure> {
    order.logging.begin_in_background();
    let device = match start::<D>(order) {
        Ok(device) => device,
        Err(failure) => {
            starter.failed(&failure);
            return Err(Failure::Reported);
        }
    };
    if let Err(StarterGone) = starter.ready() {
        tracing::warn!("who started the device did not wait for it; stopping");
        device.stop();
    }
    finish(device, order)
}

fn start<D: Device>(order: &DeviceOrder) -> Result<Running<D>, Failure> {
    // A signal that arrives during the start stops the device after the start, so that its socket
    // is removed.
    let termination = Termination::catch().map_err(Failure::Signals)?;
    let device = start_here::<D>(order)?;
    let stop = device.device.stopper();
    termination
        .then(move |signal| {
            tracing::info!("{signal}: stopping");
            stop();
        })
        .map_err(Failure::Signals)?;
    Ok(device)
}

pub(crate) struct Running<D> {
    pub(crate) device: D,
    /// Resources for selected applications.
    _held: Option<capture::Held>,
    /// Watch that logs changed network settings, for a device that `up` has started.
    _settings: Option<Watch>,
    /// The outer device, if this one goes through another.
    outer: Option<via::Joined>,
}

impl<D: Device> Running<D> {
    fn stop(&self) {
        self.device.stopper()();
    }

    /// Waits until the device has ended. Captured applications are blocked then.
    pub(crate) fn run(self) -> Exit {
        let exit = self.device.run();
        match self.outer {
            Some(outer) => outer.end(exit),
            None => exit,
        }
    }
}

/// Starts a device in this process without catching signals.
pub(crate) fn start_here<D: Device>(order: &DeviceOrder) -> Result<Running<D>, Failure> {
    let plan = order.capture.as_deref().map(|file| {
        let plan = capture::Plan::read(file, &order.interface, order.mark)?;
        Ok::<_, Failure>((file, plan))
    });
    let plan = plan.transpose()?;
    let mut options = options(order)?;
    // If a killed process left its kill switch active, it blocks this process until the capture
    // starts.
    let is_closed = order.beneath.is_some() && is_in_effect(order.interface.as_str())?;
    options.tap = plan.as_ref().and_then(|(_, plan)| plan.tap());
    // A core file would contain keys. If the system refuses, core files stay enabled.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
    // Files of the device must only be accessible to its owner. Hooks and other child processes
    // create files with the caller's umask.
    let umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let devices = start_both::<D>(options, order, is_closed);
    rustix::process::umask(umask);
    let Both {
        device,
        outer,
        resolver,
    } = devices?;
    let interface = order.interface.as_str();
    let has_names_left = plan.is_some() || outer.is_some();
    let begun = plan.map(|(file, plan)| plan.begin(interface, file));
    let held = match begun.transpose() {
        Ok(held) => held,
        Err(failure) => {
            device.stopper()();
            device.run();
            if let Some(outer) = outer {
                outer.end();
            }
            return Err(failure.into());
        }
    };
    if let Some(outer) = &outer {
        outer.serve_endpoints();
    }
    if has_names_left {
        endpoint_names::serve(interface, resolver);
    }
    let outer = outer.map(|outer| outer.join(device.stopper())).transpose();
    let outer = outer
        .map_err(Failure::Thread)
        .inspect_err(|_| device.stopper()())?;
    // The tunnel works without it.
    let settings = watch_settings(interface)
        .inspect_err(|error| tracing::warn!(%error, "network settings are not watched"))
        .unwrap_or_default();
    tracing::info!("{interface} is ready");
    Ok(Running {
        device,
        _held: held,
        _settings: settings,
        outer,
    })
}

/// Logs network settings of the tunnel that other programs change.
fn watch_settings(interface: &str) -> io::Result<Option<Watch>> {
    let name = interface.to_owned();
    Watch::begin(interface, move |findings| {
        for finding in findings {
            tracing::warn!("{}", advised(finding, &name));
        }
        if findings.is_empty() {
            tracing::info!("the network settings of {name} are as `taupe up` made them");
        }
    })
}

/// A device, with the outer device if it goes through another.
struct Both<D> {
    device: D,
    outer: Option<via::Started<D>>,
    /// Looks up the names of the device's endpoints.
    resolver: Arc<dyn Resolver>,
}

/// Starts a device. If it goes through an outer device, starts that one first.
fn start_both<D: Device>(
    mut options: Options,
    order: &DeviceOrder,
    is_closed: bool,
) -> Result<Both<D>, Failure> {
    let beneath = order.beneath.as_ref();
    let outer = beneath.map(|beneath| via::start::<D>(beneath, order, is_closed));
    let (outer, resolver): (_, Arc<dyn Resolver>) = match outer.transpose()? {
        None => (None, Arc::new(SystemResolver::default())),
        Some(Beginning {
            outer,
            underlay,
            names,
        }) => {
            options.underlay = underlay;
            (Some(outer), Arc::new(names))
        }
    };
    match D::start(options, Arc::clone(&resolver)) {
        Ok(device) => Ok(Both {
            device,
            outer,
            resolver,
        }),
        Err(error) => {
            if let Some(outer) = outer {
                outer.end();
            }
            Err(error.into())
        }
    }
}

fn finish<D: Device>(device: Running<D>, order: &DeviceOrder) -> Result<(), Failure> {
    let interface = &order.interface;
    match device.run() {
        Exit::InterfaceDeleted => tracing::info!("{interface} was deleted"),
        Exit::SocketRemoved => tracing::info!("the socket of {interface} was removed"),
        Exit::Stopped => tracing::info!("{interface} has stopped"),
        Exit::Failed(reason) => {
            return Err(Failure::Ended {
                interface: interface.to_string(),
                reason,
            });
        }
    }
    Ok(())
}

fn options(order: &DeviceOrder) -> Result<Options, Failure> {
    let passed = |variable, number: Option<RawFd>| -> Result<Option<OwnedFd>, Failure> {
        let take = |number| {
            inherited(number).map_err(|source| Failure::Descriptor {
                variable,
                number,
                source,
            })
        };
        number.map(take).transpose()
    };
    Ok(Options {
        interface: order.interface.to_string(),
        tun: passed("WG_TUN_FD", order.tun)?.map_or(TunSource::Create, TunSource::Fd),
        underlay: Underlay::Here,
        tap: None,
        uapi: passed("WG_UAPI_FD", order.uapi)?.map_or(UapiSource::Bind, UapiSource::Fd),
        offloads: order.offloads,
        state_dir: None,
        notices: None,
    })
}
