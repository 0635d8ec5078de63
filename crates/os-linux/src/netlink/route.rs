//! Routes and route lookup.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use ipnet::IpNet;
use netlink_bindings::{
    rt_route::{IterableMetrics, OpNewrouteDo, PushRouteAttrs, Request, RouteAttrs, Rtmsg},
    traits::Pusher,
    utils::{find_attr, parse_ip, parse_u16, parse_u32, push_header},
};
use serde::{Deserialize, Serialize};
use taupe_packet::ip::Family;

use super::{
    client::{Netlink, address_family, parse_family},
    error::Result,
    socket::{NetlinkSocket, RequestError, unreadable},
};

/// A route. A multipath route is listed once for each next hop.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Route {
    /// The number of its table.
    pub table: u32,
    /// The destination network, without host bits.
    pub destination: IpNet,
    /// The action.
    pub kind: RouteKind,
    /// The index of the outgoing interface.
    pub interface: Option<u32>,
    /// The next hop; of the other family in a route by RFC 8950.
    pub gateway: Option<IpAddr>,
    /// Lower is preferred. The kernel replaces 0 of an IPv6 route with 1024.
    pub metric: u32,
    /// The path's MTU in bytes, if the route sets it.
    pub mtu: Option<u32>,
    /// The creator of the route (`RTPROT_*`); `ip` uses [`Route::BOOT`].
    pub protocol: u8,
    /// The distance of the destination (`RT_SCOPE_*`); always [`Route::SCOPE_UNIVERSE`] in IPv6.
    pub scope: u8,
}

impl Route {
    /// The default table.
    pub const MAIN_TABLE: u32 = 254;
    /// The table of the host's own addresses.
    pub const LOCAL_TABLE: u32 = 255;
    /// The protocol of routes created by hand (`RTPROT_BOOT`).
    pub const BOOT: u8 = 3;
    /// Anywhere (`RT_SCOPE_UNIVERSE`).
    pub const SCOPE_UNIVERSE: u8 = 0;
    /// Directly on the link (`RT_SCOPE_LINK`).
    pub const SCOPE_LINK: u8 = 253;

    /// Returns the route that `ip route add DESTINATION dev INTERFACE table TABLE` creates.
    #[must_use]
    pub fn by_interface(destination: IpNet, interface: u32, table: u32) -> Self {
        Self {
            table,
            destination: destination.trunc(),
            kind: RouteKind::Unicast,
            interface: Some(interface),
            gateway: None,
            metric: Self::default_metric(Family::of(destination.addr())),
            mtu: None,
            protocol: Self::BOOT,
            scope: match destination {
                IpNet::V4(_) => Self::SCOPE_LINK,
                IpNet::V6(_) => Self::SCOPE_UNIVERSE,
            },
        }
    }

    /// Returns the route that `ip route add unreachable DESTINATION metric METRIC table TABLE`
    /// creates: senders get `EHOSTUNREACH`.
    #[must_use]
    pub fn unreachable(destination: IpNet, metric: u32, table: u32) -> Self {
        Self::without_interface(RouteKind::Unreachable, destination, metric, table)
    }

    /// Returns the route that `ip route add KIND DESTINATION metric METRIC table TABLE` creates,
    /// for a kind that needs no interface.
    #[must_use]
    pub fn without_interface(kind: RouteKind, destination: IpNet, metric: u32, table: u32) -> Self {
        Self {
            table,
            destination: destination.trunc(),
            kind,
            interface: None,
            gateway: None,
            metric,
            mtu: None,
            protocol: Self::BOOT,
            scope: Self::SCOPE_UNIVERSE,
        }
    }

    /// Returns the metric that the kernel gives to a route that is added without one.
    #[must_use]
    pub(crate) fn default_metric(family: Family) -> u32 {
        match family {
            Family::V4 => 0,
            Family::V6 => 1024,
        }
    }

    /// Returns the family of the destination.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.destination.addr())
    }
}

/// The action of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RouteKind {
    /// Forwards the packet.
    Unicast,
    /// Rejects the packet with `EHOSTUNREACH`.
    Unreachable,
    /// Rejects the packet with `EACCES`.
    Prohibit,
    /// Ends the lookup in this table; the following rules apply.
    Throw,
    /// Another `RTN_*`: local, broadcast, blackhole and so on.
    Other(u8),
}

