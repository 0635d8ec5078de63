//! WireGuard's cross-platform userspace protocol, with which `wg` talks to a
//! device (<https://www.wireguard.com/xplatform/>).
//!
//! A request is `get=1` or `set=1` and lines of `key=value` up to a blank line.
//! The answer ends with `errno=N` and a blank line. [`RequestReader`] turns the
//! bytes of a connection into requests, [`answer_get`] and [`Status`] are the
//! answers.
//!
//! A `set` is a transaction: it is read whole before anything of it can be
//! applied, and one wrong line refuses all of it. This is stricter than
//! wireguard-go, which applies the lines before the wrong one.
//!
//! Of Taupe's own, too, is `unanswered=N TIME` of a peer in the answer to `get`: so many
//! initiations have been sent since anything was heard of it, unless that is none, and the
//! first at this time of the boot clock in nanoseconds; and `session=NAME TIME` of one to which
//! packets are sent with a session whose keys were derived at this time, by a hybrid handshake of
//! the suite NAME, or `ordinary`. It cannot be used any more 180 s later.
//!
//! One key is Taupe's own in both directions: `endpoint_name=HOST:PORT` for a peer, in `set` with or
//! without its `endpoint`, and in `get` after it. It is the name by which the
//! endpoint is found again when the peer does not answer; nothing after the
//! `=`, or an `endpoint` alone, forgets it. A name without any endpoint reaches
//! nobody until somebody resolves it. `wg` passes over keys that it
//! does not know in the answer to `get`, but a device of another make refuses a
//! `set` that has the key: the first line of the answer to `get`,
//! `features=endpoint_name post_quantum`, says that this one does not.
//!
//! Of hybrid handshakes (docs/post-quantum.md) there are, in `set` and `get`,
//! `pq_private_key=HEX` of the device: the 64 bytes of the seed, of which zeros mean none;
//! and of a peer `pq_public_key=HEX`, an ML-KEM key of which nothing after the `=` takes it
//! away, and `post_quantum=require|prefer|off`, or `default` in `set` for what holds when
//! nothing is said. In `get` alone there is `pq_latched=true` of a peer that is preferred
//! to be hybrid and has become as strict as `require`.

#![forbid(unsafe_code)]

mod answer;
mod error;
#[cfg(any(test, feature = "testing"))]
pub mod fuzzing;
pub mod key;
pub mod networks;
pub mod prefix;
mod print;
mod reader;
mod set;
pub mod show;

use taupe_protocol::update::DeviceUpdate;

pub use answer::{AnswerError, Device, GetAnswer, SetAnswer, push_peer, since_epoch};
pub use error::{Cause, Errno, Status, UapiError};
pub use print::{answer_get, write_get, write_set};
pub use reader::{MAX_LINE, MAX_REQUEST, RequestReader, ScopeLookup};

/// What a request wants, without its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// `get=1`.
    Get,
    /// `set=1`.
    Set,
}

/// A whole, valid request.
pub enum Request {
    /// Tell everything about the device.
    Get,
    /// Change the device.
    Set(SetRequest),
}

/// The content of a `set`.
#[derive(Default)]
pub struct SetRequest {
    /// Binds the sockets to this UDP port; 0 lets the system choose.
    pub listen_port: Option<u16>,
    /// Marks the packets that carry the tunnel; 0 is off.
    pub fwmark: Option<u32>,
    /// Everything that concerns keys and peers. The private key's
    /// `timestamp_floor` is zero: the UAPI does not carry it.
    pub device: DeviceUpdate,
}

#[cfg(test)]
mod tests;
