//! WireGuard's cross-platform userspace configuration protocol (UAPI), by which `wg` talks to a
//! device (<https://www.wireguard.com/xplatform/>).
//!
//! A request is `get=1` or `set=1`, and lines of `key=value` up to a blank line. The answer ends
//! with `errno=N` and a blank line. [`RequestReader`] parses requests from the bytes of a
//! connection. [`answer_get`] and [`Status`] are the answers.
//!
//! A `set` is a transaction: it is parsed completely before any of it is applied, and one invalid
//! line refuses all of it. This is stricter than wireguard-go, which applies the lines before the
//! invalid one.
//!
//! # Taupe's additional keys
//!
//! The first line of the answer to `get` is `features=endpoint_name keepalive_now post_quantum`. It names the
//! extensions that a `set` may use. Devices of other programs lack the line and refuse these keys.
//! `wg` ignores unknown keys in an answer.
//!
//! - `counter=GROUP NAME N` (device, `get`): events since the device was started, if N is not 0. Groups
//!   are `drop` (names: [`DropReason::code`](taupe_protocol::DropReason::code)), `handshake`
//!   ([`HandshakeResult::code`](taupe_protocol::HandshakeResult::code)) and `queue`. In the groups
//!   `handshake-time` and `queue-time`, a name is the greatest duration of a range in microseconds
//!   ([`Durations::BOUNDS`](taupe_protocol::Durations::BOUNDS)), `more` for longer ones; `sum` is the sum
//!   of all durations in microseconds. The group `device` has the number of `lanes`.
//! - `endpoint_name=HOST:PORT` (peer, `set` and `get`): the name that is resolved again when the
//!   peer does not answer. In `set` it comes with or without an `endpoint`, in `get` after it. An
//!   empty value, or an `endpoint` alone, removes the name. A name without an endpoint has no
//!   effect until it is resolved.
//! - `keepalive_now=true` (peer, `set`): an empty packet is sent at once, which begins a handshake if
//!   there is no session.
//! - `pq_private_key=HEX` (device, `set` and `get`): the 64-byte ML-KEM seed
//!   (docs/post-quantum.md). All zeros remove it.
//! - `pq_public_key=HEX` (peer, `set` and `get`): the ML-KEM key. An empty value removes it.
//! - `post_quantum=require|prefer|off` (peer, `set` and `get`), and `default` in `set`, which
//!   restores the default.
//! - `pq_latched=true` (peer, `get`): the mode is `prefer`, but is pinned and thus as strict as
//!   `require`.
//! - `unanswered=N TIME` (peer, `get`): the peer has not answered the last N initiations, the first
//!   of which was sent at TIME of the boot clock, in nanoseconds. Absent if N is 0.
//! - `session=NAME TIME` (peer, `get`): the current sending session, whose keys were derived at
//!   TIME by a hybrid handshake of the suite NAME, or by an `ordinary` handshake. It expires 180 s
//!   later.

#![forbid(unsafe_code)]

mod answer;
mod error;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod key;
pub mod network_set;
pub mod networks;
pub mod prefix;
mod print;
mod reader;
mod request;
mod set;
pub mod show;
pub mod text;

pub use answer::{AnswerError, Counter, Device, GetAnswer, SetAnswer, push_peer, since_epoch};
pub use error::{Errno, RequestProblem, Status, UapiError};
pub use print::{answer_get, answer_get_with, set_text, write_get, write_set};
pub use reader::RequestReader;
pub use request::{MAX_LINE, MAX_REQUEST, Operation, Request, ScopeLookup, SetRequest};

#[cfg(test)]
mod tests;
