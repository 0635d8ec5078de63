//! Reasons why single values are refused.

/// Reasons why a text is not a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyProblem {
    /// Not 44 characters.
    Length {
        /// The number of its characters.
        found: usize,
    },
    /// A character that base64 does not have, or not here.
    Character,
    /// The last digit says more than 256 bits.
    TrailingBits,
    /// 64 hexadecimal digits.
    Hex,
    /// The path of a file.
    Path,
    /// The length of an ML-KEM key.
    MlKem,
}

/// Reasons why a text is not an address or network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressProblem {
    /// Not an address.
    Address,
    /// The length is no number, or too great.
    Length {
        /// The greatest length: 32 (IPv4) or 128 (IPv6).
        max: u8,
    },
    /// A mask such as 255.255.255.0 instead of a length.
    Mask,
    /// `+` or `-` in front, which only `wg set` takes.
    Change,
    /// Nothing between two commas.
    Empty,
    /// A blank or `;` where a comma separates.
    Separator,
    /// An IPv6 scope (`%eth0`).
    Scope,
    /// A port or a length where an address alone is expected.
    Extra,
}

/// Addresses that no host has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// `0.0.0.0` or `::`.
    Unspecified,
    /// 224.0.0.0/4 or ff00::/8.
    Multicast,
    /// 255.255.255.255.
    Broadcast,
    /// 127.0.0.0/8 or ::1.
    Loopback,
    /// The first address of its network, which is the network's own.
    Network,
    /// The last address of its IPv4 network.
    SubnetBroadcast,
    /// An address whose network, of length 0, is everything.
    Everything,
    /// A link-local IPv6 address, which means nothing without an interface.
    NoScope,
}

/// Reasons why a text is not an endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndpointProblem {
    /// No `:port` at the end.
    NoPort,
    /// A `[` without `]`.
    NoBracket,
    /// The port is not a number from 1 to 65535.
    Port,
    /// The port is 0.
    PortZero,
    /// Nothing before the port.
    NoHost,
    /// Neither an address nor a possible name.
    Host,
    /// `https://` or the like.
    Url,
    /// An IPv6 address and a port without brackets.
    Unbracketed,
    /// A link-local IPv6 address without its interface.
    NoScope,
}
