//! The link between the process of `taupe web`, which can read the state of tunnels, and its child
//! `taupe-web`, which parses requests and has no rights.
//!
//! ```text
//! taupe web   Start + listening sockets ─►   taupe-web
//!             ◄─ Serving, then Wanted for each reading
//!             Facts + a file in memory ─►
//!             Token, when the user wants another ─►
//! ```

#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

pub mod host;
mod secret;

pub use secret::Secret;

use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use taupe_os_linux::message_socket;

/// Name of the program that serves pages.
pub const PROGRAM: &str = "taupe-web";

/// Bytes of facts, at most. 10,000 peers have some 4 MiB.
const MAX_FACTS: u64 = 64 << 20;

/// A message to the server of pages.
#[derive(Serialize, Deserialize)]
pub enum ToServer {
    /// The first message. Its descriptors are the listening sockets: that of TCP, then the Unix socket.
    Start(Start),
    /// A token that admits one browser.
    Token(Secret),
    /// The state of tunnels as JSON. Its descriptor is a file in memory.
    Facts,
    /// The state cannot be read, for this reason.
    Unreadable(String),
}

/// The beginning of a server.
#[derive(Serialize, Deserialize)]
pub struct Start {
    /// Version of the parent's program.
    pub version: String,
    /// Port of the TCP socket. `None` if there is no such socket.
    pub port: Option<u16>,
    /// True if there is a Unix socket.
    pub has_unix: bool,
    /// The token that admits the first browser.
    pub token: Secret,
}

/// A message to the parent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToParent {
    /// Requests are served.
    Serving,
    /// The state is wanted.
    Wanted,
}

/// Sends a message with copies of descriptors.
///
/// # Errors
/// See [`message_socket::send`].
pub fn send(
    socket: BorrowedFd<'_>,
    message: &impl Serialize,
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<()> {
    message_socket::send(socket, &serde_json::to_vec(message)?, descriptors)
}

/// Waits for a message. Returns `None` when the other end is closed.
///
/// # Errors
/// See [`message_socket::receive`]; `InvalidData` if it is no such message.
pub fn receive<M: for<'a> Deserialize<'a>>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let Some(message) = message_socket::receive(socket)? else {
        return Ok(None);
    };
    let parsed = serde_json::from_slice(&message.text)?;
    Ok(Some((parsed, message.descriptors)))
}

/// Sends facts, which are too long for a message and therefore in a file in memory.
///
/// # Errors
/// See [`message_socket::send`], `memfd_create(2)` and `write(2)`.
pub fn send_facts(socket: BorrowedFd<'_>, facts: &impl Serialize) -> io::Result<()> {
    let mut file = File::from(memfd_create("taupe-facts", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(facts)?)?;
    file.rewind()?;
    send(socket, &ToServer::Facts, &[file.as_fd()])
}

/// Reads facts that [`send_facts`] has sent.
///
/// # Errors
/// See `read(2)`; `UnexpectedEof` without a descriptor, `InvalidData` if the facts are longer than
/// 64 MiB.
pub fn read_facts(descriptors: Vec<OwnedFd>) -> io::Result<Vec<u8>> {
    let file = descriptors.into_iter().next();
    let file = File::from(file.ok_or(io::ErrorKind::UnexpectedEof)?);
    let mut text = Vec::new();
    if file.take(MAX_FACTS + 1).read_to_end(&mut text)? as u64 > MAX_FACTS {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_received_as_they_were_sent() {
        let (parent, server) = message_socket::pair().expect("sockets");
        let long = "a fact ".repeat(1 << 17);
        send_facts(parent.as_fd(), &long).expect("sent");
        let (message, files) = receive(server.as_fd()).expect("received").expect("one");
        assert!(matches!(message, ToServer::Facts));
        let read = read_facts(files).expect("readable");
        assert!(serde_json::from_slice::<String>(&read).expect("JSON") == long);
        assert!(read_facts(Vec::new()).is_err());
        drop(parent);
        assert!(
            receive::<ToServer>(server.as_fd())
                .expect("closed")
                .is_none()
        );
    }

    #[test]
    fn listening_sockets_arrive_with_the_token() {
        let (parent, server) = message_socket::pair().expect("sockets");
        let token = Secret::random().expect("randomness");
        let start = Start {
            version: "1".into(),
            port: Some(9587),
            has_unix: false,
            token: token.clone(),
        };
        let start = ToServer::Start(start);
        send(parent.as_fd(), &start, &[parent.as_fd()]).expect("sent");
        let received = receive(server.as_fd()).expect("received").expect("one");
        let (ToServer::Start(start), files) = received else {
            panic!("another message");
        };
        assert_eq!((start.port, files.len()), (Some(9587), 1));
        assert!(start.token.is_equal(&token));
    }
}