/// Formats the kind as `ip` does.
impl fmt::Display for RouteKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unicast => "unicast",
            Self::Unreachable => "unreachable",
            Self::Prohibit => "prohibit",
            Self::Throw => "throw",
            Self::Other(kind) => return write!(f, "type {kind}"),
        })
    }
}

/// Packets whose route is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteQuery {
    /// The destination.
    pub destination: IpAddr,
    /// The source address; `None` lets the kernel choose one.
    pub source: Option<IpAddr>,
    /// The index of the interface, if the sender restricts the packets to one.
    pub interface: Option<u32>,
    /// The firewall mark.
    pub mark: u32,
    /// The destination port, if the packets are UDP datagrams (Linux 4.18; ignored before).
    pub udp_port: Option<u16>,
}

impl RouteQuery {
    /// Returns a query for packets to `destination` with the firewall mark `mark`.
    #[must_use]
    pub fn to(destination: IpAddr, mark: u32) -> Self {
        Self {
            destination,
            source: None,
            interface: None,
            mark,
            udp_port: None,
        }
    }

    /// Returns a query for datagrams that a UDP socket with this mark sends to `remote`.
    #[must_use]
    pub fn of_datagrams(remote: SocketAddr, mark: u32) -> Self {
        // As in the kernel, the scope matters only if the address needs one.
        let scope = match remote {
            SocketAddr::V6(remote) if remote.ip().is_unicast_link_local() => remote.scope_id(),
            _ => 0,
        };
        Self {
            interface: (scope != 0).then_some(scope),
            udp_port: Some(remote.port()),
            ..Self::to(remote.ip(), mark)
        }
    }
}

/// Result of a route lookup.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RouteLookup {
    /// The index of the outgoing interface.
    pub interface: u32,
    /// The path's MTU in bytes, if the route sets it or the kernel has learned it; otherwise the
    /// interface's MTU applies.
    pub mtu: Option<u32>,
    /// The source address.
    pub source: Option<IpAddr>,
    /// The next hop.
    pub gateway: Option<IpAddr>,
    /// True if the destination is an address of this machine.
    pub is_local: bool,
}

impl Netlink {
    /// Returns the routes of all tables and both families.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn routes(&mut self) -> Result<Vec<Route>> {
        let mut routes = Vec::new();
        for family in Family::ALL {
            let mut header = Rtmsg::new();
            header.rtm_family = address_family(family);
            let request = Request::new().op_getroute_dump(&header);
            let read = |body: &[u8], all: &mut Vec<Route>| {
                // A kernel without IPv6 lists IPv4 twice.
                all.extend(parse(body).filter(|route| route.family() == family));
            };
            let listed = self.rtnetlink.dump(&request, read);
            routes.extend(listed.map_err(|error| error.context("list the routes"))?);
        }
        Ok(routes)
    }

    /// Adds a route, as `ip route add` does.
    ///
    /// # Errors
    ///
    /// The kernel's: `EEXIST` also if a route exists that differs only in its interface or next
    /// hop.
    pub fn add_route(&mut self, route: &Route) -> Result<()> {
        let mut request = Request::new()
            .set_create()
            .set_excl()
            .op_newroute_do(&header(route));
        push(request.encode(), route);
        self.rtnetlink
            .request(&request, |_| {})
            .map_err(|error| error.context(format!("add {}", self.name_of(route))))
    }

    /// Removes a route. As with `ip route del`, an IPv4 route of metric 0 matches a route of any
    /// metric.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn remove_route(&mut self, route: &Route) -> Result<()> {
        let mut request = Request::new().op_delroute_do(&header(route));
        push(request.encode(), route);
        self.rtnetlink
            .request(&request, |_| {})
            .map_err(|error| error.context(format!("remove {}", self.name_of(route))))
    }

    /// Looks up the route of packets to `destination` with the firewall mark `mark`, as `ip route
    /// get` does.
    ///
    /// # Errors
    ///
    /// The kernel's: `ENETUNREACH` or `EHOSTUNREACH` if there is no route.
    pub fn route_to(&mut self, destination: IpAddr, mark: u32) -> Result<RouteLookup> {
        let query = RouteQuery::to(destination, mark);
        let found = lookup(&mut self.rtnetlink, &query);
        found.map_err(|error| error.context(format!("find the {query}")))
    }

    fn name_of(&self, route: &Route) -> String {
        let kind = match route.kind {
            RouteKind::Unicast => String::new(),
            kind => format!("{kind} "),
        };
        let mut name = format!("the {kind}route {}", route.destination);
        if let Some(gateway) = route.gateway {
            name += &format!(" via {gateway}");
        }
        if let Some(interface) = route.interface {
            name += &format!(" by {}", self.rtnetlink.interface_name(interface));
        }
        name += &format!(" in table {}", route.table);
        name
    }
}

