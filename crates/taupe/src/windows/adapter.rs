//! A tunnel on an adapter of its own (Wintun), with addresses, routes and name servers.

use super::arguments::WindowsMode;
use super::frame_tunnel::TunnelEvent;
use super::pipe::Server;
use super::requests::{RefusedConfiguration, Requests, services};
use super::sockets::Sockets;
use super::tunnel::{PreparedTunnel, WindowsTunnelError, listen, literal_endpoints, state_folder};
use crate::peer_notices;
use ipnet::IpNet;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use taupe_config::file::{File, Table};
use taupe_forwarder::{Forwarder, Interface, UdpSockets};
use taupe_os_windows::routes::{self, AdapterSettings, Guid};
use taupe_os_windows::{access, wintun};
use taupe_packet::ip::Family;
use taupe_protocol::Wake;
use taupe_protocol::crypto::default_provider;
use taupe_runtime::clock::now;
use tracing::{debug, info, warn};

/// Default MTU: the largest that fits into 1,500 bytes with the headers of either address family.
const MTU: u32 = 1420;

/// Interval between look-ups of the adapter that leads to the endpoints.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// Time that the system may take to enable an address family on a new adapter. The shorter time is
/// for a family without an address, which the machine may have disabled.
const FAMILY_TIMEOUT: Duration = Duration::from_secs(10);
const ABSENT_FAMILY_TIMEOUT: Duration = Duration::from_secs(3);

/// Longest wait for a request before other events are checked. The shorter one applies until the
/// adapter is set up.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
const SHORT_WAIT: Duration = Duration::from_millis(50);

struct Adapter(wintun::Adapter);

impl Interface for Adapter {
    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.0.read(buffer)
    }

    fn write(&self, packet: &[u8]) -> io::Result<()> {
        self.0.write(packet)
    }

    fn close(&self) {
        self.0.close();
    }
}

type AdapterForwarder = Forwarder<Adapter, UdpSocket>;

/// A tunnel whose resources have been opened.
pub(super) struct AdapterTunnel {
    forwarder: AdapterForwarder,
    requests: Requests,
    settings: AdapterPlan,
    events: Receiver<TunnelEvent>,
    server: Server,
}

/// Opens the resources of a tunnel. The adapter gets no addresses yet. If this fails, nothing
/// remains.
pub(super) fn open(
    wanted: PreparedTunnel,
    (sender, events): (Sender<TunnelEvent>, Receiver<TunnelEvent>),
) -> Result<AdapterTunnel, WindowsTunnelError> {
    let PreparedTunnel { conf, file, .. } = wanted;
    let name = conf.interface;
    let listener = listen(&name)?;
    warn_of_library();
    let adapter = wintun::Adapter::create(name.as_str(), guid_of(name.as_str()))?;
    let luid = adapter.luid();
    let port = file.interface.listen_port.unwrap_or(0);
    let Sockets { v4, v6, port, .. } =
        Sockets::bind(port).map_err(|source| WindowsTunnelError::Port { port, source })?;
    for socket in [Some(&v4), v6.as_ref()].into_iter().flatten() {
        let blocks = socket.set_nonblocking(false);
        blocks.map_err(|source| WindowsTunnelError::Port { port, source })?;
    }
    let sockets = UdpSockets::new(Some(v4), v6, port);
    let addressing = addressing(&file);
    let mut request = taupe_client::setconf_request(&file, &literal_endpoints(&file));
    request.fwmark = None;
    let state = state_folder()?;
    let notify = sender.clone();
    let notify: Wake = Arc::new(move || {
        let _ = notify.send(TunnelEvent::WorkDue);
    });
    let services = services(&state, &file, WindowsMode::Adapter, Arc::clone(&notify));
    let mut forwarder = Forwarder::new(
        Adapter(adapter),
        sockets,
        addressing.mtu as usize,
        services,
        notify,
    );
    let mut requests = Requests::new(port);
    let (device, services) = forwarder.driver.parts();
    let applied = requests.apply(device, services, request);
    applied.map_err(RefusedConfiguration::from)?;
    let server = Server::start(listener, sender).map_err(WindowsTunnelError::Thread)?;
    info!("{name} is ready");
    Ok(AdapterTunnel {
        forwarder,
        requests,
        settings: AdapterPlan {
            luid,
            addressing,
            servers: file.interface.dns,
            search: file.interface.dns_search,
        },
        events,
        server,
    })
}

