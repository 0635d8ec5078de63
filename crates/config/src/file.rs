//! Configuration files: what `wg-quick` and `wg setconf` read, with the keys
//! that Taupe adds.
//!
//! [`parse()`] reads a whole file and finds everything that is wrong with it at
//! once; [`strip()`] leaves of a file what `wg setconf` takes; [`save`] writes
//! the file that describes a running tunnel.
//!
//! # What is refused although `wg-quick` takes it
//! Whatever `wg-quick` brings up is accepted, apart from files that cannot
//! mean what they say: no private key (and no hook that sets one), one key
//! with two different values, two peers with one public key, no peer but the
//! tunnel itself, a public key of all zeros, an address or endpoint that no
//! host can have, an MTU that the tunnel cannot carry, names of services
//! instead of port numbers.
//!
//! What it takes in a surprising way is a [`Severity::Warning`].

mod diagnostic;
mod draft;
pub mod edit;
mod fix;
mod foreign;
mod key_file;
mod line;
mod look_alike;
mod parse;
mod print;
mod report;
mod seen;
mod strip;
mod transparent;
mod value;
mod wg;
mod word;

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use taupe_protocol::key::{PqPrivateKey, PqPublicKey, PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::update::PostQuantum;

use taupe_uapi::networks;
use taupe_uapi::prefix::Prefix;

pub use diagnostic::{
    AddressProblem, Diagnostic, DiagnosticKind, EndpointProblem, KeyProblem, Severity, Unusable,
};
pub use key_file::{KeyFile, KeyFileProblem, KeyFiles, MAX_KEY_FILE};
pub use parse::{parse, parse_with, parse_without_key_files};
pub use print::{Current, print, save};
pub use strip::strip;
pub use transparent::{Forwarded, KillSwitch, SystemBus, Transparent};
pub use wg::wg_message;
pub use word::{Foreign, Key, Section};

/// The longest file, in bytes.
pub const MAX_FILE: usize = 64 << 20;

/// The longest line, in bytes, without its end: hundreds of thousands of
/// networks.
pub const MAX_LINE: usize = 16 << 20;

/// The greatest MTU of a tunnel, in bytes: what WireGuard's 80 bytes around a
/// packet (32 of its own, 8 of UDP, 40 of IPv6) leave of the greatest IP
/// packet, which has 65535.
pub const MAX_MTU: u32 = 65_535 - 80;

/// The smallest MTU in bytes with which Linux keeps IPv6 on an interface (RFC 8200 §5).
pub const LEAST_IPV6_MTU: u32 = 1280;

/// A whole, valid file.
///
/// Nothing here that holds a key can be printed by `Debug`, and every secret is
/// zeroised on drop.
#[derive(Default)]
pub struct File {
    /// `[Interface]`.
    pub interface: Interface,
    /// `[Peer]`, in the order of the file. One that is the tunnel itself has
    /// neither networks nor an endpoint.
    pub peers: Vec<Peer>,
    /// What there is about applications, in either section.
    pub transparent: Transparent,
}

impl File {
    /// Checks whether there is IPv6 inside the tunnel: an address, or a network of a peer.
    #[must_use]
    pub fn carries_ipv6(&self) -> bool {
        carry_ipv6(&self.interface.addresses, &self.peers)
    }
}

fn carry_ipv6(addresses: &[InterfaceAddress], peers: &[Peer]) -> bool {
    let networks = peers.iter().flat_map(|peer| &peer.allowed_ips);
    addresses.iter().any(|own| own.address.is_ipv6())
        || networks
            .into_iter()
            .any(|prefix| prefix.address().is_ipv6())
}

/// What `[Interface]` says.
#[derive(Default)]
pub struct Interface {
    /// `PrivateKey`.
    pub private_key: Option<PrivateKey>,
    /// The path of the file that holds it, as it stands after `file:`, unless the key itself
    /// stands in the configuration.
    pub private_key_file: Option<String>,
    /// `PqPrivateKey`.
    pub pq_private_key: Option<PqPrivateKey>,
    /// The path of the file that holds it, as [`Self::private_key_file`].
    pub pq_private_key_file: Option<String>,
    /// `ListenPort`; 0 lets the system choose.
    pub listen_port: Option<u16>,
    /// `FwMark`; 0 is off.
    pub fwmark: Option<u32>,
    /// `Address`.
    pub addresses: Vec<InterfaceAddress>,
    /// `DNS`: the servers.
    pub dns: Vec<IpAddr>,
    /// `DNS`: what is not an address, the search domains.
    pub dns_search: Vec<String>,
    /// `MTU` in bytes.
    pub mtu: Option<u32>,
    /// `Table`.
    pub table: Table,
    /// `PreUp`, `PostUp`, `PreDown` and `PostDown`.
    pub hooks: Hooks,
    /// `SaveConfig`.
    pub save_config: bool,
}

/// An address of the tunnel's interface with its network's length.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InterfaceAddress {
    /// The address itself, host bits included.
    pub address: IpAddr,
    /// The length of its network: up to 32 (IPv4) or 128 (IPv6).
    pub length: u8,
}

