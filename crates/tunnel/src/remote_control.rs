//! Commands from a tunnel's owner to its thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::time::Duration;

use taupe_stack::address::Name;
use taupe_stack::failure::ConnectFailure;
use tokio::sync::oneshot;

use crate::connection::TcpStream;
use crate::error::closed;
use crate::listener::TcpListener;
use crate::signals::{Received, Signal, Signals};
use crate::status::TunnelState;
use crate::udp::UdpSocket;

/// Sender of a command's result.
pub(crate) type Reply<T> = oneshot::Sender<T>;

/// A command to the thread.
pub(crate) enum Command {
    Connect {
        remote: SocketAddr,
        within: Duration,
        reply: Reply<Result<TcpStream, ConnectFailure>>,
    },
    LookUp {
        name: Name,
        reply: Reply<Result<Vec<IpAddr>, ConnectFailure>>,
    },
    Listen {
        port: u16,
        reply: Reply<io::Result<TcpListener>>,
    },
    BindUdp {
        port: u16,
        reply: Reply<io::Result<UdpSocket>>,
    },
    State {
        reply: Reply<TunnelState>,
    },
    Close {
        reply: Option<Reply<()>>,
    },
}

/// Sender of commands.
pub(crate) struct RemoteControl {
    commands: mpsc::Sender<Command>,
    signals: Signals,
}

/// Receiver of commands and signals.
pub(crate) struct Inbox {
    commands: mpsc::Receiver<Command>,
    signals: Received,
}

impl RemoteControl {
    pub(crate) fn new(signals: Signals, received: Received) -> (Self, Inbox) {
        let (send, commands) = mpsc::channel();
        let inbox = Inbox {
            commands,
            signals: received,
        };
        let control = Self {
            commands: send,
            signals,
        };
        (control, inbox)
    }

    /// Sends a command. Drops it if the thread has ended.
    pub(crate) fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.signals.wake();
        }
    }

    /// Sends a command and waits for its result.
    pub(crate) async fn ask<T>(&self, command: impl FnOnce(Reply<T>) -> Command) -> io::Result<T> {
        let (reply, result) = oneshot::channel();
        self.send(command(reply));
        result.await.map_err(|_| closed())
    }
}

/// The thread ends with its owner, also if nobody has received the started tunnel.
impl Drop for RemoteControl {
    fn drop(&mut self) {
        self.send(Command::Close { reply: None });
    }
}

impl Inbox {
    /// Returns the work so far; later work wakes the thread. Handle the signals first: if a task
    /// drops a listener and then asks for another one at its port, the port is free.
    pub(crate) fn take(&self) -> (impl Iterator<Item = Signal>, Vec<Command>) {
        self.signals.begin();
        let commands = self.commands.try_iter().collect();
        (self.signals.take(), commands)
    }
}
