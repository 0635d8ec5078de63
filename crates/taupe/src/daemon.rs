//! The daemon of a device: the broker, which keeps the rights and starts the packet process.

use crate::background::{BackgroundError, Starter, StarterGone};
use crate::capture::{CaptureError, CapturePlan, PreparedCapture, RunningCapture};
use crate::device::Device;
use crate::device_log::Logging;
use crate::endpoint_names;
use crate::logging;
use crate::passed_descriptor::{TUN, UAPI};
use crate::plan::{DevicePlan, PlanError};
use crate::start_advice::start_advice;
use crate::via::{self, JoinedOuter, OuterDevice, OuterError, OuterPlan, OuterStart};
use rustix::fs::Mode;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use taupe_adapter::Watch;
use taupe_engine::{
    Exit, Options, Resolver, StartError, SystemResolver, TunSource, UapiSource, Underlay,
};
use taupe_inspect::status::with_advice;
use taupe_nat::translate::Settings;
use taupe_os_linux::descriptor::{check_room, grow_table, inherited};
use taupe_os_linux::signals::Termination;
use taupe_transparent::error::TransparentError;

/// Reason why a device could not be started or run to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DaemonError {
    #[error("{0}{advice}", advice = start_advice(.0))]
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
    Plan(#[from] PlanError),
    #[error(transparent)]
    Capture(#[from] CaptureError),
    #[error(transparent)]
    Background(#[from] BackgroundError),
    #[error(transparent)]
    Outer(#[from] OuterError),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
    #[error(
        "{interface} needs {LATER_DESCRIPTORS} more descriptors, for its UDP sockets and clients: \
         {source}; raise the limit (`ulimit -n`, or LimitNOFILE= of a service)"
    )]
    Descriptors {
        interface: String,
        source: io::Error,
    },
    #[error("the starting process has received the reason")]
    Reported,
}

impl DaemonError {
    /// Returns true if the reason is that a process of the device has ended: it was killed, or has a
    /// defect.
    pub(crate) fn is_device_failure(&self) -> bool {
        match self {
            Self::Start(error) | Self::Outer(OuterError::Start { source: error, .. }) => {
                matches!(error, StartError::Ended(_))
            }
            Self::Capture(CaptureError::Fault(fault)) => {
                matches!(fault, TransparentError::NoPacketProcess(_))
            }
            _ => false,
        }
    }
}

/// Runs a device in the foreground.
pub(crate) fn run<D: Device>(plan: DevicePlan, logging: &Logging) -> Result<(), DaemonError> {
    grow_table();
    logging.begin();
    start::<D>(plan)?.finish()
}

/// Runs a device in the background, for a process that sends the plan and waits for the report. If
/// that process is gone, nobody knows of the device, so it stops.
pub(crate) fn run_for<D: Device>(mut starter: Starter) -> Result<(), DaemonError> {
    grow_table();
    // The plan may contain keys.
    disable_core_files();
    let started = starter.plan().map_err(DaemonError::from).and_then(|plan| {
        logging::begin(plan.log_level);
        start::<D>(plan)
    });
    let device = match started {
        Ok(device) => device,
        Err(error) => {
            starter.failed(&error);
            return Err(DaemonError::Reported);
        }
    };
    if let Err(StarterGone) = starter.ready() {
        tracing::warn!(
            "the process that started the device has ended before it was ready; stopping"
        );
        device.stop();
    }
    device.finish()
}

fn start<D: Device>(plan: DevicePlan) -> Result<Running<D>, DaemonError> {
    // A signal that arrives during the start stops the device after the start, so that its socket
    // is removed.
    let termination = Termination::catch().map_err(DaemonError::Signals)?;
    let device = start_here::<D>(plan)?;
    let stop = device.device.stopper();
    let caught = termination.then(move |signal| {
        stop();
        // Logging may block, so it comes last.
        tracing::info!("{signal}: stopping");
    });
    match caught {
        Ok(()) => Ok(device),
        Err(error) => {
            device.stop();
            device.run();
            Err(DaemonError::Signals(error))
        }
    }
}

/// Descriptors that a device opens after its start: UDP sockets for up to 16 lanes, connections of
/// configuration clients, files of the saved state. Checking once that there is room for them also
/// finds a lack of descriptors because of which optional parts were left out during the start.
pub(crate) const LATER_DESCRIPTORS: usize = 64;

/// A running device.
pub(crate) struct Running<D> {
    interface: String,
    device: D,
    _capture: Option<RunningCapture>,
    /// Watch that logs changed network settings, for a device that `up` has started.
    _settings: Option<Watch>,
    /// The outer device, if this one goes through another.
    outer: Option<JoinedOuter>,
}

impl<D: Device> Running<D> {
    fn stop(&self) {
        self.device.stopper()();
    }

    /// Returns a function that stops the device from any thread.
    pub(crate) fn stopper(&self) -> impl FnOnce() + Send + 'static {
        self.device.stopper()
    }

    /// Waits until the device has ended. Captured applications are blocked then.
    pub(crate) fn run(self) -> Exit {
        let exit = self.device.run();
        match self.outer {
            Some(outer) => outer.end(exit),
            None => exit,
        }
    }

    /// Waits until the device has ended, and logs or returns the reason.
    fn finish(self) -> Result<(), DaemonError> {
        let interface = self.interface.clone();
        match self.run() {
            Exit::InterfaceDeleted => tracing::info!("{interface} was deleted"),
            Exit::SocketRemoved => tracing::info!("the socket of {interface} was removed"),
            Exit::Stopped => tracing::info!("{interface} has stopped"),
            Exit::Failed(reason) => return Err(DaemonError::Ended { interface, reason }),
        }
        Ok(())
    }
}

