//! The header `Host` of requests to servers of this machine.

use std::net::{IpAddr, SocketAddr};

/// Checks the header `Host`, with which a browser sends the name that it has resolved: another name than
/// `localhost` means that a page of that name asks (DNS rebinding).
#[must_use]
pub fn is_local(host: &str) -> bool {
    let is_address = host.parse::<SocketAddr>().is_ok()
        || host.parse::<IpAddr>().is_ok()
        || host
            .strip_prefix('[')
            .and_then(|it| it.strip_suffix(']'))
            .is_some_and(|it| it.parse::<IpAddr>().is_ok());
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    is_address || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn names_of_other_sites_are_refused() {
        for (host, expected) in [
            ("localhost", true),
            ("LOCALHOST:9586", true),
            ("127.0.0.1:9586", true),
            ("127.0.0.1", true),
            ("[::1]:9586", true),
            ("[::1]", true),
            ("evil.example", false),
            ("evil.example:9586", false),
            ("localhost.evil.example", false),
            ("", false),
        ] {
            assert_eq!(is_local(host), expected, "{host}");
        }
    }
}
