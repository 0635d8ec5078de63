//! The two ends of a link.

use std::net::Ipv4Addr;

/// One of the two machines of a [`Pair`](crate::pair::Pair).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that begins: it dials, and *up* is what it sends.
    Client,
    /// The other.
    Server,
}

impl Side {
    /// Both, the server first, as they are started.
    pub const BOTH: [Self; 2] = [Self::Server, Self::Client];

    /// In names of files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// The address on the link, which has the length of prefix 24.
    pub const fn outer(self) -> Ipv4Addr {
        match self {
            Self::Client => Ipv4Addr::new(192, 0, 2, 1),
            Self::Server => Ipv4Addr::new(192, 0, 2, 2),
        }
    }

    /// The address inside a tunnel, which has the length of prefix 24.
    pub const fn inner(self) -> Ipv4Addr {
        match self {
            Self::Client => Ipv4Addr::new(10, 66, 66, 1),
            Self::Server => Ipv4Addr::new(10, 66, 66, 2),
        }
    }
}

/// The interface of both machines at the link.
pub const PORT: &str = "eth0";
