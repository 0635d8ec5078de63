//! Values of `set`, in the syntax of `wg`.

use super::console;
use super::keys::{self, Trailing};
use ipnet::IpNet;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use taupe_client::{
    AllowedIpChange, EndpointName, KEY_LEN, PeerUpdate, PostQuantum, PqPrivateKey, PqPublicKey,
    PublicKey, ResolveError,
};
use taupe_config::file::KeyFileProblem;
use taupe_inspect::check;
use taupe_uapi::key::{Encoding, PqKeyError};
use taupe_uapi::prefix;
use zeroize::Zeroizing;

/// Error in a value. Contains no secret.
pub(super) enum ValueError {
    Port {
        value: Vec<u8>,
        reason: String,
    },
    NoPort,
    Fwmark(Vec<u8>),
    Keepalive(Vec<u8>),
    PublicKey(Vec<u8>),
    Open {
        error: io::Error,
        /// The command that creates such a key, if the argument is a key instead of a file.
        maker: Option<&'static str>,
    },
    KeyFileLength,
    KeyFileTrailing(u8),
    KeyFileContent,
    KeyFile(KeyFileProblem),
    /// Error in an ML-KEM key, with the command that creates such a key.
    PqKey {
        error: PqKeyError,
        maker: &'static str,
    },
    PostQuantum(Vec<u8>),
    NoEndpoint,
    NoBracket(Vec<u8>),
    NoEndpointPort(Vec<u8>),
    Endpoint {
        value: Vec<u8>,
        error: ResolveError,
    },
    Address(Vec<u8>),
    Network(Vec<u8>),
}

impl ValueError {
    /// Returns the message of `wg`.
    pub(super) fn wg(&self) -> Vec<u8> {
        let about = |words: &str, value: &[u8]| [words.as_bytes(), b": `", value, b"'"].concat();
        match self {
            Self::Port { value, reason } => about(reason, value),
            Self::NoPort => b"Unable to parse empty port".to_vec(),
            Self::Fwmark(value) => about("Fwmark is neither 0/off nor 0-0xffffffff", value),
            Self::Keepalive(value) => about(
                "Persistent keepalive interval is neither 0/off nor 1-65535",
                value,
            ),
            Self::PublicKey(value) => about("Key is not the correct length or format", value),
            Self::Open { error, maker } => {
                let errno = error.raw_os_error().unwrap_or_default();
                let mut text = format!("fopen: {}", taupe_client::errno_text(errno));
                if let Some(maker) = maker {
                    text.push('\n');
                    text.push_str(&key_for_file("wg", maker));
                }
                text.into_bytes()
            }
            Self::KeyFileLength => b"Invalid length key in key file".to_vec(),
            Self::KeyFileTrailing(byte) => about("Found trailing character in key file", &[*byte]),
            // Even an incomplete key must not appear in a log.
            Self::KeyFileContent => about("Key is not the correct length or format", b"(hidden)"),
            // The following errors do not occur when called as `wg`.
            Self::KeyFile(problem) => format!("the file {problem}").into_bytes(),
            Self::PqKey { error, .. } => error.to_string().into_bytes(),
            Self::PostQuantum(value) => about("Not require, prefer, off or default", value),
            Self::NoEndpoint => b"Unable to parse empty endpoint".to_vec(),
            Self::NoBracket(value) => about("Unable to find matching brace of endpoint", value),
            Self::NoEndpointPort(value) => about("Unable to find port of endpoint", value),
            Self::Endpoint { value, error } => match error {
                ResolveError::Retries(retries) => about(
                    "Unable to parse WG_ENDPOINT_RESOLUTION_RETRIES",
                    retries.as_bytes(),
                ),
                ResolveError::NoAddress => about("Neither IPv4 nor IPv6 address found", value),
                ResolveError::Lookup(_) | ResolveError::Interrupted => {
                    about(&error.to_string(), value)
                }
            },
            Self::Address(value) => about("Unable to parse IP address", value),
            Self::Network(value) => about("AllowedIP is not in the correct format", value),
        }
    }

