//! The application and the tunnel that selects it.

use super::sockets::{SocketOwner, SocketTuple};
use crate::app_matcher::AppMatcher;
use crate::conf::Conf;
use crate::explain::{self, ExplainError, Explainer, Step, files_of_tunnels, is_on_link};
use crate::flows::{self, Flow, FlowsError};
use crate::processes::{Subject, sockets_of};
use ipnet::IpNet;
use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use taupe_config::application::{AppRules, Decision};
use taupe_config::destinations::{Class, class_of, table_for_peers};
use taupe_config::file::Endpoint;
use taupe_os_linux::netlink::{Netlink, NetlinkError, SockDiag, SocketInfo};
use taupe_os_linux::packet_socket::UdpFlow;
use taupe_packet::ip::{Family, TCP, UDP};
use taupe_transparent::programs::TunnelMaps;
use taupe_transparent::state::Lock;
use taupe_transparent::uplinks::survey;

const DNS_PORT: u16 = 53;

/// UDP-Lite, and sockets of either protocol that the kernel can list.
const PROTOCOLS: [u8; 3] = [TCP, UDP, 136];

/// Reason why nothing can be proved about an application.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum TargetError {
    #[error(transparent)]
    Explain(#[from] ExplainError),
    #[error(transparent)]
    System(#[from] NetlinkError),
    #[error("{0} runs in another network namespace, to which the rules here do not apply")]
    OtherNamespace(String),
    #[error("{tunnel} does not select applications here, or is not up")]
    NoSuchTunnel { tunnel: String },
    #[error("no tunnel selects {application}")]
    NotSelected {
        application: String,
        /// Tunnels that could select it.
        tunnels: Vec<String>,
        /// A remark about a script, which runs as its interpreter.
        script: Option<String>,
    },
    #[error("{} select {application}", .tunnels.join(" and "))]
    Ambiguous {
        application: String,
        tunnels: Vec<String>,
    },
}

/// An application in a tunnel.
pub struct ProofTarget {
    /// The executable, or the process that stands for all of them.
    pub subject: Subject,
    /// The tunnel's interface.
    pub tunnel: String,
    explainer: Explainer,
    table: Vec<(IpNet, Class)>,
    addresses: Vec<IpAddr>,
}

/// The way out of this machine.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Uplinks {
    /// Interfaces by which packets can be routed out, with their indices.
    pub links: Vec<(u32, String)>,
    /// Index and address of the interface with the best IPv4 default route.
    pub v4: Option<(u32, Ipv4Addr)>,
    /// The same for IPv6.
    pub v6: Option<(u32, Ipv6Addr)>,
    /// Routers of the default routes,
    /// with the indices of their interfaces.
    pub gateways: Vec<(IpAddr, u32)>,
    /// Name servers of the system.
    pub resolvers: Vec<IpAddr>,
}

impl ProofTarget {
    /// Finds the application that a word of the command line means, and the tunnel that selects it.
    ///
    /// # Errors
    /// See [`TargetError`].
    pub fn find(word: &std::ffi::OsStr, tunnel: Option<&str>) -> Result<Self, TargetError> {
        let named = Subject::find(word).map_err(ExplainError::from)?;
        let application = named.shown_path();
        if named.is_in_other_namespace {
            return Err(TargetError::OtherNamespace(application));
        }
        let mut confs = files_of_tunnels()?;
        if let Some(tunnel) = tunnel {
            confs.retain(|conf| conf.interface.as_str() == tunnel);
            if confs.is_empty() {
                let tunnel = tunnel.to_owned();
                return Err(TargetError::NoSuchTunnel { tunnel });
            }
        }
        let tunnels = |confs: &[&Conf]| {
            let names = confs.iter().map(|conf| conf.interface.to_string());
            names.collect::<Vec<_>>()
        };
        let mut selecting = Vec::new();
        for conf in &confs {
            let explainer = Explainer::read(conf)?;
            let matcher = AppMatcher::of(conf.interface.as_str());
            let subject = selected(&named, &explainer, &matcher);
            selecting.extend(subject.map(|subject| (conf, explainer, subject)));
        }
        match selecting.len() {
            0 => Err(TargetError::NotSelected {
                application,
                tunnels: tunnels(&confs.iter().collect::<Vec<_>>()),
                script: explain::script_warning(&named).map(|warning| warning.to_string()),
            }),
            1 => {
                let (conf, explainer, subject) = selecting.swap_remove(0);
                let file = &explainer.file;
                let bypass_lan = file.transparent.bypass_lan.unwrap_or(false);
                Ok(Self {
                    subject,
                    tunnel: conf.interface.to_string(),
                    table: table_for_peers(&file.peers, bypass_lan),
                    addresses: explain::addresses()?,
                    explainer,
                })
            }
            _ => {
                let confs: Vec<_> = selecting.iter().map(|(conf, ..)| *conf).collect();
                let tunnels = tunnels(&confs);
                Err(TargetError::Ambiguous {
                    application,
                    tunnels,
                })
            }
        }
    }

