//! Diagnostics in the words of `wg`.

use core::net::IpAddr;

use zeroize::Zeroizing;

use super::diagnostic::{AddressProblem, Diagnostic, DiagnosticKind, EndpointProblem};
use super::line::{lines, without_byte_order_mark};

/// Returns the line that `wg` (wireguard-tools 1.0.20210914) writes to standard error for a
/// diagnostic of `text`, without its end. Returns `None` if `wg` writes nothing.
///
/// `wg` stops at the first error, after the warnings before it. It checks for missing public keys
/// last. Its messages repeat the line's text, including keys, so the result is zeroised.
#[must_use]
pub fn wg_message(text: &[u8], diagnostic: &Diagnostic) -> Option<Zeroizing<Vec<u8>>> {
    let kind = &diagnostic.kind;
    let (_, line) = lines(without_byte_order_mark(text)).nth(diagnostic.line.checked_sub(1)?)?;
    let cleaned = clean(line);
    let value = after(&cleaned, b'=');
    let (before, quoted): (&str, &[u8]) = match kind {
        DiagnosticKind::NoPublicKey => {
            return Some(Zeroizing::new(b"A peer is missing a public key".to_vec()));
        }
        DiagnosticKind::HostBits { .. } => {
            let entry = element(line, diagnostic.column);
            let message = [b"Warning: AllowedIP has nonzero host part: ", &entry[..]].concat();
            return Some(Zeroizing::new(message));
        }
        DiagnosticKind::UnknownSection { .. }
        | DiagnosticKind::BeforeSection { .. }
        | DiagnosticKind::NotKeyValue { .. }
        | DiagnosticKind::ForeignComment { .. }
        | DiagnosticKind::UnknownKey { .. }
        | DiagnosticKind::Misplaced { .. }
        | DiagnosticKind::NotForWg { .. }
        | DiagnosticKind::Foreign { .. }
        | DiagnosticKind::NoValue { .. } => ("Line unrecognized: ", &cleaned),
        DiagnosticKind::NotAKey { .. } => ("Key is not the correct length or format: ", value),
        DiagnosticKind::ListenPort => ("Servname not supported for ai_socktype: ", value),
        DiagnosticKind::FwMark => ("Fwmark is neither 0/off nor 0-0xffffffff: ", value),
        DiagnosticKind::PersistentKeepalive => (
            "Persistent keepalive interval is neither 0/off nor 1-65535: ",
            value,
        ),
        DiagnosticKind::Endpoint { problem } => match problem {
            EndpointProblem::NoBracket => ("Unable to find matching brace of endpoint: ", value),
            EndpointProblem::NoPort => ("Unable to find port of endpoint: ", value),
            EndpointProblem::Port => ("Servname not supported for ai_socktype: ", value),
            EndpointProblem::NoHost | EndpointProblem::Host | EndpointProblem::Url => {
                ("Name or service not known: ", value)
            }
            EndpointProblem::PortZero | EndpointProblem::Unbracketed | EndpointProblem::NoScope => {
                return None;
            }
        },
        DiagnosticKind::Address { problem, .. } => {
            let entry = element(line, diagnostic.column);
            let address = until(&entry, b'/');
            let length_is_wrong = match problem {
                AddressProblem::Length { .. } | AddressProblem::Mask => true,
                // Without blanks, the text before the first `/` may be valid.
                AddressProblem::Separator => is_ip(address),
                _ => false,
            };
            return Some(if length_is_wrong {
                message("AllowedIP is not in the correct format: ", &entry)
            } else {
                message("Unable to parse IP address: ", address)
            });
        }
        // The message of `wg` depends on the key.
        DiagnosticKind::LookAlike { .. }
        | DiagnosticKind::Quoted { .. }
        | DiagnosticKind::NotUtf8 => {
            let key = until(&cleaned, b'=').to_ascii_lowercase();
            match key.as_slice() {
                b"privatekey" | b"publickey" | b"presharedkey" => {
                    ("Key is not the correct length or format: ", value)
                }
                b"listenport" => ("Servname not supported for ai_socktype: ", value),
                b"fwmark" => ("Fwmark is neither 0/off nor 0-0xffffffff: ", value),
                b"persistentkeepalive" => (
                    "Persistent keepalive interval is neither 0/off nor 1-65535: ",
                    value,
                ),
                b"allowedips" => {
                    let entry = element(line, diagnostic.column);
                    return Some(message("Unable to parse IP address: ", until(&entry, b'/')));
                }
                b"endpoint" => ("Name or service not known: ", value),
                _ => ("Line unrecognized: ", &cleaned),
            }
        }
        _ => return None,
    };
    Some(message(before, quoted))
}

fn message(before: &str, quoted: &[u8]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new([before.as_bytes(), b"`", quoted, b"'"].concat())
}

/// Returns a line as `wg` reads it: without comment and blanks.
fn clean(line: &[u8]) -> Zeroizing<Vec<u8>> {
    let mut cleaned = Zeroizing::new(Vec::with_capacity(line.len()));
    let body = until(line, b'#').iter();
    cleaned.extend(body.filter(|byte| !matches!(byte, b' ' | b'\t'..=b'\r')));
    cleaned
}

/// Returns the element of a list at a column.
fn element(line: &[u8], column: usize) -> Zeroizing<Vec<u8>> {
    let text = String::from_utf8_lossy(line);
    let before: Zeroizing<String> =
        Zeroizing::new(text.chars().take(column.saturating_sub(1)).collect());
    let index = before.chars().filter(|c| *c == ',').count();
    let cleaned = clean(line);
    let mut elements = after(&cleaned, b'=').split(|byte| *byte == b',');
    Zeroizing::new(elements.nth(index).unwrap_or_default().to_vec())
}

fn is_ip(text: &[u8]) -> bool {
    let text = core::str::from_utf8(text);
    text.is_ok_and(|text| text.parse::<IpAddr>().is_ok())
}

fn until(text: &[u8], end: u8) -> &[u8] {
    text.split(|byte| *byte == end).next().unwrap_or_default()
}

fn after(text: &[u8], begin: u8) -> &[u8] {
    let at = text.iter().position(|byte| *byte == begin);
    at.and_then(|at| text.get(at + 1..)).unwrap_or_default()
}
