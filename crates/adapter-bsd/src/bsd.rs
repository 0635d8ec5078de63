//! The real system. Compiled and linked in the tests; it has run nowhere yet.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use taupe_client::{Device, ResolveError, SetRequest};
use taupe_config::file::{Endpoint, File};
use taupe_os_bsd::System;
use taupe_os_bsd::interface::{self, InterfaceName, IoctlRequest};
use taupe_os_bsd::ioctl;
use taupe_os_bsd::layout::IFF_UP;
use taupe_os_bsd::routing::{Listing, RouteChange, RoutingSocket, encode, read_listing};
use taupe_packet::ip::Family;

use crate::command_output;
use crate::device::DeviceInterface;
use crate::dns::{self, SystemCommand};
use crate::follow::keep_up;
use crate::journal::{BootId, Store};
use crate::machine::{Machine, Report, SnapshotRequest, StepError};
use crate::route::TunnelRoute;
use crate::snapshot::{Fibs, NetworkService, Snapshot};
use crate::tunnel::Tunnel;

/// The folder of configuration sockets.
const SOCKETS: &str = "/var/run/wireguard";

/// Folders in which the system's programs are.
const FOLDERS: [&str; 4] = ["/sbin", "/usr/sbin", "/usr/local/sbin", "/usr/local/bin"];

/// Time that a device may take to answer, and to end.
const ANSWER: Duration = Duration::from_secs(1);
const END: Duration = Duration::from_secs(10);

/// Time that a command of the system may take.
const LIMIT: Duration = Duration::from_secs(60);

/// Difference between two files that were created at the same time, as in wg-quick.
const SAME_TIME: Duration = Duration::from_secs(2);

/// Interval between two looks at an interface that is about to go.
const PAUSE: Duration = Duration::from_millis(50);

/// Shortest interval between two looks at the routing table, because changes come in groups.
const GROUP: Duration = Duration::from_millis(500);

/// Time after a change of the network at which it is looked at once more: macOS sets name servers
/// later, without a notification. wg-quick does the same.
const SETTLING: Duration = Duration::from_secs(2);

/// Interval between two looks at the endpoints, of whose roaming there is no notification.
const ROAMING: Duration = Duration::from_secs(10);

/// Starts the device, and returns the name of its interface when it answers; or the reason why it
/// did not start, with advice.
pub type StartDevice<'a> = dyn FnMut() -> Result<String, String> + 'a;

/// The real system, for one tunnel.
pub struct Bsd<'a> {
    tunnel: String,
    start: &'a mut StartDevice<'a>,
    fibs: Fibs,
    has_resolvconf: bool,
    /// The configuration, and the endpoints in it.
    request: Option<SetRequest>,
    endpoints: Vec<IpAddr>,
    /// The name of the device that has the configuration.
    configured: Option<String>,
}

impl<'a> Bsd<'a> {
    /// Creates a machine for the tunnel with this name.
    #[must_use]
    pub fn new(tunnel: &str, start: &'a mut StartDevice<'a>) -> Self {
        let number = |name| match System::HERE {
            System::FreeBsd => sysctl(name).ok()?.trim().parse().ok(),
            System::MacOs => None,
        };
        let mut folders = FOLDERS.iter();
        Self {
            tunnel: tunnel.to_owned(),
            start,
            fibs: Fibs {
                own: number("net.my_fibnum").unwrap_or(0),
                count: number("net.fibs").unwrap_or(1),
            },
            has_resolvconf: folders.any(|folder| Path::new(folder).join("resolvconf").exists()),
            request: None,
            endpoints: Vec::new(),
            configured: None,
        }
    }

    /// Follows the network until the process ends.
    ///
    /// # Errors
    /// The kernel's, if its notifications cannot be received.
    pub fn follow(
        mut self,
        store: &Store,
        mut tunnel: Tunnel,
        report: &mut dyn Report,
    ) -> io::Result<()> {
        self.configured = Some(tunnel.device.name.clone());
        let mut socket = RoutingSocket::open(None)?;
        let name = self.tunnel.clone();
        // The network may have changed since the plan was made.
        let mut is_due = true;
        let mut is_settling = true;
        let mut last = Instant::now();
        let mut next = last + SETTLING;
        loop {
            if is_due && let Err(error) = keep_up(&mut self, store, &name, &mut tunnel, report) {
                let sentence = format!("{name} cannot follow the network: {error}");
                report.note(&sentence.into());
            }
            if is_due {
                last = Instant::now();
            }
            let before = self.endpoints.clone();
            is_due = match socket.receive(Some(next))? {
                // A request of this process that failed has changed nothing.
                Some(notification) if !notification.changes().is_empty() => {
                    // The first change of a group is handled at once: until then, datagrams to
                    // endpoints may enter the tunnel.
                    let end = last + GROUP;
                    while Instant::now() < end && socket.receive(Some(end))?.is_some() {}
                    (is_settling, next) = (true, Instant::now() + SETTLING);
                    true
                }
                // Other messages do not postpone the next look.
                Some(_) => false,
                None => {
                    next = Instant::now() + ROAMING;
                    let was_settling = std::mem::take(&mut is_settling);
                    self.read_endpoints();
                    was_settling || self.endpoints != before
                }
            };
        }
    }

