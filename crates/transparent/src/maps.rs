//! The BPF maps that the eBPF programs share with the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd as _;
use std::sync::atomic::Ordering;

use aya::Ebpf;
use aya::maps::lpm_trie::Key;
use aya::maps::{HashMap, LpmTrie, Map, MapData, MapError, PerCpuArray};
use aya::programs::TcAttachType;
use ipnet::IpNet;
use taupe_config::destinations::Class;
use taupe_os_linux::netlink::Address;

use crate::clsact::ClsactFilter;
use crate::error::TransparentError;
use crate::pins::Pins;
use crate::rules::Compiled;
use crate::state::{
    DestinationKey, ExactKey, Kind, MappedState, NameKey, NetworkKey, Reason, SCHEMA, SERVICE_SIZE,
    ServiceKey, UplinkValue,
};

mod flows;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod fuzzing;
#[cfg(test)]
mod layout;

pub(crate) use self::flows::{Flows, PinnedFlows, open_pinned_flows};

/// Names of the maps; see [`Pins::map`] for their pins.
pub(crate) const NAMES: [&str; 15] = [
    "state",
    "sockets",
    "names",
    "exact",
    "processes",
    "destinations",
    "flows",
    "flow_owners",
    "uplinks",
    "locals",
    "resolver_aliases",
    "services",
    "networks",
    "listeners",
    "counters",
];

/// `max_entries` of `names`, which two generations of rules share.
const RULES: usize = 8192;
/// Half of the `max_entries` of `exact`. The other half is for the numbers of rules.
const EXACT: usize = 16384;
const DESTINATIONS: usize = 65536;

/// Shortest prefix, in bits, of a network that counts as one this machine is in. A shorter prefix
/// comes from a route to everywhere, not from a local network.
const MIN_NETWORK_BITS: u8 = 8;

/// Maximum number of resolver aliases. Each takes two entries, one per direction.
const MAX_ALIASES: u32 = 4096;

/// Unix sockets in `/run` of the services that resolve names, with their `enum service`.
/// nss-resolve asks systemd-resolved by Varlink, the C library asks nscd, nss-mdns asks avahi.
/// Programs can also reach systemd-resolved and avahi over the system bus.
const SERVICES: [(&str, u32); 5] = [
    ("/systemd/resolve/io.systemd.Resolve", SERVICE_RESOLVER),
    (
        "/systemd/resolve/io.systemd.Resolve.Monitor",
        SERVICE_RESOLVER,
    ),
    ("/nscd/socket", SERVICE_RESOLVER),
    ("/avahi-daemon/socket", SERVICE_RESOLVER),
    ("/dbus/system_bus_socket", SERVICE_BUS),
];
/// Both paths of the folder that contains these sockets.
const RUN: [&str; 2] = ["/run", "/var/run"];

/// Checks that each path fits a key with its terminating zero.
const _: () = {
    let mut at = 0;
    while at < SERVICES.len() {
        assert!(RUN[1].len() + SERVICES[at].0.len() < SERVICE_SIZE);
        at += 1;
    }
};

const SERVICE_RESOLVER: u32 = 1;
const SERVICE_BUS: u32 = 2;

pub(crate) struct Maps {
    pub(crate) state: MappedState,
    names: LpmTrie<MapData, NameKey, u64>,
    exact: HashMap<MapData, ExactKey, u64>,
    destinations: LpmTrie<MapData, DestinationKey, u32>,
    pub(crate) flows: Flows,
    uplinks: HashMap<MapData, u32, UplinkValue>,
    locals: HashMap<MapData, [u8; 16], u32>,
    resolver_aliases: HashMap<MapData, [u8; 16], [u8; 16]>,
    services: HashMap<MapData, ServiceKey, u32>,
    networks: LpmTrie<MapData, NetworkKey, u32>,
    listeners: HashMap<MapData, [u8; 24], u32>,
    counters: PerCpuArray<MapData, u64>,
}

impl Maps {
    /// Takes the maps out of a loaded object. The object keeps the map of the state: its programs have
    /// the number of its descriptor, and can be loaded again.
    pub(crate) fn of_object(object: &mut Ebpf) -> Result<Self, TransparentError> {
        let Some(Map::Array(state)) = object.map("state") else {
            return Err(TransparentError::Missing("state"));
        };
        let state = map_state(state)?;
        let mut map = |name| object.take_map(name).ok_or(TransparentError::Missing(name));
        Self::from_source(state, &mut map)
    }

