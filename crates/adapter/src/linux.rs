//! The implementation of [`Machine`] for this system.

mod delete;
mod endpoints;
mod firewall;
mod snapshot;
mod valid_mark;
mod verify;
mod wg_quick;

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};
use taupe_client::SetRequest;
use taupe_config::file::{Compatibility, File, Table};
use taupe_os_linux::netlink::{Address, Link, Netlink, NetlinkError, Route, RouteKind};
use taupe_os_linux::watch::RouteWatch;

use crate::change::{Change, InterfaceKey, LAST_METRIC, mark_in_effect, special_metric};
use crate::comparison::Comparison;
use crate::dns::{self, Dns, DnsError, Paths};
use crate::hook;
use crate::identity::Socket;
use crate::journal::{State, Turn};
use crate::last_state::{LastState, StandIn};
use crate::machine::{LookError, Machine, SaveError, StepError};
use crate::namespace::Namespace;
use crate::plan::{Snapshot, distinct};
use crate::report::Report;
use crate::request::{Devices, Outer};
use crate::saved_file::{self, Running};
use endpoints::resolve;
use firewall::firewall_name;
pub use snapshot::is_ipv6_off;
use valid_mark::write_valid_mark;
use wg_quick::wg_quick_rules;

/// Time limit for the end of a device whose interface is gone.
const FAREWELL: Duration = Duration::from_secs(5);

/// The kernel and the files of this system, in the calling thread's network namespace.
pub struct Linux<'a> {
    interface: &'a str,
    state: &'a State,
    devices: &'a mut dyn Devices,
    /// The index of the device's interface, if the journal has it.
    index: Option<u32>,
    /// The configuration socket of the device's process, if the journal has it.
    socket: Option<Socket>,
    system: Netlink,
    paths: Paths,
    /// The settings of the file at the last look, with names resolved.
    configuration: Option<SetRequest>,
    /// The port on which the device was told to listen.
    port: Option<u16>,
    /// A lock held from the look at the system to the last step that relies on it.
    turn: Option<Turn>,
    /// Set if a device could not be started: an interface of its name then belongs to another
    /// program.
    not_started: bool,
    /// The destinations of datagrams that leave this machine, if they are not the file's peers.
    outer_endpoints: Option<Vec<SocketAddr>>,
    /// The last state of a device whose barrier stands.
    last_state: Option<LastState>,
    /// The socket that answers in place of a device that is gone.
    stand_in: Option<StandIn>,
}

impl<'a> Linux<'a> {
    /// Opens the system for the tunnel of an interface.
    ///
    /// # Errors
    /// The kernel's, if netlink is not available.
    pub fn new(
        interface: &'a str,
        state: &'a State,
        devices: &'a mut dyn Devices,
    ) -> Result<Self, NetlinkError> {
        Ok(Self {
            interface,
            state,
            devices,
            index: None,
            socket: None,
            system: Netlink::open()?,
            paths: Paths::system(),
            configuration: None,
            port: None,
            turn: None,
            not_started: false,
            outer_endpoints: None,
            last_state: None,
            stand_in: None,
        })
    }

    /// Routes the tunnel through another one.
    pub(crate) fn set_outer(&mut self, outer: Option<&Outer>) {
        self.outer_endpoints = outer.map(|outer| outer.endpoints.clone());
    }

    /// Returns the tunnel's own interface, if it is in this network namespace.
    fn link(&mut self) -> Result<Option<Link>, NetlinkError> {
        match self.index {
            None => self.system.link(self.interface),
            index => {
                let links = self.system.links()?;
                Ok(links.into_iter().find(|link| Some(link.index) == index))
            }
        }
    }

    fn index(&mut self) -> Result<u32, StepError> {
        let link = self.link()?.ok_or(StepError::NoInterface)?;
        Ok(link.index)
    }

    fn configure(&self, request: SetRequest) -> Result<(), StepError> {
        let port = request.listen_port;
        let applied = taupe_client::apply(self.interface, request);
        applied.map_err(|error| match port {
            // The device reports every failure to bind its port as this error.
            Some(port) if error.errno() == Errno::ADDRINUSE.raw_os_error() => {
                match may_bind(port) {
                    true => StepError::PortTaken(port),
                    false => StepError::PortPrivileged(port),
                }
            }
            _ => error.into(),
        })
    }

    fn set_mark(&self, mark: u32) -> Result<(), StepError> {
        self.configure(SetRequest {
            fwmark: Some(mark),
            ..SetRequest::default()
        })
    }
}

