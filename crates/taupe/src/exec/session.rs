//! The life of a tunnel that commands use: from the first command's start to the last
//! one's end.

use super::signals::{Received, Signals};
use crate::console::say;
use crate::device::Device;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;
use taupe_engine::Exit;
use taupe_sandbox::{Child, Member, NOT_SET_UP, Namespaces, Shared};

/// How long a device has to end before the process does anyway.
const ENDING: Duration = Duration::from_secs(2);

/// From one try to accept a process to the next, when the system has no descriptors left.
const AGAIN: Duration = Duration::from_millis(100);

/// What can happen.
enum Event {
    Signal(Received),
    /// The first command has ended with this status.
    Ended(u8),
    /// A process wants to join.
    Asks(Member),
    /// One that has joined has ended.
    Left,
    Device(Exit),
}

/// A tunnel with its commands.
pub(super) struct Session<'a> {
    name: &'a str,
    shared: Shared,
    namespaces: Namespaces,
    /// The first command.
    child: Child,
    /// Its status, once it has ended.
    status: Option<u8>,
    /// How many others there are.
    members: usize,
    sender: Sender<Event>,
    events: Receiver<Event>,
}

impl<'a> Session<'a> {
    pub(super) fn new(name: &'a str, shared: Shared, namespaces: Namespaces, child: Child) -> Self {
        let (sender, events) = channel();
        Self {
            name,
            shared,
            namespaces,
            child,
            status: None,
            members: 0,
            sender,
            events,
        }
    }

    /// Stays until the last command has ended, or a signal asks for the end after the
    /// first has. Returns the status of the first.
    ///
    /// # Errors
    ///
    /// When there is no thread left; the tunnel ends then, and the command has no network.
    pub(super) fn run<D: Device>(mut self, device: D, signals: Signals) -> io::Result<u8> {
        let stop = device.stopper();
        self.tell("device", move |tell| {
            tell(Event::Device(device.run()));
        })?;
        self.tell("signals", move |tell| {
            while let Ok(signal) = signals.next() {
                tell(Event::Signal(signal));
            }
        })?;
        let pid = self.child.pid;
        self.tell("command", move |tell| tell(Event::Ended(wait(pid))))?;
        let listener = self.shared.listener()?;
        self.tell("joining", move |tell| {
            loop {
                match Shared::accept(&listener) {
                    Ok(member) => tell(Event::Asks(member)),
                    Err(error) => {
                        tracing::debug!(%error, "a process could not join");
                        thread::sleep(AGAIN);
                    }
                }
            }
        })?;
        let mut has_device = true;
        while !self.is_over() {
            // This has a sender itself.
            let Ok(event) = self.events.recv() else {
                break;
            };
            match event {
                Event::Signal(signal) if self.status.is_some() && signal.asks_to_end() => break,
                Event::Signal(signal) => self.pass_on(signal),
                Event::Ended(status) => self.ended(status),
                Event::Asks(member) => self.admit(member),
                Event::Left => self.members -= 1,
                Event::Device(exit) => {
                    has_device = false;
                    say(&format_args!(
                        "taupe: the tunnel {} has ended ({exit:?}); its commands have no network \
                         any more",
                        self.name
                    ));
                }
            }
        }
        if has_device {
            stop();
            self.await_device();
        }
        Ok(self.status.unwrap_or(NOT_SET_UP))
    }

    /// Does something in a thread of its own that may tell of events.
    fn tell(
        &self,
        name: &str,
        work: impl FnOnce(&dyn Fn(Event)) + Send + 'static,
    ) -> io::Result<()> {
        let sender = self.sender.clone();
        let tell = move |event| {
            // Nobody listens any more when the process is about to end.
            let _ = sender.send(event);
        };
        let builder = thread::Builder::new().name(name.to_owned());
        builder.spawn(move || work(&tell)).map(drop)
    }

    fn is_over(&self) -> bool {
        self.status.is_some() && self.members == 0
    }

    fn pass_on(&self, signal: Received) {
        if self.status.is_none()
            && !signal.is_everybodys
            && let Some(signal) = Signal::from_named_raw(signal.number)
        {
            // One that has just ended needs no signal.
            self.child.signal(signal);
        }
    }

    fn ended(&mut self, status: u8) {
        self.status = Some(status);
        if self.members > 0 {
            say(&format_args!(
                "taupe: the command has ended; {} stays for {} that joined (SIGTERM ends it)",
                self.name, self.members
            ));
        }
    }

    /// Lets a process in. It counts until it ends, whatever it becomes.
    fn admit(&mut self, member: Member) {
        let Ok(process) = member.process.try_clone() else {
            return;
        };
        let watched = self.tell("joined", move |tell| {
            await_end(&process);
            tell(Event::Left);
        });
        if watched.is_ok() {
            self.members += 1;
            // One that is gone by now is told of in a moment.
            member.admit(&self.namespaces);
        }
    }

    fn await_device(&self) {
        while let Ok(event) = self.events.recv_timeout(ENDING) {
            if matches!(event, Event::Device(_)) {
                return;
            }
        }
    }
}

/// Waits for the first command; its status, or 128 and the number of the signal that
/// ended it.
fn wait(pid: Pid) -> u8 {
    let waited = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
    let Ok(Some((_, status))) = waited else {
        return NOT_SET_UP;
    };
    let code = status
        .exit_status()
        .or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(NOT_SET_UP)
}

fn await_end(process: &OwnedFd) {
    let mut ends = [PollFd::new(process, PollFlags::IN)];
    // What fails is not worth to stay for.
    let _ = retry_on_intr(|| poll(&mut ends, None));
}
