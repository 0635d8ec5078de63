//! Why a connection could not be made, whatever protocol the client speaks.

/// Why there is no connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// The destination is in no peer's AllowedIPs, or of a family in which the tunnel has
    /// no address; or a router says so.
    Network,
    /// No peer answers handshakes, so that nothing has been sent.
    Tunnel,
    /// There is no such name.
    NoSuchName,
    /// The name has no address that the tunnel leads to.
    NoAddress,
    /// No name server answers, or they all refuse to.
    NameServers,
    /// The file names no name server.
    NoNameServers,
    /// A router says that there is no such host.
    Host,
    /// The host refuses.
    Refused,
    /// A router says that the way is too long.
    HopLimit,
    /// Nobody answers.
    Silence,
    /// Too many connections at once.
    Busy,
}

impl Failure {
    /// What has happened, in a sentence without its subject.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Network => "the tunnel does not lead there (AllowedIPs, Address)",
            Self::Tunnel => "the tunnel's peer does not answer",
            Self::NoSuchName => "there is no such name",
            Self::NoAddress => "the name has no address that the tunnel leads to",
            Self::NameServers => "no name server of the tunnel answers",
            Self::NoNameServers => "the tunnel's file names no DNS server",
            Self::Host => "the host cannot be reached",
            Self::Refused => "the host refuses the connection",
            Self::HopLimit => "the way is too long",
            Self::Silence => "the host does not answer",
            Self::Busy => "the proxy has too many connections",
        }
    }
}
