//! A simulated system, and the process that changes it. The simulated kernel is in `world.rs`.

use std::fs;
use std::io;
use std::net::IpAddr;
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use ipnet::IpNet;
use taupe_config::file::{Compatibility, File};
use taupe_config::plan_note::PlanNote;
use taupe_os_bsd::System;
use taupe_uapi::Device;

use super::world::{ESRCH, World};
use crate::device::DeviceInterface;
use crate::dns::SystemCommand;
use crate::journal::{BootId, Store};
use crate::machine::{Machine, Report, SnapshotRequest, StepError};
use crate::plan::Options;
use crate::route::TunnelRoute;
use crate::snapshot::Snapshot;
use crate::{Down, DownError, Request, Tunnel, UpError};

/// A failure of the next call, or the death of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Fail,
    /// The kernel refuses the call with this error number.
    Refuse(i32),
    DieBefore,
    DieAfter,
}

/// The payload of a panic in place of the process's death.
struct Died;

/// A simulated machine, and the process that makes changes on it.
pub(super) struct Model {
    pub(super) world: World,
    pub(super) store: Store,
    directory: PathBuf,
    device: Option<DeviceInterface>,
    /// Calls until the fault, and the fault.
    fault: Option<(usize, Fault)>,
    /// True if the interface of a killed process stays.
    pub(super) keeps_interface: bool,
    /// True if the fault has occurred.
    pub(super) struck: bool,
    /// The routers and neighbours whose reachability is checked after each call, with the interface.
    pub(super) must_reach: Vec<(IpAddr, u16)>,
    /// True if a call has led an endpoint's datagrams into the tunnel.
    pub(super) looped: bool,
    /// The commands of the file that ran.
    pub(super) hooks: Vec<String>,
    /// True if networksetup(8) prints an error and succeeds nevertheless.
    pub(super) refuses_services: bool,
    /// True if network services cannot be listed.
    pub(super) hides_services: bool,
    /// The length of the journal at each change of a route.
    pub(super) journal_lengths: Vec<u64>,
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The reported steps and notes.
#[derive(Default)]
pub(super) struct Listener {
    pub(super) steps: Vec<String>,
    pub(super) notes: Vec<PlanNote>,
    pub(super) interrupts_after: Option<usize>,
}

impl Report for Listener {
    fn step(&mut self, command: &dyn std::fmt::Display) {
        self.steps.push(command.to_string());
    }

    fn note(&mut self, note: &PlanNote) {
        self.notes.push(note.clone());
    }

    fn is_interrupted(&self) -> bool {
        self.interrupts_after
            .is_some_and(|count| self.steps.len() > count)
    }
}

impl Model {
    pub(super) fn new(snapshot: Snapshot) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("taupe-adapter-bsd-{}-{number}", std::process::id());
        // Journals are synced to the disk, which takes no time in memory.
        let memory = Path::new("/dev/shm");
        let directory = match memory.is_dir() {
            true => memory.join(name),
            false => std::env::temp_dir().join(name),
        };
        let _ = fs::remove_dir_all(&directory);
        Self {
            world: World::new(snapshot),
            store: Store::at(&directory),
            directory,
            device: None,
            fault: None,
            keeps_interface: false,
            struck: false,
            must_reach: Vec::new(),
            looped: false,
            hooks: Vec::new(),
            refuses_services: false,
            hides_services: false,
            journal_lengths: Vec::new(),
        }
    }

    /// Lets a fault occur at a call, counted from 0.
    pub(super) fn strike(&mut self, number: usize, fault: Fault) {
        self.fault = Some((number, fault));
        self.struck = false;
    }

    pub(super) fn calm(&mut self) {
        self.fault = None;
    }

    pub(super) fn has_journal(&self) -> bool {
        self.store.journal("wg0").exists()
    }

    /// Ends the device's process: its interface goes, except on FreeBSD 14, and nothing is undone.
    pub(super) fn kill_device(&mut self) {
        if let Some(device) = self.device.take()
            && !self.keeps_interface
        {
            self.world.delete_interface(device.index);
        }
    }

