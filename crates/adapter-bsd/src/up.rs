//! Bringing a tunnel up.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use taupe_config::file::{Compatibility, File};
use taupe_config::plan_note::PlanNote;
use taupe_os_bsd::System;
use taupe_uapi::network_set::NetworkSet;

use crate::device::DeviceInterface;
use crate::dns::{self, DnsSettings};
use crate::hooks::with_names;
use crate::journal::{Header, Journal, JournalError, LastingChange, Lock, Store};
use crate::machine::{Machine, Report, SnapshotRequest, StepError};
use crate::plan::{self, Destination, Options, PlanError, Step, plan};
use crate::route::{Hop, TunnelRoute};
use crate::tunnel::Tunnel;
use crate::undo::{Leftover, list, undo_all};

/// A tunnel to bring up, and its options.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The tunnel's name.
    pub interface: &'a str,
    /// The path of the file.
    pub config: &'a Path,
    /// The contents of the file.
    pub file: &'a File,
    /// The command whose behaviour to follow.
    pub compatibility: Compatibility,
    /// The options of the command.
    pub options: Options,
}

/// Error of bringing a tunnel up. Unless leftovers are listed, everything is as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpError {
    /// The tunnel is up already.
    #[error("{interface} is up already, from {}", .config.display())]
    AlreadyUp {
        /// The tunnel.
        interface: String,
        /// The file that it was made from.
        config: PathBuf,
    },
    /// Another program has a device of this name.
    #[error("there is an interface {0} already, which another program has made")]
    Exists(String),
    /// The leftovers of a killed tunnel cannot be undone.
    #[error("the previous tunnel {interface} was killed, and some of its changes cannot be undone:\n  {}", list(.leftovers))]
    Leftovers {
        /// The tunnel.
        interface: String,
        /// The changes that could not be undone.
        leftovers: Vec<Leftover>,
    },
    /// The journal cannot be used.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The system does not permit the tunnel.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The system cannot be examined.
    #[error(transparent)]
    Look(StepError),
    /// A step failed.
    #[error("{cause}{}", outcome(.leftovers))]
    Failed {
        /// The error.
        cause: ApplyError,
        /// The changes that could not be undone.
        leftovers: Vec<Leftover>,
    },
}

/// Error of a step of `up`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// The step failed.
    #[error("{}", .error.of_step(.command))]
    Step {
        /// The equivalent command.
        command: String,
        /// The error.
        error: StepError,
    },
    /// The system cannot be examined.
    #[error(transparent)]
    Look(#[from] StepError),
    /// The system does not permit the tunnel.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
}

fn outcome(leftovers: &[Leftover]) -> String {
    match leftovers {
        [] => "; everything is as it was before".to_owned(),
        some => format!(
            "; of what had been done, this could not be undone:\n  {}",
            list(some)
        ),
    }
}

/// Brings the tunnel up. On success it can be used: the device is configured, and its addresses,
/// routes and name servers are set. After an error all executed steps have been undone.
///
/// # Errors
/// See [`UpError`].
pub fn up(
    machine: &mut dyn Machine,
    store: &Store,
    request: &Request<'_>,
    report: &mut dyn Report,
) -> Result<Tunnel, UpError> {
    let lock = store.lock(request.interface, Duration::ZERO)?;
    prepare(machine, &lock, request.interface, report)?;
    // Errors of the file come before the first change.
    let snapshot = machine
        .snapshot(SnapshotRequest::default())
        .map_err(UpError::Look)?;
    plan::destination(request.file, &snapshot)?;
    let resolved = machine.resolve(request.file, report);
    resolved.map_err(UpError::Look)?;
    let boot = machine.boot().map_err(UpError::Look)?;
    let post_down = &request.file.interface.hooks.post_down;
    let mut journal = lock.begin(Header::new(
        boot,
        snapshot.fibs.own,
        request.config,
        post_down,
    ))?;
    let applied = Applying {
        machine,
        journal: &mut journal,
        request,
        report,
    }
    .all();
    applied.map_err(|cause| UpError::Failed {
        cause,
        leftovers: roll_back(machine, journal, request, report),
    })
}

