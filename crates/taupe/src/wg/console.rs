//! Standard output and standard error.

use super::{Failed, Outcome};
use crate::system;
use std::fmt;
use std::io::{self, IsTerminal as _, Write as _};
use taupe_uapi::show::Colours;
use zeroize::Zeroizing;

/// Number of bytes that are buffered before a write.
const BLOCK: usize = 16 << 10;

/// Standard output for secrets. It leaves no copy of the output in memory.
pub(super) struct Output {
    buffer: Zeroizing<Vec<u8>>,
    failure: Option<io::Error>,
}

impl Output {
    pub(super) fn new() -> Self {
        Self {
            buffer: Zeroizing::new(Vec::with_capacity(BLOCK)),
            failure: None,
        }
    }

    /// Writes what is left in the buffer. Prints an error, unless the reader has closed the pipe.
    pub(super) fn finish(mut self) -> Outcome {
        self.flush();
        match self.failure {
            None => Ok(()),
            Some(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failed),
            Some(error) => {
                complain(format!("cannot write to standard output: {error}\n").as_bytes());
                Err(Failed)
            }
        }
    }

    fn flush(&mut self) {
        if self.failure.is_none() && !self.buffer.is_empty() {
            let written = system::stdout().and_then(|mut out| out.write_all(&self.buffer));
            self.failure = written.err();
        }
        self.buffer.clear();
    }

    fn push(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.buffer.len() == BLOCK {
                self.flush();
            }
            let room = BLOCK - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
        }
    }
}

impl fmt::Write for Output {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        match &self.failure {
            None => Ok(()),
            Some(_) => Err(fmt::Error),
        }
    }
}

pub(super) fn print(bytes: Vec<u8>) -> Outcome {
    let mut output = Output::new();
    output.push(&bytes);
    output.finish()
}

pub(super) fn complain(message: &[u8]) {
    // If this fails, there is no other place for the message.
    let _ = io::stderr().write_all(message);
}

/// Checks whether standard output gets colours.
pub(super) fn colours() -> Colours {
    let mode = std::env::var_os("WG_COLOR_MODE");
    let on = match mode.as_ref().and_then(|mode| mode.to_str()) {
        Some("always") => true,
        Some("never") => false,
        _ => io::stdout().is_terminal(),
    };
    if on { Colours::On } else { Colours::Off }
}
