//! Advice for each diagnostic, and the variable parts of their reasons.

use super::diagnostic::{AddressProblem, DiagnosticKind, EndpointProblem, KeyProblem, Unusable};
use super::look_alike::{NOTHING, look_alike};
use super::word::{Foreign, Key, Section};
use taupe_uapi::key::PqKeyError;

impl DiagnosticKind {
    /// Returns advice, in the imperative. `tool` is the program to name for making keys and
    /// configuring interfaces: `wg` or `taupe`.
    #[must_use]
    pub fn fix(&self, tool: &str) -> String {
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
            Self::NoInterface => "put [Interface] with the tunnel's PrivateKey in front",
            Self::RepeatedInterface { .. } => "join the two sections",
            Self::UnknownSection {
                meant: Some(meant), ..
            } => {
                return format!("write {meant}");
            }
            Self::UnknownSection { meant: None, .. } => "write [Interface] or [Peer]",
            Self::BeforeSection { key: Some(key), .. } => {
                return format!("put {} in front of it", key.section());
            }
            Self::BeforeSection { key: None, .. } => "put [Interface] in front of it, or delete it",
            Self::NotKeyValue {
                meant: Some(key), ..
            } => {
                return format!("write it like this: {}", key.example(tool));
            }
            Self::NotKeyValue { meant: None, .. } => {
                "write Key = value, or make a comment of it with # and a space in front"
            }
            Self::ForeignComment { .. } => "put # in front",
            Self::UnknownKey {
                meant: Some(key), ..
            } => {
                return format!("write {key} (in {})", key.section());
            }
            Self::UnknownKey { meant: None, .. } => {
                "delete the line, or make a comment of it with # and a space in front"
            }
            Self::Ignored {
                meant: Some(key), ..
            } => {
                return format!("write {key} (in {}) if that is meant", key.section());
            }
            Self::Ignored { meant: None, .. } => {
                "leave it if another program needs it, or delete it"
            }
            Self::Misplaced { key } => return format!("move it below {}", key.section()),
            Self::NotForWg { .. } => {
                "bring the tunnel up with this file, or leave of it what `strip` prints"
            }
            Self::Foreign { names, what } => return foreign_fix(*what, names.len()),
            Self::NoValue { key } => {
                return format!(
                    "delete the line, or write it like this: {}",
                    key.example(tool)
                );
            }
            Self::Repeated { .. } => "keep one of the two lines",
            Self::Quoted { .. } => "delete the quotation marks",
            Self::NoPrivateKey => {
                return format!("add PrivateKey = and what `{tool} genkey` prints");
            }
            Self::NoPublicKey => {
                return format!("add PublicKey = and what `{tool} pubkey` prints at the peer");
            }
            Self::NotAKey { key, problem } => return key_fix(*key, *problem, tool),
            Self::NotAPqKey { key, problem } => pq_key_fix(*key, *problem),
            Self::KeyFile { key, .. } => {
                return format!(
                    "write file: and the path of a file that holds the key ({}); a path without / \
                     in front begins at the folder of this configuration",
                    match key {
                        Key::PrivateKey => "`taupe genkey` prints one",
                        Key::PresharedKey => "`taupe genpsk` prints one",
                        Key::PqPrivateKey => "`taupe genkey --pq` prints one",
                        _ => "`taupe pubkey --pq` prints it at the peer",
                    }
                );
            }
            Self::NoPqPrivateKey => {
                "add PqPrivateKey = and what `taupe genkey --pq` prints, and give the peer what \
                 `taupe pubkey --pq` makes of it; or write PostQuantum = off"
            }
            Self::OwnPqPublicKey { .. } => "write what `taupe pubkey --pq` prints at the peer",
            Self::LightHandshakes => {
                "add PqPublicKey = and what `taupe pubkey --pq` prints at the peer, if it has such a key"
            }
            Self::PostQuantum => {
                "write require (only hybrid handshakes), prefer (ordinary ones while the peer has \
                 never answered a hybrid one) or off"
            }
            Self::ZeroKey { key } => return zero_fix(*key, tool),
            Self::RepeatedPeer { .. } => "join the two sections, or give the right key to each",
            Self::PublicKeyIsPrivate { .. } => {
                "make a new private key if anyone has seen this line, and write the peer's public key"
            }
            Self::OwnPeer { .. } => "write the public key of the other side, or delete this [Peer]",
            Self::PresharedKeyIsPublic { .. } | Self::PresharedKeyIsPrivate { .. } => {
                return format!("make one with `{tool} genpsk` and give it to both sides");
            }
            Self::ListenPort => "write such as ListenPort = 51820",
            Self::FwMark => "write such as FwMark = 0xca6c, or off",
            Self::PersistentKeepalive => "write such as PersistentKeepalive = 25, or off",
            Self::Truth { .. } => "write true or false",
            Self::KillSwitch => {
                "write app (holds back the applications that use the tunnel, while it is down), \
                 all (everything) or off"
            }
            Self::Forwarded => "write tunnel or direct",
            Self::SystemBus => "write allow or refuse",
            Self::Children => {
                "write inherit (what an application starts has its rule) or own (each program is \
                 compared for itself)"
            }
            Self::Table => "write auto, off or such as 1000",
            Self::Mtu => "write such as MTU = 1420, or delete the line: it is then found out",
            Self::MtuTooSmall {
                least, ipv6: false, ..
            } => {
                return format!("write at least {least}, or delete the line: it is then found out");
            }
            Self::MtuTooSmall {
                least, ipv6: true, ..
            } => {
                return format!("write at least {least}, or take the IPv6 addresses out");
            }
            Self::MtuTooLarge { most, .. } => {
                return format!("write at most {most}, or delete the line: it is then found out");
            }
            Self::Address { key, problem, .. } => return address_fix(*key, *problem, tool),
            Self::HostBits { network, .. } => {
                return format!("write {network}");
            }
            Self::Unusable {
                what: Unusable::Everything,
                ..
            } => "write such as /24, and in AllowedIPs what goes into the tunnel",
            Self::Unusable {
                key: Key::Address, ..
            } => "write the address that the other side has given to this one",
            Self::Unusable {
                what: Unusable::NoScope,
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
                "add AllowedIPs = with the networks behind the peer (0.0.0.0/0, ::/0 for all)"
            }
            Self::DisallowedElsewhere { .. } => "delete it, or correct the AllowedIPs",
            Self::AllDisallowed => "take less away",
            Self::NoDnsServer => "add a server, such as DNS = 10.0.0.1, example.org",
            Self::SearchDomain => "write such as DNS = 10.0.0.1, example.org",
            Self::Endpoint { problem } => endpoint_problem(*problem).1,
            Self::Application { problem, .. } => problem.fix(),
            Self::TooManyApplications { .. } => {
                "name folders (/opt/games/) or beginnings (game*) in place of single ones"
            }
            Self::Covered { .. } => "delete it, or the other one if that is too wide",
            Self::Doubtful(doubt) => return doubt.fix(),
            Self::AllowedWins { .. } => "delete it from one of the two lists",
            Self::NothingToDisallow { .. } => {
                "delete them, or delete AllowedApps to have all but these in the tunnel"
            }
            Self::OfAllPeers { .. } => "move it below [Interface]",
            Self::NotForQuick {
                key,
                comment: false,
            } => {
                return format!(
                    "use `taupe up`, or write #@taupe:{key} = … to make it a comment for wg-quick"
                );
            }
            Self::NotForQuick { comment: true, .. } => "use `taupe up` to have it read",
            Self::WorldAccessible { .. } => {
                "chmod 600 the file, and make new keys if anyone may have read it"
            }
            Self::KeyFileAccessible { .. } => {
                "chmod 600 that file, and make a new key if anyone may have read it"
            }
            Self::More { .. } => "mend those above first",
        };
        fixed.to_owned()
    }
}

