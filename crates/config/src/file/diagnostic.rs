//! What can be wrong with a file, why, and what to do about it.

mod problem;

use core::fmt;

use taupe_protocol::update::Prefix;
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
use taupe_uapi::prefix::display;

pub use problem::{AddressProblem, EndpointProblem, KeyProblem, Unusable};

/// One thing worth telling about a file. Never repeats a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// The line, counted from 1.
    pub line: usize,
    /// The character in the line, counted from 1.
    pub column: usize,
    /// Whether the file is refused for it.
    pub severity: Severity,
    /// What it is. Its `Display` is the reason, [`DiagnosticKind::fix`] says
    /// what to do.
    pub kind: DiagnosticKind,
}

impl Diagnostic {
    /// `line 3, column 9: error: why; what to do`, on one line. `tool` as for
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

/// How bad it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// The file is taken, perhaps not as it was meant.
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

/// What it is; its `Display` is the reason, on one line and without the value.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum DiagnosticKind {
    // The text as such.
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
    /// A character that looks like another and is not the same.
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
    /// Another `[Interface]`.
    #[error("[Interface] has begun in line {first} already; both sections count")]
    RepeatedInterface {
        /// The line of the first.
        first: usize,
    },
    /// A section that does not exist, or one without its `]`.
    #[error("{}not a section; expected [Interface] or [Peer] and nothing else in the line", quote(.name))]
    UnknownSection {
        /// What stands there, if it can be told.
        name: Option<String>,
        /// What was probably meant.
        meant: Option<Section>,
    },
    /// A key above the first section.
    #[error("{}above the first section", quote(.name))]
    BeforeSection {
        /// What stands there, if it can be told.
        name: Option<String>,
        /// Which key it is.
        key: Option<Key>,
    },
    /// Neither a section nor `key = value`.
    #[error("{}neither a section nor of the form Key = value", quote(.name))]
    NotKeyValue {
        /// The first word, if it can be told.
        name: Option<String>,
        /// Which key was probably meant.
        meant: Option<Key>,
    },
    /// `;` or `//` in front of a comment.
    #[error("a comment begins with #, not with `{mark}'")]
    ForeignComment {
        /// What it begins with.
        mark: &'static str,
    },
    /// A key that does not exist.
    #[error("{}not a known key", quote(.name))]
    UnknownKey {
        /// What stands there, if it can be told.
        name: Option<String>,
        /// What was probably meant.
        meant: Option<Key>,
    },
    /// A key of the other section.
    #[error("{key} belongs into {}, this is {}", .key.section(), other(.key.section()))]
    Misplaced {
        /// The key.
        key: Key,
    },
    /// A key that `wg` does not take.
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
    /// A comment for another program, with a key that does not exist here.
    #[error("{}not a key of Taupe's: the line stays a comment", quote(.name))]
    Ignored {
        /// The name in front of `=`, if it can be printed.
        name: Option<String>,
        /// The key that was probably meant.
        meant: Option<Key>,
    },
    /// Nothing after the `=`.
    #[error("{key} has no value")]
    NoValue {
        /// The key.
        key: Key,
    },
    /// A key that can have one value has another one.
    #[error("{key} stands in line {first} already, {}", again(*.same))]
    Repeated {
        /// The key.
        key: Key,
        /// The line of the first.
        first: usize,
        /// Whether the value is the same.
        same: bool,
    },
    /// Quotation marks around a value.
    #[error("{key} takes its value without quotation marks")]
    Quoted {
        /// The key.
        key: Key,
    },

