//! Diagnostics about a file, each with a reason and a fix.

mod problem;

use core::fmt;

use ipnet::IpNet;
use thiserror::Error;

use super::fix::{
    access, address_problem, again, endpoint_problem, foreign, key_problem, needs, other, reads,
    unusable, zeros,
};
use super::look_alike::{look_alike, put};
use super::transparent::{MOST, MOST_BYTES};
use super::word::{Foreign, Key, Section};
use super::{KeyFileProblem, MAX_FILE, MAX_LINE};
use crate::application::{ApplicationError, Doubt};
use taupe_uapi::key::PqKeyError;

pub use problem::{AddressProblem, EndpointProblem, KeyProblem, Unusable};

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

impl Diagnostic {
    /// Formats `line 3, column 9: error: why; what to do` on one line. `tool` is as for
    /// [`DiagnosticKind::fix`].
    pub fn told(&self, tool: &str) -> impl fmt::Display {
        fmt::from_fn(move |f| {
            let Self {
                line,
                column,
                severity,
                kind,
            } = self;
            let fix = kind.fix(tool);
            write!(f, "line {line}, column {column}: {severity}: {kind}; {fix}")
        })
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
    #[error("a NUL byte: this is not a text file, or it was damaged")]
    NulByte,
    /// More than [`MAX_FILE`] bytes.
    #[error("the file is longer than {} MiB", MAX_FILE >> 20)]
    FileTooLong,
    /// More than [`MAX_LINE`] bytes.
    #[error("the line is longer than {} MiB", MAX_LINE >> 20)]
    LineTooLong,
    /// Bytes that are not UTF-8, outside of a comment.
    #[error("not UTF-8 text")]
    NotUtf8,
    /// A character that looks like another one.
    #[error("{} (U+{:04X}), which web pages and word processors put {}",
        look_alike(*.character).0, u32::from(*.character), put(*.character))]
    LookAlike {
        /// The character.
        character: char,
    },

    // Lines, sections and keys.
    /// There is no `[Interface]`.
    #[error("there is no [Interface] section")]
    NoInterface,
    /// A second `[Interface]`.
    #[error("[Interface] has begun in line {first} already; both sections count")]
    RepeatedInterface {
        /// Line of the first.
        first: usize,
    },
    /// An unknown section, or a header without `]`.
    #[error("{}not a section; expected [Interface] or [Peer] and nothing else in the line", quote(.name))]
    UnknownSection {
        /// The text, if it may be repeated.
        name: Option<String>,
        /// The section that was probably meant.
        meant: Option<Section>,
    },
    /// A key before the first section.
    #[error("{}above the first section", quote(.name))]
    BeforeSection {
        /// The text, if it may be repeated.
        name: Option<String>,
        /// The key, if it is known.
        key: Option<Key>,
    },
    /// Neither a section nor `key = value`.
    #[error("{}neither a section nor of the form Key = value", quote(.name))]
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
    #[error("{key} belongs into {}, this is {}", .key.section(), other(.key.section()))]
    Misplaced {
        /// The key.
        key: Key,
    },
    /// A key that `wg` does not accept.
    #[error("{key} is for bringing a tunnel up; `setconf` and its like do not take it")]
    NotForWg {
        /// The key.
        key: Key,
    },
    /// Keys of another program.
    #[error("{}: {}", names.join(", "), foreign(*.what))]
    Foreign {
        /// The keys.
        names: Vec<&'static str>,
        /// Their purpose.
        what: Foreign,
    },
    /// A line for another program (`#@ws:`) with a key that Taupe does not know.
    #[error("{}not a key of Taupe's: the line stays a comment", quote(.name))]
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
    #[error("{key} stands in line {first} already, {}", again(*.same))]
    Repeated {
        /// The key.
        key: Key,
        /// Line of the first.
        first: usize,
        /// True if both values are the same.
        same: bool,
    },
    /// Quotation marks around a value.
    #[error("{key} takes its value without quotation marks")]
    Quoted {
        /// The key.
        key: Key,
    },

    // Cryptographic keys.
    /// `[Interface]` has no `PrivateKey`, and no hook that could set one.
    #[error("[Interface] has no PrivateKey: the tunnel could not talk to anyone")]
    NoPrivateKey,
    /// A `[Peer]` has no `PublicKey`.
    #[error("this [Peer] has no PublicKey")]
    NoPublicKey,
    /// Not a key.
    #[error("{key} is not a key: {}", key_problem(*.problem))]
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
    #[error("{key}: the file with the key {problem}")]
    KeyFile {
        /// The key.
        key: Key,
        /// The problem.
        problem: KeyFileProblem,
    },
    /// A peer has an ML-KEM key, but the interface has none.
    #[error(
        "[Interface] has no PqPrivateKey: the peer with this PqPublicKey could not tell who calls"
    )]
    NoPqPrivateKey,
    /// The peer's ML-KEM key belongs to the interface's seed.
    #[error("this PqPublicKey belongs to the PqPrivateKey of line {private}, not to the peer")]
    OwnPqPublicKey {
        /// Line of the private key.
        private: usize,
    },
    /// Hybrid handshakes with a peer without an ML-KEM key.
    #[error(
        "without PqPublicKey handshakes are hybrid-light: a quantum computer of the future does not \
         read what is recorded today, but X25519 alone says who the peer is"
    )]
    LightHandshakes,
    /// Unknown value of `PostQuantum`.
    #[error("PostQuantum is not require, prefer or off")]
    PostQuantum,
    /// A key of all zeros.
    #[error("{key} is all zeros, which {}", zeros(*.key))]
    ZeroKey {
        /// The key.
        key: Key,
    },
    /// Two peers with the same public key.
    #[error(
        "the peer of line {first} has the same PublicKey; a tunnel knows a peer only once, and the later section would overwrite the earlier"
    )]
    RepeatedPeer {
        /// Line of the other `PublicKey`.
        first: usize,
    },
    /// The peer's public key equals the interface's private key.
    #[error("this PublicKey is the PrivateKey of line {private}, which nobody else may know")]
    PublicKeyIsPrivate {
        /// Line of the private key.
        private: usize,
    },
    /// The peer's public key belongs to the interface's private key.
    #[error(
        "this PublicKey belongs to the PrivateKey of line {private}: the peer is the tunnel itself, and nothing is sent to it"
    )]
    OwnPeer {
        /// Line of the private key.
        private: usize,
    },
    /// The preshared key equals a public key.
    #[error("this PresharedKey is the PublicKey of line {public}, so it is no secret")]
    PresharedKeyIsPublic {
        /// Line of the public key.
        public: usize,
    },
    /// The preshared key equals the private key.
    #[error("this PresharedKey is the PrivateKey of line {private}, which the peer may not know")]
    PresharedKeyIsPrivate {
        /// Line of the private key.
        private: usize,
    },

    // Numbers and words.
    /// Not a port number.
    #[error("ListenPort is not a decimal number from 0 (any) to 65535")]
    ListenPort,
    /// Not a packet mark.
    #[error("FwMark is not off, nor a number from 0 to 4294967295, in decimal or in hex after 0x")]
    FwMark,
    /// Not a keepalive interval.
    #[error("PersistentKeepalive is not off, nor a number of seconds from 0 to 65535")]
    PersistentKeepalive,
    /// Neither `true` nor `false`.
    #[error("{key} is neither true nor false")]
    Truth {
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
    /// Not a routing table.
    #[error("Table is not auto, off, a number from 1 to 4294967295, or a name")]
    Table,
    /// Not a number of bytes.
    #[error("MTU is not a number of bytes")]
    Mtu,
    /// An MTU that is too small for IP.
    #[error("an MTU of {mtu} is too small: {} {least}", needs(*.least, *.ipv6))]
    MtuTooSmall {
        /// The value.
        mtu: u32,
        /// The smallest that works.
        least: u32,
        /// True if IPv6 requires it.
        ipv6: bool,
    },
    /// An MTU that exceeds a UDP datagram.
    #[error(
        "an MTU of {mtu} is too large: WireGuard's 80 bytes around it leave {most} of the 65535 of an IP packet"
    )]
    MtuTooLarge {
        /// The value.
        mtu: u64,
        /// The largest that works: [`MAX_MTU`](super::MAX_MTU).
        most: u32,
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
    #[error("{key} has bits set beyond its length; it means {}", .network)]
    HostBits {
        /// The key.
        key: Key,
        /// The network without host bits.
        network: IpNet,
    },
    /// An address that cannot be used here.
    #[error("{key} is {}", unusable(*.what))]
    Unusable {
        /// The key.
        key: Key,
        /// The kind of address.
        what: Unusable,
    },
    /// A repeated address of the interface.
    #[error("the address stands in line {first} already; the system takes it only once")]
    RepeatedAddress {
        /// Line of the first.
        first: usize,
    },
    /// `0.0.0.0` or `::` without a prefix length.
    #[error("without a length this means the single address {}, which nobody has", .network)]
    SingleUnspecified {
        /// The network that it means.
        network: IpNet,
    },
    /// The same network for two peers.
    #[error("{} belongs to the peer with the AllowedIPs of line {first} already, which would lose it: the last one has it", .network)]
    Overlap {
        /// The network.
        network: IpNet,
        /// Line of the other.
        first: usize,
    },
    /// A peer without `AllowedIPs`.
    #[error(
        "this [Peer] has no AllowedIPs: nothing can be sent to it, and nothing from it is taken"
    )]
    NoAllowedIps,
    /// `DisallowedIPs` outside of all `AllowedIPs`.
    #[error("no AllowedIPs of this peer have {}: taking it away changes nothing", .network)]
    DisallowedElsewhere {
        /// The network.
        network: IpNet,
    },
    /// `DisallowedIPs` that contain all `AllowedIPs`.
    #[error(
        "the DisallowedIPs take away all AllowedIPs of this peer: nothing is left to send to it"
    )]
    AllDisallowed,
    /// Search domains, but no DNS server.
    #[error("DNS has a search domain but no server, which changes nothing")]
    NoDnsServer,
    /// Not a search domain.
    #[error("neither the address of a DNS server nor a search domain")]
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
    #[error("{key} has more than {MOST} applications or {} KiB", MOST_BYTES >> 10)]
    TooManyApplications {
        /// The key.
        key: Key,
    },
    /// An application that another entry of its list includes.
    #[error("{}in line {first} already, by itself or as a part: here it changes nothing", quote(.value))]
    Covered {
        /// The text, if it may be repeated.
        value: Option<String>,
        /// Line of the other entry.
        first: usize,
    },
    /// An application in both lists.
    #[error("{}allowed by line {allowed}, and AllowedApps win: it uses the tunnel", quote(.value))]
    AllowedWins {
        /// The text, if it may be repeated.
        value: Option<String>,
        /// Line in `AllowedApps`.
        allowed: usize,
    },
    /// A doubt about an application, from a look at the system.
    #[error("{0}")]
    Doubtful(Doubt),
    /// `DisallowedApps` beside `AllowedApps`.
    #[error(
        "there are AllowedApps (line {allowed}), so what they do not name goes past the tunnel anyway: DisallowedApps change nothing"
    )]
    NothingToDisallow {
        /// Line of the first `AllowedApps`.
        allowed: usize,
    },
    /// A key of the whole tunnel in the section of one of several peers.
    #[error("{key} counts for the whole tunnel, and this is one of {peers} peers")]
    OfAllPeers {
        /// The key.
        key: Key,
        /// Number of peers.
        peers: usize,
    },
    /// A key that `wg-quick` does not accept.
    #[error("{key} is Taupe's: wg-quick {}", reads(*.comment))]
    NotForQuick {
        /// The key.
        key: Key,
        /// True if the line is a comment to `wg-quick`.
        comment: bool,
    },

    // The file system.
    /// Every user may read or write the file.
    #[error("the file's mode is {:04o}: every user of this system can {} it", .mode & 0o7777, access(*.mode))]
    WorldAccessible {
        /// The mode, as from `stat`.
        mode: u32,
    },
    /// Every user may access a secret key's file.
    #[error("{key}: every user of this system can {} the file with the key", access(*.mode))]
    KeyFileAccessible {
        /// The key.
        key: Key,
        /// The permissions, as in [`KeyFile::others`](super::KeyFile::others).
        mode: u32,
    },
    /// Further diagnostics of the same severity, which are not listed.
    #[error("and {more} more")]
    More {
        /// Number of them.
        more: usize,
    },
}

/// Quotes a text, if there is one.
fn quote(text: &Option<String>) -> impl fmt::Display {
    fmt::from_fn(move |f| match text {
        Some(text) => write!(f, "`{text}' is "),
        None => Ok(()),
    })
}
