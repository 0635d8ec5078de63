//! `setconf`, `addconf` and `syncconf`.

use super::value::ValueError;
use super::{Call, Command, Compatibility, Failed, Outcome, console, keys};
use crate::remarks;
use std::ffi::OsStr;
use std::fs::File as Source;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use taupe_client::ResolveError;
use taupe_config::file::{
    self, Diagnostic, DiagnosticKind, Dialect, Endpoint, File, Peer, Severity,
};
use taupe_inspect::check;
use zeroize::Zeroizing;

/// Number of bytes that are read from a file at a time.
const BLOCK: usize = 64 << 10;

/// Length from which a value may be an incomplete key.
const NEARLY_A_KEY: usize = 16;

/// Longer than the names of the keys that are compared.
const LONGEST_NAME: usize = 16;

/// Number of base64 digits from which a line without a name may be an incomplete key.
const NEARLY_A_KEY_ALONE: usize = keys::TEXT - 8;

pub(super) fn apply(call: &Call<'_>) -> Outcome {
    let [interface, path] = call.rest else {
        return Err(call.misused());
    };
    let interface = interface.to_string_lossy();
    let text = read(path).map_err(|error| {
        let errno = error.raw_os_error().unwrap_or_default();
        let wg = format!("fopen: {}", taupe_client::errno_text(errno));
        call.failed(wg.as_bytes(), || {
            format!("{} cannot be read: {error}", path.display())
        })
    })?;
    let file = parse(call, path, &text)?;
    let endpoints = resolve(call, path, &file)?;
    let modify = |error| call.refused("Unable to modify interface", &interface, &error);
    let mut request = match call.command {
        Command::Addconf => taupe_client::addconf_request(&file, &endpoints),
        _ => taupe_client::setconf_request(&file, &endpoints),
    };
    // `wg` does not know the ML-KEM key, so called as `wg` the program leaves it unchanged.
    if (call.compatibility, call.command) == (Compatibility::Taupe, Command::Setconf) {
        request.device.pq_private_key.get_or_insert(None);
    }
    // A file without peers needs no comparison.
    let request = if call.command == Command::Syncconf && !file.peers.is_empty() {
        let device = taupe_client::read(&interface).map_err(|error| {
            let trying = "Unable to retrieve current interface configuration";
            call.refused(trying, &interface, &error)
        })?;
        taupe_client::syncconf_request(&device, request)
    } else {
        request
    };
    taupe_client::apply(&interface, request).map_err(modify)
}

/// Reads a file completely, or up to a length that is too long for any configuration.
fn read(path: &OsStr) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut source = Source::open(path)?;
    let mut text = Zeroizing::new(vec![0; BLOCK]);
    let mut length = 0;
    loop {
        let room = text.get_mut(length..).unwrap_or_default();
        let count = keys::fill(&mut source, room)?;
        length += count;
        if length < text.len() || length > file::MAX_FILE {
            text.truncate(length);
            return Ok(text);
        }
        // If the buffer grew in place, it could leave copies of keys behind.
        let mut larger = Zeroizing::new(vec![0; text.len() * 2]);
        if let Some(beginning) = larger.get_mut(..length) {
            beginning.copy_from_slice(&text);
        }
        text = larger;
    }
}

/// Parses a file, or prints everything that is wrong with it. Called as `wg`, prints only the
/// message of `wg`.
fn parse(call: &Call<'_>, path: &OsStr, text: &[u8]) -> Result<File, Failed> {
    let dialect = match call.compatibility {
        Compatibility::Wg => Dialect::Wg,
        Compatibility::Taupe => Dialect::Setconf,
    };
    let parsed = check::parse(Path::new(path), text, dialect);
    match call.compatibility {
        Compatibility::Wg => {
            let first = first_error(&parsed.diagnostics);
            let before = |one: &&Diagnostic| {
                first.is_none_or(|error| {
                    error.kind == DiagnosticKind::NoPublicKey || one.line <= error.line
                })
            };
            let warnings = parsed
                .diagnostics
                .iter()
                .filter(|one| one.severity == Severity::Warning);
            for one in warnings.filter(before).chain(first) {
                if let Some(message) = message(text, one) {
                    console::complain(&message);
                } else if one.severity == Severity::Error {
                    console::complain(format!("{}\n", one).as_bytes());
                }
            }
            if let Some(error) = first {
                console::complain(if error.kind == DiagnosticKind::NoPublicKey {
                    b"Invalid configuration\n"
                } else {
                    b"Configuration parsing error\n"
                });
            }
        }
        Compatibility::Taupe => {
            for one in &parsed.diagnostics {
                let Diagnostic {
                    line,
                    column,
                    severity,
                    kind,
                } = one;
                let path = path.display();
                let fix = kind.fix();
                let advice = remarks::command(kind, file::Compatibility::Taupe)
                    .map(|advice| format!(" ({advice})"))
                    .unwrap_or_default();
                let message =
                    format!("{path}:{line}:{column}: {severity}: {kind}; {fix}{advice}\n");
                console::complain(message.as_bytes());
            }
        }
    }
    parsed.file.ok_or(Failed)
}

