//! Timeouts and limits that all users share.

use core::time::Duration;

/// Time to connect, from the request on, including look-up and handshake. WireGuard sends three
/// initiations in that time.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Time for each address if a name has several.
pub const ADDRESS_TIMEOUT: Duration = Duration::from_secs(4);

/// Time for the other side of a closed connection to acknowledge more data, or to close too.
pub const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Time from the close of a connection until it ends, also if the other side acknowledges data.
pub const CLOSE_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Connections or clients of one tunnel. This also bounds the memory of all of them.
pub const MAX_CONNECTIONS: usize = 4096;

/// Connections above which closed ones skip TIME-WAIT, and end after [`CLOSE_TIMEOUT`] at the
/// latest.
pub const SKIP_TIME_WAIT: usize = 1024;

/// Datagrams or connections taken from one socket before the others get a turn.
pub const BATCH: usize = 256;

/// Bytes that all incomplete fragmented packets may take together.
pub(crate) const REASSEMBLY_BYTES: usize = 1 << 20;