/// Formats the query as the route that it asks for.
impl fmt::Display for RouteQuery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "route to {}", self.destination)?;
        if let Some(source) = self.source {
            write!(f, " from {source}")?;
        }
        match self.mark {
            0 => Ok(()),
            mark => write!(f, " with the mark {mark:#x}"),
        }
    }
}

/// Looks a route up.
pub(crate) fn lookup(
    socket: &mut NetlinkSocket,
    query: &RouteQuery,
) -> std::result::Result<RouteLookup, RequestError> {
    let RouteQuery {
        destination,
        source,
        interface,
        mark,
        udp_port,
    } = *query;
    let mut header = Rtmsg::new();
    header.rtm_family = address_family(Family::of(destination));
    header.rtm_dst_len = IpNet::from(destination).prefix_len();
    header.rtm_src_len = source.map_or(0, |source| IpNet::from(source).prefix_len());
    let mut request = Request::new().op_getroute_do(&header);
    let mut attributes = request.encode().push_dst(destination);
    if let Some(source) = source {
        attributes = attributes.push_src(source);
    }
    if let Some(interface) = interface {
        attributes = attributes.push_oif(interface);
    }
    if mark != 0 {
        attributes = attributes.push_mark(mark);
    }
    if let Some(port) = udp_port {
        attributes = attributes
            .push_ip_proto(libc::IPPROTO_UDP as u8)
            .push_dport(port);
    }
    drop(attributes);
    let mut found = None;
    socket.request(&request, |body| found = parse_lookup(body))?;
    found.ok_or_else(unreadable)
}

pub(super) fn header(route: &Route) -> Rtmsg {
    let mut header = Rtmsg::new();
    header.rtm_family = address_family(route.family());
    header.rtm_dst_len = route.destination.prefix_len();
    // The attribute, unlike this field, has enough bits for all table numbers.
    header.rtm_table = libc::RT_TABLE_UNSPEC;
    header.rtm_protocol = route.protocol;
    header.rtm_scope = route.scope;
    header.rtm_type = match route.kind {
        RouteKind::Unicast => libc::RTN_UNICAST,
        RouteKind::Unreachable => libc::RTN_UNREACHABLE,
        RouteKind::Prohibit => libc::RTN_PROHIBIT,
        RouteKind::Throw => libc::RTN_THROW,
        RouteKind::Other(kind) => kind,
    };
    header
}

pub(super) fn push(mut attributes: PushRouteAttrs<&mut Vec<u8>>, route: &Route) {
    attributes = attributes
        .push_dst(route.destination.addr())
        .push_table(route.table);
    if let Some(interface) = route.interface {
        attributes = attributes.push_oif(interface);
    }
    attributes = match route.gateway {
        Some(gateway) if Family::of(gateway) == route.family() => attributes.push_gateway(gateway),
        Some(gateway) => push_via(attributes, gateway),
        None => attributes,
    };
    // Sent even if it is the default: otherwise the kernel would remove a route of any metric.
    let metric = match route.metric {
        0 => Route::default_metric(route.family()),
        metric => metric,
    };
    if metric != 0 {
        attributes = attributes.push_priority(metric);
    }
    if let Some(mtu) = route.mtu {
        attributes.nested_metrics().push_mtu(mtu);
    }
}

/// Appends a gateway of another family (`struct rtvia`).
fn push_via(
    mut attributes: PushRouteAttrs<&mut Vec<u8>>,
    gateway: IpAddr,
) -> PushRouteAttrs<&mut Vec<u8>> {
    let octets = match gateway {
        IpAddr::V4(gateway) => gateway.octets().to_vec(),
        IpAddr::V6(gateway) => gateway.octets().to_vec(),
    };
    let family = u16::from(address_family(Family::of(gateway)));
    let message = attributes.as_vec_mut();
    push_header(message, RTA_VIA, (2 + octets.len()) as u16);
    message.extend(family.to_ne_bytes());
    message.extend(octets);
    attributes
}