    /// Reads the endpoints to which the device sends. If it does not answer, they stay.
    fn read_endpoints(&mut self) {
        let device = self.configured.as_deref().map(taupe_client::read);
        if let Some(Ok(device)) = device {
            let peers = device.status.peers.iter();
            let addresses = peers.filter_map(|peer| peer.endpoint.map(|it| it.ip()));
            let addresses: BTreeSet<IpAddr> = addresses.collect();
            self.endpoints = addresses.into_iter().collect();
        }
    }

    fn services(&mut self) -> Result<Vec<NetworkService>, StepError> {
        if System::HERE == System::FreeBsd {
            return Ok(Vec::new());
        }
        let list = self.run(&dns::list_services())?;
        let mut services = Vec::new();
        for name in dns::service_names(&list) {
            let [servers, search] = dns::get_service(name);
            services.push(NetworkService {
                name: name.to_owned(),
                servers: dns::service_entries(&self.run(&servers)?),
                search: dns::service_entries(&self.run(&search)?),
            });
        }
        Ok(services)
    }
}

/// Returns the path of the file with the name that macOS gave to a tunnel's interface, as wg-quick
/// has it.
#[must_use]
pub fn name_file(tunnel: &str) -> PathBuf {
    Path::new(SOCKETS).join(format!("{tunnel}.name"))
}

/// Returns the name of the interface of a tunnel's device, if the device answers.
#[must_use]
pub fn running_device(tunnel: &str) -> Option<String> {
    let name = match System::HERE {
        System::FreeBsd => tunnel.to_owned(),
        System::MacOs => named_device(tunnel)?,
    };
    taupe_client::is_alive(&name, ANSWER).then_some(name)
}

/// Returns the name in a tunnel's file, unless another device has the name now: a device creates
/// the file and its socket at the same time, and a process that was killed leaves both.
fn named_device(tunnel: &str) -> Option<String> {
    let path = name_file(tunnel);
    let name = fs::read_to_string(&path).ok()?.trim().to_owned();
    let socket = Path::new(SOCKETS).join(format!("{name}.sock"));
    let created = |path: &Path| fs::metadata(path).and_then(|it| it.modified()).ok();
    let (file, socket) = (created(&path)?, created(&socket)?);
    let difference = socket.duration_since(file);
    let difference = difference.or_else(|_| file.duration_since(socket));
    difference.is_ok_and(|it| it < SAME_TIME).then_some(name)
}

/// Returns a value of the kernel. sysctl(8) is in the base system of both.
fn sysctl(name: &str) -> Result<String, StepError> {
    sysctl_with("-n", name)
}

fn sysctl_with(options: &str, name: &str) -> Result<String, StepError> {
    execute(&SystemCommand {
        program: "sysctl",
        arguments: vec![options.to_owned(), name.to_owned()],
        input: String::new(),
    })
}

/// Runs a command, and returns its standard output.
fn execute(command: &SystemCommand) -> Result<String, StepError> {
    let failed = |outcome: String| StepError::Command {
        command: command.to_string(),
        outcome,
    };
    let folders = FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join(command.program));
    let program = folders.into_iter().find(|path| path.exists());
    let program = program.unwrap_or_else(|| PathBuf::from(command.program));
    let mut process = Command::new(program);
    process.args(&command.arguments);
    let output = command_output::run(process, &command.input, LIMIT);
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let reason = output.stderr.trim();
        return Err(failed(format!("{}: {reason}", output.status)));
    }
    Ok(output.stdout)
}

fn name_of(device: &DeviceInterface) -> Result<InterfaceName, StepError> {
    InterfaceName::new(&device.name).ok_or(StepError::NoInterface)
}

fn request(family: Family, mut request: IoctlRequest) -> Result<IoctlRequest, StepError> {
    ioctl::request(family, &mut request).map_err(StepError::Kernel)?;
    Ok(request)
}

