//! Commands of the broker to a packet process.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tracing::{debug, warn};

use crate::link::{Link, LinkError};
use crate::message::FromBroker;

/// Time that a packet process has to read a message, and to execute a command. After that it misbehaves.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Commands of the broker's threads to the packet process.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) link: Arc<Link>,
    progress: Mutex<Progress>,
    progressed: Condvar,
    /// Held while a thread waits until flows are removed.
    forgetting: Mutex<()>,
}

/// Parts of the commands that the packet process has executed.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub(crate) has_ended: bool,
    /// Number of [`FromPacketProcess::Forgotten`].
    pub(crate) forgotten: u64,
}

impl Control {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self {
            link,
            progress: Mutex::default(),
            progressed: Condvar::new(),
            forgetting: Mutex::default(),
        }
    }

    /// Sends a command. A packet process that does not read it misbehaves, and is ended.
    pub(crate) fn command(
        &self,
        command: &FromBroker,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), LinkError> {
        self.link
            .send(command, descriptors)
            .inspect_err(|error| match error {
                LinkError::Unexpected(why) => self.give_up(why),
                _ => debug!(%error, "the packet process has ended already"),
            })
    }

    /// Sends a [`FromBroker::Forget`], and waits until it is executed.
    pub(crate) fn forget(&self, command: &FromBroker) -> Result<(), LinkError> {
        let _one_at_a_time = self
            .forgetting
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = self.progress().forgotten;
        self.command(command, &[])?;
        self.wait(
            |progress| progress.forgotten > before,
            "it does not remove flows",
        )
    }

    /// Stops the device. Returns before it has ended.
    pub(crate) fn stop(control: Arc<Self>) {
        if control.command(&FromBroker::Stop, &[]).is_err() {
            return;
        }
        let wait = move || {
            // Otherwise it has been given up.
            let _ = control.wait(|_| false, "it does not end the device");
        };
        // Without the thread, only a packet process that misbehaves goes on.
        let _ = thread::Builder::new().name("stop".into()).spawn(wait);
    }

    /// Waits until `is_done`, or until the packet process has ended. Ends one that takes too long, and
    /// logs `why`.
    fn wait(
        &self,
        is_done: impl Fn(&Progress) -> bool,
        why: &'static str,
    ) -> Result<(), LinkError> {
        let goes_on = |progress: &mut Progress| !progress.has_ended && !is_done(progress);
        let progress = self.progress();
        let waited = self
            .progressed
            .wait_timeout_while(progress, PATIENCE, goes_on);
        let (progress, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            self.give_up(why);
            return Err(LinkError::Unexpected(why));
        }
        match progress.has_ended {
            true => Err(LinkError::Closed),
            false => Ok(()),
        }
    }

    /// Ends a packet process that misbehaves: it finds its socket closed, or is killed by the
    /// supervisor, which finds the same.
    fn give_up(&self, why: &'static str) {
        warn!(why, "the packet process misbehaves and is ended");
        self.link.close();
    }

    /// Notes progress, and wakes the threads that wait for it.
    pub(crate) fn note(&self, progress: impl FnOnce(&mut Progress)) {
        progress(&mut self.progress());
        self.progressed.notify_all();
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