    /// Opens the pinned maps.
    pub(crate) fn pinned(pins: &Pins) -> Result<Self, TransparentError> {
        let mut map = |name| {
            let path = pins.map(name);
            let map = MapData::from_pin(&path).and_then(Map::from_map_data);
            map.map_err(|source| TransparentError::pinned_map(&path, &source))
        };
        let Map::Array(state) = map("state")? else {
            let path = pins.map("state").display().to_string();
            let reason = io::Error::other("it is not an array, so it is not Taupe's");
            return Err(TransparentError::call(path)(reason));
        };
        Self::from_source(map_state(&state)?, &mut map)
    }

    fn from_source(
        state: MappedState,
        map: &mut impl FnMut(&'static str) -> Result<Map, TransparentError>,
    ) -> Result<Self, TransparentError> {
        Ok(Self {
            state,
            names: take(map, "names")?,
            exact: take(map, "exact")?,
            destinations: take(map, "destinations")?,
            flows: Flows::take(map)?,
            uplinks: take(map, "uplinks")?,
            locals: take(map, "locals")?,
            resolver_aliases: take(map, "resolver_aliases")?,
            services: take(map, "services")?,
            networks: take(map, "networks")?,
            listeners: take(map, "listeners")?,
            counters: take(map, "counters")?,
        })
    }

    /// Opens the pinned state, if there is one. Fails if its layout differs from this version's.
    pub(crate) fn pinned_state(pins: &Pins) -> Result<Option<MappedState>, TransparentError> {
        let path = pins.map("state");
        if !path.exists() {
            return Ok(None);
        }
        // In every layout the first word is the schema number.
        let map = MapData::from_pin(&path);
        let map = map.map_err(|source| TransparentError::pinned_map(&path, &source))?;
        let state = MappedState::map(map.fd().as_fd()).map_err(TransparentError::call(format!(
            "mapping {}",
            path.display()
        )))?;
        // Whoever sees the number sees the rest of the state, too (Acquire).
        let found = state.schema.load(Ordering::Acquire);
        // 0: the process that created the map ended before it had filled it in.
        if found == SCHEMA || found == 0 {
            return Ok(Some(state));
        }
        Err(TransparentError::Schema {
            interface: pins.interface().unwrap_or_default(),
            path: pins.directory().to_owned(),
            found,
            wanted: SCHEMA,
        })
    }

    /// Returns the mark of selected sockets, if the state is pinned.
    pub(crate) fn mark(pins: &Pins) -> Result<Option<u32>, TransparentError> {
        let state = Self::pinned_state(pins)?;
        Ok(state.map(|state| state.mark.load(Ordering::Relaxed)))
    }

    /// Writes a set of rules without touching the set that is in use.
    pub(crate) fn write_rules(
        &mut self,
        rules: &Compiled,
        destinations: &[(IpNet, Class)],
        generation: u32,
    ) -> Result<(), TransparentError> {
        let within = |what, found, limit| match found > limit {
            true => Err(TransparentError::TooMany { what, found, limit }),
            false => Ok(()),
        };
        within("names of applications", rules.names.len(), RULES / 2)?;
        let is_number = |key: &&ExactKey| key.space >> 1 == Kind::Rule as u32;
        let numbers = rules.exact.keys().filter(is_number).count();
        within("rules", numbers, EXACT / 2)?;
        within("paths and users", rules.exact.len() - numbers, EXACT / 2)?;
        within("networks", destinations.len(), DESTINATIONS / 2)?;
        for ((bits, key), value) in &rules.names {
            self.names
                .insert(&Key::new(*bits, *key), value, 0)
                .map_err(TransparentError::map("adding the name of an application"))?;
        }
        for (key, value) in &rules.exact {
            self.exact
                .insert(key, value, 0)
                .map_err(TransparentError::map("adding a path or user"))?;
        }
        for (prefix, class) in destinations {
            let (bits, address) = mapped(*prefix);
            let key = DestinationKey {
                space: generation & 1,
                address,
            };
            self.destinations
                .insert(&Key::new(32 + bits, key), class_number(*class), 0)
                .map_err(TransparentError::map("adding a network"))?;
        }
        let state = self.state.rules(generation);
        for (to, value) in [
            (&state.kinds, rules.kinds),
            (&state.all_tasks, rules.all_tasks),
            (&state.default_verdict, rules.default_verdict),
            (&state.path_depths, rules.path_depths),
            (&state.cgroup_depths, rules.cgroup_depths),
            (&state.children, rules.children),
            (&state.user, rules.user),
        ] {
            to.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Removes the entries of the generations with the same parity as this one.
    pub(crate) fn clear_rules(&mut self, generation: u32) -> Result<(), TransparentError> {
        let same = |space: u32| space & 1 == generation & 1;
        let failed = || TransparentError::map("removing an old rule");
        for key in collect(self.names.keys())? {
            let data = key.data();
            if same(data.space) {
                ignore_missing(self.names.remove(&key)).map_err(failed())?;
            }
        }
        for key in collect(self.exact.keys())? {
            if same(key.space) {
                ignore_missing(self.exact.remove(&key)).map_err(failed())?;
            }
        }
        for key in collect(self.destinations.keys())? {
            let data = key.data();
            if same(data.space) {
                ignore_missing(self.destinations.remove(&key)).map_err(failed())?;
            }
        }
        Ok(())
    }

    pub(crate) fn set_uplink(
        &mut self,
        index: u32,
        uplink: UplinkValue,
    ) -> Result<(), TransparentError> {
        self.uplinks
            .insert(index, uplink, 0)
            .map_err(TransparentError::map("adding an uplink"))
    }

    pub(crate) fn uplink(&self, index: u32) -> Result<Option<UplinkValue>, TransparentError> {
        match self.uplinks.get(&index, 0) {
            Ok(uplink) => Ok(Some(uplink)),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(TransparentError::map("looking up an uplink")(error)),
        }
    }

    pub(crate) fn remove_uplink(&mut self, index: u32) -> Result<(), TransparentError> {
        ignore_missing(self.uplinks.remove(&index))
            .map_err(TransparentError::map("removing an uplink"))
    }

    /// Removes the unpinned filters from an interface, which may no longer exist.
    pub(crate) fn detach_filters(&self, index: u32) {
        if let Some(interface) = taupe_os_linux::interface::name(index) {
            detach_filters(&interface, self.state.mark.load(Ordering::Relaxed));
        }
    }

    pub(crate) fn uplinks(&self) -> Result<Vec<u32>, TransparentError> {
        collect(self.uplinks.keys())
    }

    pub(crate) fn set_locals(&mut self, addresses: &[Address]) -> Result<(), TransparentError> {
        let wanted: BTreeMap<_, _> = addresses
            .iter()
            .map(|address| (octets(address.network.addr()), address.interface))
            .collect();
        for (address, index) in &wanted {
            self.locals
                .insert(address, index, 0)
                .map_err(TransparentError::map("adding an address"))?;
        }
        for address in collect(self.locals.keys())? {
            if !wanted.contains_key(&address) {
                ignore_missing(self.locals.remove(&address))
                    .map_err(TransparentError::map("removing an address"))?;
            }
        }
        Ok(())
    }

    /// Replaces the addresses of this machine that have a resolver alias (see `bpf/dns.h`). An
    /// address that already has an alias keeps it.
    pub(crate) fn set_resolver_aliases(
        &mut self,
        own: impl Iterator<Item = IpAddr>,
    ) -> Result<(), TransparentError> {
        let wanted: BTreeSet<[u8; 16]> = own.map(octets).collect();
        let mut taken = BTreeSet::new();
        for address in collect(self.resolver_aliases.keys())? {
            let other = match self.resolver_aliases.get(&address, 0) {
                Err(MapError::KeyNotFound) => continue,
                other => other.map_err(TransparentError::map("looking up an address"))?,
            };
            match (alias_number(address), wanted.contains(&other)) {
                (Some(number), true) => drop(taken.insert(number)),
                // The machine has lost this address, or the reverse entry is missing.
                (Some(_), false) => self.remove_alias(address)?,
                (None, _) if !wanted.contains(&address) => self.remove_alias(address)?,
                (None, _) => {}
            }
        }
        let mut free = (0..MAX_ALIASES).filter(|number| !taken.contains(number));
        for own in wanted {
            let known = match self.resolver_aliases.get(&own, 0) {
                Err(MapError::KeyNotFound) => None,
                known => Some(known.map_err(TransparentError::map("looking up an address"))?),
            };
            let back = known.and_then(|known| self.resolver_aliases.get(&known, 0).ok());
            if back == Some(own) {
                continue;
            }
            // If the aliases run out, DNS queries to the remaining addresses are refused.
            let Some(number) = free.next() else { break };
            let other = resolver_alias(number, own);
            for (from, to) in [(other, own), (own, other)] {
                self.resolver_aliases
                    .insert(from, to, 0)
                    .map_err(TransparentError::map("adding an address"))?;
            }
        }
        Ok(())
    }

    /// Returns the machine's own address for a resolver alias, or `None` for any other address.
    pub(crate) fn resolver_of_alias(
        &self,
        address: IpAddr,
    ) -> Result<Option<IpAddr>, TransparentError> {
        let other = octets(address);
        if let Some(of_loopback) = loopback_of_alias(address) {
            return Ok(Some(of_loopback));
        }
        if alias_number(other).is_none() {
            return Ok(None);
        }
        match self.resolver_aliases.get(&other, 0) {
            Ok(own) => Ok(Some(IpAddr::from(own).to_canonical())),
            Err(MapError::KeyNotFound) => Ok(None),
            Err(error) => Err(TransparentError::map("looking up an address")(error)),
        }
    }

    fn remove_alias(&mut self, address: [u8; 16]) -> Result<(), TransparentError> {
        ignore_missing(self.resolver_aliases.remove(&address))
            .map_err(TransparentError::map("removing an address"))
    }

    pub(crate) fn set_services(&mut self) -> Result<(), TransparentError> {
        for (socket, service) in SERVICES {
            for run in RUN {
                let mut key = ServiceKey {
                    path: [0; SERVICE_SIZE],
                };
                let path = run.bytes().chain(socket.bytes());
                for (to, from) in key.path.iter_mut().zip(path) {
                    *to = from;
                }
                self.services
                    .insert(key, service, 0)
                    .map_err(TransparentError::map("adding a service"))?;
            }
        }
        Ok(())
    }

    /// Replaces the networks that this machine is in by those of these addresses.
    pub(crate) fn set_networks(&mut self, addresses: &[Address]) -> Result<(), TransparentError> {
        let network = |address: &Address| {
            let network = address.network.trunc();
            let bits = match network.addr() {
                IpAddr::V4(_) => 96 + u32::from(network.prefix_len()),
                IpAddr::V6(_) => network.prefix_len().into(),
            };
            let key = NetworkKey {
                address: octets(network.addr()),
            };
            ((bits, key), address.interface)
        };
        let own = addresses.iter();
        let own = own.filter(|address| address.network.prefix_len() >= MIN_NETWORK_BITS);
        let wanted: BTreeMap<_, _> = own.map(network).collect();
        for ((bits, key), index) in &wanted {
            self.networks
                .insert(&Key::new(*bits, *key), index, 0)
                .map_err(TransparentError::map("adding a network of this machine"))?;
        }
        for key in collect(self.networks.keys())? {
            if !wanted.contains_key(&(key.prefix_len(), key.data())) {
                ignore_missing(self.networks.remove(&key))
                    .map_err(TransparentError::map("removing a network of this machine"))?;
            }
        }
        Ok(())
    }

    /// Removes the entries that say where selected sockets listen.
    pub(crate) fn clear_listeners(&mut self) -> Result<(), TransparentError> {
        for key in collect(self.listeners.keys())? {
            ignore_missing(self.listeners.remove(&key))
                .map_err(TransparentError::map("removing a listener"))?;
        }
        Ok(())
    }

    pub(crate) fn count(&self, reason: Reason) -> Result<u64, TransparentError> {
        let values = self
            .counters
            .get(&(reason as u32), 0)
            .map_err(TransparentError::map("reading a counter"))?;
        Ok(values.iter().sum())
    }
}

fn map_state(map: &MapData) -> Result<MappedState, TransparentError> {
    MappedState::map(map.fd().as_fd()).map_err(TransparentError::call("mapping the state"))
}

fn take<T: TryFrom<Map, Error = MapError>>(
    map: &mut impl FnMut(&'static str) -> Result<Map, TransparentError>,
    name: &'static str,
) -> Result<T, TransparentError> {
    T::try_from(map(name)?).map_err(TransparentError::map(name))
}

impl std::fmt::Debug for Maps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Maps")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// Removes the unpinned filters from one interface.
pub(crate) fn detach_filters(interface: &str, mark: u32) {
    for direction in [TcAttachType::Egress, TcAttachType::Ingress] {
        let filter = ClsactFilter {
            interface,
            direction,
            mark,
        };
        filter.detach();
    }
}

/// Opens the pinned state without checking its layout.
pub(crate) fn pinned_state_of_any_schema(pins: &Pins) -> Option<MappedState> {
    let map = MapData::from_pin(pins.map("state")).ok()?;
    MappedState::map(map.fd().as_fd()).ok()
}

/// Removes all pinned entries of uplinks and returns their interface indices. Returns an empty list
/// if the map cannot be opened.
pub(crate) fn remove_pinned_uplinks(pins: &Pins) -> Result<Vec<u32>, TransparentError> {
    let Ok(map) = MapData::from_pin(pins.map("uplinks")).map(Map::from_map_data) else {
        return Ok(Vec::new());
    };
    let map = map.and_then(HashMap::<_, u32, UplinkValue>::try_from);
    let mut uplinks = map.map_err(TransparentError::map("opening the pinned uplinks"))?;
    let indices: Vec<u32> = collect(uplinks.keys())?;
    for index in &indices {
        ignore_missing(uplinks.remove(index))
            .map_err(TransparentError::map("removing an uplink"))?;
    }
    Ok(indices)
}

fn collect<K>(keys: impl Iterator<Item = Result<K, MapError>>) -> Result<Vec<K>, TransparentError> {
    keys.collect::<Result<_, _>>()
        .map_err(TransparentError::map("listing a map"))
}

/// Treats the removal of a missing entry as a success.
fn ignore_missing(result: Result<(), MapError>) -> Result<(), MapError> {
    match result {
        Err(MapError::KeyNotFound) => Ok(()),
        Err(MapError::SyscallError(error))
            if error.io_error.raw_os_error() == Some(libc::ENOENT) =>
        {
            Ok(())
        }
        other => other,
    }
}

/// Returns an address of either family as IPv6 bytes, IPv4 as a mapped address.
fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
    .octets()
}

/// Returns the resolver alias with this number, in the family of `own`: from 241.0.0.0/16 (reserved
/// IPv4) or 100::1:0:0/96 (IPv6 discard prefix). Loopback addresses have fixed aliases, see
/// [`loopback_of_alias`].
fn resolver_alias(number: u32, own: [u8; 16]) -> [u8; 16] {
    let is_v4 = Ipv6Addr::from(own).to_ipv4_mapped().is_some();
    let other = match is_v4 {
        true => Ipv4Addr::from_bits(FIRST_ALIAS_V4 | number).to_ipv6_mapped(),
        false => Ipv6Addr::from_bits(FIRST_ALIAS_V6 | u128::from(number)),
    };
    other.octets()
}

/// Returns the number of a resolver alias, or `None` for any other address.
fn alias_number(address: [u8; 16]) -> Option<u32> {
    let address = Ipv6Addr::from(address);
    let number = match address.to_ipv4_mapped() {
        Some(v4) => (v4.to_bits() ^ FIRST_ALIAS_V4).into(),
        None => address.to_bits() ^ FIRST_ALIAS_V6,
    };
    let number = u32::try_from(number).ok();
    number.filter(|number| *number < MAX_ALIASES)
}

/// Returns the loopback address for its fixed alias: 240.x.y.z for 127.x.y.z, 100::1 for ::1. The
/// eBPF programs compute these without a map entry.
fn loopback_of_alias(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(v4) => match v4.octets() {
            [240, b, c, d] => Some(Ipv4Addr::new(127, b, c, d).into()),
            _ => None,
        },
        IpAddr::V6(ALIAS_OF_LOOPBACK_V6) => Some(Ipv6Addr::LOCALHOST.into()),
        IpAddr::V6(_) => None,
    }
}

const ALIAS_OF_LOOPBACK_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0, 1);
const FIRST_ALIAS_V4: u32 = 241 << 24;
const FIRST_ALIAS_V6: u128 = 0x0100 << 112 | 1 << 32;

/// Returns a network of either family as an IPv6 network.
fn mapped(prefix: IpNet) -> (u32, [u8; 16]) {
    let bits = u32::from(prefix.prefix_len());
    match prefix.network() {
        address @ IpAddr::V4(_) => (96 + bits, octets(address)),
        IpAddr::V6(address) => (bits, Ipv6Addr::octets(&address)),
    }
}

/// Returns the value in `enum class`.
const fn class_number(class: Class) -> u32 {
    match class {
        Class::Tunnel => 1,
        Class::Direct => 2,
        Class::Refuse => 3,
        Class::Drop => 4,
    }
}
