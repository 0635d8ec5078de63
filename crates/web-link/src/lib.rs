//! The link between the process of `taupe web`, which can read the state of tunnels, and its child
//! `taupe-web`, which parses requests and has no rights.
//!
//! ```text
//! taupe web   Start + listening sockets ─►   taupe-web
//!             ◄─ Serving, Admitted, then Wanted for each reading
//!             Facts + a file in memory ─►
//!             Token, when the user wants another ─►
//!             ◄─ Switch, if the user permits changes
//!             Switched ─►
//! ```

#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

pub mod host;
mod secret;

pub use secret::Secret;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use taupe_os_linux::message_socket;

/// Name of the program that serves pages.
pub const PROGRAM: &str = "taupe-web";

/// Bytes of facts, at most. 10,000 peers have some 4 MiB.
const MAX_FACTS: usize = 64 << 20;

/// Characters of a reason, at most. As JSON it is several times as long, and must fit into a message.
const MAX_REASON: usize = 4000;

/// A message to the server of pages.
#[derive(Serialize, Deserialize)]
pub enum ToServer {
    /// The first message. Its descriptors are the listening sockets: that of TCP, then the Unix socket.
    Start(Start),
    /// Another token, which replaces the one before and ends its session.
    Token(Token),
    /// The state of tunnels as JSON. Its descriptor is a file in memory.
    Facts,
    /// The state cannot be read, for this reason.
    Unreadable(String),
    /// The answer to [`ToParent::Switch`].
    Switched(Outcome),
}

/// The beginning of a server.
#[derive(Serialize, Deserialize)]
pub struct Start {
    /// Version of the parent's program.
    pub version: String,
    /// True if there is a TCP socket.
    pub has_tcp: bool,
    /// True if there is a Unix socket.
    pub has_unix: bool,
    /// The first part of the paths of all pages. Other servers of this address do not know it.
    pub path: Secret,
    /// The first token.
    pub token: Token,
    /// True if the page may change the applications of tunnels.
    pub has_switches: bool,
}

/// A token that admits one browser.
#[derive(Clone, Serialize, Deserialize)]
pub struct Token {
    /// Tokens are counted from 1.
    pub number: u32,
    /// The value in the address.
    pub secret: Secret,
}

/// A message to the parent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToParent {
    /// Requests are served. The list has all layers of confinement.
    Serving(Vec<Layer>),
    /// The token with this number has admitted a browser.
    Admitted(u32),
    /// The state is wanted.
    Wanted,
    /// An application shall be put into a list of a tunnel's file. One at a time.
    Switch(Switch),
}

/// A change of the applications in a tunnel, from a browser.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Switch {
    /// Name of the tunnel.
    pub tunnel: String,
    /// The application as in a file.
    pub application: String,
    /// The list that has it afterwards.
    pub place: Place,
}

/// A list of applications in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Place {
    /// `AllowedApps`.
    Allowed,
    /// `DisallowedApps`.
    Disallowed,
    /// Neither list.
    Nowhere,
}

/// The result of a change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// True if the file is changed, or needed no change.
    pub is_done: bool,
    /// Sentences about it: what was done, remarks, the reason of a failure.
    pub sentences: Vec<String>,
}

/// Sentences of an outcome, and characters of each, at most. As JSON they must fit into a message.
const MAX_SENTENCES: usize = 10;
const MAX_SENTENCE: usize = 600;

impl Outcome {
    /// Returns an outcome. The end of long sentences, and sentences beyond ten, are left out.
    #[must_use]
    pub fn new(is_done: bool, sentences: &[String]) -> Self {
        let short = |it: &String| it.chars().take(MAX_SENTENCE).collect();
        Self {
            is_done,
            sentences: sentences.iter().take(MAX_SENTENCES).map(short).collect(),
        }
    }
}

/// A layer of confinement of the server.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Layer {
    /// Its name, and the reason if it does not hold.
    pub text: String,
    /// Part of it that holds.
    pub extent: Extent,
}

/// Part of a layer that holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Extent {
    /// All of it.
    Full,
    /// Some of it.
    Partial,
    /// Nothing.
    None,
}

