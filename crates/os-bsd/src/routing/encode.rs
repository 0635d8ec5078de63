//! Requests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use taupe_packet::ip::Family;

use super::{NextHop, Route, RouteChange};
use crate::{
    System,
    bytes::put,
    layout::{
        self, RTAX_DST, RTAX_GATEWAY, RTAX_IFP, RTAX_NETMASK, RTF_BLACKHOLE, RTF_GATEWAY, RTF_HOST,
        RTF_IFSCOPE, RTF_REJECT, RTF_STATIC, RTF_UP, RTM_ADD, RTM_CHANGE, RTM_DELETE, RTM_GET,
        RTM_VERSION,
    },
    socket_address::{self, ZoneError, ZonedAddress},
};

/// Error of encoding a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// Only a request to delete a route may omit the next hop.
    #[error("the route to {0} has no next hop")]
    NoNextHop(IpNet),
    /// The system does not support a gateway of this family for the destination.
    #[error("{system} does not support {gateway} as gateway of the route to {destination}")]
    GatewayFamily {
        /// The system.
        system: System,
        /// The gateway.
        gateway: IpAddr,
        /// The destination.
        destination: IpNet,
    },
    /// FreeBSD has no scoped routes.
    #[error("FreeBSD has no scoped routes; use a FIB instead")]
    Scope,
    /// macOS has no FIBs.
    #[error("macOS has one routing table only, so FIB {0} cannot be selected")]
    Fib(u32),
    /// An address cannot be encoded.
    #[error(transparent)]
    Zone(#[from] ZoneError),
}

/// Encodes a request to change the routing table. The reply has the same sequence number.
///
/// # Errors
///
/// [`EncodeError`] if the system cannot have such a route.
pub fn encode(
    system: System,
    change: RouteChange,
    route: &Route,
    sequence: i32,
) -> Result<Vec<u8>, EncodeError> {
    let destination = route.destination.trunc();
    let kind = match change {
        RouteChange::Add => RTM_ADD,
        RouteChange::Delete => RTM_DELETE,
        RouteChange::Change => RTM_CHANGE,
    };
    let mut message = RequestBuilder::new(system, kind, sequence);
    message.flags = RTF_UP | RTF_STATIC;
    message.push(
        RTAX_DST,
        &socket_address::encode(
            system,
            ZonedAddress {
                ip: destination.addr(),
                zone: route.zone,
            },
        )?,
    );
    match route.next_hop {
        NextHop::Gateway(gateway) => {
            check_families(system, gateway.ip, destination)?;
            message.flags |= RTF_GATEWAY;
            message.push(RTAX_GATEWAY, &socket_address::encode(system, gateway)?);
        }
        NextHop::Interface(index) => {
            message.push(RTAX_GATEWAY, &socket_address::encode_link(system, index));
        }
        NextHop::Blackhole | NextHop::Reject => {
            message.flags |= RTF_GATEWAY;
            message.flags |= match route.next_hop {
                NextHop::Blackhole => RTF_BLACKHOLE,
                _ => RTF_REJECT,
            };
            let loopback = loopback(Family::of(destination.addr()));
            let loopback = socket_address::encode_plain(system, loopback);
            message.push(RTAX_GATEWAY, &loopback);
        }
        NextHop::Unspecified if change == RouteChange::Delete => {}
        NextHop::Unspecified => return Err(EncodeError::NoNextHop(destination)),
    }
    if destination.prefix_len() == destination.max_prefix_len() {
        message.flags |= RTF_HOST;
    } else {
        let mask = socket_address::encode_plain(system, destination.netmask());
        message.push(RTAX_NETMASK, &mask);
    }
    message.set_scope(route.scope)?;
    Ok(message.finish())
}

/// Encodes a request for the route of packets to `destination` (`RTM_GET`), on macOS of packets
/// whose socket is bound to the interface `scope`. The reply has the same sequence number. It also
/// contains the interface and the source address.
///
/// # Errors
///
/// [`EncodeError`] if the system has no scopes, or the destination cannot be encoded.
pub fn encode_lookup(
    system: System,
    destination: ZonedAddress,
    scope: Option<u16>,
    sequence: i32,
) -> Result<Vec<u8>, EncodeError> {
    let mut message = RequestBuilder::new(system, RTM_GET, sequence);
    message.flags = RTF_UP | RTF_HOST;
    let destination = socket_address::encode(system, destination)?;
    message.push(RTAX_DST, &destination);
    // An empty address asks for the interface. Without it, the reply has no source address either.
    message.push(RTAX_IFP, &socket_address::encode_link(system, 0));
    message.set_scope(scope)?;
    Ok(message.finish())
}

fn check_families(system: System, gateway: IpAddr, destination: IpNet) -> Result<(), EncodeError> {
    let families = (Family::of(destination.addr()), Family::of(gateway));
    match (system, families) {
        (System::FreeBsd, (Family::V4, Family::V6)) => Ok(()),
        (_, (to, via)) if to == via => Ok(()),
        _ => Err(EncodeError::GatewayFamily {
            system,
            gateway,
            destination,
        }),
    }
}

/// Returns the gateway of a route that drops packets, as `route add -blackhole` wants one.
fn loopback(family: Family) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::LOCALHOST.into(),
        Family::V6 => Ipv6Addr::LOCALHOST.into(),
    }
}

/// A message under construction. Addresses are added in the order of their numbers.
struct RequestBuilder {
    system: System,
    bytes: Vec<u8>,
    flags: u32,
    addresses: u32,
}

impl RequestBuilder {
    fn new(system: System, kind: u32, sequence: i32) -> Self {
        let fields = &layout::of(system).route;
        let mut bytes = vec![0; fields.size];
        put(&mut bytes, fields.version, &[RTM_VERSION as u8]);
        put(&mut bytes, fields.kind, &[kind as u8]);
        put(&mut bytes, fields.sequence, &sequence.to_le_bytes());
        Self {
            system,
            bytes,
            flags: 0,
            addresses: 0,
        }
    }

    fn push(&mut self, number: u32, address: &[u8]) {
        self.addresses |= 1 << number;
        let room = socket_address::rounded(self.system, address.len());
        let end = self.bytes.len() + room;
        self.bytes.extend_from_slice(address);
        self.bytes.resize(end, 0);
    }

    fn set_scope(&mut self, scope: Option<u16>) -> Result<(), EncodeError> {
        let Some(index) = scope else { return Ok(()) };
        if self.system == System::FreeBsd {
            return Err(EncodeError::Scope);
        }
        let fields = &layout::of(self.system).route;
        self.flags |= RTF_IFSCOPE;
        put(&mut self.bytes, fields.index, &index.to_le_bytes());
        Ok(())
    }

    fn finish(mut self) -> Vec<u8> {
        let fields = &layout::of(self.system).route;
        let length = self.bytes.len() as u16;
        put(&mut self.bytes, fields.length, &length.to_le_bytes());
        put(&mut self.bytes, fields.flags, &self.flags.to_le_bytes());
        put(
            &mut self.bytes,
            fields.addresses,
            &self.addresses.to_le_bytes(),
        );
        self.bytes
    }
}