    /// Returns the error and advice.
    pub(super) fn taupe(&self) -> String {
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        match self {
            Self::Port { value, reason } => format!(
                "{:?} is not a port ({reason}); expected a number from 0 (any) to 65535",
                text(value)
            ),
            Self::NoPort => "the port is empty; expected a number from 0 (any) to 65535".into(),
            Self::Fwmark(value) => format!(
                "{:?} is not a mark; expected off, or a number up to 0xffffffff",
                text(value)
            ),
            Self::Keepalive(value) => format!(
                "{:?} is not a keepalive; expected off, or a number of seconds up to 65535",
                text(value)
            ),
            Self::PublicKey(value) => format!(
                "{:?} is not a public key; expected 43 base64 digits and one `='",
                text(value)
            ),
            Self::Open {
                maker: Some(maker), ..
            } => key_for_file("taupe", maker),
            Self::Open { error, .. } => format!(
                "cannot open the file with the key: {error}; write the key to a file that only \
                 root can read, and give the path of this file"
            ),
            Self::KeyFileLength => {
                "the file does not contain a complete key; expected 43 base64 digits and one `=', \
                 or an empty file to remove the key"
                    .into()
            }
            Self::KeyFileTrailing(_) => {
                "the file contains more than a key; expected 43 base64 digits, one `=', and only \
                 blanks after it"
                    .into()
            }
            Self::KeyFileContent => {
                "the file contains no valid key; expected 43 base64 digits and one `='".into()
            }
            Self::KeyFile(problem) => format!(
                "the file with the key {problem}; give a file that contains the key, or an empty \
                 file to remove it"
            ),
            Self::PqKey { error, maker } => format!(
                "{error}; expected the output of `taupe {maker}`, or an empty file to remove the key"
            ),
            Self::PostQuantum(value) => format!(
                "{:?} is not a setting; expected require, prefer, off or default",
                text(value)
            ),
            Self::NoEndpoint => "the endpoint is empty; expected HOST:PORT".into(),
            Self::NoBracket(value) => format!(
                "{:?} has no closing bracket; expected [ADDRESS]:PORT",
                text(value)
            ),
            Self::NoEndpointPort(value) => {
                format!("{:?} has no port; expected HOST:PORT", text(value))
            }
            Self::Endpoint { value, error } => format!(
                "cannot resolve {:?}: {error}; check the name and the name servers of this machine, \
                 or give an address",
                text(value)
            ),
            Self::Address(value) => format!(
                "{:?} is not an address; expected networks such as 192.0.2.0/24,2001:db8::/32",
                text(value)
            ),
            Self::Network(value) => format!(
                "{:?} is not a network: its length is at most 32 for IPv4, 128 for IPv6",
                text(value)
            ),
        }
    }
}

fn key_for_file(program: &str, maker: &str) -> String {
    format!(
        "this is a key, but the path of a file with the key is expected: every user of this \
         machine can see a key on the command line (in ps). Create another key in a file that only \
         root can read, for example by `(umask 077; {program} {maker} > FILE)', and give FILE; in \
         bash, <(COMMAND) needs no file"
    )
}

/// Parses the number or the name of a UDP port.
pub(super) fn port(value: &OsStr) -> Result<u16, ValueError> {
    if value.is_empty() {
        return Err(ValueError::NoPort);
    }
    taupe_client::port(&value.to_string_lossy()).map_err(|reason| ValueError::Port {
        value: value.as_encoded_bytes().to_vec(),
        reason,
    })
}

