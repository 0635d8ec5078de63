//! Replies, notifications and lines of listings.

use std::{iter::FusedIterator, net::IpAddr};

use ipnet::IpNet;

use super::{
    Interface, InterfaceAddress, Message, NextHop, Request, Route, RouteChange, RouteEntry,
};
use crate::{
    System,
    bytes::{text, u8_at, u16_at, u32_at},
    layout::{
        self, AnnouncementHeader, IFAN_ARRIVAL, IFAN_DEPARTURE, IFNAMSIZ, IFT_ETHER, RTAX_BRD,
        RTAX_DST, RTAX_GATEWAY, RTAX_IFA, RTAX_IFP, RTAX_MAX, RTAX_NETMASK, RTF_BLACKHOLE,
        RTF_HOST, RTF_IFSCOPE, RTF_REJECT, RTM_ADD, RTM_CHANGE, RTM_DELADDR, RTM_DELETE, RTM_GET,
        RTM_IFANNOUNCE, RTM_IFINFO, RTM_NEWADDR, RTM_VERSION,
    },
    socket_address,
};

/// Error of decoding. It ends the decoding of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A message's length contradicts its type or the buffer.
    #[error("routing message at byte {offset} has length {length}; {available} bytes are left")]
    Length {
        /// The message's offset in the buffer.
        offset: usize,
        /// The length in its header.
        length: usize,
        /// The bytes from there to the end of the buffer.
        available: usize,
    },
    /// A message has another format than the one that this crate knows.
    #[error("routing message at byte {offset} has version {version}, not 5")]
    Version {
        /// The message's offset in the buffer.
        offset: usize,
        /// The version in its header.
        version: u8,
    },
    /// A message's addresses do not fit into it.
    #[error("an address exceeds the routing message at byte {offset}")]
    Address {
        /// The message's offset in the buffer.
        offset: usize,
    },
}

/// Decodes the messages of a buffer, in order: one read of a routing socket, or a listing by
/// `sysctl`. Messages of unknown type are skipped by their length, as [`Message::Other`].
#[must_use]
pub const fn messages(system: System, buffer: &[u8]) -> Messages<'_> {
    Messages {
        system,
        buffer,
        offset: 0,
    }
}

/// Iterator over the messages of a buffer. It ends after the first error.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    system: System,
    buffer: &'a [u8],
    offset: usize,
}

impl Iterator for Messages<'_> {
    type Item = Result<Message, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let offset = self.offset;
        let rest = self.buffer.get(offset..).filter(|rest| !rest.is_empty())?;
        let result = split(self.system, rest, offset).and_then(|bytes| {
            let message = decode(self.system, bytes, offset)?;
            Ok((offset + bytes.len(), message))
        });
        self.offset = match &result {
            Ok((end, _)) => *end,
            Err(_) => self.buffer.len(),
        };
        Some(result.map(|(_, message)| message))
    }
}

impl FusedIterator for Messages<'_> {}

/// Returns the first message of `rest`, which contains at least the beginning that all messages
/// have in common: length, version and type.
fn split(system: System, rest: &[u8], offset: usize) -> Result<&[u8], DecodeError> {
    let fields = &layout::of(system).route;
    let length = u16_at(rest, fields.length).map_or(0, usize::from);
    let message = rest.get(..length).filter(|_| length > fields.kind);
    let message = message.ok_or(DecodeError::Length {
        offset,
        length,
        available: rest.len(),
    })?;
    match u8_at(message, fields.version) {
        Some(version) if u32::from(version) != RTM_VERSION => {
            Err(DecodeError::Version { offset, version })
        }
        _ => Ok(message),
    }
}

