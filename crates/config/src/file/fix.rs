//! Advice for each diagnostic, and the variable parts of their reasons.

use super::diagnostic::{
    AddressProblem, DiagnosticKind, EndpointProblem, KeyProblem, UnusableAddress,
};
use super::keys::{ForeignPurpose, Key, Section};
use super::look_alike::{NOTHING, look_alike};
use taupe_uapi::key::PqKeyError;

impl DiagnosticKind {
    /// Returns advice, in the imperative. It names no command; [`Self::needed_key`] says for which
    /// key the caller can name one.
    #[must_use]
    pub fn fix(&self) -> String {
        let fixed = match self {
            Self::Utf16 => "save it as UTF-8 (iconv -f UTF-16 -t UTF-8)",
            Self::NulByte => "check that this is the right file, and delete the byte",
            Self::FileTooLong => "check that this is the right file",
            Self::LineTooLong => "split it: AllowedIPs, Address and DNS may be repeated",
            Self::NotUtf8 => "save the file as UTF-8, or type the line again",
            Self::LookAlike { character } => match look_alike(*character).1 {
                NOTHING => "delete it",
                meant => return format!("type {meant} instead"),
            },
            Self::NoInterface => "add [Interface] with the tunnel's PrivateKey",
            Self::RepeatedInterface { .. } => "join the two sections",
            Self::UnknownSection {
                meant: Some(meant), ..
            } => {
                return format!("write {meant}");
            }
            Self::UnknownSection { meant: None, .. } => "write [Interface] or [Peer]",
            Self::BeforeSection { key: Some(key), .. } => {
                return format!("write {} before it", key.section());
            }
            Self::BeforeSection { key: None, .. } => "write [Interface] before it, or delete it",
            Self::NotKeyValue {
                meant: Some(key), ..
            } => {
                return format!("write {}", key.example());
            }
            Self::NotKeyValue { meant: None, .. } => {
                "write Key = value, or make it a comment with # and a space"
            }
            Self::ForeignComment { .. } => "write # before it",
            Self::UnknownKey {
                meant: Some(key), ..
            } => {
                return format!("write {key} (in {})", key.section());
            }
            Self::UnknownKey { meant: None, .. } => {
                "delete the line, or make it a comment with # and a space"
            }
            Self::Ignored {
                meant: Some(key), ..
            } => {
                return format!("write {key} (in {}) if that is meant", key.section());
            }
            Self::Ignored { meant: None, .. } => {
                "keep it if another program needs it, otherwise delete it"
            }
            Self::Misplaced { key } => return format!("move it below {}", key.section()),
            Self::NotForWg { .. } => "delete the line, or bring the tunnel up with this file",
            Self::Foreign { names, what } => return foreign_fix(*what, names.len()),
            Self::NoValue { key } => {
                return format!("delete the line, or write {}", key.example());
            }
            Self::Repeated { .. } => "delete one of the two lines",
            Self::Quoted { .. } => "delete the quotation marks",
            Self::NoPrivateKey => "add PrivateKey with this side's private key",
            Self::NoPublicKey => "add PublicKey with the peer's public key",
            Self::NotAKey { key, problem } => key_fix(*key, *problem),
            Self::NotAPqKey { key, problem } => pq_key_fix(*key, *problem),
            Self::KeyFile { .. } => {
                "write file: and the path of a file with the key; a relative path starts at the \
                 folder of this configuration"
            }
            Self::NoPqPrivateKey => {
                "add PqPrivateKey with this side's private ML-KEM key and give the peer its public \
                 key, or write PostQuantum = off"
            }
            Self::PqPublicKeyIsOwn { .. } => "write the peer's public ML-KEM key",
            Self::LightHandshakes => {
                "add PqPublicKey with the peer's public ML-KEM key, if the peer has one"
            }
            Self::PostQuantum => {
                "write require (only hybrid handshakes), prefer (ordinary ones until the peer has \
                 answered a hybrid one) or off"
            }
            Self::ZeroKey { key } => zero_fix(*key),
            Self::RepeatedPeer { .. } => {
                "join the two sections, or correct the public key of one of them"
            }
            Self::PublicKeyIsPrivate { .. } => {
                "write the peer's public key, and make a new private key if anyone has seen this line"
            }
            Self::PeerIsSelf { .. } => "write the peer's public key, or delete this [Peer]",
            Self::PresharedKeyIsPublic { .. } | Self::PresharedKeyIsPrivate { .. } => {
                "make a new preshared key and write it on both sides"
            }
            Self::ListenPort => "write, for example, ListenPort = 51820",
            Self::FwMark => "write, for example, FwMark = 0xca6c, or off",
            Self::Lanes => {
                "write, for example, Lanes = 4, or delete the line to use the cores of the machine"
            }
            Self::Name => "write a shorter name of visible characters, or delete the line",
            Self::PersistentKeepalive => "write, for example, PersistentKeepalive = 25, or off",
            Self::NotBoolean { .. } => "write true or false",
            Self::KillSwitch => {
                "write app (blocks the applications that use the tunnel while it is down), all \
                 (blocks all traffic) or off"
            }
            Self::Forwarded => "write tunnel or direct",
            Self::SystemBus => "write allow or refuse",
            Self::Children => {
                "write inherit (programs that an application starts follow its rule) or own (each \
                 program is matched separately)"
            }
            Self::AppsOfUser => "write, for example, AppsOfUser = 1000 or AppsOfUser = alice",
            Self::Table => "write auto, off or a number such as 1000",
            Self::Mtu => "write, for example, MTU = 1420, or delete the line to have it computed",
            Self::MtuTooSmall {
                min, ipv6: false, ..
            } => {
                return format!("write at least {min}, or delete the line to have it computed");
            }
            Self::MtuTooSmall {
                min, ipv6: true, ..
            } => {
                return format!("write at least {min}, or remove the IPv6 addresses");
            }
            Self::MtuTooLarge { max, .. } => {
                return format!("write at most {max}, or delete the line to have it computed");
            }
            Self::Address { key, problem, .. } => return address_fix(*key, *problem),
            Self::HostBits { network, .. } => {
                return format!("write {network}");
            }
            Self::Unusable {
                what: UnusableAddress::ZeroLength,
                ..
            } => "write a length such as /24, and tunnelled networks in AllowedIPs",
            Self::Unusable {
                key: Key::Address, ..
            } => "write the address that the peer has assigned to this side",
            Self::Unusable {
                what: UnusableAddress::NoScope,
                ..
            } => "write an address of the server that is not link-local, such as fd00::1",
            Self::Unusable { .. } => "write the address of a host",
            Self::RepeatedAddress { .. } => "delete one of the two",
            Self::SingleUnspecified { network } if network.addr().is_ipv4() => {
                "write 0.0.0.0/0 for all of IPv4"
            }
            Self::SingleUnspecified { .. } => "write ::/0 for all of IPv6",
            Self::Overlap { .. } => "give the network to one of the two peers",
            Self::NoAllowedIps => {
                "add AllowedIPs with the networks behind the peer (0.0.0.0/0, ::/0 for all)"
            }
            Self::DisallowedOutsideAllowed { .. } => "delete it, or correct AllowedIPs",
            Self::AllDisallowed => "shorten DisallowedIPs",
            Self::NoDnsServer => "add a server, for example DNS = 10.0.0.1, example.org",
            Self::SearchDomain => "write, for example, DNS = 10.0.0.1, example.org",
            Self::Endpoint { problem } => endpoint_problem(*problem).1,
            Self::Application { problem, .. } => problem.fix(),
            Self::TooManyApplications { .. } => {
                "name folders (/opt/games/) or beginnings of names (game*) instead of single programs"
            }
            Self::Covered { .. } => "delete it, or the other entry if that is too wide",
            Self::AppWarning(warning) => return warning.fix(),
            Self::AllowedWins { .. } => "delete it from one of the two lists",
            Self::DisallowedAppsWithoutEffect { .. } => {
                "delete them, or delete AllowedApps to tunnel all applications but these"
            }
            Self::NoAppsOfUser => {
                "add AllowedApps; for all processes of the user, write AllowedApps = uid: and the user"
            }
            Self::NotOfOneUser { .. } => "delete one of the two lines",
            Self::OtherUser { .. } => "delete it, or correct AppsOfUser",
            Self::TunnelKeyInPeer { .. } => "move it below [Interface]",
            Self::NotForWgQuick {
                key,
                comment: false,
            } => {
                return format!("write #@taupe:{key} = … to make it a comment for wg-quick");
            }
            Self::NotForWgQuick { comment: true, .. } => {
                "bring the tunnel up with Taupe to apply it"
            }
            Self::WorldAccessible { .. } => {
                "chmod 600 the file, and make new keys if anyone may have read it"
            }
            Self::KeyFileAccessible { .. } => {
                "chmod 600 that file, and make a new key if anyone may have read it"
            }
            Self::More { .. } => "correct the listed ones first",
        };
        fixed.to_owned()
    }