/// Where the routes go.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Table {
    /// The main table, and policy routing for default routes.
    #[default]
    Auto,
    /// No routes are made.
    Off,
    /// The table of this number, never 0.
    Id(u32),
    /// The table of this name (`/etc/iproute2/rt_tables`).
    Name(String),
}

/// Commands for `bash`, each with `%i` for the interface's name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Hooks {
    /// Before the interface exists.
    pub pre_up: Vec<String>,
    /// When the tunnel is usable.
    pub post_up: Vec<String>,
    /// Before anything is undone.
    pub pre_down: Vec<String>,
    /// When the interface is gone.
    pub post_down: Vec<String>,
}

/// What a `[Peer]` says.
pub struct Peer {
    /// `PublicKey`.
    pub public_key: PublicKey,
    /// `PresharedKey`; all zeros are [`PresharedKey::NONE`].
    pub preshared_key: Option<PresharedKey>,
    /// The path of the file that holds it, as it stands after `file:`, unless the key itself
    /// stands in the configuration.
    pub preshared_key_file: Option<String>,
    /// `PqPublicKey`.
    pub pq_public_key: Option<PeerPqKey>,
    /// `PostQuantum`; without it, handshakes are hybrid where there is a `pq_public_key`.
    pub post_quantum: Option<PostQuantum>,
    /// `Endpoint`.
    pub endpoint: Option<Endpoint>,
    /// `AllowedIPs`, in the order of the file, host bits cleared.
    pub allowed_ips: Vec<Prefix>,
    /// `DisallowedIPs`, likewise.
    pub disallowed_ips: Vec<Prefix>,
    /// `PersistentKeepalive` in seconds; 0 is off.
    pub persistent_keepalive: Option<u16>,
    /// The line of its `[Peer]`, counted from 1; 0 when it is from no file.
    pub line: usize,
}

/// A peer's ML-KEM key, and where it is from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerPqKey {
    /// The key.
    pub key: PqPublicKey,
    /// The path of the file that has it, as it stands after `file:`, unless the key itself
    /// stands in the configuration.
    pub file: Option<String>,
}

/// Where a peer is reached.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Endpoint {
    /// An address.
    Address(SocketAddr),
    /// A name to look up, or an IPv6 address whose scope is an interface's
    /// name (`fe80::1%eth0`, without brackets), which `getaddrinfo` takes too.
    Name {
        /// The host.
        host: String,
        /// The UDP port.
        port: u16,
    },
}