/// Parses a packet mark.
pub(super) fn fwmark(value: &OsStr) -> Result<u32, ValueError> {
    let invalid = || ValueError::Fwmark(value.as_encoded_bytes().to_vec());
    let text = value.to_str().ok_or_else(invalid)?;
    if text.eq_ignore_ascii_case("off") {
        return Ok(0);
    }
    let mark = match text.strip_prefix("0x") {
        Some(digits) => digits
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit())
            .then(|| u32::from_str_radix(digits, 16).ok())
            .flatten(),
        None => number(text),
    };
    mark.ok_or_else(invalid)
}

/// Parses a number of seconds.
pub(super) fn keepalive(value: &OsStr) -> Result<u16, ValueError> {
    let invalid = || ValueError::Keepalive(value.as_encoded_bytes().to_vec());
    let text = value.to_str().ok_or_else(invalid)?;
    if text.eq_ignore_ascii_case("off") {
        return Ok(0);
    }
    number(text).ok_or_else(invalid)
}

pub(super) fn public_key(value: &OsStr) -> Result<PublicKey, ValueError> {
    let key = value
        .to_str()
        .and_then(|text| Encoding::Base64.public_key(text).ok());
    key.ok_or_else(|| ValueError::PublicKey(value.as_encoded_bytes().to_vec()))
}

/// Reads the key in a file. An empty file means an all-zero key, which removes the device's key.
/// `maker` is the command that creates such a key.
pub(super) fn key_file(
    path: &OsStr,
    maker: &'static str,
) -> Result<Zeroizing<[u8; KEY_LEN]>, ValueError> {
    let mut file = File::open(path).map_err(|error| ValueError::Open {
        maker: (error.kind() == io::ErrorKind::NotFound && public_key(path).is_ok())
            .then_some(maker),
        error,
    })?;
    let mut first = Zeroizing::new([0]);
    match keys::fill(&mut file, &mut *first) {
        Ok(0) => return Ok(Zeroizing::new([0; KEY_LEN])),
        Ok(_) => {}
        // For example, the path is a directory.
        Err(_) => return Err(ValueError::KeyFileLength),
    }
    let whole = io::Read::chain(first.as_slice(), file);
    let text = match keys::read::<{ keys::TEXT }>(whole, keys::is_blank) {
        Ok(Some(Ok(text))) => text,
        Ok(Some(Err(Trailing(byte)))) => return Err(ValueError::KeyFileTrailing(byte)),
        Ok(None) | Err(_) => return Err(ValueError::KeyFileLength),
    };
    keys::bytes(&text).ok_or(ValueError::KeyFileContent)
}

/// Reads the seed in a file. `None` if the file is empty, which removes the device's seed.
pub(super) fn pq_private_key(path: &OsStr) -> Result<Option<PqPrivateKey>, ValueError> {
    let maker = "genkey --pq";
    let is_key = |text: &str| Encoding::Base64.pq_private_key(text).is_ok();
    if path.to_str().is_some_and(is_key) {
        return Err(ValueError::Open {
            error: io::ErrorKind::NotFound.into(),
            maker: Some(maker),
        });
    }
    let text = check::key_file(Path::new(path)).map_err(ValueError::KeyFile)?;
    match pq_text(&text) {
        "" => Ok(None),
        text => Encoding::Base64
            .pq_private_key(text)
            .map_err(|error| ValueError::PqKey { error, maker }),
    }
}

/// Reads the ML-KEM public key in a file, or on standard input for `-`. `None` if the input is
/// empty, which removes the key.
pub(super) fn pq_public_key(path: &OsStr) -> Result<Option<PqPublicKey>, ValueError> {
    let path = match path.to_str() {
        Some("-") => OsStr::new("/dev/stdin"),
        _ => path,
    };
    let text = check::key_file(Path::new(path)).map_err(ValueError::KeyFile)?;
    let maker = "pubkey --pq";
    match pq_text(&text) {
        "" => Ok(None),
        text => Encoding::Base64
            .pq_public_key(text)
            .map(Some)
            .map_err(|error| ValueError::PqKey { error, maker }),
    }
}

