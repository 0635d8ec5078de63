//! The tunnel of one or more commands, from the start of the first command to the end of the last.

use super::signals::is_termination;
use crate::console::say;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, WaitOptions, waitpid};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;
use taupe_engine::{Engine, Exit};
use taupe_os_linux::signals::{BlockedSignals, ReceivedSignal};
use taupe_sandbox::{Child, JoinRequest, NOT_SET_UP, Namespaces, Rendezvous};

/// Time that a device has to end before the process exits anyway.
const ENDING: Duration = Duration::from_secs(2);

/// Delay before the next attempt to accept a process if the system has no file descriptors left.
const AGAIN: Duration = Duration::from_millis(100);

enum Event {
    Signal(ReceivedSignal),
    /// The first command has ended with this status.
    Ended(u8),
    /// A process asks to join.
    JoinRequest(JoinRequest),
    /// A process that joined has ended.
    MemberEnded,
    Device(Exit),
}

/// A tunnel with its commands.
pub(super) struct Session<'a> {
    name: &'a str,
    shared: Rendezvous,
    namespaces: Namespaces,
    child: Child,
    /// Exit status of the first command, once it has ended.
    status: Option<u8>,
    /// Number of processes that joined.
    members: usize,
    sender: Sender<Event>,
    events: Receiver<Event>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        name: &'a str,
        shared: Rendezvous,
        namespaces: Namespaces,
        child: Child,
    ) -> Self {
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

    /// Runs until the last command has ended, or until a signal asks for the end after the first
    /// command has ended. Returns the exit status of the first command.
    ///
    /// # Errors
    ///
    /// Fails if no thread is left. The tunnel ends then, and the command has no network.
    pub(super) fn run(mut self, device: Engine, signals: BlockedSignals) -> io::Result<u8> {
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
                match listener.accept() {
                    Ok(member) => tell(Event::JoinRequest(member)),
                    Err(error) => {
                        tracing::debug!(%error, "a process could not join");
                        thread::sleep(AGAIN);
                    }
                }
            }
        })?;
        let mut has_device = true;
        while !self.is_over() {
            // Receiving cannot fail, because this session holds a sender too.
            let Ok(event) = self.events.recv() else {
                break;
            };
            match event {
                Event::Signal(signal) if self.status.is_some() && is_termination(signal.number) => {
                    break;
                }
                Event::Signal(signal) => self.pass_on(signal),
                Event::Ended(status) => self.ended(status),
                Event::JoinRequest(member) => self.admit(member),
                Event::MemberEnded => self.members -= 1,
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
            stop.stop();
            self.await_device();
        }
        Ok(self.status.unwrap_or(NOT_SET_UP))
    }

    /// Runs a function in a thread. The function can send events.
    fn tell(
        &self,
        name: &str,
        work: impl FnOnce(&dyn Fn(Event)) + Send + 'static,
    ) -> io::Result<()> {
        let sender = self.sender.clone();
        let tell = move |event| {
            // The receiver is gone if the process is about to end.
            let _ = sender.send(event);
        };
        let builder = thread::Builder::new().name(name.to_owned());
        builder.spawn(move || work(&tell)).map(drop)
    }

    fn is_over(&self) -> bool {
        self.status.is_some() && self.members == 0
    }

    fn pass_on(&self, signal: ReceivedSignal) {
        // The terminal sends a key's signal to its whole foreground process group, so the command
        // has received it too.
        if self.status.is_none()
            && !signal.is_from_kernel
            && let Some(signal) = Signal::from_named_raw(signal.number)
        {
            // If the command has just ended, this does nothing.
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

    /// Lets a process join. It counts as a member until it ends, even if joining fails.
    fn admit(&mut self, member: JoinRequest) {
        let Ok(process) = member.process.try_clone() else {
            return;
        };
        let watched = self.tell("joined", move |tell| {
            await_end(&process);
            tell(Event::MemberEnded);
        });
        if watched.is_ok() {
            self.members += 1;
            // If the process has ended already, its watching thread reports that.
            member.grant(&self.namespaces);
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

/// Waits for the first command. Returns its exit status, or 128 plus the number of the signal that
/// killed it.
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
    // On an error the process counts as ended.
    let _ = retry_on_intr(|| poll(&mut ends, None));
}
