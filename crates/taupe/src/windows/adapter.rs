//! A tunnel on an adapter of its own (Wintun), with addresses, routes and name servers.

use super::carrier::Asked;
use super::forwarding::{Forwarder, Tap, Way, Ways, now};
use super::names::Names;
use super::pipe::Server;
use super::sockets::Sockets;
use super::tunnel::{Failure, Wanted, endpoints, listen, state_folder};
use super::upkeep::{Refused, Upkeep};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use taupe_config::destinations::has;
use taupe_config::file::{File, Table};
use taupe_config::prefix::Prefix;
use taupe_protocol::Device;
use taupe_protocol::crypto::default_provider;
use taupe_sys::windows::routes::{self, Addressing, Family};
use taupe_sys::windows::wintun;
use tracing::{debug, info};

/// Without `MTU`: what fits into 1,500 bytes with the headers of either family.
const MTU: u32 = 1420;

/// From one look at which adapter leads to the endpoints to the next.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// The longest wait for what is asked, after which it is looked at what else there is; shorter
/// while endpoints' addresses are waited for.
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
    upkeep: Upkeep,
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
    let guid = guid_of(name.as_str());
    let adapter = wintun::Adapter::create(name.as_str(), guid)?;
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
    let attend = Arc::new(move || {
        let _ = attend.send(Asked::Attention);
    });
    let mut forwarder = Forwarder::new(adapter, ways, addressing.mtu as usize, attend);
    let mut upkeep = Upkeep::new(&state, Names::of(&file), port).of_adapter();
    let applied = upkeep.apply(&mut forwarder.device, request);
    applied.map_err(Refused::from)?;
    let server = Server::start(listener, ask).map_err(Failure::Thread)?;
    info!("{name} is ready");
    Ok(AdapterTunnel {
        forwarder,
        upkeep,
        network: Network {
            luid,
            guid,
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
            mut upkeep,
            network,
            asked,
            server,
        } = self;
        // What the adapter has is taken back before it is removed.
        let mut set_up = None;
        let ended = carry(&mut forwarder, &mut upkeep, &network, &mut set_up, &asked);
        drop((server, set_up));
        forwarder.end(|device, output| upkeep.do_output(device, output));
        ended
    }
}