    // Keys, in the cryptographic sense.
    /// `[Interface]` has no `PrivateKey`, and no hook that could set one.
    #[error("[Interface] has no PrivateKey: the tunnel could not talk to anyone")]
    NoPrivateKey,
    /// A `[Peer]` has no `PublicKey`.
    #[error("this [Peer] has no PublicKey")]
    NoPublicKey,
    /// Not a key.
    #[error("{key} is not a key: {}", key_problem(*.problem))]
    NotAKey {
        /// Which.
        key: Key,
        /// Why.
        problem: KeyProblem,
    },
    /// Not an ML-KEM key.
    #[error("{key}: {problem}")]
    NotAPqKey {
        /// Which.
        key: Key,
        /// Why.
        problem: PqKeyError,
    },
    /// The file of a key cannot be read.
    #[error("{key}: the file with the key {problem}")]
    KeyFile {
        /// The key.
        key: Key,
        /// Why.
        problem: KeyFileProblem,
    },
    /// A peer has an ML-KEM key, and this side has none.
    #[error(
        "[Interface] has no PqPrivateKey: the peer with this PqPublicKey could not tell who calls"
    )]
    NoPqPrivateKey,
    /// The peer's ML-KEM key belongs to the tunnel's own seed.
    #[error("this PqPublicKey belongs to the PqPrivateKey of line {private}, not to the peer")]
    OwnPqPublicKey {
        /// The line of the private key.
        private: usize,
    },
    /// Hybrid handshakes with a peer whose ML-KEM key is not known.
    #[error(
        "without PqPublicKey handshakes are hybrid-light: a quantum computer of the future does not \
         read what is recorded today, but X25519 alone says who the peer is"
    )]
    LightHandshakes,
    /// None of its words.
    #[error("PostQuantum is not require, prefer or off")]
    PostQuantum,
    /// A key of zero bytes.
    #[error("{key} is all zeros, which {}", zeros(*.key))]
    ZeroKey {
        /// Which.
        key: Key,
    },
    /// Two peers with one key.
    #[error(
        "the peer of line {first} has the same PublicKey; a tunnel knows a peer only once, and the later section would overwrite the earlier"
    )]
    RepeatedPeer {
        /// The line of the other's `PublicKey`.
        first: usize,
    },
    /// The peer's public key is the private key of the tunnel.
    #[error("this PublicKey is the PrivateKey of line {private}, which nobody else may know")]
    PublicKeyIsPrivate {
        /// The line of the private key.
        private: usize,
    },
    /// The peer's public key belongs to the private key of the tunnel.
    #[error(
        "this PublicKey belongs to the PrivateKey of line {private}: the peer is the tunnel itself, and nothing is sent to it"
    )]
    OwnPeer {
        /// The line of the private key.
        private: usize,
    },
    /// The preshared key is a public one.
    #[error("this PresharedKey is the PublicKey of line {public}, so it is no secret")]
    PresharedKeyIsPublic {
        /// The line of the public key.
        public: usize,
    },
    /// The preshared key is the private one.
    #[error("this PresharedKey is the PrivateKey of line {private}, which the peer may not know")]
    PresharedKeyIsPrivate {
        /// The line of the private key.
        private: usize,
    },

    // Numbers and words.
    /// Not a port.
    #[error("ListenPort is not a decimal number from 0 (any) to 65535")]
    ListenPort,
    /// Not a mark.
    #[error("FwMark is not off, nor a number from 0 to 4294967295, in decimal or in hex after 0x")]
    FwMark,
    /// Not a keepalive.
    #[error("PersistentKeepalive is not off, nor a number of seconds from 0 to 65535")]
    PersistentKeepalive,
    /// Neither true nor false.
    #[error("{key} is neither true nor false")]
    Truth {
        /// The key.
        key: Key,
    },
    /// Not one of its words.
    #[error("KillSwitch is not app, all or off")]
    KillSwitch,
    /// Not one of its words.
    #[error("Forwarded is neither tunnel nor direct")]
    Forwarded,
    /// Not one of its words.
    #[error("SystemBus is neither allow nor refuse")]
    SystemBus,
    /// Not one of its words.
    #[error("Children is neither inherit nor own")]
    Children,
    /// Not a routing table.
    #[error("Table is not auto, off, a number from 1 to 4294967295, or a name")]
    Table,
    /// Not a number of bytes.
    #[error("MTU is not a number of bytes")]
    Mtu,
    /// Less than IP needs.
    #[error("an MTU of {mtu} is too small: {} {least}", needs(*.least, *.ipv6))]
    MtuTooSmall {
        /// The value.
        mtu: u32,
        /// The least that is needed.
        least: u32,
        /// Whether IPv6 needs it.
        ipv6: bool,
    },
    /// More than a UDP datagram carries.
    #[error(
        "an MTU of {mtu} is too large: WireGuard's 80 bytes around it leave {most} of the 65535 of an IP packet"
    )]
    MtuTooLarge {
        /// The value.
        mtu: u64,
        /// The greatest that works: [`MAX_MTU`](super::MAX_MTU).
        most: u32,
    },

    // Addresses.
    /// Not an address, or not a network.
    #[error("{}{}", quote(.value), address_problem(*.problem))]
    Address {
        /// Which key.
        key: Key,
        /// Why.
        problem: AddressProblem,
        /// What stands there, if it can be told.
        value: Option<String>,
    },
    /// A network with bits set beyond its length.
    #[error("{key} has bits set beyond its length; it means {}", display(*.network))]
    HostBits {
        /// Which key.
        key: Key,
        /// The network that it means.
        network: Prefix,
    },
    /// An address that cannot be used like this.
    #[error("{key} is {}", unusable(*.what))]
    Unusable {
        /// Which key.
        key: Key,
        /// What the address is.
        what: Unusable,
    },
    /// The interface has the address already.
    #[error("the address stands in line {first} already; the system takes it only once")]
    RepeatedAddress {
        /// The line of the first.
        first: usize,
    },
    /// `0.0.0.0` or `::` without a length.
    #[error("without a length this means the single address {}, which nobody has", display(*.network))]
    SingleUnspecified {
        /// What it means.
        network: Prefix,
    },
    /// The same network for two peers.
    #[error("{} belongs to the peer with the AllowedIPs of line {first} already, which would lose it: the last one has it", display(*.network))]
    Overlap {
        /// The network.
        network: Prefix,
        /// The line of the other's.
        first: usize,
    },
    /// A peer without `AllowedIPs`.
    #[error(
        "this [Peer] has no AllowedIPs: nothing can be sent to it, and nothing from it is taken"
    )]
    NoAllowedIps,
    /// `DisallowedIPs` that `AllowedIPs` do not contain.
    #[error("no AllowedIPs of this peer have {}: taking it away changes nothing", display(*.network))]
    DisallowedElsewhere {
        /// The network.
        network: Prefix,
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
        /// Why.
        problem: EndpointProblem,
    },

    // Applications.
    /// Not an application.
    #[error("{}{problem}", quote(.value))]
    Application {
        /// Why.
        problem: ApplicationError,
        /// What stands there, if it can be told.
        value: Option<String>,
    },
    /// More than a list can have.
    #[error("{key} has more than {MOST} applications or {} KiB", MOST_BYTES >> 10)]
    TooManyApplications {
        /// The key.
        key: Key,
    },
    /// An application that another one of the list contains.
    #[error("{}in line {first} already, by itself or as a part: here it changes nothing", quote(.value))]
    Covered {
        /// What stands there, if it can be told.
        value: Option<String>,
        /// The line of the other.
        first: usize,
    },
    /// An application in both lists.
    #[error("{}allowed by line {allowed}, and AllowedApps win: it uses the tunnel", quote(.value))]
    AllowedWins {
        /// What stands there, if it can be told.
        value: Option<String>,
        /// The line in `AllowedApps`.
        allowed: usize,
    },
    /// What a look at the system says against an application.
    #[error("{0}")]
    Doubtful(Doubt),
    /// Both lists.
    #[error(
        "there are AllowedApps (line {allowed}), so what they do not name goes past the tunnel anyway: DisallowedApps change nothing"
    )]
    NothingToDisallow {
        /// The line of the first of `AllowedApps`.
        allowed: usize,
    },
    /// A key of the whole tunnel at one of several peers.
    #[error("{key} counts for the whole tunnel, and this is one of {peers} peers")]
    OfAllPeers {
        /// The key.
        key: Key,
        /// How many peers there are.
        peers: usize,
    },
    /// A key that `wg-quick` does not take.
    #[error("{key} is Taupe's: wg-quick {}", reads(*.comment))]
    NotForQuick {
        /// The key.
        key: Key,
        /// Whether the line is a comment to `wg-quick`.
        comment: bool,
    },

    // The file, not its text.
    /// Everyone may read (or write) the file.
    #[error("the file's mode is {:04o}: every user of this system can {} it", .mode & 0o7777, access(*.mode))]
    WorldAccessible {
        /// The mode, as `stat` tells it.
        mode: u32,
    },
    /// Every user may use the file of a secret key.
    #[error("{key}: every user of this system can {} the file with the key", access(*.mode))]
    KeyFileAccessible {
        /// The key.
        key: Key,
        /// The permissions, as [`KeyFile::others`](super::KeyFile::others).
        mode: u32,
    },
    /// More of the same severity.
    #[error("and {more} more")]
    More {
        /// How many.
        more: usize,
    },
}

/// What stands at a place, if it may be told; then a colon.
fn quote(text: &Option<String>) -> impl fmt::Display {
    fmt::from_fn(move |f| match text {
        Some(text) => write!(f, "`{text}' is "),
        None => Ok(()),
    })
}
