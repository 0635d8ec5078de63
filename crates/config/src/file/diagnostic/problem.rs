//! Reasons why single values are refused.

/// Reasons why a text is not a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyProblem {
    /// Not 44 characters.
    Length {
        /// Its length.
        found: usize,
    },
    /// A character that base64 does not have, or not in this position.
    Character,
    /// The last digit has bits beyond the 256th.
    TrailingBits,
    /// 64 hexadecimal digits.
    Hex,
    /// The path of a file, where only the key itself is accepted.
    Path,
    /// The path of a file without `file:` before it.
    PathWithoutPrefix,
    /// The length of an ML-KEM key.
    MlKem,
}

/// Reasons why a text is not an address or network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressProblem {
    /// Not an address.
    Address,
    /// The length is not a number, or too large.
    Length {
        /// The largest length: 32 (IPv4) or 128 (IPv6).
        max: u8,
    },
    /// A netmask such as 255.255.255.0 instead of a length.
    Mask,
    /// A leading `+` or `-`, which only `wg set` accepts.
    Change,
    /// Empty entry between two commas.
    Empty,
    /// A blank or `;` instead of a comma.
    Separator,
    /// An IPv6 scope (`%eth0`).
    Scope,
    /// A port or prefix length where only an address is expected.
    Extra,
}

/// Addresses that no host has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UnusableAddress {
    /// `0.0.0.0` or `::`.
    Unspecified,
    /// 224.0.0.0/4 or ff00::/8.
    Multicast,
    /// 255.255.255.255.
    Broadcast,
    /// 127.0.0.0/8 or ::1.
    Loopback,
    /// The first address of its network (the network address).
    Network,
    /// The last address of its IPv4 network (the broadcast address).
    SubnetBroadcast,
    /// An address with prefix length 0.
    ZeroLength,
    /// A link-local IPv6 address without an interface.
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
    /// No host before the port.
    NoHost,
    /// Neither an address nor a possible host name.
    Host,
    /// A URL, such as `https://`.
    Url,
    /// An IPv6 address and a port without brackets.
    Unbracketed,
    /// A link-local IPv6 address without its interface.
    NoScope,
}