    /// Returns the decisions about the application, as `taupe explain` prints them.
    #[must_use]
    pub fn steps(&self) -> Vec<Step> {
        let steps = self
            .explainer
            .steps(Some(&self.subject), None, &self.addresses);
        steps.into_iter().collect()
    }

    /// Checks that the tunnel selects a process: by the kernel's decision if the tunnel is up.
    #[must_use]
    pub fn selects(&self, process: u32) -> bool {
        let rules = self.rules();
        // The rules in the kernel may have changed since.
        let matcher = AppMatcher::of(&self.tunnel);
        Subject::of(process)
            .is_some_and(|one| matcher.decide(rules, &one).decision == Decision::Tunnel)
    }

    /// Returns the rules about applications.
    pub(super) fn rules(&self) -> &AppRules {
        &self.explainer.file.transparent.apps
    }

    /// Returns the flows of these processes.
    ///
    /// # Errors
    /// See [`FlowsError`].
    pub fn flows(&self, processes: &[u32]) -> Result<Vec<Flow>, FlowsError> {
        let mut all = flows::look(None, &mut |_| {})?.flows;
        all.retain(|flow| flow.pid.is_some_and(|pid| processes.contains(&pid)));
        Ok(all)
    }

    /// Returns all sockets of this network namespace. Those of the processes belong to the
    /// application.
    ///
    /// # Errors
    /// The sockets cannot be listed.
    pub fn sockets(&self, processes: &[u32]) -> Result<Vec<SocketTuple>, NetlinkError> {
        let own: HashSet<u64> = processes.iter().flat_map(|id| sockets_of(*id)).collect();
        let mut kernel = SockDiag::open()?;
        let mut sockets = Vec::new();
        for protocol in PROTOCOLS {
            for family in Family::ALL {
                match kernel.sockets(protocol, family) {
                    // The kernel cannot list this protocol.
                    Err(error) if error.source.kind() == std::io::ErrorKind::NotFound => {}
                    listed => {
                        // A socket that its process has closed has no owner any more, and may still
                        // send. An earlier sample may have its owner.
                        let open = listed?.into_iter().filter(|socket| socket.inode != 0);
                        sockets.extend(open.map(|socket| tuple(&socket, &own)));
                    }
                }
            }
        }
        Ok(sockets)
    }

    /// Checks that the file lets packets to a destination bypass the tunnel, while the tunnel is up.
    #[must_use]
    pub fn bypasses(&self, destination: SocketAddr) -> bool {
        let address = destination.ip().to_canonical();
        // DNS queries go to the tunnel's servers, whatever the destination.
        is_on_link(address)
            || destination.port() != DNS_PORT && class_of(&self.table, address) == Class::Direct
    }

    /// Returns whether the tunnel is up, and its kill switch.
    ///
    /// # Errors
    /// The state in the kernel cannot be read.
    pub fn state(&self) -> Result<(bool, Lock), TargetError> {
        let maps = TunnelMaps::open(&self.tunnel).map_err(ExplainError::from)?;
        Ok(maps.map_or((false, Lock::Off), |maps| (maps.is_up(), maps.lock())))
    }

