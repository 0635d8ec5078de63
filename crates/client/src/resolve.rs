//! Resolution of endpoint names.

use std::env;
use std::io;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use dns_lookup::{AddrInfoHints, LookupError, LookupErrorKind, SockType, getaddrinfo};
use thiserror::Error;

/// Environment variable with the number of retries: a number, or `infinity`.
const VARIABLE: &str = "WG_ENDPOINT_RESOLUTION_RETRIES";

const DEFAULT_RETRIES: u32 = 15;

/// The first delay. Each further one is a fifth longer, up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_secs(1);

const LONGEST_WAIT: Duration = Duration::from_secs(20);

/// Interval at which a delay asks whether to continue.
const STEP: Duration = Duration::from_millis(200);

/// Reason why a name has no address. A failed look-up displays the system's text
/// (`gai_strerror(3)`).
#[derive(Debug, Error)]
pub enum ResolveError {
    /// The environment variable has no valid number of retries.
    #[error("{VARIABLE} is neither a number from 0 to 2147483647 nor `infinity`")]
    Retries(String),
    /// The look-up failed permanently, or for the last time.
    #[error("{0}")]
    Lookup(String),
    /// The name has neither an IPv4 nor an IPv6 address.
    #[error("neither an IPv4 nor an IPv6 address was found")]
    NoAddress,
    /// `waiting` returned false.
    #[error("interrupted while waiting for an answer of the name servers")]
    Interrupted,
}

/// Returns the first address of `host`, as `wg` does. A temporary failure is retried after 1 s,
/// 1.2 s, and so on up to 20 s, as many times as `WG_ENDPOINT_RESOLUTION_RETRIES` says (15 by
/// default).
///
/// Before each delay, `waiting` gets the message that `wg` prints. During the delay it is called
/// with `None` about every 200 ms. If it returns false, the resolution ends.
///
/// # Errors
/// See [`ResolveError`].
pub fn resolve(
    host: &str,
    port: u16,
    waiting: &mut dyn FnMut(Option<&str>) -> bool,
) -> Result<SocketAddr, ResolveError> {
    let shown = if host.contains(':') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    resolve_service(host, &port.to_string(), &shown, waiting)
}

/// Checks the environment's number of retries, as `wg` does before it reads an endpoint.
///
/// # Errors
/// Returns [`ResolveError::Retries`] if it is invalid.
pub fn check_retries() -> Result<(), ResolveError> {
    retries().map(drop)
}

/// As [`resolve`], for the name or number of a UDP service (`services(5)`). Messages call the
/// endpoint `shown`.
///
/// # Errors
/// See [`ResolveError`].
pub fn resolve_service(
    host: &str,
    service: &str,
    shown: &str,
    waiting: &mut dyn FnMut(Option<&str>) -> bool,
) -> Result<SocketAddr, ResolveError> {
    let mut retries = retries()?;
    let mut wait = FIRST_WAIT;
    loop {
        let failure = match lookup(Some(host), service, 0) {
            Ok(address) => return address.ok_or(ResolveError::NoAddress),
            Err(failure) => failure,
        };
        let text = failure.text;
        if failure.is_final || retries == Some(0) {
            return Err(ResolveError::Lookup(text));
        }
        retries = retries.map(|left| left - 1);
        let seconds = wait.as_secs_f64();
        let line = format!("{text}: `{shown}'. Trying again in {seconds:.2} seconds...");
        if !waiting(Some(&line)) || !pause(wait, waiting) {
            return Err(ResolveError::Interrupted);
        }
        wait = (wait * 6 / 5).min(LONGEST_WAIT);
    }
}

/// Returns the UDP port of a service's number or name. The `Err` is the system's reason.
///
/// # Errors
/// Returns an error if there is no such service.
pub fn port(service: &str) -> Result<u16, String> {
    /// `AI_PASSIVE` (`netdb.h`).
    const PASSIVE: i32 = 1;
    let address = lookup(None, service, PASSIVE).map_err(|failure| failure.text)?;
    Ok(address.map_or(0, |address| address.port()))
}

struct LookupFailure {
    text: String,
    /// True if a retry cannot succeed.
    is_final: bool,
}

fn lookup(
    host: Option<&str>,
    service: &str,
    flags: i32,
) -> Result<Option<SocketAddr>, LookupFailure> {
    let hints = AddrInfoHints {
        flags,
        socktype: SockType::DGram.into(),
        protocol: dns_lookup::Protocol::UDP.into(),
        ..AddrInfoHints::default()
    };
    let found = getaddrinfo(host, Some(service), Some(hints)).map_err(LookupFailure::new)?;
    let mut addresses = found.filter_map(Result::ok).map(|found| found.sockaddr);
    Ok(addresses.next())
}