fn decode(system: System, message: &[u8], offset: usize) -> Result<Message, DecodeError> {
    let layout = layout::of(system);
    let kind = u8_at(message, layout.route.kind).unwrap_or(0);
    let too_short = DecodeError::Length {
        offset,
        length: message.len(),
        available: message.len(),
    };
    let addresses = |mask: usize, header: usize| {
        let mask = u32_at(message, mask).ok_or(too_short)?;
        let bytes = message.get(header..).ok_or(too_short)?;
        Addresses::split(system, mask, bytes).ok_or(DecodeError::Address { offset })
    };
    let change = match u32::from(kind) {
        RTM_ADD => RouteChange::Add,
        RTM_DELETE => RouteChange::Delete,
        RTM_CHANGE => RouteChange::Change,
        RTM_GET => {
            let addresses = addresses(layout.route.addresses, layout.route.size)?;
            let request = request(system, message).ok_or(too_short)?;
            return Ok(match route(system, message, &addresses) {
                Some(entry) => Message::Route(entry, request),
                None => Message::OtherRoute(request),
            });
        }
        RTM_IFINFO => {
            let addresses = addresses(layout.interface.addresses, layout.interface.size)?;
            return interface(system, message, &addresses).ok_or(too_short);
        }
        RTM_NEWADDR | RTM_DELADDR => {
            let addresses = addresses(layout.address.addresses, layout.address.size)?;
            let index = u16_at(message, layout.address.index).ok_or(too_short)?;
            return Ok(match interface_address(system, index, &addresses) {
                Some(address) if u32::from(kind) == RTM_NEWADDR => Message::AddressAdded(address),
                Some(address) => Message::AddressRemoved(address),
                None => Message::Other(kind),
            });
        }
        RTM_IFANNOUNCE => {
            return match &layout.announcement {
                Some(fields) => announcement(fields, message).ok_or(too_short),
                None => Ok(Message::Other(kind)),
            };
        }
        _ => return Ok(Message::Other(kind)),
    };
    let addresses = addresses(layout.route.addresses, layout.route.size)?;
    let request = request(system, message).ok_or(too_short)?;
    Ok(match route(system, message, &addresses) {
        Some(entry) => Message::RouteChanged(change, entry, request),
        None => Message::OtherRoute(request),
    })
}

/// The addresses of a message, each as long as its length field says. An address of length 0 still
/// has its first two bytes: macOS lists `::/0` with such a destination, whose family is valid
/// (recorded in golang.org/x/net, `route/address_darwin_test.go`).
struct Addresses<'a>([Option<&'a [u8]>; RTAX_MAX as usize]);

impl<'a> Addresses<'a> {
    /// Returns `None` if an address exceeds the message. Bits of `mask` that are unknown are those
    /// of addresses behind the known ones.
    fn split(system: System, mask: u32, mut bytes: &'a [u8]) -> Option<Self> {
        let mut all = [None; RTAX_MAX as usize];
        for (number, place) in all.iter_mut().enumerate() {
            if mask & 1 << number == 0 {
                continue;
            }
            let length = usize::from(*bytes.first()?);
            let address = bytes.get(..length)?;
            *place = match length {
                0 => bytes.get(..2),
                _ => Some(address),
            };
            // The padding of the last one may be missing.
            let next = socket_address::rounded(system, length).min(bytes.len());
            bytes = bytes.get(next..)?;
        }
        Some(Self(all))
    }

    fn at(&self, number: u32) -> Option<&'a [u8]> {
        *self.0.get(number as usize)?
    }
}

fn request(system: System, message: &[u8]) -> Option<Request> {
    let fields = &layout::of(system).route;
    let number = |offset| u32_at(message, offset).map(u32::cast_signed);
    Some(Request {
        process: number(fields.process)?,
        sequence: number(fields.sequence)?,
        error: number(fields.error)?,
    })
}

