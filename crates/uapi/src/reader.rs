//! Parses requests from the bytes of a connection.

use core::mem;

use zeroize::{Zeroize, Zeroizing};

use crate::error::{RequestProblem, UapiError};
use crate::request::{MAX_LINE, MAX_REQUEST, Operation, Request, ScopeLookup, SetRequest};
use crate::set;

/// The longest key name that an error repeats: longer than every known name, and shorter than an
/// encoded 32-byte key.
const MAX_QUOTED_KEY: usize = 32;

/// Incremental parser of a stream of requests.
///
/// Stores at most one incomplete line and the parsed lines of one request. A request that never
/// ends returns nothing: drop the reader when the connection ends.
pub struct RequestReader<'a> {
    /// The beginning of an incomplete line. Its capacity is never exceeded: reallocation would
    /// leave copies of secrets in freed memory.
    partial: Zeroizing<Vec<u8>>,
    /// Number of complete lines of this request.
    lines: usize,
    /// Bytes received of this request.
    bytes: usize,
    state: State,
    scopes: ScopeLookup<'a>,
}

enum State {
    /// Between requests.
    Idle,
    Get,
    Set(SetRequest),
    /// The rest of the request is skipped.
    Refused(UapiError),
}

impl<'a> RequestReader<'a> {
    /// Creates a reader for the beginning of a connection.
    #[must_use]
    pub fn new() -> Self {
        Self {
            partial: Zeroizing::new(Vec::with_capacity(MAX_LINE)),
            lines: 0,
            bytes: 0,
            state: State::Idle,
            scopes: &|_| None,
        }
    }

    /// Accepts names of interfaces as IPv6 scopes (`[fe80::1%eth0]:51820`), the only form that `wg`
    /// sends. Without this, such names are refused.
    #[must_use]
    pub fn with_scopes(mut self, scopes: ScopeLookup<'a>) -> Self {
        self.scopes = scopes;
        self
    }

    /// Consumes bytes from the front of `input` up to the end of a request, and returns the
    /// request. Returns `None` if `input` ends first. Call it until it returns `None`.
    ///
    /// A blank line ends a request; blank lines between requests are ignored. A carriage return
    /// before the line feed is dropped, as in wireguard-go. `input` may contain secrets: its owner
    /// must zeroise it.
    ///
    /// # Errors
    /// Returns the first error of the request, once its end has been received. The next call reads
    /// the next request.
    pub fn push(&mut self, input: &mut &[u8]) -> Option<Result<Request, UapiError>> {
        while !input.is_empty() {
            let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
                self.buffer(mem::take(input));
                return None;
            };
            let (piece, rest) = input.split_at(end);
            *input = rest.get(1..).unwrap_or_default();
            if let Some(result) = self.end_line(piece) {
                return Some(result);
            }
        }
        None
    }

    /// Stores a piece of an incomplete line.
    fn buffer(&mut self, piece: &[u8]) {
        self.count(piece.len());
        let room = MAX_LINE - self.partial.len();
        if piece.len() > room {
            self.refuse("", RequestProblem::LineTooLong);
        }
        self.partial
            .extend_from_slice(piece.get(..room).unwrap_or(piece));
    }

    /// Handles the line that ends with `piece`.
    fn end_line(&mut self, piece: &[u8]) -> Option<Result<Request, UapiError>> {
        if self.partial.is_empty() {
            self.count(piece.len() + 1);
            if piece.len() > MAX_LINE {
                self.refuse("", RequestProblem::LineTooLong);
            }
            return self.line(piece);
        }
        self.buffer(piece);
        self.count(1);
        let mut line = mem::take(&mut self.partial);
        let result = self.line(&line);
        line.zeroize();
        self.partial = line;
        result
    }

    fn count(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > MAX_REQUEST {
            self.refuse("", RequestProblem::RequestTooLong);
        }
    }

    fn line(&mut self, line: &[u8]) -> Option<Result<Request, UapiError>> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return self.end_request();
        }
        match &mut self.state {
            State::Idle => match line {
                b"get=1" => self.state = State::Get,
                b"set=1" => self.state = State::Set(SetRequest::default()),
                _ => self.refuse("", RequestProblem::UnknownOperation),
            },
            State::Get => self.refuse("", RequestProblem::LineAfterGet),
            State::Set(request) => {
                if let Err((key, problem)) = set::apply(request, line, self.scopes) {
                    self.refuse(key, problem);
                }
            }
            State::Refused(_) => {}
        }
        self.lines += 1;
        None
    }

    fn end_request(&mut self) -> Option<Result<Request, UapiError>> {
        self.lines = 0;
        self.bytes = 0;
        match mem::replace(&mut self.state, State::Idle) {
            State::Idle => None,
            State::Get => Some(Ok(Request::Get)),
            State::Set(request) => Some(Ok(Request::Set(request))),
            State::Refused(error) => Some(Err(error)),
        }
    }

    /// Refuses the request, unless it is refused already: only the first error is reported.
    fn refuse(&mut self, key: &str, problem: RequestProblem) {
        let operation = match self.state {
            State::Idle => None,
            State::Get => Some(Operation::Get),
            State::Set(_) => Some(Operation::Set),
            State::Refused(_) => return,
        };
        self.state = State::Refused(UapiError {
            operation,
            line: self.lines + 1,
            key: quotable(key).to_owned(),
            problem,
        });
    }
}

impl Default for RequestReader<'_> {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns the key if it looks like one, so that no misplaced secret is repeated.
fn quotable(key: &str) -> &str {
    let plausible = key
        .bytes()
        .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    if plausible && key.len() <= MAX_QUOTED_KEY {
        key
    } else {
        ""
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Advances the count instead of sending 256 MiB.
    #[test]
    fn longest_request() {
        let end = b"replace_peers=true\n\n";
        for (excess, expected) in [(0, None), (1, Some(RequestProblem::RequestTooLong))] {
            for piece in [1, end.len()] {
                let mut reader = RequestReader::new();
                assert!(reader.push(&mut b"set=1\n".as_slice()).is_none());
                assert_eq!(reader.bytes, 6);
                reader.bytes = MAX_REQUEST - end.len() + excess;
                let result = end
                    .chunks(piece)
                    .find_map(|mut piece| reader.push(&mut piece))
                    .expect("the request has ended");
                assert_eq!(result.err().map(|error| error.problem), expected);
                // The next request may have the full length again.
                assert!(matches!(
                    reader.push(&mut b"set=1\n\n".as_slice()),
                    Some(Ok(_))
                ));
            }
        }
    }
}
