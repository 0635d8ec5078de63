//! Configuration files of `wg-quick` and `wg setconf`, with Taupe's additional keys.
//!
//! [`parse()`] reads a file and reports all its errors at once. [`strip()`] reduces a file to the
//! part that `wg setconf` accepts. [`save`] writes the file that describes a running tunnel.
//!
//! # Files that are refused although `wg-quick` accepts them
//! Taupe accepts every file that `wg-quick` brings up, except files that cannot work as written: no
//! private key (and no hook that sets one), one key with two different values, two peers with the
//! same public key, no peer but the tunnel itself, a public key of all zeros, an address or
//! endpoint that no host can have, an MTU that the tunnel cannot carry, names of services instead
//! of port numbers.
//!
//! A value with a surprising meaning is a [`Severity::Warning`].

mod diagnostic;
mod draft;
pub mod edit;
mod fix;
mod foreign;
mod key_file;
mod keys;
mod line;
mod look_alike;
mod parse;
mod peer_name;
mod present_keys;
mod print;
mod report;
mod strip;
mod transparent;
mod value;
mod wg;

use core::fmt;
use core::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use taupe_protocol::Lanes;
use taupe_protocol::key::{PqPrivateKey, PqPublicKey, PresharedKey, PrivateKey, PublicKey};
use taupe_protocol::update::{EndpointName, PostQuantum};

use taupe_uapi::networks;

pub use diagnostic::{
    AddressProblem, Diagnostic, DiagnosticKind, EndpointProblem, KeyProblem, Severity,
    UnusableAddress,
};
pub use key_file::{KeyFile, KeyFileProblem, KeyFiles, MAX_KEY_FILE};
pub use keys::{ForeignPurpose, Key, Section};
pub use parse::{parse, parse_with, parse_without_key_files};
pub use peer_name::{MAX_PEER_NAME, PeerName};
pub use print::{Current, print, save};
pub use strip::strip;
pub use transparent::{Forwarded, KillSwitch, SystemBus, Transparent};
pub use wg::wg_message;

/// The longest file, in bytes.
pub const MAX_FILE: usize = 64 << 20;

/// The longest line without its end, in bytes: hundreds of thousands of networks.
pub const MAX_LINE: usize = 16 << 20;

/// The largest MTU of a tunnel, in bytes: the largest IP packet (65535) less WireGuard's overhead
/// of 80 (32 of its own, 8 of UDP, 40 of IPv6).
pub const MAX_MTU: u32 = 65_535 - 80;

/// The smallest MTU, in bytes, with which Linux keeps IPv6 on an interface (RFC 8200 §5).
pub const MIN_IPV6_MTU: u32 = 1280;

/// A complete, valid file.
///
/// Types that hold a key have no `Debug`, and secrets are zeroised on drop.
#[derive(Default)]
pub struct File {
    /// `[Interface]`.
    pub interface: Interface,
    /// The `[Peer]` sections in the order of the file. A peer that is the tunnel itself has neither
    /// networks nor an endpoint.
    pub peers: Vec<Peer>,
    /// Keys of transparent mode, from either section.
    pub transparent: Transparent,
}

impl File {
    /// Returns true if the tunnel carries IPv6: an address of the interface or a network of a peer.
    #[must_use]
    pub fn carries_ipv6(&self) -> bool {
        carry_ipv6(&self.interface.addresses, &self.peers)
    }
}

fn carry_ipv6(addresses: &[IpNet], peers: &[Peer]) -> bool {
    let networks = peers.iter().flat_map(|peer| &peer.allowed_ips);
    addresses.iter().any(|own| own.addr().is_ipv6())
        || networks.into_iter().any(|prefix| prefix.addr().is_ipv6())
}

/// The keys of `[Interface]`.
#[derive(Default)]
pub struct Interface {
    /// `PrivateKey`.
    pub private_key: Option<PrivateKey>,
    /// Path after `file:` if the key is in a file.
    pub private_key_file: Option<String>,
    /// `PqPrivateKey`.
    pub pq_private_key: Option<PqPrivateKey>,
    /// Path after `file:`, as [`Self::private_key_file`].
    pub pq_private_key_file: Option<String>,
    /// `ListenPort`; 0 lets the system choose.
    pub listen_port: Option<u16>,
    /// `FwMark`; 0 is off.
    pub fwmark: Option<u32>,
    /// `Address`.
    pub addresses: Vec<IpNet>,
    /// `DNS`: the servers' addresses.
    pub dns: Vec<IpAddr>,
    /// `DNS`: the search domains, which are the entries that are not addresses.
    pub dns_search: Vec<String>,
    /// `MTU` in bytes.
    pub mtu: Option<u32>,
    /// `Table`.
    pub table: Table,
    /// `PreUp`, `PostUp`, `PreDown` and `PostDown`.
    pub hooks: Hooks,
    /// `SaveConfig`.
    pub save_config: bool,
    /// `Lanes`. If it is absent, the number follows from the machine's cores.
    pub lanes: Option<Lanes>,
}

/// Routing table for the tunnel's routes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub enum Table {
    /// The main table, with policy routing for default routes.
    #[default]
    Auto,
    /// No routes are added.
    Off,
    /// The table of this number, never 0.
    Id(u32),
    /// The table of this name (`/etc/iproute2/rt_tables`).
    Name(String),
}