/// Starts a device without catching signals.
pub(crate) fn start_here<D: Device>(plan: DevicePlan) -> Result<Running<D>, DaemonError> {
    let options = options(&plan)?;
    let DevicePlan {
        interface,
        capture,
        outer,
        ..
    } = plan;
    let interface = interface.to_string();
    let capture = capture.map(CapturePlan::prepare);
    let translation = capture.as_ref().and_then(PreparedCapture::translation);
    disable_core_files();
    // Files of the device must only be accessible to its owner. Hooks and other child processes
    // create files with the caller's umask.
    let umask = rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let devices = start_both::<D>(options, translation, outer);
    rustix::process::umask(umask);
    let Both {
        device,
        outer,
        resolver,
    } = devices?;
    let has_names_left = capture.is_some() || outer.is_some();
    let packet_processes = [
        device.packet_process(),
        outer.as_ref().and_then(OuterDevice::packet_process),
    ];
    let begin =
        |capture: PreparedCapture| capture.begin(&interface, packet_processes, device.translator());
    let capture = match capture.map(begin).transpose() {
        Ok(capture) => capture,
        Err(error) => {
            device.stopper()();
            let exit = device.run();
            if let Some(outer) = outer {
                outer.end();
            }
            // The end of the device explains whatever else has failed.
            return Err(match exit {
                Exit::Failed(reason) => StartError::Ended(reason).into(),
                _ => error.into(),
            });
        }
    };
    if let Some(outer) = &outer {
        outer.serve_endpoints();
    }
    if has_names_left {
        endpoint_names::serve(&interface, resolver);
    }
    let outer = outer.map(|outer| outer.join(device.stopper())).transpose();
    let outer = outer
        .map_err(DaemonError::Thread)
        .inspect_err(|_| device.stopper()())?;
    // The tunnel works without it.
    let settings = watch_settings(&interface)
        .inspect_err(|error| tracing::warn!(%error, "network settings are not watched"))
        .unwrap_or_default();
    let running = Running {
        interface,
        device,
        _capture: capture,
        _settings: settings,
        outer,
    };
    if let Err(source) = check_room(LATER_DESCRIPTORS) {
        let interface = running.interface.clone();
        running.stop();
        running.run();
        return Err(DaemonError::Descriptors { interface, source });
    }
    tracing::info!("{} is ready", running.interface);
    Ok(running)
}

/// Disables core files, which would contain keys. If the system refuses, they stay enabled.
fn disable_core_files() {
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Logs network settings of the tunnel that other programs change.
fn watch_settings(interface: &str) -> io::Result<Option<Watch>> {
    let name = interface.to_owned();
    Watch::begin(interface, move |findings| {
        for finding in findings {
            tracing::warn!("{}", with_advice(finding, &name));
        }
        if findings.is_empty() {
            tracing::info!("the network settings of {name} are as `taupe up` made them");
        }
    })
}

/// A device, with the outer device if it goes through another.
struct Both<D> {
    device: D,
    outer: Option<OuterDevice<D>>,
    /// Looks up the names of the device's endpoints.
    resolver: Arc<dyn Resolver>,
}

/// Starts a device, with a translator if there are settings for it. If it goes through an outer device,
/// starts that one first.
fn start_both<D: Device>(
    mut options: Options,
    translation: Option<Settings>,
    outer: Option<OuterPlan>,
) -> Result<Both<D>, DaemonError> {
    let outer = outer.map(|plan| via::start::<D>(plan, options.offloads));
    let (outer, resolver): (_, Arc<dyn Resolver>) = match outer.transpose()? {
        None => (None, Arc::new(SystemResolver::default())),
        Some(OuterStart {
            outer,
            network,
            mark,
            names,
        }) => {
            options.underlay = Underlay::Behind(network);
            options.outer_mark = Some(mark);
            (Some(outer), Arc::new(names))
        }
    };
    match D::start(options, translation, Arc::clone(&resolver)) {
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

fn options(plan: &DevicePlan) -> Result<Options, DaemonError> {
    let passed = |variable, number: Option<RawFd>| -> Result<Option<OwnedFd>, DaemonError> {
        let take = |number| {
            inherited(number).map_err(|source| DaemonError::Descriptor {
                variable,
                number,
                source,
            })
        };
        number.map(take).transpose()
    };
    Ok(Options {
        interface: plan.interface.to_string(),
        tun: match passed(TUN, plan.tun)? {
            Some(tun) => TunSource::Fd(tun),
            None => TunSource::Create { lanes: plan.lanes },
        },
        underlay: Underlay::Here,
        outer_mark: None,
        tap: None,
        uapi: passed(UAPI, plan.uapi)?.map_or(UapiSource::Bind, UapiSource::Fd),
        offloads: plan.offloads,
        state_dir: None,
        notices: None,
    })
}

#[cfg(test)]
mod tests {
    use super::{DaemonError, run_for};
    use crate::background::Starter;
    use rustix::process::{DumpableBehavior, dumpable_behavior};
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use taupe_broker::PacketProcess;

    #[test]
    fn core_files_are_disabled_before_a_plan_is_read() {
        let (mut ours, theirs) = UnixStream::pair().expect("sockets");
        ours.write_all(b"no plan\n").expect("written");
        let outcome = run_for::<PacketProcess>(Starter::at(theirs));
        assert!(matches!(outcome, Err(DaemonError::Reported)));
        let behaviour = dumpable_behavior().expect("a behaviour");
        assert_eq!(behaviour, DumpableBehavior::NotDumpable);
    }
}
