//! Helpers for the tests of the UAPI.

mod get;
mod set;
mod set_properties;
mod stream;

use taupe_protocol::crypto::{Secret, default_provider};
use taupe_protocol::hybrid::Suite;
use taupe_protocol::key::{PqPrivateKey, PqPublicKey};

use super::{Operation, Request, RequestProblem, RequestReader, SetRequest, UapiError};

/// Returns an ML-KEM-768 key.
fn pq_key() -> PqPublicKey {
    let seed = PqPrivateKey::new(Secret::new([0x5e; 64])).expect("not zero");
    seed.public(default_provider(), Suite::Hybrid768)
}

/// Returns the key of 32 bytes `byte`, in hex.
fn hex(byte: u8) -> String {
    format!("{byte:02x}").repeat(32)
}

/// Parses the requests in `text` at once.
fn read(text: &[u8]) -> Vec<Result<Request, UapiError>> {
    let mut reader = RequestReader::new();
    let mut input = text;
    core::iter::from_fn(|| reader.push(&mut input)).collect()
}

/// Returns the only request in `text`, which must be a valid `set`.
fn set(text: &str) -> SetRequest {
    match read(text.as_bytes()).pop() {
        Some(Ok(Request::Set(request))) => request,
        Some(Err(error)) => panic!("{error}"),
        _ => panic!("not a set"),
    }
}

/// Returns the error of the only request in `text`, which must be refused.
fn refused(text: impl AsRef<[u8]>) -> UapiError {
    let mut results = read(text.as_ref());
    assert_eq!(results.len(), 1);
    match results.pop() {
        Some(Err(error)) => error,
        _ => panic!("not refused"),
    }
}
