//! Reads and configures running WireGuard devices, whoever runs them: a program
//! in user space, through its socket, on Windows its named pipe
//! (<https://www.wireguard.com/xplatform/>), or the kernel, through generic netlink
//! (`linux/wireguard.h`).
//!
//! Everything blocks, and concerns the calling thread's network namespace;
//! sockets are those of the file system that it sees. A name that has a socket
//! on which somebody listens is a device in user space, any other the kernel's.

#![forbid(unsafe_code)]

mod error;
mod extras;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(not(target_os = "linux"))]
mod no_kernel;
mod request;
mod resolve;
mod socket;
mod sync;
pub mod zone;

use std::io;
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::Duration;

use taupe_protocol::crypto::default_provider;

use extras::Features;
#[cfg(not(target_os = "linux"))]
use no_kernel as kernel;

pub use error::{Error, text as errno_text};
pub use request::{addition, new_private_key, request};
pub use resolve::{ResolveError, check_retries, port, resolve, resolve_service};
#[cfg(unix)]
pub use socket::connect_to;
pub use sync::difference;
pub use taupe_protocol::crypto::Secret;
pub use taupe_protocol::key::{
    KEY_LEN, PqPrivateKey, PqPublicKey, PresharedKey, PrivateKey, PublicKey,
};
pub use taupe_protocol::time::Instant;
pub use taupe_protocol::update::{
    AllowedIpChange, DeviceStatus, EndpointName, PeerStatus, PeerUpdate, PostQuantum, Prefix, Suite,
};
pub use taupe_uapi::{Device, SetRequest};

/// The names of all running devices, in the order in which `wg` lists them:
/// first the kernel's, then those that have a socket, as the directory has
/// them.
///
/// A socket that nobody listens on any more is removed, as `wg` does.
///
/// # Errors
/// When one of the two lists cannot be read.
pub fn interfaces() -> io::Result<Vec<String>> {
    let mut names = kernel::interfaces()?;
    names.extend(socket::interfaces()?);
    Ok(names)
}

/// Checks whether a program in user space is that device, and lives: one that was killed has
/// its socket for a moment longer. Waits for an answer for `patience`, after which it
/// counts as one that lives.
#[must_use]
pub fn lives(interface: &str, patience: Duration) -> bool {
    match socket::connect(interface) {
        Ok(Some(stream)) => socket::answers(stream, patience),
        // Its queue is full.
        Err(error) => socket::is_silence(&error),
        Ok(None) => false,
    }
}

/// Reads everything about a device, keys included.
///
/// # Errors
/// See [`Error`].
pub fn read(interface: &str) -> Result<Device, Error> {
    match socket::connect(interface)? {
        Some(stream) => socket::read(stream, interface),
        None => kernel::read(interface),
    }
}

/// Changes a device.
///
/// A Taupe applies all of it or nothing. The kernel takes a large request in
/// several pieces: when one is refused, those before it stay.
///
/// Names of endpoints are passed on to a device that takes them, and left out
/// for any other. Hybrid handshakes are not left out silently: a device that has none
/// refuses.
///
/// # Errors
/// See [`Error`].
pub fn apply(interface: &str, mut request: SetRequest) -> Result<(), Error> {
    if extras::are_in(&request) {
        extras::fit(&mut request, features(interface)?)?;
    }
    match socket::connect(interface)? {
        Some(stream) => socket::apply(stream, &request),
        None => kernel::apply(interface, &request),
    }
}

/// Changes the Taupe at the other end of a connection to its configuration socket: all of
/// the request, names of endpoints too, or nothing.
///
/// # Errors
/// See [`Error`].
#[cfg(unix)]
pub fn apply_over(stream: UnixStream, request: &SetRequest) -> Result<(), Error> {
    socket::apply(stream, request)
}

/// Makes a device what `wanted` says, without touching what is so already:
/// sessions with peers that stay go on.
///
/// `wanted` lists the peers as a file does, every one of them with
/// `replace_allowed_ips`. Peers that are not in it are removed; a preshared
/// key or a keepalive that it does not have is taken away.
///
/// # Errors
/// See [`Error`].
pub fn sync(interface: &str, wanted: SetRequest) -> Result<(), Error> {
    apply(interface, difference(&read(interface)?, wanted))
}

/// The public key that belongs to a private one, clamped or not (X25519,
/// RFC 7748).
#[must_use]
pub fn public_key(private: &[u8; KEY_LEN]) -> PublicKey {
    PublicKey(default_provider().dh.public(private))
}

/// The ML-KEM public key of a seed, for a suite.
#[must_use]
pub fn pq_public_key(private: &PqPrivateKey, suite: Suite) -> PqPublicKey {
    private.public(default_provider(), suite)
}

/// The connection for this is closed when it returns: a device may serve one
/// at a time.
fn features(interface: &str) -> Result<Features, Error> {
    let Some(stream) = socket::connect(interface)? else {
        return Ok(Features::default());
    };
    let device = socket::read(stream, interface)?;
    Ok(Features {
        endpoint_names: device.takes_endpoint_names,
        post_quantum: device.takes_post_quantum,
    })
}
