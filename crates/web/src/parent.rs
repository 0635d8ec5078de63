//! Messages of the parent, `taupe web`.

use crate::facts::Facts;
use crate::live::{INTERVAL, Live};
use crate::text::Text;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use taupe_web_link::{ToParent, ToServer, read_facts, receive, send};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, channel};

/// A message with its descriptors, or the end.
type Received = io::Result<Option<(ToServer, Vec<OwnedFd>)>>;

/// The socket of the parent.
pub(crate) struct Parent {
    socket: Arc<OwnedFd>,
    answered: Notify,
}

impl Parent {
    /// Starts a thread that waits for messages.
    pub(crate) fn begin(socket: OwnedFd) -> io::Result<(Self, Messages)> {
        let socket = Arc::new(socket);
        let (sender, messages) = channel(1);
        let receiving = Arc::clone(&socket);
        let wait = move || {
            loop {
                let received: Received = receive(receiving.as_fd());
                let is_last = !matches!(received, Ok(Some(_)));
                if sender.blocking_send(received).is_err() || is_last {
                    return;
                }
            }
        };
        thread::Builder::new().name("parent".into()).spawn(wait)?;
        let parent = Self {
            socket,
            answered: Notify::new(),
        };
        Ok((parent, Messages(messages)))
    }

    /// Sends a message. The socket has room, because the parent answers each one.
    pub(crate) fn send(&self, message: ToParent) -> io::Result<()> {
        send(self.socket.as_fd(), &message, &[])
    }

    /// Handles its messages until it ends.
    pub(crate) async fn listen(&self, messages: Messages, live: &Live) -> io::Result<()> {
        let Messages(mut messages) = messages;
        while let Some(received) = messages.recv().await {
            let Some((message, files)) = received? else {
                break;
            };
            match message {
                ToServer::Start(_) => return Err(io::ErrorKind::InvalidData.into()),
                ToServer::Token(token) => live.sessions().offer(token, Instant::now()),
                ToServer::Facts => {
                    live.publish(&Facts::parse(&read_facts(files)?)?);
                    self.answered.notify_one();
                }
                ToServer::Unreadable(reason) => {
                    live.publish_error(&Text::of(&reason));
                    self.answered.notify_one();
                }
            }
        }
        Ok(())
    }

    /// Asks for the state whenever a browser wants it, at most once a second.
    pub(crate) async fn ask(&self, live: &Live) -> io::Result<()> {
        loop {
            live.wanted().await;
            self.send(ToParent::Wanted)?;
            self.answered.notified().await;
            tokio::time::sleep(INTERVAL).await;
        }
    }
}

/// Messages that have arrived.
pub(crate) struct Messages(Receiver<Received>);
