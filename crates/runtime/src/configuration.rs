//! Configuration of a device by its clients: requests and answers on a connection, and refusals.

use std::fmt;
use std::io::{self, Read, Write};

use taupe_protocol::crypto::{HANDSHAKE_STACK, erase_dead_stack};
use taupe_uapi::{Errno, Operation, Request, RequestReader, ScopeLookup, Status, UapiError};
use tracing::warn;
use zeroize::Zeroizing;

use crate::clients::ClientSlot;
use crate::services::PrepareError;

/// Bytes of one read from a client.
const CHUNK: usize = 64 * 1024;

/// Refusal of a `set` request.
pub struct Refusal {
    status: Status,
    /// A reason for people, on one line.
    reason: Option<String>,
}

impl Refusal {
    /// Returns a refusal with a reason in words, for errors that the number does not explain.
    pub fn with_reason(errno: Errno, reason: &dyn fmt::Display) -> Self {
        let on_one_line = |c: char| if c.is_control() { '?' } else { c };
        Self {
            status: Operation::Set.failed(errno),
            reason: Some(reason.to_string().chars().map(on_one_line).collect()),
        }
    }

    /// Returns the answer: the number that wireguard-go gives, and behind it, where other clients
    /// do not read, a line with the reason.
    pub fn answer(&self) -> String {
        let status = self.status.to_string();
        match &self.reason {
            Some(reason) => format!("{}\nerror={reason}\n\n", status.trim_end()),
            None => status,
        }
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self {
            status: Operation::Set.failed(errno),
            reason: None,
        }
    }
}

/// Returns the answer to an invalid request. For `set` it names the line and the key.
fn refusal(error: &UapiError) -> String {
    match error.operation {
        Some(Operation::Set) => Refusal::with_reason(error.errno(), error).answer(),
        _ => error.status().to_string(),
    }
}

/// Reads a client's requests and writes the answer to each, until the connection ends.
///
/// `answer` returns `None` if the device has ended. `scopes` resolves interface names in addresses.
/// Reads and writes of `stream` must have the timeout [`crate::clients::TICK`].
///
/// # Errors
///
/// The connection's error, or [`io::ErrorKind::TimedOut`] if the client is idle for too long.
pub fn serve_client<S: Read + Write>(
    stream: &mut S,
    slot: &ClientSlot,
    scopes: ScopeLookup<'_>,
    mut answer: impl FnMut(Request) -> Option<Zeroizing<String>>,
) -> io::Result<()> {
    let mut reader = RequestReader::new().with_scopes(scopes);
    let mut buffer = Zeroizing::new(vec![0; CHUNK]);
    loop {
        let length = slot.retry(|| stream.read(&mut buffer))?;
        if length == 0 {
            return Ok(());
        }
        let mut input = &buffer[..length];
        while let Some(result) = reader.push(&mut input) {
            match result {
                Ok(request) => {
                    let Some(answer) = answer(request) else {
                        return Ok(());
                    };
                    write_all(stream, slot, answer.as_bytes())?;
                }
                Err(error) => {
                    warn!(%error, "configuration refused");
                    write_all(stream, slot, refusal(&error).as_bytes())?;
                }
            }
        }
        // Keys of the requests have passed through functions that have returned.
        erase_dead_stack::<HANDSHAKE_STACK>();
    }
}

/// Writes all of `bytes`. A client that does not read counts as idle.
fn write_all<S: Write>(stream: &mut S, slot: &ClientSlot, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = slot.retry(|| stream.write(bytes))?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Logs the reason for which an update is refused, and returns the answer for the client.
pub fn refuse(error: impl Into<PrepareError>) -> Refusal {
    let error = error.into();
    warn!(%error, "configuration refused");
    match error {
        PrepareError::Update(_) => Errno::Invalid.into(),
        PrepareError::PinnedPeers(error) => Refusal::with_reason(Errno::Io, &error),
    }
}
