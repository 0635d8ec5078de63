//! The broker as the packet process sees it.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use taupe_engine::Exit;
use taupe_nat::flows::ExpiringFlows;
use tracing::debug;

use crate::link::{Link, LinkError};
use crate::message::{Answer, BindFailure, FromBroker, FromPacketProcess, Request};
use crate::start::{Start, StartOptions, no_room};

/// The broker of this packet process.
#[derive(Clone)]
pub struct Broker(Arc<State>);

struct State {
    link: Link,
    /// Requests without an answer yet, by number.
    waiting: Mutex<HashMap<u64, mpsc::SyncSender<Reply>>>,
    next: AtomicU64,
}

type Reply = (Answer, Vec<OwnedFd>);

/// A command of the broker.
#[derive(Debug)]
pub enum Command {
    /// End the device.
    Stop,
    /// Set the addresses of the main uplink, to which the translator sends packets that belong to no flow.
    SetMainUplink {
        /// The IPv4 address.
        v4: Option<Ipv4Addr>,
        /// The IPv6 address.
        v6: Option<Ipv6Addr>,
    },
    /// Have the translator remove these flows.
    Forget(ExpiringFlows),
    /// Write a report of the translator's UDP flows to this client.
    Report(UnixStream),
}

impl Broker {
    /// Receives the device to run from the socket to the broker, and reports to the broker if that
    /// fails.
    ///
    /// # Errors
    /// [`LinkError`]
    pub fn accept(socket: OwnedFd) -> Result<(Self, StartOptions), LinkError> {
        let link = Link::new(socket);
        let options = Start::read(link.receive_text()?).inspect_err(|error| {
            let reason = error.to_string();
            // If the broker has ended, nobody is left to hear it.
            let _ = link.send(&FromPacketProcess::Failed { reason }, &[]);
        })?;
        let state = State {
            link,
            waiting: Mutex::default(),
            next: AtomicU64::new(0),
        };
        Ok((Self(Arc::new(state)), options))
    }

    /// Passes answers to the threads that wait for them, and lets `execute` execute commands, until the
    /// broker has ended or sends an invalid message. Must have a thread of its own. `execute` must not
    /// block for long.
    pub fn run(&self, mut execute: impl FnMut(Command)) -> LinkError {
        loop {
            let received = self.0.link.receive_text();
            let received = received.and_then(|message| {
                let text = serde_json::from_slice(&message.text)?;
                Ok((text, message.descriptors, message.lacks_descriptors))
            });
            let (message, descriptors, lacks_descriptors) = match received {
                Ok(received) => received,
                Err(error) => return error,
            };
            match message {
                FromBroker::Answer { id, answer } => match self.waiting().remove(&id) {
                    // Only sockets come with an answer.
                    Some(waiting) if lacks_descriptors => drop(waiting.send((
                        Answer::NotBound(BindFailure::Other {
                            what: "receiving sockets".to_owned(),
                            reason: no_room(),
                        }),
                        Vec::new(),
                    ))),
                    Some(waiting) => drop(waiting.send((answer, descriptors))),
                    None => debug!(id, "an answer to no request"),
                },
                FromBroker::Stop => execute(Command::Stop),
                FromBroker::SetMainUplink { v4, v6 } => execute(Command::SetMainUplink { v4, v6 }),
                FromBroker::Forget { flows } => {
                    execute(Command::Forget(flows));
                    if let Err(error) = self.0.link.send(&FromPacketProcess::Forgotten, &[]) {
                        return error;
                    }
                }
                FromBroker::Report => match descriptors.into_iter().next() {
                    Some(client) => execute(Command::Report(client.into())),
                    None => debug!("no descriptor is left for a client that waits for a report"),
                },
            }
        }
    }

    /// Checks whether the broker has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.0.link.is_closed()
    }

    /// Reports that the device has started, with `tun`. From now on the broker keeps the interface, and
    /// removes the file of the configuration socket.
    ///
    /// # Errors
    /// [`LinkError`]
    pub fn started(&self, tun: BorrowedFd<'_>) -> Result<(), LinkError> {
        self.0.link.send(&FromPacketProcess::Started, &[tun])
    }

    /// Reports that the device cannot be started.
    ///
    /// # Errors
    /// [`LinkError`]
    pub fn failed(&self, reason: String) -> Result<(), LinkError> {
        self.0.link.send(&FromPacketProcess::Failed { reason }, &[])
    }

    /// Reports that the device has ended.
    ///
    /// # Errors
    /// [`LinkError`]
    pub fn ended(&self, exit: Exit) -> Result<(), LinkError> {
        self.0.link.send(&FromPacketProcess::Ended { exit }, &[])
    }

    /// Ends what the end of the process would end: the socket, and requests that wait for an answer.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn end(&self) {
        self.0.link.close();
        self.waiting().clear();
    }

    /// Sends a request and waits for its answer.
    pub(crate) fn ask(
        &self,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Reply> {
        let (sender, answer) = mpsc::sync_channel(1);
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        self.waiting().insert(id, sender);
        let request = FromPacketProcess::Request { id, request };
        if let Err(error) = self.0.link.send(&request, descriptors) {
            self.waiting().remove(&id);
            return Err(io::Error::other(error));
        }
        answer
            .recv()
            .map_err(|_| io::Error::other(LinkError::Closed))
    }

    /// Has the flood filter pass answers to the handshake message with this sender index.
    pub(crate) fn expect_answer(&self, index: u32) -> Result<(), LinkError> {
        self.0
            .link
            .send(&FromPacketProcess::ExpectAnswer { index }, &[])
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<u64, mpsc::SyncSender<Reply>>> {
        self.0
            .waiting
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