pub(super) fn other(section: Section) -> Section {
    match section {
        Section::Interface => Section::Peer,
        Section::Peer => Section::Interface,
    }
}

/// Completes the reason that `wg-quick` does not accept one of Taupe's keys.
pub(super) fn reads(comment: bool) -> &'static str {
    if comment {
        "reads over it, and tunnels whatever AllowedIPs name"
    } else {
        "does not take it"
    }
}

/// Returns the reason why Taupe does not support keys of another program.
pub(super) fn foreign(what: Foreign) -> &'static str {
    match what {
        Foreign::Applications => "values are names of Android, which mean nothing here",
        Foreign::Obfuscation => {
            "this version cannot disguise its packets; with S1 to S4 or H1 to H4 the peer would \
             not even understand them"
        }
        Foreign::Proxy => "this version cannot reach a peer through a proxy",
        Foreign::Client => "settings of another program that have no meaning here",
    }
}

fn foreign_fix(what: Foreign, count: usize) -> String {
    let lines = if count == 1 {
        "the line"
    } else {
        "these lines"
    };
    match what {
        Foreign::Applications => {
            "write AllowedApps or DisallowedApps, with names of programs such as firefox".to_owned()
        }
        Foreign::Obfuscation => format!(
            "delete {lines} if the peer is an ordinary WireGuard and being recognised is no harm"
        ),
        Foreign::Proxy => format!("delete {lines} if the peer can be reached directly"),
        Foreign::Client => format!("delete {lines}"),
    }
}