fn change(kind: RouteChange, tunnel: u16, route: &TunnelRoute) -> Result<(), StepError> {
    let message = encode(System::HERE, kind, &route.for_kernel(tunnel), 1);
    let invalid = |error| StepError::Kernel(io::Error::new(io::ErrorKind::InvalidInput, error));
    let message = message.map_err(invalid)?;
    let socket = RoutingSocket::open(route.fib).map_err(StepError::Kernel)?;
    socket.request(&message).map_err(StepError::Kernel)
}

/// Returns the index of the interface with a name.
fn index_of(name: &str) -> Result<Option<u16>, StepError> {
    let table = read_listing(Listing::Interfaces).map_err(StepError::Kernel)?;
    let mut interfaces = table.interfaces.iter();
    let found = interfaces.find(|interface| interface.name.as_deref() == Some(name));
    Ok(found.map(|interface| interface.index))
}

impl Machine for Bsd<'_> {
    fn boot(&mut self) -> Result<BootId, StepError> {
        match System::HERE {
            System::MacOs => {
                let session = sysctl("kern.bootsessionuuid")?;
                Ok(BootId::Session(session.trim().to_owned()))
            }
            System::FreeBsd => {
                let number = sysctl_with("-nx", "kern.boot_id").ok();
                let number = number.as_deref().and_then(BootId::parse_boot_number);
                if let Some(number) = number {
                    return Ok(number);
                }
                let printed = sysctl("kern.boottime")?;
                BootId::parse_boot_time(&printed).ok_or_else(|| StepError::Command {
                    command: "sysctl -n kern.boottime".to_owned(),
                    outcome: format!("unknown format {printed:?}"),
                })
            }
        }
    }

    fn device(&mut self) -> Option<DeviceInterface> {
        let name = running_device(&self.tunnel)?;
        let index = index_of(&name).ok()??;
        Some(DeviceInterface { name, index })
    }

    fn snapshot(&mut self, request: SnapshotRequest) -> Result<Snapshot, StepError> {
        let list = |listing| read_listing(listing).map_err(StepError::Kernel);
        let (interfaces, routes) = (list(Listing::Interfaces)?, list(Listing::Routes(None))?);
        let fib_routes = match request.fib {
            Some(fib) => list(Listing::Routes(Some(fib)))?.routes,
            None => Vec::new(),
        };
        let services = match request.services {
            true => self.services()?,
            false => Vec::new(),
        };
        self.read_endpoints();
        Ok(Snapshot {
            fibs: self.fibs,
            fib_routes,
            // A kernel or a jail without IPv6 has no such sockets.
            ipv6: UdpSocket::bind("[::]:0").is_ok(),
            resolvconf: self.has_resolvconf,
            services,
            endpoints: self.endpoints.clone(),
            own: request.own,
            ..Snapshot::of(System::HERE, interfaces, routes)
        })
    }

    fn resolve(&mut self, file: &File, report: &mut dyn Report) -> Result<(), StepError> {
        let mut endpoints: Vec<Option<SocketAddr>> = Vec::with_capacity(file.peers.len());
        for peer in &file.peers {
            endpoints.push(match &peer.endpoint {
                None => None,
                Some(Endpoint::Address(address)) => Some(*address),
                Some(Endpoint::Name { host, port }) => {
                    let found = taupe_client::resolve(host, *port, &mut |line| {
                        if let Some(line) = line {
                            report.note(&line.to_owned().into());
                        }
                        !report.is_interrupted()
                    });
                    Some(found.map_err(|error| unresolved(host, *port, peer.line, &error))?)
                }
            });
        }
        let addresses = endpoints.iter().flatten().map(SocketAddr::ip);
        let addresses: BTreeSet<IpAddr> = addresses.collect();
        self.endpoints = addresses.into_iter().collect();
        self.request = Some(taupe_client::setconf_request(file, &endpoints));
        Ok(())
    }

    fn create(&mut self) -> Result<DeviceInterface, StepError> {
        let name = (self.start)().map_err(StepError::Device)?;
        let index = index_of(&name)?.ok_or(StepError::NoInterface)?;
        Ok(DeviceInterface { name, index })
    }

    fn delete(&mut self, device: &DeviceInterface) -> Result<(), StepError> {
        self.configured = None;
        let socket = Path::new(SOCKETS).join(format!("{}.sock", device.name));
        let is_running = taupe_client::is_alive(&device.name, ANSWER);
        match fs::remove_file(&socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(StepError::Kernel(error));
            }
            _ => {}
        }
        let end = Instant::now() + END;
        while is_running && Instant::now() < end {
            if index_of(&device.name)? != Some(device.index) {
                break;
            }
            thread::sleep(PAUSE);
        }
        let interfaces = read_listing(Listing::Interfaces).map_err(StepError::Kernel)?;
        let is_left = device.is_left(&interfaces.interfaces, is_running);
        match System::HERE {
            System::FreeBsd if is_left => {
                let destroy = interface::destroy(System::HERE, &name_of(device)?);
                request(Family::V4, destroy).map(drop)?;
            }
            System::MacOs if is_left && is_running => {
                let seconds = END.as_secs();
                let sentence = format!("its process has not ended within {seconds} seconds");
                return Err(StepError::Device(sentence));
            }
            _ => {}
        }
        if System::HERE == System::MacOs {
            let _ = fs::remove_file(name_file(&self.tunnel));
        }
        Ok(())
    }

    fn configure(&mut self, fwmark: Option<u32>) -> Result<(), StepError> {
        let Some(mut request) = self.request.take() else {
            return Ok(());
        };
        request.fwmark = fwmark;
        let name = running_device(&self.tunnel).ok_or(StepError::NoInterface)?;
        let applied = taupe_client::apply(&name, request);
        applied.map_err(|error| StepError::Device(error.to_string()))?;
        self.configured = Some(name);
        Ok(())
    }

    fn device_state(&mut self, device: &DeviceInterface) -> Result<Device, StepError> {
        let state = taupe_client::read(&device.name);
        state.map_err(|error| StepError::Device(format!("cannot read the device: {error}")))
    }

    fn add_address(
        &mut self,
        device: &DeviceInterface,
        network: IpNet,
        peer: Option<IpAddr>,
    ) -> Result<(), StepError> {
        let add = interface::add_address(System::HERE, &name_of(device)?, network, peer);
        request(Family::of(network.addr()), add).map(drop)
    }

    fn set_mtu(&mut self, device: &DeviceInterface, mtu: u32) -> Result<(), StepError> {
        let set = interface::set_mtu(System::HERE, &name_of(device)?, mtu);
        request(Family::V4, set).map(drop)
    }

    fn bring_up(&mut self, device: &DeviceInterface) -> Result<(), StepError> {
        let name = name_of(device)?;
        let answer = request(Family::V4, interface::get_flags(System::HERE, &name))?;
        let flags = interface::flags(System::HERE, &answer).ok_or(StepError::NoInterface)?;
        let set = interface::set_flags(System::HERE, &name, flags | IFF_UP);
        request(Family::V4, set).map(drop)
    }

    fn add_route(&mut self, tunnel: u16, route: &TunnelRoute) -> Result<(), StepError> {
        change(RouteChange::Add, tunnel, route)
    }

    fn delete_route(&mut self, route: &TunnelRoute) -> Result<(), StepError> {
        match change(RouteChange::Delete, 0, route) {
            Err(error) if error.is_missing() => Ok(()),
            other => other,
        }
    }

    fn run(&mut self, command: &SystemCommand) -> Result<String, StepError> {
        execute(command)
    }

    /// As in wg-quick, the command stops at the first failure, also in a pipe, and has extended
    /// patterns. Without bash, sh runs it, which does not detect failures in a pipe.
    fn run_hook(&mut self, command: &str, device: Option<&str>) -> Result<(), StepError> {
        let bash = ["-e", "-o", "pipefail", "-O", "extglob", "-c"];
        let status = |shell: &str, options: &[&str]| -> io::Result<ExitStatus> {
            let mut shell = Command::new(shell);
            shell.args(options).arg(command);
            shell
                .env("INTERFACE", device.unwrap_or(&self.tunnel))
                .status()
        };
        let status = match status("bash", &bash) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => status("sh", &["-e", "-c"]),
            other => other,
        };
        let outcome = match status {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => format!("{status}; fix or remove it in the configuration file"),
            Err(error) => format!("neither bash nor sh can be run: {error}"),
        };
        Err(StepError::Command {
            command: command.to_owned(),
            outcome,
        })
    }
}

fn unresolved(host: &str, port: u16, line: usize, error: &ResolveError) -> StepError {
    let advice = match error {
        ResolveError::Interrupted => return StepError::Interrupted,
        // This error includes its own advice.
        ResolveError::Retries(_) => String::new(),
        _ => format!(
            "; correct the name, see by `host {host}` whether this machine's name servers answer, \
             or write an address in its place"
        ),
    };
    StepError::Endpoint(format!(
        "the endpoint {host}:{port} of the [Peer] in line {line} cannot be resolved: {error}{advice}"
    ))
}
