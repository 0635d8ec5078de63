//! A tunnel on an adapter of its own (Wintun), with addresses, routes and name servers.

use super::carrier::Asked;
use super::forwarding::{Forwarder, Tap, Way, Ways};
use super::pipe::Server;
use super::requests::{CarriedBy, RefusedFile, Requests, services};
use super::sockets::Sockets;
use super::tunnel::{Failure, Wanted, endpoints, listen, state_folder};
use crate::peer_notices;
use ipnet::IpNet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use taupe_config::file::{File, Table};
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
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Time that the system may take to enable an address family on a new adapter. The shorter time is
/// for a family without an address, which the machine may have disabled.
const PATIENCE: Duration = Duration::from_secs(10);
const LITTLE_PATIENCE: Duration = Duration::from_secs(3);

/// Longest wait for a request before other events are checked. The shorter one applies until the
/// adapter is set up.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
const SHORT_WAIT: Duration = Duration::from_millis(50);

impl Tap for wintun::Adapter {
    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        self.read(buffer)
    }

    fn write(&self, packet: &[u8]) -> io::Result<()> {
        self.write(packet)
    }

    fn close(&self) {
        self.close();
    }
}

/// A tunnel whose resources have been opened.
pub(super) struct AdapterTunnel {
    forwarder: Forwarder<wintun::Adapter>,
    requests: Requests,
    network: Network,
    asked: Receiver<Asked>,
    server: Server,
}

/// Opens the resources of a tunnel. The adapter gets no addresses yet. If this fails, nothing
/// remains.
pub(super) fn open(
    wanted: Wanted,
    (ask, asked): (Sender<Asked>, Receiver<Asked>),
) -> Result<AdapterTunnel, Failure> {
    let Wanted { conf, file, .. } = wanted;
    let name = conf.interface;
    let listener = listen(&name)?;
    warn_of_library();
    let adapter = wintun::Adapter::create(name.as_str(), guid_of(name.as_str()))?;
    let luid = adapter.luid();
    let port = file.interface.listen_port.unwrap_or(0);
    let Sockets { v4, v6, port, .. } =
        Sockets::bind(port).map_err(|source| Failure::Port { port, source })?;
    let ways = Ways {
        v4: Way::new(v4),
        v6: v6.map(Way::new),
        port,
    };
    let addressing = addressing(&file);
    let mut request = taupe_client::setconf_request(&file, &endpoints(&file));
    request.fwmark = None;
    let state = state_folder()?;
    let attend = ask.clone();
    let attend: Wake = Arc::new(move || {
        let _ = attend.send(Asked::Attention);
    });
    let services = services(&state, &file, CarriedBy::Adapter, Arc::clone(&attend));
    let mut forwarder = Forwarder::new(adapter, ways, addressing.mtu as usize, services, attend);
    let mut requests = Requests::new(port);
    let (device, services) = forwarder.driver.parts();
    let applied = requests.apply(device, services, request);
    applied.map_err(RefusedFile::from)?;
    let server = Server::start(listener, ask).map_err(Failure::Thread)?;
    info!("{name} is ready");
    Ok(AdapterTunnel {
        forwarder,
        requests,
        network: Network {
            luid,
            addressing,
            servers: file.interface.dns,
            search: file.interface.dns_search,
        },
        asked,
        server,
    })
}

impl AdapterTunnel {
    /// Runs the tunnel until it is asked to end.
    pub(super) fn run(self) -> Result<(), Failure> {
        let Self {
            mut forwarder,
            mut requests,
            network,
            asked,
            server,
        } = self;
        // The adapter's settings are removed before the adapter.
        let mut set_up = None;
        let ended = carry(&mut forwarder, &mut requests, &network, &mut set_up, &asked);
        drop((server, set_up));
        forwarder.end();
        ended
    }
}

