//! How long, and how many.

use core::time::Duration;

/// Clients at once. The memory that all of them have is bounded with it.
pub(crate) const MAX_CLIENTS: usize = 4096;

/// For how long a client may say what it wants.
pub(crate) const ASKING: Duration = Duration::from_secs(30);

/// How long a connection may take, from the request on: handshake, name and all. WireGuard
/// tries three times in that.
pub(crate) const CONNECTING: Duration = Duration::from_secs(15);

/// How long one of several addresses has.
pub(crate) const ONE_ADDRESS: Duration = Duration::from_secs(4);

/// How long nothing may flow: as long as a translator of addresses has to wait (RFC 5382
/// REQ-5).
pub(crate) const IDLE: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

/// The same when one side has nothing more to say.
pub(crate) const HALF_IDLE: Duration = Duration::from_secs(30 * 60);

/// How long a client is silent before its system is asked whether it is still there. By
/// nothing else would an association end whose client's machine has gone.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(10 * 60);

/// How long the other side of a connection that has ended has for its last words.
pub(crate) const LINGERING: Duration = Duration::from_secs(60);

/// Clients beyond which no connection waits for stray segments when it has ended.
pub(crate) const MANY_CLIENTS: usize = 1024;

/// How long a client that was refused has to read why: closed at once, with something of it
/// unread, the connection would be reset and the answer lost.
pub(crate) const PARTING: Duration = Duration::from_secs(2);

/// From one try to accept connections to the next, when there are no descriptors left.
pub(crate) const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// Datagrams and connections taken from one socket before others are looked at.
pub(crate) const AT_ONCE: usize = 256;

/// Bytes that all packets of which fragments are missing may take.
pub(crate) const REASSEMBLY_BYTES: usize = 1 << 20;
