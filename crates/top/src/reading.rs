//! A reading: the facts about all tunnels, peers and connections at one time.
//!
//! The caller reads the system and fills in these types. Counters are totals; the model computes
//! rates from two readings.

use crate::text::Text;
use std::net::SocketAddr;
use std::time::Duration;

/// Connections of a reading that are used, at most.
pub const MAX_CONNECTIONS: usize = 16_384;

/// Peers of all tunnels that are used, at most.
pub const MAX_PEERS: usize = 16_384;

/// Facts at one time.
#[derive(Clone, Default, Debug)]
pub struct Reading {
    /// Time on a clock that nobody adjusts.
    pub clock: Duration,
    /// Time since the Unix epoch.
    pub now: Duration,
    /// All tunnels.
    pub tunnels: Vec<Tunnel>,
    /// All connections, also those outside tunnels.
    pub connections: Vec<Connection>,
    /// Sentences about facts that could not be read.
    pub remarks: Vec<Text>,
}

/// State of a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum Health {
    /// The tunnel works.
    #[default]
    Up,
    /// A part of it does not work.
    Degraded,
    /// No process carries it.
    Down,
}

/// A tunnel.
#[derive(Clone, Default, Debug)]
pub struct Tunnel {
    /// Name of its interface.
    pub name: Text,
    /// State.
    pub health: Health,
    /// Words for its mode, such as "for selected applications".
    pub mode: Text,
    /// True if its file can select applications while it is up.
    pub selects: bool,
    /// Reasons why it is not fully up.
    pub findings: Vec<Text>,
    /// Remarks that are not faults.
    pub notes: Vec<Text>,
    /// Peers.
    pub peers: Vec<Peer>,
    /// Entries of its file that select applications.
    pub rules: Vec<Rule>,
    /// Counters of dropped and refused packets, with zeros or without.
    pub drops: Vec<DropCounter>,
}

/// A peer of a tunnel.
#[derive(Clone, Default, Debug)]
pub struct Peer {
    /// Public key in base64.
    pub key: Text,
    /// Name in the file.
    pub name: Option<Text>,
    /// Address and port.
    pub endpoint: Option<Text>,
    /// Time of the latest handshake, since the Unix epoch.
    pub handshake: Option<Duration>,
    /// Encrypted bytes.
    pub bytes: Bytes,
    /// Further facts, for example about post-quantum handshakes.
    pub detail: Text,
}

/// List of a file to which an entry belongs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum List {
    /// The applications use the tunnel.
    Allowed,
    /// The applications bypass it.
    Disallowed,
}

/// An entry of a tunnel's file that selects applications.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rule {
    /// List.
    pub list: List,
    /// The entry, as in the file.
    pub entry: String,
}

/// A counter of dropped or refused packets.
#[derive(Clone, Default, Debug)]
pub struct DropCounter {
    /// Stable identifier within the tunnel.
    pub code: String,
    /// Reason in words.
    pub reason: Text,
    /// Packets since the tunnel was set up.
    pub count: u64,
}

/// Bytes in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Bytes {
    /// Received by this machine.
    pub received: u64,
    /// Sent by it.
    pub sent: u64,
}

/// Path of a connection's packets.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Path {
    /// The tunnel of this name carries them.
    Tunnel(Text),
    /// They bypass every tunnel.
    Direct,
    /// They are blocked or refused.
    Blocked,
}

/// Transport protocol of a connection.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Key of a connection, the same in every reading.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionKey {
    /// Number that the kernel gives to the socket.
    pub cookie: u64,
    /// Protocol.
    pub transport: Transport,
    /// Local address.
    pub local: SocketAddr,
    /// Remote address, if there is one.
    pub remote: Option<SocketAddr>,
}

/// A TCP connection, or the exchange of a UDP socket with one remote address.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Key.
    pub key: ConnectionKey,
    /// Path of its packets.
    pub path: Path,
    /// Application that owns it.
    pub application: Option<Application>,
    /// Payload bytes. `None` if nobody counts them.
    pub bytes: Option<Bytes>,
    /// Reason for the path.
    pub why: Text,
}

/// The owner of a connection.
#[derive(Clone, Debug)]
pub struct Application {
    /// Path of its executable, for display.
    pub shown: Text,
    /// Process.
    pub process: u32,
    /// Path of its executable as an entry of a file. `None` if no entry can be this path.
    pub entry: Option<String>,
    /// Entries that decide about it, with the names of their tunnels.
    pub rules: Vec<(Text, Rule)>,
}