/// Trims blanks around a key. Invalid UTF-8 becomes a text that is no key.
fn pq_text(text: &[u8]) -> &str {
    let text = str::from_utf8(text).unwrap_or("?");
    text.trim_matches(|c: char| c.is_ascii() && keys::is_blank(c as u8))
}

pub(super) fn post_quantum(value: &OsStr) -> Result<Option<PostQuantum>, ValueError> {
    let mut all = PostQuantum::ALL.into_iter();
    match all.find(|one| value == one.name()) {
        None if value == "default" => Ok(None),
        None => Err(ValueError::PostQuantum(value.as_encoded_bytes().to_vec())),
        some => Ok(some),
    }
}

/// Resolves an endpoint. Also returns its name, if it is a name.
pub(super) fn endpoint(value: &OsStr) -> Result<(SocketAddr, Option<EndpointName>), ValueError> {
    let shown = value.to_string_lossy();
    let failed = |error| ValueError::Endpoint {
        value: value.as_encoded_bytes().to_vec(),
        error,
    };
    let no_port = || ValueError::NoEndpointPort(value.as_encoded_bytes().to_vec());
    taupe_client::check_retries().map_err(failed)?;
    if shown.is_empty() {
        return Err(ValueError::NoEndpoint);
    }
    let (host, service) = match shown.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest
                .split_once(']')
                .ok_or_else(|| ValueError::NoBracket(value.as_encoded_bytes().to_vec()))?;
            (host, rest.strip_prefix(':').ok_or_else(no_port)?)
        }
        None => shown.rsplit_once(':').ok_or_else(no_port)?,
    };
    if service.is_empty() {
        return Err(no_port());
    }
    let address = taupe_client::resolve_service(host, service, &shown, &mut |line| {
        if let Some(line) = line {
            console::complain(format!("{line}\n").as_bytes());
        }
        true
    })
    .map_err(failed)?;
    Ok((address, EndpointName::new(host, address.port())))
}

/// Adds networks to the update of a peer. They replace the peer's networks, unless one has the
/// prefix `+` or `-`.
pub(super) fn allowed_ips(peer: &mut PeerUpdate, value: &OsStr) -> Result<(), ValueError> {
    peer.replace_allowed_ips = true;
    let bytes = value.as_encoded_bytes().iter().copied();
    let value: Vec<u8> = bytes.filter(|byte| !keys::is_blank(*byte)).collect();
    if value.is_empty() {
        return Ok(());
    }
    for entry in value.split(|byte| *byte == b',') {
        let (sign, entry) = match entry.split_first() {
            Some((sign @ (b'+' | b'-'), rest)) => (Some(sign), rest),
            _ => (None, entry),
        };
        let (network, has_host_bits) = network(entry)?;
        if has_host_bits {
            let warning = [b"Warning: AllowedIP has nonzero host part: ", entry, b"\n"].concat();
            console::complain(&warning);
        }
        peer.replace_allowed_ips &= sign.is_none();
        peer.allowed_ips.push(match sign {
            Some(b'-') => AllowedIpChange::Remove(network),
            _ => AllowedIpChange::Add(network),
        });
    }
    Ok(())
}

/// Parses a network. The second value is true if bits beyond its length were set.
fn network(entry: &[u8]) -> Result<(IpNet, bool), ValueError> {
    let mut parts = entry.splitn(2, |byte| *byte == b'/');
    let address = parts.next().unwrap_or_default();
    let length = parts.next();
    let address: IpAddr = str::from_utf8(address)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or_else(|| ValueError::Address(address.to_vec()))?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => Some(most),
        Some(text) => str::from_utf8(text).ok().and_then(number),
    };
    let network = length.and_then(|length| prefix::network(address, length));
    let network = network.ok_or_else(|| ValueError::Network(entry.to_vec()))?;
    Ok((network, network.addr() != address))
}

/// Parses a decimal number without sign.
fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}
