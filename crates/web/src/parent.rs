//! Messages of the parent, `taupe web`.

use crate::facts::Facts;
use crate::live::{INTERVAL, Live};
use crate::text::Text;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use std::thread;
use std::time::Instant;
use taupe_web_link::{ToParent, ToServer, is_of_one_message, read_facts, receive, send};
use tokio::sync::Notify;
use tokio::sync::mpsc::{Receiver, channel};

/// A message with its descriptors, or the end.
pub(crate) type Received = io::Result<Option<(ToServer, Vec<OwnedFd>)>>;

/// The socket of the parent.
pub(crate) struct Parent {
    socket: Arc<OwnedFd>,
    answered: Notify,
}

impl Parent {
    /// Starts a thread that waits for messages.
    pub(crate) fn begin(socket: OwnedFd) -> io::Result<(Self, Receiver<Received>)> {
        let socket = Arc::new(socket);
        let (sender, messages) = channel(1);
        let receiving = Arc::clone(&socket);
        let wait = move || {
            loop {
                let received: Received = receive(receiving.as_fd());
                let is_last = match &received {
                    Ok(message) => message.is_none(),
                    Err(error) => !is_of_one_message(error),
                };
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
        Ok((parent, messages))
    }

    /// Sends a message. The socket has room, because the parent answers each one. Returns false if the
    /// parent has ended.
    pub(crate) fn send(&self, message: &ToParent) -> io::Result<bool> {
        match send(self.socket.as_fd(), message, &[]) {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
            sent => sent.map(|()| true),
        }
    }

    /// Handles its messages until it ends. A message that cannot be read does not end the server.
    pub(crate) async fn listen(
        &self,
        mut messages: Receiver<Received>,
        live: &Live,
    ) -> io::Result<()> {
        while let Some(received) = messages.recv().await {
            match received {
                Ok(Some((message, files))) => self.handle(message, files, live),
                Ok(None) => break,
                Err(error) if is_of_one_message(&error) => self.report(&error, live),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn handle(&self, message: ToServer, files: Vec<OwnedFd>, live: &Live) {
        match message {
            ToServer::Start(_) => self.report(&"it starts twice", live),
            ToServer::Token(token) => live.sessions().offer(token, Instant::now()),
            ToServer::Switched(outcome) => live.finish_switch(outcome),
            ToServer::Facts => {
                let facts = read_facts(files).and_then(|text| Ok(Facts::parse(&text)?));
                match facts {
                    Ok(facts) => {
                        live.publish(&facts);
                        self.answered.notify_one();
                    }
                    Err(error) => self.report(&error, live),
                }
            }
            ToServer::Unreadable(reason) => {
                live.publish_error(&Text::of(&reason));
                self.answered.notify_one();
            }
        }
    }

    /// Shows that a message of the parent cannot be used.
    fn report(&self, error: &dyn fmt::Display, live: &Live) {
        let reason = format!("taupe-web cannot read a message of `taupe web`: {error}");
        live.publish_error(&Text::of(&reason));
        self.answered.notify_one();
    }

    /// Requests the state whenever a window wants it, at most once a second, until the parent ends.
    pub(crate) async fn request_states(&self, live: &Live) -> io::Result<()> {
        loop {
            live.wanted().await;
            if !self.send(&ToParent::Wanted)? {
                return Ok(());
            }
            self.answered.notified().await;
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Reports each browser that is admitted, until the parent ends.
    pub(crate) async fn report_browsers(&self, live: &Live) -> io::Result<()> {
        let mut admissions = live.admissions();
        while admissions.changed().await.is_ok() {
            let number = *admissions.borrow_and_update();
            if !self.send(&ToParent::Admitted(number))? {
                break;
            }
        }
        Ok(())
    }

    /// Passes on changes that a browser requests, until the parent ends.
    pub(crate) async fn request_switches(&self, live: &Live) -> io::Result<()> {
        while self.send(&ToParent::Switch(live.switches().next().await))? {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sessions::Sessions;
    use std::time::Duration;
    use taupe_os_linux::message_socket;
    use taupe_web_link::{Secret, send_facts};

    #[tokio::test]
    async fn only_the_end_of_the_parent_ends_the_server() {
        let (near, far) = message_socket::pair().expect("sockets");
        let (parent, messages) = Parent::begin(far).expect("a thread");
        let run = Secret::random().expect("randomness");
        let live = Arc::new(Live::new(Sessions::default(), run, false));
        let (listening, listening_live) = (Arc::new(parent), Arc::clone(&live));
        let served = tokio::spawn(async move { listening.listen(messages, &listening_live).await });
        let mut views = live.views();
        let bad: [&dyn Fn(); 4] = [
            &|| message_socket::send(near.as_fd(), b"\"Other\"", &[]).expect("sent"),
            &|| send(near.as_fd(), &ToServer::Facts, &[]).expect("sent"),
            &|| send_facts(near.as_fd(), &"no facts").expect("sent"),
            &|| {
                let long = vec![b'x'; message_socket::MAX_TEXT + 1];
                rustix::net::send(&near, &long, rustix::net::SendFlags::empty()).expect("sent");
            },
        ];
        for send_bad in bad {
            send_bad();
            let view = tokio::time::timeout(Duration::from_secs(9), live.next(&mut views));
            let view = view.await.expect("in time").expect("a view");
            let words = "taupe-web cannot read a message";
            assert!(view.content.contains(words), "{}", view.content);
        }
        drop(near);
        served.await.expect("no panic").expect("an end");
    }
}