    /// Returns the key whose value must be made or copied to follow the advice, so that the caller
    /// can name the command that prints it.
    #[must_use]
    pub fn needed_key(&self) -> Option<Key> {
        let key = match self {
            Self::NoPrivateKey => Key::PrivateKey,
            Self::NoPublicKey | Self::PeerIsSelf { .. } | Self::PublicKeyIsPrivate { .. } => {
                Key::PublicKey
            }
            Self::NoPqPrivateKey => Key::PqPrivateKey,
            Self::PqPublicKeyIsOwn { .. } | Self::LightHandshakes => Key::PqPublicKey,
            Self::PresharedKeyIsPublic { .. } | Self::PresharedKeyIsPrivate { .. } => {
                Key::PresharedKey
            }
            Self::NotAKey {
                problem:
                    KeyProblem::Hex
                    | KeyProblem::Path
                    | KeyProblem::PathWithoutPrefix
                    | KeyProblem::MlKem,
                ..
            } => return None,
            Self::NotAKey { key, .. }
            | Self::NotAPqKey { key, .. }
            | Self::KeyFile { key, .. }
            | Self::ZeroKey { key }
            | Self::NoValue { key }
            | Self::NotKeyValue {
                meant: Some(key), ..
            } => *key,
            _ => return None,
        };
        key.is_cryptographic().then_some(key)
    }
}