impl AdapterTunnel {
    /// Runs the tunnel until it is asked to end.
    pub(super) fn run(self) -> Result<(), WindowsTunnelError> {
        let Self {
            mut forwarder,
            mut requests,
            settings,
            events,
            server,
        } = self;
        // The adapter's settings are removed before the adapter.
        let mut applied = None;
        let ended = run_loop(
            &mut forwarder,
            &mut requests,
            &settings,
            &mut applied,
            &events,
        );
        drop((server, applied));
        forwarder.end();
        ended
    }
}

fn run_loop(
    forwarder: &mut AdapterForwarder,
    requests: &mut Requests,
    settings: &AdapterPlan,
    applied: &mut Option<AppliedSettings>,
    events: &Receiver<TunnelEvent>,
) -> Result<(), WindowsTunnelError> {
    forwarder.driver.device_mut().set_up(now());
    forwarder.start().map_err(WindowsTunnelError::Thread)?;
    let (mut uplinks, mut waiting_since) = (Uplinks::default(), None);
    loop {
        settle(forwarder)?;
        // Routes would lead the look-up of endpoints into the tunnel, so they come after it.
        if applied.is_none() && forwarder.driver.services().has_endpoints() {
            let since = *waiting_since.get_or_insert_with(Instant::now);
            if let Some(addressing) = settings.ready(since.elapsed())? {
                // The sockets' path is set before the first route exists. Otherwise datagrams would
                // enter the tunnel itself.
                uplinks.update(&addressing, forwarder);
                *applied = Some(settings.apply(addressing)?);
            }
        }
        if uplinks.is_due()
            && uplinks.update(AppliedSettings::addressing(applied.as_ref()), forwarder)
        {
            forwarder.driver.handle_network_change();
            settle(forwarder)?;
        }
        let longest = if applied.is_some() {
            LONGEST_WAIT
        } else {
            SHORT_WAIT
        };
        let due = forwarder.next_deadline().map(|at| at.since(now().boot));
        match events.recv_timeout(due.unwrap_or(longest).min(longest)) {
            Ok(TunnelEvent::Configuration(request, answer)) => {
                let (device, services) = forwarder.driver.parts();
                let text = requests.handle(device, services, request);
                uplinks.make_due();
                // The effects of the request take place before the client gets its answer.
                settle(forwarder)?;
                // The client may be gone.
                let _ = answer.try_send(text);
            }
            Ok(TunnelEvent::Resumed) => {
                info!("the machine has resumed from sleep: starting new handshakes");
                forwarder.driver.handle_resume();
            }
            Ok(TunnelEvent::WorkDue) | Err(RecvTimeoutError::Timeout) => {}
            Ok(TunnelEvent::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Does due work and logs notices.
fn settle(forwarder: &mut AdapterForwarder) -> Result<(), WindowsTunnelError> {
    forwarder
        .settle()
        .map_err(WindowsTunnelError::AdapterGone)?;
    while let Some(notice) = forwarder.poll_notice() {
        warn!("{}", peer_notices::text(&notice));
    }
    Ok(())
}

/// Settings that an adapter will have.
struct AdapterPlan {
    luid: u64,
    addressing: AdapterSettings,
    servers: Vec<IpAddr>,
    search: Vec<String>,
}

/// Settings that an adapter has.
struct AppliedSettings {
    addressing: AdapterSettings,
    _name_servers: Option<NameServers>,
}

impl AppliedSettings {
    /// Returns the adapter's addresses and routes, which are empty before it is set up.
    fn addressing(applied: Option<&Self>) -> &AdapterSettings {
        static NOTHING: AdapterSettings = AdapterSettings {
            addresses: Vec::new(),
            routes: Vec::new(),
            mtu: MTU,
        };
        applied.map_or(&NOTHING, |applied| &applied.addressing)
    }
}

impl AdapterPlan {
    /// Returns the addresses and routes for the adapter once the system supports all of their
    /// address families, or has had enough time to. Returns `None` while waiting.
    fn ready(&self, waited: Duration) -> Result<Option<AdapterSettings>, WindowsTunnelError> {
        let mut missing = Vec::new();
        for family in Family::ALL {
            let is_there = routes::has_family(self.luid, family);
            if !is_there.map_err(WindowsTunnelError::Addressing)? {
                missing.push(family);
            }
        }
        let addressing = without_missing(&self.addressing, &missing, waited);
        if let Ok(Some(left)) = &addressing {
            let wanted = self.addressing.routes.iter();
            for network in wanted.filter(|one| !left.routes.contains(one)) {
                let family = Family::of(network.addr());
                warn!("{network} gets no route: the system has no {family} for the adapter");
            }
        }
        addressing.map_err(|family| {
            let reason = format!(
                "the file has an {family} Address, but the system has no {family} for the adapter; \
                 enable {family}, or remove the Address"
            );
            WindowsTunnelError::Addressing(io::Error::new(io::ErrorKind::Unsupported, reason))
        })
    }

    fn apply(&self, addressing: AdapterSettings) -> Result<AppliedSettings, WindowsTunnelError> {
        routes::set_up(self.luid, &addressing).map_err(WindowsTunnelError::Addressing)?;
        let name_servers = NameServers::set(self).map_err(WindowsTunnelError::NameServers)?;
        info!("the adapter has its addresses and routes");
        Ok(AppliedSettings {
            addressing,
            _name_servers: name_servers,
        })
    }
}

/// Decides about address families that the adapter lacks (`missing`). Returns `None` while these
/// may still appear. After the wait, leaves out their routes. The error is a family in which the
/// file has an address, which cannot be left out.
fn without_missing(
    wanted: &AdapterSettings,
    missing: &[Family],
    waited: Duration,
) -> Result<Option<AdapterSettings>, Family> {
    let of = |family: Family| move |one: &IpNet| Family::of(one.addr()) == family;
    let mut addressing = wanted.clone();
    for family in missing {
        let has_address = wanted.addresses.iter().any(of(*family));
        if !has_address && !wanted.routes.iter().any(of(*family)) {
            continue;
        }
        let patience = if has_address {
            FAMILY_TIMEOUT
        } else {
            ABSENT_FAMILY_TIMEOUT
        };
        if waited < patience {
            return Ok(None);
        }
        if has_address {
            return Err(*family);
        }
        addressing.routes.retain(|one| !of(*family)(one));
    }
    Ok(Some(addressing))
}

/// Returns addresses, routes and MTU for a file's adapter.
fn addressing(file: &File) -> AdapterSettings {
    let interface = &file.interface;
    let mut routed: Vec<IpNet> = Vec::new();
    if interface.table != Table::Off {
        routed.extend(file.peers.iter().flat_map(|peer| peer.routed()));
    }
    routed.sort_unstable();
    routed.dedup();
    AdapterSettings {
        addresses: interface.addresses.clone(),
        routes: routed,
        mtu: interface.mtu.unwrap_or(MTU),
    }
}

/// Checks whether the adapter's routes lead datagrams of a family into the tunnel itself, because
/// they contain an endpoint or all addresses.
fn routes_into_tunnel(
    addressing: &AdapterSettings,
    family: Family,
    endpoints: impl Iterator<Item = SocketAddr> + Clone,
) -> bool {
    // Addresses in the network of an own address are reached by the adapter as well.
    let mut networks = addressing.routes.iter().chain(&addressing.addresses);
    networks.any(|network| {
        Family::of(network.addr()) == family
            && (network.prefix_len() == 0
                || endpoints.clone().any(|one| network.contains(&one.ip())))
    })
}

/// Route of the datagrams of an address family to peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum UplinkRoute {
    /// The system's routes, none of which leads into the tunnel.
    #[default]
    Routed,
    /// The adapter of this index, which bypasses the tunnel.
    Interface(u32),
    /// None: there is no other adapter, so datagrams would enter the tunnel again.
    Unreachable,
}

impl UplinkRoute {
    fn of(is_captured: bool, default_interface: Option<u32>) -> Self {
        match (is_captured, default_interface) {
            (false, _) => Self::Routed,
            (true, Some(index)) => Self::Interface(index),
            (true, None) => Self::Unreachable,
        }
    }
}

/// Paths of datagrams that bypass the tunnel.
#[derive(Default)]
struct Uplinks {
    /// For each of [`Family::ALL`], the adapter with the default route and the current path of
    /// datagrams.
    last: [(Option<u32>, UplinkRoute); 2],
    updated: Option<Instant>,
}

impl Uplinks {
    fn is_due(&self) -> bool {
        self.updated
            .is_none_or(|at| at.elapsed() >= UPDATE_INTERVAL)
    }

    /// Makes the next look-up due, because endpoints may have changed.
    fn make_due(&mut self) {
        self.updated = None;
    }

    /// Lets datagrams bypass the tunnel if routes would lead them into it. Returns true if anything
    /// has changed.
    fn update(&mut self, addressing: &AdapterSettings, forwarder: &AdapterForwarder) -> bool {
        self.updated = Some(Instant::now());
        let peers = forwarder.driver.device().status().peers;
        let endpoints = peers.iter().filter_map(|peer| peer.endpoint);
        let mut has_changed = false;
        for (family, last) in Family::ALL.into_iter().zip(&mut self.last) {
            let found = routes::default_interface(family).unwrap_or_else(|error| {
                debug!(%family, %error, "cannot find the adapter with the default route");
                None
            });
            let is_captured = routes_into_tunnel(addressing, family, endpoints.clone());
            let route = set_route(
                &forwarder.sockets(),
                family,
                last.1,
                UplinkRoute::of(is_captured, found),
            );
            has_changed |= std::mem::replace(last, (found, route)) != (found, route);
        }
        has_changed
    }
}

/// Sets the path of a family's datagrams. Returns the path that applies now. On an error no
/// datagrams leave, and the next look-up tries again.
fn set_route(
    sockets: &UdpSockets<UdpSocket>,
    family: Family,
    last: UplinkRoute,
    wanted: UplinkRoute,
) -> UplinkRoute {
    let Some(socket) = sockets.of(family).filter(|_| wanted != last) else {
        return wanted;
    };
    let done = match wanted {
        UplinkRoute::Routed => routes::set_unicast_interface(&socket.socket, family, 0),
        UplinkRoute::Interface(index) => {
            routes::set_unicast_interface(&socket.socket, family, index)
        }
        UplinkRoute::Unreachable => Err(io::ErrorKind::NetworkUnreachable.into()),
    };
    socket.set_closed(done.is_err());
    match (done, wanted) {
        (Ok(()), UplinkRoute::Interface(index)) => {
            info!(%family, index, "encrypted packets leave by this adapter")
        }
        (Ok(()), _) => info!(%family, "encrypted packets follow the system's routes"),
        (Err(error), _) => {
            if last != UplinkRoute::Unreachable {
                info!(%family, %error, "no encrypted packet can leave now");
            }
            return UplinkRoute::Unreachable;
        }
    }
    wanted
}

/// Name servers of an adapter. The system would keep them after the adapter is gone, so they are
/// removed on drop.
struct NameServers(Guid);

impl NameServers {
    /// Sets the name servers. An empty list is set too, because a killed process may have left
    /// some; if that fails, returns `None`.
    fn set(settings: &AdapterPlan) -> io::Result<Option<Self>> {
        let AdapterPlan {
            servers, search, ..
        } = settings;
        let set = Guid::of(settings.luid).and_then(|guid| {
            let set = Self(guid);
            routes::set_name_servers(guid, servers, search)?;
            Ok(set)
        });
        match set {
            Ok(set) => Ok(Some(set)),
            Err(error) if servers.is_empty() && search.is_empty() => {
                debug!(%error, "the adapter's name servers stay as they are");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

impl Drop for NameServers {
    fn drop(&mut self) {
        if let Err(error) = routes::set_name_servers(self.0, &[], &[]) {
            debug!(%error, "the adapter's name servers stay with the system");
        }
    }
}

/// Returns Wintun's library, if it is in the program's folder.
pub(super) fn library_path(program: &Path) -> Option<PathBuf> {
    let path = program.with_file_name(wintun::LIBRARY);
    path.exists().then_some(path)
}

/// Logs which users could replace the library, and thereby run code with the rights of this
/// process.
fn warn_of_library() {
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let exposed = match library_path(&program) {
        Some(library) => access::exposed(&library),
        // Users who could put a library there.
        None => access::exposed_program(&program),
    };
    match exposed {
        Ok(None) => {}
        Ok(Some(exposed)) => warn!(
            "{exposed}: they could replace {}; move it and taupe.exe to a folder that only \
             administrators can change, such as C:\\Program Files\\Taupe",
            wintun::LIBRARY
        ),
        Err(error) => debug!(%error, "cannot find out who may change {}", wintun::LIBRARY),
    }
}

/// Returns the same GUID for each tunnel of a name, so that the system recognises the adapter.
fn guid_of(name: &str) -> u128 {
    let name = name.to_lowercase();
    let hash = default_provider()
        .hash
        .hash(&[b"taupe adapter", name.as_bytes()]);
    hash.first_chunk()
        .map_or(0, |bytes| u128::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests;
