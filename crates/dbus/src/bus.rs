//! Names on the message bus.

use std::pin::Pin;

use futures_core::Stream as _;
use zbus::{Message, MessageStream};

/// Name of the service on the bus.
pub(crate) const NAME: &str = "org.taupe.Service1";

/// Path of its only object.
pub(crate) const PATH: &str = "/org/taupe/Service1";

/// Interface of this object.
pub(crate) const INTERFACE: &str = "org.taupe.Service1";

/// Error of a request that the service or the front refuses.
pub(crate) const REFUSED: &str = "org.taupe.Service1.Error.Refused";

/// Error of a caller who is not authorised.
pub(crate) const NOT_AUTHORIZED: &str = "org.taupe.Service1.Error.NotAuthorized";

/// Error of a caller with too many calls.
pub(crate) const BUSY: &str = "org.taupe.Service1.Error.Busy";

/// The bus itself.
pub(crate) const BUS: &str = "org.freedesktop.DBus";

/// Path of the bus's object.
pub(crate) const BUS_PATH: &str = "/org/freedesktop/DBus";

/// Returns the next message, or `None` if the connection is closed.
pub(crate) fn next(stream: &mut MessageStream) -> Option<zbus::Result<Message>> {
    zbus::block_on(std::future::poll_fn(|context| {
        Pin::new(&mut *stream).poll_next(context)
    }))
}