pub(super) fn other_section(section: Section) -> Section {
    match section {
        Section::Interface => Section::Peer,
        Section::Peer => Section::Interface,
    }
}

/// Completes the reason that `wg-quick` does not accept one of Taupe's keys.
pub(super) fn wg_quick_treatment(comment: bool) -> &'static str {
    if comment {
        "ignores this line and tunnels all AllowedIPs"
    } else {
        "refuses it"
    }
}

/// Returns the reason why Taupe does not support keys of another program.
pub(super) fn foreign_reason(what: ForeignPurpose) -> &'static str {
    match what {
        ForeignPurpose::Applications => "values are names of Android applications",
        ForeignPurpose::Obfuscation => {
            "this version cannot obfuscate packets; with S1 to S4 or H1 to H4 the peer would not \
             even understand them"
        }
        ForeignPurpose::Proxy => "this version cannot reach a peer through a proxy",
        ForeignPurpose::Client => "settings of another program without an equivalent here",
    }
}

fn foreign_fix(what: ForeignPurpose, count: usize) -> String {
    let lines = if count == 1 {
        "the line"
    } else {
        "these lines"
    };
    match what {
        ForeignPurpose::Applications => {
            "write AllowedApps or DisallowedApps with names of programs, such as firefox".to_owned()
        }
        ForeignPurpose::Obfuscation => format!(
            "delete {lines} if the peer is ordinary WireGuard and obfuscation is not needed"
        ),
        ForeignPurpose::Proxy => format!("delete {lines} if the peer can be reached directly"),
        ForeignPurpose::Client => format!("delete {lines}"),
    }
}

