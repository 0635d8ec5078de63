//! A tunnel on an adapter of its own (Wintun), with addresses, routes and name servers.

use super::carrier::Asked;
use super::forwarding::{Forwarder, Tap, Way, Ways};
use super::pipe::Server;
use super::requests::{CarriedBy, RefusedFile, Requests, services};
use super::sockets::Sockets;
use super::tunnel::{Failure, Wanted, endpoints, listen, state_folder};
use crate::peer_notices;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use taupe_config::destinations::has;
use taupe_config::file::{File, Table};
use taupe_os_windows::routes::{self, Addressing, Guid};
use taupe_os_windows::{access, wintun};
use taupe_packet::ip::Family;
use taupe_protocol::Wake;
use taupe_protocol::crypto::default_provider;
use taupe_runtime::clock::now;
use taupe_uapi::prefix::Prefix;
use tracing::{debug, info, warn};

/// Without `MTU`: what fits into 1,500 bytes with the headers of either family.
const MTU: u32 = 1420;

/// From one look at which adapter leads to the endpoints to the next.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// How long the system may take until a new adapter has a family in which it is to have an
/// address; and one in which it is to have none, which the machine may have turned off.
const PATIENCE: Duration = Duration::from_secs(10);
const LITTLE_PATIENCE: Duration = Duration::from_secs(3);

/// The longest wait for what is asked, after which it is looked at what else there is; shorter
/// while the adapter has nothing yet.
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

/// A tunnel that has all that it takes.
pub(super) struct AdapterTunnel {
    forwarder: Forwarder<wintun::Adapter>,
    requests: Requests,
    network: Network,
    asked: Receiver<Asked>,
    server: Server,
}

