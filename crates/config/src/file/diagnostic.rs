//! Diagnostics about a file, each with a reason and a fix.

mod problem;

use core::fmt;

use ipnet::IpNet;
use thiserror::Error;

use super::fix::{
    access_rights, address_problem, endpoint_problem, foreign_reason, key_problem, mtu_requirement,
    other_section, same_or_other_value, unusable_reason, wg_quick_treatment, zero_key_meaning,
};
use super::keys::{ForeignPurpose, Key, Section};
use super::look_alike::{instead_of, look_alike};
use super::transparent::{MAX_APPLICATION_BYTES, MAX_APPLICATIONS};
use super::{KeyFileProblem, MAX_FILE, MAX_LINE};
use crate::application::{AppWarning, ApplicationError};
use taupe_uapi::key::PqKeyError;

pub use problem::{AddressProblem, EndpointProblem, KeyProblem, UnusableAddress};

/// A diagnostic about a file. Never repeats a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// The line, counted from 1.
    pub line: usize,
    /// The character in the line, counted from 1.
    pub column: usize,
    /// Severity: an error refuses the file.
    pub severity: Severity,
    /// The kind. Its `Display` is the reason; [`DiagnosticKind::fix`] says what to do.
    pub kind: DiagnosticKind,
}

impl fmt::Display for Diagnostic {
    /// Formats `line 3, column 9: error: reason; fix` on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            line,
            column,
            severity,
            kind,
        } = self;
        let fix = kind.fix();
        write!(f, "line {line}, column {column}: {severity}: {kind}; {fix}")
    }
}

