//! Timeouts of clients.

use core::time::Duration;

/// Time for a client to send its request.
pub(crate) const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Idle timeout of a connection: the least that a NAT must have (RFC 5382 REQ-5).
pub(crate) const IDLE_TIMEOUT: Duration = Duration::from_secs(2 * 3600 + 4 * 60);

/// Idle timeout of a connection that one side has closed.
pub(crate) const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Idle time before a client or a host is probed (TCP keepalive): by the kernel, or by the stack in
/// the tunnel. Without probes, an association would never end if the client's machine disappeared, and
/// the connection to a host that has restarted would hold buffers for [`IDLE_TIMEOUT`] without a
/// word to the client.
pub(crate) const KEEPALIVE_IDLE: Duration = Duration::from_secs(10 * 60);

/// Time for a refused client to read the response. If the proxy closed at once, unread input would
/// turn the close into a reset, and the response would be lost.
pub(crate) const REFUSED_TIMEOUT: Duration = Duration::from_secs(2);

/// Time to the next attempt to accept clients after accepting has failed, as when no descriptors
/// are left.
pub(crate) const ACCEPT_RETRY: Duration = Duration::from_millis(200);