/// Opens what it takes; the adapter has nothing yet of what the file says. What fails leaves
/// nothing behind.
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
    let mut request = taupe_client::request(&file, &endpoints(&file));
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
    /// Carries it until the end is asked for.
    pub(super) fn run(self) -> Result<(), Failure> {
        let Self {
            mut forwarder,
            mut requests,
            network,
            asked,
            server,
        } = self;
        // What the adapter has is taken back before it is removed.
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
        // Routes may lead into the tunnel what looks for its endpoints.
        if set_up.is_none() && forwarder.driver.services().has_endpoints() {
            let since = *waiting_since.get_or_insert_with(Instant::now);
            if let Some(addressing) = network.ready(since.elapsed())? {
                // Before the first route, or datagrams would go into the tunnel.
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
                // What the request has led to happens before the client goes on.
                settle(forwarder)?;
                // Who asked may be gone.
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

/// Does what is due, and logs notices.
fn settle(forwarder: &mut Forwarder<wintun::Adapter>) -> Result<(), Failure> {
    forwarder.settle().map_err(Failure::AdapterGone)?;
    while let Some(notice) = forwarder.poll_notice() {
        warn!("{}", peer_notices::text(&notice));
    }
    Ok(())
}

/// What an adapter is to have.
struct Network {
    luid: u64,
    addressing: Addressing,
    servers: Vec<IpAddr>,
    search: Vec<String>,
}

/// It has it.
struct SetUp {
    addressing: Addressing,
    _name_servers: Option<NameServers>,
}

impl SetUp {
    /// What the adapter has: nothing before.
    fn addressing(set_up: Option<&Self>) -> &Addressing {
        static NOTHING: Addressing = Addressing {
            addresses: Vec::new(),
            routes: Vec::new(),
            mtu: MTU,
        };
        set_up.map_or(&NOTHING, |set_up| &set_up.addressing)
    }
}

impl Network {
    /// What the adapter gets, once the system has it for all families that are to have something,
    /// or for those that it will have; `None` before.
    fn ready(&self, waited: Duration) -> Result<Option<Addressing>, Failure> {
        let mut lacking = Vec::new();
        for family in Family::ALL {
            let is_there = routes::is_there(self.luid, family);
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

    /// Gives the adapter what it is to have.
    fn set_up(&self, addressing: Addressing) -> Result<SetUp, Failure> {
        routes::set_up(self.luid, &addressing).map_err(Failure::Addressing)?;
        let name_servers = NameServers::set(self).map_err(Failure::NameServers)?;
        info!("the adapter has its addresses and routes");
        Ok(SetUp {
            addressing,
            _name_servers: name_servers,
        })
    }
}

/// What an adapter that lacks families gets after a wait: nothing yet while it may have them
/// some day, then what is not in them. A family in which there is an address is not left out,
/// and is the error.
fn with(
    wanted: &Addressing,
    lacking: &[Family],
    waited: Duration,
) -> Result<Option<Addressing>, Family> {
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

/// What the adapter of a file gets.
fn addressing(file: &File) -> Addressing {
    let interface = &file.interface;
    let mut routed: Vec<Prefix> = Vec::new();
    if interface.table != Table::Off {
        routed.extend(file.peers.iter().flat_map(|peer| peer.routed()));
    }
    routed.sort_unstable();
    routed.dedup();
    let addresses = interface.addresses.iter();
    Addressing {
        addresses: addresses.map(|one| (one.address, one.length)).collect(),
        routes: routed
            .iter()
            .map(|one| (one.address(), one.length()))
            .collect(),
        mtu: interface.mtu.unwrap_or(MTU),
    }
}

/// Whether what the adapter has leads a family's datagrams into the tunnel itself: because an
/// endpoint is within, or everything is.
fn leads(
    addressing: &Addressing,
    family: Family,
    endpoints: impl Iterator<Item = SocketAddr> + Clone,
) -> bool {
    // What is on an address's own network is reached by the adapter as well.
    let mut networks = addressing.routes.iter().chain(&addressing.addresses);
    networks.any(|(address, length)| {
        let network = Prefix::new(*address, *length);
        Family::of(*address) == family
            && (*length == 0
                || network.is_some_and(|it| endpoints.clone().any(|one| has(it, one.ip()))))
    })
}

/// How a family's datagrams leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Leaving {
    /// As routes lead, of which none leads into the tunnel.
    #[default]
    Routed,
    /// By this adapter, past the tunnel.
    By(u32),
    /// Not at all: there is no other adapter, and they would come back by the tunnel.
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

/// The ways by which datagrams leave past the tunnel.
#[derive(Default)]
struct Uplinks {
    /// Of each of [`Family::ALL`], the adapter that leads to everywhere, and how datagrams leave.
    last: [(Option<u32>, Leaving); 2],
    looked: Option<Instant>,
}

impl Uplinks {
    /// Whether it is time to look.
    fn is_due(&self) -> bool {
        self.looked.is_none_or(|at| at.elapsed() >= BETWEEN_LOOKS)
    }

    /// Endpoints may have changed.
    fn look_soon(&mut self) {
        self.looked = None;
    }

    /// Has the sockets' datagrams leave past the tunnel where they would go into it. Whether
    /// anything has changed.
    fn look(&mut self, addressing: &Addressing, forwarder: &Forwarder<wintun::Adapter>) -> bool {
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

/// Has a family's datagrams leave as is wanted. How they do: not at all where that fails, so
/// that it is tried again at the next look.
fn leave(ways: &Ways, family: Family, last: Leaving, wanted: Leaving) -> Leaving {
    let way = match family {
        Family::V4 => Some(&ways.v4),
        Family::V6 => ways.v6.as_ref(),
    };
    let Some(way) = way.filter(|_| wanted != last) else {
        return wanted;
    };
    let done = match wanted {
        Leaving::Routed => routes::leave_by(&way.socket, family, 0),
        Leaving::By(index) => routes::leave_by(&way.socket, family, index),
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

/// The name servers of an adapter, which the system would keep when it is gone.
struct NameServers(Guid);

impl NameServers {
    /// Also none, as a process before that was killed may have left some; `None` where that
    /// cannot be and need not.
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

/// Where a program has Wintun's library, if it has it beside it.
pub(super) fn library_beside(program: &Path) -> Option<PathBuf> {
    let path = program.with_file_name(wintun::LIBRARY);
    path.exists().then_some(path)
}

/// Says who could have this process load another library, with its rights.
fn warn_of_library() {
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let exposed = match library_beside(&program) {
        Some(library) => access::exposed(&library),
        // Who may put one there.
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

/// The same for each tunnel of one name, so that the system takes its adapter for the one that
/// it has seen before.
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
    use taupe_config::file::{Personality, parse};
    use taupe_os_windows::routes::Addressing;
    use taupe_packet::ip::Family::{self, V4, V6};

    const PEER: &str =
        "[Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nAllowedIPs = ";

    /// Of a file with these lines.
    fn of(lines: &str) -> Addressing {
        let text = format!(
            "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
             Address = 10.7.0.2/24\n{lines}\n"
        );
        let parsed = parse(text.as_bytes(), Personality::Taupe.dialect());
        addressing(&parsed.file.expect("a file"))
    }

    fn peer(networks: &str) -> Addressing {
        of(&format!("{PEER}{networks}"))
    }

    fn routes(addressing: &Addressing) -> Vec<String> {
        let routes = addressing.routes.iter();
        let routes = routes.map(|(address, length)| format!("{address}/{length}"));
        routes.collect()
    }

    fn led(addressing: &Addressing, endpoint: &str) -> Vec<Family> {
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
        // On the address's own network.
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
