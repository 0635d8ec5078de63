//! Timeouts and limits.

use core::time::Duration;

/// Concurrent clients. This also bounds the memory of all clients.
pub(crate) const MAX_CLIENTS: usize = 4096;

/// Time for a client to send its request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Time to connect, from the request on, including look-up and handshake. WireGuard sends three
/// initiations in that time.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Time for each address if a name has several.
pub(crate) const ADDRESS_TIMEOUT: Duration = Duration::from_secs(4);

/// Idle timeout of a connection: the least that a NAT must have (RFC 5382 REQ-5).
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

/// Idle timeout of a connection that one side has closed.
pub(crate) const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Idle time before the kernel probes a client (TCP keepalive). Without probes, an association
/// would never end if the client's machine disappeared.
pub(crate) const KEEPALIVE_IDLE: Duration = Duration::from_secs(10 * 60);

/// Time for the host to finish closing a connection.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(60);

/// Clients above which closed connections skip TIME-WAIT.
pub(crate) const SKIP_TIME_WAIT_CLIENTS: usize = 1024;

/// Time for a refused client to read the response. If the proxy closed at once, unread input would
/// turn the close into a reset, and the response would be lost.
pub(crate) const REFUSED_TIMEOUT: Duration = Duration::from_secs(2);

/// Time to the next attempt to accept clients after accepting has failed, as when no descriptors
/// are left.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(200);

/// Datagrams or connections taken from one socket before the others get a turn.
pub(crate) const BATCH: usize = 256;

/// Bytes that all incomplete fragmented packets may take together.
pub(crate) const REASSEMBLY_BYTES: usize = 1 << 20;