impl Machine for Linux<'_> {
    fn namespace(&mut self) -> Namespace {
        Namespace::current()
    }

    fn is_gone(&mut self, namespace: &Namespace) -> bool {
        namespace.is_gone()
    }

    fn recover(&mut self) -> Result<Option<String>, StepError> {
        let note = dns::recover(&self.paths)?;
        Ok(note.map(|note| note.to_string()))
    }

    fn interface(&mut self) -> Result<Option<u32>, StepError> {
        let link = self.system.link(self.interface)?;
        Ok(link.map(|link| link.index))
    }

    fn socket(&mut self) -> Option<Socket> {
        Socket::of(self.interface)
    }

    fn lives(&mut self, socket: Socket) -> bool {
        socket.lives(self.interface)
    }

    fn select_device(&mut self, index: Option<u32>, socket: Option<Socket>) {
        (self.index, self.socket) = (index, socket);
    }

    fn own_interface(&mut self) -> Result<Option<u32>, StepError> {
        Ok(self.link()?.map(|link| link.index))
    }

    fn interface_if_alive(&mut self) -> Result<Option<u32>, StepError> {
        let interface = self.interface;
        let failed = |source| StepError::Io {
            what: format!("waiting for the end of {interface}"),
            source,
        };
        // Opened before the first check, so that a change in between is noticed.
        let mut watch = RouteWatch::open().map_err(failed)?;
        if taupe_client::is_alive(interface, FAREWELL) {
            return self.interface();
        }
        let end = Instant::now() + FAREWELL;
        while let Some(index) = self.interface()? {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // The interface belongs to another program.
                return Ok(Some(index));
            }
            watch.wait(left).map_err(failed)?;
        }
        Ok(None)
    }

    fn is_wireguard(&mut self) -> bool {
        let devices = taupe_client::interfaces().unwrap_or_default();
        devices.iter().any(|device| device == self.interface)
    }

    fn look(
        &mut self,
        file: &File,
        own: &[Change],
        report: &mut dyn Report,
    ) -> Result<Snapshot, LookError> {
        let endpoints = resolve(file, self.last_state.as_ref(), report)?;
        // Resolving names may take long, so the lock is taken only afterwards.
        self.turn = Some(self.state.turn(&|| report.is_interrupted())?);
        let mut snapshot = self.snapshot(own)?;
        snapshot.endpoints = match &self.outer_endpoints {
            Some(theirs) => theirs.clone(),
            None => endpoints.iter().flatten().copied().collect(),
        };
        let addresses = distinct(&snapshot.endpoints);
        // Datagrams of a tunnel that is up bypass it because of their mark.
        let mark = mark_in_effect(own)
            .or(file.interface.fwmark)
            .unwrap_or_default();
        for address in addresses {
            match self.path_mtu(address, mark, &snapshot.links) {
                Ok(mtu) => snapshot.path_mtus.extend(mtu),
                Err(_) => snapshot.unreachable.push(address),
            }
        }
        snapshot.valid_mark = self.original_valid_mark(own);
        snapshot.mark = own.iter().find_map(|change| match change {
            Change::Mark(number) | Change::Special { table: number, .. } => Some(*number),
            _ => None,
        });
        snapshot.dns = self.dns(file)?;
        self.configuration = Some(taupe_client::setconf_request(file, &endpoints));
        Ok(snapshot)
    }

    fn set_known_endpoints(&mut self, device: Option<LastState>) {
        self.last_state = device;
    }

    fn recognise(&mut self, file: &File) -> Result<Vec<Change>, LookError> {
        let mut changes = vec![Change::Device];
        let device = taupe_client::read(self.interface).ok();
        let mark = device.as_ref().map_or(0, |device| device.fwmark);
        let peers = device.iter().flat_map(|device| &device.status.peers);
        let is_default = peers
            .flat_map(|peer| &peer.allowed_ips)
            .any(|prefix| prefix.prefix_len() == 0);
        if file.interface.table == Table::Auto && mark != 0 && is_default {
            let rules = self.system.rules()?;
            changes.extend(wg_quick_rules(&rules, mark).into_iter().map(Change::Rule));
        }
        let name = firewall_name(self.interface);
        // A kernel without nf_tables has no tables.
        let firewalls = self.system.firewall_tables().unwrap_or_default();
        let firewalls = firewalls.into_iter().filter(|(_, found)| *found == name);
        changes.extend(firewalls.map(|(family, _)| Change::Firewall {
            family,
            interface: InterfaceKey::Name,
            mark,
            addresses: Vec::new(),
        }));
        changes.extend(self.dns(file)?.map(Change::Dns));
        Ok(changes)
    }

    fn command(&mut self, change: &Change, interface: &str) -> String {
        match change {
            Change::Dns(dns) => dns.line_now(&self.paths),
            _ => change.command(interface).to_string(),
        }
    }

    fn undoing(&mut self, change: &Change, interface: &str) -> Option<String> {
        match change {
            Change::Dns(dns) => dns.undo_line_now(&self.paths),
            Change::ValidMark { .. } if self.valid_mark_is_wanted() => None,
            _ => change.undoing(interface),
        }
    }

    fn apply(&mut self, change: &Change) -> Result<(), StepError> {
        match change {
            Change::Hook(hook) => {
                // The command may bring up another tunnel, which needs the lock.
                self.turn = None;
                hook::run(hook, self.interface)?;
            }
            Change::Device => {
                let before = Socket::of(self.interface);
                let started = self.devices.start(self.interface);
                self.not_started = started.is_err();
                if self.not_started {
                    self.remove_socket_made_since(before);
                }
                started.map_err(StepError::Device)?;
            }
            Change::Configure => {
                let request = self.configuration.take().unwrap_or_default();
                self.port = request.listen_port.filter(|port| *port != 0);
                self.configure(request)?;
            }
            Change::Address(network) => {
                let address = self.address(*network)?;
                self.system.add_address(&address)?;
            }
            Change::Up { mtu } => {
                let index = self.index()?;
                self.system.set_mtu(index, *mtu)?;
                self.system.set_up(index, true)?;
                // The device binds its port only now, and reports errors only to this request.
                if self.port.is_some() {
                    self.configure(SetRequest {
                        listen_port: self.port,
                        ..SetRequest::default()
                    })?;
                }
            }
            Change::Dns(dns) => self.of_interface(dns)?.apply(&self.paths)?,
            Change::Mark(mark) => self.set_mark(*mark)?,
            Change::Route { destination, table } => {
                let route = Route::by_interface(*destination, self.index()?, *table);
                self.system.add_route(&route)?;
            }
            Change::Unreachable { destination, table } => {
                let route = Route::unreachable(*destination, LAST_METRIC, *table);
                self.system.add_route(&route)?;
            }
            Change::Special {
                kind,
                destination,
                table,
            } => self
                .system
                .add_route(&special(*kind, *destination, *table))?,
            Change::Rule(rule) => self.system.add_rule(rule)?,
            Change::Firewall {
                family,
                interface,
                mark,
                ..
            } => self.add_firewall(*family, *interface, *mark)?,
            Change::ValidMark { .. } => write_valid_mark(1)?,
        }
        Ok(())
    }

    fn undo(&mut self, change: &Change) -> Result<Option<String>, StepError> {
        match change {
            Change::Hook(_) | Change::Configure | Change::Up { .. } => {}
            Change::Device => self.delete()?,
            Change::Address(network) => {
                if let Some(link) = self.link()? {
                    self.remove_address(link.index, *network)?;
                }
            }
            Change::Dns(dns) => {
                let note = self.of_interface(dns)?.undo(&self.paths)?;
                return Ok(note.map(|note| note.to_string()));
            }
            Change::Mark(_) => {
                if self.link()?.is_some() {
                    self.set_mark(0)?;
                }
            }
            Change::Route { destination, table } => {
                if let Some(link) = self.link()? {
                    let route = Route::by_interface(*destination, link.index, *table);
                    gone(self.system.remove_route(&route), &NO_ROUTE)?;
                }
            }
            Change::Unreachable { destination, table } => {
                let route = Route::unreachable(*destination, LAST_METRIC, *table);
                gone(self.system.remove_route(&route), &NO_ROUTE)?;
            }
            Change::Special {
                kind,
                destination,
                table,
            } => {
                let route = special(*kind, *destination, *table);
                gone(self.system.remove_route(&route), &NO_ROUTE)?;
            }
            Change::Rule(rule) => {
                let removed = self.system.remove_rule(rule);
                gone(removed, &[Errno::NOENT, Errno::AFNOSUPPORT])?;
            }
            Change::Firewall { family, .. } => {
                let name = firewall_name(self.interface);
                let removed = self.system.remove_firewall(*family, &name);
                gone(removed, &[Errno::NOENT, Errno::OPNOTSUPP])?;
            }
            Change::ValidMark { original } => {
                if let Some(original) = original.filter(|_| !self.valid_mark_is_wanted()) {
                    write_valid_mark(original)?;
                }
            }
        }
        Ok(None)
    }

    fn verify(&mut self, changes: &[&Change], index: Option<u32>) -> Result<Comparison, StepError> {
        self.compare(changes, index)
    }

    fn restore(&mut self, change: &Change) -> Result<(), StepError> {
        match change {
            Change::Dns(dns) => return Ok(self.of_interface(dns)?.restore(&self.paths)?),
            // Some of its rules may be left.
            Change::Firewall { .. } => drop(self.undo(change)?),
            _ => {}
        }
        self.apply(change)
    }

    fn device(&mut self) -> Option<LastState> {
        let device = taupe_client::read(self.interface).ok()?;
        Some(LastState::of(&device))
    }

    fn stand_in(&mut self, state: Option<&LastState>) -> std::io::Result<()> {
        // The previous stand-in must release the socket's name.
        drop(self.stand_in.take());
        let path = taupe_client::socket_path(self.interface);
        let begun = state.map(|state| StandIn::begin(&path, state));
        self.stand_in = begun.transpose()?;
        Ok(())
    }

    fn sync(&mut self, mark: Option<u32>) -> Result<(), StepError> {
        let mut request = self.configuration.take().unwrap_or_default();
        if let Some(mark) = mark {
            request.fwmark = Some(mark);
        }
        // If the file allows any port, keep the present one, which the peers know.
        request.listen_port = request.listen_port.filter(|port| *port != 0);
        Ok(taupe_client::sync(self.interface, request)?)
    }

    fn save(
        &mut self,
        file: &File,
        config: &Path,
        compatibility: Compatibility,
    ) -> Result<(), SaveError> {
        let device = taupe_client::read(self.interface)?;
        let link = self.link()?.ok_or(taupe_client::Error::NoDevice)?;
        let mut addresses = self.system.addresses()?;
        addresses.retain(|address| address.interface == link.index);
        let addresses: Vec<_> = addresses.iter().map(|address| address.network).collect();
        let dns = |name: &str| dns::current(&self.paths, name).ok().flatten();
        let running = Running {
            device: &device,
            addresses: &addresses,
            mtu: link.mtu,
            dns: dns(self.interface).or_else(|| dns(&link.name)),
        };
        saved_file::write(file, config, running, compatibility)
    }
}