/// Severity of a diagnostic.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// The file is accepted, though perhaps not as intended.
    Warning,
    /// The file is refused.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Kind of a diagnostic. Its `Display` is the reason, on one line and without the value.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DiagnosticKind {
    // File and encoding.
    /// The text is UTF-16, as some editors on Windows write it.
    #[error("the file is UTF-16 text; expected UTF-8")]
    Utf16,
    /// A NUL byte.
    #[error("a NUL byte: the file is not text, or it is damaged")]
    NulByte,
    /// More than [`MAX_FILE`] bytes.
    #[error("the file is longer than {} MiB", MAX_FILE >> 20)]
    FileTooLong,
    /// More than [`MAX_LINE`] bytes.
    #[error("the line is longer than {} MiB", MAX_LINE >> 20)]
    LineTooLong,
    /// Bytes that are not UTF-8, outside of a comment.
    #[error("the line is not UTF-8 text")]
    NotUtf8,
    /// A character that looks like another one.
    #[error("{} (U+{:04X}){}, often copied from a web page or word processor",
        look_alike(*.character).0, u32::from(*.character), instead_of(*.character))]
    LookAlike {
        /// The character.
        character: char,
    },

    // Lines, sections and keys.
    /// There is no `[Interface]`.
    #[error("the file has no [Interface] section")]
    NoInterface,
    /// A second `[Interface]`.
    #[error("[Interface] appears again (first in line {first}); both sections are read")]
    RepeatedInterface {
        /// Line of the first.
        first: usize,
    },
    /// An unknown section, or a header without `]`.
    #[error("{}not a section; expected only [Interface] or [Peer] on the line", quote(.name))]
    UnknownSection {
        /// The text, if it may be repeated.
        name: Option<String>,
        /// The section that was probably meant.
        meant: Option<Section>,
    },
    /// A key before the first section.
    #[error("{}before the first section", quote(.name))]
    BeforeSection {
        /// The text, if it may be repeated.
        name: Option<String>,
        /// The key, if it is known.
        key: Option<Key>,
    },
    /// Neither a section nor `key = value`.
    #[error("{}neither a section nor a line of the form Key = value", quote(.name))]
    NotKeyValue {
        /// The first word, if it may be repeated.
        name: Option<String>,
        /// The key that was probably meant.
        meant: Option<Key>,
    },
    /// A comment that begins with `;` or `//`.
    #[error("a comment begins with #, not with `{mark}'")]
    ForeignComment {
        /// The characters at its beginning.
        mark: &'static str,
    },
    /// An unknown key.
    #[error("{}not a known key", quote(.name))]
    UnknownKey {
        /// The text, if it may be repeated.
        name: Option<String>,
        /// The key that was probably meant.
        meant: Option<Key>,
    },
    /// A key that belongs into the other section.
    #[error("{key} belongs in {}, but this is {}", .key.section(), other_section(.key.section()))]
    Misplaced {
        /// The key.
        key: Key,
    },
    /// A key that `wg` does not accept.
    #[error(
        "{key} is for files that bring up a tunnel; a file for a running device cannot have it"
    )]
    NotForWg {
        /// The key.
        key: Key,
    },
    /// Keys of another program.
    #[error("{}: {}", names.join(", "), foreign_reason(*.what))]
    Foreign {
        /// The keys.
        names: Vec<&'static str>,
        /// Their purpose.
        what: ForeignPurpose,
    },
    /// A line for another program (`#@ws:`) with a key that Taupe does not know.
    #[error("{}not a key of Taupe; the line remains a comment", quote(.name))]
    Ignored {
        /// The name before `=`, if it may be repeated.
        name: Option<String>,
        /// The key that was probably meant.
        meant: Option<Key>,
    },
    /// No value after `=`.
    #[error("{key} has no value")]
    NoValue {
        /// The key.
        key: Key,
    },
    /// A second value for a key that can have only one.
    #[error("{key} is already set in line {first}, {}", same_or_other_value(*.same))]
    Repeated {
        /// The key.
        key: Key,
        /// Line of the first.
        first: usize,
        /// True if both values are the same.
        same: bool,
    },
    /// Quotation marks around a value.
    #[error("the value of {key} contains a quotation mark")]
    Quoted {
        /// The key.
        key: Key,
    },

    // Cryptographic keys.
    /// `[Interface]` has no `PrivateKey`, and no hook that could set one.
    #[error("[Interface] has no PrivateKey, which every handshake needs")]
    NoPrivateKey,
    /// A `[Peer]` has no `PublicKey`.
    #[error("this [Peer] has no PublicKey")]
    NoPublicKey,
    /// Not a key.
    #[error("the value of {key} is not a key: {}", key_problem(*.problem))]
    NotAKey {
        /// The key.
        key: Key,
        /// The problem.
        problem: KeyProblem,
    },
    /// Not an ML-KEM key.
    #[error("{key}: {problem}")]
    NotAPqKey {
        /// The key.
        key: Key,
        /// The problem.
        problem: PqKeyError,
    },
    /// A key's file cannot be read.
    #[error("the key file of {key} {problem}")]
    KeyFile {
        /// The key.
        key: Key,
        /// The problem.
        problem: KeyFileProblem,
    },
    /// A peer has an ML-KEM key, but the interface has none.
    #[error(
        "[Interface] has no PqPrivateKey, so the peer with this PqPublicKey cannot authenticate this side"
    )]
    NoPqPrivateKey,
    /// The peer's ML-KEM key belongs to the interface's seed.
    #[error("this PqPublicKey belongs to the PqPrivateKey in line {private}, not to the peer")]
    PqPublicKeyIsOwn {
        /// Line of the private key.
        private: usize,
    },
    /// Hybrid handshakes with a peer without an ML-KEM key.
    #[error(
        "without PqPublicKey, handshakes are hybrid-light: a future quantum computer cannot decrypt \
         traffic recorded today, but only X25519 authenticates the peer"
    )]
    LightHandshakes,
    /// Unknown value of `PostQuantum`.
    #[error("PostQuantum is not require, prefer or off")]
    PostQuantum,
    /// A key of all zeros.
    #[error("{key} is all zeros, which {}", zero_key_meaning(*.key))]
    ZeroKey {
        /// The key.
        key: Key,
    },
    /// Two peers with the same public key.
    #[error(
        "the peer in line {first} has the same PublicKey; this section would replace the earlier one"
    )]
    RepeatedPeer {
        /// Line of the other `PublicKey`.
        first: usize,
    },
    /// The peer's public key equals the interface's private key.
    #[error("this PublicKey equals the PrivateKey in line {private}, which must stay secret")]
    PublicKeyIsPrivate {
        /// Line of the private key.
        private: usize,
    },
    /// The peer's public key belongs to the interface's private key.
    #[error(
        "this PublicKey belongs to the PrivateKey in line {private}: the peer is this tunnel itself, and no traffic is sent to it"
    )]
    PeerIsSelf {
        /// Line of the private key.
        private: usize,
    },
    /// The preshared key equals a public key.
    #[error("this PresharedKey equals the PublicKey in line {public}, so it is not secret")]
    PresharedKeyIsPublic {
        /// Line of the public key.
        public: usize,
    },
    /// The preshared key equals the private key.
    #[error(
        "this PresharedKey equals the PrivateKey in line {private}, which the peer must not know"
    )]
    PresharedKeyIsPrivate {
        /// Line of the private key.
        private: usize,
    },

    // Numbers and words.
    /// Not a port number.
    #[error("ListenPort is not a decimal number from 0 (any free port) to 65535")]
    ListenPort,
    /// Not a packet mark.
    #[error(
        "FwMark is neither off nor a number from 0 to 4294967295 (decimal, or hexadecimal after 0x)"
    )]
    FwMark,
    /// Not a number of lanes.
    #[error("Lanes is not 1, 2, 4, 8 or 16")]
    Lanes,
    /// Not a name.
    #[error(
        "Name is longer than {} characters, or contains an invisible character or a blank other than the space",
        super::MAX_PEER_NAME
    )]
    Name,
    /// Not a keepalive interval.
    #[error("PersistentKeepalive is neither off nor a number of seconds from 0 to 65535")]
    PersistentKeepalive,
    /// Neither `true` nor `false`.
    #[error("{key} is neither true nor false")]
    NotBoolean {
        /// The key.
        key: Key,
    },
    /// Unknown value of `KillSwitch`.
    #[error("KillSwitch is not app, all or off")]
    KillSwitch,
    /// Unknown value of `Forwarded`.
    #[error("Forwarded is neither tunnel nor direct")]
    Forwarded,
    /// Unknown value of `SystemBus`.
    #[error("SystemBus is neither allow nor refuse")]
    SystemBus,
    /// Unknown value of `Children`.
    #[error("Children is neither inherit nor own")]
    Children,
    /// Not a user.
    #[error("AppsOfUser is neither a user ID (0 to 4294967294) nor a user name")]
    AppsOfUser,
    /// Not a routing table.
    #[error("Table is not auto, off, a number from 1 to 4294967295, or a name")]
    Table,
    /// Not a number of bytes.
    #[error("MTU is not a number of bytes")]
    Mtu,
    /// An MTU that is too small for IP.
    #[error("MTU {mtu} is too small: {} {min}", mtu_requirement(*.min, *.ipv6))]
    MtuTooSmall {
        /// The value.
        mtu: u32,
        /// The smallest that works.
        min: u32,
        /// True if IPv6 requires it.
        ipv6: bool,
    },
    /// An MTU that exceeds a UDP datagram.
    #[error(
        "MTU {mtu} is too large: IP packets have at most 65535 bytes, of which WireGuard needs 80"
    )]
    MtuTooLarge {
        /// The value.
        mtu: u64,
        /// The largest that works: [`MAX_MTU`](super::MAX_MTU).
        max: u32,
    },

    // Addresses.
    /// Not an address, or not a network.
    #[error("{}{}", quote(.value), address_problem(*.problem))]
    Address {
        /// The key.
        key: Key,
        /// The problem.
        problem: AddressProblem,
        /// The text, if it may be repeated.
        value: Option<String>,
    },
    /// A network with host bits set.
    #[error("{key} has bits set beyond its prefix length; it means {}", .network)]
    HostBits {
        /// The key.
        key: Key,
        /// The network without host bits.
        network: IpNet,
    },
    /// An address that cannot be used here.
    #[error("{key} is {}", unusable_reason(*.what))]
    Unusable {
        /// The key.
        key: Key,
        /// The kind of address.
        what: UnusableAddress,
    },
    /// A repeated address of the interface.
    #[error("the address is already in line {first}; an interface can have it only once")]
    RepeatedAddress {
        /// Line of the first.
        first: usize,
    },
    /// `0.0.0.0` or `::` without a prefix length.
    #[error("without a prefix length this means the single address {}, which no host has", .network)]
    SingleUnspecified {
        /// The network that it means.
        network: IpNet,
    },
    /// The same network for two peers.
    #[error("{} is also in the AllowedIPs of another peer (line {first}); the last peer gets it", .network)]
    Overlap {
        /// The network.
        network: IpNet,
        /// Line of the other.
        first: usize,
    },
    /// A peer without `AllowedIPs`.
    #[error("this [Peer] has no AllowedIPs: nothing can be sent to it, and its traffic is dropped")]
    NoAllowedIps,
    /// `DisallowedIPs` outside of all `AllowedIPs`.
    #[error("{} is in no AllowedIPs of this peer, so excluding it has no effect", .network)]
    DisallowedOutsideAllowed {
        /// The network.
        network: IpNet,
    },
    /// `DisallowedIPs` that contain all `AllowedIPs`.
    #[error("DisallowedIPs exclude all AllowedIPs of this peer: nothing can be sent to it")]
    AllDisallowed,
    /// Search domains, but no DNS server.
    #[error("DNS has a search domain but no server, which has no effect")]
    NoDnsServer,
    /// Not a search domain.
    #[error("the entry is neither the address of a DNS server nor a search domain")]
    SearchDomain,
    /// Not an endpoint.
    #[error("{}", endpoint_problem(*.problem).0)]
    Endpoint {
        /// The problem.
        problem: EndpointProblem,
    },

    // Applications.
    /// Not an application.
    #[error("{}{problem}", quote(.value))]
    Application {
        /// The problem.
        problem: ApplicationError,
        /// The text, if it may be repeated.
        value: Option<String>,
    },
    /// Too many applications in a list.
    #[error("{key} has more than {MAX_APPLICATIONS} applications or {} KiB", MAX_APPLICATION_BYTES >> 10)]
    TooManyApplications {
        /// The key.
        key: Key,
    },
    /// An application that another entry of its list includes.
    #[error("{}covered by line {first} already, so this entry has no effect", quote(.value))]
    Covered {
        /// The text, if it may be repeated.
        value: Option<String>,
        /// Line of the other entry.
        first: usize,
    },
    /// An application in both lists.
    #[error("{}also in AllowedApps (line {allowed}), which take precedence: it uses the tunnel", quote(.value))]
    AllowedWins {
        /// The text, if it may be repeated.
        value: Option<String>,
        /// Line in `AllowedApps`.
        allowed: usize,
    },
    /// An application that may not match the intended program on this system.
    #[error("{0}")]
    AppWarning(AppWarning),
    /// `DisallowedApps` beside `AllowedApps`.
    #[error(
        "DisallowedApps have no effect beside AllowedApps (line {allowed}): all other applications bypass the tunnel anyway"
    )]
    DisallowedAppsWithoutEffect {
        /// Line of the first `AllowedApps`.
        allowed: usize,
    },
    /// `AppsOfUser` without a list of applications.
    #[error(
        "AppsOfUser restricts AllowedApps and DisallowedApps to one user, and the file has neither"
    )]
    NoAppsOfUser,
    /// A setting beside `AppsOfUser` that concerns others than the user.
    #[error(
        "AppsOfUser restricts the tunnel to one user, but {} concerns more than that user", .setting
    )]
    NotOfOneUser {
        /// The setting.
        setting: &'static str,
    },
    /// An application that is another user than that of `AppsOfUser`.
    #[error("{}another user than that of AppsOfUser (line {only}), so this entry has no effect", quote(.value))]
    OtherUser {
        /// The text, if it may be repeated.
        value: Option<String>,
        /// Line of `AppsOfUser`.
        only: usize,
    },
    /// A key of the whole tunnel in the section of one of several peers.
    #[error("{key} applies to the whole tunnel, but this is one of {peers} peers")]
    TunnelKeyInPeer {
        /// The key.
        key: Key,
        /// Number of peers.
        peers: usize,
    },
    /// A key that `wg-quick` does not accept.
    #[error("{key} is a key of Taupe: wg-quick {}", wg_quick_treatment(*.comment))]
    NotForWgQuick {
        /// The key.
        key: Key,
        /// True if the line is a comment to `wg-quick`.
        comment: bool,
    },

    // The file system.
    /// Every user may read or write the file.
    #[error("the file's mode is {:04o}: every user of this system can {} it", .mode & 0o7777, access_rights(*.mode))]
    WorldAccessible {
        /// The mode, as from `stat`.
        mode: u32,
    },
    /// Every user may access a secret key's file.
    #[error("every user of this system can {} the key file of {key}", access_rights(*.mode))]
    KeyFileAccessible {
        /// The key.
        key: Key,
        /// The permissions, as in [`KeyFile::others`](super::KeyFile::others).
        mode: u32,
    },
    /// Further diagnostics of the same severity, which are not listed.
    #[error("{more} more are not listed")]
    More {
        /// Number of them.
        more: usize,
    },
}

/// Begins a sentence about a text, with the text if it may be repeated.
fn quote(text: &Option<String>) -> impl fmt::Display {
    fmt::from_fn(move |f| match text {
        Some(text) => write!(f, "`{text}' is "),
        None => f.write_str("this is "),
    })
}