/// Returns `None` if the route is neither IPv4 nor IPv6, or its netmask is not a prefix.
fn route(system: System, message: &[u8], addresses: &Addresses<'_>) -> Option<RouteEntry> {
    let fields = &layout::of(system).route;
    let flags = u32_at(message, fields.flags)?;
    let interface = u16_at(message, fields.index)?;
    let to = addresses.at(RTAX_DST)?;
    let family = socket_address::family(system, to)?;
    let destination = socket_address::decode(system, to)?;
    let host = IpNet::from(destination.ip);
    let prefix = match addresses.at(RTAX_NETMASK) {
        Some(mask) if flags & RTF_HOST == 0 => socket_address::decode_mask(system, family, mask)?,
        _ => host.max_prefix_len(),
    };
    let next_hop = match addresses.at(RTAX_GATEWAY) {
        _ if flags & RTF_BLACKHOLE != 0 => NextHop::Blackhole,
        _ if flags & RTF_REJECT != 0 => NextHop::Reject,
        None => NextHop::Unspecified,
        Some(bytes) => match socket_address::decode(system, bytes) {
            Some(gateway) => NextHop::Gateway(gateway),
            None => match socket_address::decode_link(system, bytes)?.index {
                0 => NextHop::Interface(interface),
                index => NextHop::Interface(index),
            },
        },
    };
    let is_scoped = system == System::MacOs && flags & RTF_IFSCOPE != 0;
    let source = addresses.at(RTAX_IFA);
    Some(RouteEntry {
        route: Route {
            destination: IpNet::new(destination.ip, prefix).ok()?.trunc(),
            zone: destination.zone,
            next_hop,
            scope: is_scoped.then_some(interface),
        },
        interface,
        source: source.and_then(|bytes| socket_address::decode(system, bytes)),
        mtu: u32_at(message, fields.mtu).filter(|&mtu| mtu != 0),
        flags,
    })
}

fn interface(system: System, message: &[u8], addresses: &Addresses<'_>) -> Option<Message> {
    let fields = &layout::of(system).interface;
    let index = u16_at(message, fields.index)?;
    if index == 0 {
        return Some(Message::Other(RTM_IFINFO as u8));
    }
    let link = addresses.at(RTAX_IFP);
    let link = link.and_then(|bytes| socket_address::decode_link(system, bytes));
    let ethernet = link
        .as_ref()
        .filter(|link| u32::from(link.medium) == IFT_ETHER)
        .and_then(|link| link.address.as_slice().try_into().ok());
    let name = link.map(|link| link.name).filter(|name| !name.is_empty());
    Some(Message::Interface(Interface {
        index,
        name,
        mtu: u32_at(message, fields.mtu)?,
        medium: u8_at(message, fields.medium)?,
        ethernet,
        flags: u32_at(message, fields.flags)?,
    }))
}

fn interface_address(
    system: System,
    interface: u16,
    addresses: &Addresses<'_>,
) -> Option<InterfaceAddress> {
    let bytes = addresses.at(RTAX_IFA)?;
    let ip: IpAddr = socket_address::decode(system, bytes)?.ip;
    let prefix = match addresses.at(RTAX_NETMASK) {
        Some(mask) => {
            socket_address::decode_mask(system, socket_address::family(system, bytes)?, mask)?
        }
        None => IpNet::from(ip).max_prefix_len(),
    };
    let peer = addresses.at(RTAX_BRD);
    let peer = peer.and_then(|bytes| socket_address::decode(system, bytes));
    Some(InterfaceAddress {
        interface,
        network: IpNet::new(ip, prefix).ok()?,
        peer: peer.map(|peer| peer.ip),
    })
}

fn announcement(fields: &AnnouncementHeader, message: &[u8]) -> Option<Message> {
    let index = u16_at(message, fields.index)?;
    let name = message.get(fields.name..)?.get(..IFNAMSIZ as usize)?;
    let name = text(name);
    Some(match u32::from(u16_at(message, fields.event)?) {
        IFAN_ARRIVAL => Message::InterfaceArrived(index, name),
        IFAN_DEPARTURE => Message::InterfaceDeparted(index, name),
        _ => Message::Other(RTM_IFANNOUNCE as u8),
    })
}