impl ToServer {
    /// Returns the message that the state cannot be read. The end of a long reason is left out.
    #[must_use]
    pub fn unreadable(reason: &str) -> Self {
        Self::Unreadable(reason.chars().take(MAX_REASON).collect())
    }
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
/// See [`message_socket::receive`]; `InvalidData` if it is no such message. The next message can be
/// received after `InvalidData` and `EMSGSIZE` ([`is_of_one_message`]).
pub fn receive<M: for<'a> Deserialize<'a>>(
    socket: BorrowedFd<'_>,
) -> io::Result<Option<(M, Vec<OwnedFd>)>> {
    let Some(message) = message_socket::receive(socket)? else {
        return Ok(None);
    };
    let parsed = serde_json::from_slice(&message.text);
    let parsed = parsed.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Some((parsed, message.descriptors)))
}

/// Returns true if an error of [`receive`] concerns one message, and not the socket.
#[must_use]
pub fn is_of_one_message(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    error.kind() == io::ErrorKind::InvalidData
        || matches!(errno, Some(Errno::MSGSIZE | Errno::MFILE))
}

/// Sends facts, which are too long for a message and therefore in a file in memory.
///
/// # Errors
/// `InvalidData` if they are longer than 64 MiB; see [`message_socket::send`], `memfd_create(2)` and
/// `write(2)`.
pub fn send_facts(socket: BorrowedFd<'_>, facts: &impl Serialize) -> io::Result<()> {
    let text = serde_json::to_vec(facts)?;
    if text.len() > MAX_FACTS {
        return Err(too_long());
    }
    let mut file = File::from(memfd_create("taupe-facts", MemfdFlags::CLOEXEC)?);
    file.write_all(&text)?;
    file.rewind()?;
    send(socket, &ToServer::Facts, &[file.as_fd()])
}

/// Reads facts that [`send_facts`] has sent.
///
/// # Errors
/// See `read(2)`; `InvalidData` without a descriptor, or if the facts are longer than 64 MiB.
pub fn read_facts(descriptors: Vec<OwnedFd>) -> io::Result<Vec<u8>> {
    let file = descriptors.into_iter().next();
    let missing = || io::Error::new(io::ErrorKind::InvalidData, "their file is missing");
    let file = File::from(file.ok_or_else(missing)?);
    let mut text = Vec::new();
    if file.take(MAX_FACTS as u64 + 1).read_to_end(&mut text)? > MAX_FACTS {
        return Err(too_long());
    }
    Ok(text)
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "they are longer than 64 MiB")
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
            has_tcp: true,
            has_unix: false,
            path: Secret::random().expect("randomness"),
            token: Token {
                number: 1,
                secret: token.clone(),
            },
            has_switches: false,
        };
        let start = ToServer::Start(start);
        send(parent.as_fd(), &start, &[parent.as_fd()]).expect("sent");
        let received = receive(server.as_fd()).expect("received").expect("one");
        let (ToServer::Start(start), files) = received else {
            panic!("another message");
        };
        assert_eq!((start.has_tcp, files.len()), (true, 1));
        assert!(start.token.secret.is_equal(&token));
    }

    #[test]
    fn a_bad_message_leaves_the_next_one() {
        let (parent, server) = message_socket::pair().expect("sockets");
        message_socket::send(parent.as_fd(), b"{\"Other\":1}", &[]).expect("sent");
        let long = vec![b'x'; message_socket::MAX_TEXT + 1];
        rustix::net::send(&parent, &long, rustix::net::SendFlags::empty()).expect("sent");
        // Each of these characters takes six bytes in JSON.
        let reason = "\u{1}".repeat(100_000);
        send(parent.as_fd(), &ToServer::unreadable(&reason), &[]).expect("sent");
        for _ in 0..2 {
            let error = receive::<ToServer>(server.as_fd()).map(drop);
            assert!(is_of_one_message(&error.expect_err("no message")));
        }
        let received = receive(server.as_fd()).expect("received").expect("one");
        let (ToServer::Unreadable(short), _) = received else {
            panic!("another message");
        };
        assert_eq!(short.len(), MAX_REASON);
        // Such an end must not be taken for that of the parent.
        let missing = read_facts(Vec::new()).expect_err("no file");
        assert!(is_of_one_message(&missing));
    }
}
