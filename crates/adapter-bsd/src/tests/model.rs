//! A simulated system with the routing table of BSD kernels.
//!
//! Rules, each from the kernels' sources: `add` of a destination that has a route fails with
//! `EEXIST` (`add_route_byinfo` in FreeBSD's `sys/net/route/route_ctl.c`, `rtrequest_common_locked`
//! in xnu's `bsd/net/route.c`), `delete` without one with `ESRCH`; a router must be on the link of
//! an interface (`ENETUNREACH`); an address adds the route to its network, unless another interface
//! has it; the deletion of an interface deletes its addresses and its routes; other routes survive.

use std::collections::BTreeMap;
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
use taupe_os_bsd::routing::{Interface, InterfaceAddress, NextHop, Route, RouteEntry};
use taupe_uapi::Device;
use taupe_uapi::network_set::host;

use crate::device::DeviceInterface;
use crate::dns::SystemCommand;
use crate::journal::{BootId, Store};
use crate::machine::{Machine, Report, SnapshotRequest, StepError};
use crate::plan::Options;
use crate::route::TunnelRoute;
use crate::snapshot::{NetworkService, Snapshot};
use crate::{Down, DownError, Request, Tunnel, UpError};

/// A failure of the next call, or the death of the process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Fail,
    DieBefore,
    DieAfter,
}

/// The payload of a panic in place of the process's death.
struct Died;

/// The state of the system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct World {
    pub(super) snapshot: Snapshot,
    /// The input of `resolvconf`, by device.
    pub(super) resolvconf: BTreeMap<String, String>,
    pub(super) boot: u64,
}

impl World {
    pub(super) fn new(mut snapshot: Snapshot) -> Self {
        if snapshot.system == System::MacOs {
            snapshot.services = vec![
                service("Wi-Fi", &["192.0.2.53"]),
                service("Thunderbolt Bridge", &[]),
            ];
        }
        Self {
            snapshot,
            resolvconf: BTreeMap::new(),
            boot: 1_700_000_000,
        }
    }

    /// Returns the outgoing interface by the longest prefix, or `None` if packets are refused.
    pub(super) fn interface_to(&self, address: IpAddr) -> Option<u16> {
        let best = self.best(address)?;
        match best.route.next_hop {
            NextHop::Reject | NextHop::Blackhole => None,
            _ => Some(best.interface),
        }
    }

    fn best(&self, address: IpAddr) -> Option<&RouteEntry> {
        let usable = |entry: &&RouteEntry| {
            let route = &entry.route;
            route.scope.is_none() && route.zone == 0 && route.destination.contains(&address)
        };
        let routes = self.snapshot.routes.iter().filter(usable);
        routes.max_by_key(|entry| entry.route.destination.prefix_len())
    }

    fn table(&mut self, fib: Option<u32>) -> &mut Vec<RouteEntry> {
        match fib {
            Some(_) => &mut self.snapshot.fib_routes,
            None => &mut self.snapshot.routes,
        }
    }

    fn index(&self, interface: u16) -> Option<&Interface> {
        self.snapshot.interface(interface)
    }

    /// Returns the interface on whose link a router is: both kernels look at the interfaces'
    /// addresses before they look at routes (`ifa_ifwithroute`).
    fn link_of(&self, router: IpAddr, zone: u16) -> Option<u16> {
        if zone != 0 {
            return self.index(zone).map(|it| it.index);
        }
        let mut addresses = self.snapshot.addresses.iter();
        if let Some(address) = addresses.find(|it| it.network.contains(&router)) {
            return Some(address.interface);
        }
        let best = self.best(router)?;
        matches!(best.route.next_hop, NextHop::Interface(_)).then_some(best.interface)
    }

    pub(super) fn add_route(
        &mut self,
        fib: Option<u32>,
        destination: IpNet,
        next_hop: NextHop,
    ) -> Result<(), i32> {
        let interface = match next_hop {
            NextHop::Gateway(gateway) => {
                self.link_of(gateway.ip, gateway.zone).ok_or(ENETUNREACH)?
            }
            NextHop::Interface(index) => self.index(index).map(|it| it.index).ok_or(ENXIO)?,
            _ => self.loopback(),
        };
        let is_same = |it: &RouteEntry| {
            it.route.destination == destination
                && it.route.scope.is_none()
                && it.flags & CLONED == 0
        };
        if self.table(fib).iter().any(is_same) {
            return Err(EEXIST);
        }
        self.table(fib).push(RouteEntry {
            route: Route {
                destination,
                zone: 0,
                next_hop,
                scope: None,
            },
            interface,
            source: None,
            mtu: None,
            flags: 0x801,
        });
        Ok(())
    }

