//! The destination of a packet, as a user writes it.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// An address, with a port if the user gives one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Destination {
    pub address: IpAddr,
    pub port: Option<u16>,
}

/// Reason why a word is not a destination.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DestinationError {
    /// A name can have several addresses, and resolvers differ in the one that they return.
    #[error(
        "it is a host name, but tunnels decide by address; write one of the addresses that `getent \
         ahosts {0}` prints, such as 198.51.100.1 or 198.51.100.1:443"
    )]
    Name(String),
    /// Neither an address nor a name.
    #[error(
        "it is not an address; write one such as 198.51.100.1, 198.51.100.1:443, 2001:db8::1 or \
         [2001:db8::1]:443"
    )]
    NotAddress,
}

impl DestinationError {
    fn of(text: &str) -> Self {
        let host = text.split_once("://").map_or(text, |(_, rest)| rest);
        let host = host.split('/').next().unwrap_or_default();
        // A word with more colons is an IPv6 address, or an attempt at one.
        let host = host
            .split_once(':')
            .map_or(host, |(name, port)| match port.contains(':') {
                true => host,
                false => name,
            });
        let is_name = host.contains(|c: char| c.is_ascii_alphabetic())
            && host
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
        match is_name {
            true => Self::Name(host.to_owned()),
            false => Self::NotAddress,
        }
    }
}

impl FromStr for Destination {
    type Err = DestinationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let alone = || {
            let address = text.trim_start_matches('[').trim_end_matches(']').parse();
            address.map(|address| Self {
                address,
                port: None,
            })
        };
        let with_port = text.parse().map(|socket: SocketAddr| Self {
            address: socket.ip(),
            port: Some(socket.port()),
        });
        let found = with_port.or_else(|_| alone());
        // An IPv4-mapped IPv6 address is treated as IPv4.
        let canonical = found.map(|Self { address, port }| Self {
            address: address.to_canonical(),
            port,
        });
        canonical.map_err(|_| DestinationError::of(text))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
}