/// Returns the error at which `wg` stops. `wg` checks last for a missing public key.
fn first_error(diagnostics: &[Diagnostic]) -> Option<&Diagnostic> {
    let errors = || {
        diagnostics
            .iter()
            .filter(|one| one.severity == Severity::Error)
    };
    let mut others = errors().filter(|one| one.kind != DiagnosticKind::NoPublicKey);
    others.next().or_else(|| errors().next())
}

/// Returns the message of `wg` with its line feed, but without secret keys, because standard error
/// may be a log.
fn message(text: &[u8], one: &Diagnostic) -> Option<Zeroizing<Vec<u8>>> {
    let said = file::wg_message(text, one)?;
    let (before, quoted) = match said.iter().position(|byte| *byte == b'`') {
        Some(mark) => said.split_at(mark + 1),
        None => (said.as_slice(), &[][..]),
    };
    let quoted = quoted.strip_suffix(b"'").unwrap_or(quoted);
    let line = text
        .split(|byte| *byte == b'\n')
        .nth(one.line.checked_sub(1)?)?;
    let line = line.iter().filter(|byte| !keys::is_blank(**byte));
    let line = line.take_while(|byte| **byte != b'=');
    let mut key = Zeroizing::new(Vec::with_capacity(LONGEST_NAME));
    key.extend(line.take(LONGEST_NAME).map(u8::to_ascii_lowercase));
    // The message quotes either the whole line or the value.
    let name = match quoted.get(..=key.len()) {
        Some(name) if name.eq_ignore_ascii_case(&[&key, &b"="[..]].concat()) => name,
        _ => &[],
    };
    let value = quoted.get(name.len()..).unwrap_or_default();
    let is_secret = match key.as_slice() {
        b"privatekey" | b"presharedkey" => value.len() >= NEARLY_A_KEY,
        b"publickey" => false,
        _ => quoted.len() >= NEARLY_A_KEY_ALONE && is_base64(quoted),
    };
    Some(Zeroizing::new(if is_secret {
        [before, name, b"(hidden)'\n"].concat()
    } else {
        [&said, &b"\n"[..]].concat()
    }))
}

fn is_base64(text: &[u8]) -> bool {
    let digit = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let text = text.strip_suffix(b"=").unwrap_or(text);
    text.iter().all(digit)
}

/// Returns the addresses of the endpoints, in the order of the file.
fn resolve(call: &Call<'_>, path: &OsStr, file: &File) -> Result<Vec<Option<SocketAddr>>, Failed> {
    let address = |peer: &Peer| match &peer.endpoint {
        None => Ok(None),
        Some(endpoint @ Endpoint::Address(address)) => {
            let checked = taupe_client::check_retries();
            checked.map_err(|error| unresolved(call, path, peer, endpoint, error))?;
            Ok(Some(*address))
        }
        Some(endpoint @ Endpoint::Name { host, port }) => {
            let waiting = &mut |line: Option<&str>| {
                if let Some(line) = line {
                    console::complain(format!("{line}\n").as_bytes());
                }
                true
            };
            let found = taupe_client::resolve(host, *port, waiting);
            found
                .map(Some)
                .map_err(|error| unresolved(call, path, peer, endpoint, error))
        }
    };
    file.peers.iter().map(address).collect()
}

fn unresolved(
    call: &Call<'_>,
    path: &OsStr,
    peer: &Peer,
    endpoint: &Endpoint,
    error: ResolveError,
) -> Failed {
    let is_parsing = !matches!(error, ResolveError::Retries(_));
    let invalid = ValueError::Endpoint {
        value: endpoint.to_string().into_bytes(),
        error,
    };
    let mut wg = invalid.wg();
    if is_parsing {
        wg.extend_from_slice(b"\nConfiguration parsing error");
    }
    call.failed(&wg, || {
        let (path, line) = (path.display(), peer.line);
        format!("{path}:{line}: {}", invalid.taupe())
    })
}
