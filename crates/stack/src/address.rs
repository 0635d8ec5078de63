//! Destinations: hosts and ports, names, and addresses that can be behind a tunnel.

use core::fmt;
use std::net::{IpAddr, SocketAddr};

/// A host and a port.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// The host.
    pub host: Host,
    /// The TCP or UDP port, never 0.
    pub port: u16,
}

/// A host, by address or name.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Host {
    /// An address.
    Address(IpAddr),
    /// A name to look up through the tunnel.
    Name(Name),
}

/// A DNS name in lower case, without a final dot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name(Box<str>);

impl Name {
    /// The longest name as text, in bytes (RFC 1035 §2.3.4).
    pub const MAX: usize = 253;

    /// Parses a name: labels of 1 to 63 letters, digits, `-` and `_`. Internationalised names must
    /// be in ASCII form (`xn--…`), which is what programs send.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        let is_label = |label: &str| (1..=63).contains(&label.len()) && label.bytes().all(allowed);
        let is_name = text.len() <= Self::MAX && text.split('.').all(is_label);
        is_name.then(|| Self(text.to_ascii_lowercase().into()))
    }

    /// Returns the name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns true for names that must not be sent to a name server: this machine's
    /// (RFC 6761 §6.3) and Tor's (RFC 7686 §2).
    pub(crate) fn is_local(&self) -> bool {
        let last = self.0.rsplit('.').next().unwrap_or_default();
        matches!(last, "localhost" | "onion")
    }
}

impl Host {
    /// Parses an address without brackets, or a name.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        match text.parse::<IpAddr>() {
            Ok(address) => Some(Self::Address(address.to_canonical())),
            // A name whose last label is a number is a mistyped address (RFC 3696 §2).
            Err(_) => {
                let name = Name::new(text)?;
                let last = name.0.rsplit('.').next().unwrap_or_default();
                let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
                (!is_number).then_some(Self::Name(name))
            }
        }
    }
}

impl Target {
    /// Parses `HOST:PORT`, with an IPv6 address in brackets. `default` is the port if there is
    /// none.
    #[must_use]
    pub fn new(text: &str, default: Option<u16>) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']')?;
                let host = host.parse().map(IpAddr::V6).ok()?;
                let host = Host::Address(host.to_canonical());
                let port = match rest {
                    "" => None,
                    rest => Some(rest.strip_prefix(':')?),
                };
                (host, port)
            }
            None => match text.split_once(':') {
                Some((host, port)) => (Host::new(host)?, Some(port)),
                None => (Host::new(text)?, None),
            },
        };
        let port = match port {
            Some(port) => number(port)?,
            None => default?,
        };
        Some(Self { host, port })
    }
}

/// Parses a decimal port. Rejects 0.
#[must_use]
pub fn number(text: &str) -> Option<u16> {
    let digits = (1..=5).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    digits
        .then(|| text.parse().ok())
        .flatten()
        .filter(|port| *port != 0)
}

/// Returns false for addresses that cannot be behind a tunnel: those of this machine, its link, and
/// multicast or broadcast groups.
#[must_use]
pub fn is_routable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => {
            !(a.octets()[0] == 0
                || a.is_loopback()
                || a.is_link_local()
                || a.is_multicast()
                || a.is_broadcast())
        }
        IpAddr::V6(a) => {
            !(a.is_unspecified()
                || a.is_loopback()
                || a.is_unicast_link_local()
                || a.is_multicast())
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => f.write_str(&name.0),
        }
    }
}

/// Formats it as in a URL.
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Host::Address(address) => SocketAddr::new(address, self.port).fmt(f),
            Host::Name(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Host, Name, Target, is_routable};

    #[test]
    fn targets() {
        for (text, expected) in [
            ("example.org:80", Some("example.org:80")),
            ("Example.ORG.:80", Some("example.org:80")),
            ("192.0.2.1:443", Some("192.0.2.1:443")),
            ("[2001:db8::1]:443", Some("[2001:db8::1]:443")),
            ("[::ffff:192.0.2.1]:443", Some("192.0.2.1:443")),
            ("[2001:db8::1]", Some("[2001:db8::1]:7")),
            ("example.org", Some("example.org:7")),
            ("_sip.example.org:65535", Some("_sip.example.org:65535")),
            ("2001:db8::1:443", None),
            ("[192.0.2.1]:443", None),
            ("[2001:db8::1]443", None),
            ("192.0.2.256:80", None),
            ("1.2.3:80", None),
            ("127.1:80", None),
            ("example.org:0", None),
            ("example.org:65536", None),
            ("example.org:+80", None),
            ("example.org:", None),
            ("exa mple.org:80", None),
            ("example..org:80", None),
            (":80", None),
            ("", None),
            ("ü.example:80", None),
        ] {
            let target = Target::new(text, Some(7)).map(|target| target.to_string());
            assert_eq!(target.as_deref(), expected, "{text:?}");
        }
        assert_eq!(Target::new("example.org", None), None);
    }

    #[test]
    fn lengths_of_names_are_limited() {
        let label = "a".repeat(63);
        assert!(Name::new(&label).is_some());
        assert!(Name::new(&format!("{label}a")).is_none());
        let longest = format!("{label}.{label}.{label}.{}", &label[..61]);
        assert!(Name::new(&longest).is_some());
        assert!(Name::new(&format!("{longest}.")).is_some());
        assert!(Name::new(&format!("{longest}a")).is_none());
    }

    #[test]
    fn local_and_onion_names_are_not_looked_up() {
        let local = |name| Name::new(name).unwrap().is_local();
        assert!(local("localhost") && local("A.Localhost.") && local("x.onion"));
        assert!(!local("localhost.example") && !local("onion.example"));
    }

    #[test]
    fn unroutable_addresses_are_refused() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "169.254.1.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "ff02::1",
        ] {
            assert!(!is_routable(text.parse().unwrap()), "{text}");
        }
        for text in [
            "10.0.0.1",
            "192.168.1.1",
            "198.51.100.1",
            "fd00::1",
            "2001:db8::1",
        ] {
            assert!(is_routable(text.parse().unwrap()), "{text}");
        }
        let mapped = Host::new("::ffff:127.0.0.1");
        assert_eq!(mapped, Host::new("127.0.0.1"));
    }
}