impl LookupFailure {
    fn new(error: LookupError) -> Self {
        use LookupErrorKind::{Fail, NoData, NoName};
        let is_final = matches!(error.kind(), Fail | NoData | NoName);
        let error = io::Error::from(error);
        let text = crate::errno::system_text(&error);
        let text = text
            .strip_prefix("failed to lookup address information: ")
            .unwrap_or(&text)
            .to_owned();
        Self { text, is_final }
    }
}

/// Returns the number of retries; `None` is unlimited.
fn retries() -> Result<Option<u32>, ResolveError> {
    let Some(value) = env::var_os(VARIABLE) else {
        return Ok(Some(DEFAULT_RETRIES));
    };
    let value = value.to_string_lossy();
    retries_of(&value).ok_or_else(|| ResolveError::Retries(value.into_owned()))
}

fn retries_of(value: &str) -> Option<Option<u32>> {
    match value {
        "infinity" => Some(None),
        "" => Some(Some(0)),
        _ => {
            let number: u32 = value.parse().ok()?;
            i32::try_from(number).is_ok().then_some(Some(number))
        }
    }
}

fn pause(wait: Duration, waiting: &mut dyn FnMut(Option<&str>) -> bool) -> bool {
    let end = Instant::now() + wait;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        thread::sleep(left.min(STEP));
        if !waiting(None) {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never(_: Option<&str>) -> bool {
        false
    }

    #[test]
    fn addresses_need_no_name_server() {
        for (host, expected) in [
            ("192.0.2.1", "192.0.2.1:5"),
            ("2001:db8::1", "[2001:db8::1]:5"),
            ("fe80::1%1", "[fe80::1%1]:5"),
            ("fe80::1%lo", "[fe80::1%1]:5"),
            // As inet_aton(3) parses it.
            ("192.0.513", "192.0.2.1:5"),
        ] {
            let address = resolve(host, 5, &mut never).expect(host);
            assert_eq!(address, expected.parse().expect("an address"), "{host}");
        }
    }

    /// On Windows an empty name means this machine.
    #[cfg(unix)]
    #[test]
    fn no_name_is_asked_for_once() {
        let mut asked = 0;
        let result = resolve("", 5, &mut |_| {
            asked += 1;
            true
        });
        assert!(matches!(result, Err(ResolveError::Lookup(_))));
        assert_eq!(asked, 0);
    }

    /// The messages are glibc's.
    #[cfg(unix)]
    #[test]
    fn a_service_that_does_not_exist_is_asked_for_until_it_is_enough() {
        let mut lines = Vec::new();
        let result = resolve_service("192.0.2.1", "no-such", "shown", &mut |line| {
            lines.extend(line.map(str::to_owned));
            lines.len() < 2
        });
        assert!(matches!(result, Err(ResolveError::Interrupted)));
        let unknown = "Servname not supported for ai_socktype: `shown'. Trying again in";
        let expected = ["1.00", "1.20"].map(|wait| format!("{unknown} {wait} seconds..."));
        assert_eq!(lines, expected);
    }

    #[test]
    fn waits_grow_by_a_fifth_up_to_twenty_seconds() {
        let mut wait = FIRST_WAIT;
        let waits: Vec<_> = std::iter::repeat_with(|| {
            let now = format!("{:.2}", wait.as_secs_f64());
            wait = (wait * 6 / 5).min(LONGEST_WAIT);
            now
        })
        .take(19)
        .collect();
        // The first fifteen as wireguard-tools 1.0.20210914 prints them.
        let expected = [
            "1.00", "1.20", "1.44", "1.73", "2.07", "2.49", "2.99", "3.58", "4.30", "5.16", "6.19",
            "7.43", "8.92", "10.70", "12.84", "15.41", "18.49", "20.00", "20.00",
        ];
        assert_eq!(waits, expected);
    }

    #[test]
    fn retries_at_their_boundaries() {
        for (text, expected) in [
            ("infinity", Some(None)),
            ("0", Some(Some(0))),
            ("", Some(Some(0))),
            ("2147483647", Some(Some(2_147_483_647))),
            ("2147483648", None),
            ("-1", None),
            ("1x", None),
            ("Infinity", None),
        ] {
            assert_eq!(retries_of(text), expected, "{text:?}");
        }
    }

    #[test]
    fn ports() {
        assert_eq!(port("51820"), Ok(51820));
        assert_eq!(port("0"), Ok(0));
        assert!(port("no-such").is_err());
    }
}