fn carry(
    forwarder: &mut Forwarder<wintun::Adapter>,
    requests: &mut Requests,
    network: &Network,
    set_up: &mut Option<SetUp>,
    asked: &Receiver<Asked>,
) -> Result<(), Failure> {
    forwarder.start().map_err(Failure::Thread)?;
    let (mut uplinks, mut waiting_since) = (Uplinks::default(), None);
    loop {
        settle(forwarder)?;
        // Routes would lead the look-up of endpoints into the tunnel, so they come after it.
        if set_up.is_none() && forwarder.driver.services().has_endpoints() {
            let since = *waiting_since.get_or_insert_with(Instant::now);
            if let Some(addressing) = network.ready(since.elapsed())? {
                // The sockets' path is set before the first route exists. Otherwise datagrams would
                // enter the tunnel itself.
                uplinks.look(&addressing, forwarder);
                *set_up = Some(network.set_up(addressing)?);
            }
        }
        if uplinks.is_due() && uplinks.look(SetUp::addressing(set_up.as_ref()), forwarder) {
            forwarder.driver.handle_network_change();
            settle(forwarder)?;
        }
        let longest = if set_up.is_some() {
            LONGEST_WAIT
        } else {
            SHORT_WAIT
        };
        let due = forwarder.next_deadline().map(|at| at.since(now().boot));
        match asked.recv_timeout(due.unwrap_or(longest).min(longest)) {
            Ok(Asked::Configuration(request, answer)) => {
                let (device, services) = forwarder.driver.parts();
                let text = requests.handle(device, services, request);
                uplinks.look_soon();
                // The effects of the request take place before the client gets its answer.
                settle(forwarder)?;
                // The client may be gone.
                let _ = answer.try_send(text);
            }
            Ok(Asked::Awoke) => {
                info!("the machine has slept: shaking hands anew");
                forwarder.driver.handle_awakening();
            }
            Ok(Asked::Attention) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Asked::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Does due work and logs notices.
fn settle(forwarder: &mut Forwarder<wintun::Adapter>) -> Result<(), Failure> {
    forwarder.settle().map_err(Failure::AdapterGone)?;
    while let Some(notice) = forwarder.poll_notice() {
        warn!("{}", peer_notices::text(&notice));
    }
    Ok(())
}

/// Settings that an adapter will have.
struct Network {
    luid: u64,
    addressing: AdapterSettings,
    servers: Vec<IpAddr>,
    search: Vec<String>,
}

/// Settings that an adapter has.
struct SetUp {
    addressing: AdapterSettings,
    _name_servers: Option<NameServers>,
}

impl SetUp {
    /// Returns the adapter's addresses and routes, which are empty before it is set up.
    fn addressing(set_up: Option<&Self>) -> &AdapterSettings {
        static NOTHING: AdapterSettings = AdapterSettings {
            addresses: Vec::new(),
            routes: Vec::new(),
            mtu: MTU,
        };
        set_up.map_or(&NOTHING, |set_up| &set_up.addressing)
    }
}

impl Network {
    /// Returns the addresses and routes for the adapter once the system supports all of their
    /// address families, or has had enough time to. Returns `None` while waiting.
    fn ready(&self, waited: Duration) -> Result<Option<AdapterSettings>, Failure> {
        let mut lacking = Vec::new();
        for family in Family::ALL {
            let is_there = routes::has_family(self.luid, family);
            if !is_there.map_err(Failure::Addressing)? {
                lacking.push(family);
            }
        }
        let addressing = with(&self.addressing, &lacking, waited);
        if let Ok(Some(left)) = &addressing {
            let wanted = self.addressing.routes.iter();
            for (address, length) in wanted.filter(|one| !left.routes.contains(one)) {
                let family = Family::of(*address);
                warn!("{address}/{length} is left out: the system has no {family} for the adapter");
            }
        }
        addressing.map_err(|family| {
            let reason = format!(
                "the system has no {family} for the adapter, in which the file has an Address; \
                 turn {family} on, or leave the Address out"
            );
            Failure::Addressing(io::Error::new(io::ErrorKind::Unsupported, reason))
        })
    }

    fn set_up(&self, addressing: AdapterSettings) -> Result<SetUp, Failure> {
        routes::set_up(self.luid, &addressing).map_err(Failure::Addressing)?;
        let name_servers = NameServers::set(self).map_err(Failure::NameServers)?;
        info!("the adapter has its addresses and routes");
        Ok(SetUp {
            addressing,
            _name_servers: name_servers,
        })
    }
}

/// Decides about address families that the adapter lacks (`lacking`). Returns `None` while these
/// may still appear. After the wait, leaves out their routes. The error is a family in which the
/// file has an address, which cannot be left out.
fn with(
    wanted: &AdapterSettings,
    lacking: &[Family],
    waited: Duration,
) -> Result<Option<AdapterSettings>, Family> {
    let of = |family: Family| move |one: &routes::Network| Family::of(one.0) == family;
    let mut addressing = wanted.clone();
    for family in lacking {
        let has_address = wanted.addresses.iter().any(of(*family));
        if !has_address && !wanted.routes.iter().any(of(*family)) {
            continue;
        }
        let patience = if has_address {
            PATIENCE
        } else {
            LITTLE_PATIENCE
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
    let addresses = interface.addresses.iter();
    AdapterSettings {
        addresses: addresses.map(|one| (one.address, one.length)).collect(),
        routes: routed
            .iter()
            .map(|one| (one.addr(), one.prefix_len()))
            .collect(),
        mtu: interface.mtu.unwrap_or(MTU),
    }
}

/// Checks whether the adapter's routes lead datagrams of a family into the tunnel itself, because
/// they contain an endpoint or all addresses.
fn leads(
    addressing: &AdapterSettings,
    family: Family,
    endpoints: impl Iterator<Item = SocketAddr> + Clone,
) -> bool {
    // Addresses in the network of an own address are reached by the adapter as well.
    let mut networks = addressing.routes.iter().chain(&addressing.addresses);
    networks.any(|(address, length)| {
        let network = IpNet::new(*address, *length);
        Family::of(*address) == family
            && (*length == 0
                || network.is_ok_and(|it| endpoints.clone().any(|one| it.contains(&one.ip()))))
    })
}

/// Path of the datagrams of an address family.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Leaving {
    /// The system's routes, none of which leads into the tunnel.
    #[default]
    Routed,
    /// The adapter of this index, past the tunnel.
    By(u32),
    /// No path: there is no other adapter, so datagrams would enter the tunnel again.
    Not,
}

impl Leaving {
    fn of(is_led: bool, default_interface: Option<u32>) -> Self {
        match (is_led, default_interface) {
            (false, _) => Self::Routed,
            (true, Some(index)) => Self::By(index),
            (true, None) => Self::Not,
        }
    }
}

/// Paths of datagrams that bypass the tunnel.
#[derive(Default)]
struct Uplinks {
    /// For each of [`Family::ALL`], the adapter with the default route and the current path of
    /// datagrams.
    last: [(Option<u32>, Leaving); 2],
    looked: Option<Instant>,
}

impl Uplinks {
    fn is_due(&self) -> bool {
        self.looked.is_none_or(|at| at.elapsed() >= BETWEEN_LOOKS)
    }

    /// Makes the next look-up due, because endpoints may have changed.
    fn look_soon(&mut self) {
        self.looked = None;
    }

    /// Lets datagrams bypass the tunnel if routes would lead them into it. Returns true if anything
    /// has changed.
    fn look(
        &mut self,
        addressing: &AdapterSettings,
        forwarder: &Forwarder<wintun::Adapter>,
    ) -> bool {
        self.looked = Some(Instant::now());
        let peers = forwarder.driver.device().status().peers;
        let endpoints = peers.iter().filter_map(|peer| peer.endpoint);
        let mut has_changed = false;
        for (family, last) in Family::ALL.into_iter().zip(&mut self.last) {
            let found = routes::default_interface(family).unwrap_or_else(|error| {
                debug!(%family, %error, "cannot tell which adapter leads everywhere");
                None
            });
            let is_led = leads(addressing, family, endpoints.clone());
            let leaving = leave(forwarder.ways(), family, last.1, Leaving::of(is_led, found));
            has_changed |= std::mem::replace(last, (found, leaving)) != (found, leaving);
        }
        has_changed
    }
}

/// Sets the path of a family's datagrams. Returns the path that applies now. On an error no
/// datagrams leave, and the next look-up tries again.
fn leave(ways: &Ways, family: Family, last: Leaving, wanted: Leaving) -> Leaving {
    let way = match family {
        Family::V4 => Some(&ways.v4),
        Family::V6 => ways.v6.as_ref(),
    };
    let Some(way) = way.filter(|_| wanted != last) else {
        return wanted;
    };
    let done = match wanted {
        Leaving::Routed => routes::set_unicast_interface(&way.socket, family, 0),
        Leaving::By(index) => routes::set_unicast_interface(&way.socket, family, index),
        Leaving::Not => Err(io::ErrorKind::NetworkUnreachable.into()),
    };
    way.shut(done.is_err());
    match (done, wanted) {
        (Ok(()), Leaving::By(index)) => info!(%family, index, "datagrams leave by this adapter"),
        (Ok(()), _) => info!(%family, "datagrams leave as routes lead"),
        (Err(error), _) => {
            if last != Leaving::Not {
                info!(%family, %error, "no datagram leaves for now");
            }
            return Leaving::Not;
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
    fn set(network: &Network) -> io::Result<Option<Self>> {
        let Network {
            servers, search, ..
        } = network;
        let set = Guid::of(network.luid).and_then(|guid| {
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
pub(super) fn library_beside(program: &Path) -> Option<PathBuf> {
    let path = program.with_file_name(wintun::LIBRARY);
    path.exists().then_some(path)
}

/// Logs which users could replace the library, and thereby run code with the rights of this
/// process.
fn warn_of_library() {
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let exposed = match library_beside(&program) {
        Some(library) => access::exposed(&library),
        // Users who could put a library there.
        None => access::exposed_program(&program),
    };
    match exposed {
        Ok(None) => {}
        Ok(Some(exposed)) => warn!(
            "{exposed}, who could so have the tunnel use another {}; move taupe.exe and it to a \
             folder of administrators' own, such as C:\\Program Files\\Taupe",
            wintun::LIBRARY
        ),
        Err(error) => debug!(%error, "who may change {} is not known", wintun::LIBRARY),
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
mod tests {
    use super::{LITTLE_PATIENCE, Leaving, MTU, PATIENCE, SetUp, addressing, leads, with};
    use std::time::Duration;
    use taupe_config::file::{Compatibility, parse};
    use taupe_os_windows::routes::AdapterSettings;
    use taupe_packet::ip::Family::{self, V4, V6};

    const PEER: &str =
        "[Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nAllowedIPs = ";

    /// Returns the settings for a file with these lines.
    fn of(lines: &str) -> AdapterSettings {
        let text = format!(
            "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
             Address = 10.7.0.2/24\n{lines}\n"
        );
        let parsed = parse(text.as_bytes(), Compatibility::Taupe.dialect());
        addressing(&parsed.file.expect("a file"))
    }

    fn peer(networks: &str) -> AdapterSettings {
        of(&format!("{PEER}{networks}"))
    }

    fn routes(addressing: &AdapterSettings) -> Vec<String> {
        let routes = addressing.routes.iter();
        let routes = routes.map(|(address, length)| format!("{address}/{length}"));
        routes.collect()
    }

    fn led(addressing: &AdapterSettings, endpoint: &str) -> Vec<Family> {
        let endpoint = std::iter::once(endpoint.parse().expect("an address"));
        let leads = |family: &Family| leads(addressing, *family, endpoint.clone());
        Family::ALL.into_iter().filter(leads).collect()
    }

    #[test]
    fn routes_are_what_peers_carry_and_what_would_loop_is_known() {
        let everything = peer("::/0, 0.0.0.0/0, 10.7.0.0/24");
        assert_eq!(routes(&everything), ["0.0.0.0/0", "10.7.0.0/24", "::/0"]);
        assert_eq!(led(&everything, "192.0.2.1:9"), [V4, V6]);
        let halves = peer("0.0.0.0/1, 128.0.0.0/1");
        assert_eq!(led(&halves, "192.0.2.1:9"), [V4]);
        assert_eq!(led(&halves, "[2001:db8::1]:9"), []);
        let without = peer("10.0.0.0/8\nDisallowedIPs = 10.128.0.0/9");
        assert_eq!(routes(&without), ["10.0.0.0/9"]);
        let off = of(&format!("Table = off\n{PEER}0.0.0.0/0"));
        assert_eq!(routes(&off), [""; 0]);
        assert_eq!(led(&off, "192.0.2.1:9"), []);
        // The endpoint is in the network of the address itself.
        assert_eq!(led(&off, "10.7.0.1:9"), [V4]);
        assert_eq!(led(SetUp::addressing(None), "10.7.0.1:9"), []);
    }

    #[test]
    fn datagrams_leave_past_the_tunnel_only_while_it_leads_them() {
        assert_eq!(Leaving::of(false, Some(7)), Leaving::Routed);
        assert_eq!(Leaving::of(false, None), Leaving::Routed);
        assert_eq!(Leaving::of(true, Some(7)), Leaving::By(7));
        assert_eq!(Leaving::of(true, None), Leaving::Not);
    }

    #[test]
    fn a_family_that_the_machine_lacks_is_waited_for_and_then_left_out() {
        let second = Duration::from_secs(1);
        let all = peer("0.0.0.0/0, ::/0");
        assert_eq!(with(&all, &[], Duration::ZERO), Ok(Some(all.clone())));
        assert_eq!(with(&all, &[V6], LITTLE_PATIENCE - second), Ok(None));
        let without = with(&all, &[V6], LITTLE_PATIENCE).expect("no error");
        assert_eq!(routes(&without.expect("ready")), ["0.0.0.0/0"]);
        assert_eq!(with(&all, &[V4, V6], PATIENCE - second), Ok(None));
        assert_eq!(
            with(&all, &[V4, V6], PATIENCE),
            Err(V4),
            "it has an address"
        );
        let v4 = peer("10.0.0.0/8");
        assert_eq!(v4.mtu, MTU);
        assert_eq!(with(&v4, &[V6], Duration::ZERO), Ok(Some(v4.clone())));
    }
}