/// Commands for `bash`. `%i` stands for the interface's name.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Hooks {
    /// Run before the interface is created.
    pub pre_up: Vec<String>,
    /// Run when the tunnel is up.
    pub post_up: Vec<String>,
    /// Run before the tunnel is taken down.
    pub pre_down: Vec<String>,
    /// Run when the interface has been removed.
    pub post_down: Vec<String>,
}

/// The keys of a `[Peer]`.
pub struct Peer {
    /// `PublicKey`.
    pub public_key: PublicKey,
    /// `PresharedKey`; all zeros are [`PresharedKey::NONE`].
    pub preshared_key: Option<PresharedKey>,
    /// Path after `file:` if the key is in a file.
    pub preshared_key_file: Option<String>,
    /// `PqPublicKey`.
    pub pq_public_key: Option<PeerPqKey>,
    /// `PostQuantum`. If it is absent, handshakes are hybrid if there is a `pq_public_key`.
    pub post_quantum: Option<PostQuantum>,
    /// `Endpoint`.
    pub endpoint: Option<Endpoint>,
    /// `AllowedIPs`, in the order of the file, host bits cleared.
    pub allowed_ips: Vec<IpNet>,
    /// `DisallowedIPs`, likewise.
    pub disallowed_ips: Vec<IpNet>,
    /// `PersistentKeepalive` in seconds; 0 is off.
    pub persistent_keepalive: Option<u16>,
    /// `Name`, also of a comment `# Name = …` or `# friendly_name = …`.
    pub name: Option<PeerName>,
    /// Line of its `[Peer]`, counted from 1; 0 if it does not come from a file.
    pub line: usize,
}

/// A peer's ML-KEM key and its source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PeerPqKey {
    /// The key.
    pub key: PqPublicKey,
    /// Path after `file:` if the key is in a file.
    pub file: Option<String>,
}

/// Endpoint of a peer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Endpoint {
    /// An address.
    Address(SocketAddr),
    /// A name to resolve, or an IPv6 address with an interface name as scope (`fe80::1%eth0`,
    /// without brackets), which `getaddrinfo` accepts too.
    Name {
        /// The host.
        host: String,
        /// The UDP port.
        port: u16,
    },
}

/// The set of keys that a file may contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// Those of `wg-quick` and Taupe.
    Taupe,
    /// Those of `wg-quick`, and `DisallowedIPs`. The keys of applications are errors, as they are
    /// to `wg-quick`; in lines that `wg-quick` treats as comments, they are ignored.
    WgQuick,
    /// Those of `wg setconf`.
    Wg,
    /// Those of `wg setconf`, and Taupe's post-quantum keys: the input of `taupe setconf`.
    Setconf,
}

/// The program whose behaviour and messages `up` and `down` follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compatibility {
    /// Taupe's own: prevents leaks, and leaves the routes of other programs alone.
    Taupe,
    /// Exactly what `wg-quick` does.
    WgQuick,
}

impl Compatibility {
    /// Returns the set of keys that its files may contain.
    #[must_use]
    pub const fn dialect(self) -> Dialect {
        match self {
            Self::Taupe => Dialect::Taupe,
            Self::WgQuick => Dialect::WgQuick,
        }
    }
}

impl Dialect {
    /// Returns true if it configures a device only, and does not bring up a tunnel.
    fn is_device_only(self) -> bool {
        matches!(self, Self::Wg | Self::Setconf)
    }

    /// Returns true if a key's value may be `file:` and a path.
    fn has_key_files(self) -> bool {
        matches!(self, Self::Taupe | Self::Setconf)
    }

    /// Returns true if the dialect includes a key.
    fn has(self, key: Key) -> bool {
        match self {
            Self::Taupe | Self::WgQuick => true,
            Self::Wg => key.is_known_to_wg(),
            Self::Setconf => key.is_known_to_wg() || key.is_post_quantum(),
        }
    }
}

/// Result of parsing a file.
pub struct Parsed {
    /// The file; `None` if any diagnostic is an error.
    pub file: Option<File>,
    /// All diagnostics, by line and column.
    pub diagnostics: Vec<Diagnostic>,
    /// Line and column of the private key, if there is one.
    pub private_key_at: Option<(usize, usize)>,
}

impl Parsed {
    /// Adds a warning at a position.
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

    /// Warns if every user can read the file, unless the folder keeps them out; `wg-quick` does the
    /// same. If all secret keys are in separate files, only write access is reported, because the
    /// file's commands run as root. `file` and `folder` are modes as from `stat`.
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
    /// Returns true if the file itself contains a secret key.
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
    /// Returns the networks that are routed to the peer: `AllowedIPs` unchanged, or without
    /// `DisallowedIPs` as the shortest list.
    #[must_use]
    pub fn routed(&self) -> Vec<IpNet> {
        if self.disallowed_ips.is_empty() {
            self.allowed_ips.clone()
        } else {
            networks::subtract(&self.allowed_ips, &self.disallowed_ips)
        }
    }

    /// Returns the endpoint if it is given by name.
    #[must_use]
    pub fn endpoint_name(&self) -> Option<EndpointName> {
        match self.endpoint.as_ref()? {
            Endpoint::Name { host, port } => EndpointName::new(host, *port),
            Endpoint::Address(_) => None,
        }
    }
}

impl fmt::Display for Endpoint {
    /// Formats it as in a file.
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