pub(super) fn again(same: bool) -> &'static str {
    if same {
        "with the same value"
    } else {
        "with another value"
    }
}

pub(super) fn needs(least: u32, ipv6: bool) -> &'static str {
    match least {
        _ if ipv6 => "the tunnel carries IPv6, which needs at least",
        68 => "an interface needs at least",
        _ => "every host must take packets of up to",
    }
}

pub(super) fn key_problem(problem: KeyProblem) -> impl core::fmt::Display {
    core::fmt::from_fn(move |f| match problem {
        KeyProblem::Length { found } => write!(
            f,
            "it has {found} characters; a key has 44, the last of which is ="
        ),
        KeyProblem::Character => f.write_str(
            "this character does not belong there; a key is 43 letters, digits, + or /, and one =",
        ),
        KeyProblem::TrailingBits => {
            f.write_str("its last letter before the = cannot be right, so something is mistyped")
        }
        KeyProblem::Hex => f.write_str("it is in hexadecimal; expected base64, 44 characters"),
        KeyProblem::Path => f.write_str("it is the path of a file; expected the key itself"),
        KeyProblem::MlKem => f.write_str("it is as long as a key of ML-KEM, not of X25519"),
    })
}

fn key_fix(key: Key, problem: KeyProblem, tool: &str) -> String {
    let in_front = "write file: in front of the path";
    match (problem, key) {
        (KeyProblem::Path, Key::PqPublicKey | Key::PqPrivateKey) => in_front.to_owned(),
        (KeyProblem::Path, Key::PrivateKey | Key::PresharedKey) if tool == "taupe" => {
            in_front.to_owned()
        }
        (KeyProblem::MlKem, Key::PublicKey) => {
            "write it as PqPublicKey, beside the PublicKey".to_owned()
        }
        (KeyProblem::MlKem, Key::PrivateKey) => {
            "write it as PqPrivateKey, beside the PrivateKey".to_owned()
        }
        (KeyProblem::Path, Key::PresharedKey) => format!(
            "write what the file holds (`{tool} set` takes a file, a configuration takes the key)"
        ),
        (KeyProblem::Path, _) => format!(
            "write what the file holds, or set it from the file: \
             PostUp = {tool} set %i private-key FILE"
        ),
        (KeyProblem::Hex, _) => "write it in base64 (xxd -r -p | base64)".to_owned(),
        (_, Key::PrivateKey) => format!("copy all of what `{tool} genkey` has printed"),
        (_, Key::PresharedKey) => format!("copy all of what `{tool} genpsk` has printed"),
        _ => format!("copy all of what `{tool} pubkey` has printed at the peer"),
    }
}

fn pq_key_fix(key: Key, problem: PqKeyError) -> &'static str {
    match (problem, key) {
        (PqKeyError::PrivateForPublic, _) => {
            "make a new one if anyone but its owner has seen it, and write what `taupe pubkey --pq` \
             makes of it"
        }
        (PqKeyError::PublicForPrivate, _) => {
            "write what `taupe genkey --pq` has printed, and give the peer the public key"
        }
        (PqKeyError::Classic, Key::PqPrivateKey) => {
            "write what `taupe genkey --pq` prints, beside the PrivateKey"
        }
        (PqKeyError::Classic, _) => {
            "write what `taupe pubkey --pq` prints at the peer, beside the PublicKey"
        }
        (_, Key::PqPrivateKey) => "copy all of what `taupe genkey --pq` has printed",
        _ => "copy all of what `taupe pubkey --pq` has printed at the peer",
    }
}

/// Completes the reason that a key is all zeros.
pub(super) fn zeros(key: Key) -> &'static str {
    match key {
        Key::PresharedKey => "is the same as none",
        Key::PublicKey => "is nobody's key",
        _ => "stands for no key",
    }
}

fn zero_fix(key: Key, tool: &str) -> String {
    match key {
        Key::PresharedKey => {
            format!("delete the line, or write what `{tool} genpsk` prints, at both sides")
        }
        Key::PublicKey => format!("write what `{tool} pubkey` prints at the peer"),
        Key::PqPrivateKey => "write what `taupe genkey --pq` prints".to_owned(),
        _ => format!("write what `{tool} genkey` prints"),
    }
}