impl Linux<'_> {
    /// Removes one address. With the first address of an IPv4 network the kernel removes all
    /// addresses of that network (`promote_secondaries` off); these are added again.
    fn remove_address(&mut self, interface: u32, network: IpNet) -> Result<(), StepError> {
        let removed = Address { interface, network };
        let before = self.system.addresses()?;
        let removal = self.system.remove_address(&removed);
        gone(removal, &[Errno::ADDRNOTAVAIL, Errno::NODEV])?;
        let after = self.system.addresses()?;
        let own = before.iter().filter(|other| other.interface == interface);
        for lost in own.filter(|other| **other != removed && !after.contains(other)) {
            self.system.add_address(lost)?;
        }
        Ok(())
    }

    fn address(&mut self, network: IpNet) -> Result<Address, StepError> {
        Ok(Address {
            interface: self.index()?,
            network,
        })
    }

    /// Returns the name server settings for the interface's present name.
    fn of_interface(&mut self, dns: &Dns) -> Result<Dns, NetlinkError> {
        let link = self.link()?;
        Ok(link.map_or_else(|| dns.clone(), |link| dns.renamed(&link.name)))
    }

    fn dns(&self, file: &File) -> Result<Option<Dns>, DnsError> {
        let (servers, search) = (&file.interface.dns, &file.interface.dns_search);
        dns::choose(&self.paths, self.interface, servers, search)
    }
}