fn carry(
    forwarder: &mut Forwarder<wintun::Adapter>,
    upkeep: &mut Upkeep,
    network: &Network,
    set_up: &mut Option<SetUp>,
    asked: &Receiver<Asked>,
) -> Result<(), Failure> {
    forwarder.start().map_err(Failure::Thread)?;
    loop {
        upkeep.look_names_up(&mut forwarder.device);
        match set_up {
            // Routes may lead into the tunnel what looks for its endpoints.
            None if upkeep.has_endpoints() => {
                *set_up = Some(network.set_up(&forwarder.device, forwarder.ways())?);
            }
            None => {}
            Some(SetUp { uplinks, .. }) => uplinks.follow(forwarder),
        }
        forwarder.settle().map_err(Failure::AdapterGone)?;
        while let Some(output) = forwarder.poll_output() {
            upkeep.do_output(&mut forwarder.device, output);
        }
        let longest = if set_up.is_some() {
            LONGEST_WAIT
        } else {
            SHORT_WAIT
        };
        let due = forwarder.next_deadline().map(|at| at.since(now().boot));
        match asked.recv_timeout(due.unwrap_or(longest).min(longest)) {
            Ok(Asked::Configuration(request, answer)) => {
                let text = upkeep.handle_request(&mut forwarder.device, request);
                // Who asked may be gone.
                let _ = answer.try_send(text);
            }
            Ok(Asked::Awoke) => {
                info!("the machine has slept: shaking hands anew");
                forwarder.device.handle_awakening(now());
            }
            Ok(Asked::Attention) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Asked::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// What an adapter is to have.
struct Network {
    luid: u64,
    guid: u128,
    addressing: Addressing,
    servers: Vec<IpAddr>,
    search: Vec<String>,
}

/// It has it.
struct SetUp {
    uplinks: Uplinks,
    _name_servers: Option<NameServers>,
}

impl Network {
    /// Gives the adapter what it is to have, and lets no datagram into the tunnel itself.
    fn set_up(&self, device: &Device, ways: &Ways) -> Result<SetUp, Failure> {
        let peers = device.status().peers;
        let endpoints = peers.iter().filter_map(|peer| peer.endpoint);
        let mut uplinks = Uplinks::new(self.luid, &led(&self.addressing, endpoints));
        uplinks.look(ways);
        routes::set_up(self.luid, &self.addressing).map_err(Failure::Addressing)?;
        let name_servers = NameServers::set(self).map_err(Failure::NameServers)?;
        info!("the adapter has its addresses and routes");
        Ok(SetUp {
            uplinks,
            _name_servers: name_servers,
        })
    }
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

/// The families whose datagrams routes would lead into the tunnel itself: of those that have an
/// endpoint within, or everything.
fn led(
    addressing: &Addressing,
    endpoints: impl Iterator<Item = SocketAddr> + Clone,
) -> Vec<Family> {
    let leads = |family: &Family| {
        addressing.routes.iter().any(|(address, length)| {
            let network = Prefix::new(*address, *length);
            let mut endpoints = endpoints.clone();
            Family::of(*address) == *family
                && (*length == 0
                    || network.is_some_and(|it| endpoints.any(|one| has(it, one.ip()))))
        })
    };
    [Family::V4, Family::V6].into_iter().filter(leads).collect()
}

/// The adapters by which datagrams leave past the tunnel.
struct Uplinks {
    luid: u64,
    /// Those looked for, and what was found last.
    families: Vec<(Family, Option<u32>)>,
    looked: Option<Instant>,
}

impl Uplinks {
    fn new(luid: u64, families: &[Family]) -> Self {
        Self {
            luid,
            families: families.iter().map(|family| (*family, None)).collect(),
            looked: None,
        }
    }

    /// Looks again, where it is time to.
    fn follow(&mut self, forwarder: &mut Forwarder<wintun::Adapter>) {
        let is_due = self.looked.is_none_or(|at| at.elapsed() >= BETWEEN_LOOKS);
        if !self.families.is_empty() && is_due && self.look(forwarder.ways()) {
            forwarder.device.handle_network_change(now());
        }
    }

    /// Has the sockets' datagrams leave by whatever leads to everywhere now; while nothing does,
    /// none leave, for they would come back by the tunnel. Whether anything has changed.
    fn look(&mut self, ways: &Ways) -> bool {
        let is_first = self.looked.replace(Instant::now()).is_none();
        let mut has_changed = false;
        for (family, last) in &mut self.families {
            let way = match family {
                Family::V4 => Some(&ways.v4),
                Family::V6 => ways.v6.as_ref(),
            };
            let Some(way) = way else {
                continue;
            };
            let found = routes::default_interface(*family, self.luid).unwrap_or_else(|error| {
                debug!(?family, %error, "cannot tell which adapter leads everywhere");
                None
            });
            if found == *last && !is_first {
                continue;
            }
            let left = match found {
                Some(index) => routes::leave_by(&way.socket, *family, index),
                None => Err(io::ErrorKind::NetworkUnreachable.into()),
            };
            way.shut(left.is_err());
            // What has failed is tried again at the next look.
            *last = found.filter(|_| left.is_ok());
            match left {
                Ok(()) => info!(?family, index = found, "datagrams leave by this adapter"),
                Err(error) => info!(?family, %error, "no datagram leaves for now"),
            }
            has_changed = true;
        }
        has_changed
    }
}

/// The name servers of an adapter, which the system would keep when it is gone.
struct NameServers(u128);

impl NameServers {
    /// `None` where there are none.
    fn set(network: &Network) -> io::Result<Option<Self>> {
        let Network {
            servers, search, ..
        } = network;
        if servers.is_empty() && search.is_empty() {
            return Ok(None);
        }
        let set = Self(network.guid);
        routes::set_name_servers(network.guid, servers, search)?;
        Ok(Some(set))
    }
}

impl Drop for NameServers {
    fn drop(&mut self) {
        if let Err(error) = routes::set_name_servers(self.0, &[], &[]) {
            debug!(%error, "the adapter's name servers stay with the system");
        }
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
    use super::{addressing, led};
    use taupe_config::file::{Personality, parse};
    use taupe_sys::windows::routes::Family::{self, V4, V6};

    fn routes_and_led(lines: &str, endpoint: &str) -> (Vec<String>, Vec<Family>) {
        let text = format!(
            "[Interface]\nPrivateKey = yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=\n\
             Address = 10.7.0.2/24\n{lines}\n"
        );
        let parsed = parse(text.as_bytes(), Personality::Taupe.dialect());
        let file = parsed.file.expect("a file");
        let addressing = addressing(&file);
        let routes = addressing.routes.iter();
        let routes = routes.map(|(address, length)| format!("{address}/{length}"));
        let endpoint = endpoint.parse().expect("an address");
        let led = led(&addressing, std::iter::once(endpoint));
        (routes.collect(), led)
    }

    #[test]
    fn routes_are_what_peers_carry_and_what_would_loop_is_known() {
        let peer =
            "[Peer]\nPublicKey = xTIBA5rboUvnH4htodjb6e697QjLERt1NAB4mZqp8Dg=\nAllowedIPs = ";
        let of = |networks: &str, endpoint| routes_and_led(&format!("{peer}{networks}"), endpoint);
        let everything = of("::/0, 0.0.0.0/0, 10.7.0.0/24", "192.0.2.1:9");
        assert_eq!(everything.0, ["0.0.0.0/0", "10.7.0.0/24", "::/0"]);
        assert_eq!(everything.1, [V4, V6]);
        let halves = "0.0.0.0/1, 128.0.0.0/1";
        assert_eq!(of(halves, "192.0.2.1:9").1, [V4]);
        assert_eq!(of(halves, "[2001:db8::1]:9").1, []);
        assert_eq!(of("10.7.0.0/24", "192.0.2.1:9").1, []);
        let without = of("10.0.0.0/8\nDisallowedIPs = 10.128.0.0/9", "192.0.2.1:9");
        assert_eq!(without.0, ["10.0.0.0/9"]);
        let off = format!("Table = off\n{peer}0.0.0.0/0");
        assert_eq!(routes_and_led(&off, "192.0.2.1:9"), (vec![], vec![]));
    }
}