pub(super) fn same_or_other_value(same: bool) -> &'static str {
    if same {
        "to the same value"
    } else {
        "to another value"
    }
}

pub(super) fn mtu_requirement(min: u32, ipv6: bool) -> &'static str {
    match min {
        _ if ipv6 => "the tunnel carries IPv6, which needs at least",
        68 => "an interface needs at least",
        _ => "every host must accept packets of up to",
    }
}

pub(super) fn key_problem(problem: KeyProblem) -> impl core::fmt::Display {
    core::fmt::from_fn(move |f| match problem {
        KeyProblem::Length { found } => write!(f, "it has {found} characters; expected 44"),
        KeyProblem::Character => f.write_str(
            "it has a wrong character here; expected 43 letters, digits, + or /, and one =",
        ),
        KeyProblem::TrailingBits => {
            f.write_str("its last character before the = is impossible, so a character is mistyped")
        }
        KeyProblem::Hex => f.write_str("it is hexadecimal; expected base64 (44 characters)"),
        KeyProblem::Path | KeyProblem::PathWithoutPrefix => {
            f.write_str("it is the path of a file; expected the key itself")
        }
        KeyProblem::MlKem => f.write_str("it has the length of an ML-KEM key; expected X25519"),
    })
}

fn key_fix(key: Key, problem: KeyProblem) -> &'static str {
    match (problem, key) {
        (KeyProblem::PathWithoutPrefix, _)
        | (KeyProblem::Path, Key::PqPublicKey | Key::PqPrivateKey) => "write file: before the path",
        (KeyProblem::MlKem, Key::PublicKey) => "write it as PqPublicKey, beside the PublicKey",
        (KeyProblem::MlKem, Key::PrivateKey) => "write it as PqPrivateKey, beside the PrivateKey",
        (KeyProblem::Path, _) => "write the content of the file",
        (KeyProblem::Hex, _) => "convert it to base64 (xxd -r -p | base64)",
        (_, Key::PublicKey) => "copy the peer's public key completely",
        _ => "copy the key completely",
    }
}

fn pq_key_fix(key: Key, problem: PqKeyError) -> &'static str {
    match (problem, key) {
        (PqKeyError::PrivateForPublic, _) => {
            "write the peer's public key; if anyone but its owner has seen this private key, make \
             a new one"
        }
        (PqKeyError::PublicForPrivate, _) => {
            "write this side's private ML-KEM key, and give the peer the public key"
        }
        (PqKeyError::Classic, Key::PqPrivateKey) => {
            "write this side's private ML-KEM key, beside the PrivateKey"
        }
        (PqKeyError::Classic, _) => "write the peer's public ML-KEM key, beside the PublicKey",
        (_, Key::PqPrivateKey) => "copy the key completely",
        _ => "copy the peer's public ML-KEM key completely",
    }
}

/// Completes the reason that a key is all zeros.
pub(super) fn zero_key_meaning(key: Key) -> &'static str {
    match key {
        Key::PresharedKey => "means no preshared key",
        Key::PublicKey => "is not the key of any peer",
        _ => "means no key",
    }
}

fn zero_fix(key: Key) -> &'static str {
    match key {
        Key::PresharedKey => "delete the line, or write the same preshared key on both sides",
        Key::PublicKey => "write the peer's public key",
        Key::PqPrivateKey => "write this side's private ML-KEM key",
        _ => "write this side's private key",
    }
}