/// The kernel's errors for a route that does not exist.
const NO_ROUTE: [Errno; 4] = [Errno::SRCH, Errno::NODEV, Errno::NOENT, Errno::AFNOSUPPORT];

/// Returns the route of [`Change::Special`].
fn special(kind: RouteKind, destination: IpNet, table: u32) -> Route {
    Route::without_interface(kind, destination, special_metric(kind), table)
}

/// Treats errors for an object that is gone already as success.
fn gone(result: Result<(), NetlinkError>, means: &[Errno]) -> Result<(), NetlinkError> {
    let is_gone = |error: &NetlinkError| {
        let errno = error.errno();
        means.iter().any(|gone| Some(gone.raw_os_error()) == errno)
    };
    match result {
        Err(error) if is_gone(&error) => Ok(()),
        other => other,
    }
}

/// Returns true if this process has the right to bind the port (`ip(7)`, `ip_unprivileged_port_start`).
/// The device has the same rights.
fn may_bind(port: u16) -> bool {
    let start = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").ok();
    let start = start.and_then(|text| text.trim().parse().ok());
    let capabilities = capabilities(None).map(|found| found.effective);
    port >= start.unwrap_or(1024)
        || capabilities.is_ok_and(|found| found.contains(CapabilitySet::NET_BIND_SERVICE))
}