pub(super) fn address_problem(problem: AddressProblem) -> impl core::fmt::Display {
    core::fmt::from_fn(move |f| {
        match problem {
        AddressProblem::Address => f.write_str("not an IPv4 or IPv6 address"),
        AddressProblem::Length { max } => {
            write!(
                f,
                "not a network: the length after the / is not a number from 0 to {max}"
            )
        }
        AddressProblem::Mask => {
            f.write_str("not a network: expected how many bits are fixed (24), not a mask")
        }
        AddressProblem::Change => f.write_str(
            "a change of AllowedIPs, which a file cannot make; only the command `set` takes + and -",
        ),
        AddressProblem::Empty => {
            f.write_str("two commas follow each other, or one stands at the end")
        }
        AddressProblem::Separator => {
            f.write_str("not separated by a comma from what stands before it")
        }
        AddressProblem::Scope => {
            f.write_str("an address with a scope (after the %), which has no place here")
        }
        AddressProblem::Extra => {
            f.write_str("an address with a port or a length; expected the address alone")
        }
    }
    })
}

fn address_fix(key: Key, problem: AddressProblem, tool: &str) -> String {
    match problem {
        AddressProblem::Address => format!("write such as {}", key.example(tool)),
        AddressProblem::Length { max } => format!("write such as /{}", max / 4 * 3),
        AddressProblem::Mask => "write such as /24 for 255.255.255.0".to_owned(),
        AddressProblem::Change => {
            "list what the peer has, and DisallowedIPs for what it has not".to_owned()
        }
        AddressProblem::Empty => "delete the comma".to_owned(),
        AddressProblem::Separator => format!("write commas, such as {}", key.example(tool)),
        AddressProblem::Scope => "delete the % and what follows it".to_owned(),
        AddressProblem::Extra => "delete what follows the address".to_owned(),
    }
}

pub(super) fn unusable(what: Unusable) -> &'static str {
    match what {
        Unusable::Unspecified => "the unspecified address, which no host has",
        Unusable::Multicast => "a multicast address, which no single host has",
        Unusable::Broadcast => "the broadcast address, which no single host has",
        Unusable::Loopback => "a loopback address: it never leaves this host",
        Unusable::NoScope => {
            "a link-local address without an interface: the C library cannot ask a server there"
        }
        Unusable::Network => "the first address of its network, which names the network itself",
        Unusable::Everything => {
            "in a network of length 0: all other addresses would be its neighbours"
        }
        Unusable::SubnetBroadcast => "the last address of its network, which is for broadcasts",
    }
}

/// Returns the reason and the advice for an invalid endpoint.
pub(super) fn endpoint_problem(problem: EndpointProblem) -> (&'static str, &'static str) {
    match problem {
        EndpointProblem::NoPort => (
            "the endpoint has no port",
            "write such as vpn.example.org:51820 or [2001:db8::1]:51820",
        ),
        EndpointProblem::NoBracket => (
            "the endpoint's [ has no ] before the port",
            "write such as [2001:db8::1]:51820",
        ),
        EndpointProblem::Port => (
            "the endpoint's port is not a decimal number from 1 to 65535",
            "write such as vpn.example.org:51820",
        ),
        EndpointProblem::PortZero => (
            "the endpoint's port is 0, where nothing can be sent to",
            "write the peer's ListenPort",
        ),
        EndpointProblem::NoHost => (
            "the endpoint has no host before the port",
            "write such as vpn.example.org:51820",
        ),
        EndpointProblem::Host => (
            "the endpoint is neither an address nor a possible host name",
            "write such as vpn.example.org:51820 (names of other alphabets in their xn-- form)",
        ),
        EndpointProblem::Url => (
            "the endpoint is a URL; WireGuard always uses UDP",
            "write only host and port, such as vpn.example.org:51820",
        ),
        EndpointProblem::Unbracketed => (
            "the endpoint is an IPv6 address without brackets; what follows the last colon is \
             taken for the port",
            "write such as [2001:db8::1]:51820",
        ),
        EndpointProblem::NoScope => (
            "the endpoint is a link-local address, which every interface's network has; it does \
             not say on which interface",
            "write such as [fe80::1%eth0]:51820",
        ),
    }
}

pub(super) fn access(mode: u32) -> &'static str {
    match mode & 0o6 {
        0o6 => "read and change",
        0o4 => "read",
        0o2 => "change",
        _ => "execute",
    }
}
