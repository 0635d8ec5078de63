//! Reasons for failed connections, in terms of no particular client protocol.

use crate::packet::IcmpProblem;

/// Reason why a connection failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ConnectFailure {
    /// No peer's AllowedIPs contain the destination, or the tunnel has no address of its family; or
    /// a router reported the network as unreachable.
    Network,
    /// No peer completes a handshake, so nothing could be sent.
    Tunnel,
    /// The name does not exist.
    NoSuchName,
    /// The name has no address to which the tunnel routes.
    NoAddress,
    /// No name server answers, or all of them refuse.
    NameServers,
    /// The configuration has no name server, or the tunnel routes to none.
    NoNameServers,
    /// A router reported the host as unreachable.
    Host,
    /// The host refused the connection.
    Refused,
    /// A router reported that the hop limit was exceeded.
    HopLimit,
    /// The host does not answer.
    Silence,
    /// A limit on connections, look-ups or ports is reached.
    Busy,
}

impl ConnectFailure {
    /// Returns the reason as a clause for messages.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Network => "the tunnel does not route this address (AllowedIPs, Address)",
            Self::Tunnel => "the tunnel's peer does not answer",
            Self::NoSuchName => "the name does not exist",
            Self::NoAddress => "the name has no address that the tunnel routes",
            Self::NameServers => "no name server of the tunnel answers",
            Self::NoNameServers => "the tunnel routes to no name server in DNS",
            Self::Host => "the host cannot be reached",
            Self::Refused => "the host refuses the connection",
            Self::HopLimit => "the path has too many hops",
            Self::Silence => "the host does not answer",
            Self::Busy => "there are too many connections",
        }
    }
}

impl ConnectFailure {
    /// Returns the failure of a connection whose SYN an ICMP error reports. A SYN is shorter than
    /// every path MTU, so [`IcmpProblem::TooLong`] is none.
    pub(crate) fn from_icmp(problem: IcmpProblem) -> Option<Self> {
        match problem {
            IcmpProblem::Network => Some(Self::Network),
            IcmpProblem::Host => Some(Self::Host),
            IcmpProblem::Refused => Some(Self::Refused),
            IcmpProblem::HopLimit => Some(Self::HopLimit),
            IcmpProblem::TooLong(_) => None,
        }
    }
}
