//! Resolving the peers' endpoints.

use std::net::SocketAddr;

use taupe_client::ResolveError;
use taupe_config::file::{Endpoint, File};

use crate::last_state::LastState;
use crate::machine::LookError;
use crate::report::Report;

/// Returns the reason why an endpoint has no address, with advice.
fn unresolved(host: &str, error: &ResolveError) -> String {
    match error {
        // This error includes its own advice.
        ResolveError::Retries(_) => error.to_string(),
        _ => format!(
            "{error}; correct the name, see by `getent ahosts {host}` whether this machine's name \
             servers answer, or write an address in its place"
        ),
    }
}

/// Returns the address of each peer's endpoint, in the order of the file. A name has the address of
/// `known`, if there is one.
pub(super) fn resolve(
    file: &File,
    known: Option<&LastState>,
    report: &mut dyn Report,
) -> Result<Vec<Option<SocketAddr>>, LookError> {
    let mut endpoints = Vec::with_capacity(file.peers.len());
    for peer in &file.peers {
        endpoints.push(match &peer.endpoint {
            None => None,
            Some(Endpoint::Address(address)) => Some(*address),
            Some(Endpoint::Name { host, port }) => {
                let known = known.and_then(|device| device.address(&peer.public_key, host));
                if let Some(known) = known {
                    endpoints.push(Some(SocketAddr::new(known, *port)));
                    continue;
                }
                let address = taupe_client::resolve(host, *port, &mut |line| {
                    if let Some(line) = line {
                        report.note(line);
                    }
                    !report.is_interrupted()
                });
                Some(address.map_err(|error| match error {
                    ResolveError::Interrupted => LookError::Interrupted,
                    error => LookError::Endpoint {
                        host: host.clone(),
                        port: *port,
                        line: peer.line,
                        reason: unresolved(host, &error),
                    },
                })?)
            }
        });
    }
    Ok(endpoints)
}
