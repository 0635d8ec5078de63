//! The two ends of a link.

use std::net::Ipv4Addr;

/// One of the two machines of a [`Pair`](crate::pair::Pair).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The machine that initiates. *Up* is the direction in which it sends.
    Client,
    /// The machine that responds.
    Server,
}

impl Side {
    /// Both sides in the order in which they are started.
    pub const BOTH: [Self; 2] = [Self::Server, Self::Client];

    /// Returns the name of the side for files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Server => "server",
        }
    }

    /// Returns the address on the link; its prefix length is 24.
    pub const fn outer(self) -> Ipv4Addr {
        match self {
            Self::Client => Ipv4Addr::new(192, 0, 2, 1),
            Self::Server => Ipv4Addr::new(192, 0, 2, 2),
        }
    }

    /// Returns the address inside the tunnel; its prefix length is 24.
    pub const fn inner(self) -> Ipv4Addr {
        match self {
            Self::Client => Ipv4Addr::new(10, 66, 66, 1),
            Self::Server => Ipv4Addr::new(10, 66, 66, 2),
        }
    }
}

/// The interface of both machines on the link.
pub const PORT: &str = "eth0";