/// Which keys there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// Those of `wg-quick` and Taupe.
    Taupe,
    /// Those of `wg-quick`, and `DisallowedIPs`. The keys of applications are an
    /// error, as they are to `wg-quick`. Lines that are comments to it stay comments.
    Quick,
    /// Those of `wg setconf` only.
    Wg,
    /// Those of `wg setconf`, and Taupe's for hybrid handshakes: what `taupe setconf` takes.
    Setconf,
}

/// Whose habits a program follows that brings tunnels up, and whose words it speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Personality {
    /// Taupe's own: nothing leaks, and what others route stays theirs.
    Taupe,
    /// Exactly what `wg-quick` does.
    WgQuick,
}

impl Personality {
    /// Which keys there are for it.
    #[must_use]
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Taupe => Dialect::Taupe,
            Self::WgQuick => Dialect::Quick,
        }
    }
}

impl Dialect {
    /// Whether it is for devices alone, and not for whoever brings a tunnel up.
    fn is_of_device(self) -> bool {
        matches!(self, Self::Wg | Self::Setconf)
    }

    /// Checks whether `file:` and a path can stand in the place of a key.
    fn has_key_files(self) -> bool {
        matches!(self, Self::Taupe | Self::Setconf)
    }

    /// Whether it has a key at all.
    fn has(self, key: Key) -> bool {
        match self {
            Self::Taupe | Self::Quick => true,
            Self::Wg => key.known_to_wg(),
            Self::Setconf => key.known_to_wg() || key.is_of_handshake(),
        }
    }
}

/// What became of a file.
pub struct Parsed {
    /// The file; `None` when any diagnostic is an error.
    pub file: Option<File>,
    /// Everything worth telling, by line and column.
    pub diagnostics: Vec<Diagnostic>,
    /// Line and column of the private key, if there is one.
    pub private_key_at: Option<(usize, usize)>,
}

impl Parsed {
    /// Warns of something at a place, among what has been found there.
    pub fn warn(&mut self, line: usize, column: usize, kind: DiagnosticKind) {
        let warning = Diagnostic {
            line,
            column,
            severity: Severity::Warning,
            kind,
        };
        let place = self
            .diagnostics
            .partition_point(|other| (other.line, other.column) < (line, column));
        self.diagnostics.insert(place, warning);
    }

    /// Warns of a file that every user can read, as `wg-quick` does, unless its
    /// folder keeps them out. A file whose secret keys are all in files of their own is only not to
    /// be written by them: its commands are run by root. Both are modes as `stat` tells them.
    pub fn check_permissions(&mut self, file: u32, folder: u32) {
        let harmful = match self.file.as_ref().is_none_or(File::has_secrets) {
            true => 0o007,
            false => 0o002,
        };
        if file & folder & harmful == 0 {
            return;
        }
        let (line, column) = self.private_key_at.unwrap_or((1, 1));
        self.warn(line, column, DiagnosticKind::WorldAccessible { mode: file });
    }
}

impl File {
    /// Checks whether a secret key stands in the file itself.
    fn has_secrets(&self) -> bool {
        let interface = &self.interface;
        let is_shared = |peer: &Peer| {
            let key = peer.preshared_key.as_ref();
            key.is_some_and(PresharedKey::is_set) && peer.preshared_key_file.is_none()
        };
        interface.private_key.is_some() && interface.private_key_file.is_none()
            || interface.pq_private_key.is_some() && interface.pq_private_key_file.is_none()
            || self.peers.iter().any(is_shared)
    }
}

impl Peer {
    /// The networks that are reached through the peer: `AllowedIPs` as they
    /// are, or without `DisallowedIPs`, then as the shortest list.
    #[must_use]
    pub fn routed(&self) -> Vec<Prefix> {
        if self.disallowed_ips.is_empty() {
            self.allowed_ips.clone()
        } else {
            networks::subtract(&self.allowed_ips, &self.disallowed_ips)
        }
    }
}

impl fmt::Display for InterfaceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl fmt::Display for Endpoint {
    /// As a file has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Name { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

#[cfg(test)]
mod tests;