    /// Returns the UDP flows between the device and its peers.
    #[must_use]
    pub fn outer_flows(&self) -> Vec<UdpFlow> {
        let Ok(device) = taupe_client::read(&self.tunnel) else {
            return Vec::new();
        };
        let endpoints = device.status.peers.iter().filter_map(|peer| peer.endpoint);
        let flow = |remote: SocketAddr| UdpFlow {
            local_port: device.listen_port,
            remote: SocketAddr::new(remote.ip().to_canonical(), remote.port()),
        };
        endpoints.map(flow).collect()
    }

    /// Returns the peers' endpoints: the device's, or those in the file if it does not run.
    #[must_use]
    pub fn endpoints(&self) -> Vec<SocketAddr> {
        let flows = self.outer_flows();
        if !flows.is_empty() {
            return flows.into_iter().map(|flow| flow.remote).collect();
        }
        let peers = self.explainer.file.peers.iter();
        let endpoints = peers.filter_map(|peer| match &peer.endpoint {
            Some(Endpoint::Address(address)) => Some(*address),
            _ => None,
        });
        endpoints.collect()
    }

    /// Returns the source addresses that packets of this machine can have: its own, and those in the
    /// file.
    #[must_use]
    pub fn local_addresses(&self) -> Vec<IpAddr> {
        let own = explain::addresses().unwrap_or_default();
        let of_file = self.explainer.file.interface.addresses.iter();
        own.into_iter().chain(of_file.map(IpNet::addr)).collect()
    }

    /// Checks that the system has a route to a destination.
    #[must_use]
    pub fn has_route(&self, destination: SocketAddr) -> bool {
        // Each link has a route to its own addresses.
        let is_on_link = matches!(destination, SocketAddr::V6(to) if to.scope_id() != 0);
        let route = || Netlink::open()?.route_to(destination.ip(), 0);
        is_on_link || route().is_ok()
    }

    /// Returns the ways out of this machine.
    ///
    /// # Errors
    /// The system cannot be asked.
    pub fn uplinks(&self) -> Result<Uplinks, NetlinkError> {
        let mut netlink = Netlink::open()?;
        let own = taupe_os_linux::interface::index(&self.tunnel).unwrap_or_default();
        let (links, addresses) = (netlink.links()?, netlink.addresses()?);
        let routes = netlink.routes()?;
        let found = survey(&links, &addresses, &routes, own);
        let defaults = routes
            .iter()
            .filter(|route| route.destination.prefix_len() == 0);
        let mut gateways: Vec<_> = defaults
            .filter_map(|route| Some((route.gateway?, route.interface?)))
            .collect();
        gateways.dedup();
        let text = std::fs::read_to_string(crate::dns::RESOLV_CONF).unwrap_or_default();
        let guarded = found.guarded.iter();
        let used: HashMap<u32, ()> = addresses.iter().map(|one| (one.interface, ())).collect();
        Ok(Uplinks {
            links: guarded
                .filter(|link| link.has_default_route || used.contains_key(&link.index))
                .map(|link| (link.index, link.name.clone()))
                .collect(),
            v4: found.main_v4.map(|main| (main.link, main.address)),
            v6: found.main_v6.map(|main| (main.link, main.address)),
            gateways,
            resolvers: crate::dns::nameservers(&text),
        })
    }
}

/// Describes a socket. `own` are the inodes of the application's sockets.
fn tuple(socket: &SocketInfo, own: &HashSet<u64>) -> SocketTuple {
    let [local, remote] = flows::endpoints(&socket.id);
    SocketTuple {
        protocol: socket.id.protocol,
        local,
        remote: Some(remote).filter(|remote| remote.port() != 0),
        owner: match own.contains(&socket.inode.into()) {
            true => SocketOwner::Application,
            false => SocketOwner::Other,
        },
    }
}

/// Returns the process or executable by which the tunnel selects an application. Rules about users and
/// control groups need a process.
fn selected(named: &Subject, explainer: &Explainer, matcher: &AppMatcher) -> Option<Subject> {
    let rules = &explainer.file.transparent.apps;
    let is_selected = |one: &Subject| matcher.decide(rules, one).decision == Decision::Tunnel;
    if named.id.is_some() {
        return Some(named.clone()).filter(is_selected);
    }
    let running = Subject::all()
        .into_iter()
        .filter(|one| one.path == named.path);
    running.chain([named.clone()]).find(is_selected)
}
