//! Address prefixes as text: `192.0.2.0/24`, `2001:db8::/32`, or an address.

use core::net::IpAddr;

use ipnet::IpNet;
use thiserror::Error;

/// Parses `address/length`, or an address as its /32 or /128. Clears host bits, as WireGuard's
/// kernel module does.
///
/// # Errors
/// Returns [`PrefixError`] if the address or the length is malformed. IPv6 scopes, and lengths with
/// a sign or a leading zero, are refused.
pub fn parse(text: &str) -> Result<IpNet, PrefixError> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().map_err(|_| PrefixError::Address)?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    let length = length.map_or(Some(max), decimal);
    length
        .and_then(|length| network(address, length))
        .ok_or(PrefixError::Length { max })
}

/// Returns the network of `length` bits that contains `address`: host bits are cleared. `None` if
/// `length` exceeds 32 (IPv4) or 128 (IPv6).
#[must_use]
pub fn network(address: IpAddr, length: u8) -> Option<IpNet> {
    IpNet::new(address, length).ok().map(|net| net.trunc())
}

/// Reason why a text is not a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum PrefixError {
    /// The part before the `/` is not an address.
    #[error("not an IPv4 or IPv6 address; expected a prefix such as 192.0.2.0/24 or 2001:db8::/32")]
    Address,
    /// The part after the `/` is not a length for this family.
    #[error("the prefix length is not a decimal number from 0 to {max}")]
    Length {
        /// The largest length: 32 (IPv4) or 128 (IPv6).
        max: u8,
    },
}

/// Parses a decimal number without a sign or leading zeros.
fn decimal(text: &str) -> Option<u8> {
    let canonical = text == "0" || text.starts_with(|c: char| matches!(c, '1'..='9'));
    canonical.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests;
