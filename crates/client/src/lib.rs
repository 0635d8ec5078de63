//! Reads and configures running WireGuard devices: those of user-space programs through a Unix
//! socket or a Windows named pipe (<https://www.wireguard.com/xplatform/>), and the kernel's
//! through generic netlink (`linux/wireguard.h`).
//!
//! All functions block, and concern the calling thread's network namespace; sockets are those of
//! the file system that it sees. If a process listens on a name's socket, the device of that name
//! is in user space, otherwise in the kernel.

#![forbid(unsafe_code)]

mod blocks;
mod errno;
mod error;
mod extensions;
mod public_keys;
mod request;
mod resolve;
mod socket;
mod sync;
mod system;

use std::io;
use std::time::Duration;

use extensions::Extensions;
use system::{connect, is_timeout, kernel};

pub use blocks::read_blocks;
pub use errno::errno_text;
pub use error::Error;
pub use public_keys::{pq_public_key, public_key};
pub use request::{addconf_request, new_private_key, setconf_request};
pub use resolve::{ResolveError, check_retries, port, resolve, resolve_service};
pub use sync::syncconf_request;
pub use system::public::*;
pub use taupe_protocol::crypto::Secret;
pub use taupe_protocol::key::{
    KEY_LEN, PqPrivateKey, PqPublicKey, PresharedKey, PrivateKey, PublicKey,
};
pub use taupe_protocol::time::Instant;
pub use taupe_protocol::update::{
    AllowedIpChange, DeviceStatus, EndpointName, PeerStatus, PeerUpdate, PostQuantum, Suite,
};
pub use taupe_uapi::{Device, SetRequest};

/// Returns the names of all running devices in the order of `wg`: first the kernel's, then those
/// with a socket, in directory order.
///
/// Removes sockets without a listener, as `wg` does.
///
/// # Errors
/// Returns an error if one of the two lists cannot be read.
pub fn interfaces() -> io::Result<Vec<String>> {
    let mut names = kernel::interfaces()?;
    names.extend(system::interfaces()?);
    Ok(names)
}

/// Returns true if a live user-space process runs the device. The socket of a killed process exists
/// for a moment longer, so this function sends a request and waits up to `timeout` for the answer.
/// A process that does not answer in this time counts as alive.
#[must_use]
pub fn is_alive(interface: &str, timeout: Duration) -> bool {
    match connect(interface) {
        Ok(Some(stream)) => socket::is_answering(stream, timeout),
        // The process's queue of connections is full.
        Err(error) => is_timeout(&error),
        Ok(None) => false,
    }
}

/// Reads the state of a device, including keys.
///
/// # Errors
/// See [`Error`].
pub fn read(interface: &str) -> Result<Device, Error> {
    match connect(interface)? {
        Some(stream) => socket::read(stream, interface),
        None => kernel::read(interface),
    }
}

/// Changes a device.
///
/// Taupe applies a request as a whole or not at all. The kernel takes a large request in several
/// messages; if one is refused, those before it stay in effect.
///
/// Endpoint names are passed only to devices that support them. Post-quantum keys are never dropped
/// silently: if the device does not support them, the request fails.
///
/// # Errors
/// See [`Error`].
pub fn apply(interface: &str, mut request: SetRequest) -> Result<(), Error> {
    if extensions::uses_extensions(&request) {
        extensions::restrict(&mut request, supported_extensions(interface)?)?;
    }
    match connect(interface)? {
        Some(stream) => socket::apply(stream, &request),
        None => kernel::apply(interface, &request),
    }
}

/// Changes the Taupe device at the other end of a connection to its configuration socket. The
/// request, including endpoint names, is applied as a whole or not at all.
///
/// # Errors
/// See [`Error`].
pub fn apply_over(stream: Stream, request: &SetRequest) -> Result<(), Error> {
    socket::apply(stream, request)
}

/// Changes a device to match `wanted`, and leaves matching settings untouched: sessions with peers
/// that stay survive.
///
/// `wanted` lists all peers, each with `replace_allowed_ips`, as a file does. Peers that it lacks
/// are removed. A preshared key or keepalive that it lacks is removed from the peer.
///
/// # Errors
/// See [`Error`].
pub fn sync(interface: &str, wanted: SetRequest) -> Result<(), Error> {
    apply(interface, syncconf_request(&read(interface)?, wanted))
}

/// Returns the extensions that a device supports. Closes its connection on return, because a device
/// may serve one connection at a time.
fn supported_extensions(interface: &str) -> Result<Extensions, Error> {
    let Some(stream) = connect(interface)? else {
        return Ok(Extensions::default());
    };
    let device = socket::read(stream, interface)?;
    Ok(Extensions {
        endpoint_names: device.supports_endpoint_names,
        keepalive_now: device.supports_keepalive_now,
        post_quantum: device.supports_post_quantum,
    })
}