/// Undoes the leftovers of an earlier tunnel of this name. Fails if that tunnel is up, or if the
/// device belongs to another program.
fn prepare(
    machine: &mut dyn Machine,
    lock: &Lock,
    interface: &str,
    report: &mut dyn Report,
) -> Result<(), UpError> {
    let device = machine.device();
    let Some(journal) = lock.journal()? else {
        return match device {
            Some(_) => Err(UpError::Exists(interface.to_owned())),
            None => Ok(()),
        };
    };
    let boot = machine.boot().map_err(UpError::Look)?;
    let is_stale = !boot.is_same(&journal.header().boot);
    match device {
        Some(device) if is_stale || journal.device() != Some(&device) => {
            return Err(UpError::Exists(interface.to_owned()));
        }
        Some(_) if journal.is_complete() => {
            return Err(UpError::AlreadyUp {
                interface: interface.to_owned(),
                config: journal.header().config.clone(),
            });
        }
        Some(device) => machine.delete(&device).map_err(UpError::Look)?,
        // FreeBSD 14 keeps the interface of a process that was killed.
        None => {
            let left = journal.device().filter(|_| !is_stale);
            let deleted = left.map_or(Ok(()), |device| machine.delete(device));
            deleted.map_err(UpError::Look)?;
        }
    }
    if journal.changes().next().is_some() && !is_stale {
        let sentence = format!("the last {interface} was killed: undoing its changes");
        report.note(&PlanNote::from(sentence));
    }
    match undo_all(machine, journal, is_stale, report) {
        leftovers if leftovers.is_empty() => Ok(()),
        leftovers => Err(UpError::Leftovers {
            interface: interface.to_owned(),
            leftovers,
        }),
    }
}

/// Undoes an `up` that failed.
fn roll_back(
    machine: &mut dyn Machine,
    journal: Journal,
    request: &Request<'_>,
    report: &mut dyn Report,
) -> Vec<Leftover> {
    let device = journal.device().cloned().or_else(|| machine.device());
    if let Some(device) = &device
        && let Err(error) = machine.delete(device)
    {
        // The routes to endpoints have to outlive it.
        return vec![Leftover {
            command: format!("rm /var/run/wireguard/{}.sock", device.name),
            error: error.into(),
        }];
    }
    let mut leftovers = undo_all(machine, journal, false, report);
    // wg-quick runs no PostDown then.
    if request.compatibility == Compatibility::Taupe
        && !request.file.interface.hooks.pre_up.is_empty()
    {
        for hook in &request.file.interface.hooks.post_down {
            let name = device.as_ref().map(|device| &*device.name);
            let command = with_names(hook, name, request.interface);
            report.step(&command);
            if let Err(error) = machine.run_hook(&command, name) {
                let error = error.into();
                leftovers.push(Leftover { command, error });
            }
        }
    }
    leftovers
}

/// The parts that steps need.
struct Applying<'a> {
    machine: &'a mut dyn Machine,
    journal: &'a mut Journal,
    request: &'a Request<'a>,
    report: &'a mut dyn Report,
}