    fn loopback(&self) -> u16 {
        let mut interfaces = self.snapshot.interfaces.iter();
        interfaces
            .find(|it| it.is_loopback())
            .map_or(0, |it| it.index)
    }

    pub(super) fn delete_route(&mut self, destination: IpNet) -> Result<(), i32> {
        let before = self.snapshot.routes.len();
        self.snapshot.routes.retain(|it| {
            it.route.destination != destination
                || it.route.scope.is_some()
                || it.flags & CLONED != 0
        });
        match self.snapshot.routes.len() < before {
            true => Ok(()),
            false => Err(ESRCH),
        }
    }

    pub(super) fn add_interface(&mut self, name: &str, flags: u32) -> u16 {
        let interfaces = &mut self.snapshot.interfaces;
        let index = interfaces.iter().map(|it| it.index).max().unwrap_or(0) + 1;
        interfaces.push(Interface {
            index,
            name: Some(name.to_owned()),
            mtu: 1500,
            medium: 0,
            ethernet: None,
            flags,
        });
        index
    }

    pub(super) fn delete_interface(&mut self, index: u16) {
        let snapshot = &mut self.snapshot;
        let own: Vec<IpAddr> = snapshot
            .addresses
            .iter()
            .filter(|it| it.interface == index)
            .map(|it| it.network.addr())
            .collect();
        snapshot.interfaces.retain(|it| it.index != index);
        snapshot.addresses.retain(|it| it.interface != index);
        let is_left = |it: &RouteEntry| {
            it.interface != index && !own.iter().any(|own| it.route.destination == host(*own))
        };
        snapshot.routes.retain(is_left);
        snapshot.fib_routes.retain(is_left);
    }

    pub(super) fn add_address(&mut self, index: u16, network: IpNet) {
        self.snapshot.addresses.push(InterfaceAddress {
            interface: index,
            network,
            peer: None,
        });
        let implies_route = match network {
            IpNet::V4(it) => self.snapshot.system == System::FreeBsd && it.prefix_len() < 32,
            IpNet::V6(it) => it.prefix_len() < 128,
        };
        if implies_route {
            self.connect(index, network.trunc());
        }
        let loopback = NextHop::Interface(self.loopback());
        let _ = self.add_route(None, host(network.addr()), loopback);
    }
}

impl World {
    /// Adds the route to an interface's own network. On FreeBSD it replaces a static route (rule of
    /// `RTF_PINNED`). Otherwise, if there is a route, the address goes without.
    fn connect(&mut self, index: u16, network: IpNet) {
        let next_hop = NextHop::Interface(index);
        if self.add_route(None, network, next_hop) == Err(EEXIST)
            && self.snapshot.system == System::FreeBsd
        {
            let routes = &mut self.snapshot.routes;
            routes.retain(|it| it.route.destination != network || it.flags & STATIC == 0);
            let _ = self.add_route(None, network, next_hop);
        }
        let mut routes = self.snapshot.routes.iter_mut();
        if let Some(own) = routes.find(|it| {
            it.route.destination == network && it.interface == index && it.route.scope.is_none()
        }) {
            own.flags &= !STATIC;
        }
    }
}

const STATIC: u32 = 0x800;
const ESRCH: i32 = 3;
const ENXIO: i32 = 6;
const EEXIST: i32 = 17;
const ENETUNREACH: i32 = 51;
const CLONED: u32 = 0x2_0000 | 0x400;

pub(super) fn service(name: &str, servers: &[&str]) -> NetworkService {
    NetworkService {
        name: name.to_owned(),
        servers: servers.iter().map(|&it| it.to_owned()).collect(),
        search: Vec::new(),
    }
}

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
        self.call(|model| {
            let kernel = route.for_kernel(tunnel);
            let added = model
                .world
                .add_route(route.fib, kernel.destination, kernel.next_hop);
            Self::changed(added)
        })
    }

    fn delete_route(&mut self, route: &TunnelRoute) -> Result<(), StepError> {
        self.call(|model| match model.world.delete_route(route.destination) {
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