const RTA_GATEWAY: u16 = 5;
const RTA_VIA: u16 = 18;

/// A next hop: interface and gateway.
type Hop = (Option<u32>, Option<IpAddr>);

/// Parses a route, once for each next hop.
pub(super) fn parse(body: &[u8]) -> impl Iterator<Item = Route> {
    let (route, hops) = parse_with_hops(body).unzip();
    let hops = hops.unwrap_or_default();
    hops.into_iter().filter_map(move |(interface, gateway)| {
        Some(Route {
            interface,
            gateway,
            ..route.clone()?
        })
    })
}

fn parse_with_hops(body: &[u8]) -> Option<(Route, Vec<Hop>)> {
    let (header, attributes) = OpNewrouteDo::decode_request(body);
    let family = parse_family(header.rtm_family)?;
    // Cached results for single hosts are not configuration.
    if header.rtm_flags & libc::RTM_F_CLONED != 0 {
        return None;
    }
    let mut destination = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let kind = match header.rtm_type {
        libc::RTN_UNICAST => RouteKind::Unicast,
        libc::RTN_UNREACHABLE => RouteKind::Unreachable,
        libc::RTN_PROHIBIT => RouteKind::Prohibit,
        libc::RTN_THROW => RouteKind::Throw,
        kind => RouteKind::Other(kind),
    };
    let bytes = attributes.get_buf();
    let mut route = Route {
        table: header.rtm_table.into(),
        destination: destination.into(),
        kind,
        interface: None,
        gateway: None,
        metric: 0,
        mtu: None,
        protocol: header.rtm_protocol,
        scope: header.rtm_scope,
    };
    let mut interface = None;
    let mut several = None;
    for attribute in attributes.filter_map(std::result::Result::ok) {
        match attribute {
            RouteAttrs::Dst(ip) => destination = ip,
            RouteAttrs::Table(table) => route.table = table,
            RouteAttrs::Priority(metric) => route.metric = metric,
            RouteAttrs::Oif(index) => interface = Some(index),
            RouteAttrs::Metrics(metrics) => route.mtu = mtu(&metrics),
            RouteAttrs::Multipath(bytes) => several = Some(hops(bytes)),
            _ => {}
        }
    }
    route.destination = IpNet::new(destination, header.rtm_dst_len).ok()?;
    (route.family() == family).then_some(())?;
    let hops = match (kind, several) {
        // In IPv6 these have the loopback interface.
        (RouteKind::Unreachable | RouteKind::Prohibit | RouteKind::Throw, _) => vec![(None, None)],
        (_, Some(hops)) => hops,
        (_, None) => vec![(interface, gateway(bytes))],
    };
    Some((route, hops))
}

/// Parses the next hops of a multipath route (`struct rtnexthop`).
fn hops(mut bytes: &[u8]) -> Vec<Hop> {
    const HEADER: usize = 8;
    let mut hops = Vec::new();
    while let Some(length) = parse_u16(bytes)
        && let Some(hop) = bytes.get(..usize::from(length))
        && let Some((header, attributes)) = hop.split_first_chunk::<HEADER>()
    {
        hops.push((parse_u32(&header[4..]), gateway(attributes)));
        let next = usize::from(length).next_multiple_of(4).min(bytes.len());
        bytes = bytes.get(next..).unwrap_or_default();
    }
    hops
}

fn gateway(attributes: &[u8]) -> Option<IpAddr> {
    match find_attr(attributes, RTA_GATEWAY) {
        Some(gateway) => parse_ip(gateway),
        None => parse_ip(find_attr(attributes, RTA_VIA)?.get(2..)?),
    }
}

fn mtu(metrics: &IterableMetrics<'_>) -> Option<u32> {
    metrics.get_mtu().ok().filter(|&mtu| mtu != 0)
}

pub(super) fn parse_lookup(body: &[u8]) -> Option<RouteLookup> {
    let (header, attributes) = OpNewrouteDo::decode_request(body);
    Some(RouteLookup {
        interface: attributes.get_oif().ok()?,
        mtu: attributes.get_metrics().ok().as_ref().and_then(mtu),
        source: attributes.get_prefsrc().ok(),
        gateway: gateway(attributes.get_buf()),
        is_local: header.rtm_type == libc::RTN_LOCAL,
    })
}