    /// Brings the tunnel up. `None` if the process died.
    pub(super) fn up(
        &mut self,
        file: &File,
        options: Options,
        report: &mut Listener,
    ) -> Option<Result<Tunnel, UpError>> {
        let store = self.store.clone();
        let request = Request {
            interface: "wg0",
            config: Path::new("/usr/local/etc/wireguard/wg0.conf"),
            file,
            compatibility: Compatibility::Taupe,
            options,
        };
        self.alive(|model| crate::up(model, &store, &request, report))
    }

    pub(super) fn down(
        &mut self,
        file: Option<&File>,
        report: &mut Listener,
    ) -> Option<Result<(), DownError>> {
        let store = self.store.clone();
        let request = Down {
            interface: "wg0",
            file: file.map(|file| (Path::new("/nowhere/wg0.conf"), file)),
            save: true,
        };
        self.alive(|model| crate::down(model, &store, &request, report))
    }

    /// Runs an operation of the process; `None` if the process died, and its device with it.
    pub(super) fn alive<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> Option<T> {
        match panic::catch_unwind(AssertUnwindSafe(|| work(&mut *self))) {
            Ok(result) => Some(result),
            Err(payload) if payload.is::<Died>() => {
                self.kill_device();
                None
            }
            Err(payload) => panic::resume_unwind(payload),
        }
    }

    /// Makes a call, or lets it fail.
    fn call<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, StepError>,
    ) -> Result<T, StepError> {
        let fault = match &mut self.fault {
            Some((0, fault)) => Some(*fault),
            Some((left, _)) => {
                *left -= 1;
                None
            }
            None => None,
        };
        if fault.is_some() {
            self.fault = None;
            self.struck = true;
        }
        match fault {
            Some(Fault::Fail) => {
                return Err(StepError::Kernel(io::Error::other("a fault of the test")));
            }
            Some(Fault::Refuse(number)) => {
                return Err(StepError::Kernel(io::Error::from_raw_os_error(number)));
            }
            Some(Fault::DieBefore) => panic::resume_unwind(Box::new(Died)),
            Some(Fault::DieAfter) | None => {}
        }
        let result = work(self);
        self.check();
        if fault == Some(Fault::DieAfter) {
            panic::resume_unwind(Box::new(Died));
        }
        result
    }

    /// Checks that the network of the machine stays reachable, and notes whether datagrams to an
    /// endpoint would enter the tunnel.
    fn check(&mut self) {
        for (address, interface) in &self.must_reach {
            let found = self.world.interface_to(*address);
            assert_eq!(found, Some(*interface), "{address} is not reached");
        }
        let Some(device) = &self.device else {
            return;
        };
        let endpoints = self.world.snapshot.endpoints.iter();
        let enters = |it: &IpAddr| self.world.interface_to(*it) == Some(device.index);
        self.looped |= endpoints.copied().any(|it| enters(&it));
    }

    fn note_journal(&mut self) {
        let journal = fs::metadata(self.store.journal("wg0"));
        self.journal_lengths
            .push(journal.map_or(0, |journal| journal.len()));
    }

    fn changed(result: Result<(), i32>) -> Result<(), StepError> {
        result.map_err(|number| StepError::Kernel(io::Error::from_raw_os_error(number)))
    }
}

impl Machine for Model {
    fn boot(&mut self) -> Result<BootId, StepError> {
        self.call(|model| Ok(BootId::Started(model.world.boot)))
    }

    fn device(&mut self) -> Option<DeviceInterface> {
        self.device.clone()
    }

    fn snapshot(&mut self, request: SnapshotRequest) -> Result<Snapshot, StepError> {
        if self.hides_services && request.services {
            let error = StepError::Device("networksetup is not there".to_owned());
            return Err(error);
        }
        self.call(|model| {
            let mut snapshot = model.world.snapshot.clone();
            snapshot.own = request.own;
            if !request.services {
                snapshot.services.clear();
            }
            if request.fib.is_none() {
                snapshot.fib_routes.clear();
            }
            Ok(snapshot)
        })
    }

    fn resolve(&mut self, _: &File, _: &mut dyn Report) -> Result<(), StepError> {
        self.call(|_| Ok(()))
    }