impl Applying<'_> {
    fn all(mut self) -> Result<Tunnel, ApplyError> {
        let Request {
            interface,
            file,
            compatibility,
            options,
            ..
        } = *self.request;
        let mut tunnel = None;
        // As in wg-quick of these systems, commands of PreUp find the interface, whose name macOS
        // chooses. They may add routes, so the plan comes after them.
        if !file.interface.hooks.pre_up.is_empty() {
            let device = self.create()?;
            for hook in &file.interface.hooks.pre_up {
                self.hook(hook, &device)?;
            }
            tunnel = Some(Tunnel::new(device));
        }
        let own = tunnel.as_ref().map(|tunnel| tunnel.device.index);
        let snapshot = self.look(own)?;
        let plan = plan(interface, file, &snapshot, compatibility, options)?;
        for note in &plan.notes {
            self.report.note(note);
        }
        let mut tunnel = match tunnel {
            Some(tunnel) => tunnel,
            None => Tunnel::new(self.create()?),
        };
        tunnel.ipv6 = compatibility == Compatibility::Taupe && snapshot.ipv6 && file.carries_ipv6();
        tunnel.has_hosts = plan::destination(file, &snapshot)? == Destination::Main;
        let claimed = plan::claimed(plan.routes());
        for step in &plan.steps {
            self.step(step, &claimed, &mut tunnel)?;
            if let (Step::Up { mtu }, true) = (step, plan.mtu_follows) {
                tunnel.mtu = Some(*mtu);
            }
        }
        self.journal.complete()?;
        Ok(tunnel)
    }

    fn look(&mut self, own: Option<u16>) -> Result<crate::Snapshot, ApplyError> {
        let mut request = SnapshotRequest {
            own,
            ..SnapshotRequest::default()
        };
        let first = self.machine.snapshot(request)?;
        if let Destination::Fib(fib) = plan::destination(self.request.file, &first)? {
            request.fib = Some(fib);
            return Ok(self.machine.snapshot(request)?);
        }
        Ok(first)
    }

    fn announce(&mut self, command: &dyn fmt::Display) -> Result<(), ApplyError> {
        self.report.step(command);
        match self.report.is_interrupted() {
            true => Err(ApplyError::Look(StepError::Interrupted)),
            false => Ok(()),
        }
    }

    /// Announces a step and makes it.
    fn execute<T>(
        &mut self,
        command: &dyn fmt::Display,
        step: impl FnOnce(&mut dyn Machine) -> Result<T, StepError>,
    ) -> Result<T, ApplyError> {
        self.announce(command)?;
        step(self.machine).map_err(|error| ApplyError::Step {
            command: command.to_string(),
            error,
        })
    }

    fn create(&mut self) -> Result<DeviceInterface, ApplyError> {
        let command = format!("taupe device {}", self.request.interface);
        let device = self.execute(&command, |machine| machine.create())?;
        self.journal.record_device(device.clone())?;
        Ok(device)
    }

    fn hook(&mut self, hook: &str, device: &DeviceInterface) -> Result<(), ApplyError> {
        let command = with_names(hook, Some(&device.name), self.request.interface);
        let name = &device.name;
        self.execute(&command.clone(), |machine| {
            machine.run_hook(&command, Some(name))
        })
    }

    fn step(
        &mut self,
        step: &Step,
        claimed: &NetworkSet,
        tunnel: &mut Tunnel,
    ) -> Result<(), ApplyError> {
        let device = tunnel.device.clone();
        let name = &device.name;
        match step {
            Step::Device => Ok(()),
            Step::Configure { fwmark } => {
                let command = format!("taupe setconf {name}");
                self.execute(&command, |machine| machine.configure(*fwmark))
            }
            Step::Address { network, peer } => {
                let family = if network.addr().is_ipv4() {
                    "inet"
                } else {
                    "inet6"
                };
                let mut command = format!("ifconfig {name} {family} {network}");
                if let Some(peer) = peer {
                    command.push_str(&format!(" {peer}"));
                }
                command.push_str(" alias");
                self.execute(&command, |machine| {
                    machine.add_address(&device, *network, *peer)
                })
            }
            Step::Up { mtu } => {
                let command = format!("ifconfig {name} mtu {mtu}");
                self.execute(&command, |machine| machine.set_mtu(&device, *mtu))?;
                let command = format!("ifconfig {name} up");
                self.execute(&command, |machine| machine.bring_up(&device))
            }
            Step::Route(route) => {
                if self.route(route, &device)? {
                    tunnel.add(claimed, route);
                }
                Ok(())
            }
            Step::Dns(settings) => {
                tunnel.dns = Some(settings.clone());
                self.name_servers(settings, name)
            }
            Step::Hook(hook) => self.hook(hook, &device),
        }
    }

    /// Adds a route. Returns false if another program has added a route to the destination since the
    /// plan was made: that one is left alone.
    fn route(&mut self, route: &TunnelRoute, device: &DeviceInterface) -> Result<bool, ApplyError> {
        let recorded = match route.ends_with_device() {
            true => None,
            false => Some(self.journal.record(LastingChange::Route(route.clone()))?),
        };
        let command = route.command("add", &device.name);
        self.announce(&command)?;
        match self.machine.add_route(device.index, route) {
            Ok(()) => Ok(true),
            Err(error) if error.exists() => {
                if let Some(number) = recorded {
                    self.journal.undone(number)?;
                }
                let is_own = self.is_own(route, device)?;
                if !is_own {
                    let sentence = format!(
                        "there is a route to {} already, which another program has just added: it \
                         stays",
                        route.destination
                    );
                    self.report.note(&PlanNote::from(sentence));
                }
                Ok(is_own)
            }
            Err(error) => Err(ApplyError::Step {
                command: command.to_string(),
                error,
            }),
        }
    }

    /// Returns true if the kernel itself has added a route into the tunnel, for its address.
    fn is_own(&mut self, route: &TunnelRoute, device: &DeviceInterface) -> Result<bool, StepError> {
        if route.hop != Hop::Tunnel {
            return Ok(false);
        }
        let snapshot = self.machine.snapshot(SnapshotRequest {
            own: Some(device.index),
            fib: route.fib,
            services: false,
        })?;
        let table = match route.fib {
            Some(_) => &snapshot.fib_routes,
            None => &snapshot.routes,
        };
        Ok(table.iter().any(|entry| {
            entry.route.destination == route.destination && entry.interface == device.index
        }))
    }

    fn name_servers(&mut self, settings: &DnsSettings, device: &str) -> Result<(), ApplyError> {
        let snapshot = self.machine.snapshot(SnapshotRequest {
            own: None,
            fib: None,
            services: true,
        })?;
        if snapshot.system == System::FreeBsd {
            self.journal
                .record(LastingChange::Resolvconf(device.to_owned()))?;
            let command = settings.add(device);
            return self
                .execute(&command, |machine| machine.run(&command))
                .map(drop);
        }
        for service in snapshot.services {
            let wanted = settings.of_service(&service.name);
            if service == wanted {
                continue;
            }
            self.journal.record(LastingChange::Service(service))?;
            for command in dns::set_service(&wanted) {
                let printed = self.execute(&command, |machine| machine.run(&command))?;
                if let Some(error) = dns::service_error(&printed) {
                    let sentence = format!("`{command}`: {error}");
                    self.report.note(&PlanNote::from(sentence));
                }
            }
        }
        Ok(())
    }
}