pub(super) fn address_problem(problem: AddressProblem) -> impl core::fmt::Display {
    core::fmt::from_fn(move |f| match problem {
        AddressProblem::Address => f.write_str("not an IPv4 or IPv6 address"),
        AddressProblem::Length { max } => write!(
            f,
            "not a network: the prefix length is not a number from 0 to {max}"
        ),
        AddressProblem::Mask => {
            f.write_str("not a network: expected a prefix length such as 24, not a netmask")
        }
        AddressProblem::Change => {
            f.write_str("a change of AllowedIPs (+ or -), which a file cannot contain")
        }
        AddressProblem::Empty => f.write_str("an empty entry: one comma too many"),
        AddressProblem::Separator => {
            f.write_str("not separated by a comma from the entry before it")
        }
        AddressProblem::Scope => {
            f.write_str("an address with a scope (after the %), which is not allowed here")
        }
        AddressProblem::Extra => {
            f.write_str("an address with a port or prefix length; expected the address alone")
        }
    })
}

fn address_fix(key: Key, problem: AddressProblem) -> String {
    match problem {
        AddressProblem::Address => format!("write, for example, {}", key.example()),
        AddressProblem::Length { max } => format!("write, for example, /{}", max / 4 * 3),
        AddressProblem::Mask => "write, for example, /24 for 255.255.255.0".to_owned(),
        AddressProblem::Change => {
            "list the peer's networks in AllowedIPs, and exceptions in DisallowedIPs".to_owned()
        }
        AddressProblem::Empty => "delete the comma".to_owned(),
        AddressProblem::Separator => format!("write commas, for example {}", key.example()),
        AddressProblem::Scope => "delete the % and the text after it".to_owned(),
        AddressProblem::Extra => "delete the text after the address".to_owned(),
    }
}

pub(super) fn unusable_reason(what: UnusableAddress) -> &'static str {
    match what {
        UnusableAddress::Unspecified => "the unspecified address, which no host has",
        UnusableAddress::Multicast => "a multicast address, which no single host has",
        UnusableAddress::Broadcast => "the broadcast address, which no single host has",
        UnusableAddress::Loopback => "a loopback address, whose traffic never leaves this host",
        UnusableAddress::NoScope => {
            "a link-local address without an interface, which the C library cannot reach"
        }
        UnusableAddress::Network => {
            "the first address of its network, which names the network itself"
        }
        UnusableAddress::ZeroLength => {
            "an address with prefix length 0, which makes all other addresses its neighbours"
        }
        UnusableAddress::SubnetBroadcast => {
            "the last address of its network, which is its broadcast address"
        }
    }
}

/// Returns the reason and the advice for an invalid endpoint.
pub(super) fn endpoint_problem(problem: EndpointProblem) -> (&'static str, &'static str) {
    match problem {
        EndpointProblem::NoPort => (
            "the endpoint has no port",
            "write, for example, vpn.example.org:51820 or [2001:db8::1]:51820",
        ),
        EndpointProblem::NoBracket => (
            "the endpoint has a [ without a ] before the port",
            "write, for example, [2001:db8::1]:51820",
        ),
        EndpointProblem::Port => (
            "the endpoint's port is not a decimal number from 1 to 65535",
            "write, for example, vpn.example.org:51820",
        ),
        EndpointProblem::PortZero => (
            "the endpoint's port is 0, to which nothing can be sent",
            "write the peer's ListenPort",
        ),
        EndpointProblem::NoHost => (
            "the endpoint has no host before the port",
            "write, for example, vpn.example.org:51820",
        ),
        EndpointProblem::Host => (
            "the endpoint is neither an address nor a possible host name",
            "write, for example, vpn.example.org:51820 (names in other alphabets in their xn-- form)",
        ),
        EndpointProblem::Url => (
            "the endpoint is a URL; WireGuard always uses UDP",
            "write only host and port, for example vpn.example.org:51820",
        ),
        EndpointProblem::Unbracketed => (
            "the endpoint is an IPv6 address without brackets; the text after the last colon is \
             read as the port",
            "write, for example, [2001:db8::1]:51820",
        ),
        EndpointProblem::NoScope => (
            "the endpoint is a link-local address without an interface",
            "write, for example, [fe80::1%eth0]:51820",
        ),
    }
}

pub(super) fn access_rights(mode: u32) -> &'static str {
    match mode & 0o6 {
        0o6 => "read and change",
        0o4 => "read",
        0o2 => "change",
        _ => "execute",
    }
}