    fn create(&mut self) -> Result<DeviceInterface, StepError> {
        self.call(|model| {
            let (name, flags) = match model.world.snapshot.system {
                System::FreeBsd => ("wg0", 0x8002),
                System::MacOs => ("utun4", 0x8010),
            };
            let index = model.world.add_interface(name, flags);
            let device = DeviceInterface {
                name: name.to_owned(),
                index,
            };
            model.device = Some(device.clone());
            Ok(device)
        })
    }

    fn delete(&mut self, device: &DeviceInterface) -> Result<(), StepError> {
        self.call(|model| {
            model.world.delete_interface(device.index);
            model.device = None;
            Ok(())
        })
    }

    fn configure(&mut self, _: Option<u32>) -> Result<(), StepError> {
        self.call(|_| Ok(()))
    }

    fn device_state(&mut self, device: &DeviceInterface) -> Result<Device, StepError> {
        self.call(|_| {
            let mut state = Device::new(&device.name);
            state.listen_port = 51820;
            Ok(state)
        })
    }

    fn add_address(
        &mut self,
        device: &DeviceInterface,
        network: IpNet,
        _: Option<IpAddr>,
    ) -> Result<(), StepError> {
        self.call(|model| {
            model.world.add_address(device.index, network);
            Ok(())
        })
    }

    fn set_mtu(&mut self, device: &DeviceInterface, mtu: u32) -> Result<(), StepError> {
        self.call(|model| {
            let mut interfaces = model.world.snapshot.interfaces.iter_mut();
            let found = interfaces.find(|it| it.index == device.index);
            found.ok_or(StepError::NoInterface)?.mtu = mtu;
            Ok(())
        })
    }

    fn bring_up(&mut self, device: &DeviceInterface) -> Result<(), StepError> {
        self.call(|model| {
            let mut interfaces = model.world.snapshot.interfaces.iter_mut();
            let found = interfaces.find(|it| it.index == device.index);
            found.ok_or(StepError::NoInterface)?.flags |= 1;
            Ok(())
        })
    }

    fn add_route(&mut self, tunnel: u16, route: &TunnelRoute) -> Result<(), StepError> {
        self.note_journal();
        self.call(|model| {
            let kernel = route.for_kernel(tunnel);
            let added = model
                .world
                .add_route(route.fib, kernel.destination, kernel.next_hop);
            Self::changed(added)
        })
    }

    fn delete_route(&mut self, route: &TunnelRoute) -> Result<(), StepError> {
        self.note_journal();
        self.call(|model| match model.world.delete_our_route(route) {
            Ok(()) | Err(ESRCH) => Ok(()),
            Err(error) => Self::changed(Err(error)),
        })
    }

    fn run(&mut self, command: &SystemCommand) -> Result<String, StepError> {
        self.call(|model| {
            let words: Vec<&str> = command.arguments.iter().map(String::as_str).collect();
            let values = |words: &[&str]| -> Vec<String> {
                let words = words.iter().filter(|it| **it != "Empty");
                words.map(|&it| it.to_owned()).collect()
            };
            let services = &mut model.world.snapshot.services;
            match (command.program, words.as_slice()) {
                ("resolvconf", ["-a", device, "-x"]) => {
                    let device = (*device).to_owned();
                    model.world.resolvconf.insert(device, command.input.clone());
                }
                ("resolvconf", ["-d", device, "-f"]) => {
                    model.world.resolvconf.remove(*device);
                }
                ("networksetup", _) if model.refuses_services => {
                    let error = "** Error: Unable to find item in network database.\n";
                    return Ok(error.to_owned());
                }
                ("networksetup", [verb, name, rest @ ..]) => {
                    let service = services.iter_mut().find(|it| it.name == *name);
                    let service = service.expect("a service");
                    match *verb {
                        "-setdnsservers" => service.servers = values(rest),
                        "-setsearchdomains" => service.search = values(rest),
                        other => panic!("{other}"),
                    }
                }
                other => panic!("{other:?}"),
            }
            Ok(String::new())
        })
    }

    fn run_hook(&mut self, command: &str, _: Option<&str>) -> Result<(), StepError> {
        self.call(|model| {
            model.hooks.push(command.to_owned());
            Ok(())
        })
    }
}
