//! The configuration of a device by its clients: the conversation on a connection, and refusals.

use std::fmt;
use std::io::{self, Read, Write};

use taupe_uapi::{Errno, Operation, Request, RequestReader, ScopeLookup, Status, UapiError};
use tracing::warn;
use zeroize::Zeroizing;

use crate::clients::Place;
use crate::services::PrepareError;

/// Bytes read at once from a client.
const CHUNK: usize = 64 * 1024;

/// Why a `set` is not carried out.
pub struct Refusal {
    status: Status,
    /// For people, on one line.
    reason: Option<String>,
}

impl Refusal {
    /// With words for what the number does not say.
    pub fn with_reason(errno: Errno, reason: &dyn fmt::Display) -> Self {
        let on_one_line = |c: char| if c.is_control() { '?' } else { c };
        Self {
            status: Operation::Set.failed(errno),
            reason: Some(reason.to_string().chars().map(on_one_line).collect()),
        }
    }

    /// The answer: its number, as wireguard-go gives it, and where clients read no further, a
    /// line for people.
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

/// The answer to what is no request. After `set` it names the line and the key.
fn refusal(error: &UapiError) -> String {
    match error.operation {
        Some(Operation::Set) => Refusal::with_reason(error.errno(), error).answer(),
        _ => error.status().to_string(),
    }
}

/// Reads a client's requests and writes what is answered to each, until the connection ends.
/// `answer` is `None` when there is nobody any more who could. Names of interfaces in addresses
/// are found by `scopes`. Reads and writes of `stream` time out as [`crate::clients::TICK`] says.
///
/// # Errors
///
/// The connection's, and [`io::ErrorKind::TimedOut`] when the client is silent for too long.
pub fn converse<S: Read + Write>(
    stream: &mut S,
    place: &Place,
    scopes: ScopeLookup,
    mut answer: impl FnMut(Request) -> Option<Zeroizing<String>>,
) -> io::Result<()> {
    let mut reader = RequestReader::new().with_scopes(scopes);
    let mut buffer = Zeroizing::new(vec![0; CHUNK]);
    loop {
        let length = place.persist(|| stream.read(&mut buffer))?;
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
                    write_all(stream, place, answer.as_bytes())?;
                }
                Err(error) => {
                    warn!(%error, "configuration refused");
                    write_all(stream, place, refusal(&error).as_bytes())?;
                }
            }
        }
    }
}

/// Writes all of `bytes`. A client is silent while it reads nothing.
fn write_all<S: Write>(stream: &mut S, place: &Place, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let written = place.persist(|| stream.write(bytes))?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Logs why a device cannot have an update, and returns the answer to the client.
pub fn refuse(error: impl Into<PrepareError>) -> Refusal {
    let error = error.into();
    warn!(%error, "configuration refused");
    match error {
        PrepareError::Update(_) => Errno::Invalid.into(),
        PrepareError::Unreadable(error) => Refusal::with_reason(Errno::Io, &error),
    }
}
